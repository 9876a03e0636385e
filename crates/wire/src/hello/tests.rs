use bson::oid::ObjectId as BsonObjectId;
use bson::{RawBson, RawDocumentBuf, rawdoc};
use quorate_protocol::{ObjectId, Timestamp, WallTime};

use super::*;

fn parse(reply: &RawDocumentBuf) -> HelloReply {
    parse_hello(reply).unwrap()
}

fn error_text(reply: &RawDocumentBuf) -> String {
    parse_hello(reply).unwrap_err().to_string()
}

#[test]
fn a_primary_of_three_is_read_whole() {
    let reply = parse(&rawdoc! {
        "topologyVersion": { "processId": BsonObjectId::from_bytes([1; 12]), "counter": 6_i64 },
        "hosts": ["A:27017", "b:27017"],
        "passives": ["c:27017"],
        "arbiters": ["d:27017"],
        "setName": "rs0",
        "setVersion": 2,
        "isWritablePrimary": true,
        "secondary": false,
        "primary": "a:27017",
        "me": "A:27017",
        "tags": { "dc": "ny" },
        "electionId": BsonObjectId::from_bytes([7; 12]),
        "lastWrite": {
            "opTime": { "ts": bson::Timestamp { time: 5, increment: 2 }, "t": 3_i64 },
            "lastWriteDate": bson::DateTime::from_millis(5000),
        },
        "minWireVersion": 0,
        "maxWireVersion": 21,
        "logicalSessionTimeoutMinutes": 30,
        "helloOk": true,
        "somethingNew": { "of": "later" },
        "ok": 1.0,
    });
    assert!(reply.ok && reply.is_writable_primary && reply.hello_ok && !reply.secondary);
    let names: Vec<_> = reply.members().map(ServerAddress::as_str).collect();
    assert_eq!(names, ["a:27017", "b:27017", "c:27017", "d:27017"]);
    assert_eq!(reply.me, reply.primary);
    assert_eq!(reply.me.unwrap().as_str(), "a:27017");
    assert_eq!(reply.set_version, Some(SetVersion(2)));
    assert_eq!(reply.election_id, Some(ElectionId(ObjectId::from_bytes([7; 12]))));
    let last_write = reply.last_write.unwrap();
    assert_eq!(last_write.op_time, Some(OpTime::new(3, Timestamp::new(5, 2))));
    assert_eq!(last_write.last_write_date, Some(WallTime(5000)));
    assert_eq!(reply.tags.get("dc"), Some("ny"));
    assert_eq!(reply.topology_version.unwrap().counter, 6);
    assert_eq!((reply.wire_versions.min, reply.wire_versions.max), (0, 21));
    assert_eq!(reply.logical_session_timeout_minutes, Some(30));
}

#[test]
fn is_writable_primary_comes_before_ismaster() {
    for (reply, expected) in [
        (rawdoc! { "ismaster": true, "isWritablePrimary": false }, false),
        (rawdoc! { "isWritablePrimary": true, "ismaster": false }, true),
        (rawdoc! { "ismaster": true }, true),
        (rawdoc! { "ok": 1 }, false),
    ] {
        assert_eq!(parse(&reply).is_writable_primary, expected, "{reply:?}");
    }
}

#[test]
fn ok_and_versions_may_be_numbers_of_any_kind() {
    for ok in [RawBson::Int32(1), RawBson::Int64(1), RawBson::Double(1.0), RawBson::Boolean(true)] {
        let reply = rawdoc! { "ok": ok, "setVersion": 3.0, "maxWireVersion": 21_i64 };
        let reply = parse(&reply);
        assert!(reply.ok && reply.set_version == Some(SetVersion(3)));
        assert_eq!(reply.wire_versions.max, 21);
    }
    assert!(!parse(&rawdoc! { "ok": 0 }).ok);
    assert!(!parse(&rawdoc! { "setName": RawBson::Null }).ok);
}

#[test]
fn a_timestamp_alone_is_an_op_time_without_a_term() {
    let reply = rawdoc! { "lastWrite": { "opTime": bson::Timestamp { time: 8, increment: 1 } } };
    let op_time = parse(&reply).last_write.unwrap().op_time.unwrap();
    assert_eq!(op_time, OpTime::new(-1, Timestamp::new(8, 1)));
}

