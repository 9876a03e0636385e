//! The surroundings of a command: the time, the connection, and when to stop.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf};
use quorate_protocol::{Lock, MonotonicTime, OpTime, WallTime};
use quorate_storage::CommitSequence;
use quorate_wire::{MAX_BSON_OBJECT_SIZE, find_field};

use crate::body::CommandBody;
use crate::command_table::{CommandFacts, Effect, find};
use crate::commands::check_statement_count;
use crate::error::Result;
use crate::fields::{Fields, whole_number};
use crate::helpers::Helpers;
use crate::profile::Work;
use crate::records::DocumentBytes;
use crate::structure::{Depth, check_document_bytes};
use crate::touched::writing_stage;
use crate::users::Login;

/// Documents or statements up to which a write takes little time.
const MAX_SHORT_DOCUMENTS: usize = 256;

/// Bytes up to which a command takes little time to read: a query of many values takes long to prepare.
pub const MAX_SHORT_BYTES: usize = 256 * 1024;

/// Bytes of a command, or of a document beside it: a document of the largest size, and what a command has besides. Read into
/// values it takes many times that memory, so that a whole message of it would be too much.
const MAX_COMMAND_BYTES: usize = MAX_BSON_OBJECT_SIZE + 16 * 1024;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For dates that clients see.
    pub wall: WallTime,
    /// For timeouts.
    pub monotonic: MonotonicTime,
}

/// Who sent a command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Client {
    /// The number of the connection.
    pub connection_id: i64,
    /// Where it comes from, as `whatsmyuri` answers.
    pub address: String,
    /// The `client` document of its first hello.
    pub metadata: Document,
    /// Its authenticated user.
    pub login: Login,
    /// The horizon whose port it came by.
    pub horizon: Option<String>,
    /// The name by which it asked TLS for this server.
    pub server_name: Option<String>,
    /// What the certificate that it has shown says.
    pub certificate: Option<Certificate>,
}

/// What a client's certificate, which was vouched for, says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The name of its holder, in the form of RFC 2253.
    pub subject: String,
    /// Whether that makes the client a member of the same set.
    pub is_member: bool,
}

impl Client {
    /// The name the application gave itself.
    pub fn application_name(&self) -> Option<&str> {
        self.metadata.get_document("application").ok()?.get_str("name").ok()
    }
}

/// The surroundings of one command.
#[derive(Clone, Debug)]
pub struct Context {
    /// The time of its arrival.
    pub now: Now,
    /// Who sent it.
    pub client: Arc<Client>,
    /// Whether the command may ask the caller to come back later. A command that is run again
    /// after waiting must answer.
    pub may_wait: bool,
    /// How many documents it may look at before it must give way to others ([`Outcome::Long`]); none
    /// if no other task waits for the thread that it runs on.
    pub may_look_at: Option<u64>,
    /// Tells the command to stop.
    pub interrupt: Arc<Interrupt>,
}

/// A command as it came from the wire.
#[derive(Clone, Debug)]
pub struct Command {
    /// Everything but the document sequences. Its first key is the name of the command. Shared with
    /// the commands that show what is in progress.
    pub body: Arc<CommandBody>,
    /// The documents that a write is about, by the name of the field that they belong to.
    pub(crate) sequences: Vec<(String, Vec<DocumentBytes>)>,
    facts: Option<&'static CommandFacts>,
    concerns: Concerns,
    /// What it took when it arrived, without its document sequences.
    bytes: usize,
}

/// The concerns that count for a command where they are not the client's own words.
#[derive(Clone, Debug, Default)]
struct Concerns {
    read: Option<Arc<Document>>,
    write: EffectiveWriteConcern,
}

/// Which write concern the member sees to.
#[derive(Clone, Debug, Default)]
enum EffectiveWriteConcern {
    /// The one that the client gave.
    #[default]
    Given,
    /// This one.
    Completed(Arc<Document>),
    /// None: the set acknowledges the write.
    LeftToTheSet,
}

