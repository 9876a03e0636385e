//! Runs published suites of the unified test format: our client against our servers.
//!
//! Follows the Unified Test Format specification. A test runs on every deployment of ours that its
//! requirements admit (a server by itself, a replica set, and both with users that log in), and
//! passes if it passes on each of them. What the runner does not know (an operation, an argument,
//! an entity, an assertion) fails the test; what it leaves out is counted by reason.

mod arguments;
mod deployment;
mod entities;
mod events;
mod logs;
mod matching;
mod operations;
mod outcome;
mod requirements;
mod runner;
mod special;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::{Bson, Document};
use tokio::time::timeout;

use quorate_protocol::Lock;

use crate::{Context, Result, ScenarioFile};
use deployment::{Deployment, Shape, Version};
pub use requirements::Skip;
use requirements::{admits, missing_feature};

/// The newest version of the format that is understood.
const SCHEMA_VERSION: Version = Version([1, 28, 0]);

/// How many files are judged at once. Most of the time goes by waiting for monitors.
const LANES: usize = 8;

/// Threads of the runtime: servers block theirs while they write.
const WORKERS: usize = 4;

/// How long one test may take.
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// How often a test is run whose own limits are a quarter of a second of real time: what it claims
/// must hold once, for a machine that is busy with other things can miss them.
const TIGHT_ATTEMPTS: usize = 4;

/// How the tests of a suite went.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) skipped: BTreeMap<Skip, usize>,
    pub(crate) failures: Vec<(String, String)>,
}

impl Tally {
    pub(crate) fn total(&self) -> usize {
        self.passed + self.skipped.values().sum::<usize>() + self.failures.len()
    }

    fn add(&mut self, name: String, verdict: Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Skipped(reason) => *self.skipped.entry(reason).or_default() += 1,
            Verdict::Failed(reason) => self.failures.push((name, reason)),
        }
    }
}

enum Verdict {
    Passed,
    Skipped(Skip),
    Failed(String),
}

/// Whether the tests of a suite are expected to pass or to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// Every test passes.
    Pass,
    /// Every test fails: they show that a runner can tell.
    Fail,
}

/// Runs the tests of these files.
pub(crate) fn run(files: Vec<ScenarioFile>, expectation: Expectation) -> Result<Tally> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let outcome = runtime.block_on(run_lanes(files, expectation));
    runtime.shutdown_background();
    outcome
}

async fn run_lanes(files: Vec<ScenarioFile>, expectation: Expectation) -> Result<Tally> {
    let work =
        Arc::new(Work { files, next: AtomicUsize::new(0), tally: Lock::default(), expectation });
    let lanes: Vec<_> = (0..LANES.min(work.files.len()))
        .map(|_| tokio::spawn(Arc::clone(&work).run_lane()))
        .collect();
    for lane in lanes {
        lane.await??;
    }
    let mut tally = work.tally.lock();
    Ok(std::mem::take(&mut tally))
}

/// What the lanes share.
struct Work {
    files: Vec<ScenarioFile>,
    next: AtomicUsize,
    tally: Lock<Tally>,
    expectation: Expectation,
}

impl Work {
    async fn run_lane(self: Arc<Self>) -> Result<()> {
        let mut deployments = Vec::new();
        for shape in Shape::ALL.into_iter().filter(|shape| !shape.authentication) {
            deployments.push(Arc::new(Deployment::start(shape).await?));
        }
        while let Some(file) = self.files.get(self.next.fetch_add(1, Ordering::SeqCst)) {
            let verdicts = self.judge_file(&mut deployments, file).await?;
            let mut tally = self.tally.lock();
            for (name, verdict) in verdicts {
                tally.add(format!("{}: {name}", file.name), verdict);
            }
        }
        for deployment in deployments {
            let deployment = Arc::into_inner(deployment).ok_or("a deployment is still in use")?;
            deployment.stop().await?;
        }
        Ok(())
    }

