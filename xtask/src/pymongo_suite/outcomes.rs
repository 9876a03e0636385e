//! What became of one file of tests.

use std::fmt;
use std::time::Duration;

/// The tests of one file, counted; those that failed by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Outcomes {
    pub(crate) passed: u64,
    pub(crate) skipped: u64,
    pub(crate) failures: Vec<String>,
    pub(crate) elapsed: Duration,
    /// Whether it took too long and was ended.
    pub(crate) cut_short: bool,
}

impl Outcomes {
    /// Reads what the plugin wrote.
    pub(crate) fn read(text: &str, elapsed: Duration, cut_short: bool) -> Self {
        let mut outcomes = Self { elapsed, cut_short, ..Self::default() };
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("passed", _)) => outcomes.passed += 1,
                Some(("skipped", _)) => outcomes.skipped += 1,
                Some((_, test)) => outcomes.failures.push(test.to_owned()),
                None => {}
            }
        }
        outcomes
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failures.len() as u64
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, skipped, elapsed, .. } = self;
        let seconds = elapsed.as_secs_f64();
        write!(
            f,
            "{passed:4} passed {:4} failed {skipped:4} skipped {seconds:6.1} s",
            self.failed()
        )?;
        if self.cut_short { f.write_str("  cut short") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_and_failures_named() {
        let text = "passed a\nskipped b\nfailed c\nerror d\npassed e\n";
        let outcomes = Outcomes::read(text, Duration::ZERO, false);
        assert_eq!((outcomes.passed, outcomes.skipped, outcomes.failed()), (2, 1, 2));
        assert_eq!(outcomes.failures, ["c", "d"]);
    }
}
