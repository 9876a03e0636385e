//! Documents that have a field of one name twice, or an array whose items are not numbered.
//!
//! BSON allows the one and libraries send the other, and what a client inserts is stored as it is. A parsed document holds one field of each name. An
//! update parses a document with the first of them, which is the one that MongoDB changes, and writes it again: here it
//! keeps the others where they were. The entry of the log says what the update changed, so that every member makes the
//! same bytes of it. Arrays that it does not tell of keep the names of their items.

use std::collections::BTreeMap;

use bson::raw::{CStr, CString, RawArrayBuf};
use bson::{Bson, Document, RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use quorate_query::diff::{OplogUpdate, ToldAs, apply_oplog_update, is_delta, oplog_update};
use quorate_query::value::{has_numbered_arrays, measure};

use crate::error::Result;
use crate::fields::to_raw;
use crate::structure::malformed;

/// Reads a document; of several fields of one name the first.
pub(crate) fn parse(bytes: &RawDocument) -> Result<Document> {
    let parsed = Document::try_from(bytes)?;
    if holds_all(&parsed, bytes) {
        return Ok(parsed);
    }
    let mut firsts = Document::new();
    for field in bytes {
        let (name, value) = field.map_err(|_| malformed())?;
        if !firsts.contains_key(name.as_str()) {
            firsts.insert(name.as_str(), parse_value(value)?);
        }
    }
    Ok(firsts)
}

fn parse_value(value: RawBsonRef<'_>) -> Result<Bson> {
    match value {
        RawBsonRef::Document(document) => parse(document).map(Bson::Document),
        RawBsonRef::Array(items) => {
            let item = |item: Result<RawBsonRef<'_>, _>| {
                item.map_err(|_| malformed()).and_then(parse_value)
            };
            items.into_iter().map(item).collect::<Result<_, _>>().map(Bson::Array)
        }
        other => Ok(Bson::try_from(other)?),
    }
}

/// The bytes of a document after an update, which has [parsed](parse) `before` from `old` and made `after` of it.
pub(crate) fn rewrite(
    old: &RawDocument,
    (before, after): (&Document, &Document),
    told_as: &ToldAs,
) -> Result<RawDocumentBuf> {
    if holds_all(before, old) {
        return to_raw(after);
    }
    match oplog_update(before, after, told_as) {
        OplogUpdate::Unchanged => Ok(old.to_owned()),
        OplogUpdate::Entry(change) => apply_change(old, &change),
    }
}

/// The bytes of a document after the change that the field `o` of an entry tells.
pub(crate) fn apply_change(old: &RawDocument, change: &Document) -> Result<RawDocumentBuf> {
    let before = parse(old)?;
    let after = apply_oplog_update(&before, change)?;
    match change.get_document("diff") {
        Ok(diff) if is_delta(change) && !holds_all(&before, old) => changed_document(old, diff),
        _ => to_raw(&after),
    }
}

/// Whether a parsed document holds every field of its bytes, and is written as they are.
fn holds_all(parsed: &Document, bytes: &RawDocument) -> bool {
    measure(parsed).bytes == bytes.as_bytes().len() && has_numbered_arrays(bytes)
}

fn changed_document(old: &RawDocument, diff: &Document) -> Result<RawDocumentBuf> {
    let none = Document::new();
    let section = |name: &str| diff.get_document(name).unwrap_or(&none);
    let (deleted, updated, inserted) = (section("d"), section("u"), section("i"));
    let fields: Vec<(&CStr, RawBsonRef<'_>)> =
        old.iter().collect::<Result<_, _>>().map_err(|_| malformed())?;
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, (name, _)) in fields.iter().enumerate() {
        first.entry(name.as_str()).or_insert(place);
    }
    let mut new = RawDocumentBuf::new();
    for (place, &(name, value)) in fields.iter().enumerate() {
        let text = name.as_str();
        if deleted.contains_key(text) || inserted.contains_key(text) {
            continue;
        }
        if first.get(text) != Some(&place) {
            new.append(name, value);
            continue;
        }
        match (updated.get(text), diff.get_document(format!("s{text}"))) {
            (Some(changed), _) => new.append(name, raw(changed)?),
            (None, Ok(inner)) => new.append(name, changed_value(value, inner)?),
            (None, Err(_)) => new.append(name, value),
        }
    }
    let added = updated.iter().filter(|(name, _)| !first.contains_key(name.as_str()));
    for (name, value) in added.chain(inserted) {
        new.append(CString::try_from(name.as_str())?, raw(value)?);
    }
    Ok(new)
}

fn changed_value(old: RawBsonRef<'_>, diff: &Document) -> Result<RawBson> {
    let is_array_diff = diff.contains_key("a");
    match old {
        RawBsonRef::Document(old) if !is_array_diff => {
            Ok(RawBson::Document(changed_document(old, diff)?))
        }
        RawBsonRef::Array(old) if is_array_diff => Ok(RawBson::Array(changed_array(old, diff)?)),
        other => Ok(RawBson::from(other)),
    }
}

