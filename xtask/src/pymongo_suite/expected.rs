//! The tests that are known to fail and why, as committed in `xtask/pymongo-expected-failures.tsv`.
//!
//! A line has the reason and the test; a `*` at the end stands for all tests that begin so. A failure
//! that is not listed is a regression, and a line whose tests pass has to be taken off: the list
//! stays true. [`table`](super::table) shows it to people.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Results, Topology, parse_lines, read_list};
use crate::{Failure, process};

macro_rules! reasons {
    ($($reason:ident = $name:literal, $why:literal;)+) => {
        /// Why a test cannot pass.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub(super) enum Reason {
            $($reason,)+
        }

        impl Reason {
            /// In the order of the document.
            pub(super) const ALL: &[Self] = &[$(Self::$reason,)+];

            /// As it is written in the list and in the document.
            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                }
            }

            /// For the document.
            pub(super) fn why(self) -> &'static str {
                match self {
                    $(Self::$reason => $why,)+
                }
            }
        }
    };
}

reasons! {
    Collations = "collations",
        "Texts are compared by their code points. Every collation but `simple` is refused.";
    JavaScript = "JavaScript", "The server runs none: `$where`, by which a test makes a query slow, is refused.";
    TimeSeries = "time-series collections", "Not offered. `create` with `timeseries` is refused.";
    Clustered = "clustered collections", "Not offered. `create` with `clusteredIndex` is refused.";
    GeoAndText = "geo and text indexes", "Not offered. `createIndexes` refuses them.";
    Roles = "user-defined roles", "Not offered: there are the built-in roles, and no `createRole`.";
    TestCommands = "test commands",
        "`testVersion2` and its like exist only in the servers of their authors.";
    DomainNames = "domain names", "The test asks the internet's DNS for names of its authors.";
}

/// One line of the list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Expected {
    pub(super) reason: Reason,
    /// A file and a test with two colons between them, or the beginning of that and `*`.
    pub(super) test: String,
}

impl Expected {
    fn covers(&self, test: &str) -> bool {
        match self.test.strip_suffix('*') {
            Some(beginning) => test.starts_with(beginning),
            None => self.test == test,
        }
    }
}

/// The list.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ExpectedFailures(Vec<Expected>);

impl ExpectedFailures {
    /// The committed one.
    pub(super) fn read() -> Result<Self, Failure> {
        read_list(&path(), Self::parse)
    }

    pub(super) fn parse(text: &str) -> Result<Self, &str> {
        parse_lines(text, parse_line).map(Self)
    }

    /// What differs from the list, by topology and file: one line of words per test.
    pub(super) fn surprises(&self, results: &Results) -> BTreeMap<(Topology, String), Vec<String>> {
        let mut surprises = BTreeMap::new();
        for (job, outcomes) in results {
            let unexpected = outcomes.failures.iter().filter(|test| !self.covers(test));
            let unexpected = unexpected.map(|test| format!("{test} fails"));
            let passes = |line: &&Expected| {
                let covered = |tests: &[String]| tests.iter().any(|test| line.covers(test));
                // What was skipped fails elsewhere, and a file that was cut short has not said
                // everything.
                let silent = covered(&outcomes.skips) || outcomes.cut_short;
                covered(&outcomes.passes) && !covered(&outcomes.failures) && !silent
            };
            let stale = self.0.iter().filter(passes);
            let stale = stale.map(|line| {
                format!("{} passes: take it off the list of expected failures", line.test)
            });
            let found: Vec<_> = unexpected.chain(stale).collect();
            if !found.is_empty() {
                surprises.insert(job.clone(), found);
            }
        }
        surprises
    }

    /// Every line, by reason.
    pub(super) fn by_reason(&self) -> BTreeMap<Reason, Vec<&str>> {
        let mut tests = BTreeMap::<_, Vec<_>>::new();
        for line in &self.0 {
            tests.entry(line.reason).or_default().push(line.test.as_str());
        }
        tests
    }

    fn covers(&self, test: &str) -> bool {
        self.0.iter().any(|line| line.covers(test))
    }
}

fn parse_line(line: &str) -> Option<Expected> {
    let (reason, test) = line.split_once('\t')?;
    let reason = Reason::ALL.iter().find(|known| known.name() == reason)?;
    let is_test = test.contains(".py::") && !test.contains('\t');
    is_test.then(|| Expected { reason: *reason, test: test.to_owned() })
}

fn path() -> PathBuf {
    process::root().join("xtask/pymongo-expected-failures.tsv")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report")]

    use super::super::Outcomes;
    use super::*;

    const LIST: &str = "# A comment.\ncollations\ta.py::A::one\nJavaScript\ta.py::B::*\n";

    fn surprises(passes: &[&str], failures: &[&str], cut_short: bool) -> Vec<String> {
        let names = |tests: &[&str]| tests.iter().map(|test| (*test).to_owned()).collect();
        let (passes, failures) = (names(passes), names(failures));
        let outcomes = Outcomes { passes, failures, cut_short, ..Outcomes::default() };
        let results = [((Topology::Standalone, "a.py".to_owned()), outcomes)].into();
        let surprises = ExpectedFailures::parse(LIST).unwrap().surprises(&results);
        surprises.into_values().flatten().collect()
    }

    #[test]
    fn failures_must_be_on_the_list_and_passes_must_not() {
        assert_eq!(surprises(&["a.py::A::two"], &["a.py::A::one"], false), [""; 0]);
        assert_eq!(surprises(&[], &["a.py::A::two"], false), ["a.py::A::two fails"]);
        let stale = surprises(&["a.py::A::one"], &[], false);
        assert!(matches!(stale.as_slice(), [only] if only.starts_with("a.py::A::one passes")));
        assert_eq!(surprises(&["a.py::A::one"], &[], true), [""; 0], "it may yet fail");
    }

    #[test]
    fn a_star_covers_many_of_which_one_must_fail() {
        assert_eq!(surprises(&["a.py::B::one"], &["a.py::B::two"], false), [""; 0]);
        assert_eq!(surprises(&["a.py::B::one", "a.py::B::two"], &[], false).len(), 1);
    }

    #[test]
    fn lines_that_say_nothing_are_refused() {
        for bad in ["fun\ta.py::A::one", "collations", "collations\ta.py", "JavaScript\ta.py::b\tc"]
        {
            assert_eq!(ExpectedFailures::parse(bad), Err(bad));
        }
    }

    #[test]
    fn the_committed_list_can_be_read() {
        assert!(!ExpectedFailures::read().unwrap().0.is_empty());
    }
}
