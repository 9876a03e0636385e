//! What connections see of the set without asking the member.

use quorate_protocol::{MemberState, OpTimeAndWallTime, Term};

/// What connections see of the set without asking the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetView {
    /// The term.
    pub term: Term,
    /// The state.
    pub state: MemberState,
    /// Whether it is the primary.
    pub is_primary: bool,
    /// The newest entry that no election can lose.
    pub commit_point: OpTimeAndWallTime,
    /// The rollback id that is sent to other members.
    pub rollback_id: i32,
    /// Whether it knows a primary.
    pub knows_primary: bool,
    /// Whether writes without a write concern wait for a majority.
    pub majority_by_default: bool,
}

impl SetView {
    /// The part that followers decide by.
    pub fn role(&self) -> RoleView {
        RoleView {
            term: self.term,
            state: self.state,
            is_primary: self.is_primary,
            rollback_id: self.rollback_id,
        }
    }
}

/// The part of [`SetView`] that does not change with every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleView {
    term: Term,
    state: MemberState,
    is_primary: bool,
    rollback_id: i32,
}
