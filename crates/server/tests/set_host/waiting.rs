//! Commands that wait for others can be stopped: by their own time limit, by `killOp`, and with the
//! session that they run in.

use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_wire::MsgFlags;

use crate::client::{Client, TIMEOUT};
use crate::set::{Set, wait};

/// A set whose followers hang, and its primary.
fn alone() -> (Set, usize) {
    let set = Set::initiated(3);
    let primary = set.primary();
    for place in set.others(primary) {
        set.freeze(place);
    }
    (set, primary)
}

fn insert(id: i32) -> Document {
    doc! { "insert": "c", "documents": [{ "_id": id }], "$db": "db", "writeConcern": { "w": 3 } }
}

/// The code of the reply's `writeConcernError`; the write itself must have been done.
fn late(reply: &Document) -> i32 {
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    reply.get_document("writeConcernError").unwrap().get_i32("code").unwrap()
}

/// The number of the insert that waits.
fn waiting_insert(set: &Set, primary: usize) -> Bson {
    wait("the insert in currentOp", || {
        let reply = set.ok(primary, doc! { "currentOp": 1, "op": "insert" });
        let running = reply.get_array("inprog").unwrap();
        Some(running.first()?.as_document()?.get("opid")?.clone())
    })
}

#[test]
fn a_write_waits_no_longer_than_its_time_limit() {
    let (set, primary) = alone();
    let mut command = insert(1);
    command.insert("maxTimeMS", 150);
    assert_eq!(late(&set.run(primary, command).unwrap()), 50);
    // Other limits hold as before.
    let mut command = insert(2);
    command.insert("maxTimeMS", 60_000);
    command.insert("writeConcern", doc! { "w": 3, "wtimeout": 100 });
    assert_eq!(late(&set.run(primary, command).unwrap()), 64);
}

#[test]
fn a_write_that_waits_is_stopped_by_its_number_and_with_its_session() {
    let (set, primary) = alone();
    let address = set.members[primary].address;
    let in_background = move |command: Document| {
        std::thread::spawn(move || {
            let mut client = Client::connect(address, TIMEOUT).unwrap();
            client.run(&command, Duration::from_secs(60)).unwrap()
        })
    };
    let waiting = in_background(insert(1));
    let id = waiting_insert(&set, primary);
    set.ok(primary, doc! { "killOp": 1, "op": id });
    assert_eq!(late(&waiting.join().unwrap()), 11601);

    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] };
    let session = doc! { "id": id };
    let mut command = insert(2);
    command.insert("lsid", session.clone());
    let waiting = in_background(command);
    let known = doc! { "aggregate": 1, "pipeline": [{ "$listLocalSessions": {} }], "cursor": {} };
    wait("its session", || {
        let reply = set.ok(primary, known.clone());
        let sessions = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        sessions.contains(&Bson::from(doc! { "_id": session.clone() })).then_some(())
    });
    let other = Binary { subtype: BinarySubtype::Uuid, bytes: vec![8; 16] };
    set.ok(primary, doc! { "killSessions": [{ "id": other }] });
    waiting_insert(&set, primary);
    set.ok(primary, doc! { "killSessions": [session] });
    assert_eq!(late(&waiting.join().unwrap()), 11601);
}

/// Streams that wait, on the primary and on a secondary: changes that they do not show wake none, the one that one of
/// them shows wakes it alone, and a killed cursor ends the wait of its command.
#[test]
fn a_stream_that_waits_is_woken_by_its_own_news() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let secondary = set.others(primary)[0];
    set.ok(primary, doc! { "create": "c", "$db": "db", "writeConcern": { "w": 3 } });
    let open = |place: usize, n: i32| {
        let stages = [doc! { "$changeStream": {} }, doc! { "$match": { "fullDocument.n": n } }];
        let stages: Vec<Bson> = stages.into_iter().map(Bson::from).collect();
        let reply = set.ok(
            place,
            doc! {
                "aggregate": "c", "pipeline": stages, "cursor": {}, "$db": "db",
                "$readPreference": { "mode": "nearest" },
            },
        );
        reply.get_document("cursor").unwrap().get_i64("id").unwrap()
    };
    let more = |place: usize, id: i64| {
        let address = set.members[place].address;
        std::thread::spawn(move || {
            let mut client = Client::connect(address, TIMEOUT).unwrap();
            let command =
                doc! { "getMore": id, "collection": "c", "$db": "db", "maxTimeMS": 300_000 };
            client.run(&command, Duration::from_secs(60)).unwrap()
        })
    };
    let ids =
        [(primary, open(primary, 1)), (secondary, open(secondary, 1)), (primary, open(primary, 2))];
    let waiting = ids.map(|(place, id)| more(place, id));
    let figure = |place: usize, name: &str| {
        let reply =
            set.ok(place, doc! { "serverStatus": 1, "$readPreference": { "mode": "nearest" } });
        reply.get_document("changeStreams").unwrap().get_i64(name).unwrap()
    };
    let write = |id: i32, n: i32| {
        set.ok(primary, doc! {
            "insert": "c", "$db": "db", "documents": [{ "_id": id, "n": n }], "writeConcern": { "w": 3 },
        });
    };
    // A command that is not waiting yet asks no filter through the room: changes come until all of them do.
    let mut id = 0;
    wait("the streams to wait", || {
        let before = (figure(primary, "filtersAsked"), figure(secondary, "filtersAsked"));
        id += 1;
        write(id, 7);
        let asked = wait("the change to be told", || {
            let now = (figure(primary, "filtersAsked"), figure(secondary, "filtersAsked"));
            (now.0 > before.0 && now.1 > before.1).then_some(now)
        });
        (asked.0 - before.0 == 2).then_some(())
    });
    assert_eq!((figure(primary, "wokenUp"), figure(secondary, "wokenUp")), (0, 0));
    write(1_000, 1);
    let [first, second, third] = waiting;
    for waiting in [first, second] {
        let reply = waiting.join().unwrap();
        let batch = reply.get_document("cursor").unwrap().get_array("nextBatch").unwrap();
        assert_eq!(batch.len(), 1, "{reply}");
    }
    assert_eq!((figure(primary, "wokenUp"), figure(secondary, "wokenUp")), (1, 1));
    set.ok(primary, doc! { "killCursors": "c", "cursors": [ids[2].1], "$db": "db" });
    let reply = third.join().unwrap();
    assert_eq!(reply.get_i32("code").unwrap(), 43, "{reply}");
}

/// Nothing else would end it: it has no time limit, and the member that it waits for may never come.
#[test]
fn a_write_that_waits_ends_with_its_client() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let stopped = doc! { "configureFailPoint": "stopReplProducer", "mode": "alwaysOn" };
    set.ok(set.others(primary)[0], stopped);
    let mut client = Client::connect(set.members[primary].address, TIMEOUT).unwrap();
    client.send(&insert(1), MsgFlags::NONE).unwrap();
    let waiting = waiting_insert(&set, primary);
    drop(client);
    wait("the insert to end", || {
        let reply = set.ok(primary, doc! { "currentOp": 1, "opid": waiting.clone() });
        reply.get_array("inprog").unwrap().is_empty().then_some(())
    });
    // It was done all the same.
    assert_eq!(set.ok(primary, doc! { "count": "c", "$db": "db" }).get_i32("n").unwrap(), 1);
}
