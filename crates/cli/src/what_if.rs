//! `quorate what-if URI`: a forecast for the live set.
//!
//! Lifts the configuration, the positions and the round trips of the set into a small world that runs
//! the production replication core (`world`), plays many futures (`forecast`), and tells who leads, how
//! long writes stop, which write concerns still complete, and whether a reconfiguration is safe.

mod forecast;
mod world;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use quorate_protocol::{
    Counted, MemberConfig, MemberId, MemberState, OpTime, ReplicaSetConfig, ServerAddress, Term,
};
use quorate_replication::{Allowances, Proposal, ReconfigError, check_reconfig, config_warnings};
use quorate_server_discovery::ServerType;
use quorate_wire::replica_set::parse_config;
use serde_json::{Value, json};

use crate::connect;
use crate::doctor::survey::Survey;
use crate::run::relaxed;
use crate::screen::{FINE, Outcome, PROBLEM, QUIET, Result, STRONG, Screen, WARNING};
use crate::words::{Foreign, listed};
pub(crate) use forecast::Forecast;
pub(crate) use world::Fate;
use world::{Pace, Situation, Waiting};

/// How many futures are played unless another number is given.
const FUTURES: u32 = 1_000;

/// The longest configuration file that is read.
const MAX_FILE: u64 = 1 << 20;

/// `quorate what-if`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate what-if 'mongodb://a,b,c/?replicaSet=rs0' --down a:27017
  quorate what-if 'mongodb://a,b,c/?replicaSet=rs0' --down a:27017,b:27017
  quorate what-if 'mongodb://a,b,c/?replicaSet=rs0' --reconfig new.json --down a:27017

Nothing is changed: the set is asked for its configuration and state, and the futures are played
here. Ends in code 1 if writes stop for good or the reconfiguration is not safe.")]
pub(crate) struct WhatIfArguments {
    /// The connection string of the set.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// Members that go: host:port as the set calls them. Several with commas.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) down: Vec<ServerAddress>,
    /// Members that are added to the configuration. Several with commas.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) add: Vec<ServerAddress>,
    /// The configuration that replaces the present one: a file with what rs.conf() prints, or
    /// the reply of replSetGetConfig.
    #[arg(long, value_name = "FILE")]
    pub(crate) reconfig: Option<PathBuf>,
    /// How many futures are played.
    #[arg(long, value_name = "N", default_value_t = FUTURES, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) futures: u32,
}

/// Forecasts and tells.
pub(crate) fn run(arguments: &WhatIfArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let survey = connect::runtime()?.block_on(Survey::take(uri))?;
    let mut situation = lift(&survey)?;
    let present = situation.config.clone();
    let change = change(arguments, &present)?;
    let mut safe = true;
    if let Some(next) = change {
        let Judgement { is_safe, is_valid } = tell_change(&present, &next, &situation, screen)?;
        if !is_valid {
            screen
                .line("no member takes such a configuration, so there is no future to forecast")?;
            return Ok(Outcome::ProblemFound);
        }
        safe = is_safe;
        situation.config = next;
        let config = situation.config.clone();
        situation.up.retain(|member, _| config.member_at(member).is_some());
    }
    let known = |member: &&ServerAddress| situation.config.member_at(member).is_some();
    if let Some(stranger) = arguments.down.iter().find(|member| !known(member)) {
        let members = listed(situation.config.members.iter().map(|member| &member.host));
        return Err(misuse!("{stranger} is no member of this set; choose among {members}"));
    }
    let mut goes_on = true;
    for (fate, title) in fates(&survey, &situation, &arguments.down) {
        let forecast =
            forecast::forecast(&situation, &arguments.down, fate, arguments.futures as usize);
        goes_on &= forecast.stuck() == 0;
        tell_forecast(&forecast, title, screen)?;
    }
    goes_on &= tell_write_concerns(&situation, &arguments.down, screen)?;
    Ok(if goes_on && safe { Outcome::Fine } else { Outcome::ProblemFound })
}

