//! Every rule of docs/replication-rules.md#sync-source, by name.

use super::*;
use crate::testing::at;

fn candidate(id: i32, ping_millis: u64) -> Candidate {
    Candidate {
        id: MemberId(id),
        up: true,
        state: MemberState::Secondary,
        applied: at(1, 100),
        ping: Some(Duration::from_millis(ping_millis)),
        pings: 5,
        voter: true,
        hidden: false,
        build_indexes: true,
        delay: Duration::ZERO,
        denied: false,
        primary: false,
        has_source: true,
    }
}

fn primary(id: i32, ping_millis: u64) -> Candidate {
    Candidate {
        primary: true,
        state: MemberState::Primary,
        has_source: false,
        ..candidate(id, ping_millis)
    }
}

const ME: Chooser = Chooser {
    last_fetched: at_50(),
    voter: true,
    build_indexes: true,
    delay: Duration::ZERO,
    chaining_allowed: true,
    forced: None,
    rescue: false,
    copies_everything: false,
};

const fn at_50() -> OpTime {
    OpTime::new(1, quorate_protocol::Timestamp::new(50, 1))
}

fn source(id: i32) -> Choice {
    Choice::Source(MemberId(id))
}

#[test]
fn the_lowest_ping_wins() {
    assert_eq!(choose(ME, &[primary(0, 30), candidate(1, 10), candidate(2, 20)]), source(1));
}

#[test]
fn the_primary_is_preferred_within_five_milliseconds() {
    assert_eq!(choose(ME, &[primary(0, 15), candidate(1, 10)]), source(0));
    assert_eq!(choose(ME, &[primary(0, 16), candidate(1, 10)]), source(1));
}

#[test]
fn a_forced_target_is_taken_once_if_it_is_up_and_readable() {
    let forced = Chooser { forced: Some(MemberId(2)), ..ME };
    let mut members = [primary(0, 10), candidate(1, 10), candidate(2, 500)];
    assert_eq!(choose(forced, &members), source(2));
    members[2].up = false;
    assert_eq!(choose(forced, &members), source(0));
}

#[test]
fn two_pings_of_every_peer_come_first() {
    let mut members = [primary(0, 10), candidate(1, 10)];
    members[1].pings = 1;
    assert_eq!(choose(ME, &members), Choice::WaitForPings, "either may be the closer one");
    let ahead = std::mem::replace(&mut members[1].applied, ME.last_fetched);
    assert_eq!(choose(ME, &members), source(0), "only the primary can be the source");
    members[1].applied = ahead;
    members[0].denied = true;
    assert_eq!(choose(ME, &members), Choice::WaitForPings);
    members[0].denied = false;
    members[0].primary = false;
    assert_eq!(choose(ME, &members), Choice::WaitForPings);
    members[1].up = false;
    assert_eq!(choose(ME, &members), source(0), "a peer that is down is not waited for");
}

#[test]
fn without_chaining_only_the_primary() {
    let strict = Chooser { chaining_allowed: false, ..ME };
    assert_eq!(choose(strict, &[primary(0, 90), candidate(1, 1)]), source(0));
    assert_eq!(choose(strict, &[candidate(1, 1)]), Choice::NoSource);
}

/// The manual: a new member copies from the member that is closer than the primary.
#[test]
fn a_fresh_member_copies_from_the_nearest_and_without_chaining_from_the_primary() {
    let fresh = Chooser { last_fetched: OpTime::NULL, ..ME };
    assert_eq!(choose(fresh, &[primary(0, 90), candidate(1, 1)]), source(1));
    assert_eq!(
        choose(fresh, &[primary(0, 4), candidate(1, 1)]),
        source(0),
        "as near as makes no odds"
    );
    let strict = Chooser { chaining_allowed: false, ..fresh };
    assert_eq!(choose(strict, &[primary(0, 90), candidate(1, 1)]), source(0));
}

