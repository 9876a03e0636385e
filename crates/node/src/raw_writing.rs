//! Documents that are written as bytes: replies with many documents, and arrays of documents that are there already.
//!
//! Layout per the BSON specification, version 1.1.

use bson::{RawDocument, RawDocumentBuf};
use quorate_wire::append_item_name;

use crate::error::Result;

/// The element types of BSON that such documents are made of.
pub(crate) mod element {
    pub(crate) const DOUBLE: u8 = 0x01;
    pub(crate) const STRING: u8 = 0x02;
    pub(crate) const DOCUMENT: u8 = 0x03;
    pub(crate) const ARRAY: u8 = 0x04;
    pub(crate) const TIMESTAMP: u8 = 0x11;
    pub(crate) const INT64: u8 = 0x12;
}

/// Room for the fields that a document with an array usually gets besides it.
const MORE_FIELDS: usize = 64;

/// A document whose only field is an array of documents. The name of the field ends with a zero.
pub(crate) fn document_with_array<'d>(
    name: &[u8],
    documents: impl Iterator<Item = &'d RawDocument> + Clone,
) -> Result<RawDocumentBuf> {
    let size: usize = documents.clone().map(|document| document.as_bytes().len() + 8).sum();
    let mut bytes = Vec::with_capacity(size + name.len() + MORE_FIELDS);
    bytes.extend([0; 4]);
    bytes.push(element::ARRAY);
    bytes.extend(name);
    let array_at = bytes.len();
    bytes.extend([0; 4]);
    for (place, document) in documents.enumerate() {
        bytes.push(element::DOCUMENT);
        append_item_name(&mut bytes, place);
        bytes.push(0);
        bytes.extend(document.as_bytes());
    }
    bytes.push(0);
    close(&mut bytes, array_at);
    bytes.push(0);
    close(&mut bytes, 0);
    Ok(RawDocumentBuf::from_bytes(bytes)?)
}

/// Fills in the length of a document that ends here. What is written so is far below 2 GiB.
pub(crate) fn close(bytes: &mut [u8], at: usize) {
    let length = (bytes.len() - at) as i32;
    bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
}
