//! Open cursors: results that are fetched in batches.
//!
//! Owns their registry, their limits and their timeouts. What a cursor yields is a stream that the
//! command which opened it has put together.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_protocol::{MonotonicTime, Timestamp};
use quorate_wire::{FieldWriter, append_item, close_document, open_document};

use crate::change_stream::ChangeStream;
use crate::error::{CommandError, Result};
use crate::finder::InterruptSlot;
use crate::generator::Generator;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::DocumentBytes;
use crate::sessions::SessionId;
use crate::tail::Tail;
use crate::users::LoggedIn;
use quorate_transactions::TransactionId;

/// The most cursors open at once.
pub const MAX_OPEN_CURSORS: usize = 10_000;

/// How long a cursor lives without being used.
pub const CURSOR_TIMEOUT: Duration = Duration::from_secs(600);

/// Documents in a first batch whose size the client did not choose.
pub(crate) const DEFAULT_FIRST_BATCH: usize = 101;

/// Bytes after which a batch is sent: the largest document, so that any document fits.
pub(crate) const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

/// Documents one after the other. After an error the stream is over.
pub(crate) type DocumentStream = Box<dyn Iterator<Item = Result<DocumentBytes>> + Send>;

/// A result that is being fetched.
pub(crate) struct Cursor {
    pub(crate) namespace: Namespace,
    pub(crate) session: Option<SessionId>,
    /// The transaction that it belongs to.
    pub(crate) transaction: Option<TransactionId>,
    /// The user who opened it, where clients log in.
    pub(crate) owner: Option<LoggedIn>,
    pub(crate) stream: DocumentStream,
    /// Documents the client may still get; `None` without a limit.
    pub(crate) remaining: Option<u64>,
    /// A document that did not fit into the last batch.
    pub(crate) held_back: Option<DocumentBytes>,
    pub(crate) interrupt: InterruptSlot,
    pub(crate) no_timeout: bool,
    /// A tailable cursor stays open at the end of its collection.
    pub(crate) tail: Option<Tail>,
    /// A change stream makes its documents itself, and stays open too.
    pub(crate) changes: Option<Box<ChangeStream>>,
}

/// Which batch of a cursor a reply holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchName {
    First,
    Next,
}

/// Some documents of a cursor, already where they stand in the reply:
/// `{cursor: {firstBatch: [...], id, ns}, ok: 1}`.
pub(crate) struct CursorBatch {
    reply: Vec<u8>,
    pub(crate) count: usize,
    pub(crate) exhausted: bool,
    /// Where a change stream goes on after this batch.
    resume_token: Option<String>,
}

/// Where the lengths of a reply are filled in: of itself, of its cursor, and of the batch.
const REPLY_AT: usize = 0;
const CURSOR_AT: usize = 4 + 1 + "cursor\0".len();

impl CursorBatch {
    fn new(name: BatchName) -> Self {
        let mut reply = Vec::with_capacity(512);
        open_document(&mut reply);
        FieldWriter::new(&mut reply).open("cursor");
        FieldWriter::new(&mut reply).open_array(name.text());
        Self { reply, count: 0, exhausted: false, resume_token: None }
    }

    fn push(&mut self, document: &[u8]) {
        self.reply.reserve(document.len() + 24);
        append_item(&mut self.reply, self.count, document);
        self.count += 1;
    }

    /// The reply of a command that returns a cursor. `namespace` is its full name, in parts; `time` is the moment that
    /// it reads, if that was asked for.
    pub(crate) fn into_reply(
        self,
        name: BatchName,
        id: i64,
        namespace: &[&str],
        time: Option<Timestamp>,
    ) -> Result<RawDocumentBuf> {
        let mut reply = self.reply;
        close_document(&mut reply, CURSOR_AT + 4 + 1 + name.text().len() + 1);
        let mut cursor = FieldWriter::new(&mut reply);
        cursor.int64("id", id);
        cursor.text("ns", namespace);
        if let Some(token) = &self.resume_token {
            cursor.document("postBatchResumeToken", |fields| fields.text("_data", &[token]));
        }
        if let Some(time) = time {
            cursor.timestamp("atClusterTime", time);
        }
        close_document(&mut reply, CURSOR_AT);
        FieldWriter::new(&mut reply).double("ok", 1.0);
        close_document(&mut reply, REPLY_AT);
        Ok(RawDocumentBuf::from_bytes(reply)?)
    }
}