impl Command {
    /// A command without document sequences.
    pub fn new(body: Document) -> Self {
        let body = CommandBody::from(body);
        let facts = find(body.name());
        let concerns = Concerns::default();
        Self { body: Arc::new(body), sequences: Vec::new(), facts, concerns, bytes: 0 }
    }

    /// The read concern that counts: the client's, or one that the set has completed.
    ///
    /// # Errors
    ///
    /// If the client's is no document.
    pub fn read_concern(&self) -> Result<Option<&Document>> {
        match &self.concerns.read {
            Some(completed) => Ok(Some(completed)),
            None => Fields::new(&self.body, self.name()).document("readConcern"),
        }
    }

    /// Lets another read concern count than the client's.
    pub fn set_read_concern(&mut self, concern: Document) {
        self.concerns.read = Some(Arc::new(concern));
    }

    /// The write concern that the member sees to; none if the set does, or none is given. Null is none: the
    /// set's default counts.
    ///
    /// # Errors
    ///
    /// If it is no document.
    pub fn write_concern(&self) -> Result<Option<&Document>> {
        match &self.concerns.write {
            EffectiveWriteConcern::Given => {
                Fields::new(&self.body, self.name()).document("writeConcern")
            }
            EffectiveWriteConcern::Completed(concern) => Ok(Some(concern)),
            EffectiveWriteConcern::LeftToTheSet => Ok(None),
        }
    }

    /// The write concern as the client sent it, if that is the one that counts.
    pub fn given_write_concern(&self) -> Option<&RawDocument> {
        match &self.concerns.write {
            EffectiveWriteConcern::Given => self.body.get_raw_document("writeConcern"),
            _ => None,
        }
    }

    /// Lets another write concern count than the client's; none if the set acknowledges the write.
    pub fn set_write_concern(&mut self, concern: Option<Document>) {
        self.concerns.write = match concern {
            Some(concern) => EffectiveWriteConcern::Completed(Arc::new(concern)),
            None => EffectiveWriteConcern::LeftToTheSet,
        };
    }

