//! Copying everything from another member, as a sequence of steps.
//!
//! ```text
//!   ChoosingSource ─► ReadingSource ─► Flagging ─► Wiping ─► Cloning ─► ReadingStopPoint
//!          ▲                                                                   │
//!          │ failed, or the source rolled back                                 ▼
//!          └──────────────────────── CheckingRollbackId ◄────────────────── Applying
//!                                            │
//!                    (Follower) ◄─ Finishing ┘
//! ```
//!
//! Nothing is removed before a source has answered: a member that finds none keeps what it has.
//! Owns the order, the source, retries and the durable flag; the host does the work of each step.

use std::time::Duration;

use quorate_protocol::{MemberId, MonotonicTime, OpTime, OpTimeAndWallTime, ServerAddress, Term};

use crate::event::Event;
use crate::input::InitialSyncOutcome;
use crate::member::Member;
use crate::outbox::AfterPersist;
use crate::output::{Change, InitialSyncStep, Output};
use crate::own_log::OwnLog;
use crate::peer::Contact;
use crate::role::Role;
use crate::sync_source::{Choice, choose};
use crate::timers::Timer;

/// Attempts in a row; then a pause, which an operator will notice, and from the start.
pub(crate) const MAX_ATTEMPTS: u32 = 10;
/// The pause after that many failures.
pub(crate) const PAUSE_AFTER_MAX_ATTEMPTS: Duration = Duration::from_secs(60);
/// Between two attempts, and between two searches for a source.
const RETRY: Duration = Duration::from_secs(1);
/// How often one step may be interrupted before the attempt is given up.
pub(crate) const MAX_INTERRUPTIONS: u32 = 60;

/// Where an initial sync is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialSyncStage {
    /// The durable flag is being stored.
    Flagging,
    /// Old data is being removed.
    Wiping,
    /// Looking for a source.
    ChoosingSource,
    /// Reading where to begin.
    ReadingSource,
    /// Copying.
    Cloning,
    /// Reading where to stop.
    ReadingStopPoint,
    /// Applying what was written meanwhile.
    Applying,
    /// Making sure that the source did not roll back.
    CheckingRollbackId,
    /// The durable flag is being cleared.
    Finishing,
}

#[derive(Clone, Debug)]
pub(crate) struct InitialSync {
    pub(crate) stage: InitialSyncStage,
    /// Rises with every attempt of this process, never reused: outcomes of older ones are ignored, and what
    /// they had copied is copied again.
    pub(crate) attempt: u32,
    pub(crate) failures: u32,
    pub(crate) source: Option<MemberId>,
    pub(crate) rollback_id: i32,
    /// Where the copy begins, as the source said.
    begin: Option<(OpTime, OpTime)>,
    pub(crate) stop: OpTimeAndWallTime,
    interruptions: u32,
    /// After a failed attempt, the next one begins no earlier than this.
    not_before: MonotonicTime,
    /// The step was interrupted and is to be done again when the timer says so.
    interrupted: bool,
    step: Option<InitialSyncStep>,
}

/// What initial syncs share within one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copies {
    /// How many this process has begun.
    attempts: u32,
    /// Documents were found at the start, and no log: not those of an unfinished copy.
    strange_documents: bool,
}

impl Copies {
    pub(crate) fn new(strange_documents: bool) -> Self {
        Self { attempts: 0, strange_documents }
    }

    /// The number of the next attempt. None is used twice.
    pub(crate) fn next_attempt(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// Whether a copy would remove documents that no set is known to have.
    pub(crate) fn would_remove_strange_documents(&self) -> bool {
        self.strange_documents
    }
}

impl InitialSync {
    pub(crate) fn new(now: MonotonicTime, attempt: u32) -> Self {
        Self {
            stage: InitialSyncStage::ChoosingSource,
            not_before: now,
            attempt,
            failures: 0,
            source: None,
            rollback_id: 0,
            begin: None,
            stop: OpTimeAndWallTime::default(),
            interruptions: 0,
            interrupted: false,
            step: None,
        }
    }
}

impl Member {
    pub(crate) fn begin_initial_sync(&mut self) {
        self.log = OwnLog::default();
        self.sync.restart_at(OpTime::NULL);
        self.continue_initial_sync();
    }

