//! The threads that may wait for the disk, so that the host never does.
//!
//! The applier changes data in the order it is told: it joins what has gathered, commits it at once
//! and forces it to disk. It has a thread, but a thread that brings a few entries and may wait for the
//! disk applies them itself, which spares an entry two changes of thread. The persist thread stores votes, terms and configurations in their order. The syncing thread
//! forces what clients wrote to disk, once for all that wrote meanwhile. The host hears of
//! applied entries when they are on disk: one report to the source then tells both.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use quorate_member::{DataChange, Entries};
use quorate_node::{CommandError, ErrorCode, MAX_APPLY_ENTRIES, Node};
use quorate_protocol::OpTime;
use quorate_replication::Input;
use tokio::sync::OwnedSemaphorePermit;

use super::Message;
use super::copying::{RollbackFiles, wait_until_old_enough};
use super::inbox::Inbox;
use super::source::GATHERING;
use crate::clock::Clock;
use crate::write_gate::{Entered, WriteGate};

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

/// A change of data, with its room in the buffer of fetched entries.
type Change = DataChange<OwnedSemaphorePermit>;

/// The most entries that the fetching thread applies itself. More are left to the applier's thread, so that
/// the next ones are read meanwhile.
const MAX_HELPED: usize = 256;

/// Changes of data as others made them, in order. Its thread ends when its last handle is gone.
#[derive(Clone)]
pub(super) struct Applier(Arc<Handle>);

/// What ends the thread.
struct Handle(Arc<Applying>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.queue().end = true;
        self.0.condition.notify_one();
    }
}

struct Applying {
    /// Where documents that a rollback removes are kept.
    rollback_directory: Option<PathBuf>,
    node: Arc<Node>,
    inbox: Inbox,
    clock: Clock,
    gate: Arc<WriteGate>,
    queue: Mutex<Changes>,
    condition: Condvar,
    /// Held while changes are taken and made.
    at_work: Mutex<()>,
}

#[derive(Default)]
struct Changes {
    waiting: VecDeque<Change>,
    end: bool,
}

impl Changes {
    /// Whether it is little, and nothing that would hold up the reading of more.
    fn are_few(&self) -> bool {
        let sizes = self.waiting.iter().map(|change| match change {
            DataChange::Apply(entries) if entries.delay.is_zero() => entries.entries.len(),
            _ => usize::MAX,
        });
        sizes.fold(0_usize, usize::saturating_add) <= MAX_HELPED
    }
}

impl Applier {
    /// Starts the thread.
    pub(super) fn start(
        node: Arc<Node>,
        inbox: Inbox,
        clock: Clock,
        gate: Arc<WriteGate>,
        rollback_directory: Option<PathBuf>,
    ) -> io::Result<Self> {
        let applying = Arc::new(Applying {
            rollback_directory,
            node,
            inbox,
            clock,
            gate,
            queue: Mutex::default(),
            condition: Condvar::new(),
            at_work: Mutex::default(),
        });
        let thread = Arc::clone(&applying);
        std::thread::Builder::new().name("quorate-apply".to_owned()).spawn(move || {
            while thread.wait() {
                let at_work = thread.at_work.lock().unwrap_or_else(PoisonError::into_inner);
                thread.work(None);
                drop(at_work);
            }
        })?;
        Ok(Self(Arc::new(Handle(applying))))
    }

    /// Has the thread do what there is.
    pub(super) fn wake(&self) {
        if !self.0.0.queue().waiting.is_empty() {
            self.0.0.condition.notify_one();
        }
    }

    /// Makes the waiting changes on this thread, if they are few and no other thread makes them.
    pub(super) fn help(&self) {
        let applying = &self.0.0;
        let few = applying.queue().are_few();
        match (applying.at_work.try_lock(), applying.gate.try_enter_to_apply()) {
            (Ok(_at_work), Some(entered)) if few => applying.work(Some(entered)),
            // It may just have looked for the last time.
            _ => self.wake(),
        }
    }

    /// Adds a change. Nothing happens before [`wake`](Self::wake) or [`help`](Self::help).
    pub(super) fn add(&self, change: Change) {
        let mut queue = self.0.0.queue();
        if queue.end {
            return;
        }
        if queue.waiting.len() < MAX_JOBS {
            queue.waiting.push_back(change);
        } else {
            drop(queue);
            let why = format!("{MAX_JOBS} changes wait to be applied");
            self.0.0.inbox.post(Message::Broken(why));
        }
    }
}

