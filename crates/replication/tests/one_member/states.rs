//! What state a member is in, and what that allows. docs/replication-rules.md#states.

use super::*;

#[test]
fn an_unfinished_copy_is_begun_again_and_counts_for_nothing() {
    let mut subject = Subject::new(Recovered {
        config: Some(config(3)),
        last: entry(1, 5),
        initial_sync: true,
        ..Recovered::default()
    });
    assert_eq!(subject.member.status().state(), MemberState::Startup2);
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
        carry_on(&mut subject, |subject, output| {
            let more = oblige(subject, output);
            if subject.member.status().state() == MemberState::Primary {
                led.push(subject.member.status().is_writable());
            }
            more
        });
    }
    assert!(led.contains(&false), "it led before it was writable");
    assert_eq!(led.last(), Some(&true));
    // Asked to step down while no member has caught up, it is primary and takes nothing.
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

#[test]
fn a_primary_whose_disk_failed_hands_over_stores_nothing_and_gives_no_vote() {
    let mut subject = primary();
    for member in [1, 2] {
        subject.ask(report(2, member, entry(2, 10)));
    }
    let outputs = subject.give(Input::DiskFailed);
    let asked = outputs.iter().any(|output| {
        matches!(output, Output::Send { message: Request::StepUp { skip_dry_run: true }, .. })
    });
    assert!(asked, "{outputs:?}");
    assert_eq!(subject.member.status().state(), MemberState::Secondary);
    let answer = subject.ask(Request::Vote(vote_request(5, false, entry(4, 99))));
    let Some(Ok(Reply::Vote(vote))) = answer else { panic!("{answer:?}") };
    assert!(!vote.vote_granted, "it could not be stored");
    let told = [subject.outputs.clone(), wait(&mut subject, Duration::from_secs(60))].concat();
    assert!(!told.iter().any(|output| matches!(output, Output::Persist { .. })), "{told:?}");
}
