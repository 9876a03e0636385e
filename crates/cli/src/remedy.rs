//! Lines to type that several findings end in.
//!
//! Pure text. A line that acts on a deployment names it: the connection string is the one that was
//! examined, without its password. Names that only the reader knows are written in capitals.

use std::fmt::Write;

/// A replica set has at most this many votes, and a first configuration no more members.
const MAX_INITIAL_MEMBERS: usize = 7;

/// Options of a connection string that choose servers of a deployment, and mean nothing for one of
/// them.
const CHOOSING: [&str; 7] = [
    "replicaset",
    "directconnection",
    "loadbalanced",
    "readpreference",
    "readpreferencetags",
    "maxstalenessseconds",
    "srvmaxhosts",
];

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

/// The script that makes a set of these members, `host:port` each.
pub(crate) fn initiate<'a>(set: &str, members: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = format!("rs.initiate({{_id: {}, members: [", quoted(set));
    for (position, host) in members.into_iter().take(MAX_INITIAL_MEMBERS).enumerate() {
        let comma = if position == 0 { "" } else { ", " };
        let _ = write!(line, "{comma}{{_id: {position}, host: {}}}", quoted(host));
    }
    line.push_str("]})");
    line
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

/// A word of the shell.
pub(crate) fn shell_quoted(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("'{}'", plain.replace('\'', "'\\''"))
}

/// A string of JavaScript, in double quotes.
pub(crate) fn quoted(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control() && *c != '\'').collect();
    format!("{plain:?}")
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
    fn no_more_members_are_initiated_than_may_vote() {
        let hosts: Vec<String> = (0..9).map(|n| format!("h{n}:1")).collect();
        let line = initiate("rs", hosts.iter().map(String::as_str));
        assert!(line.contains("h6:1") && !line.contains("h7:1"), "{line}");
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
