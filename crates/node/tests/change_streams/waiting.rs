//! Streams that wait: what a change costs those that show it, and those that do not.

use quorate_node::Command;

use super::*;

/// A thousand streams that keep up cost one scan of the oplog.
#[test]
fn each_entry_is_read_once_for_all_streams() {
    const STREAMS: usize = 1_000;
    let member = primary();
    member.insert("c", vec![doc! { "_id": -1 }]);
    let mut streams: Vec<Stream<'_>> = (0..STREAMS).map(|_| watch(&member, "c", doc! {})).collect();
    let read = || {
        let reply = member.ok(doc! { "serverStatus": 1, "$db": "admin" });
        reply.get_document("changeStreams").unwrap().get_i64("entriesRead").unwrap()
    };
    let before = read();
    for id in 0..10 {
        member.insert("c", vec![doc! { "_id": id }]);
        for stream in &mut streams {
            assert_eq!(stream.events().len(), 1);
        }
    }
    assert_eq!(read() - before, 10);
}

/// Whether a command that found nothing in a stream looks at it again at once, instead of waiting.
fn has_news(member: &Member, cursor: i64) -> bool {
    !matches!(member.node.await_stream(cursor, Box::new(|| {})), Awaited::Waits(_))
}

/// A stream that waits is asked whether it has news; what it does not show, it passes over.
#[test]
fn a_stream_that_waits_knows_whether_a_change_concerns_it() {
    let member = primary();
    let matches = |value: i32| {
        vec![doc! { "$changeStream": {} }, doc! { "$match": { "fullDocument.n": value } }]
    };
    let mut one = open(&member, aggregate("c".into(), matches(1)));
    let mut two = open(&member, aggregate("c".into(), matches(2)));
    let mut all = watch(&member, "c", doc! {});
    assert!(![&one, &two, &all].iter().any(|stream| has_news(&member, stream.id)));
    member.insert("c", vec![doc! { "_id": 1, "n": 2 }]);
    assert!(!has_news(&member, two.id), "no majority has it");
    commit(&member);
    assert!(!has_news(&member, one.id));
    assert!(has_news(&member, two.id) && has_news(&member, all.id));
    assert_eq!((two.types(), all.types()), (vec!["insert".into()], vec!["insert".into()]));
    assert!(one.events().is_empty());
    // It has passed over the change: its token stands behind it.
    assert!(one.token.get_str("_data").unwrap() > two.token.get_str("_data").unwrap());
    // A transaction and the end of the collection are for each stream to look at.
    transact(&member, 1, vec![doc! { "insert": "c", "documents": [{ "_id": 2, "n": 1 }] }]);
    commit(&member);
    assert!(has_news(&member, one.id));
    assert_eq!(one.types(), ["insert"]);
    member.ok(doc! { "drop": "c" });
    commit(&member);
    assert!(has_news(&member, two.id));
    let id = two.id;
    two.events();
    assert_eq!(two.id, 0, "the stream is over");
    assert!(has_news(&member, id), "a cursor that is gone is for a command to tell");
}

fn stream_figures(member: &Member) -> (i64, i64) {
    let reply = member.ok(doc! { "serverStatus": 1, "$db": "admin" });
    let shown = reply.get_document("changeStreams").unwrap();
    (shown.get_i64("filtersAsked").unwrap(), shown.get_i64("wokenUp").unwrap())
}

/// The cursors of streams that were woken, in the order of it.
type Woken = Arc<Mutex<Vec<i64>>>;

/// A stream on `c` that shows the documents of one number.
fn showing(n: i32) -> Document {
    let filter = doc! { "$match": { "fullDocument.n": n } };
    aggregate("c".into(), vec![doc! { "$changeStream": {} }, filter])
}

/// Lets a stream wait that has nothing to tell.
fn wait(member: &Member, id: i64, woken: &Woken) -> StreamWait {
    let woken = Arc::clone(woken);
    match member.node.await_stream(id, Box::new(move || woken.lock().unwrap().push(id))) {
        Awaited::Waits(wait) => wait,
        Awaited::News | Awaited::Unknown => panic!("nothing has happened"),
    }
}

