//! The receiving end of a copy of everything, as a value: what to ask the source next, and what to do
//! with its answer.
//!
//! Collections are copied whole, then the entries that the source wrote meanwhile are applied. The
//! order of steps, retries and the durable flag belong to `quorate-replication`; the way to the source
//! to the host. docs/replication-rules.md#initial-sync.

use std::collections::VecDeque;

use bson::{Binary, Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use quorate_node::{CommandError, Namespace, Node, Now, entry_position};
use quorate_protocol::{OpTime, OpTimeAndWallTime, ServerAddress};
use quorate_replication::{InitialSyncOutcome, InitialSyncStep};

use crate::progress::CloneProgress;
use crate::source::SentBatch;

/// The most entries of one transaction that are followed back.
const MAX_TRANSACTION_ENTRIES: usize = 10_000;

/// How often one collection is looked for again because it was renamed while it was read.
const MAX_RENAMES: u32 = 1000;

/// What a source says of a collection that has another name by now, or is gone: no such collection, no such
/// cursor, the cursor's collection was renamed or dropped, the name belongs to another collection.
const NAME_HAS_GONE: [i32; 4] = [26, 43, 175, 361];

/// A step of the copy, ordered by the member.
#[derive(Clone, Debug)]
pub struct CopyWork {
    /// The attempt that it belongs to.
    pub attempt: u32,
    /// The step.
    pub step: InitialSyncStep,
    /// The member that is copied.
    pub source: ServerAddress,
    /// The first entry that is applied over the copy.
    pub begin: OpTime,
    /// Where progress is recorded.
    pub progress: CloneProgress,
}

/// What a step needs next.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// The source's reply to this command, for [`Copying::take_reply`].
    Command(Document),
    /// The source's entries from this one on, for [`Copying::take_entries`].
    Entries(OpTime),
    /// The batch of entries that follows the last one.
    MoreEntries,
    /// Nothing: the step is done.
    Done(InitialSyncOutcome),
}

/// The step cannot go on, because of what the source said or because the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyFailure(pub String);

impl std::fmt::Display for CopyFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CopyFailure {}

impl From<CommandError> for CopyFailure {
    fn from(error: CommandError) -> Self {
        Self(error.message)
    }
}

/// A listing that may take several replies.
struct Listing {
    database: String,
    /// The collection that `getMore` names.
    collection: String,
    first: Document,
    cursor: i64,
    found: Vec<Document>,
}

impl Listing {
    fn new(database: &str, collection: &str, first: Document) -> Self {
        let (database, collection) = (database.to_owned(), collection.to_owned());
        Self { database, collection, first, cursor: 0, found: Vec::new() }
    }

    fn command(&self) -> Document {
        match self.cursor {
            0 => command(self.first.clone(), &self.database),
            cursor => {
                command(doc! { "getMore": cursor, "collection": &self.collection }, &self.database)
            }
        }
    }

    /// Takes a reply. Whether it was the last.
    fn take(&mut self, reply: &RawDocument) -> Result<bool, CopyFailure> {
        let (cursor, documents) = batch_of(reply)?;
        for document in &documents {
            self.found.push(parsed(document)?);
        }
        self.cursor = cursor;
        Ok(cursor == 0)
    }
}

/// The collection that is being copied.
struct Current {
    /// Its name here: the one that it was listed with. Renames since then are entries of the log.
    namespace: Namespace,
    uuid: Binary,
    /// Its name at the source.
    name: String,
    /// Whether all documents have been read.
    read: bool,
    renames: u32,
}

impl Current {
    /// The next reading of it.
    fn reading(&self) -> Stage {
        if !self.read {
            return Stage::Documents { cursor: 0 };
        }
        let list = doc! { "listIndexes": &self.name, "collectionUUID": self.uuid.clone() };
        Stage::Indexes(Listing::new(&self.namespace.database, &self.name, list))
    }
}

enum Stage {
    RollbackId,
    Top,
    /// The newest entry belongs to a transaction of several: the one before it, at this time, and how
    /// many were read before.
    Earlier(bson::Timestamp, usize),
    Databases,
    /// Of the database with this number.
    Statistics(usize),
    Collections(Listing),
    Documents {
        cursor: i64,
    },
    Indexes(Listing),
    /// The collection that is being copied has another name by now, or is gone.
    Renamed(Listing),
    /// What sessions have done, page by page.
    Sessions(Listing),
    Entries {
        stop: OpTimeAndWallTime,
        begun: bool,
    },
    Done(InitialSyncOutcome),
}

