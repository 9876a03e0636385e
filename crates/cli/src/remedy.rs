//! Lines to type that several findings end in.
//!
//! Pure text. Names that only the reader knows are written in capitals.

use std::fmt::Write;

/// A replica set has at most this many votes, and a first configuration no more members.
const MAX_INITIAL_MEMBERS: usize = 7;

/// `rs.initiate(...)` for these members, `host:port` each.
pub(crate) fn initiate<'a>(set: &str, members: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = format!("mongosh --eval 'rs.initiate({{_id: {}, members: [", quoted(set));
    for (position, host) in members.into_iter().take(MAX_INITIAL_MEMBERS).enumerate() {
        let comma = if position == 0 { "" } else { ", " };
        let _ = write!(line, "{comma}{{_id: {position}, host: {}}}", quoted(host));
    }
    line.push_str("]})'");
    line
}

/// Gives a member another name: `rs.reconfig` on the primary.
pub(crate) fn rename_member(from: &str, to: &str) -> String {
    format!(
        "in mongosh on the primary: c = rs.conf(); c.members.find(m => m.host === {}).host = {}; \
         rs.reconfig(c)",
        quoted(from),
        quoted(to)
    )
}

/// A line of the hosts file.
pub(crate) fn hosts_line(ip: &str, host: &str) -> String {
    format!("echo '{ip} {host}' | sudo tee -a /etc/hosts")
}

/// A string of the shell's, in double quotes, safe within single ones.
fn quoted(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control() && *c != '\'').collect();
    format!("{plain:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_can_be_pasted() {
        assert_eq!(
            initiate("rs0", ["a:1", "b:2"]),
            r#"mongosh --eval 'rs.initiate({_id: "rs0", members: [{_id: 0, host: "a:1"}, {_id: 1, host: "b:2"}]})'"#
        );
        assert_eq!(
            rename_member("old:27017", "new:27017"),
            "in mongosh on the primary: c = rs.conf(); c.members.find(m => m.host === \
             \"old:27017\").host = \"new:27017\"; rs.reconfig(c)"
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
    }
}
