//! The expression language of aggregation: parsed once, computed for any number of documents.
//!
//! Owns reading expressions (`parse`), their variables, and every operator (`operators`). What
//! values mean (order, numbers, type names) belongs to [`crate::value`]; stages belong to
//! [`crate::pipeline`]. Follows the server's documentation of aggregation expressions; error codes
//! and texts are the server's where they are known, because clients match on them.
//!
//! ```
//! use bson::{bson, doc};
//! use quorate_query::expression::{Expression, ParseContext, Variables};
//!
//! let total = bson!({ "$multiply": ["$price", "$quantity"] });
//! let total = Expression::parse(&total, &ParseContext::new()).unwrap();
//! let value = total.evaluate(&doc! { "price": 3, "quantity": 4 }, &Variables::new(0));
//! assert_eq!(value, Ok(Some(bson!(12))));
//! ```

mod bounds;
mod compile;
mod depend;
mod evaluate;
mod node;
mod operand;
pub(crate) mod operators;
mod parse;
mod parse_special;
mod path;
mod variables;

#[cfg(test)]
mod tests;

use bson::{Bson, Document};

pub use self::compile::{Compiled, Compiler};
pub use self::parse::ParseContext;
pub use self::variables::{UserRoles, Variables};
use crate::error::Result;
pub use crate::meter::Interrupt;

pub(crate) use self::bounds::{approximate_size, approximate_value_size, cost, field_cost};
pub(crate) use self::depend::Dependencies;
use self::node::Node;
pub(crate) use self::operand::Operand;
pub(crate) use self::parse::check_variable_name;
pub(crate) use self::path::{FieldPath, is_reference_field};
pub(crate) use self::variables::Frame;

/// The deepest nesting of an expression. The server allows documents 200 levels deep.
pub(crate) const MAX_EXPRESSION_DEPTH: usize = 200;

/// The most bytes one operator may build before its result is charged to the operation.
pub(crate) const MAX_INTERMEDIATE_BYTES: usize = 64 * 1024 * 1024;

/// An expression, ready to be computed.
#[derive(Clone, Debug)]
pub struct Expression {
    node: Node,
}

impl Expression {
    /// Reads an expression. Parts that are constant are computed here, once.
    ///
    /// # Errors
    ///
    /// If an operator is unknown or has wrong arguments, if a variable is undefined, or if the
    /// nesting is deeper than [`MAX_EXPRESSION_DEPTH`].
    pub fn parse(value: &Bson, context: &ParseContext) -> Result<Self> {
        parse::parse(value, context).map(|node| Self { node })
    }

    /// Computes the expression for a document; `None` is "missing", which is not null.
    ///
    /// # Errors
    ///
    /// If a value does not suit the operator that it reaches, or a bound is exceeded.
    pub fn evaluate(&self, root: &Document, variables: &Variables) -> Result<Option<Bson>> {
        self.operand(Frame::new(root, variables)).map(Operand::into_bson)
    }

    /// Computes the expression and says whether the result counts as true, as `$expr` asks.
    ///
    /// # Errors
    ///
    /// As [`evaluate`](Self::evaluate).
    pub fn matches(&self, root: &Document, variables: &Variables) -> Result<bool> {
        self.operand(Frame::new(root, variables)).map(|value| value.is_true())
    }

    /// The value, if the expression is a constant.
    pub fn constant(&self) -> Option<&Bson> {
        match &self.node {
            Node::Constant(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn operand<'a>(&'a self, frame: Frame<'a>) -> Result<Operand<'a>> {
        self.node.evaluate(frame)
    }
}
