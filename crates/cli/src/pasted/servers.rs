//! What a pasted message says about each server.
//!
//! Every driver prints its view of the deployment in a format of its own. This module finds those
//! views, of whatever driver, and takes from each server its address, its type and its last error.
//! What an error means is left to the rules.

use std::sync::LazyLock;

use regex_lite::Regex;

use super::MAX_SERVERS;

/// A server as a message describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescribedServer {
    /// `host:port`.
    pub(crate) address: String,
    /// Its type, in the specification's words where we know them.
    pub(crate) kind: Option<String>,
    /// The driver's words about its last failure.
    pub(crate) error: Option<String>,
}

/// Where the description of a server begins, in each format. The groups `host` and `port`, or
/// `address`.
///
/// | driver | looks like |
/// |---|---|
/// | PyMongo | `<ServerDescription ('db0', 27017) server_type: Unknown, rtt: None, error=…>` |
/// | Node | `'db0:27017' => ServerDescription { address: 'db0:27017', type: 'Unknown', …` |
/// | Java | `{address=db0:27017, type=UNKNOWN, state=CONNECTING, exception={…}}` |
/// | Go | `{ Addr: db0:27017, Type: Unknown, Last error: … }` |
/// | Rust | `{ Address: db0:27017, Type: Unknown, Error: … }` |
/// | ours | `  db0:27017 Unknown: connection refused; 2 s ago`, a line of its own |
/// | Perl | `  db0:27017 (type: Unknown, error: …)`, a line of its own |
/// | .NET | `EndPoint: "Unspecified/db0:27017", … Type: "Unknown", HeartbeatException: "…` |
static BEGINNINGS: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r#"(?x)
        <ServerDescription\ \(u?'(?P<py_host>[^']+)',\ (?P<py_port>\d+|None)\)
        | =>\s*(?:ServerDescription\s*)?\{\s*(?:_hostAddress:[^}]*\},?\s*)?address:\s*'(?P<node>[^']+)'
        | \{\s*address=(?P<java>[^,\s]+),\ type=
        | \{\s*Addr:\ (?P<go>[^,\s]+),\ Type:
        | \{\s*Address:\ (?P<rust>[^,\s]+),\ Type:
        | (?m:^)\x20\x20(?P<own>\S+)\ (?P<own_kind>Unknown|PossiblePrimary|RS\w+|Standalone|Mongos):\ (?P<own_error>[^\n]*)
        | (?m:^)\x20\x20(?P<perl>\S+:\d+)\ \(type:
        | \{\s*ServerId:[^}]*\}",\ EndPoint:\ "(?:Unspecified/)?(?P<net>[^"]+)"
        "#,
    )
});

static KIND: LazyLock<Regex> =
    LazyLock::new(|| compiled(r#"(?:server_type: |[Tt]ype(?:: ?|=)['"]?)(?P<kind>[A-Za-z_]+)"#));

static ERROR: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r#"(?s)(?:error=|error: |exception=\{|Last ?[Ee]rror: |Error: |HeartbeatException: ")(?P<error>.+)"#,
    )
});

/// Compiles a pattern of ours; a mistake in one is caught by the tests that use them all.
#[allow(clippy::expect_used, reason = "the pattern is a constant")]
pub(super) fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of our own is well formed")
}

/// The servers that the text describes, in its order and each once. At most [`MAX_SERVERS`].
pub(super) fn described_servers(text: &str) -> Vec<DescribedServer> {
    let mut found: Vec<DescribedServer> = Vec::new();
    let beginnings: Vec<_> = BEGINNINGS.captures_iter(text).take(MAX_SERVERS).collect();
    for (position, captures) in beginnings.iter().enumerate() {
        let start = captures.get(0).map_or(0, |whole| whole.start());
        let end = beginnings
            .get(position + 1)
            .and_then(|next| next.get(0))
            .map_or(text.len(), |next| next.start());
        let Some(address) = address(captures) else { continue };
        if found.iter().any(|known| known.address == address) {
            continue;
        }
        if let Some(kind) = captures.name("own_kind") {
            found.push(own(address, kind.as_str(), &captures["own_error"]));
            continue;
        }
        let body = &text[start..end];
        let kind = KIND.captures(body).map(|kind| specification_name(&kind["kind"]).to_owned());
        let error = ERROR.captures(body).and_then(|captures| error_text(&captures["error"]));
        found.push(DescribedServer { address, kind, error });
    }
    found
}

fn address(captures: &regex_lite::Captures<'_>) -> Option<String> {
    if let Some(host) = captures.name("py_host") {
        let port = captures.name("py_port").map_or("27017", |port| port.as_str());
        return Some(match port {
            // A socket's path has no port.
            "None" => host.as_str().to_owned(),
            port => format!("{}:{port}", host.as_str()),
        });
    }
    ["node", "java", "go", "rust", "net", "own", "perl"]
        .into_iter()
        .find_map(|group| captures.name(group))
        .map(|address| address.as_str().trim_end_matches(']').to_owned())
}

/// A line of our own selection error. Only of servers that are not known is the rest an error.
fn own(address: String, kind: &str, rest: &str) -> DescribedServer {
    let failed = matches!(kind, "Unknown" | "PossiblePrimary") && rest != "never checked";
    let error = failed.then(|| rest.to_owned());
    DescribedServer { address, kind: Some(kind.to_owned()), error }
}

