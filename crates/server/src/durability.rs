//! Waiting for the disk: one sync serves every connection that waits.
//!
//! A lone connection that finds no sync in flight syncs itself, which spares it two changes of thread. Other
//! connections leave a note of what they wait for; a thread takes all notes there are, syncs once, and
//! answers them together. While a sync is under way, the next notes gather. As long as notes come in groups,
//! no connection syncs itself: the runtime would move its other tasks to another thread each time.
//!
//! A connection that does not wait for the disk needs its commit in the journal's file. One write serves many of these too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::TrySendError;
use std::time::Duration;

use quorate_node::{CommandError, ErrorCode, Node};
use quorate_storage::CommitSequence;
use tokio::sync::oneshot;

use crate::bounded_channel::{BoundedReceiver, BoundedSender, bounded_channel};

/// One in so many writes by a lone connection lets others go first, to see whether there are any.
const LOOKS_FOR_OTHERS: u32 = 32;

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
    traffic: Arc<Traffic>,
    gathering: Arc<Gathering>,
    notes: BoundedSender<Note>,
}

/// Whether connections that do not wait for the disk write the journal to its file one by one, or one for many.
#[derive(Default)]
struct Gathering {
    /// Whether the last write to the file was for several commits.
    crowded: AtomicBool,
    /// How many connections wrote at once since one let others go first.
    lone: AtomicU32,
}

impl Gathering {
    /// Whether a connection lets others commit before it writes to the file.
    fn lets_others_go_first(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
            || self.lone.fetch_add(1, Ordering::Relaxed) % LOOKS_FOR_OTHERS == LOOKS_FOR_OTHERS - 1
    }

    /// A connection has written so many commits: none if another was faster.
    fn wrote(&self, commits: u64) {
        self.crowded.store(commits != 1, Ordering::Relaxed);
    }
}

/// What connections and the thread know of each other.
#[derive(Default)]
struct Traffic {
    /// Whether a sync is in flight.
    busy: AtomicBool,
    /// Whether several notes were taken together last.
    crowded: AtomicBool,
}

impl Traffic {
    /// Whether a connection may sync itself. If so, a sync is in flight until it says otherwise.
    fn lets_one_sync(&self) -> bool {
        !self.crowded.load(Ordering::Relaxed) && !self.busy.swap(true, Ordering::AcqRel)
    }

    fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Release);
    }

    /// The thread has taken so many notes together.
    fn notes_taken(&self, count: usize) {
        self.crowded.store(count > 1, Ordering::Relaxed);
    }
}

impl Durability {
    /// Starts the thread. Without a waiting writer it syncs at this interval, so that an
    /// unacknowledged write is lost only if the machine fails soon after it.
    pub(crate) fn start(node: Arc<Node>, interval: Duration) -> std::io::Result<Self> {
        let (notes, waiting) = bounded_channel(MAX_WAITING);
        let traffic = Arc::<Traffic>::default();
        let durability = Self {
            node: Arc::clone(&node),
            traffic: Arc::clone(&traffic),
            gathering: Arc::default(),
            notes,
        };
        std::thread::Builder::new()
            .name("quorate-sync".to_owned())
            .spawn(move || sync_for_all(&node, &traffic, &waiting, interval))?;
        Ok(durability)
    }

    /// Returns once every commit before the call would survive the end of the process. Where connections write at the same
    /// time, each lets the others of its worker commit, and the first that goes on writes for all of them.
    pub(crate) async fn write_out(&self) -> Result<(), CommandError> {
        let sequence = self.node.durability().0;
        if self.gathering.lets_others_go_first() {
            tokio::task::yield_now().await;
        }
        let written = self.node.write_out_through(sequence);
        self.gathering.wrote(written.map_err(|error| self.node.completed(error, true))?);
        Ok(())
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
        if self.traffic.lets_one_sync() {
            let result = tokio::task::block_in_place(|| self.node.sync_through(sequence));
            self.traffic.set_busy(false);
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

fn sync_for_all(
    node: &Node,
    traffic: &Traffic,
    waiting: &BoundedReceiver<Note>,
    interval: Duration,
) {
    use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
    loop {
        let first = match waiting.recv_timeout(interval) {
            Ok(note) => Some(note),
            Err(Timeout) => None,
            Err(Disconnected) => return,
        };
        let notes: Vec<Note> = first.into_iter().chain(waiting.try_iter()).collect();
        traffic.notes_taken(notes.len());
        let (committed, synced) = node.durability();
        let target = notes.iter().map(|note| note.sequence).max().unwrap_or(committed);
        if target <= synced {
            answer_all(notes, &Ok(()));
            continue;
        }
        // If a connection is syncing, this waits for it and leads the next sync.
        traffic.set_busy(true);
        let result = node.sync_through(target);
        traffic.set_busy(false);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lone_connection_syncs_itself() {
        let traffic = Traffic::default();
        assert!(traffic.lets_one_sync());
        assert!(!traffic.lets_one_sync(), "a sync is in flight");
        traffic.set_busy(false);
        traffic.notes_taken(2);
        assert!(!traffic.lets_one_sync(), "notes come in groups");
        traffic.notes_taken(1);
        assert!(traffic.lets_one_sync());
        traffic.set_busy(false);
        traffic.notes_taken(0);
        assert!(traffic.lets_one_sync());
    }

    #[test]
    fn a_lone_connection_rarely_looks_for_others() {
        let gathering = Gathering::default();
        let looks = || {
            let looks = gathering.lets_others_go_first();
            gathering.wrote(1);
            looks
        };
        let looked: u32 = (0..4 * LOOKS_FOR_OTHERS).map(|_| u32::from(looks())).sum();
        assert_eq!(looked, 4);
        gathering.wrote(2);
        assert!(gathering.lets_others_go_first(), "there were others");
        gathering.wrote(0);
        assert!(gathering.lets_others_go_first(), "another wrote for it");
        gathering.wrote(1);
        assert!(!gathering.lets_others_go_first(), "it was alone");
    }
}