/// The reply with all of a result that is one document at most. `namespace` is its full name, in parts.
pub(crate) fn reply_of_one(
    document: Option<&[u8]>,
    namespace: &[&str; 3],
    time: Option<Timestamp>,
) -> Result<RawDocumentBuf> {
    const BEGIN: &[u8] = b"\0\0\0\0\x03cursor\0\0\0\0\0\x04firstBatch\0\0\0\0\0";
    const BATCH_AT: usize = BEGIN.len() - 4;
    const FIRST: &[u8] = b"\x030\0";
    const ID_AND_NAME: &[u8] = b"\x12id\0\0\0\0\0\0\0\0\0\x02ns\0";
    const OK: &[u8] = b"\x01ok\0\0\0\0\0\0\0\xF0\x3F";
    let bytes = document.map_or(0, <[u8]>::len);
    let name: usize = namespace.iter().map(|part| part.len()).sum();
    let mut reply = Vec::with_capacity(bytes + name + ROOM_AROUND_ONE);
    reply.extend_from_slice(BEGIN);
    if let Some(document) = document {
        reply.extend_from_slice(FIRST);
        reply.extend_from_slice(document);
    }
    close_document(&mut reply, BATCH_AT);
    reply.extend_from_slice(ID_AND_NAME);
    reply.extend_from_slice(&(name as i32 + 1).to_le_bytes());
    namespace.iter().for_each(|part| reply.extend_from_slice(part.as_bytes()));
    reply.push(0);
    if let Some(time) = time {
        FieldWriter::new(&mut reply).timestamp("atClusterTime", time);
    }
    close_document(&mut reply, CURSOR_AT);
    reply.extend_from_slice(OK);
    close_document(&mut reply, REPLY_AT);
    Ok(RawDocumentBuf::from_bytes(reply)?)
}

/// What such a reply takes besides its document and the name, with the times that a set adds to it.
const ROOM_AROUND_ONE: usize = 256;

impl BatchName {
    fn text(self) -> &'static str {
        match self {
            Self::First => "firstBatch",
            Self::Next => "nextBatch",
        }
    }
}

impl Cursor {
    /// The next events of a change stream, at most `limit` of them and about 16 MiB.
    pub(crate) fn next_events(
        &mut self,
        node: &Node,
        name: BatchName,
        limit: usize,
    ) -> Result<CursorBatch> {
        let mut batch = CursorBatch::new(name);
        let Some(stream) = &mut self.changes else { return Ok(batch) };
        stream.advance(node, limit)?;
        let mut bytes = 0;
        while batch.count < limit {
            let room = if batch.count == 0 { usize::MAX } else { MAX_BATCH_BYTES - bytes };
            let Some(event) = stream.next_within(room) else { break };
            bytes = (bytes + event.as_bytes().len()).min(MAX_BATCH_BYTES);
            batch.push(event.as_bytes());
        }
        batch.exhausted = stream.has_ended();
        batch.resume_token = Some(stream.resume_token());
        Ok(batch)
    }

    /// The next documents, at most `limit` of them and about 16 MiB.
    pub(crate) fn next_batch(&mut self, name: BatchName, limit: usize) -> Result<CursorBatch> {
        let mut batch = CursorBatch::new(name);
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
            batch.push(document.as_bytes());
            self.remaining = self.remaining.map(|left| left - 1);
        }
        batch.exhausted = self.remaining == Some(0);
        Ok(batch)
    }
}

/// How many cursors there are, and were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CursorStatistics {
    pub(crate) open: usize,
    /// Those that a command uses at the moment.
    pub(crate) pinned: usize,
    pub(crate) no_timeout: usize,
    pub(crate) timed_out: u64,
    pub(crate) opened: u64,
}

