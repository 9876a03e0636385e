//! `cargo xtask conformance`: every published suite, one line each.

use quorate_conformance::{SUITES, must_run};

use crate::Failure;

/// Runs the suites and returns how many files and tests there were. Where the scenarios cannot be had, that is a
/// failure on CI alone.
pub(crate) fn run() -> Result<usize, Failure> {
    let (mut ran, mut failures) = (0, 0);
    for suite in SUITES {
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
            Err(error) => return Err(Failure(error.to_string())),
        }
    }
    if failures > 0 {
        return Err(Failure(format!(
            "{failures} published scenarios fail; see above for the reasons"
        )));
    }
    if ran == 0 && must_run() {
        return Err(Failure("no published scenario was run".to_owned()));
    }
    Ok(ran)
}
