//! Copying everything from another member, step by step as the member orders.
//!
//! Collections are copied whole, then the entries that the source wrote meanwhile are applied. The
//! order of steps, retries and the durable flag belong to `quorate-replication`.
//! docs/replication-rules.md §10.

use std::sync::Arc;
use std::time::Duration;

use bson::{Binary, Bson, Document, RawDocumentBuf, doc};
use quorate_node::{CommandError, CopyBuffer, Namespace, Node, entry_position};
use quorate_protocol::{OpTime, OpTimeAndWallTime, ServerAddress};
use quorate_replication::{InitialSyncOutcome, InitialSyncStep, Input};
use tokio::task::{JoinHandle, block_in_place};

use super::client::{Client, ClientError};
use super::clone_progress::CloneProgress;
use super::copying::{COMMAND_TIMEOUT, batch_of, beginning_of, parsed, rollback_id_of, top_of};
use super::host::Host;
use super::oplog_buffer::{EntryStream, OplogBuffer};
use super::{Inbox, Message};
use crate::clock::Clock;
use crate::dialer::Dialer;

/// How often the log is told of the progress.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Bytes of kept entries that are in memory at a time.
const READ_BACK_BYTES: usize = 8 * 1024 * 1024;

/// The attempt under way.
#[derive(Default)]
pub(super) struct InitialSync {
    task: Option<JoinHandle<()>>,
    source: Option<ServerAddress>,
    begin_applying: OpTime,
    /// What the source writes while it is copied.
    buffer: Option<OplogBuffer>,
    pub(super) progress: CloneProgress,
}

/// What a step works with.
struct Work {
    dialer: Dialer,
    source: ServerAddress,
    begin: OpTime,
    buffer: Option<OplogBuffer>,
    progress: CloneProgress,
    clock: Clock,
}

impl InitialSync {
    /// None yet; its progress will be told here.
    pub(super) fn new(progress: CloneProgress) -> Self {
        Self { progress, ..Self::default() }
    }
}

impl Host {
    pub(super) fn do_initial_sync_step(&mut self, attempt: u32, step: InitialSyncStep) {
        if let Some(task) = self.initial_sync.task.take() {
            task.abort();
        }
        let (inbox, clock) = (self.inbox.clone(), self.clock);
        let mut buffer = None;
        match &step {
            InitialSyncStep::Wipe => {
                self.initial_sync.buffer = None;
                self.applier.add(Box::new(move |node| {
                    node.wipe(clock.now())?;
                    report(&inbox, attempt, InitialSyncOutcome::Wiped);
                    Ok(())
                }));
                return;
            }
            InitialSyncStep::Cancel => {
                self.initial_sync.buffer = None;
                return;
            }
            InitialSyncStep::ReadSource { source } => {
                self.initial_sync.source = Some(source.clone());
            }
            InitialSyncStep::Clone { source, begin_fetching, begin_applying } => {
                self.initial_sync.begin_applying = *begin_applying;
                self.initial_sync.progress.begin(attempt, clock.now());
                // A step that goes on after a blip finds its buffer filled.
                let known = self.initial_sync.buffer.take();
                let begin = *begin_fetching;
                let (dialer, cut) = (self.dialer.clone(), inbox.cut.clone());
                let node = Arc::clone(&self.node);
                let fresh = || OplogBuffer::start(&node, dialer, cut, source.clone(), begin);
                self.initial_sync.buffer = known.or_else(|| {
                    // Without one, the entries are read from the source when their turn comes.
                    fresh()
                        .inspect_err(|error| tracing::warn!(%error, "entries cannot be kept"))
                        .ok()
                });
            }
            InitialSyncStep::ApplyThrough(_) => buffer = self.initial_sync.buffer.take(),
            _ => {}
        }
        let Some(source) = self.initial_sync.source.clone() else { return };
        let progress = self.initial_sync.progress.clone();
        let begin = self.initial_sync.begin_applying;
        let dialer = self.dialer.clone();
        let work = Work { dialer, source, begin, buffer, progress, clock };
        let node = Arc::clone(&self.node);
        self.initial_sync.task = Some(tokio::spawn(async move {
            let source = work.source.clone();
            let step = do_step(work, &step, &node);
            let outcome = match inbox.cut.clone().guard(step).await {
                Ok(outcome) => outcome,
                Err(ClientError::Reply(why)) => {
                    tracing::warn!(%source, why, "the initial sync failed");
                    InitialSyncOutcome::Failed
                }
                Err(error) => {
                    tracing::warn!(%source, %error, "the initial sync was interrupted");
                    InitialSyncOutcome::Interrupted
                }
            };
            report(&inbox, attempt, outcome);
        }));
    }
}

