//! What a follower does with the logs of others besides copying them: holding entries back,
//! the way to the source of a search for where two logs part, and keeping what a rollback removes.

use std::fs::{File, create_dir_all};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_member::{COMPARED_AT_ONCE, CommonPointSearch, SearchAsk};
use quorate_node::{CommandError, ErrorCode, Node, Undo, entry_position};
use quorate_protocol::ServerAddress;
use quorate_replication::{FetchId, Input};

use super::client::{Client, ClientError};
use super::{Inbox, Message};
use crate::clock::Clock;
use crate::dialer::Dialer;

/// How long another member may take for one command.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns once the newest of these entries is old enough for a delayed member.
pub(super) fn wait_until_old_enough(entries: &[RawDocumentBuf], delay: Duration, clock: &Clock) {
    if delay.is_zero() {
        return;
    }
    let Some(Ok(last)) = entries.last().map(|entry| entry_position(entry)) else { return };
    let release = last.wall_time.as_millis().saturating_add(delay.as_millis() as i64);
    loop {
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
    let input = common_point(fetch, &dialer, &source, &node).await.unwrap_or_else(|error| {
        tracing::warn!(%source, %error, "the common point was not found");
        Input::CommonPointUnknown { fetch }
    });
    inbox.post(Message::Input(input));
}

async fn common_point(
    fetch: FetchId,
    dialer: &Dialer,
    source: &ServerAddress,
    node: &Node,
) -> Result<Input, ClientError> {
    let mut client = Client::connect(dialer, source, COMMAND_TIMEOUT).await?;
    let mut search = CommonPointSearch::new(fetch, COMPARED_AT_ONCE);
    loop {
        match search.ask() {
            SearchAsk::Command(command) => {
                let reply = client.run(&command).await?;
                let taken = search.take_reply(&reply, node);
                taken.map_err(|failure| ClientError::Reply(failure.0))?;
            }
            SearchAsk::Done(input) => return Ok(input),
        }
    }
}

/// Files of documents that a rollback removes: one per collection, as plain BSON.
pub(super) struct RollbackFiles {
    directory: Option<PathBuf>,
    stamp: i64,
    files: std::collections::BTreeMap<String, KeptDocuments>,
}

/// A file, and how many bytes of it are whole documents.
struct KeptDocuments {
    file: File,
    length: u64,
}

impl KeptDocuments {
    fn add(&mut self, document: &[u8]) -> std::io::Result<()> {
        match self.file.write_all(document) {
            Ok(()) => self.length += document.len() as u64,
            Err(error) => {
                // A document that was cut short would hide those that follow it.
                self.file.set_len(self.length)?;
                return Err(error);
            }
        }
        Ok(())
    }
}

impl RollbackFiles {
    pub(super) fn new(directory: Option<PathBuf>, clock: &Clock) -> Self {
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
            self.files.insert(undo.namespace.to_owned(), KeptDocuments { file, length: 0 });
        }
        match self.files.get_mut(undo.namespace) {
            Some(kept) => kept.add(undo.document.as_bytes()).map_err(|error| cannot_keep(&error)),
            None => Ok(()),
        }
    }

    /// Forces the files to disk.
    pub(super) fn finish(self) -> Result<(), CommandError> {
        let synced = self.files.values().try_for_each(|kept| kept.file.sync_all());
        synced.map_err(|error| cannot_keep(&error))
    }
}

fn cannot_keep(error: &std::io::Error) -> CommandError {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorCode::OUT_OF_DISK_SPACE,
        _ => ErrorCode::INTERNAL_ERROR,
    };
    CommandError::new(
        code,
        format!("documents removed by a rollback cannot be kept: {error}; free the disk"),
    )
}
