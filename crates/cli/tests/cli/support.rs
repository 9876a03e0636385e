//! Runs the program and compares everything it says with a file.
//!
//! A snapshot holds the command, the exit code, stdout and stderr. Run the tests with
//! `QUORATE_UPDATE_SNAPSHOTS=1` to write the files anew, then read the difference.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The variable that makes [`Run::snapshot`] write instead of compare.
const UPDATE: &str = "QUORATE_UPDATE_SNAPSHOTS";

/// One run of the program.
pub(crate) struct Run {
    shown: String,
    output: Output,
}

/// Runs `quorate` with these arguments in the folder `tests`, with an empty environment.
pub(crate) fn quorate(arguments: &[&str]) -> Run {
    quorate_with_input(arguments, "")
}

/// The same with something to read on stdin.
pub(crate) fn quorate_with_input(arguments: &[&str], input: &str) -> Run {
    run(arguments, input, &[])
}

/// The same with these variables in the environment.
pub(crate) fn quorate_with(arguments: &[&str], variables: &[(&str, &str)]) -> Run {
    run(arguments, "", variables)
}

fn run(arguments: &[&str], input: &str, variables: &[(&str, &str)]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(arguments)
        .current_dir(folder("tests"))
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that does not read its input may be gone already.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("the program ends");
    let mut shown = String::from("$ quorate");
    for argument in arguments {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
        match argument.chars().all(plain) {
            true => shown.push_str(&format!(" {argument}")),
            false => shown.push_str(&format!(" '{argument}'")),
        }
    }
    Run { shown, output }
}

impl Run {
    /// The exit code.
    pub(crate) fn code(&self) -> i32 {
        self.output.status.code().expect("not killed")
    }

    /// Everything on stdout.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).expect("UTF-8")
    }

    /// Everything on stderr.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).expect("UTF-8")
    }

    /// The lines of stdout as JSON objects.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        let stdout = self.stdout();
        stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Compares everything with the snapshot of this name.
    #[track_caller]
    pub(crate) fn snapshot(&self, name: &str) {
        self.snapshot_with(name, &[]);
    }

    /// The same, after replacing what differs from run to run.
    #[track_caller]
    pub(crate) fn snapshot_with(&self, name: &str, replace: &[(&str, &str)]) {
        let mut found = format!("{}\nexit {}\n", self.shown, self.code());
        for (stream, text) in [("stdout", self.stdout()), ("stderr", self.stderr())] {
            if !text.is_empty() {
                found.push_str(&format!("--- {stream}\n{text}"));
            }
        }
        for (from, to) in replace {
            found = found.replace(from, to);
        }
        if !replace.is_empty() {
            found = without_times(&found);
        }
        let path = folder("tests/snapshots").join(format!("{name}.txt"));
        if std::env::var_os(UPDATE).is_some() {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(&path, &found).expect("the snapshot is written");
            return;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if let Some(difference) = first_difference(&expected, &found) {
            panic!("{} differs: {difference}\n\n{found}\nAccept with {UPDATE}=1", path.display());
        }
    }
}

/// A folder of this crate.
pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Measured times differ from run to run.
fn without_times(text: &str) -> String {
    let times = regex_lite::Regex::new(r", [0-9.]+ m?s\b").expect("a pattern of our own");
    times.replace_all(text, ", N ms").into_owned()
}

fn first_difference(expected: &str, found: &str) -> Option<String> {
    if expected == found {
        return None;
    }
    let (mut left, mut right) = (expected.lines(), found.lines());
    for number in 1.. {
        match (left.next(), right.next()) {
            (None, None) => break,
            (left, right) if left == right => {}
            (left, right) => {
                let (left, right) = (left.unwrap_or("(end)"), right.unwrap_or("(end)"));
                return Some(format!("line {number}\nexpected {left}\nfound    {right}"));
            }
        }
    }
    Some("the ends of lines".to_owned())
}
