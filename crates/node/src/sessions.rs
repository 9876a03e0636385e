//! Logical sessions: their identifiers and when they end.
//!
//! Owns the registry; the results of retryable writes live in the store. Specification:
//! `sessions/driver-sessions.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bson::raw::cstr;
use bson::{Binary, Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, spec::BinarySubtype};
use quorate_protocol::MonotonicTime;

use crate::body::CommandBody;
use crate::error::Result;
use crate::fields::check_known;
use crate::users::LoggedIn;

/// How long a session lives without being used, in minutes, as `hello` announces it.
pub const SESSION_TIMEOUT_MINUTES: u32 = 30;

/// The most sessions at once.
pub const MAX_SESSIONS: usize = 100_000;

pub(crate) const SESSION_TIMEOUT: Duration =
    Duration::from_secs(SESSION_TIMEOUT_MINUTES as u64 * 60);

pub(crate) const UUID_BYTES: usize = 16;

/// Bytes of `{id: <UUID>}`: its length, the type, name, length and subtype of the field, the UUID and the end.
const LSID_BYTES: usize = 4 + 1 + 3 + 4 + 1 + UUID_BYTES + 1;

/// The fields of an `lsid`. The digest of the user's name is left unread: a session is its user's anyway. Those by which a
/// router makes sessions within a session are not here; read without them it would be another session.
const LSID_FIELDS: [&str; 2] = ["id", "uid"];

/// The UUID of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId([u8; UUID_BYTES]);

impl SessionId {
    pub(crate) fn from_bytes(bytes: [u8; UUID_BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads the `lsid` of a command.
    pub(crate) fn from_command(body: &CommandBody) -> Result<Option<Self>> {
        // Nearly every command has one: it is read where it is.
        let lsid = body.get_raw_document("lsid");
        let lsid = lsid.filter(|lsid| lsid.as_bytes().len() == LSID_BYTES);
        if let Some(session) = lsid.and_then(Self::from_raw) {
            return Ok(Some(session));
        }
        match body.get("lsid") {
            None | Some(Bson::Null | Bson::Undefined) => Ok(None),
            Some(Bson::Document(lsid)) => Self::from_lsid(lsid).map(Some),
            Some(_) => Err(fail!(TYPE_MISMATCH, "lsid must be a document with an id")),
        }
    }

    /// Reads `{id: <UUID>}`, if it is that.
    fn from_raw(lsid: &RawDocument) -> Option<Self> {
        match lsid.get("id") {
            Ok(Some(RawBsonRef::Binary(id))) if id.subtype == BinarySubtype::Uuid => {
                id.bytes.try_into().ok().map(Self)
            }
            _ => None,
        }
    }

    /// Reads the `lsid` of an entry of the oplog.
    pub(crate) fn from_entry(lsid: &RawDocument) -> Result<Self> {
        match Self::from_raw(lsid) {
            Some(session) => Ok(session),
            None => Self::from_lsid(&Document::try_from(lsid)?),
        }
    }

    /// Reads `{id: <UUID>}`.
    pub(crate) fn from_lsid(lsid: &Document) -> Result<Self> {
        check_known(lsid.keys(), "lsid", &LSID_FIELDS)?;
        match lsid.get("id") {
            Some(Bson::Binary(id)) => {
                let bytes = id.bytes.as_slice().try_into().ok();
                bytes.filter(|_| id.subtype == BinarySubtype::Uuid).map(Self).ok_or_else(|| {
                    fail!(
                        INVALID_UUID,
                        "the id of a session must be a UUID of 16 bytes and subtype 4"
                    )
                })
            }
            _ => Err(fail!(MISSING_FIELD, "BSON field 'lsid.id' is missing but a required field")),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds the `lsid` to an entry of the oplog.
    pub(crate) fn append_to(self, entry: &mut RawDocumentBuf) {
        if let Ok(lsid) = RawDocument::from_bytes(&self.to_raw_lsid()) {
            entry.append(cstr!("lsid"), lsid);
        }
    }

    /// `{id: <UUID>}` as BSON.
    fn to_raw_lsid(self) -> [u8; LSID_BYTES] {
        const HEAD: [u8; 13] = *b"\x1E\0\0\0\x05id\0\x10\0\0\0\x04";
        let mut lsid = [0; LSID_BYTES];
        lsid[..HEAD.len()].copy_from_slice(&HEAD);
        lsid[HEAD.len()..][..UUID_BYTES].copy_from_slice(&self.0);
        lsid
    }

    pub(crate) fn to_lsid(self) -> Document {
        let id = Binary { subtype: BinarySubtype::Uuid, bytes: self.0.to_vec() };
        bson::doc! { "id": id }
    }
}

/// The sessions that are alive.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    alive: BTreeMap<SessionId, Alive>,
}

#[derive(Debug)]
struct Alive {
    last_used: MonotonicTime,
    /// Whose it is, where clients log in.
    owner: Option<LoggedIn>,
}

impl Sessions {
    /// Starts a session or keeps it alive.
    pub(crate) fn refresh(
        &mut self,
        session: SessionId,
        owner: Option<LoggedIn>,
        now: MonotonicTime,
    ) -> Result<()> {
        if let Some(known) = self.alive.get_mut(&session) {
            refuse_if!(known.owner != owner => UNAUTHORIZED,
                "the session belongs to another user; start one of your own");
            known.last_used = now;
            return Ok(());
        }
        refuse_if!(self.alive.len() >= MAX_SESSIONS => TOO_MANY_LOGICAL_SESSIONS,
            "{MAX_SESSIONS} sessions are alive; end some before starting more");
        self.alive.insert(session, Alive { last_used: now, owner });
        Ok(())
    }

    /// Ends the sessions of which this is true, and says which those were.
    pub(crate) fn end(
        &mut self,
        ends: impl Fn(&SessionId, Option<&LoggedIn>) -> bool,
    ) -> BTreeSet<SessionId> {
        let mut ended = BTreeSet::new();
        self.alive.retain(|session, known| {
            let is_ended = ends(session, known.owner.as_ref());
            if is_ended {
                ended.insert(*session);
            }
            !is_ended
        });
        ended
    }

    /// Ends sessions that were not used for too long, and says which those were. A session is in use as long as a
    /// command runs in it; these are asked for if a session would end.
    pub(crate) fn expire(
        &mut self,
        now: MonotonicTime,
        in_use: impl FnOnce() -> BTreeSet<SessionId>,
    ) -> BTreeSet<SessionId> {
        let is_idle = |known: &Alive| now.since(known.last_used) >= SESSION_TIMEOUT;
        let mut ended = BTreeSet::new();
        if !self.alive.values().any(is_idle) {
            return ended;
        }
        let in_use = in_use();
        self.alive.retain(|session, known| {
            if in_use.contains(session) {
                known.last_used = now;
            }
            let lives = !is_idle(known);
            if !lives {
                ended.insert(*session);
            }
            lives
        });
        ended
    }

    pub(crate) fn is_alive(&self, session: &SessionId) -> bool {
        self.alive.contains_key(session)
    }

    /// The sessions as `$listLocalSessions` shows them: all, or those of one user.
    pub(crate) fn listed(&self, shown: impl Fn(Option<&LoggedIn>) -> bool) -> Vec<Document> {
        let shown = self.alive.iter().filter(|(_, known)| shown(known.owner.as_ref()));
        shown.map(|(session, _)| bson::doc! { "_id": session.to_lsid() }).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.alive.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use crate::fields::to_raw;
    use bson::doc;

    #[test]
    fn only_uuids_name_sessions() {
        let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] };
        let session = SessionId::from_lsid(&doc! {"id": uuid}).unwrap();
        assert_eq!(SessionId::from_lsid(&session.to_lsid()).unwrap(), session);
        let raw = RawDocumentBuf::from_bytes(session.to_raw_lsid().to_vec()).unwrap();
        assert_eq!(Document::try_from(raw).unwrap(), session.to_lsid());
        let short = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 15] };
        let error = SessionId::from_lsid(&doc! {"id": short}).unwrap_err();
        assert_eq!(error.code, ErrorCode::INVALID_UUID);
        assert!(SessionId::from_lsid(&doc! {}).is_err());
        assert_eq!(to_raw(&session.to_lsid()).unwrap().as_bytes().len(), LSID_BYTES);
        let command =
            |lsid: &Document| SessionId::from_command(&doc! {"x": 1, "lsid": lsid}.into());
        let with = |name: &str, value: Bson| {
            let mut lsid = session.to_lsid();
            lsid.insert(name, value);
            lsid
        };
        assert_eq!(command(&session.to_lsid()).unwrap(), Some(session));
        let uid = Binary { subtype: BinarySubtype::Generic, bytes: vec![1; 32] };
        assert_eq!(command(&with("uid", uid.into())).unwrap(), Some(session));
        // A session within a session is not that session.
        for (name, value) in [("txnNumber", Bson::Int64(1)), ("txnUUID", Bson::Null)] {
            let error = command(&with(name, value)).unwrap_err();
            assert_eq!(error.code, ErrorCode::UNKNOWN_FIELD, "{name}");
        }
        assert_eq!(SessionId::from_command(&doc! {"ping": 1}.into()).unwrap(), None);
    }

