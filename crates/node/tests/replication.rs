//! The log of a member: what is written, applied elsewhere, and undone.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use quorate_node::Now;
use quorate_protocol::{MemberState, OpTime, Term, Timestamp, WallTime};
use quorate_replication::NoopReason;
use quorate_storage::{ModelStore, Store};
use support::set::{
    OPLOG_BYTES, commit, entries, hash, position, primary, secondary, show, show_without_indexes,
    write_everything,
};
use support::{Member, now};

fn write_more(member: &Member) {
    member.insert("a", vec![doc! {"_id": "more", "n": 1}]);
}

#[test]
fn every_write_makes_an_entry_and_timestamps_rise() {
    let member = primary();
    write_everything(&member);
    let entries = entries(&member);
    let timestamps: Vec<_> = entries.iter().map(|e| e.get_timestamp("ts").unwrap()).collect();
    assert!(timestamps.is_sorted_by(|a, b| a < b), "{timestamps:?}");
    let kinds: Vec<&str> = entries.iter().map(|e| e.get_str("op").unwrap()).collect();
    for kind in ["i", "u", "d", "c", "n"] {
        assert!(kinds.contains(&kind), "no {kind} in {kinds:?}");
    }
    let diffs = entries
        .iter()
        .filter(|e| e.get_document("o").is_ok_and(|o| o.get_document("diff").is_ok()));
    assert_eq!(diffs.count(), 1, "the small change of a long document");
    let visible = member.find(doc! {"find": "oplog.rs", "$db": "local", "batchSize": 1000});
    assert_eq!(visible.len(), entries.len(), "clients can read the oplog");
}

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

#[test]
fn a_rollback_restores_exactly_what_was_there() {
    let member = primary();
    write_everything(&member);
    let (common_point, before) = (position(&member), hash(&member));
    let log = entries(&member);
    member.ok(doc! {"update": "a", "updates": [{"q": {}, "u": {"$set": {"n": 7}}, "multi": true}]});
    member.ok(doc! {"delete": "a", "deletes": [{"q": {"_id": 3}, "limit": 1}]});
    member.ok(doc! {"drop": "new"});
    member.ok(doc! {"dropIndexes": "a", "index": "n_1"});
    member.ok(doc! {"collMod": "a", "validator": {}});
    member.insert("fresh", vec![doc! {"_id": 1, "lost": true}]);
    member.ok(doc! {"renameCollection": "db.c", "to": "db.d", "$db": "admin"});
    // Garbage is not collected before its drop is committed.
    while member.node.maintain(now()).unwrap() {}
    assert_ne!(hash(&member), before);
    let mut kept = Vec::new();
    let done = member
        .node
        .roll_back_to(common_point, now(), &mut |undo| {
            kept.push((undo.namespace.to_owned(), undo.document.to_owned()));
            Ok(())
        })
        .unwrap();
    assert_eq!(done.last, common_point);
    assert_eq!(position(&member), common_point);
    assert_eq!(hash(&member), before);
    assert_eq!(entries(&member), log);
    for collection in ["a", "c", "new"] {
        member.validate(collection);
    }
    assert!(kept.iter().any(|(ns, d)| ns == "db.fresh" && d.get_bool("lost").unwrap()));
}

/// The documents of a capped collection have an order, and go in that order.
#[test]
fn a_rollback_gives_documents_of_a_capped_collection_their_places_back() {
    let member = primary();
    member.ok(doc! {"create": "c", "capped": true, "size": 1 << 20, "max": 3});
    member.insert("c", (0..3).map(|i| doc! {"_id": i}).collect());
    let common_point = position(&member);
    member.insert("c", vec![doc! {"_id": 3}]);
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]});
    assert_eq!(member.ids(doc! {"find": "c"}), [2, 3]);
    member.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(member.ids(doc! {"find": "c"}), [0, 1, 2]);
    show(&member.node, MemberState::Primary, true);
    member.insert("c", vec![doc! {"_id": 4}]);
    assert_eq!(member.ids(doc! {"find": "c"}), [1, 2, 4]);
    member.validate("c");
}

