//! `quorate replay FILE`: a recording through the same core, step by step.
//!
//! Each input is printed, and under it everything the core did because of it. The times are those of
//! the recording, so the output is a function of the file; only the progress bar reads a clock.

mod html;
mod scrub;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use quorate_protocol::{Counted, HelloReply, MonotonicTime};
use quorate_server_discovery::{
    DiscoveryEvent, Input, MAX_LINE_LENGTH, Output, RecordedInput, RecordingError, RecordingStart,
    ServerType, Topology,
};
use serde_json::{Value, json};

use crate::arguments::ReplayArguments;
use crate::clock;
use crate::dashboard;
use crate::progress::Reading;
use crate::recording;
use crate::screen::{Outcome, QUIET, Result, STRONG, Screen};
use crate::topology_view::topology_to_json;
use crate::words::{Foreign, OneLine, Span, listed};
use html::Page;

/// Replays the file.
pub(crate) fn run(arguments: &ReplayArguments, screen: &mut Screen) -> Result<Outcome> {
    let name = arguments.file.display().to_string();
    let (reader, length) = open(&arguments.file).map_err(|error| {
        misuse!("cannot open {name}: {error}; give a file that quorate watch --record wrote")
    })?;
    let mut lines = Lines { reader, number: 0, progress: Reading::new(length) };
    refuse_if!(arguments.screen && !dashboard::is_possible() => misuse,
        "there is no terminal to draw on; leave out --screen, or make a page with --html");
    let page = (arguments.html || arguments.screen).then(|| Page::new(&name));
    let replayed = match Replay::start(&mut lines, page, screen) {
        Ok(mut replay) => replay.play(&mut lines, screen).map(|()| replay.page),
        Err(error) => Err(error),
    };
    match replayed {
        Ok(Some(page)) if arguments.screen => scrub::show(page.steps()).map(|()| Outcome::Fine),
        Ok(Some(page)) => {
            screen.raw(page.to_html().as_bytes())?;
            Ok(Outcome::Fine)
        }
        Ok(None) => Ok(Outcome::Fine),
        Err(ReplayError::Output(error)) => Err(error.into()),
        Err(error) => Err(problem!("{name}, line {}: {error}", lines.number)),
    }
}

/// Why a file cannot be replayed further. The caller knows the line.
#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error("cannot be read: {0}; check the file")]
    Read(io::Error),
    #[error("the file is empty; record one with quorate watch --record FILE URI")]
    Empty,
    #[error("{0}")]
    Line(#[from] RecordingError),
    #[error("the options contradict each other: {0}; the file was changed after it was written")]
    Options(#[from] quorate_server_discovery::OptionsError),
    #[error(
        "the time goes back from {from:?} to {to:?}; the lines are out of order, or of two \
             recordings"
    )]
    TimeGoesBack { from: MonotonicTime, to: MonotonicTime },
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// The file, and how long it is, if that is known.
fn open(path: &Path) -> io::Result<(Box<dyn BufRead>, Option<u64>)> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let file = File::open(path)?;
    let found = file.metadata()?;
    if found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
    }
    Ok((Box::new(BufReader::new(file)), Some(found.len())))
}

/// The lines of the file and the number of the latest, from 1.
struct Lines {
    reader: Box<dyn BufRead>,
    number: usize,
    progress: Reading,
}

impl Lines {
    /// The next line that is not blank. Reads no more than one line may have.
    fn next(&mut self) -> Result<Option<String>, ReplayError> {
        loop {
            self.number += 1;
            let mut line = Vec::new();
            let limit = MAX_LINE_LENGTH as u64 + 2;
            let mut limited = self.reader.by_ref().take(limit);
            let read = limited.read_until(b'\n', &mut line).map_err(ReplayError::Read)?;
            if read == 0 {
                return Ok(None);
            }
            self.progress.advance(read);
            let text = String::from_utf8_lossy(&line);
            let text = text.trim();
            if !text.is_empty() {
                return Ok(Some(text.to_owned()));
            }
        }
    }
}

/// A topology under replay.
struct Replay {
    topology: Topology,
    began: MonotonicTime,
    now: MonotonicTime,
    step: usize,
    /// How far the calendar is ahead of the recording's times, if it says so.
    ahead_ms: Option<i64>,
    /// The page that is made instead of lines.
    page: Option<Page>,
}

