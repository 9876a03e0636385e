//! Standing, voting, staying. docs/replication-rules.md#elections.

use super::*;

#[test]
fn the_election_timeout_has_up_to_fifteen_percent_on_top() {
    let mut waits = Vec::new();
    for seed in 0..20 {
        let mut subject = Subject::seeded(
            Recovered { config: Some(config(3)), last: entry(1, 5), ..Recovered::default() },
            seed,
        );
        // It hears of a primary once: a process that has just started would stand at once otherwise.
        let (one, two) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
        subject.hear(one, reply_of(MemberState::Primary, entry(1, 5)));
        subject.hear(two, reply_of(MemberState::Secondary, entry(1, 5)));
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
fn a_step_down_lasts_at_least_as_long_as_its_catch_up_period() {
    let mut subject = primary();
    let step_down = |period, catch_up_period| Request::StepDown {
        period: Duration::from_secs(period),
        catch_up_period: Duration::from_secs(catch_up_period),
        force: false,
    };
    for (period, catch_up) in [(0, 0), (10, 11)] {
        assert_eq!(subject.ask(step_down(period, catch_up)), Some(Err(2)), "{period} {catch_up}");
    }
    assert!(subject.member.status().is_writable(), "nothing was begun");
    // Drivers' own tests give one second for both.
    assert_ne!(subject.ask(step_down(1, 1)), Some(Err(2)));
}

#[test]
fn reports_through_others_keep_a_primary_in_office() {
    let alive = |reports: bool| {
        let mut subject = primary();
        // No member answers a heartbeat any more; m2 tells of itself through progress reports.
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

#[test]
fn a_candidate_that_was_frozen_or_overtaken_stands_again() {
    let interruptions: [fn(&mut Subject); 2] = [
        |subject| {
            subject.ask(Request::Freeze(Duration::from_secs(1)));
        },
        |subject| {
            let (first, _) = vote_requests(&subject.outputs)[0];
            answer(subject, first, 7, false);
        },
    ];
    for interrupt in interruptions {
        let mut subject = in_sight();
        assert!(stands(&mut subject), "there is no primary");
        interrupt(&mut subject);
        assert!(stands(&mut subject), "no other member stands, and it does not either");
    }
}

/// Whether it asks for votes within a while in which its peers live and have no primary.
fn stands(subject: &mut Subject) -> bool {
    (0..400).any(|_| {
        let outputs = wait(subject, Duration::from_millis(100));
        if !vote_requests(&outputs).is_empty() {
            return true;
        }
        for output in &outputs {
            if let Output::Send { request, message: Request::Heartbeat(_), .. } = output {
                let term = subject.member.status().term();
                let reply = reply_of(MemberState::Secondary, entry(1, 5));
                subject.hear(*request, HeartbeatReply { term, ..reply });
            }
        }
        false
    })
}

/// The whole set was down: a process that has just started, sees a majority and hears of no primary
/// waits for no silence.
#[test]
fn a_member_that_has_just_started_stands_at_once_if_no_member_knows_a_primary() {
    let within = |told: Option<MemberId>, answers: &[i32], refused: &[i32], limit: Duration| {
        let recovered =
            Recovered { config: Some(config(3)), last: entry(1, 5), ..Recovered::default() };
        let mut subject = Subject::new(recovered);
        let beats = [1, 2].map(|id| subject.heartbeat_to(id));
        for id in answers {
            let request = beats[*id as usize - 1];
            let reply = reply_of(MemberState::Secondary, entry(1, 5));
            subject.hear(request, HeartbeatReply { primary_id: told, ..reply });
        }
        for id in refused {
            // A heartbeat is sent again until its member is called down.
            let mut next = Some(beats[*id as usize - 1]);
            while let Some(request) = next {
                let cause = Unreachable::Refused;
                let outputs = subject.give(Input::PeerUnreachable { request, cause });
                next = outputs.iter().find_map(|output| match output {
                    Output::Send { request, message: Request::Heartbeat(_), .. } => Some(*request),
                    _ => None,
                });
            }
        }
        let start = subject.now;
        while subject.now.since(start) < limit {
            let outputs = wait(&mut subject, Duration::from_millis(10));
            let stands = |o: &Output| matches!(o, Output::Event(Event::DryRunStarted { .. }));
            if outputs.iter().any(stands) {
                return true;
            }
        }
        false
    };
    let soon = Duration::from_millis(200);
    assert!(within(None, &[1, 2], &[], soon), "all members are back");
    assert!(within(None, &[1], &[2], soon), "the third one is known to be down");
    assert!(!within(None, &[1], &[], soon), "the third one may be the primary");
    assert!(!within(Some(MemberId(2)), &[1, 2], &[], soon), "there is one");
    assert!(!within(None, &[], &[1, 2], Duration::from_secs(20)), "no majority");
}

/// The candidate went on without an answer that comes after its vote began.
#[test]
fn a_late_yes_of_the_dry_run_is_no_vote() {
    let mut subject = with_config(config(5), entry(1, 5));
    let beats = [1, 2, 3, 4].map(|id| subject.heartbeat_to(id));
    for beat in beats {
        subject.hear(beat, reply_of(MemberState::Secondary, entry(1, 5)));
    }
    subject.ask(Request::StepUp { skip_dry_run: false });
    let dry = vote_requests(&subject.outputs);
    assert_eq!(dry.len(), 4);
    answer(&mut subject, dry[0].0, 1, true);
    answer(&mut subject, dry[1].0, 1, true);
    let real = (0..100).find_map(|_| {
        let asked = vote_requests(&store(&mut subject));
        if asked.is_empty() {
            wait(&mut subject, Duration::from_millis(100));
        }
        (!asked.is_empty()).then_some(asked)
    });
    let real = real.unwrap();
    assert!(real.iter().all(|(_, vote)| !vote.dry_run), "{real:?}");
    answer(&mut subject, dry[2].0, 1, true);
    answer(&mut subject, dry[3].0, 1, true);
    assert_eq!(
        subject.member.status().state(),
        MemberState::Secondary,
        "its own vote is one of five"
    );
    answer(&mut subject, real[0].0, 2, true);
    assert_eq!(subject.member.status().state(), MemberState::Secondary);
    answer(&mut subject, real[1].0, 2, true);
    assert_eq!(subject.member.status().state(), MemberState::Primary);
}

/// What was fetched before the election belongs before the first entry of the new term.
#[test]
fn a_new_primary_takes_no_writes_before_it_has_applied_what_it_fetched() {
    let (mut subject, fetch) = copying::following();
    let fetched = copying::batch(Some(entry(1, 5).op_time), Some(entry(1, 8)));
    subject.give(Input::EntriesFetched { fetch, batch: fetched });
    for _ in 0..100 {
        carry_on(&mut subject, oblige);
        assert!(!subject.member.status().is_writable(), "entries wait to be applied");
    }
    assert_eq!(subject.member.status().state(), MemberState::Primary);
    subject.outputs = append(&mut subject, entry(1, 8));
    let becomes_writable = (0..100).any(|_| {
        carry_on(&mut subject, oblige);
        subject.member.status().is_writable()
    });
    assert!(becomes_writable);
}

/// What becomes of a catch-up takeover from m1, which leads term 2 and has yet to copy, if m1 says this in
/// the dry run and m2 agrees: whether m0 stands, and what is said of a dry run that was lost.
fn take_over_to_catch_up(primary_agrees: bool) -> (bool, Option<String>) {
    let mut subject = Subject::secondary(entry(1, 9));
    let (mut stands, mut lost) = (false, None);
    for _ in 0..2_000 {
        carry_on(&mut subject, |subject, output| match output {
            Output::Send { request, to, message: Request::Heartbeat(_), .. } => {
                let state = match to == address(1) {
                    true => MemberState::Primary,
                    false => MemberState::Secondary,
                };
                let reply = reply_of(state, entry(1, 5));
                subject.hear(request, HeartbeatReply { term: Term(2), ..reply })
            }
            Output::Send { request, to, message: Request::Vote(vote), .. } => {
                let granted = to != address(1) || primary_agrees;
                answer(subject, request, vote.term.0, granted)
            }
            Output::Event(Event::DryRunLost { why }) => {
                lost = Some(why);
                Vec::new()
            }
            Output::Persist { change: Change::LastVote(_), .. } => {
                stands = true;
                Vec::new()
            }
            _ => Vec::new(),
        });
        if stands || lost.is_some() {
            break;
        }
    }
    (stands, lost)
}

#[test]
fn a_takeover_to_catch_up_is_by_the_primarys_leave() {
    assert_eq!(take_over_to_catch_up(true), (true, None));
    let (stands, lost) = take_over_to_catch_up(false);
    assert!(!stands, "m2's vote and its own are a majority, but m1 leads");
    assert_eq!(lost.as_deref(), Some("the primary does not agree"));
}

#[test]
fn a_lost_election_tells_who_refused_and_why() {
    let mut subject = in_sight();
    subject.ask(step_up());
    let asked = vote_requests(&store(&mut subject));
    let mut lost = None;
    for (request, vote) in asked {
        let reply = Reply::Vote(VoteReply {
            term: vote.term,
            vote_granted: false,
            reason: "it has voted already".to_owned(),
            veto: None,
        });
        let round_trip = Duration::from_millis(1);
        for output in subject.give(Input::ReplyReceived { request, reply, round_trip }) {
            if let Output::Event(Event::ElectionLost { why, .. }) = output {
                lost = Some(why);
            }
        }
    }
    let why = lost.unwrap();
    assert_eq!(why, "1 of 2 votes; m1: it has voted already; m2: it has voted already");
}
