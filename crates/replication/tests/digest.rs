//! Rules of the implementer's digest that one member shows by itself, a test for each.
//!
//! `docs/replication-rules.md` names them; the rest of its rows are shown elsewhere.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod subject;

use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, ElectionReason, HeartbeatReply, MemberConfig, MemberId, MemberState,
    MonotonicTime, OpTime, OpTimeAndWallTime, Priority, ReplicaSetConfig, Term, VoteReply,
    VoteRequest,
};
use quorate_replication::election::LastVote;
use quorate_replication::{
    Acknowledgements, Change, Event, FetchFailure, FetchId, FetchedBatch, InitialSyncOutcome,
    InitialSyncStep, Input, Output, Recovered, Reply, Request, RequestId, Ticket, Unreachable,
    WaiterId, WriteConcern,
};
use subject::{
    Subject, acknowledgement, address, append, config, entry, fetch_among, heartbeat_from, oblige,
    primary, refusal, reply_of, report,
};

fn with_config(config: ReplicaSetConfig, last: OpTimeAndWallTime) -> Subject {
    Subject::new(Recovered { config: Some(config), last, ..Recovered::default() })
}

fn vote_request(term: i64, dry_run: bool, last: OpTimeAndWallTime) -> VoteRequest {
    VoteRequest {
        set_name: "rs0".into(),
        dry_run,
        term: Term(term),
        candidate: MemberId(1),
        reason: ElectionReason::ElectionTimeout,
        config: ConfigVersion { term: Some(Term(9)), version: 1 },
        last_written: last.op_time,
        last_applied: last.op_time,
    }
}

/// Stores everything that waits for the disk; gives what followed.
fn store(subject: &mut Subject) -> Vec<Output> {
    let tickets: Vec<Ticket> = subject
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Persist { ticket, .. } => Some(*ticket),
            _ => None,
        })
        .collect();
    let mut outputs = Vec::new();
    for ticket in tickets {
        outputs.extend(subject.give(Input::Persisted(ticket)));
    }
    outputs
}

fn wait(subject: &mut Subject, interval: Duration) -> Vec<Output> {
    subject.now = subject.now + interval;
    subject.give(Input::Tick)
}

fn events(outputs: &[Output]) -> Vec<String> {
    let told = outputs.iter().filter_map(|output| match output {
        Output::Event(event) => Some(event.to_string()),
        _ => None,
    });
    told.collect()
}

fn stored_config(outputs: &[Output]) -> Option<ReplicaSetConfig> {
    outputs.iter().find_map(|output| match output {
        Output::Persist { change: Change::Config(config), .. } => Some((**config).clone()),
        _ => None,
    })
}

fn step_up() -> Request {
    Request::StepUp { skip_dry_run: true }
}

// -- States ---------------------------------------------------------------------------------------

#[test]
fn an_unfinished_copy_is_begun_again_and_counts_for_nothing() {
    let mut subject = Subject::new(Recovered {
        config: Some(config(3)),
        last: entry(1, 5),
        initial_sync: true,
        ..Recovered::default()
    });
    assert_eq!(subject.member.status().state(), MemberState::Startup2);
    let flagged = subject
        .outputs
        .iter()
        .any(|o| matches!(o, Output::Persist { change: Change::InitialSync(true), .. }));
    assert!(flagged, "the flag is stored before anything is removed");
    let reply = subject.ask(Request::Heartbeat(heartbeat_from(1)));
    let Some(Ok(Reply::Heartbeat(reply))) = reply else { panic!("{reply:?}") };
    let none = OpTimeAndWallTime::default();
    assert_eq!((reply.written, reply.applied, reply.durable), (none, none, none));
}

#[test]
fn recovering_ends_when_the_data_is_consistent() {
    let mut subject = Subject::new(Recovered {
        config: Some(config(3)),
        last: entry(1, 5),
        min_valid: entry(1, 9).op_time,
        ..Recovered::default()
    });
    assert_eq!(subject.member.status().state(), MemberState::Recovering);
    append(&mut subject, entry(1, 8));
    assert_eq!(subject.member.status().state(), MemberState::Recovering);
    append(&mut subject, entry(1, 9));
    assert_eq!(subject.member.status().state(), MemberState::Secondary);
}

#[test]
fn unknown_and_down_are_what_others_are() {
    let mut subject = Subject::secondary(entry(1, 5));
    let shown = |subject: &Subject, id: i32| {
        let members = subject.member.status().members();
        members.iter().find(|member| member.id == MemberId(id)).unwrap().state
    };
    assert_eq!(shown(&subject, 1), MemberState::Unknown, "not heard of yet");
    subject.give(Input::ConnectionReset { peer: address(1) });
    let request = subject.heartbeat_to(1);
    subject.give(Input::PeerUnreachable { request, cause: Unreachable::Refused });
    assert_eq!(shown(&subject, 1), MemberState::Down);
    assert_eq!(shown(&subject, 0), MemberState::Secondary);
}

