//! The result of an operation, compared with the one that the test expects.
//!
//! Follows "operation" and "expectedError" of the unified test format.

use bson::{Bson, Document, RawBson, RawDocumentBuf, doc};
use quorate_client::{
    BulkWriteResult, ChangeStream, Collection, Cursor, Error, ErrorKind, UpdateResult,
};

use super::matching::{Level, Matcher};
use crate::{Context, Result};

/// The result of an operation.
pub(super) enum Outcome {
    /// It gives nothing back.
    Nothing,
    /// One value. A document is matched as a root.
    Value(Bson),
    /// Documents from a cursor, each matched as a root.
    Documents(Vec<Document>),
    /// An open cursor.
    Cursor(Cursor),
    /// An open change stream.
    ChangeStream(Box<ChangeStream>),
    /// A collection that was made.
    Collection(Collection),
}

impl Outcome {
    /// Names, as a list.
    pub(super) fn names(names: Vec<String>) -> Self {
        Self::Value(names.into_iter().map(Bson::from).collect())
    }
}

/// A result of the client, or its error.
pub(super) type Attempt = Result<Outcome, Error>;

/// A raw value as a plain one.
pub(super) fn plain(value: RawBson) -> Result<Bson> {
    Ok(Bson::try_from(value)?)
}

/// Raw documents as plain ones.
pub(super) fn plain_documents(raw: Vec<RawDocumentBuf>) -> Result<Vec<Document>> {
    raw.iter().map(|raw| Ok(Document::try_from(raw)?)).collect()
}

/// A raw document as a plain value; null if there is none.
pub(super) fn plain_document(raw: Option<RawDocumentBuf>) -> Result<Bson> {
    match raw {
        None => Ok(Bson::Null),
        Some(raw) => {
            let document = Document::try_from(raw)?;
            Ok(Bson::Document(document))
        }
    }
}

/// `BulkWriteResult` as the CRUD specification writes it.
pub(super) fn bulk_result(result: &BulkWriteResult) -> Result<Bson> {
    if !result.acknowledged {
        return Ok(Bson::Document(doc! { "acknowledged": false }));
    }
    let ids = |ids: &std::collections::BTreeMap<usize, RawBson>| {
        let pairs = ids.iter().map(|(place, id)| Ok((place.to_string(), plain(id.clone())?)));
        pairs.collect::<Result<Document>>()
    };
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    Ok(Bson::Document(doc! {
        "deletedCount": count(result.deleted_count),
        "insertedCount": count(result.inserted_count),
        "matchedCount": count(result.matched_count),
        "modifiedCount": count(result.modified_count),
        "upsertedCount": count(result.upserted_count),
        "insertedIds": ids(&result.inserted_ids)?,
        "upsertedIds": ids(&result.upserted_ids)?,
    }))
}

/// `UpdateResult` as the CRUD specification writes it.
pub(super) fn update_result(result: UpdateResult) -> Result<Bson> {
    if !result.acknowledged {
        return Ok(Bson::Document(doc! { "acknowledged": false }));
    }
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let mut document = doc! {
        "matchedCount": count(result.matched_count),
        "modifiedCount": count(result.modified_count),
        "upsertedCount": i32::from(result.upserted_id.is_some()),
    };
    if let Some(id) = result.upserted_id {
        document.insert("upsertedId", plain(id)?);
    }
    Ok(Bson::Document(document))
}

/// Judges a result.
pub(super) fn check_result(matcher: Matcher<'_>, expected: &Bson, outcome: &Outcome) -> Result<()> {
    match outcome {
        Outcome::Nothing => matcher.check(expected, None, Level::Root),
        Outcome::Value(value) => matcher.check(expected, Some(value), Level::Root),
        Outcome::Cursor(_) | Outcome::ChangeStream(_) | Outcome::Collection(_) => {
            Err("cursors and collections cannot be compared".into())
        }
        Outcome::Documents(documents) => match expected {
            Bson::Array(expected) => {
                if expected.len() != documents.len() {
                    bail!(
                        "expected {} documents, found {}: {documents:?}",
                        expected.len(),
                        documents.len()
                    );
                }
                for (place, (expected, found)) in expected.iter().zip(documents).enumerate() {
                    let found = Bson::Document(found.clone());
                    matcher
                        .check(expected, Some(&found), Level::Root)
                        .context(format_args!("[{place}]"))?;
                }
                Ok(())
            }
            expected => {
                let found = documents.iter().cloned().map(Bson::Document).collect();
                matcher.check(expected, Some(&Bson::Array(found)), Level::Root)
            }
        },
    }
}

/// Judges an error.
pub(super) fn check_error(matcher: Matcher<'_>, expected: &Document, error: &Error) -> Result<()> {
    for (key, wanted) in expected {
        check_one(matcher, key, wanted, error)
            .context(format_args!("{key} {wanted} of \"{error}\""))?;
    }
    Ok(())
}

