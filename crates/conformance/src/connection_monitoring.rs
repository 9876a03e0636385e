//! Runs the pooling scenarios ("cmap-format") against the client's pools.
//!
//! Scenarios of style "unit" run with connections that are made at once, on a clock that skips the
//! waiting. Those of style "integration" shake hands with a scripted server that knows the
//! `failCommand` fail point, in real time.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quorate_client::Clock;
use quorate_client::dial::{Connection, Connector, Environment, EstablishError, Handshake, Stream};
use quorate_client::pool::{
    CheckOutError, ConnectionId, Establish, Established, Pool, PoolEvent, PoolEventKind,
    PoolEventListener, PoolGeneration, PoolOptions, Pooled, PooledConnection,
};
use quorate_protocol::{Lock, ServerAddress};
use quorate_test_support::{FailPoint, FakeServer};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::harness::raw;
use crate::{Result, ScenarioFile};

/// How long an event may take that the scenario gives no limit for.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn check(file: &ScenarioFile) -> Result<()> {
    let integration = text(&file.json, "style")? == "integration";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(!integration)
        .build()?;
    runtime.block_on(run(&file.json, integration))
}

async fn run(scenario: &Value, integration: bool) -> Result<()> {
    let (options, app_name) = pool_options(scenario.get("poolOptions"))?;
    let server = if integration { Some(FakeServer::start().await?) } else { None };
    if let (Some(server), Some(fail_point)) = (&server, scenario.get("failPoint")) {
        let command = raw(fail_point)?;
        server.set_fail_point(FailPoint::from_command(&command)?);
    }
    let address = match &server {
        Some(server) => server.address().clone(),
        None => "unit.test:27017".parse().map_err(|_| "a bad address")?,
    };
    let log = Arc::new(Log::default());
    let establisher = Arc::new(Establisher {
        address: address.clone(),
        handshake: integration
            .then(|| Handshake::new(app_name.as_deref(), &[], &Environment::default())),
        pool: OnceLock::new(),
    });
    let listener: PoolEventListener = {
        let log = Arc::clone(&log);
        Arc::new(move |event| log.push(event))
    };
    let pool =
        Pool::new(address, options, Clock::start(), Shared(Arc::clone(&establisher)), listener);
    let _ = establisher.pool.set(pool.clone());
    let runner = Arc::new(Runner { pool, log, checked_out: Lock::new(BTreeMap::new()) });
    let outcome = runner.run_all(scenario).await;
    judge(scenario, &runner.log.events(), outcome)
}

fn judge(scenario: &Value, events: &[Value], outcome: Result<(), Failure>) -> Result<()> {
    match (scenario.get("error"), outcome) {
        (None, Ok(())) => {}
        (None, Err(failure)) => bail!("unexpected {failure:?}"),
        (Some(error), Ok(())) => bail!("{error} was expected and did not happen"),
        (Some(expected), Err(Failure { kind, message })) => {
            if text(expected, "type")? != kind {
                bail!("a {kind} ({message}) instead of {expected}");
            }
            let beginning = text(expected, "message")?;
            if !message.starts_with(beginning) {
                bail!("{message:?} does not begin with {beginning:?}");
            }
        }
    }
    let empty = Vec::new();
    let ignored = scenario.get("ignore").and_then(Value::as_array).unwrap_or(&empty);
    let actual: Vec<_> = events.iter().filter(|event| !ignored.contains(&event["type"])).collect();
    let expected = scenario.get("events").and_then(Value::as_array).unwrap_or(&empty);
    for (position, expected) in expected.iter().enumerate() {
        match actual.get(position) {
            Some(actual) if matches(expected, actual) => {}
            other => {
                bail!("event {position}: {expected} expected, {other:?} found");
            }
        }
    }
    Ok(())
}

/// "Spec Test Match Function": 42 stands for anything, objects may have more fields than expected.
fn matches(expected: &Value, actual: &Value) -> bool {
    if *expected == json!(42) || *expected == json!("42") {
        return !actual.is_null();
    }
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => expected
            .iter()
            .all(|(key, value)| actual.get(key).is_some_and(|actual| matches(value, actual))),
        (Value::Array(expected), Value::Array(actual)) => {
            expected.iter().enumerate().all(|(position, value)| {
                actual.get(position).is_some_and(|actual| matches(value, actual))
            })
        }
        _ => expected == actual,
    }
}

/// The error that ended a thread of the scenario.
#[derive(Clone, Debug)]
struct Failure {
    kind: &'static str,
    message: String,
}

impl Failure {
    fn scenario(message: impl Into<String>) -> Self {
        Self { kind: "ScenarioError", message: message.into() }
    }

    fn check_out(error: CheckOutError<EstablishError>) -> Self {
        let kind = match &error {
            CheckOutError::PoolClosed { .. } => "PoolClosedError",
            CheckOutError::PoolCleared { .. } => "PoolClearedError",
            CheckOutError::TimedOut { .. } => "WaitQueueTimeoutError",
            // Not established, or a reason that the pool may learn.
            _ => "EstablishmentError",
        };
        Self { kind, message: error.to_string() }
    }
}

