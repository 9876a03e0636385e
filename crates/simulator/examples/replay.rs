//! Replays the world of a seed with its trace:
//! `cargo run -p quorate-simulator --example replay -- 42 [forced]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(seed) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        eprintln!("usage: replay SEED");
        return ExitCode::from(2);
    };
    let forced = std::env::args().nth(2).is_some_and(|word| word == "forced");
    match quorate_simulator::replay(seed, forced, |line| println!("{line}")) {
        Ok(figures) => {
            println!("seed {seed} is fine: {figures:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}
