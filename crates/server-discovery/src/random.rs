//! The one source of chance, seeded by the caller.

/// Sebastiano Vigna's SplitMix64: small, fast, and good enough to spread load.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below the bound, which must not be 0. The bias is that of 64 bits, which is none.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.next()) * bound as u128;
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
    fn the_same_seed_gives_the_same_numbers() {
        // The first outputs for seed 0, as published with the algorithm.
        let mut random = SplitMix64::new(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn samples_are_distinct_and_no_larger_than_asked() {
        let mut random = SplitMix64::new(7);
        let mut sample = random.sample((0..10).collect(), 4);
        assert_eq!(sample.len(), 4);
        sample.sort_unstable();
        sample.dedup();
        assert_eq!(sample.len(), 4);
        assert_eq!(random.sample(vec![1], 4), [1]);
    }

    #[test]
    fn every_number_below_the_bound_comes_up() {
        let mut random = SplitMix64::new(1);
        let mut seen = [false; 5];
        (0..100).for_each(|_| seen[random.below(5)] = true);
        assert_eq!(seen, [true; 5]);
    }
}
