//! Images that events show: none is older than its event, and none is asked for that no client is shown.

use std::ops::Bound;

use quorate_protocol::OpTime;

use super::*;

fn is_woken(woken: &Arc<Mutex<bool>>) -> bool {
    *woken.lock().unwrap()
}

/// A follower shows majority reads the end of a batch, not each of its entries. Until it does, a document could only be
/// looked up as it was before the event.
#[test]
fn a_looked_up_document_is_not_older_than_its_event() {
    let member = primary();
    member.insert("c", vec![doc! { "_id": 1, "a": 1 }]);
    member.insert("other", vec![doc! { "_id": 1 }]);
    let follower = support::set::secondary();
    let entries = support::set::entries(&member);
    follower.node.apply(OpTime::NULL, entries, support::now()).unwrap();
    commit(&follower);
    let watch_follower = |full_document: &str| {
        let stage = doc! { "$changeStream": { "fullDocument": full_document } };
        let mut command = aggregate("c".into(), vec![stage]);
        command.insert("$readPreference", doc! { "mode": "nearest" });
        open(&follower, command)
    };
    let (mut looked, mut plain) = (watch_follower("updateLookup"), watch_follower("default"));
    let common = position(&follower).op_time;
    update(&member, doc! { "$set": { "a": 2 } });
    let updated = position(&member);
    member.insert("other", vec![doc! { "_id": 2 }]);
    let after = Bound::Excluded(common.timestamp);
    let batch = member.node.read_oplog(after, usize::MAX, usize::MAX).unwrap().entries;
    let woken = Arc::new(Mutex::new(false));
    let told = Arc::clone(&woken);
    let wake = Box::new(move || *told.lock().unwrap() = true);
    let waits = follower.node.await_stream(looked.id, wake);
    assert!(matches!(waits, Awaited::Waits(_)));
    follower.node.apply(common, batch, support::now()).unwrap();
    support::set::commit(&follower, updated);
    follower.node.tell_streams();
    let shown = |stream: &Stream<'_>| {
        let reply = stream.get_more();
        let batch = reply.get_document("cursor").unwrap().get_array("nextBatch").unwrap();
        batch.iter().map(|event| event.as_document().unwrap().clone()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&looked), [] as [Document; 0]);
    assert!(!is_woken(&woken), "it has nothing to show yet");
    assert_eq!(shown(&plain).len(), 1, "it needs no document");
    commit(&follower);
    follower.node.tell_streams();
    assert!(is_woken(&woken));
    drop(waits);
    let events = looked.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].get_document("fullDocument").unwrap(), &doc! { "_id": 1, "a": 2 });
    assert!(plain.events().is_empty());
}

/// A stream that requires images goes on after an event that has none: its client has that event already.
#[test]
fn a_stream_is_resumed_after_an_event_whose_image_was_not_kept() {
    let member = primary();
    let kept = || doc! { "changeStreamPreAndPostImages": { "enabled": true } };
    member.insert("c", vec![doc! { "_id": 1, "a": 1 }]);
    let mut create = doc! { "create": "d" };
    create.extend(kept());
    member.ok(create);
    member.insert("d", vec![doc! { "_id": 1, "a": 1 }]);
    let mut plain = watch(&member, 1, doc! {});
    let change = |name: &str, a: i32| {
        let set = doc! { "$set": { "a": a } };
        doc! { "update": name, "updates": [{ "q": { "_id": 1 }, "u": set }] }
    };
    let required = |token: &Document| {
        doc! {
            "fullDocument": "required", "fullDocumentBeforeChange": "required",
            "resumeAfter": token.get_document("_id").unwrap(),
        }
    };
    let shown = |token: &Document| {
        let events = watch(&member, 1, required(token)).events();
        assert_eq!(events.len(), 1);
        let a_of = |name: &str| events[0].get_document(name).unwrap().get_i32("a").unwrap();
        (a_of("fullDocumentBeforeChange"), a_of("fullDocument"))
    };
    member.ok(change("c", 2));
    member.ok(change("d", 2));
    let entries = plain.events();
    assert_eq!(shown(&entries[0]), (1, 2));
    transact(&member, 1, vec![change("c", 3), change("d", 3)]);
    let operations = plain.events();
    assert_eq!(shown(&operations[0]), (2, 3));
    // What is to be shown still has to be there.
    let stages = vec![doc! { "$changeStream": required(&entries[1]) }];
    assert_eq!(member.code(aggregate(1.into(), stages)), 47);
}

/// A transaction of one session, statement by statement.
fn update_of(id: i32, change: Document) -> Document {
    doc! { "update": "c", "updates": [{ "q": { "_id": id }, "u": change }] }
}

