//! `cargo xtask fuzz`: the fuzz targets, on the stable toolchain.
//!
//! libFuzzer needs coverage counters in the code under test. The compiler's own switch for them is
//! unstable, but the LLVM pass behind it can be asked for by name.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::process::{self, Transcript};

/// How long each target runs by default.
pub(crate) const DEFAULT_SECONDS: u64 = 60;

/// What a target may use before it counts as a leak, in megabytes.
const MEMORY_LIMIT_MB: u64 = 2048;

/// What one input may take before it counts as a hang, in seconds.
const INPUT_TIMEOUT_SECONDS: u64 = 10;

const COVERAGE_FLAGS: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];

/// How much the compiler does for the targets.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    /// Little: for seconds of fuzzing, optimising takes longer than it saves.
    Smoke,
    /// All it can.
    Long,
}

impl Effort {
    /// The profile of `fuzz/Cargo.toml`.
    fn profile(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Long => "release",
        }
    }
}

/// Builds the targets, runs those named, or all of them, and returns how many ran.
pub(crate) fn run(effort: Effort, seconds: u64, wanted: &[String]) -> Result<usize, Failure> {
    let all = targets()?;
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        return Err(fail!("there is no fuzz target {unknown:?}; there are: {}", all.join(", ")));
    }
    let chosen = if wanted.is_empty() { all } else { wanted.to_vec() };
    let programs = build(effort, &chosen)?;
    let mut failed = Vec::new();
    for (target, program) in chosen.iter().zip(programs) {
        if let Err(Failure(reason)) = run_target(target, program, seconds) {
            eprintln!("fuzz: {target} FAILED: {reason}");
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        Ok(chosen.len())
    } else {
        Err(fail!("fuzz targets fail: {}", failed.join(", ")))
    }
}

/// The names of the targets, found by their files.
fn targets() -> Result<Vec<String>, Failure> {
    let folder = process::root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder)
        .map_err(|error| fail!("{} can not be read: {error}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    fail_if!(names.is_empty() => "there are no fuzz targets in {}", folder.display());
    Ok(names)
}

fn build(effort: Effort, targets: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let host = host_triple()?;
    let directory = process::target_directory().join("fuzz");
    let mut command = process::cargo();
    command
        .args(["build", "--profile", effort.profile(), "--quiet"])
        .args(["--manifest-path", "fuzz/Cargo.toml"])
        // With a target named, the flags reach our code alone and not the build scripts.
        .args(["--target", &host])
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE_FLAGS.join("\u{1f}"))
        .env_remove("RUSTFLAGS");
    for target in targets {
        command.args(["--bin", target]);
    }
    process::run(&mut command)?;
    let programs = directory.join(host).join(effort.profile());
    Ok(targets.iter().map(|target| programs.join(target)).collect())
}

fn host_triple() -> Result<String, Failure> {
    let version = process::read(process::program("rustc").arg("-vV"))?;
    version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| fail!("rustc -vV names no host"))
}

fn run_target(target: &str, program: PathBuf, seconds: u64) -> Result<(), Failure> {
    let found = process::target_directory().join("fuzz-corpus").join(target);
    let artifacts = process::target_directory().join("fuzz-artifacts").join(target);
    for folder in [&found, &artifacts] {
        fs::create_dir_all(folder)
            .map_err(|error| fail!("{} can not be made: {error}", folder.display()))?;
    }
    // libFuzzer writes what it finds to the first folder and only reads the others, so that the
    // committed inputs stay few.
    let committed = process::root().join("fuzz/corpus").join(target);
    let mut command = process::program(&program.to_string_lossy());
    command.arg(&found);
    if committed.is_dir() {
        command.arg(&committed);
    }
    command.args([
        format!("-max_total_time={seconds}"),
        format!("-rss_limit_mb={MEMORY_LIMIT_MB}"),
        format!("-timeout={INPUT_TIMEOUT_SECONDS}"),
        format!("-artifact_prefix={}/", artifacts.display()),
        "-print_final_stats=1".to_owned(),
    ]);
    let started = Instant::now();
    let transcript = process::watch(&mut command, false)?;
    judge(target, &transcript, started.elapsed())
}

/// How many last lines of a failing target are shown: the panic message and the artifact's path.
const SHOWN_LINES: usize = 40;

fn judge(target: &str, transcript: &Transcript, elapsed: Duration) -> Result<(), Failure> {
    let executions = transcript
        .lines
        .iter()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    if !transcript.succeeded {
        let start = transcript.lines.len().saturating_sub(SHOWN_LINES);
        for line in &transcript.lines[start..] {
            eprintln!("  {line}");
        }
        return Err(fail!("see above; the input is in target/fuzz-artifacts"));
    }
    match executions {
        Some(executions) if executions > 0 => {
            println!("fuzz: {target} {executions} executions in {} s", elapsed.as_secs());
            Ok(())
        }
        _ => Err(fail!("nothing was executed")),
    }
}
