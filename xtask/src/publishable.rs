//! `cargo xtask publishable`: every crate that is not kept to this repository could be published.
//!
//! Cargo packs all of them, which finds a dependency without a version or a file that is not there; and each
//! has a description and a README. The four that others build upon have an example to run.

use std::fs;
use std::path::Path;

use crate::Failure;
use crate::process;

/// The crates that others build upon.
const WITH_EXAMPLES: [&str; 4] = ["server-discovery", "replication", "client", "blocking-client"];

/// Checks all crates, and returns how many could be published.
pub(crate) fn run() -> Result<String, Failure> {
    let folder = process::root().join("crates");
    let unread = |path: &Path, error| fail!("{}: {error}", path.display());
    let mut cargo = process::cargo();
    cargo.args(["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet"]);
    cargo.args(["--exclude", "xtask"]);
    let (mut wrong, mut count) = (Vec::new(), 0);
    for entry in fs::read_dir(&folder).map_err(|error| unread(&folder, error))? {
        let path = entry.map_err(|error| unread(&folder, error))?.path();
        let manifest = fs::read_to_string(path.join("Cargo.toml"))
            .map_err(|error| unread(&path.join("Cargo.toml"), error))?;
        let name = name_of(&manifest).unwrap_or_default();
        if is_kept(&manifest) {
            cargo.args(["--exclude", name]);
            continue;
        }
        count += 1;
        let folder = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !manifest.contains("\ndescription = \"") {
            wrong.push(format!("{name} has no description"));
        }
        if !path.join("README.md").exists() {
            wrong.push(format!("{name} has no README.md"));
        }
        if WITH_EXAMPLES.contains(&folder) && !path.join("examples").is_dir() {
            wrong.push(format!("{name} has no example"));
        }
    }
    // Warnings are about addresses that the crates do not have yet.
    let transcript = process::watch(&mut cargo, false)?;
    if !transcript.succeeded {
        wrong.push("cargo package fails; run it to see why".to_owned());
    }
    match wrong.as_slice() {
        [] => Ok(format!("{count} crates")),
        _ => Err(Failure(wrong.join("; "))),
    }
}

fn name_of(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

fn is_kept(manifest: &str) -> bool {
    manifest.lines().any(|line| line == "publish = false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_that_are_kept_say_so() {
        let kept = "[package]\nname = \"quorate-x\"\npublish = false\n";
        assert!(is_kept(kept) && !is_kept("[package]\nname = \"a\"\n"));
        assert_eq!(name_of(kept), Some("quorate-x"));
    }
}
