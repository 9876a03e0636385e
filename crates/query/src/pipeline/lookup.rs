//! `$lookup`: an array of documents of another collection in each document.
//!
//! Equality can be found in three ways: through an index, if the environment has one; through a
//! table of the other collection, made once, if that fits into memory; by reading the other
//! collection again for each document, if it does not.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bson::{Bson, Document};

use super::memory::Memory;
use super::stage::{Flow, Step};
use super::unwind::set;
use super::{Documents, Pipeline, Run};
use crate::error::Result;
use crate::expression::{Dependencies, Expression, FieldPath, Variables, approximate_size, cost};
use crate::matcher::Matcher;
use crate::meter::{Charge, Kept};
use crate::value::{DocumentRef, GroupKey, LeafArrays, Path, ValueRef};

/// A `$lookup` stage.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    /// The other collection; `None` if the inner pipeline brings its own documents.
    pub(super) from: Option<String>,
    pub(super) into: FieldPath,
    /// The field here and the field there that must be equal.
    pub(super) equality: Option<(FieldPath, Path)>,
    /// What the inner pipeline sees of the document.
    pub(super) variables: Vec<(String, Expression)>,
    pub(super) pipeline: Option<Pipeline>,
}

/// The stage as a step; what it remembers of the other collection lives as long as the run.
pub(super) fn step(lookup: Arc<Lookup>, run: Run) -> Step {
    let mut joiner = Joiner::Undecided;
    Box::new(move |document, charge| {
        lookup.apply(document, &run, &mut joiner, charge).map(Flow::Next)
    })
}

/// How the documents of the other collection are found.
enum Joiner {
    Undecided,
    /// By asking for them, each time.
    Read,
    Table(Table),
}

/// The other collection in memory, by the values of the field that must be equal.
struct Table {
    documents: Arc<Kept<Vec<Document>>>,
    places: Kept<HashMap<GroupKey, Vec<usize>>>,
    /// What the table holds, for as long as it lives.
    _memory: Memory,
}

impl Table {
    /// Reads the collection; `None` if it does not fit.
    fn read(from: &str, foreign: &Path, run: &Run) -> Result<Option<Self>> {
        let mut memory = Memory::new("$lookup", run);
        let meter = run.variables.meter();
        let mut documents = Kept::new(Vec::new(), meter);
        let mut places = Kept::new(HashMap::<GroupKey, Vec<usize>>::new(), meter);
        for document in run.environment.read(from, None)? {
            run.variables.step()?;
            let document = document?;
            let keys = keys_of(&document, foreign);
            let size: usize = keys.iter().map(GroupKey::size).sum();
            let held = memory.hold_document(&document).and_then(|()| memory.hold(size));
            // Half is left to what the operation builds from the table.
            if held.is_err() || memory.held() > run.variables.meter().limit() / 2 {
                return Ok(None);
            }
            for key in keys {
                places.entry(key).or_default().push(documents.len());
            }
            documents.push(document);
        }
        Ok(Some(Self { documents: Arc::new(documents), places, _memory: memory }))
    }

    /// The documents that may match, in the order of the collection.
    fn candidates(&self, value: &Bson) -> Documents {
        let places = self.places_of(value);
        let documents = Arc::clone(&self.documents);
        Box::new(places.into_iter().filter_map(move |place| documents.get(place).cloned().map(Ok)))
    }