/// Of a thousand streams that wait a change wakes the one that shows it. A change of another collection, alone or in
/// a transaction, costs none of them anything.
#[test]
fn a_change_wakes_only_the_streams_that_show_it() {
    const STREAMS: i32 = 1_000;
    let member = primary();
    member.insert("c", vec![doc! { "_id": -1 }]);
    member.insert("other", vec![doc! { "_id": -1 }]);
    let mut streams: Vec<Stream<'_>> = (0..STREAMS).map(|n| open(&member, showing(n))).collect();
    let woken = Woken::default();
    let mut waits: Vec<StreamWait> =
        streams.iter().map(|stream| wait(&member, stream.id, &woken)).collect();
    member.insert("other", (0..10).map(|id| doc! { "_id": id, "n": 1 }).collect());
    transact(&member, 1, vec![doc! { "insert": "other", "documents": [{ "_id": 77, "n": 1 }] }]);
    commit(&member);
    member.node.tell_streams();
    assert_eq!(stream_figures(&member), (0, 0), "no filter is asked about another collection");
    member.insert("c", vec![doc! { "_id": 1, "n": 7 }]);
    member.node.tell_streams();
    assert!(woken.lock().unwrap().is_empty(), "no majority has it");
    commit(&member);
    member.node.tell_streams();
    member.node.tell_streams();
    assert_eq!(*woken.lock().unwrap(), [streams[7].id]);
    assert_eq!(stream_figures(&member), (STREAMS.into(), 1));
    assert_eq!(streams[7].types(), ["insert"]);
    waits[7] = wait(&member, streams[7].id, &woken);
    transact(&member, 2, vec![doc! { "insert": "c", "documents": [{ "_id": 2, "n": 8 }] }]);
    commit(&member);
    member.node.tell_streams();
    assert_eq!(*woken.lock().unwrap(), [streams[7].id, streams[8].id]);
    // What a stream was not woken for it has passed, and what comes once it waits no longer it finds by itself.
    waits.clear();
    let passed = streams[7].token.clone();
    assert!(streams[9].events().is_empty());
    assert!(streams[9].token.get_str("_data").unwrap() > passed.get_str("_data").unwrap());
    member.insert("c", vec![doc! { "_id": 3, "n": 9 }]);
    assert_eq!(
        (streams[9].types(), streams[8].types()),
        (vec!["insert".into()], vec!["insert".into()])
    );
    member.node.tell_streams();
    assert_eq!(stream_figures(&member).1, 2, "none waits");
}

/// A stream that is opened now begins behind the commit point. One that waits with it and has read less is still told of
/// what is committed in between.
#[test]
fn a_stream_that_waits_behind_a_newer_one_misses_nothing() {
    let member = primary();
    let mut earlier = watch(&member, "c", doc! {});
    member.insert("c", vec![doc! { "_id": 1 }]);
    // Opened before a majority has the insert.
    let reply = member.ok(aggregate("c".into(), vec![doc! { "$changeStream": {} }]));
    let newer = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
    let woken = Woken::default();
    let waits = [wait(&member, newer, &woken), wait(&member, earlier.id, &woken)];
    commit(&member);
    member.node.tell_streams();
    assert_eq!(*woken.lock().unwrap(), [earlier.id]);
    drop(waits);
    assert_eq!(earlier.types(), ["insert"]);
}

/// A host looks at the streams only while one of them waits: with none, a write wakes no task for them.
#[test]
fn streams_are_told_of_only_while_one_waits() {
    let member = primary();
    member.insert("c", vec![doc! { "_id": -1 }]);
    let stream = open(&member, showing(1));
    assert!(!member.node.has_waiting_streams(), "an open stream alone waits for nothing");
    let first = wait(&member, stream.id, &Woken::default());
    assert!(member.node.has_waiting_streams());
    drop(first);
    assert!(!member.node.has_waiting_streams());
    // One that finds news does not wait.
    member.insert("c", vec![doc! { "_id": 1, "n": 1 }]);
    commit(&member);
    assert!(matches!(member.node.await_stream(stream.id, Box::new(|| ())), Awaited::News));
    assert!(matches!(member.node.await_stream(-5, Box::new(|| ())), Awaited::News));
    assert!(!member.node.has_waiting_streams());
}

/// A stream that needs images cannot judge a change of its collection without them, but one of another it can.
#[test]
fn a_stream_with_images_waits_through_changes_elsewhere() {
    let member = primary();
    member.insert("c", vec![doc! { "_id": 1 }]);
    let mut stream = watch(&member, "c", doc! { "fullDocument": "updateLookup" });
    let woken = Arc::new(Mutex::new(0));
    let count = Arc::clone(&woken);
    let waits = member.node.await_stream(stream.id, Box::new(move || *count.lock().unwrap() += 1));
    assert!(matches!(waits, Awaited::Waits(_)));
    member.insert("other", vec![doc! { "_id": 1 }]);
    commit(&member);
    member.node.tell_streams();
    assert_eq!(*woken.lock().unwrap(), 0);
    update(&member, doc! { "$set": { "a": 1 } });
    commit(&member);
    member.node.tell_streams();
    assert_eq!(*woken.lock().unwrap(), 1);
    assert_eq!(stream.types(), ["update"]);
    // With an event that its client has not taken yet, only a command can tell.
    member.insert("c", vec![doc! { "_id": 2 }]);
    commit(&member);
    let now = member.node.await_stream(stream.id, Box::new(|| ()));
    assert!(matches!(now, Awaited::News));
}

