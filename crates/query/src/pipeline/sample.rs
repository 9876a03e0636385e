//! `$sample`: some documents by chance, from the run's seed.

use bson::Document;

use super::memory::Memory;
use super::stage::{Made, deferred};
use super::{Documents, Run};
use crate::expression::approximate_size;

/// Keeps a reservoir: the nth document takes the place of one of those kept with the chance that
/// makes every set of them equally likely, so only the sample is ever held.
pub(super) fn run(size: u64, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    deferred(move || {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let mut memory = Memory::new("$sample", &run);
        let mut kept: Vec<Document> = Vec::new();
        for (seen, document) in input.enumerate() {
            let document = document?;
            if kept.len() < size {
                memory.hold_document(&document)?;
                kept.push(document);
                continue;
            }
            let place = below(&run, seen as u64 + 1) as usize;
            if let Some(old) = kept.get_mut(place) {
                memory.release(approximate_size(old));
                memory.hold_document(&document)?;
                *old = document;
            }
        }
        shuffle(&run, &mut kept);
        Ok(Made { documents: kept, memory: Some(memory) })
    })
}

fn shuffle(run: &Run, documents: &mut [Document]) {
    for last in (1..documents.len()).rev() {
        documents.swap(last, below(run, last as u64 + 1) as usize);
    }
}

/// A number below a bound, which is not zero, by multiplying instead of dividing.
fn below(run: &Run, bound: u64) -> u64 {
    ((u128::from(run.variables.next_random()) * u128::from(bound)) >> 64) as u64
}