fn check_one(matcher: Matcher<'_>, key: &str, wanted: &Bson, error: &Error) -> Result<()> {
    let holds = match (key, wanted) {
        ("isError", Bson::Boolean(true)) => true,
        ("isClientError", Bson::Boolean(client)) => *client != error.is_from_server(),
        ("isTimeoutError", Bson::Boolean(timeout)) => *timeout == error.is_timeout(),
        ("errorContains", Bson::String(part)) => {
            let part = part.to_lowercase();
            messages(error).iter().any(|message| message.to_lowercase().contains(&part))
        }
        ("errorCode", Bson::Int32(code)) => error.code() == Some(*code),
        ("errorCodeName", Bson::String(name)) => {
            code_names(error).iter().any(|own| own.eq_ignore_ascii_case(name))
        }
        ("errorLabelsContain", Bson::Array(labels)) => {
            labels.iter().all(|label| label.as_str().is_some_and(|label| error.has_label(label)))
        }
        ("errorLabelsOmit", Bson::Array(labels)) => {
            labels.iter().all(|label| label.as_str().is_some_and(|label| !error.has_label(label)))
        }
        ("errorResponse", wanted) => {
            let reply = response(error)?;
            return matcher.check(wanted, Some(&reply), Level::Root);
        }
        ("expectResult", wanted) => {
            let result = error.partial_result().map(bulk_result).transpose()?;
            return matcher.check(wanted, result.as_ref(), Level::Root);
        }
        ("writeErrors", Bson::Document(wanted)) => {
            return check_write_errors(matcher, wanted, error);
        }
        ("writeConcernErrors", Bson::Array(wanted)) => {
            return check_concern_errors(matcher, wanted, error);
        }
        _ => bail!("unknown assertion on an error"),
    };
    if holds { Ok(()) } else { Err("does not hold".into()) }
}

/// All texts of an error: of a bulk write, those of each write.
fn messages(error: &Error) -> Vec<String> {
    let mut messages = vec![error.to_string()];
    if let ErrorKind::Write(failure) = error.kind() {
        messages.extend(failure.write_errors.iter().map(|error| error.message.clone()));
        messages.extend(failure.write_concern_errors.iter().map(|error| error.message.clone()));
    }
    messages
}

fn code_names(error: &Error) -> Vec<String> {
    match error.kind() {
        ErrorKind::Command { error, .. } => {
            let concern = error.write_concern_error.as_ref();
            let names = [&error.code_name, &concern.and_then(|error| error.code_name.clone())];
            names.into_iter().flatten().cloned().collect()
        }
        ErrorKind::Write(failure) => {
            failure.write_concern_errors.iter().filter_map(|e| e.code_name.clone()).collect()
        }
        _ => Vec::new(),
    }
}

/// The reply that an error comes from; of a single write, its part of the reply.
fn response(error: &Error) -> Result<Bson> {
    if let Some(reply) = error.reply() {
        return plain_document(Some(reply.to_owned()));
    }
    match error.kind() {
        ErrorKind::Write(failure) => {
            let first = failure.write_errors.first().ok_or("no write failed")?;
            let mut told = doc! { "code": first.code, "errmsg": first.message.as_str() };
            if let Some(details) = &first.details {
                told.insert("errInfo", plain_document(Some(details.clone()))?);
            }
            Ok(Bson::Document(told))
        }
        _ => Err("there is no response".into()),
    }
}

fn check_write_errors(matcher: Matcher<'_>, wanted: &Document, error: &Error) -> Result<()> {
    let ErrorKind::Write(failure) = error.kind() else {
        bail!("no write failed");
    };
    if wanted.len() != failure.write_errors.len() {
        bail!("{} writes failed", failure.write_errors.len());
    }
    for (index, wanted) in wanted {
        let found = failure.write_errors.iter().find(|error| error.index.to_string() == *index);
        let found = found.ok_or_else(|| format!("write {index} did not fail"))?;
        let found = doc! { "code": found.code, "message": found.message.as_str() };
        matcher.check(wanted, Some(&Bson::Document(found)), Level::Root)?;
    }
    Ok(())
}

fn check_concern_errors(matcher: Matcher<'_>, wanted: &[Bson], error: &Error) -> Result<()> {
    let found: Vec<Document> = match error.kind() {
        ErrorKind::Write(failure) => {
            let errors = failure.write_concern_errors.iter();
            errors.map(|e| doc! { "code": e.code, "message": e.message.as_str() }).collect()
        }
        _ => Vec::new(),
    };
    if wanted.len() != found.len() {
        bail!("{} write concerns were not met", found.len());
    }
    for (wanted, found) in wanted.iter().zip(found) {
        matcher.check(wanted, Some(&Bson::Document(found)), Level::Root)?;
    }
    Ok(())
}
