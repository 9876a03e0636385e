//! Reading the reply to `hello` or legacy hello.
//!
//! Follows "Parsing a hello or legacy hello response" in the Server Discovery And Monitoring
//! specification: `isWritablePrimary` before `ismaster`, host names in lower case, unknown fields
//! ignored. What the reply says about the server is left to `quorate-server-discovery`; what only
//! the connection itself needs (limits, compressors) is read by `handshake`.
//!
//! One pass over the document, no copy of it, and no memory beyond the bounds named here.

use std::collections::VecDeque;

use bson::raw::RawDocument;
use bson::spec::ElementType;
use quorate_protocol::{
    AddressError, AddressList, ElectionId, HelloReply, LastWrite, Lock, OpTime, ServerAddress,
    SetVersion, TagSet, TopologyVersion,
};

use crate::conversions::{date_time_from, timestamp_from};
use crate::field::{Field, FieldError, elements};

/// How many members a reply may list in `hosts`, `passives` and `arbiters` together. A set has at
/// most 50; the rest is room for others' rules.
pub const MAX_LISTED_MEMBERS: usize = 1000;

/// How many tags a member may have.
pub const MAX_TAGS: usize = 1000;

/// How long a set name, a tag's name or a tag's value may be, in bytes.
pub const MAX_TEXT_LENGTH: usize = 1024;

/// A reply that is no reply to hello. The server is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// A field is not what it should be.
    #[error("the server's hello reply cannot be read: {0}")]
    Field(#[from] FieldError),
    /// A listed member has no address that one could connect to.
    #[error("the server's hello reply cannot be read: an address in the field {field}: {source}")]
    Address {
        /// The field.
        field: &'static str,
        /// What is wrong with the address.
        source: AddressError,
    },
    /// More members than any set has.
    #[error(
        "the server's hello reply cannot be read: the field {field} brings the number of listed \
         members over {MAX_LISTED_MEMBERS}"
    )]
    TooManyMembers {
        /// The field with which the limit was passed.
        field: &'static str,
    },
    /// More tags than we keep.
    #[error("the server's hello reply cannot be read: the field tags has more than {MAX_TAGS}")]
    TooManyTags,
}

/// Reads the reply to `hello` or legacy hello.
///
/// A reply that says `ok: 0` is still a reply; [`command_error`](crate::command_error) tells why.
///
/// # Errors
///
/// If a field that matters has the wrong type or is beyond a bound. The error names the field.
pub fn parse_hello(reply: &RawDocument) -> Result<HelloReply, HelloError> {
    Parser::default().read(reply)
}

/// The same, sharing the lists of members with the replies that were read before.
///
/// # Errors
///
/// As [`parse_hello`].
pub fn parse_hello_of(reply: &RawDocument, known: &KnownMembers) -> Result<HelloReply, HelloError> {
    Parser { known: Some(known), ..Parser::default() }.read(reply)
}

/// Reads `topologyVersion`, in a reply or in an error.
///
/// # Errors
///
/// If one of its two fields is missing or of the wrong type.
pub fn parse_topology_version(document: &RawDocument) -> Result<TopologyVersion, FieldError> {
    let mut process_id = None;
    let mut counter = None;
    for element in elements(document, "topologyVersion") {
        let element = element?;
        match element.key().as_str() {
            "processId" => {
                process_id = Field::new("topologyVersion.processId", element).object_id()?;
            }
            "counter" => counter = Field::new("topologyVersion.counter", element).integer()?,
            _ => {}
        }
    }
    Ok(TopologyVersion {
        process_id: process_id.ok_or(FieldError::Missing { field: "topologyVersion.processId" })?,
        counter: counter.ok_or(FieldError::Missing { field: "topologyVersion.counter" })?,
    })
}

/// The static spelling of a field that the parser reads, for errors to carry.
fn known_name(key: &str) -> Option<&'static str> {
    Some(match key {
        "ok" => "ok",
        "isWritablePrimary" => "isWritablePrimary",
        "ismaster" => "ismaster",
        "helloOk" => "helloOk",
        "msg" => "msg",
        "isreplicaset" => "isreplicaset",
        "secondary" => "secondary",
        "arbiterOnly" => "arbiterOnly",
        "passive" => "passive",
        "hidden" => "hidden",
        "setName" => "setName",
        "setVersion" => "setVersion",
        "electionId" => "electionId",
        "hosts" => "hosts",
        "passives" => "passives",
        "arbiters" => "arbiters",
        "primary" => "primary",
        "me" => "me",
        "tags" => "tags",
        "minWireVersion" => "minWireVersion",
        "maxWireVersion" => "maxWireVersion",
        "lastWrite" => "lastWrite",
        "logicalSessionTimeoutMinutes" => "logicalSessionTimeoutMinutes",
        "topologyVersion" => "topologyVersion",
        "iscryptd" => "iscryptd",
        "serviceId" => "serviceId",
        "connectionId" => "connectionId",
        _ => return None,
    })
}

