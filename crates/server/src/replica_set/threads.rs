//! The threads that may wait for the disk, so that the host never does.
//!
//! The applier changes data in the order it is told: it joins what has gathered, commits it at once
//! and forces it to disk. It has a thread, but a thread that brings a few entries and may wait for the
//! disk applies them itself, which spares an entry two changes of thread. The persist thread stores votes, terms and
//! configurations in their order. What clients wrote is forced to disk elsewhere (`log_sync`). The host hears of applied
//! entries when they are on disk: one report to the source then tells both.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use quorate_member::DataChange;
use quorate_node::{CommandError, ErrorCode, MAX_APPLY_ENTRIES, Node};
use quorate_protocol::Lock;
use quorate_replication::Input;
use tokio::sync::OwnedSemaphorePermit;

use super::Message;
use super::copying::{RollbackFiles, wait_until_old_enough};
use super::inbox::{Failing, Inbox};
use crate::bounded_channel::{BoundedSender, bounded_channel};
use crate::clock::Clock;
use crate::write_gate::{Entered, WriteGate};

/// The most queued jobs of a thread. The buffer of fetched entries has a bound of its own.
const MAX_JOBS: usize = 16_384;

pub(super) type Job = Box<dyn FnOnce(&Node) -> Result<(), CommandError> + Send>;

/// A thread that does jobs in order. Ends when its last handle is gone.
#[derive(Clone)]
pub(super) struct Worker {
    jobs: BoundedSender<Job>,
    inbox: Inbox,
}

impl Worker {
    pub(super) fn start(name: &str, node: Arc<Node>, inbox: Inbox) -> io::Result<Self> {
        let (jobs, receiver) = bounded_channel::<Job>(MAX_JOBS);
        let broken = inbox.clone();
        std::thread::Builder::new().name(format!("quorate-{name}")).spawn(move || {
            while let Ok(job) = receiver.recv() {
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

/// How long a change that found no free file descriptor waits before it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Changes of data as others made them, in order. Its thread ends when its last handle is gone.
#[derive(Clone)]
pub(super) struct Applier(Arc<Handle>);

/// What ends the thread.
struct Handle(Arc<Applying>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.queue.lock().end = true;
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
    queue: Lock<Changes>,
    condition: Condvar,
    /// Held while changes are taken and made.
    at_work: Lock<()>,
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
            queue: Lock::default(),
            condition: Condvar::new(),
            at_work: Lock::default(),
        });
        let thread = Arc::clone(&applying);
        std::thread::Builder::new().name("quorate-apply".to_owned()).spawn(move || {
            let _failing = Failing { inbox: &thread.inbox, thread: "applying" };
            while thread.wait() {
                let at_work = thread.at_work.lock();
                thread.work(None);
                drop(at_work);
            }
        })?;
        Ok(Self(Arc::new(Handle(applying))))
    }

    /// Has the thread do what there is.
    pub(super) fn wake(&self) {
        if !self.0.0.queue.lock().waiting.is_empty() {
            self.0.0.condition.notify_one();
        }
    }

    /// Makes the waiting changes on this thread, if they are few and no other thread makes them.
    pub(super) fn help(&self) {
        let applying = &self.0.0;
        let few = applying.queue.lock().are_few();
        match (applying.at_work.try_lock(), applying.gate.try_enter_to_apply()) {
            (Some(_at_work), Some(entered)) if few => applying.work(Some(entered)),
            // The other thread may have checked the queue for the last time.
            _ => self.wake(),
        }
    }

    /// Adds a change. Nothing happens before [`wake`](Self::wake) or [`help`](Self::help).
    pub(super) fn add(&self, change: Change) {
        let mut queue = self.0.0.queue.lock();
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
    /// A change met the end of the disk, and waits for room.
    UpToEndOfDisk,
    /// A change found no free file descriptor, and waits for one.
    UpToDescriptors,
    /// The server ends while writes are locked out. What is left is fetched again after the next start.
    UpToEndOfServer,
}

impl Applying {
    /// Returns when there is something to do, or false at the end.
    fn wait(&self) -> bool {
        let queue = self.queue.lock();
        let idle = |changes: &mut Changes| changes.waiting.is_empty() && !changes.end;
        let queue = self.condition.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
        !queue.end
    }

    fn next(&self) -> Option<Change> {
        self.queue.lock().waiting.pop_front()
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
                Ok(Done::UpToEndOfServer) => return self.give_up(),
                Ok(done) => {
                    self.inbox.post(Message::LogMoved);
                    // Only the applier's thread waits.
                    if entered.is_some() {
                        return;
                    }
                    if done == Done::UpToDescriptors {
                        self.gate.pause(RETRY_AFTER);
                    }
                }
                Err(error) => {
                    self.give_up();
                    return self.inbox.post(Message::Broken(error.message));
                }
            }
        }
    }

    /// Makes no more changes: nothing may follow one that was not made.
    fn give_up(&self) {
        let mut queue = self.queue.lock();
        queue.end = true;
        queue.waiting.clear();
    }

    /// Makes a change. One that met the end of the disk, or found no free descriptor, is given back, to be tried again: the
    /// store is as it was before the write that was refused. Entries that it has are left out then, and a rollback or a removal
    /// goes on where it ended.
    fn make_or_keep(&self, change: Change) -> Result<Option<(Change, Done)>, CommandError> {
        // In memory there is no end of the disk to meet, and no file to open.
        let is_on_disk = self.rollback_directory.is_some();
        match self.make(&change) {
            Err(error)
                if error.code == ErrorCode::OUT_OF_DISK_SPACE
                    && is_on_disk
                    && self.gate.meet_end_of_disk() =>
            {
                tracing::warn!(%error, "{} for room on the disk", waiting(&change));
                Ok(Some((change, Done::UpToEndOfDisk)))
            }
            Err(error)
                if error.code == ErrorCode::TOO_MANY_FILES_OPEN
                    && is_on_disk
                    && !self.gate.has_ended() =>
            {
                tracing::warn!(%error, "{} for a file descriptor", waiting(&change));
                Ok(Some((change, Done::UpToDescriptors)))
            }
            made => made.map(|()| None),
        }
    }

    /// Puts changes back that could not be made yet, in their order.
    fn put_back(&self, first: Change, second: Option<Change>) {
        let mut queue = self.queue.lock();
        for change in second.into_iter().chain([first]) {
            queue.waiting.push_front(change);
        }
        drop(queue);
        self.condition.notify_one();
    }

    fn make(&self, change: &Change) -> Result<(), CommandError> {
        let mut files = RollbackFiles::new(self.rollback_directory.clone(), &self.clock);
        let ended = change.make(&self.node, self.clock.now(), &mut |undo| files.keep(undo));
        // What was undone before a failure is not undone again: its documents are in these files only.
        files.finish()?;
        let ended = ended?;
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
            let own = if entered { None } else { self.gate.blocking_enter() };
            if !entered && own.is_none() {
                return Ok(Done::UpToEndOfServer);
            }
            if let Some((kept, done)) = self.make_or_keep(change)? {
                self.put_back(kept, next);
                return Ok(done);
            }
            if next.is_none() && applied < MAX_APPLY_ENTRIES {
                next = self.next();
            }
        }
        Ok(Done::All)
    }
}

