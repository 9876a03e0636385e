//! The kinds of faults, and how often each happened.

use std::fmt;

use clap::ValueEnum;
use serde_json::Value;

quorate_protocol::named! {
    /// A kind of fault.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    pub(crate) enum Kind {
        /// The primary steps down.
        StepDown = "step-down",
        /// A process is killed.
        Kill = "kill",
        /// A process is stopped, and goes on later.
        Pause = "pause",
        /// A member is cut off from the others.
        Partition = "partition",
        /// A disk has no room for new files.
        Disk = "full disk",
        /// The calendar of a member jumps, and stays there until it jumps again.
        Clock = "moved clock",
        /// A member gets another priority, loses its vote, or is removed and added again.
        Reconfigure = "reconfiguration",
    }
}

impl Kind {
    const COUNT: usize = 7;
}

/// How often each fault happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told([usize; Kind::COUNT]);

impl Told {
    pub(super) fn total(&self) -> usize {
        self.0.iter().sum()
    }

    pub(super) fn to_json(self) -> Value {
        let count = |kind: &Kind| (kind.name().to_owned(), self.of(*kind).into());
        Value::Object(Kind::value_variants().iter().map(count).collect())
    }

    fn of(&self, kind: Kind) -> usize {
        self.0[kind as usize]
    }

    pub(super) fn count(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} faults (", self.total())?;
        for (number, kind) in Kind::value_variants().iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}s", self.of(*kind), kind.name())?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_and_told_by_itself() {
        assert_eq!(Kind::value_variants().len(), Kind::COUNT);
        let mut told = Told::default();
        told.count(Kind::Clock);
        told.count(Kind::Clock);
        told.count(Kind::Kill);
        let text = told.to_string();
        assert!(text.starts_with("3 faults (0 step-downs, 1 kills"), "{text}");
        assert!(text.contains("2 moved clocks"), "{text}");
    }
}