#[test]
fn every_state_with_a_configuration_votes_and_no_other() {
    let granted = |subject: &mut Subject, term| {
        let answer = subject.ask(Request::Vote(vote_request(term, false, entry(4, 99))));
        assert_eq!(answer, None, "a vote is stored first");
        store(subject).iter().any(|output| {
            matches!(output, Output::Respond { reply: Ok(Reply::Vote(vote)), .. } if vote.vote_granted)
        })
    };
    let mut secondary = Subject::secondary(entry(1, 5));
    assert!(granted(&mut secondary, 5));

    let mut recovering = Subject::secondary(entry(1, 5));
    recovering.ask(Request::Maintenance(true));
    assert_eq!(recovering.member.status().state(), MemberState::Recovering);
    assert!(granted(&mut recovering, 5));

    let mut copying = with_config(config(3), OpTimeAndWallTime::default());
    assert_eq!(copying.member.status().state(), MemberState::Startup2);
    assert!(granted(&mut copying, 5));

    let mut with_arbiter = config(3);
    with_arbiter.members[0] = MemberConfig::arbiter(MemberId(0), address(0));
    let mut arbiter = with_config(with_arbiter, OpTimeAndWallTime::default());
    assert_eq!(arbiter.member.status().state(), MemberState::Arbiter);
    assert!(granted(&mut arbiter, 5));

    let mut leader = primary();
    assert!(granted(&mut leader, 5), "and steps down");
    assert_eq!(leader.member.status().state(), MemberState::Secondary);

    let mut fresh = Subject::new(Recovered::default());
    assert_eq!(fresh.ask(Request::Vote(vote_request(5, false, entry(1, 99)))), Some(Err(94)));
    let mut without = config(3);
    without.members.remove(0);
    let mut removed = with_config(without, entry(1, 5));
    assert_eq!(removed.ask(Request::Vote(vote_request(5, false, entry(1, 99)))), Some(Err(93)));
}

#[test]
fn only_a_writable_primary_takes_writes() {
    let mut subject = Subject::secondary(entry(1, 5));
    let mut led = Vec::new();
    // Elected by two obliging peers, as in `primary`, but looked at after every input.
    for _ in 0..200 {
        let status = subject.member.status();
        if status.state() == MemberState::Primary {
            let hello = status.hello(Default::default(), None).reply;
            assert_eq!(hello.is_writable_primary, status.is_writable());
            assert_ne!(hello.is_writable_primary, hello.secondary);
            led.push(status.is_writable());
        }
        if led.last() == Some(&true) {
            break;
        }
        let todo = std::mem::take(&mut subject.outputs);
        if todo.is_empty() {
            subject.now = subject.member.next_deadline().unwrap();
            subject.give(Input::Tick);
            continue;
        }
        let mut more = Vec::new();
        for output in todo {
            more.extend(oblige(&mut subject, output));
            if subject.member.status().state() == MemberState::Primary {
                led.push(subject.member.status().is_writable());
            }
        }
        subject.outputs = more;
    }
    assert!(led.contains(&false), "it led before it was writable");
    assert_eq!(led.last(), Some(&true));
    // Asked to step down while nobody has caught up, it is primary and takes nothing.
    append(&mut subject, entry(2, 30));
    let period = Duration::from_secs(60);
    let catch_up_period = Duration::from_secs(1);
    subject.ask(Request::StepDown { period, catch_up_period, force: false });
    let status = subject.member.status();
    assert_eq!((status.state(), status.is_writable()), (MemberState::Primary, false));
    let outputs = wait(&mut subject, Duration::from_secs(1));
    assert_eq!(refusal(&outputs), Some(262));
    assert!(subject.member.status().is_writable(), "the attempt can be taken back");
}

// -- Configurations -------------------------------------------------------------------------------

/// A primary whose peers have its configuration, and a reconfiguration to try on it.
fn settled_primary() -> Subject {
    let mut subject = primary();
    let beats = [subject.heartbeat_to(1), subject.heartbeat_to(2)];
    for beat in beats {
        subject.hear(beat, settled_reply());
    }
    subject
}

fn settled_reply() -> HeartbeatReply {
    HeartbeatReply {
        config_version: Some(ConfigVersion { term: Some(Term(2)), version: 1 }),
        ..reply_of(MemberState::Secondary, entry(2, 10))
    }
}

fn next_config(subject: &Subject) -> ReplicaSetConfig {
    let mut new = (**subject.member.status().config().unwrap()).clone();
    new.version += 1;
    new
}

/// Both peers answer the poll; gives the configuration that is stored then.
fn poll_and_store(subject: &mut Subject) -> ReplicaSetConfig {
    let polls = [1, 2].map(|id| subject.heartbeat_to(id));
    let mut outputs = Vec::new();
    for poll in polls {
        outputs.extend(subject.hear(poll, settled_reply()));
    }
    stored_config(&outputs).unwrap()
}

fn reconfig(new: ReplicaSetConfig, force: bool) -> Request {
    Request::Reconfig { config: Box::new(new), force, max_time: None }
}

#[test]
fn the_term_of_a_configuration_is_the_primarys_and_not_the_users() {
    let mut subject = settled_primary();
    let mut new = next_config(&subject);
    new.term = Some(Term(77));
    assert_eq!(subject.ask(reconfig(new, false)), None, "the members are asked first");
    assert_eq!(poll_and_store(&mut subject).term, Some(Term(2)));
}

#[test]
fn a_forced_configuration_has_no_term_and_a_far_higher_version_on_any_member() {
    let mut subject = Subject::secondary(entry(1, 5));
    let mut new = next_config(&subject);
    new.members.push(MemberConfig::new(MemberId(3), address(3)));
    new.members.push(MemberConfig::new(MemberId(4), address(4)));
    subject.ask(reconfig(new, true));
    let stored = stored_config(&subject.outputs).unwrap();
    assert_eq!(stored.term, None);
    assert!((10_002..=110_002).contains(&stored.version), "{}", stored.version);
    assert!(stored.members.iter().all(|member| !member.newly_added), "two votes at once");
}

