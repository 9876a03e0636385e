//! One sync for all waiting threads.
//!
//! This file owns which thread syncs and which ones wait; forcing bytes to the disk is a function handed in. The
//! first waiter becomes the leader and syncs everything committed so far; the others sleep, and
//! those whose commit came too late for this sync find a leader among themselves for the next.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::store::{CommitSequence, SyncError};

/// Forces everything written to the log so far onto the disk.
pub(crate) type SyncLog = Box<dyn FnMut() -> io::Result<()> + Send>;

pub(crate) struct GroupCommit {
    /// Held by the leader while the disk works; no other thread touches it.
    sync_log: Mutex<SyncLog>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    committed: CommitSequence,
    /// The newest commit that is known to be in the log's file.
    written: CommitSequence,
    synced: CommitSequence,
    leader_at_work: bool,
    failed: bool,
    syncs: u64,
    /// Threads that sleep until a sync is over. Waking none would still be a system call.
    sleepers: usize,
}

impl GroupCommit {
    pub(crate) fn new(sync_log: SyncLog) -> Self {
        Self { sync_log: Mutex::new(sync_log), progress: Mutex::default(), changed: Condvar::new() }
    }

    /// Hands out the sequence of a commit whose bytes have reached the log.
    pub(crate) fn committed(&self) -> CommitSequence {
        let mut progress = self.progress();
        progress.committed.0 += 1;
        progress.committed
    }

    pub(crate) fn last_committed(&self) -> CommitSequence {
        self.progress().committed
    }

    pub(crate) fn last_synced(&self) -> CommitSequence {
        self.progress().synced
    }

    /// The newest commit, if the log's file may lack this one: a write has all commits up to there.
    pub(crate) fn unwritten(&self, sequence: CommitSequence) -> Option<CommitSequence> {
        let progress = self.progress();
        (progress.written < sequence).then_some(progress.committed)
    }

    /// The log's file has all commits up to this one. Returns how many of them were not known to be there.
    pub(crate) fn written(&self, through: CommitSequence) -> u64 {
        let mut progress = self.progress();
        let before = progress.written;
        progress.written = before.max(through);
        through.0.saturating_sub(before.0)
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.progress().syncs
    }

    /// What was written is unknown: every later write and sync is refused.
    pub(crate) fn fail(&self) {
        self.progress().failed = true;
        self.changed.notify_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.progress().failed
    }

    pub(crate) fn sync_through(&self, sequence: CommitSequence) -> Result<(), SyncError> {
        let mut progress = self.progress();
        if sequence > progress.committed {
            return Err(SyncError::UnknownSequence);
        }
        loop {
            if progress.synced >= sequence {
                return Ok(());
            }
            if progress.failed {
                return Err(SyncError::Poisoned);
            }
            if progress.leader_at_work {
                progress.sleepers += 1;
                progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
                progress.sleepers -= 1;
            } else {
                progress.leader_at_work = true;
                let target = progress.committed;
                drop(progress);
                return self.lead(target);
            }
        }
    }

    fn lead(&self, target: CommitSequence) -> Result<(), SyncError> {
        let leading = Leading(self);
        let result = {
            let mut sync_log = self.sync_log.lock().unwrap_or_else(PoisonError::into_inner);
            sync_log()
        };
        std::mem::forget(leading);
        let mut progress = self.progress();
        progress.leader_at_work = false;
        progress.syncs += 1;
        match &result {
            Ok(()) => progress.synced = target,
            Err(_) => progress.failed = true,
        }
        progress.written = progress.written.max(progress.synced);
        let has_sleepers = progress.sleepers > 0;
        drop(progress);
        if has_sleepers {
            self.changed.notify_all();
        }
        result.map_err(|error| SyncError::Failed(Arc::new(error)))
    }

    /// The state is plain numbers that no panic can leave half-changed, so a poisoned lock is fine.
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that syncs for others. If it panics, what was written is unknown, and the others must not wait for it.
struct Leading<'g>(&'g GroupCommit);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        (progress.leader_at_work, progress.failed) = (false, true);
        drop(progress);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn one_sync_serves_every_waiter() {
        const WAITERS: usize = 8;
        let (entered, sync_entered) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let group = Arc::new(GroupCommit::new(Box::new(move || {
            entered.send(()).unwrap();
            released.recv().unwrap();
            Ok(())
        })));

        let first = group.committed();
        let leader = std::thread::spawn({
            let group = Arc::clone(&group);
            move || group.sync_through(first)
        });
        sync_entered.recv().unwrap();

        // These commit while the first sync is under way: it cannot cover them.
        let ready = Arc::new(Barrier::new(WAITERS + 1));
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| {
                let (group, ready) = (Arc::clone(&group), Arc::clone(&ready));
                let sequence = group.committed();
                std::thread::spawn(move || {
                    ready.wait();
                    group.sync_through(sequence)
                })
            })
            .collect();
        ready.wait();
        release.send(()).unwrap();
        release.send(()).unwrap();
        leader.join().unwrap().unwrap();
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
        assert_eq!(group.syncs(), 2);
        assert_eq!(group.last_synced(), group.last_committed());
    }

    #[test]
    fn after_a_failed_sync_every_later_one_is_refused() {
        let group = GroupCommit::new(Box::new(|| Err(io::Error::other("the disk is gone"))));
        let sequence = group.committed();
        assert!(matches!(group.sync_through(sequence), Err(SyncError::Failed(_))));
        assert!(matches!(group.sync_through(sequence), Err(SyncError::Poisoned)));
        assert!(group.has_failed());
        assert_eq!(group.syncs(), 1);
        assert_eq!(group.last_synced(), CommitSequence::ZERO);
    }

    #[test]
    fn a_sync_that_panics_leaves_no_thread_asleep() {
        let (entered, sync_entered) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let group = Arc::new(GroupCommit::new(Box::new(move || {
            entered.send(()).unwrap();
            released.recv().unwrap();
            panic!("this is meant");
        })));
        let sequence = group.committed();
        let (told, tells) = mpsc::channel();
        let sync = || {
            let (group, told) = (Arc::clone(&group), told.clone());
            std::thread::spawn(move || told.send(group.sync_through(sequence)).unwrap())
        };
        let leader = sync();
        sync_entered.recv().unwrap();
        let waiter = sync();
        while group.progress().sleepers == 0 {
            std::thread::yield_now();
        }
        release.send(()).unwrap();
        assert!(leader.join().is_err());
        let told = tells.recv_timeout(Duration::from_secs(60)).expect("the other thread wakes");
        assert!(matches!(told, Err(SyncError::Poisoned)), "{told:?}");
        waiter.join().unwrap();
        assert!(group.has_failed());
    }

    #[test]
    fn a_sequence_of_the_future_is_refused() {
        let group = GroupCommit::new(Box::new(|| Ok(())));
        assert!(matches!(group.sync_through(CommitSequence(1)), Err(SyncError::UnknownSequence)));
    }
}
