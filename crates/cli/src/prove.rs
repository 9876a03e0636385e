//! `quorate prove URI`: clients at work, faults, and a checker that judges what the clients were told.
//!
//! ```text
//!   set up ──▶ clients ────────────────▶ final reads ──▶ check ──▶ verdict, history files
//!              └── faults, one at a time ──┘ mend
//! ```
//!
//! Each workload has clients of its own and a history of its own. A history holds every operation with its beginning,
//! its end and what the client learnt; `quorate-checker` judges it without looking at the database. The histories are
//! kept as JSON lines that other checkers read as well.
//!
//! Only sets that this user's `quorate up` started are broken: members are killed, paused and cut off, their disks
//! filled, their clocks moved, their configuration changed. Any other set steps down, after a yes.

mod arguments;
mod client;
mod faults;
mod kinds;
mod reconfiguring;
mod record;
mod transactions;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use quorate_checker::{History, Verdict};
use quorate_client::{Client, ClientOptions, ErrorKind, WriteConcern};
use quorate_connection_string::WriteAcknowledgement;
use quorate_protocol::ReadPreference;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::clock;
use crate::connect;
use crate::screen::{Failure, Outcome, Result, Screen};
use crate::signals;
use crate::up::running::RunningSet;
pub(crate) use arguments::ProveArguments;
use faults::{Allowed, Faults};
pub(crate) use kinds::Kind;
use record::Recorder;
use workload::Site;
pub(crate) use workload::Workload;

/// How long one operation may take before its outcome counts as unknown.
const OPERATION_LIMIT: Duration = Duration::from_secs(10);

/// How long the set may take to answer again after the last fault.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);

/// Runs the workloads, or judges histories that were kept.
pub(crate) fn run(arguments: &ProveArguments, screen: &mut Screen) -> Result<Outcome> {
    if let Some(file) = &arguments.check {
        return check_file(file, arguments, screen);
    }
    let Some(uri) = &arguments.uri else {
        return Err(misuse!("give the connection string of a set, or a history with --check"));
    };
    let parsed = connect::parse(uri)?;
    let change = |options: &mut ClientOptions| {
        options.write_concern = WriteConcern {
            w: Some(WriteAcknowledgement::Majority),
            ..options.write_concern.clone()
        };
        options.read_preference = ReadPreference::PRIMARY;
        options.timeout = Some(OPERATION_LIMIT);
    };
    let work = async |client: &Client| {
        LocalSet::new().run_until(prove(arguments, uri, client, screen)).await
    };
    connect::runtime()?.block_on(connect::with_client(&parsed, change, work))
}

async fn prove(
    arguments: &ProveArguments,
    uri: &str,
    client: &Client,
    screen: &mut Screen,
) -> Result<Outcome> {
    let answered = client.run_command("admin", &bson::rawdoc! { "ping": 1 }).await;
    answered.map_err(|error| match error.kind() {
        // That the time is over does not say why.
        ErrorKind::Timeout(waited) if !client.topology().has_writable_server() => {
            connect::no_primary(client, *waited, uri)
        }
        _ => connect::failed(&error, uri),
    })?;
    let allowed = allowed(arguments, client, screen)?;
    let seed = arguments.seed.unwrap_or_else(|| clock::now().as_nanos());
    let directory =
        arguments.history.clone().unwrap_or_else(|| PathBuf::from(format!("quorate-prove-{seed}")));
    fs::create_dir_all(&directory).map_err(|error| unwritable(&directory, &error))?;
    tell!(screen, "started", {"seed": seed, "history": directory.display().to_string()},
        "seed {seed}; {} clients for each of: {}; histories go to {}",
        arguments.clients, names(&arguments.workloads()), directory.display())?;
    let stop = signals::stop()?;
    let site = Rc::new(Site::new(client.clone(), seed));
    let runs = start(arguments, &site, seed).await.map_err(|error| connect::failed(&error, uri))?;
    let mut faults = Faults::new(client.clone(), allowed, seed);
    let deadline = Instant::now() + arguments.duration();
    tokio::select! {
        () = faults.run(screen) => {}
        () = sleep_until(deadline) => {}
        () = stop => screen.talk_unless_json("stopped early; what there is will be judged"),
    }
    faults.end().await;
    let told = faults.told();
    settle(&site, uri).await?;
    let mut wrong = 0;
    let mut operations = 0;
    for run in runs {
        let workload = run.workload;
        let history = run.finish(&site).await;
        let verdict = workload.check(&history);
        operations += history.operations().len();
        wrong += usize::from(!verdict.is_valid());
        tell(workload, &history, &verdict, &directory, screen)?;
    }
    site.clean_up().await;
    screen.event(
        "verdict",
        json!({
            "valid": wrong == 0, "operations": operations, "faults": told.total(),
            "kinds": told.to_json(),
        }),
    )?;
    if wrong == 0 {
        screen.line(format_args!("no anomaly in {operations} operations under {told}"))?;
        return Ok(Outcome::Fine);
    }
    screen.line(format_args!(
        "{wrong} workloads show what their guarantee does not explain, in {operations} operations under {told}"
    ))?;
    Ok(Outcome::ProblemFound)
}