/// Documents go with the one that takes their place, so that no reader and no crash finds too many.
#[test]
fn a_capped_collection_is_trimmed_with_the_insert() {
    let member = primary();
    member.ok(doc! {"create": "c", "capped": true, "size": 1 << 20, "max": 2});
    member.insert("c", (0..2).map(|i| doc! {"_id": i}).collect());
    let before = member.store.last_committed().as_u64();
    member.insert("c", vec![doc! {"_id": 2}]);
    assert_eq!(member.store.last_committed().as_u64(), before + 1);
    assert_eq!(member.ids(doc! {"find": "c"}), [1, 2]);
    // One large document takes the place of thousands.
    member.ok(doc! {"create": "d", "capped": true, "size": 1 << 20});
    for first in [0, 1] {
        member.insert("d", (0..2_000).map(|i| doc! {"_id": i * 2 + first}).collect());
    }
    member.insert("d", vec![doc! {"_id": -1, "s": "x".repeat((1 << 20) - 100)}]);
    assert_eq!(member.ids(doc! {"find": "d"}), [3991, 3993, 3995, 3997, 3999, -1]);
    member.validate("d");
}

#[test]
fn a_member_that_builds_no_indexes_rolls_back_past_those_of_others() {
    let (from, to) = (primary(), secondary());
    show_without_indexes(&to.node);
    from.insert("a", vec![doc! {"_id": 1, "n": 1}]);
    let first = to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    let index = doc! {"key": {"n": 1}, "name": "n_1", "unique": true};
    from.ok(doc! {"createIndexes": "a", "indexes": [index]});
    from.ok(doc! {"dropIndexes": "a", "index": "n_1"});
    let all = entries(&from);
    let known = entries(&to).len();
    to.node.apply(first.op_time, &all[known..], now()).unwrap();
    assert_eq!(position(&to), position(&from));
    let done = to.node.roll_back_to(first, now(), &mut |_| Ok(())).unwrap();
    assert_eq!((done.last, position(&to)), (first, first));
    show(&to.node, MemberState::Primary, true);
    to.validate("a");
}

#[test]
fn what_is_committed_is_forgotten_by_undo_and_the_oldest_by_the_oplog() {
    let member = Member::with_history(ModelStore::new(), 2_000);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    for i in 0..50 {
        member.insert("a", vec![doc! {"_id": i}]);
    }
    while member.node.maintain(now()).unwrap() {}
    assert!(entries(&member).len() > 50, "nothing is committed yet");
    commit(&member, position(&member));
    while member.node.maintain(now()).unwrap() {}
    let left = entries(&member);
    assert!((1..40).contains(&left.len()), "{} entries are left", left.len());
    assert_eq!(member.node.read_oplog_backward(None, 1).unwrap(), [position(&member)]);
    assert!(member.node.oldest_entry().unwrap().timestamp > Timestamp::new(0, 0));
}

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

/// docs/replication-rules.md#oplog: the oplog is resizable, and keeps what is younger than its
/// minimum retention.
#[test]
fn the_oplog_is_resized_and_its_retention_survives_a_restart() {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    let resize = |command: Document| {
        let mut command = command;
        command.insert("$db", "admin");
        member.run(command)
    };
    let refused = resize(doc! {"replSetResizeOplog": 1, "size": 100.0});
    assert_eq!(refused.get_i32("code").unwrap(), 2, "{refused}");
    let refused = resize(doc! {"replSetResizeOplog": 1});
    assert_eq!(refused.get_i32("code").unwrap(), 72, "{refused}");
    let done = resize(doc! {"replSetResizeOplog": 1, "size": 1000.0, "minRetentionHours": 1.5});
    assert_eq!(done.get_f64("ok").unwrap(), 1.0, "{done}");
    let figures = member.ok(doc! {"collStats": "oplog.rs", "$db": "local"});
    assert_eq!(figures.get_i64("maxSize").unwrap(), 1000 * 1024 * 1024);
    assert!(figures.get_bool("capped").unwrap());

    let again =
        Member::with_history(member.store.crash(member.store.last_committed()), OPLOG_BYTES);
    again.node.join_replica_set(now()).unwrap();
    let figures = again.ok(doc! {"collStats": "oplog.rs", "$db": "local"});
    assert_eq!(figures.get_i64("maxSize").unwrap(), 1000 * 1024 * 1024);
}

