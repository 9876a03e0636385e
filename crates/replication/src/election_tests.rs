//! The refusals, the vetoes and the takeovers of docs/replication-rules.md#elections, row by row.

use super::*;
use crate::testing::{at, config, member, stamp};

fn set() -> ReplicaSetConfig {
    let mut config = config((0..5).map(member).collect());
    config.version = 3;
    config.term = Some(Term(4));
    config.members[3].priority = Priority::ZERO;
    config.members[4] = MemberConfig::arbiter(MemberId(4), member(4).host);
    config
}

fn seen(config: &ReplicaSetConfig, id: i32, applied: OpTime) -> Visible {
    let member = config.member(MemberId(id)).unwrap();
    Visible {
        id: MemberId(id),
        applied,
        priority: member.effective_priority(),
        can_lead: member.is_electable(),
    }
}

fn voter(config: &ReplicaSetConfig, me: i32) -> Voter<'_> {
    Voter {
        config,
        term: Term(4),
        me: MemberId(me),
        last_vote: Some(LastVote { term: Term(4), candidate: MemberId(2) }),
        last_written: at(4, 10),
        primary: None,
        visible: vec![seen(config, me, at(4, 10))],
    }
}

fn request(dry_run: bool) -> VoteRequest {
    VoteRequest {
        set_name: "rs0".into(),
        dry_run,
        term: if dry_run { Term(4) } else { Term(5) },
        candidate: MemberId(0),
        reason: ElectionReason::ElectionTimeout,
        config: ConfigVersion { term: Some(Term(4)), version: 3 },
        last_written: at(4, 10),
        last_applied: at(4, 10),
    }
}

fn both_rounds(change: impl Fn(&mut VoteRequest)) -> [Result<(), Refusal>; 2] {
    let config = set();
    [true, false].map(|dry_run| {
        let mut request = request(dry_run);
        change(&mut request);
        judge(&voter(&config, 1), &request)
    })
}

#[test]
fn a_candidate_that_is_not_behind_gets_the_vote() {
    assert_eq!(both_rounds(|_| ()), [Ok(()), Ok(())]);
    assert_eq!(both_rounds(|r| r.last_written = at(5, 1)), [Ok(()), Ok(())]);
}

#[test]
fn refusals_hold_in_both_rounds() {
    for result in both_rounds(|r| r.set_name = "rs1".into()) {
        assert!(matches!(result, Err(Refusal::SetName { .. })));
    }
    for result in both_rounds(|r| r.term = Term(3)) {
        assert!(matches!(result, Err(Refusal::OldTerm { .. })));
    }
    for result in both_rounds(|r| r.config.version = 2) {
        assert!(matches!(result, Err(Refusal::OldConfig { .. })));
    }
    for result in both_rounds(|r| r.last_written = at(4, 9)) {
        assert!(matches!(result, Err(Refusal::Behind { .. })));
    }
}

#[test]
fn one_vote_per_term_even_for_the_same_candidate() {
    let config = set();
    let mut voter = voter(&config, 1);
    voter.term = Term(5);
    voter.last_vote = Some(LastVote { term: Term(5), candidate: MemberId(0) });
    assert!(matches!(judge(&voter, &request(false)), Err(Refusal::AlreadyVoted { .. })));
    let mut dry = request(true);
    dry.term = Term(5);
    assert_eq!(judge(&voter, &dry), Ok(()), "a dry run spends no vote");
}

#[test]
fn an_arbiter_keeps_a_healthy_primary_of_no_lower_priority() {
    let mut config = set();
    let healthy = |config: &ReplicaSetConfig| {
        let mut voter = voter(config, 4);
        voter.primary = Some(MemberId(1));
        voter.visible = vec![seen(config, 1, at(4, 10))];
        judge(&voter, &request(false))
    };
    assert_eq!(healthy(&config), Err(Refusal::ArbiterSeesPrimary(MemberId(1))));
    config.members[0].priority = Priority(5.0);
    assert_eq!(healthy(&config), Ok(()));
}

