//! Reading what the first hello reply on a connection says about that connection.
//!
//! The same document that `hello` reads as news about the server also carries the limits of the
//! connection, the compressors both sides know, and the first step of authentication. Follows the
//! MongoDB Handshake specification (`source/mongodb-handshake/handshake.md`).

use bson::raw::RawDocument;
use quorate_protocol::HelloReply;

use crate::compression::{CompressionError, Compressor, CompressorId};
use crate::field::{Field, FieldError, elements};
use crate::header::{MAX_BSON_OBJECT_SIZE, MAX_MESSAGE_SIZE};
use crate::hello::{HelloError, KnownMembers, MAX_TEXT_LENGTH, parse_hello_of};

/// `maxWriteBatchSize` of a server that does not say.
const DEFAULT_MAX_WRITE_BATCH_SIZE: usize = 100_000;

/// How many mechanisms or compressors a server may list.
const MAX_LISTED_NAMES: usize = 32;

/// What a server takes on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `maxBsonObjectSize`.
    pub max_bson_object_size: usize,
    /// `maxMessageSizeBytes`, never more than [`MAX_MESSAGE_SIZE`].
    pub max_message_size: usize,
    /// `maxWriteBatchSize`.
    pub max_write_batch_size: usize,
}

impl Default for ConnectionLimits {
    /// Those of a server that does not say.
    fn default() -> Self {
        Self {
            max_bson_object_size: MAX_BSON_OBJECT_SIZE,
            max_message_size: MAX_MESSAGE_SIZE,
            max_write_batch_size: DEFAULT_MAX_WRITE_BATCH_SIZE,
        }
    }
}

/// The first reply on a connection.
#[derive(Clone, Debug)]
pub struct HandshakeReply<'a> {
    /// What it says about the server.
    pub hello: HelloReply,
    /// What the server takes.
    pub limits: ConnectionLimits,
    /// `compression`: what the server shares with the client, without names that we do not know.
    pub compressors: Vec<CompressorId>,
    /// `saslSupportedMechs`: the mechanisms of the user that was asked about.
    pub sasl_supported_mechs: Option<Vec<String>>,
    /// `speculativeAuthenticate`: the server's answer to the first step of authentication.
    pub speculative_authenticate: Option<&'a RawDocument>,
    /// `connectionId`: what the server calls this connection.
    pub connection_id: Option<i64>,
}

impl HandshakeReply<'_> {
    /// The compressor for the connection: the first of the client's list that the server names as well
    /// (compression/OP_COMPRESSED.md).
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn compressor(
        &self,
        offered: &[CompressorId],
        zlib_level: Option<i32>,
    ) -> Result<Option<Compressor>, CompressionError> {
        let agreed = offered.iter().find(|id| self.compressors.contains(id));
        agreed
            .map(|&id| match (id, zlib_level) {
                (CompressorId::Zlib, Some(level)) => Ok(Compressor::zlib(level)),
                _ => Compressor::new(id),
            })
            .transpose()
    }
}

/// Reads the first reply on a connection.
///
/// # Errors
///
/// If a field that matters has the wrong type or is beyond a bound. The error names the field.
pub fn parse_handshake(reply: &RawDocument) -> Result<HandshakeReply<'_>, HelloError> {
    parse_handshake_of(reply, &KnownMembers::default())
}

/// The same, sharing the lists of members with the replies that were read before.
///
/// # Errors
///
/// As [`parse_handshake`].
pub fn parse_handshake_of<'a>(
    reply: &'a RawDocument,
    known: &KnownMembers,
) -> Result<HandshakeReply<'a>, HelloError> {
    let mut handshake = HandshakeReply {
        hello: parse_hello_of(reply, known)?,
        limits: ConnectionLimits::default(),
        compressors: Vec::new(),
        sasl_supported_mechs: None,
        speculative_authenticate: None,
        connection_id: None,
    };
    for element in elements(reply, "the reply") {
        let element = element?;
        match element.key().as_str() {
            "maxBsonObjectSize" => {
                let size = Field::new("maxBsonObjectSize", element).size()?;
                handshake.limits.max_bson_object_size = size.unwrap_or(MAX_BSON_OBJECT_SIZE);
            }
            "maxMessageSizeBytes" => {
                let size = Field::new("maxMessageSizeBytes", element).size()?;
                handshake.limits.max_message_size =
                    size.unwrap_or(MAX_MESSAGE_SIZE).min(MAX_MESSAGE_SIZE);
            }
            "maxWriteBatchSize" => {
                let size = Field::new("maxWriteBatchSize", element).size()?;
                handshake.limits.max_write_batch_size =
                    size.unwrap_or(DEFAULT_MAX_WRITE_BATCH_SIZE);
            }
            "compression" => {
                let names = names("compression", &Field::new("compression", element))?;
                handshake.compressors =
                    names.iter().filter_map(|name| CompressorId::from_name(name)).collect();
            }
            "saslSupportedMechs" => {
                let field = Field::new("saslSupportedMechs", element);
                handshake.sasl_supported_mechs = Some(names("saslSupportedMechs", &field)?);
            }
            "speculativeAuthenticate" => {
                handshake.speculative_authenticate =
                    Field::new("speculativeAuthenticate", element).document()?;
            }
            "connectionId" => {
                handshake.connection_id = Field::new("connectionId", element).integer()?;
            }
            _ => {}
        }
    }
    Ok(handshake)
}

