//! What a checker says.

use std::fmt;

use crate::picture;

/// What a checker found in one history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How many operations the checker judged.
    pub operations: usize,
    /// What the guarantee does not explain. At most a few of each kind are kept.
    pub anomalies: Vec<Anomaly>,
    /// Why the checker could not decide, if it could not.
    pub undecided: Option<String>,
}

impl Verdict {
    /// Whether the guarantee explains the whole history.
    pub fn is_valid(&self) -> bool {
        self.anomalies.is_empty() && self.undecided.is_none()
    }

    /// Adds an anomaly unless enough of its kind are known.
    pub(crate) fn add(&mut self, anomaly: Anomaly) {
        /// Anomalies of one kind that are worth reading.
        const MAX_OF_A_KIND: usize = 5;
        let known = self.anomalies.iter().filter(|known| known.name == anomaly.name).count();
        if known < MAX_OF_A_KIND && !self.anomalies.contains(&anomaly) {
            self.anomalies.push(anomaly);
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_valid() {
            return write!(f, "valid: the guarantee explains all {} operations", self.operations);
        }
        if let Some(why) = &self.undecided {
            writeln!(f, "undecided: {why}")?;
        }
        for anomaly in &self.anomalies {
            writeln!(f, "{anomaly}")?;
        }
        Ok(())
    }
}

/// Something that the guarantee does not explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// Its usual name: of isolation, the name that Adya gave it.
    pub name: &'static str,
    /// What is wrong, in one sentence.
    pub summary: String,
    /// Why, one fact a step. Of a cycle, its edges in order.
    pub steps: Vec<Step>,
}

/// One fact that an anomaly rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The operation that the fact is about.
    pub from: String,
    /// The relation to the next operation; empty if there is none.
    pub relation: &'static str,
    /// The operation at the other end of the relation; empty if there is none.
    pub to: String,
    /// The fact as a sentence.
    pub sentence: String,
}

impl Step {
    /// A fact about one operation.
    pub(crate) fn fact(from: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { from: from.into(), relation: "", to: String::new(), sentence: sentence.into() }
    }
}

impl Anomaly {
    pub(crate) fn new(name: &'static str, summary: impl Into<String>, steps: Vec<Step>) -> Self {
        Self { name, summary: summary.into(), steps }
    }

    /// The operations and their relations as a picture.
    pub fn to_svg(&self) -> String {
        picture::draw(self)
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.summary)?;
        for step in &self.steps {
            write!(f, "\n  {}", step.sentence)?;
        }
        Ok(())
    }
}
