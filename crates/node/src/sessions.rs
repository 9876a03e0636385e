//! Logical sessions: who they are and when they end.
//!
//! Owns the registry; the results of retryable writes live in the store. Specification:
//! `sessions/driver-sessions.md`.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Binary, Bson, Document, spec::BinarySubtype};
use quorate_protocol::MonotonicTime;

use crate::error::{CommandError, ErrorCode};

/// How long a session lives without being used, in minutes, as `hello` announces it.
pub const SESSION_TIMEOUT_MINUTES: u32 = 30;

/// The most sessions at once.
pub const MAX_SESSIONS: usize = 100_000;

const SESSION_TIMEOUT: Duration = Duration::from_secs(SESSION_TIMEOUT_MINUTES as u64 * 60);

/// The UUID of a session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(Vec<u8>);

impl SessionId {
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Reads the `lsid` of a command.
    pub(crate) fn from_command(body: &Document) -> Result<Option<Self>, CommandError> {
        match body.get("lsid") {
            None => Ok(None),
            Some(Bson::Document(lsid)) => Self::from_lsid(lsid).map(Some),
            Some(_) => Err(CommandError::type_mismatch("lsid must be a document with an id")),
        }
    }

    /// Reads `{id: <UUID>}`.
    pub(crate) fn from_lsid(lsid: &Document) -> Result<Self, CommandError> {
        match lsid.get("id") {
            Some(Bson::Binary(id)) if id.subtype == BinarySubtype::Uuid && id.bytes.len() == 16 => {
                Ok(Self(id.bytes.clone()))
            }
            Some(Bson::Binary(_)) => Err(CommandError::new(
                ErrorCode::INVALID_UUID,
                "the id of a session must be a UUID of 16 bytes and subtype 4",
            )),
            _ => Err(CommandError::new(
                ErrorCode::MISSING_FIELD,
                "BSON field 'lsid.id' is missing but a required field",
            )),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn to_lsid(&self) -> Document {
        let id = Binary { subtype: BinarySubtype::Uuid, bytes: self.0.clone() };
        bson::doc! { "id": id }
    }
}

/// The sessions that are alive, by their last use.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    last_used: BTreeMap<SessionId, MonotonicTime>,
}

impl Sessions {
    /// Starts a session or keeps it alive.
    pub(crate) fn refresh(
        &mut self,
        session: SessionId,
        now: MonotonicTime,
    ) -> Result<(), CommandError> {
        if self.last_used.len() >= MAX_SESSIONS && !self.last_used.contains_key(&session) {
            return Err(CommandError::new(
                ErrorCode::TOO_MANY_LOGICAL_SESSIONS,
                format!("{MAX_SESSIONS} sessions are alive; end some before starting more"),
            ));
        }
        self.last_used.insert(session, now);
        Ok(())
    }

    pub(crate) fn end(&mut self, session: &SessionId) {
        self.last_used.remove(session);
    }

    pub(crate) fn end_all(&mut self) {
        self.last_used.clear();
    }

    /// Ends what nobody has used for too long.
    pub(crate) fn expire(&mut self, now: MonotonicTime) {
        self.last_used.retain(|_, last_used| now.since(*last_used) < SESSION_TIMEOUT);
    }

    #[cfg(test)]
    fn is_alive(&self, session: &SessionId) -> bool {
        self.last_used.contains_key(session)
    }

    /// The sessions as `$listLocalSessions` shows them.
    pub(crate) fn listed(&self) -> Vec<Document> {
        self.last_used.keys().map(|session| bson::doc! { "_id": session.to_lsid() }).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.last_used.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn only_uuids_name_sessions() {
        let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] };
        let session = SessionId::from_lsid(&doc! {"id": uuid}).unwrap();
        assert_eq!(SessionId::from_lsid(&session.to_lsid()).unwrap(), session);
        let short = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 15] };
        let error = SessionId::from_lsid(&doc! {"id": short}).unwrap_err();
        assert_eq!(error.code, ErrorCode::INVALID_UUID);
        assert!(SessionId::from_lsid(&doc! {}).is_err());
        assert_eq!(SessionId::from_command(&doc! {"ping": 1}).unwrap(), None);
    }

    #[test]
    fn a_session_lives_for_half_an_hour_after_its_last_use() {
        let mut sessions = Sessions::default();
        let session = SessionId::from_bytes(vec![1; 16]);
        let minute = |minutes: u64| MonotonicTime::from_millis(minutes * 60_000);
        sessions.refresh(session.clone(), minute(0)).unwrap();
        sessions.refresh(session.clone(), minute(20)).unwrap();
        sessions.expire(minute(49));
        assert!(sessions.is_alive(&session));
        sessions.expire(minute(50));
        assert_eq!(sessions.count(), 0);
    }
}
