//! `cargo xtask bench`: our client beside the official driver and a bare loop, in one run.
//!
//! The peers live in a workspace of their own, so that nothing else has to build them.

use crate::Failure;
use crate::process;

/// What can be measured alone.
pub(crate) const MEASURES: [&str; 5] = ["discovery", "moved", "operations", "gap", "watching"];

/// Builds and runs the benchmark.
pub(crate) fn run(measure: Option<&str>) -> Result<(), Failure> {
    let target = process::target_directory().join("benchmarks");
    let mut command = process::cargo();
    command.args(["run", "--release", "--manifest-path", "benchmarks/Cargo.toml", "--target-dir"]);
    command.arg(target).arg("--").args(measure);
    process::run(&mut command)
}
