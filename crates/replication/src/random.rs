//! The one source of chance in a member: a generator that the caller seeds.
//!
//! SplitMix64 (Steele, Lea, Flood 2014): one word of state, good enough to spread elections apart.

use std::time::Duration;

/// A deterministic generator. The same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// The generator of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0. The bias of the remainder does not matter here.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// An interval from zero up to and including `longest`.
    pub fn duration_up_to(&mut self, longest: Duration) -> Duration {
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX - 1);
        Duration::from_nanos(self.below(nanos.saturating_add(1)))
    }

    /// True `percent` times of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_sequence_within_bounds() {
        let mut one = SeededRandom::new(7);
        let mut two = SeededRandom::new(7);
        for _ in 0..100 {
            assert_eq!(one.next_u64(), two.next_u64());
            assert!(one.below(3) < 3 && two.below(3) < 3);
        }
        assert_eq!(one.below(0), 0);
        assert!(one.duration_up_to(Duration::from_millis(5)) <= Duration::from_millis(5));
    }
}
