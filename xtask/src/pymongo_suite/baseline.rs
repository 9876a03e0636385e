//! How many tests of each file must pass, as committed in `xtask/pymongo-baseline.tsv`.
//!
//! A line has the topology, the file, the numbers of tests that passed, failed and were skipped when
//! it was recorded, and whether CI runs it (`ci`) or people do (`by-hand`): files that wait a lot, or
//! whose tests measure time, are left to people. [`table`](super::table) shows the same to people.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::{Outcomes, Results, Topology, disk, parse_lines, read_list};
use crate::{Failure, process};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RunBy {
    Ci,
    Hand,
}

/// The tests of one file, counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Expectation {
    counts: Counts,
    run_by: RunBy,
}

/// The expected counts, by topology and file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Baseline(BTreeMap<(Topology, String), Expectation>);

impl Baseline {
    /// The committed one.
    pub(super) fn read() -> Result<Self, Failure> {
        read_list(&path(), Self::parse)
    }

    /// Writes what became of these files, and leaves the others. Who runs a file stays as it was.
    pub(super) fn record(results: &Results) -> Result<Self, Failure> {
        // The first time there is none.
        let mut baseline = if path().exists() { Self::read()? } else { Self::default() };
        for (job, outcomes) in results {
            let run_by = baseline.0.get(job).map_or(RunBy::Ci, |expectation| expectation.run_by);
            let counts = Counts {
                passed: outcomes.passed(),
                failed: outcomes.failed(),
                skipped: outcomes.skipped(),
            };
            baseline.0.insert(job.clone(), Expectation { counts, run_by });
        }
        fs::write(path(), baseline.text()).map_err(|error| disk(&path(), &error))?;
        Ok(baseline)
    }

    /// The counts of every file.
    pub(super) fn counts(&self) -> BTreeMap<(Topology, &str), Counts> {
        let counts = self.0.iter().map(|((topology, file), expectation)| {
            ((*topology, file.as_str()), expectation.counts)
        });
        counts.collect()
    }

    /// Everything that people run, in order.
    pub(super) fn jobs(&self) -> impl Iterator<Item = (Topology, String)> {
        self.0.keys().cloned()
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
        self.0.iter().filter_map(|(job, Expectation { counts, run_by })| {
            let found = results.get(job).map_or(0, Outcomes::passed);
            let short = *run_by == RunBy::Ci && found < counts.passed;
            short.then(|| (job.clone(), counts.passed))
        })
    }

    pub(super) fn parse(text: &str) -> Result<Self, &str> {
        parse_lines(text, parse_line).map(Self)
    }

    fn text(&self) -> String {
        let mut text =
            "# Written by `cargo xtask pymongo-suite record`. Passes may only rise.\n".to_owned();
        for ((topology, file), Expectation { counts, run_by }) in &self.0 {
            let run_by = match run_by {
                RunBy::Ci => "ci",
                RunBy::Hand => "by-hand",
            };
            let Counts { passed, failed, skipped } = counts;
            let name = topology.name();
            text += &format!("{name}\t{file}\t{passed}\t{failed}\t{skipped}\t{run_by}\n");
        }
        text
    }
}

fn parse_line(line: &str) -> Option<((Topology, String), Expectation)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [topology, file, passed, failed, skipped, run_by] = fields.as_slice() else { return None };
    let run_by = match *run_by {
        "ci" => RunBy::Ci,
        "by-hand" => RunBy::Hand,
        _ => return None,
    };
    let job = (Topology::from_name(topology)?, (*file).to_owned());
    let number = |text: &str| text.parse().ok();
    let (passed, failed, skipped) = (number(passed)?, number(failed)?, number(skipped)?);
    Some((job, Expectation { counts: Counts { passed, failed, skipped }, run_by }))
}

fn path() -> PathBuf {
    process::root().join("xtask/pymongo-baseline.tsv")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report")]

    use super::*;

    const TEXT: &str =
        "# A comment.\nstandalone\ta.py\t3\t1\t0\tci\nstandalone\tb.py\t5\t0\t2\tby-hand\n";

    fn results(passed: u64) -> Results {
        let passes = (0..passed).map(|n| format!("a.py::{n}")).collect();
        let outcomes = Outcomes { passes, ..Outcomes::default() };
        [((Topology::Standalone, "a.py".to_owned()), outcomes)].into()
    }

    #[test]
    fn what_is_written_can_be_read() {
        let baseline = Baseline::parse(TEXT).unwrap();
        assert_eq!(Baseline::parse(&baseline.text()).unwrap(), baseline);
        for bad in [
            "standalone\ta.py\t3\t1\tci", "nowhere\ta.py\t3\t1\t0\tci",
            "standalone\ta.py\tx\t1\t0\tci",
        ] {
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
