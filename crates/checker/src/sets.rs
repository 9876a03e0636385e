//! Sets: what was acknowledged stays, and nothing appears from nowhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Action, History, Operation, Outcome};
use crate::verdict::{Anomaly, Step, Verdict};

/// Checks every read of the whole set.
///
/// An element that was acknowledged before a read began must be in it; an element whose insertion certainly failed or
/// was never tried must not; no element may be there twice. A history without a read is undecided.
pub fn check(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let mut added: BTreeMap<i64, &Operation> = BTreeMap::new();
    for operation in history.operations() {
        if let Action::Add(element) = operation.action {
            verdict.operations += 1;
            added.insert(element, operation);
        }
    }
    let mut reads = 0;
    for read in history.operations() {
        let (Action::ReadAll(Some(elements)), Outcome::Ok) = (&read.action, read.outcome) else {
            continue;
        };
        reads += 1;
        verdict.operations += 1;
        let name = format!("operation {}", read.index);
        let mut present = BTreeSet::new();
        for element in elements {
            if !present.insert(*element) {
                let sentence = format!("{name} reads {element} twice");
                let steps = vec![Step::fact(name.clone(), sentence)];
                verdict.add(Anomaly::new("duplicate", format!("{element} was added once"), steps));
            }
            match added.get(element).map(|operation| operation.outcome) {
                Some(Outcome::Ok | Outcome::Unknown) => {}
                outcome => {
                    let why = if outcome.is_some() {
                        "whose insertion failed"
                    } else {
                        "which no client added"
                    };
                    let steps =
                        vec![Step::fact(name.clone(), format!("{name} reads {element}, {why}"))];
                    verdict.add(Anomaly::new(
                        "phantom-value",
                        format!("the set holds {element}, {why}"),
                        steps,
                    ));
                }
            }
        }
        let lost: Vec<i64> = added
            .iter()
            .filter(|(element, operation)| operation.precedes(read) && !present.contains(element))
            .map(|(element, _)| *element)
            .collect();
        if let Some(first) = lost.first() {
            let writer = &added[first];
            let steps = vec![
                Step::fact(
                    format!("operation {}", writer.index),
                    format!(
                        "operation {} of process {} adds {first} and is acknowledged",
                        writer.index, writer.process
                    ),
                ),
                Step::fact(name.clone(), format!("{name} begins later and does not read it")),
            ];
            let summary =
                format!("{} acknowledged elements are lost, {first} among them", lost.len());
            verdict.add(Anomaly::new("lost-write", summary, steps));
        }
    }
    if reads == 0 {
        verdict.undecided =
            Some("the history has no read of the whole set; end the run with one".to_owned());
    }
    verdict
}
