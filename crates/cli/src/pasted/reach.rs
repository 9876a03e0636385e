//! Rules about reaching a server at all: names, ports, routes, closed connections.

use super::Context;
use super::rules::{Evidence, Rule, servers_of, servers_or};
use crate::finding::Finding;
use crate::remedy;
use crate::words::listed;

pub(super) const RULES: &[Rule] = &[
    Rule::cause(
        "srv_lookup_failed",
        &[
            r"query(?:Srv|Txt) (?P<detail>E[A-Z_]+) (?P<host>[\w.-]+)",
            r"DNS query name does not exist: (?P<host>[\w.-]+)",
            r"lookup (?P<host>_\w+\._tcp\.[\w.-]+)(?: on [\w.:\[\]]+)?:",
            r"(?i)(?:Failed looking up|Failed to look up|Unable to look up) (?:SRV|TXT) records? (?:for )?(?:host )?[\x22']?(?P<host>[\w.-]+)",
        ],
        srv_lookup_failed,
    ),
    Rule::cause(
        "name_not_found",
        &[
            r"getaddrinfo (?:ENOTFOUND|EAI_AGAIN) (?P<host>[\w.-]+)(?::(?P<port>\d+))?",
            r"(?P<host>[\w.-]+):(?P<port>\d+): \[(?:Errno|WinError) -?\d+\] (?:Name or service not known|nodename nor servname|Temporary failure in name|No address associated|getaddrinfo failed|Name does not resolve)",
            r"UnknownHostException: (?P<host>[\w.-]+)",
            r"lookup (?P<host>[A-Za-z0-9][\w.-]*)(?: on [\w.:\[\]]+)?: (?:no such host|server misbehaving|Temporary failure)",
            r"Failed to resolve '?(?P<host>[\w.-]+)'?",
            r"(?:Name or service not known|nodename nor servname provided|failed to lookup address|No such host is known|Name does not resolve|Temporary failure in name resolution|its name does not resolve)",
        ],
        name_not_found,
    )
    .only(|evidence| !evidence.host.as_deref().is_some_and(|host| host.contains("_tcp."))),
    Rule::cause("refused_on_loopback", REFUSED, refused_on_loopback).only(Evidence::is_loopback),
    Rule::cause("refused", REFUSED, refused).only(|evidence| !evidence.is_loopback()),
    Rule::cause(
        "connect_timed_out",
        &[
            r"connect ETIMEDOUT (?P<host>[\w.-]+):(?P<port>\d+)",
            r"dial tcp (?P<host>\[[^\]]+\]|[\w.-]+):(?P<port>\d+): (?:connect: )?(?:i/o timeout|operation timed out|connection timed out)",
            r"(?P<host>[\w.-]+):(?P<port>\d+): (?:\[(?:Errno|WinError) \d+\] (?:Connection timed out|Operation timed out|A connection attempt failed)|timed out)",
            r"(?:connection|socket) (?:timeout|error) calling \w+ on '(?P<host>[^':]+):(?P<port>\d+)'",
            r"^timed out",
            r"Timed out while waiting for socket to become ready for reading",
            r"connection\((?P<host>[\w.-]+):(?P<port>\d+)\[-?\d+\]\) incomplete read of message header: [^\n]*?i/o timeout",
            r"connection (?:<monitor>|\d+) to (?P<host>[\w.-]+):(?P<port>\d+) timed out",
            r"SocketTimeoutException: (?:[Cc]onnect|Connection) timed out",
            r"(?i)connection timed out|operation timed out \(os error|no answer within \d+ ms \(connectTimeoutMS\)",
        ],
        connect_timed_out,
    ),
    Rule::cause(
        "no_route",
        &[
            r"connect (?:ENETUNREACH|EHOSTUNREACH) (?P<host>[\w.-]+|[0-9a-fA-F:]+):(?P<port>\d+)",
            r"dial tcp (?P<host>\[[^\]]+\]|[\w.-]+):(?P<port>\d+): connect: (?:no route to host|network is unreachable)",
            r"(?P<host>[\w.-]+):(?P<port>\d+): \[Errno \d+\] (?:No route to host|Network is unreachable)",
            r"(?i)no route to host|network is unreachable",
        ],
        no_route,
    ),
    Rule::plain(
        "connection_closed",
        &[
            r"connection (?:<monitor>|\d+) to (?P<host>[\w.-]+):(?P<port>\d+) closed",
            r"connection\((?P<host>[\w.-]+):(?P<port>\d+)\[-?\d+\]\) (?:socket was unexpectedly closed|incomplete read of (?:message header|full message): (?:EOF|unexpected EOF|[^\n]*?reset by peer)|unable to (?:read|decode))",
            r"(?P<host>[\w.-]+):(?P<port>\d+): (?:connection closed|\[Errno \d+\] Connection reset by peer)",
            r"during connection handshake: EOF",
            r"(?:Prematurely reached end of stream|socket was unexpectedly closed: EOF|unexpected end of file|socket hang up|(?:read|write) ECONNRESET|write EPIPE|(?i:connection (?:reset|closed) by peer|broken pipe)|Failed to read 4 bytes)",
        ],
        "{a server} accepted the connection and then closed it",
        "a server that wants TLS closes plain connections without a word, and so do proxies, \
         access lists and servers that restart or ran out of connections",
        &[
            "if the server requires TLS, add tls=true to the connection string",
            remedy::doctor_which!("tries plain and TLS and tells which one is answered"),
            "if it happens after idling: set maxIdleTimeMS below the limit of the proxy or \
             firewall",
        ],
    ),
    Rule::cause(
        "socket_path_missing",
        &[
            r"connect ENOENT (?P<detail>/\S+\.sock)",
            r"(?P<detail>/\S+\.sock)\S*: \[Errno 2\]",
        ],
        socket_path_missing,
    ),
    Rule::plain(
        "http_on_driver_port",
        &[r"trying to access MongoDB over HTTP on the native driver port"],
        "a browser or an HTTP client asked the driver's port",
        "the server runs and can be reached; it speaks the wire protocol, not HTTP",
        &[
            "use a driver or mongosh with mongodb:// instead of http://",
        ],
    )
    .noted(),
    Rule::plain(
        "access_list",
        &[r"IP that isn't (?:whitelisted|on)", r"isn't whitelisted", r"IP access list"],
        "no server of the Atlas cluster could be reached",
        "Atlas drops connections from addresses that are not on the project's IP access list; \
         the driver guesses this, it does not know",
        &[
            "add the address that this prints under Network Access in Atlas: curl -s \
             https://api.ipify.org",
            remedy::doctor_which!("tells whether it is DNS, the port or TLS"),
        ],
    ),
];

