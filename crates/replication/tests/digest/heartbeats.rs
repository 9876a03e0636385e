//! How often, how patiently. docs/replication-rules.md §4.

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
