//! What several findings tell the reader to do: each remedy is worded here, once.
//!
//! The doctor, the reading of pasted errors and the drills end their findings with these. Remedies
//! that clients and members name as well are worded in `quorate_protocol::remedy`. Pure text. A
//! line that acts on a deployment names it: the connection string is the one that was
//! examined, without its password. Names that only the reader knows are written in capitals.

use std::fmt::Display;
use std::path::Path;

pub(crate) use quorate_protocol::remedy::{
    CHECK_LIMITS, initiate_script as initiate, reconnect, script_string as quoted,
};

/// Options of a connection string that choose servers of a deployment, and mean nothing for one of
/// them.
const CHOOSING: [&str; 7] = [
    "replicaset", "directconnection", "loadbalanced", "readpreference", "readpreferencetags",
    "maxstalenessseconds", "srvmaxhosts",
];

/// Leaves the set aside and uses the one server that was dialled.
pub(crate) const CONNECT_DIRECTLY: &str =
    "add directConnection=true to the connection string (one server only, no failover)";

/// Lets reads go on at a member that is no primary.
pub(crate) const READ_HERE: &str = "to read from this member: readPreference=secondaryPreferred";

/// Uses servers of no set.
pub(crate) const NAME_NO_SET: &str = "remove replicaSet from the connection string";

/// Opens the way from here.
pub(crate) const ALLOW_THIS_MACHINE: &str =
    "allow this machine in the firewall or access list of the deployment";

/// For clients that resolve `localhost` to either family.
pub(crate) const LISTEN_ON_BOTH: &str =
    "let the server listen on both: mongod --ipv6 --bind_ip localhost";

/// For servers that listen on loopback alone, or not at all.
pub(crate) const LISTEN_ON_THE_NETWORK: &str = "start it, or let it listen on the network: \
     net.bindIp: 0.0.0.0 (or its own address) in mongod.conf";

/// For a server that takes TLS only.
pub(crate) const SPEAK_TLS: &str =
    "add tls=true to the connection string, and tlsCAFile=FILE if its authority is your own";

/// For a server without TLS.
pub(crate) const SPEAK_PLAIN: &str = "remove tls=true (or ssl=true) from the connection string; \
     mongodb+srv:// implies it, so write tls=false there";

/// The same from the other side.
pub(crate) const SERVE_TLS: &str =
    "start the server with TLS: net.tls.mode: requireTLS and certificateKeyFile in mongod.conf";

/// For a certificate whose authority is not known here.
pub(crate) const TRUST_AUTHORITY: &str =
    "add tlsCAFile=/path/to/ca.pem (with the authority's certificate) to the connection string";

/// For a certificate whose time is over.
pub(crate) const RENEW_CERTIFICATE: &str = "renew the server's certificate, then restart it (a \
     mongod can also take it with db.adminCommand({rotateCertificates: 1}))";

/// For a login that the database of the connection string does not know.
pub(crate) const NAME_AUTH_SOURCE: &str =
    "name the database the user was created in: authSource=admin in the connection string";

/// For a password that the connection string changes.
pub(crate) const ENCODE_PASSWORD: &str =
    "percent-encode the password: @ is %40, : is %3A, / is %2F, % is %25";

/// For a server whose connections run out: from the clients' side.
pub(crate) const FEWER_CONNECTIONS: &str = "use one client for each process, and lower maxPoolSize";

/// The same from the server's side.
pub(crate) const MORE_CONNECTIONS: &str = "raise the limits: ulimit -n 64000 for the server, \
     net.maxIncomingConnections in mongod.conf";

/// The script that shows what each member does.
pub(crate) const MEMBER_STATES: &str =
    "rs.status().members.map(m => [m.name, m.stateStr, m.infoMessage])";

/// Uses the set that the server belongs to.
pub(crate) fn name_set(name: impl Display) -> String {
    format!("write replicaSet={name} in the connection string")
}

/// Uses other servers, which belong to the set that is wanted.
pub(crate) fn members_of(set: impl Display) -> String {
    format!("connect to members of {set} instead")
}

/// Follows the set instead of one server.
pub(crate) fn connect_to_set(name: &str) -> String {
    format!("remove directConnection=true and add replicaSet={name} to the connection string")
}

/// Makes a standalone the first member of a set. `initiate` is the line that does so.
pub(crate) fn make_member(set: &str, initiate: &str) -> String {
    format!("restart it with --replSet {set}, then {initiate}")
}

/// For an election that may still be under way. `look` is the line to type if it does not end.
pub(crate) fn try_again(look: &str) -> String {
    format!("try again in ten seconds; if it persists: {look}")
}