fn report(inbox: &Inbox, attempt: u32, outcome: InitialSyncOutcome) {
    inbox.post(Message::Input(Input::InitialSync { attempt, outcome }));
}

async fn do_step(
    work: Work,
    step: &InitialSyncStep,
    node: &Node,
) -> Result<InitialSyncOutcome, ClientError> {
    if let InitialSyncStep::ApplyThrough(stop) = step {
        apply_through(work, *stop, node).await?;
        return Ok(InitialSyncOutcome::AppliedThrough(*stop));
    }
    let mut client = Client::connect(&work.dialer, &work.source, COMMAND_TIMEOUT).await?;
    match step {
        InitialSyncStep::ReadSource { .. } => {
            let rollback_id = rollback_id_of(&mut client).await?;
            let begin = beginning_of(&mut client).await?.op_time;
            Ok(InitialSyncOutcome::SourceRead {
                rollback_id,
                begin_fetching: begin,
                begin_applying: begin,
            })
        }
        InitialSyncStep::Clone { .. } => {
            clone_everything(&mut client, node, &work).await?;
            Ok(InitialSyncOutcome::Cloned)
        }
        InitialSyncStep::ReadStopPoint { .. } => {
            top_of(&mut client).await.map(InitialSyncOutcome::StopPointRead)
        }
        InitialSyncStep::ReadRollbackId { .. } => {
            rollback_id_of(&mut client).await.map(InitialSyncOutcome::RollbackIdRead)
        }
        InitialSyncStep::ApplyThrough(_) | InitialSyncStep::Wipe | InitialSyncStep::Cancel => {
            Ok(InitialSyncOutcome::Wiped)
        }
    }
}

async fn clone_everything(
    client: &mut Client,
    node: &Node,
    work: &Work,
) -> Result<(), ClientError> {
    let list = command(doc! { "listDatabases": 1, "nameOnly": true }, "admin");
    let reply = parsed(&client.run(&list).await?)?;
    let databases = reply.get_array("databases").map_err(|_| broken("databases"))?;
    let mut names = Vec::new();
    let (mut collections, mut bytes) = (0, 0);
    for database in databases {
        let database = database.as_document().ok_or_else(|| broken("databases"))?;
        let name = database.get_str("name").map_err(|_| broken("databases.name"))?;
        if name != "local" {
            let figures = parsed(&client.run(&command(doc! { "dbStats": 1 }, name)).await?)?;
            collections += figure(&figures, "collections");
            bytes += figure(&figures, "dataSize");
            names.push(name.to_owned());
        }
    }
    work.progress.expect(collections, bytes);
    for name in names {
        clone_database(client, &name, node, work).await?;
    }
    Ok(())
}

/// A figure of a reply, whichever kind of number it is.
fn figure(reply: &Document, name: &str) -> u64 {
    reply
        .get(name)
        .and_then(super::commands::whole)
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or(0)
}

async fn clone_database(
    client: &mut Client,
    database: &str,
    node: &Node,
    work: &Work,
) -> Result<(), ClientError> {
    let clock = work.clock;
    for entry in
        all(client, doc! { "listCollections": 1 }, database, "$cmd.listCollections").await?
    {
        let name = entry.get_str("name").map_err(|_| broken("name"))?;
        let namespace = Namespace::new(database, name).map_err(local)?;
        if namespace.is_unreplicated() || work.progress.is_copied(&namespace) {
            continue;
        }
        work.progress.enter(&namespace);
        let options = entry.get_document("options").cloned().unwrap_or_default();
        let is_view = entry.get_str("type").is_ok_and(|kind| kind == "view");
        let uuid = uuid_of(&entry).cloned().unwrap_or_else(|| Binary {
            subtype: bson::spec::BinarySubtype::Uuid,
            bytes: vec![0; 16],
        });
        block_in_place(|| node.clone_collection(&namespace, uuid.clone(), options, clock.now()))
            .map_err(local)?;
        if is_view {
            work.progress.leave(&namespace);
            continue;
        }
        clone_documents(client, &namespace, node, work).await?;
        for spec in all(client, doc! { "listIndexes": name }, database, name).await? {
            block_in_place(|| node.clone_index(&namespace, spec, clock.now())).map_err(local)?;
        }
        // It was read by its name: is it still the same one that has it?
        let list = doc! { "listCollections": 1, "filter": { "name": name } };
        let now = all(client, list, database, "$cmd.listCollections").await?;
        if now.first().and_then(uuid_of) != Some(&uuid) {
            node.copied_in_part(uuid);
        }
        work.progress.leave(&namespace);
        tracing::info!(%namespace, "copied a collection; {}", work.progress.line(clock.now()));
    }
    Ok(())
}

