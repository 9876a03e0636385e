//! The part of an operation's memory that one stage holds.

use bson::{Bson, Document};

use super::Run;
use crate::error::{ErrorCode, Result};
use crate::expression::{approximate_size, approximate_value_size};
use crate::meter::{Charge, Meter};

/// Bytes held by one stage, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Memory {
    stage: &'static str,
    charge: Charge,
}

impl Memory {
    pub(super) fn new(stage: &'static str, run: &Run) -> Self {
        Self::of(stage, run.variables.meter())
    }

    pub(super) fn of(stage: &'static str, meter: &Meter) -> Self {
        Self { stage, charge: meter.charge() }
    }

    /// Counts bytes that the stage now holds.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<()> {
        let exceeded = ErrorCode::QUERY_EXCEEDED_MEMORY_LIMIT;
        self.charge.grow(self.stage, bytes).map_err(|error| match self.stage {
            stage if error.code() == exceeded => fail!(
                (exceeded),
                "Exceeded memory limit for {stage}: the operation may hold {} bytes and the \
                     stage cannot put anything on disk; select fewer documents or fields before it",
                self.charge.meter().limit()
            ),
            _ => error,
        })
    }

    pub(super) fn hold_document(&mut self, document: &Document) -> Result<()> {
        self.hold(approximate_size(document))
    }

    pub(super) fn hold_value(&mut self, value: &Bson) -> Result<()> {
        self.hold(approximate_value_size(value))
    }

    /// Counts steps of the operation.
    pub(super) fn steps(&self, count: u64) -> Result<()> {
        self.charge.meter().steps(count)
    }

    /// Counts bytes that the stage no longer holds.
    pub(super) fn release(&mut self, bytes: usize) {
        self.charge.shrink(bytes);
    }

    /// How many bytes the stage holds.
    pub(super) fn held(&self) -> usize {
        self.charge.bytes()
    }

    /// Counts everything as no longer held.
    pub(super) fn clear(&mut self) {
        self.charge.clear();
    }
}
