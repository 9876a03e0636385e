//! The sixteen bytes in front of every message, and the limits that both sides keep.

use std::fmt;

use crate::error::DecodeError;

/// The length of a message header in bytes.
pub const HEADER_LENGTH: usize = 16;

/// `maxMessageSizeBytes`: the longest message, header included, that is accepted or sent.
pub const MAX_MESSAGE_SIZE: usize = 48_000_000;

/// `maxBsonObjectSize`: the longest document a server stores, in bytes.
pub const MAX_BSON_OBJECT_SIZE: usize = 16 * 1024 * 1024;

/// The flag bits of a message.
macro_rules! flags {
    (
        $(#[$about:meta])* $flags:ident {
            $($(#[$about_flag:meta])* $flag:ident = $bits:expr,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct $flags(pub u32);

        impl $flags {
            /// No flag.
            pub const NONE: Self = Self(0);
            $($(#[$about_flag])* pub const $flag: Self = Self($bits);)+

            /// Whether all flags of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }
    };
}

/// What a sender calls its message, so that the reply can refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RequestId(pub i32);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which layout the bytes after the header have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpCode(pub i32);

impl OpCode {
    /// `OP_REPLY`: the answer to [`QUERY`](Self::QUERY).
    pub(crate) const REPLY: Self = Self(1);
    /// `OP_QUERY`: only the handshake of older peers still uses it.
    pub const QUERY: Self = Self(2004);
    /// `OP_COMPRESSED`: another message, compressed.
    pub(crate) const COMPRESSED: Self = Self(2012);
    /// `OP_MSG`: requests and replies alike.
    pub const MSG: Self = Self(2013);
}

impl fmt::Display for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::REPLY => f.write_str("OP_REPLY"),
            Self::QUERY => f.write_str("OP_QUERY"),
            Self::COMPRESSED => f.write_str("OP_COMPRESSED"),
            Self::MSG => f.write_str("OP_MSG"),
            Self(number) => write!(f, "opcode {number}"),
        }
    }
}

/// The header of a message: four little-endian integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// The length of the whole message, this header included. Of a compressed message, the length
    /// on the wire.
    pub message_length: usize,
    /// What the sender calls this message.
    pub request_id: RequestId,
    /// Which message this one answers; 0 for a request.
    pub response_to: RequestId,
    /// The layout of the rest. Of a compressed message, of what was compressed.
    pub op_code: OpCode,
}

impl MessageHeader {
    /// Reads a header and refuses lengths that no message can have or that are over `limit`.
    ///
    /// # Errors
    ///
    /// [`DecodeError::TooShort`] or [`DecodeError::TooLong`].
    pub fn parse(bytes: &[u8; HEADER_LENGTH], limit: usize) -> Result<Self, DecodeError> {
        let [length, request_id, response_to, op_code] = split(bytes);
        let message_length = checked_length(length, limit)?;
        Ok(Self {
            message_length,
            request_id: RequestId(request_id),
            response_to: RequestId(response_to),
            op_code: OpCode(op_code),
        })
    }

    /// Appends a header whose length is still to be written by [`patch_length`].
    pub(crate) fn append_open(
        out: &mut Vec<u8>,
        request_id: RequestId,
        response_to: RequestId,
        op_code: OpCode,
    ) {
        for number in [0, request_id.0, response_to.0, op_code.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// The header's bytes. `message_length` must fit in 31 bits, as every accepted length does.
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LENGTH] {
        let length = i32::try_from(self.message_length).unwrap_or(i32::MAX);
        let mut bytes = [0; HEADER_LENGTH];
        let numbers = [length, self.request_id.0, self.response_to.0, self.op_code.0];
        for (chunk, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// Checks a length read from the wire before anything is allocated for it.
pub(crate) fn checked_length(length: i32, limit: usize) -> Result<usize, DecodeError> {
    match usize::try_from(length) {
        Ok(length) if length > limit => Err(DecodeError::TooLong { length, limit }),
        Ok(length) if length >= HEADER_LENGTH => Ok(length),
        _ => Err(DecodeError::TooShort { length }),
    }
}

fn split(bytes: &[u8; HEADER_LENGTH]) -> [i32; 4] {
    let mut numbers = [0; 4];
    for (number, chunk) in numbers.iter_mut().zip(bytes.chunks_exact(4)) {
        *number = i32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back() {
        let header = MessageHeader {
            message_length: 21,
            request_id: RequestId(-5),
            response_to: RequestId(i32::MAX),
            op_code: OpCode::QUERY,
        };
        assert_eq!(MessageHeader::parse(&header.to_bytes(), 21), Ok(header));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for (length, limit) in [(-1, 100), (0, 100), (15, 100), (101, 100), (i32::MIN, 100)] {
            assert!(checked_length(length, limit).is_err(), "{length}");
        }
        assert_eq!(checked_length(16, 100), Ok(16));
        assert_eq!(checked_length(100, 100), Ok(100));
    }
}
