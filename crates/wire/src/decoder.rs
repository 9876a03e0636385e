//! Messages out of a stream of bytes that arrives in pieces.
//!
//! The [`Decoder`] holds the bytes of one connection and lends out views of whole messages. It
//! never asks for more memory than the message limit, whatever lengths a peer announces. Reading
//! from a socket is left to the caller.

use crate::compression::{RETAINED_SCRATCH, decompress};
use crate::error::DecodeError;
use crate::header::{HEADER_LENGTH, MAX_MESSAGE_SIZE, MessageHeader, OpCode};
use crate::op_msg::OpMsg;
use crate::op_query::OpQuery;
use crate::op_reply::OpReply;

/// How much of its memory a decoder keeps after a large message.
const RETAINED_BUFFER: usize = 1 << 20;

/// A message that has arrived whole, borrowed from the [`Decoder`].
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The header. Of a compressed message, with the opcode of what was compressed.
    pub header: MessageHeader,
    /// The rest.
    pub payload: Payload<'a>,
    /// Whether the message came compressed.
    pub compressed: bool,
}

/// What a message holds, by opcode.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// `OP_MSG`.
    Msg(OpMsg<'a>),
    /// `OP_QUERY`.
    Query(OpQuery<'a>),
    /// `OP_REPLY`.
    Reply(OpReply<'a>),
}

impl<'a> Payload<'a> {
    fn parse(header: &MessageHeader, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        match header.op_code {
            OpCode::MSG => OpMsg::parse(header, bytes).map(Self::Msg),
            OpCode::QUERY => OpQuery::parse(bytes).map(Self::Query),
            OpCode::REPLY => OpReply::parse(bytes).map(Self::Reply),
            other => Err(DecodeError::UnsupportedOpCode(other)),
        }
    }
}

/// The bytes of one connection that have not become a message yet.
///
/// Append what was read with [`feed`](Self::feed) or through [`input`](Self::input), then take
/// messages with [`next_message`](Self::next_message) until it returns `None`. The first error is
/// final: it is returned again, since the start of the next message is unknown.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How many bytes at the front of `buffer` belong to messages already lent out.
    consumed: usize,
    decompressed: Vec<u8>,
    limit: usize,
    failed: Option<DecodeError>,
}

impl Decoder {
    /// A decoder for messages up to [`MAX_MESSAGE_SIZE`].
    pub fn new() -> Self {
        Self::with_limit(MAX_MESSAGE_SIZE)
    }

    /// A decoder for messages up to `limit` bytes, and never more than [`MAX_MESSAGE_SIZE`].
    pub fn with_limit(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            consumed: 0,
            decompressed: Vec::new(),
            limit: limit.clamp(HEADER_LENGTH, MAX_MESSAGE_SIZE),
            failed: None,
        }
    }

    /// Changes the limit for messages that have not been lent out yet.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(HEADER_LENGTH, MAX_MESSAGE_SIZE);
    }

    /// Takes bytes that were read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input().extend_from_slice(bytes);
    }

    /// The buffer, to append bytes to straight from a socket. Reserve what
    /// [`missing`](Self::missing) says; only ever append.
    pub fn input(&mut self) -> &mut Vec<u8> {
        self.discard_consumed();
        &mut self.buffer
    }

    /// Whether bytes of an unfinished message, or of further messages, are held.
    pub fn has_input(&self) -> bool {
        self.consumed < self.buffer.len()
    }

    /// How many more bytes complete the next message, as far as is known: the rest of the header,
    /// then the rest of the message. 0 if a whole message is here.
    ///
    /// # Errors
    ///
    /// If the announced length is impossible or over the limit.
    pub fn missing(&self) -> Result<usize, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        // Where one reply is read after the other, each begins with nothing.
        if !self.has_input() {
            return Ok(HEADER_LENGTH);
        }
        Ok(match self.peek_header()? {
            None => HEADER_LENGTH - (self.buffer.len() - self.consumed),
            Some(header) => header.message_length.saturating_sub(self.buffer.len() - self.consumed),
        })
    }

    /// The next message, if all of it has arrived.
    ///
    /// # Errors
    ///
    /// If the peer sent something that is no message, now or earlier.
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some((header, payload_at, compressed)) = self.parse_next().inspect_err(|error| {
            self.failed = Some(error.clone());
        })?
        else {
            return Ok(None);
        };
        let bytes = if compressed { &self.decompressed[..] } else { &self.buffer[payload_at] };
        let payload = Payload::parse(&header, bytes).inspect_err(|error| {
            self.failed = Some(error.clone());
        })?;
        Ok(Some(Message { header, payload, compressed }))
    }

    /// Marks the next whole message as consumed and says where its payload is.
    fn parse_next(&mut self) -> Result<Option<Frame>, DecodeError> {
        let Some(mut header) = self.peek_header()? else { return Ok(None) };
        let end = self.consumed + header.message_length;
        if self.buffer.len() < end {
            return Ok(None);
        }
        let payload = self.consumed + HEADER_LENGTH..end;
        self.consumed = end;
        if header.op_code != OpCode::COMPRESSED {
            return Ok(Some((header, payload, false)));
        }
        header.op_code =
            decompress(&self.buffer[payload.clone()], self.limit, &mut self.decompressed)?;
        header.message_length = HEADER_LENGTH + self.decompressed.len();
        Ok(Some((header, payload, true)))
    }

    fn peek_header(&self) -> Result<Option<MessageHeader>, DecodeError> {
        let Some(bytes) = self.buffer[self.consumed..].first_chunk() else { return Ok(None) };
        let header = MessageHeader::parse(bytes, self.limit)?;
        // The rest is not waited for: a peer that begins with TLS announces a length that is allowed
        // and sends nothing more until it is answered.
        match header.op_code {
            OpCode::MSG | OpCode::COMPRESSED | OpCode::QUERY | OpCode::REPLY => Ok(Some(header)),
            other => Err(DecodeError::UnsupportedOpCode(other)),
        }
    }

    fn discard_consumed(&mut self) {
        if self.consumed == 0 {
            return;
        }
        match self.has_input() {
            true => drop(self.buffer.drain(..self.consumed)),
            false => self.buffer.clear(),
        }
        self.consumed = 0;
        // Of the messages that were lent out none is in use any more.
        self.decompressed.clear();
        if self.decompressed.capacity() > RETAINED_SCRATCH {
            self.decompressed.shrink_to(RETAINED_SCRATCH);
        }
        if self.buffer.capacity() > RETAINED_BUFFER && self.buffer.len() <= RETAINED_BUFFER {
            self.buffer.shrink_to(RETAINED_BUFFER);
        }
    }
}

/// A header, where the payload is in the buffer, and whether it was decompressed out of it.
type Frame = (MessageHeader, std::ops::Range<usize>, bool);

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::{Compressor, CompressorId, MsgFlags, MsgWriter, RequestId};

    /// Most connections are idle most of the time.
    #[test]
    fn the_memory_of_a_large_message_is_kept_no_longer_than_the_message() {
        for compressor in [None, Some(CompressorId::Zstd)] {
            let body = rawdoc! { "text": "x".repeat(8 * RETAINED_BUFFER) };
            let mut compressor = compressor.map(|id| Compressor::new(id).unwrap());
            let (mut bytes, id) = (Vec::new(), RequestId(1));
            MsgWriter::new(&mut bytes, id, id, MsgFlags::NONE, &body)
                .finish(compressor.as_mut())
                .unwrap();
            let mut decoder = Decoder::new();
            decoder.feed(&bytes);
            assert!(decoder.next_message().unwrap().is_some());
            // The connection waits for more.
            decoder.input();
            let kept = decoder.buffer.capacity() + decoder.decompressed.capacity();
            assert!(kept <= RETAINED_BUFFER + RETAINED_SCRATCH, "{kept} bytes");
        }
    }
}
