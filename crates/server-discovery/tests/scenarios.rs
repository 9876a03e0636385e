//! Stories about the core, as text files that pair what happens with what comes out.
//!
//! Each file in `scenarios/` is a list of blocks: a command, a line `----`, and everything that the
//! core put out. A reader sees an election as it unfolds, and a change of behaviour as a diff. The
//! commands are described at [`Story::run`]; to write the outputs anew, set `QUORATE_UPDATE_SNAPSHOTS=1`.
//!
//! Every story is also recorded, written to lines, read back and replayed: the outputs must be the
//! same to the byte.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_connection_string::ConnectionString;
use quorate_protocol::{
    ElectionId, HelloReply, MonotonicTime, ObjectId, ServerAddress, ServerMonitoringMode,
    SetVersion, TopologyVersion, WireVersionRange,
};
use quorate_provision::snapshot;
use quorate_server_discovery::{
    ApplicationError, CheckFailure, CheckFailureKind, CheckId, CommandError, DiscoveryOptions,
    FunctionPlatform, HandshakeProgress, Input, MonitorCommand, Output, PoolGeneration,
    RecordedInput, RecordingStart, Threading, Topology, TopologyId,
};

#[test]
fn every_scenario_reads_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the scenarios are missing");
    let told = |file: &PathBuf| {
        let told = tell(&fs::read_to_string(file).unwrap(), file);
        Some(format!("{}\n{told}", snapshot(file, &told).err()?))
    };
    let differing: Vec<String> = files.iter().filter_map(told).collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// The file with the outputs as they are now.
fn tell(written: &str, file: &Path) -> String {
    let mut story = Story::default();
    let mut told = String::new();
    for block in written.split("\n\n") {
        let mut lines = block.lines().peekable();
        while let Some(comment) = lines.next_if(|line| line.starts_with('#') || line.is_empty()) {
            writeln!(told, "{comment}").unwrap();
        }
        let Some(command) = lines.next() else {
            told.push('\n');
            continue;
        };
        let outputs = story.run(command).unwrap_or_else(|problem| {
            panic!("{}: {command:?}: {problem}", file.display());
        });
        writeln!(told, "{command}\n----").unwrap();
        outputs.iter().for_each(|output| writeln!(told, "{output}").unwrap());
        told.push('\n');
    }
    story.replay_gives_the_same();
    format!("{}\n", told.trim_end())
}

#[derive(Default)]
struct Story {
    now: MonotonicTime,
    start: Option<RecordingStart>,
    topology: Option<Topology>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    checks: BTreeMap<ServerAddress, CheckId>,
    measurements: BTreeMap<ServerAddress, CheckId>,
}

