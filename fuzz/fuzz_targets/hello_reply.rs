//! Any bytes as a reply to hello: refused with an error that names the field, or taken into account
//! by a topology, whose own invariants are checked.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use bson::raw::RawDocument;
use libfuzzer_sys::fuzz_target;
use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::{
    CheckFailure, CheckFailureKind, CheckId, DiscoveryOptions, Input, MonitorCommand, Output,
    RecordedInput, Topology, TopologyId,
};
use quorate_wire::parse_hello;

fuzz_target!(|bytes: &[u8]| {
    let Ok(document) = RawDocument::from_bytes(bytes) else { return };
    let Ok(server) = "a.example:27017".parse::<ServerAddress>() else { return };
    let options = DiscoveryOptions::with_seeds([server.clone()]);
    let Ok(mut topology) = Topology::new(&options, TopologyId(1), 1, MonotonicTime::ZERO) else {
        return;
    };
    // Twice: what a second, equal reply does is another path.
    for _ in 0..2 {
        let Some(check) = drain(&mut topology, &server) else { return };
        let input = match parse_hello(document) {
            Ok(reply) => Input::HelloReceived {
                server: server.clone(),
                check,
                reply: Arc::new(reply),
                round_trip: Duration::from_millis(1),
                more_to_come: false,
            },
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let failure = CheckFailure::new(CheckFailureKind::Malformed, error.to_string());
                Input::CheckFailed { server: server.clone(), check, failure }
            }
        };
        let recorded = RecordedInput { at: MonotonicTime::ZERO, input };
        let line = recorded.to_line();
        assert_eq!(RecordedInput::from_line(&line).as_ref(), Ok(&recorded), "{line}");
        topology.handle(recorded.at, recorded.input);
    }
    drain(&mut topology, &server);
});

/// Throws the outputs away, but for the check of this server.
fn drain(topology: &mut Topology, wanted: &ServerAddress) -> Option<CheckId> {
    let mut found = None;
    while let Some(output) = topology.poll_output() {
        assert!(!output.to_string().is_empty());
        if let Output::Monitor { server, command: MonitorCommand::Check { check, .. } } = output
            && server == *wanted
        {
            found = Some(check);
        }
    }
    found
}
