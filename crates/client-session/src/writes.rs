//! What both clients read from the replies to writes, and the `_id` that they give to documents.
//!
//! Follows the CRUD specification and the replies of insert, update and delete.

use std::fmt;

use bson::oid::ObjectId;
use bson::raw::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use bson::rawdoc;

/// One write that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteError {
    /// Which of the writes, counted from 0 over all that the caller gave.
    pub index: usize,
    /// `code`.
    pub code: Option<i32>,
    /// `errmsg`.
    pub message: String,
    /// `errInfo`: what the server tells beside that.
    pub details: Option<RawDocumentBuf>,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "statement {}: {}", self.index, self.message)?;
        self.code.map_or(Ok(()), |code| write!(f, " (code {code})"))
    }
}

/// The writes of one command that failed, counted from the first write of the command.
///
/// # Errors
///
/// If an entry of `writeErrors` is no document.
pub fn write_errors(reply: &RawDocument) -> Result<Vec<WriteError>, &'static str> {
    let Ok(entries) = reply.get_array("writeErrors") else { return Ok(Vec::new()) };
    let read = |entry| match entry {
        Ok(RawBsonRef::Document(entry)) => Ok(WriteError {
            index: count(entry, "index").map_or(0, |index| index as usize),
            code: count(entry, "code").and_then(|code| i32::try_from(code).ok()),
            message: entry.get_str("errmsg").unwrap_or("the server gave no reason").to_owned(),
            details: entry.get_document("errInfo").ok().map(RawDocument::to_owned),
        }),
        _ => Err("an entry of writeErrors is no document"),
    };
    entries.into_iter().map(read).collect()
}

/// A field that counts something, of any numeric type.
pub fn count(document: &RawDocument, field: &str) -> Option<u64> {
    match document.get(field).ok()?? {
        RawBsonRef::Int32(number) => u64::try_from(number).ok(),
        RawBsonRef::Int64(number) => u64::try_from(number).ok(),
        RawBsonRef::Double(number) if number >= 0.0 && number.fract() == 0.0 => Some(number as u64),
        _ => None,
    }
}

/// The `_id` of a document to insert, and the document with it; one that has none gets the made one, in front.
///
/// # Errors
///
/// If the document is no BSON.
pub fn with_id(
    document: RawDocumentBuf,
    make: impl FnOnce() -> ObjectId,
) -> Result<(RawBson, RawDocumentBuf), bson::error::Error> {
    if let Some(id) = document.get("_id")? {
        return Ok((RawBson::from(id), document));
    }
    let id = make();
    let mut with_id = rawdoc! { "_id": id };
    for element in &document {
        let (name, value) = element?;
        with_id.append(name, value);
    }
    Ok((RawBson::ObjectId(id), with_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_without_id_is_given_one_in_front() {
        let made = ObjectId::from_bytes([7; 12]);
        let (id, document) = with_id(rawdoc! { "x": 1 }, || made).unwrap();
        assert_eq!((id, document), (RawBson::ObjectId(made), rawdoc! { "_id": made, "x": 1 }));
        let (id, document) = with_id(rawdoc! { "x": 1, "_id": 5 }, || made).unwrap();
        assert_eq!((id, document), (RawBson::Int32(5), rawdoc! { "x": 1, "_id": 5 }));
    }

    #[test]
    fn failed_writes_are_read_with_their_reasons() {
        let reply = rawdoc! { "writeErrors": [
            { "index": 2, "code": 121.0, "errmsg": "no", "errInfo": { "why": 1 } }, { "index": 3 },
        ] };
        let errors = write_errors(&reply).unwrap();
        assert_eq!((errors[0].index, errors[0].code), (2, Some(121)));
        assert_eq!(errors[0].details, Some(rawdoc! { "why": 1 }));
        assert_eq!(errors[0].to_string(), "statement 2: no (code 121)");
        assert_eq!(errors[1].to_string(), "statement 3: the server gave no reason");
        assert_eq!(write_errors(&rawdoc! { "ok": 1 }), Ok(Vec::new()));
        assert!(write_errors(&rawdoc! { "writeErrors": [1] }).is_err());
    }
}