/// What a drill knows of the client that writes.
pub(crate) struct Writes {
    /// How long its majority writes take while nothing is broken.
    pub(crate) took: Vec<Duration>,
    /// How long it waits for the old primary's last word once it knows a newer one.
    pub(crate) patience: Duration,
}

/// The forecast of what a drill is about to do to this deployment; none if it does not tell enough.
pub(crate) async fn before_drill(
    uri: quorate_connection_string::ConnectionString,
    fate: Fate,
    writes: Writes,
    futures: usize,
) -> Option<Forecast> {
    let survey = Survey::take(uri).await.ok()?;
    let mut situation = lift(&survey).ok()?;
    situation.pace.syncs = syncs(&writes.took, &situation.pace.round_trips);
    situation.client = Some(Waiting { patience: writes.patience, writes: writes.took });
    let down: Vec<ServerAddress> = situation.primary.iter().cloned().collect();
    // Servers of others notice a crash by its silence.
    let fate = if fate == Fate::Crash && !survey.is_ours() { Fate::Silence } else { fate };
    // Playing takes a processor for a while, and the writer goes on.
    let played = move || forecast::forecast(&situation, &down, fate, futures);
    tokio::task::spawn_blocking(played).await.ok()
}

/// What disks take, by majority writes: each waits for two of them, one after the other, and for two
/// round trips.
fn syncs(writes: &[Duration], round_trips: &[Duration]) -> Vec<Duration> {
    let mut trips = round_trips.to_vec();
    trips.sort_unstable();
    let trip = trips.get(trips.len() / 2).copied().unwrap_or_default();
    writes.iter().map(|write| write.saturating_sub(trip * 2) / 2).collect()
}

/// What can happen to the members that go.
fn fates(
    survey: &Survey,
    situation: &Situation,
    down: &[ServerAddress],
) -> Vec<(Fate, &'static str)> {
    let takes_primary = situation.primary.as_ref().is_some_and(|primary| down.contains(primary));
    if down.is_empty() {
        return vec![(Fate::StepDown, "if the primary steps down")];
    }
    // Only our servers tell a crash from silence by the reset connection.
    match survey.is_ours() && takes_primary {
        true => {
            vec![(Fate::Crash, "if the processes end"), (Fate::Silence, "if the hosts fall silent")]
        }
        false => vec![(Fate::Silence, "if they are gone")],
    }
}

/// Lifts the live set.
fn lift(survey: &Survey) -> Result<Situation> {
    let doctor = survey.seen.quorate("doctor");
    let unknown = |what: &str| problem!("the set does not tell {what}; {doctor} says why");
    let alone = survey.seen.answers().map(|(_, answer)| ServerType::from_reply(&answer.reply));
    if let Some(kind) =
        alone.into_iter().find(|kind| matches!(kind, ServerType::Standalone | ServerType::Mongos))
    {
        return Err(misuse!(
            "a forecast needs a replica set, and this is {kind}; give the connection string of a set"
        ));
    }
    let inside = survey.inside().ok_or_else(|| unknown("anything about itself"))?;
    let document = inside.config.as_ref().ok_or_else(|| unknown("its configuration"))?;
    let config = parse_config(document).map_err(|error| {
        problem!("the configuration of the set is not understood: {error}; {doctor} tells more")
    })?;
    let status = inside.status.as_ref().ok_or_else(|| unknown("the state of its members"))?;
    let own_word = |member: &ServerAddress| survey.seen.own_word(member);
    let is_up = |member: &crate::view::reply::MemberStatus| {
        own_word(&member.address).is_some()
            || (member.is_up || member.is_self)
                && matches!(
                    member.state,
                    Some(MemberState::Primary | MemberState::Secondary | MemberState::Arbiter)
                )
    };
    let up = status.members.iter().filter(|member| is_up(member));
    let up = up.map(|member| (member.address.clone(), member.op_time.unwrap_or(OpTime::NULL)));
    let trips = survey.seen.answers().map(|(_, answer)| answer.round_trip);
    Ok(Situation {
        config,
        term: Term(status.term.unwrap_or(1)),
        primary: survey.seen.topology.primary().map(|primary| primary.address().clone()),
        up: up.collect(),
        pace: Pace { round_trips: trips.collect(), syncs: Vec::new() },
        client: None,
    })
}

