//! What the tools of users ask a member of a set, and the process around it answers or measures.

use bson::{Bson, Document, doc};

use crate::set::Set;

#[test]
fn the_time_of_commands_is_measured_and_told() {
    let set = Set::initiated(1);
    set.insert(0, doc! { "_id": 1 }, Bson::Int32(1)).unwrap();
    set.ok(0, doc! { "find": "c", "$db": "db" });
    let reply = set.ok(0, doc! { "top": 1 });
    let used = reply.get_document("totals").unwrap().get_document("db.c").unwrap();
    let count = |kind: &str| used.get_document(kind).unwrap().get_i64("count").unwrap();
    assert_eq!((count("insert"), count("queries")), (1, 1), "{used}");
    let time = |kind: &str| used.get_document(kind).unwrap().get_i64("time").unwrap();
    assert!(time("total") > 0, "{used}");
    let explained = |command: Document| {
        let verbosity = "executionStats";
        set.ok(0, doc! { "explain": command, "verbosity": verbosity, "$db": "db" })
    };
    let found = explained(doc! { "find": "c" });
    let stats = found.get_document("executionStats").unwrap();
    assert!(stats.get_i32("executionTimeMillis").unwrap() >= 0);
    // A pipeline that is more than a query has stages.
    let pipeline = vec![doc! { "$group": { "_id": "$a" } }];
    let stages = explained(doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} });
    let first = stages.get_array("stages").unwrap()[0].as_document().unwrap().clone();
    let cursor = first.get_document("$cursor").unwrap();
    assert!(cursor.get_document("executionStats").unwrap().contains_key("executionTimeMillis"));
    let size = set.ok(0, doc! { "dataSize": "db.c", "$db": "db" });
    assert!(size.get_i32("millis").unwrap() >= 0);
}

#[test]
fn the_machine_and_the_role_are_told() {
    let set = Set::initiated(1);
    let host = set.ok(0, doc! { "hostInfo": 1 });
    let system = host.get_document("system").unwrap();
    assert_eq!(system.get_str("hostname").unwrap(), set.host(0));
    let number = |name: &str| system.get_i64(name).unwrap();
    assert!(number("memSizeMB") >= number("memLimitMB") && number("memLimitMB") > 0, "{host}");
    let cores = |name: &str| system.get_i32(name).unwrap();
    assert!(cores("numCores") >= cores("numCoresAvailableToProcess"), "{host}");
    let status = set.ok(0, doc! { "serverStatus": 1 });
    let repl = status.get_document("repl").unwrap();
    assert!(repl.get_bool("ismaster").unwrap(), "mongostat looks here for a primary");
    assert!(repl.get_bool("isWritablePrimary").unwrap());
    // Members are processes of their own, of the program that serves.
    let build = set.ok(0, doc! { "buildInfo": 1 });
    assert_eq!(build.get_str("allocator").unwrap(), "mimalloc");
}

/// The manual, "connPoolStats": the connections to other members. A set of one has none.
#[test]
fn connections_to_other_members_are_told() {
    let alone = Set::initiated(1);
    let told = alone.ok(0, doc! { "connPoolStats": 1 });
    assert_eq!(told.get_i32("totalInUse").unwrap(), 0, "{told}");
    let set = Set::initiated(2);
    let told = set.ok(0, doc! { "connPoolStats": 1 });
    let hosts = told.get_document("hosts").unwrap();
    let other = hosts.get_document(set.host(1).as_str()).unwrap();
    assert!(other.get_i32("inUse").unwrap() > 0 && other.get_i64("created").unwrap() > 0);
}

/// Commands that the process or the set answers are not run either.
#[test]
fn a_command_whose_help_is_asked_for_does_nothing() {
    let set = Set::initiated(1);
    for name in ["shutdown", "replSetStepDown", "fsync"] {
        let reply = set.ok(0, doc! { name: 1, "lock": true, "help": true });
        assert!(reply.get_str("help").unwrap().starts_with(&format!("help for: {name}")));
    }
    let status = set.ok(0, doc! { "serverStatus": 1 });
    assert!(!status.get_document("fsyncLock").unwrap().get_bool("locked").unwrap());
    assert!(status.get_document("repl").unwrap().get_bool("isWritablePrimary").unwrap());
}
