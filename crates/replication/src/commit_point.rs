//! The commit point: the newest entry that no election can lose.
//!
//! Pure functions over positions. docs/replication-rules.md#commit-point; the proof obligations are those of
//! RaftMongo: a primary
//! only ever commits entries of its own term, and a follower only believes a commit point that lies
//! on its own branch of history.

use quorate_protocol::{MemberId, OpTime, OpTimeAndWallTime, ReplicaSetConfig};

use crate::quorum::Counts;

/// What a voter has, as the primary knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Acknowledged {
    /// In its data.
    pub applied: OpTimeAndWallTime,
    /// On its disk.
    pub durable: OpTimeAndWallTime,
}

/// The newest position that a write majority of the configuration's voters has reached.
pub(crate) fn majority_position(
    config: &ReplicaSetConfig,
    position: impl Fn(MemberId) -> Acknowledged,
) -> OpTimeAndWallTime {
    let mut positions: Vec<OpTimeAndWallTime> = config
        .voters()
        .filter(|member| !member.arbiter_only)
        .map(|member| {
            let position = position(member.id);
            if config.write_concern_majority_journal_default {
                position.durable
            } else {
                position.applied
            }
        })
        .collect();
    positions.sort_unstable_by(|a, b| b.cmp(a));
    let needed = Counts::of(config).write_majority;
    needed.checked_sub(1).and_then(|index| positions.get(index).copied()).unwrap_or_default()
}

/// The primary's new commit point, if the majority's position moves it.
///
/// `first_of_term` is the new-primary no-op; `None` (not written yet) commits nothing, because an
/// entry of an older term on a majority can still lose to a branch of a later one.
pub(crate) fn primary_commit_point(
    current: OpTimeAndWallTime,
    majority: OpTimeAndWallTime,
    first_of_term: Option<OpTime>,
) -> Option<OpTimeAndWallTime> {
    let first = first_of_term?;
    (majority.op_time >= first && majority.op_time > current.op_time).then_some(majority)
}

/// The source from which a follower learned of a commit point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Teller {
    /// Some member, in its reply to a heartbeat: it may be on another branch.
    Heartbeat,
    /// The member whose entries we copy: our history is a prefix of its.
    SyncSource,
}

/// A follower's new commit point, if what it was told moves it.
pub(crate) fn follower_commit_point(
    current: OpTimeAndWallTime,
    told: OpTimeAndWallTime,
    teller: Teller,
    last: OpTimeAndWallTime,
) -> Option<OpTimeAndWallTime> {
    if teller == Teller::Heartbeat && told.op_time.term != last.op_time.term {
        return None;
    }
    let believed = told.min(last);
    (believed.op_time > current.op_time).then_some(believed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{config, member, stamp};
    use quorate_protocol::MemberConfig;

    fn positions(durable: &[(i64, u32)]) -> impl Fn(MemberId) -> Acknowledged + '_ {
        move |id| {
            let (term, seconds) = durable[usize::try_from(id.0).unwrap()];
            Acknowledged { applied: stamp(term, seconds + 1), durable: stamp(term, seconds) }
        }
    }

    #[test]
    fn the_majority_position_is_the_write_majoritys_highest_durable_one() {
        let three = config((0..3).map(member).collect());
        assert_eq!(majority_position(&three, positions(&[(1, 9), (1, 7), (1, 3)])), stamp(1, 7));
        let mut applied = three.clone();
        applied.write_concern_majority_journal_default = false;
        assert_eq!(majority_position(&applied, positions(&[(1, 9), (1, 7), (1, 3)])), stamp(1, 8));
    }

    #[test]
    fn an_arbiter_never_counts_as_a_copy() {
        let psa =
            config(vec![member(0), member(1), MemberConfig::arbiter(MemberId(2), member(2).host)]);
        assert_eq!(majority_position(&psa, positions(&[(1, 9), (1, 2), (1, 9)])), stamp(1, 2));
    }

    #[test]
    fn nothing_commits_before_the_first_entry_of_the_term() {
        let floor = Some(stamp(2, 5).op_time);
        assert_eq!(primary_commit_point(stamp(1, 1), stamp(1, 4), floor), None);
        assert_eq!(primary_commit_point(stamp(1, 1), stamp(2, 5), None), None);
        assert_eq!(primary_commit_point(stamp(1, 1), stamp(2, 5), floor), Some(stamp(2, 5)));
        assert_eq!(primary_commit_point(stamp(2, 6), stamp(2, 5), floor), None);
    }

    #[test]
    fn a_heartbeat_of_another_branch_is_not_believed() {
        let current = stamp(1, 1);
        let believed = |told, teller, last| follower_commit_point(current, told, teller, last);
        assert_eq!(believed(stamp(2, 4), Teller::Heartbeat, stamp(1, 9)), None);
        assert_eq!(believed(stamp(1, 4), Teller::Heartbeat, stamp(1, 9)), Some(stamp(1, 4)));
        assert_eq!(believed(stamp(2, 4), Teller::SyncSource, stamp(1, 9)), Some(stamp(1, 9)));
        assert_eq!(believed(stamp(1, 1), Teller::SyncSource, stamp(1, 9)), None);
    }

    #[test]
    fn a_follower_never_believes_past_its_own_log() {
        let told = follower_commit_point(stamp(1, 1), stamp(1, 9), Teller::Heartbeat, stamp(1, 4));
        assert_eq!(told, Some(stamp(1, 4)));
    }
}
