//! What consumers of a change stream saw, beside what happened.
//!
//! A consumer handles events one after another and stores its place from time to time. When it is killed it goes on
//! from the place that it stored last, so it may see events again that lie beyond that place, and no others.

use std::collections::BTreeMap;

use crate::verdict::{Anomaly, Step, Verdict};

/// What happened to a consumer, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The consumer received the event of this identity.
    Event(i64),
    /// The consumer stored its place, after all events so far.
    Stored,
    /// The consumer was killed, and began again from the place stored last.
    Restarted,
}

/// Checks one consumer against the committed changes, in their order. Every identity is committed once.
///
/// The consumer has to have been given everything at the end.
pub fn check(committed: &[i64], deliveries: &[Delivery]) -> Verdict {
    let places: BTreeMap<i64, usize> =
        committed.iter().enumerate().map(|(place, event)| (*event, place)).collect();
    let mut verdict = Verdict { operations: deliveries.len(), ..Verdict::default() };
    // The place of the event that must come next, and the one to go on from after a restart.
    let (mut next, mut stored) = (0, 0);
    for (number, delivery) in deliveries.iter().enumerate() {
        match *delivery {
            Delivery::Stored => stored = next,
            Delivery::Restarted => next = stored,
            Delivery::Event(event) => {
                let name = format!("delivery {number}");
                let Some(place) = places.get(&event).copied() else {
                    let steps = vec![Step::fact(name.clone(), format!("{name} is event {event}"))];
                    verdict.add(Anomaly::new(
                        "phantom-event",
                        "an event tells of what never committed",
                        steps,
                    ));
                    continue;
                };
                if place != next {
                    let (kind, summary) = if place < next {
                        (
                            "repeated-event",
                            "an event came again that lies before the stored place or out of order",
                        )
                    } else {
                        ("missed-event", "events were left out")
                    };
                    let sentence = format!(
                        "{name} is event {event} at place {place} where place {next} was due"
                    );
                    verdict.add(Anomaly::new(kind, summary, vec![Step::fact(name, sentence)]));
                }
                next = place + 1;
            }
        }
    }
    if next < committed.len() {
        let missing = committed.len() - next;
        let sentence = format!(
            "the last {missing} changes, from {} on, were never delivered",
            committed[next]
        );
        verdict.add(Anomaly::new(
            "missed-event",
            "the stream ended too early",
            vec![Step::fact("end", sentence)],
        ));
    }
    verdict
}
