//! `OP_MSG`: one body document and any number of document sequences.
//!
//! Follows the OP_MSG specification (`source/message/OP_MSG.md`): unknown required flag bits and
//! unknown section kinds are errors, unknown optional bits are ignored, sections come in any order,
//! sequence names are unique. The meaning of the commands inside is left to the callers.

use bson::raw::{CStr, RawDocument};

use crate::compression::{Compressor, compress_tail, is_compressible};
use crate::cursor::Cursor;
use crate::error::{DecodeError, EncodeError};
use crate::header::{HEADER_LENGTH, MAX_MESSAGE_SIZE, MessageHeader, OpCode, RequestId};

/// How many document sequences one message may hold. Commands take one, `bulkWrite` two.
pub const MAX_DOCUMENT_SEQUENCES: usize = 16;

/// How many documents one sequence may hold: ten times as many as a command takes, which says so itself. To look at all the
/// empty documents that fit into a message takes longer than other clients should wait.
pub const MAX_SEQUENCE_DOCUMENTS: usize = 1_000_000;

const BODY: u8 = 0;
const SEQUENCE: u8 = 1;
const CHECKSUM_LENGTH: usize = 4;
/// The header, the flags, and the byte that says a body follows.
pub(crate) const BODY_OFFSET: usize = HEADER_LENGTH + 4 + 1;

flags! {
    /// The flag bits of an `OP_MSG`. The low half must be understood, the high half may be ignored.
    MsgFlags {
        /// `checksumPresent`: four bytes of CRC-32C end the message.
        CHECKSUM_PRESENT = 1,
        /// `moreToCome`: of a request, that no reply is wanted; of a reply, that another follows.
        MORE_TO_COME = 1 << 1,
        /// `exhaustAllowed`: the client takes more than one reply.
        EXHAUST_ALLOWED = 1 << 16,
    }
}

impl MsgFlags {
    const KNOWN_REQUIRED: u32 = 0b11;

    /// These flags and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    fn check_required(self) -> Result<(), DecodeError> {
        match self.0 & 0xffff & !Self::KNOWN_REQUIRED {
            0 => Ok(()),
            bits => Err(DecodeError::UnknownRequiredFlags { bits }),
        }
    }
}

/// A view of a received `OP_MSG`. The frame of every section and document has been checked.
#[derive(Clone, Copy, Debug)]
pub struct OpMsg<'a> {
    flags: MsgFlags,
    body: &'a RawDocument,
    sections: &'a [u8],
    sequence_count: usize,
    document_count: usize,
}

impl<'a> OpMsg<'a> {
    /// Reads the bytes after the header. `header` is that of the uncompressed message, for the
    /// checksum covers it.
    pub(crate) fn parse(header: &MessageHeader, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let flags = MsgFlags(cursor.u32("the flags of an OP_MSG")?);
        flags.check_required()?;
        let mut sections = cursor.rest();
        if flags.contains(MsgFlags::CHECKSUM_PRESENT) {
            let checked_length = bytes.len().saturating_sub(CHECKSUM_LENGTH);
            let (checked, checksum) = bytes.split_at(checked_length);
            verify_checksum(header, checked, checksum)?;
            sections = sections
                .get(..sections.len().saturating_sub(CHECKSUM_LENGTH))
                .ok_or(DecodeError::Truncated { within: "a checksum" })?;
        }
        let Checked { body, sequence_count, document_count } = check_sections(sections)?;
        Ok(Self { flags, body, sections, sequence_count, document_count })
    }

    /// The flags.
    pub fn flags(&self) -> MsgFlags {
        self.flags
    }

    /// The command or the reply.
    pub fn body(&self) -> &'a RawDocument {
        self.body
    }

    /// The name of the command: the first key of the body. `None` for a body that is empty or whose
    /// first element is broken.
    pub fn command_name(&self) -> Option<&'a str> {
        first_key(self.body)
    }

    /// How many document sequences there are.
    pub fn sequence_count(&self) -> usize {
        self.sequence_count
    }

    /// How many documents there are in all sequences.
    pub fn document_count(&self) -> usize {
        self.document_count
    }

    /// The document sequences, in the order of the message.
    pub fn sequences(&self) -> impl Iterator<Item = DocumentSequence<'a>> + Clone + use<'a> {
        sequences_of(self.sections)
    }

    /// The document sequence of this name.
    pub fn sequence(&self, identifier: &str) -> Option<DocumentSequence<'a>> {
        self.sequences().find(|sequence| sequence.identifier == identifier)
    }
}

