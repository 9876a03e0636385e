//! `cargo xtask mutants`: deliberate bugs, and the tests that must object to them.
//!
//! The sources are copied to `target/mutants/tree`. All bugs that one package's tests look for are built in
//! together, each behind a variable of the environment, so that one build serves them all; those that cannot
//! be chosen while the program runs are built one by one. A check that fails without any bug proves nothing,
//! so each is run once without.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use table::{Check, Mutant, VARIABLE};

use crate::Failure;
use crate::process;

/// A check that takes longer hangs. The slowest of them is a model check of about a minute.
const PATIENCE: Duration = Duration::from_secs(900);

/// Between two looks at a check under way.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the mutants whose name, file or check has one of the words; all of them without words.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let root = process::root();
    let all = table::read(&root)?;
    let wanted = |mutant: &&Mutant| {
        let files = mutant.changes.iter().map(|change| change.file.as_str());
        let mut told = files.chain([mutant.name.as_str(), mutant.check.package.as_str()]);
        words.is_empty() || told.any(|told| words.iter().any(|word| told.contains(word.as_str())))
    };
    let chosen: Vec<&Mutant> = all.iter().filter(wanted).collect();
    fail_if!(chosen.is_empty() => "no mutant has that word in its name, file or package");
    let tree = Tree::copy(&root)?;
    let mut survivors = Vec::new();
    let mut packages: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
    for mutant in &chosen {
        packages.entry(&mutant.check.package).or_default().push(mutant);
    }
    for mutants in packages.values() {
        let (alone, together): (Vec<&Mutant>, Vec<&Mutant>) =
            mutants.iter().copied().partition(|mutant| mutant.alone);
        if !together.is_empty() {
            survivors.extend(tree.judge(&together)?);
        }
        for mutant in alone {
            survivors.extend(tree.judge(&[mutant])?);
        }
    }
    tree.restore()?;
    println!("mutants: {} of {} caught", chosen.len() - survivors.len(), chosen.len());
    if survivors.is_empty() {
        return Ok(());
    }
    Err(fail!("these bugs survive: {}; write the test that objects", survivors.join(", ")))
}

/// A copy of the sources that may be broken.
struct Tree {
    root: PathBuf,
    copy: PathBuf,
    build: PathBuf,
}

impl Tree {
    fn copy(root: &Path) -> Result<Self, Failure> {
        let folder = process::target_directory().join("mutants");
        let tree =
            Self { root: root.to_owned(), copy: folder.join("tree"), build: folder.join("build") };
        tree.restore()?;
        Ok(tree)
    }

    /// Makes the copy equal to the sources. Files that are equal keep their times, so that what was built
    /// of them is still good.
    fn restore(&self) -> Result<(), Failure> {
        let listed = process::read(
            process::program("git")
                .args(["ls-files", "--cached", "--others", "--exclude-standard"]),
        )?;
        let mut wanted = BTreeSet::new();
        for path in listed.lines() {
            // A file that was removed and not yet committed.
            let Ok(content) = fs::read(self.root.join(path)) else { continue };
            self.write(path, &content)?;
            wanted.insert(self.copy.join(path));
        }
        remove_others(&self.copy, &wanted)
    }

    fn write(&self, path: &str, wanted: &[u8]) -> Result<(), Failure> {
        let to = self.copy.join(path);
        if fs::read(&to).is_ok_and(|there| there == wanted) {
            return Ok(());
        }
        let failed = |error| fail!("{} cannot be written: {error}", to.display());
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        fs::write(&to, wanted).map_err(failed)
    }

    /// Builds these mutants into the copy, runs their checks, and returns the names of those that survive.
    fn judge(&self, mutants: &[&Mutant]) -> Result<Vec<String>, Failure> {
        self.restore()?;
        let changes = mutants.iter().flat_map(|mutant| &mutant.changes);
        let files: BTreeSet<&str> = changes.map(|change| change.file.as_str()).collect();
        for file in files {
            let text = fs::read_to_string(self.root.join(file))
                .map_err(|error| fail!("{file} cannot be read: {error}"))?;
            self.write(file, table::mutated(file, &text, mutants)?.as_bytes())?;
        }
        let programs = self.build(mutants)?;
        if !mutants.iter().any(|mutant| mutant.alone) {
            let checks: BTreeSet<&Check> = mutants.iter().map(|mutant| &mutant.check).collect();
            for check in checks {
                if let Outcome::Failed(test) = run_check(&programs, check, None)? {
                    return Err(fail!("{test} fails without any mutant"));
                }
            }
        }
        let mut survivors = Vec::new();
        for mutant in mutants {
            let begun = Instant::now();
            let outcome = run_check(&programs, &mutant.check, Some(&mutant.name))?;
            let seconds = begun.elapsed().as_secs_f64();
            let catcher = match &outcome {
                Outcome::Failed(test) => test.as_str(),
                Outcome::Passed => "SURVIVES",
            };
            println!("{:<48} {seconds:6.1} s  {catcher}", mutant.name);
            if outcome == Outcome::Passed {
                survivors.push(format!("{:?} ({})", mutant.name, mutant.bug));
            }
        }
        Ok(survivors)
    }

