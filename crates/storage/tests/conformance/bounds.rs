//! Bounds that are longer than any key. A client can ask for a string of any length, in an index or as an `_id`.

use std::collections::BTreeMap;
use std::ops::Bound;

use quorate_storage::{Direction, KeyRange, MAX_KEY_LENGTH, Store};

use crate::{Factory, Pairs, put, scan};

/// Keys around the longest ones that a bound can begin with.
fn keys() -> Vec<Vec<u8>> {
    let longest = |last: u8| [vec![b'm'; MAX_KEY_LENGTH - 1], vec![last]].concat();
    let mut keys =
        vec![b"a".to_vec(), b"m".to_vec(), b"z".to_vec(), vec![b'm'; MAX_KEY_LENGTH - 1]];
    keys.extend([b'l', b'm', b'n', 0xFF].map(longest));
    keys
}

fn long_bounds() -> Vec<Vec<u8>> {
    let longer = |byte: u8, more: &[u8]| [vec![byte; MAX_KEY_LENGTH], more.to_vec()].concat();
    vec![
        longer(b'm', &[0]),
        longer(b'm', b"m"),
        longer(b'm', &[0xFF; 4000]),
        [vec![b'm'; MAX_KEY_LENGTH - 1], vec![b'n', 0]].concat(),
        longer(b'b', b"b"),
        longer(0xFF, &[0xFF]),
    ]
}

/// The pairs of a map that lie in a range, in the order of a scan.
fn within(
    map: &BTreeMap<Vec<u8>, Vec<u8>>,
    (start, end): (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
    direction: Direction,
) -> Pairs {
    let is_within = |key: &Vec<u8>| {
        let is_behind_start = match start {
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
            Bound::Unbounded => true,
        };
        let is_before_end = match end {
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
            Bound::Unbounded => true,
        };
        is_behind_start && is_before_end
    };
    let pairs = map.iter().filter(|(key, _)| is_within(key));
    let mut pairs: Pairs = pairs.map(|(key, value)| (key.clone(), value.clone())).collect();
    if direction == Direction::Backward {
        pairs.reverse();
    }
    pairs
}

/// Compared with a plain map, in snapshots before and after the keys have moved to tables.
pub(crate) fn bounds_may_be_longer_than_any_key(factory: &impl Factory) {
    let store = factory.make();
    let (keyspace, other) =
        (store.create_keyspace("k").unwrap(), store.create_keyspace("other").unwrap());
    let map: BTreeMap<_, _> = keys().into_iter().map(|key| (key, b"value".to_vec())).collect();
    let old = store.snapshot();
    map.iter().for_each(|(key, value)| put(&store, keyspace, key, value));
    let middle = store.snapshot();
    for round in 0..40_u8 {
        put(&store, keyspace, b"z", &[round; 100]);
        put(&store, other, &[round], &[round; 100]);
    }
    let mut newer = map.clone();
    newer.insert(b"z".to_vec(), vec![39; 100]);
    let bounds = || {
        let bounds = long_bounds().into_iter().chain([b"b".to_vec(), vec![b'm'; MAX_KEY_LENGTH]]);
        let bounds = bounds.flat_map(|key| [Bound::Included(key.clone()), Bound::Excluded(key)]);
        bounds.chain([Bound::Unbounded])
    };
    for (snapshot, map) in [(old, BTreeMap::new()), (middle, map), (store.snapshot(), newer)] {
        for (start, end) in bounds().flat_map(|start| bounds().map(move |end| (start.clone(), end)))
        {
            for direction in [Direction::Forward, Direction::Backward] {
                let expected = within(&map, (&start, &end), direction);
                let range = KeyRange { start: start.clone(), end: end.clone() };
                assert!(scan(&*snapshot, keyspace, range, direction) == expected);
            }
        }
        for key in long_bounds() {
            assert_eq!(snapshot.get(keyspace, &key).unwrap(), None);
            assert_eq!(snapshot.get_known(keyspace, &key).unwrap(), None);
            let prefix = KeyRange::prefix(&key);
            assert_eq!(scan(&*snapshot, keyspace, prefix, Direction::Forward), []);
        }
    }
}