#[test]
fn never_down_denied_hidden_recovering_or_not_ahead() {
    let changes: [fn(&mut Candidate); 6] = [
        |m| m.up = false,
        |m| m.denied = true,
        |m| m.hidden = true,
        |m| m.state = MemberState::Recovering,
        |m| m.state = MemberState::Startup2,
        |m| m.applied = at(1, 50),
    ];
    for change in changes {
        let mut member = candidate(1, 1);
        change(&mut member);
        assert_eq!(choose(ME, &[member]), Choice::NoSource);
    }
}

#[test]
fn a_primary_may_be_level_and_no_other_member() {
    let level = |member: Candidate| Candidate { applied: at_50(), ..member };
    assert_eq!(choose(ME, &[level(primary(0, 90)), level(candidate(1, 1))]), source(0));
    let behind = Candidate { applied: at(1, 49), ..primary(0, 90) };
    assert_eq!(choose(ME, &[behind]), Choice::NoSource);
}

#[test]
fn who_builds_indexes_never_syncs_from_who_does_not() {
    let without = Candidate { build_indexes: false, ..candidate(1, 1) };
    assert_eq!(choose(ME, std::slice::from_ref(&without)), Choice::NoSource);
    let me = Chooser { build_indexes: false, ..ME };
    assert_eq!(choose(me, &[without, candidate(2, 0)]), source(1), "prefers its equals");
    assert_eq!(choose(me, &[candidate(2, 0)]), source(2), "and falls back");
}

#[test]
fn a_set_without_a_primary_is_rescued_from_the_member_with_the_entries() {
    let hidden = Candidate { hidden: true, build_indexes: false, ..candidate(1, 1) };
    let strict = Chooser { chaining_allowed: false, ..ME };
    assert_eq!(choose(strict, std::slice::from_ref(&hidden)), Choice::NoSource);
    let rescue = Chooser { rescue: true, ..strict };
    assert_eq!(choose(rescue, std::slice::from_ref(&hidden)), source(1));
    let stay =
        Stay { me: rescue, source: MemberId(1), source_was_forced: false, changes_within_hour: 0 };
    assert_eq!(should_leave(stay, &[hidden]), None);
}

/// Found by a world: the copy had no unique index, was elected, and took two documents with the same key.
#[test]
fn a_member_that_copies_everything_is_not_rescued_by_one_without_indexes() {
    let without = Candidate { build_indexes: false, ..candidate(1, 1) };
    let rescue = Chooser { rescue: true, copies_everything: true, ..ME };
    assert_eq!(choose(rescue, std::slice::from_ref(&without)), Choice::NoSource);
    let hidden = Candidate { hidden: true, ..candidate(2, 9) };
    assert_eq!(choose(rescue, &[without.clone(), hidden]), source(2));
    let me = Chooser { build_indexes: false, ..rescue };
    assert_eq!(choose(me, &[without]), source(1), "it builds none either");
}

#[test]
fn first_pass_rules_only_order_the_choice() {
    let changes: [fn(&mut Candidate); 3] =
        [|m| m.voter = false, |m| m.delay = Duration::from_secs(60), |m| m.applied = at(1, 69)];
    for change in changes {
        let mut worse = candidate(1, 1);
        change(&mut worse);
        assert_eq!(choose(ME, &[worse.clone(), primary(0, 90)]), source(0));
        assert_eq!(choose(ME, &[worse]), source(1), "better than no source");
    }
}

fn leave(source: i32, members: &[Candidate]) -> Option<Leave> {
    let stay =
        Stay { me: ME, source: MemberId(source), source_was_forced: false, changes_within_hour: 0 };
    should_leave(stay, members)
}

#[test]
fn a_good_source_is_kept() {
    assert_eq!(leave(1, &[primary(0, 10), candidate(1, 10)]), None);
}

#[test]
fn a_source_is_left_when_it_leaves_the_set_or_stops_serving() {
    assert_eq!(leave(9, &[primary(0, 10)]), Some(Leave::NotUsable));
    let rolling = Candidate { state: MemberState::Rollback, ..candidate(1, 1) };
    assert_eq!(leave(1, &[primary(0, 10), rolling]), Some(Leave::NotUsable));
}

