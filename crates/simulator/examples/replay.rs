//! Replays the world of a seed with its trace:
//! `cargo run -p quorate-simulator --example replay -- 42 [STORY]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::process::ExitCode;

use quorate_simulator::Story;

fn main() -> ExitCode {
    let Some(seed) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        eprintln!("usage: replay SEED [STORY]");
        return ExitCode::from(2);
    };
    let story = match std::env::args().nth(2).map(|word| word.parse::<Story>()) {
        None => Story::Everything,
        Some(Ok(story)) => story,
        Some(Err(why)) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    match quorate_simulator::replay(seed, story, |line| println!("{line}")) {
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
