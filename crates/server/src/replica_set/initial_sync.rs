//! Copying everything from another member, step by step as the member orders.
//!
//! Collections are copied whole, then the entries that the source wrote meanwhile are applied. The
//! order of steps, retries and the durable flag belong to `quorate-replication`. Digest §10.

use std::sync::Arc;
use std::time::Duration;

use bson::{Binary, Bson, Document, doc};
use quorate_node::{CommandError, Namespace, Node, entry_position};
use quorate_protocol::{OpTime, OpTimeAndWallTime, ServerAddress, Term};
use quorate_replication::{InitialSyncOutcome, InitialSyncStep, Input};
use quorate_wire::MsgFlags;
use tokio::task::{JoinHandle, block_in_place};

use super::client::{Client, ClientError, check};
use super::copying::{COMMAND_TIMEOUT, batch_of, parsed, rollback_id_of, top_of};
use super::host::Host;
use super::stream::{find_command, parse_batch};
use super::{Inbox, Message};
use crate::clock::Clock;
use crate::dialer::Dialer;

/// How long a member waits for a primary to copy from.
const PRIMARY_PATIENCE: Duration = Duration::from_secs(1);

/// The attempt under way.
#[derive(Default)]
pub(super) struct InitialSync {
    task: Option<JoinHandle<()>>,
    source: Option<ServerAddress>,
    begin_applying: OpTime,
}

