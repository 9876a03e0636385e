//! Rules of docs/replication-rules.md that one member shows by itself, a test for each.
//!
//! `docs/replication-rules.md` names them; the rest of its rows are shown elsewhere.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod configurations;
mod copying;
mod elections;
mod heartbeats;
mod initial_sync;
mod memory;
mod states;
#[path = "../subject/mod.rs"]
mod subject;

use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, ElectionReason, HeartbeatReply, HeartbeatRequest, MemberConfig, MemberId,
    MemberState, MonotonicTime, OpTime, OpTimeAndWallTime, Priority, ReplicaSetConfig, Term,
    VoteReply, VoteRequest,
};
use quorate_replication::{
    Acknowledgements, Change, Event, FetchFailure, FetchId, FetchedBatch, InitialSyncOutcome,
    InitialSyncStep, Input, LastVote, Leave, Memory, Output, Recovered, Reply, Request, RequestId,
    SourceLost, Ticket, Unreachable, WaiterId, WriteConcern,
};
use subject::{
    Subject, acknowledgement, address, append, carry_on, config, entry, fetch_among,
    heartbeat_from, oblige, primary, refusal, reply_of, report,
};

pub(crate) fn with_config(config: ReplicaSetConfig, last: OpTimeAndWallTime) -> Subject {
    Subject::new(Recovered { config: Some(config), last, ..Recovered::default() })
}

pub(crate) fn vote_request(term: i64, dry_run: bool, last: OpTimeAndWallTime) -> VoteRequest {
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
pub(crate) fn store(subject: &mut Subject) -> Vec<Output> {
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

pub(crate) fn wait(subject: &mut Subject, interval: Duration) -> Vec<Output> {
    subject.now = subject.now + interval;
    subject.give(Input::Tick)
}

pub(crate) fn events(outputs: &[Output]) -> Vec<String> {
    let told = outputs.iter().filter_map(|output| match output {
        Output::Event(event) => Some(event.to_string()),
        _ => None,
    });
    told.collect()
}

pub(crate) fn stored_config(outputs: &[Output]) -> Option<ReplicaSetConfig> {
    outputs.iter().find_map(|output| match output {
        Output::Persist { change: Change::Config(config), .. } => Some((**config).clone()),
        _ => None,
    })
}

pub(crate) fn step_up() -> Request {
    Request::StepUp { skip_dry_run: true }
}
