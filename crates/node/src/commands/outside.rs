//! Commands that the shell around a member answers.
//!
//! They are in the table so that their rights are checked with everything else's. A shell that
//! leaves one to the member has no answer for it, and says why here.

use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;

/// A command of a replica set at a member that belongs to none.
pub(super) fn needs_a_set(_: &Request<'_>, _: Command) -> Result<Outcome> {
    Err(fail!(NO_REPLICATION_ENABLED, "not running with --replSet"))
}

/// A command about the process, at a member that is only a value in one.
pub(super) fn needs_a_process(request: &Request<'_>, _: Command) -> Result<Outcome> {
    Err(fail!(
        COMMAND_NOT_SUPPORTED,
        "{} is answered by a server only; this member runs inside of one",
        request.name
    ))
}
