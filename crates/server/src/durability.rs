//! Waiting for the disk: one sync serves every connection that waits.
//!
//! The first connection that waits leads. Where several connections write, it lets the others of its worker commit first; then
//! it syncs on this worker, and answers all that wait. What comes meanwhile waits for the next sync, which one of those leads.
//! No thread is woken for a sync, and most answers stay on the worker that has the connections.
//!
//! ```text
//!   first waits ──▶ others commit ──▶ sync ──▶ answers ──▶ one that came meanwhile leads
//! ```
//!
//! A worker that syncs serves no connection. So a disk that is slow, and a runtime with one worker, leave syncs to a thread,
//! which leads in the same way; and [`Standby`] has another worker woken if a sync takes long.
//!
//! A connection that does not wait for the disk needs its commit in the journal's file. One write serves many of these too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use quorate_node::{CommandError, ErrorCode, Node};
use quorate_protocol::Lock;
use quorate_storage::CommitSequence;
use tokio::sync::oneshot;

use crate::standby::{QUICK, Standby};

/// One in so many writes by a lone connection lets others go first, to see whether there are any.
const LOOKS_FOR_OTHERS: u32 = 32;

/// Writers that may wait at once; every connection waits for one write at a time.
const MAX_WAITING: usize = 65_536;

type Synced = Result<(), CommandError>;

/// What a connection that waits is told.
enum Told {
    /// What came of a sync that has its commit.
    Synced(Synced),
    /// It leads the next sync.
    Lead,
}

/// The way to the disk. The thread ends when the last of these is gone.
#[derive(Clone)]
pub(crate) struct Durability {
    line: Arc<Line>,
    _end: Arc<End>,
}

/// The connections that wait, and what they know of each other.
struct Line {
    node: Arc<Node>,
    standby: Standby,
    queue: Lock<Queue>,
    /// Wakes the thread.
    thread: Condvar,
    syncing: Gathering,
    writing: Gathering,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<oneshot::Sender<Told>>,
    /// Whether a connection or the thread leads.
    is_led: bool,
    /// Whether it is the thread that leads next.
    thread_leads: bool,
    /// Whether connections lead: the last sync was quick, and there is another worker.
    is_quick: bool,
    is_over: bool,
}

/// Ends the thread.
struct End(Arc<Line>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.queue.lock().is_over = true;
        self.0.thread.notify_one();
    }
}

/// Whether connections come one by one, or one can do the work of many.
#[derive(Default)]
struct Gathering {
    /// Whether the last one did the work of several.
    crowded: AtomicBool,
    /// How many were alone since one let others go first.
    lone: AtomicU32,
}

impl Gathering {
    /// Whether a connection lets others commit before it goes on.
    fn lets_others_go_first(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
            || self.lone.fetch_add(1, Ordering::Relaxed) % LOOKS_FOR_OTHERS == LOOKS_FOR_OTHERS - 1
    }

    /// A connection has done the work of so many: none if another was faster.
    fn served(&self, count: u64) {
        self.crowded.store(count != 1, Ordering::Relaxed);
    }
}

/// The lead, which is passed on when this is dropped.
struct Lead<'l>(&'l Line);

impl Lead<'_> {
    /// Forces all that is committed to the disk, for all that wait by now and for the leader if it waits too.
    fn sync(&self, leader: u64, run: impl FnOnce(&mut dyn FnMut())) -> Synced {
        let Line { node, queue, standby, .. } = self.0;
        let waiting = std::mem::take(&mut queue.lock().waiting);
        let (committed, _) = node.durability();
        let (began, mut result) = (Instant::now(), Ok(()));
        run(&mut || result = node.sync_through(committed));
        queue.lock().is_quick = began.elapsed() <= QUICK && standby.is_there();
        self.0.syncing.served(waiting.len() as u64 + leader);
        if let Err(error) = &result {
            tracing::error!(%error, "syncing the journal failed");
        }
        for connection in waiting {
            // Ignore send errors: the connection is gone.
            let _ = connection.send(Told::Synced(result.clone()));
        }
        result
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        if !queue.is_quick && !queue.waiting.is_empty() {
            queue.thread_leads = true;
            drop(queue);
            return self.0.thread.notify_one();
        }
        while let Some(next) = queue.waiting.pop_front() {
            // A connection that is gone does not lead.
            if next.send(Told::Lead).is_ok() {
                return;
            }
        }
        queue.is_led = false;
    }
}