impl Replay {
    fn start(
        lines: &mut Lines,
        page: Option<Page>,
        screen: &mut Screen,
    ) -> Result<Self, ReplayError> {
        let first = lines.next()?.ok_or(ReplayError::Empty)?;
        let start = RecordingStart::from_line(&first)?;
        let topology = start.topology()?;
        let seeds = &start.options.seeds;
        let mut replay =
            Self { topology, began: start.at, now: start.at, step: 0, ahead_ms: None, page };
        if replay.page.is_some() {
            replay.tell_outputs(screen)?;
            return Ok(replay);
        }
        screen.line(format_args!(
            "{STRONG}recording{STRONG:#} of topology {}, seed {}: {} ({})",
            start.id,
            start.seed,
            Counted(seeds.len(), "host"),
            OneLine(listed(seeds)),
        ))?;
        let options: Value = serde_json::from_str(&first).unwrap_or(Value::Null);
        screen.event_at(
            start.at,
            "recording",
            json!({
                "line": lines.number,
                "topologyId": start.id.0,
                "seed": start.seed,
                "options": options["options"],
            }),
        )?;
        replay.tell_input(lines.number, "start", &json!({"input": "start"}), screen)?;
        replay.tell_outputs(screen)?;
        Ok(replay)
    }

    fn play(&mut self, lines: &mut Lines, screen: &mut Screen) -> Result<(), ReplayError> {
        while let Some(line) = lines.next()? {
            if let Some(ahead_ms) = recording::parse_wall_line(&line) {
                self.ahead_ms = Some(ahead_ms);
                continue;
            }
            let recorded = RecordedInput::from_line(&line)?;
            if recorded.at < self.now {
                return Err(ReplayError::TimeGoesBack { from: self.now, to: recorded.at });
            }
            self.now = recorded.at;
            self.step += 1;
            let fields = serde_json::from_str(&line).unwrap_or(Value::Null);
            let sentence = sentence(&recorded.input);
            if let Some(page) = &mut self.page {
                page.hear(&recorded.input);
                page.begin_step(
                    self.step,
                    self.now.since(self.began),
                    &sentence,
                    self.ahead_ms
                        .map(|ahead_ms| clock::rfc3339(recording::wall_at(ahead_ms, recorded.at))),
                );
            } else {
                self.tell_input(lines.number, &sentence, &fields, screen)?;
            }
            self.topology.handle(recorded.at, recorded.input);
            self.tell_outputs(screen)?;
            if let Some(page) = &mut self.page {
                page.end_step(self.topology.description());
            }
        }
        if self.page.is_some() {
            return Ok(());
        }
        let description = self.topology.description();
        screen.line("")?;
        screen.line(format_args!(
            "{STRONG}end{STRONG:#} after {} and {}: {}",
            Counted(self.step, "step"),
            Span(self.now.since(self.began)),
            OneLine(description),
        ))?;
        let mut end = topology_to_json(description);
        end["steps"] = self.step.into();
        Ok(screen.event_at(self.now, "end", end)?)
    }

    fn tell_input(
        &self,
        line: usize,
        sentence: &str,
        recorded: &Value,
        screen: &mut Screen,
    ) -> io::Result<()> {
        let seconds = self.now.since(self.began).as_secs_f64();
        let wall = self.ahead_ms.map(|ahead_ms| recording::wall_at(ahead_ms, self.now));
        let clock = wall.map(|wall| format!(" {}", clock::time_of_day(wall))).unwrap_or_default();
        screen.line("")?;
        screen.line(format_args!(
            "{QUIET}step {:<4}{clock} {seconds:+.6} s{QUIET:#}  {STRONG}{}{STRONG:#}",
            self.step,
            Foreign(sentence),
        ))?;
        let mut fields = json!({"step": self.step, "line": line});
        if let Some(wall) = wall {
            fields["time"] = clock::rfc3339(wall).into();
        }
        if let (Value::Object(fields), Value::Object(recorded)) = (&mut fields, recorded) {
            let told = recorded.iter().filter(|(name, _)| *name != "t_ns");
            fields.extend(told.map(|(name, value)| (name.clone(), value.clone())));
        }
        screen.event_at(self.now, "input", fields)
    }

