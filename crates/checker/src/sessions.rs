//! Causal sessions: a session's view of a register never goes backwards.
//!
//! Each process is a session. The values of a register are versions that rise: each write is greater than every
//! value written to its key before, so that older and newer can be told apart.

use std::collections::BTreeMap;

use crate::history::{Action, History, Outcome};
use crate::verdict::{Anomaly, Step, Verdict};

/// Checks that reads of a session are monotonic and see the session's own acknowledged writes.
pub fn check(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    // The newest version that a session read or wrote, by key, and the operation that did.
    let mut read: BTreeMap<(u64, i64), (i64, usize)> = BTreeMap::new();
    let mut written: BTreeMap<(u64, i64), (i64, usize)> = BTreeMap::new();
    for operation in history.operations() {
        match (&operation.action, operation.outcome) {
            (Action::Write { key, value }, Outcome::Ok) => {
                verdict.operations += 1;
                written.insert((operation.process, *key), (*value, operation.index));
            }
            (Action::Read { key, value }, Outcome::Ok) => {
                verdict.operations += 1;
                let place = (operation.process, *key);
                let version = value.unwrap_or(i64::MIN);
                let shown = value.map_or("nothing".to_owned(), |value| value.to_string());
                let name = format!("operation {}", operation.index);
                let mut blame = |kind, what: &str, (known, by): (i64, usize)| {
                    let steps = vec![
                        Step::fact(
                            format!("operation {by}"),
                            format!(
                                "operation {by} of session {} {what} {known} in key {key}",
                                operation.process
                            ),
                        ),
                        Step::fact(
                            name.clone(),
                            format!("{name} of the same session reads {shown} later"),
                        ),
                    ];
                    let summary =
                        format!("session {} went backwards on key {key}", operation.process);
                    verdict.add(Anomaly::new(kind, summary, steps));
                };
                if let Some(known) = read.get(&place).filter(|known| version < known.0) {
                    blame("non-monotonic-read", "reads", *known);
                }
                if let Some(known) = written.get(&place).filter(|known| version < known.0) {
                    blame("own-write-not-seen", "writes", *known);
                }
                read.insert(place, (version, operation.index));
            }
            _ => {}
        }
    }
    verdict
}