#[test]
fn new_voters_are_marked_and_new_arbiters_are_not() {
    let mut subject = settled_primary();
    let mut new = next_config(&subject);
    new.members.push(MemberConfig::new(MemberId(3), address(3)));
    subject.ask(reconfig(new, false));
    let stored = poll_and_store(&mut subject);
    let marks: Vec<bool> = stored.members.iter().map(|member| member.newly_added).collect();
    assert_eq!(marks, [false, false, false, true]);
    assert_eq!(stored.members[3].effective_priority(), Priority::ZERO);
    assert!(!stored.members[3].is_voter());

    let mut subject = settled_primary();
    let mut new = next_config(&subject);
    new.members.push(MemberConfig::arbiter(MemberId(3), address(3)));
    subject.give(Input::DefaultWriteConcernSet(true));
    subject.ask(reconfig(new, false));
    assert!(!poll_and_store(&mut subject).members[3].newly_added);
}

#[test]
fn a_reconfiguration_that_reaches_no_majority_is_74() {
    let mut subject = settled_primary();
    let new = next_config(&subject);
    subject.ask(reconfig(new, false));
    let polls = [1, 2].map(|id| subject.heartbeat_to(id));
    let mut outputs = Vec::new();
    for request in polls {
        let cause = Unreachable::Refused;
        outputs.extend(subject.give(Input::PeerUnreachable { request, cause }));
    }
    assert_eq!(refusal(&outputs), Some(74));
    assert_eq!(stored_config(&outputs), None);
}

#[test]
fn a_reconfiguration_is_for_a_writable_primary() {
    let mut subject = Subject::secondary(entry(1, 5));
    let new = next_config(&subject);
    assert_eq!(subject.ask(reconfig(new, false)), Some(Err(10107)));
}

#[test]
fn nobody_stands_while_a_configuration_is_being_stored() {
    let mut subject = Subject::secondary(entry(1, 5));
    let beats = [1, 2].map(|id| subject.heartbeat_to(id));
    for beat in beats {
        subject.hear(beat, reply_of(MemberState::Secondary, entry(1, 5)));
    }
    let new = next_config(&subject);
    subject.ask(reconfig(new, true));
    let storing = subject.outputs.clone();
    assert_eq!(subject.ask(step_up()), Some(Err(125)), "not while it is under way");
    subject.outputs = storing;
    store(&mut subject);
    assert_eq!(subject.ask(step_up()), None, "it stands now");
}

#[test]
fn a_new_primary_ignores_configurations_until_it_is_writable() {
    let mut subject = Subject::secondary(entry(1, 5));
    // Everything is obliged but the configuration of the new term: it stays on its way to the disk.
    let mut leading = None;
    for _ in 0..200 {
        if let Some(beat) = leading {
            let mut newer = config(3);
            newer.version = 5;
            let told = HeartbeatReply {
                config: Some(std::sync::Arc::new(newer)),
                ..reply_of(MemberState::Secondary, entry(1, 5))
            };
            let outputs = subject.hear(beat, told);
            let ignored = events(&outputs).iter().any(|told| told.starts_with("ignored"));
            assert!(ignored, "{outputs:?}");
            assert_eq!(stored_config(&outputs), None);
            assert_eq!(subject.member.status().config().unwrap().version, 1);
            return;
        }
        let todo = std::mem::take(&mut subject.outputs);
        if todo.is_empty() {
            subject.now = subject.member.next_deadline().unwrap();
            subject.give(Input::Tick);
            continue;
        }
        let mut more = Vec::new();
        for output in todo {
            let leads = subject.member.status().state() == MemberState::Primary;
            match output {
                Output::Send { request, message: Request::Heartbeat(_), .. } if leads => {
                    leading = Some(request);
                }
                other => more.extend(oblige(&mut subject, other)),
            }
        }
        subject.outputs = more;
    }
    panic!("it never led");
}

#[test]
fn a_primary_that_a_newer_configuration_drops_or_bars_steps_down() {
    let changes: [fn(&mut ReplicaSetConfig); 2] = [
        |config| {
            config.members.remove(0);
        },
        |config| config.members[0].priority = Priority::ZERO,
    ];
    for change in changes {
        let mut subject = primary();
        let mut new = next_config(&subject);
        new.version = 50_000;
        new.term = None;
        change(&mut new);
        let told = HeartbeatReply { config: Some(std::sync::Arc::new(new)), ..settled_reply() };
        let beat = subject.heartbeat_to(1);
        subject.hear(beat, told);
        store(&mut subject);
        assert_ne!(subject.member.status().state(), MemberState::Primary);
    }
}

#[test]
fn a_member_that_comes_back_as_another_kind_takes_its_role() {
    let as_arbiter = |version| {
        let mut listed = config(3);
        listed.version = version;
        listed.members[0] = MemberConfig::arbiter(MemberId(0), address(0));
        listed
    };
    let as_holder = |version| ReplicaSetConfig { version, ..config(3) };
    let hear_config = |subject: &mut Subject, config: ReplicaSetConfig| {
        let beat = subject.heartbeat_to(1);
        let told = HeartbeatReply {
            config: Some(std::sync::Arc::new(config)),
            ..reply_of(MemberState::Secondary, entry(1, 5))
        };
        subject.hear(beat, told);
        store(subject);
        subject.member.status().state()
    };
    let mut arbiter = with_config(as_arbiter(1), OpTimeAndWallTime::default());
    assert_eq!(hear_config(&mut arbiter, as_holder(3)), MemberState::Startup2);
    let mut holder = with_config(as_holder(1), entry(1, 5));
    assert_eq!(hear_config(&mut holder, as_arbiter(3)), MemberState::Arbiter);
}

// -- Heartbeats -----------------------------------------------------------------------------------

#[test]
fn a_heartbeat_is_sent_again_twice_before_its_member_is_down() {
    let mut subject = Subject::secondary(entry(1, 5));
    for _ in 0..2 {
        let request = subject.heartbeat_to(1);
        subject.give(Input::PeerUnreachable { request, cause: Unreachable::Other });
        assert!(!events(&subject.outputs).iter().any(|told| told.contains("is down")));
    }
    let request = subject.heartbeat_to(1);
    let outputs = subject.give(Input::PeerUnreachable { request, cause: Unreachable::Other });
    assert!(events(&outputs).iter().any(|told| told.contains("m1 is down")), "{outputs:?}");
}

