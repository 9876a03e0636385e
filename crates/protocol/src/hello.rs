//! The reply to `hello` and to legacy hello, after parsing.
//!
//! `quorate-wire` makes it from bytes and answers for its well-formedness; `quorate-server-discovery`
//! decides what it says about the server. See "Parsing a hello or legacy hello response" in the
//! Server Discovery And Monitoring specification.

use crate::{
    AddressList, ElectionId, ObjectId, OpTime, ServerAddress, SetVersion, TagSet, TopologyVersion,
    WallTime,
};

/// What a server said about itself.
///
/// Absent fields are `None`, `false` or empty, as the specification's defaults have it. Names are
/// the specification's.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HelloReply {
    /// `ok: 1`. A reply without it describes a server of type Unknown.
    pub ok: bool,
    /// `isWritablePrimary`, or `ismaster` where that is absent.
    pub is_writable_primary: bool,
    /// `helloOk`: the server knows the `hello` command.
    pub hello_ok: bool,
    /// `msg: "isdbgrid"`: the mark of a mongos.
    pub is_dbgrid: bool,
    /// `isreplicaset`: the mark of a ghost.
    pub is_replica_set: bool,
    /// `secondary`.
    pub secondary: bool,
    /// `arbiterOnly`.
    pub arbiter_only: bool,
    /// `passive`: a member with priority 0.
    pub passive: bool,
    /// `hidden`.
    pub hidden: bool,
    /// `setName`.
    pub set_name: Option<String>,
    /// `setVersion`.
    pub set_version: Option<SetVersion>,
    /// `electionId`.
    pub election_id: Option<ElectionId>,
    /// `hosts`, lower-cased.
    pub hosts: AddressList,
    /// `passives`, lower-cased.
    pub passives: AddressList,
    /// `arbiters`, lower-cased.
    pub arbiters: AddressList,
    /// `primary`, lower-cased.
    pub primary: Option<ServerAddress>,
    /// `me`, lower-cased.
    pub me: Option<ServerAddress>,
    /// `tags`.
    pub tags: TagSet,
    /// `minWireVersion` and `maxWireVersion`.
    pub wire_versions: WireVersionRange,
    /// `lastWrite`.
    pub last_write: Option<LastWrite>,
    /// `logicalSessionTimeoutMinutes`.
    pub logical_session_timeout_minutes: Option<i64>,
    /// `topologyVersion`: the server can await and stream.
    pub topology_version: Option<TopologyVersion>,
    /// `iscryptd`: the server is a mongocryptd.
    pub iscryptd: bool,
    /// `serviceId`: the service behind a load balancer.
    pub service_id: Option<ObjectId>,
    /// `connectionId`: what the server calls the connection that asked.
    pub connection_id: Option<i64>,
}

impl HelloReply {
    /// Every address the server calls a member: hosts, then passives, then arbiters.
    pub fn members(&self) -> impl Iterator<Item = &ServerAddress> + Clone {
        self.hosts.iter().chain(&self.passives).chain(&self.arbiters)
    }
}

/// The wire protocol versions that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WireVersionRange {
    /// `minWireVersion`.
    pub min: i32,
    /// `maxWireVersion`.
    pub max: i32,
}

/// The `lastWrite` subdocument: how far the member's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LastWrite {
    /// `opTime`.
    pub op_time: Option<OpTime>,
    /// `lastWriteDate`.
    pub last_write_date: Option<WallTime>,
}

/// Which command asks a server about itself. Both carry `helloOk: true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloCommand {
    /// `hello`.
    Hello,
    /// `isMaster`, which old servers know.
    Legacy,
}

impl HelloCommand {
    /// The one for a connection of which nothing is known: `hello` only where every server that may be
    /// there knows it, as with a stable API.
    pub const fn first(is_known: bool) -> Self {
        if is_known { Self::Hello } else { Self::Legacy }
    }
}

impl std::fmt::Display for HelloCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hello => "hello",
            Self::Legacy => "legacy hello",
        })
    }
}
