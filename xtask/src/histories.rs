//! `cargo xtask histories`: transactions through pymongo while primaries are killed around commits, for minutes.
//!
//! The kills and the judges are a test of the server, `tests/histories.rs`; this builds it as people run it and
//! says how long.

use crate::Failure;
use crate::process;

/// How long it goes on by default.
pub(crate) const DEFAULT_MINUTES: u64 = 10;

/// Lets each of the two workloads go on for so long.
pub(crate) fn run(minutes: u64) -> Result<(), Failure> {
    let mut cargo = process::cargo();
    cargo.args(["test", "--release", "-p", "quorate-server", "--test", "histories", "--"]);
    cargo.args(["--nocapture", "--test-threads", "1"]);
    cargo.env("QUORATE_HISTORIES_SECONDS", (minutes * 60).to_string());
    process::run_or(
        &mut cargo,
        "a history is not what the guarantees allow; the report above names the anomaly and holds the history",
    )
}
