//! `cargo xtask pymongo-suite`: pymongo's own tests against our server, the yardstick for breadth.
//!
//! The tests are those of the source package, pinned by hash and fetched, never stored; the driver
//! is the one from the registry. Each file of tests has a server to itself, so that a fail point or
//! a crash in one does not show in another, and a limited time. [`baseline`] says how many tests
//! must pass; [`expected`] which ones fail and why; [`table`] writes the results into
//! `docs/conformance.md`; [`deployment`] starts what they run against.

mod baseline;
mod deployment;
mod expected;
mod outcomes;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use quorate_provision::{ProvisionError, python, source_package};

use self::baseline::Baseline;
use self::deployment::Deployment;
use self::expected::ExpectedFailures;
use self::outcomes::Outcomes;
use crate::{Failure, process};

const VERSION: &str = "4.19.0";
const SHA256: &str = "3c510dd3c5d9b392d3b33bb5d2a594758acfe8f026fca654253f947ce0af9d40";
const PACKAGES: [&str; 3] =
    ["pymongo[snappy,zstd]==4.19.0", "pytest==8.4.2", "pytest-asyncio==1.2.0"];
const PLUGIN: &str = include_str!("pymongo_suite/outcomes.py");

/// A test that sets an alarm and then fails, as it needs `$where`: the alarm would end the whole file.
const LEFT_OUT: &str = "test/test_client.py::TestClient::test_interrupt_signal";

/// How long one file of tests may take.
const FILE_PATIENCE: Duration = Duration::from_secs(300);
/// How often a running file is asked whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How many files run at a time. Most of a test's time is spent waiting.
const WORKERS: usize = 3;

/// What the tests run against.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Topology {
    /// One server by itself.
    Standalone,
    /// One server by itself that asks for a login.
    Guarded,
    /// One server by itself that asks for a login and speaks TLS only.
    Encrypted,
    /// A replica set of three processes.
    ReplicaSet,
}

impl Topology {
    /// In the order of the table.
    pub(crate) const ALL: [Self; 4] =
        [Self::Standalone, Self::Guarded, Self::Encrypted, Self::ReplicaSet];

    /// As it is written on the command line and in the baseline.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Guarded => "guarded",
            Self::Encrypted => "encrypted",
            Self::ReplicaSet => "replica-set",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topology| topology.name() == name)
    }
}

/// What became of the files, by topology and file.
pub(crate) type Results = BTreeMap<(Topology, String), Outcomes>;

/// What to run.
pub(crate) struct Selection {
    /// Against what.
    pub(crate) topologies: Vec<Topology>,
    /// Files such as `test_bulk.py`; none for those that the baseline has.
    pub(crate) files: Vec<String>,
}

/// Runs the selected files and prints what became of them. `record` says whether to write it into the
/// baseline and the document. Fails if other tests fail than those that are expected to.
pub(crate) fn run(selection: &Selection, record: bool) -> Result<(), Failure> {
    let suite = Suite::prepare(build_program)?;
    let Selection { topologies, files } = selection;
    if let Some(unknown) = files.iter().find(|file| !suite.has(file)) {
        return Err(fail!("pymongo has no file of tests called {unknown}"));
    }
    let named = topologies
        .iter()
        .flat_map(|topology| files.iter().map(move |file| (*topology, file.clone())));
    let jobs = match files.is_empty() {
        true => Baseline::read()?.jobs().filter(|(known, _)| topologies.contains(known)).collect(),
        false => named.collect(),
    };
    let expected = ExpectedFailures::read()?;
    let results =
        suite.run_and_repeat(jobs, |results| expected.surprises(results).into_keys().collect())?;
    print!("{}", table::text(&results));
    println!("the output of each file: {}", suite.folder.join("output").display());
    if record {
        table::write(&Baseline::record(&results)?, &expected)?;
    }
    let complaints = complain(&expected.surprises(&results));
    if complaints.is_empty() {
        return Ok(());
    }
    Err(fail!("not as xtask/pymongo-expected-failures.tsv says:{complaints}"))
}

fn complain(surprises: &BTreeMap<(Topology, String), Vec<String>>) -> String {
    let mut complaints = String::new();
    for ((topology, _), tests) in surprises {
        for test in tests {
            complaints += &format!("\n  {} {test}", topology.name());
        }
    }
    complaints
}

/// Runs the files that CI guards, each a second time if fewer tests pass than the baseline says or
/// others fail than expected, and returns how many passed.
///
/// `build` makes the program; with the command that built the tests it is there already. `prepared` is called once
/// nothing more is built.
pub(crate) fn guard(
    build: impl Fn() -> Result<(), Failure>,
    prepared: impl Fn(),
) -> Result<String, Failure> {
    let suite = Suite::prepare(build)?;
    prepared();
    let baseline = Baseline::read()?;
    let failures = ExpectedFailures::read()?;
    let results = suite.run_and_repeat(baseline.guarded().collect(), |results| {
        let short = baseline.shortfalls(results).map(|(job, _)| job);
        short.chain(failures.surprises(results).into_keys()).collect()
    })?;
    let mut complaints = complain(&failures.surprises(&results));
    for ((topology, file), expected) in baseline.shortfalls(&results) {
        let passed = results.get(&(topology, file.clone())).map_or(0, Outcomes::passed);
        complaints +=
            &format!("\n  {} {file}: {passed} passed, {expected} expected", topology.name());
    }
    fail_if!(!complaints.is_empty() =>
        "pymongo's tests do not go as before; run `cargo xtask pymongo-suite` with the \
         file to see why:{complaints}");
    let passed: u64 = results.values().map(Outcomes::passed).sum();
    Ok(format!("{passed} tests in {} files", results.len()))
}

