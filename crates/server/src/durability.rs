//! Waiting for the disk: one sync serves every connection that waits.
//!
//! A connection that finds no sync in flight syncs itself, which spares a lone writer two changes of
//! thread. Other connections leave a note of what they wait for; a thread takes all notes there are,
//! syncs once, and answers them together. While a sync is under way, the next notes gather.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use quorate_node::{CommandError, ErrorCode, Node};
use quorate_storage::CommitSequence;
use tokio::sync::oneshot;

/// Writers that may wait at once; every connection waits for one write at a time.
const MAX_WAITING: usize = 65_536;

struct Note {
    sequence: CommitSequence,
    answer: oneshot::Sender<Result<(), CommandError>>,
}

/// The way to the syncing thread. The thread ends when the last of these is gone.
#[derive(Clone)]
pub(crate) struct Durability {
    node: Arc<Node>,
    /// Whether a sync is in flight.
    busy: Arc<AtomicBool>,
    notes: SyncSender<Note>,
}

impl Durability {
    /// Starts the thread. Without a waiting writer it syncs at this interval, so that an
    /// unacknowledged write is lost only if the machine fails soon after it.
    pub(crate) fn start(node: Arc<Node>, interval: Duration) -> std::io::Result<Self> {
        let (notes, waiting) = sync_channel(MAX_WAITING);
        let busy = Arc::new(AtomicBool::new(false));
        let durability = Self { node: Arc::clone(&node), busy: Arc::clone(&busy), notes };
        std::thread::Builder::new()
            .name("quorate-sync".to_owned())
            .spawn(move || sync_for_all(&node, &busy, &waiting, interval))?;
        Ok(durability)
    }

    /// Returns once the commit would survive a crash. If the disk fails, clients of a member of a set are
    /// sent to the next primary; clients may retry what is retryable.
    pub(crate) async fn wait(&self, sequence: CommitSequence) -> Result<(), CommandError> {
        self.synced(sequence).await.map_err(|error| self.node.completed(error, true))
    }

    async fn synced(&self, sequence: CommitSequence) -> Result<(), CommandError> {
        let stopped =
            || CommandError::new(ErrorCode::INTERRUPTED_AT_SHUTDOWN, "the server is shutting down");
        if self.node.durability().1 >= sequence {
            return Ok(());
        }
        if !self.busy.swap(true, Ordering::AcqRel) {
            let result = tokio::task::block_in_place(|| self.node.sync_through(sequence));
            self.busy.store(false, Ordering::Release);
            return result;
        }
        let (answer, answered) = oneshot::channel();
        self.notes.try_send(Note { sequence, answer }).map_err(|error| match error {
            TrySendError::Full(_) => CommandError::new(
                ErrorCode::INTERNAL_ERROR,
                format!("{MAX_WAITING} writers wait for the disk; try again later"),
            ),
            TrySendError::Disconnected(_) => stopped(),
        })?;
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }
}

fn sync_for_all(node: &Node, busy: &AtomicBool, waiting: &Receiver<Note>, interval: Duration) {
    use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
    loop {
        let first = match waiting.recv_timeout(interval) {
            Ok(note) => Some(note),
            Err(Timeout) => None,
            Err(Disconnected) => return,
        };
        let notes: Vec<Note> = first.into_iter().chain(waiting.try_iter()).collect();
        let (committed, synced) = node.durability();
        let target = notes.iter().map(|note| note.sequence).max().unwrap_or(committed);
        if target <= synced {
            answer_all(notes, &Ok(()));
            continue;
        }
        // If a connection is syncing, this waits for it and leads the next sync.
        busy.store(true, Ordering::Release);
        let result = node.sync_through(target);
        busy.store(false, Ordering::Release);
        if let Err(error) = &result {
            tracing::error!(%error, "syncing the journal failed");
        }
        let failed = result.is_err();
        let idle = notes.is_empty();
        answer_all(notes, &result);
        if failed && idle {
            // Nothing more will be written; only waiting writers need to be told.
            std::thread::sleep(interval);
        }
    }
}

fn answer_all(notes: Vec<Note>, result: &Result<(), CommandError>) {
    for note in notes {
        // Ignore send errors: the connection is gone.
        let _ = note.answer.send(result.clone());
    }
}
