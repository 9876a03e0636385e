//! Members of a set, driven by hand in place of a host.

use quorate_node::{Decided, Node, Published};
use quorate_protocol::{
    HelloReply, MemberState, ObjectId, OpTimeAndWallTime, Term, TopologyVersion,
};
use quorate_replication::{MemberHello, NoopReason};
use quorate_storage::ModelStore;

use super::{Member, now};

pub(crate) const OPLOG_BYTES: u64 = 1 << 30;

pub(crate) fn show(node: &Node, state: MemberState, writable: bool) {
    let hello = MemberHello {
        reply: HelloReply { set_name: Some("rs0".into()), ..HelloReply::default() },
        secondary_delay_secs: None,
        builds_no_indexes: false,
        majority: None,
        info: None,
    };
    let topology_version =
        TopologyVersion { process_id: ObjectId::from_bytes([1; 12]), counter: 3 };
    let horizons = quorate_node::Horizons::default();
    let majority_by_default = true;
    node.publish(Published {
        hello,
        topology_version,
        state,
        writable,
        majority_by_default,
        horizons,
    });
    node.set_writable(writable.then_some(Term(1)), now());
}

pub(crate) fn primary() -> Member {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Primary, true);
    member.node.append_noop(NoopReason::NewPrimary, Term(1), now()).unwrap();
    member
}

pub(crate) fn secondary() -> Member {
    let member = Member::with_history(ModelStore::new(), OPLOG_BYTES);
    member.node.join_replica_set(now()).unwrap();
    show(&member.node, MemberState::Secondary, false);
    member
}

pub(crate) fn position(member: &Member) -> OpTimeAndWallTime {
    member.node.log_positions().written
}

/// A majority has the log up to here.
pub(crate) fn commit(member: &Member, commit_point: OpTimeAndWallTime) {
    member.node.decide(Decided { term: Term(1), rollback_id: 1, commit_point });
}
