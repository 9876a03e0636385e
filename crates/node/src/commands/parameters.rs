//! Server parameters and fail points.

use bson::{Bson, Document, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode};

/// What clients ask for, and the answer. None can be changed yet.
fn parameters() -> Document {
    doc! {
        "featureCompatibilityVersion": { "version": "7.0" },
        "enableTestCommands": true,
        "authenticationMechanisms": ["SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509"],
        "requireApiVersion": false,
        "logicalSessionRefreshMillis": 300_000,
        "localLogicalSessionTimeoutMinutes": crate::sessions::SESSION_TIMEOUT_MINUTES as i32,
        "cursorTimeoutMillis": crate::cursors::CURSOR_TIMEOUT.as_millis() as i64,
    }
}

pub(super) fn get_parameter(_: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    let all = match command.body.get("getParameter") {
        Some(Bson::String(text)) => text == "*",
        Some(Bson::Document(options)) => options.get_bool("allParameters").unwrap_or(false),
        _ => false,
    };
    let mut found = Document::new();
    for (name, value) in parameters() {
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

pub(super) fn set_parameter(_: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    let known = parameters();
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
