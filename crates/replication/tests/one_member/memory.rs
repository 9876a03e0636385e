//! A voter whose disk was replaced: no second vote in a term, no copy that counts, until it knows.

use super::*;

/// A member that has just received its first configuration, which was led in term 4.
fn joined(first: ReplicaSetConfig) -> (Subject, [RequestId; 2]) {
    let mut subject = Subject::new(Recovered::default());
    let asked = HeartbeatRequest { config: Some(first.config_version()), ..heartbeat_from(1) };
    subject.ask(Request::Heartbeat(asked));
    let introduction = subject.heartbeat_to(1);
    let reply = reply_of(MemberState::Primary, entry(4, 5));
    let told = HeartbeatReply { term: Term(4), config: Some(first.into()), ..reply };
    subject.hear(introduction, told);
    // The doubt is stored first, then the configuration, which is installed with the last ticket.
    let outputs = store(&mut subject);
    subject.outputs = outputs;
    let beats = [1, 2].map(|id| subject.heartbeat_to(id));
    (subject, beats)
}

fn led(term: i64) -> ReplicaSetConfig {
    ReplicaSetConfig { term: Some(Term(term)), version: 3, ..config(3) }
}

fn votes(subject: &mut Subject, term: i64) -> bool {
    let request = VoteRequest {
        config: ConfigVersion { term: Some(Term(9)), version: 9 },
        ..vote_request(term, false, entry(4, 9))
    };
    subject.give(Input::RequestReceived {
        token: quorate_replication::RequestToken(900 + term as u64),
        request: Request::Vote(request),
    });
    let outputs = [subject.outputs.clone(), store(subject)].concat();
    outputs.iter().any(|output| {
        matches!(output, Output::Respond { reply: Ok(Reply::Vote(reply)), .. } if reply.vote_granted)
    })
}

fn answer(subject: &mut Subject, request: RequestId, term: i64, last: OpTimeAndWallTime) {
    let reply = reply_of(MemberState::Secondary, last);
    subject.hear(request, HeartbeatReply { term: Term(term), ..reply });
    store(subject);
}

#[test]
fn a_wiped_voter_votes_in_no_term_in_which_it_may_have_voted() {
    let (mut subject, [one, two]) = joined(led(4));
    assert!(!votes(&mut subject, 5), "it may have voted in term 5, for m2");
    let none = OpTimeAndWallTime::default();
    answer(&mut subject, one, 5, none);
    assert!(!votes(&mut subject, 6), "m2 has not answered: it may have asked for a vote in term 6");
    answer(&mut subject, two, 7, none);
    assert!(!votes(&mut subject, 7), "it may have voted for m2, which knows term 7");
    assert!(votes(&mut subject, 8), "in term 8 it cannot have voted");
}

#[test]
fn a_wiped_voter_shows_nothing_as_durable_until_it_votes_again() {
    let recovered = Recovered {
        config: Some(led(4)),
        last: entry(4, 5),
        memory: Memory::Lost,
        ..Recovered::default()
    };
    let mut subject = Subject::new(recovered);
    let [one, two] = [1, 2].map(|id| subject.heartbeat_to(id));
    let durable = |subject: &mut Subject| {
        let reply = subject.ask(Request::Heartbeat(heartbeat_from(1)));
        let Some(Ok(Reply::Heartbeat(reply))) = reply else { panic!("{reply:?}") };
        reply.durable
    };
    assert_eq!(durable(&mut subject), OpTimeAndWallTime::default());
    assert!(!votes(&mut subject, 5), "a restart does not bring its memory back");
    answer(&mut subject, one, 5, entry(4, 9));
    answer(&mut subject, two, 5, entry(4, 5));
    assert_eq!(durable(&mut subject), OpTimeAndWallTime::default(), "it may have had entry 9");
    append(&mut subject, entry(4, 9));
    assert_eq!(durable(&mut subject), entry(4, 9));
}

#[test]
fn a_member_of_a_new_set_votes_at_once() {
    let (mut subject, _) = joined(led(0));
    assert!(votes(&mut subject, 5), "the configuration was never led, so it never voted");
}

