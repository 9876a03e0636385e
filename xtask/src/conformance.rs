//! `cargo xtask conformance`: starts the program that runs the published suites.

use crate::Failure;
use crate::process;

/// Runs the suites. Returns the last line that the program prints: how many scenarios there were.
pub(crate) fn run() -> Result<String, Failure> {
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--package", "quorate-conformance"]);
    let transcript = process::watch(&mut command, true)?;
    let told = transcript.lines.iter().rfind(|line| line.ends_with(" scenarios"));
    match told {
        Some(told) if transcript.succeeded => Ok(told.clone()),
        _ => Err(fail!("the published scenarios fail; see above")),
    }
}
