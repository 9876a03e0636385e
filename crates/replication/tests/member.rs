//! What a single member says when it is asked the wrong thing, or told the worst.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod subject;

use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, ElectionReason, HeartbeatReply, HelloReply, MemberId, MemberState, OpTime,
    OpTimeAndWallTime, ServerAddress, Term, VoteRequest,
};
use quorate_replication::{
    Change, Event, Fatal, FetchFailure, FetchedBatch, Input, Memory, Output, Recovered, Reply,
    Request, RequestId, Unreachable, WaiterId, WriteConcern,
};
use subject::{
    Subject, acknowledgement, address, append, config, entry, fetch_among, heartbeat_from, primary,
    refusal, reply_of, report,
};

#[test]
fn heartbeat_errors_are_108_2_and_93() {
    let mut subject = Subject::secondary(entry(1, 5));
    let mut foreign = heartbeat_from(1);
    foreign.set_name = "rs1".into();
    assert_eq!(subject.ask(Request::Heartbeat(foreign)), Some(Err(108)));
    assert_eq!(subject.ask(Request::Heartbeat(heartbeat_from(0))), Some(Err(2)));

    let mut without = config(3);
    without.members.remove(0);
    let mut removed = Subject::new(Recovered { config: Some(without), ..Recovered::default() });
    assert_eq!(removed.member.status().state(), MemberState::Removed);
    assert_eq!(removed.ask(Request::Heartbeat(heartbeat_from(1))), Some(Err(93)));
    let called_back = removed.outputs.iter().any(|output| {
        matches!(output, Output::Send { to, message: Request::Heartbeat(_), .. } if *to == address(1))
    });
    assert!(called_back, "a removed member asks the member that contacts it");
}

/// The host called a name of the configuration and reached this process: the member is the one of that
/// name.
#[test]
fn a_member_finds_itself_by_a_name_under_which_it_was_reached() {
    let name: ServerAddress = "db1.example:27017".parse().unwrap();
    let mut renamed = config(3);
    renamed.members[0].host = name.clone();
    let recovered = Recovered { config: Some(renamed), last: entry(1, 5), ..Recovered::default() };
    let mut subject = Subject::new(recovered);
    assert_eq!(subject.member.status().state(), MemberState::Removed);
    subject.give(Input::ReachedUnder("elsewhere.example:27017".parse().unwrap()));
    assert_eq!(subject.member.status().state(), MemberState::Removed);
    subject.give(Input::ReachedUnder(name.clone()));
    assert_eq!(subject.member.status().me(), Some(MemberId(0)));
    assert_eq!(subject.member.status().state(), MemberState::Secondary);
    assert!(subject.give(Input::ReachedUnder(name)).is_empty(), "it is known already");
}

/// A whole set that starts again under names waits for no election timeout: a member that has just been
/// found is one that has just started.
#[test]
fn a_member_that_was_found_after_its_start_stands_if_the_others_have_no_primary() {
    let name: ServerAddress = "db1.example:27017".parse().unwrap();
    let mut renamed = config(3);
    renamed.members[0].host = name.clone();
    let recovered = Recovered { config: Some(renamed), last: entry(1, 5), ..Recovered::default() };
    let mut subject = Subject::new(recovered);
    subject.now = subject.now + Duration::from_millis(1500);
    subject.give(Input::ReachedUnder(name));
    let (one, other) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
    let followers = || reply_of(MemberState::Secondary, entry(1, 5));
    let early = subject.hear(one, followers());
    assert!(!early.iter().any(is_restart), "the other voter may know of a primary");
    let stood = subject.hear(other, followers());
    assert!(stood.iter().any(is_restart), "{stood:?}");
}

/// As on a restored backup: there is no other voter that could know of a vote.
#[test]
fn a_lone_voter_that_forgot_its_votes_stands_at_once() {
    let recovered = Recovered {
        config: Some(config(1)),
        last: entry(1, 5),
        memory: Memory::Lost,
        ..Recovered::default()
    };
    let subject = Subject::new(recovered);
    assert_eq!(subject.member.next_deadline(), Some(subject.now), "it waits for no silence");
}

fn is_restart(output: &Output) -> bool {
    matches!(output, Output::Event(Event::AllRestarted))
}

