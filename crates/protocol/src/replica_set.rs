//! A replica set's configuration and the messages its members exchange, as plain values.
//!
//! Field names are the server's own, in our spelling. `quorate-wire` turns these into documents and
//! back; `quorate-replication` decides what they mean. Nothing here validates: a configuration that
//! an administrator wrote must be representable before it can be refused.

mod config;
mod messages;
mod state;

pub use config::{
    ConfigVersion, MAX_VOTERS, MemberConfig, MemberId, Priority, ReplicaSetConfig,
    ReplicaSetSettings, Term,
};
pub use messages::{
    ElectionReason, HeartbeatReply, HeartbeatRequest, MemberPosition, OpTimeAndWallTime,
    PositionReport, Veto, VoteReply, VoteRequest,
};
pub use state::MemberState;
