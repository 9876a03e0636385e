//! Runs the program and compares everything it says with a file.
//!
//! A snapshot holds the command, the exit code, stdout and stderr. Run the tests with
//! `QUORATE_UPDATE_SNAPSHOTS=1` to write the files anew, then read the difference.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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
        quorate_provision::snapshot(&path, &found)
            .unwrap_or_else(|difference| panic!("{difference}\n\n{found}"));
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
