//! A session as the server knows it.

use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::spec::BinarySubtype;
use bson::{Binary, rawdoc};
use quorate_protocol::MonotonicTime;

/// A session this close to its end is not used again.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// A session as the server knows it. Clients keep idle ones and use them again.
#[derive(Debug)]
pub struct ServerSession {
    /// Written once, since every command carries it.
    lsid: RawDocumentBuf,
    last_use: MonotonicTime,
    transaction_number: i64,
    /// The network failed while it was in use: the server may still be busy with it.
    dirty: bool,
}

impl ServerSession {
    /// A session that begins now. `random` are sixteen random bytes.
    pub fn new(random: [u8; 16], now: MonotonicTime) -> Self {
        let mut id = random;
        // Version 4, variant 1: a random UUID.
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        let bytes = id.to_vec();
        let lsid = rawdoc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
        Self { lsid, last_use: now, transaction_number: 0, dirty: false }
    }

    /// Whether the server may forget it soon. `lifetime` is `logicalSessionTimeoutMinutes`.
    pub(crate) fn is_expiring(&self, now: MonotonicTime, lifetime: Duration) -> bool {
        now.since(self.last_use) + EXPIRY_MARGIN >= lifetime
    }

    /// A command that carries it is sent now.
    pub fn used(&mut self, now: MonotonicTime) {
        self.last_use = now;
    }

    /// `lsid`.
    pub fn lsid(&self) -> &RawDocument {
        &self.lsid
    }

    /// The next `txnNumber`.
    pub fn next_transaction_number(&mut self) -> i64 {
        self.transaction_number += 1;
        self.transaction_number
    }

    /// Whether the network failed under it, so that it is not used again.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// The network failed under it.
    pub fn mark_dirty(&mut self) {
        self.dirty = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids() {
        let session = ServerSession::new([0xff; 16], MonotonicTime::ZERO);
        let lsid = session.lsid();
        let id = lsid.get_binary("id").unwrap();
        assert_eq!((id.subtype, id.bytes[6], id.bytes[8]), (BinarySubtype::Uuid, 0x4f, 0xbf));
    }

    #[test]
    fn a_session_near_its_end_is_left_alone() {
        let session = ServerSession::new([0; 16], MonotonicTime::ZERO);
        let lifetime = Duration::from_secs(30 * 60);
        let at = |seconds: u64| MonotonicTime::from_millis(seconds * 1000);
        assert!(!session.is_expiring(at(29 * 60 - 1), lifetime));
        assert!(session.is_expiring(at(29 * 60), lifetime));
    }
}
