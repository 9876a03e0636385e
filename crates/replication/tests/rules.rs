//! `docs/replication-rules.md` names a test for every rule. Here the names are looked up: one that is
//! neither a test of the workspace nor a scenario, a rule without one, or a scenario that no rule
//! names, is a failure.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The heading under which rules stand that are not kept, with a reason in place of a test.
const NOT_KEPT: &str = "Not kept";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file below a folder with this ending.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

/// The names of the functions of a source that a test attribute stands before.
fn tests_of(source: &str) -> Vec<String> {
    let mut tests = Vec::new();
    let mut marked = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| marked) {
            tests.extend(rest.split(['(', '<']).next().map(str::to_owned));
            marked = false;
        }
    }
    tests
}

fn scenarios() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut found = Vec::new();
    files(&folder, "txt", &mut found);
    found.iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

/// A line of a table: the rule, and the names beside it.
struct Rule {
    section: String,
    text: String,
    names: Vec<String>,
}

fn rules(page: &str) -> Vec<Rule> {
    let mut section = String::new();
    let mut rules = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.to_owned();
        }
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else {
            continue;
        };
        let (text, shown) = row.split_once(" | ").unwrap_or((row, ""));
        if text.starts_with("rule") {
            continue;
        }
        let names = shown.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        rules.push(Rule { section: section.clone(), text: text.to_owned(), names });
    }
    rules
}

#[test]
fn every_rule_names_a_test_that_exists() {
    let page = std::fs::read_to_string(root().join("docs/replication-rules.md")).unwrap();
    let mut sources = Vec::new();
    files(&root().join("crates"), "rs", &mut sources);
    let mut known = scenarios();
    for source in sources {
        known.extend(tests_of(&std::fs::read_to_string(source).unwrap()));
    }
    let (kept, dropped): (Vec<Rule>, Vec<Rule>) =
        rules(&page).into_iter().partition(|rule| rule.section != NOT_KEPT);
    assert!(kept.len() > 200 && !dropped.is_empty(), "the tables were read");
    let mut wrong = Vec::new();
    for rule in &kept {
        if rule.names.is_empty() {
            wrong.push(format!("{}: no test for: {}", rule.section, rule.text));
        }
        for name in rule.names.iter().filter(|name| !known.contains(*name)) {
            wrong.push(format!("{}: there is no {name}, for: {}", rule.section, rule.text));
        }
    }
    let named: BTreeSet<&String> = kept.iter().flat_map(|rule| &rule.names).collect();
    for story in scenarios().iter().filter(|story| !named.contains(story)) {
        wrong.push(format!("no rule names the scenario {story}"));
    }
    assert!(wrong.is_empty(), "docs/replication-rules.md:\n{}", wrong.join("\n"));
}

#[test]
fn a_name_that_is_no_test_is_noticed() {
    let source = "#[test]\nfn real() {}\nfn helper() {}\n#[tokio::test]\nasync fn too(a: u8) {}";
    assert_eq!(tests_of(source), ["real", "too"]);
    let read =
        rules("## 1 A\n| rule | shown by |\n|---|---|\n| x, `y` | `real`, `too` |\n| z | |\n");
    assert_eq!(read.len(), 2);
    assert_eq!(
        (read[0].names.as_slice(), read[1].names.len()),
        (&["real".into(), "too".into()][..], 0)
    );
}