/// An error, unless the driver says that there is none.
fn error_text(text: &str) -> Option<String> {
    let text = text.trim();
    let none = ["null", "None", "undefined", "<nil>", "\""];
    let absent = text.is_empty() || none.iter().any(|none| text.starts_with(none));
    (!absent).then(|| text.to_owned())
}

/// The specification's name for a type, whatever a driver calls it.
fn specification_name(kind: &str) -> &str {
    match kind {
        "REPLICA_SET_PRIMARY" | "ReplicaSetPrimary" => "RSPrimary",
        "REPLICA_SET_SECONDARY" | "ReplicaSetSecondary" => "RSSecondary",
        "REPLICA_SET_ARBITER" | "ReplicaSetArbiter" => "RSArbiter",
        "REPLICA_SET_OTHER" | "ReplicaSetOther" => "RSOther",
        "REPLICA_SET_GHOST" | "ReplicaSetGhost" => "RSGhost",
        "STANDALONE" | "StandAlone" => "Standalone",
        "SHARD_ROUTER" | "ShardRouter" => "Mongos",
        "UNKNOWN" => "Unknown",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(address: &str, kind: &str, error: Option<&str>) -> (String, String, bool) {
        (address.to_owned(), kind.to_owned(), error.is_some())
    }

    fn found(text: &str) -> Vec<(String, String, bool)> {
        described_servers(text)
            .into_iter()
            .map(|server| (server.address, server.kind.unwrap(), server.error.is_some()))
            .collect()
    }

    #[test]
    fn every_drivers_format_is_read() {
        let texts = [
            "<TopologyDescription id: 65, topology_type: ReplicaSetNoPrimary, servers: \
             [<ServerDescription ('db0', 27017) server_type: Unknown, rtt: None, \
             error=AutoReconnect('db0:27017: [Errno 111] Connection refused')>, \
             <ServerDescription ('db1', 27017) server_type: RSSecondary, rtt: 0.001>]>",
            "TopologyDescription { type: 'ReplicaSetNoPrimary', servers: Map(2) { 'db0:27017' => \
             ServerDescription { address: 'db0:27017', type: 'Unknown', hosts: [], error: \
             MongoNetworkError: connect ECONNREFUSED 10.0.0.1:27017 }, 'db1:27017' => \
             ServerDescription { address: 'db1:27017', type: 'RSSecondary', error: null } }",
            "{type=REPLICA_SET, servers=[{address=db0:27017, type=UNKNOWN, state=CONNECTING, \
             exception={com.mongodb.MongoSocketOpenException: Exception opening socket}, caused by \
             {java.net.ConnectException: Connection refused}}, {address=db1:27017, \
             type=REPLICA_SET_SECONDARY, TagSet{[]}, roundTripTime=0.9 ms, state=CONNECTED}]",
            "{ Type: ReplicaSetNoPrimary, Servers: [{ Addr: db0:27017, Type: Unknown, Last error: \
             dial tcp 10.0.0.1:27017: connect: connection refused }, { Addr: db1:27017, Type: \
             RSSecondary, Average RTT: 912000 }, ] }",
            "Topology: { Type: ReplicaSetNoPrimary, Set Name: rs0, Servers: [ { Address: \
             db0:27017, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111) \
             }, { Address: db1:27017, Type: RSSecondary, Average RTT: 1.1ms } ] }",
            "no server for a write after 30 s (topology ReplicaSetNoPrimary rs0, 2 servers)\n  \
             db0:27017 Unknown: cannot connect to db0:27017: Connection refused; 2 s ago\n  \
             db1:27017 RSSecondary: not the primary; 1 s ago\nno primary: 1 of 2 members answer",
            "{ ClusterId : \"1\", Servers : [{ ServerId: \"{ ClusterId : 1, EndPoint : \
             \"Unspecified/db0:27017\" }\", EndPoint: \"Unspecified/db0:27017\", State: \
             \"Disconnected\", Type: \"Unknown\", HeartbeatException: \"MongoDB.Driver.\
             MongoConnectionException: An exception occurred\" }, { ServerId: \"{ ClusterId : 1, \
             EndPoint : \"Unspecified/db1:27017\" }\", EndPoint: \"Unspecified/db1:27017\", State: \
             \"Connected\", Type: \"ReplicaSetSecondary\" }] }",
        ];
        for text in texts {
            assert_eq!(
                found(text),
                [
                    server("db0:27017", "Unknown", Some("")),
                    server("db1:27017", "RSSecondary", None)
                ],
                "{text}"
            );
        }
    }

    #[test]
    fn a_server_told_twice_is_one_server() {
        let once = "{ Addr: a:1, Type: Unknown }, ";
        assert_eq!(described_servers(&once.repeat(3)).len(), 1);
    }

    #[test]
    fn a_flood_of_servers_is_bounded() {
        let many: String =
            (0..500).map(|n| format!("{{ Addr: h{n}:1, Type: Unknown }}, ")).collect();
        assert_eq!(described_servers(&many).len(), MAX_SERVERS);
    }

    #[test]
    fn prose_describes_no_server() {
        assert_eq!(described_servers("Server selection timed out after 30000 ms"), []);
    }
}