/// When the next heartbeat to m1 is sent, after an answer.
fn interval_after_answer(mut subject: Subject, reply: HeartbeatReply) -> Duration {
    let beat = subject.heartbeat_to(1);
    subject.hear(beat, reply);
    let answered = subject.now;
    for _ in 0..1000 {
        subject.now = subject.member.next_deadline().unwrap();
        let outputs = subject.give(Input::Tick);
        let sent = outputs.iter().any(|output| {
            matches!(output, Output::Send { to, message: Request::Heartbeat(_), .. }
                if *to == address(1))
        });
        if sent {
            return subject.now.since(answered);
        }
    }
    panic!("no heartbeat");
}

#[test]
fn heartbeats_come_every_two_seconds_and_sooner_without_a_source_or_to_know_a_primary() {
    let secondary = || reply_of(MemberState::Secondary, entry(1, 5));
    let sourceless = interval_after_answer(Subject::secondary(entry(1, 5)), secondary());
    assert_eq!(sourceless, Duration::from_millis(500), "a quarter of the interval");
    let followed = reply_of(MemberState::Primary, entry(1, 6));
    let mut following = Subject::secondary(entry(1, 5));
    let beat = following.heartbeat_to(1);
    following.hear(beat, followed.clone());
    following.give(Input::Tick);
    let beat = wait(&mut following, Duration::from_millis(500));
    assert!(!beat.is_empty());
    assert_eq!(interval_after_answer(following, followed), Duration::from_secs(2));

    let mut hurried = config(3);
    hurried.members[0] = MemberConfig::arbiter(MemberId(0), address(0));
    hurried.settings.election_timeout_millis = 1000;
    let arbiter = with_config(hurried, OpTimeAndWallTime::default());
    assert_eq!(interval_after_answer(arbiter, secondary()), Duration::from_millis(500));
}

// -- Elections ------------------------------------------------------------------------------------

#[test]
fn the_election_timeout_has_up_to_fifteen_percent_on_top() {
    let mut waits = Vec::new();
    for seed in 0..20 {
        let mut subject = Subject::seeded(
            Recovered { config: Some(config(3)), last: entry(1, 5), ..Recovered::default() },
            seed,
        );
        let start = subject.now;
        let stood = (0..1000).find_map(|_| {
            let todo = std::mem::take(&mut subject.outputs);
            for output in todo {
                if let Output::Send { request, message: Request::Heartbeat(_), .. } = output {
                    subject.hear(request, reply_of(MemberState::Secondary, entry(1, 5)));
                }
            }
            subject.now = subject.member.next_deadline().unwrap();
            let outputs = subject.give(Input::Tick);
            let stands = outputs
                .iter()
                .any(|output| matches!(output, Output::Event(Event::DryRunStarted { .. })));
            stands.then(|| subject.now.since(start))
        });
        waits.push(stood.unwrap());
    }
    let range = Duration::from_millis(10_000)..=Duration::from_millis(11_500);
    assert!(waits.iter().all(|wait| range.contains(wait)), "{waits:?}");
    let first = waits[0];
    assert!(waits.iter().any(|wait| *wait != first), "all the same: {waits:?}");
}

#[test]
fn who_may_not_stand_is_told_so() {
    let heard = |mut subject: Subject| {
        let beats = [subject.heartbeat_to(1), subject.heartbeat_to(2)];
        for beat in beats {
            subject.hear(beat, reply_of(MemberState::Secondary, entry(1, 5)));
        }
        subject
    };
    let mut passive = config(3);
    passive.members[0].priority = Priority::ZERO;
    let mut frozen = heard(Subject::secondary(entry(1, 5)));
    frozen.ask(Request::Freeze(Duration::from_secs(30)));
    let mut recovering = heard(Subject::secondary(entry(1, 5)));
    recovering.ask(Request::Maintenance(true));
    let subjects = [
        ("priority 0", heard(with_config(passive, entry(1, 5)))),
        ("frozen", frozen),
        ("recovering", recovering),
        ("no majority in sight", Subject::secondary(entry(1, 5))),
        ("no data", heard(with_config(config(3), OpTimeAndWallTime::default()))),
    ];
    for (why, mut subject) in subjects {
        assert_eq!(subject.ask(step_up()), Some(Err(125)), "{why}");
    }
    assert_eq!(heard(Subject::secondary(entry(1, 5))).ask(step_up()), None, "nothing forbids it");
}

fn in_sight() -> Subject {
    let mut subject = Subject::secondary(entry(1, 5));
    let beats = [subject.heartbeat_to(1), subject.heartbeat_to(2)];
    for beat in beats {
        subject.hear(beat, reply_of(MemberState::Secondary, entry(1, 5)));
    }
    subject
}

fn vote_requests(outputs: &[Output]) -> Vec<(RequestId, VoteRequest)> {
    let asked = outputs.iter().filter_map(|output| match output {
        Output::Send { request, message: Request::Vote(vote), .. } => {
            Some((*request, vote.clone()))
        }
        _ => None,
    });
    asked.collect()
}

fn answer(subject: &mut Subject, request: RequestId, term: i64, granted: bool) -> Vec<Output> {
    let reply = Reply::Vote(VoteReply {
        term: Term(term),
        vote_granted: granted,
        reason: String::new(),
        veto: None,
    });
    subject.give(Input::ReplyReceived { request, reply, round_trip: Duration::from_millis(1) })
}

