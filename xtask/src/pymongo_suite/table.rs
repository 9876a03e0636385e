//! The results as a table, on the terminal and in `docs/conformance.md`.

use std::fs;

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
pub(super) fn write(results: &Results) -> Result<(), Failure> {
    let path = process::root().join("docs/conformance.md");
    let before = if path.exists() {
        fs::read_to_string(&path).map_err(|error| disk(&path, &error))?
    } else {
        "# Conformance\n".to_owned()
    };
    let after = replace(&before, &section(results));
    fs::write(&path, after).map_err(|error| disk(&path, &error))
}

fn section(results: &Results) -> String {
    let mut text = format!(
        "## pymongo's own tests\n\nThe files of tests in the source package of pymongo {VERSION}, its \
         synchronous half, run with pytest\nagainst `quorate serve` (standalone), `quorate serve --auth` \
         (guarded) and a set of three processes,\n`quorate up` (set), each file with a deployment to \
         itself. pymongo skips tests where the deployment is\nnot of the kind they need. `cargo xtask ci` \
         guards that the numbers in `xtask/pymongo-baseline.tsv` do\nnot fall; `cargo xtask \
         pymongo-suite` runs any of it. The cells: passed / failed / skipped.\n\n"
    );
    text += "| file | standalone | guarded | set |\n|---|--:|--:|--:|\n";
    let totals = Topology::ALL.map(|topology| cell(Some(&total(results, topology))));
    text += &format!("| **all** | {} |\n", totals.join(" | "));
    let mut files: Vec<&String> = results.keys().map(|(_, file)| file).collect();
    files.sort();
    files.dedup();
    for file in files {
        let cells = Topology::ALL.map(|topology| cell(results.get(&(topology, file.clone()))));
        text += &format!("| `{file}` | {} |\n", cells.join(" | "));
    }
    text
}

fn cell(outcomes: Option<&Outcomes>) -> String {
    let Some(outcomes) = outcomes else { return "–".to_owned() };
    let Outcomes { passed, skipped, .. } = outcomes;
    let mark = if outcomes.cut_short { " (cut short)" } else { "" };
    format!("{passed} / {} / {skipped}{mark}", outcomes.failed())
}

fn of(results: &Results, topology: Topology) -> impl Iterator<Item = (&String, &Outcomes)> {
    results.iter().filter(move |((t, _), _)| *t == topology).map(|((_, file), o)| (file, o))
}

fn total(results: &Results, topology: Topology) -> Outcomes {
    let mut total = Outcomes::default();
    for (_, outcomes) in of(results, topology) {
        total.passed += outcomes.passed;
        total.skipped += outcomes.skipped;
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
    use super::*;

    #[test]
    fn the_section_is_added_once_and_replaced_later() {
        let first = replace("# Conformance\n", "one");
        assert_eq!(first, format!("# Conformance\n\n{BEGIN}\n\none\n{END}\n"));
        let second = replace(&format!("{first}\nThe rest.\n"), "two");
        assert_eq!(second, format!("# Conformance\n\n{BEGIN}\n\ntwo\n{END}\n\nThe rest.\n"));
    }

    #[test]
    fn files_of_one_topology_leave_the_other_empty() {
        let outcomes = Outcomes::read("passed a\nfailed b\n", std::time::Duration::ZERO, false);
        let results = [((Topology::Standalone, "test_x.py".to_owned()), outcomes)].into();
        let section = section(&results);
        assert!(section.contains("| `test_x.py` | 1 / 1 / 0 | – | – |\n"), "{section}");
        assert!(section.contains("| **all** | 1 / 1 / 0 | 0 / 0 / 0 | 0 / 0 / 0 |\n"), "{section}");
    }
}
