//! The bound on what a blocking stage holds.

use bson::{Bson, Document};

use crate::error::QueryError;
use crate::expression::{approximate_size, approximate_value_size};

const QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED: i32 = 292;

/// Bytes held by one stage.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    stage: &'static str,
    used: usize,
    limit: usize,
}

impl Memory {
    pub(super) fn new(stage: &'static str, limit: usize) -> Self {
        Self { stage, used: 0, limit }
    }

    /// Counts bytes that the stage now holds.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), QueryError> {
        self.used = self.used.saturating_add(bytes);
        if self.used <= self.limit {
            return Ok(());
        }
        let message = match self.stage {
            "$sort" => format!(
                "Sort exceeded memory limit of {} bytes, but did not opt in to external sorting.",
                self.limit
            ),
            stage => format!(
                "Exceeded memory limit for {stage}, but didn't allow external sort. Pass \
                 allowDiskUse:true to opt in."
            ),
        };
        Err(QueryError::location(QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED, message))
    }

    pub(super) fn hold_document(&mut self, document: &Document) -> Result<(), QueryError> {
        self.hold(approximate_size(document))
    }

    pub(super) fn hold_value(&mut self, value: &Bson) -> Result<(), QueryError> {
        self.hold(approximate_value_size(value))
    }

    /// Counts bytes that the stage no longer holds.
    pub(super) fn release(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }
}
