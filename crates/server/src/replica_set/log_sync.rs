//! Forcing to disk what clients wrote.
//!
//! A thread does it, once for all that wrote meanwhile. The connection of a client that writes alone and waits for other
//! members does it itself, after the followers have the entry: it has nothing else to do, and where members share a machine, the
//! thread would begin on the core on which a follower could.
//!
//! ```text
//!                  thread forced one entry, quickly
//!   thread forces ──────────────────────────────────▶ connection forces
//!        ▲                                                   │
//!        └───────────────────────────────────────────────────┘
//!                  several entries, or a slow disk
//! ```

use std::cell::Cell;
use std::io;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Instant;

use quorate_node::Node;
use quorate_protocol::{Lock, OpTime};

use super::inbox::{Failing, Inbox};
use super::pace::GATHERING;
use super::{Message, ReplicaSet};
use crate::standby::{QUICK, Standby};

thread_local! {
    /// What the write that runs on this thread does about its entries.
    static RUNNING: Cell<Running> = const { Cell::new(Running::Leaves) };
}

/// What a write does about its entries.
#[derive(Default)]
enum Running {
    /// It leaves them to the thread.
    #[default]
    Leaves,
    /// It would force them itself, and has none yet.
    Offers,
    /// It has some, and forces them itself.
    Takes(Unforced),
}

/// The write that runs on this thread leaves its entries to the syncing thread from here on: it ends, or it begins to wait
/// for something else, and others may wait for what it has written so far.
pub(crate) fn withdraw_offer() {
    drop(RUNNING.take());
}

/// The way to the syncing thread.
#[derive(Clone, Default)]
pub(super) struct Syncer(Arc<(Lock<Wanted>, Condvar)>);

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
    /// Whether the last sync was for one write alone, and quick.
    alone: bool,
    /// Whether a connection has entries that it forces itself.
    taken: bool,
}

impl Syncer {
    /// Starts the thread.
    pub(super) fn start(&self, node: Arc<Node>, inbox: Inbox) -> io::Result<()> {
        let shared = self.clone();
        std::thread::Builder::new().name("quorate-log-sync".to_owned()).spawn(move || {
            let _failing = Failing { inbox: &inbox, thread: "syncing" };
            let mut synced = OpTime::NULL;
            while shared.wait(synced) {
                let failed = shared.failed();
                match failed.map_or_else(|| shared.force(&node), Err) {
                    Ok(durable) => {
                        synced = durable;
                        inbox.post(Message::LogMoved);
                    }
                    Err(why) => return inbox.post(Message::Broken(why)),
                }
            }
        })?;
        Ok(())
    }

    /// The log has grown, on this thread.
    pub(super) fn log_has_grown(&self) {
        let running = RUNNING.take();
        if let Running::Takes(_) = running {
            return RUNNING.set(running);
        }
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock();
        if let Running::Offers = running {
            if wanted.alone && !wanted.taken && !wanted.sync {
                wanted.taken = true;
                let unforced = Unforced { syncer: self.clone(), forced: false };
                return RUNNING.set(Running::Takes(unforced));
            }
            RUNNING.set(running);
        }
        let asleep = !std::mem::replace(&mut wanted.sync, true);
        // Release the lock first: the woken thread takes it.
        drop(wanted);
        if asleep {
            condition.notify_one();
        }
    }

    /// Runs a write whose client waits for other members, for as long as it takes. Gives the entries that its connection is to
    /// force, if any.
    fn run<T>(&self, write: impl FnOnce() -> T) -> (T, Option<Unforced>) {
        RUNNING.set(Running::Offers);
        let _end = EndOfOffer;
        let outcome = write();
        let unforced = match RUNNING.take() {
            Running::Takes(unforced) => Some(unforced),
            Running::Leaves | Running::Offers => None,
        };
        (outcome, unforced)
    }

    /// Forces what has been committed, and notes what that was like.
    fn force(&self, node: &Node) -> Result<OpTime, String> {
        let (committed, synced) = node.durability();
        let began = Instant::now();
        let positions = node.sync_log().map_err(|error| error.message)?;
        let commits = committed.as_u64().saturating_sub(synced.as_u64());
        // A slow disk is left to the thread: the followers may make a majority meanwhile, and the connection answers.
        self.0.0.lock().alone = commits <= 1 && began.elapsed() <= QUICK;
        Ok(positions.durable.op_time)
    }

    /// The store has stopped writing. The thread tells the host: the caller may hold the write lock.
    pub(super) fn fail(&self, why: &str) {
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock();
        wanted.sync = true;
        wanted.failed.get_or_insert_with(|| why.to_owned());
        drop(wanted);
        condition.notify_one();
    }

    fn failed(&self) -> Option<String> {
        self.0.0.lock().failed.clone()
    }

    /// A majority has the log up to here.
    pub(super) fn committed(&self, committed: OpTime) {
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock();
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
        wanted.lock().end = true;
        condition.notify_one();
    }