/// docs/replication-rules.md#commit-point: what is committed is remembered, so that a restart cannot undo it.
#[test]
fn the_commit_point_survives_a_restart() {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    let first = member.node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    commit(&member, first);
    member.insert("a", vec![doc! {"_id": 1}]);
    while member.node.maintain(now()).unwrap() {}
    let again =
        Member::with_history(member.store.crash(member.store.last_committed()), OPLOG_BYTES);
    let recovered = again.node.join_replica_set(now()).unwrap();
    assert_eq!(recovered.commit_point, first);
    assert!(recovered.last > first);
}

/// docs/replication-rules.md#oplog: above its size the oplog drops only what is older than the
/// minimum retention.
#[test]
fn young_entries_stay_although_the_oplog_is_too_large() {
    let member = Member::with_history(ModelStore::new(), 2_000);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    let keep = doc! {"replSetResizeOplog": 1, "minRetentionHours": 2.0, "$db": "admin"};
    assert_eq!(member.run(keep).get_f64("ok").unwrap(), 1.0);
    for i in 0..50 {
        member.insert("a", vec![doc! {"_id": i}]);
    }
    commit(&member, position(&member));
    let hours = |hours: i64| Now { wall: WallTime(now().wall.0 + hours * 3_600_000), ..now() };
    while member.node.maintain(hours(1)).unwrap() {}
    assert!(entries(&member).len() > 50, "they are an hour old");
    while member.node.maintain(hours(3)).unwrap() {}
    assert!(entries(&member).len() < 40, "{} entries are left", entries(&member).len());
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

/// The concerns of commands that give none are data of the set: followers and a restart know them.
#[test]
fn default_concerns_reach_followers_and_survive_a_restart_and_a_rollback() {
    let (from, to) = (primary(), secondary());
    let admin = |member: &Member, mut command: Document| {
        command.insert("$db", "admin");
        member.run(command)
    };
    let get = |member: &Member| admin(member, doc! {"getDefaultRWConcern": 1, "inMemory": true});
    let before = get(&from);
    assert_eq!(before.get_str("defaultWriteConcernSource").unwrap(), "implicit", "{before}");
    assert_eq!(
        before.get_document("defaultWriteConcern").unwrap().get("w"),
        Some(&"majority".into())
    );
    assert!(!before.contains_key("updateOpTime"));
    let common_point = position(&from);

    let set = |member: &Member, mut concerns: Document| {
        let mut command = doc! {"setDefaultRWConcern": 1};
        command.extend(std::mem::take(&mut concerns));
        admin(member, command)
    };
    let write = doc! {"defaultWriteConcern": {"w": 1, "j": true}};
    assert_eq!(set(&to, write.clone()).get_i32("code").unwrap(), 10107);
    assert_eq!(set(&Member::new(), write.clone()).get_i32("code").unwrap(), 51300);
    assert_eq!(set(&from, doc! {}).get_i32("code").unwrap(), 2);
    let reply = set(&from, write);
    assert_eq!(reply.get_str("defaultWriteConcernSource").unwrap(), "global", "{reply}");
    assert_eq!(reply.get_str("defaultReadConcernSource").unwrap(), "implicit", "{reply}");
    set(&from, doc! {"defaultReadConcern": {"level": "majority"}});
    let unset = set(&from, doc! {"defaultWriteConcern": {}});
    assert_eq!(unset.get_i32("code").unwrap(), 20, "{unset}");

    let expected =
        (Some(doc! {"level": "majority"}), Some(doc! {"w": 1, "j": true, "wtimeout": 0}));
    let known = |member: &Member| {
        let defaults = member.node.default_concerns().unwrap().unwrap();
        (defaults.read.clone(), defaults.write.clone())
    };
    assert_eq!(known(&from), expected);
    assert_eq!(to.node.default_concerns().unwrap(), None);
    to.node.apply(OpTime::NULL, entries(&from), now()).unwrap();
    assert_eq!(known(&to), expected);
    let again = Member::with_history(to.store.crash(to.store.last_committed()), OPLOG_BYTES);
    again.node.join_replica_set(now()).unwrap();
    assert_eq!(known(&again), expected);
    // A read concern can be taken back.
    let reply = set(&from, doc! {"defaultReadConcern": {}});
    assert_eq!(reply.get_document("defaultReadConcern").unwrap(), &doc! {"level": "local"});
    assert_eq!(known(&from).0, None);

    show(&from.node, MemberState::Rollback, false);
    from.node.roll_back_to(common_point, now(), &mut |_| Ok(())).unwrap();
    assert_eq!(from.node.default_concerns().unwrap(), None, "what was undone does not hold");
}

/// docs/replication-rules.md#oplog: entries can be applied anywhere, since they say what came of a
/// write.
#[test]
fn entries_say_what_came_of_a_write_one_for_each_document() {
    let member = primary();
    let begin = entries(&member).len();
    member.insert("a", vec![doc! {"_id": 1, "n": 1}, doc! {"_id": 2, "n": 1}]);
    let change = doc! {"q": {}, "u": {"$inc": {"n": 5}}, "multi": true};
    member.ok(doc! {"update": "a", "updates": [change]});
    member.ok(doc! {"delete": "a", "deletes": [{"q": {}, "limit": 0}]});
    let logged: Vec<Document> = entries(&member)
        .split_off(begin)
        .iter()
        .map(|entry| Document::try_from(&**entry).unwrap())
        .collect();
    let kinds: Vec<&str> = logged.iter().map(|entry| entry.get_str("op").unwrap()).collect();
    assert_eq!(kinds, ["c", "i", "i", "u", "u", "d", "d"], "the collection by itself, first");
    for entry in &logged {
        assert!(!entry.contains_key("_id"), "{entry}");
        assert_eq!(entry.get_i64("t").unwrap(), 1);
        assert_eq!(entry.get("v").and_then(|v| v.as_i64().or(v.as_i32().map(i64::from))), Some(2));
        assert!(entry.get_timestamp("ts").is_ok() && entry.get_datetime("wall").is_ok());
        assert!(matches!(entry.get("ui"), Some(bson::Bson::Binary(_))), "{entry}");
    }
    assert_eq!(logged[0].get_str("ns").unwrap(), "db.$cmd");
    for update in &logged[3..5] {
        assert_eq!(update.get_str("ns").unwrap(), "db.a");
        assert!(update.get_document("o2").unwrap().contains_key("_id"));
        let changed = update.get_document("o").unwrap();
        assert!(!changed.to_string().contains("$inc"), "the result, not the way there: {changed}");
        assert!(changed.to_string().contains('6'), "{changed}");
    }
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

/// A client that has seen a later time writes after it, whatever the clock of this member says.
#[test]
fn entries_come_after_the_times_that_clients_have_seen() {
    let member = primary();
    let seconds = (now().wall.as_millis() / 1000) as u32;
    let ahead = Timestamp::new(seconds + 100, u32::MAX);
    member.node.advance_cluster_time(ahead, now()).unwrap();
    member.node.advance_cluster_time(Timestamp::new(seconds, 1), now()).unwrap();
    assert_eq!(member.node.cluster_time(), ahead, "it never goes back");
    member.insert("a", vec![doc! {"_id": 1}]);
    assert_eq!(position(&member).op_time.timestamp, Timestamp::new(seconds + 101, 2));
    let absurd = Timestamp::new(seconds + 31_536_001, 1);
    let refusal = member.node.advance_cluster_time(absurd, now()).unwrap_err();
    assert_eq!(refusal.code.0, 209);
    assert_eq!(member.node.cluster_time(), ahead);
}
