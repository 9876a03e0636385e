//! Documents written as bytes, field by field: for messages that go with every write, and replies with many documents.
//!
//! A [`FieldWriter`] appends to a buffer and fills lengths in when a document ends. It asks for no memory besides the buffer's.
//! Layout per the BSON specification, version 1.1.

use bson::RawDocumentBuf;
use bson::raw::RawDocument;
use quorate_protocol::{OpTime, Timestamp, WallTime};

use crate::raw_fields::{
    ARRAY, BOOLEAN, DATE, DOCUMENT, DOUBLE, INT32, INT64, STRING, TIMESTAMP, append_item_name,
};

/// What an item of an array takes besides its document: a type, a place of four digits and its end.
pub const AROUND_ITEM: usize = 6;

/// A document that is written into a buffer with this capacity.
pub fn raw_document(capacity: usize, write: impl FnOnce(&mut FieldWriter<'_>)) -> RawDocumentBuf {
    let mut bytes = Vec::with_capacity(capacity);
    enclose(&mut bytes, |bytes| write(&mut FieldWriter { bytes }));
    // The lengths are right by construction.
    RawDocumentBuf::from_bytes(bytes).unwrap_or_default()
}

/// Writes what a document or an array holds, with its length before it and its end behind it. Such documents are far below 2 GiB.
fn enclose(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = open_document(bytes);
    write(bytes);
    close_document(bytes, at);
}

/// Begins a document that [`close_document`] ends later, at this place.
pub fn open_document(bytes: &mut Vec<u8>) -> usize {
    bytes.extend_from_slice(&[0; 4]);
    bytes.len() - 4
}

/// Ends the document or the array that begins at this place.
pub fn close_document(bytes: &mut Vec<u8>, at: usize) {
    bytes.push(0);
    let length = (bytes.len() - at) as i32;
    bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends a document as the item of an array at this place.
pub fn append_item(bytes: &mut Vec<u8>, place: usize, document: &[u8]) {
    bytes.push(DOCUMENT);
    append_item_name(bytes, place);
    bytes.push(0);
    bytes.extend_from_slice(document);
}

/// Appends fields to a document. Their names have no zero in them.
#[derive(Debug)]
pub struct FieldWriter<'b> {
    bytes: &'b mut Vec<u8>,
}

impl<'b> FieldWriter<'b> {
    /// Appends to a document that was [opened](open_document) here.
    pub fn new(bytes: &'b mut Vec<u8>) -> Self {
        Self { bytes }
    }

    fn name(&mut self, kind: u8, name: &str) {
        debug_assert!(!name.as_bytes().contains(&0), "{name:?} has a zero in it");
        self.bytes.push(kind);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
    }

    fn value<const N: usize>(&mut self, kind: u8, name: &str, value: [u8; N]) {
        self.name(kind, name);
        self.bytes.extend_from_slice(&value);
    }

    /// A double.
    pub fn double(&mut self, name: &str, value: f64) {
        self.value(DOUBLE, name, value.to_le_bytes());
    }

    /// A boolean.
    pub fn boolean(&mut self, name: &str, value: bool) {
        self.value(BOOLEAN, name, [u8::from(value)]);
    }

    /// A number of 32 bits.
    pub fn int32(&mut self, name: &str, value: i32) {
        self.value(INT32, name, value.to_le_bytes());
    }

    /// A number of 64 bits.
    pub fn int64(&mut self, name: &str, value: i64) {
        self.value(INT64, name, value.to_le_bytes());
    }

    /// A date.
    pub fn date(&mut self, name: &str, value: WallTime) {
        self.value(DATE, name, value.as_millis().to_le_bytes());
    }

    /// A timestamp.
    pub fn timestamp(&mut self, name: &str, value: Timestamp) {
        self.value(TIMESTAMP, name, value.as_u64().to_le_bytes());
    }

    /// A text, given in parts.
    pub fn text(&mut self, name: &str, parts: &[&str]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.value(STRING, name, (length as i32 + 1).to_le_bytes());
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part.as_bytes()));
        self.bytes.push(0);
    }

    /// `{ts, t}`.
    pub fn op_time(&mut self, name: &str, value: OpTime) {
        self.document(name, |inner| {
            inner.timestamp("ts", value.timestamp);
            inner.int64("t", value.term);
        });
    }

    /// A document.
    pub fn document(&mut self, name: &str, write: impl FnOnce(&mut FieldWriter<'_>)) {
        self.name(DOCUMENT, name);
        enclose(self.bytes, |bytes| write(&mut FieldWriter { bytes }));
    }

    /// A document that is there already.
    pub fn raw_document(&mut self, name: &str, document: &RawDocument) {
        self.name(DOCUMENT, name);
        self.bytes.extend_from_slice(document.as_bytes());
    }

    /// The fields of a document that is there already.
    pub(crate) fn fields_of(&mut self, document: &RawDocument) {
        let bytes = document.as_bytes();
        self.bytes.extend_from_slice(&bytes[4..bytes.len() - 1]);
    }

    /// Begins a document that [`close_document`] ends later, at this place.
    pub fn open(&mut self, name: &str) -> usize {
        self.name(DOCUMENT, name);
        open_document(self.bytes)
    }

    /// As [`open`](Self::open), for an array.
    pub fn open_array(&mut self, name: &str) -> usize {
        self.name(ARRAY, name);
        open_document(self.bytes)
    }

    /// An array of documents.
    pub fn documents<I>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = I>,
        mut write: impl FnMut(&mut FieldWriter<'_>, I),
    ) {
        self.name(ARRAY, name);
        enclose(self.bytes, |bytes| {
            for (place, item) in items.into_iter().enumerate() {
                append_item(bytes, place, &[]);
                enclose(bytes, |bytes| write(&mut FieldWriter { bytes }, item));
            }
        });
    }

    /// An array of documents that are there already.
    pub fn raw_documents<'d>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = &'d RawDocument>,
    ) {
        self.name(ARRAY, name);
        enclose(self.bytes, |bytes| {
            for (place, item) in items.into_iter().enumerate() {
                append_item(bytes, place, item.as_bytes());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, rawdoc};

    use super::*;

    /// What is written has the bytes that the BSON library gives the same fields.
    #[test]
    fn a_written_document_has_the_bytes_of_the_library() {
        let time = Timestamp::new(7, 2);
        let items = [rawdoc! { "a": 1 }, rawdoc! {}];
        let written = raw_document(16, |fields| {
            fields.double("double", 1.5);
            fields.boolean("yes", true);
            fields.boolean("no", false);
            fields.int32("int32", -3);
            fields.int64("int64", 1 << 40);
            fields.date("date", WallTime(1_700_000_000_123));
            fields.timestamp("time", time);
            fields.text("text", &["one", ".", "two"]);
            fields.text("empty", &[]);
            fields.op_time("opTime", OpTime::new(5, time));
            fields.document("document", |inner| {
                inner.document("nothing", |_| {});
                inner.int32("last", 1);
            });
            fields.raw_document("raw", &items[0]);
            fields.fields_of(&rawdoc! { "of": 1, "another": "document" });
            fields.documents("documents", 0..12, |item, place| item.int32("place", place));
            fields.raw_documents("raws", items.iter().map(|item| &**item));
        });
        let time = bson::Timestamp { time: 7, increment: 2 };
        let mut places = bson::RawArrayBuf::new();
        (0..12).for_each(|place| places.push(rawdoc! { "place": place }));
        let expected = rawdoc! {
            "double": 1.5, "yes": true, "no": false, "int32": -3, "int64": 1_i64 << 40,
            "date": DateTime::from_millis(1_700_000_000_123), "time": time, "text": "one.two",
            "empty": "", "opTime": { "ts": time, "t": 5_i64 },
            "document": { "nothing": {}, "last": 1 }, "raw": { "a": 1 }, "of": 1, "another": "document", "documents": places, "raws": [{ "a": 1 }, {}],
        };
        assert_eq!(written.as_bytes(), expected.as_bytes());
    }
}
