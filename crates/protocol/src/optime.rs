//! Positions in an oplog.

use std::fmt;

/// A BSON timestamp: seconds since the Unix epoch, and a counter within the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since the Unix epoch.
    pub seconds: u32,
    /// Rises within one second, from 1.
    pub increment: u32,
}

impl Timestamp {
    /// The timestamp of these seconds and this increment.
    pub const fn new(seconds: u32, increment: u32) -> Self {
        Self { seconds, increment }
    }

    /// Both halves in one number that orders as the timestamp does.
    pub const fn as_u64(self) -> u64 {
        (self.seconds as u64) << 32 | self.increment as u64
    }

    /// The inverse of [`as_u64`](Self::as_u64).
    pub const fn from_u64(bits: u64) -> Self {
        Self { seconds: (bits >> 32) as u32, increment: bits as u32 }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seconds, self.increment)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({self})")
    }
}

/// Where an entry stands in the history of the set: by term first, then by timestamp.
///
/// The order of the fields is the order of comparison.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpTime {
    /// The term of the primary that wrote the entry; −1 before there were terms.
    pub term: i64,
    /// When that primary wrote it.
    pub timestamp: Timestamp,
}

impl OpTime {
    /// The position before every entry.
    pub const NULL: Self = Self { term: -1, timestamp: Timestamp::new(0, 0) };

    /// The position of this timestamp in this term.
    pub const fn new(term: i64, timestamp: Timestamp) -> Self {
        Self { term, timestamp }
    }

    /// Whether this is the position before every entry.
    pub fn is_null(self) -> bool {
        self == Self::NULL
    }
}

impl Default for OpTime {
    fn default() -> Self {
        Self::NULL
    }
}

impl fmt::Display for OpTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.timestamp, self.term)
    }
}

impl fmt::Debug for OpTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpTime({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_term_beats_a_later_timestamp() {
        let old = OpTime::new(1, Timestamp::new(100, 1));
        let new = OpTime::new(2, Timestamp::new(50, 1));
        assert!(new > old && old > OpTime::NULL);
    }

    #[test]
    fn timestamps_pack_in_order() {
        let timestamp = Timestamp::new(7, u32::MAX);
        assert_eq!(Timestamp::from_u64(timestamp.as_u64()), timestamp);
        assert!(Timestamp::new(8, 0).as_u64() > timestamp.as_u64());
    }
}
