//! The limits of one operation: time, through an interrupt, and memory, through a budget.
//!
//! Evaluation counts its steps on a [`Meter`] and asks the caller's [`Interrupt`] every
//! [`STEPS_BETWEEN_CHECKS`] of them. Everything that can grow with what a client wrote holds a
//! [`Charge`]; when the last byte of an operation's limit, or of the [`ProcessMemory`] that all
//! operations share, is taken, the next charge fails and names the stage or operator that asked.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bson::Bson;

use crate::error::{QueryError, Result};

/// The most bytes that one operation may hold, unless its caller says otherwise.
pub(crate) const MAX_OPERATION_BYTES: usize = 100 * 1024 * 1024;

/// The most bytes that all operations of a process may hold together, unless its caller says otherwise.
pub(crate) const MAX_PROCESS_BYTES: usize = 1024 * 1024 * 1024;

/// How many steps pass between two questions to [`Interrupt`]. A step is one element, one expression
/// or one byte of a text: a thousand of them take microseconds.
pub(crate) const STEPS_BETWEEN_CHECKS: u64 = 1024;

/// How many bytes an operation takes from the process at a time, so that small operations never meet
/// on the shared counter.
const PROCESS_GRANULE: usize = 256 * 1024;

/// How many values are freed between two questions: a thousand documents take a millisecond.
const FREED_AT_ONCE: usize = 1024;

/// How many bytes of a value are copied in the time of one step.
const BYTES_OF_STEP: usize = 64;

/// The steps that it takes to copy a value of this many bytes.
pub(crate) fn steps_to_copy(bytes: usize) -> u64 {
    (bytes / BYTES_OF_STEP) as u64
}

/// Values beyond this many are given room in smaller steps.
const MANY: usize = 1024;

/// Adds a value. Many values are given a quarter more room at a time, not as much again: what is charged is the
/// values, and not the room for others.
pub(crate) fn push<T>(values: &mut Vec<T>, value: T) {
    make_place(values);
    values.push(value);
}

/// Makes room for one more value in the same way.
pub(crate) fn make_place<T>(values: &mut Vec<T>) {
    if values.len() == values.capacity() && values.len() >= MANY {
        values.reserve_exact(values.len() / 4);
    }
}

/// Tells whether the operation should end: its time is up, its client has gone, or it was killed.
pub trait Interrupt: fmt::Debug + Send + Sync {
    /// Goes on, or says why not.
    ///
    /// # Errors
    ///
    /// The error that ends the operation.
    fn check(&self) -> Result<()>;

    /// Takes over what an operation that ends early held. To free hundreds of thousands of documents takes
    /// longer than to answer, and the client waits for the answer only.
    fn leave(&self, remains: Box<dyn Any + Send>) {
        drop(remains);
    }
}

/// The memory that the operations of one process share.
#[derive(Debug)]
pub struct ProcessMemory {
    limit: usize,
    used: AtomicUsize,
}

impl Default for ProcessMemory {
    fn default() -> Self {
        Self::new(MAX_PROCESS_BYTES)
    }
}

impl ProcessMemory {
    /// Room for this many bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// How many bytes operations have taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// How many bytes there are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn take(&self, bytes: usize) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= self.limit;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Counts the steps and the bytes of one operation. Clones count together.
#[derive(Clone)]
pub struct Meter(Arc<Inner>);

struct Inner {
    interrupt: Option<Arc<dyn Interrupt>>,
    /// Set by the first question that was answered with no.
    ended: AtomicBool,
    steps: AtomicU64,
    limit: usize,
    used: AtomicUsize,
    process: Option<Arc<ProcessMemory>>,
    /// How many bytes have been taken from the process; never less than `used` when there is one.
    reserved: AtomicUsize,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meter({} of {} bytes)", self.used(), self.0.limit)
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new(MAX_OPERATION_BYTES)
    }
}

impl Meter {
    /// A meter for an operation that may hold this many bytes and is never interrupted.
    pub fn new(limit: usize) -> Self {
        Self::of(None, limit, None)
    }

    fn of(
        interrupt: Option<Arc<dyn Interrupt>>,
        limit: usize,
        process: Option<Arc<ProcessMemory>>,
    ) -> Self {
        Self(Arc::new(Inner {
            interrupt,
            ended: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            limit,
            used: AtomicUsize::new(0),
            process,
            reserved: AtomicUsize::new(0),
        }))
    }

    /// A meter for one operation of a process, with the usual limit.
    pub fn of_operation(interrupt: Arc<dyn Interrupt>, process: Arc<ProcessMemory>) -> Self {
        Self::of(Some(interrupt), MAX_OPERATION_BYTES, Some(process))
    }

    /// A fresh meter that also asks an interrupt.
    #[must_use]
    pub fn with_interrupt(&self, interrupt: Arc<dyn Interrupt>) -> Self {
        Self::of(Some(interrupt), self.0.limit, self.0.process.clone())
    }

