//! The contract of [`Store`], checked on every implementation.
//!
//! Each case is a function of a factory; the two modules at the end run all of them on the model
//! and on disk. A store that passes may stand in for the other anywhere.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is the report")]

mod bounds;
mod tables;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use proptest::prelude::*;
use quorate_storage::{
    Batch, Bytes, CommitError, Direction, KeyRange, KeyspaceError, KeyspaceId, LogTotals,
    MAX_KEY_LENGTH, ReadError, ReplayPoint, Snapshot, Store, SyncError,
};

use bounds::bounds_may_be_longer_than_any_key;
use tables::{
    walks_show_what_scans_show, what_is_discarded_can_be_removed_and_nothing_else_goes,
    what_is_ingested_is_there_for_later_snapshots,
    what_large_owners_have_is_there_in_tables_of_their_own,
};

/// A store for the length of one case.
trait Factory {
    type Store: Store;
    fn make(&self) -> Self::Store;
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn scan(
    snapshot: &dyn Snapshot,
    keyspace: KeyspaceId,
    range: KeyRange,
    direction: Direction,
) -> Pairs {
    let pairs = snapshot.scan(keyspace, range.clone(), direction).unwrap();
    let pairs: Pairs = pairs
        .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
        .collect();
    // A walk lends what a scan hands over.
    let mut walked = walk(snapshot, keyspace, range);
    if direction == Direction::Backward {
        walked.reverse();
    }
    assert_eq!(walked, pairs);
    pairs
}

fn walk(snapshot: &dyn Snapshot, keyspace: KeyspaceId, range: KeyRange) -> Pairs {
    let mut walk = snapshot.walk(keyspace, range).unwrap();
    let mut pairs = Pairs::new();
    while let Some((key, value)) = walk.next().unwrap() {
        assert_eq!(&*value.keep(), value.bytes());
        pairs.push((key.to_vec(), value.to_vec()));
    }
    assert!(walk.lent().is_none() && !walk.advance().unwrap(), "the walk is over");
    pairs
}

fn put<S: Store>(store: &S, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.insert(keyspace, key, value);
    store.commit(batch).unwrap();
}

fn a_batch_is_seen_whole_or_not_at_all(factory: &impl Factory) {
    let store = factory.make();
    let one = store.create_keyspace("one").unwrap();
    let two = store.create_keyspace("two").unwrap();
    let before = store.snapshot();
    let mut batch = Batch::new();
    batch.insert(one, b"k", b"first");
    batch.insert(two, b"k", b"other");
    batch.insert(one, b"k", b"last");
    batch.remove(two, b"absent");
    assert_eq!((batch.len(), batch.byte_size()), (4, 1 + 5 + 1 + 5 + 1 + 4 + 6));
    store.commit(batch).unwrap();
    let after = store.snapshot();
    assert_eq!(before.get(one, b"k").unwrap(), None);
    assert_eq!(before.get(two, b"k").unwrap(), None);
    assert_eq!(after.get(one, b"k").unwrap().as_deref(), Some(&b"last"[..]));
    assert_eq!(after.get(two, b"k").unwrap().as_deref(), Some(&b"other"[..]));
}

fn a_refused_batch_changes_nothing(factory: &impl Factory) {
    let store = factory.make();
    let kept = store.create_keyspace("kept").unwrap();
    let gone = store.create_keyspace("gone").unwrap();
    store.drop_keyspace(gone).unwrap();
    let committed = store.last_committed();
    let refused = |operation: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        batch.insert(kept, b"k", b"v");
        operation(&mut batch);
        store.commit(batch).unwrap_err()
    };
    assert!(matches!(
        refused(&|batch| batch.insert(gone, b"k", b"v")),
        CommitError::UnknownKeyspace
    ));
    assert!(matches!(
        refused(&|batch| batch.remove(kept, Vec::new())),
        CommitError::KeyLength { length: 0 }
    ));
    assert!(matches!(
        refused(&|batch| batch.insert(kept, vec![1; MAX_KEY_LENGTH + 1], b"v")),
        CommitError::KeyLength { .. }
    ));
    assert_eq!(store.snapshot().get(kept, b"k").unwrap(), None);
    assert_eq!(store.last_committed(), committed);