/// How much of the waiting changes was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    All,
    /// Entries met the end of the disk, and wait for room.
    UpToEndOfDisk,
}

impl Applying {
    fn queue(&self) -> MutexGuard<'_, Changes> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when there is something to do, or false at the end.
    fn wait(&self) -> bool {
        let queue = self.queue();
        let idle = |changes: &mut Changes| changes.waiting.is_empty() && !changes.end;
        let queue = self.condition.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
        !queue.end
    }

    fn next(&self) -> Option<Change> {
        self.queue().waiting.pop_front()
    }

    /// Makes the waiting changes and forces them to disk. The applier's thread waits at the gate for writes; a
    /// helping thread has passed it.
    fn work(&self, entered: Option<Entered<'_>>) {
        while let Some(first) = self.next() {
            let made = self
                .apply_all(first, entered.is_some())
                .and_then(|done| self.node.sync_log().map(|_| done));
            match made {
                Ok(Done::All) => self.inbox.post(Message::LogMoved),
                Ok(Done::UpToEndOfDisk) => {
                    self.inbox.post(Message::LogMoved);
                    // Only the applier's thread waits for room.
                    if entered.is_some() {
                        return;
                    }
                }
                Err(error) => {
                    // Nothing may follow what could not be applied.
                    let mut queue = self.queue();
                    queue.end = true;
                    queue.waiting.clear();
                    drop(queue);
                    return self.inbox.post(Message::Broken(error.message));
                }
            }
        }
    }

    /// Makes a change. Entries that met the end of the disk are given back, to be tried again: the store is as
    /// it was, and those of them that it has are left out then.
    fn make_or_keep(&self, mut change: Change) -> Result<Option<Change>, CommandError> {
        // In memory there is no end of the disk to meet.
        let kept = match &mut change {
            DataChange::Apply(entries) if self.rollback_directory.is_some() => {
                let room = std::mem::take(&mut entries.room);
                let (previous, delay) = (entries.previous, entries.delay);
                let entries = entries.entries.clone();
                Some(DataChange::Apply(Entries { previous, entries, room, delay }))
            }
            _ => None,
        };
        match (self.make(change), kept) {
            (Err(error), Some(kept))
                if error.code == ErrorCode::OUT_OF_DISK_SPACE && self.gate.meet_end_of_disk() =>
            {
                tracing::warn!(%error, "entries of other members wait for room on the disk");
                Ok(Some(kept))
            }
            (made, _) => made.map(|()| None),
        }
    }

    /// Puts changes back that could not be made yet, in their order.
    fn put_back(&self, first: Change, second: Option<Change>) {
        let mut queue = self.queue();
        for change in second.into_iter().chain([first]) {
            queue.waiting.push_front(change);
        }
        drop(queue);
        self.condition.notify_one();
    }

    fn make(&self, change: Change) -> Result<(), CommandError> {
        let mut files = RollbackFiles::new(self.rollback_directory.clone(), &self.clock);
        let ended = change.make(&self.node, self.clock.now(), &mut |undo| files.keep(undo))?;
        files.finish()?;
        if let Some(input) = ended.input {
            if let Input::RolledBack { last, .. } = &input {
                tracing::warn!(entries = ended.undone, to = %last, "rolled back");
            }
            self.inbox.post(Message::Input(input));
        }
        Ok(())
    }

    /// Does what there is to do, up to a batch of entries.
    fn apply_all(&self, first: Change, entered: bool) -> Result<Done, CommandError> {
        let enter = || (!entered).then(|| self.gate.blocking_enter());
        let mut next = Some(first);
        let mut applied = 0;
        while let Some(mut change) = next.take() {
            if let DataChange::Apply(joined) = &mut change {
                // What has gathered is committed at once: fewer commits, and fewer syncs.
                while joined.entries.len() < MAX_APPLY_ENTRIES {
                    match self.next() {
                        Some(DataChange::Apply(more)) if joined.is_followed_by(&more) => {
                            joined.join(more);
                        }
                        other => {
                            next = other;
                            break;
                        }
                    }
                }
                applied += joined.entries.len();
                wait_until_old_enough(&joined.entries, joined.delay, &self.clock);
            }
            let _entered = enter();
            if let Some(kept) = self.make_or_keep(change)? {
                self.put_back(kept, next);
                return Ok(Done::UpToEndOfDisk);
            }
            if next.is_none() && applied < MAX_APPLY_ENTRIES {
                next = self.next();
            }
        }
        Ok(Done::All)
    }
}