#[test]
fn an_uninitialised_member_answers_94_and_is_not_initiated_twice() {
    let mut fresh = Subject::new(Recovered::default());
    let reconfig = Request::Reconfig { config: Box::new(config(3)), force: true, max_time: None };
    assert_eq!(fresh.ask(reconfig), Some(Err(94)));
    assert_eq!(fresh.ask(Request::SyncFrom(address(1))), Some(Err(94)));
    let mut subject = Subject::secondary(entry(1, 5));
    assert_eq!(subject.ask(Request::Initiate(None)), Some(Err(23)));
}

#[test]
fn a_member_with_entries_is_not_initiated() {
    let mut subject = Subject::new(Recovered { last: entry(1, 5), ..Recovered::default() });
    assert_eq!(subject.ask(Request::Initiate(None)), Some(Err(110)));
}

fn initiating() -> (Subject, Vec<RequestId>) {
    let mut fresh = Subject::new(Recovered::default());
    let mut first = config(3);
    first.settings.replica_set_id = None;
    assert_eq!(fresh.ask(Request::Initiate(Some(Box::new(first)))), None, "it polls first");
    let polls = vec![fresh.heartbeat_to(1), fresh.heartbeat_to(2)];
    (fresh, polls)
}

fn empty_member() -> HeartbeatReply {
    HeartbeatReply {
        config_version: None,
        ..reply_of(MemberState::Startup, OpTimeAndWallTime::default())
    }
}

#[test]
fn initiate_needs_every_member_to_answer() {
    let (mut fresh, polls) = initiating();
    fresh.hear(polls[0], empty_member());
    let outputs =
        fresh.give(Input::PeerUnreachable { request: polls[1], cause: Unreachable::Refused });
    assert_eq!(refusal(&outputs), Some(74));
    assert_eq!(fresh.member.status().state(), MemberState::Startup);
}

#[test]
fn initiate_needs_every_member_to_be_empty() {
    let (mut fresh, polls) = initiating();
    let outputs = fresh.hear(polls[0], HeartbeatReply { has_data: true, ..empty_member() });
    assert_eq!(refusal(&outputs), Some(110));
}

#[test]
fn initiate_stores_the_set_before_anything_is_said() {
    let (mut fresh, polls) = initiating();
    fresh.hear(polls[0], empty_member());
    let outputs = fresh.hear(polls[1], empty_member());
    let [Output::Persist { ticket, change: Change::Initiate(stored) }] = outputs.as_slice() else {
        panic!("only the write may leave: {outputs:?}");
    };
    assert_eq!((stored.version, stored.term), (1, Some(Term(0))));
    assert!(stored.settings.replica_set_id.is_some());
    let ticket = *ticket;
    fresh.give(Input::EntriesAppended { last: entry(0, 1) });
    fresh.give(Input::Applied { last: entry(0, 1) });
    fresh.give(Input::EntriesDurable { last: entry(0, 1) });
    let outputs = fresh.give(Input::Persisted(ticket));
    assert!(outputs.iter().any(|o| matches!(o, Output::Respond { reply: Ok(Reply::Done), .. })));
    assert_eq!(fresh.member.status().state(), MemberState::Secondary);
}

#[test]
fn a_vote_leaves_only_after_it_is_stored() {
    let mut subject = Subject::secondary(entry(1, 5));
    let request = VoteRequest {
        set_name: "rs0".into(),
        dry_run: false,
        term: Term(2),
        candidate: MemberId(1),
        reason: ElectionReason::ElectionTimeout,
        config: ConfigVersion { term: Some(Term(1)), version: 1 },
        last_written: entry(1, 5).op_time,
        last_applied: entry(1, 5).op_time,
    };
    assert_eq!(subject.ask(Request::Vote(request.clone())), None);
    let ticket = subject.outputs.iter().find_map(|output| match output {
        Output::Persist { ticket, change: Change::LastVote(vote) } => {
            assert_eq!((vote.term, vote.candidate), (Term(2), MemberId(1)));
            Some(*ticket)
        }
        _ => None,
    });
    let again = subject.ask(Request::Vote(request));
    assert!(matches!(again, Some(Ok(Reply::Vote(vote))) if !vote.vote_granted), "one per term");
    let outputs = subject.give(Input::Persisted(ticket.unwrap()));
    let spoken = outputs.iter().any(|output| {
        matches!(output, Output::Respond { reply: Ok(Reply::Vote(vote)), .. } if vote.vote_granted)
    });
    assert!(spoken, "{outputs:?}");
}