#[test]
fn a_candidacy_is_announced_only_after_it_is_stored_and_in_the_next_term() {
    let mut subject = in_sight();
    subject.ask(step_up());
    assert!(vote_requests(&subject.outputs).is_empty(), "nothing leaves before the write");
    let vote = subject.outputs.iter().find_map(|output| match output {
        Output::Persist { change: Change::LastVote(vote), .. } => Some(*vote),
        _ => None,
    });
    assert_eq!(vote, Some(LastVote { term: Term(2), candidate: MemberId(0) }));
    let asked = vote_requests(&store(&mut subject));
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|(_, vote)| vote.term == Term(2) && !vote.dry_run));
}

#[test]
fn a_dry_run_changes_no_term_and_asks_members_without_a_vote_too() {
    let mut four = config(4);
    four.members[3].votes = 0;
    four.members[3].priority = Priority::ZERO;
    let mut subject = with_config(four, entry(1, 5));
    let beats = [1, 2, 3].map(|id| subject.heartbeat_to(id));
    for beat in beats {
        subject.hear(beat, reply_of(MemberState::Secondary, entry(1, 5)));
    }
    subject.ask(Request::StepUp { skip_dry_run: false });
    let asked = vote_requests(&subject.outputs);
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|(_, vote)| vote.dry_run && vote.term == Term(1)));
    assert_eq!(subject.member.status().term(), Term(1));
    for (request, _) in asked {
        subject.outputs.clear();
        answer(&mut subject, request, 1, true);
    }
    let asked = vote_requests(&store(&mut subject));
    assert_eq!(asked.len(), 2, "the vote asks voters alone");
}

#[test]
fn a_higher_term_in_an_answer_ends_the_election_and_late_answers_count_for_nothing() {
    let mut subject = in_sight();
    subject.ask(Request::StepUp { skip_dry_run: false });
    let asked = vote_requests(&subject.outputs);
    let (first, second) = (asked[0].0, asked[1].0);
    let outputs = answer(&mut subject, first, 7, false);
    assert_eq!(refusal(&outputs), Some(125), "the administrator is told");
    assert_eq!(subject.member.status().term(), Term(7));
    let outputs = answer(&mut subject, second, 1, true);
    assert!(vote_requests(&outputs).is_empty() && !subject.member.status().is_writable());

    // A yes of the dry run is not a yes in the vote.
    let mut subject = in_sight();
    subject.ask(Request::StepUp { skip_dry_run: false });
    let dry = vote_requests(&subject.outputs);
    answer(&mut subject, dry[0].0, 1, true);
    answer(&mut subject, dry[1].0, 1, true);
    let real = vote_requests(&store(&mut subject));
    answer(&mut subject, dry[1].0, 1, true);
    assert_eq!(subject.member.status().state(), MemberState::Secondary);
    answer(&mut subject, real[0].0, 2, true);
    assert_eq!(subject.member.status().state(), MemberState::Primary);
}

#[test]
fn the_term_at_the_start_is_the_highest_on_the_disk() {
    let start = |term, voted: Option<i64>, last| {
        let vote = voted.map(|term| LastVote { term: Term(term), candidate: MemberId(1) });
        let recovered = Recovered {
            config: Some(config(3)),
            term: Term(term),
            last_vote: vote,
            last,
            ..Recovered::default()
        };
        Subject::new(recovered).member.status().term()
    };
    assert_eq!(start(0, None, entry(4, 5)), Term(4));
    assert_eq!(start(0, Some(6), entry(4, 5)), Term(6));
    assert_eq!(start(8, Some(6), entry(4, 5)), Term(8));
}

#[test]
fn every_term_that_is_learned_is_stored() {
    let mut subject = Subject::secondary(entry(1, 5));
    let beat = subject.heartbeat_to(1);
    let reply = HeartbeatReply { term: Term(9), ..reply_of(MemberState::Secondary, entry(1, 5)) };
    let outputs = subject.hear(beat, reply);
    let stored =
        outputs.iter().any(|o| matches!(o, Output::Persist { change: Change::Term(Term(9)), .. }));
    assert!(stored, "{outputs:?}");
}

#[test]
fn a_step_down_lasts_longer_than_its_catch_up_period() {
    let mut subject = primary();
    let step_down = |period, catch_up_period| Request::StepDown {
        period: Duration::from_secs(period),
        catch_up_period: Duration::from_secs(catch_up_period),
        force: false,
    };
    for (period, catch_up) in [(0, 0), (10, 11), (10, 10)] {
        assert_eq!(subject.ask(step_down(period, catch_up)), Some(Err(2)), "{period} {catch_up}");
    }
    assert!(subject.member.status().is_writable(), "nothing was begun");
}

#[test]
fn reports_through_others_keep_a_primary_in_office() {
    let alive = |reports: bool| {
        let mut subject = primary();
        // Nobody answers a heartbeat any more; m2 tells of itself through progress reports.
        for _ in 0..30 {
            wait(&mut subject, Duration::from_secs(1));
            if reports {
                subject.ask(report(2, 2, entry(2, 10)));
            }
        }
        subject.member.status().state() == MemberState::Primary
    };
    assert!(alive(true));
    assert!(!alive(false));
}

