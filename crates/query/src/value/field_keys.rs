//! The keys that a document has under a list of paths, for indexes and sorts.
//!
//! A document with an array under a path has one key per element. Two paths may lead through the
//! same array, and then their values come from the same element; two different arrays in one list
//! of paths are refused, since every pairing would be a key. A missing field counts as null, an
//! empty array as undefined.

use bson::Bson;

use super::path::{Path, PathComponent};
use super::view::{ArrayRef, DocumentRef, ValueRef};
use crate::error::{QueryError, Result};

/// The most keys that one document may have.
pub(crate) const MAX_KEYS_PER_DOCUMENT: usize = 1_000_000;

/// The keys of one document.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FieldKeys {
    /// One value per path in each key. Not sorted, and equal keys may repeat.
    pub keys: Vec<Vec<Bson>>,
    /// Whether an array was expanded, so that an index over the paths is multikey.
    pub multikey: bool,
    /// Whether none of the paths exists in the document: a sparse index leaves it out.
    pub all_missing: bool,
}

impl FieldKeys {
    /// Finds the keys of a document. Refuses parallel arrays with code 171, and with 16746 a
    /// number that could be a position or a field name.
    pub fn of(paths: &[Path], document: DocumentRef<'_>) -> Result<Self> {
        let fields =
            paths.iter().map(|path| Field::Open { base: document, rest: path.components() });
        let mut found = Self { all_missing: true, ..Self::default() };
        found.expand(fields.collect())?;
        Ok(found)
    }

    fn expand(&mut self, mut fields: Vec<Field<'_, '_>>) -> Result<()> {
        let mut array: Option<ArrayRef<'_>> = None;
        let mut waiting = Vec::new();
        for (position, field) in fields.iter_mut().enumerate() {
            let Field::Open { base, rest } = *field else { continue };
            match follow(base, rest) {
                Followed::Value(value) => {
                    self.all_missing &= value.is_none();
                    *field = Field::Done(value.map_or(Bson::Null, ValueRef::to_bson));
                }
                Followed::Ambiguous(name) => return Err(ambiguous(name)),
                Followed::Array(found, rest) => {
                    self.all_missing = false;
                    if array.is_some_and(|array| !same_array(array, found)) {
                        return Err(parallel_arrays());
                    }
                    array = Some(found);
                    waiting.push((position, rest));
                }
            }
        }
        let Some(array) = array else { return self.push(fields) };
        self.multikey = true;
        if array.is_empty() {
            for (position, rest) in waiting {
                let empty = if rest.is_empty() { Bson::Undefined } else { Bson::Null };
                fields[position] = Field::Done(empty);
            }
            return self.expand(fields);
        }
        for element in array.iter() {
            let mut inner = fields.clone();
            for &(position, rest) in &waiting {
                inner[position] = match element {
                    element if rest.is_empty() => Field::Done(element.to_bson()),
                    ValueRef::Document(base) => Field::Open { base, rest },
                    _ => Field::Done(Bson::Null),
                };
            }
            self.expand(inner)?;
        }
        Ok(())
    }

    fn push(&mut self, fields: Vec<Field<'_, '_>>) -> Result<()> {
        refuse_if!(self.keys.len() == MAX_KEYS_PER_DOCUMENT => BAD_VALUE,
            "a document may have at most {MAX_KEYS_PER_DOCUMENT} keys in an index or sort");
        self.keys.push(
            fields
                .into_iter()
                .map(|field| match field {
                    Field::Done(value) => value,
                    Field::Open { .. } => Bson::Null,
                })
                .collect(),
        );
        Ok(())
    }
}

/// The error for two arrays in one key.
fn parallel_arrays() -> QueryError {
    fail!(CANNOT_INDEX_PARALLEL_ARRAYS, "cannot index parallel arrays")
}

/// The error for a number that is both a position and a field name.
fn ambiguous(name: &str) -> QueryError {
    fail!(
        16746,
        "Ambiguous field name found in array (do not use numeric field names in embedded elements in an array), field: '{name}'"
    )
}

/// Whether an element of the array is a document with such a field.
fn has_field(array: ArrayRef<'_>, name: &str) -> bool {
    array.iter().any(|element| element.as_document().is_some_and(|inner| inner.get(name).is_some()))
}

/// One path on its way through the document.
#[derive(Debug, Clone)]
enum Field<'a, 'p> {
    Open { base: DocumentRef<'a>, rest: &'p [PathComponent] },
    Done(Bson),
}

