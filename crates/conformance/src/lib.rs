//! Runs the scenarios that MongoDB publishes for drivers against our crates.
//!
//! The scenarios come inside the source package of pymongo, pinned by version and hash, fetched when
//! they are first needed and kept under the target directory (`fetch`). None is stored in this
//! repository and none is changed.
//!
//! A suite is a folder of scenario files and what judges them: a function for the suites that have a
//! format of their own, counted in files and without exception, or the runner of the unified test
//! format (`unified`), counted in tests, of which some are left out for reasons that the table
//! counts. To add a suite, add a line to [`SUITES`]; `tests/published.rs` and `cargo xtask
//! conformance` pick it up from there. `docs/conformance.md` explains every reason.

/// Ends a function with a reason that has a text as of `format!`.
macro_rules! bail {
    ($($text:tt)+) => { return Err(format!($($text)+).into()) };
}

mod auth;
mod connection_monitoring;
mod discovery_and_monitoring;
mod fetch;
mod harness;
mod sdam_monitoring;
mod server_selection;
mod srv_seedlist;
mod unified;
mod uri;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use fetch::{FetchError, PACKAGE, PACKAGE_SHA256, SDIST_VARIABLE, scenario_root};
pub use unified::{Expectation, Skip};

/// Why a scenario fails or cannot be run: an error or a text.
pub type Reason = Box<dyn Error + Send + Sync>;

/// A result that is an error or a text otherwise.
pub(crate) type Result<T, E = Reason> = std::result::Result<T, E>;

/// Puts the name of the step before the reason of its failure.
pub(crate) trait Context<T> {
    fn context(self, tried: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, tried: impl fmt::Display) -> Result<T> {
        self.map_err(|error| format!("{tried}: {error}").into())
    }
}

/// Fails with this reason unless something holds.
pub(crate) fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(reason().into()) }
}

/// What judges the files of a suite: a function, or the runner of the unified format. Of its tests, so many pass or, to show
/// that the runner can tell, fail, and others are left out for counted reasons.
macro_rules! judge {
    (by $check:path) => { Judge::File($check) };
    ($passed:literal pass $(, $reason:ident $count:literal)*) => {
        judge!($passed, Expectation::Pass $(, $reason $count)*)
    };
    ($passed:literal fail $(, $reason:ident $count:literal)*) => {
        judge!($passed, Expectation::Fail $(, $reason $count)*)
    };
    ($passed:literal, $expectation:path $(, $reason:ident $count:literal)*) => {
        Judge::Unified {
            expectation: $expectation,
            passed: $passed,
            skipped: &[$((Skip::$reason, $count)),*],
        }
    };
}

/// The folders of a suite: those given, or the one of its name.
macro_rules! folders {
    ($name:literal) => { &[$name] };
    ($name:literal $($folder:literal)+) => { &[$($folder),+] };
}

macro_rules! suites {
    ($($name:literal $([$($folder:literal),+])? $files:literal files { $($judge:tt)+ })*) => {
        /// Every suite.
        pub const SUITES: &[Suite] = &[$(Suite {
            name: $name,
            folders: folders!($name $($($folder)+)?),
            files: $files,
            judge: judge!($($judge)+),
        }),*];
    };
}

