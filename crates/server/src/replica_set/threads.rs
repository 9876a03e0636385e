//! The threads that may wait for the disk, so that the host never does.
//!
//! The applier changes data in the order it is told; the persist thread stores votes, terms and
//! configurations in theirs; the syncing thread forces the log to disk whenever it has grown, once
//! for everybody who wrote meanwhile. The host hears of applied entries when they are on disk: one
//! report to the source then tells both.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use quorate_node::Node;
use tokio::sync::Notify;

use super::{Inbox, Message};

/// Jobs that wait for a thread. The buffer of fetched entries is bounded by itself.
const MAX_JOBS: usize = 16_384;

pub(super) type Job = Box<dyn FnOnce(&Node) -> Result<(), quorate_node::CommandError> + Send>;

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

/// Wakes the syncing thread.
#[derive(Clone, Default)]
pub(super) struct Syncer(Arc<(Mutex<Wanted>, Condvar)>);

#[derive(Default)]
struct Wanted {
    sync: bool,
    end: bool,
}

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
            while shared.wait() {
                match node.sync_log() {
                    Ok(_) => progress.notify_one(),
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
        if !wanted.sync {
            wanted.sync = true;
            condition.notify_one();
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        let (wanted, condition) = &*self.0;
        wanted.lock().unwrap_or_else(PoisonError::into_inner).end = true;
        condition.notify_one();
    }

    fn wait(&self) -> bool {
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        while !wanted.sync && !wanted.end {
            wanted = condition.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
        wanted.sync = false;
        !wanted.end
    }
}