/// A command argument sent as documents one after another instead of as an array.
#[derive(Clone, Copy, Debug)]
pub struct DocumentSequence<'a> {
    identifier: &'a str,
    documents: Documents<'a>,
}

impl<'a> DocumentSequence<'a> {
    /// The name of the argument.
    pub fn identifier(&self) -> &'a str {
        self.identifier
    }

    /// The documents, whose frames have been checked.
    pub fn documents(&self) -> Documents<'a> {
        self.documents
    }
}

/// Documents that follow each other without a separator. Their frames have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Documents<'a>(Cursor<'a>);

impl<'a> Documents<'a> {
    /// Checks the frame of each document, to the end, and counts them.
    pub(crate) fn check(
        bytes: &'a [u8],
        field: &'static str,
    ) -> Result<(Self, usize), DecodeError> {
        let documents = Self(Cursor::new(bytes));
        let mut cursor = documents.0;
        let mut count = 0;
        while !cursor.is_empty() {
            if count == MAX_SEQUENCE_DOCUMENTS {
                return Err(DecodeError::TooManyDocuments { limit: MAX_SEQUENCE_DOCUMENTS });
            }
            cursor.document(field)?;
            count += 1;
        }
        Ok((documents, count))
    }
}

impl<'a> Iterator for Documents<'a> {
    type Item = &'a RawDocument;

    fn next(&mut self) -> Option<&'a RawDocument> {
        if self.0.is_empty() {
            return None;
        }
        let document = self.0.document("a document");
        debug_assert!(document.is_ok(), "the frames were checked when the message was read");
        document.ok()
    }
}

enum Section<'a> {
    Body(&'a RawDocument),
    Sequence { identifier: &'a str, documents: &'a [u8] },
}

fn read_section<'a>(cursor: &mut Cursor<'a>) -> Result<Section<'a>, DecodeError> {
    const FIELD: &str = "a document sequence";
    match cursor.u8("a section")? {
        BODY => Ok(Section::Body(cursor.document("the body of an OP_MSG")?)),
        SEQUENCE => {
            let length = cursor.i32(FIELD)?;
            // The length counts its own four bytes.
            let count = usize::try_from(length)
                .ok()
                .and_then(|count| count.checked_sub(4))
                .ok_or(DecodeError::BadLength { field: FIELD, length })?;
            let mut inner = Cursor::new(cursor.bytes(count, FIELD)?);
            let identifier = inner.cstring("the name of a document sequence")?;
            Ok(Section::Sequence { identifier, documents: inner.rest() })
        }
        kind => Err(DecodeError::UnknownSectionKind(kind)),
    }
}

/// What is known of sections that have been checked.
struct Checked<'a> {
    body: &'a RawDocument,
    sequence_count: usize,
    document_count: usize,
}

fn check_sections(sections: &[u8]) -> Result<Checked<'_>, DecodeError> {
    let mut cursor = Cursor::new(sections);
    let mut body = None;
    let mut body_count = 0;
    let (mut sequence_count, mut document_count) = (0, 0);
    while !cursor.is_empty() {
        let before = sections.len() - cursor.rest().len();
        match read_section(&mut cursor)? {
            Section::Body(document) => {
                body = Some(document);
                body_count += 1;
            }
            Section::Sequence { identifier, documents } => {
                if sequence_count == MAX_DOCUMENT_SEQUENCES {
                    return Err(DecodeError::TooManySequences { limit: MAX_DOCUMENT_SEQUENCES });
                }
                sequence_count += 1;
                if sequences_of(&sections[..before]).any(|seen| seen.identifier == identifier) {
                    return Err(DecodeError::RepeatedSequence(identifier.to_owned()));
                }
                document_count += Documents::check(documents, "a document of a sequence")?.1;
            }
        }
        if body_count > 1 {
            return Err(DecodeError::BodyCount(body_count));
        }
    }
    let body = body.ok_or(DecodeError::BodyCount(0))?;
    Ok(Checked { body, sequence_count, document_count })
}

