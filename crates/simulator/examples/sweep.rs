//! Runs many worlds and tells which fail:
//! `cargo run -p quorate-simulator --example sweep -- FIRST COUNT [STORY [first]]`; with `first` it
//! ends at the first failure.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::panic::catch_unwind;
use std::process::ExitCode;

use quorate_simulator::{Story, run};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().ok());
    let (Some(Some(first)), Some(Some(count))) = (numbers.next(), numbers.next()) else {
        eprintln!("usage: sweep FIRST COUNT [STORY]");
        return ExitCode::from(2);
    };
    let story = match std::env::args().nth(3).map(|word| word.parse::<Story>()) {
        None => Story::Everything,
        Some(Ok(story)) => story,
        Some(Err(why)) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let ends_at_first = std::env::args().nth(4).is_some_and(|word| word == "first");
    let (mut truncations, mut too_stale, mut wipes) = (0, 0, 0);
    let (mut crash_elections, mut crash_elections_lost) = (0, 0);
    let (mut failures, mut rollbacks, mut terms) = (0, 0, 0);
    let (mut lasted, mut inputs, mut sleeps) = (std::time::Duration::ZERO, 0, 0);
    let mut slowest = (std::time::Duration::ZERO, first);
    for seed in first..first.saturating_add(count) {
        if failures > 0 && ends_at_first {
            break;
        }
        match catch_unwind(|| run(seed, story)) {
            Ok(Ok(figures)) => {
                slowest = slowest.max((figures.agreed_after, seed));
                truncations += figures.truncations;
                too_stale += figures.too_stale;
                wipes += figures.wipes;
                crash_elections += figures.crash_elections;
                crash_elections_lost += figures.crash_elections_lost;
                rollbacks += figures.rollbacks;
                terms += figures.terms;
                lasted += figures.lasted;
                inputs += figures.inputs;
                sleeps += figures.sleeps;
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
    let hours = lasted.as_secs_f64() / 3600.0;
    println!(
        "{hours:.1} simulated hours, {inputs} inputs of members, {sleeps} pauses of processes"
    );
    println!("{truncations} oplogs cut, {too_stale} members too stale, {wipes} disks replaced");
    println!("{crash_elections} elections after crashes, {crash_elections_lost} of them lost");
    println!("the slowest to agree after all faults was seed {} ({:?})", slowest.1, slowest.0);
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
