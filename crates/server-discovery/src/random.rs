//! Choices among equals, from a seed that the caller gives.

use quorate_protocol::SplitMix64;

/// The one source of chance in the core.
#[derive(Clone, Debug)]
pub(crate) struct SeededChoice(SplitMix64);

impl SeededChoice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// A number below the bound, which must not be 0. The bias is that of 64 bits, which is none.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.0.next_u64()) * bound as u128;
        (product >> 64) as usize
    }

    /// The first `count` of the items, shuffled.
    pub(crate) fn sample<T>(&mut self, mut items: Vec<T>, count: usize) -> Vec<T> {
        let count = count.min(items.len());
        for place in 0..count {
            let chosen = place + self.below(items.len() - place);
            items.swap(place, chosen);
        }
        items.truncate(count);
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_distinct_and_no_larger_than_asked() {
        let mut random = SeededChoice::new(7);
        let mut sample = random.sample((0..10).collect(), 4);
        assert_eq!(sample.len(), 4);
        sample.sort_unstable();
        sample.dedup();
        assert_eq!(sample.len(), 4);
        assert_eq!(random.sample(vec![1], 4), [1]);
    }

    #[test]
    fn every_number_below_the_bound_comes_up() {
        let mut random = SeededChoice::new(1);
        let mut seen = [false; 5];
        (0..100).for_each(|_| seen[random.below(5)] = true);
        assert_eq!(seen, [true; 5]);
    }
}
