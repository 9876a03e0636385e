//! Breaking and mending a set that this user started with `quorate up`, from another terminal.
//!
//! The files that `up` leaves say which processes are ours. Signals go straight to a member; what
//! only the owner of the processes can do, starting one again, its keeper is asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{Lock, ServerAddress};
use rustix::process::Signal;
use tokio::time::{MissedTickBehavior, interval};

use crate::up::keeper::step_down;
use crate::up::running::{RunningMember, RunningSet};
use crate::view::Input;
use crate::view::actions::{Action, ActionError, Actions, Performed};
use crate::view::collector::Live;
use crate::view::member::Process;

/// How often the processes are polled.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A running set of this user.
pub(super) struct Ours {
    /// The faults made from here, by process. Entries of processes that ended are dropped.
    broken: Lock<BTreeMap<u32, Process>>,
    host: ServerAddress,
}

impl Ours {
    /// The set with a member at one of these addresses, if this user runs it.
    pub(super) fn find(addresses: &[ServerAddress]) -> Option<Arc<Self>> {
        let host = addresses.iter().find(|address| set_of(address).is_some())?.clone();
        Some(Arc::new(Self { broken: Lock::default(), host }))
    }

    /// Tells the view what the processes do, for ever.
    pub(super) async fn keep_telling(&self, live: &Live) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            for member in set_of(&self.host).into_iter().flat_map(|set| set.members) {
                let Ok(address) = member.host.parse() else { continue };
                let (pid, process) = (member.process.pid(), self.condition(&member));
                live.tell(Input::Process { member: address, pid, process });
            }
        }
    }

    fn condition(&self, member: &RunningMember) -> Process {
        if !member.process.is_alive() {
            return Process::Gone("it does not run any more".to_owned());
        }
        let broken = self.broken.lock();
        broken.get(&member.process.pid()).cloned().unwrap_or(Process::Running)
    }

    fn signal(&self, action: Action, address: &ServerAddress) -> Result<String, ActionError> {
        let not_ours = || ActionError::NotOurs(address.clone());
        let set = set_of(address).ok_or_else(not_ours)?;
        let member = set.members.iter().find(|member| member.host == address.as_str());
        let member = member.ok_or_else(not_ours)?;
        let pid = member.process.pid();
        let (signals, condition, done): (&[Signal], _, _) = match action {
            Action::Restore if !member.process.is_alive() => {
                return match set.keeper.signal(Signal::USR2) {
                    true => Ok(format!("{address} is being started again")),
                    false => Err(ActionError::Ending),
                };
            }
            Action::Restore => (
                &[Signal::CONT, Signal::USR2],
                None,
                format!("{address} takes part again, process {pid}"),
            ),
            Action::Pause => (
                &[Signal::STOP],
                Some(Process::Paused),
                format!("{address} is paused, process {pid}"),
            ),
            Action::Partition => (
                &[Signal::USR1],
                Some(Process::Partitioned),
                format!("{address} is cut off from the other members"),
            ),
            Action::Kill => (&[Signal::KILL], None, format!("{address} was killed, process {pid}")),
            Action::StepDown => {
                let why = "is asked to step down over the network, not by a signal".to_owned();
                return Err(ActionError::Senseless { member: address.clone(), why });
            }
        };
        if !signals.iter().all(|signal| member.process.signal(*signal)) {
            let why = "does not run; restore it first".to_owned();
            return Err(ActionError::Senseless { member: address.clone(), why });
        }
        let mut broken = self.broken.lock();
        // At most one entry for each process that was broken and still runs.
        broken.retain(|other, _| set.members.iter().any(|member| member.process.pid() == *other));
        match condition {
            Some(condition) => broken.insert(pid, condition),
            None => broken.remove(&pid),
        };
        Ok(done)
    }
}

impl Actions for Ours {
    fn perform<'a>(&'a self, action: Action, member: &'a ServerAddress) -> Performed<'a> {
        Box::pin(async move {
            match action {
                Action::StepDown => match set_of(member) {
                    Some(set) => step_down(member, &set).await,
                    None => Err(ActionError::NotOurs(member.clone())),
                },
                _ => self.signal(action, member),
            }
        })
    }
}

/// The running set that has a member here, alive or not.
fn set_of(address: &ServerAddress) -> Option<RunningSet> {
    // A user who cannot read the files started no set.
    let sets = RunningSet::all().unwrap_or_default();
    let here = |set: &RunningSet| set.members.iter().any(|m| m.host == address.as_str());
    sets.into_iter().find(here)
}