#[test]
fn images_of_transactions_are_kept_on_every_member_and_go_with_a_rollback() {
    let member = primary();
    member.ok(doc! { "create": "c", "changeStreamPreAndPostImages": { "enabled": true } });
    member.insert("c", vec![doc! { "_id": 1, "a": 1 }, doc! { "_id": 2, "a": 1 }]);
    let required = doc! { "fullDocument": "required", "fullDocumentBeforeChange": "required" };
    let mut kept = watch(&member, "c", required);
    let follower = support::set::secondary();
    let all = support::set::entries(&member);
    follower.node.apply(quorate_protocol::OpTime::NULL, all, support::now()).unwrap();
    let common = position(&follower);
    let change = |a: i32| doc! { "$set": { "a": a } };
    transact(
        &member,
        1,
        vec![update_of(1, change(2)), update_of(1, change(3)), update_of(2, change(9))],
    );
    let events = kept.events();
    let image = |event: &Document, name: &str| {
        let image = event.get_document(name).unwrap();
        (image.get_i32("_id").unwrap(), image.get_i32("a").unwrap())
    };
    let before: Vec<_> =
        events.iter().map(|event| image(event, "fullDocumentBeforeChange")).collect();
    let after: Vec<_> = events.iter().map(|event| image(event, "fullDocument")).collect();
    assert_eq!(before, [(1, 1), (1, 2), (2, 1)]);
    assert_eq!(after, [(1, 2), (1, 3), (2, 9)]);
    let rows = images(&member);
    let id = rows[2].get_document("_id").unwrap();
    assert_eq!(id.get_i64("applyOpsIndex").unwrap(), 2);
    assert_eq!(id.get_timestamp("ts").unwrap(), events[2].get_timestamp("clusterTime").unwrap());
    assert_eq!(rows[2].get_document("preImage").unwrap(), &doc! { "_id": 2, "a": 1 });
    assert!(rows[2].get_datetime("operationTime").is_ok());
    let all = support::set::entries(&member);
    follower.node.apply(quorate_protocol::OpTime::NULL, all, support::now()).unwrap();
    assert_eq!(images(&follower), rows);
    follower.node.roll_back_to(common, support::now(), &mut |_| Ok(())).unwrap();
    assert_eq!(images(&follower), [] as [Document; 0]);
    // They are no collection that clients could write to.
    let delete = doc! {
        "delete": "system.preimages", "deletes": [{ "q": {}, "limit": 0 }], "$db": "config",
    };
    assert_eq!(member.code(delete), 20);
}

/// The images of a transaction are kept with its last entry, and go with it: the entries before it may stay.
#[test]
fn a_rollback_into_a_transaction_leaves_none_of_its_images() {
    let (member, follower) = (primary(), support::set::secondary());
    member.node.split_transactions_at(1);
    member.ok(doc! { "create": "c", "changeStreamPreAndPostImages": { "enabled": true } });
    member.insert("c", vec![doc! { "_id": 1, "a": 1 }, doc! { "_id": 2, "a": 1 }]);
    let change = |id: i32| update_of(id, doc! { "$inc": { "a": 1 } });
    transact(&member, 1, vec![change(1), change(2), change(1)]);
    let mut known = support::set::entries(&member);
    let null = quorate_protocol::OpTime::NULL;
    follower.node.apply(null, known.clone(), support::now()).unwrap();
    assert_eq!((images(&follower).len(), images(&follower)), (3, images(&member)));
    let rest = known.split_off(known.len() - 2);
    let within = quorate_node::entry_position(known.last().unwrap()).unwrap();
    follower.node.roll_back_to(within, support::now(), &mut |_| Ok(())).unwrap();
    assert_eq!(images(&follower), [] as [Document; 0]);
    follower.node.apply(within.op_time, rest, support::now()).unwrap();
    assert_eq!(images(&follower), images(&member));
}

#[test]
fn images_are_read_as_any_collection_is() {
    let member = primary();
    let kept = doc! { "create": "c", "changeStreamPreAndPostImages": { "enabled": true } };
    member.ok(kept);
    member.insert("c", vec![doc! { "_id": 1, "a": 0 }]);
    for value in 1..=3 {
        let update = doc! { "q": { "_id": 1 }, "u": { "$set": { "a": value } } };
        member.ok(doc! { "update": "c", "updates": [update] });
    }
    let ok = |mut command: Document| {
        command.insert("$db", "config");
        member.ok(command)
    };
    let values: Vec<_> = images(&member)
        .iter()
        .map(|row| row.get_document("preImage").unwrap().get_i32("a").unwrap())
        .collect();
    assert_eq!(values, [0, 1, 2]);
    let counted = ok(doc! { "count": "system.preimages" });
    assert_eq!(counted.get_i32("n").unwrap(), 3);
    let distinct = ok(doc! { "distinct": "system.preimages", "key": "preImage.a" });
    assert_eq!(distinct.get_array("values").unwrap().len(), 3);
    let late = doc! { "$match": { "preImage.a": { "$gt": 0 } } };
    let counted = ok(aggregate("system.preimages".into(), vec![late, doc! { "$count": "n" }]));
    let batch = counted.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert_eq!(batch, &[Bson::from(doc! { "n": 2 })]);
    // A member without a set keeps none.
    let alone = Member::new();
    assert_eq!(images(&alone), [] as [Document; 0]);
}
