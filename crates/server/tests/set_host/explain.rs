//! `quorateExplainElection`: why there is or is not a primary. The shape is in `docs/replication.md`.

use bson::{Bson, Document, doc};

use crate::set::Set;

fn explain(set: &Set, place: usize) -> Document {
    set.ok(place, doc! { "quorateExplainElection": 1 })
}

fn members(explanation: &Document) -> Vec<Document> {
    let members = explanation.get_array("members").unwrap();
    members.iter().filter_map(Bson::as_document).cloned().collect()
}

#[test]
fn a_member_without_a_configuration_says_what_to_run() {
    let set = Set::start(1);
    let explanation = explain(&set, 0);
    assert_eq!(explanation.get_i32("me").ok(), Some(-1));
    assert!(explanation.get_str("summary").unwrap().contains("rs.initiate()"), "{explanation}");
}

#[test]
fn a_set_with_a_primary_names_it_and_one_without_says_whom_to_start() {
    let mut set = Set::initiated(3);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 1 }, Bson::Int32(3)).unwrap();
    let host = set.host(primary);
    let explanation = explain(&set, primary);
    assert_eq!(explanation.get_str("primary").unwrap(), host);
    assert_eq!(explanation.get_i32("votesNeeded").unwrap(), 2);
    let campaign = explanation.get_document("lastCampaign").unwrap();
    assert!(campaign.get_str("outcome").unwrap().starts_with("won with"), "{explanation}");
    let known = members(&explanation);
    assert_eq!(known.len(), 3);
    for member in &known {
        assert_eq!(member.get_i32("votes").unwrap(), 1, "{member}");
        assert!(member.get_f64("priority").is_ok() && member.get_document("optime").is_ok());
    }

    let rest = (primary + 1) % 3;
    let gone = [primary, (primary + 2) % 3];
    for place in gone {
        set.kill(place);
    }
    let explanation = set.wait("the loss of both others to be noticed", || {
        let explanation = explain(&set, rest);
        (explanation.get_i32("votesVisible").unwrap() == 1
            && explanation.get_i32("primaryId").unwrap() == -1)
            .then_some(explanation)
    });
    let summary = explanation.get_str("summary").unwrap();
    for place in gone {
        let host = set.host(place);
        assert!(summary.contains(&host), "{summary}");
    }
    for member in members(&explanation) {
        let reachable = member.get_bool("reachable").unwrap();
        assert_eq!(reachable, member.get_bool("self").unwrap(), "{member}");
        assert_eq!(!reachable, member.contains_key("downBecause"), "{member}");
        assert_eq!(
            member.get_bool("canLead").unwrap(),
            !member.contains_key("cannotLeadBecause"),
            "{member}"
        );
    }
}

/// docs/replication-rules.md#tools: what shells and dashboards read of `replSetGetStatus`.
#[test]
fn status_has_the_fields_that_tools_read() {
    let set = Set::initiated(3);
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 1 }, bson::Bson::Int32(3)).unwrap();
    let status = set.ok(primary, doc! { "replSetGetStatus": 1 });
    assert_eq!(status.get_str("set").unwrap(), "rs0");
    assert_eq!(status.get_i32("myState").unwrap(), 1);
    for field in ["date", "term", "heartbeatIntervalMillis", "optimes", "syncSourceHost"] {
        assert!(status.contains_key(field), "{field}: {status}");
    }
    for (field, value) in [
        ("majorityVoteCount", 2),
        ("writeMajorityCount", 2),
        ("votingMembersCount", 3),
        ("writableVotingMembersCount", 3),
    ] {
        assert_eq!(status.get_i32(field).unwrap(), value, "{field}");
    }
    let optimes = status.get_document("optimes").unwrap();
    for field in ["lastCommittedOpTime", "appliedOpTime", "durableOpTime", "writtenOpTime"] {
        let optime = optimes.get_document(field).unwrap();
        assert!(optime.get_timestamp("ts").is_ok() && optime.get_i64("t").is_ok(), "{optimes}");
    }
    let members = status.get_array("members").unwrap();
    assert_eq!(members.len(), 3);
    for member in members.iter().filter_map(bson::Bson::as_document) {
        for field in [
            "_id", "name", "health", "state", "stateStr", "uptime", "optime", "optimeDate",
            "syncSourceHost", "configVersion", "configTerm",
        ] {
            assert!(member.contains_key(field), "{field}: {member}");
        }
        assert_ne!(member.contains_key("self"), member.contains_key("pingMs"), "{member}");
    }
}
