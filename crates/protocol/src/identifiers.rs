//! Identifiers that servers hand out and clients compare.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Twelve opaque bytes, compared as memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectId([u8; 12]);

impl ObjectId {
    /// The identifier made of these bytes.
    pub const fn from_bytes(bytes: [u8; 12]) -> Self {
        Self(bytes)
    }

    /// The bytes it is made of.
    pub const fn bytes(&self) -> [u8; 12] {
        self.0
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

/// The text was not 24 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an ObjectId is 24 hexadecimal digits")]
pub struct ParseObjectIdError;

impl FromStr for ObjectId {
    type Err = ParseObjectIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.as_bytes();
        if digits.len() != 24 {
            return Err(ParseObjectIdError);
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            b'A'..=b'F' => Ok(byte - b'A' + 10),
            _ => Err(ParseObjectIdError),
        };
        let mut bytes = [0; 12];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

/// Which election made a member primary. Compared bytewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElectionId(pub ObjectId);

impl ElectionId {
    /// The id of the election that a term decided: `0x7fffffff`, then the term, big-endian.
    pub fn from_term(term: i64) -> Self {
        let mut bytes = [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&term.to_be_bytes());
        Self(ObjectId::from_bytes(bytes))
    }
}

impl fmt::Display for ElectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The version of a replica set's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetVersion(pub i64);

impl fmt::Display for SetVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often one server process has changed in a way that its clients care about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopologyVersion {
    /// Made anew each time the process starts.
    pub process_id: ObjectId,
    /// Raised by one at every significant change.
    pub counter: i64,
}

impl TopologyVersion {
    /// Compares what is `current` with what was just `received`.
    ///
    /// `Less` means that the received one is to be taken as newer, which includes every case in
    /// which the two cannot be compared: either is missing, or they come from different processes.
    pub fn compare(current: Option<Self>, received: Option<Self>) -> Ordering {
        match (current, received) {
            (Some(current), Some(received)) if current.process_id == received.process_id => {
                current.counter.cmp(&received.counter)
            }
            _ => Ordering::Less,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_ids_read_back_what_they_print() {
        let id: ObjectId = "7fffffff0000000000000A0b".parse().unwrap();
        assert_eq!(id.to_string(), "7fffffff0000000000000a0b");
        assert_eq!("7fff".parse::<ObjectId>(), Err(ParseObjectIdError));
        assert_eq!("7fffffff0000000000000a0é".parse::<ObjectId>(), Err(ParseObjectIdError));
        assert_eq!("7fffffff0000000000000a0g".parse::<ObjectId>(), Err(ParseObjectIdError));
    }

    #[test]
    fn election_ids_rise_with_the_term() {
        assert!(ElectionId::from_term(2) > ElectionId::from_term(1));
        assert_eq!(ElectionId::from_term(1).to_string(), "7fffffff0000000000000001");
    }

    #[test]
    fn versions_of_different_processes_are_never_stale() {
        let version = |process: u8, counter| {
            Some(TopologyVersion { process_id: ObjectId::from_bytes([process; 12]), counter })
        };
        assert_eq!(TopologyVersion::compare(version(1, 9), version(2, 1)), Ordering::Less);
        assert_eq!(TopologyVersion::compare(version(1, 9), None), Ordering::Less);
        assert_eq!(TopologyVersion::compare(None, version(1, 9)), Ordering::Less);
        assert_eq!(TopologyVersion::compare(version(1, 9), version(1, 8)), Ordering::Greater);
        assert_eq!(TopologyVersion::compare(version(1, 9), version(1, 9)), Ordering::Equal);
        assert_eq!(TopologyVersion::compare(version(1, 9), version(1, 10)), Ordering::Less);
    }
}
