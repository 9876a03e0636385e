//! `quorate doctor`: what is wrong, why it matters, what to type.
//!
//! This module owns the shape of the answer. Pasted messages are diagnosed by `pasted`. A deployment
//! is asked by `probe`, one server after the other as the discovery core wants it (`examination`),
//! and one of them for a `login` and for what it says of its set (`inside`). `reachability`,
//! `deployment` and `wishes` judge what was seen. The `verdict` is printed first, then the findings, then
//! the `stages` that led to them. docs/doctor.md#proposals and #situations.

mod deployment;
mod examination;
mod inside;
mod login;
mod probe;
mod reachability;
mod stages;
pub(crate) mod survey;
mod verdict;
mod waiting;
mod wishes;

use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::time::Duration;

use quorate_connection_string::{ConnectionString, Limit, ParseError, Seeds, Warning};
use quorate_protocol::{Counted, ServerAddress};
use quorate_seed_list::ResolveError;
use serde_json::json;

use crate::arguments::DoctorArguments;
use crate::connect;
use crate::finding::{Finding, Severity, Stops};
use crate::pasted::{self, Diagnosis};
use crate::progress::Progress;
use crate::screen::{Failure, Outcome, QUIET, Result, STRONG, Screen};
use crate::words::Foreign;
use examination::{ExaminationError, examine};
use probe::{Prober, ServerProbe};
use verdict::{Answers, Summary};

/// How long each stage may take, unless the connection string has a `connectTimeoutMS`. Shorter
/// than a driver's ten seconds: a user is waiting.
const STAGE_LIMIT: Duration = Duration::from_secs(5);

/// Diagnoses a pasted message or a deployment.
pub(crate) fn run(arguments: &DoctorArguments, screen: &mut Screen) -> Result<Outcome> {
    match (&arguments.error, &arguments.uri) {
        (Some(text), _) => message(text, screen),
        (None, Some(uri)) => deployment(uri, screen),
        (None, None) => Err(misuse!(
            "there is nothing to look at; give a connection string, or a message after --error"
        )),
    }
}

fn message(given: &str, screen: &mut Screen) -> Result<Outcome> {
    let text = match given {
        "-" => read_stdin()?,
        text => text.to_owned(),
    };
    if text.trim().is_empty() {
        let advice = "the message is empty; paste it between quotes, or pipe it into --error -";
        return Err(Failure::Misuse(advice.to_owned()));
    }
    let diagnosis = pasted::diagnose(&text);
    if diagnosis.findings.is_empty() {
        verdict::tell_counts(screen, "not_recognised", &[])?;
        tell_servers(&diagnosis, screen)?;
        not_recognised().tell(screen)?;
        return Ok(Outcome::ProblemFound);
    }
    verdict::tell_counts(screen, "recognised", &diagnosis.findings)?;
    tell_servers(&diagnosis, screen)?;
    tell_findings(&diagnosis.findings, screen)?;
    Ok(Outcome::Fine)
}

fn deployment(given: &str, screen: &mut Screen) -> Result<Outcome> {
    let uri = match ConnectionString::parse(given) {
        Ok(uri) => uri,
        Err(error) => return conclude(Answers::NONE, vec![unreadable(&error)], screen),
    };
    let shown = uri.to_string();
    let runtime = connect::runtime()?;
    let is_srv = matches!(uri.seeds(), Seeds::Srv(_));
    let mut findings: Vec<Finding> = wishes::placeholder(&uri).into_iter().collect();
    let (uri, seeds) = match runtime.block_on(connect::find_seeds(uri)) {
        Ok(found) => found,
        Err(error) => {
            findings.push(no_seeds(&error));
            return conclude(Answers::NONE, findings, screen);
        }
    };
    let wants_tls = uri.tls_enabled();
    let prober = prober_for(&uri)?;
    findings.extend(uri.warnings().iter().map(old_fashioned));
    let mut asked: Vec<ServerAddress> = Vec::new();
    let mut progress = Progress::new(screen.is_json());
    let mut witness = |probe: &ServerProbe| {
        asked.push(probe.address.clone());
        progress.stage(&format!("asked {}", probe.address));
        Ok(())
    };
    let seen = match runtime.block_on(examine(uri, seeds, &prober, &mut witness)) {
        Ok(seen) => seen,
        Err(ExaminationError::Output(error)) => return Err(error.into()),
        Err(ExaminationError::Options(error)) => {
            let finding = Finding::problem("options", error.to_string())
                .because("the options contradict each other, and drivers refuse them")
                .fix("remove one of the two from the connection string")
                .stopping(Stops::Everything);
            return conclude(Answers::NONE, vec![finding], screen);
        }
    };
    progress.stage("asking about the set");
    let login = runtime.block_on(login::log_in(&seen, &prober));
    progress.clear();
    findings.extend(reachability::findings(&seen));
    let inside = login.as_ref().and_then(|login| login.inside.as_ref());
    findings.extend(login.iter().flat_map(|login| login.findings.clone()));
    findings.extend(wishes::findings(&seen, inside));
    let explained = findings.iter().any(|finding| finding.severity == Severity::Problem);
    findings.extend(deployment::findings(&seen, inside, explained));
    let outcome = conclude(Answers::of(&seen), findings, screen)?;
    screen.line("")?;
    stages::tell_uri(&shown, screen)?;
    if is_srv {
        stages::tell_seeds(&seen.seeds, screen)?;
    }
    for probe in asked.iter().filter_map(|address| seen.probes.get(address)) {
        stages::tell_probe(probe, wants_tls, screen)?;
    }
    if let Some(login) = &login {
        stages::tell_login(login, screen)?;
    }
    stages::tell_topology(&seen, &deployment::removals(&seen), screen)?;
    Ok(outcome)
}

