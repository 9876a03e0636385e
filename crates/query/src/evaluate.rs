//! The seam between operators and the expression language.
//!
//! `$expr`, computed projections and pipeline updates contain aggregation expressions. The modules
//! that meet them compile them through `ExpressionCompiler` and never look inside, so they can be
//! tested without the language and the language without them.

use std::fmt;
use std::sync::Arc;

use bson::Bson;

use crate::error::QueryError;
use crate::meter::Meter;
use crate::value::DocumentRef;

/// A compiled expression.
pub trait Expression: fmt::Debug + Send + Sync {
    /// The value for one document; `None` is the missing value.
    fn evaluate(&self, root: DocumentRef<'_>) -> Result<Option<Bson>, QueryError>;
}

/// Turns the BSON form of an expression into something that can be evaluated many times. Variables
/// (`let`, `NOW`) belong to the compiler, which lives as long as one command.
pub trait ExpressionCompiler {
    /// Compiles one expression.
    fn compile(&self, expression: &Bson) -> Result<Arc<dyn Expression>, QueryError>;

    /// What the operation's steps and bytes are counted on, if anything is.
    fn meter(&self) -> Option<Meter> {
        None
    }
}

/// Refuses every expression: for callers that allow none, such as a partial index filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoExpressions;

impl ExpressionCompiler for NoExpressions {
    fn compile(&self, _expression: &Bson) -> Result<Arc<dyn Expression>, QueryError> {
        Err(QueryError::bad_value(
            "expressions are not allowed here; use plain values and query operators",
        ))
    }
}
