//! What an entry of the log says.
//!
//! An entry is asked several times on its way through a member, so its fields are found by their bytes and not read
//! before they are asked for.

use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_wire::{date_time_from, find_field, find_fields, timestamp_from};

use crate::error::CommandError;

/// The position of an entry.
///
/// # Errors
///
/// If the entry has none.
pub fn entry_position(entry: &RawDocument) -> Result<OpTimeAndWallTime, CommandError> {
    let [timestamp, term, wall] = find_fields(entry, ["ts", "t", "wall"]);
    let timestamp = timestamp.and_then(|field| field.timestamp()).ok_or_else(|| damaged("ts"))?;
    let term = term.and_then(|field| field.int64()).ok_or_else(|| damaged("t"))?;
    let wall = wall.and_then(|field| field.date_time()).ok_or_else(|| damaged("wall"))?;
    Ok(OpTimeAndWallTime {
        op_time: OpTime::new(term, timestamp_from(timestamp)),
        wall_time: date_time_from(wall),
    })
}

/// Its kind of operation: `i`, `u`, `d`, `c` or `n`.
pub(crate) fn operation_of(entry: &RawDocument) -> Result<&str, CommandError> {
    text(entry, "op")
}

/// The collection or the database that it is about.
pub(crate) fn namespace_of(entry: &RawDocument) -> Result<&str, CommandError> {
    text(entry, "ns")
}

/// Its object: a document, a change, an `_id` or a command.
pub(crate) fn object_of(entry: &RawDocument) -> Result<&RawDocument, CommandError> {
    document(entry, "o")
}

/// The `_id` of the document that an update changes.
pub(crate) fn target_of(entry: &RawDocument) -> Result<&RawDocument, CommandError> {
    document(entry, "o2")
}

/// The collection's identifier.
pub(crate) fn uuid_of(entry: &RawDocument) -> Result<Binary, CommandError> {
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

fn text<'a>(entry: &'a RawDocument, name: &str) -> Result<&'a str, CommandError> {
    find_field(entry, name).and_then(|field| field.text()).ok_or_else(|| damaged(name))
}

fn document<'a>(entry: &'a RawDocument, name: &str) -> Result<&'a RawDocument, CommandError> {
    find_field(entry, name).and_then(|field| field.document()).ok_or_else(|| damaged(name))
}

pub(crate) fn damaged(field: &str) -> CommandError {
    fail!(INTERNAL_ERROR, "an oplog entry has no usable field {field}; resync this member")
}
