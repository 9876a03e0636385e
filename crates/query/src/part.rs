//! Changing a few fields of a document without reading the others.
//!
//! ```text
//!   stored   _id │ a │ b │ c            bytes
//!   part     _id │     b                read, because an update touches b
//!   change   _id │     b' │ d           what the update makes of it
//!   stored   _id │ a │ b' │ c │ d       the other fields are copied as they are
//! ```
//!
//! An operator cannot see further than the fields that its path begins with, so that what it makes of the part is what
//! it would make of the whole. Fields keep their places, and new ones come last.

use bson::{Bson, Document, RawDocument, RawDocumentBuf};

use crate::value::raw_scan::{RawScan, has_numbered_items};
use crate::value::{MAX_DOCUMENT_SIZE, measure};

/// The field that is in every part.
const ID: &str = "_id";

/// What a document without fields takes.
const EMPTY_BYTES: usize = 5;

/// The fields of a document that a change may touch, and its `_id`.
#[derive(Debug)]
pub struct Part<'a> {
    whole: &'a RawDocument,
    before: Document,
}

impl<'a> Part<'a> {
    /// Reads the fields of these names. None if a field cannot be read, it or one inside of it is there twice, or the items of
    /// an array are not numbered: the whole document has to be examined then.
    pub fn read(whole: &'a RawDocument, fields: &[impl AsRef<str>]) -> Option<Self> {
        let mut before = Document::new();
        let mut bytes = EMPTY_BYTES;
        let mut scan = RawScan::new(whole);
        for field in scan.by_ref() {
            let key = field.key();
            let is_touched = |name: &str| key == name.as_bytes();
            if !is_touched(ID) && !fields.iter().any(|name| is_touched(name.as_ref())) {
                continue;
            }
            has_numbered_items(field).then_some(())?;
            let name = field.name()?;
            let value = match field.value()?.as_raw() {
                Some(value) => value,
                // The library reads arrays.
                None => whole.get(name).ok()??,
            };
            before.insert(name, Bson::try_from(value).ok()?);
            bytes += field.length();
        }
        // A parsed document holds one field of each name.
        let holds_all = measure(&before).bytes == bytes;
        (holds_all && scan.is_at_end()).then_some(Self { whole, before })
    }

    /// The fields as they are.
    pub fn before(&self) -> &Document {
        &self.before
    }

    /// The whole document, once its part has become this. None if that has no form as bytes, or is larger than a document
    /// may be: an update of the whole tells of it.
    pub fn changed_to(&self, new: &Document) -> Option<RawDocumentBuf> {
        let after = RawDocumentBuf::try_from(new).ok()?;
        let mut bytes = Vec::with_capacity(self.whole.as_bytes().len() + after.as_bytes().len());
        bytes.extend([0; 4]);
        for field in RawScan::new(self.whole) {
            let name = field.name()?;
            if !self.before.contains_key(name) {
                field.append_to(&mut bytes);
            } else if let Some(changed) =
                RawScan::new(&after).find(|changed| changed.key() == field.key())
            {
                changed.append_to(&mut bytes);
            }
        }
        for field in RawScan::new(&after) {
            if !self.before.contains_key(field.name()?) {
                field.append_to(&mut bytes);
            }
        }
        bytes.push(0);
        if bytes.len() > MAX_DOCUMENT_SIZE {
            return None;
        }
        let length = i32::try_from(bytes.len()).ok()?;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        RawDocumentBuf::from_bytes(bytes).ok()
    }

    /// The fields as they were.
    pub fn into_before(self) -> Document {
        self.before
    }
}