#[test]
fn a_source_is_left_when_chaining_is_switched_off() {
    let stay = Stay {
        me: Chooser { chaining_allowed: false, ..ME },
        source: MemberId(1),
        source_was_forced: false,
        changes_within_hour: 0,
    };
    let members = [primary(0, 10), candidate(1, 10)];
    assert_eq!(should_leave(stay, &members), Some(Leave::ChainingForbidden));
}

#[test]
fn a_sourceless_secondary_with_nothing_new_is_a_dead_end() {
    let idle = Candidate { has_source: false, applied: at(1, 50), ..candidate(1, 1) };
    assert_eq!(leave(1, &[idle]), Some(Leave::DeadEnd));
}

#[test]
fn a_source_more_than_thirty_seconds_behind_another_is_left() {
    let slow = Candidate { applied: at(1, 69), ..candidate(1, 1) };
    assert_eq!(leave(1, &[primary(0, 90), slow]), Some(Leave::FarBehind(MemberId(0))));
    let bearable = Candidate { applied: at(1, 70), ..candidate(1, 1) };
    assert_eq!(leave(1, &[primary(0, 90), bearable]), None, "thirty seconds are not more");
}

#[test]
fn a_member_that_is_denied_for_a_while_may_still_serve_and_one_that_chaining_forbids_may_not() {
    let denied = Candidate { denied: true, ..candidate(1, 1) };
    assert!(may_serve(ME, &denied));
    let unchained = Chooser { chaining_allowed: false, ..ME };
    assert!(!may_serve(unchained, &denied));
    assert!(may_serve(unchained, &primary(0, 1)));
    assert!(may_serve(Chooser { rescue: true, ..unchained }, &denied));
}

#[test]
fn a_closer_source_is_taken_at_most_three_times_an_hour_and_never_after_sync_from() {
    let members = [primary(0, 4), candidate(1, 10)];
    let stay = |changes_within_hour, source_was_forced, delay| Stay {
        me: Chooser { delay, ..ME },
        source: MemberId(1),
        source_was_forced,
        changes_within_hour,
    };
    let closer = Some(Leave::CloserSource(MemberId(0)));
    assert_eq!(should_leave(stay(0, false, Duration::ZERO), &members), closer);
    assert_eq!(should_leave(stay(MAX_CHANGES_PER_HOUR, false, Duration::ZERO), &members), None);
    assert_eq!(should_leave(stay(0, true, Duration::ZERO), &members), None);
    assert_eq!(should_leave(stay(0, false, Duration::from_secs(9)), &members), None);
    assert_eq!(leave(1, &[primary(0, 5), candidate(1, 10)]), None, "five is not more than five");
}

#[test]
fn the_first_entry_must_be_our_last() {
    let judge = |first, oldest, last| {
        judge_first_batch(FirstBatch {
            asked: at(3, 50),
            first,
            source_oldest: oldest,
            source_last: last,
        })
    };
    assert_eq!(judge(Some(at(3, 50)), at(1, 1), at(3, 60)), FetchVerdict::Continue);
    assert_eq!(judge(Some(at(4, 51)), at(1, 1), at(4, 60)), FetchVerdict::RollBack);
    assert_eq!(judge(None, at(1, 1), at(4, 40)), FetchVerdict::RollBack);
    assert_eq!(judge(None, at(1, 1), at(3, 40)), FetchVerdict::SourceBehind);
    assert_eq!(judge(Some(at(2, 51)), at(1, 1), at(2, 60)), FetchVerdict::SourceBehind);
    assert_eq!(judge(Some(at(4, 70)), at(4, 70), at(4, 90)), FetchVerdict::TooStale);
    assert_eq!(judge(None, at(3, 50), at(4, 90)), FetchVerdict::RollBack, "it has our last entry");
}
