//! `$graphLookup`: everything that can be reached in another collection, step by step.

use std::collections::HashSet;

use bson::{Bson, Document};

use super::Run;
use super::memory::Memory;
use super::unwind::set;
use crate::error::{ErrorCode, QueryError, Result};
use crate::expression::operators::as_i64;
use crate::expression::{Dependencies, Expression, FieldPath, ParseContext, cost};
use crate::matcher::Matcher;
use crate::meter::{Charge, Kept};
use crate::typed::{Typed, unknown_field};
use crate::value::GroupKey;

/// How many values of the frontier are asked for at a time: a query of more takes long to make.
const MAX_VALUES: usize = 65_536;

/// A `$graphLookup` stage.
#[derive(Clone, Debug)]
pub(super) struct GraphLookup {
    pub(super) from: String,
    start_with: Expression,
    /// The field of a found document that leads on.
    connect_from: FieldPath,
    /// The field that it leads to.
    connect_to: String,
    into: FieldPath,
    max_depth: Option<i64>,
    depth_field: Option<FieldPath>,
    restriction: Option<Document>,
}

impl GraphLookup {
    pub(super) fn parse(spec: &Bson, context: &ParseContext) -> Result<Self> {
        let spec = spec.document(
            ErrorCode::FAILED_TO_PARSE,
            "the $graphLookup stage specification must be an object, but found",
        )?;
        if let Some(unknown) = unknown_field(
            spec,
            &[
                "from", "startWith", "connectFromField", "connectToField", "as", "maxDepth",
                "depthField", "restrictSearchWithMatch",
            ],
        ) {
            refuse!(40104, "Unknown argument to $graphLookup: {unknown}");
        }
        let text = |name: &str| {
            spec.get(name)
                .ok_or_else(missing)?
                .string(40103, format_args!("expected string as argument for {name}, found:"))
        };
        let max_depth = match spec.get("maxDepth") {
            None => None,
            Some(depth) => Some(as_i64(depth).filter(|depth| *depth >= 0).ok_or_else(|| {
                fail!(40101, "maxDepth requires a nonnegative argument, found: {depth}")
            })?),
        };
        let restriction = match spec.get("restrictSearchWithMatch") {
            None => None,
            Some(Bson::Document(query)) => {
                Matcher::parse(query)?;
                Some(query.clone())
            }
            Some(_) => {
                refuse!(40185, "restrictSearchWithMatch must be an object");
            }
        };
        let depth_field = match spec.get("depthField") {
            None => None,
            Some(_) => Some(FieldPath::parse(text("depthField")?)?),
        };
        FieldPath::parse(text("connectToField")?)?;
        Ok(Self {
            from: text("from")?.to_owned(),
            start_with: Expression::parse(spec.get("startWith").ok_or_else(missing)?, context)?,
            connect_from: FieldPath::parse(text("connectFromField")?)?,
            connect_to: text("connectToField")?.to_owned(),
            into: FieldPath::parse(text("as")?)?,
            max_depth,
            depth_field,
            restriction,
        })
    }

    /// Counts what the stage reads.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        needed.expression(&self.start_with);
        needed.path(&self.into.dotted());
    }

    pub(super) fn apply(
        &self,
        mut document: Document,
        run: &Run,
        charge: &mut Charge,
    ) -> Result<Document> {
        let start = self.start_with.evaluate(&document, &run.variables)?.unwrap_or(Bson::Null);
        let meter = run.variables.meter();
        let mut search = Search {
            memory: Memory::new("$graphLookup", run),
            asked: Kept::new(HashSet::new(), meter),
            found: Kept::new(HashSet::new(), meter),
            documents: Kept::new(Vec::new(), meter),
        };
        let mut frontier = Vec::new();
        search.ask(start, &mut frontier)?;
        let mut depth = 0;
        while !frontier.is_empty() && self.max_depth.is_none_or(|max| depth <= max) {
            let mut next = Vec::new();
            for values in frontier.chunks(MAX_VALUES) {
                self.step(values, depth, run, &mut search, &mut next)?;
            }
            frontier = next;
            depth += 1;
        }
        let found = Bson::Array(search.documents.into_inner());
        drop(search.memory);
        charge.grow("$graphLookup", cost(&found)?)?;
        set(&mut document, self.into.components(), found);
        Ok(document)
    }

    /// Finds what values of the frontier lead to, and adds it to the next frontier.
    fn step(
        &self,
        frontier: &[Bson],
        depth: i64,
        run: &Run,
        search: &mut Search,
        next: &mut Vec<Bson>,
    ) -> Result<()> {
        let mut any = Document::new();
        any.insert("$in", frontier.to_vec());
        let mut filter = Document::new();
        filter.insert(self.connect_to.as_str(), any);
        if let Some(restriction) = &self.restriction {
            let both = vec![Bson::Document(filter), Bson::Document(restriction.clone())];
            filter = Document::new();
            filter.insert("$and", both);
        }
        let matcher = Matcher::parse(&filter)?;
        run.variables.meter().check()?;
        for other in run.environment.read(&self.from, Some(&filter))? {
            run.variables.step()?;
            let mut other = other?;
            let id = GroupKey::of(other.get("_id").unwrap_or(&Bson::Null));
            if !matcher.matches(&other)? || !search.found.insert(id) {
                continue;
            }
            let leads_to = self.connect_from.follow_document(&other).into_bson();
            if let Some(value) = leads_to {
                search.ask(value, next)?;
            }
            if let Some(field) = &self.depth_field {
                set(&mut other, field.components(), Bson::Int64(depth));
            }
            search.memory.hold_document(&other)?;
            search.documents.push(Bson::Document(other));
        }
        Ok(())
    }
}

/// The state of the search for one document. Each document of the other collection is found once, which
/// is what ends the search.
struct Search {
    memory: Memory,
    asked: Kept<HashSet<GroupKey>>,
    found: Kept<HashSet<GroupKey>>,
    documents: Kept<Vec<Bson>>,
}

impl Search {
    /// Puts a value, or each element of an array, on the frontier unless it was there before.
    fn ask(&mut self, value: Bson, frontier: &mut Vec<Bson>) -> Result<()> {
        let values = match value {
            Bson::Array(elements) => elements,
            single => vec![single],
        };
        for value in values {
            // Neither is a value that a document can be connected by.
            if matches!(value, Bson::Undefined | Bson::RegularExpression(_)) {
                continue;
            }
            let key = GroupKey::of(&value);
            let size = key.size();
            if self.asked.insert(key) {
                self.memory.hold(size)?;
                self.memory.hold_value(&value)?;
                frontier.push(value);
            }
        }
        Ok(())
    }
}

fn missing() -> QueryError {
    fail!(
        40105,
        "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField' \
         to be specified."
    )
}
