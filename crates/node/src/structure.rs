//! The structure of documents that arrive: every length, text and type in them, and how deep they nest.
//!
//! What has passed here can be read later without fear of malformed bytes. It is walked through once, without a
//! value being made of it; types that are rare are left to the library to judge.

use std::ops::Range;

use bson::spec::{BinarySubtype, ElementType};
use bson::{Bson, RawDocument};
use quorate_protocol::bson_length::{length_prefix, value_length};
use quorate_query::value::MAX_NESTING;

use crate::error::{CommandError, Result};

/// The error for bytes that are no document.
pub(crate) fn malformed() -> CommandError {
    fail!(INVALID_BSON, "a document is malformed BSON")
}

/// How deep a value may nest, and how deep it lies itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    pub(crate) at: usize,
    pub(crate) limit: usize,
}

/// Levels of a command around the documents that it carries: an insert wraps documents, an update wraps
/// operators.
const COMMAND_WRAPPING: usize = 20;

impl Depth {
    /// Of the values of a stored document.
    pub(crate) const STORED: Self = Self { at: 1, limit: MAX_NESTING };
    /// Of the values of a command.
    pub(crate) const COMMAND: Self = Self { at: 1, limit: MAX_NESTING + COMMAND_WRAPPING };

    #[inline]
    fn check(self) -> Result<()> {
        if self.at <= self.limit {
            return Ok(());
        }
        Err(fail!(OVERFLOW, "documents may nest at most {MAX_NESTING} levels deep"))
    }
}

/// Where an element of a document lies.
pub(crate) struct Element {
    pub(crate) kind: ElementType,
    pub(crate) name: Range<usize>,
    /// Its value, without the type and the name.
    pub(crate) place: Range<usize>,
}

/// Walks through the elements of a document.
pub(crate) struct Elements<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Elements<'a> {
    /// Fails if the bytes are not as long as they say.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self> {
        let elements = Self { bytes, at: 4 };
        match elements.announced(0)? == bytes.len() && bytes.len() > 4 {
            true => Ok(elements),
            false => Err(malformed()),
        }
    }

    /// The next element; none at the end. Its value is there, and not checked.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Element>> {
        self.step().ok_or_else(malformed)
    }

    /// The same; nothing if it is malformed.
    #[inline]
    fn step(&mut self) -> Option<Option<Element>> {
        let kind = *self.bytes.get(self.at)?;
        let name = self.at + 1;
        if kind == 0 {
            self.at = name;
            return (name == self.bytes.len()).then_some(None);
        }
        let kind = ElementType::from(kind)?;
        let name = name..name + name_length(self.bytes.get(name..)?)?;
        let start = name.end + 1;
        let length = value_length(kind as u8, self.bytes.get(start..)?)?;
        // The last byte ends the document itself.
        let end = start.checked_add(length).filter(|end| *end < self.bytes.len())?;
        self.at = end;
        Some(Some(Element { kind, name, place: start..end }))
    }

    /// The length that stands at this place.
    fn announced(&self, at: usize) -> Result<usize> {
        self.bytes.get(at..).and_then(length_prefix).ok_or_else(malformed)
    }
}

/// How many bytes there are before the next zero, if they are a text.
#[inline]
fn name_length(bytes: &[u8]) -> Option<usize> {
    let mut bits = 0;
    // Names are short: a search that is made for long texts would cost more than it saves.
    let length = bytes.iter().position(|byte| {
        bits |= byte;
        *byte == 0
    })?;
    (bits.is_ascii() || std::str::from_utf8(&bytes[..length]).is_ok()).then_some(length)
}

/// Whether bytes are a text. Most have one byte for each letter, which is seen faster.
#[inline]
fn is_text(bytes: &[u8]) -> bool {
    bytes.is_ascii() || std::str::from_utf8(bytes).is_ok()
}

/// Checks a document and all that it holds.
pub(crate) fn check_document_bytes(bytes: &[u8], depth: Depth) -> Result<()> {
    let mut elements = Elements::new(bytes)?;
    while let Some(element) = elements.next()? {
        check_value_bytes(element.kind, &bytes[element.place], depth)?;
    }
    Ok(())
}

#[inline]
pub(crate) fn check_value_bytes(kind: ElementType, bytes: &[u8], depth: Depth) -> Result<()> {
    depth.check()?;
    match kind {
        ElementType::String => match bytes.get(4..) {
            Some([text @ .., 0]) if is_text(text) => Ok(()),
            _ => Err(malformed()),
        },
        ElementType::Null
        | ElementType::Int32
        | ElementType::Int64
        | ElementType::Double
        | ElementType::DateTime
        | ElementType::Timestamp
        | ElementType::ObjectId => Ok(()),
        _ => check_other_bytes(kind, bytes, depth),
    }
}

/// The same of a value that is neither a text nor a number.
fn check_other_bytes(kind: ElementType, bytes: &[u8], depth: Depth) -> Result<()> {
    let below = Depth { at: depth.at + 1, ..depth };
    match kind {
        ElementType::EmbeddedDocument | ElementType::Array => check_document_bytes(bytes, below),
        ElementType::Boolean if bytes[0] > 1 => Err(malformed()),
        ElementType::Boolean => Ok(()),
        // The old form has a length of its own inside.
        ElementType::Binary if bytes[4] != u8::from(BinarySubtype::BinaryOld) => Ok(()),
        ElementType::JavaScriptCodeWithScope => {
            // Reading recurses, so the depth is checked before: behind two lengths and the code.
            let code = Elements { bytes, at: 0 }.announced(4)?;
            let scope = bytes.get(8..).and_then(|rest| rest.get(code..)).ok_or_else(malformed)?;
            check_document_bytes(scope, below)?;
            read_rare(kind, bytes).map(drop)
        }
        _ => read_rare(kind, bytes).map(drop),
    }
}

/// A value of a rare type, by way of a document that holds nothing else.
pub(crate) fn read_rare(kind: ElementType, bytes: &[u8]) -> Result<Bson> {
    // The length of a document, the type, an empty name, and the zero at the end.
    const AROUND: usize = 4 + 1 + 1 + 1;
    let mut alone = Vec::with_capacity(bytes.len() + AROUND);
    alone.extend(((bytes.len() + AROUND) as i32).to_le_bytes());
    alone.extend([kind as u8, 0]);
    alone.extend(bytes);
    alone.push(0);
    let alone = RawDocument::from_bytes(&alone).map_err(|_| malformed())?;
    let (_, value) = alone.iter().next().ok_or_else(malformed)?.map_err(|_| malformed())?;
    Ok(Bson::try_from(value)?)
}