    /// A fresh meter that also draws on the memory of a process.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_process(&self, process: Arc<ProcessMemory>) -> Self {
        Self::of(self.0.interrupt.clone(), self.0.limit, Some(process))
    }

    /// The most bytes that the operation may hold.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// How many bytes the operation holds.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Counts one step, and asks from time to time whether to go on.
    ///
    /// # Errors
    ///
    /// The interrupt's, if the operation should end.
    #[inline]
    pub fn step(&self) -> Result<()> {
        self.steps(1)
    }

    /// Counts some steps, and asks from time to time whether to go on.
    ///
    /// # Errors
    ///
    /// The interrupt's, if the operation should end.
    #[inline]
    pub fn steps(&self, count: u64) -> Result<()> {
        let Some(interrupt) = &self.0.interrupt else { return Ok(()) };
        // One thread runs an operation at a time: a lost step would only put a question off, and
        // a plain load and store are several times cheaper than an atomic addition.
        let before = self.0.steps.load(Ordering::Relaxed);
        let after = before.wrapping_add(count);
        self.0.steps.store(after, Ordering::Relaxed);
        if before / STEPS_BETWEEN_CHECKS != after / STEPS_BETWEEN_CHECKS || before == 0 {
            return self.ask(interrupt);
        }
        Ok(())
    }

    /// Asks now whether to go on: before and after what takes long in one go.
    ///
    /// # Errors
    ///
    /// The interrupt's, if the operation should end.
    pub fn check(&self) -> Result<()> {
        self.0.interrupt.as_ref().map_or(Ok(()), |interrupt| self.ask(interrupt))
    }

    fn ask(&self, interrupt: &Arc<dyn Interrupt>) -> Result<()> {
        interrupt.check().inspect_err(|_| self.0.ended.store(true, Ordering::Relaxed))
    }

    /// Whether the operation was interrupted.
    pub fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Relaxed)
    }

    /// Leaves what an operation that ends early held to the caller's interrupt, to be freed later. It counts
    /// for the process's memory until then.
    pub fn leave(&self, remains: impl Any + Send) {
        if let Some(interrupt) = &self.0.interrupt {
            interrupt.leave(Box::new((remains, self.clone())));
        }
    }

    /// Frees many values, asking now and then whether to go on; what is left when the operation should end is
    /// left to the interrupt.
    pub fn free<I>(&self, values: I)
    where
        I: IntoIterator,
        I::IntoIter: Send + 'static,
    {
        let mut values = values.into_iter();
        while !self.has_ended() || values.size_hint().1 == Some(0) {
            if values.by_ref().take(FREED_AT_ONCE).count() < FREED_AT_ONCE {
                return;
            }
            // The answer is in `has_ended`.
            let _ = self.check();
        }
        self.leave(values);
    }

    /// Frees a value in the same way, however its parts are nested.
    pub fn free_value(&self, value: Bson) {
        match value {
            whole if self.has_ended() => self.leave(whole),
            Bson::Array(elements) if elements.iter().any(has_parts) => {
                let mut elements = elements.into_iter();
                while let Some(element) = elements.next() {
                    self.free_value(element);
                    let _ = self.step();
                    if self.has_ended() {
                        return self.leave(elements);
                    }
                }
            }
            Bson::Array(elements) => self.free(elements),
            Bson::Document(document) if document.values().any(has_parts) => {
                document.into_iter().for_each(|(_, value)| self.free_value(value));
            }
            Bson::Document(document) => self.free(document),
            _ => {}
        }
    }

    /// An empty charge, to be grown.
    pub fn charge(&self) -> Charge {
        Charge { meter: self.clone(), bytes: 0 }
    }

    fn take(&self, holder: &str, bytes: usize) -> Result<()> {
        let inner = &*self.0;
        let used = inner.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used > inner.limit {
            inner.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(self.exceeded(holder));
        }
        let Some(process) = &inner.process else { return Ok(()) };
        let missing = used.saturating_sub(inner.reserved.load(Ordering::Relaxed));
        if missing > 0 {
            let more = missing.next_multiple_of(PROCESS_GRANULE);
            if !process.take(more) {
                inner.used.fetch_sub(bytes, Ordering::Relaxed);
                return Err(exhausted(holder, process));
            }
            inner.reserved.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        let inner = &*self.0;
        let used = inner.used.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let Some(process) = &inner.process else { return };
        // An operation that ends may still hold values that are not freed yet: it gives all bytes back here.
        if self.has_ended() {
            return;
        }
        // A few granules stay with the operation, which will probably need them again.
        let reserved = inner.reserved.load(Ordering::Relaxed);
        let kept = used.next_multiple_of(PROCESS_GRANULE).saturating_add(4 * PROCESS_GRANULE);
        if reserved > kept
            && inner
                .reserved
                .compare_exchange(reserved, kept, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            process.give_back(reserved - kept);
        }
    }

    fn exceeded(&self, holder: &str) -> QueryError {
        fail!(
            QUERY_EXCEEDED_MEMORY_LIMIT,
            "{holder} exceeded the memory limit of {} bytes for one operation and cannot put \
                 anything on disk; select fewer documents or build smaller values",
            self.0.limit
        )
    }
}

