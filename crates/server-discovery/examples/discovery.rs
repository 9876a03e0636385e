//! A client finds a replica set from one seed, without a network: the example is the servers.
//! `cargo run -p quorate-server-discovery --example discovery`

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{HelloReply, MonotonicTime, ServerAddress, WireVersionRange};
use quorate_server_discovery::{
    DiscoveryOptions, Input, MonitorCommand, Output, Topology, TopologyId, TopologyType,
};

/// How often servers are asked at most.
const MAX_STEPS: usize = 100;

#[expect(clippy::print_stdout, reason = "it is what the example is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts: Vec<ServerAddress> = ["a.example:27017", "b.example:27017", "c.example:27017"]
        .map(str::parse)
        .into_iter()
        .collect::<Result<_, _>>()?;
    let options = DiscoveryOptions::with_seeds([hosts[0].clone()]);
    let mut now = MonotonicTime::ZERO;
    let mut topology = Topology::new(&options, TopologyId(1), 42, now)?;
    println!("at first: {}", topology.description());
    for _ in 0..MAX_STEPS {
        let Some(output) = topology.poll_output() else { break };
        let Output::Monitor { server, command: MonitorCommand::Check { check, .. } } = output
        else {
            continue;
        };
        // A real shell opens a connection here, sends hello and brings the reply later.
        now = now + Duration::from_millis(1);
        let leads = server == hosts[1];
        let reply = Arc::new(HelloReply {
            ok: true,
            set_name: Some("rs0".to_owned()),
            hosts: hosts.clone().into(),
            is_writable_primary: leads,
            secondary: !leads,
            me: Some(server.clone()),
            wire_versions: WireVersionRange { min: 0, max: 25 },
            ..HelloReply::default()
        });
        let round_trip = Duration::from_millis(1);
        topology.handle(
            now,
            Input::HelloReceived { server, check, reply, round_trip, more_to_come: false },
        );
    }
    println!("in the end: {}", topology.description());
    assert_eq!(topology.description().topology_type(), TopologyType::ReplicaSetWithPrimary);
    Ok(())
}
