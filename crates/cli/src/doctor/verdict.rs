//! The verdict: whether reads and writes work right now, why not, and what to type first.
//!
//! Computed from the examination and its findings, and printed first.

use std::io;

use quorate_protocol::{Counted, ReadPreference, ReadPreferenceMode};
use quorate_server_discovery::SelectionRequest;
use serde_json::json;

use super::examination::Examination;
use crate::finding::{Finding, Severity, Stops};
use crate::screen::{FINE, PROBLEM, QUIET, Screen};
use crate::words::OneLine;

/// The service of the servers that answered, before the findings are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answers {
    /// A write finds a server.
    writes: bool,
    /// A read with the connection string's own preference finds a server.
    reads: bool,
    /// A read from a secondary finds a server.
    secondary_reads: bool,
}

impl Answers {
    /// Nothing could be asked.
    pub(super) const NONE: Self = Self { writes: false, reads: false, secondary_reads: false };

    /// What a client finds.
    pub(super) fn of(seen: &Examination) -> Self {
        let wanted = seen.uri.options().whole_read_preference();
        let compatible = seen.topology.compatibility_error().is_none();
        let finds = |preference: &ReadPreference| {
            let found = seen.topology.suitable_servers(&SelectionRequest::read(preference));
            compatible && found.is_ok_and(|servers| !servers.is_empty())
        };
        Self {
            writes: compatible && seen.takes_writes(),
            reads: finds(&wanted),
            secondary_reads: finds(&ReadPreference::new(ReadPreferenceMode::SecondaryPreferred)),
        }
    }
}

/// The three lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) writes: bool,
    pub(super) reads: bool,
    works: &'static str,
    why: String,
    first: String,
}

impl Summary {
    /// Sums up findings, worst first.
    pub(super) fn of(answers: Answers, findings: &[Finding]) -> Self {
        let stopped = |what: Stops| findings.iter().any(|finding| finding.stops == what);
        let everything = stopped(Stops::Everything);
        let writes = answers.writes && !everything && !stopped(Stops::Writes);
        let reads = answers.reads && !everything;
        let elsewhere = answers.secondary_reads && !everything;
        let works = match (reads, writes) {
            (true, true) => "reads and writes work",
            (true, false) => "reads work, writes do not",
            (false, true) => "writes work, reads with this read preference do not",
            (false, false) if elsewhere => {
                "neither reads nor writes work; reads with readPreference=secondaryPreferred would"
            }
            (false, false) => "neither reads nor writes work",
        };
        let warnings = findings.iter().filter(|f| f.severity == Severity::Warning).count();
        let top = findings.first();
        let why = match top {
            Some(top) if top.severity == Severity::Problem => top.seen.clone(),
            Some(top) if warnings > 0 => {
                format!("nothing is broken; {}: {}", Counted(warnings, "warning"), top.seen)
            }
            _ => "nothing wrong was found".to_owned(),
        };
        let first = match top {
            Some(top) if top.severity != Severity::Note => top.fixes.first().cloned(),
            _ => None,
        };
        let first = first.unwrap_or_else(|| "nothing to type".to_owned());
        Self { writes, reads, works, why, first }
    }

    /// Tells the verdict.
    pub(super) fn tell(&self, findings: &[Finding], screen: &mut Screen) -> io::Result<()> {
        let style = if self.reads && self.writes { FINE } else { PROBLEM };
        screen.line(format_args!("{style}verdict: {}{style:#}", self.works))?;
        screen.line(format_args!("  {QUIET}why{QUIET:#}   {}", OneLine(&self.why)))?;
        let first = self.first.lines().next().unwrap_or_default();
        screen.line(format_args!("  {QUIET}first{QUIET:#} {}", OneLine(first)))?;
        let problems = findings.iter().any(|finding| finding.severity == Severity::Problem);
        let mut event = counts(if problems { "problems" } else { "fine" }, findings);
        event["reads"] = self.reads.into();
        event["writes"] = self.writes.into();
        event["works"] = self.works.into();
        event["why"] = self.why.as_str().into();
        event["first"] = self.first.as_str().into();
        screen.event("verdict", event)
    }
}

/// Tells how many findings of each sort there are.
pub(super) fn tell_counts(
    screen: &mut Screen,
    result: &str,
    findings: &[Finding],
) -> io::Result<()> {
    screen.event("verdict", counts(result, findings))
}

fn counts(result: &str, findings: &[Finding]) -> serde_json::Value {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    json!({
        "result": result,
        "problems": count(Severity::Problem),
        "warnings": count(Severity::Warning),
        "notes": count(Severity::Note),
    })
}

/// The findings, those of one cause made one. The order is kept: roots come before what follows
/// from them.
pub(super) fn merged(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        let same = |known: &&mut Finding| known.code == finding.code && known.why == finding.why;
        match merged.iter_mut().find(same) {
            Some(known) => known.absorb(finding),
            None => merged.push(finding),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Answers = Answers { writes: true, reads: true, secondary_reads: true };

    #[test]
    fn a_healthy_set_needs_nothing() {
        let summary = Summary::of(ALL, &[]);
        assert_eq!(
            (summary.works, &*summary.why, &*summary.first),
            ("reads and writes work", "nothing wrong was found", "nothing to type")
        );
    }

    #[test]
    fn the_worst_finding_is_the_reason_and_its_first_fix_the_first_step() {
        let login = Finding::problem("login", "who are you")
            .fix("log in")
            .fix("go away")
            .stopping(Stops::Everything);
        let summary = Summary::of(ALL, &[login]);
        assert_eq!((summary.reads, summary.writes), (false, false));
        assert_eq!((&*summary.why, &*summary.first), ("who are you", "log in"));
        let locked = Finding::problem("locked", "locked").stopping(Stops::Writes);
        assert_eq!(Summary::of(ALL, &[locked]).works, "reads work, writes do not");
        let alone = Answers { writes: false, reads: false, secondary_reads: true };
        assert!(Summary::of(alone, &[]).works.contains("secondaryPreferred would"));
    }

    #[test]
    fn findings_of_one_cause_are_one() {
        let down = |host: &str| {
            finding!(problem "refused", "{host} refused").because("down").fix("start it")
        };
        let other = Finding::warning("lag", "behind").because("slow");
        let merged = merged(vec![down("a"), other.clone(), down("b")]);
        assert_eq!(merged.len(), 2);
        assert_eq!(merged[0].seen, "a refused; b refused");
        assert_eq!(merged[0].fixes, ["start it"]);
        assert_eq!(merged[1], other);
    }
}
