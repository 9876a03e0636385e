//! How many tests of each file must pass, as committed in `xtask/pymongo-baseline.tsv`.
//!
//! A line has the topology, the file, the number of tests that passed when it was recorded, and
//! whether CI runs it (`ci`) or people do (`by-hand`): files that wait a lot, or whose tests measure
//! time, are left to people.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::{Results, Topology, disk};
use crate::{Failure, process};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RunBy {
    Ci,
    Hand,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Expectation {
    passed: u64,
    run_by: RunBy,
}

/// What is expected, by topology and file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Baseline(BTreeMap<(Topology, String), Expectation>);

impl Baseline {
    /// The committed one.
    pub(super) fn read() -> Result<Self, Failure> {
        let path = path();
        let text = fs::read_to_string(&path).map_err(|error| disk(&path, &error))?;
        Self::parse(&text)
            .map_err(|line| Failure(format!("{}: cannot be read: {line:?}", path.display())))
    }

    /// Writes what passed now. Who runs a file stays as it was.
    pub(super) fn record(results: &Results) -> Result<(), Failure> {
        // The first time there is none.
        let before = if path().exists() { Self::read()? } else { Self::default() };
        let after = results.iter().map(|(job, outcomes)| {
            let run_by = before.0.get(job).map_or(RunBy::Ci, |expectation| expectation.run_by);
            (job.clone(), Expectation { passed: outcomes.passed, run_by })
        });
        let text = Self(after.collect()).text();
        fs::write(path(), text).map_err(|error| disk(&path(), &error))
    }

    /// What CI runs.
    pub(super) fn guarded(&self) -> impl Iterator<Item = (Topology, String)> {
        let guarded = self.0.iter().filter(|(_, expectation)| expectation.run_by == RunBy::Ci);
        guarded.map(|(job, _)| job.clone())
    }

    /// The files that CI runs of which fewer tests passed, with the number that should have.
    pub(super) fn shortfalls(
        &self,
        results: &Results,
    ) -> impl Iterator<Item = ((Topology, String), u64)> {
        self.0.iter().filter_map(|(job, Expectation { passed, run_by })| {
            let found = results.get(job).map_or(0, |outcomes| outcomes.passed);
            (*run_by == RunBy::Ci && found < *passed).then(|| (job.clone(), *passed))
        })
    }

    fn parse(text: &str) -> Result<Self, &str> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(|line| parse_line(line).ok_or(line)).collect::<Result<_, _>>().map(Self)
    }

    fn text(&self) -> String {
        let mut text =
            "# Written by `cargo xtask pymongo-suite record`. Numbers may only rise.\n".to_owned();
        for ((topology, file), Expectation { passed, run_by }) in &self.0 {
            let run_by = match run_by {
                RunBy::Ci => "ci",
                RunBy::Hand => "by-hand",
            };
            text += &format!("{}\t{file}\t{passed}\t{run_by}\n", topology.name());
        }
        text
    }
}

fn parse_line(line: &str) -> Option<((Topology, String), Expectation)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [topology, file, passed, run_by] = fields.as_slice() else { return None };
    let run_by = match *run_by {
        "ci" => RunBy::Ci,
        "by-hand" => RunBy::Hand,
        _ => return None,
    };
    let job = (Topology::from_name(topology)?, (*file).to_owned());
    Some((job, Expectation { passed: passed.parse().ok()?, run_by }))
}

fn path() -> PathBuf {
    process::root().join("xtask/pymongo-baseline.tsv")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report")]

    use super::super::Outcomes;
    use super::*;

    const TEXT: &str = "# A comment.\nstandalone\ta.py\t3\tci\nstandalone\tb.py\t5\tby-hand\n";

    fn results(passed: u64) -> Results {
        let outcomes = Outcomes { passed, ..Outcomes::default() };
        [((Topology::Standalone, "a.py".to_owned()), outcomes)].into()
    }

    #[test]
    fn what_is_written_can_be_read() {
        let baseline = Baseline::parse(TEXT).unwrap();
        assert_eq!(Baseline::parse(&baseline.text()).unwrap(), baseline);
        for bad in ["standalone\ta.py\t3", "nowhere\ta.py\t3\tci", "standalone\ta.py\tx\tci"] {
            assert_eq!(Baseline::parse(bad), Err(bad));
        }
    }

    #[test]
    fn only_files_that_ci_runs_can_fall_short() {
        let baseline = Baseline::parse(TEXT).unwrap();
        let shortfalls = |passed| baseline.shortfalls(&results(passed)).count();
        assert_eq!((shortfalls(2), shortfalls(3), shortfalls(4)), (1, 0, 0));
        assert_eq!(baseline.shortfalls(&Results::new()).count(), 1);
        assert_eq!(baseline.guarded().count(), 1);
    }
}
