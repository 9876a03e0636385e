//! A scan of a range that is in memtables and in tables, in either direction.
//!
//! A key is taken from the newest memtable that has it, and from the tables if none has. Forward scans of many pairs are walks
//! (`merge_walk`), which lend what this hands over.

use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use crate::memtable::Memtable;
use crate::merge_walk::MemoryWalk;
use crate::store::{Bytes, Direction, KeyRange, ReadError, Scan};

/// A pair of a memtable. There is no value if the key was removed.
type Pair = (Bytes, Option<Bytes>);

/// The pairs of memtables and tables.
pub(crate) struct MergeScan {
    /// The newest first, each with the pair that it has come to.
    memtables: Vec<(MemoryScan, Option<Pair>)>,
    tables: Peekable<Scan>,
    direction: Direction,
}

/// The pairs of one memtable.
enum MemoryScan {
    Forward(MemoryWalk),
    /// The range, up to the pair that came last.
    Backward(Arc<Memtable>, KeyRange, u64),
}

impl MergeScan {
    /// The newest memtable comes first.
    pub(crate) fn new(
        memtables: Vec<Arc<Memtable>>,
        tables: Scan,
        range: KeyRange,
        direction: Direction,
        below: u64,
    ) -> Self {
        let begin = |memtable| {
            let range = range.clone();
            let mut scan = match direction {
                Direction::Forward => MemoryScan::Forward(MemoryWalk::new(memtable, range, below)),
                Direction::Backward => MemoryScan::Backward(memtable, range, below),
            };
            let first = scan.next();
            (scan, first)
        };
        let memtables = memtables.into_iter().map(begin).collect();
        Self { memtables, tables: tables.peekable(), direction }
    }

    /// The newest of the memtables that have the key that comes next.
    fn next_memtable(&self) -> Option<usize> {
        let mut next: Option<(usize, &Bytes)> = None;
        for (place, (_, pair)) in self.memtables.iter().enumerate() {
            let Some((key, _)) = pair else { continue };
            if next.is_none_or(|(_, first)| is_first(key, first, self.direction)) {
                next = Some((place, key));
            }
        }
        next.map(|(place, _)| place)
    }
}

/// Whether a key comes before another one.
fn is_first(key: &Bytes, other: &Bytes, direction: Direction) -> bool {
    match direction {
        Direction::Forward => key < other,
        Direction::Backward => key > other,
    }
}

impl Iterator for MergeScan {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(place) = self.next_memtable() else { return self.tables.next() };
            let key = self.memtables[place].1.as_ref().map(|(key, _)| key.clone())?;
            match self.tables.peek() {
                Some(Ok((stored, _))) if *stored == key => drop(self.tables.next()),
                Some(Ok((stored, _))) if is_first(stored, &key, self.direction) => {
                    return self.tables.next();
                }
                Some(Err(_)) => {
                    self.memtables.clear();
                    return self.tables.next();
                }
                _ => {}
            }
            let mut value = None;
            for (at, (scan, pair)) in self.memtables.iter_mut().enumerate() {
                if pair.as_ref().is_some_and(|(known, _)| *known == key) {
                    let passed = std::mem::replace(pair, scan.next());
                    if at == place {
                        value = passed.and_then(|(_, value)| value);
                    }
                }
            }
            if let Some(value) = value {
                return Some(Ok((key, value)));
            }
        }
    }
}

impl MemoryScan {
    fn next(&mut self) -> Option<Pair> {
        match self {
            Self::Forward(walk) => {
                if !walk.advance() {
                    return None;
                }
                walk.version().map(|version| (version.key.clone(), version.value.clone()))
            }
            Self::Backward(memtable, range, below) => {
                let (key, value) = memtable.last(range, *below)?;
                range.end = Bound::Excluded(key.to_vec());
                Some((key, value))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::Version;

    type Put<'p> = (&'p [u8], u64, Option<&'p [u8]>);

    fn memtable(pairs: &[Put<'_>]) -> Arc<Memtable> {
        let memtable = Memtable::default();
        for &(key, sequence, value) in pairs {
            let (key, value) = (Bytes::from(key), value.map(Bytes::from));
            memtable.put(Version { key, sequence, value }, 0);
        }
        Arc::new(memtable)
    }

    /// Two memtables above tables: the newest version counts, also one that says that the key was removed.
    #[test]
    fn a_key_is_taken_from_the_newest_that_has_it() {
        let newest =
            memtable(&[(b"b", 8, Some(b"new")), (b"c", 9, None), (b"e", 12, Some(b"later"))]);
        let older = memtable(&[
            (b"a", 4, None),
            (b"b", 5, Some(b"old")),
            (b"c", 6, Some(b"old")),
            (b"f", 7, Some(b"f")),
        ]);
        let tables = [(b"a", b"t"), (b"c", b"t"), (b"d", b"t"), (b"e", b"t")];
        let scan = |direction| {
            let pair =
                |(key, value): (&[u8; 1], &[u8; 1])| Ok((Bytes::from(key), Bytes::from(value)));
            let pairs: Scan = match direction {
                Direction::Forward => Box::new(tables.into_iter().map(pair)),
                Direction::Backward => Box::new(tables.into_iter().rev().map(pair)),
            };
            let memtables = vec![Arc::clone(&newest), Arc::clone(&older)];
            let scan = MergeScan::new(memtables, pairs, KeyRange::all(), direction, 10);
            scan.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
                .collect::<Vec<_>>()
        };
        let mut expected: Vec<(Vec<u8>, Vec<u8>)> =
            [("b", "new"), ("d", "t"), ("e", "t"), ("f", "f")]
                .map(|(key, value)| (key.into(), value.into()))
                .into();
        assert_eq!(scan(Direction::Forward), expected);
        expected.reverse();
        assert_eq!(scan(Direction::Backward), expected);
    }
}