    put(&store, kept, &vec![1; MAX_KEY_LENGTH], b"the longest key");
    assert!(store.snapshot().get(kept, &vec![1; MAX_KEY_LENGTH]).unwrap().is_some());
}

fn a_snapshot_never_changes(factory: &impl Factory) {
    let store = factory.make();
    let keyspace = store.create_keyspace("k").unwrap();
    for number in 0..100_u8 {
        put(&store, keyspace, &[number], b"old");
    }
    let snapshot = store.snapshot();
    let expected = scan(&*snapshot, keyspace, KeyRange::all(), Direction::Forward);
    let mut running = snapshot.scan(keyspace, KeyRange::all(), Direction::Forward).unwrap();
    running.next().unwrap().unwrap();
    for number in 0..200_u8 {
        let mut batch = Batch::new();
        if number % 3 == 0 {
            batch.remove(keyspace, &[number]);
        } else {
            batch.insert(keyspace, &[number], b"new");
        }
        let sequence = store.commit(batch).unwrap();
        store.sync_through(sequence).unwrap();
    }
    assert_eq!(scan(&*snapshot, keyspace, KeyRange::all(), Direction::Forward), expected);
    // A scan outlives the snapshot it came from.
    drop(snapshot);
    let rest: Vec<_> = running.map(|pair| pair.unwrap().1.to_vec()).collect();
    assert_eq!(rest, vec![b"old".to_vec(); 99]);
}

fn ranges_run_both_ways_and_respect_their_bounds(factory: &impl Factory) {
    let store = factory.make();
    let keyspace = store.create_keyspace("k").unwrap();
    let other = store.create_keyspace("other").unwrap();
    for key in [&b"a"[..], b"b", b"ba", b"bb", b"c", b"\xFF\xFF"] {
        put(&store, keyspace, key, key);
        put(&store, other, key, b"elsewhere");
    }
    let snapshot = store.snapshot();
    let keys = |range: KeyRange, direction| -> Vec<Vec<u8>> {
        scan(&*snapshot, keyspace, range, direction).into_iter().map(|(key, _)| key).collect()
    };
    let range = |start, end| KeyRange { start, end };
    let (b, c) = (|| b"b".to_vec(), || b"c".to_vec());
    use Direction::{Backward, Forward};
    assert_eq!(keys(KeyRange::prefix(b"b"), Forward), [&b"b"[..], b"ba", b"bb"]);
    assert_eq!(keys(KeyRange::prefix(b"b"), Backward), [&b"bb"[..], b"ba", b"b"]);
    assert_eq!(keys(KeyRange::prefix(b"\xFF"), Forward), [b"\xFF\xFF"]);
    assert_eq!(
        keys(range(Bound::Excluded(b()), Bound::Included(c())), Forward),
        [&b"ba"[..], b"bb", b"c"]
    );
    assert_eq!(keys(range(Bound::Included(c()), Bound::Unbounded), Backward).len(), 2);
    assert_eq!(keys(range(Bound::Unbounded, Bound::Excluded(b())), Forward), [b"a"]);
    assert!(keys(range(Bound::Included(c()), Bound::Included(b())), Forward).is_empty());
    assert!(keys(range(Bound::Excluded(b()), Bound::Excluded(b())), Backward).is_empty());
}

fn long_scans_are_complete(factory: &impl Factory) {
    let store = factory.make();
    let keyspace = store.create_keyspace("k").unwrap();
    let mut batch = Batch::new();
    for number in 0..1000_u32 {
        batch.insert(keyspace, &number.to_be_bytes(), &number.to_le_bytes());
    }
    store.commit(batch).unwrap();
    let snapshot = store.snapshot();
    let forward = scan(&*snapshot, keyspace, KeyRange::all(), Direction::Forward);
    let mut backward = scan(&*snapshot, keyspace, KeyRange::all(), Direction::Backward);
    backward.reverse();
    assert_eq!(forward.len(), 1000);
    assert_eq!(forward, backward);
    assert!(forward.is_sorted());
}