#[test]
fn an_arbiter_refuses_candidates_behind_the_commit_point() {
    let mut listed = config(3);
    listed.members[0] = MemberConfig::arbiter(MemberId(0), address(0));
    let mut arbiter = with_config(listed, OpTimeAndWallTime::default());
    let beat = arbiter.heartbeat_to(2);
    let told =
        HeartbeatReply { commit_point: entry(1, 8), ..reply_of(MemberState::Primary, entry(1, 9)) };
    arbiter.hear(beat, told);
    assert_eq!(arbiter.member.status().commit_point(), entry(1, 8));
    let granted = |arbiter: &mut Subject, seconds| {
        let request = vote_request(1, true, entry(1, seconds));
        let answer = arbiter
            .ask(Request::Vote(VoteRequest { reason: ElectionReason::StepUpRequest, ..request }));
        matches!(answer, Some(Ok(Reply::Vote(vote))) if vote.vote_granted)
    };
    assert!(!granted(&mut arbiter, 7));
    let reply = arbiter.ask(Request::Heartbeat(heartbeat_from(1)));
    let Some(Ok(Reply::Heartbeat(reply))) = reply else { panic!("{reply:?}") };
    assert_eq!(reply.applied, entry(1, 8), "it shows the commit point as its own");
    assert_eq!(reply.durable, OpTimeAndWallTime::default(), "and never a copy");
}

// -- Copying --------------------------------------------------------------------------------------

/// A secondary that copies from m1, the primary, and its fetch.
fn following() -> (Subject, FetchId) {
    let mut subject = Subject::secondary(entry(1, 5));
    let (one, two) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
    subject.hear(two, reply_of(MemberState::Secondary, entry(1, 5)));
    subject.hear(one, reply_of(MemberState::Primary, entry(1, 5)));
    let outputs = subject.give(Input::Tick);
    let (fetch, _) = fetch_among(&outputs).unwrap();
    (subject, fetch)
}

fn batch(first: Option<OpTime>, last: Option<OpTimeAndWallTime>) -> FetchedBatch {
    FetchedBatch {
        first,
        last,
        source_oldest: entry(0, 1).op_time,
        source_last: last.unwrap_or(entry(1, 5)),
        commit_point: entry(1, 5),
        term: Term(1),
        source_is_primary: true,
        rollback_id: 0,
    }
}

#[test]
fn progress_is_reported_when_it_is_made_and_every_half_election_timeout() {
    let reports = |outputs: &[Output]| {
        let sent = outputs.iter().filter_map(|output| match output {
            Output::Send { request, message: Request::UpdatePosition(report), .. } => {
                Some((*request, report.clone()))
            }
            _ => None,
        });
        sent.collect::<Vec<_>>()
    };
    let (mut subject, fetch) = following();
    let (request, first) = reports(&subject.outputs).remove(0);
    assert_eq!(first.term, Term(1));
    let done = Input::ReplyReceived { request, reply: Reply::Done, round_trip: Duration::ZERO };
    subject.give(done);
    let fetched = batch(Some(entry(1, 5).op_time), Some(entry(1, 6)));
    subject.give(Input::EntriesFetched { fetch, batch: fetched });
    let outputs = append(&mut subject, entry(1, 6));
    let (request, told) = reports(&outputs).remove(0);
    assert_eq!(told.positions[0].written, entry(1, 6));
    subject.give(Input::ReplyReceived { request, reply: Reply::Done, round_trip: Duration::ZERO });
    // What moved while that report was under way is told next; then there is silence to fill.
    for (request, _) in reports(&subject.outputs.clone()) {
        subject.give(Input::ReplyReceived {
            request,
            reply: Reply::Done,
            round_trip: Duration::ZERO,
        });
    }
    let quiet = (0..20).take_while(|_| {
        let outputs = wait(&mut subject, Duration::from_millis(500));
        reports(&outputs).is_empty()
    });
    assert_eq!(quiet.count(), 9, "the tenth half second is half the election timeout");
}

#[test]
fn nothing_is_reported_during_an_initial_sync() {
    let mut subject = with_config(config(3), OpTimeAndWallTime::default());
    for _ in 0..20 {
        let outputs = wait(&mut subject, Duration::from_secs(1));
        let told = outputs
            .iter()
            .any(|o| matches!(o, Output::Send { message: Request::UpdatePosition(_), .. }));
        assert!(!told, "{outputs:?}");
    }
}

#[test]
fn sync_from_refuses_what_makes_no_sense_and_warns_of_laggards() {
    let mut listed = config(4);
    listed.members[3] = MemberConfig::arbiter(MemberId(3), address(3));
    let mut arbiter = config(3);
    arbiter.members[0] = MemberConfig::arbiter(MemberId(0), address(0));
    let mut arbiter = with_config(arbiter, OpTimeAndWallTime::default());
    assert_eq!(arbiter.ask(Request::SyncFrom(address(1))), Some(Err(95)));
    assert_eq!(primary().ask(Request::SyncFrom(address(1))), Some(Err(95)));
    let mut subject = with_config(listed, entry(1, 50));
    let beats = [1, 2, 3].map(|id| subject.heartbeat_to(id));
    for (beat, seconds) in beats.into_iter().zip([39, 41, 50]) {
        subject.hear(beat, reply_of(MemberState::Secondary, entry(1, seconds)));
    }
    assert_eq!(subject.ask(Request::SyncFrom(address(0))), Some(Err(72)), "itself");
    assert_eq!(subject.ask(Request::SyncFrom(address(3))), Some(Err(72)), "an arbiter");
    assert_eq!(subject.ask(Request::SyncFrom(address(9))), Some(Err(74)));
    let warned = |subject: &mut Subject, id| match subject.ask(Request::SyncFrom(address(id))) {
        Some(Ok(Reply::SyncFrom { warning, .. })) => warning.is_some(),
        other => panic!("{other:?}"),
    };
    assert!(warned(&mut subject, 1), "eleven seconds behind");
    assert!(!warned(&mut subject, 2));
    subject.give(Input::ConnectionReset { peer: address(2) });
    let request = subject.heartbeat_to(2);
    subject.give(Input::PeerUnreachable { request, cause: Unreachable::Refused });
    assert_eq!(subject.ask(Request::SyncFrom(address(2))), Some(Err(6)), "down");
}

