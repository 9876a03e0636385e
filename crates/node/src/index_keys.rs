//! From a document to the keys under which an index finds it.
//!
//! Owns how arrays multiply keys. A path that meets an array is followed into every element; the
//! fields of a compound index that meet the *same* array are followed together, element by
//! element; two *different* arrays in one document are refused, for their keys would multiply.

use std::collections::{BTreeSet, btree_set};

use bson::oid::ObjectId;
use bson::spec::ElementType;
use bson::{RawArray, RawBsonRef, RawDocument};
use quorate_query::value::PathComponent;
use quorate_query::value::RawScan;
use quorate_storage::key::{FieldOrder, append_raw_value};

use crate::error::{CommandError, Result};

/// The most keys that one document may have in one index.
pub(crate) const MAX_KEYS_PER_DOCUMENT: usize = 100_000;

/// One field of an index: where the values are and which way they run.
#[derive(Clone, Debug)]
pub(crate) struct IndexField {
    pub(crate) components: Vec<PathComponent>,
    pub(crate) order: FieldOrder,
}

/// The keys of one document in one index, each once.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct DocumentKeys {
    pub(crate) keys: KeySet,
    /// Whether an array was met, even one that gives a single key.
    pub(crate) multikey: bool,
    /// Whether no field of the index is in the document: sparse indexes leave it out.
    pub(crate) all_missing: bool,
}

/// Keys in their order, each once. Nearly every document has one key in an index, which needs no tree.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum KeySet {
    #[default]
    None,
    One(Vec<u8>),
    Many(BTreeSet<Vec<u8>>),
}

impl KeySet {
    fn insert(&mut self, key: Vec<u8>) {
        match self {
            Self::None => *self = Self::One(key),
            Self::One(known) if *known == key => {}
            Self::One(known) => *self = Self::Many(BTreeSet::from([std::mem::take(known), key])),
            Self::Many(known) => {
                known.insert(key);
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(keys) => keys.len(),
        }
    }

    fn contains(&self, key: &Vec<u8>) -> bool {
        match self {
            Self::None => false,
            Self::One(known) => known == key,
            Self::Many(keys) => keys.contains(key),
        }
    }

    pub(crate) fn iter(&self) -> Keys<'_> {
        match self {
            Self::None => Keys { one: None, many: None },
            Self::One(key) => Keys { one: Some(key), many: None },
            Self::Many(keys) => Keys { one: None, many: Some(keys.iter()) },
        }
    }

    /// Those that another set does not have.
    pub(crate) fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Vec<u8>> {
        self.iter().filter(|key| !other.contains(key))
    }

    pub(crate) fn first(&self) -> Option<&Vec<u8>> {
        self.iter().next()
    }
}

/// The keys of a [`KeySet`].
pub(crate) struct Keys<'a> {
    one: Option<&'a Vec<u8>>,
    many: Option<btree_set::Iter<'a, Vec<u8>>>,
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a Vec<u8>;

    fn next(&mut self) -> Option<Self::Item> {
        self.one.take().or_else(|| self.many.as_mut()?.next())
    }
}

impl<'a> IntoIterator for &'a KeySet {
    type Item = &'a Vec<u8>;
    type IntoIter = Keys<'a>;

    fn into_iter(self) -> Keys<'a> {
        self.iter()
    }
}

/// Makes the key of a document whose fields meet no array, and tells whether all of them are missing;
/// none if they do meet one.
pub(crate) fn plain_key(
    document: &RawDocument,
    fields: &[IndexField],
    key: &mut Vec<u8>,
) -> Result<Option<bool>> {
    key.clear();
    append_plain_key(document, fields, key)
}

/// Appends such a key. If there is none, so is a part of it.
fn append_plain_key(
    document: &RawDocument,
    fields: &[IndexField],
    key: &mut Vec<u8>,
) -> Result<Option<bool>> {
    let mut all_missing = true;
    for field in fields {
        let Slot::Found(value) = walk(document, &field.components, 0)? else { return Ok(None) };
        all_missing &= value.is_none();
        append_raw_value(key, value.unwrap_or(RawBsonRef::Null), field.order)?;
    }
    Ok(Some(all_missing))
}

/// The type of the `_id` that a document begins with, and the bytes from its value on.
pub(crate) fn leading_id(document: &RawDocument) -> Option<(ElementType, &[u8])> {
    let (kind, rest) = document.as_bytes().get(4..)?.split_first()?;
    Some((ElementType::from(*kind)?, rest.strip_prefix(b"_id\0")?))
}

