//! Runs other programs from the root of the repository.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use quorate_provision::command_line;

use crate::Failure;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Where everything that is built goes: `CARGO_TARGET_DIR`, or `target` at the root.
pub(crate) fn target_directory() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    let mut cargo = program(env::var("CARGO").as_deref().unwrap_or("cargo"));
    if env::var_os("CI").is_some() {
        // A clean checkout is built once: what makes the next build faster makes this one a fifth slower.
        cargo.env("CARGO_INCREMENTAL", "0");
    }
    cargo
}

/// A program, to be run from the root.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    // Cargo tells us about the package xtask; its children would take that for themselves.
    for variable in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME"] {
        command.env_remove(variable);
    }
    command
}

/// From now on, programs that this thread starts get the processor only when no other program wants it.
pub(crate) fn yield_to_others() {
    // `/proc/thread-self` points to `PID/task/TID`. Without it, or without `renice`, they share it evenly.
    let Ok(place) = std::fs::read_link("/proc/thread-self") else { return };
    let Some(thread) = place.file_name() else { return };
    let mut renice = program("renice");
    renice.args(["-n", "19", "-p"]).arg(thread).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = renice.status();
}

/// Runs to the end, output passed through. Anything but success is a failure.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|error| not_started(command, &error))?;
    if status.success() { Ok(()) } else { Err(fail!("{} failed: {status}", command_line(command))) }
}

/// The same, with another text for a program that ran and did not succeed.
pub(crate) fn run_or(command: &mut Command, failure: &str) -> Result<(), Failure> {
    let status = command.status().map_err(|error| not_started(command, &error))?;
    if status.success() { Ok(()) } else { Err(Failure(failure.to_owned())) }
}

/// Runs to the end and returns what it wrote to its standard output.
pub(crate) fn read(command: &mut Command) -> Result<String, Failure> {
    command.stderr(Stdio::inherit());
    let output = command.output().map_err(|error| not_started(command, &error))?;
    fail_if!(!output.status.success() => "{} failed: {}", command_line(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What a program wrote, and whether it succeeded.
pub(crate) struct Transcript {
    pub(crate) succeeded: bool,
    pub(crate) lines: Vec<String>,
}

/// Runs to the end, output passed through *and* returned, both streams line by line.
pub(crate) fn watch(command: &mut Command, echo: bool) -> Result<Transcript, Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| not_started(command, &error))?;
    let stdout = child.stdout.take().map(|stream| collect(stream, echo));
    let stderr = child.stderr.take().map(|stream| collect(stream, echo));
    let mut lines = Vec::new();
    for reader in [stdout, stderr].into_iter().flatten() {
        lines.extend(reader.join().unwrap_or_default());
    }
    let status = child.wait().map_err(|error| not_started(command, &error))?;
    Ok(Transcript { succeeded: status.success(), lines })
}

fn collect(stream: impl Read + Send + 'static, echo: bool) -> thread::JoinHandle<Vec<String>> {
    thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if echo {
                // The reader may be gone; the lines are kept all the same.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            lines.push(line);
        }
        lines
    })
}

fn not_started(command: &Command, error: &std::io::Error) -> Failure {
    fail!("{} could not be run: {error}", command_line(command))
}
