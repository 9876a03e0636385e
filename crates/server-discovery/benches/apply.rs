//! What it costs to take a hello into account.
//!
//! `steady` is what a client does nearly all the time: a reply that says nothing new. It must not
//! grow with the topology. `failover` moves the primary back and forth.
//!
//! ```text
//! cargo bench -p quorate-server-discovery --bench apply
//! ```

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::sync::Arc;
use std::time::Duration;

use divan::Bencher;
use quorate_protocol::{
    ElectionId, HelloReply, LastWrite, MonotonicTime, ObjectId, ServerAddress,
    ServerMonitoringMode, SetVersion, TopologyVersion, WallTime, WireVersionRange,
};
use quorate_server_discovery::{
    CheckId, DiscoveryOptions, Input, MonitorCommand, Output, Topology, TopologyId,
};

const SIZES: [usize; 3] = [3, 50, 1000];

fn main() {
    divan::main();
}

struct Deployment {
    topology: Topology,
    now: MonotonicTime,
    addresses: Vec<ServerAddress>,
    checks: Vec<Option<CheckId>>,
}

impl Deployment {
    fn new(size: usize, mode: ServerMonitoringMode) -> Self {
        let addresses: Vec<ServerAddress> = (0..size)
            .map(|number| format!("member{number:04}.example:27017").parse().unwrap())
            .collect();
        let mut options = DiscoveryOptions::with_seeds(addresses.clone());
        options.server_monitoring_mode = mode;
        let now = MonotonicTime::from_millis(1);
        let topology = Topology::new(&options, TopologyId(1), 1, now).unwrap();
        let checks = vec![None; size];
        let mut deployment = Self { topology, now, addresses, checks };
        deployment.drain();
        // Twice, so that every server has been through the table since the last change.
        for member in (0..size).chain(0..size) {
            let reply = deployment.reply(member, 0, 1);
            deployment.answer(member, reply);
        }
        deployment
    }

    /// A set has at most fifty members, who list each other; larger topologies are of mongoses.
    fn reply(&self, member: usize, primary: usize, term: i64) -> Arc<HelloReply> {
        let is_set = self.addresses.len() <= 50;
        let listed = if is_set { self.addresses.clone() } else { Vec::new() };
        Arc::new(HelloReply {
            ok: true,
            hello_ok: true,
            is_dbgrid: !is_set,
            is_writable_primary: !is_set || member == primary,
            secondary: is_set && member != primary,
            set_name: is_set.then(|| "rs0".to_owned()),
            set_version: is_set.then_some(SetVersion(1)),
            election_id: (member == primary && is_set).then(|| ElectionId::from_term(term)),
            hosts: listed.into(),
            primary: is_set.then(|| self.addresses[primary].clone()),
            me: is_set.then(|| self.addresses[member].clone()),
            wire_versions: WireVersionRange { min: 0, max: 21 },
            last_write: Some(LastWrite {
                op_time: None,
                last_write_date: Some(WallTime(1_700_000_000_000)),
            }),
            logical_session_timeout_minutes: Some(30),
            topology_version: Some(TopologyVersion {
                process_id: ObjectId::from_bytes([1; 12]),
                counter: term,
            }),
            ..HelloReply::default()
        })
    }

    fn answer(&mut self, member: usize, reply: Arc<HelloReply>) {
        while self.checks[member].is_none() {
            self.now = self.topology.next_deadline().unwrap();
            self.topology.handle(self.now, Input::Tick);
            self.drain();
        }
        let check = self.checks[member].take().unwrap();
        let input = Input::HelloReceived {
            server: self.addresses[member].clone(),
            check,
            reply,
            round_trip: Duration::from_micros(300),
            more_to_come: false,
        };
        self.topology.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.topology.poll_output() {
            if let Output::Monitor { server, command: MonitorCommand::Check { check, .. } } = output
                && let Ok(member) = self.addresses.binary_search(&server)
            {
                self.checks[member] = Some(check);
            }
        }
    }
}

/// One streamed reply that says nothing new, with a reader holding the previous description.
#[divan::bench(args = SIZES)]
fn steady_streaming(bencher: Bencher<'_, '_>, size: usize) {
    let mut deployment = Deployment::new(size, ServerMonitoringMode::Stream);
    let member = size / 2;
    let reply = deployment.reply(member, 0, 1);
    let mut held = Arc::clone(deployment.topology.description());
    bencher.bench_local(|| {
        deployment.answer(member, Arc::clone(&reply));
        held = Arc::clone(deployment.topology.description());
    });
    drop(held);
}

/// One polled reply that says nothing new, and the tick that asks for the next.
#[divan::bench(args = SIZES)]
fn steady_polling(bencher: Bencher<'_, '_>, size: usize) {
    let mut deployment = Deployment::new(size, ServerMonitoringMode::Poll);
    let mut member = 0;
    let replies: Vec<_> = (0..size).map(|member| deployment.reply(member, 0, 1)).collect();
    // Checks come due in turn; answer them in turn.
    bencher.bench_local(|| {
        deployment.answer(member, Arc::clone(&replies[member]));
        member = (member + 1) % size;
    });
}

/// The primary moves: the new one reports, the old one is invalidated.
#[divan::bench(args = [3, 50])]
fn failover(bencher: Bencher<'_, '_>, size: usize) {
    let mut deployment = Deployment::new(size, ServerMonitoringMode::Stream);
    let mut term = 1;
    bencher.bench_local(|| {
        term += 1;
        let primary = usize::try_from(term).unwrap() % 2;
        let reply = deployment.reply(primary, primary, term);
        deployment.answer(primary, reply);
    });
}
