//! Identifiers that must be new: drawn from a seed, so that a run can be repeated.

use bson::oid::ObjectId;
use bson::{Binary, spec::BinarySubtype};
use quorate_protocol::{SplitMix64, WallTime};

/// A source of identifiers. The same seed gives the same identifiers.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    random: SplitMix64,
    /// Stands for the process in every ObjectId it makes.
    process: [u8; 5],
    counter: u32,
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        let mut generator = Self { random: SplitMix64::new(seed), process: [0; 5], counter: 0 };
        let drawn = generator.next_u64().to_be_bytes();
        generator.process.copy_from_slice(&drawn[..5]);
        generator.counter = generator.next_u64() as u32;
        generator
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// Seconds, process and counter, as the ObjectId specification has it.
    pub(crate) fn object_id(&mut self, now: WallTime) -> ObjectId {
        let mut bytes = [0; 12];
        let seconds = (now.as_millis() / 1000) as u32;
        bytes[..4].copy_from_slice(&seconds.to_be_bytes());
        bytes[4..9].copy_from_slice(&self.process);
        bytes[9..].copy_from_slice(&self.counter.to_be_bytes()[1..]);
        self.counter = self.counter.wrapping_add(1);
        ObjectId::from_bytes(bytes)
    }

    /// A version 4 UUID as BSON carries it.
    pub(crate) fn uuid(&mut self) -> Binary {
        Binary { subtype: BinarySubtype::Uuid, bytes: self.uuid_bytes().to_vec() }
    }

    pub(crate) fn uuid_bytes(&mut self) -> [u8; 16] {
        let (first, second) = (u128::from(self.next_u64()), u128::from(self.next_u64()));
        let mut bytes = (first << 64 | second).to_be_bytes();
        bytes[6] = bytes[6] & 0x0F | 0x40;
        bytes[8] = bytes[8] & 0x3F | 0x80;
        bytes
    }

    /// A positive number that fits the cursor ids of every driver.
    pub(crate) fn cursor_id(&mut self) -> i64 {
        (self.next_u64() >> 1).max(1) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence() {
        let draw = |seed| {
            let mut generator = Generator::new(seed);
            (generator.object_id(WallTime(5000)), generator.uuid(), generator.cursor_id())
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn object_ids_of_one_second_differ() {
        let mut generator = Generator::new(7);
        let first = generator.object_id(WallTime(0));
        assert_ne!(first, generator.object_id(WallTime(0)));
    }
}