#[test]
fn a_member_that_every_peer_shuts_out_is_recovering() {
    let mut subject = Subject::secondary(entry(1, 5));
    let requests = [subject.heartbeat_to(1), subject.heartbeat_to(2)];
    for request in requests {
        assert_eq!(subject.member.status().state(), MemberState::Secondary);
        let reply = Reply::Refused { code: 18, message: "Authentication failed.".into() };
        subject.give(Input::ReplyReceived { request, reply, round_trip: Duration::ZERO });
    }
    assert_eq!(subject.member.status().state(), MemberState::Recovering);
}

#[test]
fn late_replies_of_given_up_requests_are_ignored() {
    let mut subject = Subject::secondary(entry(1, 5));
    let request = subject.heartbeat_to(1);
    subject.now = subject.now + Duration::from_secs(11);
    subject.give(Input::Tick);
    subject.hear(request, reply_of(MemberState::Primary, entry(9, 9)));
    assert_eq!(subject.member.status().term(), Term(1), "the reply came too late to be believed");
}

/// A write that came in while a primary stepped down is told after the fetch was ordered.
#[test]
fn a_fetch_begins_again_where_the_log_ends_if_the_log_was_longer() {
    let mut subject = Subject::secondary(entry(1, 5));
    let (one, two) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
    subject.hear(two, reply_of(MemberState::Secondary, entry(1, 5)));
    subject.hear(one, reply_of(MemberState::Primary, entry(1, 5)));
    let first = fetch_among(&subject.give(Input::Tick)).unwrap();
    assert_eq!(first.1, entry(1, 5).op_time, "the primary is followed before the pings are in");
    let longer = entry(1, 6);
    let outputs =
        subject.give(Input::LogMoved { written: longer, applied: longer, durable: longer });
    assert!(outputs.contains(&Output::CancelFetch { fetch: first.0 }), "{outputs:?}");
    assert_eq!(fetch_among(&outputs).map(|(_, after)| after), Some(longer.op_time));
}

/// The first majority write of a term waits for followers: a new primary is copied from at once, also
/// if it was no use as a source just before.
#[test]
fn a_new_primary_is_no_longer_denied() {
    let mut subject = Subject::secondary(entry(1, 5));
    let (one, two) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
    subject.hear(two, reply_of(MemberState::Secondary, entry(1, 5)));
    subject.hear(one, reply_of(MemberState::Primary, entry(1, 5)));
    let (fetch, _) = fetch_among(&subject.give(Input::Tick)).unwrap();
    subject.give(Input::FetchFailed { fetch, cause: FetchFailure::Connection });
    assert_eq!(fetch_among(&subject.give(Input::Tick)), None, "it is left alone for a while");

    subject.give(Input::ConnectionReset { peer: address(1) });
    subject.hear(subject.heartbeat_to(1), reply_of(MemberState::Secondary, entry(1, 5)));
    assert_eq!(fetch_among(&subject.give(Input::Tick)), None, "it leads no more");

    subject.give(Input::ConnectionReset { peer: address(1) });
    subject.hear(subject.heartbeat_to(1), reply_of(MemberState::Primary, entry(2, 6)));
    let again = fetch_among(&subject.give(Input::Tick));
    assert_eq!(again.map(|(_, after)| after), Some(entry(1, 5).op_time));
}

/// A secondary that copies from m1, the primary of term 2, whose log is not its own.
fn diverged(commit_point: OpTimeAndWallTime) -> Subject {
    diverged_after(commit_point, OpTime::NULL)
}

/// The same, whose data is consistent from this entry on only.
fn diverged_after(commit_point: OpTimeAndWallTime, min_valid: OpTime) -> Subject {
    let recovered = Recovered {
        config: Some(config(3)),
        last: entry(1, 9),
        commit_point,
        min_valid,
        ..Recovered::default()
    };
    let mut subject = Subject::new(recovered);
    let (one, two) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
    subject.hear(two, reply_of(MemberState::Secondary, entry(1, 5)));
    subject.hear(one, reply_of(MemberState::Primary, entry(2, 12)));
    let mut fetch = None;
    for _ in 0..8 {
        subject.now = subject.now + Duration::from_secs(1);
        let outputs = subject.give(Input::Tick);
        fetch = fetch.or_else(|| fetch_among(&outputs).map(|(fetch, _)| fetch));
        let beats: Vec<(RequestId, ServerAddress)> = outputs
            .iter()
            .filter_map(|output| match output {
                Output::Send { request, to, message: Request::Heartbeat(_), .. } => {
                    Some((*request, to.clone()))
                }
                _ => None,
            })
            .collect();
        for (request, to) in beats {
            let reply = if to == address(1) {
                reply_of(MemberState::Primary, entry(2, 12))
            } else {
                reply_of(MemberState::Secondary, entry(1, 5))
            };
            subject.hear(request, reply);
        }
        subject.give(Input::Tick);
        fetch = fetch.or_else(|| fetch_among(&subject.outputs).map(|(fetch, _)| fetch));
        if fetch.is_some() {
            break;
        }
    }
    let batch = FetchedBatch {
        first: Some(entry(2, 10).op_time),
        previous: None,
        last: Some(entry(2, 12)),
        source_oldest: entry(0, 1).op_time,
        source_last: entry(2, 12),
        commit_point: entry(2, 12),
        term: Term(2),
        source_is_primary: true,
        rollback_id: 0,
    };
    subject.give(Input::EntriesFetched { fetch: fetch.unwrap(), batch });
    assert_eq!(subject.member.status().state(), MemberState::Rollback);
    subject
}

