//! Runs the scenarios that MongoDB publishes for drivers against our crates.
//!
//! The scenarios come inside the source package of pymongo, pinned by version and hash, fetched when
//! they are first needed and kept under the target directory (`fetch`). None is stored in this
//! repository, none is changed, and there is no list of scenarios to skip.
//!
//! A suite is a folder of scenario files and a function that judges one file. To add one, write a
//! module with such a function and add a line to [`SUITES`]; `tests/published.rs` and
//! `cargo xtask conformance` pick it up from there.

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
mod uri;
mod uri_options;

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use fetch::{FetchError, PACKAGE, PACKAGE_SHA256, SDIST_VARIABLE, scenario_root};

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
    /// The folders with the files, searched deep.
    pub folders: &'static [&'static str],
    /// How many files there are, so that none goes missing unnoticed.
    pub files: usize,
    /// Judges one file: `Err` says which of its cases fail and why.
    pub check: fn(&ScenarioFile) -> Result<(), String>,
}

impl Suite {
    /// A line of the table.
    const fn new(
        name: &'static str,
        folders: &'static [&'static str],
        files: usize,
        check: fn(&ScenarioFile) -> Result<(), String>,
    ) -> Self {
        Self { name, folders, files, check }
    }

    /// Judges every file.
    ///
    /// # Errors
    ///
    /// If the scenarios cannot be had. Scenarios that fail are in the report.
    pub fn run(&self) -> Result<SuiteReport, ConformanceError> {
        let mut report =
            SuiteReport { folder: self.name, passed: 0, total: 0, failures: Vec::new() };
        for folder in self.folders {
            for file in suite_files(folder)? {
                report.total += 1;
                match (self.check)(&file) {
                    Ok(()) => report.passed += 1,
                    Err(reason) => report.failures.push((file.name, reason)),
                }
            }
        }
        if report.total != self.files {
            let reason = format!("{} files were expected, {} found", self.files, report.total);
            report.failures.push(("the folder".to_owned(), reason));
        }
        Ok(report)
    }
}

/// How a suite went, counted in files: a file passes when all its cases do.
#[derive(Clone, Debug)]
pub struct SuiteReport {
    /// The suite.
    pub folder: &'static str,
    /// Files all of whose cases pass.
    pub passed: usize,
    /// Files.
    pub total: usize,
    /// Files that do not pass, and why.
    pub failures: Vec<(String, String)>,
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conformance: {} {}/{}", self.folder, self.passed, self.total)
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
    /// Whether this may be let pass: the download failed, and nobody insists ([`must_run`]).
    /// Anything else, a wrong hash above all, may not.
    pub fn is_excusable(&self) -> bool {
        matches!(self, Self::Fetch(FetchError::Download(_))) && !must_run()
    }
}

/// The deepest a scenario file lies below its folder.
const MAX_DEPTH: usize = 6;

/// The files of a folder and those below it, ordered by name. Fetches them first if need be.
///
/// # Errors
///
/// If they cannot be had or read.
pub fn suite_files(folder: &str) -> Result<Vec<ScenarioFile>, ConformanceError> {
    let root = scenario_root()?;
    let mut paths = Vec::new();
    collect(&root.join(folder), MAX_DEPTH, &mut paths)?;
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
