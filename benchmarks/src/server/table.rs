//! The rows that a run prints: ours first, each peer with its ratio, in the form that
//! `docs/benchmarks.md` keeps.

use std::time::Duration;

use crate::figures::{Figures, shown};
use crate::measuring::{Job, Turn, turn};
use crate::{Store, Wanted, programs};

/// All contestants of a run, ours first.
pub struct Table<'a> {
    wanted: &'a Wanted,
    contestants: Vec<&'a dyn Store>,
}

/// What the turns of one contestant found.
#[derive(Default)]
struct Found {
    figures: Figures,
    requests: u64,
    cpu: Duration,
    took_part: bool,
}

impl<'a> Table<'a> {
    pub fn new(wanted: &'a Wanted, contestants: Vec<&'a dyn Store>) -> Self {
        let peers = contestants[1..].iter().map(|peer| peer.name());
        let names: String = peers.map(|name| format!(" {name} | ours ÷ {name} |")).collect();
        println!("| median (lowest – highest) | ours | its CPU, µs |{names}");
        println!("|---|--:|--:|{}", "--:|--:|".repeat(contestants.len() - 1));
        Self { wanted, contestants }
    }

    /// Prints how many requests a second so many callers have answered.
    pub fn rate(&self, what: &str, callers: usize, job: Job) {
        self.row(what, |store, _| {
            job.suits(store).then(|| turn(store, callers, job, self.wanted.window))
        });
    }

    /// Lets the contestants take turns and prints what they found, if the measure is wanted. One that
    /// does not take part has no turn.
    pub fn row(&self, what: &str, mut measure: impl FnMut(&dyn Store, usize) -> Option<Turn>) {
        if !self.wanted.has(what) {
            return;
        }
        let mut found: Vec<Found> = self.contestants.iter().map(|_| Found::default()).collect();
        for round in 0..self.wanted.rounds {
            for (store, found) in self.contestants.iter().zip(&mut found) {
                programs::await_quiet();
                if let Some(turn) = measure(*store, round) {
                    found.figures.push(turn.figure);
                    found.requests += turn.requests;
                    found.cpu += turn.cpu;
                    found.took_part = true;
                }
            }
        }
        let (ours, peers) = found.split_first().unwrap();
        let cpu = ours.cpu.as_secs_f64() * 1e6 / ours.requests.max(1) as f64;
        print!("| {what} | {} | {} |", cell(&ours.figures), shown(cpu));
        for peer in peers {
            if peer.took_part {
                let ratio = ours.figures.median() / peer.figures.median();
                print!(" {} | {ratio:.2} |", cell(&peer.figures));
            } else {
                print!(" | |");
            }
        }
        println!();
    }
}

fn cell(figures: &Figures) -> String {
    let (least, most) = figures.range();
    format!("{} ({} – {})", shown(figures.median()), shown(least), shown(most))
}
