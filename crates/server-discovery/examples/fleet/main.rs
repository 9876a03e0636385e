//! One watcher over a fleet of replica sets, simulated with the shipped discovery core.
//!
//! ```text
//! cargo run --release -p quorate-server-discovery --example fleet -- [DEPLOYMENTS] [SEED]
//!     [--workers N] [--heartbeat SECONDS] [--spread SECONDS] [--svg DIRECTORY]
//! ```
//!
//! Each deployment has three members and is watched by a core of its own. Four stories are played: the watcher
//! starts, one primary in a hundred crashes, a site with a third of all members is lost with its primaries, and the
//! watcher's own network is gone for half a minute. For each the program prints what the watcher has to handle and when
//! it knows. `docs/scale.md` explains the figures.

#![allow(clippy::print_stdout, reason = "the table is what the program is for")]
#![allow(clippy::unwrap_used, reason = "an example may panic")]

mod deployment;
mod picture;
mod watcher;

use std::time::Duration;

use watcher::{Setting, Story, Watcher};

fn main() {
    let mut words = Vec::new();
    let mut pictures = None;
    let (mut workers, mut heartbeat, mut spread) = (4, 10, 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|word| word.parse().ok()).expect("a number");
        match argument.as_str() {
            "--workers" => workers = number(),
            "--heartbeat" => heartbeat = number(),
            "--spread" => spread = number(),
            "--svg" => pictures = arguments.next(),
            _ => words.push(argument),
        }
    }
    let number = |place: usize, default: u64| {
        words.get(place).map_or(default, |word| word.parse().expect("a number"))
    };
    let setting = Setting {
        deployments: number(0, 100_000) as u32,
        seed: number(1, 1),
        workers: workers as u32,
        heartbeat: Duration::from_secs(heartbeat),
        spread: Duration::from_secs(spread),
    };
    println!(
        "{} deployments of three members, seed {}, {workers} workers, heartbeats every {heartbeat} s, started within {spread} s",
        setting.deployments, setting.seed
    );
    println!(
        "| story | connections/s, worst | messages/s, worst | busy, worst second | longest wait for a worker | p50 | p99 | last is known |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    for story in Story::ALL {
        let mut watcher = Watcher::new(setting);
        let told = watcher.play(story);
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        println!(
            "| {story} | {} | {} | {:.0} % | {} | {} | {} | {} |",
            told.most(&told.connects),
            told.most(&told.messages),
            told.busiest() * 100.0,
            seconds(told.longest_wait),
            seconds(told.known_by(0.50)),
            seconds(told.known_by(0.99)),
            seconds(told.known_by(1.0)),
        );
        if story == Story::Start {
            println!(
                "  at rest: {} messages/s, workers busy {:.0} %, {} bytes a deployment",
                told.at_rest(),
                told.busy_at_rest() * 100.0,
                told.bytes / setting.deployments as usize
            );
        }
        if told.ignorant > 0 {
            println!("  {} deployments are not known in the end", told.ignorant);
        }
        if let Some(directory) = &pictures {
            let file = format!("{directory}/fleet-{}.svg", story.file_name());
            std::fs::write(&file, picture::draw(story, &told))
                .expect("the directory can be written");
        }
    }
}
