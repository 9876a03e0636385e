//! Sorting more than fits into memory, and no more than is wanted.
//!
//! Owns which values are kept, when they are put aside in sorted runs, and how the runs are merged. Where runs
//! lie is the caller's [`SortRoom`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::error::QueryError;
use crate::meter::{Charge, Meter};
use crate::sorting::sorted;

/// How many sorted runs one sort may put aside.
const MAX_RUNS: usize = 1000;

/// The part of the memory that the first values of runs may take, so that runs are merged with room for what comes of it.
const HEADS_PART: usize = 2;

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
    runs: Vec<PutAside<R::Run>>,
}

/// A sorted run, in one piece or several.
struct PutAside<I> {
    pieces: VecDeque<I>,
    /// The bytes of its largest value.
    largest: usize,
}

impl<I: Iterator> Iterator for PutAside<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        loop {
            if let Some(value) = self.pieces.front_mut()?.next() {
                return Some(value);
            }
            self.pieces.pop_front();
        }
    }
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
        let largest = self.kept.iter().map(R::size).max().unwrap_or(0);
        let values = self.in_order()?;
        let run = self.room.set_aside(values, self.charge.meter())?;
        self.runs.push(PutAside { pieces: VecDeque::from([run]), largest });
        self.charge.clear();
        Ok(())
    }

    /// Merges neighbouring runs until the largest values of all of them can be held at once. Ends early if no two of them can be:
    /// then there may still be room for the first ones.
    fn merge_in_passes(&mut self) -> Result<(), R::Error> {
        let most = self.charge.meter().limit() / HEADS_PART;
        while self.runs.iter().map(|run| run.largest).sum::<usize>() > most {
            let before = self.runs.len();
            let mut runs = std::mem::take(&mut self.runs).into_iter().peekable();
            while let Some(first) = runs.next() {
                let mut held = first.largest;
                let mut group = vec![first];
                while let Some(next) = runs.next_if(|next| held + next.largest <= most) {
                    held += next.largest;
                    group.push(next);
                }
                let merged = if group.len() > 1 { vec![self.merge(group)?] } else { group };
                self.runs.extend(merged);
            }
            if self.runs.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Makes one run of several.
    fn merge(&mut self, mut runs: Vec<PutAside<R::Run>>) -> Result<PutAside<R::Run>, R::Error> {
        let largest = runs.iter().map(|run| run.largest).max().unwrap_or(0);
        let mut merged = PutAside { pieces: VecDeque::new(), largest };
        let (mut heads, mut piece, mut bytes) = (BinaryHeap::new(), Vec::new(), 0);
        for (place, run) in runs.iter_mut().enumerate() {
            let Some(value) = run.next().transpose()? else { continue };
            self.hold(R::size(&value))?;
            heads.push(Reverse((value, place)));
        }
        for _ in 0..self.limit {
            self.charge.meter().step()?;
            let Some(Reverse((first, place))) = heads.pop() else { break };
            bytes += R::size(&first);
            piece.push(first);
            let Some(value) = runs[place].next().transpose()? else { continue };
            let size = R::size(&value);
            if self.hold(size).is_err() {
                let full = std::mem::take(&mut piece);
                merged.pieces.push_back(self.room.set_aside(full, self.charge.meter())?);
                self.charge.shrink(std::mem::take(&mut bytes));
                self.hold(size)?;
            }
            heads.push(Reverse((value, place)));
        }
        merged.pieces.push_back(self.room.set_aside(piece, self.charge.meter())?);
        self.charge.clear();
        Ok(merged)
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
            false => self.put_aside().and_then(|()| self.merge_in_passes()).map(|()| Vec::new()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in memory, of values with a key and a place.
    struct InMemory;

    const SIZE: usize = 150;

    impl SortRoom<(u32, u32)> for InMemory {
        type Error = QueryError;
        type Run = std::vec::IntoIter<Result<(u32, u32), QueryError>>;
        const NAME: &'static str = "sort";

        fn size(_: &(u32, u32)) -> usize {
            SIZE
        }

        fn sets_aside(&self) -> bool {
            true
        }

        fn set_aside(&self, values: Vec<(u32, u32)>, _: &Meter) -> Result<Self::Run, QueryError> {
            Ok(values.into_iter().map(Ok).collect::<Vec<_>>().into_iter())
        }

        fn outgrown(&self, error: QueryError, _: usize) -> QueryError {
            error
        }
    }

    /// The first values of all runs do not fit into memory: runs are merged before.
    #[test]
    fn runs_of_large_values_are_merged_in_passes() {
        for (count, limit) in [(1, 9), (6, 9), (7, 9), (60, 7), (60, 1000), (5_000, usize::MAX)] {
            let meter = Meter::new(1_000);
            let mut sorter = Sorter::new(InMemory, limit, &meter);
            let values: Vec<_> = (0..count).map(|place| (place * 7919 % 13, place)).collect();
            let taken = values.iter().try_for_each(|value| sorter.take(*value));
            let sorted: Result<Vec<_>, _> = sorter.finish(taken).unwrap().collect();
            let mut expected = values;
            expected.sort();
            expected.truncate(limit);
            assert_eq!(sorted.unwrap(), expected, "{count} {limit}");
            assert_eq!(meter.used(), 0, "{count} {limit}");
        }
    }
}
