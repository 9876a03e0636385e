#![doc = include_str!("../README.md")]
//!
//! This crate owns the byte formats that clients and servers share, and the reading of replies into the values of
//! `quorate-protocol`. Bytes come in through a [`Decoder`], which says how many more it needs and lends out views of what it
//! holds; messages go out by appending to a `Vec<u8>` of the caller's.
//!
//! Every error names what the peer (or, for encoding, the caller) did wrong. After a decoding
//! error the stream has no known position any more: close the connection.

#[macro_use]
mod header;

mod body_writer;
mod command_error;
mod compression;
mod conversions;
mod cursor;
mod decoder;
mod error;
mod field;
mod handshake;
mod hello;
mod hello_request;
mod op_msg;
mod op_query;
mod op_reply;
mod raw_fields;
mod raw_writer;
pub mod replica_set;

pub use body_writer::{BodyWriter, CommandFields};
pub use command_error::command_error;
pub use compression::{CompressionError, Compressor, CompressorId, is_compressible};
pub use conversions::{
    date_time_from, object_id_from, timestamp_from, to_bson_date_time, to_bson_object_id,
    to_bson_timestamp, to_bson_topology_version, topology_version_document,
};
pub use decoder::{Decoder, Message, Payload};
pub use error::{DecodeError, EncodeError};
pub use field::FieldError;
pub use handshake::{ConnectionLimits, HandshakeReply, parse_handshake, parse_handshake_of};
pub use header::{
    HEADER_LENGTH, MAX_BSON_OBJECT_SIZE, MAX_MESSAGE_SIZE, MessageHeader, OpCode, RequestId,
};
pub use hello::{
    HelloError, KnownMembers, MAX_LISTED_MEMBERS, MAX_TAGS, MAX_TEXT_LENGTH, parse_hello,
    parse_hello_of, parse_topology_version,
};
pub use hello_request::{FirstHello, later_hello};
pub use op_msg::{
    DocumentSequence, Documents, MAX_DOCUMENT_SEQUENCES, MAX_SEQUENCE_DOCUMENTS, MsgFlags,
    MsgWriter, OpMsg, body_around,
};
pub use op_query::{OpQuery, QueryFlags};
pub use op_reply::{OpReply, ReplyFlags};
pub use quorate_protocol::{CommandError, WriteConcernError};
pub use raw_fields::{AppendSome, RawField, find_field, find_fields, raw_fields};
pub use raw_writer::{
    AROUND_ITEM, FieldWriter, append_item, close_document, open_document, raw_document,
};
