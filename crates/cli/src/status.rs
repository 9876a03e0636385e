//! `quorate status URI`: one look, one table, an exit code for monitors.

use std::io;
use std::time::Duration;

use clap::Args;
use quorate_protocol::{MemberState, ServerAddress};
use quorate_replication::electability::why_elected;
use quorate_server_discovery::ServerType;
use serde_json::{Value, json};

use crate::connect;
use crate::doctor::survey::Survey;
use crate::explain::{self, Reason};
use crate::screen::{FINE, Outcome, PROBLEM, QUIET, Result, STRONG, Screen};
use crate::words::{Foreign, OneLine, Span};

/// `quorate status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate status 'mongodb://localhost:27017/?replicaSet=rs0'
  quorate status --json 'mongodb://a,b,c/?replicaSet=rs0' | jq .primary

Ends in code 0 if there is a primary and every member is up and serves, in code 1 otherwise. quorate
doctor tells what to do about it.")]
pub(crate) struct StatusArguments {
    /// The connection string of the deployment.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
}

/// One member in the table.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    host: ServerAddress,
    state: String,
    /// Whether it serves as its state says.
    is_well: bool,
    /// Whether it answered this client.
    answers: bool,
    lag: Option<Duration>,
    votes: Option<u32>,
    priority: Option<f64>,
    sync_source: Option<ServerAddress>,
    round_trip: Option<Duration>,
    message: Option<String>,
}

/// Looks once and tells.
pub(crate) fn run(arguments: &StatusArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let survey = connect::runtime()?.block_on(Survey::take(uri))?;
    let rows: Vec<Row> = survey.members().into_iter().map(|host| row(&survey, host)).collect();
    let writes =
        survey.seen.takes_writes() && survey.login_finding().is_none() && !survey.is_locked();
    let is_well = writes && rows.iter().all(|row| row.is_well);
    screen.event("status", to_json(&survey, &rows, is_well, writes))?;
    if !screen.is_json() {
        tell(&survey, &rows, is_well, screen)?;
    }
    Ok(if is_well { Outcome::Fine } else { Outcome::ProblemFound })
}

fn row(survey: &Survey, host: ServerAddress) -> Row {
    let seen = &survey.seen;
    let answer = seen.probes.get(&host).and_then(|probe| probe.answer());
    let inside = survey.inside();
    let told = inside.and_then(|inside| inside.status.as_ref());
    let told = told.and_then(|status| status.members.iter().find(|m| m.address == host));
    let settings = inside.and_then(|inside| inside.settings.as_ref());
    let settings = settings.and_then(|settings| settings.members.get(&host));
    let kind = answer.map(|answer| ServerType::from_reply(&answer.reply));
    // What it says of itself is newer than what its peers heard.
    let state = seen.own_word(&host).or_else(|| told.and_then(|told| told.state));
    let shown = match (state, kind) {
        (Some(state), _) if answer.is_some() || told.is_some() => state.name().to_owned(),
        (_, Some(kind)) => kind.to_string(),
        _ => "UNREACHABLE".to_owned(),
    };
    let serves =
        matches!(state, Some(MemberState::Primary | MemberState::Secondary | MemberState::Arbiter))
            || kind.is_some_and(|kind| kind.is_data_bearing());
    let lag = seen.lags().into_iter().find(|(address, _)| *address == host);
    let settled = told.is_none_or(|told| told.is_up || told.is_self);
    let message = told.and_then(|told| told.message.clone());
    let message = match settled || answer.is_none() {
        true => message.filter(|_| !serves),
        false => Some(unheard(message.as_deref())),
    };
    Row {
        is_well: serves && answer.is_some() && settled,
        answers: answer.is_some(),
        state: shown,
        lag: lag.map(|(_, lag)| lag),
        votes: settings.map(|settings| settings.votes),
        priority: settings.map(|settings| settings.priority),
        sync_source: told.and_then(|told| told.sync_source.clone()),
        round_trip: answer.map(|answer| answer.round_trip),
        message,
        host,
    }
}

/// Why a member that answers here is not well: the member that was asked about the set does not hear it.
fn unheard(message: Option<&str>) -> String {
    let told = message.map(|message| format!(": {message}")).unwrap_or_default();
    format!("it answers here, but another member does not hear it{told}")
}