/// The sequences among sections that have been checked.
fn sequences_of(sections: &[u8]) -> impl Iterator<Item = DocumentSequence<'_>> + Clone {
    let mut cursor = Cursor::new(sections);
    std::iter::from_fn(move || {
        while !cursor.is_empty() {
            match read_section(&mut cursor).ok()? {
                Section::Body(_) => {}
                Section::Sequence { identifier, documents } => {
                    return Some(DocumentSequence {
                        identifier,
                        documents: Documents(Cursor::new(documents)),
                    });
                }
            }
        }
        None
    })
}

fn verify_checksum(
    header: &MessageHeader,
    checked: &[u8],
    checksum: &[u8],
) -> Result<(), DecodeError> {
    let sent = Cursor::new(checksum).u32("a checksum")?;
    let computed = crc32c::crc32c_append(crc32c::crc32c(&header.to_bytes()), checked);
    if sent == computed { Ok(()) } else { Err(DecodeError::ChecksumMismatch { sent, computed }) }
}

/// The body that a [`BodyWriter`](crate::BodyWriter) has written into a buffer.
///
/// # Errors
///
/// If it is so long that its length has no room in it.
pub fn body_around(out: &[u8]) -> Result<&RawDocument, EncodeError> {
    let body = out.get(BODY_OFFSET..).unwrap_or_default();
    let too_long = |_| EncodeError::TooLong { length: out.len(), limit: MAX_MESSAGE_SIZE };
    RawDocument::from_bytes(body).map_err(too_long)
}

pub(crate) fn first_key(document: &RawDocument) -> Option<&str> {
    document.iter_elements().next()?.ok().map(|element| element.key().as_str())
}

/// Appends an `OP_MSG` to a buffer: the body first, then the sequences, then [`finish`].
///
/// A writer that is dropped unfinished, or whose `finish` fails, leaves the buffer as it was.
///
/// [`finish`]: Self::finish
#[derive(Debug)]
pub struct MsgWriter<'b> {
    out: &'b mut Vec<u8>,
    /// Where in `out` this message begins.
    start: usize,
    flags: MsgFlags,
    limit: usize,
    names: Vec<String>,
    /// The length of the body.
    body: usize,
    refused: Option<EncodeError>,
    finished: bool,
}

impl<'b> MsgWriter<'b> {
    /// Begins a message. With [`MsgFlags::CHECKSUM_PRESENT`], the checksum is appended at the end.
    pub fn new(
        out: &'b mut Vec<u8>,
        request_id: RequestId,
        response_to: RequestId,
        flags: MsgFlags,
        body: &RawDocument,
    ) -> Self {
        let start = out.len();
        let body_bytes = body.as_bytes();
        out.reserve(BODY_OFFSET + body_bytes.len());
        MessageHeader::append_open(out, request_id, response_to, OpCode::MSG);
        out.extend_from_slice(&flags.0.to_le_bytes());
        out.push(BODY);
        out.extend_from_slice(body_bytes);
        Self {
            out,
            start,
            flags,
            limit: MAX_MESSAGE_SIZE,
            names: Vec::new(),
            body: body_bytes.len(),
            refused: None,
            finished: false,
        }
    }

    /// Begins a message of the body that a [`BodyWriter`](crate::BodyWriter) has written into this buffer. Its beginning is
    /// filled in; a message that is dropped unfinished leaves the buffer empty.
    pub fn around(
        out: &'b mut Vec<u8>,
        request_id: RequestId,
        response_to: RequestId,
        flags: MsgFlags,
    ) -> Self {
        let body = out.len().saturating_sub(BODY_OFFSET);
        let header = [0, request_id.0, response_to.0, OpCode::MSG.0, flags.0 as i32];
        debug_assert!(out.len() > BODY_OFFSET, "a body writer has written here");
        for (place, number) in out.chunks_exact_mut(4).zip(header) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out[BODY_OFFSET - 1] = BODY;
        Self {
            out,
            start: 0,
            flags,
            limit: MAX_MESSAGE_SIZE,
            names: Vec::new(),
            body,
            refused: None,
            finished: false,
        }
    }