    async fn judge_file(
        &self,
        deployments: &mut Vec<Arc<Deployment>>,
        file: &ScenarioFile,
    ) -> Result<Vec<(String, Verdict)>> {
        let Bson::Document(content) = Bson::try_from(file.json.clone()).context(&file.name)? else {
            bail!("{} holds no document", file.name);
        };
        // Servers whose users log in are started for the first file that asks for them.
        if content.to_string().contains("\"auth\": true") && deployments.len() < Shape::ALL.len() {
            for shape in Shape::ALL.into_iter().filter(|shape| shape.authentication) {
                deployments.push(Arc::new(Deployment::start(shape).await?));
            }
        }
        let tests = content.get_array("tests")?;
        let mut verdicts = Vec::new();
        for test in tests {
            let test = test.as_document().ok_or("a test is no document")?;
            let name = test.get_str("description").unwrap_or("without description").to_owned();
            let verdict = self.judge_test(deployments, &content, test).await;
            let verdict = match (self.expectation, verdict) {
                (Expectation::Fail, Verdict::Passed) => {
                    Verdict::Failed("it passes and should fail".to_owned())
                }
                (Expectation::Fail, Verdict::Failed(_)) => Verdict::Passed,
                (_, verdict) => verdict,
            };
            verdicts.push((name, verdict));
        }
        Ok(verdicts)
    }

    async fn judge_test(
        &self,
        deployments: &[Arc<Deployment>],
        file: &Document,
        test: &Document,
    ) -> Verdict {
        if let Err(reason) = check_file(file) {
            return Verdict::Failed(reason.to_string());
        }
        let mut skips = Vec::new();
        let mut ran = false;
        for deployment in deployments {
            match admitted(deployment, file, test) {
                Err(reason) => return Verdict::Failed(reason.to_string()),
                Ok(Err(skip)) => skips.push(skip),
                Ok(Ok(())) => {
                    if let Some(skip) = missing_feature(file, test) {
                        return Verdict::Skipped(skip);
                    }
                    ran = true;
                    if let Err(reason) = attempt(deployment, file, test).await {
                        let shape = deployment.shape.name();
                        return Verdict::Failed(format!("on a {shape}: {reason}"));
                    }
                }
            }
        }
        match skips.into_iter().max_by_key(|skip| requirements::nearness(*skip)) {
            Some(skip) if !ran => Verdict::Skipped(skip),
            _ => Verdict::Passed,
        }
    }
}

/// Runs a test, again if it has limits that a busy machine does not keep.
async fn attempt(deployment: &Arc<Deployment>, file: &Document, test: &Document) -> Result<()> {
    let attempts = if requirements::has_tight_limit(file) { TIGHT_ATTEMPTS } else { 1 };
    let mut outcome = Ok(());
    for _ in 0..attempts {
        let run = timeout(TEST_LIMIT, runner::run(deployment, file, test)).await;
        outcome = run.unwrap_or_else(|_| Err("it does not end".into()));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn admitted(deployment: &Deployment, file: &Document, test: &Document) -> Result<Result<(), Skip>> {
    // Tests that say nothing about users run without logins.
    let asks = [file, test].iter().any(|part| {
        part.get("runOnRequirements").is_some_and(|all| all.to_string().contains("\"auth\""))
    });
    if deployment.shape.authentication && !asks {
        return Ok(Err(Skip::Login));
    }
    match admits(deployment, file.get("runOnRequirements"))? {
        Ok(()) => admits(deployment, test.get("runOnRequirements")),
        refused => Ok(refused),
    }
}

/// Whether a file is of a version and shape that is understood.
fn check_file(file: &Document) -> Result<()> {
    const KNOWN: [&str; 7] = [
        "description", "schemaVersion", "runOnRequirements", "createEntities", "initialData",
        "tests", "_yamlAnchors",
    ];
    if let Some(key) = file.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        bail!("unknown part of a file: {key}");
    }
    let version = file.get_str("schemaVersion")?;
    let version = Version::parse(version)?;
    if version.0[0] != SCHEMA_VERSION.0[0] || version > SCHEMA_VERSION {
        bail!("the schema version {:?} is not understood", version.0);
    }
    Ok(())
}