#[test]
fn a_write_is_acknowledged_only_if_the_primary_has_it_itself() {
    let number =
        |acknowledgements, journal| WriteConcern { acknowledgements, journal, timeout: None };
    let concerns =
        [number(Acknowledgements::Number(2), Some(true)), number(Acknowledgements::Majority, None)];
    for concern in concerns {
        let mut subject = primary();
        let last = entry(2, 20);
        subject.give(Input::EntriesAppended { last });
        subject.give(Input::Applied { last });
        let waiter = WaiterId(1);
        let op_time = last.op_time;
        subject.give(Input::AcknowledgementWanted { waiter, op_time, concern });
        for member in [1, 2] {
            subject.ask(report(2, member, last));
            assert_eq!(acknowledgement(&subject.outputs), None, "it is not on its own disk");
        }
        let outputs = subject.give(Input::EntriesDurable { last });
        assert_eq!(acknowledgement(&outputs), Some(Ok(())));
    }
}

/// How long m1 is left alone after a fetch from it failed, while it stays the only source.
fn left_alone(fail: impl FnOnce(&mut Subject, FetchId)) -> Duration {
    let (mut subject, fetch) = following();
    fail(&mut subject, fetch);
    let failed = subject.now;
    for _ in 0..400 {
        let outputs = wait(&mut subject, Duration::from_millis(250));
        let beats: Vec<RequestId> = outputs
            .iter()
            .filter_map(|output| match output {
                Output::Send { request, to, message: Request::Heartbeat(_), .. }
                    if *to == address(1) =>
                {
                    Some(*request)
                }
                _ => None,
            })
            .collect();
        if fetch_among(&outputs).is_some() {
            return subject.now.since(failed);
        }
        for beat in beats {
            let outputs = subject.hear(beat, reply_of(MemberState::Primary, entry(1, 6)));
            if fetch_among(&outputs).is_some() {
                return subject.now.since(failed);
            }
        }
    }
    panic!("m1 was never asked again");
}

#[test]
fn a_source_that_failed_is_left_alone_for_ten_seconds_and_one_that_is_too_new_for_sixty() {
    let within = |wait: Duration, seconds: u64| {
        let least = Duration::from_secs(seconds);
        assert!(wait >= least && wait <= least + Duration::from_secs(3), "{wait:?}");
    };
    within(
        left_alone(|subject, fetch| {
            subject.give(Input::FetchFailed { fetch, cause: FetchFailure::Refused });
        }),
        10,
    );
    within(
        left_alone(|subject, fetch| {
            let mut fetched = batch(Some(entry(1, 9).op_time), Some(entry(1, 9)));
            fetched.source_oldest = entry(1, 8).op_time;
            subject.give(Input::EntriesFetched { fetch, batch: fetched });
            assert_eq!(subject.member.status().state(), MemberState::Recovering);
        }),
        60,
    );
    within(
        left_alone(|subject, fetch| {
            subject.give(Input::FetchFailed { fetch, cause: FetchFailure::Connection });
        }),
        1,
    );
}

#[test]
fn a_source_that_rolled_back_is_left() {
    let (mut subject, fetch) = following();
    let first = batch(Some(entry(1, 5).op_time), Some(entry(1, 6)));
    subject.give(Input::EntriesFetched { fetch, batch: first });
    let mut rolled = batch(None, Some(entry(1, 7)));
    rolled.rollback_id = 1;
    let outputs = subject.give(Input::EntriesFetched { fetch, batch: rolled });
    assert!(outputs.contains(&Output::CancelFetch { fetch }), "{outputs:?}");
    let applied = outputs.iter().any(|output| matches!(output, Output::ApplyThrough { .. }));
    assert!(!applied, "what it says now is not the continuation of what we have");
}

#[test]
fn entries_for_a_delayed_member_carry_its_delay() {
    let mut delayed = config(3);
    delayed.members[0].priority = Priority::ZERO;
    delayed.members[0].secondary_delay_secs = 60;
    let mut subject = with_config(delayed, entry(1, 5));
    let (one, two) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
    subject.hear(two, reply_of(MemberState::Secondary, entry(1, 5)));
    subject.hear(one, reply_of(MemberState::Primary, entry(1, 6)));
    let outputs = subject.give(Input::Tick);
    let (fetch, _) = fetch_among(&outputs).unwrap();
    let fetched = batch(Some(entry(1, 5).op_time), Some(entry(1, 6)));
    let outputs = subject.give(Input::EntriesFetched { fetch, batch: fetched });
    let through = entry(1, 6).op_time;
    let delay = Duration::from_secs(60);
    assert!(outputs.contains(&Output::ApplyThrough { through, delay }), "{outputs:?}");
}

// -- Initial sync ---------------------------------------------------------------------------------

/// A fresh member that copies from m1, at the step of copying; m2 could be the source, too.
fn copying() -> Subject {
    let mut subject = with_config(config(3), OpTimeAndWallTime::default());
    let beats = [1, 2].map(|id| subject.heartbeat_to(id));
    let flagged = subject.outputs.clone();
    for (beat, state) in beats.into_iter().zip([MemberState::Primary, MemberState::Secondary]) {
        subject.hear(beat, reply_of(state, entry(1, 5)));
    }
    subject.outputs = flagged;
    store(&mut subject);
    step(&mut subject, 1, InitialSyncOutcome::Wiped);
    let read = InitialSyncOutcome::SourceRead {
        rollback_id: 3,
        begin_fetching: entry(1, 5).op_time,
        begin_applying: entry(1, 5).op_time,
    };
    let outputs = step(&mut subject, 1, read);
    assert!(matches!(ordered(&outputs), Some(InitialSyncStep::Clone { .. })), "{outputs:?}");
    subject
}

