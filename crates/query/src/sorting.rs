//! Sorting that can be interrupted.
//!
//! The sorts of the standard library cannot be stopped, and a million documents take them seconds.
//! Short pieces are sorted by it and merged here, with a question to the meter now and then.

use std::cmp::Ordering;

use crate::error::Result;
use crate::meter::Meter;

/// How many values are sorted between two questions.
const PIECE: usize = 2048;

/// The values in order; equal ones stay in the order in which they came.
///
/// Their places are sorted, and each value is then moved once: no second copy of them takes memory, which would
/// have to be had from the system and given back in between. If the operation should end, what was being sorted is left to
/// the meter: to free it may take longer than the client should wait for its answer.
pub(crate) fn sorted<T: Send + 'static>(
    mut values: Vec<T>,
    compare: impl Fn(&T, &T) -> Ordering,
    meter: &Meter,
) -> Result<Vec<T>> {
    let done = if values.len() <= PIECE {
        values.sort_by(&compare);
        meter.check()
    } else {
        let by_place = |&left: &usize, &right: &usize| compare(&values[left], &values[right]);
        let order = places_in_order(values.len(), by_place, meter);
        order.and_then(|order| put_in_order(&mut values, order, meter))
    };
    match done {
        Ok(()) => Ok(values),
        Err(error) => {
            meter.leave(values);
            Err(error)
        }
    }
}

/// The places of values in the order of the values.
fn places_in_order(
    count: usize,
    compare: impl Fn(&usize, &usize) -> Ordering,
    meter: &Meter,
) -> Result<Vec<usize>> {
    let mut places: Vec<usize> = (0..count).collect();
    for piece in places.chunks_mut(PIECE) {
        piece.sort_by(&compare);
        meter.check()?;
    }
    let mut merged = Vec::with_capacity(count);
    let mut length = PIECE;
    while length < count {
        merged.clear();
        for pair in places.chunks(2 * length) {
            let (left, right) = pair.split_at(length.min(pair.len()));
            merge(left, right, &mut merged, &compare, meter)?;
        }
        std::mem::swap(&mut places, &mut merged);
        length *= 2;
    }
    Ok(places)
}

/// Adds two sorted pieces as one; of equal values those of the left one come first.
fn merge(
    mut left: &[usize],
    mut right: &[usize],
    merged: &mut Vec<usize>,
    compare: impl Fn(&usize, &usize) -> Ordering,
    meter: &Meter,
) -> Result<()> {
    while let ([first, left_rest @ ..], [second, right_rest @ ..]) = (left, right) {
        if compare(first, second).is_le() {
            merged.push(*first);
            left = left_rest;
        } else {
            merged.push(*second);
            right = right_rest;
        }
        meter.step()?;
    }
    merged.extend_from_slice(left);
    merged.extend_from_slice(right);
    Ok(())
}

/// Moves each value to its place: to `i` the one that is at `order[i]`.
fn put_in_order<T>(values: &mut [T], mut order: Vec<usize>, meter: &Meter) -> Result<()> {
    for start in 0..values.len() {
        let mut place = start;
        loop {
            meter.step()?;
            let next = std::mem::replace(&mut order[place], place);
            if next == start || next == place {
                break;
            }
            values.swap(place, next);
            place = next;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering as Atomic};

    use super::*;

    use crate::meter::Interrupt;

    #[test]
    fn values_come_in_order_and_equal_ones_as_they_came() {
        let meter = Meter::default();
        for count in [0, 1, 2, PIECE, PIECE + 1, 3 * PIECE + 7, 10 * PIECE] {
            let values: Vec<_> = (0..count).map(|place| ((place * 7919) % 13, place)).collect();
            let mut expected = values.clone();
            expected.sort();
            assert_eq!(sorted(values, |a, b| a.0.cmp(&b.0), &meter).unwrap(), expected);
        }
    }

    /// Lets the operation go on so many times.
    #[derive(Debug)]
    struct Patience(AtomicUsize);

    impl Interrupt for Patience {
        fn check(&self) -> Result<()> {
            match self.0.fetch_sub(1, Atomic::Relaxed) {
                1 => Err(fail!(BAD_VALUE, "enough")),
                _ => Ok(()),
            }
        }
    }

    /// Wherever in the sort the question is answered with no, the sort ends there.
    #[test]
    fn a_sort_ends_when_its_operation_is_to_end() {
        let count = 8 * PIECE;
        for patience in [1, 5, 12, 25] {
            let compared = AtomicUsize::new(0);
            let meter = Meter::default().with_interrupt(Arc::new(Patience(patience.into())));
            let compare = |a: &usize, b: &usize| {
                compared.fetch_add(1, Atomic::Relaxed);
                b.cmp(a)
            };
            assert!(sorted((0..count).collect(), compare, &meter).is_err());
            assert!(compared.into_inner() < (patience + 1) * 2 * PIECE);
        }
    }

    /// Keeps what is left to it, and says no at a question of the test's choice.
    #[derive(Debug)]
    struct Keeper(AtomicUsize, std::sync::Mutex<Vec<Box<dyn std::any::Any + Send>>>);

    impl Interrupt for Keeper {
        fn check(&self) -> Result<()> {
            match self.0.fetch_sub(1, Atomic::Relaxed) {
                1 => Err(fail!(BAD_VALUE, "enough")),
                _ => Ok(()),
            }
        }

        fn leave(&self, remains: Box<dyn std::any::Any + Send>) {
            self.1.lock().unwrap().push(remains);
        }
    }

    struct Counted(usize, Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Atomic::Relaxed);
        }
    }

    /// The client of a sort that is stopped does not wait until its documents are freed.
    #[test]
    fn a_sort_that_ends_early_frees_nothing_itself() {
        let count = 8 * PIECE;
        for patience in [1, 3, 8, 9, 20, 30] {
            let keeper = Arc::new(Keeper(AtomicUsize::new(patience), Default::default()));
            let meter = Meter::default().with_interrupt(keeper.clone());
            let freed = Arc::new(AtomicUsize::new(0));
            let values = (0..count).map(|n| Counted(n * 7919 % count, freed.clone())).collect();
            let result = sorted(values, |a: &Counted, b| a.0.cmp(&b.0), &meter);
            assert!(result.is_err(), "{patience}");
            assert_eq!(freed.load(Atomic::Relaxed), 0, "{patience}");
            keeper.1.lock().unwrap().clear();
            assert_eq!(freed.load(Atomic::Relaxed), count, "{patience}");
        }
    }
}
