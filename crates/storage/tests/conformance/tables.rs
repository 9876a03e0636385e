//! What has to do with tables: walks through them, ingested pairs, tables of one owner, discarded ranges.

use std::collections::BTreeMap;
use std::ops::Bound;

use quorate_storage::{Batch, Bytes, CommitError, Direction, KeyRange, MAX_KEY_LENGTH, Store};

use crate::{Factory, Pairs, scan};

/// Keys that are mostly appended come to lie in tables that do not overlap, through which walks go straight; random
/// changes make some of them overlap.
pub(crate) fn walks_show_what_scans_show(factory: &impl Factory) {
    let mut chance = quorate_protocol::SplitMix64::new(7);
    let mut below = move |limit: u64| chance.next_u64() % limit;
    let store = factory.make();
    let keyspace = store.create_keyspace("k").unwrap();
    let (mut next, mut held) = (0, Vec::new());
    for round in 0..400_u64 {
        let mut batch = Batch::new();
        for _ in 0..below(20) {
            let value = vec![round as u8; below(300) as usize];
            batch.insert(keyspace, &u64::to_be_bytes(next), value);
            next += 1 + below(3);
        }
        // Now and then something that is there is changed, or goes; in the second half of the rounds not any more.
        let changes = if round < 200 { below(40).saturating_sub(36) } else { 0 };
        for _ in 0..changes {
            let key = below(next + 1).to_be_bytes();
            match below(2) {
                0 => batch.insert(keyspace, &key, b"changed"),
                _ => batch.remove(keyspace, &key),
            }
        }
        store.commit(batch).unwrap();
        if round % 50 == 0 {
            let snapshot = store.snapshot();
            let whole = scan(&*snapshot, keyspace, KeyRange::all(), Direction::Forward);
            held.push((snapshot, whole));
        }
        let mut bound = || match below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(below(next + 1).to_be_bytes().to_vec()),
            _ => Bound::Excluded(below(next + 1).to_be_bytes().to_vec()),
        };
        let range = KeyRange { start: bound(), end: bound() };
        scan(&*store.snapshot(), keyspace, range, Direction::Forward);
    }
    for (snapshot, whole) in held {
        assert_eq!(scan(&*snapshot, keyspace, KeyRange::all(), Direction::Forward), whole);
    }
}

/// Pairs are ingested under prefixes of their own, one after the other, or again after all keys of a prefix were removed.
/// Commits change them afterwards. Compared with a plain map, in new and old snapshots.
pub(crate) fn what_is_ingested_is_there_for_later_snapshots(factory: &impl Factory) {
    let mut chance = quorate_protocol::SplitMix64::new(11);
    let mut below = move |limit: u64| chance.next_u64() % limit;
    let store = factory.make();
    let keyspace = store.create_keyspace("k").unwrap();
    let (mut map, mut history) = (BTreeMap::<Vec<u8>, Vec<u8>>::new(), Vec::new());
    for round in 0..60_u8 {
        let prefix = if below(4) == 0 { below(u64::from(round) + 1) as u8 } else { round };
        let mut batch = Batch::new();
        let known: Vec<_> = map.range(vec![prefix]..vec![prefix + 1]).collect();
        let known: Vec<_> = known.into_iter().map(|(key, _)| key.clone()).collect();
        for key in known {
            map.remove(&key);
            batch.remove(keyspace, key);
        }
        store.commit(batch).unwrap();
        history.push((store.snapshot(), map.clone()));
        let pairs: BTreeMap<Vec<u8>, Vec<u8>> = (0..below(40))
            .map(|_| {
                (vec![prefix, below(9) as u8, below(9) as u8], vec![round; below(60) as usize])
            })
            .collect();
        let mut ingested = pairs
            .iter()
            .map(|(key, value)| (Bytes::from(key.as_slice()), Bytes::from(value.as_slice())));
        store.ingest(keyspace, &mut ingested).unwrap();
        map.extend(pairs);
        history.push((store.snapshot(), map.clone()));
        let mut batch = Batch::new();
        for _ in 0..below(6) {
            let key = vec![below(u64::from(round) + 1) as u8, below(9) as u8, below(9) as u8];
            if below(2) == 0 {
                map.remove(&key);
                batch.remove(keyspace, key);
            } else {
                map.insert(key.clone(), vec![round]);
                batch.insert(keyspace, key, &[round]);
            }
        }
        store.commit(batch).unwrap();
        history.push((store.snapshot(), map.clone()));
        let prefix = KeyRange::prefix(&[below(u64::from(round) + 1) as u8]);
        scan(&*store.snapshot(), keyspace, prefix, Direction::Forward);
    }
    for (snapshot, map) in history {
        let whole = scan(&*snapshot, keyspace, KeyRange::all(), Direction::Forward);
        assert_eq!(whole, map.clone().into_iter().collect::<Pairs>());
        for (key, value) in map {
            assert_eq!(snapshot.get(keyspace, &key).unwrap().as_deref(), Some(&*value));
        }
    }
    let too_long = Bytes::from(vec![0xFF; MAX_KEY_LENGTH + 1]);
    let refused = store.ingest(keyspace, &mut [(too_long, Bytes::from(&[]))].into_iter());
    assert!(matches!(refused, Err(CommitError::KeyLength { .. })), "{refused:?}");
    let log = store.create_log("log").unwrap();
    let refused = store.ingest(log, &mut [(Bytes::from(b"k"), Bytes::from(&[]))].into_iter());
    assert!(matches!(refused, Err(CommitError::WrongKind)), "{refused:?}");
}

