//! Errors of real clients, as `tests/pasted/collect.py` collected them, and what must be said of each.

use std::collections::BTreeSet;

use serde_json::Value;

use super::diagnose;

const TEXTS: &str = include_str!("../../tests/pasted/texts.jsonl");

/// Clients that were not run here, in the words of public reports with other addresses.
const REPORTED: &str = include_str!("../../tests/pasted/reported.jsonl");

/// The codes of which one must be found. Where a text hides its cause, the finding says so.
fn expected(situation: &str) -> &'static [&'static str] {
    match situation {
        "nothing_listens" => &["refused_on_loopback"],
        "unknown_name" => &["name_not_found"],
        "silent" => &["connect_timed_out", "never_checked", "cause_hidden"],
        "wrong_set_name" => &["every_host_dropped", "wrong_set_name", "cause_hidden"],
        "write_to_secondary" => &["not_primary"],
        "tls_against_plain" => &["tls_against_plain", "tls_handshake", "connection_closed"],
        "too_many_acknowledgements" => &["write_concern_unsatisfied"],
        // Most clients print the last refusal only.
        "no_primary" => &["no_primary", "refused_on_loopback", "stepped_down"],
        "wrong_password" => &["authentication_failed"],
        "no_login" => &["not_authorized"],
        "plain_against_tls" => &["tls_required"],
        "unknown_authority" => &["certificate_untrusted"],
        "never_checked" => &["never_checked"],
        "tls_closed" => &["tls_handshake", "connection_closed"],
        "connection_closed" => &["connection_closed"],
        other => panic!("no such situation: {other}"),
    }
}

fn texts() -> impl Iterator<Item = Value> {
    TEXTS.lines().chain(REPORTED.lines()).map(|line| serde_json::from_str(line).expect(line))
}

#[test]
fn the_errors_of_real_clients_are_understood() {
    let mut clients = BTreeSet::new();
    let mut wrong = Vec::new();
    for told in texts() {
        let field = |name: &str| told[name].as_str().expect("a text").to_owned();
        let (client, text) = (field("client"), field("text"));
        assert!(!field("version").is_empty(), "{told}");
        let found: Vec<&str> = diagnose(&text).findings.iter().map(|found| found.code).collect();
        let wanted = match &text {
            // For a driver from before OP_MSG that is the finding, whatever it asked for.
            text if text.contains("OP_QUERY") => &["wire_version"],
            // This driver does not know the option tls, and spoke without TLS.
            text if text.contains("speaks TLS only") => &["tls_required"],
            // The text is the same in every situation.
            text if text.contains("No server is available matching") => &["cause_hidden"],
            _ => expected(&field("situation")),
        };
        if !found.iter().any(|code| wanted.contains(code)) {
            wrong.push(format!("{client}, {}: {found:?}\n{text}", field("situation")));
        }
        clients.insert(client);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(clients.len() >= 13 && texts().count() >= 60, "{clients:?}");
}

/// A message tells too little for anything that cannot be undone, and a command says whom it asks.
#[test]
fn nothing_dangerous_is_proposed_for_them() {
    for told in texts() {
        let text = told["text"].as_str().expect("a text");
        for finding in diagnose(text).findings {
            let fixes = finding.fixes.join("\n");
            for word in ["force: true", "rs.initiate({", "mongosh --eval", "data directory"] {
                assert!(!fixes.contains(word), "{word} in the answer to {text}\n{fixes}");
            }
        }
    }
}