struct Runner {
    pool: Pool<Shared>,
    log: Arc<Log>,
    checked_out: Lock<BTreeMap<String, PooledConnection<Shared>>>,
}

struct Thread {
    work: mpsc::UnboundedSender<Value>,
    task: JoinHandle<Result<(), Failure>>,
}

impl Runner {
    async fn run_all(self: &Arc<Self>, scenario: &Value) -> Result<(), Failure> {
        let operations = scenario.get("operations").and_then(Value::as_array);
        let operations = operations.ok_or_else(|| Failure::scenario("no operations"))?;
        let mut threads: BTreeMap<String, Thread> = BTreeMap::new();
        for (position, operation) in operations.iter().enumerate() {
            let get = |key| operation.get(key).and_then(Value::as_str);
            let target = get("target").unwrap_or_default();
            match get("name") {
                Some("start") => {
                    // Bounded by the scenario, which is finite.
                    let (work, received) = mpsc::unbounded_channel();
                    let task = tokio::spawn(Arc::clone(self).run_thread(received));
                    threads.insert(target.to_owned(), Thread { work, task });
                }
                Some("waitForThread") => {
                    let thread = threads.remove(target);
                    let thread = thread.ok_or_else(|| Failure::scenario("no such thread"))?;
                    drop(thread.work);
                    match thread.task.await {
                        Ok(result) => result?,
                        Err(error) => return Err(Failure::scenario(error.to_string())),
                    }
                }
                _ => match get("thread").and_then(|name| threads.get(name)) {
                    Some(thread) => {
                        let sent = thread.work.send(operation.clone());
                        sent.map_err(|_| Failure::scenario("the thread has ended"))?;
                    }
                    None => self.run_one(operation, position).await?,
                },
            }
        }
        for thread in threads.into_values() {
            thread.task.abort();
        }
        Ok(())
    }

    async fn run_thread(
        self: Arc<Self>,
        mut work: mpsc::UnboundedReceiver<Value>,
    ) -> Result<(), Failure> {
        let mut position = 0;
        while let Some(operation) = work.recv().await {
            // Names no connection of the main thread's has.
            position += 1;
            self.run_one(&operation, usize::MAX - position).await?;
        }
        Ok(())
    }

    async fn run_one(&self, operation: &Value, position: usize) -> Result<(), Failure> {
        let get = |key| operation.get(key).and_then(Value::as_str);
        let number = |key| operation.get(key).and_then(Value::as_u64);
        match get("name").unwrap_or_default() {
            "ready" => self.pool.ready(),
            "close" => self.pool.close(),
            "clear" => {
                let interrupt = operation.get("interruptInUseConnections");
                let next = PoolGeneration(self.pool.generation().0 + 1);
                self.pool.clear(next, interrupt.and_then(Value::as_bool).unwrap_or(false));
            }
            "checkOut" => {
                let connection = self.pool.check_out().await.map_err(Failure::check_out)?;
                // Connections without a label stay out until the scenario is over.
                let unlabelled = format!("unlabelled {position} {}", connection.id());
                let label = get("label").map_or(unlabelled, str::to_owned);
                self.checked_out.lock().insert(label, connection);
            }
            "checkIn" => {
                let label = get("connection").unwrap_or_default();
                let connection = self.checked_out.lock().remove(label);
                drop(connection.ok_or_else(|| Failure::scenario("no such connection"))?);
            }
            "wait" => sleep(Duration::from_millis(number("ms").unwrap_or(0))).await,
            "waitForEvent" => {
                let name = get("event").unwrap_or_default();
                let count = usize::try_from(number("count").unwrap_or(1)).unwrap_or(usize::MAX);
                let limit = number("timeout").map_or(PATIENCE, Duration::from_millis);
                self.log.wait_for(name, count, limit).await?;
            }
            other => return Err(Failure::scenario(format!("unknown operation {other:?}"))),
        }
        Ok(())
    }
}

/// The events so far, as the scenarios write them.
struct Log {
    events: watch::Sender<Vec<Value>>,
}

impl Default for Log {
    fn default() -> Self {
        Self { events: watch::Sender::new(Vec::new()) }
    }
}

impl Log {
    fn push(&self, event: PoolEvent) {
        self.events.send_modify(|events| events.push(event_json(&event)));
    }

    fn events(&self) -> Vec<Value> {
        self.events.borrow().clone()
    }

    async fn wait_for(&self, name: &str, count: usize, limit: Duration) -> Result<(), Failure> {
        let mut changes = self.events.subscribe();
        let enough = changes.wait_for(|events| {
            events.iter().filter(|event| event["type"] == name).count() >= count
        });
        match timeout(limit, enough).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Failure::scenario(format!("{name} did not happen {count} times"))),
        }
    }
}

