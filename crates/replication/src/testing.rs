//! Short names for values that the unit tests of this crate build over and over.

use quorate_protocol::{
    MemberConfig, MemberId, OpTime, OpTimeAndWallTime, ReplicaSetConfig, ServerAddress, Timestamp,
    WallTime,
};

/// An ordinary member `m<id>` at `host<id>:27017`.
pub(crate) fn member(id: i32) -> MemberConfig {
    let host = ServerAddress::tcp(&format!("host{id}"), 27017).unwrap();
    MemberConfig::new(MemberId(id), host)
}

/// A configuration `rs0` of these members.
pub(crate) fn config(members: Vec<MemberConfig>) -> ReplicaSetConfig {
    ReplicaSetConfig::new("rs0", members)
}

/// The first entry of a second, in a term.
pub(crate) fn at(term: i64, seconds: u32) -> OpTime {
    OpTime::new(term, Timestamp::new(seconds, 1))
}

/// The same, with its wall time.
pub(crate) fn stamp(term: i64, seconds: u32) -> OpTimeAndWallTime {
    OpTimeAndWallTime { op_time: at(term, seconds), wall_time: WallTime(i64::from(seconds) * 1000) }
}