    /// The test programs of these mutants, by package and target.
    fn build(&self, mutants: &[&Mutant]) -> Result<BTreeMap<String, PathBuf>, Failure> {
        let package = &mutants[0].check.package;
        let targets: BTreeSet<&str> = mutants.iter().map(|m| m.check.target.as_str()).collect();
        let mut command = process::cargo();
        command.current_dir(&self.copy).env("CARGO_TARGET_DIR", &self.build);
        command.args(["test", "--no-run", "--color", "never", "-p", package]);
        for target in targets {
            match target {
                "lib" => command.arg("--lib"),
                target => command.args(["--test", target]),
            };
        }
        let transcript = process::watch(&mut command, false)?;
        if !transcript.succeeded {
            let names: Vec<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
            let told = transcript.lines.join("\n");
            return Err(fail!("{told}\n{names:?} do not build; see above"));
        }
        let programs = transcript.lines.iter().filter_map(|line| executable(line));
        Ok(programs.map(|(target, path)| (target, self.copy.join(path))).collect())
    }
}

/// Removes the files of a copy whose sources have been removed or renamed: two files of one module do not build.
fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<(), Failure> {
    let failed = |error| fail!("{} cannot be tidied: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

/// The target and the path of a test program, of a line such as
/// `Executable tests/model.rs (target/debug/deps/model-0123456789abcdef)`.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let (source, path) = line.trim().strip_prefix("Executable ")?.split_once(" (")?;
    let source = source.strip_prefix("unittests ").unwrap_or(source);
    let source = source.strip_suffix("/main.rs").or(source.strip_suffix(".rs")).unwrap_or(source);
    let target = source.rsplit('/').next().unwrap_or(source);
    Some((target.to_owned(), PathBuf::from(path.strip_suffix(')')?)))
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// The first test that failed, or what happened to all of them.
    Failed(String),
}

fn run_check(
    programs: &BTreeMap<String, PathBuf>,
    check: &Check,
    mutant: Option<&str>,
) -> Result<Outcome, Failure> {
    let Some(program) = programs.get(&check.target) else {
        return Err(fail!("{} has no test program {}", check.package, check.target));
    };
    let failed = |error| fail!("{} cannot be run: {error}", program.display());
    let output = program.with_extension("output");
    let mut command = Command::new(program);
    command.args(&check.words).stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(fs::File::create(&output).map_err(failed)?);
    if let Some(name) = mutant {
        command.env(VARIABLE, name);
    }
    let mut child = command.spawn().map_err(failed)?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Ok(Outcome::Failed(format!("hangs for {PATIENCE:?}")));
        }
        std::thread::sleep(LOOK);
    };
    let told = fs::read(&output).map_err(failed)?;
    let told = String::from_utf8_lossy(&told).into_owned();
    fail_if!(told.contains("running 0 tests") => "{check:?} names no test");
    if status.success() {
        return Ok(Outcome::Passed);
    }
    let test = told.lines().find_map(|line| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    });
    Ok(Outcome::Failed(test.unwrap_or_else(|| format!("ends with {status}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_sources_no_longer_have_is_removed_from_the_copy() {
        let copy = tempfile::tempdir().unwrap();
        let path = |name: &str| copy.path().join(name);
        fs::create_dir(path("a")).unwrap();
        for name in ["a.rs", "a/mod.rs", "a/part.rs"] {
            fs::write(path(name), "").unwrap();
        }
        let wanted = BTreeSet::from([path("a.rs"), path("a/part.rs")]);
        assert!(remove_others(copy.path(), &wanted).is_ok());
        let there = ["a.rs", "a/mod.rs", "a/part.rs"].map(|name| path(name).exists());
        assert_eq!(there, [true, false, true]);
    }

    #[test]
    fn test_programs_are_read_off_what_cargo_says() {
        let found = |line: &str| executable(line).map(|(target, _)| target);
        let library = "  Executable unittests src/lib.rs (target/debug/deps/a-1)";
        assert_eq!(found(library).as_deref(), Some("lib"));
        assert_eq!(found("  Executable tests/model.rs (x)").as_deref(), Some("model"));
        assert_eq!(
            found("  Executable tests/one_member/main.rs (x)").as_deref(),
            Some("one_member")
        );
        assert_eq!(found("   Compiling a v0.1.0"), None);
    }
}
