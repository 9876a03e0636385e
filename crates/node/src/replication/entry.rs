//! What an entry of the log says.
//!
//! Fields are found by their bytes and not read before they are asked for. An entry that is applied is asked many times:
//! its fields are found in one walk, and it remembers where they are.

use std::ops::{Deref, Range};

use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_storage::Bytes;
use quorate_wire::{RawField, date_time_from, find_field, find_fields, raw_fields, timestamp_from};

use crate::error::{CommandError, Result};
use crate::records::DocumentBytes;

/// An entry that another member wrote, with the places of its fields.
#[derive(Clone)]
pub(crate) struct LoggedEntry {
    entry: DocumentBytes,
    pub(crate) position: OpTimeAndWallTime,
    pub(super) operation: LoggedOperation,
    /// Whether it belongs to a session.
    pub(super) has_session: bool,
    /// Where `ns` and `o` are; empty if they are not there.
    namespace: Range<usize>,
    object: Range<usize>,
}

/// What kind of change an entry makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedOperation {
    Insert,
    Update,
    Delete,
    Command,
    Noop,
    Unknown,
}

impl LoggedEntry {
    /// Finds the fields of an entry.
    ///
    /// # Errors
    ///
    /// If it has no position.
    pub(super) fn read(entry: &RawDocument) -> Result<Self> {
        let entry = DocumentBytes::from(entry);
        let [mut time, mut term, mut wall, mut operation, mut namespace, mut object] = [None; 6];
        let mut has_session = false;
        for field in raw_fields(&entry) {
            let place = match field.key() {
                b"ts" => &mut time,
                b"t" => &mut term,
                b"wall" => &mut wall,
                b"op" => &mut operation,
                b"ns" => &mut namespace,
                b"o" => &mut object,
                b"lsid" => {
                    has_session = true;
                    continue;
                }
                _ => continue,
            };
            place.get_or_insert(field);
        }
        let position = position_in(time, term, wall)?;
        let within = |part: Option<&[u8]>| {
            let part = part.unwrap_or_default();
            // An empty part need not lie within the entry.
            let start = (part.as_ptr() as usize).wrapping_sub(entry.as_bytes().as_ptr() as usize);
            if part.is_empty() { 0..0 } else { start..start + part.len() }
        };
        let namespace = within(namespace.and_then(|field| field.text()).map(str::as_bytes));
        let object = within(object.and_then(|field| field.document()).map(RawDocument::as_bytes));
        let operation = match operation.and_then(|field| field.text()) {
            Some("i") => LoggedOperation::Insert,
            Some("u") => LoggedOperation::Update,
            Some("d") => LoggedOperation::Delete,
            Some("c") => LoggedOperation::Command,
            Some("n") => LoggedOperation::Noop,
            _ => LoggedOperation::Unknown,
        };
        Ok(Self { entry, position, operation, has_session, namespace, object })
    }

    /// The collection or the database that it is about; empty if it is about none.
    pub(super) fn namespace(&self) -> &[u8] {
        self.entry.as_bytes().get(self.namespace.clone()).unwrap_or_default()
    }

    /// Its object, which shares the memory of the entry.
    pub(super) fn object(&self) -> Result<DocumentBytes> {
        if self.object.is_empty() {
            return Err(damaged("o"));
        }
        DocumentBytes::stored(self.bytes().slice(self.object.clone()))
    }

    /// The whole entry.
    pub(crate) fn bytes(&self) -> Bytes {
        self.entry.clone().into()
    }
}

impl Deref for LoggedEntry {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        &self.entry
    }
}

/// The position of an entry.
///
/// # Errors
///
/// If the entry has none.
pub fn entry_position(entry: &RawDocument) -> Result<OpTimeAndWallTime> {
    let [timestamp, term, wall] = find_fields(entry, ["ts", "t", "wall"]);
    position_in(timestamp, term, wall)
}

fn position_in(
    timestamp: Option<RawField<'_>>,
    term: Option<RawField<'_>>,
    wall: Option<RawField<'_>>,
) -> Result<OpTimeAndWallTime> {
    let timestamp = timestamp.and_then(|field| field.timestamp()).ok_or_else(|| damaged("ts"))?;
    let term = term.and_then(|field| field.int64()).ok_or_else(|| damaged("t"))?;
    let wall = wall.and_then(|field| field.date_time()).ok_or_else(|| damaged("wall"))?;
    Ok(OpTimeAndWallTime {
        op_time: OpTime::new(term, timestamp_from(timestamp)),
        wall_time: date_time_from(wall),
    })
}

/// Its kind of operation: `i`, `u`, `d`, `c` or `n`.
pub(crate) fn operation_of(entry: &RawDocument) -> Result<&str> {
    text(entry, "op")
}

/// The collection or the database that it is about.
pub(crate) fn namespace_of(entry: &RawDocument) -> Result<&str> {
    text(entry, "ns")
}

/// Its object: a document, a change, an `_id` or a command.
pub(crate) fn object_of(entry: &RawDocument) -> Result<&RawDocument> {
    document(entry, "o")
}

/// The `_id` of the document that an update changes.
pub(crate) fn target_of(entry: &RawDocument) -> Result<&RawDocument> {
    document(entry, "o2")
}

/// The collection's identifier.
pub(crate) fn uuid_of(entry: &RawDocument) -> Result<Binary> {
    match find_field(entry, "ui").and_then(|field| field.binary()) {
        Some((subtype, bytes)) => {
            Ok(Binary { subtype: BinarySubtype::from(subtype), bytes: bytes.to_vec() })
        }
        None => Err(damaged("ui")),
    }
}

/// The document, or the `_id`, that an entry is about; none if it is about no single one.
pub(crate) fn document_of(entry: &RawDocument) -> Option<&RawDocument> {
    match operation_of(entry).ok()? {
        "i" | "d" => object_of(entry).ok(),
        "u" => target_of(entry).ok(),
        _ => None,
    }
}

/// The session and the number of a retryable write or a transaction.
pub(crate) fn session_in(entry: &RawDocument) -> Option<(&RawDocument, i64)> {
    let [session, number] = find_fields(entry, ["lsid", "txnNumber"]);
    Some((session?.document()?, number?.int64()?))
}

fn text<'a>(entry: &'a RawDocument, name: &str) -> Result<&'a str> {
    find_field(entry, name).and_then(|field| field.text()).ok_or_else(|| damaged(name))
}

fn document<'a>(entry: &'a RawDocument, name: &str) -> Result<&'a RawDocument> {
    find_field(entry, name).and_then(|field| field.document()).ok_or_else(|| damaged(name))
}

pub(crate) fn damaged(field: &str) -> CommandError {
    fail!(INTERNAL_ERROR, "an oplog entry has no usable field {field}; resync this member")
}
