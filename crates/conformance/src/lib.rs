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

mod auth;
mod connection_monitoring;
mod connection_string;
mod discovery_and_monitoring;
mod fetch;
mod harness;
mod max_staleness;
mod sdam_monitoring;
mod server_selection;
mod srv_seedlist;
mod unified;
mod uri;
mod uri_options;

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use fetch::{FetchError, PACKAGE, PACKAGE_SHA256, SDIST_VARIABLE, scenario_root};
pub use unified::{Expectation, Skip};

/// Every suite.
pub const SUITES: &[Suite] = &[
    Suite::new("connection_string", &["connection_string"], 8, connection_string::check),
    Suite::new("uri_options", &["uri_options"], 11, uri_options::check),
    Suite::new("auth", &["auth/legacy"], 1, auth::check),
    Suite::new("srv_seedlist", &["srv_seedlist"], 64, srv_seedlist::check),
    Suite::new(
        "discovery_and_monitoring",
        &[
            "discovery_and_monitoring/errors",
            "discovery_and_monitoring/load-balanced",
            "discovery_and_monitoring/rs",
            "discovery_and_monitoring/sharded",
            "discovery_and_monitoring/single",
        ],
        178,
        discovery_and_monitoring::check,
    ),
    Suite::new("sdam_monitoring", &["sdam_monitoring"], 8, sdam_monitoring::check),
    Suite::new("server_selection", &["server_selection"], 103, server_selection::check),
    Suite::new("max_staleness", &["max_staleness"], 32, max_staleness::check),
    Suite::new(
        "connection_monitoring",
        &["connection_monitoring"],
        32,
        connection_monitoring::check,
    ),
    Suite::unified(
        "discovery_and_monitoring_unified",
        &["discovery_and_monitoring/unified"],
        28,
        34,
        &[
            (Skip::Sharded, 4),
            (Skip::LoadBalanced, 2),
            (Skip::OlderServer, 2),
            (Skip::JavaScript, 3),
        ],
    ),
    Suite::unified(
        "server_selection_logging",
        &["server_selection_logging"],
        5,
        6,
        &[(Skip::Sharded, 2), (Skip::LoadBalanced, 1), (Skip::NewerServer, 2)],
    ),
    Suite::unified(
        "connection_logging",
        &["connection_logging"],
        2,
        5,
        &[(Skip::DeprecatedOption, 2)],
    ),
    Suite::unified(
        "run_command",
        &["run_command"],
        2,
        18,
        &[(Skip::Sharded, 1), (Skip::LoadBalanced, 2)],
    ),
    Suite::unified(
        "retryable_reads",
        &["retryable_reads"],
        45,
        309,
        &[(Skip::GridFs, 34), (Skip::Helper, 37)],
    ),
    Suite::unified(
        "retryable_writes",
        &["retryable_writes"],
        35,
        130,
        &[(Skip::Sharded, 1), (Skip::OlderServer, 2), (Skip::NewerServer, 9)],
    ),
    Suite::unified(
        "crud",
        &["crud"],
        150,
        295,
        &[(Skip::OlderServer, 74), (Skip::NewerServer, 53), (Skip::Collation, 15)],
    ),
    Suite::unified(
        "client_backpressure",
        &["client-backpressure"],
        4,
        100,
        &[(Skip::NewerServer, 3)],
    ),
    Suite::unified(
        "command_monitoring",
        &["command_monitoring"],
        14,
        32,
        &[(Skip::OlderServer, 2), (Skip::NewerServer, 1)],
    ),
    Suite::unified(
        "command_logging",
        &["command_logging"],
        9,
        27,
        &[(Skip::LoadBalanced, 1), (Skip::OlderServer, 2)],
    ),
    Suite::unified(
        "read_write_concern",
        &["read_write_concern/operation"],
        4,
        10,
        &[(Skip::Helper, 1)],
    ),
    Suite::unified("causal_consistency", &["causal_consistency"], 2, 17, &[(Skip::NewerServer, 1)]),
    Suite::unified("sessions", &["sessions"], 7, 31, &[(Skip::OlderServer, 3)]),
    Suite::unified(
        "versioned_api",
        &["versioned-api"],
        6,
        38,
        &[(Skip::NewerServer, 1), (Skip::Parameter, 1), (Skip::TestCommand, 1)],
    ),
    Suite::unified(
        "collection_management",
        &["collection_management"],
        3,
        1,
        &[(Skip::CollectionKind, 6)],
    ),
    Suite::unified(
        "transactions",
        &["transactions"],
        44,
        174,
        &[(Skip::Sharded, 79), (Skip::NewerServer, 3), (Skip::ByAuthor, 2)],
    ),
    Suite::unified("transactions_convenient_api", &["transactions-convenient-api"], 10, 29, &[]),
    Suite::unified(
        "change_streams",
        &["change_streams"],
        9,
        67,
        &[(Skip::Sharded, 1), (Skip::OlderServer, 19), (Skip::NewerServer, 2)],
    ),
    Suite::unified(
        "csot_sessions",
        &[
            "csot/change-streams.json",
            "csot/convenient-transactions.json",
            "csot/sessions-inherit-timeoutMS.json",
            "csot/sessions-override-operation-timeoutMS.json",
            "csot/sessions-override-timeoutMS.json",
        ],
        5,
        20,
        &[],
    ),
    Suite::unified(
        "unified_test_format",
        &["unified-test-format/valid-pass"],
        34,
        66,
        &[(Skip::Sharded, 2), (Skip::OlderServer, 4), (Skip::Encryption, 5), (Skip::GridFs, 5)],
    ),
    Suite {
        name: "unified_test_format_failures",
        folders: &["unified-test-format/valid-fail"],
        files: 20,
        judge: Judge::Unified {
            expectation: Expectation::Fail,
            passed: 26,
            skipped: &[(Skip::Encryption, 4), (Skip::GridFs, 1)],
        },
    },
];

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
    File(fn(&ScenarioFile) -> Result<(), String>),
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
    /// A line of the table.
    const fn new(
        name: &'static str,
        folders: &'static [&'static str],
        files: usize,
        check: fn(&ScenarioFile) -> Result<(), String>,
    ) -> Self {
        Self { name, folders, files, judge: Judge::File(check) }
    }

    /// A line of the table for tests of the unified format.
    const fn unified(
        name: &'static str,
        folders: &'static [&'static str],
        files: usize,
        passed: usize,
        skipped: &'static [(Skip, usize)],
    ) -> Self {
        let judge = Judge::Unified { expectation: Expectation::Pass, passed, skipped };
        Self { name, folders, files, judge }
    }

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
        check: fn(&ScenarioFile) -> Result<(), String>,
        files: &[ScenarioFile],
    ) -> SuiteReport {
        let mut report = SuiteReport::new(self.name, files.len());
        for file in files {
            match check(file) {
                Ok(()) => report.passed += 1,
                Err(reason) => report.failures.push((file.name.clone(), reason)),
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
            Err(reason) => report.failures.push(("the runner".to_owned(), reason)),
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
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not JSON.
    #[error("{path} is not JSON; remove the folder conformance in the target directory")]
    Json {
        /// Which.
        path: PathBuf,
        /// Why.
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