/// The first line: what this is, who leads, and whether a majority is up.
fn headline(survey: &Survey) -> String {
    let topology = &survey.seen.topology;
    let name = topology.set_name().map(|name| Foreign(name).to_string());
    let name = name.unwrap_or_else(|| topology.topology_type().to_string());
    if let Some(finding) = survey.login_finding() {
        return format!("{name}: {}", OneLine(&finding.seen));
    }
    if survey.is_locked() {
        return format!("{name}: locked by fsync, writes wait");
    }
    match survey.election() {
        Some(election) => match &election.reason {
            Reason::Led(leader) => {
                let status = survey.inside().and_then(|inside| inside.status.as_ref());
                let term = status.and_then(|status| status.term);
                let term = term.map(|term| format!(" in term {term}")).unwrap_or_default();
                let (visible, votes, needed) = (election.visible, election.votes, election.needed);
                format!("{name}: {leader} leads{term}; votes {visible} of {votes}, need {needed}")
            }
            _ => format!("{name}: {}", explain::sentence(election)),
        },
        None if survey.seen.takes_writes() => format!("{name}: writes find a server"),
        None => format!("{name}: writes find no server"),
    }
}

/// Why the primary was elected, where it was asked itself.
fn elected_because(survey: &Survey) -> Option<&'static str> {
    let status = survey.inside()?.status.as_ref()?;
    let leads = status.state == Some(MemberState::Primary);
    why_elected(status.election_reason.as_deref().filter(|_| leads)?)
}

fn tell(survey: &Survey, rows: &[Row], is_well: bool, screen: &mut Screen) -> io::Result<()> {
    let style = if is_well { FINE } else { PROBLEM };
    screen.line(format_args!("{style}{}{style:#}", headline(survey)))?;
    if let Some(why) = elected_because(survey) {
        screen.line(format_args!("{QUIET}it was elected as {why}{QUIET:#}"))?;
    }
    let titles = ["MEMBER", "STATE", "LAG", "VOTES", "PRIORITY", "SYNCS FROM", "PING"];
    let cells: Vec<[String; 7]> = rows.iter().map(Row::cells).collect();
    let widths: Vec<usize> = (0..titles.len())
        .map(|column| {
            let longest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            longest.max(titles[column].len())
        })
        .collect();
    let joined = |row: &[String]| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let titles = joined(&titles.map(str::to_owned));
    screen.line(format_args!("{QUIET}{titles}{QUIET:#}"))?;
    for (row, cells) in rows.iter().zip(&cells) {
        let style = if row.is_well { STRONG } else { PROBLEM };
        screen.line(format_args!("{style}{}{style:#}", joined(cells)))?;
        if let Some(message) = &row.message {
            screen.line(format_args!("  {QUIET}{}{QUIET:#}", Foreign(message)))?;
        }
    }
    let answers = rows.iter().any(|row| row.answers);
    if answers && survey.inside().is_none_or(|inside| inside.settings.is_none()) && rows.len() > 1 {
        let hint = "votes and priorities are told to users with the role clusterMonitor only";
        screen.line(format_args!("{QUIET}{hint}{QUIET:#}"))?;
    }
    Ok(())
}

impl Row {
    fn cells(&self) -> [String; 7] {
        let blank = || "-".to_owned();
        let state = match self.answers {
            true => self.state.clone(),
            false => format!("{} (no answer here)", self.state),
        };
        [
            self.host.to_string(),
            state,
            self.lag.map_or_else(blank, |lag| format!("{} s", lag.as_secs())),
            self.votes.map_or_else(blank, |votes| votes.to_string()),
            self.priority.map_or_else(blank, |priority| priority.to_string()),
            self.sync_source.as_ref().map_or_else(blank, ToString::to_string),
            self.round_trip.map_or_else(blank, |ping| Span(ping).to_string()),
        ]
    }

    fn to_json(&self) -> Value {
        json!({
            "host": self.host.as_str(),
            "state": self.state,
            "healthy": self.is_well,
            "answers": self.answers,
            "lag_ms": self.lag.map(|lag| lag.as_millis() as u64),
            "votes": self.votes,
            "priority": self.priority,
            "sync_source": self.sync_source.as_ref().map(ServerAddress::as_str),
            "round_trip_ms": self.round_trip.map(|ping| ping.as_secs_f64() * 1e3),
            "message": self.message,
        })
    }
}

fn to_json(survey: &Survey, rows: &[Row], is_well: bool, writes: bool) -> Value {
    let topology = &survey.seen.topology;
    let status = survey.inside().and_then(|inside| inside.status.as_ref());
    let election = survey.election();
    json!({
        "healthy": is_well,
        "writes": writes,
        "type": topology.topology_type().to_string(),
        "set": topology.set_name(),
        "primary": topology.primary().map(|primary| primary.address().as_str().to_owned()),
        "term": status.and_then(|status| status.term),
        "votes": election.map(|election| json!({
            "visible": election.visible, "all": election.votes, "needed": election.needed,
        })),
        "says": headline(survey),
        "elected_because": elected_because(survey),
        "members": rows.iter().map(Row::to_json).collect::<Value>(),
    })
}