suites! {
    "connection_string" 8 files { by uri::check }
    "uri_options" 11 files { by uri::check }
    "auth" ["auth/legacy"] 1 files { by auth::check }
    "srv_seedlist" 64 files { by srv_seedlist::check }
    "discovery_and_monitoring" [
        "discovery_and_monitoring/errors", "discovery_and_monitoring/load-balanced",
        "discovery_and_monitoring/rs", "discovery_and_monitoring/sharded",
        "discovery_and_monitoring/single"
    ] 178 files { by discovery_and_monitoring::check }
    "sdam_monitoring" 8 files { by sdam_monitoring::check }
    "server_selection" 103 files { by server_selection::check }
    "max_staleness" 32 files { by server_selection::check }
    "connection_monitoring" 32 files { by connection_monitoring::check }
    "discovery_and_monitoring_unified" ["discovery_and_monitoring/unified"] 28 files
        { 34 pass, Sharded 4, LoadBalanced 2, OlderServer 2, JavaScript 3 }
    "server_selection_logging" 5 files { 6 pass, Sharded 2, LoadBalanced 1, NewerServer 2 }
    "connection_logging" 2 files { 5 pass, DeprecatedOption 2 }
    "run_command" 2 files { 18 pass, Sharded 1, LoadBalanced 2 }
    "retryable_reads" 45 files { 309 pass, GridFs 34, Helper 37 }
    "retryable_writes" 35 files { 130 pass, Sharded 1, OlderServer 2, NewerServer 9 }
    "crud" 150 files { 295 pass, OlderServer 74, NewerServer 53, Collation 15 }
    "client_backpressure" ["client-backpressure"] 4 files { 100 pass, NewerServer 3 }
    "command_monitoring" 14 files { 32 pass, OlderServer 2, NewerServer 1 }
    "command_logging" 9 files { 27 pass, LoadBalanced 1, OlderServer 2 }
    "read_write_concern" ["read_write_concern/operation"] 4 files { 10 pass, Helper 1 }
    "causal_consistency" 2 files { 17 pass, NewerServer 1 }
    "sessions" 7 files { 31 pass, OlderServer 3 }
    "versioned_api" ["versioned-api"] 6 files { 38 pass, NewerServer 1, Parameter 1, TestCommand 1 }
    "collection_management" 3 files { 1 pass, CollectionKind 6 }
    "transactions" 44 files { 174 pass, Sharded 79, NewerServer 3, ByAuthor 2 }
    "transactions_convenient_api" ["transactions-convenient-api"] 10 files { 29 pass }
    "change_streams" 9 files { 67 pass, Sharded 1, OlderServer 19, NewerServer 2 }
    "csot_sessions" [
        "csot/change-streams.json", "csot/convenient-transactions.json",
        "csot/sessions-inherit-timeoutMS.json", "csot/sessions-override-operation-timeoutMS.json",
        "csot/sessions-override-timeoutMS.json"
    ] 5 files { 20 pass }
    "unified_test_format" ["unified-test-format/valid-pass"] 34 files
        { 66 pass, Sharded 2, OlderServer 4, Encryption 5, GridFs 5 }
    "unified_test_format_failures" ["unified-test-format/valid-fail"] 20 files
        { 26 fail, Encryption 4, GridFs 1 }
}

/// The suite of a name.
pub fn suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}

/// Whether scenarios that cannot be downloaded are a failure: on CI they are, on a train they are
/// not.
pub fn must_run() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

/// Scenarios and what judges them.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// The folder, or what several have in common.
    pub name: &'static str,
    /// The folders with the files, searched deep, or the files.
    pub folders: &'static [&'static str],
    /// How many files there are, so that none goes missing unnoticed.
    pub files: usize,
    /// What judges them.
    pub judge: Judge,
}

/// What judges the files of a suite.
#[derive(Clone, Copy, Debug)]
pub enum Judge {
    /// A function judges one file: `Err` says which of its cases fail and why.
    File(fn(&ScenarioFile) -> Result<()>),
    /// The files are of the unified test format.
    Unified {
        /// How the tests are to end.
        expectation: Expectation,
        /// How many tests pass.
        passed: usize,
        /// How many tests are left out, by reason.
        skipped: &'static [(Skip, usize)],
    },
}

impl Suite {
    /// Judges every file. Fails if the scenarios cannot be had. Scenarios that fail are in the
    /// report.
    pub fn run(&self) -> Result<SuiteReport, ConformanceError> {
        let mut files = Vec::new();
        for folder in self.folders {
            files.extend(suite_files(folder)?);
        }
        let found = files.len();
        let mut report = match self.judge {
            Judge::File(check) => self.run_files(check, &files),
            Judge::Unified { expectation, passed, skipped } => {
                self.run_unified(files, expectation, passed, skipped)
            }
        };
        if found != self.files {
            let reason = format!("{} files were expected, {found} found", self.files);
            report.failures.push(("the folder".to_owned(), reason));
        }
        Ok(report)
    }