/// A step of the copy under way.
pub struct Copying {
    step: InitialSyncStep,
    stage: Stage,
    progress: CloneProgress,
    rollback_id: i32,
    databases: VecDeque<String>,
    /// Collections of the first database that are yet to be copied, as it lists them.
    collections: VecDeque<Document>,
    current: Option<Current>,
    expected: (u64, u64),
    /// The entry that the next batch begins with or follows.
    place: OpTime,
}

impl Copying {
    /// Begins a step, or goes on with one that was interrupted. Entries that were applied over the copy are not asked
    /// for again: its source may have trimmed them since.
    pub fn new(work: CopyWork, node: &Node, now: Now) -> Self {
        let CopyWork { attempt, step, begin, progress, .. } = work;
        let stage = match &step {
            InitialSyncStep::ReadSource { .. } | InitialSyncStep::ReadRollbackId { .. } => {
                Stage::RollbackId
            }
            InitialSyncStep::ReadStopPoint { .. } => Stage::Top,
            InitialSyncStep::Clone { .. } => {
                progress.begin(attempt, now);
                Stage::Databases
            }
            InitialSyncStep::ApplyThrough(stop) => Stage::Entries { stop: *stop, begun: false },
            InitialSyncStep::Wipe | InitialSyncStep::Cancel => {
                Stage::Done(InitialSyncOutcome::Wiped)
            }
        };
        let applied = node.log_positions().written.op_time;
        Self {
            step,
            stage,
            progress,
            rollback_id: 0,
            databases: VecDeque::new(),
            collections: VecDeque::new(),
            current: None,
            expected: (0, 0),
            place: if applied.is_null() { begin } else { applied },
        }
    }

    /// What the step needs now.
    pub fn ask(&self) -> Ask {
        let asked = match &self.stage {
            Stage::RollbackId => doc! { "replSetGetRBID": 1, "$db": "admin" },
            Stage::Top => {
                let find = doc! { "find": "oplog.rs", "sort": { "$natural": -1 }, "limit": 1 };
                command(find, "local")
            }
            Stage::Earlier(time, _) => {
                command(doc! { "find": "oplog.rs", "filter": { "ts": *time }, "limit": 1 }, "local")
            }
            Stage::Databases => command(doc! { "listDatabases": 1, "nameOnly": true }, "admin"),
            Stage::Statistics(place) => {
                let database = self.databases.get(*place).map_or("", String::as_str);
                command(doc! { "dbStats": 1 }, database)
            }
            Stage::Collections(listing)
            | Stage::Indexes(listing)
            | Stage::Renamed(listing)
            | Stage::Sessions(listing) => listing.command(),
            Stage::Documents { cursor } => {
                let Some(Current { namespace, uuid, name, .. }) = &self.current else {
                    return Ask::Done(InitialSyncOutcome::Failed);
                };
                let asked = match cursor {
                    0 => doc! {
                        "find": name, "sort": { "$natural": 1 },
                        "readConcern": { "level": "local" }, "collectionUUID": uuid.clone(),
                    },
                    cursor => doc! { "getMore": *cursor, "collection": name },
                };
                command(asked, &namespace.database)
            }
            Stage::Entries { begun: false, .. } => return Ask::Entries(self.place),
            Stage::Entries { begun: true, .. } => return Ask::MoreEntries,
            Stage::Done(outcome) => return Ask::Done(*outcome),
        };
        Ask::Command(asked)
    }

    /// The collection that is being copied, for the log.
    pub fn collection(&self) -> Option<&Namespace> {
        self.current.as_ref().map(|current| &current.namespace)
    }