    /// What the command table says of it; none if there is no such command.
    pub fn facts(&self) -> Option<&'static CommandFacts> {
        self.facts
    }

    /// Reads a command, with documents that come beside it.
    ///
    /// # Errors
    ///
    /// If the document is malformed or nests too deeply, or a field comes in it and beside it.
    pub fn from_raw(
        body: &RawDocument,
        beside: Vec<(String, Vec<RawDocumentBuf>)>,
    ) -> Result<Self> {
        let made = |(name, documents): (String, Vec<RawDocumentBuf>)| {
            (name, documents.into_iter().map(DocumentBytes::from).collect())
        };
        Self::received(body, beside.into_iter().map(made).collect())
    }

    /// Reads a command that has arrived in a message, with documents that came beside it.
    ///
    /// # Errors
    ///
    /// As [`from_raw`](Self::from_raw).
    pub fn received(body: &RawDocument, beside: Vec<(String, Vec<DocumentBytes>)>) -> Result<Self> {
        check_size(body.as_bytes().len())?;
        beside
            .iter()
            .flat_map(|(_, documents)| documents)
            .try_for_each(|it| check_size(it.as_bytes().len()))?;
        let mut parsed = CommandBody::from_raw(body)?;
        let (mut sequences, mut parsed_bytes) = (Vec::new(), body.as_bytes().len());
        for (name, documents) in beside {
            refuse_if!(parsed.contains_key(&name) => 40433,
                "Duplicate field between body and document sequence {name}");
            if payload_name(parsed.name()) == Some(name.as_str()) {
                sequences.push((name, documents));
            } else {
                parsed_bytes += documents.iter().map(|it| it.as_bytes().len()).sum::<usize>();
                check_size(parsed_bytes)?;
                parsed.insert(&name, to_array(&documents)?);
            }
        }
        if let Some(payload) = payload_name(parsed.name()).filter(|_| sequences.is_empty())
            && let Some(documents) = parsed.take_documents(payload)?
        {
            sequences.push((payload.to_owned(), documents));
        }
        let facts = find(parsed.name());
        let (concerns, bytes) = (Concerns::default(), body.as_bytes().len());
        Ok(Self { body: Arc::new(parsed), sequences, facts, concerns, bytes })
    }

    /// Gives a field of the body another value, or adds it.
    pub fn set(&mut self, name: &str, value: impl Into<Bson>) {
        Arc::make_mut(&mut self.body).insert(name, value);
    }

    /// Whether its arguments alone say that it works through many documents, or that it takes long to read them.
    pub(crate) fn is_wide(&self) -> bool {
        let name = self.name();
        // Statements that name no single document go through as many as there are.
        let is_wide = |statement: &DocumentBytes| match name {
            "update" => {
                let multi = find_field(statement, "multi");
                multi.is_some_and(|multi| multi.boolean() == Some(true))
            }
            "delete" => matches!(
                statement.get("limit"),
                Ok(Some(RawBsonRef::Int32(0) | RawBsonRef::Int64(0) | RawBsonRef::Double(0.0)))
            ),
            _ => false,
        };
        let many = |documents: &Vec<DocumentBytes>| {
            documents.len() > MAX_SHORT_DOCUMENTS || documents.iter().any(is_wide)
        };
        let documents = || self.sequences.iter().map(|(_, documents)| documents);
        let sent: usize = documents().flatten().map(|document| document.as_bytes().len()).sum();
        self.bytes.saturating_add(sent) > MAX_SHORT_BYTES || documents().any(many)
    }

    /// A copy for running the command aside, made only of commands that may turn out to be long while
    /// they run. Those have read and changed nothing.
    pub fn clone_if_it_may_turn_long(&self) -> Option<Self> {
        let reads = self.facts.is_some_and(|facts| facts.effect == Effect::Reads);
        (reads && !self.may_write()).then(|| self.clone())
    }

    /// Whether it changes data: some pipelines do.
    pub fn may_write(&self) -> bool {
        if self.name() == "aggregate" {
            return writing_stage(&self.body).is_some();
        }
        self.facts.is_some_and(|facts| facts.effect == Effect::Writes)
    }

    /// How long it may take, if the client set a limit.
    pub fn max_time(&self) -> Option<Duration> {
        // There it says how long to wait for documents.
        if self.name() == "getMore" {
            return None;
        }
        let limit = self.body.get("maxTimeMS").and_then(whole_number)?;
        u64::try_from(limit).ok().filter(|&limit| limit > 0).map(Duration::from_millis)
    }

    /// A copy for running the command a second time, made only of commands that may ask for it.
    pub fn clone_if_it_may_wait(&self) -> Option<Self> {
        self.facts.filter(|facts| facts.waits).map(|_| self.clone())
    }

    /// The first key.
    pub fn name(&self) -> &str {
        self.body.name()
    }

    /// The database it is meant for.
    pub fn database(&self) -> &str {
        self.body.database()
    }

    pub(crate) fn take_sequence(&mut self, name: &str) -> Option<Vec<DocumentBytes>> {
        let place = self.sequences.iter().position(|(known, _)| known == name)?;
        Some(self.sequences.swap_remove(place).1)
    }
}

/// The documents of a sequence as the array that they stand for.
fn to_array(documents: &[DocumentBytes]) -> Result<Bson> {
    let parse = |document: &DocumentBytes| {
        check_document_bytes(document.as_bytes(), Depth::COMMAND)?;
        Ok(Bson::Document(Document::try_from(&**document)?))
    };
    documents.iter().map(parse).collect::<Result<_>>().map(Bson::Array)
}

