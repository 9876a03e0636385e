//! `quorate-conformance [SUITE]…`: runs every published suite, or those named, and prints one line each.
//!
//! `cargo xtask conformance` starts it. It is a program of its own so that `cargo xtask` can be built without the
//! client and the server.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command-line program")]

use std::env;
use std::process::ExitCode;

use quorate_conformance::{SUITES, must_run, suite};

fn main() -> ExitCode {
    match run() {
        Ok(ran) => {
            println!("{ran} scenarios");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("conformance: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the suites and counts their scenarios. On CI, scenarios that cannot be fetched are a failure.
fn run() -> Result<usize, String> {
    let (mut ran, mut failures) = (0, 0);
    let named: Vec<String> = env::args().skip(1).collect();
    if let Some(unknown) = named.iter().find(|name| suite(name).is_none()) {
        return Err(format!("there is no suite {unknown}"));
    }
    for suite in SUITES {
        if !named.is_empty() && !named.iter().any(|name| name == suite.name) {
            continue;
        }
        match suite.run() {
            Ok(report) => {
                println!("{report}");
                ran += report.total;
                failures += report.failures.len();
                for (file, reason) in &report.failures {
                    eprintln!("  {file}: {reason}");
                }
            }
            Err(error) if error.is_excusable() => {
                eprintln!("conformance: {} NOT RUN: {error}", suite.name);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    if failures > 0 {
        return Err(format!("{failures} published scenarios fail; see above for the reasons"));
    }
    if ran == 0 && must_run() {
        return Err("no published scenario was run".to_owned());
    }
    Ok(ran)
}
