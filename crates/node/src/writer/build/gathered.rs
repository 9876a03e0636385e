//! Entries of an index on their way into its order.
//!
//! Owns how they lie in memory: one behind the other in one buffer, and beside it a row of places, which is what is sorted.
//! Most comparisons are decided by the start of the entry behind the index's own ident, which each place has at hand.

use quorate_storage::Bytes;
use quorate_storage::key::RecordId;

use crate::catalog::{Ident, Index};
use crate::records::append_index_entry;

/// The bytes of an entry that its place has at hand.
const HEAD: usize = 16;

/// Entries in any order.
#[derive(Default)]
pub(super) struct Gathered {
    entries: Vec<u8>,
    places: Vec<Place>,
}

/// Where an entry lies, and the record that it names.
#[derive(Clone, Copy)]
struct Place {
    /// What follows the ident, most significant byte first, with zeros behind a short one.
    head: u128,
    record: RecordId,
    start: usize,
    end: usize,
}

impl Gathered {
    pub(super) fn add(&mut self, index: &Index, key: &[u8], record: RecordId) {
        let start = self.entries.len();
        append_index_entry(&mut self.entries, index, key, record);
        let tail = &self.entries[start + Ident::LENGTH..];
        let mut head = [0; HEAD];
        let known = tail.len().min(HEAD);
        head[..known].copy_from_slice(&tail[..known]);
        let (head, end) = (u128::from_be_bytes(head), self.entries.len());
        self.places.push(Place { head, record, start, end });
    }

    /// What they take in memory.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() + self.places.len() * size_of::<Place>()
    }

    /// Puts them in order.
    pub(super) fn into_sorted(self) -> Sorted {
        let Self { entries, mut places } = self;
        places.sort_unstable_by(|a, b| {
            let whole = |place: &Place| &entries[place.start..place.end];
            a.head.cmp(&b.head).then_with(|| whole(a).cmp(whole(b)))
        });
        Sorted { entries: Bytes::from(entries), places }
    }
}

/// Entries in their order.
pub(super) struct Sorted {
    entries: Bytes,
    places: Vec<Place>,
}

impl Sorted {
    /// How many bytes they have.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len()
    }

    /// The entries with their records.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Bytes, RecordId)> {
        let entry = |place: &Place| self.entries.slice(place.start..place.end);
        self.places.iter().map(move |place| (entry(place), place.record))
    }
}
