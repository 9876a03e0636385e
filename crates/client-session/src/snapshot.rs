//! The one moment that all reads of a snapshot session see.
//!
//! Follows the Snapshot Reads specification: the first find, aggregate or distinct learns the moment
//! from the server, unless the application has named one; every later command carries it.

use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use bson::{Timestamp, rawdoc};
use quorate_wire::AppendSome;

/// The least `maxWireVersion` (MongoDB 5.0) that has snapshot reads.
pub const SNAPSHOT_WIRE_VERSION: i32 = 13;

/// The moment of a snapshot session, once it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    time: Option<Timestamp>,
}

/// Why a snapshot session cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// `snapshot` and `causalConsistency` exclude each other.
    #[error("a session cannot have both snapshot reads and causal consistency; choose one of them")]
    Causal,
    /// `snapshotTime` without `snapshot`.
    #[error("a snapshot time needs a snapshot session; set snapshot as well")]
    TimeAlone,
    /// The server is too old.
    #[error("Snapshot reads require MongoDB 5.0 or later")]
    OldServer,
}

impl Snapshot {
    /// A session that reads as of `time`, or as of its first read.
    pub fn new(time: Option<Timestamp>) -> Self {
        Self { time }
    }

    /// The moment, once it is known.
    pub fn time(&self) -> Option<Timestamp> {
        self.time
    }

    /// The `readConcern` of the next command.
    ///
    /// # Errors
    ///
    /// If the server that it goes to is too old.
    pub fn read_concern(&self, max_wire_version: i32) -> Result<RawDocumentBuf, SnapshotError> {
        if max_wire_version < SNAPSHOT_WIRE_VERSION {
            return Err(SnapshotError::OldServer);
        }
        let mut concern = rawdoc! { "level": "snapshot" };
        concern.append_some(cstr!("atClusterTime"), self.time);
        Ok(concern)
    }

    /// Learns the moment from the reply to the first read.
    pub fn learn(&mut self, reply: &RawDocument) {
        if self.time.is_none() {
            let within = reply.get_document("cursor").ok();
            let within = within.and_then(|cursor| cursor.get_timestamp("atClusterTime").ok());
            self.time = within.or_else(|| reply.get_timestamp("atClusterTime").ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp { time: 12, increment: 1 };
    const LATER: Timestamp = Timestamp { time: 13, increment: 1 };

    #[test]
    fn the_first_read_fixes_the_moment_and_later_ones_carry_it() {
        for reply in [
            rawdoc! { "ok": 1, "cursor": { "id": 0_i64, "atClusterTime": NOON } },
            rawdoc! { "ok": 1, "values": [], "atClusterTime": NOON },
        ] {
            let mut snapshot = Snapshot::default();
            assert_eq!(snapshot.read_concern(21), Ok(rawdoc! { "level": "snapshot" }));
            snapshot.learn(&reply);
            snapshot.learn(&rawdoc! { "ok": 1, "atClusterTime": LATER });
            let expected = rawdoc! { "level": "snapshot", "atClusterTime": NOON };
            assert_eq!(snapshot.read_concern(13), Ok(expected));
        }
    }

    #[test]
    fn a_moment_that_the_application_named_stays() {
        let mut snapshot = Snapshot::new(Some(NOON));
        snapshot.learn(&rawdoc! { "ok": 1, "atClusterTime": LATER });
        assert_eq!(snapshot.time(), Some(NOON));
    }

    #[test]
    fn old_servers_are_refused_in_the_specifications_words() {
        let error = Snapshot::default().read_concern(12).unwrap_err();
        assert_eq!(error.to_string(), "Snapshot reads require MongoDB 5.0 or later");
    }
}