/// Dials a port without a driver.
pub(crate) fn try_by_hand(host: &str, port: impl Display) -> String {
    format!("try by hand: nc -vz {host} {port}")
}

/// Shows which way packets take.
pub(crate) fn way_to(host: &str) -> String {
    format!("see the way there: ip route get {host}")
}

/// Shows whether a server listens.
pub(crate) fn is_it_running(port: impl Display) -> String {
    format!("on that host: systemctl status mongod; ss -ltn | grep :{port}")
}

/// The doctor, on a deployment whose connection string is not known, and what it does there.
macro_rules! doctor_which {
    ($does:literal) => {
        concat!("quorate doctor URI, which ", $does)
    };
}
pub(crate) use doctor_which;

/// `mongosh` with this script on a deployment whose connection string is not known.
pub(crate) fn on_uri(script: &str) -> String {
    format!("mongosh URI --eval {}", shell_quoted(script))
}

/// `mongosh` with this script on this deployment.
pub(crate) fn mongosh(uri: &str, script: &str) -> String {
    format!("mongosh {} --eval {}", shell_quoted(uri), shell_quoted(script))
}

/// The connection string of one member, made from that of its deployment: the same login and the same
/// TLS, but this server only.
pub(crate) fn member_uri(uri: &str, host: &str) -> String {
    let is_srv = uri.starts_with("mongodb+srv://");
    let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    let hosts = place.split('/').next().unwrap_or_default();
    let login = hosts.rsplit_once('@').map(|(login, _)| format!("{login}@")).unwrap_or_default();
    let mut kept = vec!["directConnection=true"];
    if is_srv && !options.to_ascii_lowercase().contains("tls=") {
        kept.push("tls=true");
    }
    kept.extend(options.split('&').filter(|option| {
        let name = option.split('=').next().unwrap_or_default().to_ascii_lowercase();
        !name.is_empty() && !CHOOSING.contains(&name.as_str())
    }));
    format!("mongodb://{login}{host}/?{}", kept.join("&"))
}

/// The script that gives a member another name.
pub(crate) fn rename_member(from: &str, to: &str) -> String {
    format!(
        "c = rs.conf(); c.members.find(m => m.host === {}).host = {}; rs.reconfig(c)",
        quoted(from),
        quoted(to)
    )
}

/// A line of the hosts file.
pub(crate) fn hosts_line(ip: &str, host: &str) -> String {
    format!("echo '{ip} {host}' | sudo tee -a /etc/hosts")
}

/// A command of our own on this deployment.
pub(crate) fn quorate(command: &str, uri: &str) -> String {
    format!("quorate {command} {}", shell_quoted(uri))
}

/// Stops the set that has its data here.
pub(crate) fn stop_set(data: &Path) -> String {
    let path = data.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    match path.chars().all(is_plain) {
        true => format!("quorate down --data {path}"),
        false => format!("quorate down --data {}", shell_quoted(&path)),
    }
}

/// A word of the shell.
pub(crate) fn shell_quoted(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("'{}'", plain.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_can_be_pasted() {
        assert_eq!(
            mongosh("mongodb://h:1/?directConnection=true", &initiate("rs0", ["a:1", "b:2"])),
            r#"mongosh 'mongodb://h:1/?directConnection=true' --eval 'rs.initiate({_id: "rs0", members: [{_id: 0, host: "a:1"}, {_id: 1, host: "b:2"}]})'"#
        );
        assert_eq!(
            rename_member("old:27017", "new:27017"),
            "c = rs.conf(); c.members.find(m => m.host === \"old:27017\").host = \
             \"new:27017\"; rs.reconfig(c)"
        );
        assert_eq!(hosts_line("10.0.0.1", "db0"), "echo '10.0.0.1 db0' | sudo tee -a /etc/hosts");
    }

    #[test]
    fn quotes_in_names_do_not_end_the_line() {
        assert!(!initiate("r'; rm -rf /; '", ["a:1"]).contains("r';"));
        assert_eq!(shell_quoted("a'; rm -rf /; '"), r"'a'\''; rm -rf /; '\'''");
    }

    #[test]
    fn one_member_is_reached_as_its_deployment_is() {
        assert_eq!(
            member_uri("mongodb://u:***@a:1,b:2/shop?replicaSet=rs0&tls=true&w=2", "b:2"),
            "mongodb://u:***@b:2/?directConnection=true&tls=true&w=2"
        );
        assert_eq!(
            member_uri("mongodb+srv://u@cluster.example/?readPreference=nearest", "c:3"),
            "mongodb://u@c:3/?directConnection=true&tls=true"
        );
        assert_eq!(
            member_uri("mongodb://a", "a:27017"),
            "mongodb://a:27017/?directConnection=true"
        );
    }
}