    /// The source's reply to what was asked last, which is no error. Changes the data; blocks.
    ///
    /// # Errors
    ///
    /// If the reply cannot be used or the store fails: the attempt has failed.
    pub fn take_reply(
        &mut self,
        reply: &RawDocument,
        node: &Node,
        now: Now,
    ) -> Result<(), CopyFailure> {
        let stage = std::mem::replace(&mut self.stage, Stage::Databases);
        self.stage = match stage {
            Stage::RollbackId => {
                self.rollback_id = reply.get_i32("rbid").map_err(|_| broken("rbid"))?;
                let process = reply.get_object_id("processId").ok();
                match self.step {
                    InitialSyncStep::ReadSource { .. } => {
                        self.progress.begin_from(process);
                        Stage::Top
                    }
                    // A crash may have taken entries whose documents were copied.
                    _ if !self.progress.is_from(process) => {
                        return Err(CopyFailure(
                            "its source was started again meanwhile; the copy begins again"
                                .to_owned(),
                        ));
                    }
                    _ => Stage::Done(InitialSyncOutcome::RollbackIdRead(self.rollback_id)),
                }
            }
            Stage::Top => self.top_read(reply, 0)?,
            Stage::Earlier(_, read) => self.top_read(reply, read)?,
            Stage::Databases => self.databases_listed(reply)?,
            Stage::Statistics(place) => self.counted(place, reply)?,
            Stage::Collections(mut listing) => {
                if listing.take(reply)? {
                    self.collections = listing.found.into();
                    self.next_collection(node, now)?
                } else {
                    Stage::Collections(listing)
                }
            }
            Stage::Documents { .. } => self.documents_read(reply, node, now)?,
            Stage::Indexes(mut listing) => {
                if listing.take(reply)? {
                    self.indexes_listed(listing.found, node, now)?
                } else {
                    Stage::Indexes(listing)
                }
            }
            Stage::Renamed(mut listing) => {
                if listing.take(reply)? {
                    self.name_found(&listing.found, node, now)?
                } else {
                    Stage::Renamed(listing)
                }
            }
            Stage::Sessions(mut listing) => {
                if listing.take(reply)? {
                    sessions_listed(&listing.found, node, now)?
                } else {
                    Stage::Sessions(listing)
                }
            }
            other @ (Stage::Entries { .. } | Stage::Done(_)) => other,
        };
        Ok(())
    }

    /// The source has refused what was asked last. Whether the step goes on: a collection that was renamed
    /// while it was read is looked for, and one that was dropped is left to the log.
    pub fn take_refusal(&mut self, code: i32) -> bool {
        let is_read = matches!(self.stage, Stage::Documents { .. } | Stage::Indexes(_));
        let Some(current) = self.current.as_mut().filter(|_| is_read) else { return false };
        current.renames += 1;
        if !NAME_HAS_GONE.contains(&code) || current.renames > MAX_RENAMES {
            return false;
        }
        let list = doc! { "listCollections": 1, "filter": { "info.uuid": current.uuid.clone() } };
        let database = &current.namespace.database;
        self.stage = Stage::Renamed(Listing::new(database, "$cmd.listCollections", list));
        true
    }

    /// Entries of the source, as asked for. Changes the data; blocks.
    ///
    /// # Errors
    ///
    /// If the source has lost an entry that the copy needs, or the store fails.
    pub fn take_entries(
        &mut self,
        batch: SentBatch,
        node: &Node,
        now: Now,
    ) -> Result<(), CopyFailure> {
        let Stage::Entries { stop, begun } = &mut self.stage else { return Ok(()) };
        let place = self.place;
        let follows = if *begun {
            batch.entries.is_empty() || batch.facts.previous == Some(place)
        } else {
            batch.facts.first == Some(place)
        };
        if !follows {
            return Err(CopyFailure(format!(
                "the source no longer has its entry {place}; give it a larger oplog \
                 (replSetResizeOplog)"
            )));
        }
        *begun = true;
        let stop = *stop;
        self.place = batch.facts.last.map_or(place, |last| last.op_time);
        if apply_copied(batch.entries, stop, &self.progress, node, now)?.op_time >= stop.op_time {
            node.finish_clone(stop, now)?;
            self.stage = Stage::Done(InitialSyncOutcome::AppliedThrough(stop));
        }
        Ok(())
    }

    /// A copy begins with the newest entry, or, if that belongs to a transaction of several entries,
    /// with the first of them: a transaction is applied whole, with its last entry.
    fn top_read(&self, reply: &RawDocument, read: usize) -> Result<Stage, CopyFailure> {
        let (_, batch) = batch_of(reply)?;
        let found = batch.first().ok_or_else(|| match read {
            0 => CopyFailure("its log is empty".to_owned()),
            _ => CopyFailure("its log begins within its newest transaction".to_owned()),
        })?;
        let top = entry_position(found)?;
        if !matches!(self.step, InitialSyncStep::ReadSource { .. }) {
            return Ok(Stage::Done(InitialSyncOutcome::StopPointRead(top)));
        }
        match earlier_in_transaction(found) {
            Some(_) if read >= MAX_TRANSACTION_ENTRIES => {
                Err(CopyFailure("a transaction in its log has no beginning".to_owned()))
            }
            Some(time) => Ok(Stage::Earlier(time, read + 1)),
            None => Ok(Stage::Done(InitialSyncOutcome::SourceRead {
                rollback_id: self.rollback_id,
                begin_fetching: top.op_time,
                begin_applying: top.op_time,
            })),
        }
    }

