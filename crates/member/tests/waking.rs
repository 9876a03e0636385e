//! A member whose process was paused, and that finds everything due at once.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quorate_member::{CloneProgress, Order, Replica};
use quorate_node::{Node, NodeOptions, Now};
use quorate_protocol::{
    MemberConfig, MemberId, MemberState, MonotonicTime, ObjectId, ReplicaSetConfig, ServerAddress,
    Term, WallTime,
};
use quorate_replication::{
    Input, Member, MemberOptions, NoopReason, Output, Recovered, RequestToken,
};
use quorate_storage::ModelStore;

/// More than an election takes.
const MAX_STEPS: usize = 10_000;

/// Longer than members are silent, and shorter than a primary stays without a write.
const HEARING: Duration = Duration::from_secs(5);

/// Longer than the primary waits for a majority, and than it stays without a write.
const SLEEP: Duration = Duration::from_secs(12);

fn at(monotonic: MonotonicTime) -> Now {
    let millis = i64::try_from(monotonic.as_nanos() / 1_000_000).unwrap();
    Now { wall: WallTime(1_700_000_000_000 + millis), monotonic }
}

fn options(index: u8, address: &ServerAddress) -> MemberOptions {
    MemberOptions {
        set_name: "rs0".into(),
        own_addresses: vec![address.clone()],
        process_id: ObjectId::from_bytes([index; 12]),
        new_replica_set_id: ObjectId::from_bytes([1; 12]),
        allowances: Default::default(),
    }
}

/// The first of three members, and two that only answer it.
struct Set {
    now: MonotonicTime,
    addresses: Vec<ServerAddress>,
    first: Replica<()>,
    others: Vec<Member>,
}

impl Set {
    fn new() -> Self {
        let now = MonotonicTime::ZERO;
        let addresses: Vec<ServerAddress> =
            ["a:27017", "b:27017", "c:27017"].map(|address| address.parse().unwrap()).into();
        let members = addresses.iter().zip(0..);
        let members = members.map(|(host, id)| MemberConfig::new(MemberId(id), host.clone()));
        let mut config = ReplicaSetConfig::new("rs0", members.collect());
        config.term = Some(Term(1));
        let store = Arc::new(ModelStore::new());
        let data = NodeOptions { oplog_bytes: Some(1 << 30), ..NodeOptions::default() };
        let node = Arc::new(Node::open(store, data, at(now)).unwrap());
        node.join_replica_set(at(now)).unwrap();
        // A member without an entry would copy everything first.
        node.append_noop(NoopReason::NewPrimary, Term(1), at(now)).unwrap();
        let last = node.sync_log().unwrap().durable;
        let recovered = || Recovered { config: Some(config.clone()), last, ..Recovered::default() };
        let progress = CloneProgress::default();
        let own = options(0, &addresses[0]);
        let first = Replica::new(own, recovered(), node, progress, 1, at(now));
        let others = (1..3).map(|index: u8| {
            let own = options(index, &addresses[usize::from(index)]);
            Member::new(own, recovered(), u64::from(index), now)
        });
        let others = others.collect();
        Self { now, addresses, first, others }
    }

    /// Lets time pass to the next deadline of the first member, and the others answer it at once.
    fn step(&mut self) {
        self.now = self.first.next_deadline().unwrap().max(self.now);
        self.first.tick(at(self.now));
        let mut inputs = VecDeque::new();
        loop {
            while let Some(order) = self.first.poll_order() {
                inputs.extend(self.carry_out(order));
            }
            let Some(input) = inputs.pop_front() else { return };
            self.first.handle(at(self.now), input);
        }
    }

    fn carry_out(&mut self, order: Order<()>) -> Option<Input> {
        match order {
            Order::Persist { ticket, .. } => Some(Input::Persisted(ticket)),
            Order::AppendNoop { reason, term } => {
                let node = Arc::clone(self.first.node());
                node.append_noop(reason, term, at(self.now)).unwrap();
                node.sync_log().unwrap();
                self.first.log_moved(at(self.now));
                None
            }
            Order::Send { request, to, message, .. } => {
                let place = self.addresses.iter().position(|address| *address == to).unwrap();
                let other = &mut self.others[place - 1];
                let token = RequestToken(1);
                other.handle(self.now, Input::RequestReceived { token, request: message });
                let mut answer = None;
                while let Some(output) = other.poll_output() {
                    match output {
                        Output::Persist { ticket, .. } => {
                            other.handle(self.now, Input::Persisted(ticket));
                        }
                        Output::Respond { reply, .. } => answer = reply.ok(),
                        _ => {}
                    }
                }
                let round_trip = Duration::from_millis(1);
                answer.map(|reply| Input::ReplyReceived { request, reply, round_trip })
            }
            _ => None,
        }
    }
}

/// Its no-op is due, and so is its end as primary. An entry that it wrote then would stand behind the place from
/// which it copies next, and what comes from there would not follow its log.
#[test]
fn a_primary_that_wakes_late_writes_nothing_more() {
    let mut set = Set::new();
    for _ in 0..MAX_STEPS {
        if set.first.status().is_writable() {
            break;
        }
        set.step();
    }
    assert!(set.first.status().is_writable(), "the first member leads");
    // It hears of a majority after its last write, so that the no-op is due before its end as primary.
    let heard = set.now + HEARING;
    while set.now < heard {
        set.step();
    }
    let log = set.first.node().log_positions();
    set.now = set.now + SLEEP;
    set.first.tick(at(set.now));
    assert_ne!(set.first.status().state(), MemberState::Primary, "it heard of no majority");
    while let Some(order) = set.first.poll_order() {
        assert!(!matches!(order, Order::AppendNoop { .. }), "{order:?}");
    }
    assert_eq!(set.first.node().log_positions(), log);
}