fn veto_with(
    reason: ElectionReason,
    me: i32,
    primary: Option<i32>,
    others: &[(i32, OpTime)],
    priorities: &[(usize, f64)],
) -> Option<Veto> {
    let mut config = set();
    for (index, priority) in priorities {
        config.members[*index].priority = Priority(*priority);
    }
    let mut voter = voter(&config, me);
    voter.primary = primary.map(MemberId);
    voter.visible = others.iter().map(|(id, applied)| seen(&config, *id, *applied)).collect();
    let mut request = request(true);
    request.reason = reason;
    veto(&voter, &request)
}

const TIMEOUT: ElectionReason = ElectionReason::ElectionTimeout;

#[test]
fn veto_a_candidate_that_is_not_a_member() {
    let config = set();
    let mut request = request(true);
    request.candidate = MemberId(9);
    assert_eq!(veto(&voter(&config, 1), &request), Some(Veto::NotAMember));
}

#[test]
fn veto_a_candidate_behind_the_freshest_reachable_member() {
    let result = veto_with(TIMEOUT, 1, None, &[(1, at(4, 10)), (2, at(4, 11))], &[]);
    assert_eq!(result, Some(Veto::FresherMember(MemberId(2))));
}

#[test]
fn veto_until_the_candidate_has_copied_from_a_fresher_secondary_only_member() {
    let result = veto_with(TIMEOUT, 1, None, &[(1, at(4, 10)), (3, at(4, 11))], &[]);
    assert_eq!(result, Some(Veto::FresherSecondaryOnlyMember(MemberId(3))));
}

#[test]
fn veto_while_the_voter_sees_a_fresher_primary() {
    let result = veto_with(TIMEOUT, 1, Some(2), &[(1, at(4, 10)), (2, at(4, 11))], &[]);
    assert_eq!(result, Some(Veto::FresherPrimary(MemberId(2))));
    let equal = veto_with(TIMEOUT, 1, Some(2), &[(1, at(4, 10)), (2, at(4, 10))], &[]);
    assert_eq!(equal, None, "only the primary itself objects at an equal optime");
}

#[test]
fn veto_by_a_primary_that_is_not_behind() {
    let result = veto_with(TIMEOUT, 1, Some(1), &[(1, at(4, 10))], &[]);
    assert_eq!(result, Some(Veto::IAmPrimary));
    assert_eq!(veto_with(TIMEOUT, 1, Some(1), &[(1, at(4, 9))], &[]), None);
}

#[test]
fn veto_for_a_better_priority_within_ten_seconds_of_the_newest_entry() {
    let near = [(1, at(4, 10)), (2, at(4, 1))];
    let result = veto_with(TIMEOUT, 1, None, &near, &[(2, 2.0)]);
    assert_eq!(result, Some(Veto::BetterPriority(MemberId(2))));
    let far = [(1, at(4, 10)), (2, OpTime::NULL)];
    assert_eq!(
        veto_with(TIMEOUT, 1, None, &far, &[(2, 2.0)]),
        Some(Veto::BetterPriority(MemberId(2)))
    );
    let mut request = request(true);
    request.last_applied = at(4, 30);
    request.last_written = at(4, 30);
    let mut config = set();
    config.members[2].priority = Priority(2.0);
    let mut voter = voter(&config, 1);
    voter.visible = vec![seen(&config, 2, at(4, 19))];
    assert_eq!(veto(&voter, &request), None, "eleven seconds behind is too far to wait for");
}

#[test]
fn takeover_and_handoff_waive_the_primary_and_priority_vetoes() {
    let seen = [(1, at(4, 11)), (2, at(4, 10))];
    for reason in [ElectionReason::PriorityTakeover, ElectionReason::Handoff] {
        assert_eq!(veto_with(reason, 1, Some(1), &seen, &[(2, 9.0)]), None, "{reason}");
    }
    let behind_another = [(1, at(4, 11)), (2, at(4, 12))];
    assert_eq!(
        veto_with(ElectionReason::PriorityTakeover, 1, Some(1), &behind_another, &[]),
        Some(Veto::FresherMember(MemberId(2))),
        "a fresher secondary is no primary to take over from"
    );
}

