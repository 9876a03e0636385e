//! `cargo xtask planted`: bugs that are planted in the half of a member that holds the data, one at a
//! time, in a copy of the sources; the simulator runs worlds until a judge objects.
//!
//! A bug that no world catches within its bound is a failure: the judges would sleep through the same
//! mistake made in earnest. What was found is in docs/simulator.md.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::Failure;
use crate::process;

/// A deliberate bug.
struct Bug {
    name: &'static str,
    /// Files, what is in them, and what takes its place.
    changes: &'static [(&'static str, &'static str, &'static str)],
    /// Worlds within which it must be caught.
    worlds: u32,
}

const APPLY: &str = "crates/node/src/replication/apply.rs";
const COPYING: &str = "crates/member/src/copying.rs";
const REPLICA: &str = "crates/member/src/replica.rs";

const BUGS: [Bug; 9] = [
    Bug {
        name: "a prepared change is used although its document has changed since",
        changes: &[(
            APPLY,
            "if self.committed.contains(&key) {",
            "if self.committed.len() > 1 << 30 {",
        )],
        worlds: 40,
    },
    Bug {
        name: "a unique key passes from one document to another within one commit",
        changes: &[(
            APPLY,
            "if shares_keys && !self.deferred.is_empty() {",
            "if shares_keys && self.deferred.len() > 1 << 30 {",
        )],
        worlds: 40,
    },
    Bug {
        name: "an unfinished copy is taken for a whole one after a restart",
        changes: &[(
            "crates/node/src/replication/facts.rs",
            "initial_sync: initial_sync.is_some_and(|row| row.get_bool(\"on\").unwrap_or(false)),",
            "initial_sync: initial_sync.is_some_and(|row| row.len() > 1 << 30),",
        )],
        worlds: 200,
    },
    Bug {
        name: "a vote is not forced to disk",
        changes: &[
            (
                "crates/node/src/replication/facts.rs",
                "        self.sync_through(sequence)\n",
                "        let _ = sequence;\n        Ok(())\n",
            ),
            ("crates/simulator/src/cluster.rs", "stored.and_then(|()| data.sync_log())", "stored"),
        ],
        worlds: 10,
    },
    Bug {
        name: "the journal is never forced to disk",
        changes: &[(
            "crates/node/src/node.rs",
            "Ok(self.store.sync_through(sequence)?)",
            "{ let _ = sequence; Ok(()) }",
        )],
        worlds: 10,
    },
    Bug {
        name: "a copy ends before its stop point",
        changes: &[
            (
                COPYING,
                "&self.progress, node, now)?.op_time >= stop.op_time {",
                "&self.progress, node, now)?.op_time >= place {",
            ),
            (
                "crates/node/src/replication/clone.rs",
                "if last != at.op_time {",
                "if last > at.op_time {",
            ),
        ],
        worlds: 60,
    },
    Bug {
        name: "a gap between batches is accepted",
        changes: &[
            (
                APPLY,
                "if last == previous || (last > previous && is_among()) {",
                "if last >= previous || is_among() || last < previous {",
            ),
            (
                REPLICA,
                "self.orders.push_back(Order::Change(DataChange::Apply(entries)));",
                "if entries.entries.len() != 3 {\n                self.orders.push_back(Order::Change(DataChange::Apply(entries)));\n            }",
            ),
        ],
        worlds: 10,
    },
    Bug {
        name: "the gate for writes stays open at a step-down",
        changes: &[(
            REPLICA,
            "self.publish(now, view, writable);\n            self.node.set_writable(None, now);\n",
            "self.publish(now, view, writable);\n",
        )],
        worlds: 100,
    },
    Bug {
        name: "a copy does not bring what sessions did",
        changes: &[(
            COPYING,
            "None => sessions_after(&[]),",
            "None => Stage::Done(InitialSyncOutcome::Cloned),",
        )],
        worlds: 40,
    },
];

/// Plants every bug, or the one whose name contains this text, and prints which world caught it.
pub(crate) fn run(only: Option<&str>) -> Result<(), Failure> {
    let tree = process::target_directory().join("planted");
    copy_sources(&tree)?;
    let mut survivors = Vec::new();
    for bug in BUGS.iter().filter(|bug| only.is_none_or(|text| bug.name.contains(text))) {
        let kept = plant(bug, &tree)?;
        let told = sweep(bug, &tree);
        for (path, text) in kept {
            fs::write(&path, text).map_err(|error| cannot(&path, &error))?;
        }
        match told? {
            Some(line) => println!("caught: {}\n    {line}", bug.name),
            None => {
                println!("SURVIVED {} worlds: {}", bug.worlds, bug.name);
                survivors.push(bug.name);
            }
        }
    }
    if survivors.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("no world caught:\n  {}", survivors.join("\n  "))))
}

/// What is committed, beside what is built.
fn copy_sources(tree: &Path) -> Result<(), Failure> {
    fs::create_dir_all(tree).map_err(|error| cannot(tree, &error))?;
    let mut archive = process::program("git");
    archive.args(["archive", "HEAD"]).stdout(Stdio::piped());
    let mut archive = archive.spawn().map_err(|error| cannot(tree, &error))?;
    let sources = archive.stdout.take().ok_or_else(|| Failure("git archive is mute".to_owned()))?;
    process::run(process::program("tar").args(["-x", "-C"]).arg(tree).stdin(sources))?;
    let ended = archive.wait().map_err(|error| cannot(tree, &error))?;
    if ended.success() { Ok(()) } else { Err(Failure("git archive failed".to_owned())) }
}

type Kept = Vec<(std::path::PathBuf, String)>;

/// Changes the sources; gives what was there, newest change first.
fn plant(bug: &Bug, tree: &Path) -> Result<Kept, Failure> {
    let mut kept = Vec::new();
    for (file, from, to) in bug.changes {
        let path = tree.join(file);
        let text = fs::read_to_string(&path).map_err(|error| cannot(&path, &error))?;
        let changed = text.replacen(from, to, 1);
        fs::write(&path, changed).map_err(|error| cannot(&path, &error))?;
        kept.insert(0, (path, text));
    }
    Ok(kept)
}

/// Runs worlds until one fails. Gives what it says; none if none fails.
fn sweep(bug: &Bug, tree: &Path) -> Result<Option<String>, Failure> {
    let build = process::target_directory().join("planted-build");
    let mut cargo = process::cargo();
    cargo.current_dir(tree).env("CARGO_TARGET_DIR", &build);
    process::run(cargo.args(["build", "-q", "-p", "quorate-simulator", "--example", "sweep"]))?;
    let mut worlds = process::program(&build.join("debug/examples/sweep").to_string_lossy());
    worlds.args(["0", &bug.worlds.to_string(), "everything", "first"]).stderr(Stdio::null());
    let output = worlds.output().map_err(|error| cannot(&build, &error))?;
    let told = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(None);
    }
    let line = told.lines().find(|line| line.starts_with("seed")).unwrap_or("a world failed");
    Ok(Some(line.chars().take(200).collect()))
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure(format!("{} cannot be used: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_bug_changes_what_is_there_once() {
        for bug in &BUGS {
            for (file, from, to) in bug.changes {
                let text = fs::read_to_string(process::root().join(file)).unwrap();
                assert_eq!(text.matches(from).count(), 1, "{}: {from} in {file}", bug.name);
                assert_ne!(from, to);
            }
        }
    }
}
