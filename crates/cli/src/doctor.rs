//! `quorate doctor`: what is wrong, why it matters, what to type.
//!
//! This module owns the shape of the answer. Pasted messages are diagnosed by `pasted`.

use std::collections::VecDeque;
use std::io::{self, BufRead};

use serde_json::json;

use crate::arguments::DoctorArguments;
use crate::finding::{Finding, Severity};
use crate::pasted::{self, Diagnosis};
use crate::screen::{Failure, Outcome, QUIET, STRONG, Screen};
use crate::words::{Counted, Foreign};

/// Diagnoses a pasted message or a deployment.
pub(crate) fn run(arguments: &DoctorArguments, screen: &mut Screen) -> Result<Outcome, Failure> {
    let text = match arguments.error.as_str() {
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
    for (position, finding) in diagnosis.findings.iter().enumerate() {
        if position > 0 {
            screen.line("")?;
        }
        finding.tell(screen)?;
    }
    verdict(screen, "recognised", &diagnosis.findings)?;
    Ok(Outcome::Fine)
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