    fn run_files(
        &self,
        check: fn(&ScenarioFile) -> Result<()>,
        files: &[ScenarioFile],
    ) -> SuiteReport {
        let mut report = SuiteReport::new(self.name, files.len());
        for file in files {
            match check(file) {
                Ok(()) => report.passed += 1,
                Err(reason) => report.failures.push((file.name.clone(), reason.to_string())),
            }
        }
        report
    }

    fn run_unified(
        &self,
        files: Vec<ScenarioFile>,
        expectation: Expectation,
        passed: usize,
        skipped: &[(Skip, usize)],
    ) -> SuiteReport {
        let mut report = SuiteReport::new(self.name, 0);
        match unified::run(files, expectation) {
            Ok(tally) => {
                report.total = tally.total();
                report.passed = tally.passed;
                report.failures = tally.failures;
                report.skipped = tally.skipped;
            }
            Err(reason) => report.failures.push(("the runner".to_owned(), reason.to_string())),
        }
        if report.failures.is_empty() {
            let expected = BTreeMap::from_iter(skipped.iter().copied());
            if (report.passed, &report.skipped) != (passed, &expected) || passed == 0 {
                let reason =
                    format!("{passed} tests were expected to pass, and {expected:?} to be skipped");
                report.failures.push((report.to_string(), reason));
            }
        }
        report
    }
}

/// How a suite went, counted in files (a file passes when all its cases do), or in tests if it is of
/// the unified format.
#[derive(Clone, Debug)]
pub struct SuiteReport {
    /// The suite.
    pub folder: &'static str,
    /// How many pass.
    pub passed: usize,
    /// How many there are.
    pub total: usize,
    /// How many were left out, by reason.
    pub skipped: BTreeMap<Skip, usize>,
    /// What does not pass, and why.
    pub failures: Vec<(String, String)>,
}

impl SuiteReport {
    fn new(folder: &'static str, total: usize) -> Self {
        Self { folder, passed: 0, total, skipped: BTreeMap::new(), failures: Vec::new() }
    }
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conformance: {} {}/{}", self.folder, self.passed, self.total)?;
        if self.skipped.is_empty() {
            return Ok(());
        }
        let reasons: Vec<String> =
            self.skipped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        write!(f, ", skipped: {}", reasons.join(", "))
    }
}

/// One published file.
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    /// Its path below the folder of all scenarios.
    pub name: String,
    /// What it holds.
    pub json: serde_json::Value,
}

/// Scenarios could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// Fetching failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A folder or file could not be read.
    #[error("{path} can not be read; remove the folder conformance in the target directory")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file is not JSON.
    #[error("{path} is not JSON; remove the folder conformance in the target directory")]
    Json {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
}

impl ConformanceError {
    /// Whether this may be let pass: the download failed, and [`must_run`] is not set.
    /// Anything else, a wrong hash above all, may not.
    pub fn is_excusable(&self) -> bool {
        matches!(self, Self::Fetch(FetchError::Download(_))) && !must_run()
    }
}

/// The deepest a scenario file lies below its folder.
const MAX_DEPTH: usize = 6;

/// The files of a folder and those below it, ordered by name, or one file. Fetches them first if
/// need be. Fails if they cannot be had or read.
pub fn suite_files(folder: &str) -> Result<Vec<ScenarioFile>, ConformanceError> {
    let root = scenario_root()?;
    let mut paths = Vec::new();
    match root.join(folder) {
        file if file.is_file() => paths.push(file),
        folder => collect(&folder, MAX_DEPTH, &mut paths)?,
    }
    paths.sort();
    paths.into_iter().map(|path| read(&root, path)).collect()
}

fn collect(folder: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> Result<(), ConformanceError> {
    let failed = |source| ConformanceError::Read { path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    Ok(())
}

fn read(root: &Path, path: PathBuf) -> Result<ScenarioFile, ConformanceError> {
    let text = fs::read_to_string(&path)
        .map_err(|source| ConformanceError::Read { path: path.clone(), source })?;
    let json = serde_json::from_str(&text)
        .map_err(|source| ConformanceError::Json { path: path.clone(), source })?;
    let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
    Ok(ScenarioFile { name, json })
}
