//! Reading fields one after another from the bytes of a message.

use bson::raw::RawDocument;

use crate::error::DecodeError;

/// The shortest document: a length and the closing zero.
const MIN_DOCUMENT_LENGTH: usize = 5;

/// A place in the bytes of a message. Every method either advances past what it returns or fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn bytes(
        &mut self,
        count: usize,
        within: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or(DecodeError::Truncated { within })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, within: &'static str) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) =
            self.rest.split_first_chunk().ok_or(DecodeError::Truncated { within })?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(crate) fn u8(&mut self, within: &'static str) -> Result<u8, DecodeError> {
        self.array(within).map(u8::from_le_bytes)
    }

    pub(crate) fn i32(&mut self, within: &'static str) -> Result<i32, DecodeError> {
        self.array(within).map(i32::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, within: &'static str) -> Result<u32, DecodeError> {
        Ok(self.i32(within)? as u32)
    }

    pub(crate) fn i64(&mut self, within: &'static str) -> Result<i64, DecodeError> {
        self.array(within).map(i64::from_le_bytes)
    }

    /// Text up to a zero byte.
    pub(crate) fn cstring(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let end = self
            .rest
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(DecodeError::Truncated { within: field })?;
        let text =
            std::str::from_utf8(&self.rest[..end]).map_err(|_| DecodeError::NotUtf8 { field })?;
        self.rest = &self.rest[end + 1..];
        Ok(text)
    }

    /// A document, of which only the frame is checked: its elements are checked as they are read.
    pub(crate) fn document(&mut self, field: &'static str) -> Result<&'a RawDocument, DecodeError> {
        let length = Cursor::new(self.rest).i32(field)?;
        let count = usize::try_from(length)
            .ok()
            .filter(|&count| count >= MIN_DOCUMENT_LENGTH)
            .ok_or(DecodeError::BadLength { field, length })?;
        let bytes = self.bytes(count, field)?;
        RawDocument::from_bytes(bytes).map_err(|error| DecodeError::BadDocument(error.to_string()))
    }

    /// Refuses bytes behind the message.
    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(DecodeError::TrailingBytes { count }),
        }
    }
}