fn keyspaces_come_and_go_by_name(factory: &impl Factory) {
    let store = factory.make();
    assert_eq!(store.keyspaces(), []);
    let b = store.create_keyspace("b").unwrap();
    let a = store.create_keyspace("a").unwrap();
    assert_eq!(store.create_keyspace("b").unwrap(), b);
    assert_eq!(store.keyspaces(), [("a".to_owned(), a), ("b".to_owned(), b)]);

    put(&store, b, b"k", b"v");
    let before = store.snapshot();
    store.drop_keyspace(b).unwrap();
    assert!(matches!(store.drop_keyspace(b), Err(KeyspaceError::Unknown)));
    assert_eq!(before.get(b, b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(matches!(store.snapshot().get(b, b"k"), Err(ReadError::UnknownKeyspace)));

    let again = store.create_keyspace("b").unwrap();
    assert_ne!(again, b, "an old handle must not reach a new keyspace");
    assert_eq!(store.snapshot().get(again, b"k").unwrap(), None);
    assert!(matches!(before.get(again, b"k"), Err(ReadError::UnknownKeyspace)));
    for name in ["", "with space", "slash/", &"x".repeat(256)] {
        assert!(matches!(store.create_keyspace(name), Err(KeyspaceError::InvalidName { .. })));
    }
}

fn syncs_are_counted_and_cover_everything_before_them(factory: &impl Factory) {
    let synced_once = || {
        let store = factory.make();
        let keyspace = store.create_keyspace("k").unwrap();
        for number in 0..10_u8 {
            put(&store, keyspace, &[number], b"v");
        }
        let last = store.last_committed();
        let early = store.last_synced().as_u64();
        store.sync_through(last).unwrap();
        assert_eq!(store.last_synced(), last);
        store.sync_through(last).unwrap();
        let statistics = store.statistics();
        assert_eq!(statistics.commits, 10);
        assert!(statistics.syncs > 0);
        (early == 0 && statistics.syncs == 1).then_some((store, last))
    };
    // A store that was just made may sync once for itself, when it gives up its first segment.
    let once = (0..5).find_map(|_| synced_once());
    let (store, last) = once.expect("one sync covers all that came before it");

    let ahead = store.commit(Batch::new()).unwrap();
    assert!(ahead > last, "an empty batch takes a sequence too");
    let other = factory.make();
    assert!(matches!(other.sync_through(ahead), Err(SyncError::UnknownSequence)));
}

fn concurrent_writers_share_syncs(factory: &impl Factory) {
    const WRITERS: u8 = 8;
    const COMMITS: u8 = 25;
    let store = Arc::new(factory.make());
    let keyspace = store.create_keyspace("k").unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                for number in 0..COMMITS {
                    let mut batch = Batch::new();
                    batch.insert(keyspace, &[writer, number], b"v");
                    let sequence = store.commit(batch).unwrap();
                    store.sync_through(sequence).unwrap();
                    assert!(store.last_synced() >= sequence);
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let statistics = store.statistics();
    assert_eq!(statistics.commits, u64::from(WRITERS) * u64::from(COMMITS));
    assert!(statistics.syncs <= statistics.commits);
    println!("{} commits took {} syncs", statistics.commits, statistics.syncs);
    let found = scan(&*store.snapshot(), keyspace, KeyRange::all(), Direction::Forward);
    assert_eq!(found.len() as u64, statistics.commits);
}

/// Random batches and scans, compared with a plain map.
fn it_behaves_like_a_map(factory: &impl Factory) {
    let key = proptest::collection::vec(0_u8..4, 1..4);
    let operation = (0_usize..2, key.clone(), proptest::option::of(any::<u8>()));
    let batches = proptest::collection::vec(proptest::collection::vec(operation, 0..8), 0..12);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&(batches, key.clone(), key), |(batches, start, end)| {
            let store = factory.make();
            let ids = [store.create_keyspace("0").unwrap(), store.create_keyspace("1").unwrap()];
            let mut maps = [BTreeMap::new(), BTreeMap::new()];
            let mut history = Vec::new();
            for operations in batches {
                let mut batch = Batch::new();
                for (which, key, value) in operations {
                    match value {
                        Some(value) => {
                            batch.insert(ids[which], key.clone(), &[value]);
                            maps[which].insert(key, vec![value]);
                        }
                        None => {
                            batch.remove(ids[which], key.clone());
                            maps[which].remove(&key);
                        }
                    }
                }
                store.commit(batch).unwrap();
                history.push((store.snapshot(), maps.clone()));
            }
            for (snapshot, maps) in history {
                for (id, map) in ids.iter().zip(maps) {
                    let whole = scan(&*snapshot, *id, KeyRange::all(), Direction::Forward);
                    let expected: Pairs = map.clone().into_iter().collect();
                    prop_assert_eq!(whole, expected);
                    if start < end {
                        let range = KeyRange {
                            start: Bound::Excluded(start.clone()),
                            end: Bound::Included(end.clone()),
                        };
                        let bounds = (range.start.clone(), range.end.clone());
                        let expected: Pairs = map
                            .range(bounds)
                            .rev()
                            .map(|(key, value)| (key.clone(), value.clone()))
                            .collect();
                        prop_assert_eq!(
                            scan(&*snapshot, *id, range, Direction::Backward),
                            expected
                        );
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

/// Keys are taken from the front of two queues and put anywhere, while scans of new and old snapshots look for
/// what is left: compared with a plain map.
fn what_is_taken_from_the_front_is_gone_and_nothing_else(factory: &impl Factory) {
    // Which queue, a key, and how many to take.
    let step = (0_u8..2, 0_u8..200, 0_usize..40);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&proptest::collection::vec(step, 0..60), |steps| {
            let store = factory.make();
            let id = store.create_keyspace("queues").unwrap();
            let mut map: BTreeMap<Vec<u8>, Vec<u8>> =
                (0..2).flat_map(|queue| (0..200).map(move |n| (vec![queue, n], vec![n]))).collect();
            let mut batch = Batch::new();
            map.iter().for_each(|(key, value)| batch.insert(id, key.clone(), value.clone()));
            store.commit(batch).unwrap();
            let mut history = Vec::new();
            for (queue, number, taken) in steps {
                for _ in 0..taken {
                    let front = map.range(vec![queue]..vec![queue + 1]).next();
                    let Some(front) = front.map(|(key, _)| key.clone()) else { break };
                    map.remove(&front);
                    let mut batch = Batch::new();
                    batch.remove(id, front);
                    store.commit(batch).unwrap();
                    let range = KeyRange::prefix(&[queue]);
                    let next = store.snapshot().scan(id, range, Direction::Forward).unwrap().next();
                    let next = next.map(|pair| pair.unwrap().0.to_vec());
                    let expected = map.range(vec![queue]..vec![queue + 1]).next();
                    prop_assert_eq!(next, expected.map(|(key, _)| key.clone()));
                }
                history.push((store.snapshot(), map.clone()));
                put(&store, id, &[queue, number], &[1]);
                map.insert(vec![queue, number], vec![1]);
                history.push((store.snapshot(), map.clone()));
            }
            for (snapshot, map) in history.into_iter().rev() {
                for queue in 0..2 {
                    for direction in [Direction::Forward, Direction::Backward] {
                        let found = scan(&*snapshot, id, KeyRange::prefix(&[queue]), direction);
                        let range = map.range(vec![queue]..vec![queue + 1]);
                        let mut expected: Pairs =
                            range.map(|(key, value)| (key.clone(), value.clone())).collect();
                        if direction == Direction::Backward {
                            expected.reverse();
                        }
                        prop_assert_eq!(found, expected);
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

fn append<S: Store>(store: &S, log: KeyspaceId, positions: impl IntoIterator<Item = u64>) {
    let mut batch = Batch::new();
    for position in positions {
        batch.append_to_log(log, position, entry_of(position));
    }
    store.commit(batch).unwrap();
}

/// Long enough for a few hundred of them to need more than one place to read from.
fn entry_of(position: u64) -> Bytes {
    Bytes::from(vec![position as u8; 200 + (position % 7) as usize])
}

fn positions(pairs: &Pairs) -> Vec<u64> {
    let position = |key: &[u8]| u64::from_be_bytes(key.try_into().unwrap());
    for (key, entry) in pairs {
        assert_eq!(entry, &entry_of(position(key)).to_vec());
    }
    pairs.iter().map(|(key, _)| position(key)).collect()
}

fn log_of(snapshot: &dyn Snapshot, log: KeyspaceId) -> Vec<u64> {
    let forward = positions(&scan(snapshot, log, KeyRange::all(), Direction::Forward));
    let mut backward = positions(&scan(snapshot, log, KeyRange::all(), Direction::Backward));
    backward.reverse();
    assert_eq!(forward, backward);
    let bytes = forward.iter().map(|&position| entry_of(position).len() as u64).sum();
    let totals = LogTotals { entries: forward.len() as u64, bytes };
    assert_eq!(snapshot.log_totals(log).unwrap(), totals);
    forward
}

fn a_log_takes_entries_at_its_end_only(factory: &impl Factory) {
    let store = factory.make();
    let log = store.create_log("log").unwrap();
    let tree = store.create_keyspace("tree").unwrap();
    assert_eq!(store.create_log("log").unwrap(), log);
    assert!(matches!(store.create_keyspace("log"), Err(KeyspaceError::WrongKind { .. })));
    assert!(matches!(store.create_log("tree"), Err(KeyspaceError::WrongKind { .. })));
    append(&store, log, [5, 7]);
    let refused = |fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        batch.insert(tree, b"k", b"v");
        fill(&mut batch);
        store.commit(batch).unwrap_err()
    };
    let not_at_end = |error| matches!(error, CommitError::NotAtEnd { .. });
    assert!(not_at_end(refused(&|batch| batch.append_to_log(log, 7, b"again"))));
    assert!(not_at_end(refused(&|batch| batch.append_to_log(log, 6, b"between"))));
    assert!(not_at_end(refused(&|batch| {
        batch.append_to_log(log, 9, b"later");
        batch.append_to_log(log, 8, b"earlier");
    })));
    assert!(matches!(
        refused(&|batch| batch.insert(log, b"12345678", b"v")),
        CommitError::WrongKind
    ));
    assert!(matches!(refused(&|batch| batch.trim_log(tree, 1)), CommitError::WrongKind));
    assert!(matches!(
        refused(&|batch| {
            batch.append_to_log(log, 9, b"later");
            batch.cut_log(log, 8);
        }),
        CommitError::CutAfterAppend
    ));
    let snapshot = store.snapshot();
    assert_eq!(log_of(&*snapshot, log), [5, 7]);
    assert_eq!(snapshot.get(tree, b"k").unwrap(), None);
    assert!(matches!(snapshot.log_totals(tree), Err(ReadError::NotALog)));
    assert_eq!(snapshot.get(log, &7_u64.to_be_bytes()).unwrap(), Some(entry_of(7)));
    assert_eq!(snapshot.get(log, &6_u64.to_be_bytes()).unwrap(), None);
    assert_eq!(snapshot.get(log, b"short").unwrap(), None);
}

fn a_log_is_read_from_any_position_in_both_directions(factory: &impl Factory) {
    let store = factory.make();
    let log = store.create_log("log").unwrap();
    for first in (0..1000).step_by(10) {
        append(&store, log, (first..first + 10).map(|number| number * 3));
    }
    let snapshot = store.snapshot();
    let all: Vec<u64> = (0..1000).map(|number| number * 3).collect();
    assert_eq!(log_of(&*snapshot, log), all);
    let key = |position: u64| position.to_be_bytes().to_vec();
    let bounds = |position| [Bound::Included(key(position)), Bound::Excluded(key(position))];
    for (start, end) in [(0, 2999), (1, 5), (1499, 1501), (1500, 1500), (2997, 5000), (4000, 5000)]
    {
        for (start_bound, end_bound) in bounds(start).into_iter().zip(bounds(end)) {
            let range = KeyRange { start: start_bound.clone(), end: end_bound.clone() };
            let inside = |position: &u64| {
                let position = key(*position);
                let after = match &start_bound {
                    Bound::Excluded(start) => position > *start,
                    _ => position >= key(start),
                };
                let before = match &end_bound {
                    Bound::Excluded(end) => position < *end,
                    _ => position <= key(end),
                };
                after && before
            };
            let mut expected: Vec<u64> = all.iter().copied().filter(inside).collect();
            let forward = scan(&*snapshot, log, range.clone(), Direction::Forward);
            assert_eq!(positions(&forward), expected, "{range:?}");
            expected.reverse();
            let backward = scan(&*snapshot, log, range.clone(), Direction::Backward);
            assert_eq!(positions(&backward), expected, "{range:?}");
        }
    }
    assert_eq!(
        positions(&scan(&*snapshot, log, KeyRange::prefix(&[0; 6]), Direction::Forward)),
        all
    );
}

fn a_value_may_be_a_part_of_an_entry(factory: &impl Factory) {
    let store = factory.make();
    let log = store.create_log("log").unwrap();
    let tree = store.create_keyspace("tree").unwrap();
    let entry = Bytes::from(vec![9; 300]);
    let mut batch = Batch::new();
    batch.append_to_log(log, 1, entry.clone());
    batch.insert(tree, b"k", entry.slice(50..250));
    store.commit(batch).unwrap();
    assert_eq!(store.snapshot().get(tree, b"k").unwrap().as_deref(), Some(&[9; 200][..]));
}

/// Random appends, trims, cuts and snapshots, compared with a plain map.
fn a_log_behaves_like_a_map(factory: &impl Factory) {
    let step = prop_oneof![
        4 => (1_u64..40).prop_map(|count| (0, count)),
        1 => (0_u64..60).prop_map(|back| (1, back)),
        1 => (0_u64..120).prop_map(|below| (2, below)),
    ];
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&proptest::collection::vec(step, 0..20), |steps| {
            let store = factory.make();
            let log = store.create_log("log").unwrap();
            let mut model: Vec<u64> = Vec::new();
            let mut history = Vec::new();
            let mut next = 10;
            for (kind, amount) in steps {
                let mut batch = Batch::new();
                match kind {
                    0 => {
                        for _ in 0..amount {
                            batch.append_to_log(log, next, entry_of(next));
                            model.push(next);
                            next += 1 + next % 3;
                        }
                    }
                    1 => {
                        let from = model.iter().rev().nth(amount as usize).copied().unwrap_or(0);
                        batch.cut_log(log, from);
                        model.retain(|&position| position < from);
                        // After a rollback positions may fill what was cut, or lie above it.
                        next = model.last().map_or(next, |last| last + 1);
                        batch.append_to_log(log, next, entry_of(next));
                        model.push(next);
                        next += 1;
                    }
                    _ => {
                        let below = model.get(amount as usize).copied().unwrap_or(0);
                        batch.trim_log(log, below);
                        model.retain(|&position| position >= below);
                    }
                }
                store.commit(batch).unwrap();
                history.push((store.snapshot(), model.clone()));
            }
            for (snapshot, model) in history {
                prop_assert_eq!(log_of(&*snapshot, log), model);
            }
            Ok(())
        })
        .unwrap();
}

macro_rules! conformance {
    ($factory:expr; $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                crate::$case(&$factory);
            }
        )+
    };
}

macro_rules! every_case {
    ($factory:expr) => {
        conformance!($factory;
            a_batch_is_seen_whole_or_not_at_all,
            a_refused_batch_changes_nothing,
            a_snapshot_never_changes,
            what_is_taken_from_the_front_is_gone_and_nothing_else,
            ranges_run_both_ways_and_respect_their_bounds,
            bounds_may_be_longer_than_any_key,
            long_scans_are_complete,
            keyspaces_come_and_go_by_name,
            syncs_are_counted_and_cover_everything_before_them,
            concurrent_writers_share_syncs,
            it_behaves_like_a_map,
            walks_show_what_scans_show,
            what_is_ingested_is_there_for_later_snapshots,
            what_is_discarded_can_be_removed_and_nothing_else_goes,
            a_log_takes_entries_at_its_end_only,
            a_log_is_read_from_any_position_in_both_directions,
            a_value_may_be_a_part_of_an_entry,
            a_log_behaves_like_a_map,
        );
    };
}

mod model {
    use quorate_storage::ModelStore;

    struct InMemory;

    impl super::Factory for InMemory {
        type Store = ModelStore;

        fn make(&self) -> ModelStore {
            ModelStore::new()
        }
    }

    every_case!(InMemory);
}

mod disk {
    use super::*;
    use quorate_storage::{CommitSequence, Damage, DiskOptions, DiskStore, StoreStatistics};
    use tempfile::TempDir;

    struct OnDisk;

    /// Small memtables, so that cases reach tables and merges too.
    struct Crowded;

    /// Memtables of which a part is enough for tables of its own.
    struct Parted;

    /// Removes the directory after the store has let go of it.
    struct Temporary {
        store: DiskStore,
        _directory: TempDir,
    }

    fn temporary(options: DiskOptions) -> Temporary {
        let directory = tempfile::tempdir().unwrap();
        let store = DiskStore::open(directory.path(), options).unwrap();
        Temporary { store, _directory: directory }
    }

    impl super::Factory for OnDisk {
        type Store = Temporary;

        fn make(&self) -> Temporary {
            temporary(DiskOptions::default())
        }
    }

    impl super::Factory for Crowded {
        type Store = Temporary;

        fn make(&self) -> Temporary {
            temporary(DiskOptions { memtable_bytes: 300, ..DiskOptions::default() })
        }
    }

    impl super::Factory for Parted {
        type Store = Temporary;

        fn make(&self) -> Temporary {
            temporary(DiskOptions { memtable_bytes: 8_000, ..DiskOptions::default() })
        }
    }

    impl Store for Temporary {
        fn create_keyspace(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
            self.store.create_keyspace(name)
        }
        fn create_log(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
            self.store.create_log(name)
        }
        fn drop_keyspace(&self, keyspace: KeyspaceId) -> Result<(), KeyspaceError> {
            self.store.drop_keyspace(keyspace)
        }
        fn keyspaces(&self) -> Vec<(String, KeyspaceId)> {
            self.store.keyspaces()
        }
        fn snapshot(&self) -> Arc<dyn Snapshot> {
            self.store.snapshot()
        }
        fn commit(&self, batch: Batch) -> Result<CommitSequence, CommitError> {
            self.store.commit(batch)
        }
        fn ingest(
            &self,
            keyspace: KeyspaceId,
            pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        ) -> Result<(), CommitError> {
            self.store.ingest(keyspace, pairs)
        }
        fn discard(&self, keyspace: KeyspaceId, range: &KeyRange) -> Result<(), CommitError> {
            self.store.discard(keyspace, range)
        }
        fn replay_point(&self) -> ReplayPoint {
            self.store.replay_point()
        }
        fn is_settled(&self, point: ReplayPoint) -> bool {
            self.store.is_settled(point)
        }
        fn sync_through(&self, sequence: CommitSequence) -> Result<(), SyncError> {
            self.store.sync_through(sequence)
        }
        fn last_committed(&self) -> CommitSequence {
            self.store.last_committed()
        }
        fn last_synced(&self) -> CommitSequence {
            self.store.last_synced()
        }
        fn statistics(&self) -> StoreStatistics {
            self.store.statistics()
        }
        fn verify(&self) -> Result<Vec<Damage>, ReadError> {
            self.store.verify()
        }
    }

    mod roomy {
        every_case!(super::OnDisk);
    }

    mod crowded {
        // Flushes sync too, so the case that counts syncs is not among these.
        conformance!(super::Crowded;
            a_snapshot_never_changes,
            bounds_may_be_longer_than_any_key,
            long_scans_are_complete,
            keyspaces_come_and_go_by_name,
            it_behaves_like_a_map,
            walks_show_what_scans_show,
            what_is_ingested_is_there_for_later_snapshots,
            what_is_discarded_can_be_removed_and_nothing_else_goes,
            a_log_behaves_like_a_map,
        );
    }

    mod parted {
        conformance!(super::Parted;
            a_snapshot_never_changes,
            what_large_owners_have_is_there_in_tables_of_their_own,
            what_is_discarded_can_be_removed_and_nothing_else_goes,
        );
    }

    #[test]
    fn everything_is_there_after_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let open = || DiskStore::open(directory.path(), DiskOptions::default()).unwrap();
        let store = open();
        let keyspace = store.create_keyspace("k").unwrap();
        let dropped = store.create_keyspace("dropped").unwrap();
        put(&store, keyspace, b"a", b"1");
        put(&store, dropped, b"a", b"1");
        store.drop_keyspace(dropped).unwrap();
        drop(store);
        let store = open();
        let [(name, keyspace)] = &store.keyspaces()[..] else { panic!("one keyspace") };
        assert_eq!(name, "k");
        assert_eq!(store.snapshot().get(*keyspace, b"a").unwrap().as_deref(), Some(&b"1"[..]));
        assert!(store.statistics().journal_bytes > 0);
        assert_eq!(store.directory(), directory.path());
    }
}
