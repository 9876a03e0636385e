//! `quorate list`, `start`, `stop` and `restart`: the sets that `quorate up` runs on this machine, and
//! single members of them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::screen::{Failure, Outcome, QUIET, Result, STRONG, Screen};
use crate::up::control::{self, Order};
use crate::up::running::{RunningMember, RunningSet};
use crate::words::listed;

/// How long a member may take to stop before the command gives up. It is not killed.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// How often its process is polled.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// `quorate list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate list
  quorate list --json | jq -r .uri

Only sets that your quorate up started on this machine.")]
pub(crate) struct ListArguments {}

/// `quorate start`, `stop` and `restart`.
#[derive(Debug, Args)]
pub(crate) struct MemberArguments {
    /// The member: its port, or host:port.
    #[arg(value_name = "MEMBER")]
    pub(crate) member: String,
}

impl MemberArguments {
    pub(crate) const START: &str = "\
Examples:
  quorate start 27018

The quorate up that looks after the set starts it again, with the same data.";
    pub(crate) const STOP: &str = "\
Examples:
  quorate stop 27018
  quorate stop 127.0.0.1:27018 && quorate start 27018

It ends cleanly, and the other members go on. quorate down stops a whole set.";
    pub(crate) const RESTART: &str = "\
Examples:
  quorate restart 27018

It ends cleanly and is started again, with the same data.";
}

/// Lists the sets that run.
pub(crate) fn run(screen: &mut Screen) -> Result<Outcome> {
    let sets = RunningSet::all()?;
    if sets.is_empty() {
        screen.talk_unless_json("no set of yours is running; start one with quorate up --detach");
    }
    for set in &sets {
        screen.event("set", to_json(set))?;
        let data = match &set.data {
            Some(data) => format!("in {}", data.display()),
            None => "in memory".to_owned(),
        };
        screen.line(format_args!(
            "{STRONG}{}{STRONG:#} {data}, looked after by process {}",
            set.name,
            set.keeper.pid()
        ))?;
        screen.line(format_args!("  {}", shown_uri(set)))?;
        for member in &set.members {
            let state = if member.process.is_alive() { "runs" } else { "stopped" };
            let pid = member.process.pid();
            screen.line(format_args!("  {} {state}, process {pid}", member.host))?;
        }
        screen.line(format_args!("  {QUIET}stop it with: {}{QUIET:#}", set.stop_command()))?;
    }
    Ok(Outcome::Fine)
}

/// The connection string, which on this machine and for this user is no secret: it is needed to get
/// in.
fn shown_uri(set: &RunningSet) -> &str {
    &set.uri
}

fn to_json(set: &RunningSet) -> Value {
    let members = set.members.iter().map(|member| {
        json!({
            "id": member.id,
            "host": member.host,
            "pid": member.process.pid(),
            "runs": member.process.is_alive(),
        })
    });
    json!({
        "name": set.name,
        "uri": set.uri,
        "data": set.data.as_ref().map(|data| data.display().to_string()),
        "keeper": set.keeper.pid(),
        "stop": set.stop_command(),
        "members": members.collect::<Value>(),
    })
}

/// Starts a member that was stopped or died.
pub(crate) fn start(arguments: &MemberArguments, screen: &mut Screen) -> Result<Outcome> {
    let (set, member) = find(&arguments.member)?;
    if member.process.is_alive() {
        screen.event("member_runs", fields(&member))?;
        screen.talk_unless_json(format_args!("{} runs already", member.host));
        return Ok(Outcome::Fine);
    }
    start_again(&set, &member, screen)
}

/// Stops a member cleanly.
pub(crate) fn stop(arguments: &MemberArguments, screen: &mut Screen) -> Result<Outcome> {
    let (_, member) = find(&arguments.member)?;
    stop_one(&member)?;
    screen.tell("member_stopped", fields(&member), format_args!("{} is stopped", member.host))?;
    Ok(Outcome::Fine)
}

/// Stops a member cleanly and starts it again.
pub(crate) fn restart(arguments: &MemberArguments, screen: &mut Screen) -> Result<Outcome> {
    let (set, member) = find(&arguments.member)?;
    if member.process.is_alive() {
        stop_one(&member)?;
        screen.event("member_stopped", fields(&member))?;
    }
    start_again(&set, &member, screen)
}

fn fields(member: &RunningMember) -> Value {
    json!({"id": member.id, "host": member.host, "pid": member.process.pid()})
}

/// The member of this name, and its set.
fn find(named: &str) -> Result<(RunningSet, RunningMember)> {
    let sets = RunningSet::all()?;
    let is_it = |member: &&RunningMember| {
        member.host == named || member.host.rsplit(':').next() == Some(named)
    };
    for set in &sets {
        if let Some(member) = set.members.iter().find(is_it) {
            return Ok((set.clone(), member.clone()));
        }
    }
    let known = sets.iter().flat_map(RunningSet::hosts);
    Err(Failure::Misuse(match sets.is_empty() {
        true => "no set of yours is running; start one with quorate up --detach".to_owned(),
        false => format!("no set of yours has a member {named}; there are {}", listed(known)),
    }))
}

fn stop_one(member: &RunningMember) -> Result<()> {
    // One that is paused hears nothing until it goes on; one that is cut off could not hand over.
    for signal in [Signal::TERM, Signal::CONT, Signal::USR2] {
        member.process.signal(signal);
    }
    let deadline = Instant::now() + STOP_WITHIN;
    while member.process.is_alive() {
        refuse_if!(Instant::now() > deadline => problem,
            "{} did not stop within {} s; see what it says, or end it: kill -9 {}",
            member.host, STOP_WITHIN.as_secs(), member.process.pid());
        sleep(LOOK_EVERY);
    }
    Ok(())
}

fn start_again(set: &RunningSet, member: &RunningMember, screen: &mut Screen) -> Result<Outcome> {
    let told = control::order(set, &Order::Start(member.host.clone()))?;
    let now = RunningSet::all()?.into_iter().flat_map(|set| set.members);
    let now = now.into_iter().find(|other| other.host == member.host);
    screen.tell("member_started", fields(now.as_ref().unwrap_or(member)), told)?;
    Ok(Outcome::Fine)
}