impl Story {
    /// - `new URI [single] [lambda] [stable-api]`: a topology
    /// - `advance DURATION`: time passes, unnoticed; `tick`: time is noticed; `wait`: time passes to
    ///   the next deadline, which is noticed
    /// - `hello SERVER KIND [key=value…]`: the check under way is answered; `late …`: a check that is
    ///   no longer under way is
    /// - `fail SERVER KIND [message…]`: the check under way fails
    /// - `rtt SERVER DURATION|failed`: the measurement under way ends
    /// - `handshake SERVER KIND [key=value…]`: a pooled connection got a reply
    /// - `app SERVER network|timeout|dns|CODE [key=value…]`: an operation fails
    /// - `want`, `scan`, `check SERVER`, `resolve SERVER…`, `close`
    fn run(&mut self, command: &str) -> Result<Vec<String>, String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (verb, rest) = words.split_first().ok_or("no command")?;
        match *verb {
            "new" => return self.open(rest),
            "advance" => {
                self.now = self.now + duration(rest.first())?;
                return Ok(Vec::new());
            }
            "wait" => {
                let topology = self.topology.as_ref().ok_or("no topology")?;
                self.now = topology.next_deadline().ok_or("there is no deadline")?;
                let outputs = self.handle(Input::Tick);
                let mut told = vec![format!("(it is {:?})", self.now)];
                told.extend(outputs);
                return Ok(told);
            }
            _ => {}
        }
        let input = self.input(verb, rest)?;
        Ok(self.handle(input))
    }

    fn input(&mut self, verb: &str, rest: &[&str]) -> Result<Input, String> {
        Ok(match verb {
            "tick" => Input::Tick,
            "want" => Input::CheckWanted,
            "scan" => Input::ScanWanted,
            "close" => Input::Close,
            "check" => Input::ServerCheckWanted { server: address(rest.first())? },
            "resolve" => Input::SeedsResolved(
                rest.iter().map(|word| address(Some(word))).collect::<Result<_, _>>()?,
            ),
            "hello" | "late" => {
                let server = address(rest.first())?;
                let check = match verb {
                    "late" => CheckId(u64::MAX),
                    _ => self.checks.remove(&server).ok_or("no check is under way")?,
                };
                Input::HelloReceived {
                    check,
                    reply: Arc::new(reply(&server, &rest[1..])?),
                    round_trip: Duration::from_millis(2),
                    more_to_come: rest.contains(&"more"),
                    server,
                }
            }
            "handshake" => {
                let server = address(rest.first())?;
                let reply = Arc::new(reply(&server, &rest[1..])?);
                Input::HandshakeReceived { server, reply }
            }
            "fail" => {
                let server = address(rest.first())?;
                let check = self.checks.remove(&server).ok_or("no check is under way")?;
                let kind = match *rest.get(1).ok_or("no kind")? {
                    "network" => CheckFailureKind::Network,
                    "timeout" => CheckFailureKind::NetworkTimeout,
                    "command" => CheckFailureKind::Command,
                    "malformed" => CheckFailureKind::Malformed,
                    other => return Err(format!("no failure is {other}")),
                };
                let failure = CheckFailure::new(kind, rest[2..].join(" "));
                Input::CheckFailed { server, check, failure }
            }
            "rtt" => {
                let server = address(rest.first())?;
                let check = self.measurements.remove(&server).ok_or("nothing is measured")?;
                let round_trip = match rest.get(1) {
                    Some(&"failed") => None,
                    word => Some(duration(word)?),
                };
                Input::RoundTripMeasured { server, check, round_trip }
            }
            "app" => self.application_failure(rest)?,
            other => return Err(format!("no command is {other}")),
        })
    }

    fn application_failure(&self, words: &[&str]) -> Result<Input, String> {
        let server = address(words.first())?;
        let given =
            |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let number = |key: &str| given(key).map(|text| text.parse::<u64>().unwrap());
        let cause = match *words.get(1).ok_or("no cause")? {
            "network" => ApplicationError::Network("connection reset".to_owned()),
            "timeout" => ApplicationError::NetworkTimeout("no answer in time".to_owned()),
            "dns" => ApplicationError::Establishment("the name does not resolve".to_owned()),
            code => ApplicationError::Command(Box::new(CommandError {
                code: code.parse().ok(),
                message: code.replace('_', " "),
                topology_version: number("tv").map(topology_version),
                ..CommandError::default()
            })),
        };
        let service_id = given("service").map(|text| text.parse::<ObjectId>().unwrap());
        let topology = self.topology.as_ref().ok_or("no topology")?;
        let current = topology.pool_generation(&server, service_id).unwrap_or_default();
        Ok(Input::ApplicationFailed {
            generation: number("generation").map_or(current, PoolGeneration),
            service_id,
            handshake: match given("when") {
                Some("connecting") => HandshakeProgress::Connecting,
                Some("authenticating") => HandshakeProgress::Authenticating,
                _ => HandshakeProgress::Complete,
            },
            max_wire_version: number("wire").map_or(21, |wire| i32::try_from(wire).unwrap()),
            overloaded: words.contains(&"overloaded"),
            cause,
            server,
        })
    }

    fn open(&mut self, words: &[&str]) -> Result<Vec<String>, String> {
        if self.start.is_some() {
            self.replay_gives_the_same();
            *self = Self { now: self.now, ..Self::default() };
        }
        let uri = words.first().ok_or("no uri")?;
        let string = ConnectionString::parse(uri).map_err(|error| error.to_string())?;
        let mut options = DiscoveryOptions::from_connection_string(&string);
        for word in &words[1..] {
            match *word {
                "single" => options.threading = Threading::Single,
                "lambda" => options.function_platform = Some(FunctionPlatform::AwsLambda),
                "stream" => options.server_monitoring_mode = ServerMonitoringMode::Stream,
                "stable-api" => options.stable_api = true,
                seed => options.seeds.push(address(Some(&seed))?),
            }
        }
        let start = RecordingStart { options, id: TopologyId(1), seed: 1, at: self.now };
        self.topology = Some(start.topology().map_err(|error| error.to_string())?);
        self.start = Some(start);
        Ok(self.drain())
    }

    fn handle(&mut self, input: Input) -> Vec<String> {
        let recorded = RecordedInput { at: self.now, input: input.clone() };
        self.inputs.push(recorded.to_line());
        self.topology.as_mut().expect("a story begins with new").handle(self.now, input);
        self.drain()
    }

    fn drain(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(output) = self.topology.as_mut().and_then(Topology::poll_output) {
            if let Output::Monitor { server, command } = &output {
                match command {
                    MonitorCommand::Check { check, .. } => {
                        self.checks.insert(server.clone(), *check);
                    }
                    MonitorCommand::MeasureRoundTrip { check, .. } => {
                        self.measurements.insert(server.clone(), *check);
                    }
                    MonitorCommand::Cancel | MonitorCommand::Stop => {
                        self.checks.remove(server);
                    }
                    MonitorCommand::StopMeasuring | MonitorCommand::Start => {}
                }
            }
            told.push(output.to_string());
        }
        self.outputs.extend(told.iter().cloned());
        told
    }

    fn replay_gives_the_same(&self) {
        let line = self.start.as_ref().expect("a story begins with new").to_line();
        let start = RecordingStart::from_line(&line).unwrap();
        assert_eq!(start.to_line(), line);
        let mut topology = start.topology().unwrap();
        let mut outputs = Vec::new();
        let drain = |topology: &mut Topology, outputs: &mut Vec<String>| {
            while let Some(output) = topology.poll_output() {
                outputs.push(output.to_string());
            }
        };
        drain(&mut topology, &mut outputs);
        for line in &self.inputs {
            let recorded = RecordedInput::from_line(line).unwrap();
            assert_eq!(&recorded.to_line(), line);
            topology.handle(recorded.at, recorded.input);
            drain(&mut topology, &mut outputs);
        }
        assert_eq!(outputs, self.outputs);
    }
}

