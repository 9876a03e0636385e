//! The threads that may wait for the disk, so that the host never does.
//!
//! The applier changes data in the order it is told: it joins what has gathered, commits it at once
//! and forces it to disk itself, so that an entry costs a follower one change of thread there and one
//! back. The persist thread stores votes, terms and configurations in their order. The syncing thread
//! forces what clients wrote to disk, once for everybody who wrote meanwhile. The host hears of
//! applied entries when they are on disk: one report to the source then tells both.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_node::{CommandError, MAX_APPLY_ENTRIES, Node};
use quorate_protocol::OpTime;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::copying::wait_until_old_enough;
use super::{Inbox, Message};
use crate::clock::Clock;
use crate::write_gate::WriteGate;

/// Jobs that wait for a thread. The buffer of fetched entries is bounded by itself.
const MAX_JOBS: usize = 16_384;

pub(super) type Job = Box<dyn FnOnce(&Node) -> Result<(), CommandError> + Send>;

/// A thread that does jobs in order. Ends when its last handle is gone.
#[derive(Clone)]
pub(super) struct Worker {
    jobs: SyncSender<Job>,
    inbox: Inbox,
}

impl Worker {
    pub(super) fn start(name: &str, node: Arc<Node>, inbox: Inbox) -> io::Result<Self> {
        let (jobs, receiver): (_, Receiver<Job>) = sync_channel(MAX_JOBS);
        let broken = inbox.clone();
        std::thread::Builder::new().name(format!("quorate-{name}")).spawn(move || {
            for job in receiver {
                if let Err(error) = job(&node) {
                    broken.post(Message::Broken(error.message));
                    return;
                }
            }
        })?;
        Ok(Self { jobs, inbox })
    }

    pub(super) fn add(&self, job: Job) {
        if self.jobs.try_send(job).is_err() {
            self.inbox.post(Message::Broken("a thread of the member is gone".to_owned()));
        }
    }
}

/// Entries of a source that are to be applied, after this one.
pub(super) struct Entries {
    pub(super) previous: OpTime,
    pub(super) entries: Vec<RawDocumentBuf>,
    /// Room in the buffer of fetched entries, given back when they are applied.
    pub(super) room: Vec<OwnedSemaphorePermit>,
    /// How old they must be.
    pub(super) delay: Duration,
}

enum Change {
    Apply(Entries),
    Other(Job),
}

/// The thread that changes data as others did. Ends when its last handle is gone.
#[derive(Clone)]
pub(super) struct Applier {
    changes: SyncSender<Change>,
    inbox: Inbox,
}

impl Applier {
    pub(super) fn start(
        node: Arc<Node>,
        inbox: Inbox,
        clock: Clock,
        progress: Arc<Notify>,
        gate: Arc<WriteGate>,
    ) -> io::Result<Self> {
        let (changes, receiver) = sync_channel(MAX_JOBS);
        let broken = inbox.clone();
        std::thread::Builder::new().name("quorate-apply".to_owned()).spawn(move || {
            while let Ok(first) = receiver.recv() {
                let result = apply_all(&node, first, &receiver, clock, &gate)
                    .and_then(|()| node.sync_log().map(drop));
                match result {
                    Ok(()) => progress.notify_one(),
                    Err(error) => return broken.post(Message::Broken(error.message)),
                }
            }
        })?;
        Ok(Self { changes, inbox })
    }

    pub(super) fn apply(&self, entries: Entries) {
        self.send(Change::Apply(entries));
    }

    pub(super) fn add(&self, job: Job) {
        self.send(Change::Other(job));
    }

    fn send(&self, change: Change) {
        if self.changes.try_send(change).is_err() {
            self.inbox.post(Message::Broken("the applying thread is gone".to_owned()));
        }
    }
}

/// Does what there is to do, up to a batch of entries.
fn apply_all(
    node: &Node,
    first: Change,
    receiver: &Receiver<Change>,
    clock: Clock,
    gate: &WriteGate,
) -> Result<(), CommandError> {
    let mut next = Some(first);
    let mut applied = 0;
    while let Some(change) = next.take() {
        match change {
            Change::Other(job) => {
                let _entered = gate.blocking_enter();
                job(node)?;
            }
            Change::Apply(mut joined) => {
                // What has gathered is committed at once: fewer commits, and fewer syncs.
                while joined.entries.len() < MAX_APPLY_ENTRIES {
                    match receiver.try_recv() {
                        Ok(Change::Apply(more)) if more.delay == joined.delay => {
                            joined.entries.extend(more.entries);
                            joined.room.extend(more.room);
                        }
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                applied += joined.entries.len();
                wait_until_old_enough(&joined.entries, joined.delay, clock);
                let _entered = gate.blocking_enter();
                node.apply(joined.previous, joined.entries, clock.now())?;
            }
        }
        if next.is_none() && applied < MAX_APPLY_ENTRIES {
            next = receiver.try_recv().ok();
        }
    }
    Ok(())
}

/// Wakes the syncing thread.
#[derive(Clone, Default)]
pub(super) struct Syncer(Arc<(Mutex<Wanted>, Condvar)>);

#[derive(Default)]
struct Wanted {
    sync: bool,
    end: bool,
    /// What others have committed, which is how a group is known to be over.
    committed: OpTime,
    /// The thread lets writes gather until this is committed.
    gathering_behind: Option<OpTime>,
}

/// The longest that writes gather for one sync while earlier ones are not committed.
const GATHERING: Duration = Duration::from_millis(1);

impl Syncer {
    /// Starts the thread.
    pub(super) fn start(
        &self,
        node: Arc<Node>,
        inbox: Inbox,
        progress: Arc<Notify>,
    ) -> io::Result<()> {
        let shared = self.clone();
        std::thread::Builder::new().name("quorate-log-sync".to_owned()).spawn(move || {
            let mut synced = OpTime::NULL;
            while shared.wait(synced) {
                match node.sync_log() {
                    Ok(positions) => {
                        synced = positions.durable.op_time;
                        progress.notify_one();
                    }
                    Err(error) => return inbox.post(Message::Broken(error.message)),
                }
            }
        })?;
        Ok(())
    }

    /// The log has grown.
    pub(super) fn wake(&self) {
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let asleep = !std::mem::replace(&mut wanted.sync, true);
        // A thread that is woken into a lock goes to sleep again.
        drop(wanted);
        if asleep {
            condition.notify_one();
        }
    }

    /// A majority has the log up to here.
    pub(super) fn committed(&self, committed: OpTime) {
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.committed = committed;
        let over = wanted.gathering_behind.is_some_and(|behind| behind <= committed);
        drop(wanted);
        if over {
            condition.notify_one();
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        let (wanted, condition) = &*self.0;
        wanted.lock().unwrap_or_else(PoisonError::into_inner).end = true;
        condition.notify_one();
    }

    /// Returns when it is time to sync, or false at the end. While what was synced last is not
    /// committed, writes gather: the next sync could not be acknowledged before anyway.
    fn wait(&self, synced: OpTime) -> bool {
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        while !wanted.sync && !wanted.end {
            wanted = condition.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
        if wanted.committed < synced && !wanted.end {
            wanted.gathering_behind = Some(synced);
            let gathered = condition.wait_timeout_while(wanted, GATHERING, |wanted| {
                wanted.committed < synced && !wanted.end
            });
            wanted = gathered.unwrap_or_else(PoisonError::into_inner).0;
            wanted.gathering_behind = None;
        }
        wanted.sync = false;
        !wanted.end
    }
}