fn names(field_name: &'static str, field: &Field<'_>) -> Result<Vec<String>, FieldError> {
    let Some(entries) = field.array()? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        if names.len() == MAX_LISTED_NAMES {
            let (length, limit) = (names.len() + 1, MAX_LISTED_NAMES);
            return Err(FieldError::TooLong { field: field_name, length, limit });
        }
        names.extend(entry?.text(MAX_TEXT_LENGTH)?.map(str::to_owned));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn limits_default_where_the_server_is_silent() {
        let reply = rawdoc! { "ok": 1 };
        let handshake = parse_handshake(&reply).unwrap();
        assert_eq!(handshake.limits.max_bson_object_size, 16_777_216);
        assert_eq!(handshake.limits.max_message_size, 48_000_000);
        assert_eq!(handshake.limits.max_write_batch_size, 100_000);
        assert!(handshake.compressors.is_empty() && handshake.sasl_supported_mechs.is_none());
    }

    #[test]
    fn what_the_server_says_is_taken() {
        let reply = rawdoc! {
            "maxBsonObjectSize": 1000,
            "maxMessageSizeBytes": 2000,
            "maxWriteBatchSize": 10,
            "compression": ["snappy", "brotli", "zstd"],
            "saslSupportedMechs": ["SCRAM-SHA-256"],
            "speculativeAuthenticate": { "conversationId": 1 },
            "connectionId": 7_i64,
            "ok": 1,
        };
        let handshake = parse_handshake(&reply).unwrap();
        assert_eq!(handshake.limits.max_bson_object_size, 1000);
        assert_eq!(handshake.limits.max_message_size, 2000);
        assert_eq!(handshake.limits.max_write_batch_size, 10);
        assert_eq!(handshake.compressors, [CompressorId::Snappy, CompressorId::Zstd]);
        assert_eq!(handshake.sasl_supported_mechs.unwrap(), ["SCRAM-SHA-256"]);
        let speculative = handshake.speculative_authenticate.unwrap();
        assert_eq!(speculative.get_i32("conversationId").unwrap(), 1);
        assert_eq!(handshake.connection_id, Some(7));
    }

    #[test]
    fn the_compressor_is_the_first_of_the_client_that_the_server_knows() {
        use CompressorId::{Snappy, Zlib, Zstd};
        let reply = rawdoc! { "compression": ["snappy", "zstd"] };
        let handshake = parse_handshake(&reply).unwrap();
        let agreed = |offered: &[CompressorId]| {
            handshake.compressor(offered, Some(1)).unwrap().map(|compressor| compressor.id())
        };
        assert_eq!(agreed(&[Zlib, Zstd, Snappy]), Some(Zstd));
        assert_eq!(agreed(&[Snappy, Zstd]), Some(Snappy));
        assert_eq!(agreed(&[Zlib]), None);
        assert_eq!(agreed(&[]), None);
    }

    #[test]
    fn wrong_types_are_named() {
        for (reply, field) in [
            (rawdoc! { "maxBsonObjectSize": -1 }, "maxBsonObjectSize"),
            (rawdoc! { "compression": "zstd" }, "compression"),
            (rawdoc! { "saslSupportedMechs": [1] }, "saslSupportedMechs"),
            (rawdoc! { "speculativeAuthenticate": 1 }, "speculativeAuthenticate"),
        ] {
            let error = parse_handshake(&reply).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