#[test]
fn a_catch_up_takeover_waives_priority_but_needs_the_primary_to_be_behind() {
    let reason = ElectionReason::CatchUpTakeover;
    assert_eq!(veto_with(reason, 1, Some(1), &[(1, at(4, 9))], &[(1, 9.0)]), None);
    let caught_up = veto_with(reason, 1, Some(1), &[(1, at(4, 10))], &[]);
    assert_eq!(caught_up, Some(Veto::IAmPrimary));
}

#[test]
fn a_tally_wins_with_a_majority_of_votes_and_is_lost_when_none_is_possible() {
    let config = set();
    let mut tally = Tally::with_own_vote(MemberId(0));
    let answer =
        |vote_granted| VoteReply { term: Term(4), vote_granted, reason: String::new(), veto: None };
    tally.record(MemberId(1), &answer(true));
    tally.record(MemberId(1), &answer(true));
    assert!(!tally.has_majority(&config), "two of five; an answer counts once");
    tally.record(MemberId(4), &answer(true));
    assert!(tally.has_majority(&config));

    let mut tally = Tally::with_own_vote(MemberId(0));
    tally.record(MemberId(1), &answer(false));
    tally.record_silence(MemberId(2));
    assert!(!tally.is_lost(&config));
    tally.record_silence(MemberId(3));
    assert!(tally.is_lost(&config));
}

#[test]
fn a_yes_of_a_member_without_a_vote_is_not_counted() {
    let mut config = config((0..3).map(member).collect());
    config.members[1].votes = 0;
    config.members[1].priority = Priority::ZERO;
    let yes = VoteReply { term: Term(4), vote_granted: true, reason: String::new(), veto: None };
    let mut tally = Tally::with_own_vote(MemberId(0));
    tally.record(MemberId(1), &yes);
    assert!(!tally.has_majority(&config), "one of two votes");
    let mut marked = config.clone();
    marked.members[2].newly_added = true;
    tally.record(MemberId(2), &yes);
    assert!(tally.has_majority(&config));
    assert_eq!(tally.votes_for(&marked), 1, "nor one of a member that is newly added");
}

#[test]
fn priority_takeover_waits_longer_for_each_member_that_outranks() {
    let mut config = set();
    config.members[1].priority = Priority(3.0);
    config.members[2].priority = Priority(2.0);
    let delay = |id| priority_takeover_delay(&config, MemberId(id), Duration::from_secs(10));
    assert_eq!(delay(1), Duration::from_secs(10));
    assert_eq!(delay(2), Duration::from_secs(20));
    assert_eq!(delay(0), Duration::from_secs(30));
}

#[test]
fn priority_takeover_needs_the_same_term_and_two_seconds_or_a_thousand_entries() {
    use quorate_protocol::Timestamp;
    let entry = |seconds, increment| OpTime::new(4, Timestamp::new(seconds, increment));
    assert!(is_fresh_enough_for_takeover(entry(8, 1), entry(10, 1)));
    assert!(!is_fresh_enough_for_takeover(entry(7, 1), entry(10, 1)));
    assert!(is_fresh_enough_for_takeover(entry(10, 1), entry(10, 1001)));
    assert!(!is_fresh_enough_for_takeover(entry(10, 1), entry(10, 1002)));
    assert!(!is_fresh_enough_for_takeover(at(3, 10), entry(10, 1)));
}

#[test]
fn catch_up_takeover_is_for_the_freshest_ahead_of_a_primary_that_wrote_nothing() {
    let (ahead, behind) = (stamp(3, 9), stamp(3, 5));
    assert!(may_take_over_to_catch_up(ahead, behind, at(3, 9), Term(4)));
    assert!(!may_take_over_to_catch_up(behind, ahead, at(3, 9), Term(4)));
    assert!(!may_take_over_to_catch_up(ahead, ahead, at(3, 9), Term(4)), "no further than it");
    assert!(!may_take_over_to_catch_up(ahead, behind, at(3, 10), Term(4)));
    assert!(!may_take_over_to_catch_up(stamp(4, 9), behind, at(4, 9), Term(4)));
}
