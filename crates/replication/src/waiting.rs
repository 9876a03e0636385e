//! Clients that wait for their writes to be acknowledged.
//!
//! Owns the list of waiters and their deadlines; `quorum` counts for them.
//! docs/replication-rules.md#commit-point.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{MonotonicTime, OpTime, ReplicaSetConfig};

use crate::input::WaiterId;
use crate::member::Member;
use crate::output::Output;
use crate::quorum::{covers, is_acknowledged};
use crate::role::{LeaderMode, Role};
use crate::timers::Timer;
use crate::write_concern::{Acknowledgements, WriteConcern, WriteConcernError};

/// Clients that can wait at once.
pub(crate) const MAX_WAITERS: usize = 65_536;

#[derive(Clone, Debug)]
struct Waiter {
    op_time: OpTime,
    concern: WriteConcern,
    deadline: Option<MonotonicTime>,
}

impl Waiter {
    /// Whether it waits for the commit point alone: then it is found in order, not by looking at
    /// all. Nearly all writes wait so.
    fn waits_for_commit_point(&self) -> bool {
        self.concern.acknowledgements == Acknowledgements::Majority
            && self.concern.journal.is_none()
    }
}

/// The clients that wait, findable by what they wait for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters {
    known: BTreeMap<WaiterId, Waiter>,
    /// Clients that wait for the commit point alone, in the order in which it reaches them.
    majority: BTreeSet<(OpTime, WaiterId)>,
    /// The others.
    counting: BTreeSet<WaiterId>,
    deadlines: BTreeSet<(MonotonicTime, WaiterId)>,
}

impl Waiters {
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn add(&mut self, id: WaiterId, waiter: Waiter) {
        self.remove(id);
        if waiter.waits_for_commit_point() {
            self.majority.insert((waiter.op_time, id));
        } else {
            self.counting.insert(id);
        }
        if let Some(deadline) = waiter.deadline {
            self.deadlines.insert((deadline, id));
        }
        self.known.insert(id, waiter);
    }

    pub(crate) fn remove(&mut self, id: WaiterId) {
        let Some(waiter) = self.known.remove(&id) else { return };
        if waiter.waits_for_commit_point() {
            self.majority.remove(&(waiter.op_time, id));
        } else {
            self.counting.remove(&id);
        }
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, id));
        }
    }

    /// Takes the next one out that waits for the commit point alone and is reached by it.
    fn take_reached(&mut self, committed: OpTime) -> Option<WaiterId> {
        let (_, id) = *self.majority.first().filter(|(op_time, _)| *op_time <= committed)?;
        self.remove(id);
        Some(id)
    }

    /// The next one whose time is over.
    fn late(&self, now: MonotonicTime) -> Option<WaiterId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }
}

impl Member {
    pub(crate) fn on_acknowledgement_wanted(
        &mut self,
        id: WaiterId,
        op_time: OpTime,
        concern: WriteConcern,
    ) {
        let result = match self.leader_mode() {
            Some(LeaderMode::Writable | LeaderMode::AttemptingStepDown(_)) => {
                if self.shutting_down {
                    Some(Err(WriteConcernError::ShutdownInProgress))
                } else if self.waiters.len() >= MAX_WAITERS {
                    Some(Err(WriteConcernError::TooManyWaiters(MAX_WAITERS)))
                } else {
                    let deadline = concern.timeout.map(|timeout| self.now + timeout);
                    self.waiters.add(id, Waiter { op_time, concern, deadline });
                    None
                }
            }
            _ => Some(Err(WriteConcernError::PrimarySteppedDown)),
        };
        match result {
            Some(result) => self.outbox.push(Output::Acknowledge { waiter: id, result }),
            None => {
                self.settle_waiters();
                self.arm_waiters();
            }
        }
    }

    /// Answers every waiter whose concern is met, or can never be.
    pub(crate) fn settle_waiters(&mut self) {
        let (Some(config), false) = (self.installed_config(), self.waiters.is_empty()) else {
            return;
        };
        let durable = config.write_concern_majority_journal_default;
        let own = if durable { self.log.durable() } else { self.log.applied() };
        let reached = self.log.commit_point().min(own).op_time;
        while let Some(waiter) = self.waiters.take_reached(reached) {
            self.outbox.push(Output::Acknowledge { waiter, result: Ok(()) });
        }
        let settled: Vec<_> = self
            .waiters
            .counting
            .iter()
            .filter_map(|id| {
                let waiter = self.waiters.known.get(id)?;
                match self.is_satisfied(&config, waiter) {
                    Ok(true) => Some((*id, Ok(()))),
                    Ok(false) => None,
                    Err(error) => Some((*id, Err(error))),
                }
            })
            .collect();
        for (waiter, result) in settled {
            self.waiters.remove(waiter);
            self.outbox.push(Output::Acknowledge { waiter, result });
        }
    }

    fn is_satisfied(
        &self,
        config: &ReplicaSetConfig,
        waiter: &Waiter,
    ) -> Result<bool, WriteConcernError> {
        let Waiter { op_time: target, concern, .. } = waiter;
        let majority = concern.acknowledgements == Acknowledgements::Majority;
        let journaled =
            concern.journal.unwrap_or(majority && config.write_concern_majority_journal_default);
        let has_write = |id| {
            let position = self.acknowledged(id);
            let reached = if journaled { position.durable } else { position.applied };
            covers(reached.op_time, *target)
        };
        let acknowledged = is_acknowledged(config, &concern.acknowledgements, has_write)?;
        let own = self.me().is_some_and(has_write);
        let committed = !majority || self.log.commit_point().op_time >= *target;
        Ok(acknowledged && own && committed)
    }

    fn arm_waiters(&mut self) {
        match self.waiters.deadlines.first() {
            Some((deadline, _)) => self.timers.set(Timer::Waiters, *deadline),
            None => self.timers.cancel(Timer::Waiters),
        }
    }

    pub(crate) fn on_waiters_timer(&mut self) {
        while let Some(waiter) = self.waiters.late(self.now) {
            self.waiters.remove(waiter);
            let result = Err(WriteConcernError::TimedOut);
            self.outbox.push(Output::Acknowledge { waiter, result });
        }
        self.arm_waiters();
    }

    pub(crate) fn fail_waiters(&mut self) {
        let error = if self.shutting_down {
            WriteConcernError::ShutdownInProgress
        } else {
            WriteConcernError::PrimarySteppedDown
        };
        for waiter in std::mem::take(&mut self.waiters).known.into_keys() {
            self.outbox.push(Output::Acknowledge { waiter, result: Err(error.clone()) });
        }
        self.timers.cancel(Timer::Waiters);
        debug_assert!(matches!(self.role, Role::Leader(_)), "only a primary has waiters");
    }
}
