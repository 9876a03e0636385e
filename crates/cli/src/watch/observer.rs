//! Monitors without a client: one task, one core, no pools.
//!
//! A watcher sends no operations, so it needs neither pools nor credentials; and because every input
//! of the core passes through one place here, what is recorded is exactly what was watched. The
//! sockets and the handshake are the client's. The core decides when and how to check; a check is
//! one short task, and giving it up means aborting that task, which closes its socket.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::raw::cstr;
use quorate_client::connection::{Connection, Request};
use quorate_client::handshake::{Handshake, HandshakeError, exchange_hello, next_hello};
use quorate_client::net::{Connector, Stream};
use quorate_protocol::{HelloReply, MonotonicTime, ServerAddress};
use quorate_server_discovery::{
    CheckFailure, CheckFailureKind, CheckId, CheckKind, DiscoveryEvent, HelloCommand, Input,
    MonitorCommand, Output, RecordedInput, RecordingStart, Topology,
};
use quorate_wire::{MsgFlags, topology_version_document};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::recorder::Recorder;
use crate::clock;

/// How connections are made; shared by all checks.
#[derive(Debug)]
pub(super) struct Manner {
    pub(super) connector: Connector,
    pub(super) handshake: Handshake,
}

/// A deployment under observation.
pub(super) struct Observer {
    topology: Topology,
    manner: Arc<Manner>,
    monitors: BTreeMap<ServerAddress, Monitor>,
    /// Bounded by two tasks for each server.
    tasks: JoinSet<Done>,
    recorder: Option<Recorder>,
}

/// What happened, and when.
pub(super) type Seen = (MonotonicTime, DiscoveryEvent);

#[derive(Default)]
struct Monitor {
    connection: Option<Connection<Stream>>,
    check: Option<(CheckId, AbortHandle)>,
    measuring: Option<Connection<Stream>>,
    measurement: Option<(CheckId, AbortHandle)>,
}

impl Monitor {
    fn cancel_check(&mut self) {
        self.connection = None;
        if let Some((_, task)) = self.check.take() {
            task.abort();
        }
    }

    fn stop_measuring(&mut self) {
        self.measuring = None;
        if let Some((_, task)) = self.measurement.take() {
            task.abort();
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.cancel_check();
        self.stop_measuring();
    }
}

/// A task that has ended.
enum Done {
    Check(ServerAddress, CheckId, Result<Checked, CheckFailure>),
    Measurement(ServerAddress, CheckId, Option<Checked>),
}

struct Checked {
    connection: Connection<Stream>,
    reply: HelloReply,
    round_trip: Duration,
}

struct Check {
    kind: CheckKind,
    hello: HelloCommand,
    limit: Option<Duration>,
    connection: Option<Connection<Stream>>,
}

impl Observer {
    /// Begins to observe. The first events come with it.
    ///
    /// # Errors
    ///
    /// If the recording cannot be written.
    pub(super) fn start(
        topology: Topology,
        start: &RecordingStart,
        manner: Manner,
        mut recorder: Option<Recorder>,
    ) -> io::Result<(Self, Vec<Seen>)> {
        if let Some(recorder) = &mut recorder {
            recorder.write(&start.to_line())?;
        }
        let mut observer = Self {
            topology,
            manner: Arc::new(manner),
            monitors: BTreeMap::new(),
            tasks: JoinSet::new(),
            recorder,
        };
        let seen = observer.drain(start.at);
        Ok((observer, seen))
    }

    /// Waits for the next thing to happen. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// If the recording cannot be written.
    pub(super) async fn next(&mut self) -> io::Result<Vec<Seen>> {
        let deadline = self.topology.next_deadline();
        let wait = deadline.map(|deadline| deadline.since(clock::now()));
        let input = tokio::select! {
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(done) => self.input(done),
                Err(error) if error.is_cancelled() => None,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => Some(Input::Tick),
            // Neither a check nor a deadline: nothing will ever happen again.
            else => std::future::pending().await,
        };
        match input {
            Some(input) => self.handle(input),
            None => Ok(Vec::new()),
        }
    }

    /// Ends every check and closes every socket.
    ///
    /// # Errors
    ///
    /// If the recording cannot be written.
    pub(super) fn close(&mut self) -> io::Result<Vec<Seen>> {
        self.handle(Input::Close)
    }

    fn handle(&mut self, input: Input) -> io::Result<Vec<Seen>> {
        let at = clock::now();
        if let Some(recorder) = &mut self.recorder {
            recorder.write(&RecordedInput { at, input: input.clone() }.to_line())?;
        }
        self.topology.handle(at, input);
        Ok(self.drain(at))
    }

    fn drain(&mut self, at: MonotonicTime) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(output) = self.topology.poll_output() {
            match output {
                Output::Event(event) => seen.push((at, event)),
                Output::Monitor { server, command } => self.command(server, command),
                // A watcher has no operations, and so no pools; events tell of descriptions.
                Output::Publish(_) | Output::Pool { .. } => {}
            }
        }
        seen
    }