fn search_of(subject: &Subject) -> quorate_replication::FetchId {
    let search = subject.outputs.iter().find_map(|output| match output {
        Output::FindCommonPoint { fetch, .. } => Some(*fetch),
        _ => None,
    });
    search.unwrap()
}

#[test]
fn a_member_that_rolls_back_votes() {
    let mut subject = diverged(entry(1, 5));
    let request = VoteRequest {
        set_name: "rs0".into(),
        dry_run: false,
        term: Term(5),
        candidate: MemberId(1),
        reason: ElectionReason::ElectionTimeout,
        config: ConfigVersion { term: Some(Term(9)), version: 1 },
        last_written: entry(2, 12).op_time,
        last_applied: entry(2, 12).op_time,
    };
    assert_eq!(subject.ask(Request::Vote(request)), None, "a vote is stored first");
    let ticket = subject.outputs.iter().find_map(|output| match output {
        Output::Persist { ticket, change: Change::LastVote(_) } => Some(*ticket),
        _ => None,
    });
    let outputs = subject.give(Input::Persisted(ticket.unwrap()));
    let granted = outputs.iter().any(|output| {
        matches!(output, Output::Respond { reply: Ok(Reply::Vote(vote)), .. } if vote.vote_granted)
    });
    assert!(granted, "{outputs:?}");
    assert_eq!(subject.member.status().state(), MemberState::Rollback);
}

#[test]
fn a_common_point_below_the_commit_point_is_fatal() {
    let mut subject = diverged(entry(1, 7));
    let fetch = search_of(&subject);
    let outputs = subject.give(Input::CommonPointFound { fetch, common_point: entry(1, 5) });
    let halted = outputs
        .iter()
        .any(|output| matches!(output, Output::Halt(Fatal::RollbackBeforeCommitPoint { .. })));
    assert!(halted, "{outputs:?}");
    assert!(subject.give(Input::Tick).is_empty(), "a member that must end does nothing more");
}

#[test]
fn a_rollback_stores_its_id_then_cuts_then_follows_again() {
    let mut subject = diverged(entry(1, 5));
    let fetch = search_of(&subject);
    let outputs = subject.give(Input::CommonPointFound { fetch, common_point: entry(1, 5) });
    let ticket = outputs.iter().find_map(|output| match output {
        Output::Persist { ticket, change: Change::RollbackId(1) } => Some(*ticket),
        _ => None,
    });
    assert!(!outputs.iter().any(|o| matches!(o, Output::RollBackTo { .. })), "not before");
    let outputs = subject.give(Input::Persisted(ticket.unwrap()));
    assert!(outputs.contains(&Output::RollBackTo { common_point: entry(1, 5) }));
    assert_eq!(subject.member.status().state(), MemberState::Rollback, "until it is cut");
    subject.give(Input::RolledBack { last: entry(1, 5) });
    let status = subject.member.status();
    assert_eq!(status.state(), MemberState::Secondary);
    assert_eq!((status.written(), status.rollback_id()), (entry(1, 5), 1));
}

/// A state from before the end of a copy was never here: it cannot be restored.
#[test]
fn a_member_does_not_roll_back_to_before_its_copy_was_consistent() {
    let mut subject = diverged_after(entry(1, 5), entry(1, 6).op_time);
    let fetch = search_of(&subject);
    let outputs = subject.give(Input::CommonPointFound { fetch, common_point: entry(1, 5) });
    let told = |wanted: fn(&Event) -> bool| {
        outputs.iter().any(|output| matches!(output, Output::Event(event) if wanted(event)))
    };
    assert!(told(|event| matches!(event, Event::CommonPointBeforeCopy { .. })), "{outputs:?}");
    assert!(told(|event| matches!(event, Event::TooStale { .. })), "{outputs:?}");
    assert!(!outputs.iter().any(|output| matches!(output, Output::Persist { .. })), "{outputs:?}");
    assert_eq!(subject.member.status().state(), MemberState::Recovering);
}

