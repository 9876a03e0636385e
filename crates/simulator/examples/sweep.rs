//! Runs many worlds and tells which fail: `cargo run -p quorate-simulator --example sweep -- FIRST COUNT`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::panic::catch_unwind;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().ok());
    let (Some(Some(first)), Some(Some(count))) = (numbers.next(), numbers.next()) else {
        eprintln!("usage: sweep FIRST COUNT");
        return ExitCode::from(2);
    };
    let (mut failures, mut rollbacks, mut terms) = (0, 0, 0);
    let mut slowest = (std::time::Duration::ZERO, first);
    for seed in first..first.saturating_add(count) {
        match catch_unwind(|| quorate_simulator::run(seed)) {
            Ok(Ok(figures)) => {
                slowest = slowest.max((figures.agreed_after, seed));
                rollbacks += figures.rollbacks;
                terms += figures.terms;
            }
            Ok(Err(failure)) => {
                failures += 1;
                println!("{failure}");
            }
            Err(_) => {
                failures += 1;
                println!("seed {seed}: a member broke its own invariant");
            }
        }
    }
    println!("{failures} of {count} worlds failed; {terms} terms, {rollbacks} rollbacks");
    println!("the slowest to agree after all faults was seed {} ({:?})", slowest.1, slowest.0);
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
