//! Searches a block of a table for one key: a block of the index for the block that may hold the key, a block of pairs for
//! the value.
//!
//! ```text
//!   items  FF  place of each head  trailer: interval (1)  bytes of a place (1)  heads (4)  where their places are (4)  …
//!
//!   head of an index   type (1)  offset  length of the block  sequence  length of the key   its last key
//!   head of pairs      type (1)                               sequence  length of the key   key …
//! ```
//!
//! In an index every item is a head. The engine's own search decodes through readers, copies each key that it comes to and
//! keeps both ends of a block in mind, which costs several times what there is to compare.

use std::cmp::Ordering;
use std::ops::Range;

use crate::block_items::{BlockItem, BlockItems, Malformed, TRAILER};
use crate::journal::record::{length_of_number, take_number};

/// Numbers of an item of an index in front of its sequence.
const NUMBERS_OF_INDEX: usize = 2;

/// What is looked for: the newest version of a key below a sequence.
#[derive(Clone, Copy)]
pub(crate) struct Target<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) below: u64,
}

impl Target<'_> {
    /// Whether a version is in front of the target, is it, or is behind. Its key is in two parts.
    fn order_of(&self, shared: &[u8], rest: &[u8], sequence: u64) -> Ordering {
        let (begin, end) = self.key.split_at(shared.len().min(self.key.len()));
        match shared.cmp(begin).then_with(|| rest.cmp(end)) {
            Ordering::Equal if sequence >= self.below => Ordering::Less,
            order => order,
        }
    }
}

/// The heads of a block.
struct Heads<'b> {
    bytes: &'b [u8],
    places: &'b [u8],
    /// The bytes of a place.
    width: usize,
    /// The numbers between the type of a head and its sequence.
    skipped: usize,
}

impl<'b> Heads<'b> {
    fn new(bytes: &'b [u8], skipped: usize) -> Option<Self> {
        let (bytes, trailer) = bytes.split_at(bytes.len().checked_sub(TRAILER)?);
        let number = |at: usize| trailer[at..].first_chunk().copied().map(u32::from_le_bytes);
        let (width, count, start) = (usize::from(trailer[1]), number(2)?, number(6)? as usize);
        if !matches!(width, 2 | 4) {
            return None;
        }
        let end = start.checked_add((count as usize).checked_mul(width)?)?;
        Some(Self { bytes, places: bytes.get(start..end)?, width, skipped })
    }

    fn count(&self) -> usize {
        self.places.len() / self.width
    }

    fn place(&self, head: usize) -> Option<usize> {
        let place = self.places.get(head * self.width..)?;
        match self.width {
            2 => place.first_chunk().map(|place| usize::from(u16::from_le_bytes(*place))),
            _ => place.first_chunk().map(|place| u32::from_le_bytes(*place) as usize),
        }
    }

    fn is_in_front(&self, head: usize, target: &Target<'_>) -> Option<bool> {
        let mut rest = self.bytes.get(self.place(head)? + 1..)?;
        for _ in 0..self.skipped {
            rest = &rest[length_of_number(rest)?..];
        }
        let mut sequence = rest;
        rest = &rest[length_of_number(rest)?..];
        let length = usize::try_from(take_number(&mut rest)?).ok()?;
        Some(match rest.get(..length)?.cmp(target.key) {
            Ordering::Less => true,
            Ordering::Equal => take_number(&mut sequence)? >= target.below,
            Ordering::Greater => false,
        })
    }

    /// How many heads are in front of the target.
    fn in_front_of(&self, target: &Target<'_>) -> Option<usize> {
        let mut range = 0..self.count();
        while !range.is_empty() {
            let middle = range.start + range.len() / 2;
            match self.is_in_front(middle, target)? {
                true => range.start = middle + 1,
                false => range.end = middle,
            }
        }
        Some(range.start)
    }
}

/// Where the block is that alone may hold the target: its offset and its length. None if no block of this index may.
pub(crate) fn block_of(index: &[u8], target: &Target<'_>) -> Result<Option<(u64, u32)>, Malformed> {
    let find = || {
        let heads = Heads::new(index, NUMBERS_OF_INDEX)?;
        let head = heads.in_front_of(target)?;
        if head == heads.count() {
            return Some(None);
        }
        let mut rest = heads.bytes.get(heads.place(head)? + 1..)?;
        let (offset, length) = (take_number(&mut rest)?, take_number(&mut rest)?);
        Some(Some((offset, u32::try_from(length).ok()?)))
    };
    find().ok_or(Malformed)
}

