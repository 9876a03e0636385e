//! A finding: what was seen, why it matters, what to type.

use std::io;

use anstyle::Style;
use serde_json::json;

use crate::screen::{NOTE, PROBLEM, QUIET, STRONG, Screen, WARNING};
use crate::words::OneLine;

/// A finding of a severity and a name, with a text as of `format!`: `finding!(problem "refused", text)`.
macro_rules! finding {
    ($severity:ident $code:literal, $($text:tt)+) => {
        $crate::finding::Finding::$severity($code, format!($($text)+))
    };
}

/// How many ways out one finding names.
const MAX_FIXES: usize = 6;

quorate_protocol::named! {
    /// How much a finding matters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Severity {
        /// Something does not work.
        Problem = "problem",
        /// Something works, but not in every case.
        Warning = "warning",
        /// Worth knowing.
        Note = "note",
    }
}

impl Severity {
    const fn style(self) -> Style {
        match self {
            Self::Problem => PROBLEM,
            Self::Warning => WARNING,
            Self::Note => NOTE,
        }
    }
}

/// What does not work because of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stops {
    /// Nothing, or nothing beyond what the servers themselves show.
    #[default]
    Nothing,
    /// Writes.
    Writes,
    /// Reads and writes.
    Everything,
}

/// What was seen, why it matters, what to type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// A stable name, for programs.
    pub(crate) code: &'static str,
    /// How much it matters.
    pub(crate) severity: Severity,
    /// The facts.
    pub(crate) seen: String,
    /// What follows from them.
    pub(crate) why: String,
    /// What to do, best first; each is enough by itself.
    pub(crate) fixes: Vec<String>,
    /// What does not work because of it.
    pub(crate) stops: Stops,
}

impl Finding {
    pub(crate) fn problem(code: &'static str, seen: impl Into<String>) -> Self {
        Self::new(code, Severity::Problem, seen)
    }

    pub(crate) fn warning(code: &'static str, seen: impl Into<String>) -> Self {
        Self::new(code, Severity::Warning, seen)
    }

    pub(crate) fn note(code: &'static str, seen: impl Into<String>) -> Self {
        Self::new(code, Severity::Note, seen)
    }

    pub(crate) fn new(code: &'static str, severity: Severity, seen: impl Into<String>) -> Self {
        let (why, fixes, stops) = (String::new(), Vec::new(), Stops::default());
        Self { code, severity, seen: seen.into(), why, fixes, stops }
    }

    /// The same, which stops something.
    pub(crate) fn stopping(mut self, stops: Stops) -> Self {
        self.stops = stops;
        self
    }

    /// The same with its reason.
    pub(crate) fn because(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// The same with one more way out.
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fixes.push(fix.into());
        self
    }

    /// Makes one of two findings that have the same cause.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.severity = self.severity.min(other.severity);
        if !self.seen.contains(&other.seen) {
            self.seen = format!("{}; {}", self.seen, other.seen);
        }
        let news = other.fixes.into_iter().filter(|fix| !self.fixes.contains(fix));
        let news: Vec<String> = news.collect();
        self.fixes.extend(news);
        self.fixes.truncate(MAX_FIXES);
        if self.stops == Stops::Nothing {
            self.stops = other.stops;
        }
    }

    /// Tells it, to people or to programs.
    pub(crate) fn tell(&self, screen: &mut Screen) -> io::Result<()> {
        screen.event("finding", self.to_json())?;
        let style = self.severity.style();
        let name = self.severity.name();
        // Names in it may come from outside.
        let seen = OneLine(&self.seen);
        screen.line(format_args!("{style}{name:<8}{style:#} {STRONG}{seen}{STRONG:#}"))?;
        if !self.why.is_empty() {
            screen.line(format_args!("    {QUIET}why{QUIET:#} {}", OneLine(&self.why)))?;
        }
        for (position, fix) in self.fixes.iter().enumerate() {
            let label = if position == 0 { "fix" } else { " or" };
            let mut lines = fix.lines();
            let first = lines.next().unwrap_or_default();
            screen.line(format_args!("    {QUIET}{label}{QUIET:#} {}", OneLine(first)))?;
            for line in lines {
                screen.line(format_args!("        {}", OneLine(line)))?;
            }
        }
        Ok(())
    }

    /// The finding as an object.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        json!({
            "code": self.code,
            "severity": self.severity.name(),
            "seen": self.seen,
            "why": self.why,
            "fixes": self.fixes,
        })
    }
}
