//! What a follower does with the logs of others besides copying them: holding entries back,
//! finding where two logs part, and keeping what a rollback removes.

use std::fs::{File, create_dir_all};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use quorate_node::{CommandError, ErrorCode, Node, Undo, entry_position};
use quorate_protocol::{OpTime, OpTimeAndWallTime, ServerAddress};
use quorate_replication::{FetchId, Input};

use super::client::{Client, ClientError};
use super::{Inbox, Message};
use crate::clock::Clock;
use crate::dialer::Dialer;

/// How long another member may take for one command.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Entries of either log that are looked at in one go.
const STEP: usize = 1000;

/// The most entries of either log that are compared: more would not fit any oplog's use.
const MAX_COMPARED: usize = 100_000_000;

/// The most entries of one transaction that are followed back.
const MAX_TRANSACTION_ENTRIES: usize = 10_000;

/// Returns once the newest of these entries is old enough for a delayed member.
pub(super) fn wait_until_old_enough(entries: &[RawDocumentBuf], delay: Duration, clock: Clock) {
    let Some(Ok(last)) = entries.last().map(|entry| entry_position(entry)) else { return };
    let release = last.wall_time.as_millis().saturating_add(delay.as_millis() as i64);
    while !delay.is_zero() {
        let left = release - clock.now().wall.as_millis();
        match u64::try_from(left) {
            Ok(left) if left > 0 => std::thread::sleep(Duration::from_millis(left)),
            _ => return,
        }
    }
}

/// Finds the newest entry that our log and the source's share, and tells the host.
pub(super) async fn find_common_point(
    fetch: FetchId,
    source: ServerAddress,
    node: Arc<Node>,
    inbox: Inbox,
    dialer: Dialer,
) {
    let input = match common_point(&dialer, &source, &node).await {
        Ok(Ok(common_point)) => Input::CommonPointFound { fetch, common_point },
        Ok(Err(NoCommonPoint { source_oldest })) => Input::NoCommonPoint { fetch, source_oldest },
        Err(error) => {
            tracing::warn!(%source, %error, "the common point was not found");
            Input::CommonPointUnknown { fetch }
        }
    };
    inbox.post(Message::Input(input));
}

/// The two oplogs were compared to the end of one of them, and share no entry.
struct NoCommonPoint {
    source_oldest: OpTime,
}

async fn common_point(
    dialer: &Dialer,
    source: &ServerAddress,
    node: &Node,
) -> Result<Result<OpTimeAndWallTime, NoCommonPoint>, ClientError> {
    let mut theirs = Backwards::open(dialer, source).await?;
    let mut ours: Vec<OpTimeAndWallTime> = Vec::new();
    let mut our_oldest = None;
    let mut their_newest = theirs.next().await?;
    let mut their_oldest = OpTime::NULL;
    for _ in 0..MAX_COMPARED {
        if ours.is_empty() {
            ours = node
                .read_oplog_backward(our_oldest, STEP)
                .map_err(|error| ClientError::Reply(error.message))?;
            ours.reverse();
        }
        their_oldest = their_newest.map_or(their_oldest, |their| their.op_time);
        let (Some(mine), Some(their)) = (ours.last().copied(), their_newest) else {
            return Ok(Err(NoCommonPoint { source_oldest: their_oldest }));
        };
        if mine.op_time == their.op_time {
            return Ok(Ok(mine));
        }
        if mine.op_time > their.op_time {
            our_oldest = Some(mine.op_time.timestamp);
            ours.pop();
        } else {
            their_newest = theirs.next().await?;
        }
    }
    Err(ClientError::Reply(format!("no common entry among the newest {MAX_COMPARED}")))
}

/// Another member's log, newest entry first.
struct Backwards {
    client: Client,
    cursor: i64,
    batch: Vec<OpTimeAndWallTime>,
}

impl Backwards {
    async fn open(dialer: &Dialer, source: &ServerAddress) -> Result<Self, ClientError> {
        let mut client = Client::connect(dialer, source, COMMAND_TIMEOUT).await?;
        let find = doc! {
            "find": "oplog.rs", "sort": { "$natural": -1 }, "batchSize": STEP as i32,
            "projection": { "ts": 1, "t": 1, "wall": 1 },
            "$readPreference": { "mode": "secondaryPreferred" }, "$db": "local",
        };
        let reply = client.run(&find).await?;
        let (cursor, batch) = positions(&reply)?;
        Ok(Self { client, cursor, batch })
    }

    async fn next(&mut self) -> Result<Option<OpTimeAndWallTime>, ClientError> {
        if self.batch.is_empty() && self.cursor != 0 {
            let more = doc! {
                "getMore": self.cursor, "collection": "oplog.rs", "batchSize": STEP as i32,
                "$db": "local",
            };
            let reply = self.client.run(&more).await?;
            (self.cursor, self.batch) = positions(&reply)?;
        }
        Ok(self.batch.pop())
    }
}

/// The cursor and the positions of a batch, the next one last.
fn positions(reply: &RawDocumentBuf) -> Result<(i64, Vec<OpTimeAndWallTime>), ClientError> {
    let (cursor, documents) = batch_of(reply)?;
    let mut positions = Vec::with_capacity(documents.len());
    for document in documents {
        let position = entry_position(&document);
        positions.push(position.map_err(|error| ClientError::Reply(error.message))?);
    }
    positions.reverse();
    Ok((cursor, positions))
}