/// No common point is left in the source's oplog: the member is too stale, says so, and shows no
/// diverged data while it looks for another source.
#[test]
fn a_member_without_a_common_point_is_recovering_and_too_stale() {
    let mut subject = diverged(entry(1, 5));
    let fetch = search_of(&subject);
    let source_oldest = entry(0, 1).op_time;
    let outputs = subject.give(Input::NoCommonPoint { fetch, source_oldest });
    let told = |wanted: fn(&Event) -> bool| {
        outputs.iter().any(|output| matches!(output, Output::Event(event) if wanted(event)))
    };
    assert!(told(|event| matches!(event, Event::NoCommonPoint { .. })), "{outputs:?}");
    assert!(told(|event| matches!(event, Event::TooStale { .. })), "{outputs:?}");
    for _ in 0..150 {
        subject.now = subject.now + Duration::from_secs(1);
        let outputs = subject.give(Input::Tick);
        assert_eq!(subject.member.status().state(), MemberState::Recovering);
        for output in outputs {
            match output {
                Output::Send { request, to, message: Request::Heartbeat(_), .. } => {
                    let (state, last) = if to == address(1) {
                        (MemberState::Primary, entry(2, 12))
                    } else {
                        (MemberState::Secondary, entry(1, 5))
                    };
                    subject.hear(request, reply_of(state, last));
                }
                Output::FindCommonPoint { fetch, .. } => {
                    subject.give(Input::NoCommonPoint { fetch, source_oldest });
                }
                _ => {}
            }
        }
        assert_eq!(subject.member.status().state(), MemberState::Recovering, "not in between");
    }
}

/// As long as another member might have a longer oplog, the verdict is not final; diverged data is
/// not shown meanwhile either.
#[test]
fn a_member_that_diverged_is_recovering_while_another_source_may_help() {
    let mut subject = diverged(entry(1, 5));
    let fetch = search_of(&subject);
    while !subject.outputs.iter().any(|output| {
        matches!(output, Output::Send { to, message: Request::Heartbeat(_), .. } if *to == address(2))
    }) {
        subject.now = subject.now + Duration::from_secs(1);
        subject.give(Input::Tick);
    }
    let two = subject.heartbeat_to(2);
    subject.hear(two, reply_of(MemberState::Secondary, entry(2, 12)));
    let source_oldest = entry(0, 1).op_time;
    let outputs = subject.give(Input::NoCommonPoint { fetch, source_oldest });
    let stale = |output: &Output| matches!(output, Output::Event(Event::TooStale { .. }));
    assert!(!outputs.iter().any(stale), "m2 may help: {outputs:?}");
    assert_eq!(subject.member.status().state(), MemberState::Recovering);
    let followed = (0..10).any(|_| {
        subject.now = subject.now + Duration::from_secs(1);
        let outputs = subject.give(Input::Tick);
        fetch_among(&outputs).is_some()
    });
    assert!(followed, "it asks the other member");
    assert_eq!(subject.member.status().state(), MemberState::Recovering);
}

fn write_and_wait(subject: &mut Subject) {
    append(subject, entry(2, 20));
    let concern = WriteConcern::majority();
    let op_time = entry(2, 20).op_time;
    let waiter = WaiterId(1);
    let outputs = subject.give(Input::AcknowledgementWanted { waiter, op_time, concern });
    assert_eq!(acknowledgement(&outputs), None, "one copy is no majority");
}

#[test]
fn a_report_of_the_same_term_acknowledges_a_write() {
    let mut subject = primary();
    assert_eq!(subject.member.status().term(), Term(2));
    write_and_wait(&mut subject);
    subject.ask(report(2, 0, entry(2, 20)));
    assert_eq!(acknowledgement(&subject.outputs), None, "claims about oneself are ignored");
    assert_eq!(subject.ask(report(2, 9, entry(2, 20))), Some(Err(74)), "no member knows m9");
    assert_eq!(subject.ask(report(2, 1, entry(2, 20))), Some(Ok(Reply::Done)));
    assert_eq!(acknowledgement(&subject.outputs), Some(Ok(())));
    assert_eq!(subject.member.status().commit_point(), entry(2, 20));
}

