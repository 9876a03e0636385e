//! Limits on the bytes and the nesting of the values that an expression builds.
//!
//! Expressions can grow values exponentially (`$reduce` over its own value) or nest them without
//! end. Every computed value is charged to the operation's [`Meter`](crate::Meter) for as long as it
//! lives. An operator whose result can be larger than its operands draws on a [`Budget`] while it
//! builds that result, so that one operator cannot take much before it is charged.

use bson::{Bson, Document};

use super::MAX_INTERMEDIATE_BYTES;
use crate::error::{QueryError, Result};
use crate::value::MAX_NESTING;

/// The bytes of one value besides its payload.
pub(crate) const ELEMENT_OVERHEAD: usize = size_of::<Bson>();

/// The bytes of one field besides its name and value: the name's own header, its hash and its place in
/// the table of fields.
const FIELD_OVERHEAD: usize = size_of::<String>() + 3 * size_of::<usize>();

/// Bytes drawn so far by one operator.
#[derive(Default)]
pub(crate) struct Budget {
    used: usize,
}

impl Budget {
    /// Draws what a value costs.
    pub(crate) fn draw(&mut self, operator: &str, value: &Bson) -> Result<()> {
        let size = measure(value, 0).ok_or_else(too_deep)?;
        self.draw_bytes(operator, size)
    }

    /// Draws a number of bytes.
    pub(crate) fn draw_bytes(&mut self, operator: &str, bytes: usize) -> Result<()> {
        self.used = self.used.saturating_add(bytes);
        if self.used > MAX_INTERMEDIATE_BYTES {
            return Err(too_large(operator, self.used));
        }
        Ok(())
    }
}

/// The refusal of an operator whose result would be too large.
pub(crate) fn too_large(operator: &str, bytes: usize) -> QueryError {
    fail!(
        QUERY_EXCEEDED_MEMORY_LIMIT,
        "{operator} would use too much memory ({bytes} bytes) and cannot spill to disk. Memory \
             limit: {MAX_INTERMEDIATE_BYTES} bytes"
    )
}

/// The bytes of a value. Fails if it is nested too deeply.
pub(crate) fn cost(value: &Bson) -> Result<usize> {
    measure(value, 0).ok_or_else(too_deep)
}

/// The bytes of a field of a document. Its table grows by doubling, and a name has a place of its own.
pub(crate) fn field_cost(name: &str, value: &Bson) -> Result<usize> {
    Ok(2 * FIELD_OVERHEAD + name.len() + ELEMENT_OVERHEAD + cost(value)?)
}

fn too_deep() -> QueryError {
    fail!(OVERFLOW, "a computed value is nested deeper than {MAX_NESTING} levels")
}

/// Roughly how much memory a document takes.
pub(crate) fn approximate_size(document: &Document) -> usize {
    document.iter().fold(ELEMENT_OVERHEAD, |total, (name, value)| {
        total + name.len() + FIELD_OVERHEAD + measure(value, 0).unwrap_or(MAX_INTERMEDIATE_BYTES)
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
        Some(total + name.len() + FIELD_OVERHEAD + measure(value, depth + 1)?)
    })
}