const REFUSED: &[&str] = &[
    r"connect ECONNREFUSED (?P<host>[\w.-]+):(?P<port>\d+)",
    r"connect ECONNREFUSED (?P<host>[0-9a-fA-F]*:[0-9a-fA-F:]*):(?P<port>\d+)",
    r"(?P<host>[\w.-]+):(?P<port>\d+): \[(?:Errno|WinError) \d+\] (?:Connection refused|No connection could be made)",
    r"dial tcp (?P<host>\[[^\]]+\]|[\w.-]+):(?P<port>\d+): (?:connect|connectex): (?:connection refused|No connection could be made)",
    r"connection refused calling \w+ on '(?P<host>[^':]+):(?P<port>\d+)'",
    r"Could not connect to '(?P<host>[^':]+):(?P<port>\d+)': Connection refused",
    r"cannot connect to (?P<host>[\w.-]+):(?P<port>\d+): [Cc]onnection refused",
    r"actively refused it\.? \[?(?P<host>[\w.-]+|[0-9a-fA-F:]+)\]?:(?P<port>\d+)",
    r"(?i)connection refused|ECONNREFUSED|actively refused",
];

/// A script for the primary, of which a message does not tell the address.
fn on_the_primary(script: &str) -> String {
    format!("in mongosh on the primary: {script}")
}

