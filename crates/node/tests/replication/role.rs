//! What a member takes and tells in its role.

use bson::{Document, doc};
use quorate_protocol::{MemberState, OpTime};

use crate::support::set::{entries, hash, position, primary, secondary, show};
use crate::support::{Member, now};

#[test]
fn other_members_than_a_primary_refuse_writes_and_secondaries_reads_without_leave() {
    let member = secondary();
    assert_eq!(member.code(doc! {"insert": "a", "documents": [{}]}), 10107);
    assert_eq!(member.code(doc! {"find": "a"}), 13435);
    member.ok(doc! {"find": "a", "$readPreference": {"mode": "secondary"}});
    show(&member.node, MemberState::Recovering, false);
    let read = doc! {"find": "a", "$readPreference": {"mode": "secondary"}};
    assert_eq!(member.code(read.clone()), 13436);
    let reply = member.run(read);
    let version = reply.get_document("topologyVersion").unwrap();
    assert_eq!(version.get_i64("counter").unwrap(), 3);
}

/// docs/replication-rules.md#elections and #errors: a step-down ends writes under way with 11602; the rest of
/// the log stays.
#[test]
fn a_long_write_ends_early_when_the_member_steps_down() {
    let member = primary();
    for part in 0..20 {
        let documents = (0..1000).map(|i| doc! {"_id": part * 1000 + i, "n": 0}).collect();
        member.insert("a", documents);
    }
    let before = position(&member);
    let reply = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            member.run(doc! {"update": "a", "updates": [
                {"q": {}, "u": {"$inc": {"n": 1}}, "multi": true},
            ]})
        });
        while position(&member) == before {
            std::thread::yield_now();
        }
        member.node.set_writable(None, now());
        writing.join().unwrap()
    });
    assert_eq!(reply.get_i32("code").unwrap(), 11602, "{reply}");
    assert!(reply.contains_key("topologyVersion"), "{reply}");
    // Reads go on, and what was done is in the log and in the data alike.
    show(&member.node, MemberState::Secondary, false);
    let copy = secondary();
    copy.node.apply(OpTime::NULL, entries(&member), now()).unwrap();
    assert_eq!(hash(&copy), hash(&member));
}

/// docs/replication-rules.md#errors.
#[test]
fn replica_set_commands_need_a_set() {
    let alone = Member::new();
    for command in ["replSetGetStatus", "replSetInitiate", "replSetStepDown", "replSetFreeze"] {
        let mut asked = Document::new();
        asked.insert(command, 1);
        asked.insert("$db", "admin");
        assert_eq!(alone.code(asked), 76, "{command}");
    }
}

/// docs/replication-rules.md#hello: what every server says in its hello, of a set or not.
#[test]
fn hello_has_every_field_that_clients_expect() {
    for member in [Member::new(), secondary()] {
        let hello = member.ok(doc! {"hello": 1, "$db": "admin"});
        for (name, value) in [
            ("maxBsonObjectSize", 16_777_216),
            ("maxMessageSizeBytes", 48_000_000),
            ("maxWriteBatchSize", 100_000),
            ("logicalSessionTimeoutMinutes", 30),
            ("minWireVersion", 0),
            ("maxWireVersion", 21),
        ] {
            assert_eq!(hello.get_i32(name).ok(), Some(value), "{name}: {hello}");
        }
        assert!(hello.get_datetime("localTime").is_ok(), "{hello}");
        assert!(hello.contains_key("connectionId"), "{hello}");
        assert_eq!(hello.get_bool("readOnly").ok(), Some(false));
        assert_eq!(hello.get_f64("ok").ok(), Some(1.0));
        let version = hello.get_document("topologyVersion").unwrap();
        assert!(version.get_object_id("processId").is_ok() && version.get_i64("counter").is_ok());
        assert!(hello.contains_key("isWritablePrimary") && !hello.contains_key("ismaster"));
        assert!(!hello.contains_key("helloOk"), "the client did not ask");
        let legacy = member.ok(doc! {"isMaster": 1, "helloOk": true, "$db": "admin"});
        assert_eq!(legacy.get_bool("helloOk").ok(), Some(true));
        assert!(legacy.contains_key("ismaster"), "{legacy}");
    }
    let alone = Member::new().ok(doc! {"hello": 1, "$db": "admin"});
    assert_eq!(alone.get_bool("isWritablePrimary").ok(), Some(true));
    assert!(!alone.contains_key("setName"), "{alone}");
}

/// docs/replication-rules.md#hello: both fields or neither, and no version that this process cannot
/// have shown.
#[test]
fn an_awaited_hello_checks_what_it_is_given() {
    let member = secondary();
    let hello = |process: u8, counter: i64, millis: i64| {
        let process_id = bson::oid::ObjectId::from_bytes([process; 12]);
        doc! {
            "hello": 1, "maxAwaitTimeMS": millis, "$db": "admin",
            "topologyVersion": {"processId": process_id, "counter": counter},
        }
    };
    assert_eq!(member.code(doc! {"hello": 1, "maxAwaitTimeMS": 1, "$db": "admin"}), 51759);
    assert_eq!(member.code(hello(1, -1, 10)), 31372);
    assert_eq!(member.code(hello(1, 3, -10)), 31373);
    assert_eq!(member.code(hello(1, 4, 10)), 31382, "the counter is at 3");
    // Another process's version, or an older one of ours, is answered at once.
    for (process, counter) in [(9, 70), (1, 2)] {
        let reply = member.ok(hello(process, counter, 10_000));
        let version = reply.get_document("topologyVersion").unwrap();
        assert_eq!(version.get_i64("counter").unwrap(), 3);
    }
}