fn exhausted(holder: &str, process: &ProcessMemory) -> QueryError {
    fail!(
        EXCEEDED_MEMORY_LIMIT,
        "{holder} cannot have more memory: the operations of this server together hold its \
             limit of {} bytes; try again when others have ended",
        process.limit
    )
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            process.give_back(*self.reserved.get_mut());
        }
    }
}

/// Bytes that are held, given back when dropped.
#[derive(Debug)]
pub struct Charge {
    meter: Meter,
    bytes: usize,
}

impl Charge {
    /// Holds more bytes.
    ///
    /// # Errors
    ///
    /// If the operation's or the process's memory is used up; the error names the holder.
    pub fn grow(&mut self, holder: &str, bytes: usize) -> Result<()> {
        self.meter.take(holder, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives some bytes back.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.meter.give_back(bytes);
    }

    /// Gives all bytes back.
    pub fn clear(&mut self) {
        if self.bytes > 0 {
            self.shrink(self.bytes);
        }
    }

    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The meter that is charged.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.clear();
    }
}

fn has_parts(value: &Bson) -> bool {
    matches!(value, Bson::Array(_) | Bson::Document(_))
}

/// Many values that one operation holds. They are freed with questions in between, and after the client's
/// answer if the operation should end.
#[derive(Debug)]
pub struct Kept<C>
where
    C: Default + IntoIterator,
    C::IntoIter: Send + 'static,
{
    values: C,
    meter: Meter,
}

impl<C> Kept<C>
where
    C: Default + IntoIterator,
    C::IntoIter: Send + 'static,
{
    /// Keeps values for the operation of this meter.
    pub fn new(values: C, meter: &Meter) -> Self {
        Self { values, meter: meter.clone() }
    }

    /// The values, which their new owner frees.
    pub fn into_inner(mut self) -> C {
        std::mem::take(&mut self.values)
    }
}

impl<C> Deref for Kept<C>
where
    C: Default + IntoIterator,
    C::IntoIter: Send + 'static,
{
    type Target = C;

    fn deref(&self) -> &C {
        &self.values
    }
}

impl<C> DerefMut for Kept<C>
where
    C: Default + IntoIterator,
    C::IntoIter: Send + 'static,
{
    fn deref_mut(&mut self) -> &mut C {
        &mut self.values
    }
}

impl<C> Drop for Kept<C>
where
    C: Default + IntoIterator,
    C::IntoIter: Send + 'static,
{
    fn drop(&mut self) {
        self.meter.free(std::mem::take(&mut self.values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn charges_come_back_when_they_are_dropped() {
        let meter = Meter::new(100);
        let mut charge = meter.charge();
        charge.grow("$x", 60).unwrap();
        let refused = meter.charge().grow("$y", 60).unwrap_err();
        assert_eq!(refused.code().0, 292);
        assert!(refused.message().starts_with("$y exceeded the memory limit of 100 bytes"));
        assert_eq!(meter.used(), 60);
        charge.shrink(20);
        assert_eq!(meter.used(), 40);
        drop(charge);
        assert_eq!(meter.used(), 0);
    }

    #[test]
    fn operations_share_the_memory_of_the_process() {
        let process = Arc::new(ProcessMemory::new(4 * PROCESS_GRANULE));
        let meter = || Meter::default().with_process(Arc::clone(&process));
        let (first, second) = (meter(), meter());
        let mut held = first.charge();
        held.grow("$a", 3 * PROCESS_GRANULE).unwrap();
        let refused = second.charge().grow("$b", 2 * PROCESS_GRANULE).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::EXCEEDED_MEMORY_LIMIT);
        assert_eq!(process.used(), 3 * PROCESS_GRANULE);
        second.charge().grow("$b", PROCESS_GRANULE).unwrap();
        drop((held, first, second));
        assert_eq!(process.used(), 0);
    }

    #[test]
    fn a_large_operation_gives_back_what_it_no_longer_holds() {
        let process = Arc::new(ProcessMemory::new(100 * PROCESS_GRANULE));
        let meter = Meter::default().with_process(Arc::clone(&process));
        let mut held = meter.charge();
        held.grow("$a", 90 * PROCESS_GRANULE).unwrap();
        held.clear();
        assert!(process.used() <= 4 * PROCESS_GRANULE);
    }
}
