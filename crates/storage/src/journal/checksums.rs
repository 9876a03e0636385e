//! The CRC-32C of any part of a segment, in a time that does not grow with the part.
//!
//! Recovery looks at every place of a segment at which a record may begin. What stands there may be bytes that a client
//! chose: if each place seemed to be a long record, hashing each would take hours. A CRC is linear, so that of a part follows
//! from those of all bytes before its two ends:
//!
//! ```text
//!   crc(before end) = shift(crc(before start), length) ^ crc(part)
//! ```
//!
//! where `shift` is what as many zeros as the part is long would do.

use std::ops::Range;

/// The checksum of what is before each multiple of this is kept.
const STEP: usize = 64;

/// The polynomial of CRC-32C, the highest power in the lowest bit.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const BITS: usize = u32::BITS as usize;

/// What a number of zeros does to a checksum: what becomes of each of its bits.
type Shift = [u32; BITS];

/// Checksums of parts of some bytes.
pub(crate) struct Checksums<'b> {
    bytes: &'b [u8],
    /// Those of all that is before each multiple of [`STEP`].
    before: Vec<u32>,
    /// What zeros do, twice as many each time, one at first.
    shifts: [Shift; BITS],
}

impl<'b> Checksums<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        let mut before = Vec::with_capacity(bytes.len() / STEP + 1);
        before.push(0);
        for part in bytes.chunks_exact(STEP) {
            let last = before.last().copied().unwrap_or(0);
            before.push(crc32c::crc32c_append(last, part));
        }
        let mut shifts = [std::array::from_fn(|bit| shift_by_one(1 << bit)); BITS];
        for power in 1..BITS {
            let half = shifts[power - 1];
            shifts[power] = half.map(|bit| apply(&half, bit));
        }
        Self { bytes, before, shifts }
    }

    /// That of a part, which must be within the bytes.
    pub(crate) fn of(&self, part: Range<usize>) -> u32 {
        let mut shifted = self.before(part.start);
        let length = part.len();
        for power in (0..BITS).filter(|power| length >> power & 1 == 1) {
            shifted = apply(&self.shifts[power], shifted);
        }
        shifted ^ self.before(part.end)
    }

    /// That of all that is before a place.
    fn before(&self, place: usize) -> u32 {
        let rest = place - place % STEP;
        crc32c::crc32c_append(self.before[place / STEP], &self.bytes[rest..place])
    }
}

fn shift_by_one(checksum: u32) -> u32 {
    (0..8).fold(checksum, |rest, _| rest >> 1 ^ if rest & 1 == 1 { POLYNOMIAL } else { 0 })
}

fn apply(shift: &Shift, checksum: u32) -> u32 {
    let mut rest = checksum;
    let mut shifted = 0;
    while rest != 0 {
        shifted ^= shift[rest.trailing_zeros() as usize];
        rest &= rest - 1;
    }
    shifted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_checksum_of_a_part_is_that_of_its_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            ends in (any::<proptest::sample::Index>(), any::<proptest::sample::Index>()),
        ) {
            let checksums = Checksums::new(&bytes);
            let ends = [ends.0, ends.1].map(|end| end.index(bytes.len() + 1));
            let part = ends[0].min(ends[1])..ends[0].max(ends[1]);
            prop_assert_eq!(checksums.of(part.clone()), crc32c::crc32c(&bytes[part]));
        }
    }
}