#[test]
fn wrong_types_are_named_with_the_field_and_the_type_found() {
    for (reply, field, found) in [
        (rawdoc! { "hosts": "a" }, "hosts", "String"),
        (rawdoc! { "hosts": ["a", 3] }, "hosts", "Int32"),
        (rawdoc! { "hosts": ["a", RawBson::Null] }, "hosts", "Null"),
        (rawdoc! { "setName": 1 }, "setName", "Int32"),
        (rawdoc! { "setVersion": "1" }, "setVersion", "String"),
        (rawdoc! { "electionId": "x" }, "electionId", "String"),
        (rawdoc! { "ok": "1" }, "ok", "String"),
        (rawdoc! { "tags": ["a"] }, "tags", "Array"),
        (rawdoc! { "tags": { "a": 1 } }, "tags", "Int32"),
        (rawdoc! { "lastWrite": { "opTime": 1 } }, "lastWrite.opTime", "Int32"),
        (rawdoc! { "lastWrite": { "lastWriteDate": 1 } }, "lastWrite.lastWriteDate", "Int32"),
        (rawdoc! { "topologyVersion": { "processId": 1 } }, "topologyVersion.processId", "Int32"),
        (rawdoc! { "secondary": "yes" }, "secondary", "String"),
        (rawdoc! { "serviceId": true }, "serviceId", "Boolean"),
    ] {
        let text = error_text(&reply);
        assert!(text.contains(&format!("the field {field} ")), "{text}");
        assert!(text.contains(found), "{text}");
    }
}

#[test]
fn numbers_out_of_range_and_missing_halves_are_named() {
    assert!(error_text(&rawdoc! { "setVersion": 1.5 }).contains("setVersion"));
    assert!(error_text(&rawdoc! { "setVersion": f64::NAN }).contains("setVersion"));
    assert!(error_text(&rawdoc! { "setVersion": 1e30 }).contains("setVersion"));
    assert!(error_text(&rawdoc! { "maxWireVersion": 1_i64 << 40 }).contains("maxWireVersion"));
    let half = rawdoc! { "topologyVersion": { "counter": 1 } };
    assert!(error_text(&half).contains("topologyVersion.processId is missing"));
    let half = rawdoc! { "lastWrite": { "opTime": { "t": 1_i64 } } };
    assert!(error_text(&half).contains("lastWrite.opTime.ts is missing"));
}

#[test]
fn absurd_lists_and_texts_are_refused_by_name() {
    let list = |count: usize| {
        bson::RawArrayBuf::from_iter((0..count).map(|number| format!("host{number}:1")))
    };
    let full = rawdoc! { "hosts": list(600), "passives": list(400) };
    assert_eq!(parse(&full).members().count(), MAX_LISTED_MEMBERS);
    let over = rawdoc! { "hosts": list(600), "arbiters": list(401) };
    assert_eq!(parse_hello(&over), Err(HelloError::TooManyMembers { field: "arbiters" }));
    let over = rawdoc! { "hosts": list(10_000) };
    assert_eq!(parse_hello(&over), Err(HelloError::TooManyMembers { field: "hosts" }));

    assert!(error_text(&rawdoc! { "setName": "x".repeat(1025) }).contains("setName"));
    assert!(error_text(&rawdoc! { "hosts": ["x".repeat(1025)] }).contains("hosts"));
    assert!(error_text(&rawdoc! { "me": "a b" }).contains("the field me"));
    assert!(error_text(&rawdoc! { "primary": "a:70000" }).contains("the field primary"));

    let mut tags = RawDocumentBuf::new();
    for number in 0..=MAX_TAGS {
        tags.append(bson::raw::CString::try_from(number.to_string()).unwrap(), "x");
    }
    assert_eq!(parse_hello(&rawdoc! { "tags": tags }), Err(HelloError::TooManyTags));
}

#[test]
fn broken_bytes_are_an_error() {
    let mut bytes = rawdoc! { "setName": "rs0", "ok": 1 }.into_bytes();
    bytes[13] = 0xff; // the length of "rs0"
    let broken = RawDocumentBuf::from_bytes(bytes).unwrap();
    assert!(error_text(&broken).contains("broken"));
}

proptest::proptest! {
    #[test]
    fn any_bytes_give_a_reply_or_an_error(mut bytes in proptest::collection::vec(0_u8.., 5..200)) {
        let length = bytes.len();
        bytes[..4].copy_from_slice(&i32::try_from(length).unwrap().to_le_bytes());
        bytes[length - 1] = 0;
        let _ = parse_hello(RawDocument::from_bytes(&bytes).unwrap());
        let _ = crate::command_error(RawDocument::from_bytes(&bytes).unwrap());
    }

    /// Random bytes seldom hold the name of a field; flipped bytes of a real reply do.
    #[test]
    fn a_damaged_reply_gives_a_reply_or_an_error(
        damage in proptest::collection::vec((4_usize..300, 0_u8..), 1..6),
    ) {
        let mut bytes = rawdoc! {
            "ok": 1, "hosts": ["a:1", "b:2"], "tags": { "a": "b" }, "setName": "rs",
            "topologyVersion": { "processId": BsonObjectId::from_bytes([1; 12]), "counter": 6_i64 },
            "lastWrite": { "opTime": { "ts": bson::Timestamp { time: 5, increment: 2 } } },
            "errorLabels": ["x"], "writeConcernError": { "code": 1 },
        }.into_bytes();
        let last = bytes.len() - 1;
        for (position, value) in damage {
            if position < last {
                bytes[position] = value;
            }
        }
        let _ = parse_hello(RawDocument::from_bytes(&bytes).unwrap());
        let _ = crate::command_error(RawDocument::from_bytes(&bytes).unwrap());
    }
}
