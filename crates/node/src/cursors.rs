//! Open cursors: results that are fetched in batches.
//!
//! Owns their registry, their limits and their timeouts. What a cursor yields is a stream that the
//! command which opened it has put together.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use quorate_protocol::{MonotonicTime, Timestamp};
use quorate_wire::to_bson_timestamp;

use crate::error::{CommandError, ErrorCode};
use crate::finder::InterruptSlot;
use crate::generator::Generator;
use crate::namespace::Namespace;
use crate::sessions::SessionId;
use crate::tail::Tail;

/// The most cursors open at once.
pub const MAX_OPEN_CURSORS: usize = 10_000;

/// How long a cursor lives without being used.
pub const CURSOR_TIMEOUT: Duration = Duration::from_secs(600);

/// Documents in a first batch whose size the client did not choose.
pub(crate) const DEFAULT_FIRST_BATCH: usize = 101;

/// Bytes after which a batch is sent: the largest document, so that any document fits.
pub(crate) const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

/// Documents one after the other. After an error the stream is over.
pub(crate) type DocumentStream =
    Box<dyn Iterator<Item = Result<RawDocumentBuf, CommandError>> + Send>;

/// A result that is being fetched.
pub(crate) struct Cursor {
    pub(crate) namespace: Namespace,
    pub(crate) session: Option<SessionId>,
    pub(crate) stream: DocumentStream,
    /// Documents the client may still get; `None` without a limit.
    pub(crate) remaining: Option<u64>,
    /// A document that did not fit into the last batch.
    pub(crate) held_back: Option<RawDocumentBuf>,
    pub(crate) interrupt: InterruptSlot,
    pub(crate) no_timeout: bool,
    /// A tailable cursor stays open at the end of its collection.
    pub(crate) tail: Option<Tail>,
}

/// Some documents of a cursor.
pub(crate) struct CursorBatch {
    pub(crate) documents: RawArrayBuf,
    pub(crate) count: usize,
    pub(crate) exhausted: bool,
}

impl Cursor {
    /// The next documents, at most `limit` of them and about 16 MiB.
    pub(crate) fn next_batch(&mut self, limit: usize) -> Result<CursorBatch, CommandError> {
        let mut batch = CursorBatch { documents: RawArrayBuf::new(), count: 0, exhausted: false };
        let mut bytes = 0;
        while batch.count < limit {
            if self.remaining == Some(0) {
                batch.exhausted = true;
                return Ok(batch);
            }
            let next = match self.held_back.take() {
                Some(document) => Some(document),
                None => self.stream.next().transpose()?,
            };
            let Some(document) = next else {
                batch.exhausted = self.tail.is_none();
                return Ok(batch);
            };
            let size = document.as_bytes().len();
            if batch.count > 0 && bytes + size > MAX_BATCH_BYTES {
                self.held_back = Some(document);
                return Ok(batch);
            }
            bytes += size;
            batch.documents.push(document);
            batch.count += 1;
            self.remaining = self.remaining.map(|left| left - 1);
        }
        batch.exhausted = self.remaining == Some(0);
        Ok(batch)
    }
}

/// All open cursors.
pub(crate) struct Cursors {
    generator: Generator,
    open: BTreeMap<i64, Entry>,
    timed_out: u64,
    opened: u64,
}

struct Entry {
    /// `None` while a command uses it.
    cursor: Option<Cursor>,
    namespace: Namespace,
    session: Option<SessionId>,
    last_used: MonotonicTime,
    no_timeout: bool,
}

impl Cursors {
    pub(crate) fn new(seed: u64) -> Self {
        Self { generator: Generator::new(seed), open: BTreeMap::new(), timed_out: 0, opened: 0 }
    }

    /// Keeps a cursor for later and gives it an id.
    pub(crate) fn add(&mut self, cursor: Cursor, now: MonotonicTime) -> Result<i64, CommandError> {
        if self.open.len() >= MAX_OPEN_CURSORS {
            return Err(CommandError::new(
                ErrorCode(15),
                format!("{MAX_OPEN_CURSORS} cursors are open; close some before opening more"),
            ));
        }
        let id = loop {
            let id = self.generator.cursor_id();
            if !self.open.contains_key(&id) {
                break id;
            }
        };
        self.opened += 1;
        let entry = Entry {
            namespace: cursor.namespace.clone(),
            session: cursor.session.clone(),
            no_timeout: cursor.no_timeout,
            cursor: Some(cursor),
            last_used: now,
        };
        self.open.insert(id, entry);
        Ok(id)
    }

    /// Takes a cursor out to use it.
    pub(crate) fn check_out(
        &mut self,
        id: i64,
        namespace: &Namespace,
        session: Option<&SessionId>,
    ) -> Result<Cursor, CommandError> {
        let Some(entry) = self.open.get_mut(&id) else {
            return Err(CommandError::new(
                ErrorCode::CURSOR_NOT_FOUND,
                format!("cursor id {id} not found"),
            ));
        };
        if entry.namespace != *namespace {
            return Err(CommandError::new(
                ErrorCode::UNAUTHORIZED,
                format!(
                    "Requested getMore on namespace '{namespace}', but cursor belongs to a \
                     different namespace {}",
                    entry.namespace
                ),
            ));
        }
        if entry.session.as_ref() != session {
            return Err(CommandError::new(
                ErrorCode(50738),
                format!("cursor {id} was created in another session"),
            ));
        }
        entry.cursor.take().ok_or_else(|| {
            CommandError::new(ErrorCode(12051), format!("cursor id {id} is already in use"))
        })
    }

