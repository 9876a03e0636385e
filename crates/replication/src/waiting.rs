//! Clients that wait for their writes to be acknowledged.
//!
//! Owns the list of waiters and their deadlines; `quorum` counts for them. Digest §6.

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
pub(crate) struct Waiter {
    op_time: OpTime,
    concern: WriteConcern,
    deadline: Option<MonotonicTime>,
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
                    self.waiters.insert(id, Waiter { op_time, concern, deadline });
                    None
                }
            }
            _ => Some(Err(WriteConcernError::PrimarySteppedDown)),
        };
        match result {
            Some(result) => self.outputs.push_back(Output::Acknowledge { waiter: id, result }),
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
        let settled: Vec<_> = self
            .waiters
            .iter()
            .filter_map(|(id, waiter)| match self.is_satisfied(&config, waiter) {
                Ok(true) => Some((*id, Ok(()))),
                Ok(false) => None,
                Err(error) => Some((*id, Err(error))),
            })
            .collect();
        for (waiter, result) in settled {
            self.waiters.remove(&waiter);
            self.outputs.push_back(Output::Acknowledge { waiter, result });
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
        let committed = !majority || self.commit_point.op_time >= *target;
        Ok(acknowledged && own && committed)
    }

    fn arm_waiters(&mut self) {
        match self.waiters.values().filter_map(|waiter| waiter.deadline).min() {
            Some(deadline) => self.timers.set(Timer::Waiters, deadline),
            None => self.timers.cancel(Timer::Waiters),
        }
    }

    pub(crate) fn on_waiters_timer(&mut self) {
        let now = self.now;
        let late: Vec<WaiterId> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| waiter.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(id, _)| *id)
            .collect();
        for waiter in late {
            self.waiters.remove(&waiter);
            let result = Err(WriteConcernError::TimedOut);
            self.outputs.push_back(Output::Acknowledge { waiter, result });
        }
        self.arm_waiters();
    }

    pub(crate) fn fail_waiters(&mut self) {
        let error = if self.shutting_down {
            WriteConcernError::ShutdownInProgress
        } else {
            WriteConcernError::PrimarySteppedDown
        };
        for waiter in std::mem::take(&mut self.waiters).into_keys() {
            self.outputs.push_back(Output::Acknowledge { waiter, result: Err(error.clone()) });
        }
        self.timers.cancel(Timer::Waiters);
        debug_assert!(matches!(self.role, Role::Leader(_)), "only a primary has waiters");
    }
}
