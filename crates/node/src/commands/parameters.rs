//! Server parameters and fail points.

use std::sync::atomic::Ordering;

use bson::{Bson, Document, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode};
use crate::fields::Fields;
use crate::node::MAX_CLOCK_DRIFT_SECS;
use crate::replication::IndexPrefetch;

/// What is read ahead of applying. Can be changed.
const INDEX_PREFETCH: &str = "replIndexPrefetch";

/// Whether clients' connections end when the member steps down. Can be changed.
const CLOSE_ON_STEP_DOWN: &str = "closeConnectionsOnStepDown";

/// Whether writers are slowed while a majority falls behind. Can be changed.
const FLOW_CONTROL: &str = "enableFlowControl";

/// How long a transaction may live, in seconds. Can be changed.
const TRANSACTION_LIFETIME: &str = "transactionLifetimeLimitSeconds";

/// How long a transaction waits for a change of a collection's description. Can be changed.
const TRANSACTION_LOCK_REQUEST: &str = "maxTransactionLockRequestTimeoutMillis";

/// What clients ask for, and the answer.
fn parameters(request: &Request<'_>) -> Document {
    let mut parameters = doc! {
        "featureCompatibilityVersion": { "version": "7.0" },
        "enableTestCommands": request.node.options().test_commands,
        "authenticationMechanisms": ["SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509"],
        "requireApiVersion": false,
        "logicalSessionRefreshMillis": 300_000,
        "localLogicalSessionTimeoutMinutes": crate::sessions::SESSION_TIMEOUT_MINUTES as i32,
        "maxAcceptableLogicalClockDriftSecs": MAX_CLOCK_DRIFT_SECS,
        "cursorTimeoutMillis": crate::cursors::CURSOR_TIMEOUT.as_millis() as i64,
    };
    let lifetime = request.node.write(request.context.now).state.transactions.table.lifetime();
    parameters.insert(TRANSACTION_LIFETIME, lifetime.as_secs() as i32);
    let millis = request.node.end_queue().lock_request_millis();
    parameters.insert(TRANSACTION_LOCK_REQUEST, millis);
    if let Some(replication) = request.node.replication() {
        parameters.insert(INDEX_PREFETCH, replication.prefetch.get().name());
        let closes = replication.closes_on_step_down.load(Ordering::Relaxed);
        parameters.insert(CLOSE_ON_STEP_DOWN, closes);
        parameters.insert(FLOW_CONTROL, replication.has_flow_control());
    }
    parameters
}

pub(super) fn get_parameter(
    request: &Request<'_>,
    command: Command,
) -> Result<Outcome, CommandError> {
    let all = match command.body.get("getParameter") {
        Some(Bson::String(text)) => text == "*",
        Some(Bson::Document(options)) => options.get_bool("allParameters").unwrap_or(false),
        _ => false,
    };
    let mut found = Document::new();
    for (name, value) in parameters(request) {
        if all || command.body.contains_key(&name) {
            found.insert(name, value);
        }
    }
    if found.is_empty() {
        return Err(CommandError::new(
            ErrorCode::INVALID_OPTIONS,
            "no option found to get; use getParameter: '*' for all of them",
        ));
    }
    found.insert("ok", 1.0);
    reply(&found)
}

pub(super) fn set_parameter(
    request: &Request<'_>,
    command: Command,
) -> Result<Outcome, CommandError> {
    if let (Some(wanted), Some(replication)) =
        (command.body.get(INDEX_PREFETCH), request.node.replication())
    {
        let setting = wanted.as_str().and_then(IndexPrefetch::from_name).ok_or_else(|| {
            CommandError::bad_value(format!("{INDEX_PREFETCH} must be none, _id_only or all"))
        })?;
        let was = replication.prefetch.get().name();
        replication.prefetch.set(setting);
        return reply(&doc! { "was": was, "ok": 1.0 });
    }
    if let (Some(closes), Some(replication)) = (
        Fields::new(&command.body, "setParameter").boolean(CLOSE_ON_STEP_DOWN)?,
        request.node.replication(),
    ) {
        let was = replication.closes_on_step_down.swap(closes, Ordering::Relaxed);
        return reply(&doc! { "was": was, "ok": 1.0 });
    }
    if let (Some(enabled), Some(replication)) = (
        Fields::new(&command.body, "setParameter").boolean(FLOW_CONTROL)?,
        request.node.replication(),
    ) {
        let was = replication.has_flow_control();
        replication.set_flow_control(enabled);
        return reply(&doc! { "was": was, "ok": 1.0 });
    }
    if let Some(was) = set_transaction_parameter(request, &command)? {
        return reply(&doc! { "was": was, "ok": 1.0 });
    }
    let known = parameters(request);
    let named = command.body.keys().skip(1).find(|name| known.contains_key(*name));
    Err(CommandError::new(
        ErrorCode::INVALID_OPTIONS,
        match named {
            Some(name) => format!("parameter {name} cannot be changed while the server runs"),
            None => "no option found to set; use getParameter: '*' for their names".to_owned(),
        },
    ))
}

/// Changes a limit of transactions, if the command names one. Returns what it was.
fn set_transaction_parameter(
    request: &Request<'_>,
    command: &Command,
) -> Result<Option<i32>, CommandError> {
    let fields = Fields::new(&command.body, "setParameter");
    if let Some(seconds) = fields.integer(TRANSACTION_LIFETIME)? {
        let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds >= 1);
        let seconds = seconds.ok_or_else(|| {
            CommandError::bad_value(format!("{TRANSACTION_LIFETIME} must be at least 1"))
        })?;
        let mut writer = request.node.write(request.context.now);
        let table = &mut writer.state.transactions.table;
        let was = table.lifetime().as_secs() as i32;
        table.set_lifetime(std::time::Duration::from_secs(seconds));
        return Ok(Some(was));
    }
    if let Some(millis) = fields.integer(TRANSACTION_LOCK_REQUEST)? {
        let millis = i32::try_from(millis).ok().filter(|millis| *millis >= -1);
        let millis = millis.ok_or_else(|| {
            CommandError::bad_value(format!("{TRANSACTION_LOCK_REQUEST} must be at least -1"))
        })?;
        return Ok(Some(request.node.end_queue().set_lock_request_millis(millis)));
    }
    Ok(None)
}

pub(super) fn configure_fail_point(
    request: &Request<'_>,
    command: Command,
) -> Result<Outcome, CommandError> {
    let count = request.node.fail_points().configure(&command.body.to_document())?;
    reply(&doc! { "count": count, "ok": 1.0 })
}
