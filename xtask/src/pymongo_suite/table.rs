//! The results as a table, on the terminal and in `docs/conformance.md`.

use std::collections::BTreeSet;
use std::fs;

use super::baseline::{Baseline, Counts};
use super::expected::{ExpectedFailures, Reason};
use super::{Outcomes, Results, Topology, VERSION, disk};
use crate::{Failure, process};

const BEGIN: &str = "<!-- pymongo-suite: begin (written by `cargo xtask pymongo-suite record`) -->";
const END: &str = "<!-- pymongo-suite: end -->";

/// One line per file and one per topology.
pub(super) fn text(results: &Results) -> String {
    let mut text = String::new();
    for topology in Topology::ALL {
        let files: Vec<_> = of(results, topology).collect();
        if files.is_empty() {
            continue;
        }
        for (file, outcomes) in &files {
            text += &format!("{:<11} {file:<50} {outcomes}\n", topology.name());
        }
        let name = format!("{} files", files.len());
        text += &format!("{:<11} {name:<50} {}\n", topology.name(), total(results, topology));
    }
    text
}

/// Replaces our section of the document, or adds it.
pub(super) fn write(baseline: &Baseline, expected: &ExpectedFailures) -> Result<(), Failure> {
    let path = process::root().join("docs/conformance.md");
    let before = if path.exists() {
        fs::read_to_string(&path).map_err(|error| disk(&path, &error))?
    } else {
        "# Conformance\n".to_owned()
    };
    let after = replace(&before, &format!("{}\n{}", section(baseline), reasons(expected)));
    fs::write(&path, after).map_err(|error| disk(&path, &error))
}

fn section(baseline: &Baseline) -> String {
    let mut text = format!(
        "## pymongo's own tests\n\nThe files of tests in the source package of pymongo {VERSION}, its \
         synchronous half, run with pytest\nagainst `quorate serve` (standalone), `quorate serve --auth` \
         (guarded), the same with TLS (encrypted) and\na set of three processes, `quorate up` (set), \
         each file with a deployment to itself. Files that talk to no\nserver run once. pymongo skips \
         tests where the deployment is not of the kind they need. `cargo xtask ci`\nguards that the \
         numbers in `xtask/pymongo-baseline.tsv` do not fall, for the files that it has time for;\n\
         `cargo xtask pymongo-suite` runs any of it. The cells: passed / failed / skipped.\n\n"
    );
    text += "| file | standalone | guarded | encrypted | set |\n|---|--:|--:|--:|--:|\n";
    let counts = baseline.counts();
    let totals = Topology::ALL.map(|topology| {
        let mut total = Counts::default();
        for (_, counts) in counts.iter().filter(|((t, _), _)| *t == topology) {
            total.passed += counts.passed;
            total.failed += counts.failed;
            total.skipped += counts.skipped;
        }
        cell(Some(&total))
    });
    text += &format!("| **all** | {} |\n", totals.join(" | "));
    let files: BTreeSet<&str> = counts.keys().map(|(_, file)| *file).collect();
    for file in files {
        let cells = Topology::ALL.map(|topology| cell(counts.get(&(topology, file))));
        text += &format!("| `{file}` | {} |\n", cells.join(" | "));
    }
    text
}

/// Why tests fail, and which.
fn reasons(expected: &ExpectedFailures) -> String {
    let mut text = "### What fails, and why\n\nEvery failure is on the list in \
         `xtask/pymongo-expected-failures.tsv`: one that is not, and one that\nno longer fails, make \
         `cargo xtask pymongo-suite` fail. A star stands for all tests that begin so. One test is not run:\n\
         `test_interrupt_signal` of `test_client.py` needs `$where`, and leaves an alarm behind that ends \
         the file.\n\n\
         | reason | why |\n|---|---|\n"
        .to_owned();
    let by_reason = expected.by_reason();
    for reason in Reason::ALL.iter().filter(|reason| by_reason.contains_key(reason)) {
        text += &format!("| {} | {} |\n", reason.name(), reason.why());
    }
    text += "\n| test | reason |\n|---|---|\n";
    for (reason, tests) in by_reason {
        for test in tests {
            text += &format!("| `{test}` | {} |\n", reason.name());
        }
    }
    text
}

fn cell(counts: Option<&Counts>) -> String {
    match counts {
        Some(Counts { passed, failed, skipped }) => format!("{passed} / {failed} / {skipped}"),
        None => "–".to_owned(),
    }
}

fn of(results: &Results, topology: Topology) -> impl Iterator<Item = (&String, &Outcomes)> {
    results.iter().filter(move |((t, _), _)| *t == topology).map(|((_, file), o)| (file, o))
}

fn total(results: &Results, topology: Topology) -> Outcomes {
    let mut total = Outcomes::default();
    for (_, outcomes) in of(results, topology) {
        total.passes.extend_from_slice(&outcomes.passes);
        total.skips.extend_from_slice(&outcomes.skips);
        total.failures.extend_from_slice(&outcomes.failures);
        total.elapsed += outcomes.elapsed;
    }
    total
}

fn replace(document: &str, section: &str) -> String {
    let section = format!("{BEGIN}\n\n{section}\n{END}\n");
    match (document.split_once(BEGIN), document.split_once(END)) {
        (Some((before, _)), Some((_, after))) => {
            format!("{before}{section}{}", after.strip_prefix('\n').unwrap_or(after))
        }
        _ => format!("{}\n\n{section}", document.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report")]

    use super::*;

    #[test]
    fn the_section_is_added_once_and_replaced_later() {
        let first = replace("# Conformance\n", "one");
        assert_eq!(first, format!("# Conformance\n\n{BEGIN}\n\none\n{END}\n"));
        let second = replace(&format!("{first}\nThe rest.\n"), "two");
        assert_eq!(second, format!("# Conformance\n\n{BEGIN}\n\ntwo\n{END}\n\nThe rest.\n"));
    }

    #[test]
    fn reasons_without_a_test_are_not_explained() {
        let expected = ExpectedFailures::parse("collations\tb.py::C::*\n").unwrap();
        let text = reasons(&expected);
        assert!(text.contains("| `b.py::C::*` | collations |\n"), "{text}");
        assert!(!text.contains("JavaScript"), "{text}");
    }

    #[test]
    fn files_of_one_topology_leave_the_others_empty() {
        let baseline = Baseline::parse("standalone\ttest_x.py\t1\t2\t3\tci\n").unwrap();
        let section = section(&baseline);
        assert!(section.contains("| `test_x.py` | 1 / 2 / 3 | – | – | – |\n"), "{section}");
        let all = "| **all** | 1 / 2 / 3 | 0 / 0 / 0 | 0 / 0 / 0 | 0 / 0 / 0 |\n";
        assert!(section.contains(all), "{section}");
    }
}
