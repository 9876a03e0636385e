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
