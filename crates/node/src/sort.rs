//! Sorting documents in memory.
//!
//! A sort key is made of index keys, whose byte order is the comparison order. Of an array the
//! smallest element counts when sorting up and the greatest when sorting down; with inverted bytes
//! for descending fields both are the first key.

use std::collections::BinaryHeap;

use bson::{Bson, Document, RawDocument};
use quorate_query::value::Path;
use quorate_storage::key::FieldOrder;

use crate::error::{CommandError, ErrorCode};
use crate::fields::whole_number;
use crate::index_keys::{IndexField, document_keys};

/// Bytes of documents that a sort may hold.
pub(crate) const MAX_SORT_BYTES: usize = 100 * 1024 * 1024;

/// The most fields of a sort.
const MAX_SORT_FIELDS: usize = 32;

/// A parsed sort specification.
#[derive(Clone, Debug)]
pub(crate) struct SortOrder {
    fields: Vec<IndexField>,
}

impl SortOrder {
    pub(crate) fn parse(specification: &Document) -> Result<Self, CommandError> {
        if specification.len() > MAX_SORT_FIELDS {
            return Err(CommandError::bad_value(format!(
                "a sort has at most {MAX_SORT_FIELDS} fields"
            )));
        }
        let mut fields = Vec::with_capacity(specification.len());
        for (name, direction) in specification {
            if name.is_empty() || name.starts_with('$') || name.split('.').any(str::is_empty) {
                return Err(CommandError::bad_value(format!("'{name}' cannot be sorted by")));
            }
            let order = match (whole_number(direction), direction) {
                (Some(1), _) => FieldOrder::Ascending,
                (Some(-1), _) => FieldOrder::Descending,
                (_, Bson::Document(_)) => {
                    return Err(CommandError::new(
                        ErrorCode::COMMAND_NOT_SUPPORTED,
                        "$meta sort is not supported; sort by fields",
                    ));
                }
                _ => {
                    return Err(CommandError::new(
                        ErrorCode(15975),
                        "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
                    ));
                }
            };
            fields.push(IndexField { components: Path::parse(name)?.components().to_vec(), order });
        }
        Ok(Self { fields })
    }

    fn key(&self, document: &RawDocument) -> Result<Vec<u8>, CommandError> {
        let keys = document_keys(document, &self.fields).map_err(|mut error| {
            if error.code == ErrorCode::CANNOT_INDEX_PARALLEL_ARRAYS {
                error.code = ErrorCode::BAD_VALUE;
                error.message = "cannot sort with keys that are parallel arrays".to_owned();
            }
            error
        })?;
        Ok(keys.keys.into_iter().next().unwrap_or_default())
    }
}

struct Sorted<T> {
    key: Vec<u8>,
    /// Keeps equal keys in the order in which they came.
    place: usize,
    value: T,
}

impl<T> PartialEq for Sorted<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Sorted<T> {}

impl<T> PartialOrd for Sorted<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Sorted<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&self.key, self.place).cmp(&(&other.key, other.place))
    }
}

/// Sorts values by the documents they carry. With a limit only the first ones are kept.
pub(crate) fn sort<T>(
    order: &SortOrder,
    values: impl Iterator<Item = Result<T, CommandError>>,
    document: impl Fn(&T) -> &RawDocument,
    limit: Option<usize>,
) -> Result<Vec<T>, CommandError> {
    // The greatest of those kept is on top, to be thrown out first.
    let mut kept: BinaryHeap<Sorted<T>> = BinaryHeap::new();
    let limit = limit.unwrap_or(usize::MAX);
    let mut bytes = 0;
    let size = |sorted: &Sorted<T>| sorted.key.len() + document(&sorted.value).as_bytes().len();
    for (place, value) in values.enumerate() {
        let value = value?;
        let key = order.key(document(&value))?;
        let sorted = Sorted { key, place, value };
        bytes += size(&sorted);
        kept.push(sorted);
        if kept.len() > limit
            && let Some(greatest) = kept.pop()
        {
            bytes -= size(&greatest);
        }
        if bytes > MAX_SORT_BYTES {
            return Err(CommandError::new(
                ErrorCode::QUERY_EXCEEDED_MEMORY_LIMIT,
                format!(
                    "Sort exceeded memory limit of {MAX_SORT_BYTES} bytes; add an index for the \
                     sort or a limit"
                ),
            ));
        }
    }
    Ok(kept.into_sorted_vec().into_iter().map(|sorted| sorted.value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, doc};

    fn sorted(specification: Document, documents: &[Document], limit: Option<usize>) -> Vec<i32> {
        let order = SortOrder::parse(&specification).unwrap();
        let raw = documents.iter().map(|document| Ok(RawDocumentBuf::try_from(document).unwrap()));
        sort(&order, raw, |document| document, limit)
            .unwrap()
            .into_iter()
            .map(|document| document.get_i32("_id").unwrap())
            .collect()
    }

    #[test]
    fn arrays_sort_by_their_smallest_or_greatest_element() {
        let documents = [
            doc! {"_id": 1, "a": [5, 1]},
            doc! {"_id": 2, "a": 3},
            doc! {"_id": 3},
            doc! {"_id": 4, "a": []},
        ];
        assert_eq!(sorted(doc! {"a": 1}, &documents, None), [4, 3, 1, 2]);
        assert_eq!(sorted(doc! {"a": -1}, &documents, None), [1, 2, 3, 4]);
    }

    #[test]
    fn equal_keys_keep_their_order_with_and_without_a_limit() {
        let documents: Vec<_> = (0..20).map(|n| doc! {"_id": n, "a": n % 2}).collect();
        let all = sorted(doc! {"a": -1}, &documents, None);
        assert_eq!(all[..3], [1, 3, 5]);
        assert_eq!(sorted(doc! {"a": -1}, &documents, Some(3)), all[..3]);
    }

    #[test]
    fn directions_other_than_one_are_refused() {
        assert_eq!(SortOrder::parse(&doc! {"a": 2}).unwrap_err().code.0, 15975);
        assert!(SortOrder::parse(&doc! {"a": "up"}).is_err());
        assert!(SortOrder::parse(&doc! {"": 1}).is_err());
    }
}
