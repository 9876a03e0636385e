//! `OP_QUERY`, as the legacy handshake and older peers send it.

use bson::raw::{CStr, RawDocument};

use crate::cursor::Cursor;
use crate::error::{DecodeError, EncodeError};
use crate::header::{MessageHeader, OpCode, RequestId};
use crate::op_msg::{close, first_key};

flags! {
    /// The flag bits of an `OP_QUERY`.
    QueryFlags {
        /// `SecondaryOk`: the query may run on a secondary.
        SECONDARY_OK = 1 << 2,
    }
}

/// A query: on a `$cmd` collection, a command.
#[derive(Clone, Copy, Debug)]
pub struct OpQuery<'a> {
    /// The flags.
    pub flags: QueryFlags,
    /// `database.collection`; for a command, `database.$cmd`.
    pub full_collection_name: &'a str,
    /// How many results to leave out.
    pub number_to_skip: i32,
    /// How many results to return; for a command 1 or −1.
    pub number_to_return: i32,
    /// The query or the command.
    pub query: &'a RawDocument,
    /// Which fields to return.
    pub return_fields_selector: Option<&'a RawDocument>,
}

impl<'a> OpQuery<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let flags = QueryFlags(cursor.u32("the flags of an OP_QUERY")?);
        let full_collection_name = cursor.cstring("the collection name of an OP_QUERY")?;
        let number_to_skip = cursor.i32("numberToSkip of an OP_QUERY")?;
        let number_to_return = cursor.i32("numberToReturn of an OP_QUERY")?;
        let query = cursor.document("the query of an OP_QUERY")?;
        let return_fields_selector = if cursor.is_empty() {
            None
        } else {
            Some(cursor.document("the field selector of an OP_QUERY")?)
        };
        cursor.end()?;
        Ok(Self {
            flags,
            full_collection_name,
            number_to_skip,
            number_to_return,
            query,
            return_fields_selector,
        })
    }

    /// The database of the collection name.
    pub fn database(&self) -> &'a str {
        self.full_collection_name
            .split_once('.')
            .map_or(self.full_collection_name, |(database, _)| database)
    }

    /// Whether this is a command: a query on the collection `$cmd`.
    pub fn is_command(&self) -> bool {
        self.full_collection_name
            .split_once('.')
            .is_some_and(|(_, collection)| collection == "$cmd")
    }

    /// The name of the command: the first key of the query.
    pub fn command_name(&self) -> Option<&'a str> {
        first_key(self.query)
    }

    /// Appends a command to a buffer as an `OP_QUERY` on `namespace` (`admin.$cmd`). Returns the
    /// length of the message. Never compressed: only handshakes are sent this way.
    ///
    /// # Errors
    ///
    /// If the message is too long.
    pub fn append_command(
        out: &mut Vec<u8>,
        request_id: RequestId,
        flags: QueryFlags,
        namespace: &CStr,
        command: &RawDocument,
    ) -> Result<usize, EncodeError> {
        let start = out.len();
        MessageHeader::append_open(out, request_id, RequestId(0), OpCode::QUERY);
        out.extend_from_slice(&flags.0.to_le_bytes());
        out.extend_from_slice(namespace.as_str().as_bytes());
        out.push(0);
        out.extend_from_slice(&0_i32.to_le_bytes());
        out.extend_from_slice(&(-1_i32).to_le_bytes());
        out.extend_from_slice(command.as_bytes());
        close(out, start)
    }
}
