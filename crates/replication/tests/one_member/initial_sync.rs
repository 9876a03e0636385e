//! Copying everything, step by step. docs/replication-rules.md#initial-sync.

use super::*;

/// A fresh member that copies from m1, at the step of copying; m2 could be the source, too.
fn copying() -> Subject {
    let mut subject = with_config(config(3), OpTimeAndWallTime::default());
    let beats = [1, 2].map(|id| subject.heartbeat_to(id));
    for (beat, state) in beats.into_iter().zip([MemberState::Primary, MemberState::Secondary]) {
        subject.hear(beat, reply_of(state, entry(1, 5)));
    }
    let read = InitialSyncOutcome::SourceRead {
        rollback_id: 3,
        begin_fetching: entry(1, 5).op_time,
        begin_applying: entry(1, 5).op_time,
    };
    let outputs = step(&mut subject, 1, read);
    assert_eq!(ordered(&outputs), None, "nothing is removed before the flag is stored");
    let outputs = store(&mut subject);
    assert_eq!(ordered(&outputs), Some(InitialSyncStep::Wipe), "{outputs:?}");
    let outputs = step(&mut subject, 1, InitialSyncOutcome::Wiped);
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
    assert_eq!(ordered(&outputs), Some(InitialSyncStep::Cancel));
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
    assert_eq!(ordered(&outputs), Some(InitialSyncStep::Cancel), "{outputs:?}");
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

/// A member that finds no source keeps what it has, however long it looks.
#[test]
fn nothing_is_removed_before_a_source_has_answered() {
    let mut subject = with_config(config(3), OpTimeAndWallTime::default());
    let removes = |outputs: &[Output]| {
        outputs.iter().any(|output| {
            matches!(output, Output::InitialSync { step: InitialSyncStep::Wipe, .. })
                || matches!(output, Output::Persist { change: Change::InitialSync(true), .. })
        })
    };
    assert!(!removes(&subject.outputs));
    let beats = [1, 2].map(|id| subject.heartbeat_to(id));
    for (beat, state) in beats.into_iter().zip([MemberState::Primary, MemberState::Secondary]) {
        assert!(!removes(&subject.hear(beat, reply_of(state, entry(1, 5)))));
    }
    // The source was chosen, and does not answer what it is asked.
    for attempt in 1..20 {
        let outputs = step(&mut subject, attempt, InitialSyncOutcome::Failed);
        assert!(!removes(&outputs));
        for _ in 0..70 {
            assert!(!removes(&wait(&mut subject, Duration::from_secs(1))));
        }
    }
}

/// Documents that no log accounts for are not removed by a copy: the member stops and says what to do.
#[test]
fn a_member_with_documents_and_no_log_stops_instead_of_copying() {
    let halted = |initial_sync, last| {
        let subject = Subject::new(Recovered {
            config: Some(config(3)),
            last,
            has_documents: true,
            initial_sync,
            ..Recovered::default()
        });
        let halt = subject.outputs.iter().find_map(|output| match output {
            Output::Halt(fatal) => Some(fatal.to_string()),
            _ => None,
        });
        halt.is_some_and(|why| why.contains("data directory") && why.contains("dump"))
    };
    let none = OpTimeAndWallTime::default();
    assert!(halted(false, none));
    assert!(!halted(true, none), "an unfinished copy begins again");
    assert!(!halted(false, entry(1, 5)), "there is a log");
}

/// What a first copy left, and what its host says late, is not the second copy's.
#[test]
fn a_member_that_was_removed_while_it_copied_begins_another_attempt() {
    let mut subject = copying();
    for (version, is_member) in [(2, false), (3, true)] {
        let mut told = ReplicaSetConfig { version, ..config(3) };
        if !is_member {
            told.members.remove(0);
        }
        subject.now = subject.now + Duration::from_secs(4);
        subject.give(Input::Tick);
        if subject.member.status().state() == MemberState::Removed {
            // A member that is in no configuration asks those who call.
            let config = Some(told.config_version());
            subject.ask(Request::Heartbeat(HeartbeatRequest { config, ..heartbeat_from(1) }));
        }
        let beat = subject.heartbeat_to(1);
        let reply = reply_of(MemberState::Primary, entry(1, 5));
        subject.hear(beat, HeartbeatReply { config: Some(told.into()), ..reply });
        store(&mut subject);
        let state = subject.member.status().state();
        assert_eq!(state == MemberState::Removed, !is_member, "{state:?}");
    }
    let attempt = subject.member.status().initial_sync().map(|(_, attempt)| attempt);
    assert_eq!(attempt, Some(2));
    assert_eq!(ordered(&step(&mut subject, 1, InitialSyncOutcome::Cloned)), None);
}

/// Without chaining only the primary is copied from. But a set whose next election needs the vote of a
/// member without data gets no primary before that member has copied.
#[test]
fn a_member_without_data_copies_from_any_other_while_there_is_no_primary() {
    let mut strict = config(3);
    strict.settings.chaining_allowed = false;
    let mut subject = with_config(strict, OpTimeAndWallTime::default());
    let mut outputs = Vec::new();
    for beat in [1, 2].map(|id| subject.heartbeat_to(id)) {
        outputs.extend(subject.hear(beat, reply_of(MemberState::Secondary, entry(1, 5))));
    }
    for _ in 0..10 {
        subject.now = subject.now + Duration::from_secs(1);
        let sent = subject.give(Input::Tick);
        outputs.extend(sent.iter().cloned());
        for output in sent {
            let Output::Send { request, message: Request::Heartbeat(_), .. } = output else {
                continue;
            };
            outputs.extend(subject.hear(request, reply_of(MemberState::Secondary, entry(1, 5))));
        }
    }
    let reads = |output: &Output| match output {
        Output::InitialSync { step, .. } => matches!(step, InitialSyncStep::ReadSource { .. }),
        _ => false,
    };
    assert!(outputs.iter().any(reads), "{outputs:?}");
}
