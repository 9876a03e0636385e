//! `cargo xtask bench`: our client beside the official driver and a bare loop, in one run; with `set`,
//! a replica set of ours beside a bare replicated log, etcd, Redis and PostgreSQL.
//!
//! The peers live in a workspace of their own, so that nothing else has to build them.

use crate::Failure;
use crate::process;

/// What can be measured alone.
pub(crate) const MEASURES: [&str; 5] = ["discovery", "moved", "operations", "gap", "watching"];

/// Builds and runs the benchmark.
pub(crate) fn run(measure: Option<&str>) -> Result<(), Failure> {
    run_program("quorate-benchmarks", measure.into_iter())
}

/// Builds and runs the benchmark of replica sets.
pub(crate) fn run_set(arguments: &[String]) -> Result<(), Failure> {
    run_program("set", arguments.iter().map(String::as_str))
}

fn run_program<'a>(name: &str, arguments: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    let target = process::target_directory().join("benchmarks");
    let mut command = process::cargo();
    command.args(["run", "--release", "--manifest-path", "benchmarks/Cargo.toml", "--target-dir"]);
    command.arg(target).args(["--bin", name, "--"]).args(arguments);
    process::run(&mut command)
}
