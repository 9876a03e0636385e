//! What followers and rollbacks know of writes that drivers repeat.

use std::time::Duration;

use bson::{Document, doc};
use quorate_node::Now;
use quorate_protocol::{MemberState, OpTime};
use quorate_storage::ModelStore;

use crate::support::set::{commit, entries, hash, position, primary, secondary, show};
use crate::support::{Member, now};

fn retryable(session: u8, number: i64, mut command: Document) -> Document {
    let id = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![session; 16] };
    command.insert("lsid", doc! { "id": id });
    command.insert("txnNumber", number);
    command
}

#[test]
fn a_repeated_write_is_known_to_followers_and_forgotten_by_a_rollback() {
    let (from, to) = (primary(), secondary());
    from.insert("a", vec![doc! {"_id": 1, "n": 0}]);
    let common_point = position(&from);
    let modify = doc! {
        "findAndModify": "a", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "new": true,
    };
    let first = from.ok(retryable(5, 7, modify.clone()));
    assert_eq!(first.get_document("value").unwrap().get_i32("n").unwrap(), 1);

    // The follower takes over; the client repeats its write there.
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    show(&to.node, MemberState::Primary, true);
    let again = to.ok(retryable(5, 7, modify.clone()));
    assert_eq!(again.get_document("value").unwrap(), first.get_document("value").unwrap());
    assert_eq!(to.find(doc! {"find": "a"}), [doc! {"_id": 1, "n": 1}]);

    // A session's next writes are applied, however many of its statements are known.
    show(&to.node, MemberState::Secondary, false);
    let end = position(&to).op_time;
    for number in 8..12 {
        let document = doc! {"_id": number};
        from.ok(retryable(6, number, doc! {"insert": "b", "documents": [document]}));
    }
    to.node.apply(end, entries(&from), now()).unwrap();
    assert_eq!(hash(&to), hash(&from));

    // Where the write is undone, repeating it does it.
    from.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(from.find(doc! {"find": "a"}), [doc! {"_id": 1, "n": 0}]);
    from.ok(retryable(5, 7, modify));
    assert_eq!(from.find(doc! {"find": "a"}), [doc! {"_id": 1, "n": 1}]);
}

/// Statements of one write may have entries of other sessions between them, and all of them are applied together.
#[test]
fn a_follower_knows_every_statement_of_a_write_that_others_interrupted() {
    let (from, to) = (primary(), secondary());
    from.insert("a", (0..3).map(|id| doc! {"_id": id, "n": 0}).collect());
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    let end = position(&to).op_time;
    let increments = |ids: std::ops::Range<i32>| {
        let updates: Vec<_> =
            ids.map(|id| doc! {"q": {"_id": id}, "u": {"$inc": {"n": 1}}}).collect();
        doc! {"update": "a", "updates": updates}
    };
    from.ok(retryable(1, 7, increments(0..1)));
    from.ok(retryable(2, 3, increments(2..3)));
    from.ok(retryable(1, 7, increments(0..2)));
    to.node.apply(end, entries(&from), now()).unwrap();
    show(&to.node, MemberState::Primary, true);
    to.ok(retryable(1, 7, increments(0..2)));
    to.ok(retryable(2, 3, increments(2..3)));
    let all: Vec<_> = (0..3).map(|id| doc! {"_id": id, "n": 1}).collect();
    assert_eq!(to.find(doc! {"find": "a", "sort": {"_id": 1}}), all, "none is done twice");
}

/// The same where all entries are inserts, which note less of what they touch.
#[test]
fn a_follower_knows_every_insert_of_a_write_that_others_interrupted() {
    let (from, to) = (primary(), secondary());
    from.insert("a", vec![doc! {"_id": -1}]);
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    let end = position(&to).op_time;
    let inserts = |ids: std::ops::Range<i32>| {
        let documents: Vec<_> = ids.map(|id| doc! {"_id": id}).collect();
        doc! {"insert": "a", "documents": documents}
    };
    from.ok(retryable(1, 7, inserts(0..1)));
    from.ok(retryable(2, 3, inserts(5..6)));
    from.ok(retryable(1, 7, inserts(0..2)));
    to.node.apply(end, entries(&from), now()).unwrap();
    show(&to.node, MemberState::Primary, true);
    for (session, number, ids) in [(1, 7, 0..2), (2, 3, 5..6)] {
        let again = to.ok(retryable(session, number, inserts(ids)));
        assert!(!again.contains_key("writeErrors"), "it is done again: {again:?}");
    }
}

/// What of an entry tells the chain of its session: its number, and where the entry before it is.
fn chain(entry: &bson::RawDocument) -> (i64, Option<bson::Timestamp>) {
    let previous = entry.get_document("prevOpTime").unwrap();
    let time = previous.get_timestamp("ts").unwrap();
    assert_eq!(previous.get_i64("t").unwrap() == -1, time.time == 0);
    (entry.get_i64("txnNumber").unwrap(), (time.time > 0).then_some(time))
}

