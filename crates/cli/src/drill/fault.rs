//! Faults of the primary, and how they are undone.

use std::time::Duration;

use bson::rawdoc;
use quorate_client::Client;
use quorate_protocol::ServerAddress;
use rustix::process::Signal;
use tokio::time::timeout;

use crate::screen::Result;
use crate::up::running::RunningSet;
use crate::what_if::Fate;

/// How long a member that stepped down stays out of elections.
const STEP_DOWN: Duration = Duration::from_secs(20);

/// How long it waits for a secondary to catch up.
const CATCH_UP: Duration = Duration::from_secs(10);

/// How long the answer to a step-down may take. The primary closes connections when it steps down,
/// so that there may be none.
const STEP_DOWN_LIMIT: Duration = Duration::from_secs(15);

quorate_protocol::named! {
    /// The kinds of faults.
    ///
    /// [`name`](Self::name) is the name, as the option spells it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Kind {
        /// SIGKILL: a crash.
        Kill = "kill",
        /// `replSetStepDown`: maintenance.
        StepDown = "step-down",
        /// SIGSTOP: a host that hangs.
        Pause = "pause",
        /// No word to or from other members; clients still reach it.
        Partition = "partition",
        /// `replSetStepDown` while only one other member may stand: a planned change.
        HandOver = "switchover",
    }
}

impl Kind {
    /// The fault as the other members notice it.
    pub(super) fn fate(self) -> Fate {
        match self {
            Self::Kill => Fate::Crash,
            Self::Pause | Self::Partition => Fate::Silence,
            Self::StepDown | Self::HandOver => Fate::StepDown,
        }
    }

    /// Whether the primary itself is asked over the network, which any set allows.
    pub(super) fn asks(self) -> bool {
        matches!(self, Self::StepDown | Self::HandOver)
    }
}

/// A fault of one member.
pub(super) struct Fault {
    kind: Kind,
    target: ServerAddress,
    /// The set, if we started it.
    ours: Option<RunningSet>,
}

impl Fault {
    pub(super) fn new(kind: Kind, target: ServerAddress, ours: Option<RunningSet>) -> Self {
        Self { kind, target, ours }
    }

    pub(super) fn target(&self) -> &ServerAddress {
        &self.target
    }

    /// The fault in words.
    pub(super) fn text(&self) -> String {
        let target = &self.target;
        let pid = self.ours.as_ref().and_then(|set| {
            let member = set.members.iter().find(|member| member.host == target.as_str())?;
            Some(format!(" (process {})", member.process.pid()))
        });
        let pid = pid.unwrap_or_default();
        match self.kind {
            Kind::Kill => format!("{target}{pid} is killed"),
            Kind::StepDown => format!("{target} is told to step down"),
            Kind::Pause => format!("{target}{pid} is paused"),
            Kind::Partition => format!("{target}{pid} is cut off from the other members"),
            Kind::HandOver => format!("{target} is told to hand over"),
        }
    }

    /// Does it. Returns when it is done, not when it shows.
    pub(super) async fn commit(&self, client: &Client) -> Result<()> {
        match self.kind {
            Kind::Kill => self.signal(Signal::KILL),
            Kind::Pause => self.signal(Signal::STOP),
            Kind::Partition => self.signal(Signal::USR1),
            Kind::StepDown | Kind::HandOver => self.step_down(client).await,
        }
    }

    /// Undoes it. False if there is nothing to undo.
    pub(super) fn mend(&self) -> bool {
        let Some(set) = &self.ours else { return false };
        match self.kind {
            // The member may stand again as soon as it is told so.
            Kind::StepDown | Kind::HandOver => false,
            // The keeper of the processes starts it again.
            Kind::Kill => set.keeper.signal(Signal::USR2),
            Kind::Pause | Kind::Partition => {
                let signal = match self.kind {
                    Kind::Pause => Signal::CONT,
                    _ => Signal::USR2,
                };
                let member = set.member(self.target.as_str());
                member.is_some_and(|member| member.process.signal(signal))
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let member = self.ours.as_ref().and_then(|set| set.member(self.target.as_str()));
        match member.is_some_and(|member| member.process.signal(signal)) {
            true => Ok(()),
            false => Err(problem!(
                "the process of {} is gone already; see what quorate up said, and try again",
                self.target
            )),
        }
    }

    async fn step_down(&self, client: &Client) -> Result<()> {
        let command = rawdoc! {
            "replSetStepDown": STEP_DOWN.as_secs() as i64,
            "secondaryCatchUpPeriodSecs": CATCH_UP.as_secs() as i64,
        };
        match timeout(STEP_DOWN_LIMIT, client.run_command("admin", &command)).await {
            Ok(Err(error)) if !error.is_network() => Err(problem!(
                "{} did not step down: {error}; see that a secondary is up to date, and that the \
                 user may run replSetStepDown",
                self.target
            )),
            // A connection that ends is how older servers step down.
            Ok(_) => Ok(()),
            Err(_) => Err(problem!(
                "{} did not answer the step-down within {} s; look at its log",
                self.target,
                STEP_DOWN_LIMIT.as_secs()
            )),
        }
    }
}
