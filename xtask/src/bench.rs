//! `cargo xtask bench`: ours beside its peers, in one run.
//!
//! Alone, our client beside the official driver and a bare loop; with `set`, a replica set of ours
//! beside a bare replicated log, etcd, Redis and PostgreSQL; with `server`, our server beside SQLite,
//! PostgreSQL and Redis; with `up`, the program itself. The peers live in a workspace of their own, so
//! that nothing else has to build them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use crate::Failure;
use crate::process;

/// What of the client can be measured alone.
pub(crate) const MEASURES: [&str; 6] =
    ["discovery", "moved", "operations", "gap", "watching", "fleet"];

/// How often a set is started.
const STARTS: usize = 15;

/// How many sets are started at once.
const AT_ONCE: usize = 20;

/// Builds and runs the benchmark of the client.
pub(crate) fn run(measure: Option<&str>) -> Result<(), Failure> {
    let measure: Vec<String> = measure.into_iter().map(str::to_owned).collect();
    run_program("quorate-benchmarks", &measure)
}

/// Builds and runs a program of the benchmarks.
pub(crate) fn run_program(name: &str, arguments: &[String]) -> Result<(), Failure> {
    let target = process::target_directory().join("benchmarks");
    let mut command = process::cargo();
    command.args(["run", "--release", "--manifest-path", "benchmarks/Cargo.toml", "--target-dir"]);
    let peers = if name == "quorate-benchmarks" { "client" } else { name };
    command.arg(target).args(["--bin", name, "--features", peers, "--"]).args(arguments);
    process::run(&mut command)
}

/// Starts sets of three members, and prints how long each took until a majority write went through.
pub(crate) fn up() -> Result<(), Failure> {
    process::run(process::cargo().args(["build", "--release", "--bin", "quorate"]))?;
    let program = process::target_directory().join("release/quorate");
    let data = process::target_directory().join("bench-up");
    for (place, on_disk) in [("in memory", false), ("on disk", true)] {
        let mut times = Vec::new();
        for start in 0..STARTS {
            let mut command = process::program(&program.to_string_lossy());
            command.args(["up", "--json", "--port", "0"]);
            match on_disk {
                true => command.arg("--data").arg(data.join(start.to_string())),
                false => command.arg("--memory"),
            };
            times.push(ready_after(&mut command)?);
        }
        times.sort_unstable();
        println!(
            "up, three members {place}: ready after {} ms (median of {STARTS}, {} to {})",
            times[STARTS / 2],
            times[0],
            times[STARTS - 1]
        );
    }
    // Left behind by an error it does no harm: the next run takes other ports and reopens it.
    let _ = std::fs::remove_dir_all(data);
    up_at_once(&program)?;
    fixtures(&program)
}

/// The sets that tests get from the Rust crate, the pytest plugin and the npm package.
fn fixtures(program: &Path) -> Result<(), Failure> {
    let numbers = [STARTS.to_string(), AT_ONCE.to_string()];
    let mut rust = process::cargo();
    rust.args([
        "run", "--quiet", "--release", "--package", "quorate-testing", "--example", "start", "--",
    ]);
    let mut python = process::program("python3");
    python.arg("benchmarks/fixtures/start.py").env("PYTHONPATH", "packages/python");
    // Where Node.js looks for a package of this name.
    let modules = process::target_directory().join("bench-up-modules");
    std::fs::create_dir_all(&modules)
        .and_then(|()| std::fs::canonicalize("packages/npm"))
        .and_then(|package| {
            match std::os::unix::fs::symlink(package, modules.join("quorate-testing")) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        })
        .map_err(|error| fail!("{}: {error}", modules.display()))?;
    let mut node = process::program("node");
    node.arg("benchmarks/fixtures/start.js").env("NODE_PATH", &modules);
    for (name, mut fixture) in
        [("Rust crate", rust), ("pytest plugin", python), ("npm package", node)]
    {
        let told = process::read(fixture.args(&numbers).env("QUORATE_BIN", program))?;
        let times: Vec<&str> = told.split_whitespace().collect();
        let [ready, ready_low, ready_high, ended, ended_low, ended_high, all] = times[..] else {
            return Err(fail!("{name}: it printed {told:?} in place of seven numbers"));
        };
        println!(
            "{name}: ready after {ready} ms (median of {STARTS}, {ready_low} to {ready_high}), ended after {ended} ms \
             ({ended_low} to {ended_high}); {AT_ONCE} sets at once: the last is ready after {all} ms"
        );
    }
    Ok(())
}

/// As many test programs at once as a busy machine has, each with a set of its own.
fn up_at_once(program: &Path) -> Result<(), Failure> {
    let began = Instant::now();
    let mut sets = Vec::new();
    for _ in 0..AT_ONCE {
        let mut command = process::program(&program.to_string_lossy());
        sets.push(Starting::begin(command.args(["up", "--json", "--port", "0", "--memory"]))?);
    }
    let mut times: Vec<u64> = sets.iter_mut().filter_map(Starting::ready_after).collect();
    let all = began.elapsed();
    for set in sets {
        set.stop()?;
    }
    times.sort_unstable();
    fail_if!(times.len() < AT_ONCE => "{} of {AT_ONCE} sets became ready", times.len());
    println!(
        "up, {AT_ONCE} sets of three members at once: the last is ready after {} ms, a set {} ms after its start \
         (median)",
        all.as_millis(),
        times[AT_ONCE / 2]
    );
    Ok(())
}

/// Runs `up` until it is ready, stops it, and returns the milliseconds that it told.
fn ready_after(command: &mut Command) -> Result<u64, Failure> {
    let mut starting = Starting::begin(command)?;
    let told = starting.ready_after();
    starting.stop()?;
    told.ok_or_else(|| fail!("quorate up: it was never ready"))
}

/// An `up` that is on its way.
struct Starting {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Starting {
    fn begin(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| fail!("quorate up: {error}"))?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Self { child, output })
    }

    /// Waits until it is ready, and returns the milliseconds that it told.
    fn ready_after(&mut self) -> Option<u64> {
        let lines = self.output.as_mut()?.lines().map_while(Result::ok);
        lines.filter_map(|line| elapsed_ms(&line)).next()
    }

    /// It stops its members when it is asked to, and only then.
    fn stop(mut self) -> Result<(), Failure> {
        let id = self.child.id().to_string();
        process::run(process::program("kill").args(["-TERM", &id]))?;
        self.child.wait().map_err(|error| fail!("quorate up: {error}"))?;
        Ok(())
    }
}

/// The number after `"elapsed_ms":`.
fn elapsed_ms(line: &str) -> Option<u64> {
    let (_, number) = line.split_once("\"elapsed_ms\":")?;
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_read_from_the_event() {
        assert_eq!(elapsed_ms(r#"{"event":"ready","elapsed_ms":17,"uri":"x"}"#), Some(17));
        assert_eq!(elapsed_ms(r#"{"event":"member","id":0}"#), None);
    }
}
