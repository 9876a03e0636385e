//! The states a member can be in, as `replSetGetStatus` numbers them.

crate::named! {
    /// What a member is doing. `Unknown` and `Down` only ever describe another member.
    ///
    /// [`name`](Self::name) is the text in `stateStr`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum MemberState {
        /// 0: no configuration has been loaded yet.
        Startup = "STARTUP",
        /// 1: elected.
        Primary = "PRIMARY",
        /// 2: replicating, readable.
        Secondary = "SECONDARY",
        /// 3: up, but not readable: catching up to a consistent point, too stale, or in maintenance.
        Recovering = "RECOVERING",
        /// 5: configured, and copying all data from another member.
        Startup2 = "STARTUP2",
        /// 6: another member that has not answered yet.
        Unknown = "UNKNOWN",
        /// 7: votes and holds no data.
        Arbiter = "ARBITER",
        /// 8: another member that does not answer.
        Down = "DOWN",
        /// 9: undoing writes that the set did not keep.
        Rollback = "ROLLBACK",
        /// 10: not in the configuration any more.
        Removed = "REMOVED",
    }
}

impl MemberState {
    /// The number in `myState` and `members[].state`. There is no 4.
    pub const fn number(self) -> i32 {
        match self {
            Self::Startup => 0,
            Self::Primary => 1,
            Self::Secondary => 2,
            Self::Recovering => 3,
            Self::Startup2 => 5,
            Self::Unknown => 6,
            Self::Arbiter => 7,
            Self::Down => 8,
            Self::Rollback => 9,
            Self::Removed => 10,
        }
    }

    /// The state of that number.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// Whether clients may read: only a primary and a secondary promise consistent data.
    pub const fn is_readable(self) -> bool {
        matches!(self, Self::Primary | Self::Secondary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_four_is_unused() {
        for state in MemberState::ALL {
            assert_eq!(MemberState::from_number(state.number()), Some(state));
        }
        assert_eq!(MemberState::from_number(4), None);
    }

    #[test]
    fn states_1_2_3_5_7_and_9_vote_and_only_1_and_2_are_read() {
        let numbers = |keep: fn(MemberState) -> bool| -> Vec<i32> {
            let mut numbers: Vec<i32> = MemberState::ALL
                .into_iter()
                .filter(|state| keep(*state))
                .map(MemberState::number)
                .collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(numbers(MemberState::is_readable), [1, 2]);
    }
}