fn reply(server: &ServerAddress, words: &[&str]) -> Result<HelloReply, String> {
    let mut reply = HelloReply {
        ok: true,
        hello_ok: true,
        set_name: Some("rs".to_owned()),
        me: Some(server.clone()),
        wire_versions: WireVersionRange { min: 0, max: 21 },
        ..HelloReply::default()
    };
    let (kind, rest) = words.split_first().ok_or("no kind")?;
    match *kind {
        "primary" => {
            reply.is_writable_primary = true;
            reply.primary = Some(server.clone());
        }
        "secondary" => reply.secondary = true,
        "arbiter" => reply.arbiter_only = true,
        "other" => {}
        "hidden" => {
            reply.hidden = true;
            reply.secondary = true;
        }
        "ghost" => {
            reply.is_replica_set = true;
            reply.set_name = None;
            reply.me = None;
        }
        "standalone" | "mongos" => {
            reply.is_writable_primary = true;
            reply.is_dbgrid = *kind == "mongos";
            reply.set_name = None;
            reply.me = None;
        }
        "not-ok" => reply.ok = false,
        other => return Err(format!("no server is {other}")),
    }
    for word in rest.iter().filter(|word| **word != "more") {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("what is {word}?"))?;
        let list = || value.split(',').map(|name| address(Some(&name))).collect::<Result<_, _>>();
        let number = || value.parse::<i64>().map_err(|error| error.to_string());
        match key {
            "hosts" => reply.hosts = list()?,
            "passives" => reply.passives = list()?,
            "arbiters" => reply.arbiters = list()?,
            "primary" => reply.primary = Some(address(Some(&value))?),
            "me" => reply.me = Some(address(Some(&value))?),
            "set" => reply.set_name = Some(value.to_owned()),
            "term" => reply.election_id = Some(ElectionId::from_term(number()?)),
            "version" => reply.set_version = Some(SetVersion(number()?)),
            "wire" => reply.wire_versions.max = i32::try_from(number()?).unwrap(),
            "tv" => reply.topology_version = Some(topology_version(value.parse().unwrap())),
            "helloOk" => reply.hello_ok = value == "true",
            other => return Err(format!("no field is {other}")),
        }
    }
    Ok(reply)
}

fn topology_version(counter: u64) -> TopologyVersion {
    TopologyVersion {
        process_id: ObjectId::from_bytes([1; 12]),
        counter: i64::try_from(counter).unwrap(),
    }
}

fn address(word: Option<&&str>) -> Result<ServerAddress, String> {
    word.ok_or("no address")?.parse().map_err(|error| format!("{error}"))
}

fn duration(word: Option<&&str>) -> Result<Duration, String> {
    let word = word.ok_or("no duration")?;
    let millis = match word.strip_suffix("ms") {
        Some(millis) => millis.parse(),
        None => word.trim_end_matches('s').parse().map(|seconds: u64| seconds * 1000),
    };
    millis.map(Duration::from_millis).map_err(|error| error.to_string())
}
