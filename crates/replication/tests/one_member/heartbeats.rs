//! How often, how patiently. docs/replication-rules.md#heartbeats.

use super::*;

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

#[test]
fn a_primary_of_an_older_term_is_not_believed() {
    let mut subject = Subject::secondary(entry(2, 5));
    assert_eq!(subject.member.status().term(), Term(2));
    let (one, two) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
    subject.hear(one, reply_of(MemberState::Primary, entry(1, 5)));
    assert_eq!(subject.member.status().primary(), None);
    subject.hear(two, reply_of(MemberState::Primary, entry(2, 5)));
    assert_eq!(subject.member.status().primary(), Some(MemberId(2)));
}

#[test]
fn what_a_crash_can_lose_is_not_told_as_durable() {
    let mut subject = Subject::secondary(entry(1, 5));
    subject.give(Input::EntriesAppended { last: entry(1, 6) });
    subject.give(Input::Applied { last: entry(1, 6) });
    let told = |subject: &mut Subject| {
        let reply = subject.ask(Request::Heartbeat(heartbeat_from(1)));
        let Some(Ok(Reply::Heartbeat(reply))) = reply else { panic!("{reply:?}") };
        (reply.written, reply.durable)
    };
    assert_eq!(told(&mut subject), (entry(1, 6), entry(1, 5)));
    subject.give(Input::EntriesDurable { last: entry(1, 6) });
    assert_eq!(told(&mut subject), (entry(1, 6), entry(1, 6)));
}

#[test]
fn a_primary_that_hears_no_majority_steps_down() {
    let mut subject = primary();
    let led = (0..60).take_while(|_| {
        wait(&mut subject, Duration::from_millis(500));
        subject.member.status().state() == MemberState::Primary
    });
    let led = led.count();
    assert!((10..40).contains(&led), "it led for {led} half seconds");
    assert!(!subject.member.status().is_writable());
}

/// The heartbeats that were sent to a member.
fn beats_to(id: i32, outputs: &[Output]) -> usize {
    let beat = |output: &&Output| {
        matches!(output, Output::Send { to, message: Request::Heartbeat(_), .. }
            if *to == address(id))
    };
    outputs.iter().filter(beat).count()
}

/// A heartbeat of m1 that says it leads the term.
fn call_of_primary(term: i64) -> HeartbeatRequest {
    HeartbeatRequest { term: Term(term), primary_id: Some(MemberId(1)), ..heartbeat_from(1) }
}

/// What a member sends to m1 when m1 calls on it.
fn asked_back(subject: &mut Subject, request: HeartbeatRequest) -> usize {
    subject.ask(Request::Heartbeat(request));
    beats_to(1, &subject.outputs)
}

/// A member that knows m1 as a secondary, and whose next heartbeat to it is lost.
fn cut_off() -> Subject {
    let mut subject = Subject::secondary(entry(1, 5));
    let beat = subject.heartbeat_to(1);
    subject.hear(beat, reply_of(MemberState::Secondary, entry(1, 5)));
    let outputs = wait(&mut subject, Duration::from_secs(2));
    assert_eq!(beats_to(1, &outputs), 1, "{outputs:?}");
    subject
}

/// A member that a short cut kept from its set asks again as soon as it hears of the next primary; it does
/// not wait for the answers to what the cut swallowed, which end after `heartbeatTimeoutSecs`.
#[test]
fn a_heartbeat_that_was_lost_is_not_waited_for_when_its_member_calls_with_news() {
    let mut subject = cut_off();
    subject.now = subject.now + Duration::from_millis(400);
    assert_eq!(asked_back(&mut subject, call_of_primary(2)), 0, "it may still be answered");
    subject.now = subject.now + Duration::from_millis(400);
    assert_eq!(asked_back(&mut subject, call_of_primary(2)), 1);
    let beat = subject.heartbeat_to(1);
    let leads = HeartbeatReply { term: Term(2), ..reply_of(MemberState::Primary, entry(2, 6)) };
    subject.hear(beat, leads);
    assert_eq!(subject.member.status().primary(), Some(MemberId(1)));
    // What is known already is no news.
    subject.now = subject.now + Duration::from_millis(800);
    assert_eq!(asked_back(&mut subject, call_of_primary(2)), 0);
}

/// A member that answers slowly is heard all the same: news cut a round short only as often as failures do.
#[test]
fn news_send_a_heartbeat_again_only_twice() {
    let mut subject = cut_off();
    let again = |subject: &mut Subject| {
        subject.now = subject.now + Duration::from_millis(600);
        asked_back(subject, call_of_primary(2))
    };
    assert_eq!([(); 5].map(|()| again(&mut subject)), [1, 1, 0, 0, 0]);
}

/// Silence is not waited for with one heartbeat: a connection that hangs since a cut is given up within a
/// third of the budget, so that the two sides of a cut that heals find each other as soon.
#[test]
fn a_heartbeat_without_an_answer_is_sent_again_within_the_budget() {
    let mut subject = cut_off();
    let sent = subject.now;
    let mut again = Vec::new();
    let down = loop {
        subject.now = subject.member.next_deadline().unwrap();
        let outputs = subject.give(Input::Tick);
        if beats_to(1, &outputs) > 0 {
            again.push(subject.now.since(sent).as_millis());
        }
        if events(&outputs).iter().any(|told| told.contains("m1 is down")) {
            break subject.now.since(sent);
        }
    };
    assert_eq!((again, down), (vec![3333, 6666], Duration::from_secs(10)));
}