    pub(crate) fn on_initial_sync_flagged(&mut self) {
        if self.initial_sync_stage() == Some(InitialSyncStage::Flagging) {
            self.do_step(InitialSyncStage::Wiping, InitialSyncStep::Wipe);
        }
    }

    pub(crate) fn initial_sync_stage(&self) -> Option<InitialSyncStage> {
        match &self.role {
            Role::InitialSync(sync) => Some(sync.stage),
            _ => None,
        }
    }

    fn do_step(&mut self, stage: InitialSyncStage, step: InitialSyncStep) {
        let Role::InitialSync(sync) = &mut self.role else { return };
        sync.stage = stage;
        sync.step = Some(step.clone());
        sync.interruptions = 0;
        sync.interrupted = false;
        let attempt = sync.attempt;
        self.outbox.push(Output::InitialSync { attempt, step });
    }

    /// News of a member, or the retry timer: go on if something was waited for.
    pub(crate) fn continue_initial_sync(&mut self) {
        let now = self.now;
        let due = !self.timers.is_set(Timer::InitialSync);
        let Role::InitialSync(sync) = &mut self.role else { return };
        if sync.stage == InitialSyncStage::ChoosingSource {
            // A member that has just come up may be the source that was waited for.
            if now >= sync.not_before {
                self.choose_initial_sync_source();
            }
        } else if due
            && std::mem::take(&mut sync.interrupted)
            && let Some(step) = sync.step.clone()
        {
            let attempt = sync.attempt;
            self.outbox.push(Output::InitialSync { attempt, step });
        }
    }

    fn choose_initial_sync_source(&mut self) {
        let Some(chooser) = self.chooser() else { return };
        let choice = choose(chooser, &self.sync_candidates());
        let Choice::Source(source) = choice else {
            if choice == Choice::WaitForPings {
                self.measure_distances();
            }
            return self.timers.set(Timer::InitialSync, self.now + RETRY);
        };
        let Some(address) = self.peers.get(&source).map(|peer| peer.address.clone()) else {
            return;
        };
        let Role::InitialSync(sync) = &mut self.role else { return };
        sync.source = Some(source);
        let attempt = sync.attempt;
        self.emit(Event::InitialSyncStarted { source, attempt });
        let step = InitialSyncStep::ReadSource { source: address };
        self.do_step(InitialSyncStage::ReadingSource, step);
    }

    pub(crate) fn on_initial_sync(&mut self, attempt: u32, outcome: InitialSyncOutcome) {
        use InitialSyncStage as Stage;
        let Role::InitialSync(sync) = &mut self.role else { return };
        if sync.attempt != attempt {
            return;
        }
        let source = sync.source.and_then(|id| self.peers.get(&id)).map(|p| p.address.clone());
        match (sync.stage, outcome, source) {
            (_, InitialSyncOutcome::Interrupted, _) => {
                let gone = sync.source.is_some_and(|id| {
                    self.peers
                        .get(&id)
                        .is_none_or(|peer| matches!(peer.contact, Contact::Down { .. }))
                });
                // Retry after a short network failure, but not at a source that is down.
                if gone { self.fail_attempt() } else { self.retry_step() }
            }
            (_, InitialSyncOutcome::Failed, _) => self.fail_attempt(),
            (Stage::Wiping, InitialSyncOutcome::Wiped, Some(source)) => {
                let Some((begin_fetching, begin_applying)) = sync.begin else {
                    return self.fail_attempt();
                };
                let step = InitialSyncStep::Clone { source, begin_fetching, begin_applying };
                self.forget_left_out_indexes();
                self.do_step(Stage::Cloning, step);
            }
            (
                Stage::ReadingSource,
                InitialSyncOutcome::SourceRead { rollback_id, begin_fetching, begin_applying },
                Some(_),
            ) => {
                sync.rollback_id = rollback_id;
                sync.begin = Some((begin_fetching, begin_applying));
                sync.stage = Stage::Flagging;
                sync.step = None;
                self.outbox.persist(Change::InitialSync(true), AfterPersist::InitialSyncFlagged);
            }
            (Stage::Cloning, InitialSyncOutcome::Cloned, Some(source)) => {
                self.do_step(Stage::ReadingStopPoint, InitialSyncStep::ReadStopPoint { source });
            }
            (Stage::ReadingStopPoint, InitialSyncOutcome::StopPointRead(stop), _) => {
                sync.stop = stop;
                self.do_step(Stage::Applying, InitialSyncStep::ApplyThrough(stop));
            }
            (Stage::Applying, InitialSyncOutcome::AppliedThrough(last), Some(source)) => {
                sync.stop = last;
                let step = InitialSyncStep::ReadRollbackId { source };
                self.do_step(Stage::CheckingRollbackId, step);
            }
            (Stage::CheckingRollbackId, InitialSyncOutcome::RollbackIdRead(now_id), _) => {
                if now_id == sync.rollback_id {
                    sync.stage = Stage::Finishing;
                    sync.step = None;
                    self.outbox
                        .persist(Change::InitialSync(false), AfterPersist::InitialSyncFinished);
                } else {
                    self.fail_attempt();
                }
            }
            // An outcome that answers no question, or a source that left the set meanwhile.
            (_, _, None) => self.fail_attempt(),
            _ => {}
        }
    }