/// Asks servers with the time and the TLS options of a connection string.
fn prober_for(uri: &ConnectionString) -> Result<Prober> {
    let limit = uri.options().connect_timeout.and_then(Limit::bound).unwrap_or(STAGE_LIMIT);
    let tls = connect::tls_options(uri);
    Prober::new(limit, uri.tls_enabled().then_some(&tls))
        .map_err(|error| misuse!("{error}; correct the tls options of the connection string"))
}

fn unreadable(error: &ParseError) -> Finding {
    let text = error.to_string();
    let (seen, step) = text.rsplit_once("; ").unwrap_or((&text, "correct it"));
    let form = "mongodb://USER:PASSWORD@HOST:27017/?replicaSet=NAME";
    Finding::problem("connection_string", seen)
        .because("drivers refuse such a connection string, and nothing was dialled")
        .fix(step)
        .fix(format!("begin anew: {form}, in single quotes"))
        .stopping(Stops::Everything)
}

fn old_fashioned(warning: &Warning) -> Finding {
    Finding::warning("connection_string", warning.to_string())
        .because("drivers ignore it or will do so, which is rarely what was meant")
        .fix("correct or remove that part of the connection string")
}

fn no_seeds(error: &ResolveError) -> Finding {
    let text = error.to_string();
    let (seen, step) = text.rsplit_once("; ").unwrap_or((&text, "check the name"));
    Finding::problem("srv_lookup_failed", seen)
        .because("mongodb+srv:// takes its hosts from DNS, so that nothing could be dialled")
        .fix(step)
        .fix("list the hosts: mongodb://host1,host2,host3/?replicaSet=NAME&tls=true")
        .stopping(Stops::Everything)
}

/// Tells the verdict, then the findings of a deployment, those of one cause together.
fn conclude(answers: Answers, findings: Vec<Finding>, screen: &mut Screen) -> Result<Outcome> {
    let mut findings = verdict::merged(findings);
    findings.sort_by_key(|finding| finding.severity);
    let summary = Summary::of(answers, &findings);
    summary.tell(&findings, screen)?;
    if !findings.is_empty() {
        screen.line("")?;
    }
    tell_findings(&findings, screen)?;
    let is_problem = |finding: &Finding| finding.severity == Severity::Problem;
    Ok(if findings.iter().any(is_problem) { Outcome::ProblemFound } else { Outcome::Fine })
}

fn tell_findings(findings: &[Finding], screen: &mut Screen) -> io::Result<()> {
    for (position, finding) in findings.iter().enumerate() {
        if position > 0 {
            screen.line("")?;
        }
        finding.tell(screen)?;
    }
    Ok(())
}

/// Reads stdin to its end and keeps as much of it as is examined, and no more.
fn read_stdin() -> Result<String> {
    let mut kept = VecDeque::new();
    let mut stdin = io::stdin().lock();
    loop {
        let bytes = stdin.fill_buf().map_err(|error| {
            let advice = "give the text after --error instead";
            problem!("cannot read stdin: {error}; {advice}")
        })?;
        let read = bytes.len();
        if read == 0 {
            break;
        }
        kept.extend(bytes);
        stdin.consume(read);
        kept.drain(..kept.len().saturating_sub(pasted::MAX_TEXT_LENGTH));
    }
    Ok(String::from_utf8_lossy(kept.make_contiguous()).into_owned())
}

fn tell_servers(diagnosis: &Diagnosis, screen: &mut Screen) -> io::Result<()> {
    if diagnosis.servers.is_empty() {
        return Ok(());
    }
    let topology = diagnosis.topology.as_deref();
    let described = topology.map_or_else(String::new, |kind| format!(" ({kind})"));
    let count = Counted(diagnosis.servers.len(), "server");
    screen.line(format_args!("{STRONG}{count} in the message{described}{STRONG:#}"))?;
    let width = diagnosis.servers.iter().map(|(server, _)| server.address.len()).max().unwrap_or(0);
    for (server, cause) in &diagnosis.servers {
        let kind = server.kind.as_deref().unwrap_or("Unknown");
        let cause_text = match (cause, &server.error) {
            (Some(code), _) => code.replace('_', " "),
            (None, Some(error)) => Foreign(first_line(error)).to_string(),
            (None, None) if kind == "Unknown" => "never checked".to_owned(),
            (None, None) => "no error".to_owned(),
        };
        screen.line(format_args!(
            "  {:width$}  {:<12} {QUIET}{cause_text}{QUIET:#}",
            Foreign(&server.address).to_string(),
            Foreign(kind).to_string(),
        ))?;
        screen.event(
            "server",
            json!({"address": server.address, "type": kind, "cause": cause, "topology": topology}),
        )?;
    }
    screen.line("")
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn not_recognised() -> Finding {
    Finding::problem("not_recognised", "this message is not one we know")
        .because(
            "it may be cut off: the cause is often in the lines after the first, or in the \
                  error's reason",
        )
        .fix("paste all of it: your-program 2>&1 | quorate doctor --error -")
        .fix(
            "in Node: console.dir(error, {depth: null}); in Java: the whole stack trace with its \
              causes",
        )
}