/// The faults that the set allows: all for a set of our own, a step-down for any other after a yes.
fn allowed(arguments: &ProveArguments, client: &Client, screen: &mut Screen) -> Result<Allowed> {
    let topology = client.topology();
    let Some(primary) = topology.primary() else {
        return Err(misuse!(
            "a proof needs a replica set with a primary, and this is {}; give the connection string of a set",
            topology.topology_type()
        ));
    };
    if arguments.no_faults {
        return Ok(Allowed::Nothing);
    }
    if let Some(ours) = RunningSet::with_member(primary.address().as_str())? {
        let kinds = arguments.faults(ours.data.is_some())?;
        return Ok(Allowed::Everything(Box::new(ours), kinds));
    }
    if let Some(kind) = arguments.fault.iter().find(|kind| **kind != Kind::StepDown) {
        return Err(misuse!(
            "{} was not started by your quorate up, and only steps down: no {} is made; leave out --fault",
            primary.address(),
            kind.name()
        ));
    }
    if arguments.yes {
        return Ok(Allowed::StepDowns);
    }
    screen.talk_unless_json(format_args!(
        "{} was not started by your quorate up: nothing is broken; add --yes to have its primaries step down",
        primary.address()
    ));
    Ok(Allowed::Nothing)
}

/// A workload under way.
struct Run {
    workload: Workload,
    recorder: Rc<Recorder>,
    stop: watch::Sender<bool>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Run {
    /// Ends the clients, reads everything a last time, and gives the history.
    async fn finish(self, site: &Rc<Site>) -> History {
        self.stop.send_replace(true);
        for client in self.clients {
            // A client that panicked leaves its last operation open, which counts as unknown.
            let _ = client.await;
        }
        workload::final_reads(self.workload, site, &self.recorder).await;
        self.recorder.history()
    }
}

async fn start(
    arguments: &ProveArguments,
    site: &Rc<Site>,
    seed: u64,
) -> Result<Vec<Run>, quorate_client::Error> {
    let mut runs = Vec::new();
    for workload in arguments.workloads() {
        workload::set_up(workload, site, arguments.clients).await?;
        let recorder = Rc::new(Recorder::new());
        let (stop, stopped) = watch::channel(false);
        let clients = (0..arguments.clients).map(|number| {
            let client =
                client::Worker::new(workload, number, arguments.clients, seed, &recorder, site);
            tokio::task::spawn_local(client.run(stopped.clone()))
        });
        let clients = clients.collect();
        runs.push(Run { workload, recorder, stop, clients });
    }
    Ok(runs)
}

/// Waits until the set takes writes again.
async fn settle(site: &Site, uri: &str) -> Result<()> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        match site.touch().await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(connect::failed(&error, uri)),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

fn check_file(file: &Path, arguments: &ProveArguments, screen: &mut Screen) -> Result<Outcome> {
    let [workload] = arguments.workloads()[..] else {
        return Err(misuse!("say with --workload what the history is of: one of them"));
    };
    let text = fs::read_to_string(file)
        .map_err(|error| misuse!("cannot read {}: {error}; name a history file", file.display()))?;
    let history = History::from_lines(&text).map_err(|error| Failure::Misuse(error.to_string()))?;
    let mut verdict = workload.check(&history);
    if verdict.operations == 0 && verdict.is_valid() {
        verdict.undecided = Some(format!(
            "the history has no operation of {}; give the --workload that it is of",
            workload.name()
        ));
    }
    screen.event(
        "verdict",
        json!({
            "valid": verdict.is_valid(), "operations": history.operations().len(),
            "undecided": verdict.undecided,
        }),
    )?;
    screen.line(verdict.to_string().trim_end())?;
    Ok(if verdict.is_valid() { Outcome::Fine } else { Outcome::ProblemFound })
}

/// Prints the verdict of a workload, and writes its history and the drawings of its anomalies.
fn tell(
    workload: Workload,
    history: &History,
    verdict: &Verdict,
    directory: &Path,
    screen: &mut Screen,
) -> Result<()> {
    let name = workload.name();
    let file = directory.join(format!("{name}.jsonl"));
    fs::write(&file, history.to_lines()).map_err(|error| unwritable(&file, &error))?;
    for (number, anomaly) in verdict.anomalies.iter().enumerate() {
        let picture = directory.join(format!("{name}-{number}-{}.svg", anomaly.name));
        fs::write(&picture, anomaly.to_svg()).map_err(|error| unwritable(&picture, &error))?;
    }
    let count = record::Count::of(history);
    let anomalies: Vec<_> = verdict.anomalies.iter().map(|anomaly| anomaly.to_string()).collect();
    screen.event(
        "workload",
        json!({
            "workload": name, "promise": workload.promise(), "valid": verdict.is_valid(), "ok": count.ok,
            "failed": count.failed, "unknown": count.unknown, "anomalies": anomalies, "undecided": verdict.undecided,
        }),
    )?;
    let judged = if verdict.is_valid() { "valid" } else { "NOT VALID" };
    screen.line(format_args!(
        "{name}: {judged} ({}): {} acknowledged, {} failed, {} unknown",
        workload.promise(),
        count.ok,
        count.failed,
        count.unknown
    ))?;
    if !verdict.is_valid() {
        screen.line(verdict.to_string().trim_end())?;
        screen.line(format_args!(
            "look at it again: quorate prove --check {} --workload {name}",
            file.display()
        ))?;
    }
    Ok(())
}

fn names(workloads: &[Workload]) -> String {
    workloads.iter().map(|workload| workload.name()).collect::<Vec<_>>().join(", ")
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    problem!("cannot write {}: {error}; choose another place with --history", path.display())
}
