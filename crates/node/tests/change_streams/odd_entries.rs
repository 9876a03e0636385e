//! Documents of users that look like what only the log says: they are told as what they are.

use quorate_protocol::OpTime;

use super::*;

/// A retryable insert, whose entry names its session as those of transactions do.
fn insert_retryably(member: &Member, number: i64, document: Document) {
    let id = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16] };
    let reply = member.ok(doc! {
        "insert": "c", "documents": [document], "lsid": { "id": id }, "txnNumber": number,
    });
    assert!(!reply.contains_key("writeErrors"), "{reply}");
}

fn watch_all(member: &Member) -> Stream<'_> {
    let stage = doc! { "$changeStream": { "allChangesForCluster": true } };
    let mut command = aggregate(1.into(), vec![stage]);
    command.insert("$db", "admin");
    open(member, command)
}

/// Entries are told apart by their operation: the fields of a command are names like any other in a document.
#[test]
fn documents_with_the_fields_of_a_transaction_are_inserts() {
    let member = primary();
    let forged = doc! { "op": "i", "ns": "other.secret", "o": { "_id": 9 } };
    let documents = [
        doc! { "_id": 1, "abortTransaction": 1 },
        doc! { "_id": 2, "applyOps": 1 },
        doc! { "_id": 3, "applyOps": [forged] },
        doc! { "_id": 4, "applyOps": [], "partialTxn": true },
    ];
    let mut one = watch(&member, "c", doc! {});
    let mut all = watch_all(&member);
    let woken = Arc::new(Mutex::new(0));
    let count = Arc::clone(&woken);
    let wake = Box::new(move || *count.lock().unwrap() += 1);
    let waits = member.node.await_stream(one.id, wake);
    assert!(matches!(waits, Awaited::Waits(_)));
    for (number, document) in (1..).zip(&documents) {
        insert_retryably(&member, number, document.clone());
        commit(&member);
        member.node.tell_streams();
        assert_eq!(*woken.lock().unwrap(), 1, "{document}");
    }
    drop(waits);
    for stream in [&mut one, &mut all] {
        let events = stream.events();
        let shown: Vec<_> =
            events.iter().map(|event| event.get_document("fullDocument").unwrap()).collect();
        assert_eq!(shown, documents.iter().collect::<Vec<_>>());
        // Its token does not wait for the end of a transaction.
        assert_eq!(&stream.token, events[3].get_document("_id").unwrap());
    }
    member.insert("other", vec![doc! { "_id": 1 }]);
    let last = one.token.get_str("_data").unwrap().to_owned();
    assert!(one.events().is_empty());
    assert!(one.token.get_str("_data").unwrap() > last.as_str());
}

/// A pipeline may make any document. Stored documents begin with `_id`, and deltas with `$v`.
#[test]
fn a_document_with_the_fields_of_a_delta_is_a_replacement_on_every_member() {
    let member = primary();
    member.insert("c", vec![doc! { "_id": 1, "a": 1 }, doc! { "_id": 2, "a": 1 }]);
    let mut stream = watch(&member, "c", doc! {});
    let before = support::set::entries(&member);
    let change = |id: i32| doc! { "_id": id, "$v": 2, "diff": { "d": { "a": false } } };
    for id in [1, 2] {
        let pipeline = vec![doc! { "$replaceWith": { "$literal": change(id) } }];
        member.ok(doc! { "update": "c", "updates": [{ "q": { "_id": id }, "u": pipeline }] });
    }
    let events = stream.events();
    for (id, event) in (1..).zip(&events) {
        assert_eq!(event.get_str("operationType").unwrap(), "replace");
        assert_eq!(event.get_document("fullDocument").unwrap(), &change(id));
    }
    assert_eq!(events.len(), 2);
    let batch = support::set::entries(&member).split_off(before.len());
    for prepares_from in [1, usize::MAX] {
        let follower = support::set::secondary();
        follower.node.prepare_from(prepares_from);
        follower.node.apply(OpTime::NULL, before.clone(), support::now()).unwrap();
        let common = position(&follower).op_time;
        follower.node.apply(common, batch.clone(), support::now()).unwrap();
        assert_eq!(support::set::hash(&follower), support::set::hash(&member));
    }
    // Over a copy that lacks the document it is whole all the same.
    let copy = support::set::secondary();
    copy.node.wipe(support::now()).unwrap();
    let namespace = quorate_node::Namespace::new("db", "c").unwrap();
    let uuid = support::set::uuid_of(&member, "c");
    copy.node.clone_collection(&namespace, uuid.clone(), Document::new(), support::now()).unwrap();
    copy.node.copied_whole(&uuid);
    let last = copy.node.apply_cloned(batch, support::now()).unwrap();
    copy.node.finish_clone(last, support::now()).unwrap();
    assert_eq!(support::set::hash(&copy), support::set::hash(&member));
}

/// Whether nothing was before the oldest entry is what the set itself has written there.
#[test]
fn a_document_that_reads_like_the_first_entry_is_not_the_beginning_of_the_set() {
    let member = Member::with_history(quorate_storage::ModelStore::new(), 20_000);
    member.node.join_replica_set(support::now()).unwrap();
    support::set::show(&member.node, quorate_protocol::MemberState::Primary, true);
    let (reason, term) = (quorate_replication::NoopReason::NewPrimary, quorate_protocol::Term(1));
    member.node.append_noop(reason, term, support::now()).unwrap();
    let text = "x".repeat(100);
    for id in 0..400 {
        member.insert("c", vec![doc! { "_id": id, "msg": "initiating set", "text": &text }]);
    }
    commit(&member);
    while member.node.maintain(support::now()).unwrap() {}
    let oldest = Document::try_from(&*support::set::entries(&member)[0]).unwrap();
    assert_eq!(oldest.get_str("op").unwrap(), "i", "the log was trimmed");
    let early = Bson::Timestamp(bson::Timestamp { time: 1, increment: 1 });
    let stage = doc! { "$changeStream": { "startAtOperationTime": early } };
    assert_eq!(member.code(aggregate("c".into(), vec![stage])), 286);
}

/// The token of a fragment stands within an event, of which a stream without fragments shows all or nothing.
#[test]
fn a_stream_that_does_not_split_is_not_resumed_within_an_event() {
    let member = primary();
    let mut stream = watch(&member, "c", doc! {});
    member.insert("c", vec![doc! { "_id": 1 }]);
    let token = stream.events()[0].get_document("_id").unwrap().clone();
    let data = token.get_str("_data").unwrap();
    // The number of the fragment comes before the end.
    let fragment = data.strip_suffix("04").map(|event| format!("{event}2904")).unwrap();
    for (id, option) in [(2, "resumeAfter"), (3, "startAfter")] {
        let stage = doc! { "$changeStream": { option: { "_data": &fragment } } };
        assert_eq!(member.code(aggregate("c".into(), vec![stage.clone()])), 280);
        let split = vec![stage, doc! { "$changeStreamSplitLargeEvent": {} }];
        let mut resumed = open(&member, aggregate("c".into(), split));
        member.insert("c", vec![doc! { "_id": id }]);
        assert_eq!(resumed.types().last().map(String::as_str), Some("insert"));
    }
}
