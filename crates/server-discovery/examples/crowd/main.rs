//! A crowd of clients against one replica set, simulated with the shipped discovery core.
//!
//! ```text
//! cargo run --release -p quorate-server-discovery --example crowd -- [CLIENTS] [SEED] [--svg DIRECTORY]
//! ```
//!
//! Four stories are played: the primary crashes, it steps down, all members restart one after another,
//! and a partition hides the primary from half of the clients. For each the program prints how many
//! connections and hellos a second each member had to serve at the worst, and when the clients knew the
//! new primary. `docs/scale.md` explains the figures.

#![allow(clippy::print_stdout, reason = "the table is what the program is for")]
#![allow(clippy::unwrap_used, reason = "an example may panic")]

mod crowd;
mod members;
mod picture;
mod story;

use std::time::Duration;

use crowd::Crowd;
use members::MEMBERS;
use story::Story;

fn main() {
    let mut words = Vec::new();
    let mut pictures = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--svg" => pictures = arguments.next(),
            _ => words.push(argument),
        }
    }
    let number = |place: usize, default: u64| {
        words.get(place).map_or(default, |word| word.parse().expect("a number"))
    };
    let (clients, seed) = (number(0, 100_000) as usize, number(1, 1));

    let bytes = crowd::bytes_of_a_client(seed);
    println!(
        "a client that knows {MEMBERS} members takes {bytes} bytes, with this program's notes"
    );
    println!(
        "{clients} clients, seed {seed}, three members, streamed hellos, heartbeats every 10 s"
    );
    println!(
        "| story | connections/s, worst of a member | hellos/s, worst | connections of a member | p50 | p99 | last client knows |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for story in Story::ALL {
        let mut crowd = Crowd::new(clients, seed);
        let told = crowd.play(story);
        let seconds = |time: Duration| format!("{:.3} s", time.as_secs_f64());
        println!(
            "| {story} | {} | {} | {} | {} | {} | {} |",
            told.most_connects,
            told.most_hellos,
            told.most_connections,
            seconds(told.known_by(0.50)),
            seconds(told.known_by(0.99)),
            seconds(told.known_by(1.0)),
        );
        assert_eq!(told.ignorant, 0, "{story}: clients never learned of the new primary");
        if let Some(directory) = &pictures {
            let file = format!("{directory}/scale-{}.svg", story.file_name());
            std::fs::write(&file, picture::draw(story, &told))
                .expect("the directory can be written");
        }
    }
}