/// A transaction of several entries wakes the streams that show one of its changes. Until its last entry has come a
/// stream does not pass the first: a client that goes on from its token misses nothing.
#[test]
fn a_transaction_of_several_entries_wakes_only_the_streams_that_show_it() {
    const STREAMS: i32 = 20;
    let member = primary();
    member.node.split_transactions_at(1);
    member.insert("c", vec![doc! { "_id": -1 }]);
    member.insert("other", vec![doc! { "_id": -1 }]);
    let mut streams: Vec<Stream<'_>> = (0..STREAMS).map(|n| open(&member, showing(n))).collect();
    let woken = Woken::default();
    let mut waits: Vec<StreamWait> =
        streams.iter().map(|stream| wait(&member, stream.id, &woken)).collect();
    let insert =
        |to: &str, id: i32, n: i32| doc! { "insert": to, "documents": [{ "_id": id, "n": n }] };
    transact(&member, 1, vec![insert("other", 1, 7), insert("other", 2, 8)]);
    commit(&member);
    member.node.tell_streams();
    assert_eq!(stream_figures(&member), (0, 0), "no filter is asked about another collection");
    let before = position(&member);
    transact(&member, 2, vec![insert("c", 1, 7), insert("other", 3, 1), insert("c", 2, 8)]);
    // Only the first entry is committed: its operation is not shown yet.
    let after = std::ops::Bound::Excluded(before.op_time.timestamp);
    let first = member.node.read_oplog(after, 1, usize::MAX).unwrap().last.unwrap();
    assert!(first.op_time < position(&member).op_time, "the transaction has one entry");
    support::set::commit(&member, first);
    member.node.tell_streams();
    assert!(woken.lock().unwrap().is_empty());
    // A stream that waits no longer stands before the first entry: going on from its token shows the change.
    drop(waits.remove(7));
    let reply = streams[7].get_more();
    let cursor = reply.get_document("cursor").unwrap();
    assert!(cursor.get_array("nextBatch").unwrap().is_empty());
    let resume =
        doc! { "resumeAfter": cursor.get_document("postBatchResumeToken").unwrap().clone() };
    let after = vec![doc! { "$changeStream": resume }, doc! { "$match": { "fullDocument.n": 7 } }];
    commit(&member);
    member.node.tell_streams();
    assert_eq!(*woken.lock().unwrap(), [streams[8].id]);
    assert_eq!(stream_figures(&member), (i64::from(STREAMS) - 1, 1));
    assert_eq!(streams[8].types(), ["insert"]);
    assert_eq!(streams[7].types(), ["insert"]);
    assert_eq!(open(&member, aggregate("c".into(), after)).types(), ["insert"]);
    waits.clear();
    assert!(streams[9].events().is_empty());
}

#[test]
fn only_a_stream_that_has_seen_everything_is_asked_on_the_worker() {
    let member = primary();
    member.ok(doc! { "insert": "c", "documents": [{ "_id": 0 }] });
    let mut stream = watch(&member, "c", doc! {});
    assert!(stream.events().is_empty());
    let is_long = |id: i64, collection: &str| {
        member
            .node
            .is_long(&Command::new(doc! { "getMore": id, "collection": collection, "$db": "db" }))
    };
    assert!(!is_long(stream.id, "c"));
    // A write counts once a majority has it.
    member.ok(doc! { "insert": "c", "documents": [{ "_id": 1 }] });
    assert!(!is_long(stream.id, "c"));
    commit(&member);
    assert!(is_long(stream.id, "c"));
    assert_eq!(stream.events().len(), 1);
    assert!(!is_long(stream.id, "c"));
    // Other cursors may scan, and unknown ones are not looked into.
    let found = member.ok(doc! { "find": "c", "batchSize": 1 });
    let id = found.get_document("cursor").unwrap().get_i64("id").unwrap();
    assert!(is_long(id, "c") && is_long(1, "c"));
}

