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
    if let Some(replication) = request.node.replication() {
        parameters.insert(INDEX_PREFETCH, replication.prefetch.get().name());
        let closes = replication.closes_on_step_down.load(Ordering::Relaxed);
        parameters.insert(CLOSE_ON_STEP_DOWN, closes);
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
        let setting = wanted.as_str().and_then(IndexPrefetch::parse).ok_or_else(|| {
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
    let known = parameters(request);
    let named = command.body.keys().skip(1).find(|name| known.contains_key(name.as_str()));
    Err(CommandError::new(
        ErrorCode::INVALID_OPTIONS,
        match named {
            Some(name) => format!("parameter {name} cannot be changed while the server runs"),
            None => "no option found to set; use getParameter: '*' for their names".to_owned(),
        },
    ))
}

pub(super) fn configure_fail_point(
    request: &Request<'_>,
    command: Command,
) -> Result<Outcome, CommandError> {
    let count = request.node.fail_points().configure(&command.body)?;
    reply(&doc! { "count": count, "ok": 1.0 })
}
