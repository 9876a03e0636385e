//! `insert`: documents in, one result for all of them.

use std::ops::Deref;

use bson::raw::{CStr, RawElement, cstr};
use bson::spec::ElementType;
use bson::{Bson, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};

use super::common::{WriteConcern, count_capped};
use super::hello::MAX_WRITE_BATCH_SIZE;
use crate::body::CommandBody;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, to_raw};
use crate::namespace::Namespace;
use crate::records::DocumentBytes;
use crate::writer::{Writer, with_room_for};

/// What a reply without errors takes, with the times that a set adds to it.
pub(super) const REPLY_BYTES: usize = 192;

/// The field by which a client has empty timestamps stored as they are: a tool that copies documents.
pub(super) const KEEP_EMPTY_TIMESTAMPS: &str = "bypassEmptyTsReplacement";

pub(super) fn insert(request: &Request<'_>, mut command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    check_writable(&namespace)?;
    let documents = match command.take_sequence("documents") {
        Some(documents) => documents,
        None => inline_documents(&command)?.into_iter().map(DocumentBytes::from).collect(),
    };
    check_statement_count(documents.len())?;
    let fields = Fields::new(&command.body, "insert");
    let ordered = fields.boolean("ordered")?.unwrap_or(true);
    let bypass = fields.flag("bypassDocumentValidation")?;
    let keep_timestamps = fields.flag(KEEP_EMPTY_TIMESTAMPS)?;
    let concern = WriteConcern::parse(&command)?;

    count_capped(request, &namespace)?;
    let mut writer = request.write();
    writer.begin_retryable(request.retryable.as_ref(), documents.len())?;
    let retried = retried_statements(&writer, documents.len());
    let results = if retried.len() == documents.len() {
        // Nothing is left to do: a collection that was dropped since is not made again.
        documents.iter().map(|_| Ok(())).collect()
    } else {
        let mut collection = writer.collection_or_create(&namespace)?;
        let documents = match keep_timestamps {
            true => documents,
            false => documents.into_iter().map(|d| with_timestamps(&mut writer, d)).collect(),
        };
        writer.insert(&mut collection, documents, ordered, bypass)?
    };
    let commit = request.end_writes(writer, results.iter().all(Result::is_ok));

    let inserted = results.iter().filter(|result| result.is_ok()).count();
    request.node.counters().inserted(inserted as u64);
    Ok(concern.reply(counted_reply(inserted as i32, &results, &retried)?, commit))
}

/// Fills in the empty timestamps at the top level of a document, except for its `_id`. What is malformed
/// is left for the writer to refuse.
pub(super) fn with_timestamps<D: Deref<Target = RawDocument> + From<RawDocumentBuf>>(
    writer: &mut Writer<'_>,
    document: D,
) -> D {
    let is_empty = |name: &str, value: RawBsonRef<'_>| {
        let empty = RawBsonRef::Timestamp(Timestamp { time: 0, increment: 0 });
        name != "_id" && value == empty
    };
    // Nearly all documents have none, and no value need be read to know it: few have the byte of this type at all.
    if memchr::memchr(ElementType::Timestamp as u8, document.as_bytes()).is_none() {
        return document;
    }
    let mut elements = document.iter_elements();
    let is_timestamp = |found: &RawElement<'_>| found.element_type() == ElementType::Timestamp;
    if !elements.any(|found| found.is_ok_and(|found| is_timestamp(&found))) {
        return document;
    }
    let Ok(elements) = document.iter().collect::<Result<Vec<_>, _>>() else { return document };
    let mut filled = RawDocumentBuf::new();
    for (name, value) in elements {
        if is_empty(name.as_str(), value) {
            filled.append(name, writer.next_timestamp());
        } else {
            filled.append(name, value);
        }
    }
    filled.into()
}

/// The `writeErrors` of statements that failed.
fn write_errors<T>(results: &[Result<T>]) -> Vec<Bson> {
    let failed = results.iter().enumerate().filter_map(|(place, result)| {
        result.as_ref().err().map(|error| Bson::from(error.write_error(place)))
    });
    failed.collect()
}

/// The reply of a command that did `n` things, failed statements and repeated ones included.
pub(super) fn counted_reply<T>(
    n: i32,
    results: &[Result<T>],
    retried: &[Retried],
) -> Result<RawDocumentBuf> {
    if retried.is_empty() && results.iter().all(Result::is_ok) {
        return Ok(plain_reply([("n", n)]));
    }
    let mut reply = with_room_for(REPLY_BYTES);
    reply.append(cstr!("n"), n);
    end_reply(&mut reply, results, retried)?;
    Ok(reply)
}