    #[test]
    fn a_session_lives_for_half_an_hour_after_its_last_use() {
        let mut sessions = Sessions::default();
        let session = SessionId::from_bytes([1; 16]);
        let minute = |minutes: u64| MonotonicTime::from_millis(minutes * 60_000);
        sessions.refresh(session, None, minute(0)).unwrap();
        sessions.refresh(session, None, minute(20)).unwrap();
        sessions.expire(minute(49), BTreeSet::new);
        assert!(sessions.is_alive(&session));
        assert!(
            sessions.expire(minute(50), || [session].into()).is_empty(),
            "a command runs in it"
        );
        sessions.expire(minute(79), BTreeSet::new);
        assert!(sessions.is_alive(&session));
        assert_eq!(sessions.expire(minute(80), BTreeSet::new), [session].into());
        assert_eq!(sessions.count(), 0);
    }

    #[test]
    fn a_session_is_used_by_its_own_user_only() {
        let mut sessions = Sessions::default();
        let user =
            |name: &str| Some(LoggedIn { name: name.to_owned(), database: "admin".to_owned() });
        let session = SessionId::from_bytes([1; 16]);
        let now = MonotonicTime::ZERO;
        sessions.refresh(session, user("ada"), now).unwrap();
        let refusal = sessions.refresh(session, user("bob"), now).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::UNAUTHORIZED);
        assert!(sessions.end(|_, owner| owner == user("bob").as_ref()).is_empty());
        assert_eq!(sessions.end(|_, owner| owner == user("ada").as_ref()), [session].into());
    }
}