    fn command(&mut self, server: ServerAddress, command: MonitorCommand) {
        match command {
            MonitorCommand::Start => {
                self.monitors.insert(server, Monitor::default());
            }
            MonitorCommand::Stop => {
                self.monitors.remove(&server);
            }
            MonitorCommand::Cancel => {
                if let Some(monitor) = self.monitors.get_mut(&server) {
                    monitor.cancel_check();
                }
            }
            MonitorCommand::StopMeasuring => {
                if let Some(monitor) = self.monitors.get_mut(&server) {
                    monitor.stop_measuring();
                }
            }
            MonitorCommand::Check { check, kind, hello, timeout: limit, .. } => {
                let Some(monitor) = self.monitors.get_mut(&server) else { return };
                let connection = monitor.connection.take().filter(|_| kind != CheckKind::Connect);
                let work = Check { kind, hello, limit, connection };
                let manner = Arc::clone(&self.manner);
                let task = self.tasks.spawn(async move {
                    let result = carry_out(&manner, &server, work).await;
                    Done::Check(server, check, result)
                });
                monitor.check = Some((check, task));
            }
            MonitorCommand::MeasureRoundTrip { check, hello, timeout: limit } => {
                let Some(monitor) = self.monitors.get_mut(&server) else { return };
                let connection = monitor.measuring.take();
                let kind = if connection.is_some() { CheckKind::Poll } else { CheckKind::Connect };
                let work = Check { kind, hello, limit, connection };
                let manner = Arc::clone(&self.manner);
                let task = self.tasks.spawn(async move {
                    let result = carry_out(&manner, &server, work).await.ok();
                    Done::Measurement(server, check, result)
                });
                monitor.measurement = Some((check, task));
            }
        }
    }

    /// Takes the connection back and makes an input of the answer, unless nobody waits for it.
    fn input(&mut self, done: Done) -> Option<Input> {
        match done {
            Done::Check(server, check, result) => {
                let monitor = self.monitors.get_mut(&server)?;
                if monitor.check.as_ref()?.0 != check {
                    return None;
                }
                monitor.check = None;
                Some(match result {
                    Ok(Checked { connection, reply, round_trip }) => {
                        let more_to_come = connection.is_streaming();
                        monitor.connection = Some(connection);
                        let reply = Arc::new(reply);
                        Input::HelloReceived { server, check, reply, round_trip, more_to_come }
                    }
                    Err(failure) => Input::CheckFailed { server, check, failure },
                })
            }
            Done::Measurement(server, check, result) => {
                let monitor = self.monitors.get_mut(&server)?;
                if monitor.measurement.as_ref()?.0 != check {
                    return None;
                }
                monitor.measurement = None;
                let round_trip = result.map(|checked| {
                    monitor.measuring = Some(checked.connection);
                    checked.round_trip
                });
                Some(Input::RoundTripMeasured { server, check, round_trip })
            }
        }
    }
}

async fn carry_out(
    manner: &Manner,
    server: &ServerAddress,
    check: Check,
) -> Result<Checked, CheckFailure> {
    let mut connection = match (check.kind, check.connection) {
        (CheckKind::Connect, _) => match manner.connector.connect(server).await {
            Ok(stream) => Connection::new(stream),
            Err(error) => {
                let kind = match error.is_timeout() {
                    true => CheckFailureKind::NetworkTimeout,
                    false => CheckFailureKind::Network,
                };
                return Err(CheckFailure::new(kind, error.to_string()));
            }
        },
        (_, Some(connection)) => connection,
        (_, None) => {
            let message = format!("the monitoring connection to {server} is gone");
            return Err(CheckFailure::new(CheckFailureKind::Network, message));
        }
    };
    let began = Instant::now();
    let asked = ask(manner, &mut connection, check.kind, check.hello);
    let reply = match check.limit {
        None => asked.await,
        Some(limit) => timeout(limit, asked).await.unwrap_or(Err(HandshakeError::TimedOut)),
    };
    let reply = reply.map_err(|error| {
        let kind = match &error {
            HandshakeError::TimedOut => CheckFailureKind::NetworkTimeout,
            HandshakeError::Refused(_) => CheckFailureKind::Command,
            error if error.is_network() => CheckFailureKind::Network,
            _ => CheckFailureKind::Malformed,
        };
        CheckFailure::new(kind, error.to_string())
    })?;
    Ok(Checked { connection, reply, round_trip: began.elapsed() })
}

async fn ask(
    manner: &Manner,
    connection: &mut Connection<Stream>,
    kind: CheckKind,
    hello: HelloCommand,
) -> Result<HelloReply, HandshakeError> {
    match kind {
        CheckKind::Connect => manner.handshake.shake_as_monitor(connection).await,
        CheckKind::Poll => {
            let hello = manner.handshake.plain_hello(hello);
            exchange_hello(connection, Request::new(&hello)).await
        }
        CheckKind::Await { topology_version, max_await_time } => {
            let mut hello = manner.handshake.plain_hello(hello);
            hello.append(cstr!("topologyVersion"), topology_version_document(topology_version));
            let millis = i64::try_from(max_await_time.as_millis()).unwrap_or(i64::MAX);
            hello.append(cstr!("maxAwaitTimeMS"), millis);
            let request = Request { flags: MsgFlags::EXHAUST_ALLOWED, ..Request::new(&hello) };
            exchange_hello(connection, request).await
        }
        CheckKind::ReadNext => next_hello(connection).await,
    }
}