/// Lists of members that replies have shown, by their bytes. All members of a set show the same lists:
/// reading each anew would cost as much as there are members, for every member.
#[derive(Debug, Default)]
pub struct KnownMembers(Lock<VecDeque<(Box<[u8]>, AddressList)>>);

impl KnownMembers {
    /// How many lists are remembered: some sets in different states.
    const MOST: usize = 8;

    fn get(&self, bytes: &[u8]) -> Option<AddressList> {
        let lists = self.0.lock();
        lists.iter().find(|(known, _)| **known == *bytes).map(|(_, list)| list.clone())
    }

    fn keep(&self, bytes: &[u8], list: &AddressList) {
        let mut lists = self.0.lock();
        if lists.len() == Self::MOST {
            lists.pop_front();
        }
        lists.push_back((bytes.into(), list.clone()));
    }
}

#[derive(Default)]
struct Parser<'k> {
    known: Option<&'k KnownMembers>,
    reply: HelloReply,
    is_writable_primary: Option<bool>,
    ismaster: Option<bool>,
    members_listed: usize,
}

impl Parser<'_> {
    fn read(mut self, reply: &RawDocument) -> Result<HelloReply, HelloError> {
        for element in elements(reply, "the reply") {
            let element = element?;
            // Arms by name; whatever is not named is ignored without reading its value.
            let key = element.key().as_str();
            if let Some(name) = known_name(key) {
                self.accept(name, &Field::new(name, element))?;
            }
        }
        Ok(self.finish())
    }

    fn accept(&mut self, name: &'static str, field: &Field<'_>) -> Result<(), HelloError> {
        let reply = &mut self.reply;
        match name {
            "ok" => reply.ok = field.truth()?,
            "isWritablePrimary" => self.is_writable_primary = Some(field.truth()?),
            "ismaster" => self.ismaster = Some(field.truth()?),
            "helloOk" => reply.hello_ok = field.truth()?,
            "isreplicaset" => reply.is_replica_set = field.truth()?,
            "secondary" => reply.secondary = field.truth()?,
            "arbiterOnly" => reply.arbiter_only = field.truth()?,
            "passive" => reply.passive = field.truth()?,
            "hidden" => reply.hidden = field.truth()?,
            "iscryptd" => reply.iscryptd = field.truth()?,
            "msg" => reply.is_dbgrid = field.text(MAX_TEXT_LENGTH)? == Some("isdbgrid"),
            "setName" => reply.set_name = field.text(MAX_TEXT_LENGTH)?.map(str::to_owned),
            "setVersion" => reply.set_version = field.integer()?.map(SetVersion),
            "electionId" => reply.election_id = field.object_id()?.map(ElectionId),
            "serviceId" => reply.service_id = field.object_id()?,
            "connectionId" => reply.connection_id = field.integer()?,
            "minWireVersion" => reply.wire_versions.min = field.int32()?.unwrap_or(0),
            "maxWireVersion" => reply.wire_versions.max = field.int32()?.unwrap_or(0),
            "logicalSessionTimeoutMinutes" => {
                reply.logical_session_timeout_minutes = field.integer()?;
            }
            "topologyVersion" => {
                reply.topology_version =
                    field.document()?.map(parse_topology_version).transpose()?;
            }
            "lastWrite" => {
                reply.last_write = field.document()?.map(parse_last_write).transpose()?;
            }
            "tags" => reply.tags = parse_tags(field)?,
            "hosts" => self.reply.hosts = self.addresses(name, field)?,
            "passives" => self.reply.passives = self.addresses(name, field)?,
            "arbiters" => self.reply.arbiters = self.addresses(name, field)?,
            "primary" => self.reply.primary = self.optional_address(name, field)?,
            "me" => self.reply.me = self.optional_address(name, field)?,
            _ => {}
        }
        Ok(())
    }

    fn addresses(
        &mut self,
        name: &'static str,
        field: &Field<'_>,
    ) -> Result<AddressList, HelloError> {
        let Some(bytes) = field.array_bytes()? else { return Ok(AddressList::default()) };
        if let Some(list) = self.known.and_then(|known| known.get(bytes)) {
            self.members_listed += list.len();
            return match self.members_listed > MAX_LISTED_MEMBERS {
                true => Err(HelloError::TooManyMembers { field: name }),
                false => Ok(list),
            };
        }
        let list = self.read_addresses(name, field)?;
        if let Some(known) = self.known {
            known.keep(bytes, &list);
        }
        Ok(list)
    }

    fn read_addresses(
        &mut self,
        name: &'static str,
        field: &Field<'_>,
    ) -> Result<AddressList, HelloError> {
        let mut addresses = Vec::new();
        let Some(entries) = field.array()? else { return Ok(AddressList::default()) };
        for entry in entries {
            let entry = entry?;
            if self.members_listed == MAX_LISTED_MEMBERS {
                return Err(HelloError::TooManyMembers { field: name });
            }
            self.members_listed += 1;
            // A set lists each member once, so that an equal one is not looked for: with
            // 1,000 members it would cost more than all the rest.
            match entry.text(usize::MAX)? {
                Some(text) => addresses.push(parsed_address(name, text)?),
                None => {
                    let found = entry.element_type();
                    let expected = "an array of strings";
                    return Err(FieldError::WrongType { field: name, expected, found }.into());
                }
            }
        }
        Ok(addresses.into())
    }

    fn optional_address(
        &self,
        name: &'static str,
        field: &Field<'_>,
    ) -> Result<Option<ServerAddress>, HelloError> {
        let Some(text) = field.text(usize::MAX)? else { return Ok(None) };
        // `primary` and `me` nearly always repeat a listed host. Sharing it saves the allocations
        // that make up half of the parser's time.
        if let Some(known) = self.reply.members().take(SHARING_LIMIT).find(|a| a.as_str() == text) {
            return Ok(Some(known.clone()));
        }
        parsed_address(name, text).map(Some)
    }

    fn finish(self) -> HelloReply {
        let mut reply = self.reply;
        reply.is_writable_primary = self.is_writable_primary.or(self.ismaster).unwrap_or_default();
        reply
    }
}

