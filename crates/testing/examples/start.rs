//! How long a set takes to be ready and to end, one after the other and at once: `… START-COUNT AT-ONCE`.
//!
//! Prints milliseconds: ready (median, lowest, highest), ended (the same), and all of those at once ready.

use std::time::Instant;

use quorate_testing::{ReplicaSet, SetError};

#[expect(clippy::print_stdout, reason = "it is what the example is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [starts, at_once] = &words[..] else { return Err("give two numbers".into()) };
    let (starts, at_once): (usize, usize) = (starts.parse()?, at_once.parse()?);
    let (mut ready, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..starts {
        let began = Instant::now();
        let mut set = ReplicaSet::start()?;
        ready.push(began.elapsed().as_millis());
        let began = Instant::now();
        set.stop();
        ended.push(began.elapsed().as_millis());
    }
    let began = Instant::now();
    let threads: Vec<_> = (0..at_once).map(|_| std::thread::spawn(ReplicaSet::start)).collect();
    let sets: Result<Vec<ReplicaSet>, SetError> =
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect();
    let all_ready = began.elapsed().as_millis();
    drop(sets?);
    ready.sort_unstable();
    ended.sort_unstable();
    let summary = |times: &[u128]| match (times.first(), times.get(starts / 2), times.last()) {
        (Some(lowest), Some(median), Some(highest)) => format!("{median} {lowest} {highest}"),
        _ => "none".to_owned(),
    };
    println!("{} {} {all_ready}", summary(&ready), summary(&ended));
    Ok(())
}