/// The token of an event has the time of the entry that holds its operation; the event is told with the last entry of its
/// transaction. A stream goes on after any of them, however many entries there are.
#[test]
fn a_stream_is_resumed_after_each_event_of_a_transaction_of_many_entries() {
    let member = primary();
    member.node.split_transactions_at(1);
    member.insert("c", vec![doc! { "_id": -1 }]);
    let mut stream = open(&member, aggregate("c".into(), vec![doc! { "$changeStream": {} }]));
    let insert = |id: i32| doc! { "insert": "c", "documents": [{ "_id": id }] };
    transact(&member, 1, (0..5).map(insert).collect());
    member.insert("c", vec![doc! { "_id": 5 }]);
    commit(&member);
    let events = stream.events();
    assert_eq!(events.len(), 6);
    for (place, event) in events.iter().enumerate() {
        let resume = doc! { "resumeAfter": event.get_document("_id").unwrap().clone() };
        let stages = vec![doc! { "$changeStream": resume }];
        let mut resumed = open(&member, aggregate("c".into(), stages));
        assert_eq!(resumed.events(), events[place + 1..], "after event {place}");
    }
}

/// A stream keeps the events that its client does not ask for: no more of them than a reply holds, whether they are of many
/// entries or of one transaction.
#[test]
fn a_stream_keeps_no_more_events_than_a_reply_holds() {
    const DOCUMENTS: i32 = 48;
    let member = primary();
    let insert = |id: i32| {
        let text = "x".repeat(1_000_000);
        doc! { "insert": "c", "documents": [{ "_id": id, "text": text }] }
    };
    let mut stream = watch(&member, "c", doc! {});
    for id in 0..DOCUMENTS {
        member.ok(insert(id));
    }
    transact(&member, 1, (DOCUMENTS..2 * DOCUMENTS).map(insert).collect());
    commit(&member);
    let read = || {
        let reply = member.ok(doc! { "serverStatus": 1, "$db": "admin" });
        reply.get_document("changeStreams").unwrap().get_i64("entriesRead").unwrap()
    };
    let id_of =
        |event: &Document| event.get_document("documentKey").unwrap().get_i32("_id").unwrap();
    let before = read();
    let mut next = 0;
    while next < 2 * DOCUMENTS {
        let reply = stream.get_more();
        let cursor = reply.get_document("cursor").unwrap();
        let batch = cursor.get_array("nextBatch").unwrap();
        assert!(batch.len() < 20, "{} events", batch.len());
        if next == 0 {
            assert!(read() - before < 24, "{} entries", read() - before);
        }
        for event in batch {
            assert_eq!(id_of(event.as_document().unwrap()), next);
            next += 1;
        }
        // What waits to be sent is not lost to a client that comes back.
        let token = cursor.get_document("postBatchResumeToken").unwrap();
        let resumed = watch(&member, "c", doc! { "resumeAfter": token });
        let first = resumed.first.first().map(id_of);
        assert_eq!(first, (next < 2 * DOCUMENTS).then_some(next));
    }
    assert!(stream.events().is_empty());
}

/// A reply may end in the midst of a transaction: the token that it carries stands there as well.
#[test]
fn a_stream_is_resumed_after_each_reply_within_a_long_transaction() {
    const DOCUMENTS: i32 = 2_500;
    let member = primary();
    member.node.split_transactions_at(100_000);
    member.insert("c", vec![doc! { "_id": -1 }]);
    let mut stream = watch(&member, "c", doc! {});
    let before = support::set::entries(&member).len();
    let documents: Vec<Document> = (0..DOCUMENTS).map(|id| doc! { "_id": id }).collect();
    transact(&member, 1, vec![doc! { "insert": "c", "documents": documents }]);
    assert!(support::set::entries(&member).len() - before >= 3, "it has few entries");
    commit(&member);
    let ids = |events: &[Bson]| -> Vec<i32> {
        let key = |event: &Bson| {
            event.as_document().unwrap().get_document("documentKey").unwrap().get_i32("_id")
        };
        events.iter().map(|event| key(event).unwrap()).collect()
    };
    let mut next = 0;
    while next < DOCUMENTS {
        let reply = stream.get_more();
        let cursor = reply.get_document("cursor").unwrap();
        let batch = ids(cursor.get_array("nextBatch").unwrap());
        assert!(batch.len() < 2_000, "the transaction fits into one reply");
        assert_eq!(batch, (next..next + batch.len() as i32).collect::<Vec<_>>());
        next += batch.len() as i32;
        let token = cursor.get_document("postBatchResumeToken").unwrap();
        let resumed = watch(&member, "c", doc! { "resumeAfter": token }).events();
        let resumed: Vec<Bson> = resumed.into_iter().map(Bson::from).collect();
        assert_eq!(ids(&resumed), (next..DOCUMENTS).collect::<Vec<_>>());
    }
    assert!(stream.events().is_empty());
}
