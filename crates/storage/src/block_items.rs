//! The items of a data block, as `lsm-tree` 3 writes them.
//!
//! ```text
//!   head    type (1)  sequence  length of the key   key                      length of the value  value
//!   other   type (1)  sequence  length it shares    length of its rest  rest length of the value  value
//!                               with the head
//!   end     FF
//! ```
//!
//! Numbers have seven bits a byte, the lowest first. Every n-th item is a head, and n is in the block's trailer. An item
//! that says that a key was removed has no value.
//!
//! The engine's own iterator reads from both ends and looks ahead, which costs it more than all else that a walk
//! does with a pair.

use std::ops::Range;

use crate::journal::record::take_number;

/// The bytes behind the items, their index and the block's hashes. The first of them is how often a head comes.
pub(crate) const TRAILER: usize = 31;

/// In place of a type, behind the last item.
const END: u8 = 0xFF;

const VALUE: u8 = 0;
const REMOVED: u8 = 1;
const REMOVED_ONCE: u8 = 2;

/// A block whose checksum fits and that still makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The items of a block, in their order.
pub(crate) struct BlockItems<'b> {
    bytes: &'b [u8],
    place: usize,
    /// The items from one head to the next.
    interval: u8,
    /// Items before the next head.
    left: u8,
    /// Where the key of the last head begins.
    head: usize,
}

/// Where the parts of an item are in its block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlockItem {
    pub(crate) sequence: u64,
    /// The part of the key that is shared with a head.
    pub(crate) shared: Range<usize>,
    pub(crate) rest: Range<usize>,
    /// None if the key was removed.
    pub(crate) value: Option<Range<usize>>,
}

impl<'b> BlockItems<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Result<Self, Malformed> {
        let trailer = bytes.len().checked_sub(TRAILER).ok_or(Malformed)?;
        let interval = bytes[trailer];
        if interval == 0 {
            return Err(Malformed);
        }
        Ok(Self { bytes: &bytes[..trailer], place: 0, interval, left: 0, head: 0 })
    }

    /// The same from a head on.
    pub(crate) fn from_head(bytes: &'b [u8], place: usize) -> Result<Self, Malformed> {
        Ok(Self { place, ..Self::new(bytes)? })
    }

    /// The next item; none behind the last.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<BlockItem>, Malformed> {
        match self.bytes.get(self.place) {
            Some(&END) => Ok(None),
            Some(&kind) => self.item(kind).map(Some).ok_or(Malformed),
            None => Err(Malformed),
        }
    }

    #[inline]
    fn item(&mut self, kind: u8) -> Option<BlockItem> {
        self.place += 1;
        let sequence = self.number()?;
        let shared = match self.left {
            0 => 0..0,
            _ => {
                let length = self.number()? as usize;
                self.head..self.head.checked_add(length)?
            }
        };
        let length = self.number()? as usize;
        let rest = self.span(length)?;
        match self.left {
            0 => (self.head, self.left) = (rest.start, self.interval - 1),
            _ => self.left -= 1,
        }
        let value = match kind {
            VALUE => {
                let length = self.number()? as usize;
                Some(self.span(length)?)
            }
            REMOVED | REMOVED_ONCE => None,
            _ => return None,
        };
        (shared.end <= self.bytes.len()).then_some(BlockItem { sequence, shared, rest, value })
    }

    fn span(&mut self, length: usize) -> Option<Range<usize>> {
        let start = self.place;
        self.place = start.checked_add(length).filter(|&end| end <= self.bytes.len())?;
        Some(start..self.place)
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        let mut rest = self.bytes.get(self.place..)?;
        let number = take_number(&mut rest)?;
        self.place = self.bytes.len() - rest.len();
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use lsm_tree::table::DataBlock;
    use lsm_tree::{InternalValue, ValueType};

    use super::*;

    /// A block as the engine writes it.
    fn block(items: &[InternalValue], interval: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        DataBlock::encode_into(&mut bytes, items, interval, 0.0).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Vec<(Vec<u8>, u64, Option<Vec<u8>>)> {
        let mut items = BlockItems::new(bytes).unwrap();
        let mut found = Vec::new();
        while let Some(item) = items.next().unwrap() {
            let key = [&bytes[item.shared], &bytes[item.rest]].concat();
            found.push((key, item.sequence, item.value.map(|value| bytes[value].to_vec())));
        }
        found
    }

    fn items(count: usize) -> Vec<InternalValue> {
        let item = |n: usize| {
            let kind = if n % 5 == 3 { ValueType::Tombstone } else { ValueType::Value };
            let value = vec![n as u8; if kind == ValueType::Value { n * 7 } else { 0 }];
            let key = format!("a key that is shared {:05}", n / 2);
            InternalValue::from_components(key.into_bytes(), value, 1_000_000 - n as u64, kind)
        };
        (0..count).map(item).collect()
    }

    /// The engine's iterator and ours read the same, for every length of an interval.
    #[test]
    fn items_are_read_as_the_engine_wrote_them() {
        for (count, interval) in [(1, 1), (1, 16), (15, 16), (16, 16), (17, 16), (60, 1), (60, 3)] {
            let items = items(count);
            let expected: Vec<_> = items
                .iter()
                .map(|item| {
                    let value = (!item.key.is_tombstone()).then(|| item.value.to_vec());
                    (item.key.user_key.to_vec(), item.key.seqno, value)
                })
                .collect();
            assert_eq!(read(&block(&items, interval)), expected, "{count} {interval}");
        }
    }

    #[test]
    fn bytes_that_are_no_block_end_with_an_error() {
        let bytes = block(&items(40), 16);
        assert!(BlockItems::new(&bytes[..TRAILER - 1]).is_err());
        for cut in TRAILER..bytes.len() {
            // Whatever stands where the trailer should, no byte outside is asked for.
            let Ok(mut items) = BlockItems::new(&bytes[..cut]) else { continue };
            while let Ok(Some(item)) = items.next() {
                assert!(item.rest.end <= cut && item.shared.end <= cut);
            }
        }
    }
}
