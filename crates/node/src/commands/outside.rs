//! Commands that the shell around a member answers.
//!
//! They are in the table so that their rights are checked with everything else's. A shell that
//! leaves one to the member has no answer for it, and says why here.

use bson::doc;

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;

/// A command of a replica set at a member that belongs to none.
pub(super) fn needs_a_set(_: &Request<'_>, _: Command) -> Result<Outcome> {
    Err(fail!(NO_REPLICATION_ENABLED, "not running with --replSet"))
}

/// The connections to other members, of a member that has no others.
pub(super) fn no_connections(_: &Request<'_>, _: Command) -> Result<Outcome> {
    reply(&doc! {
        "numClientConnections": 0, "totalInUse": 0, "totalAvailable": 0, "totalCreated": 0_i64,
        "hosts": {}, "ok": 1.0,
    })
}

/// A command about the process, at a member that is only a value in one.
pub(super) fn needs_a_process(request: &Request<'_>, _: Command) -> Result<Outcome> {
    Err(fail!(
        COMMAND_NOT_SUPPORTED,
        "{} is answered by a server only; this member runs inside of one",
        request.name
    ))
}
