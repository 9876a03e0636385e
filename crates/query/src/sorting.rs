//! Sorting that can be interrupted.
//!
//! The sorts of the standard library cannot be stopped, and a million documents take them seconds.
//! Short pieces are sorted by it and merged here, with a question to the meter now and then.

use std::cmp::Ordering;

use crate::error::QueryError;
use crate::meter::Meter;

/// How many values are sorted between two questions.
const PIECE: usize = 2048;

/// The values in order; equal ones stay in the order in which they came.
///
/// # Errors
///
/// The interrupt's, if the operation should end. What was being sorted is left to the meter then: to free
/// it may take longer than the client should wait for its answer.
pub fn sorted<T: Send + 'static>(
    values: Vec<T>,
    compare: impl Fn(&T, &T) -> Ordering,
    meter: &Meter,
) -> Result<Vec<T>, QueryError> {
    merge_pieces(sort_pieces(values, &compare, meter)?, &compare, meter)
}

fn sort_pieces<T: Send + 'static>(
    values: Vec<T>,
    compare: impl Fn(&T, &T) -> Ordering,
    meter: &Meter,
) -> Result<Vec<Vec<T>>, QueryError> {
    let mut pieces = Vec::with_capacity(values.len() / PIECE + 1);
    let mut values = values.into_iter();
    loop {
        let mut piece: Vec<T> = values.by_ref().take(PIECE).collect();
        if piece.is_empty() {
            return Ok(pieces);
        }
        piece.sort_by(&compare);
        pieces.push(piece);
        if let Err(error) = meter.check() {
            meter.leave((pieces, values));
            return Err(error);
        }
    }
}

fn merge_pieces<T: Send + 'static>(
    mut pieces: Vec<Vec<T>>,
    compare: impl Fn(&T, &T) -> Ordering,
    meter: &Meter,
) -> Result<Vec<T>, QueryError> {
    while pieces.len() > 1 {
        let mut longer = Vec::with_capacity(pieces.len().div_ceil(2));
        let mut rest = pieces.into_iter();
        while let Some(left) = rest.next() {
            longer.push(match rest.next() {
                Some(right) => match merged(left, right, &compare, meter) {
                    Ok(both) => both,
                    Err(error) => {
                        meter.leave((longer, rest));
                        return Err(error);
                    }
                },
                None => left,
            });
        }
        pieces = longer;
    }
    Ok(pieces.pop().unwrap_or_default())
}

/// Two sorted pieces as one; of equal values those of the left one come first.
fn merged<T: Send + 'static>(
    left: Vec<T>,
    right: Vec<T>,
    compare: impl Fn(&T, &T) -> Ordering,
    meter: &Meter,
) -> Result<Vec<T>, QueryError> {
    let mut both = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(first), Some(second)) = (left.peek(), right.peek()) {
        let next = if compare(first, second).is_le() { left.next() } else { right.next() };
        both.extend(next);
        if let Err(error) = meter.step() {
            meter.leave((both, left, right));
            return Err(error);
        }
    }
    both.extend(left);
    both.extend(right);
    Ok(both)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering as Atomic};

    use super::*;
    use crate::error::ErrorCode;
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
        fn check(&self) -> Result<(), QueryError> {
            match self.0.fetch_sub(1, Atomic::Relaxed) {
                1 => Err(QueryError::new(ErrorCode::BAD_VALUE, "enough")),
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
        fn check(&self) -> Result<(), QueryError> {
            match self.0.fetch_sub(1, Atomic::Relaxed) {
                1 => Err(QueryError::new(ErrorCode::BAD_VALUE, "enough")),
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