/// A connection that waits to be told.
struct Place<'l> {
    line: &'l Line,
    told: oneshot::Receiver<Told>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.told.close();
        // The connection that was to lead is gone.
        if let Ok(Told::Lead) = self.told.try_recv() {
            drop(Lead(self.line));
        }
    }
}

impl Durability {
    /// Starts the thread. Without a waiting writer it syncs at this interval, so that an
    /// unacknowledged write is lost only if the machine fails soon after it.
    pub(crate) fn start(
        node: Arc<Node>,
        interval: Duration,
        standby: Standby,
    ) -> std::io::Result<Self> {
        let line = Arc::new(Line {
            node,
            standby,
            queue: Lock::default(),
            thread: Condvar::new(),
            syncing: Gathering::default(),
            writing: Gathering::default(),
        });
        let of_thread = Arc::clone(&line);
        std::thread::Builder::new()
            .name("quorate-sync".to_owned())
            .spawn(move || of_thread.run(interval))?;
        Ok(Self { _end: Arc::new(End(Arc::clone(&line))), line })
    }

    /// Returns once every commit before the call would survive the end of the process. Where connections write at the same
    /// time, each lets the others of its worker commit, and the first that goes on writes for all of them.
    pub(crate) async fn write_out(&self) -> Result<(), CommandError> {
        let Line { node, writing, .. } = &*self.line;
        let sequence = node.durability().0;
        if writing.lets_others_go_first() {
            tokio::task::yield_now().await;
        }
        let written = node.write_out_through(sequence);
        writing.served(written.map_err(|error| node.completed(error, true))?);
        Ok(())
    }

    /// Returns once the commit would survive a crash. If the disk fails, clients of a member of a set are
    /// sent to the next primary; clients may retry what is retryable.
    pub(crate) async fn wait(&self, sequence: CommitSequence) -> Result<(), CommandError> {
        let synced = self.line.synced(sequence).await;
        synced.map_err(|error| self.line.node.completed(error, true))
    }
}

impl Line {
    async fn synced(&self, sequence: CommitSequence) -> Synced {
        if self.node.durability().1 >= sequence {
            return Ok(());
        }
        if let Some(mut place) = self.join()? {
            match (&mut place.told).await {
                Ok(Told::Synced(result)) => return result,
                Ok(Told::Lead) => {}
                Err(_) => {
                    let why = "the server is shutting down";
                    return Err(CommandError::new(ErrorCode::INTERRUPTED_AT_SHUTDOWN, why));
                }
            }
        }
        let lead = Lead(self);
        if self.syncing.lets_others_go_first() {
            tokio::task::yield_now().await;
        }
        lead.sync(1, |sync| self.standby.wait(sync))
    }