/// The cursor and the documents of a reply to `find` or `getMore`.
pub(super) fn batch_of(reply: &RawDocumentBuf) -> Result<(i64, Vec<RawDocumentBuf>), ClientError> {
    let broken = |what: &str| ClientError::Reply(format!("the reply has no usable {what}"));
    let cursor = reply.get_document("cursor").map_err(|_| broken("cursor"))?;
    let id = cursor.get_i64("id").map_err(|_| broken("cursor.id"))?;
    let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"));
    let mut documents = Vec::new();
    for item in batch.map_err(|_| broken("batch"))? {
        match item {
            Ok(bson::RawBsonRef::Document(document)) => documents.push(document.to_owned()),
            _ => return Err(broken("batch")),
        }
    }
    Ok((id, documents))
}

/// The newest entry of another member's log.
pub(super) async fn top_of(client: &mut Client) -> Result<OpTimeAndWallTime, ClientError> {
    place_of(&newest_of(client).await?)
}

/// The entry of another member's log that a copy begins with: the newest one, or, if that belongs to a
/// transaction of several entries, the first of them. A transaction is applied whole, with its last
/// entry.
pub(super) async fn beginning_of(client: &mut Client) -> Result<OpTimeAndWallTime, ClientError> {
    let mut entry = newest_of(client).await?;
    for _ in 0..MAX_TRANSACTION_ENTRIES {
        let Some(time) = earlier_in_transaction(&entry) else { return place_of(&entry) };
        let find = doc! { "find": "oplog.rs", "filter": { "ts": time } };
        let earlier = entry_of(client, find).await?;
        entry = earlier.ok_or_else(|| {
            ClientError::Reply("its log begins within its newest transaction".to_owned())
        })?;
    }
    Err(ClientError::Reply("a transaction in its log has no beginning".to_owned()))
}

/// The entry before this one in its transaction.
fn earlier_in_transaction(entry: &RawDocument) -> Option<bson::Timestamp> {
    entry.get_document("o").ok()?.get_array("applyOps").ok()?;
    let time = entry.get_document("prevOpTime").ok()?.get_timestamp("ts").ok()?;
    (time.time > 0).then_some(time)
}

async fn newest_of(client: &mut Client) -> Result<RawDocumentBuf, ClientError> {
    let find = doc! { "find": "oplog.rs", "sort": { "$natural": -1 } };
    let newest = entry_of(client, find).await?;
    newest.ok_or_else(|| ClientError::Reply("its log is empty".to_owned()))
}

async fn entry_of(
    client: &mut Client,
    mut find: Document,
) -> Result<Option<RawDocumentBuf>, ClientError> {
    find.extend(doc! {
        "limit": 1, "$readPreference": { "mode": "secondaryPreferred" }, "$db": "local",
    });
    let (_, batch) = batch_of(&client.run(&find).await?)?;
    Ok(batch.into_iter().next())
}

fn place_of(entry: &RawDocument) -> Result<OpTimeAndWallTime, ClientError> {
    entry_position(entry).map_err(|error| ClientError::Reply(error.message))
}

/// The rollback id of another member.
pub(super) async fn rollback_id_of(client: &mut Client) -> Result<i32, ClientError> {
    let reply = client.run(&doc! { "replSetGetRBID": 1, "$db": "admin" }).await?;
    reply.get_i32("rbid").map_err(|error| ClientError::Reply(error.to_string()))
}

/// Files of documents that a rollback removes: one per collection, as plain BSON.
pub(super) struct RollbackFiles {
    directory: Option<PathBuf>,
    stamp: i64,
    files: std::collections::BTreeMap<String, File>,
}

impl RollbackFiles {
    pub(super) fn new(directory: Option<PathBuf>, clock: Clock) -> Self {
        let stamp = clock.now().wall.as_millis();
        Self { directory, stamp, files: std::collections::BTreeMap::new() }
    }

    /// Writes a document to the file of its collection.
    pub(super) fn keep(&mut self, undo: Undo<'_>) -> Result<(), CommandError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        if !self.files.contains_key(undo.namespace) {
            // Names of collections may hold anything; those of directories may not.
            let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
            let name: String = undo.namespace.chars().map(safe).collect();
            let directory = directory.join(name);
            create_dir_all(&directory).map_err(|error| cannot_keep(&error))?;
            let path = directory.join(format!("removed.{}.bson", self.stamp));
            let file = File::create(path).map_err(|error| cannot_keep(&error))?;
            self.files.insert(undo.namespace.to_owned(), file);
        }
        match self.files.get_mut(undo.namespace) {
            Some(file) => {
                file.write_all(undo.document.as_bytes()).map_err(|error| cannot_keep(&error))
            }
            None => Ok(()),
        }
    }

    /// Forces the files to disk.
    pub(super) fn finish(self) -> Result<(), CommandError> {
        self.files.values().try_for_each(File::sync_all).map_err(|error| cannot_keep(&error))
    }
}

fn cannot_keep(error: &std::io::Error) -> CommandError {
    CommandError::new(
        ErrorCode::INTERNAL_ERROR,
        format!("documents removed by a rollback cannot be kept: {error}; free the disk"),
    )
}

/// A document of a reply, parsed.
pub(super) fn parsed(document: &RawDocumentBuf) -> Result<Document, ClientError> {
    Document::try_from(&**document).map_err(|error| ClientError::Reply(error.to_string()))
}
