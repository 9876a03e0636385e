//! Chores of the repository, as `cargo xtask <chore>`.
//!
//! Everything that a person or a machine does to this repository besides `cargo build` is here, so
//! that it runs the same everywhere. `cargo xtask ci` is all of it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command-line program")]

mod conformance;

use std::env;
use std::process::ExitCode;

/// A chore that did not succeed, in words for the person who asked for it.
pub(crate) struct Failure(pub(crate) String);

const USAGE: &str = "usage: cargo xtask <chore>

  conformance                     run the published scenarios against our crates
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (chore, rest) = match arguments.split_first() {
        Some((chore, rest)) => (chore.as_str(), rest),
        None => ("", [].as_slice()),
    };
    let outcome = match (chore, rest) {
        ("conformance", []) => conformance::run(),
        ("help" | "--help" | "-h", _) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(reason)) => {
            eprintln!("xtask {chore}: {reason}");
            ExitCode::FAILURE
        }
    }
}