    /// Puts a used cursor back, unless it was killed in the meantime.
    pub(crate) fn check_in(&mut self, id: i64, cursor: Cursor, now: MonotonicTime) {
        if let Some(entry) = self.open.get_mut(&id) {
            entry.cursor = Some(cursor);
            entry.last_used = now;
        }
    }

    /// Closes a cursor. Returns whether it was open.
    pub(crate) fn kill(&mut self, id: i64) -> bool {
        self.open.remove(&id).is_some()
    }

    /// Whether the cursor is open on this namespace.
    pub(crate) fn is_open_on(&self, id: i64, namespace: &Namespace) -> bool {
        self.open.get(&id).is_some_and(|entry| entry.namespace == *namespace)
    }

    /// Closes the cursors of some sessions.
    pub(crate) fn kill_sessions(&mut self, ended: impl Fn(&SessionId) -> bool) {
        self.open.retain(|_, entry| !entry.session.as_ref().is_some_and(&ended));
    }

    /// Closes the cursors of collections that are gone.
    pub(crate) fn kill_namespaces(&mut self, gone: impl Fn(&Namespace) -> bool) {
        self.open.retain(|_, entry| !gone(&entry.namespace));
    }

    /// Closes what nobody has used for too long.
    pub(crate) fn expire(&mut self, now: MonotonicTime) {
        let before = self.open.len();
        self.open.retain(|_, entry| {
            // The cursors of a session end with it.
            let exempt = entry.no_timeout || entry.session.is_some() || entry.cursor.is_none();
            exempt || now.since(entry.last_used) < CURSOR_TIMEOUT
        });
        self.timed_out += (before - self.open.len()) as u64;
    }

    /// Open, timed out and ever opened.
    pub(crate) fn statistics(&self) -> (usize, u64, u64) {
        (self.open.len(), self.timed_out, self.opened)
    }
}

/// The reply of a command that returns a cursor. `batch_name` is `firstBatch` or `nextBatch`, `time`
/// the moment that it reads if that was asked for.
pub(crate) fn cursor_reply(
    id: i64,
    namespace: &str,
    batch_name: &bson::raw::CStr,
    documents: RawArrayBuf,
    time: Option<Timestamp>,
) -> RawDocumentBuf {
    let mut cursor = RawDocumentBuf::new();
    cursor.append(batch_name, documents);
    cursor.append(bson::raw::cstr!("id"), id);
    cursor.append(bson::raw::cstr!("ns"), namespace);
    if let Some(time) = time {
        cursor.append(bson::raw::cstr!("atClusterTime"), to_bson_timestamp(time));
    }
    rawdoc! { "cursor": cursor, "ok": 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(documents: usize, session: Option<SessionId>) -> Cursor {
        let stream = (0..documents).map(|number| Ok(rawdoc! { "n": number as i32 }));
        Cursor {
            namespace: Namespace::new("db", "c").unwrap(),
            session,
            stream: Box::new(stream),
            remaining: None,
            held_back: None,
            interrupt: InterruptSlot::default(),
            no_timeout: false,
            tail: None,
        }
    }

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime::from_millis(seconds * 1000)
    }

    #[test]
    fn batches_end_at_their_size_and_at_the_limit() {
        let mut open = cursor(5, None);
        let batch = open.next_batch(2).unwrap();
        assert_eq!((batch.count, batch.exhausted), (2, false));
        open.remaining = Some(2);
        let batch = open.next_batch(10).unwrap();
        assert_eq!((batch.count, batch.exhausted), (2, true));
        // A batch that is exactly full does not know that nothing follows.
        let batch = cursor(2, None).next_batch(2).unwrap();
        assert_eq!((batch.count, batch.exhausted), (2, false));
    }

    #[test]
    fn idle_cursors_time_out_unless_a_session_keeps_them() {
        let mut cursors = Cursors::new(1);
        let namespace = Namespace::new("db", "c").unwrap();
        let idle = cursors.add(cursor(1, None), at(0)).unwrap();
        let session = SessionId::from_bytes(vec![1; 16]);
        let kept = cursors.add(cursor(1, Some(session.clone())), at(0)).unwrap();
        cursors.expire(at(599));
        assert!(cursors.is_open_on(idle, &namespace));
        cursors.expire(at(600));
        assert!(!cursors.is_open_on(idle, &namespace));
        assert!(cursors.is_open_on(kept, &namespace));
        cursors.kill_sessions(|ended| *ended == session);
        assert_eq!(cursors.statistics(), (0, 1, 2));
    }

    #[test]
    fn a_cursor_is_used_by_one_command_at_a_time_and_by_its_own_session() {
        let mut cursors = Cursors::new(1);
        let namespace = Namespace::new("db", "c").unwrap();
        let id = cursors.add(cursor(1, None), at(0)).unwrap();
        let other = SessionId::from_bytes(vec![1; 16]);
        let code = |result: Result<Cursor, CommandError>| result.err().unwrap().code.0;
        assert_eq!(code(cursors.check_out(id, &namespace, Some(&other))), 50738);
        let taken = cursors.check_out(id, &namespace, None).unwrap();
        assert_eq!(code(cursors.check_out(id, &namespace, None)), 12051);
        assert!(cursors.kill(id));
        cursors.check_in(id, taken, at(1));
        assert_eq!(code(cursors.check_out(id, &namespace, None)), 43);
    }
}
