//! Random numbers from a seed (SplitMix64), for choosing among equally good servers.

/// A sequence that its seed determines.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the published generator for seed 0.
    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        let mut random = Random::new(0);
        assert_eq!(random.next_bits(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next_bits(), 0x6e78_9e6a_a1b9_65f4);
    }
}