    /// Returns when it is time to sync, or false at the end. While what was synced last is not
    /// committed, writes gather: the next sync could not be acknowledged before anyway.
    fn wait(&self, synced: OpTime) -> bool {
        let (wanted, condition) = &*self.0;
        let mut wanted = wanted.lock();
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

/// Ends the offer of the write that runs on this thread, even if the write panics.
struct EndOfOffer;

impl Drop for EndOfOffer {
    fn drop(&mut self) {
        withdraw_offer();
    }
}

/// Entries that a connection forces to disk. The thread does it if this is dropped before.
pub(crate) struct Unforced {
    syncer: Syncer,
    forced: bool,
}

impl Unforced {
    /// Forces them. The connection hears nothing until the sync ends, a lost leadership or `killOp` included. Of a failure the
    /// thread learns with its own sync.
    pub(super) fn force(mut self, node: &Node, inbox: &Inbox, standby: &Standby) {
        self.forced = standby.wait(|| self.syncer.force(node)).is_ok();
        if self.forced {
            inbox.post(Message::LogMoved);
        }
    }
}

impl Drop for Unforced {
    fn drop(&mut self) {
        self.syncer.0.0.lock().taken = false;
        if !self.forced {
            self.syncer.log_has_grown();
        }
    }
}

impl ReplicaSet {
    /// Runs a write whose client waits for other members, for as long as it takes. What it gives belongs to
    /// [`acknowledge`](Self::acknowledge).
    pub(crate) fn run_write<T>(&self, write: impl FnOnce() -> T) -> (T, Option<Unforced>) {
        self.syncer.run(write)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use quorate_node::NodeOptions;
    use quorate_protocol::Term;
    use quorate_replication::NoopReason;
    use quorate_storage::{DiskOptions, DiskStore, SimulatedFiles};

    use super::*;
    use crate::clock::Clock;
    use crate::write_turns;

    fn after_a_lone_write() -> Syncer {
        let syncer = Syncer::default();
        syncer.0.0.lock().alone = true;
        syncer
    }

    fn write(syncer: &Syncer) -> Option<Unforced> {
        syncer.run(|| syncer.log_has_grown()).1
    }

    fn asks_the_thread(syncer: &Syncer) -> bool {
        std::mem::take(&mut syncer.0.0.lock().sync)
    }

    #[test]
    fn a_lone_client_forces_its_entry_itself() {
        let syncer = after_a_lone_write();
        let unforced = write(&syncer);
        assert!(unforced.is_some() && !asks_the_thread(&syncer));
        // Another client writes meanwhile.
        assert!(write(&syncer).is_none());
        assert!(asks_the_thread(&syncer));
    }

    /// The client has left, for instance.
    #[test]
    fn entries_that_a_connection_did_not_force_are_the_threads() {
        let syncer = after_a_lone_write();
        drop(write(&syncer));
        assert!(asks_the_thread(&syncer));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            syncer.run(|| {
                syncer.log_has_grown();
                panic!("this is meant");
            })
        }));
        assert!(panicked.is_err() && asks_the_thread(&syncer));
        assert!(write(&syncer).is_some(), "the offer of the write that panicked has ended");
    }

    #[test]
    fn what_no_client_waits_for_and_what_comes_beside_other_writes_is_the_threads() {
        let syncer = after_a_lone_write();
        syncer.log_has_grown();
        // It is asked already, and may be about to look.
        assert!(write(&syncer).is_none());
        assert!(asks_the_thread(&syncer));
        assert!(write(&Syncer::default()).is_none(), "nothing is known of other clients yet");
    }

    /// It may wait for a transaction for long, and the commit point for what it has written so far.
    #[test]
    fn a_write_that_blocks_leaves_its_entries_to_the_thread() {
        let syncer = after_a_lone_write();
        let ((), unforced) = syncer.run(|| {
            syncer.log_has_grown();
            assert!(!asks_the_thread(&syncer));
            tokio::runtime::Builder::new_multi_thread()
                .build()
                .unwrap()
                .block_on(async { write_turns::block(&mut || assert!(asks_the_thread(&syncer))) });
            syncer.log_has_grown();
        });
        assert!(unforced.is_none() && asks_the_thread(&syncer), "nor does it take any after");
        assert!(write(&syncer).is_some());
    }

    #[test]
    fn a_write_that_makes_no_entry_leaves_nothing_to_force() {
        let syncer = after_a_lone_write();
        assert!(syncer.run(|| ()).1.is_none());
        assert!(!asks_the_thread(&syncer));
    }

    #[test]
    fn a_sync_for_several_writes_ends_the_time_of_a_lone_client() {
        let directory = tempfile::tempdir().unwrap();
        let files = Arc::new(SimulatedFiles::new());
        let store = DiskStore::open_on(files, directory.path(), DiskOptions::default()).unwrap();
        let options = NodeOptions { oplog_bytes: Some(1 << 30), ..NodeOptions::default() };
        let clock = Clock::new();
        let node = Node::open(Arc::new(store), options, clock.now()).unwrap();
        node.join_replica_set(clock.now()).unwrap();
        let term = Term(1);
        node.set_writable(Some(term), clock.now());
        let syncer = Syncer::default();
        for (writes, alone) in [(2, false), (1, true), (3, false)] {
            syncer.force(&node).unwrap();
            for _ in 0..writes {
                node.append_noop(NoopReason::Periodic, term, clock.now()).unwrap();
            }
            let (written, durable) = (node.log_positions().written, syncer.force(&node).unwrap());
            assert_eq!(durable, written.op_time);
            // A stalled machine is a slow disk.
            assert!(!syncer.0.0.lock().alone || alone, "{writes} writes");
        }
    }
}
