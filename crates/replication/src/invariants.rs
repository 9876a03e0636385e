//! What must hold after every input, in release builds too.
//!
//! A member that has broken one of these has a fault of ours; going on could lose what others were
//! promised, so the process ends.

use crate::member::Member;
use crate::quorum::is_vote_majority;
use crate::role::{LeaderMode, Role};
use crate::timers::Timer;
use crate::waiting::MAX_WAITERS;

impl Member {
    pub(crate) fn check_invariants(&self) {
        self.log.check();
        let written = self.log.written().op_time;
        assert!(written.term <= self.term().0, "no entry is of a term to come");
        assert!(
            self.ballot.last_vote().is_none_or(|vote| vote.term <= self.term()),
            "no vote is of a term to come"
        );
        assert!(self.sync.last_fetched() >= written, "the log is what was fetched");
        assert!(self.waiters.len() <= MAX_WAITERS, "waiting clients are bounded");
        self.outbox.check_bounds();
        self.check_role();
    }

    fn check_role(&self) {
        let member = self.me();
        match &self.role {
            Role::Startup => {
                assert!(self.config.config().is_none(), "a configuration gives a role")
            }
            Role::Removed => assert!(self.config.config().is_some() && member.is_none()),
            _ => assert!(member.is_some(), "every other role is a member's"),
        }
        if let Some(config) = self.config.config() {
            let others = config.members.len() - usize::from(member.is_some());
            assert_eq!(self.peers.len(), others, "every other member is a peer");
        }
        match &self.role {
            Role::Leader(leader) => {
                assert_eq!(self.primary(), member, "a leader knows who leads");
                assert!(self.ballot.elects(self.term(), member), "a leader voted for itself");
                let writes =
                    matches!(leader.mode, LeaderMode::Writable | LeaderMode::AttemptingStepDown(_));
                assert_eq!(writes, leader.has_begun(), "writes begin with the first entry");
                assert!(!self.timers.is_set(Timer::Election), "a leader does not stand");
            }
            Role::Follower(follower) => {
                assert_ne!(self.primary(), member, "a follower does not lead");
                assert!(self.waiters.is_empty(), "only a primary acknowledges");
                let standing = follower.campaign.is_some();
                assert!(
                    !(standing && self.config.is_installing()),
                    "no election while configuring"
                );
            }
            _ => assert!(self.waiters.is_empty(), "only a primary acknowledges"),
        }
        if let Some(config) = self.config.config() {
            debug_assert!(is_vote_majority(config, |_| true), "all members are a majority");
        }
    }
}
