//! Random commands on a whole member against a plain model, with crashes.
//!
//! A seed draws steps: inserts, updates, deletes and findAndModify, alone and several in a command; upserts; unique
//! indexes; collections of two databases that are made, dropped and renamed; views; reads; transactions of two sessions; repeated writes and
//! commits; crashes that keep any part of what was not synced, also within a command; members that applied the log in
//! batches and take over; rollbacks; and members that copy everything while it changes. After each step the reply is what the model says, and every few steps
//! documents, indexes and counts are. A new primary, and a member that was rolled back, answers what sessions repeat
//! as it was answered at first. At the end a second member applies the log and holds the same.
//!
//! A run that fails is made shorter while it still fails, and printed with the command that repeats it.
//! `QUORATE_COMMANDS_SEED` runs one seed, `QUORATE_COMMANDS_SECONDS` new seeds for so long
//! (`cargo xtask fuzz-commands`).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is the report")]

mod crashing;
mod describing;
mod drawing;
mod members;
mod model;
mod reading_on;
mod running;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod views;
mod waiting;
mod watching;
mod within;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drawing::Generator;
use running::Figures;
use steps::Step;

/// The runs of an ordinary test, and their steps.
const RUNS: u64 = 300;
const STEPS: usize = 150;
/// The most runs that are spent on making a failing one shorter.
const MAX_SHORTENINGS: usize = 4_000;

/// What goes wrong, if anything does.
fn failure(steps: &[Step]) -> Result<Figures, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| running::run(steps)));
    outcome.unwrap_or_else(|panic| {
        let told = panic.downcast_ref::<String>().map(String::as_str);
        let told = told.or(panic.downcast_ref::<&str>().copied());
        Err(format!("the member panics: {}", told.unwrap_or("without a word")))
    })
}

/// Takes steps out, many at a time and then fewer, while what is left still fails.
fn shorten(steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let (mut steps, mut left) = (steps, MAX_SHORTENINGS);
    let mut size = steps.len().div_ceil(2);
    while size > 0 {
        let (mut from, mut shorter) = (0, false);
        while from < steps.len() && left > 0 {
            left -= 1;
            let mut fewer = steps.clone();
            fewer.drain(from..(from + size).min(steps.len()));
            match fails(&fewer) {
                true => (steps, shorter) = (fewer, true),
                false => from += size,
            }
        }
        if left == 0 || (size == 1 && !shorter) {
            break;
        }
        size = if size == 1 { 1 } else { size / 2 };
    }
    steps
}

fn run_seed(seed: u64) -> Figures {
    let steps = Generator::steps(seed, STEPS);
    match failure(&steps) {
        Ok(figures) => figures,
        Err(first) => {
            let steps = shorten(steps, |steps| failure(steps).is_err());
            let why = failure(&steps).err().unwrap_or(first);
            let listed: Vec<String> = steps
                .iter()
                .enumerate()
                .map(|(number, step)| format!("  {number}: {step:?}"))
                .collect();
            panic!(
                "seed {seed}, made shorter:\n{}\n{why}\nrepeat: cargo xtask fuzz-commands --seed {seed}",
                listed.join("\n")
            )
        }
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn a_member_and_a_plain_model_agree() {
    let mut total = Figures::default();
    if let Some(seed) = number("QUORATE_COMMANDS_SEED") {
        println!("{:?}", run_seed(seed));
        return;
    }
    if let Some(seconds) = number("QUORATE_COMMANDS_SECONDS") {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let first = since.as_micros() as u64;
        let (begun, mut seed) = (Instant::now(), first);
        while begun.elapsed() < Duration::from_secs(seconds) {
            total.add(run_seed(seed));
            seed += 1;
        }
        println!("{} runs from seed {first}: {total:?}", seed - first);
        return;
    }
    for seed in 0..RUNS {
        total.add(run_seed(seed));
    }
    println!("{RUNS} runs: {total:?}");
    // Empty runs would show nothing.
    assert!(total.skipped * 3 < total.steps, "{total:?}");
    assert!(total.committed > 200 && total.conflicts > 50 && total.errors > 500, "{total:?}");
    assert!(total.repeated > 200 && total.crashes > 500, "{total:?}");
    assert!(total.crashes_within > 5 && total.resumed > 0, "{total:?}");
    assert!(total.taken_over > 200 && total.rolled_back > 100, "{total:?}");
    assert!(total.waited > 20 && total.created > 200, "{total:?}");
    assert!(total.events > 4_000, "{total:?}");
    assert!(total.copied > 100, "{total:?}");
}

/// The tool itself: of a long run only the steps that matter are left.
#[test]
fn a_failing_run_is_made_shorter() {
    let steps = Generator::steps(3, 60);
    let wanted = [steps[7].clone(), steps[41].clone()];
    let fails = |steps: &[Step]| wanted.iter().all(|step| steps.contains(step));
    assert_eq!(shorten(steps, fails), wanted);
    assert_eq!(Generator::steps(5, 40), Generator::steps(5, 40), "a seed is a run");
}
