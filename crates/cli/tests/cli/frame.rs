//! The frame around the commands: help, completions, manual pages, exit codes and streams.

use crate::support::quorate;

#[test]
fn every_help_is_as_recorded() {
    quorate(&["--help"]).snapshot("help");
    let help = quorate(&["--help"]).stdout();
    let commands = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let names: Vec<&str> = commands
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.contains(&"replay"), "{help}");
    for name in names {
        quorate(&[name, "--help"]).snapshot(&format!("help-{name}"));
    }
}

#[test]
fn misuse_ends_in_code_2_and_a_next_step_on_stderr() {
    for (name, arguments) in [
        ("misuse-unknown-command", &["replicate"][..]),
        ("misuse-unknown-option", &["replay", "--jsn", "x"]),
        ("misuse-missing-argument", &["replay"]),
        ("misuse-no-such-page", &["man", "replicate"]),
    ] {
        let run = quorate(arguments);
        assert_eq!(run.code(), 2, "{arguments:?}");
        assert_eq!(run.stdout(), "", "{arguments:?}");
        run.snapshot(name);
    }
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = quorate(&["completions", shell]);
        assert_eq!((run.code(), run.stderr().as_str()), (0, ""));
        assert!(run.stdout().contains("replay"), "{shell}");
    }
}

#[test]
fn manual_pages_come_from_the_same_definitions() {
    let page = quorate(&["man"]).stdout();
    assert!(page.contains(".TH quorate 1"), "{page}");
    assert!(page.contains("misuse"), "the exit codes are told: {page}");
    let page = quorate(&["man", "replay"]).stdout();
    assert!(page.contains(".TH quorate-replay 1") && page.contains("Examples"), "{page}");
}

#[test]
fn a_pipe_without_a_reader_is_no_error() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}

/// A snapshot that no test compares would rot unseen.
#[test]
fn every_snapshot_belongs_to_a_test() {
    use crate::support::folder;
    let mut sources = String::new();
    for file in std::fs::read_dir(folder("tests/cli")).unwrap() {
        sources.push_str(&std::fs::read_to_string(file.unwrap().path()).unwrap());
    }
    for file in std::fs::read_dir(folder("tests/snapshots")).unwrap() {
        let name = file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
        // The names of the helps follow from the commands.
        let known = name.starts_with("help-") || sources.contains(&format!("\"{name}\""));
        assert!(known, "{name} is no test's; remove it");
    }
}

/// Colour is for those who can see it: never in a pipe, never against `NO_COLOR`.
#[test]
fn colours_obey_the_environment() {
    let coloured = |variables: &[(&str, &str)]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_quorate"))
            .args(["doctor", "--error", "connect ECONNREFUSED 127.0.0.1:27017"])
            .env_clear()
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        output.stdout.contains(&0x1b)
    };
    assert!(!coloured(&[]), "a pipe is no terminal");
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]));
    assert!(!coloured(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
}
