//! `cargo xtask soak`: a replica set of real processes under load and faults, for minutes.
//!
//! The faults and the judges are a test of the server, `tests/soak.rs`; this builds it as people run it and
//! says how long.

use crate::Failure;
use crate::process;

/// How long it goes on by default.
pub(crate) const DEFAULT_MINUTES: u64 = 10;

/// Runs the faults for so long. The seed of an earlier run repeats its faults.
pub(crate) fn run(minutes: u64, seed: Option<u64>) -> Result<(), Failure> {
    let mut cargo = process::cargo();
    cargo.args(["test", "--release", "-p", "quorate-server", "--test", "soak", "--"]);
    cargo.arg("--nocapture");
    cargo.env("QUORATE_SOAK_SECONDS", (minutes * 60).to_string());
    if let Some(seed) = seed {
        cargo.env("QUORATE_SOAK_SEED", seed.to_string());
    }
    process::run_or(
        &mut cargo,
        "the set did not keep its promises; the seed above repeats the faults (--seed N)",
    )
}