/// The uuid in an entry of `listCollections`; views have none.
fn uuid_of(entry: &Document) -> Option<&Binary> {
    match entry.get_document("info").ok()?.get("uuid") {
        Some(Bson::Binary(uuid)) => Some(uuid),
        _ => None,
    }
}

async fn clone_documents(
    client: &mut Client,
    namespace: &Namespace,
    node: &Node,
    work: &Work,
) -> Result<(), ClientError> {
    let clock = work.clock;
    let mut told = clock.now().monotonic;
    let find = doc! {
        "find": &namespace.collection, "sort": { "$natural": 1 }, "readConcern": { "level": "local" },
    };
    let mut reply = client.run(&command(find, &namespace.database)).await?;
    loop {
        let (cursor, documents) = batch_of(&reply)?;
        let bytes: usize = documents.iter().map(|document| document.as_bytes().len()).sum();
        let count = documents.len();
        block_in_place(|| node.clone_documents(namespace, documents, clock.now()))
            .map_err(local)?;
        work.progress.add(count as u64, bytes as u64);
        let now = clock.now();
        if now.monotonic.since(told) >= TELL_EVERY {
            told = now.monotonic;
            tracing::info!(%namespace, "{}", work.progress.line(now));
        }
        if cursor == 0 {
            return Ok(());
        }
        let more = doc! { "getMore": cursor, "collection": &namespace.collection };
        reply = client.run(&command(more, &namespace.database)).await?;
    }
}

/// Every document of a listing.
async fn all(
    client: &mut Client,
    list: Document,
    database: &str,
    collection: &str,
) -> Result<Vec<Document>, ClientError> {
    let mut reply = client.run(&command(list, database)).await?;
    let mut found = Vec::new();
    loop {
        let (cursor, documents) = batch_of(&reply)?;
        for document in &documents {
            found.push(parsed(document)?);
        }
        if cursor == 0 {
            return Ok(found);
        }
        let more = doc! { "getMore": cursor, "collection": collection };
        reply = client.run(&command(more, database)).await?;
    }
}

/// Applies the entries from the beginning to `stop`, both of them too: those that were kept during
/// the copy, and the rest from the source.
async fn apply_through(
    work: Work,
    stop: OpTimeAndWallTime,
    node: &Node,
) -> Result<(), ClientError> {
    let Work { dialer, source, begin, buffer, progress, clock } = work;
    let apply = |mut entries: Vec<RawDocumentBuf>| {
        entries.retain(|entry| {
            entry_position(entry).is_ok_and(|position| position.op_time <= stop.op_time)
        });
        progress.apply(entries.len() as u64);
        block_in_place(|| node.apply_cloned(entries, clock.now())).map_err(local)
    };
    let finish = || block_in_place(|| node.finish_clone(stop, clock.now())).map_err(local);
    let kept = buffer.and_then(OplogBuffer::take);
    let last = kept.as_ref().and_then(CopyBuffer::last);
    if let Some(kept) = kept {
        let read = |after| block_in_place(|| kept.read(after, READ_BACK_BYTES)).map_err(local);
        let mut entries = read(None)?;
        while let Some(end) = entries.last() {
            let end = entry_position(end).map_err(local)?.op_time.timestamp;
            apply(entries)?;
            entries = read(Some(end))?;
        }
    }
    if last.is_some_and(|last| last >= stop.op_time) {
        return finish();
    }
    let mut stream = EntryStream::open(&dialer, &source, last.unwrap_or(begin)).await?;
    loop {
        let batch = stream.next().await?;
        if apply(batch.entries)?.op_time >= stop.op_time {
            return finish();
        }
    }
}

fn command(mut command: Document, database: &str) -> Document {
    command.insert("$readPreference", doc! { "mode": "secondaryPreferred" });
    command.insert("$db", database);
    command
}

fn broken(field: &str) -> ClientError {
    ClientError::Reply(format!("the reply has no usable field {field}"))
}

/// Our own side failed, not the source.
fn local(error: CommandError) -> ClientError {
    ClientError::Reply(error.message)
}