/// The target, if it is in a block of pairs: where its value is, or that the key was removed.
pub(crate) fn value_of(
    pairs: &[u8],
    target: &Target<'_>,
) -> Result<Option<Option<Range<usize>>>, Malformed> {
    let heads = Heads::new(pairs, 0).ok_or(Malformed)?;
    let head = heads.in_front_of(target).ok_or(Malformed)?;
    let Some(place) = heads.place(head.saturating_sub(1)) else { return Ok(None) };
    let mut items = BlockItems::from_head(pairs, place)?;
    while let Some(BlockItem { sequence, shared, rest, value }) = items.next()? {
        match target.order_of(&pairs[shared], &pairs[rest], sequence) {
            Ordering::Less => {}
            Ordering::Equal => return Ok(Some(value)),
            Ordering::Greater => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use lsm_tree::table::block::BlockOffset;
    use lsm_tree::table::{BlockHandle, DataBlock, IndexBlock, KeyedBlockHandle};
    use lsm_tree::{InternalValue, ValueType};

    use super::*;

    /// Keys of which some begin like others, and two or more versions of some.
    fn versions() -> Vec<(Vec<u8>, u64, bool)> {
        let mut versions = Vec::new();
        for number in 0..60_u64 {
            let mut key = format!("a key that is shared {:03}", number * 2).into_bytes();
            if number % 7 == 0 {
                key.push(b'x');
            }
            for older in 0..=number % 3 {
                versions.push((key.clone(), 100 - older * 10, (number + older) % 5 == 3));
            }
        }
        versions
    }

    fn keys() -> Vec<Vec<u8>> {
        let all = (0..125).map(|number| format!("a key that is shared {number:03}").into_bytes());
        let all: Vec<Vec<u8>> = all.collect();
        let longer = all.iter().map(|key| [&key[..], b"x"].concat());
        let others = [b"".to_vec(), b"a".to_vec(), b"a key".to_vec(), b"z".to_vec()];
        all.iter().cloned().chain(longer).chain(others).collect()
    }

    #[test]
    fn a_block_of_pairs_has_the_newest_version_below_a_sequence() {
        let versions = versions();
        let items: Vec<_> = versions
            .iter()
            .map(|(key, sequence, is_removed)| match is_removed {
                true => InternalValue::new_tombstone(key.clone(), *sequence),
                false => InternalValue::from_components(
                    key.clone(),
                    sequence.to_be_bytes(),
                    *sequence,
                    ValueType::Value,
                ),
            })
            .collect();
        for interval in [1, 2, 4, 16] {
            for count in [1, 3, items.len()] {
                let mut block = Vec::new();
                DataBlock::encode_into(&mut block, &items[..count], interval, 0.0).unwrap();
                for key in keys() {
                    for below in [0, 75, 80, 81, 90, 91, 100, 101, u64::MAX] {
                        let is_it = |it: &&(Vec<u8>, u64, bool)| it.0 == key && it.1 < below;
                        let expected = versions[..count].iter().find(is_it);
                        let found = value_of(&block, &Target { key: &key, below }).unwrap();
                        let found = found.map(|value| value.map(|value| block[value].to_vec()));
                        let expected = expected.map(|(_, sequence, is_removed)| {
                            (!is_removed).then(|| sequence.to_be_bytes().to_vec())
                        });
                        assert_eq!(found, expected, "{key:?} below {below}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_index_names_the_block_that_ends_behind_the_target() {
        let versions = versions();
        let handle = |(number, (key, sequence, _)): (usize, &(Vec<u8>, u64, bool))| {
            let place = BlockHandle::new(BlockOffset(number as u64 * 5000), number as u32);
            KeyedBlockHandle::new(key.clone().into(), *sequence, place)
        };
        let handles: Vec<_> = versions.iter().enumerate().map(handle).collect();
        let index = IndexBlock::encode_into_vec(&handles).unwrap();
        for key in keys() {
            for below in [0, 81, 90, 91, 100, 101, u64::MAX] {
                let is_behind =
                    |it: &(Vec<u8>, u64, bool)| it.0 > key || it.0 == key && it.1 < below;
                let expected = versions.iter().position(is_behind);
                let expected = expected.map(|number| (number as u64 * 5000, number as u32));
                let found = block_of(&index, &Target { key: &key, below }).unwrap();
                assert_eq!(found, expected, "{key:?} below {below}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_block_end_with_an_error_or_nothing() {
        let items: Vec<_> = versions()
            .into_iter()
            .map(|(key, sequence, _)| InternalValue::new_tombstone(key, sequence))
            .collect();
        let mut block = Vec::new();
        DataBlock::encode_into(&mut block, &items, 4, 0.0).unwrap();
        for cut in 0..block.len() {
            for key in [&b"a"[..], b"a key that is shared 050", b"z"] {
                let target = Target { key, below: 95 };
                // Whatever stands where the trailer should, no byte outside is asked for.
                let _ = (value_of(&block[..cut], &target), block_of(&block[..cut], &target));
            }
        }
    }
}