impl Host {
    pub(super) fn do_initial_sync_step(&mut self, attempt: u32, step: InitialSyncStep) {
        if let Some(task) = self.initial_sync.task.take() {
            task.abort();
        }
        let (inbox, clock) = (self.inbox.clone(), self.clock);
        match &step {
            InitialSyncStep::Wipe => {
                let mut view = self.view.subscribe();
                let runtime = tokio::runtime::Handle::current();
                self.applier.add(Box::new(move |node| {
                    node.wipe(clock.now())?;
                    runtime.spawn(async move {
                        // A source is looked for as soon as this is told, and then only every
                        // second: a primary that is about to be elected is worth waiting for.
                        let known = view.wait_for(|view| view.knows_primary);
                        let _ = tokio::time::timeout(PRIMARY_PATIENCE, known).await;
                        report(&inbox, attempt, InitialSyncOutcome::Wiped);
                    });
                    Ok(())
                }));
                return;
            }
            InitialSyncStep::Cancel => return,
            InitialSyncStep::ReadSource { source } => {
                self.initial_sync.source = Some(source.clone());
            }
            InitialSyncStep::Clone { begin_applying, .. } => {
                self.initial_sync.begin_applying = *begin_applying;
            }
            _ => {}
        }
        let Some(source) = self.initial_sync.source.clone() else { return };
        let begin = self.initial_sync.begin_applying;
        let (node, dialer) = (Arc::clone(&self.node), self.dialer.clone());
        self.initial_sync.task = Some(tokio::spawn(async move {
            let step = do_step(&dialer, &source, &step, begin, &node, clock);
            let outcome = match inbox.cut.clone().guard(step).await {
                Ok(outcome) => outcome,
                Err(ClientError::Reply(why)) => {
                    tracing::warn!(%source, why, "the initial sync failed");
                    InitialSyncOutcome::Failed
                }
                // Nobody listens there any more: another source is better than the same again.
                Err(ClientError::Socket(error))
                    if error.kind() == std::io::ErrorKind::ConnectionRefused =>
                {
                    tracing::warn!(%source, %error, "the source of the initial sync is gone");
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
    dialer: &Dialer,
    source: &ServerAddress,
    step: &InitialSyncStep,
    begin: OpTime,
    node: &Node,
    clock: Clock,
) -> Result<InitialSyncOutcome, ClientError> {
    let mut client = Client::connect(dialer, source, COMMAND_TIMEOUT).await?;
    match step {
        InitialSyncStep::ReadSource { .. } => {
            let rollback_id = rollback_id_of(&mut client).await?;
            let top = top_of(&mut client).await?.op_time;
            Ok(InitialSyncOutcome::SourceRead {
                rollback_id,
                begin_fetching: top,
                begin_applying: top,
            })
        }
        InitialSyncStep::Clone { .. } => {
            clone_everything(&mut client, node, clock).await?;
            Ok(InitialSyncOutcome::Cloned)
        }
        InitialSyncStep::ReadStopPoint { .. } => {
            top_of(&mut client).await.map(InitialSyncOutcome::StopPointRead)
        }
        InitialSyncStep::ApplyThrough(stop) => {
            apply_through(&mut client, begin, *stop, node, clock).await?;
            Ok(InitialSyncOutcome::AppliedThrough(*stop))
        }
        InitialSyncStep::ReadRollbackId { .. } => {
            rollback_id_of(&mut client).await.map(InitialSyncOutcome::RollbackIdRead)
        }
        InitialSyncStep::Wipe | InitialSyncStep::Cancel => Ok(InitialSyncOutcome::Wiped),
    }
}

async fn clone_everything(
    client: &mut Client,
    node: &Node,
    clock: Clock,
) -> Result<(), ClientError> {
    let list = command(doc! { "listDatabases": 1, "nameOnly": true }, "admin");
    let reply = parsed(&client.run(&list).await?)?;
    let databases = reply.get_array("databases").map_err(|_| broken("databases"))?;
    for database in databases {
        let database = database.as_document().ok_or_else(|| broken("databases"))?;
        let name = database.get_str("name").map_err(|_| broken("databases.name"))?;
        if name != "local" {
            clone_database(client, name, node, clock).await?;
        }
    }
    Ok(())
}

async fn clone_database(
    client: &mut Client,
    database: &str,
    node: &Node,
    clock: Clock,
) -> Result<(), ClientError> {
    for entry in
        all(client, doc! { "listCollections": 1 }, database, "$cmd.listCollections").await?
    {
        let name = entry.get_str("name").map_err(|_| broken("name"))?;
        let namespace = Namespace::new(database, name).map_err(local)?;
        let options = entry.get_document("options").cloned().unwrap_or_default();
        let is_view = entry.get_str("type").is_ok_and(|kind| kind == "view");
        let uuid = match entry.get_document("info").ok().and_then(|info| info.get("uuid")) {
            Some(Bson::Binary(uuid)) => uuid.clone(),
            _ => Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![0; 16] },
        };
        block_in_place(|| node.clone_collection(&namespace, uuid, options, clock.now()))
            .map_err(local)?;
        if is_view {
            continue;
        }
        clone_documents(client, &namespace, node, clock).await?;
        for spec in all(client, doc! { "listIndexes": name }, database, name).await? {
            block_in_place(|| node.clone_index(&namespace, spec, clock.now())).map_err(local)?;
        }
        tracing::info!(%namespace, "copied a collection");
    }
    Ok(())
}

async fn clone_documents(
    client: &mut Client,
    namespace: &Namespace,
    node: &Node,
    clock: Clock,
) -> Result<(), ClientError> {
    let find = doc! { "find": &namespace.collection, "sort": { "$natural": 1 } };
    let mut reply = client.run(&command(find, &namespace.database)).await?;
    loop {
        let (cursor, documents) = batch_of(&reply)?;
        block_in_place(|| node.clone_documents(namespace, documents, clock.now()))
            .map_err(local)?;
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

/// Applies the entries from `begin` to `stop`, both of them too.
async fn apply_through(
    client: &mut Client,
    begin: OpTime,
    stop: OpTimeAndWallTime,
    node: &Node,
    clock: Clock,
) -> Result<(), ClientError> {
    client.send(&find_command(begin, Term(begin.term)), MsgFlags::EXHAUST_ALLOWED).await?;
    loop {
        let received = tokio::time::timeout(COMMAND_TIMEOUT, client.next()).await;
        let body = check(received.map_err(|_| ClientError::TimedOut)??.body)?;
        let batch = parse_batch(&body).ok_or_else(|| broken("batch"))?;
        let mut entries = batch.entries;
        entries.retain(|entry| {
            entry_position(entry).is_ok_and(|position| position.op_time <= stop.op_time)
        });
        let last = block_in_place(|| node.apply_cloned(entries, clock.now())).map_err(local)?;
        if last.op_time >= stop.op_time {
            return block_in_place(|| node.finish_clone(stop, clock.now())).map_err(local);
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