enum Followed<'a, 'p> {
    Value(Option<ValueRef<'a>>),
    Ambiguous(&'p str),
    Array(ArrayRef<'a>, &'p [PathComponent]),
}

/// Walks through documents until the path ends or an array is met. A number that the array has an
/// element for addresses that element.
fn follow<'a, 'p>(base: DocumentRef<'a>, mut rest: &'p [PathComponent]) -> Followed<'a, 'p> {
    let mut value = ValueRef::Document(base);
    loop {
        match (value, rest.split_first()) {
            (ValueRef::Document(document), Some((first, tail))) => {
                let Some(next) = document.get(&first.name) else { return Followed::Value(None) };
                value = next;
                rest = tail;
            }
            (ValueRef::Array(array), Some((first, _)))
                if first.index.is_some() && has_field(array, &first.name) =>
            {
                return Followed::Ambiguous(&first.name);
            }
            (ValueRef::Array(array), Some((first, tail))) => {
                let Some(element) = first.index.and_then(|index| array.get(index)) else {
                    return Followed::Array(array, rest);
                };
                value = element;
                rest = tail;
            }
            (ValueRef::Array(array), None) => return Followed::Array(array, rest),
            (_, Some(_)) => return Followed::Value(None),
            (value, None) => return Followed::Value(Some(value)),
        }
    }
}

fn same_array(left: ArrayRef<'_>, right: ArrayRef<'_>) -> bool {
    match (left, right) {
        (ArrayRef::Parsed(left), ArrayRef::Parsed(right)) => std::ptr::eq(left, right),
        (ArrayRef::Raw(left), ArrayRef::Raw(right)) => {
            std::ptr::eq(left.as_bytes(), right.as_bytes())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use bson::{Document, bson, doc};

    fn keys(paths: &[&str], document: &Document) -> Result<FieldKeys> {
        let paths: Vec<_> = paths.iter().map(|path| Path::parse(path).unwrap()).collect();
        let parsed = FieldKeys::of(&paths, document.into());
        let raw = bson::RawDocumentBuf::try_from(document).unwrap();
        assert_eq!(FieldKeys::of(&paths, (&raw).into()), parsed);
        parsed
    }

    #[test]
    fn plain_values_make_one_key() {
        let found = keys(&["a", "b.c"], &doc! { "a": 1, "b": { "c": 2 } }).unwrap();
        assert_eq!(found.keys, [[bson!(1), bson!(2)]]);
        assert!(!found.multikey && !found.all_missing);
    }

    #[test]
    fn missing_is_null_and_empty_is_undefined() {
        let found = keys(&["a"], &doc! {}).unwrap();
        assert_eq!(found.keys, [[Bson::Null]]);
        assert!(found.all_missing);
        assert_eq!(keys(&["a"], &doc! { "a": [] }).unwrap().keys, [[Bson::Undefined]]);
        assert_eq!(keys(&["a.b"], &doc! { "a": [] }).unwrap().keys, [[Bson::Null]]);
        assert_eq!(keys(&["a.b"], &doc! { "a": 5 }).unwrap().keys, [[Bson::Null]]);
    }

    #[test]
    fn arrays_make_one_key_per_element() {
        let found = keys(&["a", "b"], &doc! { "a": [1, 2], "b": 9 }).unwrap();
        assert_eq!(found.keys, [[bson!(1), bson!(9)], [bson!(2), bson!(9)]]);
        assert!(found.multikey);
        let nested = doc! { "a": [{ "b": [1, 2] }, { "b": 3 }, 7] };
        let found = keys(&["a.b"], &nested).unwrap();
        assert_eq!(found.keys, [[bson!(1)], [bson!(2)], [bson!(3)], [Bson::Null]]);
        assert_eq!(keys(&["a"], &doc! { "a": [[1, 2]] }).unwrap().keys, [[bson!([1, 2])]]);
    }

    #[test]
    fn two_paths_through_one_array_stay_together() {
        let document = doc! { "a": [{ "x": 1, "y": 2 }, { "x": 3 }] };
        let found = keys(&["a.x", "a.y"], &document).unwrap();
        assert_eq!(found.keys, [[bson!(1), bson!(2)], [bson!(3), Bson::Null]]);
    }

    #[test]
    fn parallel_arrays_are_refused() {
        let error = keys(&["a", "b"], &doc! { "a": [1], "b": [2] }).unwrap_err();
        assert_eq!(error.code(), ErrorCode::CANNOT_INDEX_PARALLEL_ARRAYS);
        let document = doc! { "a": [{ "x": [1], "y": [2] }] };
        assert_eq!(
            keys(&["a.x", "a.y"], &document).unwrap_err().code(),
            ErrorCode::CANNOT_INDEX_PARALLEL_ARRAYS
        );
    }

    #[test]
    fn numbers_address_elements() {
        let document = doc! { "a": [5, { "b": 6 }] };
        assert_eq!(keys(&["a.0"], &document).unwrap().keys, [[bson!(5)]]);
        assert_eq!(keys(&["a.1.b"], &document).unwrap().keys, [[bson!(6)]]);
        let error = keys(&["a.0"], &doc! { "a": [{ "0": 5 }] }).unwrap_err();
        assert_eq!(error.code(), ErrorCode(16746));
    }
}