/// The configuration that is asked about, if it is another than the present one.
fn change(
    arguments: &WhatIfArguments,
    present: &ReplicaSetConfig,
) -> Result<Option<ReplicaSetConfig>> {
    let mut next = match &arguments.reconfig {
        None => None,
        Some(path) => Some(read_config(path)?),
    };
    for host in &arguments.add {
        let config = next.get_or_insert_with(|| ReplicaSetConfig {
            version: present.version + 1,
            ..present.clone()
        });
        refuse_if!(config.member_at(host).is_some() => misuse,
            "{host} is a member already; leave it out of --add");
        let id = config.members.iter().map(|member| member.id.0).max().unwrap_or(-1) + 1;
        config.members.push(MemberConfig::new(MemberId(id), host.clone()));
    }
    Ok(next)
}

fn read_config(path: &PathBuf) -> Result<ReplicaSetConfig> {
    let shown = path.display();
    let unreadable = |why: String| {
        misuse!("{shown} is no configuration: {why}; write into it what rs.conf() prints, changed")
    };
    let size = std::fs::metadata(path).map(|file| file.len());
    if size.as_ref().is_ok_and(|size| *size > MAX_FILE) {
        return Err(unreadable(format!("it has more than {MAX_FILE} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    let value = relaxed::parse(&text).map_err(|error| unreadable(error.to_string()))?;
    let Ok(bson::Bson::Document(document)) = bson::Bson::try_from(value) else {
        return Err(unreadable("it holds no document".to_owned()));
    };
    // The reply of replSetGetConfig, as `quorate run` prints it, holds the configuration.
    let document = match document.get("config") {
        Some(bson::Bson::Document(config)) if !document.contains_key("members") => config,
        _ => &document,
    };
    parse_config(document).map_err(|error| unreadable(error.to_string()))
}

/// What is found of a configuration.
struct Judgement {
    /// Whether the live set may change to it.
    is_safe: bool,
    /// Whether it is one at all: members do not load another.
    is_valid: bool,
}

/// Whether the change may be made on the live set, and why not.
fn tell_change(
    present: &ReplicaSetConfig,
    next: &ReplicaSetConfig,
    situation: &Situation,
    screen: &mut Screen,
) -> Result<Judgement> {
    let primary: Vec<ServerAddress> = situation.primary.iter().cloned().collect();
    let proposal =
        Proposal { old: present, new: next, force: false, default_write_concern_set: false };
    let check = |force: bool| {
        let proposal = Proposal { force, ..proposal };
        check_reconfig(proposal, &present.set_name, Allowances::default(), &primary)
    };
    // Whatever force allows, a document with a mistake is none.
    let mistake = check(true).err().filter(|error| matches!(error, ReconfigError::Config(_)));
    let is_valid = mistake.is_none();
    let mut why: Vec<String> = Vec::new();
    if primary.is_empty() {
        why.push("only a primary changes the configuration, and there is none".to_owned());
        why.extend(mistake.map(|error| error.to_string()));
    } else if let Err(error) = check(false) {
        why.push(error.to_string());
    }
    let votes = |config: &ReplicaSetConfig| {
        let voters: Vec<_> = config.members.iter().filter(|member| member.is_voter()).collect();
        let up = voters.iter().filter(|voter| situation.up.contains_key(&voter.host)).count();
        (up, voters.len())
    };
    let (up, voters) = votes(next);
    if up <= voters / 2 {
        why.push(format!(
            "{up} of its {voters} voters are up, which is no majority: it would not be committed"
        ));
    }
    let safe = why.is_empty();
    let hints = config_warnings(next);
    screen.event("reconfig", json!({"safe": safe, "why": why, "warnings": hints}))?;
    match safe {
        true => screen.line(format_args!("{FINE}the reconfiguration is safe{FINE:#}"))?,
        false => {
            screen.line(format_args!("{PROBLEM}the reconfiguration is not safe{PROBLEM:#}"))?;
        }
    }
    for reason in why {
        screen.line(format_args!("  {}", Foreign(reason)))?;
    }
    for hint in hints {
        screen.line(format_args!("  {WARNING}warning{WARNING:#} {}", Foreign(hint)))?;
    }
    Ok(Judgement { is_safe: safe, is_valid })
}

fn tell_forecast(forecast: &Forecast, title: &str, screen: &mut Screen) -> Result<()> {
    let mut event = forecast.to_json();
    event["case"] = title.into();
    screen.event("forecast", event)?;
    let futures = forecast.futures;
    screen.line(format_args!(
        "{STRONG}{title}{STRONG:#} {QUIET}({futures} futures played){QUIET:#}"
    ))?;
    for (host, count) in &forecast.leaders {
        let share = forecast.share(*count) * 100.0;
        screen.line(format_args!("  {host} leads in {share:.0} % of them"))?;
    }
    let without = forecast.futures - forecast.leaders.values().sum::<usize>();
    if without > 0 {
        let share = forecast.share(without) * 100.0;
        screen
            .line(format_args!("  {PROBLEM}no member leads in {share:.0} % of them{PROBLEM:#}"))?;
    }
    screen.line(format_args!("  {}", forecast.gap_line()))?;
    if let Some(tail) = &forecast.tail {
        screen.line(format_args!("  {QUIET}the slowest wait for{QUIET:#} {tail}"))?;
    }
    Ok(())
}

/// Which write concerns complete with the members that are left. False if a majority does not.
fn tell_write_concerns(
    situation: &Situation,
    down: &[ServerAddress],
    screen: &mut Screen,
) -> Result<bool> {
    let is_left = |member: &&MemberConfig| {
        situation.up.contains_key(&member.host) && !down.contains(&member.host)
    };
    let members = &situation.config.members;
    let data = members.iter().filter(|member| !member.arbiter_only);
    let left = data.clone().filter(is_left).count();
    let voters = members.iter().filter(|member| member.is_voter()).count();
    let majority = voters / 2 + 1;
    let data_voters = data.clone().filter(|member| member.is_voter());
    // Arbiters vote and acknowledge nothing.
    let needed = majority.min(data_voters.clone().count());
    let left_voters = data_voters.filter(is_left).count();
    let votes_left = members.iter().filter(|member| member.is_voter()).filter(is_left).count();
    let has_leader = votes_left >= majority
        && members.iter().filter(|member| member.is_electable()).any(|member| is_left(&member));
    let completes = has_leader && left_voters >= needed;
    let most = if has_leader { left } else { 0 };
    let fields: Value = json!({
        "w": most, "majority": completes, "data_members": left, "data_members_needed": needed,
    });
    screen.event("write_concerns", fields)?;
    screen.line(format_args!("{STRONG}write concerns{STRONG:#}"))?;
    screen.line(match most {
        0 => "  none completes: no member may lead".to_owned(),
        1 => "  w: 1 completes, more does not".to_owned(),
        most => format!("  w: 1 to {most} complete, more does not"),
    })?;
    let told = format!(
        "a majority needs {}, and {left_voters} would be left",
        Counted(needed, "data member")
    );
    screen.line(match completes {
        true => format!("  w: \"majority\" completes: {told}"),
        false => format!("  {PROBLEM}w: \"majority\" does not complete{PROBLEM:#}: {told}"),
    })?;
    Ok(completes)
}
