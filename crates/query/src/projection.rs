//! Projections of `find` and `$project`, and the computed fields of `$set`.
//!
//! A projection is parsed once into a tree with one level per part of a path. Owns inclusion and
//! exclusion, the rule of `_id`, and the forms only `find` knows: `$slice`, `$elemMatch` and the
//! positional `$`. Expressions are compiled through `evaluate`.

mod add_fields;
mod apply;
mod parse;

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::{Bson, Document};

use crate::error::{QueryError, fail};
use crate::evaluate::{Expression, ExpressionCompiler, NoExpressions};
use crate::matcher::Matcher;

pub(crate) use add_fields::AddFields;

/// A parsed projection.
#[derive(Debug, Clone)]
pub struct Projection {
    kind: Kind,
    root: Tree,
    needs_array_index: bool,
}

/// Whether fields that the projection does not name stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Inclusion,
    Exclusion,
}

/// One level of a projection, in the order it was written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    children: Vec<(String, Child)>,
    positions: BTreeMap<String, usize>,
}

/// The change to one field.
#[derive(Debug, Clone)]
pub(crate) enum Child {
    Include,
    Exclude,
    Nested(Tree),
    Expression(Arc<dyn Expression>),
    Slice(Slice),
    ElemMatch(Matcher),
    Positional,
}

/// The part of an array that `$slice` keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    skip: Option<i64>,
    limit: i64,
}

impl Tree {
    fn get(&self, name: &str) -> Option<&Child> {
        self.positions.get(name).map(|&position| &self.children[position].1)
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Child> {
        self.positions.get(name).map(|&position| &mut self.children[position].1)
    }

    /// Adds a field that is not there yet.
    fn push(&mut self, name: &str, child: Child) {
        self.positions.insert(name.to_owned(), self.children.len());
        self.children.push((name.to_owned(), child));
    }

    /// Whether anything below is computed, so that it appears even where nothing was stored.
    fn computes(&self) -> bool {
        self.children.iter().any(|(_, child)| match child {
            Child::Expression(_) => true,
            Child::Nested(tree) => tree.computes(),
            _ => false,
        })
    }
}

impl Projection {
    /// Parses the projection of a `find` without expressions.
    pub fn parse_find(projection: &Document, query: &Matcher) -> Result<Self, QueryError> {
        Self::parse_find_with(projection, query, &NoExpressions)
    }

    /// Parses the projection of a `find`. A projection may refer to its query through `$`, but
    /// whether the query found a position shows only with each document, so the server does not
    /// check the two against each other here and neither do we.
    pub fn parse_find_with(
        projection: &Document,
        _query: &Matcher,
        compiler: &dyn ExpressionCompiler,
    ) -> Result<Self, QueryError> {
        parse::Parser::for_find(compiler).parse(projection)
    }

    /// Parses the argument of `$project`.
    pub fn parse_aggregate(
        projection: &Document,
        compiler: &dyn ExpressionCompiler,
    ) -> Result<Self, QueryError> {
        if projection.is_empty() {
            return Err(fail(51272, "projection specification must have at least one field"));
        }
        parse::Parser::for_aggregate(compiler).parse(projection)
    }

    /// Parses the argument of `$unset`: a field or an array of fields to leave out.
    pub fn unset(argument: &Bson) -> Result<Self, QueryError> {
        let fields = match argument {
            Bson::String(field) => vec![field.as_str()],
            Bson::Array(fields) if !fields.is_empty() => fields
                .iter()
                .map(|field| {
                    field.as_str().ok_or_else(|| {
                        fail(
                            31120,
                            "$unset specification must be a string or an array containing only \
                             string values",
                        )
                    })
                })
                .collect::<Result<_, _>>()?,
            Bson::Array(_) => {
                return Err(fail(
                    31119,
                    "$unset specification must be a string or an array with at least one field",
                ));
            }
            _ => {
                return Err(fail(31002, "$unset specification must be a string or an array"));
            }
        };
        let mut projection = Document::new();
        for field in fields {
            if projection.insert(field, Bson::Int32(0)).is_some() {
                return Err(fail(31250, format!("Path collision at {field}")));
            }
        }
        parse::Parser::for_aggregate(&NoExpressions).parse(&projection)
    }

    /// Whether the projection contains `$`, so that the matcher must be asked for the position.
    pub fn needs_array_index(&self) -> bool {
        self.needs_array_index
    }

    /// The top-level fields that the result can be computed from, if the projection only includes
    /// stored fields; an index that holds them all covers the query.
    pub fn covered_fields(&self) -> Option<Vec<&str>> {
        if self.kind != Kind::Inclusion {
            return None;
        }
        let mut fields = Vec::new();
        for (name, child) in &self.root.children {
            match child {
                Child::Include => fields.push(name.as_str()),
                Child::Exclude => {}
                _ => return None,
            }
        }
        Some(fields)
    }

    /// The projected document. `array_index` is the position that the query matched.
    pub fn apply(
        &self,
        document: &Document,
        array_index: Option<usize>,
    ) -> Result<Document, QueryError> {
        apply::Application { root: document, array_index, growth: Default::default() }
            .project(self.kind, &self.root)
    }
}