fn name_not_found(evidence: &[Evidence], context: &Context) -> Finding {
    let first = evidence.iter().find(|evidence| evidence.host.is_some());
    let Some(first) = first else {
        return Finding::problem("name_not_found", "a host name does not resolve on this machine")
            .because("the message does not say which; drivers dial the names the set advertises")
            .fix(remedy::doctor_which!("names it, or paste the whole message"));
    };
    let host = first.host.as_deref().unwrap_or_default();
    let port = first.port.as_deref().unwrap_or("27017");
    let names = servers_of(evidence);
    let (verb, they) = if names.len() == 1 { ("does", "it is") } else { ("do", "they are") };
    let seen = format!("{} {verb} not resolve on this machine{}", listed(&names), kind_of(host));
    let why = match context.is_seed(host) {
        Some(true) => "the connection string names it, so nothing can be asked".to_owned(),
        Some(false) => format!(
            "the connection string does not name it: {they} what the set advertises, and drivers \
             drop the seeds and dial the advertised names"
        ),
        None => format!(
            "if the connection string does not name it, {they} what the set advertises: drivers \
             drop the seeds and dial the advertised names"
        ),
    };
    Finding::problem("name_not_found", seen)
        .because(why)
        .fix(format!(
            "advertise a name that clients can resolve; {}",
            on_the_primary(&remedy::rename_member(
                &format!("{host}:{port}"),
                &format!("REACHABLE_NAME:{port}")
            ))
        ))
        .fix(format!("make it resolve here: {}", remedy::hosts_line("IP_OF_THE_MEMBER", host)))
        .fix(remedy::CONNECT_DIRECTLY)
}

/// Where such a name usually comes from.
fn kind_of(host: &str) -> &'static str {
    let is_container_id = host.len() == 12 && host.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_container_id {
        " (it looks like a container's id, which only that container's network knows)"
    } else if host.ends_with(".svc") || host.contains(".svc.") || host.ends_with(".cluster.local") {
        " (a Kubernetes service name, which only resolves inside the cluster)"
    } else if !host.contains('.') && !host.eq_ignore_ascii_case("localhost") {
        " (a short name, as container networks and hosts files have them)"
    } else {
        ""
    }
}

fn srv_lookup_failed(evidence: &[Evidence], _: &Context) -> Finding {
    let host = evidence.iter().find_map(|evidence| evidence.host.clone()).unwrap_or_default();
    let name = host.trim_start_matches("_mongodb._tcp.").to_owned();
    let detail = evidence.iter().find_map(|evidence| evidence.word("detail"));
    let (seen, why) = match detail {
        Some("ECONNREFUSED" | "ETIMEOUT" | "ETIMEDOUT" | "ESERVFAIL") => (
            format!("the DNS server did not answer the SRV question for {name}"),
            "mongodb+srv:// needs a resolver that answers SRV and TXT questions; some VPNs, routers \
             and container resolvers do not",
        ),
        _ => (
            format!("DNS has no SRV record _mongodb._tcp.{name}"),
            "mongodb+srv:// takes its hosts from that record; the name is misspelt, or the cluster \
             was renamed, paused or deleted",
        ),
    };
    Finding::problem("srv_lookup_failed", seen)
        .because(why)
        .fix(format!("look yourself: dig +short SRV _mongodb._tcp.{name}"))
        .fix("use another resolver (for instance 1.1.1.1), then try again")
        .fix("list the hosts: mongodb://host1,host2,host3/?replicaSet=NAME&tls=true")
}