/// The array of a command whose documents stay as they came.
fn payload_name(command: &str) -> Option<&'static str> {
    match command {
        "insert" => Some("documents"),
        "update" => Some("updates"),
        "delete" => Some("deletes"),
        _ => None,
    }
}

/// What came of a command.
#[derive(Debug)]
pub enum Outcome {
    /// It is done.
    Reply(Reply),
    /// Nothing to tell yet: wait for the event or until the time has passed, and run it again with
    /// [`Context::may_wait`] off.
    Wait {
        /// What would be worth telling.
        until: WaitFor,
        /// How long to wait at most.
        at_most: Duration,
    },
    /// It examines more documents than [`Context::may_look_at`] allows, and has changed nothing: run it
    /// again on a thread of its own.
    Long,
}

/// An event that a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The topology version has changed.
    TopologyChange,
    /// Something was committed.
    Commit,
    /// The newest entry that no election can lose has moved on.
    CommitPoint,
}

/// The answer to a command.
#[derive(Debug)]
pub struct Reply {
    /// The document for the client.
    pub body: RawDocumentBuf,
    /// Send it only once this would survive a crash.
    pub durable: Option<Durable>,
    /// The last oplog entry of the command's writes, on a member of a replica set.
    pub op_time: Option<OpTime>,
}

/// What a reply waits for on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// This commit.
    Commit(CommitSequence),
    /// Everything that was committed before the reply. The command committed nothing itself: it tells of what it found,
    /// such as the same write when it came first.
    All,
}

impl From<RawDocumentBuf> for Reply {
    fn from(body: RawDocumentBuf) -> Self {
        Self { body, durable: None, op_time: None }
    }
}

/// The line between a running command and its observers: tells the command to stop, which every
/// long loop looks at, and tells the watcher how far it is.
#[derive(Debug, Default)]
pub struct Interrupt {
    reason: AtomicU8,
    waiting: AtomicBool,
    waited: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
    conflicts: AtomicU64,
    /// How often its expressions may still ask whether to go on while it holds the write lock; 0 while it does not.
    held: AtomicU64,
    /// What the command has examined, once it is done.
    work: Lock<Work>,
    remains: Lock<Remains>,
    /// Threads that the host lends to the command.
    helpers: OnceLock<Arc<Helpers>>,
}

/// What a command that was stopped held: a sort of many documents takes longer to free than to stop. It is
/// bounded by the memory of one operation, which it still counts for.
#[derive(Default)]
pub struct Remains {
    values: Vec<Box<dyn Any + Send>>,
    taken: bool,
}

impl fmt::Debug for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remains({})", self.values.len())
    }
}

/// How many values a command may leave: one for each stage that holds documents. More are freed at once.
const MAX_REMAINS: usize = 64;

/// How often expressions may ask whether to go on while the write lock is held: a hundred million steps, a few seconds in
/// which no other client can write. Only what must not be evaluated without the lock comes near to it.
const MAX_HELD_EVALUATION: u64 = 100_000;

/// How often they may ask before other writers get their turn: a million steps, some 25 ms.
const MAX_SHORT_EVALUATION: u64 = 1_000;

/// What is left of that when the next question is one too many.
const USED_UP: u64 = 1;

/// Why a command should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Interruption {
    /// Its `maxTimeMS` has passed.
    MaxTime = 1,
    /// A client asked for it with `killOp` or `killCursors`.
    Killed = 2,
    /// The server is going down.
    Shutdown = 3,
    /// The member is no longer primary.
    StateChange = 4,
}

