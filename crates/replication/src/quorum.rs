//! Counting: how many votes elect, and which acknowledgements commit a write.
//!
//! Owns the arithmetic of a configuration; knows nothing of time or of reachability.
//! docs/replication-rules.md#configuration and #commit-point.

use quorate_protocol::{MemberConfig, MemberId, OpTime, ReplicaSetConfig};

use crate::write_concern::{Acknowledgements, UnsatisfiableWriteConcern};

/// The counts that follow from a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// `votingMembersCount`.
    pub voters: usize,
    /// `writableVotingMembersCount`: voters that hold data.
    pub writable_voters: usize,
    /// `majorityVoteCount`: votes that elect.
    pub majority_vote: usize,
    /// `writeMajorityCount`: data-bearing voters whose acknowledgement commits.
    pub write_majority: usize,
}

impl Counts {
    /// The counts of a configuration.
    pub fn of(config: &ReplicaSetConfig) -> Self {
        let voters = config.voters().count();
        let writable_voters = config.voters().filter(|member| !member.arbiter_only).count();
        let majority_vote = voters / 2 + 1;
        let write_majority = majority_vote.min(writable_voters);
        Self { voters, writable_voters, majority_vote, write_majority }
    }
}

/// The write concern of a command that names none, if no cluster-wide default was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImplicitDefault {
    /// `w: 1`: an arbiter stands in for a data-bearing voter, so that a majority would not survive
    /// the loss of one member.
    One,
    /// `w: "majority"`.
    Majority,
}

/// The implicit default write concern of a configuration.
pub fn implicit_default_write_concern(config: &ReplicaSetConfig) -> ImplicitDefault {
    let counts = Counts::of(config);
    let arbiters = config.members.iter().any(|member| member.arbiter_only);
    if arbiters && counts.writable_voters <= counts.majority_vote {
        ImplicitDefault::One
    } else {
        ImplicitDefault::Majority
    }
}

/// Whether the members for which `agrees` holds have a majority of the votes.
pub(crate) fn is_vote_majority(
    config: &ReplicaSetConfig,
    mut agrees: impl FnMut(&MemberConfig) -> bool,
) -> bool {
    let votes = config.voters().filter(|member| agrees(member)).count();
    votes >= Counts::of(config).majority_vote
}

/// Whether an acknowledgement at `position` covers a write at `target`: the same term, and no
/// earlier. A later term alone proves nothing about what the member kept of an older one.
pub(crate) fn covers(position: OpTime, target: OpTime) -> bool {
    position.term == target.term && position.timestamp >= target.timestamp
}

