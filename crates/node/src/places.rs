//! Guesses at the record under an `_id`.
//!
//! Finding a document by its `_id` takes two look-ups in the store: the index gives the number of the record, and
//! the records give the document. The number stays the same as long as the document is there, so it is remembered.
//! The document says whether the guess is right, since it holds its `_id`: a wrong guess costs a look-up and never
//! gives a wrong answer, whichever snapshot is read. Nothing has to be forgotten when documents go.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use quorate_storage::key::RecordId;

/// Parts of the table. Each takes memory once something in it is remembered.
const PARTS: usize = 1024;

/// Slots in a part. All parts together take 4 MiB.
const PART_SLOTS: usize = 512;

/// Records of others and of loads that are learnt after a guess was asked for.
const INTEREST: u32 = 1 << 16;

/// Bits of a slot that hold the number of a record. The others tell keys apart that share the slot.
const RECORD_BITS: u32 = 48;

/// For keys of the index of `_id`: the record that was last found under each. Two slots serve the keys that share
/// them; the older guess gives way.
pub(crate) struct Places {
    parts: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// How many more such records are learnt before a guess is asked for again.
    interest: AtomicU32,
}

impl Default for Places {
    fn default() -> Self {
        let parts = (0..PARTS).map(|_| OnceLock::new()).collect();
        Self { parts, interest: AtomicU32::new(0) }
    }
}

impl Places {
    /// The record that may be under this key.
    pub(crate) fn guess(&self, key: &[u8]) -> Option<RecordId> {
        let interest = self.interest.load(Ordering::Relaxed);
        if interest < INTEREST / 2 {
            self.interest.store(INTEREST, Ordering::Relaxed);
        }
        let at = Place::of(key);
        let part = self.parts[at.part].get()?;
        let slots = part[at.slot..at.slot + 2].iter().map(|slot| slot.load(Ordering::Relaxed));
        let known = slots.into_iter().find(|slot| slot >> RECORD_BITS == at.tag)?;
        Some(RecordId(known & ((1 << RECORD_BITS) - 1)))
    }

    /// A record that another member made, or one of a load, is under this key. It is learnt while guesses are asked for:
    /// the table is larger than the cache of a processor, and a follower that applies inserts alone would pay in vain.
    pub(crate) fn learn_if_asked(&self, key: &[u8], record: RecordId) {
        let interest = self.interest.load(Ordering::Relaxed);
        if interest > 0 {
            self.interest.store(interest - 1, Ordering::Relaxed);
            self.learn(key, record);
        }
    }

    /// The record is under this key.
    pub(crate) fn learn(&self, key: &[u8], record: RecordId) {
        if record.0 >> RECORD_BITS != 0 {
            return;
        }
        let at = Place::of(key);
        let part = self.parts[at.part]
            .get_or_init(|| (0..PART_SLOTS).map(|_| AtomicU64::new(0)).collect());
        // Two threads at once may lose a guess. An exchange would wait for the memory.
        let newest = part[at.slot].load(Ordering::Relaxed);
        part[at.slot].store(at.tag << RECORD_BITS | record.0, Ordering::Relaxed);
        if newest >> RECORD_BITS != at.tag {
            part[at.slot + 1].store(newest, Ordering::Relaxed);
        }
    }
}

/// Where the guess for a key is.
struct Place {
    part: usize,
    slot: usize,
    /// Never zero, which is what an empty slot holds.
    tag: u64,
}

impl Place {
    fn of(key: &[u8]) -> Self {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut hash = key.len() as u64;
        for eight in key.chunks(8) {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            // Keys differ in the high bits of a word, which the lower half of a product has no trace of.
            let product = u128::from(hash ^ u64::from_le_bytes(word)) * u128::from(MULTIPLIER);
            hash = (product >> 64) as u64 ^ product as u64;
        }
        Self {
            part: hash as usize % PARTS,
            slot: (hash >> 16) as usize % (PART_SLOTS / 2) * 2,
            tag: (hash >> RECORD_BITS) | 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::RawBsonRef;
    use quorate_storage::key::{FieldOrder, append_raw_value};

    use super::*;

    #[test]
    fn what_was_learnt_last_is_guessed() {
        let places = Places::default();
        assert_eq!(places.guess(b"a"), None);
        places.learn(b"a", RecordId(1));
        places.learn(b"a", RecordId(2));
        assert_eq!(places.guess(b"a"), Some(RecordId(2)));
        assert_eq!(places.guess(b"b"), None);
        places.learn(b"b", RecordId(1 << RECORD_BITS));
        assert_eq!(places.guess(b"b"), None, "a number that is too great for a slot is not kept");
    }

    #[test]
    fn records_of_a_load_are_learnt_while_guesses_are_asked_for() {
        let places = Places::default();
        places.learn_if_asked(b"a", RecordId(1));
        assert_eq!(places.guess(b"a"), None, "this was the first question");
        places.learn_if_asked(b"a", RecordId(2));
        assert_eq!(places.guess(b"a"), Some(RecordId(2)));
        (0..INTEREST).for_each(|_| places.learn_if_asked(b"b", RecordId(3)));
        places.learn_if_asked(b"c", RecordId(4));
        assert_eq!(places.guess(b"c"), None, "many were learnt, and no question came");
    }

    #[test]
    fn most_of_many_keys_that_follow_each_other_are_remembered() {
        // A number as bytes, as the end of a text, and as the index has it: digits in pairs, behind an exponent.
        let binary = |number: u64| number.to_be_bytes().to_vec();
        let text = |number: u64| format!("user{number:06}").into_bytes();
        let indexed = |number: u64| {
            let mut key = Vec::new();
            let number = RawBsonRef::Int64(number as i64);
            append_raw_value(&mut key, number, FieldOrder::Ascending).unwrap();
            key
        };
        for (ending, kind) in
            [(&binary as &dyn Fn(u64) -> Vec<u8>, "binary"), (&text, "text"), (&indexed, "indexed")]
        {
            remembers(|number| [&[0, 0, 0, 0, 0, 0, 0, 9][..], &ending(number)].concat(), kind);
        }
    }

    fn remembers(key: impl Fn(u64) -> Vec<u8>, kind: &str) {
        let places = Places::default();
        let count = 200_000;
        (1..=count).for_each(|number| places.learn(&key(number), RecordId(number)));
        let right = |number: &u64| places.guess(&key(*number)) == Some(RecordId(*number));
        let known = (1..=count).filter(right).count() as u64;
        assert!(known > count * 9 / 10, "{kind}: {known} of {count}");
        let strange = |number: &u64| places.guess(&key(*number)).is_some();
        let wrong = (count + 1..=2 * count).filter(strange).count() as u64;
        assert!(wrong < count / 1000, "{kind}: {wrong} guesses at keys that were never met");
    }
}
