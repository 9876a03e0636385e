//! `OP_REPLY`, the answer to `OP_QUERY`.

use bson::raw::RawDocument;

use crate::cursor::Cursor;
use crate::error::{DecodeError, EncodeError};
use crate::header::{MessageHeader, OpCode, RequestId};
use crate::op_msg::{Documents, close};

flags! {
    /// The flag bits of an `OP_REPLY`.
    ReplyFlags {
        /// `CursorNotFound`.
        CURSOR_NOT_FOUND = 1,
        /// `QueryFailure`: the one document holds `$err` and perhaps `code`.
        QUERY_FAILURE = 1 << 1,
        /// `AwaitCapable`: set by every server since 1.6.
        AWAIT_CAPABLE = 1 << 3,
    }
}

/// A view of a received `OP_REPLY`.
#[derive(Clone, Copy, Debug)]
pub struct OpReply<'a> {
    /// The flags.
    pub flags: ReplyFlags,
    /// The cursor that has more; 0 for none.
    pub cursor_id: i64,
    /// Where in the cursor this reply starts.
    pub starting_from: i32,
    documents: Documents<'a>,
    count: usize,
}

impl<'a> OpReply<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let flags = ReplyFlags(cursor.u32("the flags of an OP_REPLY")?);
        let cursor_id = cursor.i64("the cursor id of an OP_REPLY")?;
        let starting_from = cursor.i32("startingFrom of an OP_REPLY")?;
        let announced = cursor.i32("numberReturned of an OP_REPLY")?;
        let (documents, count) = Documents::check(cursor.rest(), "a document of an OP_REPLY")?;
        if usize::try_from(announced) != Ok(count) {
            return Err(DecodeError::DocumentCount { announced, found: count });
        }
        Ok(Self { flags, cursor_id, starting_from, documents, count })
    }

    /// The documents, whose frames have been checked.
    pub fn documents(&self) -> Documents<'a> {
        self.documents
    }

    /// How many documents there are.
    pub fn document_count(&self) -> usize {
        self.count
    }

    /// Appends a reply with one document to a buffer. Returns the length of the message.
    ///
    /// # Errors
    ///
    /// If the message is too long.
    pub fn append_one(
        out: &mut Vec<u8>,
        request_id: RequestId,
        response_to: RequestId,
        flags: ReplyFlags,
        document: &RawDocument,
    ) -> Result<usize, EncodeError> {
        let start = out.len();
        MessageHeader::append_open(out, request_id, response_to, OpCode::REPLY);
        out.extend_from_slice(&flags.0.to_le_bytes());
        out.extend_from_slice(&0_i64.to_le_bytes());
        out.extend_from_slice(&0_i32.to_le_bytes());
        out.extend_from_slice(&1_i32.to_le_bytes());
        out.extend_from_slice(document.as_bytes());
        close(out, start)
    }
}