/// An open change stream, as diagnostics show its progress.
pub(crate) struct OpenStream {
    pub(crate) id: i64,
    pub(crate) namespace: Namespace,
    pub(crate) session: Option<SessionId>,
    pub(crate) owner: Option<LoggedIn>,
    /// Up to where it had looked when it was last used.
    pub(crate) position: Timestamp,
    /// Whether a command uses it at the moment.
    pub(crate) in_use: bool,
    pub(crate) last_used: MonotonicTime,
}

/// How many cursors that ended with their collection are remembered.
const MAX_BEREFT: usize = 1000;

/// All open cursors.
pub(crate) struct Cursors {
    generator: Generator,
    open: BTreeMap<i64, Entry>,
    /// The last cursors that ended with their collection, oldest first: the next `getMore` of each gets the
    /// reason, once.
    bereft: VecDeque<Bereft>,
    timed_out: u64,
    opened: u64,
}

/// A cursor whose collection is gone.
struct Bereft {
    id: i64,
    namespace: Namespace,
    owner: Option<LoggedIn>,
    /// What became of the collection.
    why: &'static str,
}

/// Which client asks for a cursor: only the one that opened it gets it.
pub(crate) struct Asker<'a> {
    pub(crate) session: Option<&'a SessionId>,
    pub(crate) user: Option<&'a LoggedIn>,
    pub(crate) transaction: Option<TransactionId>,
}

struct Entry {
    /// `None` while a command uses it.
    cursor: Option<Cursor>,
    namespace: Namespace,
    session: Option<SessionId>,
    transaction: Option<TransactionId>,
    owner: Option<LoggedIn>,
    last_used: MonotonicTime,
    no_timeout: bool,
    is_stream: bool,
    /// Up to where a change stream had looked when it was last used.
    position: Option<Timestamp>,
    /// What is left of the `maxTimeMS` of the command that opened it.
    time_left: Option<Duration>,
}

impl Cursors {
    pub(crate) fn new(seed: u64) -> Self {
        let (open, bereft) = (BTreeMap::new(), VecDeque::new());
        Self { generator: Generator::new(seed), open, bereft, timed_out: 0, opened: 0 }
    }

    /// Keeps a cursor for later and gives it an id.
    pub(crate) fn add(&mut self, cursor: Cursor, now: MonotonicTime) -> Result<i64> {
        refuse_if!(self.open.len() >= MAX_OPEN_CURSORS => EXCEEDED_MEMORY_LIMIT,
            "{MAX_OPEN_CURSORS} cursors are open; close some before opening more");
        let id = loop {
            let id = self.generator.cursor_id();
            if !self.open.contains_key(&id) {
                break id;
            }
        };
        self.opened += 1;
        let entry = Entry {
            namespace: cursor.namespace.clone(),
            session: cursor.session,
            transaction: cursor.transaction,
            owner: cursor.owner.clone(),
            no_timeout: cursor.no_timeout,
            is_stream: cursor.changes.is_some(),
            position: cursor.changes.as_ref().map(|stream| stream.position()),
            cursor: Some(cursor),
            last_used: now,
            time_left: None,
        };
        self.open.insert(id, entry);
        Ok(id)
    }

    /// Takes a cursor out to use it.
    pub(crate) fn check_out(
        &mut self,
        id: i64,
        namespace: &Namespace,
        asker: &Asker<'_>,
    ) -> Result<Cursor> {
        let Some(entry) = self.open.get_mut(&id) else {
            return Err(self.missing(id, asker));
        };
        refuse_if!(entry.namespace != *namespace => UNAUTHORIZED,
            "Requested getMore on namespace '{namespace}', but cursor belongs to a \
             different namespace {}", entry.namespace);
        refuse_if!(entry.owner.as_ref() != asker.user => UNAUTHORIZED,
            "cursor id {id} was not created by the authenticated user");
        refuse_if!(entry.session.as_ref() != asker.session => 50738,
            "cursor {id} was created in another session");
        refuse_if!(entry.transaction != asker.transaction => 50739,
            "cursor {id} was created in another transaction, or outside of any");
        entry.cursor.take().ok_or_else(|| fail!(12051, "cursor id {id} is already in use"))
    }