/// Keys of three owners of different sizes rise, and now and then an old one changes or goes.
pub(crate) fn what_large_owners_have_is_there_in_tables_of_their_own(factory: &impl Factory) {
    let mut chance = quorate_protocol::SplitMix64::new(17);
    let mut below = move |limit: u64| chance.next_u64() % limit;
    let store = factory.make();
    let keyspace = store.create_keyspace("k").unwrap();
    let key = |owner: u64, number: u64| [owner.to_be_bytes(), number.to_be_bytes()].concat();
    let (mut map, mut history) = (BTreeMap::<Vec<u8>, Vec<u8>>::new(), Vec::new());
    for round in 0..300_u64 {
        let mut batch = Batch::new();
        for (owner, length) in [(1, 0), (2, 60), (3, 20)] {
            let (key, value) = (key(owner, round), vec![round as u8; length]);
            map.insert(key.clone(), value.clone());
            batch.insert(keyspace, key, value);
        }
        if below(20) == 0 {
            let key = key(1 + below(3), below(round + 1));
            map.remove(&key);
            batch.remove(keyspace, key);
        }
        store.commit(batch).unwrap();
        if round % 20 == 0 {
            history.push((store.snapshot(), map.clone()));
        }
    }
    history.push((store.snapshot(), map));
    for (snapshot, map) in history {
        let whole = scan(&*snapshot, keyspace, KeyRange::all(), Direction::Forward);
        assert_eq!(whole, map.clone().into_iter().collect::<Pairs>());
        for (key, value) in map {
            assert_eq!(snapshot.get(keyspace, &key).unwrap().as_deref(), Some(&*value));
        }
    }
}

/// A range is discarded and what is left of it removed, while keys beside it come and go. Older snapshots still have it.
pub(crate) fn what_is_discarded_can_be_removed_and_nothing_else_goes(factory: &impl Factory) {
    let mut chance = quorate_protocol::SplitMix64::new(13);
    let mut below = move |limit: u64| chance.next_u64() % limit;
    let store = factory.make();
    let keyspace = store.create_keyspace("k").unwrap();
    let (mut map, mut history) = (BTreeMap::<Vec<u8>, Vec<u8>>::new(), Vec::new());
    for round in 0..40_u8 {
        for _ in 0..8 {
            let mut batch = Batch::new();
            for _ in 0..below(8) {
                let prefix = round + below(2) as u8;
                let (key, value) = (vec![prefix, below(40) as u8], vec![round; 30]);
                map.insert(key.clone(), value.clone());
                batch.insert(keyspace, key, value);
            }
            store.commit(batch).unwrap();
        }
        let (first, last) = (round.saturating_sub(below(3) as u8), round);
        let range =
            KeyRange { start: Bound::Included(vec![first]), end: Bound::Excluded(vec![last + 1]) };
        history.push((store.snapshot(), map.clone()));
        store.discard(keyspace, &range).unwrap();
        let is_inside = |key: &[u8]| (first..=last).contains(&key[0]);
        let left = scan(&*store.snapshot(), keyspace, KeyRange::all(), Direction::Forward);
        let outside = left.iter().filter(|(key, _)| !is_inside(key)).cloned();
        map.retain(|key, _| !is_inside(key));
        assert_eq!(outside.collect::<Pairs>(), map.clone().into_iter().collect::<Pairs>());
        let mut batch = Batch::new();
        left.into_iter().filter(|(key, _)| is_inside(key)).for_each(|(key, _)| {
            batch.remove(keyspace, key);
        });
        store.commit(batch).unwrap();
        history.push((store.snapshot(), map.clone()));
    }
    for (snapshot, map) in history {
        let whole = scan(&*snapshot, keyspace, KeyRange::all(), Direction::Forward);
        assert_eq!(whole, map.into_iter().collect::<Pairs>());
    }
}
