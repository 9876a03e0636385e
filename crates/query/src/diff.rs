//! Deltas between two versions of a document, as the oplog carries them.
//!
//! `{$v: 2, diff: {d: {…}, u: {…}, i: {…}, s<field>: {…}}}`: deleted, updated and inserted fields,
//! and deltas of embedded documents. An array's delta is `{a: true, l: <length>, u<index>: <value>,
//! s<index>: {…}}`. Applying a delta twice, or to a later version of the document, is harmless:
//! what no longer fits is skipped, because a later entry will set it right.
//!
//! An entry holds a delta or the whole document. A delta begins with `$v`, and a stored document with `_id`, whatever
//! other fields it has.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document, RawDocument, RawDocumentBuf};

use crate::error::{QueryError, Result};
use crate::part::Part;
use crate::value::raw_scan::RawScan;
use crate::value::size::{identical_documents, value_size};
use crate::value::{MAX_NESTING, Number, identical, measure};

/// The longest array that a delta may ask for: with their positions written out, no more nulls fit
/// the largest document.
const MAX_ARRAY_LENGTH: i64 = 2_000_000;

/// The part of an oplog entry that describes an update.
#[derive(Debug, Clone, PartialEq)]
pub enum OplogUpdate {
    /// Nothing changed: there is no entry to write.
    Unchanged,
    /// The field `o` of the entry: a delta, or the whole document where that is shorter.
    Entry(Document),
}

/// What an oplog entry tells of an update.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// Nothing changed: there is no entry to write.
    Nothing,
    /// The document as it is now.
    Whole,
    /// The field `o` of the entry, with a delta.
    Delta(Document),
}

/// How an entry tells of an update, so that a change stream can tell its clients what was done.
#[derive(Debug, Clone, Default)]
pub enum ToldAs {
    /// The client replaced the document: the entry holds the new one whole.
    Replacement,
    /// The client's operators touched these places: the entry tells what each became.
    Places(Places),
    /// A pipeline computed the document: the entry is as short as it can be.
    #[default]
    ShortestDifference,
}

/// The places that operators touched, as a tree of field names and array positions.
#[derive(Debug, Clone, Default)]
pub struct Places {
    inner: BTreeMap<String, Places>,
    /// Whether an operator's path ends here.
    touched: bool,
    /// Whether that operator adds and removes elements rather than setting the whole value.
    elements: bool,
}

impl Places {
    /// Records the place at the end of a path.
    pub(crate) fn record(&mut self, path: &[String], elements: bool) {
        let mut place = self;
        for name in path {
            place = place.inner.entry(name.clone()).or_default();
        }
        place.touched = true;
        place.elements = elements;
    }
}

/// Describes the way from one version to the next.
pub fn oplog_update(before: &Document, after: &Document, told_as: &ToldAs) -> OplogUpdate {
    match told(before, after, told_as) {
        Told::Nothing => OplogUpdate::Unchanged,
        Told::Whole => OplogUpdate::Entry(after.clone()),
        Told::Delta(entry) => OplogUpdate::Entry(entry),
    }
}

/// What to tell of the way from one version to the next. If the places that operators touched are told, it is enough to
/// know the fields in which they lie.
pub fn told(before: &Document, after: &Document, told_as: &ToldAs) -> Told {
    if identical_documents(before, after) {
        return Told::Nothing;
    }
    let diff = match told_as {
        ToldAs::Replacement => return Told::Whole,
        ToldAs::Places(places) => match touched_diff(before, after, places) {
            // Nothing is lost where a place was not recorded: the whole document tells it all.
            diff if diff.is_empty() => return Told::Whole,
            diff => diff,
        },
        ToldAs::ShortestDifference => {
            let diff = document_diff(before, after);
            if measure(&diff).bytes >= measure(after).bytes && after.contains_key("_id") {
                return Told::Whole;
            }
            diff
        }
    };
    let mut entry = Document::new();
    entry.insert("$v", 2);
    entry.insert("diff", diff);
    Told::Delta(entry)
}

/// Applies the field `o` of an oplog entry to the fields that it changes, and gives the document with them. None if
/// the whole document has to be looked at: a field that is there already moves to the end.
pub fn apply_to_part(part: &Part<'_>, entry: &Document) -> Result<Option<RawDocumentBuf>> {
    let inserted = entry.get_document("diff").and_then(|diff| diff.get_document("i"));
    if inserted.is_ok_and(|fields| fields.keys().any(|name| part.before().contains_key(name))) {
        return Ok(None);
    }
    let after = apply_oplog_update(part.before(), entry)?;
    Ok(part.changed_to(&after))
}

/// Whether the field `o` of an entry that updates a document is a delta, and not the whole document.
pub fn is_delta(entry: &Document) -> bool {
    entry.keys().next().is_some_and(|name| name == "$v")
}

/// The same, of the bytes of the field.
pub fn is_raw_delta(entry: &RawDocument) -> bool {
    RawScan::new(entry).next().is_some_and(|field| field.key() == b"$v")
}