    /// Why there is no such cursor.
    fn missing(&mut self, id: i64, asker: &Asker<'_>) -> CommandError {
        let ended = |bereft: &Bereft| bereft.id == id && bereft.owner.as_ref() == asker.user;
        let place = self.bereft.iter().position(ended);
        match place.and_then(|place| self.bereft.remove(place)) {
            Some(Bereft { namespace, why, .. }) => {
                fail!(QUERY_PLAN_KILLED, "collection {why}. namespace: '{namespace}'")
            }
            None => {
                fail!(CURSOR_NOT_FOUND, "cursor id {id} not found")
            }
        }
    }

    /// Puts a used cursor back, unless it was killed in the meantime.
    pub(crate) fn check_in(&mut self, id: i64, cursor: Cursor, now: MonotonicTime) {
        if let Some(entry) = self.open.get_mut(&id) {
            entry.position = cursor.changes.as_ref().map(|stream| stream.position());
            entry.cursor = Some(cursor);
            entry.last_used = now;
        }
    }

    /// Takes a cursor out without a command: for a look at a stream that waits. None if it is in use or gone.
    pub(crate) fn borrow(&mut self, id: i64) -> Option<Cursor> {
        self.open.get_mut(&id)?.cursor.take()
    }

    /// Puts it back, as if it had not been away.
    pub(crate) fn give_back(&mut self, id: i64, cursor: Cursor) {
        if let Some(entry) = self.open.get_mut(&id) {
            entry.position = cursor.changes.as_ref().map(|stream| stream.position());
            entry.cursor = Some(cursor);
        }
    }

    /// Whether it is there, in use or not.
    pub(crate) fn is_open(&self, id: i64) -> bool {
        self.open.contains_key(&id)
    }

    /// How long commands may still work for this cursor; none without a limit.
    pub(crate) fn time_left(&self, id: i64) -> Option<Duration> {
        self.open.get(&id)?.time_left
    }

