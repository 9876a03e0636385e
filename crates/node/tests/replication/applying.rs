//! Entries of another member are applied.

use bson::{RawDocumentBuf, doc};
use quorate_protocol::{MemberState, OpTime};
use quorate_storage::Store;

use crate::support::set::{
    OPLOG_BYTES, entries, hash, position, primary, secondary, show, write_everything,
};
use crate::support::{Member, now};
use crate::write_more;

#[test]
fn applied_entries_make_the_same_data() {
    let (from, to) = (primary(), secondary());
    write_everything(&from);
    let last = to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    assert_eq!(last, position(&from));
    assert_eq!(hash(&to), hash(&from));
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    assert_eq!(hash(&to), hash(&from));
    assert_eq!(entries(&to), entries(&from), "the logs are the same bytes");
    show(&to.node, MemberState::Primary, true);
    to.insert("a", (10..15).map(|id| doc! {"_id": id, "n": 1}).collect());
    let previous = position(&from).op_time;
    write_more(&from);
    let more = entries(&from).split_off(entries(&from).len() - 1);
    assert!(to.node.apply(previous, more, now()).is_err(), "the log has another end");
    for collection in ["a", "c", "new"] {
        to.validate(collection);
    }
}

/// docs/replication-rules.md#applying: what depends on an earlier entry of its batch sees it.
#[test]
fn a_batch_in_which_documents_come_and_go_is_applied_like_its_entries_one_by_one() {
    let (from, at_once, one_by_one) = (primary(), secondary(), secondary());
    from.ok(doc! {"createIndexes": "u", "indexes": [
        {"key": {"k": 1}, "name": "k_1", "unique": true},
    ]});
    for round in 0..20 {
        from.insert("a", vec![doc! {"_id": 100 + round, "n": 0}]);
        from.ok(doc! {"update": "a", "updates": [
            {"q": {"_id": 100 + round}, "u": {"$inc": {"n": 1}}},
            {"q": {"_id": 100 + round / 2}, "u": {"$inc": {"n": 1}}},
        ]});
        from.ok(doc! {"delete": "a", "deletes": [{"q": {"_id": 1}, "limit": 0}]});
        // The same identity in another type, and a unique key that passes on.
        let id = if round % 2 == 0 { bson::Bson::Int32(1) } else { bson::Bson::Double(1.0) };
        from.insert("a", vec![doc! {"_id": id, "round": round}]);
        from.insert("u", vec![doc! {"_id": round, "k": "mine"}]);
        from.ok(doc! {"delete": "u", "deletes": [{"q": {"_id": round}, "limit": 1}]});
    }
    at_once.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    let mut previous = OpTime::NULL;
    for entry in entries(&from) {
        let last = one_by_one.node.apply(previous, vec![entry], now()).unwrap();
        previous = last.op_time;
    }
    assert_eq!(hash(&at_once), hash(&from));
    assert_eq!(hash(&one_by_one), hash(&from));
    show(&at_once.node, MemberState::Primary, true);
    for collection in ["a", "u"] {
        at_once.validate(collection);
    }
    let commits = |member: &Member| member.node.store_statistics().commits;
    assert!(commits(&at_once) < commits(&one_by_one), "entries share commits");
}

/// docs/replication-rules.md#applying: a client that reads while a batch is applied sees the history up to
/// some entry.
#[test]
fn readers_see_a_prefix_of_the_history_while_entries_are_applied() {
    const ROUNDS: i32 = 400;
    let from = primary();
    from.insert("a", vec![doc! {"_id": 1, "n": 0}, doc! {"_id": 2, "n": 0}]);
    for n in 1..=ROUNDS {
        for id in [1, 2] {
            let change = doc! {"q": {"_id": id}, "u": {"$set": {"n": n}}};
            from.ok(doc! {"update": "a", "updates": [change]});
        }
    }
    let written = entries(&from);
    let to = secondary();
    let read = || -> Option<(i32, i32)> {
        let nearest = doc! {"mode": "nearest"};
        let found = to.find(doc! {"find": "a", "sort": {"_id": 1}, "$readPreference": nearest});
        let n = |place: usize| found.get(place).map(|found| found.get_i32("n").unwrap());
        Some((n(0)?, n(1)?))
    };
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| to.node.apply(OpTime::NULL, written, now()).unwrap());
        let mut latest = (0, 0);
        loop {
            let over = applying.is_finished();
            if let Some((first, second)) = read() {
                assert!(first == second || first == second + 1, "{first} and {second}");
                assert!((first, second) >= latest, "from {latest:?} back to {first}, {second}");
                latest = (first, second);
            }
            if over {
                break;
            }
        }
        assert_eq!(latest, (ROUNDS, ROUNDS));
    });
}

/// docs/replication-rules.md#initial-sync: entries that are written during a copy wait on disk, however
/// many they are.
#[test]
fn entries_of_a_copy_wait_on_disk_and_leave_nothing_behind() {
    let from = primary();
    for i in 0..300 {
        from.insert("a", vec![doc! {"_id": i, "text": "x".repeat(100)}]);
    }
    let written = entries(&from);
    let to = secondary();
    let before = to.store.keyspaces().len();
    let all: u64 = written.iter().map(|entry| entry.as_bytes().len() as u64).sum();
    let mut buffer = to.node.begin_copy_buffer(all + 10).unwrap();
    for batch in written.chunks(7) {
        assert!(buffer.push(batch).unwrap());
        // As a stream begins that is opened again after it was lost.
        assert!(buffer.push(&batch[batch.len() - 1..]).unwrap());
    }
    assert_eq!(buffer.last(), Some(position(&from).op_time));
    assert!(!buffer.push(&written[..1]).unwrap(), "it is full");
    assert_eq!(buffer.bytes(), all);

    // Far fewer at a time than there are, each once and in order.
    let mut read: Vec<RawDocumentBuf> = Vec::new();
    loop {
        let after = read.last().map(|entry| quorate_node::entry_position(entry).unwrap());
        let some = buffer.read(after.map(|at| at.op_time.timestamp), 1_000).unwrap();
        assert!(some.len() < 30, "{} entries are in memory at once", some.len());
        if some.is_empty() {
            break;
        }
        read.extend(some);
    }
    assert_eq!(read, written);
    drop(buffer);
    assert_eq!(to.store.keyspaces().len(), before, "its keyspace is gone");

    // A process that ends in the midst of it leaves nothing to its successor either.
    let mut buffer = to.node.begin_copy_buffer(all).unwrap();
    buffer.push(&written).unwrap();
    let again = Member::with_history(to.store.crash(to.store.last_committed()), OPLOG_BYTES);
    assert_eq!(again.store.keyspaces().len(), before + 1);
    again.node.join_replica_set(now()).unwrap();
    assert_eq!(again.store.keyspaces().len(), before);
}