    fn retry_step(&mut self) {
        let Role::InitialSync(sync) = &mut self.role else { return };
        sync.interruptions += 1;
        sync.interrupted = true;
        if sync.interruptions > MAX_INTERRUPTIONS {
            self.fail_attempt();
        } else {
            self.timers.set(Timer::InitialSync, self.now + RETRY);
        }
    }

    fn fail_attempt(&mut self) {
        let Role::InitialSync(sync) = &mut self.role else { return };
        let attempt = sync.attempt;
        sync.attempt = self.copies.next_attempt();
        sync.failures += 1;
        sync.source = None;
        let pause = if sync.failures >= MAX_ATTEMPTS {
            sync.failures = 0;
            PAUSE_AFTER_MAX_ATTEMPTS
        } else {
            RETRY
        };
        sync.not_before = self.now + pause;
        self.emit(Event::InitialSyncFailed { attempt });
        let cancel = InitialSyncStep::Cancel;
        self.outbox.push(Output::InitialSync { attempt, step: cancel });
        if let Role::InitialSync(sync) = &mut self.role {
            sync.stage = InitialSyncStage::ChoosingSource;
            sync.step = None;
            sync.begin = None;
            sync.interrupted = false;
        }
        self.timers.set(Timer::InitialSync, self.now + pause);
    }

    pub(crate) fn on_initial_sync_finished(&mut self) {
        let Role::InitialSync(sync) = &self.role else { return };
        if sync.stage != InitialSyncStage::Finishing {
            return;
        }
        let last = sync.stop;
        // The copy may hold entries of an election that no heartbeat has told us of yet.
        self.adopt_term(Term(last.op_time.term));
        self.log.note_copied(last);
        self.sync.restart_at(last.op_time);
        self.emit(Event::InitialSyncFinished { at: last.op_time });
        // In a configuration that marks it as newly added no vote and no copy of it has counted.
        if self.own_config().is_some_and(|own| own.newly_added) {
            self.remember_from_now_on();
        }
        self.become_follower();
        self.recollect();
        self.heartbeat_all_now();
    }

    pub(crate) fn cancel_initial_sync(&mut self) {
        if let Role::InitialSync(sync) = &self.role
            && sync.stage != InitialSyncStage::Finishing
        {
            let step = InitialSyncStep::Cancel;
            self.outbox.push(Output::InitialSync { attempt: sync.attempt, step });
        }
    }

    pub(crate) fn initial_sync_source(&self) -> Option<ServerAddress> {
        let Role::InitialSync(sync) = &self.role else { return None };
        self.peers.get(&sync.source?).map(|peer| peer.address.clone())
    }
}
