//! Servers and topologies for the tests of this module, in few words.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{HelloReply, LastWrite, MonotonicTime, ServerAddress, WallTime};

use crate::fault::{CheckFailure, CheckFailureKind, ServerError, ServerFault};
use crate::server_description::{RoundTrips, ServerDescription};
use crate::topology_description::{SelectionSettings, TopologyDescription};
use crate::types::{ServerType, TopologyType};

pub(super) struct Member {
    address: ServerAddress,
    kind: ServerType,
    reply: HelloReply,
    round_trip: Option<Duration>,
    updated: MonotonicTime,
}

pub(super) fn address(host: &str) -> ServerAddress {
    host.parse().unwrap()
}

/// A server of a kind, checked at time zero.
pub(super) fn member(host: &str, kind: ServerType) -> Member {
    let set_name = match kind {
        ServerType::RsPrimary
        | ServerType::RsSecondary
        | ServerType::RsArbiter
        | ServerType::RsOther => Some("rs".to_owned()),
        _ => None,
    };
    let reply = HelloReply {
        ok: true,
        is_writable_primary: kind == ServerType::RsPrimary,
        secondary: kind == ServerType::RsSecondary,
        arbiter_only: kind == ServerType::RsArbiter,
        is_dbgrid: kind == ServerType::Mongos,
        is_replica_set: kind == ServerType::RsGhost,
        set_name,
        ..HelloReply::default()
    };
    let updated = MonotonicTime::ZERO;
    Member { address: address(host), kind, reply, round_trip: None, updated }
}

impl Member {
    pub(super) fn rtt(mut self, millis: u64) -> Self {
        self.round_trip = Some(Duration::from_millis(millis));
        self
    }

    pub(super) fn tag(mut self, name: &str, value: &str) -> Self {
        self.reply.tags.insert(name, value);
        self
    }

    /// The wall time of its last write, in seconds.
    pub(super) fn wrote(mut self, seconds: i64) -> Self {
        let last_write_date = Some(WallTime(seconds * 1000));
        self.reply.last_write = Some(LastWrite { op_time: None, last_write_date });
        self
    }

    pub(super) fn updated(mut self, seconds: u64) -> Self {
        self.updated = MonotonicTime::from_millis(seconds * 1000);
        self
    }

    pub(super) fn reply(mut self, change: impl FnOnce(&mut HelloReply)) -> Self {
        change(&mut self.reply);
        self
    }

    pub(super) fn build(self) -> ServerDescription {
        match self.kind {
            ServerType::Unknown => ServerDescription::unknown(self.address),
            ServerType::PossiblePrimary => {
                ServerDescription::unknown(self.address).into_possible_primary()
            }
            ServerType::LoadBalancer => ServerDescription::load_balancer(self.address),
            kind => {
                let round_trips = RoundTrips { average: self.round_trip, minimum: None };
                let server = ServerDescription::from_reply(
                    self.address,
                    Arc::new(self.reply),
                    round_trips,
                    self.updated,
                );
                assert_eq!(server.server_type(), kind);
                server
            }
        }
    }
}

/// A server whose check failed at the given second.
pub(super) fn failed(
    host: &str,
    kind: CheckFailureKind,
    words: &str,
    at: u64,
) -> ServerDescription {
    let at = MonotonicTime::from_millis(at * 1000);
    let error = ServerError::new(ServerFault::Check(CheckFailure::new(kind, words)), at);
    ServerDescription::failed(address(host), error, None, Some(at))
}

pub(super) fn topology(
    kind: TopologyType,
    servers: impl IntoIterator<Item = ServerDescription>,
) -> TopologyDescription {
    TopologyDescription::assemble(kind, servers, SelectionSettings::default())
}