/// Appends the key of a document in an index of its `_id`.
pub(crate) fn append_id_key(
    document: &RawDocument,
    fields: &[IndexField],
    out: &mut Vec<u8>,
) -> Result<()> {
    // Nearly every document begins with its `_id`, of one of these types.
    let usual = leading_id(document).and_then(|(kind, bytes)| match kind {
        ElementType::ObjectId => {
            Some(RawBsonRef::ObjectId(ObjectId::from_bytes(*bytes.first_chunk()?)))
        }
        ElementType::Int32 => Some(RawBsonRef::Int32(i32::from_le_bytes(*bytes.first_chunk()?))),
        ElementType::Int64 => Some(RawBsonRef::Int64(i64::from_le_bytes(*bytes.first_chunk()?))),
        _ => None,
    });
    match (usual, fields) {
        (Some(id), [field]) => Ok(append_raw_value(out, id, field.order)?),
        _ => append_first_key(document, fields, out),
    }
}

/// Puts the first key of a document in place of what was in `key`.
pub(crate) fn first_key(
    document: &RawDocument,
    fields: &[IndexField],
    key: &mut Vec<u8>,
) -> Result<()> {
    key.clear();
    append_first_key(document, fields, key)
}

/// Appends the first key of a document.
fn append_first_key(
    document: &RawDocument,
    fields: &[IndexField],
    out: &mut Vec<u8>,
) -> Result<()> {
    let start = out.len();
    if append_plain_key(document, fields, out)?.is_none() {
        let keys = document_keys(document, fields)?;
        out.truncate(start);
        out.extend(keys.keys.first().into_iter().flatten());
    }
    Ok(())
}

/// Computes the keys of a document.
pub(crate) fn document_keys(document: &RawDocument, fields: &[IndexField]) -> Result<DocumentKeys> {
    let mut key = Vec::with_capacity(32 * fields.len());
    if let Some(all_missing) = plain_key(document, fields, &mut key)? {
        return Ok(DocumentKeys { keys: KeySet::One(key), multikey: false, all_missing });
    }
    let slots = fields
        .iter()
        .map(|field| Slot::Pending { document, rest: &field.components, passed: 0 })
        .collect();
    let mut keys = DocumentKeys { all_missing: true, ..DocumentKeys::default() };
    expand(slots, fields, &mut keys)?;
    Ok(keys)
}

/// What is known about one field of the index so far.
#[derive(Clone)]
enum Slot<'a> {
    Found(Option<RawBsonRef<'a>>),
    Pending { document: &'a RawDocument, rest: &'a [PathComponent], passed: usize },
    Array { array: &'a RawArray, rest: &'a [PathComponent], passed: usize },
}

fn expand(mut slots: Vec<Slot<'_>>, fields: &[IndexField], keys: &mut DocumentKeys) -> Result<()> {
    for slot in &mut slots {
        if let Slot::Pending { document, rest, passed } = *slot {
            *slot = walk(document, rest, passed)?;
        }
    }
    let Some(array) = common_array(&slots, fields)? else {
        return emit(&slots, fields, keys);
    };
    keys.multikey = true;
    let mut is_empty = true;
    for element in array {
        is_empty = false;
        let element = element.map_err(|_| malformed())?;
        let stepped = slots.iter().map(|slot| slot.step_into(Some(element))).collect();
        expand(stepped, fields, keys)?;
    }
    if is_empty {
        let stepped = slots.iter().map(|slot| slot.step_into(None)).collect();
        expand(stepped, fields, keys)?;
    }
    Ok(())
}

impl<'a> Slot<'a> {
    /// The slot within one element of the array it stopped at; `None` for an empty array.
    fn step_into(&self, element: Option<RawBsonRef<'a>>) -> Self {
        match *self {
            Self::Array { rest, passed, .. } => match (element, rest) {
                // An array nested directly in the array is a value, not a reason to expand again.
                (Some(element), []) => Self::Found(Some(element)),
                (Some(RawBsonRef::Document(document)), rest) => {
                    Self::Pending { document, rest, passed }
                }
                (Some(_), _) => Self::Found(None),
                // An empty array is findable as undefined when the path ends at it.
                (None, []) => Self::Found(Some(RawBsonRef::Undefined)),
                (None, _) => Self::Found(None),
            },
            ref settled => settled.clone(),
        }
    }
}

