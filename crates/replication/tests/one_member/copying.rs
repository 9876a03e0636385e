//! Sources, progress, acknowledgements. docs/replication-rules.md#commit-point and #sync-source.

use super::*;

/// A secondary that copies from m1, the primary, and its fetch.
pub(super) fn following() -> (Subject, FetchId) {
    let mut subject = Subject::secondary(entry(1, 5));
    let (one, two) = (subject.heartbeat_to(1), subject.heartbeat_to(2));
    subject.hear(two, reply_of(MemberState::Secondary, entry(1, 5)));
    subject.hear(one, reply_of(MemberState::Primary, entry(1, 5)));
    let outputs = subject.give(Input::Tick);
    let (fetch, _) = fetch_among(&outputs).unwrap();
    (subject, fetch)
}

pub(super) fn batch(first: Option<OpTime>, last: Option<OpTimeAndWallTime>) -> FetchedBatch {
    FetchedBatch {
        first,
        previous: Some(entry(1, 5).op_time),
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

/// A report to a source that died gets no answer; the next source hears of progress all the same.
#[test]
fn a_report_that_is_lost_with_its_source_holds_up_none_to_the_next() {
    let reported_to = |outputs: &[Output]| {
        outputs.iter().find_map(|output| match output {
            Output::Send { to, message: Request::UpdatePosition(_), .. } => Some(to.clone()),
            _ => None,
        })
    };
    let (mut subject, fetch) = following();
    assert_eq!(reported_to(&subject.outputs), Some(address(1)));
    subject.give(Input::FetchFailed { fetch, cause: FetchFailure::Connection });
    subject.give(Input::ConnectionReset { peer: address(2) });
    subject.hear(subject.heartbeat_to(2), reply_of(MemberState::Primary, entry(2, 6)));
    let outputs = subject.give(Input::Tick);
    assert!(fetch_among(&outputs).is_some());
    assert_eq!(reported_to(&outputs), Some(address(2)));
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
fn sync_from_refuses_a_hidden_member_and_counts_no_seconds_where_there_are_no_entries() {
    let mut listed = config(3);
    listed.members[2].hidden = true;
    listed.members[2].priority = Priority::ZERO;
    let mut subject = with_config(listed, entry(1, 50));
    let beats = [1, 2].map(|id| subject.heartbeat_to(id));
    let none = OpTimeAndWallTime::default();
    for (beat, last) in beats.into_iter().zip([none, entry(1, 50)]) {
        subject.hear(beat, reply_of(MemberState::Secondary, last));
    }
    assert_eq!(subject.ask(Request::SyncFrom(address(2))), Some(Err(72)), "hidden");
    match subject.ask(Request::SyncFrom(address(1))) {
        Some(Ok(Reply::SyncFrom { warning: Some(warning), .. })) => {
            assert!(!warning.contains("behind"), "{warning}");
        }
        other => panic!("{other:?}"),
    }
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
    rolled.previous = Some(entry(1, 6).op_time);
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

/// Entries that do not follow what was fetched before are not applied: they would leave a hole.
#[test]
fn a_batch_that_does_not_follow_the_last_one_is_refused() {
    let applied = |outputs: &[Output]| {
        outputs.iter().any(|output| matches!(output, Output::ApplyThrough { .. }))
    };
    let second = |previous: Option<OpTime>| {
        let (mut subject, fetch) = following();
        let first = batch(Some(entry(1, 5).op_time), Some(entry(1, 6)));
        assert!(applied(&subject.give(Input::EntriesFetched { fetch, batch: first })));
        let next = FetchedBatch { previous, ..batch(None, Some(entry(1, 9))) };
        let outputs = subject.give(Input::EntriesFetched { fetch, batch: next });
        let gap = SourceLost::Gap;
        let left = outputs.iter().any(
            |output| matches!(output, Output::Event(Event::SourceLost { why, .. }) if *why == gap),
        );
        assert_ne!(applied(&outputs), left, "applied, or the source is left");
        left
    };
    assert!(!second(Some(entry(1, 6).op_time)), "it follows");
    assert!(second(Some(entry(1, 8).op_time)), "the source's oplog was trimmed past our place");
    assert!(second(Some(entry(1, 5).op_time)), "we have its first entries already");
    assert!(second(Some(entry(2, 6).op_time)), "another branch");
    assert!(second(None), "the source does not say");
}

/// m0, which copies from m1, the primary, or m2, whichever is closer.
struct Chooser {
    subject: Subject,
    fetch: Option<FetchId>,
    round_trips: [Duration; 2],
    changes: usize,
}

impl Chooser {
    fn carry_out(&mut self, output: Output) {
        let outputs = match output {
            Output::Send { request, to, message: Request::Heartbeat(_), .. } => {
                let (state, round_trip) = if to == address(1) {
                    (MemberState::Primary, self.round_trips[0])
                } else {
                    (MemberState::Secondary, self.round_trips[1])
                };
                let reply = HeartbeatReply {
                    syncing_to: (to == address(2)).then(|| address(1)),
                    ..reply_of(state, entry(1, 6))
                };
                let reply = Reply::Heartbeat(Box::new(reply));
                self.subject.give(Input::ReplyReceived { request, reply, round_trip })
            }
            Output::Send { request, message: Request::UpdatePosition(_), .. } => {
                let round_trip = Duration::ZERO;
                let reply = Reply::Done;
                self.subject.give(Input::ReplyReceived { request, reply, round_trip })
            }
            Output::FetchFrom { fetch, .. } => {
                self.fetch = Some(fetch);
                self.fetched(Some(entry(1, 5).op_time))
            }
            Output::Event(Event::SourceLost { why, .. }) => {
                assert!(matches!(why, SourceLost::Left(Leave::CloserSource(_))), "{why:?}");
                self.changes += 1;
                return;
            }
            _ => return,
        };
        for output in outputs {
            self.carry_out(output);
        }
    }

    fn fetched(&mut self, first: Option<OpTime>) -> Vec<Output> {
        let Some(fetch) = self.fetch else { return Vec::new() };
        let batch = FetchedBatch { source_last: entry(1, 6), ..batch(first, None) };
        self.subject.give(Input::EntriesFetched { fetch, batch })
    }

    /// Time passes, second by second; the source answers with nothing new.
    fn run(&mut self, seconds: u32) {
        for _ in 0..seconds {
            let mut outputs = wait(&mut self.subject, Duration::from_secs(1));
            outputs.extend(self.fetched(None));
            for output in outputs {
                self.carry_out(output);
            }
        }
    }
}

#[test]
fn a_member_changes_to_a_closer_source_three_times_an_hour() {
    let (near, far) = (Duration::from_millis(1), Duration::from_millis(60));
    let subject = Subject::secondary(entry(1, 5));
    let mut chooser = Chooser { subject, fetch: None, round_trips: [near, far], changes: 0 };
    for output in std::mem::take(&mut chooser.subject.outputs) {
        chooser.carry_out(output);
    }
    chooser.run(60);
    assert_eq!(chooser.changes, 0, "it began with the nearer one");
    for turn in 1..=4 {
        chooser.round_trips.reverse();
        chooser.run(120);
        assert_eq!(chooser.changes, turn.min(3), "turn {turn}");
    }
    chooser.run(3600);
    assert_eq!(chooser.changes, 4, "an hour after the first of them");
}

/// A member that was primary in an older term may still send its entries.
#[test]
fn a_source_that_leads_an_older_term_is_not_believed_to_be_primary() {
    let (mut subject, fetch) = following();
    let first = batch(Some(entry(1, 5).op_time), None);
    subject.give(Input::EntriesFetched { fetch, batch: first });
    assert_eq!(subject.member.status().primary(), Some(MemberId(1)));
    subject.ask(Request::Heartbeat(HeartbeatRequest { term: Term(2), ..heartbeat_from(2) }));
    assert_eq!(subject.member.status().primary(), None, "there is a newer term");
    subject.give(Input::EntriesFetched { fetch, batch: batch(None, None) });
    assert_eq!(subject.member.status().primary(), None);
}
