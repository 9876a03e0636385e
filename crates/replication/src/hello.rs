//! The reply to `hello`, for every kind of member and every state a client can meet.
//!
//! A function of the status. docs/replication-rules.md#hello, whose table the tests follow row by
//! row.

use quorate_protocol::{
    ElectionId, HelloReply, LastWrite, MemberConfig, MemberState, OpTimeAndWallTime, ServerAddress,
    SetVersion,
};

use crate::status::Status;

/// A member's reply to `hello`, with the fields that [`HelloReply`] does not know because no client
/// decides by them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberHello {
    /// What clients decide by.
    pub reply: HelloReply,
    /// `secondaryDelaySecs`, of a delayed member.
    pub secondary_delay_secs: Option<i64>,
    /// `buildIndexes: false`, of a member that does not build them.
    pub builds_no_indexes: bool,
    /// `lastWrite.majorityOpTime` and `majorityWriteDate`.
    pub majority: Option<OpTimeAndWallTime>,
    /// `info`: why the member is not part of a set.
    pub info: Option<&'static str>,
}

pub(crate) fn hello(status: Status<'_>, base: HelloReply, horizon: Option<&str>) -> MemberHello {
    let mut reply = HelloReply {
        ok: true,
        is_writable_primary: false,
        secondary: false,
        topology_version: Some(status.topology_version()),
        ..base
    };
    let (Some(config), Some(me)) = (status.config(), status.me()) else {
        return ghost(reply, status.config().is_some());
    };
    let address = |member: &MemberConfig| -> ServerAddress {
        horizon.and_then(|name| member.horizons.get(name)).unwrap_or(&member.host).clone()
    };
    for member in &config.members {
        if member.hidden || member.secondary_delay_secs > 0 {
            continue;
        }
        let list = if member.arbiter_only {
            &mut reply.arbiters
        } else if member.is_electable() {
            &mut reply.hosts
        } else {
            &mut reply.passives
        };
        list.push(address(member));
    }
    let writable = status.is_writable();
    reply.set_name = Some(config.set_name.clone());
    reply.set_version = Some(SetVersion(config.version));
    reply.is_writable_primary = writable;
    // A primary that does not take writes (yet, or any more) is a secondary to clients.
    reply.secondary = match status.state() {
        MemberState::Primary => !writable,
        state => state == MemberState::Secondary,
    };
    reply.election_id = writable.then(|| ElectionId::from_term(status.term().0));
    let known_primary = if writable { Some(me) } else { status.primary().filter(|id| *id != me) };
    reply.primary = known_primary.and_then(|id| config.member(id)).map(address);
    let applied = status.applied();
    reply.last_write = Some(LastWrite {
        op_time: Some(applied.op_time),
        last_write_date: Some(applied.wall_time),
    });
    let own = config.member(me);
    if let Some(own) = own {
        reply.me = Some(address(own));
        reply.arbiter_only = own.arbiter_only;
        reply.passive = !own.arbiter_only && !own.is_electable();
        reply.hidden = own.hidden;
        reply.tags = own.tags.clone();
    }
    MemberHello {
        reply,
        secondary_delay_secs: own.map(|m| m.secondary_delay_secs).filter(|secs| *secs > 0),
        builds_no_indexes: own.is_some_and(|member| !member.build_indexes),
        majority: Some(status.commit_point()),
        info: None,
    }
}

/// A member that no client should use: it knows no set that it is part of.
fn ghost(mut reply: HelloReply, has_config: bool) -> MemberHello {
    reply.is_replica_set = true;
    let info = if has_config {
        "This member is not in the configuration it has; add it with rs.add()."
    } else {
        "No configuration yet; run rs.initiate() on one member."
    };
    MemberHello {
        reply,
        secondary_delay_secs: None,
        builds_no_indexes: false,
        majority: None,
        info: Some(info),
    }
}
