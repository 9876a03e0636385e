//! Projections of `find`, `$project` and `$unset`, and the computed fields of `$addFields` and `$set`.
//!
//! A specification is parsed once into a tree with one level per part of a path. Owns inclusion and
//! exclusion, the rule of `_id`, and the forms only `find` knows: `$slice`, `$elemMatch` and the
//! positional `$`.

mod add_fields;
mod apply;
mod parse;

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::Document;

use self::apply::Application;
use crate::error::Result;
use crate::expression::{Compiler, Dependencies, Expression, Frame, Variables};
use crate::matcher::Matcher;
use crate::meter::Charge;

pub(crate) use add_fields::AddFields;

/// The parsed projection of a `find`.
#[derive(Debug, Clone)]
pub struct Projection {
    fields: Fields,
    variables: Arc<Variables>,
}

/// The fields that a document keeps and the fields that are computed for it, as `find`, `$project` and
/// `$unset` say it.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    kind: Kind,
    root: Tree,
    needs_array_index: bool,
}

/// Whether fields that the projection does not name stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Inclusion,
    Exclusion,
}

/// One level of a projection, in the order it was written.
#[derive(Debug, Clone, Default)]
struct Tree {
    children: Vec<(String, Child)>,
    positions: BTreeMap<String, usize>,
    /// Whether anything here or below is computed, so that it appears even where nothing was stored.
    computes: bool,
}

/// The change to one field.
#[derive(Debug, Clone)]
enum Child {
    Include,
    Exclude,
    Nested(Tree),
    Computed(Expression),
    Slice(Slice),
    ElemMatch(Matcher),
    Positional,
}

/// The part of an array that `$slice` keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
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

    /// Notes on each level whether anything is computed there or below.
    fn note_computed(&mut self) -> bool {
        let mut computes = false;
        for (_, child) in &mut self.children {
            computes |= match child {
                Child::Computed(_) => true,
                Child::Nested(inner) => inner.note_computed(),
                _ => false,
            };
        }
        self.computes = computes;
        computes
    }

    /// Counts what is read for this level: the named fields and what is computed from.
    fn depend(&self, needed: &mut Dependencies) {
        for (name, child) in &self.children {
            if !matches!(child, Child::Computed(_) | Child::Exclude) {
                needed.path(name);
            }
        }
        self.depend_on_computed(needed);
    }

    fn depend_on_computed(&self, needed: &mut Dependencies) {
        for (_, child) in &self.children {
            match child {
                Child::Computed(expression) => needed.expression(expression),
                Child::Nested(inner) => inner.depend_on_computed(needed),
                _ => {}
            }
        }
    }
}

impl Fields {
    /// Counts what `$project` or `$unset` reads; true if it keeps nothing else.
    pub(crate) fn depend(&self, needed: &mut Dependencies) -> bool {
        let including = self.kind == Kind::Inclusion;
        if including {
            self.root.depend(needed);
        }
        including
    }

    /// The document that `$project` or `$unset` makes of one.
    pub(crate) fn apply(
        &self,
        document: Document,
        variables: &Variables,
        charge: &mut Charge,
    ) -> Result<Document> {
        match self.kind {
            Kind::Exclusion => Ok(self.root.exclude(document)),
            Kind::Inclusion => {
                let frame = Frame::new(&document, variables);
                Application { frame, array_index: None, charge }.include(&document, &self.root)
            }
        }
    }
}

impl Projection {
    /// Parses the projection of a `find` without expressions.
    pub fn parse_find(projection: &Document, query: &Matcher) -> Result<Self> {
        Self::parse_find_with(projection, query, &Compiler::refusing())
    }

    /// Parses the projection of a `find`. A projection may refer to its query through `$`, but
    /// whether the query found a position shows only with each document, so the server does not
    /// check the two against each other here and neither do we.
    pub fn parse_find_with(
        projection: &Document,
        _query: &Matcher,
        compiler: &Compiler,
    ) -> Result<Self> {
        let fields = Fields::parse_find(projection, compiler)?;
        Ok(Self { fields, variables: Arc::clone(compiler.variables()) })
    }

    /// Whether the projection contains `$`, so that the matcher must be asked for the position.
    pub fn needs_array_index(&self) -> bool {
        self.fields.needs_array_index
    }

    /// The projected document. `array_index` is the position that the query matched.
    pub fn apply(&self, document: &Document, array_index: Option<usize>) -> Result<Document> {
        let Fields { kind, root, .. } = &self.fields;
        let frame = Frame::new(document, &self.variables);
        let charge = &mut self.variables.meter().charge();
        let mut application = Application { frame, array_index, charge };
        match kind {
            Kind::Inclusion => application.include(document, root),
            Kind::Exclusion => {
                let mut shown = root.exclude(document.clone());
                // Beside a `$slice`, an `$elemMatch` leaves the other fields.
                application.add_computed(root, &mut shown)?;
                Ok(shown)
            }
        }
    }
}
