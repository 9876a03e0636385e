//! What a run of the tests leaves out because the machine cannot show it.

#![allow(
    clippy::print_stderr,
    clippy::panic,
    reason = "what is not shown is said, and a panic is the report of a test"
)]

use std::fs::OpenOptions;
use std::io::Write as _;

/// Names the file to which a line is added for each test that is left out. `cargo xtask ci` sets it and tells the lines.
pub const NOT_SHOWN: &str = "QUORATE_NOT_SHOWN";

/// Leaves the rest of a test out, if the environment allows it: `variable` is set to `without`.
///
/// # Panics
///
/// If it does not, or if the line cannot be added to the file that [`NOT_SHOWN`] names.
pub fn leave_out(variable: &str, why: &str) {
    let allowed = std::env::var(variable).is_ok_and(|value| value == "without");
    assert!(
        allowed,
        "{why}: run as root on a Debian, or set {variable}=without to leave this test out"
    );
    let line = format!("NOT SHOWN: {}", why.replace('\n', " "));
    eprintln!("{line}");
    if let Some(path) = std::env::var_os(NOT_SHOWN) {
        let added = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| writeln!(file, "{line}"));
        assert!(added.is_ok(), "{line}, which could not be added to {path:?}: {added:?}");
    }
}