    fn places_of(&self, value: &Bson) -> Vec<usize> {
        let values = match value {
            Bson::Array(elements) => elements.as_slice(),
            single => std::slice::from_ref(single),
        };
        // Each value counts once: an array may hold one value a million times, and each find many places.
        let keys: BTreeSet<GroupKey> = values.iter().map(|value| key_of(value.into())).collect();
        let found = keys.iter().filter_map(|key| self.places.get(key));
        let mut places: Vec<usize> = found.flatten().copied().collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// Null, undefined and missing are one to an equality.
fn key_of(value: ValueRef<'_>) -> GroupKey {
    if value.is_nullish() { GroupKey::of(&Bson::Null) } else { GroupKey::of(value) }
}

fn keys_of(document: &Document, path: &Path) -> Vec<GroupKey> {
    let mut keys = Vec::new();
    path.any(DocumentRef::from(document), LeafArrays::Elements, &mut |value, _| {
        keys.push(key_of(value.unwrap_or(ValueRef::Null)));
        false
    });
    // A path that sees nothing at all is as good as missing.
    keys.push(key_of(ValueRef::Null));
    keys.sort_unstable();
    keys.dedup();
    keys
}

impl Lookup {
    /// Counts what the stage reads of its own documents.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        needed.path(&self.into.dotted());
        if let Some((local, _)) = &self.equality {
            needed.path(&local.dotted());
        }
        self.variables.iter().for_each(|(_, value)| needed.expression(value));
    }

    fn apply(
        &self,
        mut document: Document,
        run: &Run,
        joiner: &mut Joiner,
        charge: &mut Charge,
    ) -> Result<Document> {
        let mut elements = Kept::new(Vec::new(), run.variables.meter());
        for other in self.find(&document, run, joiner, charge)? {
            let other = other?;
            charge.grow("$lookup", approximate_size(&other))?;
            elements.push(Bson::Document(other));
        }
        set(&mut document, self.into.components(), Bson::Array(elements.into_inner()));
        Ok(document)
    }

    fn find(
        &self,
        document: &Document,
        run: &Run,
        joiner: &mut Joiner,
        charge: &mut Charge,
    ) -> Result<Documents> {
        let others = match (&self.equality, &self.from) {
            (Some((local, foreign)), Some(from)) => {
                let value = local.follow_document(document);
                equal_documents(from, foreign, value.or_null(), run, joiner)?
            }
            (None, Some(from)) => {
                let filter = self.pipeline.as_ref().and_then(Pipeline::constant_filter);
                run.environment.read(from, filter.as_ref())?
            }
            (_, None) => Box::new(std::iter::empty()),
        };
        let Some(pipeline) = &self.pipeline else { return Ok(others) };
        let mut variables: Variables = (*run.variables).clone();
        for (name, expression) in &self.variables {
            match expression.evaluate(document, &run.variables)? {
                Some(value) => {
                    charge.grow("$lookup", cost(&value)?)?;
                    variables.set(name.as_str(), value);
                }
                None => variables.set_missing(name.as_str()),
            }
        }
        let inner = Run { variables: Arc::new(variables), ..run.clone() };
        Ok(pipeline.chain(others, &inner))
    }
}

fn equal_documents(
    from: &str,
    foreign: &Path,
    value: &Bson,
    run: &Run,
    joiner: &mut Joiner,
) -> Result<Documents> {
    if matches!(joiner, Joiner::Undecided) {
        let table = match run.environment.has_index(from, foreign.as_str()) {
            true => None,
            false => Table::read(from, foreign, run)?,
        };
        *joiner = table.map_or(Joiner::Read, Joiner::Table);
    }
    let Some(filter) = equal_to(value, foreign.as_str()) else {
        return Ok(Box::new(std::iter::empty()));
    };
    let candidates: Documents = match joiner {
        Joiner::Table(table) => table.candidates(value),
        Joiner::Undecided | Joiner::Read => run.environment.read(from, Some(&filter))?,
    };
    let matcher = Matcher::parse(&filter)?;
    Ok(Box::new(candidates.filter_map(move |other| match other {
        Ok(other) => matcher.matches(&other).map(|found| found.then_some(other)).transpose(),
        Err(error) => Some(Err(error)),
    })))
}

/// The query for documents whose field equals the value, or one of its elements if it is an array;
/// null also for those without the field. `None` if nothing can be equal.
fn equal_to(value: &Bson, foreign: &str) -> Option<Document> {
    // A query refuses to compare with undefined, which equals null here.
    let comparable = |value: &Bson| match value {
        Bson::Undefined => Bson::Null,
        other => other.clone(),
    };
    let equal = |value: &Bson| {
        let mut condition = Document::new();
        condition.insert("$eq", comparable(value));
        let mut query = Document::new();
        query.insert(foreign, condition);
        query
    };
    let Bson::Array(elements) = value else { return Some(equal(value)) };
    if elements.is_empty() {
        return None;
    }
    let mut query = Document::new();
    if elements.iter().any(|value| matches!(value, Bson::RegularExpression(_))) {
        // In `$in` a regular expression would be a pattern; here it is a value.
        let any: Vec<Bson> = elements.iter().map(|value| Bson::Document(equal(value))).collect();
        query.insert("$or", any);
        return Some(query);
    }
    let mut condition = Document::new();
    condition.insert("$in", elements.iter().map(comparable).collect::<Vec<_>>());
    query.insert(foreign, condition);
    Some(query)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Meter;

    /// An array that holds one value many times finds each document once, and room is taken for each once.
    #[test]
    fn a_value_that_is_repeated_finds_its_documents_once() {
        let key = key_of(ValueRef::from(&Bson::Int32(1)));
        let table = Table {
            documents: Arc::new(Kept::new(Vec::new(), &Meter::default())),
            places: Kept::new([(key, (0..100).collect())].into(), &Meter::default()),
            _memory: Memory::of("$lookup", &Meter::default()),
        };
        let places = table.places_of(&Bson::Array(vec![Bson::Int32(1); 1000]));
        assert_eq!(places, (0..100).collect::<Vec<_>>());
        assert!(places.capacity() < 1000, "room for {}", places.capacity());
    }
}
