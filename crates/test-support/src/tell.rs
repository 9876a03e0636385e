//! What tests tell the run that they are part of. A runner shows the output of tests only where they fail.

#![allow(
    clippy::print_stderr,
    clippy::panic,
    reason = "what is not shown is said, and a panic is the report of a test"
)]

use std::fs::OpenOptions;
use std::io::Write as _;

/// Names the file to which tests add lines. `cargo xtask ci` sets it and prints the lines in the end.
pub const TOLD: &str = "QUORATE_TOLD";

/// Tells the run one line.
///
/// # Panics
///
/// If the line cannot be added to the file that [`TOLD`] names.
pub fn tell(line: &str) {
    let line = format!("{}\n", line.replace('\n', " "));
    eprint!("{line}");
    let Some(path) = std::env::var_os(TOLD) else { return };
    let file = OpenOptions::new().append(true).create(true).open(&path);
    // In one call, since tests of several processes add to the file.
    let added = file.and_then(|mut file| file.write_all(line.as_bytes()));
    assert!(added.is_ok(), "{line} could not be added to {}: {added:?}", path.display());
}

/// Leaves the rest of a test out and tells so, if the environment allows it: `variable` is set to `without`.
///
/// # Panics
///
/// If it does not.
pub fn leave_out(variable: &str, why: &str) {
    let allowed = std::env::var(variable).is_ok_and(|value| value == "without");
    assert!(
        allowed,
        "{why}: run as root on a Debian, or set {variable}=without to leave this test out"
    );
    tell(&format!("NOT SHOWN: {why}"));
}
