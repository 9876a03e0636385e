//! `{$v: 2, diff: …}`: what an update changed, smaller than the document.
//!
//! ```text
//!   u: {field: value}   fields with a new value, in place      d: {field: false}  removed fields
//!   i: {field: value}   fields added at the end, in order      s<field>: {…}      inside a document
//! ```
//!
//! Arrays are replaced whole. A change that a diff cannot express, or only at greater length, is
//! logged as the whole document.

use bson::raw::CString;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::oplog::damaged;
use crate::error::CommandError;

/// Below this depth documents are replaced whole.
const MAX_DEPTH: usize = 16;

/// `{$v: 2, diff}` that makes `new` of `old`; none if the whole document serves better.
pub(super) fn diff(
    old: &RawDocument,
    new: &RawDocument,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let Some(diff) = diff_of(old, new, 0)? else { return Ok(None) };
    if diff.as_bytes().len() + 32 >= new.as_bytes().len() {
        return Ok(None);
    }
    // Order matters in a document, and added fields go to the end: only a diff that gives the very
    // same bytes is used.
    if apply(old, &diff, 0)?.as_bytes() != new.as_bytes() {
        return Ok(None);
    }
    Ok(Some(rawdoc! { "$v": 2, "diff": diff }))
}

/// The document that an update entry makes of `old`.
pub(super) fn updated(
    old: &RawDocument,
    change: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    match change.get_document("diff") {
        Ok(diff) if change.get("$v").ok().flatten().is_some() => apply(old, diff, 0),
        _ => Ok(change.to_owned()),
    }
}

/// Whether an update entry needs the document that it changes.
pub(super) fn is_diff(change: &RawDocument) -> bool {
    change.get("$v").ok().flatten().is_some()
}

fn name(key: &str) -> Result<CString, CommandError> {
    CString::try_from(key.to_owned()).map_err(|_| damaged("diff"))
}

fn diff_of(
    old: &RawDocument,
    new: &RawDocument,
    depth: usize,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let (mut changed, mut added, mut inner) =
        (RawDocumentBuf::new(), RawDocumentBuf::new(), Vec::new());
    for element in new {
        let (key, value) = element.map_err(|_| damaged("diff"))?;
        match old.get(key).map_err(|_| damaged("diff"))? {
            None => added.append(name(key.as_str())?, value),
            Some(before) if before == value => {}
            Some(RawBsonRef::Document(before)) => match value {
                RawBsonRef::Document(after) if depth < MAX_DEPTH => {
                    match diff_of(before, after, depth + 1)? {
                        Some(diff) => inner.push((name(&format!("s{}", key.as_str()))?, diff)),
                        None => changed.append(name(key.as_str())?, value),
                    }
                }
                _ => changed.append(name(key.as_str())?, value),
            },
            Some(_) => changed.append(name(key.as_str())?, value),
        }
    }
    let mut removed = RawDocumentBuf::new();
    for element in old {
        let (key, _) = element.map_err(|_| damaged("diff"))?;
        if new.get(key).map_err(|_| damaged("diff"))?.is_none() {
            removed.append(name(key.as_str())?, false);
        }
    }
    let mut diff = RawDocumentBuf::new();
    for (section, fields) in [("d", removed), ("u", changed), ("i", added)] {
        if fields.iter().next().is_some() {
            diff.append(name(section)?, fields);
        }
    }
    for (section, fields) in inner {
        diff.append(section, fields);
    }
    Ok(Some(diff))
}

fn apply(
    old: &RawDocument,
    diff: &RawDocument,
    depth: usize,
) -> Result<RawDocumentBuf, CommandError> {
    if depth > MAX_DEPTH + 1 {
        return Err(damaged("diff"));
    }
    let section = |name: &str| diff.get_document(name).ok();
    let (removed, changed, added) = (section("d"), section("u"), section("i"));
    let has = |fields: Option<&RawDocument>, key: &str| {
        fields.and_then(|fields| fields.get(key).ok().flatten()).is_some()
    };
    let mut result = RawDocumentBuf::new();
    for element in old {
        let (key, value) = element.map_err(|_| damaged("diff"))?;
        let key = key.as_str();
        if has(removed, key) || has(added, key) {
            continue;
        }
        let inner = diff.get_document(format!("s{key}")).ok();
        let replaced = changed.and_then(|fields| fields.get(key).ok().flatten());
        match (replaced, inner, value) {
            (Some(value), _, _) => result.append(name(key)?, value),
            (None, Some(inner), RawBsonRef::Document(before)) => {
                result.append(name(key)?, apply(before, inner, depth + 1)?);
            }
            // Applied again after a later change made it something else: that change comes again.
            _ => result.append(name(key)?, value),
        }
    }
    let absent = changed.into_iter().flatten().filter(|element| {
        element.as_ref().is_ok_and(|(key, _)| old.get(key).ok().flatten().is_none())
    });
    for element in absent.chain(added.into_iter().flatten()) {
        let (key, value) = element.map_err(|_| damaged("diff"))?;
        result.append(name(key.as_str())?, value);
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn raw(document: &Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(document).unwrap()
    }

    fn round_trip(old: Document, new: Document) -> Option<RawDocumentBuf> {
        let change = diff(&raw(&old), &raw(&new)).unwrap();
        if let Some(change) = &change {
            let made = updated(&raw(&old), change).unwrap();
            assert_eq!(made.as_bytes(), raw(&new).as_bytes());
            // Twice is once: replay after a rollback or an initial sync.
            assert_eq!(updated(&made, change).unwrap().as_bytes(), raw(&new).as_bytes());
        }
        change
    }

    #[test]
    fn a_small_change_of_a_large_document_is_a_diff() {
        let long = "x".repeat(200);
        let old = doc! {"_id": 1, "a": 1, "b": {"c": 1, "d": 2}, "e": 5, "long": &long};
        let new = doc! {"_id": 1, "a": 2, "b": {"c": 1, "d": 3}, "long": &long, "new": [1, 2]};
        let change = round_trip(old, new).expect("it is much smaller");
        let change = Document::try_from(&*change).unwrap();
        let wanted = doc! {
            "d": {"e": false}, "u": {"a": 2}, "i": {"new": [1, 2]}, "sb": {"u": {"d": 3}},
        };
        assert_eq!(change, doc! {"$v": 2, "diff": wanted});
    }

    #[test]
    fn what_a_diff_cannot_say_is_the_whole_document() {
        // A field in the middle, and a document that is all new.
        let long = "x".repeat(100);
        assert!(round_trip(doc! {"a": 1, "l": &long}, doc! {"b": 1, "a": 1, "l": &long}).is_none());
        assert!(round_trip(doc! {"_id": 1, "a": 1}, doc! {"_id": 1, "a": "other"}).is_none());
    }
}