impl Interrupt {
    /// Asks the command to stop. The first reason given stays.
    pub fn set(&self, reason: Interruption) {
        let _ = self.reason.compare_exchange(0, reason as u8, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Lends threads to the command, which runs on one of its own.
    pub fn lend(&self, helpers: Arc<Helpers>) {
        // A command that is run again has the same ones.
        let _ = self.helpers.set(helpers);
    }

    pub(crate) fn helpers(&self) -> Option<Arc<Helpers>> {
        self.helpers.get().cloned()
    }

    /// Says whether the command waits for something at the moment.
    pub fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
        self.waited.fetch_or(waiting, Ordering::Relaxed);
    }

    /// Says whether the command holds the write lock from now on.
    pub(crate) fn set_holding(&self, holds: bool) {
        self.held.store(if holds { MAX_HELD_EVALUATION } else { 0 }, Ordering::Relaxed);
    }

    /// Evaluates while the write lock is held; none if that keeps other writers waiting for long.
    /// Without the lock it may take as long as it needs.
    pub(crate) fn evaluate_shortly<T>(
        &self,
        evaluate: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let held = self.held.load(Ordering::Relaxed);
        match held {
            0 => return evaluate().map(Some),
            // Too little is left to tell a short evaluation from a long one.
            1..=MAX_SHORT_EVALUATION => return Ok(None),
            _ => {}
        }
        self.held.store(MAX_SHORT_EVALUATION, Ordering::Relaxed);
        let evaluated = evaluate();
        let left = self.held.load(Ordering::Relaxed);
        self.held.store(held - (MAX_SHORT_EVALUATION - left), Ordering::Relaxed);
        match evaluated {
            Err(_) if left == USED_UP => Ok(None),
            evaluated => evaluated.map(Some),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_holding(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Whether expressions were evaluated for long since the write lock was taken.
    pub(crate) fn has_evaluated_for_long(&self) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        held > 0 && held <= MAX_HELD_EVALUATION - MAX_SHORT_EVALUATION
    }

    /// Refuses to evaluate without end while other writers wait. Only the thread that holds the lock evaluates then.
    pub(crate) fn check_held_evaluation(&self) -> Result<()> {
        match self.held.load(Ordering::Relaxed) {
            0 => Ok(()),
            USED_UP => Err(fail!(
                MAX_TIME_MS_EXPIRED,
                "an expression of a write takes too long while other writes wait; evaluate it in a \
                 read, and write what comes of it"
            )),
            left => {
                self.held.store(left - 1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// The command has met a key that a transaction holds, and waits.
    pub(crate) fn count_conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the command has met a key that a transaction held.
    pub(crate) fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::Relaxed)
    }

    /// Whether the command waits for something.
    pub(crate) fn has_waited(&self) -> bool {
        self.waited.load(Ordering::Relaxed)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Says of how many pieces the command's work is.
    pub(crate) fn set_total(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total.max(1), Ordering::Relaxed);
    }

    /// One more piece is done.
    pub(crate) fn advance(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// How many pieces are done, and of how many; none if the command does not say.
    pub fn progress(&self) -> Option<(u64, u64)> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.done.load(Ordering::Relaxed).min(total), total))
    }

    /// Records what the command has examined.
    pub(crate) fn tell_work(&self, work: Work) {
        *self.work.lock() = work;
    }

    /// Keeps what a command that stops held, to be freed after its answer.
    pub(crate) fn leave(&self, remains: Box<dyn Any + Send>) {
        let mut left = self.remains.lock();
        if !left.taken && left.values.len() < MAX_REMAINS {
            left.values.push(remains);
        }
    }

    /// What the command left behind because it takes long to free, if anything. It must be taken once the
    /// command has ended or its client has left, and dropped where no client waits. What comes later is freed
    /// where it was held: remains refer to the interrupt, and would keep each other for ever.
    pub fn take_remains(&self) -> Option<Remains> {
        let mut left = self.remains.lock();
        let values = std::mem::take(&mut left.values);
        left.taken = true;
        (!values.is_empty()).then_some(Remains { values, taken: true })
    }

    pub(crate) fn work(&self) -> Work {
        self.work.lock().clone()
    }

    /// The error to stop with, if the command should stop.
    pub fn check(&self) -> Result<()> {
        match self.reason.load(Ordering::Relaxed) {
            0 => Ok(()),
            reason if reason == Interruption::MaxTime as u8 => {
                Err(fail!(MAX_TIME_MS_EXPIRED, "operation exceeded time limit"))
            }
            reason if reason == Interruption::Killed as u8 => {
                Err(fail!(INTERRUPTED, "operation was interrupted"))
            }
            reason if reason == Interruption::StateChange as u8 => Err(fail!(
                INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
                "operation was interrupted: this member is stepping down; repeat it at the primary"
            )),
            _ => Err(fail!(INTERRUPTED_AT_SHUTDOWN, "interrupted at shutdown")),
        }
    }
}

/// Refuses more documents than any command takes, before memory is taken for them.
///
/// # Errors
///
/// If there are more.
pub fn check_document_count(count: usize) -> Result<()> {
    // Whether there has to be one is the command's to say.
    check_statement_count(count.max(1))
}

fn check_size(size: usize) -> Result<()> {
    if size <= MAX_COMMAND_BYTES {
        return Ok(());
    }
    Err(fail!(
        BSON_OBJECT_TOO_LARGE,
        "BSONObj size: {size} is invalid. Size must be between 0 and {MAX_COMMAND_BYTES}; send \
             documents in several commands"
    ))
}

#[cfg(test)]
mod tests {
    use bson::{doc, rawdoc};

    use super::*;
    use crate::commands::MAX_WRITE_BATCH_SIZE;
    use crate::error::ErrorCode;

    #[test]
    fn a_write_is_wide_if_it_names_many_documents() {
        let is_wide = |name: &str, statements: Vec<RawDocumentBuf>| {
            let mut command = Command::new(doc! { name: "c", "$db": "db" });
            let statements = statements.into_iter().map(DocumentBytes::from).collect();
            command.sequences.push(("statements".to_owned(), statements));
            command.is_wide()
        };
        assert!(!is_wide("insert", vec![rawdoc! {}; MAX_SHORT_DOCUMENTS]));
        assert!(is_wide("insert", vec![rawdoc! {}; MAX_SHORT_DOCUMENTS + 1]));
        assert!(!is_wide("update", vec![rawdoc! { "q": {}, "u": {} }]));
        assert!(is_wide("update", vec![rawdoc! { "q": {}, "u": {}, "multi": true }]));
        assert!(!is_wide("delete", vec![rawdoc! { "q": {}, "limit": 1 }]));
        assert!(is_wide("delete", vec![rawdoc! { "q": {}, "limit": 0 }]));
        assert!(is_wide("insert", vec![rawdoc! { "text": "x".repeat(MAX_SHORT_BYTES) }]));
    }

    /// The manual, "BSON Document Size": 16 MiB, and as much more as a command needs around a document.
    #[test]
    fn a_command_is_no_larger_than_a_document_and_what_it_needs_besides() {
        let of = |bytes: usize| rawdoc! { "ping": 1, "text": "x".repeat(bytes) };
        let code = |body: &RawDocument, beside: Vec<RawDocumentBuf>| {
            let beside = vec![("documents".to_owned(), beside)];
            Command::from_raw(body, beside).err().map(|error| error.code)
        };
        let insert = rawdoc! { "insert": "c" };
        assert_eq!(code(&of(MAX_BSON_OBJECT_SIZE), Vec::new()), None);
        assert_eq!(code(&insert, vec![of(MAX_BSON_OBJECT_SIZE); 2]), None);
        let refused = Some(ErrorCode::BSON_OBJECT_TOO_LARGE);
        assert_eq!(code(&of(MAX_COMMAND_BYTES), Vec::new()), refused);
        assert_eq!(code(&insert, vec![of(1), of(MAX_COMMAND_BYTES)]), refused);
        // What is no list of writes is read into values.
        let ping = rawdoc! { "ping": 1 };
        assert_eq!(code(&ping, vec![of(1024); 1024]), None);
        assert_eq!(code(&ping, vec![of(1024); 16 * 1024]), refused);
    }

    #[test]
    fn more_documents_than_a_command_takes_are_refused_before_they_are_read() {
        let code = |count: usize| {
            let mut documents = bson::RawArrayBuf::new();
            (0..count).for_each(|_| documents.push(rawdoc! {}));
            let insert = rawdoc! { "insert": "c", "documents": documents };
            Command::from_raw(&insert, Vec::new()).err().map(|error| error.code)
        };
        assert_eq!(code(MAX_WRITE_BATCH_SIZE), None);
        assert_eq!(code(MAX_WRITE_BATCH_SIZE + 1), Some(ErrorCode::INVALID_LENGTH));
        assert_eq!(check_document_count(0), Ok(()));
        assert!(check_document_count(MAX_WRITE_BATCH_SIZE + 1).is_err());
    }

    #[test]
    fn expressions_end_while_others_cannot_write_and_only_then() {
        let interrupt = Interrupt::default();
        let asked = |times| (0..times).try_for_each(|_| interrupt.check_held_evaluation());
        asked(MAX_HELD_EVALUATION + 1).unwrap();
        interrupt.set_holding(true);
        asked(MAX_HELD_EVALUATION - 1).unwrap();
        assert_eq!(asked(1).unwrap_err().code, ErrorCode::MAX_TIME_MS_EXPIRED);
        // Others had their turn meanwhile.
        interrupt.set_holding(true);
        asked(1).unwrap();
        interrupt.set_holding(false);
        asked(MAX_HELD_EVALUATION + 1).unwrap();
    }

    #[test]
    fn what_takes_long_under_the_lock_is_given_up() {
        let interrupt = Interrupt::default();
        let ask = |times| (0..times).try_for_each(|_| interrupt.check_held_evaluation());
        let shortly = |times| interrupt.evaluate_shortly(|| ask(times)).unwrap();
        assert_eq!(shortly(MAX_HELD_EVALUATION + 1), Some(()), "the lock is not held");
        interrupt.set_holding(true);
        assert_eq!(shortly(MAX_SHORT_EVALUATION - 1), Some(()));
        assert!(!interrupt.has_evaluated_for_long());
        assert_eq!(shortly(MAX_SHORT_EVALUATION), None);
        assert!(interrupt.has_evaluated_for_long());
        let other = || Err::<(), _>(fail!(BAD_VALUE, "wrong"));
        assert_eq!(interrupt.evaluate_shortly(other).unwrap_err().code, ErrorCode::BAD_VALUE);
        // What was evaluated counts for the whole.
        ask(MAX_HELD_EVALUATION - 2 * MAX_SHORT_EVALUATION).unwrap();
        assert_eq!(shortly(1), None, "too little is left");
        assert!(ask(MAX_SHORT_EVALUATION).is_err());
    }

    #[test]
    fn a_command_of_many_values_is_wide() {
        let find = |values: i32| {
            let values: Vec<i32> = (0..values).collect();
            let body = doc! { "find": "c", "filter": { "a": { "$in": values } }, "$db": "db" };
            Command::from_raw(&RawDocumentBuf::try_from(&body).unwrap(), Vec::new()).unwrap()
        };
        assert!(!find(1000).is_wide());
        assert!(find(100_000).is_wide());
    }

    #[test]
    fn concerns_count_beside_the_clients_document() {
        let mut command = Command::new(doc! { "insert": "c", "writeConcern": { "w": 3 } });
        assert_eq!(command.write_concern().unwrap(), Some(&doc! { "w": 3 }));
        command.set_write_concern(None);
        command.set_read_concern(doc! { "level": "majority" });
        assert_eq!(command.write_concern().unwrap(), None);
        assert_eq!(command.read_concern().unwrap(), Some(&doc! { "level": "majority" }));
        assert_eq!(*command.body, doc! { "insert": "c", "writeConcern": { "w": 3 } });
    }
}