/// The names of the fields that the field `o` of an entry changes; none if it replaces the document, or cannot be read.
pub fn changed_fields(entry: &Document) -> Option<Vec<&str>> {
    let diff = entry.get("diff").filter(|_| is_delta(entry))?.as_document()?;
    let mut fields = Vec::new();
    for (section, value) in diff {
        match (section.as_str(), section.strip_prefix('s')) {
            ("d" | "u" | "i", _) => {
                fields.extend(value.as_document()?.keys().map(String::as_str));
            }
            (_, Some(nested)) => fields.push(nested),
            _ => return None,
        }
    }
    Some(fields)
}

/// Applies the field `o` of an oplog entry: a delta or a replacement.
pub fn apply_oplog_update(before: &Document, entry: &Document) -> Result<Document> {
    match entry.get("$v").filter(|_| is_delta(entry)) {
        None => Ok(entry.clone()),
        Some(version) if Number::from_value(version).and_then(Number::to_i64_exact) == Some(2) => {
            match entry.get("diff") {
                Some(Bson::Document(diff)) => {
                    let mut after = before.clone();
                    apply_document(&mut after, diff, 0)?;
                    measure(&after).check()?;
                    Ok(after)
                }
                _ => Err(malformed("the entry has no 'diff' document")),
            }
        }
        Some(other) => Err(malformed(&format!("version {other} is not known, only 2 is"))),
    }
}

fn malformed(reason: &str) -> QueryError {
    fail!(4772600, "malformed update in the oplog: {reason}")
}

/// Fields are matched in order. A field of the old document that is not next in the new one is
/// deleted, and inserted again at the end if the new document has it later.
fn document_diff(before: &Document, after: &Document) -> Document {
    let mut deleted = Vec::new();
    let mut updates = Document::new();
    let mut inserts = Document::new();
    let mut nested = Document::new();
    let mut old = before.iter().peekable();
    let mut new = after.iter().peekable();
    while let (Some((old_name, old_value)), Some((new_name, new_value))) = (old.peek(), new.peek())
    {
        if old_name != new_name {
            deleted.push(*old_name);
            old.next();
            continue;
        }
        if !identical(old_value, new_value) {
            match value_diff(old_value, new_value) {
                Some(diff) => nested.insert(format!("s{new_name}"), diff),
                None => updates.insert(*new_name, (*new_value).clone()),
            };
        }
        old.next();
        new.next();
    }
    deleted.extend(old.map(|(name, _)| name));
    inserts.extend(new.map(|(name, value)| (name.clone(), value.clone())));
    let deletes: Document = deleted
        .into_iter()
        .filter(|name| !inserts.contains_key(name))
        .map(|name| (name.clone(), Bson::Boolean(false)))
        .collect();
    Sections { deletes, updates, inserts, nested }.into_diff()
}

/// The sections of a document's delta.
#[derive(Default)]
struct Sections {
    deletes: Document,
    updates: Document,
    inserts: Document,
    nested: Document,
}

impl Sections {
    fn into_diff(self) -> Document {
        let mut diff = Document::new();
        for (section, fields) in [("d", self.deletes), ("u", self.updates), ("i", self.inserts)] {
            if !fields.is_empty() {
                diff.insert(section, fields);
            }
        }
        diff.extend(self.nested);
        diff
    }
}

/// What the touched places of a document became. Operators append the fields that they create, so
/// that these come in the order of the new document.
fn touched_diff(before: &Document, after: &Document, places: &Places) -> Document {
    let mut sections = Sections::default();
    for (name, place) in &places.inner {
        match (before.get(name), after.get(name)) {
            (Some(_), None) => {
                sections.deletes.insert(name, false);
            }
            (Some(old), Some(new)) if !identical(old, new) => {
                match touched_value(old, new, place) {
                    Some(inner) => {
                        sections.nested.insert(format!("s{name}"), inner);
                    }
                    None => {
                        sections.updates.insert(name, new.clone());
                    }
                }
            }
            _ => {}
        }
    }
    for (name, value) in after {
        if places.inner.contains_key(name) && !before.contains_key(name) {
            sections.inserts.insert(name, value.clone());
        }
    }
    sections.into_diff()
}

/// The delta inside a value that was changed; `None` if the value is told whole.
fn touched_value(old: &Bson, new: &Bson, place: &Places) -> Option<Document> {
    match (old, new) {
        _ if place.touched && !place.elements => None,
        (Bson::Array(_), Bson::Array(_)) if place.touched => value_diff(old, new),
        _ if place.touched => None,
        (Bson::Document(old), Bson::Document(new)) => Some(touched_diff(old, new, place)),
        (Bson::Array(old), Bson::Array(new)) => Some(touched_elements(old, new, place)),
        _ => None,
    }
}

