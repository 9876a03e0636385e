//! The one source of chance in a member: a generator that the caller seeds.

use std::time::Duration;

use quorate_protocol::SplitMix64;

/// A deterministic generator. The same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct SeededRandom(SplitMix64);

impl SeededRandom {
    /// The generator of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
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
