//! Sorting more than fits into memory, and no more than is wanted.
//!
//! Owns which values are kept, when they are put aside in sorted runs, and how the runs are merged. Where runs
//! lie is the caller's [`SortRoom`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::QueryError;
use crate::meter::{Charge, Meter};
use crate::sorting::sorted;

/// How many sorted runs one sort may put aside.
const MAX_RUNS: usize = 1000;

/// Where a sort puts what does not fit into memory.
pub trait SortRoom<T>: Send + 'static {
    /// Why a sort fails.
    type Error: From<QueryError>;
    /// Values that were put aside, in their order.
    type Run: Iterator<Item = Result<T, Self::Error>> + Send + 'static;

    /// The name of the sort in refusals.
    const NAME: &'static str;

    /// How many bytes a value takes.
    fn size(value: &T) -> usize;

    /// Whether values can be put aside.
    fn sets_aside(&self) -> bool;

    /// Puts sorted values aside.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    fn set_aside(&self, values: Vec<T>, meter: &Meter) -> Result<Self::Run, Self::Error>;

    /// The refusal of a sort that holds too much and can put nothing aside.
    fn outgrown(&self, error: QueryError, limit: usize) -> Self::Error;
}

/// The values that a sort has taken in so far.
pub struct Sorter<T, R: SortRoom<T>> {
    room: R,
    charge: Charge,
    limit: usize,
    /// The last in order is on top of the heap, where the limit takes it from.
    kept: BinaryHeap<T>,
    runs: Vec<R::Run>,
}

impl<T: Ord + Send + 'static, R: SortRoom<T>> Sorter<T, R> {
    /// A sort that gives the first `limit` values.
    pub fn new(room: R, limit: usize, meter: &Meter) -> Self {
        Self { room, charge: meter.charge(), limit, kept: BinaryHeap::new(), runs: Vec::new() }
    }

    /// The last of as many values as are wanted: only a smaller one is among the first.
    pub fn bar(&self) -> Option<&T> {
        self.kept.peek().filter(|_| self.kept.len() >= self.limit)
    }

    /// Takes in a value that is not behind the [`bar`](Self::bar).
    ///
    /// # Errors
    ///
    /// If there is no room for it, or the operation should end.
    pub fn take(&mut self, value: T) -> Result<(), R::Error> {
        let size = R::size(&value);
        if let Err(outgrown) = self.hold(size) {
            if self.runs.len() >= MAX_RUNS || !self.room.sets_aside() {
                return Err(outgrown);
            }
            self.put_aside()?;
            self.hold(size)?;
        }
        self.kept.push(value);
        if self.kept.len() > self.limit
            && let Some(last) = self.kept.pop()
        {
            self.charge.shrink(R::size(&last));
        }
        Ok(())
    }

    fn hold(&mut self, bytes: usize) -> Result<(), R::Error> {
        let limit = self.charge.meter().limit();
        self.charge.grow(R::NAME, bytes).map_err(|error| self.room.outgrown(error, limit))
    }

    fn in_order(&mut self) -> Result<Vec<T>, R::Error> {
        let kept = std::mem::take(&mut self.kept).into_vec();
        Ok(sorted(kept, Ord::cmp, self.charge.meter())?)
    }

    fn put_aside(&mut self) -> Result<(), R::Error> {
        let values = self.in_order()?;
        self.runs.push(self.room.set_aside(values, self.charge.meter())?);
        self.charge.clear();
        Ok(())
    }

    /// The values in order. What is held is left to the meter if not all could be taken in, as `taken` says.
    ///
    /// # Errors
    ///
    /// That of `taken`, or if the values cannot be put in order.
    pub fn finish(mut self, taken: Result<(), R::Error>) -> Result<Sorted<T, R>, R::Error> {
        let ordered = taken.and_then(|()| match self.runs.is_empty() {
            true => self.in_order(),
            // The first value of each run needs the room.
            false => self.put_aside().map(|()| Vec::new()),
        });
        match ordered {
            Ok(values) => {
                let wanted = self.limit;
                let values = values.into_iter();
                let mut sorted = Sorted { sorter: self, wanted, values, heads: BinaryHeap::new() };
                (0..sorted.sorter.runs.len()).try_for_each(|run| sorted.advance(run))?;
                Ok(sorted)
            }
            Err(error) => {
                let meter = self.charge.meter().clone();
                meter.leave((self.kept, self.runs, self.charge));
                Err(error)
            }
        }
    }
}

/// Sorted values: those in memory, or runs as one. Equal values come in the order in which they were taken in, which is
/// that of the runs.
pub struct Sorted<T, R: SortRoom<T>> {
    sorter: Sorter<T, R>,
    /// How many values of runs are still to come at most.
    wanted: usize,
    values: std::vec::IntoIter<T>,
    /// The first value of each run, and which run that is; the smallest is on top.
    heads: BinaryHeap<Reverse<(T, usize)>>,
}

impl<T: Ord + Send + 'static, R: SortRoom<T>> Sorted<T, R> {
    fn advance(&mut self, run: usize) -> Result<(), R::Error> {
        self.sorter.charge.meter().step()?;
        if let Some(value) = self.sorter.runs.get_mut(run).and_then(Iterator::next) {
            let value = value?;
            self.sorter.hold(R::size(&value))?;
            self.heads.push(Reverse((value, run)));
        }
        Ok(())
    }
}

impl<T: Ord + Send + 'static, R: SortRoom<T>> Iterator for Sorted<T, R> {
    type Item = Result<T, R::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(value) = self.values.next() {
            return Some(Ok(value));
        }
        self.wanted = self.wanted.checked_sub(1)?;
        let Reverse((first, run)) = self.heads.pop()?;
        self.sorter.charge.shrink(R::size(&first));
        Some(self.advance(run).map(|()| first))
    }
}
