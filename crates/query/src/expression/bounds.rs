//! How much an expression may build: bytes and nesting.
//!
//! Expressions can grow values exponentially (`$reduce` over its own value) or nest them without
//! end. Operators that copy their operands draw on a [`Budget`], so that neither memory nor the
//! stack depends on the goodwill of whoever wrote the expression.

use bson::{Bson, Document};

use super::{ExpressionError, MAX_INTERMEDIATE_BYTES, fail};
use crate::value::MAX_NESTING;

const EXCEEDED_MEMORY_LIMIT: i32 = 146;
const OVERFLOW: i32 = 15;

/// What one element costs besides its payload: the value itself and its slot in the container.
const ELEMENT_OVERHEAD: usize = 40;

/// Bytes drawn so far by one operator.
#[derive(Default)]
pub(crate) struct Budget {
    used: usize,
}

impl Budget {
    /// Draws what a value costs.
    pub(crate) fn draw(&mut self, operator: &str, value: &Bson) -> Result<(), ExpressionError> {
        let size = measure(value, 0).ok_or_else(too_deep)?;
        self.draw_bytes(operator, size)
    }

    /// Draws a number of bytes.
    pub(crate) fn draw_bytes(
        &mut self,
        operator: &str,
        bytes: usize,
    ) -> Result<(), ExpressionError> {
        self.used = self.used.saturating_add(bytes);
        if self.used > MAX_INTERMEDIATE_BYTES {
            return Err(fail(
                EXCEEDED_MEMORY_LIMIT,
                format!(
                    "{operator} would use too much memory ({} bytes) and cannot spill to disk. \
                     Memory limit: {MAX_INTERMEDIATE_BYTES} bytes",
                    self.used
                ),
            ));
        }
        Ok(())
    }
}

fn too_deep() -> ExpressionError {
    fail(OVERFLOW, format!("a computed value is nested deeper than {MAX_NESTING} levels"))
}

/// Roughly how much memory a document takes.
pub(crate) fn approximate_size(document: &Document) -> usize {
    document.iter().fold(ELEMENT_OVERHEAD, |total, (name, value)| {
        total + name.len() + measure(value, 0).unwrap_or(MAX_INTERMEDIATE_BYTES)
    })
}

/// Roughly how much memory a value takes.
pub(crate) fn approximate_value_size(value: &Bson) -> usize {
    measure(value, 0).unwrap_or(MAX_INTERMEDIATE_BYTES)
}

/// Roughly how much memory a value takes; `None` if it is nested too deeply.
fn measure(value: &Bson, depth: usize) -> Option<usize> {
    if depth > MAX_NESTING {
        return None;
    }
    let payload = match value {
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => text.len(),
        Bson::Binary(binary) => binary.bytes.len(),
        Bson::RegularExpression(regex) => regex.pattern.as_str().len(),
        Bson::Array(elements) => elements
            .iter()
            .try_fold(0_usize, |total, element| Some(total + measure(element, depth + 1)?))?,
        Bson::Document(document) => measure_document(document, depth)?,
        Bson::JavaScriptCodeWithScope(code) => {
            code.code.len() + measure_document(&code.scope, depth)?
        }
        _ => 0,
    };
    Some(payload + ELEMENT_OVERHEAD)
}

fn measure_document(document: &Document, depth: usize) -> Option<usize> {
    document.iter().try_fold(0_usize, |total, (name, value)| {
        Some(total + name.len() + ELEMENT_OVERHEAD + measure(value, depth + 1)?)
    })
}
