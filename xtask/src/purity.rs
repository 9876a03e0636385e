//! `cargo xtask purity`: the deterministic crates reach no runtime, socket or source of randomness.
//!
//! Their promise is that the same inputs give the same outputs. A dependency that could break it has
//! to be noticed when it arrives, not when a simulation stops being repeatable.

use crate::Failure;
use crate::process;

/// The crates that promise it, and whether BSON is among what they must not reach (its crate draws
/// random ids, and the cores are to be usable without it).
const DETERMINISTIC: [(&str, bool); 6] = [
    ("protocol", false),
    ("connection-string", false),
    ("server-discovery", true),
    ("replication", true),
    ("transactions", true),
    ("checker", true),
];

const IMPURE: [&str; 5] = ["tokio", "rand", "getrandom", "mio", "socket2"];

/// Checks every deterministic crate that exists.
pub(crate) fn run() -> Result<(), Failure> {
    let mut paths = Vec::new();
    let mut checked = 0;
    for (folder, without_bson) in DETERMINISTIC {
        if !process::root().join("crates").join(folder).join("Cargo.toml").is_file() {
            continue;
        }
        checked += 1;
        let package = format!("quorate-{folder}");
        let tree = process::read(process::cargo().args([
            "tree",
            "--edges",
            "normal",
            "--package",
            &package,
            "--prefix",
            "depth",
            "--format",
            " {p}",
        ]))?;
        let forbidden: Vec<&str> =
            IMPURE.into_iter().chain(without_bson.then_some("bson")).collect();
        let found = impure_paths(&tree, &forbidden);
        println!("purity: {package} {}", if found.is_empty() { "ok" } else { "IMPURE" });
        paths.extend(found);
    }
    if checked == 0 {
        return Err(Failure("there is no deterministic crate to check".to_owned()));
    }
    if paths.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "deterministic crates reach what they must not; cut one link of each:\n  {}",
        paths.join("\n  ")
    )))
}

/// The ways from the top of a tree (lines of depth, space and package) to what is forbidden.
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
