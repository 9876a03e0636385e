//! Puts scripted replies and errors into a discovery core, as a shell would.
//!
//! The scenarios say "A answered this"; the core takes an answer only for a check that it has asked
//! for. So the harness keeps account of the checks, and lets time pass until the one that the
//! scenario speaks of is under way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, RawDocumentBuf};
use quorate_connection_string::ConnectionString;
use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::{
    ApplicationError, CheckFailure, CheckFailureKind, CheckId, CommandError, DiscoveryEvent,
    DiscoveryOptions, HandshakeProgress, Input, MonitorCommand, Output, PoolGeneration, Topology,
    TopologyId,
};
use quorate_wire::{command_error, parse_hello};
use serde_json::Value;

use crate::Result;

/// A check comes up after at most this many deadlines.
const MAX_DEADLINES: usize = 1000;

/// The round trip of a reply. Scenarios do not give it, and none depends on it.
const ROUND_TRIP: Duration = Duration::from_millis(1);

pub(crate) struct Harness {
    pub(crate) topology: Topology,
    pub(crate) events: Vec<DiscoveryEvent>,
    now: MonotonicTime,
    checks: BTreeMap<ServerAddress, CheckId>,
}

impl Harness {
    pub(crate) fn new(uri: &str) -> Result<Self> {
        let string = ConnectionString::parse(uri)?;
        let options = DiscoveryOptions::from_connection_string(&string);
        let now = MonotonicTime::from_millis(1);
        let topology = Topology::new(&options, TopologyId(42), 42, now)?;
        let mut harness = Self { topology, events: Vec::new(), now, checks: BTreeMap::new() };
        harness.drain();
        Ok(harness)
    }

    /// `["a:27017", {ok: 1, …}]`: the server's answer to its next check. An empty document stands for
    /// a network error.
    pub(crate) fn respond(&mut self, response: &Value) -> Result<()> {
        let server = address(response.get(0))?;
        let reply = response.get(1).ok_or("a response without a reply")?;
        let check = self.check_of(&server)?;
        let empty = reply.as_object().is_some_and(serde_json::Map::is_empty);
        let input = if empty {
            let failure = CheckFailure::new(CheckFailureKind::Network, "scripted network error");
            Input::CheckFailed { server, check, failure }
        } else {
            match parse_hello(&raw(reply)?) {
                Ok(reply) => Input::HelloReceived {
                    server,
                    check,
                    reply: Arc::new(reply),
                    round_trip: ROUND_TRIP,
                    more_to_come: false,
                },
                Err(error) => {
                    let failure = CheckFailure::new(CheckFailureKind::Malformed, error.to_string());
                    Input::CheckFailed { server, check, failure }
                }
            }
        };
        self.handle(input);
        Ok(())
    }

    /// An element of `applicationErrors`.
    pub(crate) fn fail_application(&mut self, error: &Value) -> Result<()> {
        let server = address(error.get("address"))?;
        let current = self.topology.pool_generation(&server, None).unwrap_or_default();
        let generation = match error.get("generation") {
            Some(generation) => PoolGeneration(generation.as_u64().ok_or("a bad generation")?),
            None => current,
        };
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let cause = match text("type") {
            "network" => ApplicationError::Network("scripted network error".to_owned()),
            "timeout" => ApplicationError::NetworkTimeout("scripted timeout".to_owned()),
            "command" => {
                let response = raw(error.get("response").ok_or("a command without response")?)?;
                match command_failure(&response)? {
                    Some(failure) => ApplicationError::Command(Box::new(failure)),
                    // Discovery gets no such error, as with writeErrors.
                    None => return Ok(()),
                }
            }
            other => bail!("an application error of type {other:?}"),
        };
        let handshake = match text("when") {
            "beforeHandshakeCompletes" => HandshakeProgress::Connecting,
            "afterHandshakeCompletes" => HandshakeProgress::Complete,
            other => bail!("an application error when {other:?}"),
        };
        let max_wire_version = error.get("maxWireVersion").and_then(Value::as_i64);
        let max_wire_version = max_wire_version.and_then(|version| i32::try_from(version).ok());
        self.handle(Input::ApplicationFailed {
            server,
            generation,
            service_id: None,
            handshake,
            max_wire_version: max_wire_version.ok_or("an error without maxWireVersion")?,
            overloaded: false,
            cause,
        });
        Ok(())
    }

    /// The server's check, once it is under way. One that no server has, for a server that is gone:
    /// its late answer must be ignored.
    fn check_of(&mut self, server: &ServerAddress) -> Result<CheckId> {
        if self.topology.description().server(server).is_none() {
            return Ok(CheckId(u64::MAX));
        }
        for _ in 0..MAX_DEADLINES {
            if let Some(check) = self.checks.remove(server) {
                return Ok(check);
            }
            let deadline = self.topology.next_deadline();
            self.now = deadline.ok_or_else(|| format!("{server} is never checked"))?;
            self.handle(Input::Tick);
        }
        Err(format!("{server} is not checked within {MAX_DEADLINES} deadlines").into())
    }

    fn handle(&mut self, input: Input) {
        self.topology.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.topology.poll_output() {
            match output {
                Output::Event(event) => self.events.push(event),
                Output::Monitor { server, command } => match command {
                    MonitorCommand::Check { check, .. } => {
                        self.checks.insert(server, check);
                    }
                    MonitorCommand::Cancel | MonitorCommand::Stop => {
                        self.checks.remove(&server);
                    }
                    _ => {}
                },
                Output::Publish(_) | Output::Pool { .. } => {}
            }
        }
    }
}

/// The error that discovery gets: the command's own, or its write concern's.
fn command_failure(reply: &RawDocumentBuf) -> Result<Option<CommandError>> {
    let error = command_error(reply)?;
    Ok(error.and_then(|error| error.of_server()))
}

/// A document of a scenario, in BSON.
pub(crate) fn raw(json: &Value) -> Result<RawDocumentBuf> {
    match Bson::try_from(json.clone()) {
        Ok(Bson::Document(document)) => Ok(RawDocumentBuf::try_from(&document)?),
        Ok(other) => Err(format!("{other} is no document").into()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn address(json: Option<&Value>) -> Result<ServerAddress> {
    let text = json.and_then(Value::as_str).ok_or("no address")?;
    Ok(text.parse()?)
}