    fn databases_listed(&mut self, reply: &RawDocument) -> Result<Stage, CopyFailure> {
        let reply = parsed(reply)?;
        for database in reply.get_array("databases").map_err(|_| broken("databases"))? {
            let database = database.as_document().ok_or_else(|| broken("databases"))?;
            let name = database.get_str("name").map_err(|_| broken("databases.name"))?;
            if name != "local" {
                self.databases.push_back(name.to_owned());
            }
        }
        Ok(self.count_from(0))
    }

    /// Counts what there is to copy, database by database, then copies the first.
    fn count_from(&mut self, place: usize) -> Stage {
        if place < self.databases.len() {
            return Stage::Statistics(place);
        }
        let (collections, bytes) = self.expected;
        self.progress.expect(collections, bytes);
        self.list_collections()
    }

    fn counted(&mut self, place: usize, reply: &RawDocument) -> Result<Stage, CopyFailure> {
        let reply = parsed(reply)?;
        self.expected.0 += figure(&reply, "collections");
        self.expected.1 += figure(&reply, "dataSize");
        Ok(self.count_from(place + 1))
    }

    fn list_collections(&self) -> Stage {
        match self.databases.front() {
            Some(database) => {
                let list = doc! { "listCollections": 1 };
                Stage::Collections(Listing::new(database, "$cmd.listCollections", list))
            }
            None => sessions_after(&[]),
        }
    }

    /// Begins with the next collection that is to be copied.
    fn next_collection(&mut self, node: &Node, now: Now) -> Result<Stage, CopyFailure> {
        self.current = None;
        while let Some(entry) = self.collections.pop_front() {
            let Some(database) = self.databases.front() else { break };
            let name = entry.get_str("name").map_err(|_| broken("name"))?;
            let namespace = Namespace::new(database.as_str(), name)?;
            let options = entry.get_document("options").cloned().unwrap_or_default();
            let is_view = entry.get_str("type").is_ok_and(|kind| kind == "view");
            let nameless = Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![0; 16] };
            let uuid = uuid_of(&entry).cloned().unwrap_or(nameless);
            if namespace.is_unreplicated() || self.progress.is_copied(&namespace, &uuid) {
                continue;
            }
            self.progress.enter(&namespace);
            node.clone_collection(&namespace, uuid.clone(), options, now)?;
            if is_view {
                node.copied_whole(&uuid);
                self.progress.leave(&namespace, &uuid);
                continue;
            }
            let name = namespace.collection.clone();
            let current = Current { namespace, uuid, name, read: false, renames: 0 };
            return Ok(self.current.insert(current).reading());
        }
        self.databases.pop_front();
        Ok(self.list_collections())
    }

    fn documents_read(
        &mut self,
        reply: &RawDocument,
        node: &Node,
        now: Now,
    ) -> Result<Stage, CopyFailure> {
        let Some(current) = &mut self.current else { return Err(broken("cursor")) };
        let (cursor, documents) = batch_of(reply)?;
        let bytes: usize = documents.iter().map(|document| document.as_bytes().len()).sum();
        let count = documents.len();
        node.clone_documents(&current.namespace, documents, now)?;
        self.progress.add(count as u64, bytes as u64);
        if cursor != 0 {
            return Ok(Stage::Documents { cursor });
        }
        current.read = true;
        Ok(current.reading())
    }

    fn indexes_listed(
        &mut self,
        specs: Vec<Document>,
        node: &Node,
        now: Now,
    ) -> Result<Stage, CopyFailure> {
        let Some(current) = self.current.take() else { return Err(broken("cursor")) };
        for spec in specs {
            node.clone_index(&current.namespace, spec, now)?;
        }
        node.copied_whole(&current.uuid);
        self.progress.leave(&current.namespace, &current.uuid);
        self.next_collection(node, now)
    }

    /// Reads on under the name that the collection has by now. Documents that were read before come again, and
    /// replace themselves. What was dropped, or is in another database, stays as it is: the log says which.
    fn name_found(
        &mut self,
        found: &[Document],
        node: &Node,
        now: Now,
    ) -> Result<Stage, CopyFailure> {
        let Some(current) = &mut self.current else { return Err(broken("cursor")) };
        let Some(entry) = found.first() else {
            self.progress.leave(&current.namespace, &current.uuid);
            return self.next_collection(node, now);
        };
        current.name = entry.get_str("name").map_err(|_| broken("name"))?.to_owned();
        if !current.read {
            self.progress.enter(&current.namespace);
        }
        Ok(current.reading())
    }
}

