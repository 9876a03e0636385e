//! `quorate down`: stops sets that `quorate up` started and that still run.
//!
//! The process of `quorate up` is asked to stop its members; if it is gone, each member is asked. A
//! process that does not stop in time is killed, and the output says so. A process is signalled only if
//! its start time is the recorded one, so a file that a crash left behind does no harm.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::arguments::DownArguments;
use crate::screen::{Failure, Outcome, Result, Screen, WARNING};
use crate::up::running::{RunningMember, RunningSet};
use crate::words::listed;

/// How long a set may take to stop before it is killed: longer than its keeper gives each member.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// How often processes are polled. They are not our children, so the system does not tell us.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Stops the named sets, or the only running one.
pub(crate) fn run(arguments: &DownArguments, screen: &mut Screen) -> Result<Outcome> {
    let running = RunningSet::all()?;
    let chosen = choose(arguments, running)?;
    if chosen.is_empty() {
        tell!(screen, "nothing_runs", {}, "no set of yours is running")?;
        return Ok(Outcome::Fine);
    }
    let mut outcome = Outcome::Fine;
    for set in &chosen {
        if stop(set, screen)? == Outcome::ProblemFound {
            outcome = Outcome::ProblemFound;
        }
    }
    Ok(outcome)
}

fn choose(arguments: &DownArguments, running: Vec<RunningSet>) -> Result<Vec<RunningSet>> {
    let is_named = arguments.name.is_some() || arguments.data.is_some() || arguments.port.is_some();
    let data = arguments.data.as_ref().map(|data| data.canonicalize().unwrap_or(data.clone()));
    let wanted = |set: &RunningSet| {
        arguments.name.as_ref().is_none_or(|name| set.name == *name)
            && data.as_ref().is_none_or(|data| set.data.as_ref() == Some(data))
            && arguments.port.is_none_or(|port| has_port(set, port))
    };
    let (chosen, others): (Vec<_>, Vec<_>) = running.into_iter().partition(wanted);
    match chosen.len() {
        0 if is_named => Err(Failure::Problem(match others.is_empty() {
            true => "no set of yours is running; start one with quorate up --detach".to_owned(),
            false => format!("no such set is running; these are:{}", described(&others)),
        })),
        0 | 1 => Ok(chosen),
        _ if arguments.all => Ok(chosen),
        _ => Err(misuse!(
            "several sets are running; choose one of these, or stop them all with --all:{}",
            described(&chosen)
        )),
    }
}

fn has_port(set: &RunningSet, port: u16) -> bool {
    set.hosts().any(|host| host.rsplit(':').next().and_then(|port| port.parse().ok()) == Some(port))
}

/// A line for each set: what it is, and what stops it.
fn described(sets: &[RunningSet]) -> String {
    let lines = sets
        .iter()
        .map(|set| format!("\n  {} at {}: {}", set.name, listed(set.hosts()), set.stop_command()));
    lines.collect()
}

fn stop(set: &RunningSet, screen: &mut Screen) -> Result<Outcome> {
    let (mut waiting, gone): (Vec<&RunningMember>, Vec<_>) =
        set.members.iter().partition(|member| member.process.is_alive());
    for member in gone {
        tell(member, "gone_already", "was gone already", screen)?;
    }
    if !set.keeper.signal(Signal::TERM) {
        waiting.iter().for_each(|member| ask(member));
    }
    let deadline = Instant::now() + STOP_WITHIN;
    while !waiting.is_empty() && Instant::now() < deadline {
        let (alive, stopped): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|member| member.process.is_alive());
        for member in stopped {
            tell(member, "stopped", "stopped", screen)?;
        }
        waiting = alive;
        sleep(LOOK_EVERY);
    }
    let outcome = if waiting.is_empty() { Outcome::Fine } else { Outcome::ProblemFound };
    for member in waiting {
        member.process.signal(Signal::KILL);
        let why = format!("did not stop within {} s and was killed", STOP_WITHIN.as_secs());
        tell(member, "killed", &format!("{WARNING}{why}{WARNING:#}"), screen)?;
    }
    // The keeper ends after its members, and takes its file with it.
    while set.keeper.is_alive() && Instant::now() < deadline {
        sleep(LOOK_EVERY);
    }
    set.keeper.signal(Signal::KILL);
    set.forget();
    if let (Some(log), Outcome::Fine) = (&set.log, outcome) {
        // The log of a set that ended without trouble is of no more use.
        let _ = std::fs::remove_file(log);
    }
    tell!(screen, "down", {"name": set.name, "uri": set.uri}, "{} is down", set.name)?;
    Ok(outcome)
}

/// A member that was paused hears nothing until it goes on.
fn ask(member: &RunningMember) {
    member.process.signal(Signal::TERM);
    member.process.signal(Signal::CONT);
}

fn tell(member: &RunningMember, how: &str, words: &str, screen: &mut Screen) -> Result<()> {
    let (id, host, pid) = (member.id, &member.host, member.process.pid());
    tell!(screen, "member_stopped", {"id": id, "host": host, "pid": pid, "how": how},
        "member {id} ({host}, process {pid}) {words}")
}