    /// Refuses messages longer than this, the peer's `maxMessageSizeBytes`.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit.min(MAX_MESSAGE_SIZE);
        self
    }

    /// Appends a document sequence.
    #[must_use]
    pub fn sequence<'d>(
        mut self,
        identifier: &CStr,
        documents: impl IntoIterator<Item = &'d RawDocument>,
    ) -> Self {
        let name = identifier.as_str();
        if self.names.len() == MAX_DOCUMENT_SEQUENCES {
            self.refused = Some(EncodeError::TooManySequences { limit: MAX_DOCUMENT_SEQUENCES });
        }
        if self.names.iter().any(|seen| seen == name) {
            self.refused = Some(EncodeError::RepeatedSequence(name.to_owned()));
        }
        if self.refused.is_some() {
            return self;
        }
        self.names.push(name.to_owned());
        self.out.push(SEQUENCE);
        let length_at = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(0);
        for document in documents {
            // The message is too long already: `finish` says so, and no more is copied.
            if self.out.len() - self.start > self.limit {
                break;
            }
            self.out.extend_from_slice(document.as_bytes());
        }
        let length = self.out.len() - length_at;
        patch_length(self.out, length_at, length);
        self
    }

    /// Ends the message, compressing it if a compressor is given and the command may be
    /// compressed. Returns the length of the message.
    ///
    /// A compressed message carries no checksum: the compressed bytes would not match it.
    ///
    /// # Errors
    ///
    /// If the message is longer than the limit, or has sequences that the peer would refuse.
    pub fn finish(mut self, compressor: Option<&mut Compressor>) -> Result<usize, EncodeError> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        // Most connections do not compress, and their commands need not be named.
        let compressor = compressor.filter(|_| self.is_compressible());
        let checksum = self.flags.contains(MsgFlags::CHECKSUM_PRESENT);
        let mut length = self.out.len() - self.start;
        if checksum && compressor.is_none() {
            length += CHECKSUM_LENGTH;
        }
        if length > self.limit {
            return Err(EncodeError::TooLong { length, limit: self.limit });
        }
        patch_length(self.out, self.start, length);
        match compressor {
            Some(compressor) => {
                let plain = self.flags.without(MsgFlags::CHECKSUM_PRESENT).0.to_le_bytes();
                let flags_at = self.start + HEADER_LENGTH;
                self.out[flags_at..flags_at + 4].copy_from_slice(&plain);
                length = compress_tail(self.out, self.start, OpCode::MSG, compressor)?;
                if length > self.limit {
                    return Err(EncodeError::TooLong { length, limit: self.limit });
                }
            }
            None if checksum => {
                let sum = crc32c::crc32c(&self.out[self.start..]);
                self.out.extend_from_slice(&sum.to_le_bytes());
            }
            None => {}
        }
        self.finished = true;
        Ok(length)
    }

    fn is_compressible(&self) -> bool {
        let from = self.start + BODY_OFFSET;
        let body = RawDocument::from_bytes(&self.out[from..from + self.body]);
        body.ok().and_then(first_key).is_none_or(is_compressible)
    }
}

impl Drop for MsgWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.out.truncate(self.start);
        }
    }
}

/// Ends a message that begins at `start`, and returns its length. One that is too long is taken out of the buffer.
pub(crate) fn close(out: &mut Vec<u8>, start: usize) -> Result<usize, EncodeError> {
    let length = out.len() - start;
    if length > MAX_MESSAGE_SIZE {
        out.truncate(start);
        return Err(EncodeError::TooLong { length, limit: MAX_MESSAGE_SIZE });
    }
    patch_length(out, start, length);
    Ok(length)
}

/// Writes a length that is known to be under the message limit into a place left for it.
pub(crate) fn patch_length(out: &mut [u8], at: usize, length: usize) {
    // Lengths over the limit are refused before they are sent; the cast cannot lose bits then.
    let length = i32::try_from(length).unwrap_or(i32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}
