//! A command that is written straight into its message, and the fields that a client adds to it.
//!
//! [`BodyWriter`] copies the application's command into a message once and appends to it there. What adds the fields works on
//! any [`CommandFields`], so that a command can also be composed as a document of its own.

use bson::raw::{BindRawBsonRef, CStr, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::op_msg::BODY_OFFSET;
use crate::raw_fields::{RawFields, find_field};
use crate::raw_writer::{FieldWriter, close_document};

/// A command that fields are added to.
pub trait CommandFields {
    /// Whether the command has a field of this name.
    fn has(&self, name: &str) -> bool;

    /// Appends a field. Servers refuse a name that comes twice.
    fn append(&mut self, name: &CStr, value: impl BindRawBsonRef);
}

impl CommandFields for RawDocumentBuf {
    fn has(&self, name: &str) -> bool {
        find_field(self, name).is_some()
    }

    fn append(&mut self, name: &CStr, value: impl BindRawBsonRef) {
        RawDocumentBuf::append(self, name, value);
    }
}

/// Writes the body of a message. Dropped, it has ended the body: [`MsgWriter::around`](crate::MsgWriter::around) makes
/// a message of it.
#[derive(Debug)]
pub struct BodyWriter<'b> {
    out: &'b mut Vec<u8>,
}

impl<'b> BodyWriter<'b> {
    /// Begins with the fields of this command. Everything in the buffer is replaced.
    pub fn new(out: &'b mut Vec<u8>, command: &RawDocument) -> Self {
        let bytes = command.as_bytes();
        // The zero that ends the command comes behind the added fields.
        let fields = &bytes[..bytes.len() - 1];
        out.clear();
        out.reserve(BODY_OFFSET + fields.len() + ADDED_BYTES);
        out.extend_from_slice(&[0; BODY_OFFSET]);
        out.extend_from_slice(fields);
        Self { out }
    }
}

/// The usual size of the added fields: session, cluster time, read preference, `$db`.
const ADDED_BYTES: usize = 256;

impl CommandFields for BodyWriter<'_> {
    fn has(&self, name: &str) -> bool {
        let mut fields = RawFields::of_unfinished(&self.out[BODY_OFFSET..]);
        fields.any(|field| field.key() == name.as_bytes())
    }

    fn append(&mut self, key: &CStr, value: impl BindRawBsonRef) {
        let mut fields = FieldWriter::new(self.out);
        let name = key.as_str();
        value.bind(|value| match value {
            RawBsonRef::Document(document) => fields.raw_document(name, document),
            RawBsonRef::String(text) => fields.text(name, &[text]),
            RawBsonRef::Boolean(value) => fields.boolean(name, value),
            RawBsonRef::Int32(value) => fields.int32(name, value),
            RawBsonRef::Int64(value) => fields.int64(name, value),
            // Rare: the library writes it, and the bytes between its length and its end are the field.
            other => {
                let mut document = RawDocumentBuf::new();
                document.append(key, other);
                fields.fields_of(&document);
            }
        });
    }
}

impl Drop for BodyWriter<'_> {
    fn drop(&mut self) {
        close_document(self.out, BODY_OFFSET);
    }
}

#[cfg(test)]
mod tests {
    use bson::raw::{RawBson, cstr};
    use bson::{Timestamp, rawdoc};

    use super::*;
    use crate::{Decoder, MsgFlags, MsgWriter, Payload, RequestId, body_around};

    fn add(body: &mut impl CommandFields) {
        body.append(cstr!("lsid"), &rawdoc! { "id": 1 });
        body.append(cstr!("text"), "text");
        body.append(cstr!("yes"), true);
        body.append(cstr!("small"), 3);
        body.append(cstr!("large"), 4_i64);
        body.append(cstr!("time"), Timestamp { time: 7, increment: 2 });
        body.append(cstr!("nothing"), RawBson::Null);
    }

    /// The same fields are added to a document and to a message.
    #[test]
    fn a_body_that_is_written_in_its_message_is_the_document_with_the_same_fields() {
        for command in [rawdoc! { "ping": 1 }, rawdoc! {}] {
            let mut document = command.clone();
            add(&mut document);
            let mut out = b"what was here before".to_vec();
            add(&mut BodyWriter::new(&mut out, &command));
            assert_eq!(body_around(&out).unwrap().as_bytes(), document.as_bytes());
            let (id, answered, flags) = (RequestId(7), RequestId(-1), MsgFlags::EXHAUST_ALLOWED);
            let sequence = [rawdoc! { "a": 1 }];
            MsgWriter::around(&mut out, id, answered, flags)
                .sequence(cstr!("documents"), sequence.iter().map(|item| &**item))
                .finish(None)
                .unwrap();
            let mut expected = Vec::new();
            MsgWriter::new(&mut expected, id, answered, flags, &document)
                .sequence(cstr!("documents"), sequence.iter().map(|item| &**item))
                .finish(None)
                .unwrap();
            assert_eq!(out, expected);
            let mut decoder = Decoder::new();
            decoder.feed(&out);
            let Payload::Msg(read) = decoder.next_message().unwrap().unwrap().payload else {
                panic!("not OP_MSG")
            };
            assert_eq!(read.body(), &*document);
        }
    }

    #[test]
    fn a_field_is_found_among_those_of_the_command_and_the_added_ones() {
        let mut out = Vec::new();
        let mut body = BodyWriter::new(&mut out, &rawdoc! { "ping": 1, "lsid": { "id": 1 } });
        assert!(body.has("ping") && body.has("lsid"));
        assert!(!body.has("id") && !body.has("$db"));
        body.append(cstr!("$db"), "admin");
        assert!(body.has("$db"));
    }

    #[test]
    fn a_message_that_is_too_long_leaves_the_buffer_empty() {
        let mut out = Vec::new();
        drop(BodyWriter::new(&mut out, &rawdoc! { "ping": 1 }));
        let writer = MsgWriter::around(&mut out, RequestId(1), RequestId(0), MsgFlags::NONE);
        assert!(writer.limit(20).finish(None).is_err());
        assert!(out.is_empty());
    }
}
