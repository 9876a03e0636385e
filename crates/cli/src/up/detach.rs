//! `quorate up --detach`: the same command again, in the background.
//!
//! The background process is the keeper: it starts the members, reports those that die into its log,
//! and stops them when `quorate down` asks. This process only waits until the set is ready, repeats
//! what is said until then, and ends. A set whose keeper dies ends as well: its members hold on to it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{READY_WITHIN, running, tell_member, tell_ready, tell_taken};
use crate::arguments::UpArguments;
use crate::remedy;
use crate::screen::{Failure, Outcome, Result, Screen};

/// How often the log is read.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How much longer than the keeper itself we wait for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts a keeper and waits until its set is ready.
pub(super) fn start(arguments: &UpArguments, screen: &mut Screen) -> Result<Outcome> {
    let log = running::directory()?.join(format!("up-{}.log", std::process::id()));
    let failed = |error: std::io::Error| {
        problem!("cannot start in the background: {error}; try without --detach to see more")
    };
    let written = File::create(&log).map_err(failed)?;
    let errors = written.try_clone().map_err(failed)?;
    let mut keeper = Command::new(std::env::current_exe().map_err(failed)?)
        .args(again(arguments, &log))
        .stdin(Stdio::null())
        .stdout(written)
        .stderr(errors)
        // Ctrl-C and the end of this terminal are not meant for it.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let outcome = wait(&mut keeper, arguments, &log, screen);
    if outcome.is_err() {
        // Not ready, so of no use. Its members end with it.
        let _ = keeper.kill();
        let _ = keeper.wait();
        let _ = std::fs::remove_file(&log);
    }
    outcome
}

fn wait(
    keeper: &mut Child,
    arguments: &UpArguments,
    log: &Path,
    screen: &mut Screen,
) -> Result<Outcome> {
    let mut lines = BufReader::new(File::open(log)?);
    let deadline = Instant::now() + READY_WITHIN + PATIENCE;
    let mut line = String::new();
    let mut reasons = Vec::new();
    loop {
        // A line that is not whole yet stays in the buffer until it is.
        if lines.read_line(&mut line)? > 0 && line.ends_with('\n') {
            if let Some(uri) = repeat(&line, &mut reasons, screen)? {
                return told(keeper.id(), arguments, &uri, log, screen);
            }
            line.clear();
        } else if let Ok(Some(status)) = keeper.try_wait() {
            return Err(problem!(
                "the set ended before it was ready ({status}); try without --detach to see more"
            ));
        } else if Instant::now() > deadline {
            return Err(super::too_slow());
        } else {
            sleep(LOOK_EVERY);
        }
    }
}

/// Says again what the keeper said. The connection string if the set is ready. Lines that are no events are kept
/// in `reasons` until the keeper fails.
fn repeat(line: &str, reasons: &mut Vec<String>, screen: &mut Screen) -> Result<Option<String>> {
    let Ok(event) = serde_json::from_str::<Value>(line) else {
        reasons.push(line.trim_end().to_owned());
        return Ok(None);
    };
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    match text("event") {
        "member" => {
            let pid = event["pid"].as_u64().unwrap_or_default();
            tell_member(event["id"].as_u64().unwrap_or_default(), text("host"), pid, screen)?;
        }
        "port_taken" => tell_taken(text("ports"), screen)?,
        "page" => crate::web::tell_page(text("url"), screen)?,
        "ready" => {
            let elapsed_ms = event["elapsed_ms"].as_u64().unwrap_or_default();
            tell_ready(text("uri"), elapsed_ms, false, screen)?;
            return Ok(Some(text("uri").to_owned()));
        }
        "error" => {
            let message = text("message").to_owned();
            // The keeper writes its own failure twice: as talk, and as this event.
            let own = format!("error: {message}");
            for reason in reasons.iter().filter(|reason| !own.contains(reason.as_str())) {
                screen.talk(reason);
            }
            return Err(Failure::Problem(message));
        }
        _ => {}
    }
    Ok(None)
}

fn told(
    keeper: u32,
    arguments: &UpArguments,
    uri: &str,
    log: &Path,
    screen: &mut Screen,
) -> Result<Outcome> {
    let stop = match &arguments.data {
        Some(data) => remedy::stop_set(data),
        // Another set may have the same name; none has the same port.
        None => match running::first_port(uri) {
            Some(port) => format!("quorate down --port {port}"),
            None => "quorate down".to_owned(),
        },
    };
    let log = log.display().to_string();
    tell!(screen, "detached", {"pid": keeper, "stop": stop, "log": log},
        "the set goes on in the background, and tells what happens in {log}; stop it with: {stop}")?;
    Ok(Outcome::Fine)
}

/// The arguments of the keeper.
fn again(arguments: &UpArguments, log: &Path) -> Vec<std::ffi::OsString> {
    let mut again: Vec<std::ffi::OsString> = vec!["up".into(), "--json".into()];
    let mut option = |name: &str, value: std::ffi::OsString| {
        again.push(name.into());
        again.push(value);
    };
    option("--keeper-log", log.into());
    option("--members", arguments.members.to_string().into());
    option("--arbiters", arguments.arbiters.to_string().into());
    if let Some(port) = arguments.port {
        option("--port", port.to_string().into());
    }
    if let Some(name) = &arguments.name {
        option("--name", name.into());
    }
    if let Some(timeout) = arguments.election_timeout {
        option("--election-timeout", format!("{}ms", timeout.as_millis()).into());
    }
    if let Some(bytes) = arguments.oplog_size {
        option("--oplog-size", format!("{}MB", bytes >> 20).into());
    }
    if let Some(data) = &arguments.data {
        option("--data", data.into());
    }
    if let Some(web) = arguments.web {
        option("--web", web.to_string().into());
    }
    let flags =
        [("--workload", arguments.workload), ("--auth", arguments.auth), ("--tls", arguments.tls)];
    again.extend(flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag.into()));
    again
}

/// Where the data of a set is, the same from every directory.
pub(super) fn absolute(data: &Option<PathBuf>) -> Option<PathBuf> {
    data.as_ref().map(|data| data.canonicalize().unwrap_or_else(|_| data.clone()))
}