/// Whether enough members acknowledged, given for each member whether it has the write.
///
/// # Errors
///
/// If the configuration can never satisfy the concern.
pub fn is_acknowledged(
    config: &ReplicaSetConfig,
    wanted: &Acknowledgements,
    has_write: impl Fn(MemberId) -> bool,
) -> Result<bool, UnsatisfiableWriteConcern> {
    let holders = || config.members.iter().filter(|member| !member.arbiter_only);
    match wanted {
        Acknowledgements::Number(number) => {
            let number = usize::try_from(*number).unwrap_or(usize::MAX);
            if number > holders().count() {
                return Err(UnsatisfiableWriteConcern::TooFewMembers {
                    wanted: number,
                    present: holders().count(),
                });
            }
            Ok(holders().filter(|member| has_write(member.id)).count() >= number)
        }
        Acknowledgements::Majority => {
            let have = config
                .voters()
                .filter(|member| !member.arbiter_only && has_write(member.id))
                .count();
            Ok(have >= Counts::of(config).write_majority)
        }
        Acknowledgements::Mode(name) => {
            let Some(mode) = config.settings.get_last_error_modes.get(name) else {
                return Err(UnsatisfiableWriteConcern::UnknownMode(name.clone()));
            };
            let distinct = |tag: &str, only: &dyn Fn(&MemberConfig) -> bool| {
                let mut values: Vec<&str> = holders()
                    .filter(|member| only(member))
                    .filter_map(|m| m.tags.get(tag))
                    .collect();
                values.sort_unstable();
                values.dedup();
                i64::try_from(values.len()).unwrap_or(i64::MAX)
            };
            for (tag, wanted) in mode {
                let present = distinct(tag, &|_| true);
                if present < *wanted {
                    return Err(UnsatisfiableWriteConcern::TooFewTagValues {
                        mode: name.clone(),
                        tag: tag.clone(),
                        wanted: *wanted,
                        present,
                    });
                }
            }
            Ok(mode.iter().all(|(tag, wanted)| distinct(tag, &|m| has_write(m.id)) >= *wanted))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{config, member};
    use quorate_protocol::{MemberConfig, Priority, Timestamp};

    #[test]
    fn counts_follow_rules_section_2() {
        let counts = |data: i32, arbiters: i32| {
            let mut members: Vec<MemberConfig> = (0..data).map(member).collect();
            members.extend(
                (data..data + arbiters)
                    .map(|id| MemberConfig::arbiter(MemberId(id), member(id).host)),
            );
            let counts = Counts::of(&config(members));
            (counts.voters, counts.writable_voters, counts.majority_vote, counts.write_majority)
        };
        assert_eq!(counts(1, 0), (1, 1, 1, 1));
        assert_eq!(counts(2, 0), (2, 2, 2, 2));
        assert_eq!(counts(3, 0), (3, 3, 2, 2));
        assert_eq!(counts(2, 1), (3, 2, 2, 2));
        assert_eq!(counts(1, 1), (2, 1, 2, 1));
        assert_eq!(counts(5, 0), (5, 5, 3, 3));
        assert_eq!(counts(2, 3), (5, 2, 3, 2));
    }

    #[test]
    fn newly_added_and_voteless_members_count_for_nothing() {
        let mut members: Vec<MemberConfig> = (0..5).map(member).collect();
        members[3].newly_added = true;
        members[4].votes = 0;
        members[4].priority = Priority::ZERO;
        assert_eq!(Counts::of(&config(members)).voters, 3);
    }

    #[test]
    fn the_implicit_default_is_one_where_an_arbiter_thins_the_majority() {
        let psa =
            config(vec![member(0), member(1), MemberConfig::arbiter(MemberId(2), member(2).host)]);
        assert_eq!(implicit_default_write_concern(&psa), ImplicitDefault::One);
        let pss = config((0..3).map(member).collect());
        assert_eq!(implicit_default_write_concern(&pss), ImplicitDefault::Majority);
        let mut pssa: Vec<MemberConfig> = (0..4).map(member).collect();
        pssa.push(MemberConfig::arbiter(MemberId(4), member(4).host));
        assert_eq!(implicit_default_write_concern(&config(pssa)), ImplicitDefault::Majority);
    }

    #[test]
    fn a_position_of_another_term_covers_nothing() {
        let at = |term, seconds| OpTime::new(term, Timestamp::new(seconds, 1));
        assert!(covers(at(2, 5), at(2, 5)) && covers(at(2, 6), at(2, 5)));
        assert!(!covers(at(3, 9), at(2, 5)) && !covers(at(2, 4), at(2, 5)));
    }

    #[test]
    fn numbers_count_data_members_and_majority_counts_data_voters() {
        let mut members: Vec<MemberConfig> = (0..3).map(member).collect();
        members[2].votes = 0;
        members[2].priority = Priority::ZERO;
        members.push(MemberConfig::arbiter(MemberId(3), member(3).host));
        let config = config(members);
        let have = |ids: &'static [i32]| move |id: MemberId| ids.contains(&id.0);
        let number = |n| Acknowledgements::Number(n);
        assert_eq!(is_acknowledged(&config, &number(2), have(&[0, 2])), Ok(true));
        assert_eq!(is_acknowledged(&config, &number(2), have(&[0, 3])), Ok(false));
        assert!(is_acknowledged(&config, &number(4), have(&[0])).is_err());
        assert_eq!(is_acknowledged(&config, &Acknowledgements::Majority, have(&[0, 2])), Ok(false));
        assert_eq!(is_acknowledged(&config, &Acknowledgements::Majority, have(&[0, 1])), Ok(true));
    }

    #[test]
    fn a_tag_mode_wants_distinct_values() {
        let mut members: Vec<MemberConfig> = (0..3).map(member).collect();
        for (member, dc) in members.iter_mut().zip(["ny", "ny", "sf"]) {
            member.tags.insert("dc", dc);
        }
        let mut config = config(members);
        let mode = |count| [("dc".to_owned(), count)].into_iter().collect();
        config.settings.get_last_error_modes.insert("spread".into(), mode(2));
        config.settings.get_last_error_modes.insert("never".into(), mode(3));
        let wanted = |name: &str| Acknowledgements::Mode(name.to_owned());
        let two_in_ny = is_acknowledged(&config, &wanted("spread"), |id| id.0 < 2);
        assert_eq!(two_in_ny, Ok(false));
        assert_eq!(is_acknowledged(&config, &wanted("spread"), |id| id.0 > 0), Ok(true));
        assert!(matches!(
            is_acknowledged(&config, &wanted("never"), |_| true),
            Err(UnsatisfiableWriteConcern::TooFewTagValues { present: 2, .. })
        ));
        assert!(matches!(
            is_acknowledged(&config, &wanted("typo"), |_| true),
            Err(UnsatisfiableWriteConcern::UnknownMode(_))
        ));
    }
}