/// The reply of a command that did all that it was asked for, with these numbers.
pub(super) fn plain_reply<const N: usize>(numbers: [(&str, i32); N]) -> RawDocumentBuf {
    let mut bytes = Vec::with_capacity(REPLY_BYTES);
    bytes.extend([0; size_of::<i32>()]);
    for (name, number) in numbers {
        bytes.push(ElementType::Int32 as u8);
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend_from_slice(b"\x01ok\0");
    bytes.extend(1_f64.to_le_bytes());
    bytes.push(0);
    let length = bytes.len() as i32;
    bytes[..size_of::<i32>()].copy_from_slice(&length.to_le_bytes());
    RawDocumentBuf::from_bytes(bytes).unwrap_or_default()
}

/// A statement of a repeated command that was done the first time.
pub(super) struct Retried {
    place: usize,
    id: i32,
}

/// The statements of a repeated command that were done the first time.
pub(super) fn retried_statements(writer: &Writer<'_>, statements: usize) -> Vec<Retried> {
    let done = (0..statements).filter(|place| writer.earlier_result(*place).is_some());
    let retried = done.filter_map(|place| Some(Retried { place, id: writer.statement_id(place)? }));
    let retried: Vec<_> = retried.collect();
    writer.node().counters().retried_command(retried.len());
    retried
}

/// Appends what the reply of every write ends with: failed statements, repeated ones among those looked at, and that
/// the command went through.
pub(super) fn end_reply<T>(
    reply: &mut RawDocumentBuf,
    results: &[Result<T>],
    retried: &[Retried],
) -> Result<()> {
    append_array(reply, cstr!("writeErrors"), write_errors(results))?;
    let looked_at = retried.iter().filter(|retried| retried.place < results.len());
    let retried = looked_at.map(|retried| Bson::from(retried.id)).collect();
    append_array(reply, cstr!("retriedStmtIds"), retried)?;
    reply.append(cstr!("ok"), 1.0);
    Ok(())
}

/// Appends an array, unless it is empty.
pub(super) fn append_array(
    reply: &mut RawDocumentBuf,
    name: &CStr,
    items: Vec<Bson>,
) -> Result<()> {
    if !items.is_empty() {
        reply.append(name, RawBson::try_from(Bson::Array(items))?);
    }
    Ok(())
}

/// Refuses writes to what the server keeps for itself.
pub(super) fn check_writable(namespace: &Namespace) -> Result<()> {
    // `$cmd` stands for what belongs to no collection, in cursors.
    refuse_if!(namespace.collection.contains('$') => INVALID_NAMESPACE,
        "Invalid collection name: {}", namespace.collection);
    // Views are made by `create`: a document of `system.views` would be none.
    refuse_if!(namespace.is_system() && namespace.collection != "system.js" => INVALID_NAMESPACE,
        "cannot write to '{namespace}'");
    Ok(())
}

/// Refuses empty and oversized batches.
pub(crate) fn check_statement_count(count: usize) -> Result<()> {
    refuse_if!(!(1..=MAX_WRITE_BATCH_SIZE).contains(&count) => INVALID_LENGTH,
        "Write batch sizes must be between 1 and {MAX_WRITE_BATCH_SIZE}. Got {count} \
         operations.");
    Ok(())
}

fn inline_documents(command: &Command) -> Result<Vec<RawDocumentBuf>> {
    let fields = Fields::new(&command.body, "insert");
    let documents = fields.documents("documents")?.ok_or_else(|| {
        fail!(MISSING_FIELD, "BSON field 'insert.documents' is missing but a required field")
    })?;
    documents.iter().map(to_raw).collect()
}

/// The statements of an `update` or a `delete`, from a document sequence or from the body.
pub(super) fn statements(
    command: &mut Command,
    name: &str,
    path: &str,
) -> Result<Vec<CommandBody>> {
    let statements = match command.take_sequence(name) {
        Some(sequence) => sequence
            .iter()
            .map(|statement| CommandBody::from_raw(statement))
            .collect::<Result<Vec<_>, _>>()?,
        None => {
            let given = Fields::new(&command.body, path).documents(name)?.ok_or_else(|| {
                fail!(MISSING_FIELD, "BSON field '{path}.{name}' is missing but a required field")
            })?;
            given.into_iter().map(CommandBody::from).collect()
        }
    };
    check_statement_count(statements.len())?;
    Ok(statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_reply_is_what_its_fields_would_make() {
        let made = bson::rawdoc! { "n": 7, "nModified": -1, "ok": 1.0 };
        assert_eq!(plain_reply([("n", 7), ("nModified", -1)]), made);
        let none: [Result<()>; 0] = [];
        let mut ended = bson::rawdoc! { "n": 2 };
        end_reply(&mut ended, &none, &[]).unwrap();
        assert_eq!(counted_reply(2, &none, &[]).unwrap(), ended);
    }
}