#[test]
fn a_report_of_a_later_term_is_not_counted() {
    let mut subject = primary();
    write_and_wait(&mut subject);
    let before = subject.member.status().commit_point();
    subject.ask(report(3, 1, entry(2, 20)));
    assert_eq!(acknowledgement(&subject.outputs), Some(Err(189)));
    let status = subject.member.status();
    assert_eq!((status.state(), status.term()), (MemberState::Secondary, Term(3)));
    assert_eq!(status.commit_point(), before, "the reporter may have elected another primary");
}

#[test]
fn a_configuration_that_does_not_spread_in_time_stays_and_says_so() {
    let mut subject = primary();
    let beats = [subject.heartbeat_to(1), subject.heartbeat_to(2)];
    let renewed = HeartbeatReply {
        config_version: Some(ConfigVersion { term: Some(Term(2)), version: 1 }),
        ..reply_of(MemberState::Secondary, entry(2, 10))
    };
    for beat in beats {
        subject.hear(beat, renewed.clone());
    }
    let mut new = (**subject.member.status().config().unwrap()).clone();
    new.version = 2;
    new.members[2].priority = quorate_protocol::Priority(3.0);
    let max_time = Some(Duration::from_secs(1));
    let request = Request::Reconfig { config: Box::new(new), force: false, max_time };
    assert_eq!(subject.ask(request), None, "it polls the members first");
    let poll = subject.heartbeat_to(1);
    let outputs = subject.hear(poll, renewed);
    let ticket = outputs.iter().find_map(|output| match output {
        Output::Persist { ticket, change: Change::Config(_) } => Some(*ticket),
        _ => None,
    });
    assert_eq!(subject.member.status().config().unwrap().version, 1, "not before it is stored");
    subject.give(Input::Persisted(ticket.unwrap()));
    subject.now = subject.now + Duration::from_secs(1);
    let outputs = subject.give(Input::Tick);
    assert_eq!(refusal(&outputs), Some(50));
    assert_eq!(subject.member.status().config().unwrap().version, 2, "it was not undone");
}

#[test]
fn hello_names_members_as_the_horizon_sees_them() {
    let mut listed = config(3);
    for (member, port) in listed.members.iter_mut().zip(1..) {
        let outside = ServerAddress::tcp("outside", port).unwrap();
        member.horizons.insert("internet".into(), outside);
    }
    let recovered = Recovered { config: Some(listed), last: entry(1, 5), ..Recovered::default() };
    let subject = Subject::new(recovered);
    let hello = |horizon| subject.member.status().hello(HelloReply::default(), horizon).reply;
    assert_eq!(hello(None).me, Some(address(0)));
    let outside = hello(Some("internet"));
    assert_eq!(outside.me, Some(ServerAddress::tcp("outside", 1).unwrap()));
    assert!(outside.hosts.iter().all(|host| host.host() == "outside"));
    assert_eq!(hello(Some("unknown")).hosts, hello(None).hosts);
}

#[test]
fn the_topology_version_rises_with_states_and_not_with_entries() {
    let mut subject = Subject::secondary(entry(1, 5));
    let before = subject.member.status().topology_version();
    subject.give(Input::EntriesAppended { last: entry(1, 6) });
    subject.give(Input::Applied { last: entry(1, 6) });
    assert_eq!(subject.member.status().topology_version(), before);
    assert_eq!(subject.ask(Request::Maintenance(true)), Some(Ok(Reply::Done)));
    let after = subject.member.status().topology_version();
    assert_eq!((after.process_id, after.counter), (before.process_id, before.counter + 1));
}

#[test]
fn the_topology_version_rises_with_configurations() {
    let mut subject = Subject::secondary(entry(1, 5));
    let before = subject.member.status().topology_version().counter;
    let mut newer = config(3);
    newer.version = 2;
    newer.members[2].votes = 0;
    newer.members[2].priority = quorate_protocol::Priority::ZERO;
    let told = HeartbeatReply {
        config: Some(newer.into()),
        ..reply_of(MemberState::Secondary, entry(1, 5))
    };
    let outputs = subject.hear(subject.heartbeat_to(1), told);
    assert_eq!(subject.member.status().topology_version().counter, before, "it is not stored yet");
    let ticket = outputs.iter().find_map(|output| match output {
        Output::Persist { ticket, change: Change::Config(_) } => Some(*ticket),
        _ => None,
    });
    subject.give(Input::Persisted(ticket.unwrap()));
    assert_eq!(subject.member.status().config().unwrap().version, 2);
    assert_eq!(subject.member.status().topology_version().counter, before + 1);
}