/// The tests, unpacked, and what runs them.
struct Suite {
    folder: PathBuf,
    python: PathBuf,
    program: PathBuf,
}

impl Suite {
    fn prepare(build: impl Fn() -> Result<(), Failure>) -> Result<Self, Failure> {
        let provision = |error: ProvisionError| Failure(error.to_string());
        let source = source_package("pymongo", VERSION, SHA256).map_err(provision)?;
        let python = python(&PACKAGES).map_err(provision)?;
        let folder = process::target_directory().join("pymongo-suite");
        fs::create_dir_all(folder.join("output")).map_err(|error| disk(&folder, &error))?;
        // Away from the sources of the driver, so that the one from the registry is used.
        let mut copy = process::program("cp");
        copy.arg("--recursive").args(["test", "pyproject.toml"].map(|name| source.join(name)));
        process::run(copy.arg(&folder))?;
        let plugin = folder.join("quorate_outcomes.py");
        fs::write(&plugin, PLUGIN).map_err(|error| disk(&plugin, &error))?;
        build()?;
        let built = process::target_directory().join("debug/quorate");
        // A copy, so that another build may go on.
        let program = folder.join("quorate");
        fs::copy(&built, &program).map_err(|error| disk(&built, &error))?;
        Ok(Self { folder, python, program })
    }

    /// Whether there is a file of tests of this name.
    fn has(&self, file: &str) -> bool {
        file.starts_with("test_") && file.ends_with(".py") && self.tests().join(file).is_file()
    }

    fn tests(&self) -> PathBuf {
        self.folder.join("test")
    }

    /// Runs files, and those that are `wrong` once more: some tests measure time, and a busy machine
    /// is no regression.
    fn run_and_repeat(
        &self,
        jobs: Vec<(Topology, String)>,
        wrong: impl Fn(&Results) -> BTreeSet<(Topology, String)>,
    ) -> Result<Results, Failure> {
        let mut results = self.run(jobs)?;
        let again = wrong(&results);
        results.extend(self.run(again.into_iter().collect())?);
        Ok(results)
    }

    fn run(&self, jobs: Vec<(Topology, String)>) -> Result<Results, Failure> {
        let results = Mutex::new(Results::new());
        let jobs = Mutex::new(jobs.into_iter());
        let next = || jobs.lock().ok()?.next();
        thread::scope(|scope| {
            let worker = || -> Result<(), Failure> {
                while let Some((topology, file)) = next() {
                    let outcomes = self.run_file(topology, &file)?;
                    eprintln!("pymongo: {:<11} {file:<50} {outcomes}", topology.name());
                    if let Ok(mut results) = results.lock() {
                        results.insert((topology, file), outcomes);
                    }
                }
                Ok(())
            };
            let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| Err(fail!("a worker panicked")))
            })
        })?;
        results.into_inner().map_err(|_| fail!("a worker panicked"))
    }

    fn run_file(&self, topology: Topology, file: &str) -> Result<Outcomes, Failure> {
        let deployment = Deployment::start(&self.program, topology, &self.tests())?;
        let output = self.folder.join("output").join(format!("{}-{file}", topology.name()));
        let said = output.with_extension("outcomes");
        let log = fs::File::create(output.with_extension("txt"));
        let log = log.map_err(|error| disk(&output, &error))?;
        // A crash may leave those of an earlier run.
        fs::write(&said, "").map_err(|error| disk(&said, &error))?;
        let mut command = Command::new(&self.python);
        command.current_dir(&self.folder).args(["-m", "pytest", "-p", "quorate_outcomes"]);
        command.args(["-p", "no:cacheprovider", "--quiet", "--tb=short", "-rs"]);
        command.arg("-o").arg("addopts=-m 'default or auth'");
        command.args(["--deselect", LEFT_OUT]);
        command.arg(Path::new("test").join(file));
        let (host, port) = deployment.seed();
        command.env("DB_IP", host).env("DB_PORT", port).env("QUORATE_OUTCOMES", &said);
        command.env("PYTHONPATH", &self.folder).env_remove("COMPRESSORS");
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone().map_err(|error| disk(&output, &error))?);
        let mut child = command
            .stdout(log)
            .spawn()
            .map_err(|error| fail!("pytest could not be run: {error}"))?;
        let started = Instant::now();
        let cut_short = loop {
            match child.try_wait() {
                Ok(Some(_)) => break false,
                Ok(None) if started.elapsed() < FILE_PATIENCE => thread::sleep(POLL_INTERVAL),
                Ok(None) | Err(_) => {
                    // Whatever it says now, it is over.
                    let _ = child.kill();
                    let _ = child.wait();
                    break true;
                }
            }
        };
        let text = fs::read_to_string(&said).map_err(|error| disk(&said, &error))?;
        Ok(Outcomes::read(&text, started.elapsed(), cut_short))
    }
}

pub(crate) fn build_program() -> Result<(), Failure> {
    let arguments = ["build", "--quiet", "--workspace", "--bin", "quorate"];
    process::run(process::cargo().args(arguments))
}

/// Reads a committed list. `parse` gives the line that it cannot read.
fn read_list<T>(path: &Path, parse: impl Fn(&str) -> Result<T, &str>) -> Result<T, Failure> {
    let text = fs::read_to_string(path).map_err(|error| disk(path, &error))?;
    parse(&text).map_err(|line| fail!("{}: cannot be read: {line:?}", path.display()))
}

/// The lines of a list but its comments.
fn parse_lines<T, C: FromIterator<T>>(
    text: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<C, &str> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| parse(line).ok_or(line)).collect()
}

fn disk(path: &Path, error: &std::io::Error) -> Failure {
    fail!("{}: {error}; check the disk there", path.display())
}
