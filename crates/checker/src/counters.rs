//! Counters: every read lies between what was acknowledged before it and what was attempted by its end.

use crate::history::{Action, History, Outcome};
use crate::verdict::{Anomaly, Step, Verdict};

/// Checks every read of a counter that begins at zero. Increments are positive.
pub fn check(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let increments: Vec<_> = history
        .operations()
        .iter()
        .filter_map(|operation| match operation.action {
            Action::Increment(by) => Some((operation, by)),
            _ => None,
        })
        .collect();
    verdict.operations = increments.len();
    for read in history.operations() {
        let (Action::Count(Some(count)), Outcome::Ok) = (&read.action, read.outcome) else {
            continue;
        };
        verdict.operations += 1;
        let end = read.completed.unwrap_or(u64::MAX);
        let least: i64 = increments
            .iter()
            .filter(|(operation, _)| operation.precedes(read))
            .map(|(_, by)| by)
            .sum();
        let most: i64 = increments
            .iter()
            .filter(|(operation, _)| operation.outcome != Outcome::Fail && operation.invoked <= end)
            .map(|(_, by)| by)
            .sum();
        if *count < least || *count > most {
            let name = format!("operation {}", read.index);
            let sentence = format!("{name} of process {} reads {count}", read.process);
            let (kind, summary) = if *count < least {
                (
                    "lost-increment",
                    format!(
                        "a read shows {count} where at least {least} were acknowledged before it"
                    ),
                )
            } else {
                (
                    "excess-increment",
                    format!("a read shows {count} where at most {most} were attempted"),
                )
            };
            verdict.add(Anomaly::new(kind, summary, vec![Step::fact(name, sentence)]));
        }
    }
    verdict
}
