//! What can be wrong with a message, told from the receiver's and from the sender's side.

use crate::compression::CompressionError;
use crate::header::OpCode;

/// A peer sent bytes that are no message. The peer is at fault; close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The announced length has no room for a header.
    #[error("the peer announced a message of {length} bytes, too short for a header")]
    TooShort {
        /// The length announced.
        length: i32,
    },
    /// The announced length is over the limit. Nothing was allocated for it.
    #[error("the peer announced a message of {length} bytes; at most {limit} are accepted")]
    TooLong {
        /// The length announced.
        length: usize,
        /// The length accepted.
        limit: usize,
    },
    /// A message of a kind that we do not speak.
    #[error("the peer sent {0}, which is not spoken here")]
    UnsupportedOpCode(OpCode),
    /// The message ends inside one of its fields.
    #[error("the peer sent a message that ends inside {within}")]
    Truncated {
        /// The field.
        within: &'static str,
    },
    /// The message goes on after its last field.
    #[error("the peer sent a message with {count} bytes after its end")]
    TrailingBytes {
        /// The number of bytes.
        count: usize,
    },
    /// A flag bit is set that the receiver must know and does not.
    #[error("the peer set unknown required flag bits {bits:#06x} in an OP_MSG")]
    UnknownRequiredFlags {
        /// The bits we do not know.
        bits: u32,
    },
    /// The checksum is not that of the bytes received.
    #[error("the peer sent a message whose checksum is {computed:#010x}, not {sent:#010x}")]
    ChecksumMismatch {
        /// The checksum in the message.
        sent: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// A section of a kind other than 0 and 1.
    #[error("the peer sent an OP_MSG section of unknown kind {0}")]
    UnknownSectionKind(u8),
    /// An `OP_MSG` without a body, or with two.
    #[error("the peer sent an OP_MSG with {0} body sections instead of one")]
    BodyCount(usize),
    /// Two document sequences of one name.
    #[error("the peer sent two document sequences named {0:?}")]
    RepeatedSequence(String),
    /// More sequences than any command takes.
    #[error("the peer sent more than {limit} document sequences")]
    TooManySequences {
        /// How many are accepted.
        limit: usize,
    },
    /// More documents in one sequence than any command takes.
    #[error("the peer sent more than {limit} documents in one sequence")]
    TooManyDocuments {
        /// How many are accepted.
        limit: usize,
    },
    /// A length inside the message that contradicts the message.
    #[error("the peer gave {field} a length of {length}, which cannot be")]
    BadLength {
        /// The field.
        field: &'static str,
        /// The length given.
        length: i32,
    },
    /// Bytes that should be UTF-8 and are not.
    #[error("the peer sent {field} that is not UTF-8")]
    NotUtf8 {
        /// The field.
        field: &'static str,
    },
    /// A document whose frame is broken.
    #[error("the peer sent a broken document: {0}")]
    BadDocument(String),
    /// `OP_REPLY` counts its documents, and miscounted.
    #[error("the peer announced {announced} documents in an OP_REPLY and sent {found}")]
    DocumentCount {
        /// The number in the reply's header.
        announced: i32,
        /// The number of documents that follow.
        found: usize,
    },
    /// A compressed message in a compressed message.
    #[error("the peer compressed a message twice")]
    NestedCompression,
    /// The compressed part is no good.
    #[error("the peer sent a compressed message that cannot be read: {0}")]
    Compression(#[from] CompressionError),
}

/// A message that must not be sent. The caller is at fault; the buffer is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Longer than the receiver accepts.
    #[error("the message is {length} bytes long and the peer accepts {limit}: send less at once")]
    TooLong {
        /// The length of the message.
        length: usize,
        /// The length accepted.
        limit: usize,
    },
    /// More sequences than the receiver accepts.
    #[error("the message has more than {limit} document sequences")]
    TooManySequences {
        /// How many are accepted.
        limit: usize,
    },
    /// Two document sequences of one name.
    #[error("the message has two document sequences named {0:?}")]
    RepeatedSequence(String),
    /// The compressor refused.
    #[error("the message could not be compressed: {0}")]
    Compression(#[from] CompressionError),
}