/// The address type has its own bound on length.
fn parsed_address(name: &'static str, text: &str) -> Result<ServerAddress, HelloError> {
    text.parse().map_err(|source| HelloError::Address { field: name, source })
}

/// How many listed members a repeated address is compared with: a whole set, and no more, so that
/// the work stays linear whatever is listed.
const SHARING_LIMIT: usize = 50;

fn parse_last_write(document: &RawDocument) -> Result<LastWrite, FieldError> {
    let mut last_write = LastWrite::default();
    for element in elements(document, "lastWrite") {
        let element = element?;
        match element.key().as_str() {
            "opTime" => {
                last_write.op_time = parse_op_time(&Field::new("lastWrite.opTime", element))?;
            }
            "lastWriteDate" => {
                last_write.last_write_date =
                    Field::new("lastWrite.lastWriteDate", element).date_time()?.map(date_time_from);
            }
            _ => {}
        }
    }
    Ok(last_write)
}

/// `{ts, t}`, or the bare timestamp of a set from before there were terms.
fn parse_op_time(field: &Field<'_>) -> Result<Option<OpTime>, FieldError> {
    if field.element_type() == ElementType::Timestamp {
        let timestamp = field.timestamp()?.map(timestamp_from);
        return Ok(timestamp.map(|timestamp| OpTime::new(OpTime::NULL.term, timestamp)));
    }
    let Some(document) = field.document()? else { return Ok(None) };
    let mut timestamp = None;
    let mut term = None;
    for element in elements(document, "lastWrite.opTime") {
        let element = element?;
        match element.key().as_str() {
            "ts" => timestamp = Field::new("lastWrite.opTime.ts", element).timestamp()?,
            "t" => term = Field::new("lastWrite.opTime.t", element).integer()?,
            _ => {}
        }
    }
    let timestamp = timestamp.ok_or(FieldError::Missing { field: "lastWrite.opTime.ts" })?;
    Ok(Some(OpTime::new(term.unwrap_or(OpTime::NULL.term), timestamp_from(timestamp))))
}

fn parse_tags(field: &Field<'_>) -> Result<TagSet, HelloError> {
    let Some(document) = field.document()? else { return Ok(TagSet::EMPTY) };
    let mut tags = TagSet::EMPTY;
    for (position, element) in elements(document, "tags").enumerate() {
        let element = element?;
        if position == MAX_TAGS {
            return Err(HelloError::TooManyTags);
        }
        let name = element.key().as_str();
        if name.len() > MAX_TEXT_LENGTH {
            let (length, limit) = (name.len(), MAX_TEXT_LENGTH);
            return Err(FieldError::TooLong { field: "tags", length, limit }.into());
        }
        if let Some(value) = Field::new("tags", element).text(MAX_TEXT_LENGTH)? {
            tags.insert(name, value);
        }
    }
    Ok(tags)
}

#[cfg(test)]
mod tests;
