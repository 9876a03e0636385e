//! `cargo xtask purity`: the deterministic crates reach no runtime, socket or source of randomness.
//!
//! Their promise is that the same inputs give the same outputs. A dependency that could break it has
//! to be noticed when it arrives, not when a simulation stops being repeatable.

use crate::Failure;
use crate::process;

/// What a crate that promises it must not reach.
#[derive(Clone, Copy)]
enum Without {
    /// Runtimes, sockets and randomness.
    Impurity,
    /// And BSON, whose crate draws random ids: the cores are to be usable without it.
    Bson,
    /// Runtimes and sockets. BSON is there, and with it what draws the ids that nothing here asks for.
    Runtime,
}

/// The crates that promise it.
const DETERMINISTIC: [(&str, Without); 13] = [
    ("protocol", Without::Impurity),
    ("connection-string", Without::Impurity),
    ("server-discovery", Without::Bson),
    ("replication", Without::Bson),
    ("transactions", Without::Bson),
    ("checker", Without::Bson),
    ("wire", Without::Runtime),
    ("authentication", Without::Runtime),
    ("client-session", Without::Runtime),
    ("query", Without::Runtime),
    ("change-events", Without::Runtime),
    ("node", Without::Runtime),
    ("member", Without::Runtime),
];

const RUNTIME: [&str; 3] = ["tokio", "mio", "socket2"];

const RANDOMNESS: [&str; 2] = ["rand", "getrandom"];

/// Checks every deterministic crate that exists.
pub(crate) fn run() -> Result<(), Failure> {
    let mut paths = Vec::new();
    let mut checked = 0;
    for (folder, without) in DETERMINISTIC {
        if !process::root().join("crates").join(folder).join("Cargo.toml").is_file() {
            continue;
        }
        checked += 1;
        let package = format!("quorate-{folder}");
        let tree = process::read(process::cargo().args([
            "tree", "--edges", "normal", "--package", &package, "--prefix", "depth", "--format",
            " {p}",
        ]))?;
        let more: &[&str] = match without {
            Without::Impurity => &RANDOMNESS,
            Without::Bson => &["rand", "getrandom", "bson"],
            Without::Runtime => &[],
        };
        let forbidden: Vec<&str> = RUNTIME.into_iter().chain(more.iter().copied()).collect();
        let found = impure_paths(&tree, &forbidden);
        println!("purity: {package} {}", if found.is_empty() { "ok" } else { "IMPURE" });
        paths.extend(found);
    }
    fail_if!(checked == 0 => "there is no deterministic crate to check");
    if paths.is_empty() {
        return Ok(());
    }
    Err(fail!(
        "deterministic crates reach what they must not; cut one link of each:\n  {}",
        paths.join("\n  ")
    ))
}

/// The dependency paths from the root of a tree (lines of depth, space and package) to a forbidden crate.
fn impure_paths(tree: &str, forbidden: &[&str]) -> Vec<String> {
    let mut path: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(package)) = (words.next(), words.next()) else { continue };
        let Ok(depth) = depth.parse::<usize>() else { continue };
        path.truncate(depth);
        path.push(package);
        if forbidden.contains(&package) {
            found.push(path.join(" -> "));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_way_to_an_impure_crate_is_named() {
        let tree = "0 core v1\n1 a v1\n2 b v1\n3 rand v0.9 (*)\n1 c v1\n2 rand_core v1\n1 mio v1\n";
        assert_eq!(impure_paths(tree, &["rand", "mio"]), ["core -> a -> b -> rand", "core -> mio"]);
        assert!(impure_paths(tree, &["tokio"]).is_empty());
    }
}