fn refused_on_loopback(evidence: &[Evidence], context: &Context) -> Finding {
    let servers = servers_or(evidence, "a server");
    let port = evidence.iter().find_map(|evidence| evidence.port.clone());
    let port = port.as_deref().unwrap_or("27017");
    let is_v6 =
        |evidence: &Evidence| evidence.host.as_deref().is_some_and(|host| host.contains(':'));
    // Where 127.0.0.1 refuses too, the address is not the reason.
    let v6 = !evidence.is_empty() && evidence.iter().all(is_v6);
    let names_loopback = context
        .seeds()
        .map(|seeds| seeds.iter().any(|seed| super::rules::is_loopback(seed.host())));
    if names_loopback == Some(false) {
        return finding!(problem "loopback_advertised",
            "the set advertises {servers}, which is this machine; the connection string names \
             others")
        .because(
            "members were configured with loopback names: drivers drop the seeds and dial what is \
             advertised, which here leads to your own machine",
        )
        .fix(on_the_primary(&remedy::rename_member(&servers, &format!("REAL_NAME:{port}"))))
        .fix(remedy::CONNECT_DIRECTLY);
    }
    let mut finding = match servers_of(evidence).len() {
        0 | 1 => finding!(problem "refused_on_loopback",
            "{servers} is this machine, and nothing listens on port {port} here"),
        _ => finding!(problem "refused_on_loopback",
            "{servers} are this machine, and nothing listens there"),
    };
    finding = if v6 {
        finding
            .because(
                "localhost was resolved to ::1 (IPv6), and the server listens on 127.0.0.1 only, or \
                 does not run",
            )
            .fix(format!("write 127.0.0.1:{port} instead of localhost in the connection string"))
            .fix(remedy::LISTEN_ON_BOTH)
    } else {
        finding.because(
            "either no server runs here (inside a container, localhost is the container itself), \
             or the connection string names other hosts and the set advertises loopback names",
        )
    };
    let finding = finding.fix(format!("see whether it runs: ss -ltn | grep :{port}"));
    if context.is_replica_set() || context.uri.is_none() {
        return finding.fix(format!(
            "if the connection string names another host: {}",
            on_the_primary(&remedy::rename_member(
                &format!("127.0.0.1:{port}"),
                &format!("REAL_NAME:{port}")
            ))
        ));
    }
    finding
}

fn refused(evidence: &[Evidence], _: &Context) -> Finding {
    let servers = servers_or(evidence, "a server");
    let verb = if servers_of(evidence).len() > 1 { "refuse" } else { "refuses" };
    let port = evidence.iter().find_map(|evidence| evidence.port.as_deref()).unwrap_or("27017");
    finding!(problem "refused", "{servers} {verb} connections")
        .because(
            "the host answers, but no server listens on that port: it is stopped, listens on \
             another port, or only on loopback (bindIp)",
        )
        .fix(remedy::is_it_running(port))
        .fix(remedy::LISTEN_ON_THE_NETWORK)
        .fix(remedy::doctor_which!("tries every address"))
}

fn connect_timed_out(evidence: &[Evidence], _: &Context) -> Finding {
    finding!(problem "connect_timed_out",
        "{} did not answer while connecting", servers_or(evidence, "a server"))
    .because(
        "nothing refuses and nothing answers: a firewall, a security group or an access list drops \
         the packets, or the address is of a network that is not reachable from here",
    )
    .fix(match evidence.iter().find(|evidence| evidence.host.is_some()) {
        Some(Evidence { host: Some(host), port, .. }) => {
            remedy::try_by_hand(host, port.as_deref().unwrap_or("27017"))
        }
        _ => remedy::doctor_which!("tells which address is silent").to_owned(),
    })
    .fix(remedy::ALLOW_THIS_MACHINE)
}

fn no_route(evidence: &[Evidence], _: &Context) -> Finding {
    finding!(problem "no_route",
        "there is no route from here to {}", servers_or(evidence, "a server"))
    .because(
        "the address belongs to a network this machine is not part of (VPN down, wrong \
                  subnet, IPv6 without a route)",
    )
    .fix(match evidence.iter().find_map(|evidence| evidence.host.clone()) {
        Some(host) => remedy::way_to(&host),
        None => remedy::doctor_which!("names the address").to_owned(),
    })
    .fix("connect the VPN or tunnel first, then try again")
}

fn socket_path_missing(evidence: &[Evidence], _: &Context) -> Finding {
    let path = evidence.iter().find_map(|evidence| evidence.word("detail")).unwrap_or("the path");
    finding!(problem "socket_path_missing", "the unix socket {path} does not exist")
        .because(
            "no server runs on this machine with that port, or it was started with another \
                  socket folder",
        )
        .fix("ls -l /tmp/mongodb-*.sock; systemctl status mongod")
}
