//! Actions on a set that we started: breaking it, and mending it again.
//!
//! The screen and the page offer these; `up` carries them out, because it owns the processes. On a
//! set that another user runs there are none.
//!
//! | action | what happens | what it is like |
//! |---|---|---|
//! | step down | `replSetStepDown` on the member | planned maintenance |
//! | kill | SIGKILL | a crash: sockets are reset, memory is lost |
//! | pause | SIGSTOP | a host that hangs: sockets stay open, nothing answers |
//! | partition | SIGUSR1, which `serve --breakable` takes as: hear no member and answer none | a cut between the members; clients still reach both sides |
//! | restore | SIGCONT, SIGUSR2, or the process started again | repair |
//!
//! Members on one machine share one loopback device, and cutting that takes rights that a tool must
//! not ask for. A proxy in front of each member would see who is called and never who calls. So the
//! member itself drops what comes from and goes to other members, below everything that decides.

use std::future::Future;
use std::pin::Pin;

use quorate_protocol::ServerAddress;

quorate_protocol::named! {
    /// Something to do to a member.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Action {
        /// Ask the primary to hand over.
        StepDown = "step down",
        /// Kill the process.
        Kill = "kill",
        /// Stop the process where it is.
        Pause = "pause",
        /// Cut it off from the other members.
        Partition = "partition",
        /// Undo whatever was done.
        Restore = "restore",
    }
}

impl Action {
    /// Whether a person should be asked first.
    pub(crate) const fn is_destructive(self) -> bool {
        matches!(self, Self::Kill | Self::Pause | Self::Partition)
    }

    /// The action of this name; spaces may be dashes.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::from_name(&name.replace('-', " "))
    }
}

/// Why an action was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ActionError {
    /// `quorate up` did not start that member.
    #[error("{0} was not started here; choose a member that was")]
    NotOurs(ServerAddress),
    /// The member is in a state in which that makes no sense.
    #[error("{member} {why}")]
    Senseless {
        member: ServerAddress,
        /// Why not, and what to do instead.
        why: String,
    },
    /// The member refused.
    #[error("{member} refused: {why}")]
    Refused {
        member: ServerAddress,
        /// What it said.
        why: String,
    },
    /// The set is being stopped.
    #[error("the set is being stopped; start it again with quorate up")]
    Ending,
}

/// What came of an action: a sentence for people.
pub(crate) type Performed<'a> =
    Pin<Box<dyn Future<Output = Result<String, ActionError>> + Send + 'a>>;

/// The component that carries out actions.
pub(crate) trait Actions: Send + Sync {
    /// Carries out an action and tells what was done.
    fn perform<'a>(&'a self, action: Action, member: &'a ServerAddress) -> Performed<'a>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_found_by_their_names() {
        for action in Action::ALL {
            assert_eq!(Action::parse(action.name()), Some(action));
        }
        assert_eq!(Action::parse("step-down"), Some(Action::StepDown));
        assert_eq!(Action::parse("explode"), None);
    }
}
