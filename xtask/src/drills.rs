//! `cargo xtask drills`: forecasts beside drills, for the table of docs/what-if.md.
//!
//! A set of three real processes is broken and mended again and again; `quorate drill --times` scores the
//! forecasts that it made before each.

use std::process::Stdio;

use crate::Failure;
use crate::process;

/// How many drills of each kind are made by default.
pub(crate) const DEFAULT_EACH: u64 = 30;

const FAULTS: [&str; 4] = ["--kill", "--step-down", "--partition", "--pause"];

/// Builds the program and drills a set of its own.
pub(crate) fn run(each: u64) -> Result<(), Failure> {
    process::run(process::cargo().args(["build", "--workspace", "--bin", "quorate"]))?;
    let program = process::target_directory().join("debug/quorate");
    let program = program.to_string_lossy();
    let files = process::target_directory().join("drills");
    std::fs::create_dir_all(&files)
        .map_err(|error| fail!("{} cannot be made: {error}", files.display()))?;
    let quorate = || {
        let mut command = process::program(&program);
        // Of a directory of its own, so that `down --all` ends nothing else.
        command.env("XDG_RUNTIME_DIR", &files);
        command
    };
    let told = process::read(
        quorate().args(["up", "--detach", "--port", "0", "--election-timeout", "2s", "--json"]),
    )?;
    let uri = told.split("\"uri\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let uri = uri.ok_or_else(|| fail!("quorate up told no connection string: {told}"))?;
    let each = each.to_string();
    let drilled = FAULTS.iter().try_for_each(|fault| {
        println!("{fault}");
        let mut drill = quorate();
        drill.args(["drill", fault, "--times", &each, "--json", uri]).stderr(Stdio::null());
        let told = process::read(&mut drill)?;
        let score = told.lines().rfind(|line| line.contains("\"event\":\"score\""));
        println!("{}", score.unwrap_or("no score: fewer than two drills had an end"));
        Ok(())
    });
    process::run(quorate().args(["down", "--all"]).stdout(Stdio::null()).stderr(Stdio::null()))?;
    drilled
}