/// Follows a path through documents until it ends or meets an array.
fn walk<'a>(
    mut document: &'a RawDocument,
    mut rest: &'a [PathComponent],
    mut passed: usize,
) -> Result<Slot<'a>> {
    loop {
        let Some((component, further)) = rest.split_first() else { return Ok(Slot::Found(None)) };
        let found = RawScan::find_raw(document, &component.name).map_err(|_| malformed())?;
        rest = further;
        passed += 1;
        let mut value = found;
        // A number after an array addresses one element of it.
        while let (Some(RawBsonRef::Array(array)), Some((next, further))) =
            (value, rest.split_first())
        {
            let Some(index) = next.index else { break };
            let element = array.get(index).map_err(|_| malformed())?;
            if has_element_with(array, next)? {
                if element.is_some() {
                    return Err(ambiguous(next));
                }
                // No element has this place: it is the name of a field of the elements.
                break;
            }
            value = element;
            rest = further;
            passed += 1;
        }
        match value {
            Some(RawBsonRef::Array(array)) => return Ok(Slot::Array { array, rest, passed }),
            value if rest.is_empty() => return Ok(Slot::Found(value)),
            Some(RawBsonRef::Document(inner)) => document = inner,
            _ => return Ok(Slot::Found(None)),
        }
    }
}

/// Whether a document in the array has a field of this name.
fn has_element_with(array: &RawArray, field: &PathComponent) -> Result<bool> {
    for element in array {
        if let RawBsonRef::Document(document) = element.map_err(|_| malformed())?
            && RawScan::find_raw(document, &field.name).map_err(|_| malformed())?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A query by this number sees an element and fields of elements; an index could hold one of them only.
fn ambiguous(field: &PathComponent) -> CommandError {
    fail!(
        16746,
        "Ambiguous field name found in array (do not use numeric field names in embedded elements in an \
             array), field: '{}'",
        field.name
    )
}

/// The array that all stopped fields stopped at.
fn common_array<'a>(slots: &[Slot<'a>], fields: &[IndexField]) -> Result<Option<&'a RawArray>> {
    let mut common: Option<(&'a RawArray, &[PathComponent])> = None;
    for (slot, field) in slots.iter().zip(fields) {
        let Slot::Array { array, passed, .. } = *slot else { continue };
        let prefix = field.components.get(..passed).unwrap_or(&field.components);
        match common {
            None => common = Some((array, prefix)),
            Some((_, other)) if other == prefix => {}
            Some((_, other)) => {
                let name = |path: &[PathComponent]| {
                    path.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(".")
                };
                refuse!(
                    CANNOT_INDEX_PARALLEL_ARRAYS,
                    "cannot index parallel arrays [{}] [{}]",
                    name(prefix),
                    name(other)
                );
            }
        }
    }
    Ok(common.map(|(array, _)| array))
}