/// The entry before this one in its transaction.
fn earlier_in_transaction(entry: &RawDocument) -> Option<bson::Timestamp> {
    entry.get_document("o").ok()?.get_array("applyOps").ok()?;
    let time = entry.get_document("prevOpTime").ok()?.get_timestamp("ts").ok()?;
    (time.time > 0).then_some(time)
}

/// Lists the rows of sessions after this key.
fn sessions_after(key: &[u8]) -> Stage {
    let page = format!("replset.sessions.{}", hex::encode(key));
    let find = doc! { "find": &page, "readConcern": { "level": "local" } };
    Stage::Sessions(Listing::new("local", &page, find))
}

/// Takes a page of rows, and asks for the next until one is empty.
fn sessions_listed(rows: &[Document], node: &Node, now: Now) -> Result<Stage, CopyFailure> {
    node.clone_sessions(rows, now)?;
    Ok(match rows.last().and_then(|row| row.get_binary_generic("_id").ok()) {
        Some(key) => sessions_after(key),
        None => Stage::Done(InitialSyncOutcome::Cloned),
    })
}

/// Applies entries over a copy, up to `stop`. Returns the last entry of the log.
///
/// # Errors
///
/// If the store fails.
pub fn apply_copied(
    mut entries: Vec<RawDocumentBuf>,
    stop: OpTimeAndWallTime,
    progress: &CloneProgress,
    node: &Node,
    now: Now,
) -> Result<OpTimeAndWallTime, CopyFailure> {
    entries.retain(|entry| {
        entry_position(entry).is_ok_and(|position| position.op_time <= stop.op_time)
    });
    progress.apply(entries.len() as u64);
    Ok(node.apply_cloned(entries, now)?)
}

/// The cursor and the documents of a reply to `find` or `getMore`.
///
/// # Errors
///
/// If it is no such reply.
pub fn batch_of(reply: &RawDocument) -> Result<(i64, Vec<RawDocumentBuf>), CopyFailure> {
    let cursor = reply.get_document("cursor").map_err(|_| broken("cursor"))?;
    let id = cursor.get_i64("id").map_err(|_| broken("cursor.id"))?;
    let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"));
    let mut documents = Vec::new();
    for item in batch.map_err(|_| broken("batch"))? {
        match item {
            Ok(RawBsonRef::Document(document)) => documents.push(document.to_owned()),
            _ => return Err(broken("batch")),
        }
    }
    Ok((id, documents))
}

fn parsed(document: &RawDocument) -> Result<Document, CopyFailure> {
    Document::try_from(document).map_err(|error| CopyFailure(error.to_string()))
}

/// A figure of a reply, whichever kind of number it is.
fn figure(reply: &Document, name: &str) -> u64 {
    match reply.get(name) {
        Some(Bson::Int32(number)) => u64::try_from(*number).unwrap_or(0),
        Some(Bson::Int64(number)) => u64::try_from(*number).unwrap_or(0),
        Some(Bson::Double(number)) => *number as u64,
        _ => 0,
    }
}

/// The uuid in an entry of `listCollections`; views have none.
fn uuid_of(entry: &Document) -> Option<&Binary> {
    match entry.get_document("info").ok()?.get("uuid") {
        Some(Bson::Binary(uuid)) => Some(uuid),
        _ => None,
    }
}

fn command(mut command: Document, database: &str) -> Document {
    command.insert("$readPreference", doc! { "mode": "secondaryPreferred" });
    command.insert("$db", database);
    command
}

fn broken(field: &str) -> CopyFailure {
    CopyFailure(format!("the source's reply has no usable field {field}"))
}