fn step(subject: &mut Subject, attempt: u32, outcome: InitialSyncOutcome) -> Vec<Output> {
    subject.give(Input::InitialSync { attempt, outcome })
}

fn ordered(outputs: &[Output]) -> Option<InitialSyncStep> {
    outputs.iter().rev().find_map(|output| match output {
        Output::InitialSync { step, .. } => Some(step.clone()),
        _ => None,
    })
}

#[test]
fn a_copy_begins_again_if_its_source_rolled_back_meanwhile() {
    let finished = |rollback_id| {
        let mut subject = copying();
        step(&mut subject, 1, InitialSyncOutcome::Cloned);
        step(&mut subject, 1, InitialSyncOutcome::StopPointRead(entry(1, 9)));
        step(&mut subject, 1, InitialSyncOutcome::AppliedThrough(entry(1, 9)));
        step(&mut subject, 1, InitialSyncOutcome::RollbackIdRead(rollback_id))
    };
    let cleared = |outputs: &[Output]| {
        outputs
            .iter()
            .any(|o| matches!(o, Output::Persist { change: Change::InitialSync(false), .. }))
    };
    assert!(cleared(&finished(3)));
    let outputs = finished(4);
    assert!(!cleared(&outputs));
    assert_eq!(ordered(&outputs), Some(InitialSyncStep::Wipe));
}

#[test]
fn a_finished_copy_clears_its_flag_before_the_member_is_a_secondary() {
    let mut subject = copying();
    step(&mut subject, 1, InitialSyncOutcome::Cloned);
    step(&mut subject, 1, InitialSyncOutcome::StopPointRead(entry(1, 9)));
    step(&mut subject, 1, InitialSyncOutcome::AppliedThrough(entry(1, 9)));
    step(&mut subject, 1, InitialSyncOutcome::RollbackIdRead(3));
    assert_eq!(subject.member.status().state(), MemberState::Startup2);
    store(&mut subject);
    assert_eq!(subject.member.status().state(), MemberState::Secondary);
    assert_eq!(subject.member.status().written(), entry(1, 9));
}

#[test]
fn a_blip_repeats_the_step_and_a_source_that_died_the_attempt() {
    let mut subject = copying();
    step(&mut subject, 1, InitialSyncOutcome::Interrupted);
    let outputs = wait(&mut subject, Duration::from_secs(1));
    assert!(matches!(ordered(&outputs), Some(InitialSyncStep::Clone { .. })), "{outputs:?}");
    let attempt = outputs.iter().find_map(|output| match output {
        Output::InitialSync { attempt, .. } => Some(*attempt),
        _ => None,
    });
    assert_eq!(attempt, Some(1), "the same attempt goes on");

    // Now the source's process is gone: asking it sixty times would be in vain.
    let mut subject = copying();
    subject.give(Input::ConnectionReset { peer: address(1) });
    let request = subject.heartbeat_to(1);
    subject.give(Input::PeerUnreachable { request, cause: Unreachable::Refused });
    let outputs = step(&mut subject, 1, InitialSyncOutcome::Interrupted);
    assert_eq!(ordered(&outputs), Some(InitialSyncStep::Wipe), "{outputs:?}");
    step(&mut subject, 2, InitialSyncOutcome::Wiped);
    let mut source = None;
    for _ in 0..20 {
        let outputs = wait(&mut subject, Duration::from_millis(500));
        if let Some(InitialSyncStep::ReadSource { source: chosen }) = ordered(&outputs) {
            source = Some(chosen);
            break;
        }
        let beats: Vec<RequestId> = outputs
            .iter()
            .filter_map(|output| match output {
                Output::Send { request, to, message: Request::Heartbeat(_), .. }
                    if *to == address(2) =>
                {
                    Some(*request)
                }
                _ => None,
            })
            .collect();
        for beat in beats {
            let outputs = subject.hear(beat, reply_of(MemberState::Secondary, entry(1, 5)));
            if let Some(InitialSyncStep::ReadSource { source: chosen }) = ordered(&outputs) {
                source = Some(chosen);
            }
        }
        if source.is_some() {
            break;
        }
    }
    assert_eq!(source, Some(address(2)), "another member is the source of the next attempt");
}

#[test]
fn after_ten_failed_attempts_a_copy_pauses_for_a_minute() {
    let mut subject = copying();
    let mut pauses: Vec<Duration> = Vec::new();
    for attempt in 1..=10 {
        subject.give(Input::InitialSync { attempt, outcome: InitialSyncOutcome::Failed });
        subject
            .give(Input::InitialSync { attempt: attempt + 1, outcome: InitialSyncOutcome::Wiped });
        let failed: MonotonicTime = subject.now;
        for _ in 0..1000 {
            let outputs = wait(&mut subject, Duration::from_millis(250));
            let mut found = matches!(ordered(&outputs), Some(InitialSyncStep::ReadSource { .. }));
            for output in &outputs {
                if let Output::Send { request, to, message: Request::Heartbeat(_), .. } = output {
                    let leads = *to == address(1);
                    let state = if leads { MemberState::Primary } else { MemberState::Secondary };
                    let more = subject.hear(*request, reply_of(state, entry(1, 5)));
                    found |= matches!(ordered(&more), Some(InitialSyncStep::ReadSource { .. }));
                }
            }
            if found {
                break;
            }
        }
        pauses.push(subject.now.since(failed));
    }
    let (last, earlier) = pauses.split_last().unwrap();
    assert!(earlier.iter().all(|pause| *pause < Duration::from_secs(5)), "{pauses:?}");
    assert!(*last >= Duration::from_secs(60), "{pauses:?}");
}
