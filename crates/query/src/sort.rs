//! Sort patterns: parsed once, asked for the key of a document and for the order of two keys.
//!
//! A document with an array under a sorted path counts with its least key when ascending and its
//! greatest when descending. `$meta` is refused: there is nothing to sort by.

use std::cmp::Ordering;

use bson::{Bson, Document};

use crate::error::{ErrorCode, Result};
use crate::value::{DocumentRef, FieldKeys, Number, Path, compare};

/// The most fields a pattern may have.
pub(crate) const MAX_SORT_FIELDS: usize = 32;

/// The direction of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Least first.
    Ascending,
    /// Greatest first.
    Descending,
}

/// A parsed sort pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct SortPattern {
    paths: Vec<Path>,
    directions: Vec<Direction>,
}

/// The key of one document under one pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct SortKey(Vec<Bson>);

impl SortKey {
    /// The values, one per field of the pattern.
    pub fn values(&self) -> &[Bson] {
        &self.0
    }
}

impl SortPattern {
    /// Parses `{field: 1, other: -1}`. An empty pattern sorts nothing.
    pub fn parse(pattern: &Document) -> Result<Self> {
        refuse_if!(pattern.len() > MAX_SORT_FIELDS => 13103,
            "too many compound keys: a sort may have at most {MAX_SORT_FIELDS}");
        let mut paths = Vec::with_capacity(pattern.len());
        let mut directions = Vec::with_capacity(pattern.len());
        for (field, order) in pattern {
            directions.push(parse_direction(field, order)?);
            paths.push(parse_path(field)?);
        }
        Ok(Self { paths, directions })
    }

    /// Whether there is nothing to sort by.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The fields with their directions, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&Path, Direction)> {
        self.paths.iter().zip(self.directions.iter().copied())
    }

    /// The key of a document. Two arrays in one pattern are refused.
    pub fn key<'a>(&self, document: impl Into<DocumentRef<'a>>) -> Result<SortKey> {
        let found = FieldKeys::of(&self.paths, document.into()).map_err(|error| {
            if error.code() == ErrorCode::CANNOT_INDEX_PARALLEL_ARRAYS {
                fail!(BAD_VALUE, "cannot sort with keys that are parallel arrays")
            } else {
                error
            }
        })?;
        let best = found
            .keys
            .into_iter()
            .map(SortKey)
            .reduce(|best, next| if self.compare(&next, &best).is_lt() { next } else { best });
        Ok(best.unwrap_or(SortKey(Vec::new())))
    }

    /// The order of two keys of this pattern.
    pub fn compare(&self, left: &SortKey, right: &SortKey) -> Ordering {
        for ((left, right), direction) in left.0.iter().zip(&right.0).zip(&self.directions) {
            let order = match direction {
                Direction::Ascending => compare(left, right),
                Direction::Descending => compare(right, left),
            };
            if order.is_ne() {
                return order;
            }
        }
        Ordering::Equal
    }
}

fn parse_direction(field: &str, order: &Bson) -> Result<Direction> {
    if let Bson::Document(document) = order {
        let reason = if document.contains_key("$meta") {
            "sorting by $meta is not supported: this server keeps no scores"
        } else {
            "Illegal key in $sort specification"
        };
        refuse!(BAD_VALUE, "{reason}: {field}: {order}");
    }
    match Number::from_value(order).map(Number::to_i64_exact) {
        Some(Some(1)) => Ok(Direction::Ascending),
        Some(Some(-1)) => Ok(Direction::Descending),
        Some(_) => {
            Err(fail!(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)"))
        }
        None => Err(fail!(15974, "Illegal key in $sort specification: {field}: {order}")),
    }
}

fn parse_path(field: &str) -> Result<Path> {
    refuse_if!(field.is_empty() => 40352, "FieldPath cannot be constructed with empty string");
    for part in field.split('.') {
        refuse_if!(part.is_empty() => 15998, "FieldPath field names may not be empty strings.");
        refuse_if!(part.starts_with('$') && !matches!(part, "$ref" | "$id" | "$db") => 16410,
            "FieldPath field names may not start with '$': {field}");
    }
    Path::parse(field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{bson, doc};

    fn sorted(pattern: Document, mut documents: Vec<Document>) -> Vec<i32> {
        let pattern = SortPattern::parse(&pattern).unwrap();
        documents.sort_by(|left, right| {
            pattern.compare(&pattern.key(left).unwrap(), &pattern.key(right).unwrap())
        });
        documents.iter().map(|document| document.get_i32("_id").unwrap()).collect()
    }

    #[test]
    fn fields_count_in_order_with_their_directions() {
        let documents = vec![
            doc! { "_id": 1, "a": 1, "b": 1 },
            doc! { "_id": 2, "a": 1, "b": 2 },
            doc! { "_id": 3, "a": 0, "b": 9 },
        ];
        assert_eq!(sorted(doc! { "a": 1, "b": -1 }, documents.clone()), [3, 2, 1]);
        assert_eq!(sorted(doc! { "a": -1, "b": 1.0 }, documents), [1, 2, 3]);
    }

    #[test]
    fn missing_sorts_as_null_and_empty_arrays_before_it() {
        let documents = vec![
            doc! { "_id": 1, "a": 0 },
            doc! { "_id": 2 },
            doc! { "_id": 3, "a": [] },
            doc! { "_id": 4, "a": "x" },
            doc! { "_id": 5, "a": Bson::MinKey },
        ];
        assert_eq!(sorted(doc! { "a": 1 }, documents), [5, 3, 2, 1, 4]);
    }

    #[test]
    fn arrays_count_with_their_least_or_greatest_element() {
        let documents = vec![doc! { "_id": 1, "a": [5, 1] }, doc! { "_id": 2, "a": [3] }];
        assert_eq!(sorted(doc! { "a": 1 }, documents.clone()), [1, 2]);
        assert_eq!(sorted(doc! { "a": -1 }, documents), [1, 2]);
        let pattern = SortPattern::parse(&doc! { "a.x": -1, "a.y": 1 }).unwrap();
        let document = doc! { "a": [{ "x": 1, "y": 0 }, { "x": 2, "y": 9 }, { "x": 2, "y": 3 }] };
        assert_eq!(pattern.key(&document).unwrap().values(), [bson!(2), bson!(3)]);
    }

    #[test]
    fn malformed_patterns_are_refused() {
        let code = |pattern: Document| SortPattern::parse(&pattern).unwrap_err().code().0;
        assert_eq!(code(doc! { "a": 2 }), 15975);
        assert_eq!(code(doc! { "a": 0 }), 15975);
        assert_eq!(code(doc! { "a": 1.5 }), 15975);
        assert_eq!(code(doc! { "a": "asc" }), 15974);
        assert_eq!(code(doc! { "a": { "$meta": "textScore" } }), 2);
        assert_eq!(code(doc! { "a..b": 1 }), 15998);
        assert_eq!(code(doc! { "": 1 }), 40352);
        assert_eq!(code(doc! { "$a": 1 }), 16410);
        let wide: Document = (0..33).map(|n| (format!("f{n}"), Bson::Int32(1))).collect();
        assert_eq!(code(wide), 13103);
        assert!(SortPattern::parse(&doc! {}).unwrap().is_empty());
    }

    #[test]
    fn parallel_arrays_are_refused() {
        let pattern = SortPattern::parse(&doc! { "a": 1, "b": 1 }).unwrap();
        assert_eq!(pattern.key(&doc! { "a": [1], "b": [1] }).unwrap_err().code().0, 2);
    }
}
