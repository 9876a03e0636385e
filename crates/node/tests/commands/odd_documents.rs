//! Documents that BSON allows and that few clients send.

use bson::raw::cstr;
use bson::{Document, RawBsonRef, RawDocumentBuf, doc, rawdoc};
use quorate_node::{Command, ErrorCode, Outcome};

use super::support::set::{entries, hash, primary, secondary};
use super::support::{Member, context, now};

/// `{_id: 1, x: 1, y: {z: 1, z: 2}, x: 2}`
fn twice() -> RawDocumentBuf {
    let mut inner = rawdoc! {"z": 1};
    inner.append(cstr!("z"), 2);
    let mut document = rawdoc! {"_id": 1, "x": 1, "y": inner};
    document.append(cstr!("x"), 2);
    document
}

/// Documents inside a write are refused with it, before any of them is written.
#[test]
fn malformed_documents_of_a_write_are_refused() {
    const TRUTH: &[u8] = b"\x08truth\0\x01";
    let member = primary();
    let statement = rawdoc! {"q": {"truth": true}, "u": {"$set": {"a": 1}}};
    let removal = rawdoc! {"q": {"truth": true}, "limit": 1};
    let document = rawdoc! {"_id": 1, "truth": true};
    for (name, payload, document) in [
        ("insert", "documents", document),
        ("update", "updates", statement),
        ("delete", "deletes", removal),
    ] {
        let bytes = document.into_bytes();
        let place = bytes.windows(TRUTH.len()).position(|part| part == TRUTH).unwrap();
        let with = |truth: u8| {
            let mut bytes = bytes.clone();
            bytes[place + TRUTH.len() - 1] = truth;
            let document = RawDocumentBuf::from_bytes(bytes).unwrap();
            let mut body = RawDocumentBuf::new();
            body.append(bson::raw::CString::try_from(name).unwrap(), "c");
            let documents = bson::RawArrayBuf::from_iter([document]);
            body.append(bson::raw::CString::try_from(payload).unwrap(), documents);
            body.append(cstr!("$db"), "db");
            let command = match Command::from_raw(&body, Vec::new()) {
                Ok(command) => command,
                Err(error) => return Some(error.code.0),
            };
            let Outcome::Reply(reply) = member.node.run(&context(), command) else {
                panic!("no reply")
            };
            assert!(reply.body.get("writeErrors").unwrap().is_none(), "{name}");
            reply.body.get_i32("code").ok()
        };
        assert_eq!(with(2), Some(22), "{name}");
        assert_eq!(with(1), None, "{name}");
    }
}

/// `{a: {a: …}}`, deeper than the stack of a thread would bear if it were read level by level.
fn deep() -> RawDocumentBuf {
    let levels = 5_000;
    let mut bytes = Vec::new();
    for level in (0..levels).rev() {
        bytes.extend((8 * (level + 1) - 3_i32).to_le_bytes());
        bytes.extend(if level > 0 { &b"\x03a\0"[..] } else { b"" });
    }
    bytes.extend(vec![0; levels as usize]);
    RawDocumentBuf::from_bytes(bytes).unwrap()
}

/// Whether a write is long is asked before its statements are read. Those inside the command are refused with it.
#[test]
fn a_statement_that_nests_too_deeply_is_refused_and_breaks_nothing() {
    let member = primary();
    member.ok(doc! {"insert": "c", "documents": [{"_id": 1}]});
    let update = rawdoc! {"q": deep(), "u": {"$set": {"a": 1}}};
    let removal = rawdoc! {"q": deep(), "limit": 1};
    for (name, payload, statement) in
        [("update", "updates", update), ("delete", "deletes", removal)]
    {
        let mut body = RawDocumentBuf::new();
        body.append(bson::raw::CString::try_from(name).unwrap(), "c");
        body.append(cstr!("$db"), "db");
        let mut inside = body.clone();
        let array = bson::RawArrayBuf::from_iter([statement.clone()]);
        inside.append(bson::raw::CString::try_from(payload).unwrap(), array);
        let beside = vec![(payload.to_owned(), vec![statement])];
        let refused = Command::from_raw(&inside, Vec::new()).unwrap_err();
        assert_eq!(refused.code, ErrorCode::OVERFLOW, "{name}");
        let command = Command::from_raw(&body, beside).unwrap();
        assert!(!member.node.is_long(&command));
        let Outcome::Reply(reply) = member.node.run(&context(), command) else {
            panic!("no reply")
        };
        assert_eq!(reply.body.get_i32("code").unwrap(), 15, "{name}");
    }
}

fn insert_raw(member: &Member, document: RawDocumentBuf) {
    let body = rawdoc! {"insert": "c", "$db": "db"};
    let command = Command::from_raw(&body, vec![("documents".to_owned(), vec![document])]).unwrap();
    assert!(matches!(member.node.run(&context(), command), Outcome::Reply(_)));
}

/// The only document of the collection, as it is stored.
fn stored(member: &Member) -> RawDocumentBuf {
    let command = Command::new(doc! {"find": "c", "$db": "db"});
    let Outcome::Reply(reply) = member.node.run(&context(), command) else { panic!("no reply") };
    let batch = reply.body.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let RawBsonRef::Document(first) = batch.get(0).unwrap().unwrap() else { panic!("no document") };
    first.to_owned()
}

fn numbers(document: &bson::RawDocument) -> Vec<(String, i32)> {
    let number = |(name, value): (&bson::raw::CStr, RawBsonRef<'_>)| {
        value.as_i32().map(|number| (name.as_str().to_owned(), number))
    };
    document.iter().flatten().filter_map(number).collect()
}

/// MongoDB changes the first of several fields of one name. A follower makes the same of the entry.
#[test]
fn an_update_changes_the_first_field_of_a_name() {
    let updates = [
        doc! {"$inc": {"x": 10, "y.z": 10}},
        doc! {"$set": {"x": 11, "y.z": 11}},
        doc! {"$max": {"x": 11, "y.z": 11}},
    ];
    for update in updates {
        let member = primary();
        insert_raw(&member, twice());
        member.ok(doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": update.clone()}]});
        let after = stored(&member);
        let of = |pairs: [(&str, i32); 2]| pairs.map(|(name, n)| (name.to_owned(), n));
        assert_eq!(numbers(&after)[1..], of([("x", 11), ("x", 2)]), "{update}");
        let inner = after.get_document("y").unwrap();
        assert_eq!(numbers(inner), of([("z", 11), ("z", 2)]), "{update}");
        let follower = secondary();
        let log: Vec<_> = entries(&member);
        follower.node.apply(quorate_protocol::OpTime::NULL, log, now()).unwrap();
        assert_eq!(hash(&follower), hash(&member), "{update}");
    }
}

#[test]
fn a_pipeline_and_find_and_modify_change_the_first_field_of_a_name() {
    let member = primary();
    insert_raw(&member, twice());
    let changed: Document = doc! {"$set": {"x": {"$add": ["$x", 10]}}};
    member.ok(doc! {"update": "c", "updates": [{"q": {}, "u": [changed]}]});
    assert_eq!(numbers(&stored(&member))[1], ("x".to_owned(), 11));
    member.ok(doc! {"findAndModify": "c", "query": {}, "update": {"$inc": {"x": 10}}});
    assert_eq!(numbers(&stored(&member))[1], ("x".to_owned(), 21));
    assert_eq!(numbers(&stored(&member))[2], ("x".to_owned(), 2));
}
