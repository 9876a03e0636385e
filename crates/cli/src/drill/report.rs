//! The verdict of a drill.

use std::time::Duration;

use quorate_protocol::{Counted, MonotonicTime, ServerAddress};
use serde_json::{Value, json};

use super::fault::Kind;
use super::score::Scored;
use super::timeline::Timeline;
use super::writer::{Gap, Written};
use crate::screen::{FINE, Outcome, PROBLEM, Result, Screen};
use crate::what_if::Forecast;
use crate::words::{Span, listed};

/// How many lost writes are named; all are counted.
const MAX_NAMED: usize = 20;

/// Everything that a drill found out.
pub(super) struct Report {
    pub(super) fault: Kind,
    pub(super) target: ServerAddress,
    /// The member that was to lead, if one was named.
    pub(super) to: Option<ServerAddress>,
    pub(super) timeline: Timeline,
    pub(super) written: Written,
    pub(super) lost: Vec<i64>,
    pub(super) max_gap: Option<Duration>,
    /// Whether the broken member came back; none if there was nothing to mend.
    pub(super) mended: Option<bool>,
    /// The forecast; none if the set reported too little.
    pub(super) forecast: Option<Forecast>,
}

impl Report {
    /// The time without acknowledged writes; none if they never went on.
    fn gap(&self) -> Option<Duration> {
        self.silence().map(|gap| gap.length())
    }

    /// The drill beside its forecast; none if either has no end.
    pub(super) fn scored(&self) -> Option<Scored> {
        Scored::new(self.gap()?, self.forecast.as_ref()?)
    }

    fn silence(&self) -> Option<Gap> {
        let recovered = self.timeline.is_recovered();
        recovered.then(|| self.written.longest_gap(self.timeline.fault_at())).flatten()
    }

    /// Milliseconds from the fault, negative before it.
    fn after_fault(&self, at: MonotonicTime) -> f64 {
        let fault = self.timeline.fault_at();
        match at >= fault {
            true => at.since(fault).as_secs_f64() * 1e3,
            false => -(fault.since(at).as_secs_f64() * 1e3),
        }
    }

    /// Whether the member leads that was to lead.
    fn right_primary(&self) -> bool {
        self.to.as_ref().is_none_or(|to| self.timeline.new_primary() == Some(to))
    }

    fn within_limit(&self) -> bool {
        match (self.gap(), self.max_gap) {
            (Some(gap), Some(limit)) => gap <= limit,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    fn passed(&self) -> bool {
        let came_back = self.mended != Some(false);
        self.within_limit() && self.lost.is_empty() && self.right_primary() && came_back
    }

    /// Tells everything, and gives the outcome.
    pub(super) fn tell(&self, screen: &mut Screen) -> Result<Outcome> {
        screen.line(self.gap_line())?;
        if let (Some(to), Some(leads), false) =
            (&self.to, self.timeline.new_primary(), self.right_primary())
        {
            screen.line(format_args!(
                "{PROBLEM}{leads} leads, not {to}{PROBLEM:#}; see its priority and that it is up to \
                 date: quorate status"
            ))?;
        }
        if let Some(line) = self.forecast_line() {
            screen.line(line)?;
        }
        screen.line(self.writes_line())?;
        if self.mended == Some(false) {
            let target = &self.target;
            screen.talk_unless_json(format_args!(
                "{PROBLEM}{target} has not come back{PROBLEM:#}; see its log, and with \
                 quorate watch whether it still does"
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
        let told = self.silence().map(|gap| {
            let (began, ended) = (self.after_fault(gap.began), self.after_fault(gap.ended));
            format!(" ({began:+.0} ms to {ended:+.0} ms)")
        });
        let told = told.unwrap_or_default();
        match self.max_gap {
            None => format!("{FINE}gap {gap}{FINE:#}{told}"),
            Some(limit) if self.within_limit() => {
                format!("{FINE}gap {gap}{FINE:#}{told}, within the limit of {}", Span(limit))
            }
            Some(limit) => format!(
                "{PROBLEM}gap {gap}{PROBLEM:#}{told}, past the limit of {}; lower electionTimeoutMillis, \
                 or raise --max-gap",
                Span(limit)
            ),
        }
    }

    /// How the gap compares with the forecast that was made before.
    fn forecast_line(&self) -> Option<String> {
        let (forecast, gap) = (self.forecast.as_ref()?, self.gap()?);
        let (half, most) = (forecast.quantile(0.5)?, forecast.quantile(0.95)?);
        let compared = if gap <= most { "as expected" } else { "longer than expected" };
        Some(format!(
            "{compared}: the forecast was {} in half of the futures and {} in 95 %",
            Span(half),
            Span(most)
        ))
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
            "to": self.to.as_ref().map(ServerAddress::as_str),
            "gap_ms": self.gap().map(millis),
            "gap_began_after_fault_ms": self.silence().map(|gap| self.after_fault(gap.began)),
            "gap_ended_after_fault_ms": self.silence().map(|gap| self.after_fault(gap.ended)),
            "max_gap_ms": self.max_gap.map(millis),
            "within_limit": self.within_limit(),
            "new_primary": self.timeline.new_primary().map(ServerAddress::as_str),
            "acknowledged": self.written.acknowledged.len(),
            "failed": self.written.failed,
            "lost": self.lost.len(),
            "lost_ids": self.lost.iter().take(MAX_NAMED).collect::<Vec<_>>(),
            "mended": self.mended,
            "forecast": self.forecast.as_ref().map(Forecast::to_json),
            "timeline": self.timeline.to_json(),
        })
    }
}