    /// Says how long commands may still work for this cursor. One that waits for documents has all
    /// the time there is: each of its commands says how long to wait.
    pub(crate) fn keep_time_left(&mut self, id: i64, left: Duration) {
        if let Some(entry) = self.open.get_mut(&id)
            && !entry.is_stream
            && entry.cursor.as_ref().is_some_and(|cursor| cursor.tail.is_none())
        {
            entry.time_left = Some(left);
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

    /// Closes the cursors of transactions that have ended.
    pub(crate) fn kill_transactions(&mut self, ended: &[TransactionId]) {
        self.open.retain(|_, entry| !entry.transaction.is_some_and(|id| ended.contains(&id)));
    }

    /// Whether another user opened the cursor.
    pub(crate) fn belongs_to_another(&self, id: i64, user: Option<&LoggedIn>) -> bool {
        self.open.get(&id).is_some_and(|entry| entry.owner.as_ref() != user)
    }

    /// Closes the cursors of some sessions.
    pub(crate) fn kill_sessions(&mut self, ended: impl Fn(&SessionId) -> bool) {
        self.open.retain(|_, entry| !entry.session.as_ref().is_some_and(&ended));
    }

    /// Closes the cursors whose session has ended, but for those in use: the commands that use them may finish.
    pub(crate) fn keep_sessions(&mut self, is_alive: impl Fn(&SessionId) -> bool) {
        let has_ended = |entry: &Entry| entry.session.as_ref().is_some_and(|it| !is_alive(it));
        self.open.retain(|_, entry| entry.cursor.is_none() || !has_ended(entry));
    }

    /// Closes the cursors of collections that are gone.
    pub(crate) fn kill_namespaces(&mut self, why: &'static str, gone: impl Fn(&Namespace) -> bool) {
        // A change stream tells its client what was dropped, and ends by itself.
        let ends = |entry: &Entry| !entry.is_stream && gone(&entry.namespace);
        let ended: Vec<i64> =
            self.open.iter().filter(|(_, entry)| ends(entry)).map(|(&id, _)| id).collect();
        for id in ended {
            if let Some(Entry { namespace, owner, .. }) = self.open.remove(&id) {
                self.bereft.push_back(Bereft { id, namespace, owner, why });
            }
        }
        let surplus = self.bereft.len().saturating_sub(MAX_BEREFT);
        self.bereft.drain(..surplus);
    }

    /// Closes cursors that were idle for too long.
    pub(crate) fn expire(&mut self, now: MonotonicTime) {
        let before = self.open.len();
        self.open.retain(|_, entry| {
            // The cursors of a session end with it.
            let exempt = entry.no_timeout || entry.session.is_some() || entry.cursor.is_none();
            exempt || now.since(entry.last_used) < CURSOR_TIMEOUT
        });
        self.timed_out += (before - self.open.len()) as u64;
    }

    /// The open change streams.
    pub(crate) fn streams(&self) -> Vec<OpenStream> {
        let streams = self.open.iter().filter_map(|(&id, entry)| {
            Some(OpenStream {
                id,
                namespace: entry.namespace.clone(),
                session: entry.session,
                owner: entry.owner.clone(),
                position: entry.position?,
                in_use: entry.cursor.is_none(),
                last_used: entry.last_used,
            })
        });
        streams.collect()
    }

    pub(crate) fn statistics(&self) -> CursorStatistics {
        CursorStatistics {
            open: self.open.len(),
            pinned: self.open.values().filter(|entry| entry.cursor.is_none()).count(),
            no_timeout: self.open.values().filter(|entry| entry.no_timeout).count(),
            timed_out: self.timed_out,
            opened: self.opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use bson::{Document, doc, rawdoc};

    fn asker(session: Option<&SessionId>) -> Asker<'_> {
        Asker { session, user: None, transaction: None }
    }

    fn cursor(documents: usize, session: Option<SessionId>) -> Cursor {
        let stream = (0..documents).map(|number| Ok(rawdoc! { "n": number as i32 }.into()));
        Cursor {
            namespace: Namespace::new("db", "c").unwrap(),
            session,
            transaction: None,
            owner: None,
            stream: Box::new(stream),
            remaining: None,
            held_back: None,
            interrupt: InterruptSlot::default(),
            no_timeout: false,
            tail: None,
            changes: None,
        }
    }

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime::from_millis(seconds * 1000)
    }

    #[test]
    fn a_reply_of_one_document_is_that_of_a_batch() {
        let time = Some(Timestamp::new(7, 8));
        for (document, time) in [(Some(rawdoc! { "_id": 1 }), None), (None, None), (None, time)] {
            let mut batch = CursorBatch::new(BatchName::First);
            document.iter().for_each(|document| batch.push(document.as_bytes()));
            let names = ["db", ".", "c.d"];
            let expected = batch.into_reply(BatchName::First, 0, &names, time).unwrap();
            let document = document.as_ref().map(|document| document.as_bytes());
            assert_eq!(reply_of_one(document, &names, time).unwrap(), expected);
        }
    }

    #[test]
    fn batches_end_at_their_size_and_at_the_limit() {
        let mut open = cursor(5, None);
        let batch = open.next_batch(BatchName::First, 2).unwrap();
        assert_eq!((batch.count, batch.exhausted), (2, false));
        open.remaining = Some(2);
        let batch = open.next_batch(BatchName::Next, 10).unwrap();
        assert_eq!((batch.count, batch.exhausted), (2, true));
        // A batch that is exactly full does not know that nothing follows.
        let batch = cursor(2, None).next_batch(BatchName::First, 2).unwrap();
        assert_eq!((batch.count, batch.exhausted), (2, false));
    }

    #[test]
    fn a_reply_is_the_document_that_it_says() {
        for (name, key) in [(BatchName::First, "firstBatch"), (BatchName::Next, "nextBatch")] {
            for documents in [0, 1, 12] {
                let batch = cursor(documents, None).next_batch(name, 100).unwrap();
                let time = (documents > 0).then_some(Timestamp { seconds: 7, increment: 9 });
                let reply = batch.into_reply(name, i64::MIN, &["db", ".", "c"], time).unwrap();
                let listed: Vec<_> = (0..documents).map(|n| doc! { "n": n as i32 }).collect();
                let mut cursor = doc! { key: listed, "id": i64::MIN, "ns": "db.c" };
                if let Some(time) = time {
                    cursor.insert("atClusterTime", quorate_wire::to_bson_timestamp(time));
                }
                let expected = doc! { "cursor": cursor, "ok": 1.0 };
                assert_eq!(Document::try_from(&*reply).unwrap(), expected);
                assert_eq!(reply, RawDocumentBuf::try_from(&expected).unwrap());
            }
        }
    }

    #[test]
    fn idle_cursors_time_out_unless_a_session_keeps_them() {
        let mut cursors = Cursors::new(1);
        let namespace = Namespace::new("db", "c").unwrap();
        let idle = cursors.add(cursor(1, None), at(0)).unwrap();
        let session = SessionId::from_bytes([1; 16]);
        let kept = cursors.add(cursor(1, Some(session)), at(0)).unwrap();
        cursors.expire(at(599));
        assert!(cursors.is_open_on(idle, &namespace));
        cursors.expire(at(600));
        assert!(!cursors.is_open_on(idle, &namespace));
        assert!(cursors.is_open_on(kept, &namespace));
        cursors.keep_sessions(|alive| *alive == session);
        assert!(cursors.is_open_on(kept, &namespace));
        let taken = cursors.check_out(kept, &namespace, &asker(Some(&session))).unwrap();
        cursors.keep_sessions(|_| false);
        assert!(cursors.is_open_on(kept, &namespace), "a command uses it");
        cursors.check_in(kept, taken, at(600));
        cursors.keep_sessions(|_| false);
        let CursorStatistics { open, timed_out, opened, .. } = cursors.statistics();
        assert_eq!((open, timed_out, opened), (0, 1, 2));
    }

    #[test]
    fn a_cursor_is_used_by_one_command_at_a_time_and_by_its_own_session() {
        let mut cursors = Cursors::new(1);
        let namespace = Namespace::new("db", "c").unwrap();
        let id = cursors.add(cursor(1, None), at(0)).unwrap();
        let other = SessionId::from_bytes([1; 16]);
        let code = |result: Result<Cursor>| result.err().unwrap().code.0;
        assert_eq!(code(cursors.check_out(id, &namespace, &asker(Some(&other)))), 50738);
        let taken = cursors.check_out(id, &namespace, &asker(None)).unwrap();
        assert_eq!(code(cursors.check_out(id, &namespace, &asker(None))), 12051);
        assert!(cursors.kill(id));
        cursors.check_in(id, taken, at(1));
        assert_eq!(code(cursors.check_out(id, &namespace, &asker(None))), 43);
    }

    #[test]
    fn only_a_cursor_with_an_end_inherits_a_time_limit() {
        let mut cursors = Cursors::new(1);
        let id = cursors.add(cursor(1, None), at(0)).unwrap();
        assert_eq!(cursors.time_left(id), None);
        cursors.keep_time_left(id, Duration::from_millis(7));
        assert_eq!(cursors.time_left(id), Some(Duration::from_millis(7)));
        assert_eq!(cursors.time_left(id + 1), None);
    }

    #[test]
    fn the_limit_on_open_cursors_says_what_to_do() {
        let mut cursors = Cursors::new(1);
        for _ in 0..MAX_OPEN_CURSORS {
            cursors.add(cursor(1, None), at(0)).unwrap();
        }
        let refusal = cursors.add(cursor(1, None), at(0)).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::EXCEEDED_MEMORY_LIMIT);
        assert!(refusal.message.contains("close some"), "{}", refusal.message);
        cursors.expire(at(600));
        cursors.add(cursor(1, None), at(600)).unwrap();
    }
}
