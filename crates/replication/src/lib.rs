//! How one member of a replica set votes, leads, follows and commits, without I/O.
//!
//! [`Member`] is a value that takes what happened ([`Input`]) and gives what to do ([`Output`]). It
//! knows no socket, file, clock or BSON; its only chance is a seed. The host's loop is:
//!
//! ```text
//!   loop {
//!       wait for: a request, a reply, an fsync, copied entries, or member.next_deadline()
//!       member.handle(now, input);
//!       while let Some(output) = member.poll_output() { carry it out }
//!   }
//! ```
//!
//! What depends on an unfinished write never leaves early: a vote is answered, a candidacy announced
//! and a configuration installed only after [`Input::Persisted`] with the ticket of its
//! [`Output::Persist`].
//!
//! The rules themselves are small pure modules: `quorum`, `commit_point`, `election`, `sync_source`, `config_check`,
//! `reconfig_check`, and [`electability`], which tells why a set has no primary.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ballot;
mod campaign;
mod candidacy;
mod commit_point;
mod config_check;
pub mod electability;
mod election;
mod error;
mod event;
mod explain;
mod heartbeating;
mod hello;
mod initial_sync;
mod input;
mod invariants;
mod leading;
mod left_out_indexes;
mod member;
mod memory;
#[cfg(test)]
mod model_check;
mod outbox;
mod output;
mod own_log;
mod peer;
mod primary;
mod quorum;
mod random;
mod reconfig_check;
mod reconfiguring;
mod role;
mod rolling_back;
mod status;
mod step_down;
mod sync_source;
mod syncing;
#[cfg(test)]
mod testing;
mod timers;
mod waiting;
mod write_concern;

pub use candidacy::VetoRecord;
pub use config_check::{Allowances, ConfigError, warnings as config_warnings};
pub use election::LastVote;
pub use error::RequestError;
pub use event::{CatchUpEnd, Event, SourceLost, StepDownReason};
pub use explain::{CampaignRecord, ElectionExplanation, MemberExplanation};
pub use hello::MemberHello;
pub use initial_sync::InitialSyncStage;
pub use input::{
    FetchFailure, FetchId, FetchedBatch, InitialSyncOutcome, Input, MemberOptions, Recovered,
    Reply, Request, RequestId, RequestToken, Ticket, Unreachable, WaiterId,
};
pub use member::Member;
pub use memory::Memory;
pub use output::{Change, Fatal, InitialSyncStep, NoopReason, Output};
pub use peer::Contact;
pub use quorum::{Counts, ImplicitDefault, implicit_default_write_concern, is_acknowledged};
pub use random::SeededRandom;
pub use reconfig_check::{Proposal, ReconfigError, check_documents as check_reconfig};
pub use status::{MemberView, Status};
pub use sync_source::Leave;
pub use write_concern::{
    Acknowledgements, UnsatisfiableWriteConcern, WriteConcern, WriteConcernError,
};

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
