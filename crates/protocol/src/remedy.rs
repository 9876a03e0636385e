//! What to do next, where more than one crate says it: each remedy is worded here, once.
//!
//! A client ends the explanation of a failed selection with these, a member the explanation of an
//! election, and the doctor its findings. Pure text. What only the program tells people to type is in
//! its own `remedy` module.

use std::fmt::Write;

use crate::MAX_VOTERS;

/// For a process that the system gives no thread, descriptor or signal.
pub const CHECK_LIMITS: &str = "check the limits of this process (ulimit -a)";

/// For an election that too few votes are in sight for. `members` are those that do not answer.
pub fn reconnect(members: &str) -> String {
    format!("start {members}, or make them reachable from here and from each other")
}

/// The script that makes a set of these members, `host:port` each: as many as may vote.
pub fn initiate_script<'a>(set: &str, members: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = format!("rs.initiate({{_id: {}, members: [", script_string(set));
    for (position, host) in members.into_iter().take(MAX_VOTERS).enumerate() {
        let comma = if position == 0 { "" } else { ", " };
        let _ = write!(line, "{comma}{{_id: {position}, host: {}}}", script_string(host));
    }
    line.push_str("]})");
    line
}

/// A string of JavaScript, in double quotes, that can stand in a quoted word of a shell.
pub fn script_string(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control() && *c != '\'').collect();
    format!("{plain:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_members_are_initiated_than_may_vote() {
        let hosts: Vec<String> = (0..9).map(|n| format!("h{n}:1")).collect();
        let line = initiate_script("rs", hosts.iter().map(String::as_str));
        assert!(line.contains("h6:1") && !line.contains("h7:1"), "{line}");
    }

    #[test]
    fn quotes_in_names_do_not_end_the_line() {
        assert!(!initiate_script("r'; rm -rf /; '", ["a:1"]).contains("r';"));
    }
}