#[test]
fn a_wiped_voter_says_whom_its_vote_waits_for() {
    let recovered = Recovered {
        config: Some(led(4)),
        last: entry(4, 5),
        memory: Memory::Lost,
        ..Recovered::default()
    };
    let mut subject = Subject::new(recovered);
    let says = |subject: &Subject| subject.member.status().trouble().unwrap_or_default();
    let [one, two] = [1, 2].map(|id| subject.heartbeat_to(id));
    assert!(says(&subject).contains("m1:27017 and m2:27017 have answered"), "{}", says(&subject));
    answer(&mut subject, one, 5, entry(4, 9));
    assert!(says(&subject).contains("m2:27017 has answered"), "{}", says(&subject));
    answer(&mut subject, two, 5, entry(4, 5));
    assert!(says(&subject).contains("copied"), "{}", says(&subject));
    append(&mut subject, entry(4, 9));
    assert_eq!(says(&subject), "");
}

/// Without chaining only the primary is copied from. But a set whose next election needs the vote of a
/// wiped member gets no primary before that member has copied what the others have.
#[test]
fn a_wiped_voter_copies_from_any_other_while_there_is_no_primary() {
    let mut strict = led(4);
    strict.settings.chaining_allowed = false;
    let recovered = Recovered {
        config: Some(strict),
        last: entry(4, 5),
        memory: Memory::Lost,
        ..Recovered::default()
    };
    let mut subject = Subject::new(recovered);
    let mut outputs = subject.outputs.clone();
    for _ in 0..10 {
        let sent = std::mem::take(&mut outputs);
        for output in sent {
            if let Output::FetchFrom { source, .. } = &output {
                assert_eq!(source.to_string(), "m1:27017", "the other member has nothing more");
                return;
            }
            let Output::Send { request, to, message: Request::Heartbeat(_), .. } = output else {
                continue;
            };
            let last = entry(4, if to.to_string() == "m1:27017" { 9 } else { 5 });
            let reply = HeartbeatReply { term: Term(4), ..reply_of(MemberState::Secondary, last) };
            outputs.extend(subject.hear(request, reply));
        }
        subject.now = subject.now + Duration::from_secs(1);
        outputs.extend(subject.give(Input::Tick));
    }
    panic!("it has copied from no member");
}

/// A member that loses its memory while it runs has questions under way: the answers may be older than the entries that
/// it acknowledged last.
#[test]
fn answers_to_what_was_asked_before_the_memory_was_lost_do_not_count() {
    let mut without_indexes = led(4);
    without_indexes.members[0].priority = Priority::ZERO;
    without_indexes.members[0].build_indexes = false;
    let recovered =
        Recovered { config: Some(without_indexes), last: entry(4, 5), ..Recovered::default() };
    let mut subject = Subject::new(recovered);
    let [one, two] = [1, 2].map(|id| subject.heartbeat_to(id));
    subject.now = subject.now + Duration::from_millis(10);
    let ordinary = ReplicaSetConfig { version: 9, ..led(4) };
    let nothing = OpTimeAndWallTime::default();
    let told = HeartbeatReply {
        term: Term(4),
        config: Some(ordinary.into()),
        ..reply_of(MemberState::Secondary, nothing)
    };
    subject.hear(one, told);
    let outputs = store(&mut subject);
    subject.outputs = outputs;
    assert_eq!(subject.member.status().state(), MemberState::Startup2);
    let one = subject.heartbeat_to(1);
    answer(&mut subject, one, 4, nothing);
    let told = HeartbeatReply { term: Term(4), ..reply_of(MemberState::Secondary, nothing) };
    let outputs = subject.hear(two, told);
    assert!(!votes(&mut subject, 5), "m2 was asked before");
    subject.outputs = outputs;
    subject.now = subject.now + Duration::from_secs(3);
    let outputs = subject.give(Input::Tick);
    subject.outputs = outputs;
    let two = subject.heartbeat_to(2);
    answer(&mut subject, two, 5, nothing);
    assert!(votes(&mut subject, 6), "both have answered since");
}
