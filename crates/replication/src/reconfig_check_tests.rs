//! Every rule of docs/replication-rules.md#reconfiguration that compares documents or asks about the set's
//! present state.

use super::*;
use crate::testing::{at, config, member, stamp};
use quorate_protocol::{MemberConfig, ObjectId, Priority};

fn set(ids: &[i32], version: i64) -> ReplicaSetConfig {
    let mut config = config(ids.iter().copied().map(member).collect());
    config.version = version;
    config.term = Some(Term(1));
    config.settings.replica_set_id = Some(ObjectId::from_bytes([7; 12]));
    config
}

fn check(old: &ReplicaSetConfig, new: &ReplicaSetConfig, force: bool) -> Result<(), ReconfigError> {
    let proposal = Proposal { old, new, force, default_write_concern_set: false };
    check_documents(proposal, "rs0", Allowances::default(), &[member(0).host])
}

fn safe(
    old: &ReplicaSetConfig,
    change: impl FnOnce(&mut ReplicaSetConfig),
) -> Result<(), ReconfigError> {
    let mut new = old.clone();
    new.version += 1;
    change(&mut new);
    check(old, &new, false)
}

#[test]
fn rule_4_voter_sets_differ_by_at_most_one() {
    let old = set(&[0, 1, 2], 1);
    assert_eq!(check(&old, &set(&[0, 1, 2, 3], 2), false), Ok(()));
    assert_eq!(check(&old, &set(&[0, 1], 2), false), Ok(()));
    let two = check(&old, &set(&[0, 1, 2, 3, 4], 2), false).unwrap_err();
    assert_eq!((two.code(), two), (103, ReconfigError::TooManyVotersChanged(2)));
    let swapped = check(&old, &set(&[0, 1, 3], 2), false);
    assert_eq!(swapped, Err(ReconfigError::TooManyVotersChanged(2)));
    assert_eq!(check(&old, &set(&[0, 1, 2, 3, 4], 2), true), Ok(()), "force skips the rule");
}

#[test]
fn rule_4_counts_both_the_adding_and_the_clearing_of_newly_added() {
    let old = set(&[0, 1, 2], 1);
    let mut marked = set(&[0, 1, 2, 3, 4], 2);
    marked.members[3].newly_added = true;
    marked.members[4].newly_added = true;
    assert_eq!(voters_changed(&old, &marked), 2, "two votes were asked for");
    let mut cleared = marked.clone();
    cleared.members[3].newly_added = false;
    assert_eq!(voters_changed(&marked, &cleared), 1);
}

