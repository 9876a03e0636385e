//! What became of one file of tests.

use std::fmt;
use std::time::Duration;

/// The tests of one file by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Outcomes {
    pub(crate) passes: Vec<String>,
    pub(crate) skips: Vec<String>,
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
                Some(("passed", test)) => outcomes.passes.push(short_name(test)),
                Some(("skipped", test)) => outcomes.skips.push(short_name(test)),
                Some((_, test)) => outcomes.failures.push(short_name(test)),
                None => {}
            }
        }
        outcomes
    }

    pub(crate) fn passed(&self) -> u64 {
        self.passes.len() as u64
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.skips.len() as u64
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failures.len() as u64
    }
}

/// All of them are in one folder, which need not be said each time.
fn short_name(test: &str) -> String {
    test.strip_prefix("test/").unwrap_or(test).to_owned()
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed, skipped) = (self.passed(), self.failed(), self.skipped());
        let seconds = self.elapsed.as_secs_f64();
        write!(f, "{passed:4} passed {failed:4} failed {skipped:4} skipped {seconds:6.1} s")?;
        if self.cut_short { f.write_str("  cut short") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_and_named() {
        let text = "passed test/a.py::a\nskipped b\nfailed test/c.py::c\nerror d\npassed e\n";
        let outcomes = Outcomes::read(text, Duration::ZERO, false);
        assert_eq!((outcomes.passed(), outcomes.skipped(), outcomes.failed()), (2, 1, 2));
        assert_eq!(outcomes.passes, ["a.py::a", "e"]);
        assert_eq!(outcomes.failures, ["c.py::c", "d"]);
    }
}
