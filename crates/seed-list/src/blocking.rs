//! The same questions for callers without a runtime.
//!
//! The resolver needs tokio, so one is made for the question alone: it runs on the caller's thread,
//! starts none, and is gone when the answer is here.

use quorate_connection_string::ConnectionString;

use crate::{ResolveError, SeedList, SeedListResolver};

/// Asks the name servers that this machine is configured to ask, and waits for the answer. See
/// [`SeedListResolver::resolve`].
///
/// # Errors
///
/// If the machine's configuration cannot be read, DNS does not answer, or its answer must not be
/// believed.
///
/// # Panics
///
/// Inside a tokio runtime, whose thread it would block: use [`SeedListResolver`] there.
pub fn resolve(connection_string: &ConnectionString, seed: u64) -> Result<SeedList, ResolveError> {
    resolve_with(connection_string, seed, SeedListResolver::from_system)
}

/// The same with a resolver of the caller's, made inside the runtime.
///
/// # Errors
///
/// As [`resolve`].
///
/// # Panics
///
/// As [`resolve`].
pub fn resolve_with(
    connection_string: &ConnectionString,
    seed: u64,
    resolver: impl FnOnce() -> Result<SeedListResolver, ResolveError>,
) -> Result<SeedList, ResolveError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| ResolveError::SetUp(error.to_string()))?;
    runtime.block_on(async { resolver()?.resolve(connection_string, seed).await })
}
