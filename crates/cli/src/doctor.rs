//! `quorate doctor`: what is wrong, why it matters, what to type.
//!
//! This module owns the shape of the answer. Pasted messages are diagnosed by `pasted`. A deployment
//! is asked by `probe`, one server after the other as the discovery core wants it (`examination`),
//! and one of them for a `login`; `reachability` and `deployment` judge what was seen, and `stages`
//! tells it.

mod deployment;
mod examination;
mod inside;
mod login;
mod probe;
mod reachability;
mod stages;

use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::time::Duration;

use quorate_connection_string::{ConnectionString, Limit, ParseError, Seeds, Warning};
use quorate_seed_list::ResolveError;
use serde_json::json;

use crate::arguments::DoctorArguments;
use crate::connect;
use crate::finding::{Finding, Severity};
use crate::pasted::{self, Diagnosis};
use crate::screen::{FINE, Failure, Outcome, PROBLEM, QUIET, STRONG, Screen};
use crate::words::{Counted, Foreign};
use examination::{ExaminationError, examine};
use probe::Prober;

/// How long each stage may take, unless the connection string has a `connectTimeoutMS`. Shorter
/// than a driver's ten seconds: whoever asks a doctor is waiting.
const STAGE_LIMIT: Duration = Duration::from_secs(5);

/// Diagnoses a pasted message or a deployment.
pub(crate) fn run(arguments: &DoctorArguments, screen: &mut Screen) -> Result<Outcome, Failure> {
    match (&arguments.error, &arguments.uri) {
        (Some(text), _) => message(text, screen),
        (None, Some(uri)) => deployment(uri, screen),
        (None, None) => Err(Failure::Misuse(
            "there is nothing to look at; give a connection string, or a message after --error"
                .to_owned(),
        )),
    }
}

fn message(given: &str, screen: &mut Screen) -> Result<Outcome, Failure> {
    let text = match given {
        "-" => read_stdin()?,
        text => text.to_owned(),
    };
    if text.trim().is_empty() {
        let advice = "the message is empty; paste it between quotes, or pipe it into --error -";
        return Err(Failure::Misuse(advice.to_owned()));
    }
    let diagnosis = pasted::diagnose(&text);
    tell_servers(&diagnosis, screen)?;
    if diagnosis.findings.is_empty() {
        not_recognised().tell(screen)?;
        verdict(screen, "not_recognised", &[])?;
        return Ok(Outcome::ProblemFound);
    }
    tell_findings(&diagnosis.findings, screen)?;
    verdict(screen, "recognised", &diagnosis.findings)?;
    Ok(Outcome::Fine)
}

fn deployment(given: &str, screen: &mut Screen) -> Result<Outcome, Failure> {
    let uri = match ConnectionString::parse(given) {
        Ok(uri) => uri,
        Err(error) => return conclude(vec![unreadable(&error)], screen),
    };
    stages::tell_uri(&uri.to_string(), screen)?;
    let runtime = connect::runtime()?;
    let is_srv = matches!(uri.seeds(), Seeds::Srv(_));
    let (uri, seeds) = match runtime.block_on(connect::find_seeds(uri)) {
        Ok(found) => found,
        Err(error) => return conclude(vec![no_seeds(&error)], screen),
    };
    if is_srv {
        stages::tell_seeds(&seeds, screen)?;
    }
    let wants_tls = uri.tls_enabled();
    let limit = uri.options().connect_timeout.and_then(Limit::bound).unwrap_or(STAGE_LIMIT);
    let tls = connect::tls_options(&uri);
    let prober = Prober::new(limit, wants_tls.then_some(&tls)).map_err(|error| {
        Failure::Misuse(format!("{error}; correct the tls options of the connection string"))
    })?;
    let mut findings: Vec<Finding> = uri.warnings().iter().map(old_fashioned).collect();
    let mut witness = |probe: &_| stages::tell_probe(probe, wants_tls, screen);
    let seen = match runtime.block_on(examine(uri, seeds, &prober, &mut witness)) {
        Ok(seen) => seen,
        Err(ExaminationError::Output(error)) => return Err(error.into()),
        Err(ExaminationError::Options(error)) => {
            let finding = Finding::problem("options", error.to_string())
                .because("the options contradict each other, and drivers refuse them")
                .fix("remove one of the two from the connection string");
            return conclude(vec![finding], screen);
        }
    };
    let login = runtime.block_on(login::log_in(&seen, &prober));
    if let Some(login) = &login {
        stages::tell_login(login, screen)?;
    }
    stages::tell_topology(&seen, &deployment::removals(&seen), screen)?;
    findings.extend(reachability::findings(&seen));
    findings.extend(login.into_iter().flat_map(|login| login.findings));
    let explained = findings.iter().any(|finding| finding.severity == Severity::Problem);
    findings.extend(deployment::findings(&seen, explained));
    screen.line("")?;
    conclude(findings, screen)
}

fn unreadable(error: &ParseError) -> Finding {
    let text = error.to_string();
    let (seen, step) = text.rsplit_once("; ").unwrap_or((&text, "correct it"));
    let form = "mongodb://USER:PASSWORD@HOST:27017/?replicaSet=NAME";
    Finding::problem("connection_string", seen)
        .because("drivers refuse such a connection string, and nothing was dialled")
        .fix(step)
        .fix(format!("begin anew: {form}, in single quotes"))
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
}

/// Tells the findings of a deployment and the verdict.
fn conclude(mut findings: Vec<Finding>, screen: &mut Screen) -> Result<Outcome, Failure> {
    findings.sort_by_key(|finding| finding.severity);
    tell_findings(&findings, screen)?;
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    if !findings.is_empty() {
        screen.line("")?;
    }
    let (style, text) = match (problems, warnings) {
        (0, 0) => (FINE, "nothing wrong was found".to_owned()),
        (0, warnings) => (FINE, format!("it works; {}", Counted(warnings, "warning"))),
        (problems, 0) => (PROBLEM, Counted(problems, "problem").to_string()),
        (problems, warnings) => {
            let told =
                format!("{} and {}", Counted(problems, "problem"), Counted(warnings, "warning"));
            (PROBLEM, told)
        }
    };
    screen.line(format_args!("{style}verdict: {text}{style:#}"))?;
    let result = if problems > 0 { "problems" } else { "fine" };
    verdict(screen, result, &findings)?;
    Ok(if problems > 0 { Outcome::ProblemFound } else { Outcome::Fine })
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

/// Reads stdin to its end and keeps as much of it as is looked at, and no more.
fn read_stdin() -> Result<String, Failure> {
    let mut kept = VecDeque::new();
    let mut stdin = io::stdin().lock();
    loop {
        let bytes = stdin.fill_buf().map_err(|error| {
            let advice = "give the text after --error instead";
            Failure::Problem(format!("cannot read stdin: {error}; {advice}"))
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

/// The last event: how many findings of each sort.
fn verdict(screen: &mut Screen, result: &str, findings: &[Finding]) -> io::Result<()> {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    screen.event(
        "verdict",
        json!({
            "result": result,
            "problems": count(Severity::Problem),
            "warnings": count(Severity::Warning),
            "notes": count(Severity::Note),
        }),
    )
}
