//! Who changes a configuration, and to what. docs/replication-rules.md#configuration and #reconfiguration.

use std::collections::VecDeque;

use super::*;

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
fn a_reconfiguration_whose_primary_steps_down_is_189() {
    let mut subject = settled_primary();
    let new = next_config(&subject);
    assert_eq!(subject.ask(reconfig(new, false)), None, "the members are asked first");
    let newer = HeartbeatReply { term: Term(3), ..settled_reply() };
    let outputs = subject.hear(subject.heartbeat_to(1), newer);
    assert_eq!(refusal(&outputs), Some(189));
}

#[test]
fn a_reconfiguration_is_for_a_writable_primary() {
    let mut subject = Subject::secondary(entry(1, 5));
    let new = next_config(&subject);
    assert_eq!(subject.ask(reconfig(new, false)), Some(Err(10107)));
}

#[test]
fn no_member_stands_while_a_configuration_is_being_stored() {
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
        carry_on(&mut subject, |subject, output| {
            let leads = subject.member.status().state() == MemberState::Primary;
            match output {
                Output::Send { request, message: Request::Heartbeat(_), .. } if leads => {
                    leading = Some(request);
                    Vec::new()
                }
                other => oblige(subject, other),
            }
        });
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

/// A member that built no indexes lacks unique ones too. As an ordinary member with that data it could lead and take
/// duplicates.
#[test]
fn a_member_that_comes_back_to_build_indexes_copies_everything_anew() {
    let without_indexes = || {
        let mut listed = config(3);
        listed.members[0].priority = Priority::ZERO;
        listed.members[0].build_indexes = false;
        listed
    };
    let ordinary = || ReplicaSetConfig { version: 3, ..config(3) };
    let changes = |outputs: &[Output]| -> Vec<Change> {
        let changes = outputs.iter().filter_map(|output| match output {
            Output::Persist { change, .. } => Some(change.clone()),
            _ => None,
        });
        changes
            .filter(|change| matches!(change, Change::IndexesLeftOut(_) | Change::Memory(_)))
            .collect()
    };
    // It was away while it was removed and added again.
    let mut away = with_config(without_indexes(), entry(1, 5));
    assert_eq!(changes(&away.outputs), [Change::IndexesLeftOut(true)], "it knows after a restart");
    let beat = away.heartbeat_to(1);
    store(&mut away);
    let told = HeartbeatReply {
        config: Some(std::sync::Arc::new(ordinary())),
        ..reply_of(MemberState::Secondary, entry(1, 5))
    };
    away.hear(beat, told);
    let outputs = store(&mut away);
    assert_eq!(away.member.status().state(), MemberState::Startup2);
    assert_eq!(changes(&outputs), [Change::Memory(Memory::Lost)], "its copies no longer count");
    // It has been started since it was added again.
    let recovered = |indexes_left_out| Recovered {
        config: Some(ordinary()),
        last: entry(1, 5),
        indexes_left_out,
        ..Recovered::default()
    };
    for (left_out, state) in [(true, MemberState::Startup2), (false, MemberState::Secondary)] {
        let started = Subject::new(recovered(left_out));
        assert_eq!(started.member.status().state(), state, "{left_out}");
    }
}

#[test]
fn what_an_initial_sync_has_removed_lacks_no_indexes() {
    let recovered = Recovered {
        config: Some(config(3)),
        last: entry(1, 5),
        indexes_left_out: true,
        ..Recovered::default()
    };
    let mut subject = Subject::new(recovered);
    let (mut outputs, mut told) = (VecDeque::from(subject.outputs.clone()), Vec::new());
    for _ in 0..100 {
        let more = match outputs.pop_front() {
            Some(Output::Send { request, message: Request::Heartbeat(_), .. }) => {
                subject.hear(request, reply_of(MemberState::Secondary, entry(1, 5)))
            }
            Some(Output::Persist { ticket, change }) => {
                told.extend(matches!(change, Change::IndexesLeftOut(false)).then_some("forgotten"));
                subject.give(Input::Persisted(ticket))
            }
            Some(Output::InitialSync { attempt, step }) => {
                let outcome = match step {
                    InitialSyncStep::ReadSource { .. } => InitialSyncOutcome::SourceRead {
                        rollback_id: 1,
                        begin_fetching: entry(1, 5).op_time,
                        begin_applying: entry(1, 5).op_time,
                    },
                    InitialSyncStep::Wipe => {
                        told.push("removed");
                        InitialSyncOutcome::Wiped
                    }
                    InitialSyncStep::Clone { .. } => {
                        assert_eq!(told, ["removed", "forgotten"]);
                        return;
                    }
                    _ => continue,
                };
                subject.give(Input::InitialSync { attempt, outcome })
            }
            Some(_) => continue,
            None => wait(&mut subject, Duration::from_secs(1)),
        };
        outputs.extend(more);
    }
    panic!("it has not copied: {told:?}");
}

/// One copy commits where an arbiter has the other vote. Until the arbiter has the configuration of this
/// term, the one before it could still elect a member without that copy.
#[test]
fn a_primary_beside_an_arbiter_commits_nothing_under_a_configuration_that_only_it_has() {
    let mut pair = config(2);
    pair.members[1] = MemberConfig::arbiter(MemberId(1), address(1));
    let mut subject = with_config(pair, entry(1, 5));
    for _ in 0..200 {
        if subject.member.status().is_writable() {
            break;
        }
        carry_on(&mut subject, oblige);
    }
    let status = subject.member.status();
    assert!(status.is_writable());
    assert_eq!(status.config().unwrap().term, Some(Term(2)), "renewed, and stored by m0 alone");
    let beat = subject.heartbeat_to(1);
    append(&mut subject, entry(2, 20));
    assert_eq!(subject.member.status().commit_point(), OpTimeAndWallTime::default());
    let arbiter = |term| HeartbeatReply {
        config_version: Some(ConfigVersion { term: Some(Term(term)), version: 1 }),
        term: Term(2),
        ..reply_of(MemberState::Arbiter, OpTimeAndWallTime::default())
    };
    subject.hear(beat, arbiter(1));
    assert_eq!(subject.member.status().commit_point(), OpTimeAndWallTime::default());
    let outputs = wait(&mut subject, Duration::from_secs(2));
    assert!(!outputs.is_empty());
    subject.hear(subject.heartbeat_to(1), arbiter(2));
    assert_eq!(subject.member.status().commit_point(), entry(2, 20));
}

/// A primary beside an arbiter, and a newly added member with data that has yet to get its vote. What is committed is on the
/// primary alone.
fn primary_with_an_arbiter_and_a_newcomer() -> Subject {
    let mut three = config(3);
    three.members[1] = MemberConfig::arbiter(MemberId(1), address(1));
    three.members[2].newly_added = true;
    let mut subject = with_config(three, entry(1, 5));
    for _ in 0..200 {
        if subject.member.status().is_writable() {
            break;
        }
        carry_on(&mut subject, oblige);
    }
    assert!(subject.member.status().is_writable());
    subject
}

fn stores_a_config(outputs: &[Output]) -> bool {
    let is_config =
        |output: &Output| matches!(output, Output::Persist { change: Change::Config(_), .. });
    outputs.iter().any(is_config)
}

/// With the arbiter's vote a new voter could be elected at once: it gets its vote when it has what is committed, and
/// nothing more is committed meanwhile.
#[test]
fn a_newcomer_votes_beside_an_arbiter_only_with_all_that_is_committed() {
    let mut subject = primary_with_an_arbiter_and_a_newcomer();
    let term = subject.member.status().term();
    let version = ConfigVersion { term: Some(term), version: 1 };
    let reply = |state: MemberState, last: OpTimeAndWallTime| HeartbeatReply {
        config_version: Some(version),
        term,
        ..reply_of(state, last)
    };
    let nothing = OpTimeAndWallTime::default();
    let commit_point = |subject: &Subject| subject.member.status().commit_point();
    append(&mut subject, entry(term.0, 100));
    let answer_all = |subject: &mut Subject, newcomer: OpTimeAndWallTime| {
        let mut outputs = wait(subject, Duration::from_secs(2));
        let mut stores = stores_a_config(&outputs);
        while let Some(output) = outputs.pop() {
            let Output::Send { request, to, message: Request::Heartbeat(_), .. } = output else {
                continue;
            };
            let reply = match to == address(1) {
                true => reply(MemberState::Arbiter, nothing),
                false => reply(MemberState::Secondary, newcomer),
            };
            let more = subject.hear(request, reply);
            stores |= stores_a_config(&more);
            outputs.extend(more);
        }
        stores
    };
    for _ in 0..5 {
        assert!(!answer_all(&mut subject, entry(1, 5)), "it is far behind");
    }
    append(&mut subject, entry(term.0, 101));
    assert_eq!(commit_point(&subject), entry(term.0, 101), "others do not wait for it");
    assert!(!answer_all(&mut subject, entry(term.0, 100)), "it is near, and lacks the last entry");
    append(&mut subject, entry(term.0, 102));
    assert_eq!(commit_point(&subject), entry(term.0, 101), "held back while the newcomer copies");
    subject.ask(report(term.0, 2, entry(term.0, 101)));
    assert!(stores_a_config(&subject.outputs), "it has all that is committed");
    store(&mut subject);
    append(&mut subject, entry(term.0, 103));
    assert_eq!(commit_point(&subject), entry(term.0, 101), "from now on its copy counts");
}