fn event_json(event: &PoolEvent) -> Value {
    use PoolEventKind as Kind;
    let mut json = match &event.kind {
        Kind::PoolCreated { options } => {
            json!({ "type": "ConnectionPoolCreated", "options": options_json(options) })
        }
        Kind::PoolReady => json!({ "type": "ConnectionPoolReady" }),
        Kind::PoolCleared { interrupt_in_use_connections, .. } => json!({
            "type": "ConnectionPoolCleared",
            "interruptInUseConnections": interrupt_in_use_connections,
        }),
        Kind::PoolClosed => json!({ "type": "ConnectionPoolClosed" }),
        Kind::ConnectionCreated { connection } => {
            json!({ "type": "ConnectionCreated", "connectionId": connection.0 })
        }
        Kind::ConnectionReady { connection, duration } => json!({
            "type": "ConnectionReady", "connectionId": connection.0,
            "duration": duration.as_secs_f64(),
        }),
        Kind::ConnectionClosed { connection, reason } => json!({
            "type": "ConnectionClosed", "connectionId": connection.0, "reason": reason.name(),
        }),
        Kind::CheckOutStarted => json!({ "type": "ConnectionCheckOutStarted" }),
        Kind::CheckOutFailed { reason, duration } => json!({
            "type": "ConnectionCheckOutFailed", "reason": reason.name(),
            "duration": duration.as_secs_f64(),
        }),
        Kind::CheckedOut { connection, duration } => json!({
            "type": "ConnectionCheckedOut", "connectionId": connection.0,
            "duration": duration.as_secs_f64(),
        }),
        Kind::CheckedIn { connection } => {
            json!({ "type": "ConnectionCheckedIn", "connectionId": connection.0 })
        }
        other => json!({ "type": format!("{other:?}") }),
    };
    json["address"] = json!(event.address.as_str());
    json
}

fn options_json(options: &PoolOptions) -> Value {
    json!({
        "maxPoolSize": options.max_pool_size.unwrap_or(0),
        "minPoolSize": options.min_pool_size,
        "maxIdleTimeMS": options.max_idle_time.map_or(0, |limit| limit.as_millis()),
        "maxConnecting": options.max_connecting,
    })
}

/// Makes connections: at once, or by shaking hands with the scripted server.
struct Establisher {
    address: ServerAddress,
    handshake: Option<Handshake>,
    pool: OnceLock<Pool<Shared>>,
}

#[derive(Clone)]
struct Shared(Arc<Establisher>);

struct Member(#[expect(dead_code, reason = "kept open")] Option<Connection<Stream>>);

impl Pooled for Member {
    fn is_usable(&self) -> bool {
        true
    }
}

impl Establish for Shared {
    type Connection = Member;
    type Error = EstablishError;

    async fn establish(
        &self,
        _: ConnectionId,
        _: PoolGeneration,
    ) -> Result<Established<Member>, EstablishError> {
        let Some(handshake) = &self.0.handshake else {
            return Ok(Established { connection: Member(None), service_id: None });
        };
        let (connector, address) = (Connector::default(), &self.0.address);
        let (connection, _) = handshake.open(&connector, address, None).await?;
        Ok(Established { connection: Member(Some(connection)), service_id: None })
    }

    /// As discovery does after an error that no overload explains.
    fn on_failure(&self, _: &EstablishError, generation: PoolGeneration) {
        if let Some(pool) = self.0.pool.get()
            && pool.generation() == generation
        {
            pool.clear(PoolGeneration(generation.0 + 1), false);
        }
    }
}

fn pool_options(json: Option<&Value>) -> Result<(PoolOptions, Option<String>)> {
    let mut options = PoolOptions::default();
    let mut app_name = None;
    let given = json.and_then(Value::as_object).into_iter().flatten();
    for (name, value) in given {
        let count = || {
            let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
            count.ok_or_else(|| format!("{name} is {value}"))
        };
        let millis = || Ok::<_, String>(Duration::from_millis(count()? as u64));
        match name.as_str() {
            "maxPoolSize" => options.max_pool_size = Some(count()?).filter(|&max| max > 0),
            "minPoolSize" => options.min_pool_size = count()?,
            "maxConnecting" => options.max_connecting = count()?,
            "maxIdleTimeMS" => options.max_idle_time = Some(millis()?),
            "waitQueueTimeoutMS" => options.wait_queue_timeout = Some(millis()?),
            // Negative means that nothing happens in the background.
            "backgroundThreadIntervalMS" => options.maintenance_interval = millis().ok(),
            "appName" => app_name = value.as_str().map(str::to_owned),
            other => bail!("unknown pool option {other}"),
        }
    }
    Ok((options, app_name))
}

fn text<'a>(json: &'a Value, key: &str) -> Result<&'a str> {
    json.get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("there is no {key} in {json}").into())
}
