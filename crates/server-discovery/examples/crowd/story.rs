//! What happens to the set.

use std::fmt;
use std::time::Duration;

use crate::members::Members;

/// The clients have come to rest when the story begins.
pub(crate) const BEGINS: Duration = Duration::from_secs(60);

/// From the loss of a primary to the next one, as drills on loopback show it.
const ELECTION: Duration = Duration::from_millis(20);

/// From a silent primary to the next one: the election timeout of a set.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a process takes to come back.
const RESTART: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Story {
    Crash,
    StepDown,
    RollingRestart,
    Partition,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The process of a member ends; its connections are reset.
    End(usize),
    /// The process is back, as a secondary.
    Return(usize),
    /// A member leads from now on, in a new term.
    Lead(usize),
    /// The primary steps down.
    Resign,
    /// Half of the clients, and all other members, hear nothing of a member any more.
    Hide(usize),
    /// They hear it again.
    Show(usize),
}

impl Story {
    pub(crate) const ALL: [Self; 4] =
        [Self::Crash, Self::StepDown, Self::RollingRestart, Self::Partition];

    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::StepDown => "step-down",
            Self::RollingRestart => "rolling-restart",
            Self::Partition => "partition",
        }
    }

    /// The changes, and when they happen after the beginning.
    pub(crate) fn steps(self) -> Vec<(Duration, Step)> {
        match self {
            Self::Crash => vec![
                (Duration::ZERO, Step::End(0)),
                (ELECTION, Step::Lead(1)),
                (RESTART, Step::Return(0)),
            ],
            Self::StepDown => {
                vec![(Duration::ZERO, Step::Resign), (ELECTION / 2, Step::Lead(1))]
            }
            Self::RollingRestart => vec![
                (Duration::ZERO, Step::End(2)),
                (RESTART, Step::Return(2)),
                (RESTART * 2, Step::End(1)),
                (RESTART * 3, Step::Return(1)),
                (RESTART * 4, Step::Resign),
                (RESTART * 4 + ELECTION / 2, Step::Lead(1)),
                (RESTART * 5, Step::End(0)),
                (RESTART * 6, Step::Return(0)),
            ],
            Self::Partition => vec![
                (Duration::ZERO, Step::Hide(0)),
                (TIMEOUT, Step::Lead(1)),
                (TIMEOUT * 3, Step::Show(0)),
            ],
        }
    }

    /// When the last primary of the story begins to lead, and which member it is.
    pub(crate) fn last_primary(self) -> (Duration, usize) {
        let mut leads = self.steps().into_iter().rev().filter_map(|(at, step)| match step {
            Step::Lead(member) => Some((at, member)),
            _ => None,
        });
        leads.next().unwrap()
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crash => "the primary crashes",
            Self::StepDown => "the primary steps down",
            Self::RollingRestart => "all members restart, one after another",
            Self::Partition => "a partition hides the primary from half of the clients",
        })
    }
}

impl Step {
    /// Makes the change. Returns the members whose clients must be told.
    pub(crate) fn change(self, members: &mut Members) -> Vec<usize> {
        match self {
            Self::End(member) => {
                members.end(member);
                vec![]
            }
            Self::Return(member) => {
                members.start(member);
                vec![]
            }
            Self::Lead(member) => members.lead(member),
            Self::Resign => members.step_down(),
            Self::Hide(member) => {
                members.hidden = Some(member);
                vec![]
            }
            // An old primary steps down when it hears of a newer term.
            Self::Show(_) => {
                members.hidden = None;
                members.catch_up()
            }
        }
    }
}