    /// Takes a place in the line. None if the connection leads.
    fn join(&self) -> Result<Option<Place<'_>>, CommandError> {
        let mut queue = self.queue.lock();
        if queue.is_quick && !queue.is_led {
            queue.is_led = true;
            return Ok(None);
        }
        if queue.waiting.len() >= MAX_WAITING {
            let why = format!("{MAX_WAITING} writers wait for the disk; try again later");
            return Err(CommandError::new(ErrorCode::INTERNAL_ERROR, why));
        }
        let (tell, told) = oneshot::channel();
        queue.waiting.push_back(tell);
        if !std::mem::replace(&mut queue.is_led, true) {
            queue.thread_leads = true;
            drop(queue);
            self.thread.notify_one();
        }
        Ok(Some(Place { line: self, told }))
    }

    /// What the thread does: it leads when it is to, and syncs from time to time.
    fn run(&self, interval: Duration) {
        loop {
            let queue = self.queue.lock();
            let is_idle = |queue: &mut Queue| !queue.thread_leads && !queue.is_over;
            let waited = self.thread.wait_timeout_while(queue, interval, is_idle);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            if queue.is_over {
                // Dropping the senders tells the waiting connections that no sync will come.
                return queue.waiting.clear();
            }
            if std::mem::take(&mut queue.thread_leads) {
                drop(queue);
                let _ = Lead(self).sync(0, |sync| sync());
                continue;
            }
            drop(queue);
            let (committed, synced) = self.node.durability();
            if committed > synced
                && let Err(error) = self.node.sync_through(committed)
            {
                tracing::error!(%error, "syncing the journal failed");
                // Nothing more will be written; only waiting writers need to be told.
                std::thread::sleep(interval);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_node::NodeOptions;
    use quorate_storage::ModelStore;

    use super::*;
    use crate::clock::Clock;

    fn line(is_quick: bool) -> Line {
        let (store, clock) = (Arc::new(ModelStore::new()), Clock::new());
        let node = Node::open(store, NodeOptions::default(), clock.now()).unwrap();
        Line {
            node: Arc::new(node),
            standby: Standby::start().unwrap(),
            queue: Lock::new(Queue { is_quick, ..Queue::default() }),
            thread: Condvar::new(),
            syncing: Gathering::default(),
            writing: Gathering::default(),
        }
    }

    fn is_told_to_lead(place: &mut Place<'_>) -> bool {
        matches!(place.told.try_recv(), Ok(Told::Lead))
    }

    #[test]
    fn the_first_leads_and_one_of_those_that_wait_is_next() {
        let line = line(true);
        assert!(line.join().unwrap().is_none(), "it leads");
        let [mut gone, mut second, mut third] = [(); 3].map(|()| line.join().unwrap().unwrap());
        gone.told.close();
        drop(Lead(&line));
        assert!(is_told_to_lead(&mut second) && !is_told_to_lead(&mut third));
        drop(Lead(&line));
        assert!(is_told_to_lead(&mut third));
        assert!(line.queue.lock().is_led);
        drop(Lead(&line));
        assert!(line.join().unwrap().is_none(), "none was left, so the next one leads");
    }

    #[test]
    fn a_connection_that_goes_before_it_leads_passes_the_lead_on() {
        let line = line(true);
        assert!(line.join().unwrap().is_none());
        let [second, mut third] = [(); 2].map(|()| line.join().unwrap().unwrap());
        drop(Lead(&line));
        drop(second);
        assert!(is_told_to_lead(&mut third));
    }

    #[test]
    fn the_thread_leads_while_the_disk_is_slow() {
        let line = line(false);
        let mut places = [(); 2].map(|()| line.join().unwrap().unwrap());
        assert!(std::mem::take(&mut line.queue.lock().thread_leads));
        drop(Lead(&line));
        assert!(line.queue.lock().thread_leads, "those that came meanwhile are the thread's too");
        // Its sync was quick.
        line.queue.lock().is_quick = true;
        drop(Lead(&line));
        assert!(is_told_to_lead(&mut places[0]));
    }

    #[test]
    fn a_sync_answers_all_that_wait() {
        let line = line(true);
        assert!(line.join().unwrap().is_none());
        let mut places = [(); 3].map(|()| line.join().unwrap().unwrap());
        Lead(&line).sync(1, |sync| sync()).unwrap();
        let is_synced =
            |place: &mut Place<'_>| matches!(place.told.try_recv(), Ok(Told::Synced(Ok(()))));
        assert!(places.iter_mut().all(is_synced));
        assert!(!line.queue.lock().is_quick, "there is no other worker here");
        assert!(line.syncing.lets_others_go_first(), "there were several");
    }

    #[test]
    fn a_lone_connection_rarely_looks_for_others() {
        let gathering = Gathering::default();
        let looks = || {
            let looks = gathering.lets_others_go_first();
            gathering.served(1);
            looks
        };
        let looked: u32 = (0..4 * LOOKS_FOR_OTHERS).map(|_| u32::from(looks())).sum();
        assert_eq!(looked, 4);
        gathering.served(2);
        assert!(gathering.lets_others_go_first(), "there were others");
        gathering.served(0);
        assert!(gathering.lets_others_go_first(), "another did it");
        gathering.served(1);
        assert!(!gathering.lets_others_go_first(), "it was alone");
    }
}