/// Wakes the syncing thread.
#[derive(Clone, Default)]
pub(super) struct Syncer(Arc<(Mutex<Wanted>, Condvar)>);

#[derive(Default)]
struct Wanted {
    sync: bool,
    end: bool,
    /// Why the store has stopped writing, if it has.
    failed: Option<String>,
    /// What others have committed, which is how a group is known to be over.
    committed: OpTime,
    /// The thread lets writes gather until this is committed.
    gathering_behind: Option<OpTime>,
}

impl Syncer {
    /// Starts the thread.
    pub(super) fn start(&self, node: Arc<Node>, inbox: Inbox) -> io::Result<()> {
        let shared = self.clone();
        std::thread::Builder::new().name("quorate-log-sync".to_owned()).spawn(move || {
            let mut synced = OpTime::NULL;
            while shared.wait(synced) {
                let failed = shared.failed();
                match failed.map_or_else(|| node.sync_log().map_err(|error| error.message), Err) {
                    Ok(positions) => {
                        synced = positions.durable.op_time;
                        inbox.post(Message::LogMoved);
                    }
                    Err(why) => return inbox.post(Message::Broken(why)),
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

    /// The store has stopped writing. The thread tells the host: the caller may hold the write lock.
    pub(super) fn fail(&self, why: &str) {
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.sync = true;
        wanted.failed.get_or_insert_with(|| why.to_owned());
        drop(wanted);
        condition.notify_one();
    }

    fn failed(&self) -> Option<String> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).failed.clone()
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bson::{DateTime, RawDocumentBuf, Timestamp, rawdoc};
    use quorate_node::NodeOptions;
    use quorate_storage::{DiskOptions, DiskStore, SimulatedFiles};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn until(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "never saw {what}");
            std::thread::yield_now();
        }
    }

    fn op_time(number: u32) -> OpTime {
        match number {
            0 => OpTime::NULL,
            increment => OpTime::new(1, quorate_protocol::Timestamp::new(1, increment)),
        }
    }

    fn entry(number: u32) -> RawDocumentBuf {
        rawdoc! {
            "op": "n", "ns": "", "o": { "msg": "x".repeat(100_000) },
            "ts": Timestamp { time: 1, increment: number }, "t": 1_i64, "v": 2_i64,
            "wall": DateTime::from_millis(1),
        }
    }

    /// docs/replication-rules.md: a follower whose entries come faster than its disk is looked at.
    #[test]
    fn entries_that_meet_the_end_of_the_disk_wait_for_room() {
        const ENTRIES: u32 = 60;
        let directory = tempfile::tempdir().unwrap();
        let files = SimulatedFiles::new();
        let store =
            DiskStore::open_on(Arc::new(files.clone()), directory.path(), DiskOptions::default());
        let options = NodeOptions { oplog_bytes: Some(1 << 30), ..NodeOptions::default() };
        let clock = Clock::new();
        let node = Arc::new(Node::open(Arc::new(store.unwrap()), options, clock.now()).unwrap());
        node.join_replica_set(clock.now()).unwrap();
        let gate = Arc::new(WriteGate::default());
        let place = Some(directory.path().join("rollback"));
        let applier =
            Applier::start(Arc::clone(&node), Inbox::new(), clock, Arc::clone(&gate), place)
                .unwrap();
        files.limit_room(Some(0));
        let written = || node.log_positions().written.op_time;
        for number in 1..=ENTRIES {
            let (previous, entries) = (op_time(number - 1), vec![entry(number)]);
            let delay = Duration::ZERO;
            applier.add(DataChange::Apply(Entries { previous, entries, room: Vec::new(), delay }));
            // Some of them by a thread that may not wait, as entries are fetched.
            match number % 2 {
                0 => applier.help(),
                _ => applier.wake(),
            }
        }
        until("the end of the disk", || gate.has_met_end_of_disk());
        assert!(gate.try_enter_to_apply().is_none(), "what comes later waits as well");
        assert!(written() < op_time(ENTRIES));
        files.limit_room(None);
        gate.set_disk_full(false);
        until("all entries", || written() == op_time(ENTRIES));
        let kept = node.read_oplog(std::ops::Bound::Unbounded, usize::MAX, usize::MAX).unwrap();
        assert_eq!(kept.entries.len(), ENTRIES as usize, "each of them once");
        // A server that ends waits for nothing.
        gate.end();
        assert!(!gate.meet_end_of_disk() && gate.try_enter_to_apply().is_some());
    }
}