fn touched_elements(before: &[Bson], after: &[Bson], place: &Places) -> Document {
    let mut diff = Document::new();
    diff.insert("a", true);
    let mut touched: Vec<(usize, &Places)> =
        place.inner.iter().filter_map(|(name, place)| Some((name.parse().ok()?, place))).collect();
    touched.sort_unstable_by_key(|(index, _)| *index);
    for (index, place) in touched {
        match (before.get(index), after.get(index)) {
            (Some(old), Some(new)) if identical(old, new) => {}
            (Some(old), Some(new)) => match touched_value(old, new, place) {
                Some(inner) => {
                    diff.insert(format!("s{index}"), inner);
                }
                None => {
                    diff.insert(format!("u{index}"), new.clone());
                }
            },
            (None, Some(new)) => {
                diff.insert(format!("u{index}"), new.clone());
            }
            (_, None) => {}
        }
    }
    diff
}

/// The delta of an embedded document or array, unless the new value is shorter.
fn value_diff(before: &Bson, after: &Bson) -> Option<Document> {
    let diff = match (before, after) {
        (Bson::Document(before), Bson::Document(after)) => document_diff(before, after),
        (Bson::Array(before), Bson::Array(after)) => array_diff(before, after),
        _ => return None,
    };
    (measure(&diff).bytes < value_size(after)).then_some(diff)
}

fn array_diff(before: &[Bson], after: &[Bson]) -> Document {
    let mut diff = Document::new();
    diff.insert("a", true);
    if after.len() < before.len() {
        diff.insert("l", i32::try_from(after.len()).unwrap_or(i32::MAX));
    }
    for (index, new) in after.iter().enumerate() {
        match before.get(index) {
            Some(old) if identical(old, new) => {}
            Some(old) => match value_diff(old, new) {
                Some(inner) => {
                    diff.insert(format!("s{index}"), inner);
                }
                None => {
                    diff.insert(format!("u{index}"), new.clone());
                }
            },
            None => {
                diff.insert(format!("u{index}"), new.clone());
            }
        }
    }
    diff
}

fn apply_document(document: &mut Document, diff: &Document, depth: usize) -> Result<()> {
    check_depth(depth)?;
    for (section, content) in diff {
        match (section.as_str(), content) {
            ("d", Bson::Document(fields)) => remove_all(document, fields),
            ("u", Bson::Document(fields)) => {
                for (name, value) in fields {
                    document.insert(name, value.clone());
                }
            }
            ("i", Bson::Document(fields)) => {
                // An inserted field goes to the end, even if a later version already has it.
                remove_all(document, fields);
                document.extend(fields.clone());
            }
            (name, Bson::Document(inner)) if name.starts_with('s') => {
                if let Some(value) = document.get_mut(&name[1..]) {
                    apply_value(value, inner, depth)?;
                }
            }
            (unknown, _) => {
                return Err(malformed(&format!("unknown section '{unknown}' in a document")));
            }
        }
    }
    Ok(())
}

/// Removes many fields in one pass, since each single removal moves all that follow.
fn remove_all(document: &mut Document, fields: &Document) {
    const FEW: usize = 4;
    if fields.len() <= FEW {
        for name in fields.keys() {
            document.remove(name);
        }
        return;
    }
    let unwanted: BTreeSet<&String> = fields.keys().collect();
    *document =
        std::mem::take(document).into_iter().filter(|(name, _)| !unwanted.contains(name)).collect();
}

fn apply_value(value: &mut Bson, diff: &Document, depth: usize) -> Result<()> {
    let is_array_diff = diff.keys().next().is_some_and(|key| key == "a");
    match value {
        Bson::Document(document) if !is_array_diff => apply_document(document, diff, depth + 1),
        Bson::Array(items) if is_array_diff => apply_array(items, diff, depth + 1),
        // The value has another type by now, so the delta belongs to its past.
        _ => Ok(()),
    }
}

fn apply_array(items: &mut Vec<Bson>, diff: &Document, depth: usize) -> Result<()> {
    check_depth(depth)?;
    for (section, content) in diff.iter().skip(1) {
        if section == "l" {
            let length = Number::from_value(content)
                .and_then(Number::to_i64_exact)
                .filter(|length| (0..=MAX_ARRAY_LENGTH).contains(length))
                .ok_or_else(|| malformed("the length of an array is out of range"))?;
            items.resize(length as usize, Bson::Null);
            continue;
        }
        let index: usize = section
            .get(1..)
            .and_then(|digits| digits.parse().ok())
            .filter(|&index| (index as i64) < MAX_ARRAY_LENGTH)
            .ok_or_else(|| malformed(&format!("'{section}' names no array position")))?;
        match (section.as_bytes().first(), content) {
            (Some(b'u'), value) => {
                if index >= items.len() {
                    items.resize(index + 1, Bson::Null);
                }
                items[index] = value.clone();
            }
            (Some(b's'), Bson::Document(inner)) => {
                if let Some(value) = items.get_mut(index) {
                    apply_value(value, inner, depth)?;
                }
            }
            _ => return Err(malformed(&format!("unknown section '{section}' in an array"))),
        }
    }
    Ok(())
}

fn check_depth(depth: usize) -> Result<()> {
    if depth > MAX_NESTING {
        return Err(malformed(&format!("a delta is nested beyond {MAX_NESTING} levels")));
    }
    Ok(())
}
