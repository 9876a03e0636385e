//! The verdict of a drill.

use std::time::Duration;

use quorate_protocol::ServerAddress;
use serde_json::{Value, json};

use super::fault::Kind;
use super::timeline::Timeline;
use super::writer::Written;
use crate::screen::{FINE, Failure, Outcome, PROBLEM, Screen, WARNING};
use crate::words::{Counted, Span, listed};

/// How many lost writes are named; all are counted.
const MAX_NAMED: usize = 20;

/// Everything that a drill found out.
pub(super) struct Report {
    pub(super) fault: Kind,
    pub(super) target: ServerAddress,
    pub(super) timeline: Timeline,
    pub(super) written: Written,
    pub(super) lost: Vec<i64>,
    pub(super) max_gap: Option<Duration>,
    /// Whether the broken member came back; none if there was nothing to mend.
    pub(super) mended: Option<bool>,
}

impl Report {
    /// The time without acknowledged writes; none if they never went on.
    fn gap(&self) -> Option<Duration> {
        let recovered = self.timeline.is_recovered();
        recovered.then(|| self.written.longest_gap(self.timeline.fault_at())).flatten()
    }

    fn within_limit(&self) -> bool {
        match (self.gap(), self.max_gap) {
            (Some(gap), Some(limit)) => gap <= limit,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    fn passed(&self) -> bool {
        self.within_limit() && self.lost.is_empty()
    }

    /// Tells everything, and gives the outcome.
    pub(super) fn tell(&self, screen: &mut Screen) -> Result<Outcome, Failure> {
        screen.line(self.gap_line())?;
        screen.line(self.writes_line())?;
        if self.mended == Some(false) {
            let target = &self.target;
            screen.talk_unless_json(format_args!(
                "{WARNING}warning{WARNING:#} {target} has not come back yet; quorate watch shows \
                 whether it does"
            ));
        }
        screen.event("drill", self.to_json())?;
        Ok(if self.passed() { Outcome::Fine } else { Outcome::ProblemFound })
    }

    fn gap_line(&self) -> String {
        let Some(gap) = self.gap() else {
            let why = match &self.written.last_error {
                Some(error) => format!(": {error}"),
                None => String::new(),
            };
            return format!("{PROBLEM}failed{PROBLEM:#}: writes did not go on{why}");
        };
        let gap = Span(gap);
        match self.max_gap {
            None => format!("{FINE}gap {gap}{FINE:#}"),
            Some(limit) if self.within_limit() => {
                format!("{FINE}gap {gap}{FINE:#}, within the limit of {}", Span(limit))
            }
            Some(limit) => format!(
                "{PROBLEM}gap {gap}{PROBLEM:#}, past the limit of {}; lower electionTimeoutMillis, \
                 or raise --max-gap",
                Span(limit)
            ),
        }
    }

    fn writes_line(&self) -> String {
        let count = Counted(self.written.acknowledged.len(), "write");
        let failed = match self.written.failed {
            0 => "none failed".to_owned(),
            failed => format!("{failed} failed"),
        };
        match self.lost.len() {
            0 => format!("{count} acknowledged, {failed}, every acknowledged one was read back"),
            lost => {
                let named = listed(self.lost.iter().take(MAX_NAMED));
                let more = if lost > MAX_NAMED { ", …" } else { "" };
                format!(
                    "{PROBLEM}{} lost{PROBLEM:#} of {count} acknowledged, {failed}: _id {named}{more}; \
                     keep the logs of all members and report it",
                    Counted(lost, "write")
                )
            }
        }
    }

    fn to_json(&self) -> Value {
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        json!({
            "fault": self.fault.name(),
            "target": self.target.as_str(),
            "passed": self.passed(),
            "gap_ms": self.gap().map(millis),
            "max_gap_ms": self.max_gap.map(millis),
            "within_limit": self.within_limit(),
            "new_primary": self.timeline.new_primary().map(ServerAddress::as_str),
            "acknowledged": self.written.acknowledged.len(),
            "failed": self.written.failed,
            "lost": self.lost.len(),
            "lost_ids": self.lost.iter().take(MAX_NAMED).collect::<Vec<_>>(),
            "mended": self.mended,
            "timeline": self.timeline.to_json(),
        })
    }
}