#[test]
fn rule_4_leaves_non_voters_free() {
    let old = set(&[0, 1, 2], 1);
    let result = safe(&old, |new| {
        for id in 3..9 {
            new.members.push(MemberConfig { votes: 0, priority: Priority::ZERO, ..member(id) });
        }
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn rule_5_the_version_rises_and_the_identity_stays() {
    let old = set(&[0, 1, 2], 5);
    for version in [4, 5] {
        let error = safe(&old, |new| new.version = version).unwrap_err();
        assert_eq!(error, ReconfigError::VersionNotNewer { new: version, old: 5 });
    }
    let error = safe(&old, |new| new.settings.replica_set_id = None).unwrap_err();
    assert_eq!(error, ReconfigError::ReplicaSetIdChanged);
    let error = safe(&old, |new| new.set_name = "rs1".into()).unwrap_err();
    assert_eq!(error.code(), 93);
}

#[test]
fn rule_5_a_host_keeps_its_id() {
    let old = set(&[0, 1, 2], 1);
    let error = safe(&old, |new| new.members[2].id = MemberId(9)).unwrap_err();
    assert!(matches!(error, ReconfigError::HostChangedId { new: MemberId(9), .. }));
}

#[test]
fn rule_5_the_primary_must_stay_electable() {
    let old = set(&[0, 1, 2], 1);
    assert_eq!(check(&old, &set(&[1, 2], 2), false).unwrap_err().code(), 74);
    let error = safe(&old, |new| new.members[0].priority = Priority::ZERO).unwrap_err();
    assert_eq!(error.code(), 104);
}

#[test]
fn build_indexes_and_arbiter_only_never_change() {
    let mut old = set(&[0, 1, 2], 1);
    old.members[2].priority = Priority::ZERO;
    let error = safe(&old, |new| new.members[2].build_indexes = false).unwrap_err();
    assert_eq!(error, ReconfigError::Immutable(MemberId(2), "buildIndexes"));
    let error = safe(&old, |new| new.members[2].arbiter_only = true).unwrap_err();
    assert_eq!(error, ReconfigError::Immutable(MemberId(2), "arbiterOnly"));
}

#[test]
fn an_arbiter_that_flips_the_default_write_concern_is_refused_without_a_cluster_default() {
    let old = set(&[0, 1], 1);
    let mut new = set(&[0, 1], 2);
    new.members.push(MemberConfig::arbiter(MemberId(2), member(2).host));
    assert_eq!(check(&old, &new, false), Err(ReconfigError::DefaultWriteConcernChanged));
    let proposal = Proposal { old: &old, new: &new, force: false, default_write_concern_set: true };
    let own = [member(0).host];
    assert_eq!(check_documents(proposal, "rs0", Allowances::default(), &own), Ok(()));
}

#[test]
fn clearing_a_newly_added_mark_is_not_judged_again() {
    let mut old = set(&[0, 1, 3, 4], 1);
    old.members.push(MemberConfig::arbiter(MemberId(2), member(2).host));
    old.members[3].newly_added = true;
    let cleared = safe(&old, |new| new.members[3].newly_added = false);
    assert_eq!(cleared, Ok(()), "the vote was accepted when it was asked for");
}

#[test]
fn one_writer_and_an_arbiter_never_get_an_electable_secondary_in_one_step() {
    let mut old = set(&[0], 1);
    old.members.push(MemberConfig::arbiter(MemberId(1), member(1).host));
    assert_eq!(safe(&old, |new| new.members.push(member(2))), Err(ReconfigError::UnsafePsa));
    let passive = safe(&old, |new| {
        new.members.push(MemberConfig { priority: Priority::ZERO, ..member(2) });
    });
    assert_eq!(passive, Ok(()));
}

fn settled(
    installed: [Option<(i64, i64)>; 3],
    durable: [OpTimeAndWallTime; 3],
) -> Result<(), ReconfigError> {
    let config = set(&[0, 1, 2], 4);
    let state = SetState {
        config: &config,
        term: Term(3),
        committed_at_install: stamp(3, 20),
        first_of_term: at(3, 10),
    };
    let index = |id: MemberId| usize::try_from(id.0).unwrap();
    check_settled(
        &state,
        |id| {
            installed[index(id)]
                .map(|(version, term)| (ConfigVersion { term: Some(Term(1)), version }, Term(term)))
        },
        |id| Acknowledged { applied: durable[index(id)], durable: durable[index(id)] },
    )
}

#[test]
fn rules_1_and_2_the_present_configuration_is_on_a_majority_of_my_term() {
    let everywhere = [stamp(3, 30); 3];
    assert_eq!(settled([Some((4, 3)), Some((4, 3)), None], everywhere), Ok(()));
    let behind = settled([Some((4, 3)), Some((3, 3)), None], everywhere).unwrap_err();
    assert_eq!(behind.code(), 308);
    let older_term = settled([Some((4, 3)), Some((4, 2)), Some((4, 2))], everywhere);
    assert!(matches!(older_term, Err(ReconfigError::NotInstalledOnMajority(_))));
}

#[test]
fn rule_3_what_was_committed_before_is_committed_under_the_present_configuration() {
    let everyone = [Some((4, 3)); 3];
    let result = settled(everyone, [stamp(3, 30), stamp(3, 19), stamp(3, 19)]);
    assert_eq!(result, Err(ReconfigError::NotCommittedUnderConfig(at(3, 20))));
    assert_eq!(settled(everyone, [stamp(3, 30), stamp(3, 20), stamp(3, 1)]), Ok(()));
}

/// Half of the majority is not a majority: a threshold that is easily written down wrong.
#[test]
fn rule_1_of_five_voters_three_must_have_the_configuration() {
    let config = set(&[0, 1, 2, 3, 4], 4);
    let state = SetState {
        config: &config,
        term: Term(3),
        committed_at_install: stamp(3, 20),
        first_of_term: at(3, 10),
    };
    let installed_on = |count: i32| {
        let present = ConfigVersion { term: Some(Term(1)), version: 4 };
        check_settled(
            &state,
            |id| (id.0 < count).then_some((present, Term(3))),
            |_| Acknowledged { applied: stamp(3, 30), durable: stamp(3, 30) },
        )
    };
    assert!(matches!(installed_on(2), Err(ReconfigError::NotInstalledOnMajority(_))));
    assert_eq!(installed_on(3), Ok(()));
}

#[test]
fn only_new_votes_of_members_with_data_beside_arbiters_are_gained() {
    let mut old = set(&[0, 1], 1);
    old.members[1] = MemberConfig::arbiter(MemberId(1), member(1).host);
    let mut new = old.clone();
    new.members.push(member(2));
    new.members.push(MemberConfig::arbiter(MemberId(3), member(3).host));
    assert_eq!(voters_gained_beside_arbiters(&old, &new), [MemberId(2)]);
    assert_eq!(voters_gained_beside_arbiters(&set(&[0, 1, 2], 1), &set(&[0, 1, 2, 3], 2)), []);
}
