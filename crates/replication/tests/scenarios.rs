//! Scenario traces: text files that pair commands with what the members tell.
//!
//! Each `scenarios/*.txt` is run from its start; the lines under a command must be what the members
//! said. `QUORATE_UPDATE_SNAPSHOTS=1 cargo test -p quorate-replication --test scenarios` writes them anew, for
//! a person to review as a diff.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod stage;

use std::path::{Path, PathBuf};

use quorate_provision::snapshot;
use stage::Stage;

fn scenario_files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The file with its traces replaced by what happens now.
fn replay(text: &str) -> String {
    let mut stage = Stage::new();
    let mut out = String::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            out.push_str(line);
            out.push('\n');
            out.push_str(&stage.perform(command));
        } else if line.starts_with('#') || line.is_empty() {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[test]
fn every_scenario_reads_as_it_is_written() {
    let files = scenario_files();
    assert!(files.len() >= 10, "the scenarios are there");
    let compare = |file: &PathBuf| snapshot(file, &replay(&std::fs::read_to_string(file).unwrap()));
    let wrong: Vec<String> = files.iter().filter_map(|file| compare(file).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_changed_trace_is_noticed() {
    let text = "> members 1\n> initiate m0 with m0\n> run 1s\n";
    let once = replay(text);
    assert!(once.contains("writable in term 1"), "{once}");
    assert_eq!(replay(&once), once);
}