/// The delayed change, in the words of the log.
fn waiting(change: &Change) -> &'static str {
    match change {
        DataChange::Apply(_) => "entries of other members wait",
        DataChange::RollBack { .. } => "a rollback waits",
        DataChange::Wipe { .. } => "the removal of all data before a copy waits",
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bson::spec::BinarySubtype;
    use bson::{Binary, DateTime, RawDocumentBuf, Timestamp, doc, rawdoc};
    use quorate_member::Entries;
    use quorate_node::{
        Command, Context, Horizons, NodeOptions, Outcome, Published, entry_position,
    };
    use quorate_protocol::{HelloReply, MemberState, ObjectId, OpTime, TopologyVersion};
    use quorate_replication::MemberHello;
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
        entry_of(number, 100_000)
    }

    fn entry_of(number: u32, length: usize) -> RawDocumentBuf {
        rawdoc! {
            "op": "n", "ns": "", "o": { "msg": "x".repeat(length) },
            "ts": Timestamp { time: 1, increment: number }, "t": 1_i64, "v": 2_i64,
            "wall": DateTime::from_millis(1),
        }
    }

    /// A member with a simulated disk, and its applier.
    struct Follower {
        node: Arc<Node>,
        applier: Applier,
        gate: Arc<WriteGate>,
        files: SimulatedFiles,
        inbox: Inbox,
        directory: tempfile::TempDir,
    }

    impl Follower {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let files = SimulatedFiles::new();
            let shared = Arc::new(files.clone());
            let store = DiskStore::open_on(shared, directory.path(), DiskOptions::default());
            let options = NodeOptions { oplog_bytes: Some(1 << 30), ..NodeOptions::default() };
            let clock = Clock::new();
            let node =
                Arc::new(Node::open(Arc::new(store.unwrap()), options, clock.now()).unwrap());
            node.join_replica_set(clock.now()).unwrap();
            let (gate, inbox) = (Arc::new(WriteGate::default()), Inbox::new());
            let place = Some(directory.path().join("rollback"));
            let (known, own) = (Arc::clone(&node), Arc::clone(&gate));
            let applier = Applier::start(known, inbox.clone(), clock, own, place).unwrap();
            Self { node, applier, gate, files, inbox, directory }
        }

        fn add(&self, previous: OpTime, entries: Vec<RawDocumentBuf>) {
            let (room, delay) = (Vec::new(), Duration::ZERO);
            self.applier.add(DataChange::Apply(Entries { previous, entries, room, delay }));
        }

        fn written(&self) -> OpTime {
            self.node.log_positions().written.op_time
        }

        fn kept_entries(&self) -> usize {
            let unbounded = std::ops::Bound::Unbounded;
            self.node.read_oplog(unbounded, usize::MAX, usize::MAX).unwrap().entries.len()
        }

        /// Takes what room the journal has, to the last bytes, with entries that follow this one.
        fn fill_journal(&self, mut number: u32) {
            self.files.limit_room(Some(0));
            for length in [100_000, 10_000, 1_000, 100, 10, 1] {
                let fits = |number| {
                    let entries = vec![entry_of(number + 1, length)];
                    self.node.apply(op_time(number), entries, Clock::new().now()).is_ok()
                };
                while fits(number) {
                    number += 1;
                }
            }
        }

        /// Adds a change that meets the end of the disk, and gives it room when it waits.
        fn make_with_too_little_room(&self, change: Change) {
            self.applier.add(change);
            self.applier.wake();
            until("the end of the disk", || self.gate.has_met_end_of_disk());
            assert!(self.gate.try_enter_to_apply().is_none(), "what comes later waits as well");
            self.files.limit_room(None);
            self.gate.set_disk_full(false);
        }
    }

    #[test]
    fn a_member_whose_applying_thread_panics_does_not_go_on() {
        let follower = Follower::new();
        follower.node.on_append(Box::new(|_, _| panic!("this is meant")));
        follower.add(op_time(0), vec![entry(1)]);
        follower.applier.wake();
        until("the end of the member", || follower.inbox.is_broken());
    }

    /// docs/replication-rules.md: a follower whose entries come faster than its disk is looked at.
    #[test]
    fn entries_that_meet_the_end_of_the_disk_wait_for_room() {
        const ENTRIES: u32 = 60;
        let follower = Follower::new();
        let (applier, gate) = (&follower.applier, &follower.gate);
        follower.files.limit_room(Some(0));
        for number in 1..=ENTRIES {
            follower.add(op_time(number - 1), vec![entry(number)]);
            // Some of them by a thread that may not wait, as entries are fetched.
            match number % 2 {
                0 => applier.help(),
                _ => applier.wake(),
            }
        }
        until("the end of the disk", || gate.has_met_end_of_disk());
        assert!(gate.try_enter_to_apply().is_none(), "what comes later waits as well");
        assert!(follower.written() < op_time(ENTRIES));
        follower.files.limit_room(None);
        gate.set_disk_full(false);
        until("all entries", || follower.written() == op_time(ENTRIES));
        assert_eq!(follower.kept_entries(), ENTRIES as usize, "each of them once");
        // A server that ends waits for nothing.
        gate.end();
        assert!(!gate.meet_end_of_disk() && gate.try_enter_to_apply().is_some());
    }

    /// A server that ends waits for its threads before its directory counts as free.
    #[tokio::test]
    async fn an_applying_thread_that_waits_for_fsync_unlock_ends_with_the_server() {
        let Follower { node, applier, gate, inbox, directory, .. } = Follower::new();
        gate.lock(&node).await.unwrap();
        for number in [1, 2] {
            let (entries, room) = (vec![entry(number)], Vec::new());
            let (previous, delay) = (op_time(number - 1), Duration::ZERO);
            applier.add(DataChange::Apply(Entries { previous, entries, room, delay }));
            applier.wake();
        }
        let applying = Arc::downgrade(&applier.0.0);
        until("a change that was taken", || applier.0.0.queue.lock().waiting.is_empty());
        gate.end();
        drop(applier);
        until("the end of the thread", || applying.strong_count() == 0);
        assert_eq!(node.log_positions().written.op_time, op_time(0), "writes are locked out");
        assert!(!inbox.is_broken(), "this is no failure");
        drop(directory);
    }

    /// A process may have used up its descriptors for a while, for instance with connections.
    #[test]
    fn entries_that_find_no_free_descriptor_wait_for_one() {
        const MOST_ENTRIES: u32 = 10_000;
        let follower = Follower::new();
        follower.files.use_up_descriptors(true);
        let apply = |number: u32| {
            follower.node.apply(op_time(number - 1), vec![entry(number)], Clock::new().now())
        };
        let refused = (1..MOST_ENTRIES).find_map(|number| Some((number, apply(number).err()?)));
        let (number, error) = refused.unwrap();
        assert_eq!(error.code, ErrorCode::TOO_MANY_FILES_OPEN);
        follower.add(op_time(number - 1), vec![entry(number)]);
        // It is tried once here, and then by the applier's thread.
        follower.applier.help();
        assert_eq!(follower.written(), op_time(number - 1));
        follower.files.use_up_descriptors(false);
        until("the entry", || follower.written() == op_time(number));
    }

    fn as_secondary() -> Published {
        let hello = MemberHello {
            reply: HelloReply { set_name: Some("rs0".into()), ..HelloReply::default() },
            secondary_delay_secs: None,
            builds_no_indexes: false,
            majority: None,
            info: None,
        };
        let process_id = ObjectId::from_bytes([1; 12]);
        Published {
            hello,
            topology_version: TopologyVersion { process_id, counter: 1 },
            state: MemberState::Secondary,
            writable: false,
            majority_by_default: true,
            horizons: Horizons::default(),
        }
    }

    /// Entries that make a collection, put a document into it and change it again and again. Its text has the
    /// length of the entries above.
    fn changes(count: u32) -> Vec<RawDocumentBuf> {
        let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] };
        let text = |number: u32| format!("{number:0>50000}").repeat(2);
        let made = |number: u32| match number {
            1 => rawdoc! { "op": "c", "ns": "db.$cmd", "o": { "create": "c" } },
            2 => {
                rawdoc! { "op": "i", "ns": "db.c", "o": { "_id": 1, "text": text(2) }, "o2": { "_id": 1 } }
            }
            _ => rawdoc! {
                "op": "u", "ns": "db.c", "o2": { "_id": 1 },
                "o": { "$v": 2, "diff": { "u": { "text": text(number) } } },
            },
        };
        let finished = |number: u32| {
            let mut entry = made(number);
            let end = rawdoc! {
                "ui": uuid.clone(), "ts": Timestamp { time: 1, increment: number }, "t": 1_i64,
                "v": 2_i64, "wall": DateTime::from_millis(1),
            };
            for (name, value) in end.iter().flatten() {
                entry.append(name, value);
            }
            entry
        };
        (1..=count).map(finished).collect()
    }

    /// docs/replication-rules.md#rollback: a rollback that meets the end of the disk goes on where it ended.
    #[test]
    fn a_rollback_that_meets_the_end_of_the_disk_waits_for_room() {
        const ENTRIES: u32 = 100;
        let follower = Follower::new();
        let entries = changes(ENTRIES);
        let common_point = entry_position(&entries[2]).unwrap();
        let hash = |follower: &Follower| {
            follower.node.publish(as_secondary());
            let nearest = doc! { "mode": "nearest" };
            let command = doc! { "dbHash": 1, "$db": "db", "$readPreference": nearest };
            let context = Context {
                now: Clock::new().now(),
                client: Arc::default(),
                may_wait: false,
                may_look_at: None,
                interrupt: Arc::default(),
            };
            match follower.node.run(&context, Command::new(command)) {
                Outcome::Reply(reply) => reply.body.get_str("md5").unwrap().to_owned(),
                other => panic!("{other:?}"),
            }
        };
        follower.add(OpTime::NULL, entries[..3].to_vec());
        follower.applier.wake();
        until("three entries", || follower.written() == op_time(3));
        let before = hash(&follower);
        follower.add(op_time(3), entries[3..].to_vec());
        follower.applier.wake();
        until("all entries", || follower.written() == op_time(ENTRIES));
        assert_ne!(hash(&follower), before);
        follower.fill_journal(ENTRIES);
        follower.make_with_too_little_room(DataChange::RollBack { common_point });
        until("the end of the rollback", || follower.kept_entries() == 3);
        assert_eq!(hash(&follower), before);
        let kept = std::fs::read_dir(follower.directory.path().join("rollback/db.c")).unwrap();
        let bytes: u64 = kept.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes >= 100_000 * u64::from(ENTRIES - 3), "each version was kept: {bytes}");
        assert!(!follower.inbox.is_broken());
    }

    /// docs/replication-rules.md#initial-sync: so does the removal of all data before a copy.
    #[test]
    fn a_removal_that_meets_the_end_of_the_disk_waits_for_room() {
        let follower = Follower::new();
        follower.add(OpTime::NULL, changes(3));
        follower.applier.wake();
        until("three entries", || follower.written() == op_time(3));
        follower.fill_journal(3);
        follower.make_with_too_little_room(DataChange::Wipe { attempt: 1 });
        until("an empty log", || {
            follower.kept_entries() == 0 && follower.written() == OpTime::NULL
        });
        assert!(!follower.inbox.is_broken());
    }
}
