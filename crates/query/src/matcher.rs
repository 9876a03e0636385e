//! Query predicates: parsed once, matched against any number of documents.
//!
//! Owns the query language of `find` and `$match`. A `Matcher` is a tree of nodes; each leaf binds
//! a dotted path to a predicate. What a path shows of arrays and missing fields is `value::path`'s
//! business; expressions inside `$expr` go through `evaluate`. Geospatial and text search and
//! JavaScript are refused by name.

mod bits;
mod bounds;
mod failure;
mod parse;
mod predicate;
mod schema;

use std::sync::Arc;

use bson::Document;

use crate::error::Result;
use crate::expression::{Compiled, Compiler};
use crate::meter::Meter;
use crate::value::{DocumentRef, Path, ValueRef, is_truthy};

pub use crate::regex::RegexMatcher;
pub use bounds::{Bounds, Interval};
pub use failure::failure;
pub(crate) use parse::is_operator_document;
pub(crate) use predicate::{Comparison, Condition, Predicate};
pub(crate) use schema::Schema;

/// The deepest nesting of operators that a query may have.
pub(crate) const MAX_QUERY_DEPTH: usize = 200;

/// A parsed query.
#[derive(Debug, Clone)]
pub struct Matcher {
    root: Node,
    /// The steps of matching are counted here.
    meter: Meter,
}

/// One node of a parsed query.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Nor(Vec<Node>),
    Field { path: Path, condition: Condition },
    Expr(Arc<Compiled>),
    Schema(Arc<Schema>),
    Constant(bool),
}

/// What is known about a match besides that it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MatchDetails {
    /// The array position that the positional operator `$` stands for.
    pub array_index: Option<usize>,
}

/// What is known while a document is matched.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    array_index: Option<usize>,
    meter: &'a Meter,
}

impl<'a> Progress<'a> {
    fn new(meter: &'a Meter) -> Self {
        Self { array_index: None, meter }
    }

    /// The same for a part whose details do not count.
    fn fresh(&self) -> Self {
        Self::new(self.meter)
    }

    /// Counts a step, and asks from time to time whether to go on.
    #[inline]
    fn step(&self) -> Result<()> {
        self.meter.step()
    }
}

impl Matcher {
    /// Parses a query that may hold no expressions.
    pub fn parse(query: &Document) -> Result<Self> {
        Self::parse_with(query, &Compiler::refusing())
    }

    /// Parses a query whose `$expr` parts the compiler understands.
    pub fn parse_with(query: &Document, compiler: &Compiler) -> Result<Self> {
        Ok(Self { root: parse::parse_query(query, compiler)?, meter: compiler.meter().clone() })
    }

    /// Reads a query for documents in an array, in which the fields of a database reference are
    /// asked for by name. Fails if the query is not valid.
    pub(crate) fn parse_element(query: &Document, compiler: &Compiler) -> Result<Self> {
        Ok(Self { root: parse::parse_element(query, compiler)?, meter: compiler.meter().clone() })
    }

    /// A query that matches every document.
    pub fn match_all() -> Self {
        Self { root: Node::And(Vec::new()), meter: Meter::default() }
    }

    /// Whether every document matches, so that nothing needs to be read.
    pub fn matches_everything(&self) -> bool {
        matches!(&self.root, Node::And(children) if children.is_empty())
    }

    /// Whether a document matches. Only an expression or a regular expression can fail, and the
    /// operation can end.
    pub fn matches<'a>(&self, document: impl Into<DocumentRef<'a>>) -> Result<bool> {
        self.root.matches(document.into(), &mut Progress::new(&self.meter))
    }

    /// Whether a document matches, and which array element did.
    pub fn matches_with_details<'a>(
        &self,
        document: impl Into<DocumentRef<'a>>,
    ) -> Result<Option<MatchDetails>> {
        let mut progress = Progress::new(&self.meter);
        let matched = self.root.matches(document.into(), &mut progress)?;
        Ok(matched.then_some(MatchDetails { array_index: progress.array_index }))
    }

    pub(crate) fn root(&self) -> &Node {
        &self.root
    }
}

impl Node {
    pub(crate) fn matches(
        &self,
        document: DocumentRef<'_>,
        details: &mut Progress<'_>,
    ) -> Result<bool> {
        match self {
            Self::And(children) => {
                for child in children {
                    if !child.matches(document, details)? {
                        details.array_index = None;
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Or(children) => {
                for child in children {
                    if child.matches(document, details)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Nor(children) => {
                for child in children {
                    if child.matches(document, &mut details.fresh())? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Field { path, condition } => condition.matches_path(document, path, details),
            Self::Expr(expression) => {
                Ok(expression.evaluate(document)?.is_some_and(|value| is_truthy(&value)))
            }
            Self::Schema(schema) => schema.validates(ValueRef::Document(document), details.meter),
            Self::Constant(value) => Ok(*value),
        }
    }
}
