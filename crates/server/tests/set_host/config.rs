//! The configuration document as administrators see it. docs/replication-rules.md#configuration.

use bson::{Bson, Document, doc};

use crate::client::{Client, TIMEOUT};
use crate::set::Set;

/// A client that stayed would go on with addresses that are no longer true.
#[test]
fn a_change_of_horizons_closes_the_connections_of_clients_and_no_other_change_does() {
    let set = Set::initiated(1);
    let ping = doc! { "ping": 1, "$db": "admin" };
    let mut client = Client::connect(set.members[set.primary()].address, TIMEOUT).unwrap();
    client.run(&ping, TIMEOUT).unwrap();
    let with = |field: &'static str, value: Bson| {
        set.reconfigure(|config| {
            let members = config.get_array_mut("members").unwrap();
            members[0].as_document_mut().unwrap().insert(field, value.clone());
        });
    };
    with("priority", Bson::from(2));
    client.run(&ping, TIMEOUT).unwrap();
    with("horizons", Bson::from(doc! { "outside": "far.example.net:27017" }));
    assert!(client.run(&ping, TIMEOUT).is_err());
}

/// Every row of the table of fields that has a default.
#[test]
fn fields_that_are_left_out_have_their_defaults() {
    let set = Set::initiated(1);
    set.primary();
    let config = set.ok(0, doc! { "replSetGetConfig": 1 });
    let config = config.get_document("config").unwrap();
    assert_eq!(config.get_str("_id").unwrap(), "rs0");
    assert_eq!(config.get_i32("version").unwrap(), 1);
    assert!(matches!(config.get("term"), Some(Bson::Int32(1) | Bson::Int64(1))), "{config}");
    assert!(
        matches!(config.get("protocolVersion"), Some(Bson::Int32(1) | Bson::Int64(1))),
        "{config}"
    );
    assert!(config.get_bool("writeConcernMajorityJournalDefault").unwrap());
    let member = config.get_array("members").unwrap()[0].as_document().unwrap().clone();
    let number = |document: &Document, name: &str| match document.get(name) {
        Some(Bson::Int32(number)) => f64::from(*number),
        Some(Bson::Int64(number)) => *number as f64,
        Some(Bson::Double(number)) => *number,
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!(number(&member, "priority"), 1.0);
    assert_eq!(number(&member, "votes"), 1.0);
    assert_eq!(number(&member, "secondaryDelaySecs"), 0.0);
    for (name, default) in [("hidden", false), ("arbiterOnly", false), ("buildIndexes", true)] {
        assert_eq!(member.get_bool(name).unwrap(), default, "{name}");
    }
    assert_eq!(member.get_document("tags").unwrap(), &Document::new());
    let settings = config.get_document("settings").unwrap();
    assert!(settings.get_bool("chainingAllowed").unwrap());
    for (name, default) in [
        ("heartbeatIntervalMillis", 2000.0),
        ("heartbeatTimeoutSecs", 10.0),
        ("electionTimeoutMillis", 10_000.0),
        ("catchUpTimeoutMillis", -1.0),
        ("catchUpTakeoverDelayMillis", 30_000.0),
    ] {
        assert_eq!(number(settings, name), default, "{name}");
    }
    assert_eq!(settings.get_document("getLastErrorModes").unwrap(), &Document::new());
    assert!(settings.get_object_id("replicaSetId").is_ok(), "{settings}");
}

#[test]
fn a_hasty_election_timeout_is_warned_of_in_the_reply() {
    let set = Set::start(1);
    let mut config = set.config();
    config.insert("settings", doc! { "electionTimeoutMillis": 1000 });
    let reply = set.ok(0, doc! { "replSetInitiate": config.clone() });
    let told = reply.get_array("warnings").unwrap();
    assert!(told[0].as_str().is_some_and(|told| told.contains("electionTimeoutMillis")), "{reply}");
    set.primary();
    config.insert("version", 2);
    config.insert("settings", doc! { "electionTimeoutMillis": 5000 });
    let current = set.ok(0, doc! { "replSetGetConfig": 1 });
    let current = current.get_document("config").unwrap();
    let id = current.get_document("settings").unwrap().get_object_id("replicaSetId").unwrap();
    config.get_document_mut("settings").unwrap().insert("replicaSetId", id);
    // A new primary stores a configuration of its own term first.
    let reply = set.wait("the reconfiguration", || {
        set.run(0, doc! { "replSetReconfig": config.clone() }).ok()
    });
    assert!(!reply.contains_key("warnings"), "{reply}");
}
