//! Query predicates: parsed once, matched against any number of documents.
//!
//! Owns the query language of `find` and `$match`. A `Matcher` is a tree of nodes; each leaf binds
//! a dotted path to a predicate. What a path shows of arrays and missing fields is `value::path`'s
//! business; expressions inside `$expr` go through `evaluate`. Geospatial and text search and
//! JavaScript are refused by name.

mod bits;
mod bounds;
mod parse;
mod pcre;
mod predicate;
mod regex;
mod schema;

use std::sync::Arc;

use bson::Document;

use crate::error::QueryError;
use crate::evaluate::{Expression, ExpressionCompiler, NoExpressions};
use crate::value::{DocumentRef, Path, ValueRef, is_truthy};

pub use bounds::{Bounds, Interval};
pub(crate) use parse::is_operator_document;
pub(crate) use predicate::{Comparison, Condition, Predicate};
pub use regex::RegexMatcher;
pub(crate) use schema::Schema;

/// The deepest nesting of operators that a query may have.
pub const MAX_QUERY_DEPTH: usize = 200;

/// A parsed query.
#[derive(Debug, Clone)]
pub struct Matcher {
    root: Node,
}

/// One node of a parsed query.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Nor(Vec<Node>),
    Field { path: Path, condition: Condition },
    Expr(Arc<dyn Expression>),
    Schema(Arc<Schema>),
    Constant(bool),
}

/// What is known about a match besides that it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MatchDetails {
    /// The array position that the positional operator `$` stands for.
    pub array_index: Option<usize>,
}

impl Matcher {
    /// Parses a query that may hold no expressions.
    pub fn parse(query: &Document) -> Result<Self, QueryError> {
        Self::parse_with(query, &NoExpressions)
    }

    /// Parses a query whose `$expr` parts the compiler understands.
    pub fn parse_with(
        query: &Document,
        compiler: &dyn ExpressionCompiler,
    ) -> Result<Self, QueryError> {
        Ok(Self { root: parse::parse_query(query, compiler)? })
    }

    /// A query that matches every document.
    pub fn match_all() -> Self {
        Self { root: Node::And(Vec::new()) }
    }

    /// Whether every document matches, so that nothing needs to be looked at.
    pub fn matches_everything(&self) -> bool {
        matches!(&self.root, Node::And(children) if children.is_empty())
    }

    /// Whether a document matches. Only an expression can fail.
    pub fn matches<'a>(&self, document: impl Into<DocumentRef<'a>>) -> Result<bool, QueryError> {
        self.root.matches(document.into(), &mut MatchDetails::default())
    }

    /// Whether a document matches, and which array element did.
    pub fn matches_with_details<'a>(
        &self,
        document: impl Into<DocumentRef<'a>>,
    ) -> Result<Option<MatchDetails>, QueryError> {
        let mut details = MatchDetails::default();
        let matched = self.root.matches(document.into(), &mut details)?;
        Ok(matched.then_some(details))
    }

    /// Every path that the query looks at, or `None` if an expression or a schema may look at any.
    pub fn referenced_paths(&self) -> Option<Vec<&Path>> {
        let mut paths = Vec::new();
        self.root.collect_paths(&mut paths).then_some(paths)
    }

    pub(crate) fn root(&self) -> &Node {
        &self.root
    }
}

/// A predicate over one value, as `$pull` and array filters use it: operators such as `{$gt: 5}`
/// without a field name.
#[derive(Debug, Clone)]
pub struct ValueMatcher {
    condition: Condition,
}

impl ValueMatcher {
    /// Parses a document of operators, a regular expression, or a value to be equal to.
    pub fn parse(
        condition: &bson::Bson,
        compiler: &dyn ExpressionCompiler,
    ) -> Result<Self, QueryError> {
        Ok(Self { condition: parse::parse_condition(condition, compiler)? })
    }

    /// Whether the value itself matches. Arrays are not looked into, except that `$elemMatch`,
    /// `$size` and `$all` mean the array.
    pub fn matches<'a>(&self, value: impl Into<ValueRef<'a>>) -> Result<bool, QueryError> {
        self.condition.matches_value(Some(value.into()), &mut MatchDetails::default())
    }
}

impl Node {
    fn collect_paths<'a>(&'a self, paths: &mut Vec<&'a Path>) -> bool {
        match self {
            Self::And(children) | Self::Or(children) | Self::Nor(children) => {
                children.iter().all(|child| child.collect_paths(paths))
            }
            Self::Field { path, .. } => {
                paths.push(path);
                true
            }
            Self::Expr(_) | Self::Schema(_) => false,
            Self::Constant(_) => true,
        }
    }

    pub(crate) fn matches(
        &self,
        document: DocumentRef<'_>,
        details: &mut MatchDetails,
    ) -> Result<bool, QueryError> {
        match self {
            Self::And(children) => {
                for child in children {
                    if !child.matches(document, details)? {
                        *details = MatchDetails::default();
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
                    if child.matches(document, &mut MatchDetails::default())? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Field { path, condition } => condition.matches_path(document, path, details),
            Self::Expr(expression) => {
                Ok(expression.evaluate(document)?.is_some_and(|value| is_truthy(&value)))
            }
            Self::Schema(schema) => Ok(schema.validates(ValueRef::Document(document))),
            Self::Constant(value) => Ok(*value),
        }
    }
}