    fn tell_outputs(&mut self, screen: &mut Screen) -> io::Result<()> {
        let mut told = 0_usize;
        // Bounded by what one input can cause: a few outputs for each server.
        while let Some(output) = self.topology.poll_output() {
            told += 1;
            if let Some(page) = &mut self.page {
                page.follow(output_text(&output));
                continue;
            }
            screen.line(format_args!("    {}", OneLine(output_text(&output))))?;
            let (name, fields) = output_to_json(self.step, &output);
            screen.event_at(self.now, name, fields)?;
        }
        if told == 0 && self.page.is_none() {
            screen.line(format_args!("    {QUIET}(nothing follows){QUIET:#}"))?;
        }
        Ok(())
    }
}

/// An output in words. A change of the topology follows the description it made current, so that
/// only the types are repeated.
fn output_text(output: &Output) -> String {
    match output {
        Output::Event(DiscoveryEvent::TopologyDescriptionChanged { previous, new }) => {
            format!(
                "event topology changed: {} -> {}",
                previous.topology_type(),
                new.topology_type()
            )
        }
        output => output.to_string(),
    }
}

fn output_to_json(step: usize, output: &Output) -> (&'static str, Value) {
    let (name, mut fields) = match output {
        Output::Publish(description) => ("topology", topology_to_json(description)),
        Output::Event(event) => {
            ("discovery", json!({"kind": event_name(event), "text": event.to_string()}))
        }
        Output::Monitor { server, command } => {
            ("monitor", json!({"server": server.as_str(), "command": command.to_string()}))
        }
        Output::Pool { server, command } => {
            ("pool", json!({"server": server.as_str(), "command": command.to_string()}))
        }
    };
    fields["step"] = step.into();
    (name, fields)
}

/// The specification's name of an event.
fn event_name(event: &DiscoveryEvent) -> &'static str {
    match event {
        DiscoveryEvent::TopologyOpening => "TopologyOpening",
        DiscoveryEvent::TopologyDescriptionChanged { .. } => "TopologyDescriptionChanged",
        DiscoveryEvent::TopologyClosed => "TopologyClosed",
        DiscoveryEvent::ServerOpening { .. } => "ServerOpening",
        DiscoveryEvent::ServerDescriptionChanged { .. } => "ServerDescriptionChanged",
        DiscoveryEvent::ServerClosed { .. } => "ServerClosed",
        DiscoveryEvent::ServerHeartbeatStarted { .. } => "ServerHeartbeatStarted",
        DiscoveryEvent::ServerHeartbeatSucceeded { .. } => "ServerHeartbeatSucceeded",
        DiscoveryEvent::ServerHeartbeatFailed { .. } => "ServerHeartbeatFailed",
        DiscoveryEvent::Warning(_) => "Warning",
        _ => "Event",
    }
}

/// An input in words.
fn sentence(input: &Input) -> String {
    match input {
        Input::HelloReceived { server, check, reply, round_trip, more_to_come } => {
            let more = if *more_to_come { ", more to come" } else { "" };
            let round_trip = Span(*round_trip);
            format!("{server} answers check {check} in {round_trip}{more}: {}", about(reply))
        }
        Input::CheckFailed { server, check, failure } => {
            format!("{server} fails check {check}: {failure}")
        }
        Input::RoundTripMeasured { server, round_trip: Some(round_trip), .. } => {
            format!("{server} round trip measured: {}", Span(*round_trip))
        }
        Input::RoundTripMeasured { server, round_trip: None, .. } => {
            format!("{server} round trip could not be measured")
        }
        Input::HandshakeReceived { server, reply } => {
            format!("{server} completes a handshake: {}", about(reply))
        }
        Input::ApplicationFailed { server, generation, cause, .. } => {
            format!("an operation on {server} (generation {generation}) fails: {cause}")
        }
        Input::CheckWanted => "selection found nothing and wants a check".to_owned(),
        Input::ScanWanted => "a scan of every server is wanted".to_owned(),
        Input::ServerCheckWanted { server } => format!("a check of {server} is wanted"),
        Input::SeedsResolved(seeds) => format!("DNS lists {}", listed(seeds)),
        Input::Tick => "a deadline is reached".to_owned(),
        Input::Close => "the client closes".to_owned(),
    }
}

fn about(reply: &HelloReply) -> String {
    let kind = ServerType::from_reply(reply);
    match &reply.set_name {
        Some(name) => format!("{kind} of {name}"),
        None => kind.to_string(),
    }
}