fn changed_array(old: &RawArray, diff: &Document) -> Result<RawArrayBuf> {
    let items: Vec<RawBsonRef<'_>> =
        old.into_iter().collect::<Result<_, _>>().map_err(|_| malformed())?;
    let kept = diff.get_i32("l").map_or(items.len(), |length| length.max(0) as usize);
    let named = diff.keys().filter_map(|name| name.strip_prefix('u')?.parse::<usize>().ok());
    let length = named.map(|place| place + 1).max().unwrap_or(0).max(kept.min(items.len()));
    let mut new = RawArrayBuf::new();
    for place in 0..length {
        let item = items.get(place).filter(|_| place < kept);
        match (diff.get(format!("u{place}")), diff.get_document(format!("s{place}")), item) {
            (Some(changed), _, _) => new.push(raw(changed)?),
            (None, Ok(inner), Some(item)) => new.push(changed_value(*item, inner)?),
            (None, _, Some(item)) => new.push(*item),
            (None, _, None) => new.push(RawBsonRef::Null),
        }
    }
    Ok(new)
}

fn raw(value: &Bson) -> Result<RawBson> {
    Ok(RawBson::try_from(value.clone())?)
}

#[cfg(test)]
mod tests {
    use bson::{doc, rawdoc};
    use quorate_query::diff::ToldAs;

    use super::*;

    fn twice() -> RawDocumentBuf {
        let mut inner = rawdoc! { "x": 1, "y": 2 };
        inner.append(bson::raw::cstr!("x"), 3);
        rawdoc! { "_id": 1, "s": inner.clone(), "l": [inner, 7], "n": 1 }
    }

    fn rewritten(old: &RawDocument, change: impl FnOnce(&mut Document)) -> RawDocumentBuf {
        let before = parse(old).unwrap();
        let mut after = before.clone();
        change(&mut after);
        let told_as = ToldAs::ShortestDifference;
        let new = rewrite(old, (&before, &after), &told_as).unwrap();
        // What was parsed is what the update made, and another member makes the same of the entry.
        assert_eq!(parse(&new).unwrap(), after);
        let OplogUpdate::Entry(entry) = oplog_update(&before, &after, &told_as) else { panic!() };
        assert_eq!(apply_change(old, &entry).unwrap(), new);
        new
    }

    fn names(of: &RawDocument, field: &str) -> Vec<String> {
        let inner = of.get_document(field).unwrap();
        inner.iter().map(|found| found.unwrap().0.as_str().to_owned()).collect()
    }

    #[test]
    fn what_an_update_leaves_alone_keeps_the_names_of_items() {
        let items = rawdoc! { "1": "b", "0": "a" };
        let mut bytes = rawdoc! { "_id": 1, "l": items, "n": 1 }.into_bytes();
        let kind = bytes.windows(3).position(|window| window == [0x03, b'l', 0]).unwrap();
        bytes[kind] = 0x04;
        let old = RawDocumentBuf::from_bytes(bytes).unwrap();
        let new = rewritten(&old, |after| drop(after.insert("n", 2)));
        let items = |of: &RawDocument| of.get_array("l").unwrap().as_bytes().to_vec();
        assert_eq!(items(&new), items(&old));
    }

    #[test]
    fn a_whole_document_with_a_field_of_a_delta_is_written_as_it_is() {
        let diff = doc! { "d": { "n": false } };
        for whole in [doc! { "_id": 1, "diff": &diff }, doc! { "_id": 1, "$v": 2, "diff": &diff }] {
            let new = rewritten(&twice(), |after| *after = whole.clone());
            assert_eq!(new, RawDocumentBuf::try_from(&whole).unwrap());
        }
    }

    #[test]
    fn what_an_update_leaves_alone_keeps_both_fields_of_a_name() {
        let new = rewritten(&twice(), |after| {
            after.insert("n", 2);
            after.insert("added", 1);
        });
        assert_eq!(names(&new, "s"), ["x", "y", "x"]);
        assert_eq!(
            new.get_array("l").unwrap().as_bytes(),
            twice().get_array("l").unwrap().as_bytes()
        );
    }

    #[test]
    fn a_change_beside_them_or_of_the_first_one_keeps_the_other() {
        let long = "long".repeat(20);
        let mut old = twice();
        old.append(bson::raw::cstr!("pad"), long.as_str());
        let before = parse(&old).unwrap();
        for (name, values) in [("x", [9, 2, 3]), ("y", [1, 9, 3])] {
            let diff = doc! { "$v": 2, "diff": { "ss": { "u": { name: 9 } } } };
            let new = apply_change(&old, &diff).unwrap();
            assert_eq!(names(&new, "s"), ["x", "y", "x"], "{name}");
            let inner = new.get_document("s").unwrap();
            let held = inner.iter().map(|found| found.unwrap().1.as_i32().unwrap());
            assert_eq!(held.collect::<Vec<_>>(), values, "{name}");
            let after = apply_oplog_update(&before, &diff).unwrap();
            assert_eq!(parse(&new).unwrap(), after);
        }
        let diff = doc! { "$v": 2, "diff": { "ss": { "d": { "x": false } } } };
        assert_eq!(names(&apply_change(&old, &diff).unwrap(), "s"), ["y"]);
    }

    #[test]
    fn items_of_arrays_are_changed_in_their_places() {
        let old = twice();
        let before = parse(&old).unwrap();
        for inner in [
            doc! { "a": true, "u1": 8, "u3": 9 },
            doc! { "a": true, "s0": { "u": { "y": 5 } } },
            doc! { "a": true, "l": 1 },
        ] {
            let entry = doc! { "$v": 2, "diff": { "sl": inner } };
            let new = apply_change(&old, &entry).unwrap();
            let after = apply_oplog_update(&before, &entry).unwrap();
            assert_eq!(parse(&new).unwrap(), after, "{entry}");
            let RawBsonRef::Document(first) = new.get_array("l").unwrap().get(0).unwrap().unwrap()
            else {
                panic!()
            };
            assert_eq!(first.iter().count(), 3, "{entry}");
        }
    }
}
