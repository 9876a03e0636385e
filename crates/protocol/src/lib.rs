#![doc = include_str!("../README.md")]
//!
//! This crate owns the vocabulary that every other crate speaks. Nothing here reads BSON, beyond the length of a value
//! ([`bson_length`]): `quorate-wire` turns these values into bytes and back.

mod address;
mod address_list;
pub mod bson_length;
mod command_error;
mod error_code;
mod hello;
mod identifiers;
mod lock;
mod monitoring_mode;
mod named;
mod optime;
mod prometheus;
mod random;
mod read_preference;
pub mod remedy;
mod replica_set;
mod tags;
mod text;
mod time;

pub use address::{AddressError, DEFAULT_PORT, MAX_HOST_LENGTH, ServerAddress};
pub use address_list::AddressList;
pub use command_error::{CommandError, WriteConcernError};
pub use error_code::ErrorCode;
pub use hello::{HelloCommand, HelloReply, LastWrite, WireVersionRange};
pub use identifiers::{ElectionId, ObjectId, ParseObjectIdError, SetVersion, TopologyVersion};
pub use lock::Lock;
pub use monitoring_mode::ServerMonitoringMode;
pub use optime::{OpTime, Timestamp};
pub use prometheus::{PROMETHEUS_CONTENT_TYPE, PrometheusText, SampleKind};
pub use random::SplitMix64;
pub use read_preference::{ReadPreference, ReadPreferenceMode, UnknownReadPreferenceMode};
pub use replica_set::{
    ConfigVersion, ElectionReason, HeartbeatReply, HeartbeatRequest, MAX_VOTERS, MemberConfig,
    MemberId, MemberPosition, MemberState, OpTimeAndWallTime, PositionReport, Priority,
    ReplicaSetConfig, ReplicaSetSettings, Term, Veto, VoteReply, VoteRequest,
};
pub use tags::TagSet;
pub use text::{Counted, Visible, is_hidden, steers};
pub use time::{MonotonicTime, WallTime};