fn emit(slots: &[Slot<'_>], fields: &[IndexField], keys: &mut DocumentKeys) -> Result<()> {
    let mut key = Vec::with_capacity(16 * fields.len());
    for (slot, field) in slots.iter().zip(fields) {
        let value = match slot {
            Slot::Found(value) => *value,
            Slot::Pending { .. } | Slot::Array { .. } => None,
        };
        keys.all_missing &= value.is_none();
        append_raw_value(&mut key, value.unwrap_or(RawBsonRef::Null), field.order)?;
    }
    keys.keys.insert(key);
    refuse_if!(keys.keys.len() > MAX_KEYS_PER_DOCUMENT => CANNOT_CREATE_INDEX,
        "a document may have at most {MAX_KEYS_PER_DOCUMENT} keys in an index");
    Ok(())
}

fn malformed() -> CommandError {
    fail!(FAILED_TO_PARSE, "a stored document is malformed; run validate")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use bson::{Bson, Document, RawDocumentBuf, bson, doc};
    use quorate_query::value::Path;
    use quorate_storage::key::append_value;

    fn fields(paths: &[&str]) -> Vec<IndexField> {
        let field = |path: &&str| IndexField {
            components: Path::parse(path).unwrap().components().to_vec(),
            order: FieldOrder::Ascending,
        };
        paths.iter().map(field).collect()
    }

    fn keys(document: Document, paths: &[&str]) -> DocumentKeys {
        let raw = RawDocumentBuf::try_from(&document).unwrap();
        document_keys(&raw, &fields(paths)).unwrap()
    }

    fn expected(keys: &[&[Bson]]) -> KeySet {
        let encode = |values: &&[Bson]| {
            let mut key = Vec::new();
            for value in *values {
                append_value(&mut key, value, FieldOrder::Ascending).unwrap();
            }
            key
        };
        let mut expected = KeySet::default();
        keys.iter().map(encode).for_each(|key| expected.insert(key));
        expected
    }

    #[test]
    fn the_first_key_is_that_of_all_keys() {
        let mut key = b"left over".to_vec();
        for (document, paths) in [
            (doc! {"a": 5, "b": "x"}, &["a", "b"][..]),
            (doc! {"b": 1}, &["a"]),
            (doc! {"a": [3, 1, 2]}, &["a"]),
            (doc! {"a": []}, &["a"]),
        ] {
            let raw = RawDocumentBuf::try_from(&document).unwrap();
            let all = document_keys(&raw, &fields(paths)).unwrap();
            first_key(&raw, &fields(paths), &mut key).unwrap();
            assert_eq!(Some(&key), all.keys.first(), "{document}");
        }
    }

    #[test]
    fn the_key_of_an_id_is_the_same_wherever_it_stands_and_whatever_it_is() {
        let object = bson::oid::ObjectId::from_bytes([7; 12]);
        for id in [
            bson!(-5),
            bson!(1_i64 << 40),
            bson!(2.5),
            object.into(),
            bson!("text"),
            bson!({"a": 1}),
            Bson::Null,
            bson::DateTime::from_millis(9).into(),
        ] {
            for document in [
                doc! {"_id": id.clone()},
                doc! {"_id": id.clone(), "a": 1},
                doc! {"_ie": 4, "_id": id.clone()},
                doc! {"a": 3, "_id": id.clone()},
            ] {
                let raw = RawDocumentBuf::try_from(&document).unwrap();
                let mut key = b"before".to_vec();
                append_id_key(&raw, &fields(&["_id"]), &mut key).unwrap();
                let mut expected = b"before".to_vec();
                append_value(&mut expected, &id, FieldOrder::Ascending).unwrap();
                assert_eq!(key, expected, "{document}");
            }
        }
        let mut key = Vec::new();
        append_id_key(&RawDocumentBuf::new(), &fields(&["_id"]), &mut key).unwrap();
        assert_eq!(Some(&key), expected(&[&[Bson::Null]]).first());
    }

    #[test]
    fn sets_of_keys_differ_by_what_only_one_has() {
        let set = |keys: &[u8]| {
            let mut set = KeySet::default();
            keys.iter().for_each(|&key| set.insert(vec![key]));
            set
        };
        let difference = |ours: &[u8], others: &[u8]| {
            let (ours, others) = (set(ours), set(others));
            ours.difference(&others).map(|key| key[0]).collect::<Vec<_>>()
        };
        assert!(difference(&[], &[1]).is_empty());
        assert!(difference(&[1], &[1]).is_empty());
        assert_eq!(difference(&[1, 1], &[2]), [1]);
        assert_eq!(difference(&[3, 1, 2], &[2]), [1, 3]);
        assert_eq!(set(&[1, 1]), set(&[1]));
        assert_eq!(set(&[2, 1]).iter().count(), 2);
    }

    #[test]
    fn a_missing_field_is_null_and_known_to_be_missing() {
        let found = keys(doc! {"b": 1}, &["a"]);
        assert_eq!(found.keys, expected(&[&[Bson::Null]]));
        assert!(found.all_missing && !found.multikey);
        assert!(!keys(doc! {"a": Bson::Null}, &["a"]).all_missing);
        assert!(!keys(doc! {"b": 1}, &["a", "b"]).all_missing);
    }

    #[test]
    fn every_element_of_an_array_is_a_key() {
        let found = keys(doc! {"a": [1, 2, 2, [3]]}, &["a"]);
        assert_eq!(found.keys, expected(&[&[bson!(1)], &[bson!(2)], &[bson!([3])]]));
        assert!(found.multikey);
        assert_eq!(keys(doc! {"a": []}, &["a"]).keys, expected(&[&[Bson::Undefined]]));
    }

    #[test]
    fn fields_of_one_array_are_followed_together() {
        let found = keys(doc! {"a": [{"x": 1, "y": 2}, {"x": 3}, 9]}, &["a.x", "a.y"]);
        assert_eq!(
            found.keys,
            expected(&[&[bson!(1), bson!(2)], &[bson!(3), Bson::Null], &[Bson::Null, Bson::Null]])
        );
    }

    #[test]
    fn an_array_multiplies_the_other_fields() {
        let found = keys(doc! {"a": [1, 2], "b": "x"}, &["a", "b"]);
        assert_eq!(found.keys, expected(&[&[bson!(1), bson!("x")], &[bson!(2), bson!("x")]]));
    }

    #[test]
    fn a_number_addresses_one_element() {
        assert_eq!(keys(doc! {"a": [7, 8]}, &["a.1"]).keys, expected(&[&[bson!(8)]]));
        let nested = doc! {"a": [{"b": 7}, {"b": 8}]};
        assert_eq!(keys(nested, &["a.1.b"]).keys, expected(&[&[bson!(8)]]));
    }

    #[test]
    fn parallel_arrays_are_refused() {
        let raw = RawDocumentBuf::try_from(&doc! {"a": [1], "b": [2]}).unwrap();
        let error = document_keys(&raw, &fields(&["a", "b"])).unwrap_err();
        assert_eq!(error.code, ErrorCode::CANNOT_INDEX_PARALLEL_ARRAYS);
    }
}