#[test]
fn the_entries_of_a_retryable_write_name_the_one_before_them() {
    let from = primary();
    from.insert("a", vec![doc! {"_id": 0}]);
    let known = entries(&from).len();
    from.ok(retryable(
        5,
        1,
        doc! {"insert": "a", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]},
    ));
    // Its client repeats the command with one statement more; only that one is done.
    let documents = [doc! {"_id": 1}, doc! {"_id": 2}, doc! {"_id": 3}, doc! {"_id": 4}];
    from.ok(retryable(5, 1, doc! {"insert": "a", "documents": documents.to_vec()}));
    let change = doc! {"$inc": {"n": 1}};
    let modify = doc! {"findAndModify": "a", "query": {"_id": 1}, "update": change};
    from.ok(retryable(5, 2, modify.clone()));
    let mut after = modify.clone();
    after.insert("new", true);
    from.ok(retryable(5, 3, after));
    let entries = entries(&from).split_off(known);
    let times: Vec<_> = entries.iter().map(|entry| entry.get_timestamp("ts").unwrap()).collect();
    let chains: Vec<_> = entries.iter().map(|entry| chain(entry)).collect();
    let expected = [
        (1, None),
        (1, Some(times[0])),
        (1, Some(times[1])),
        (1, Some(times[2])),
        (2, None),
        (3, None),
    ];
    assert_eq!(chains, expected);
    let images: Vec<_> =
        entries.iter().map(|entry| entry.get_str("needsRetryImage").ok()).collect();
    assert_eq!(images, [None, None, None, None, Some("preImage"), Some("postImage")]);
    let row = from.find(doc! {"find": "transactions", "$db": "config"}).remove(0);
    let last = row.get_document("lastWriteOpTime").unwrap().get_timestamp("ts").unwrap();
    assert_eq!((row.get_i64("txnNum").unwrap(), last), (3, times[5]));
}

/// A rollback takes the numbers of sessions back, one after the other, with what was answered.
#[test]
fn a_rollback_brings_back_what_sessions_did_before() {
    let (from, to) = (primary(), secondary());
    from.insert("a", vec![doc! {"_id": 0, "n": 0}]);
    let nothing = position(&from);
    let modify = doc! {
        "findAndModify": "a", "query": {"_id": 0}, "update": {"$inc": {"n": 1}}, "new": true,
    };
    let answers: Vec<_> = (1..=3).map(|n| from.ok(retryable(5, n, modify.clone()))).collect();
    let kept = position(&from);
    let more = (4..=6).map(|n| doc! {"_id": n});
    from.ok(retryable(5, 4, doc! {"insert": "a", "documents": more.collect::<Vec<_>>()}));
    from.ok(retryable(5, 5, modify.clone()));
    from.ok(retryable(6, 1, doc! {"delete": "a", "deletes": [{"q": {"_id": 4}, "limit": 1}]}));
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();

    for member in [&from, &to] {
        show(&member.node, MemberState::Secondary, false);
        member.node.roll_back_to(kept, now(), &mut |_| Ok(())).unwrap();
        show(&member.node, MemberState::Primary, true);
        let rows = member.find(doc! {"find": "transactions", "$db": "config"});
        assert_eq!(rows.len(), 1, "session 6 is not known any more: {rows:?}");
        assert_eq!(rows[0].get_i64("txnNum").unwrap(), 3);
        let again = member.ok(retryable(5, 3, modify.clone()));
        assert_eq!(again.get("value"), answers[2].get("value"));
        assert_eq!(member.code(retryable(5, 2, modify.clone())), 225);
        assert_eq!(member.find(doc! {"find": "a"}), [doc! {"_id": 0, "n": 3}]);
    }
    from.node.roll_back_to(nothing, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(from.find(doc! {"find": "transactions", "$db": "config"}), [] as [Document; 0]);
    let first = from.ok(retryable(5, 1, modify));
    assert_eq!(first.get("value"), answers[0].get("value"));
}

/// What a session did before cannot be brought back once its entry is trimmed. The number stays then, but what is
/// undone is not answered as if it were done.
#[test]
fn an_undone_write_is_repeated_though_the_entry_before_it_is_trimmed() {
    let member = Member::with_history(ModelStore::new(), 2_000);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    member.insert("a", vec![doc! {"_id": 0, "n": 0}]);
    let increment = doc! {"update": "a", "updates": [{"q": {"_id": 0}, "u": {"$inc": {"n": 1}}}]};
    member.ok(retryable(5, 1, increment.clone()));
    for i in 1..50 {
        member.insert("a", vec![doc! {"_id": i}]);
    }
    let kept = position(&member);
    commit(&member, kept);
    while member.node.maintain(now()).unwrap() {}
    member.ok(retryable(5, 2, increment.clone()));
    let count = || member.find(doc! {"find": "a", "filter": {"_id": 0}})[0].get_i32("n").unwrap();
    // What is done once more is undone once more.
    for round in 1..=3 {
        member.node.roll_back_to(kept, now(), &mut |_| Ok(())).unwrap();
        assert_eq!(count(), 1);
        let first = member.code(retryable(5, 1, increment.clone()));
        assert_eq!(first, 225, "it is not done twice, round {round}");
        for _ in 0..2 {
            let again = member.ok(retryable(5, 2, increment.clone()));
            assert_eq!(again.get_i32("nModified").unwrap(), 1);
            assert_eq!(count(), 2, "it was undone, and is done once more, round {round}");
        }
    }
    // Nothing tells how old that number is.
    member.node.roll_back_to(kept, now(), &mut |_| Ok(())).unwrap();
    for hours in 0..3 {
        let monotonic = now().monotonic + Duration::from_secs(hours * 3600);
        while member.node.maintain(Now { monotonic, ..now() }).unwrap() {}
    }
    assert_eq!(member.code(retryable(5, 1, increment.clone())), 225);
}
