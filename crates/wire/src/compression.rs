//! `OP_COMPRESSED`: another message, wrapped.
//!
//! Follows the wire compression specification (`source/compression/OP_COMPRESSED.md`). The sizes a
//! peer claims are checked against the message limit before anything is allocated, and what comes
//! out must be exactly as long as claimed. Which compressor to use is negotiated by others.

use std::fmt;

use crate::cursor::Cursor;
use crate::error::DecodeError;
use crate::header::{HEADER_LENGTH, OpCode};
use crate::op_msg::patch_length;

/// `originalOpcode`, `uncompressedSize` and `compressorId`.
const PREFIX_LENGTH: usize = 4 + 4 + 1;

/// zstd's own default, used by servers as well.
const ZSTD_LEVEL: i32 = 3;

/// Commands that carry secrets, or on which compression is still to be agreed. Lower-case: servers
/// take some of them in any case (`isMaster`, `ismaster`).
const NEVER_COMPRESSED: [&str; 11] = [
    "hello", "ismaster", "saslstart", "saslcontinue", "getnonce", "authenticate", "createuser",
    "updateuser", "copydbsaslstart", "copydbgetnonce", "copydb",
];

/// Whether a message with this command may be compressed.
pub fn is_compressible(command_name: &str) -> bool {
    !NEVER_COMPRESSED.iter().any(|name| name.eq_ignore_ascii_case(command_name))
}

quorate_protocol::named! {
    /// The compressors, in the order of the numbers by which messages name them.
    ///
    /// [`name`](Self::name) is the name in handshakes and connection strings.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum CompressorId {
        /// No compression; for tests.
        Noop = "noop",
        /// snappy, without framing.
        Snappy = "snappy",
        /// zlib.
        Zlib = "zlib",
        /// zstd.
        Zstd = "zstd",
    }
}

impl CompressorId {
    fn from_byte(byte: u8) -> Result<Self, CompressionError> {
        let known = Self::ALL.get(usize::from(byte)).copied();
        known.ok_or(CompressionError::UnknownCompressor(byte))
    }
}

/// Compresses messages, keeping its working memory from one to the next.
pub struct Compressor {
    state: State,
    scratch: Vec<u8>,
}

enum State {
    Noop,
    Snappy(Box<snap::raw::Encoder>),
    Zlib(flate2::Compression),
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Compressor {
    /// A compressor with its usual effort.
    ///
    /// # Errors
    ///
    /// If its library has no memory for it.
    pub fn new(id: CompressorId) -> Result<Self, CompressionError> {
        let state = match id {
            CompressorId::Noop => State::Noop,
            CompressorId::Snappy => State::Snappy(Box::new(snap::raw::Encoder::new())),
            CompressorId::Zlib => State::Zlib(flate2::Compression::default()),
            CompressorId::Zstd => State::Zstd(
                zstd::bulk::Compressor::new(ZSTD_LEVEL)
                    .map_err(|error| CompressionError::failed(CompressorId::Zstd, error))?,
            ),
        };
        Ok(Self { state, scratch: Vec::new() })
    }

    /// zlib with `zlibCompressionLevel`: −1 for the default, 0 to 9 otherwise.
    pub fn zlib(level: i32) -> Self {
        let level = match u32::try_from(level) {
            Ok(level) => flate2::Compression::new(level.min(9)),
            Err(_) => flate2::Compression::default(),
        };
        Self { state: State::Zlib(level), scratch: Vec::new() }
    }

    /// Which compressor this is.
    pub fn id(&self) -> CompressorId {
        match self.state {
            State::Noop => CompressorId::Noop,
            State::Snappy(_) => CompressorId::Snappy,
            State::Zlib(_) => CompressorId::Zlib,
            State::Zstd(_) => CompressorId::Zstd,
        }
    }

    /// Replaces the scratch buffer's content by `input` compressed.
    fn compress(&mut self, input: &[u8]) -> Result<(), CompressionError> {
        let id = self.id();
        self.scratch.clear();
        match &mut self.state {
            State::Noop => self.scratch.extend_from_slice(input),
            State::Snappy(encoder) => {
                self.scratch.resize(snap::raw::max_compress_len(input.len()), 0);
                let length = encoder
                    .compress(input, &mut self.scratch)
                    .map_err(|error| CompressionError::failed(id, error))?;
                self.scratch.truncate(length);
            }
            State::Zlib(level) => {
                let mut encoder = flate2::bufread::ZlibEncoder::new(input, *level);
                std::io::Read::read_to_end(&mut encoder, &mut self.scratch)
                    .map_err(|error| CompressionError::failed(id, error))?;
            }
            State::Zstd(compressor) => {
                self.scratch.reserve(zstd::zstd_safe::compress_bound(input.len()));
                compressor
                    .compress_to_buffer(input, &mut self.scratch)
                    .map_err(|error| CompressionError::failed(id, error))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compressor({})", self.id())
    }
}

/// How much working memory is kept from one message to the next.
pub(crate) const RETAINED_SCRATCH: usize = 1 << 20;

/// Replaces the message that begins at `start`, whose header is complete, by its compressed form.
/// Returns the new length.
pub(crate) fn compress_tail(
    out: &mut Vec<u8>,
    start: usize,
    op_code: OpCode,
    compressor: &mut Compressor,
) -> Result<usize, CompressionError> {
    let payload_at = start + HEADER_LENGTH;
    let uncompressed_size = out.len() - payload_at;
    compressor.compress(&out[payload_at..])?;
    out.truncate(payload_at);
    out[payload_at - 4..payload_at].copy_from_slice(&OpCode::COMPRESSED.0.to_le_bytes());
    out.extend_from_slice(&op_code.0.to_le_bytes());
    let size_at = out.len();
    out.extend_from_slice(&[0; 4]);
    patch_length(out, size_at, uncompressed_size);
    out.push(compressor.id() as u8);
    out.extend_from_slice(&compressor.scratch);
    // What it holds would not be given back.
    compressor.scratch.clear();
    compressor.scratch.shrink_to(RETAINED_SCRATCH);
    let length = out.len() - start;
    patch_length(out, start, length);
    Ok(length)
}

/// Unwraps the bytes after the header of an `OP_COMPRESSED` into `out`, which is cleared first.
/// Returns the opcode of what was wrapped.
pub(crate) fn decompress(
    bytes: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<OpCode, DecodeError> {
    let mut cursor = Cursor::new(bytes);
    let prefix = "the prefix of an OP_COMPRESSED";
    let op_code = OpCode(cursor.i32(prefix)?);
    let claimed = cursor.i32(prefix)?;
    let id = CompressorId::from_byte(cursor.u8(prefix)?)?;
    debug_assert_eq!(bytes.len() - cursor.rest().len(), PREFIX_LENGTH);
    match op_code {
        OpCode::COMPRESSED => return Err(DecodeError::NestedCompression),
        OpCode::MSG | OpCode::QUERY | OpCode::REPLY => {}
        other => return Err(DecodeError::UnsupportedOpCode(other)),
    }
    let limit = limit.saturating_sub(HEADER_LENGTH);
    let size = usize::try_from(claimed)
        .ok()
        .filter(|&size| size <= limit)
        .ok_or(CompressionError::BadSize { claimed, limit })?;
    out.clear();
    out.shrink_to(RETAINED_SCRATCH.max(size));
    inflate(id, cursor.rest(), size, out)?;
    if out.len() != size {
        return Err(CompressionError::WrongSize { claimed: size, found: out.len() }.into());
    }
    Ok(op_code)
}

/// Decompresses `input` into the empty `out`, which never grows beyond `size` bytes.
fn inflate(
    id: CompressorId,
    input: &[u8],
    size: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    match id {
        CompressorId::Noop => {
            if input.len() == size {
                out.extend_from_slice(input);
            } else {
                return Err(CompressionError::WrongSize { claimed: size, found: input.len() });
            }
        }
        CompressorId::Snappy => {
            let found = snap::raw::decompress_len(input)
                .map_err(|error| CompressionError::failed(id, error))?;
            if found != size {
                return Err(CompressionError::WrongSize { claimed: size, found });
            }
            out.resize(size, 0);
            snap::raw::Decoder::new()
                .decompress(input, out)
                .map_err(|error| CompressionError::failed(id, error))?;
        }
        CompressorId::Zlib => {
            out.reserve_exact(size);
            let mut state = flate2::Decompress::new(true);
            let status = state
                .decompress_vec(input, out, flate2::FlushDecompress::Finish)
                .map_err(|error| CompressionError::failed(id, error))?;
            if status != flate2::Status::StreamEnd || state.total_in() != input.len() as u64 {
                return Err(CompressionError::failed(
                    id,
                    "the stream does not end where it should",
                ));
            }
        }
        CompressorId::Zstd => {
            out.reserve_exact(size);
            zstd::bulk::Decompressor::new()
                .and_then(|mut state| state.decompress_to_buffer(input, out))
                .map_err(|error| CompressionError::failed(id, error))?;
        }
    }
    Ok(())
}

/// What is wrong with a compressed message, or with the compressor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressionError {
    /// An undefined compressor.
    #[error("its compressor has the unknown number {0}")]
    UnknownCompressor(u8),
    /// The claimed size is negative or over the limit. Nothing was allocated for it.
    #[error("it claims to hold {claimed} bytes; at most {limit} are accepted")]
    BadSize {
        /// The claimed size.
        claimed: i32,
        /// The accepted size.
        limit: usize,
    },
    /// The claimed size is not the size found.
    #[error("it claims to hold {claimed} bytes and holds {found}")]
    WrongSize {
        /// The claimed size.
        claimed: usize,
        /// The size found.
        found: usize,
    },
    /// The compressor's library says why.
    #[error("{compressor}: {reason}")]
    Failed {
        /// The compressor.
        compressor: CompressorId,
        /// The library's words.
        reason: String,
    },
}

impl CompressionError {
    fn failed(compressor: CompressorId, reason: impl fmt::Display) -> Self {
        Self::Failed { compressor, reason: reason.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [CompressorId; 4] =
        [CompressorId::Noop, CompressorId::Snappy, CompressorId::Zlib, CompressorId::Zstd];

    /// The bytes after the header of a message that wraps `payload`.
    fn wrap(id: CompressorId, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0; HEADER_LENGTH];
        out.extend_from_slice(payload);
        compress_tail(&mut out, 0, OpCode::MSG, &mut Compressor::new(id).unwrap()).unwrap();
        assert_eq!(out[12..16], 2012_i32.to_le_bytes());
        out.split_off(HEADER_LENGTH)
    }

    #[test]
    fn every_compressor_gives_back_what_it_took() {
        let payload = b"quorate ".repeat(1000);
        for id in ALL {
            let wrapped = wrap(id, &payload);
            assert!(id == CompressorId::Noop || wrapped.len() < payload.len() / 4, "{id}");
            let mut out = Vec::new();
            assert_eq!(decompress(&wrapped, 10_000, &mut out), Ok(OpCode::MSG), "{id}");
            assert_eq!(out, payload, "{id}");
        }
    }

    #[test]
    fn sizes_are_checked_before_memory_is_taken() {
        let payload = vec![7; 1000];
        for id in ALL {
            let wrapped = wrap(id, &payload);
            let mut out = Vec::new();
            assert_eq!(
                decompress(&wrapped, 500, &mut out),
                Err(CompressionError::BadSize { claimed: 1000, limit: 484 }.into())
            );
            assert_eq!(out.capacity(), 0);
            for claimed in [-1, 0, 999, 1001, i32::MAX] {
                let mut lying = wrapped.clone();
                lying[4..8].copy_from_slice(&i32::to_le_bytes(claimed));
                let result = decompress(&lying, 10_000, &mut out);
                assert!(matches!(result, Err(DecodeError::Compression(_))), "{id} {claimed}");
            }
        }
    }

    #[test]
    fn wrapped_wrappers_and_unknown_compressors_are_refused() {
        let mut wrapped = wrap(CompressorId::Noop, b"abc");
        wrapped[8] = 4;
        assert_eq!(
            decompress(&wrapped, 100, &mut Vec::new()),
            Err(CompressionError::UnknownCompressor(4).into())
        );
        wrapped[8] = 0;
        wrapped[..4].copy_from_slice(&OpCode::COMPRESSED.0.to_le_bytes());
        assert_eq!(decompress(&wrapped, 100, &mut Vec::new()), Err(DecodeError::NestedCompression));
    }

    #[test]
    fn a_large_message_is_not_kept_after_it_was_compressed() {
        for id in ALL {
            let mut out = vec![0; HEADER_LENGTH + 8 * RETAINED_SCRATCH];
            let mut compressor = Compressor::new(id).unwrap();
            compress_tail(&mut out, 0, OpCode::MSG, &mut compressor).unwrap();
            assert!(compressor.scratch.capacity() <= RETAINED_SCRATCH, "{id}");
        }
    }

    #[test]
    fn secrets_are_never_compressed() {
        for name in ["hello", "isMaster", "ismaster", "saslStart", "authenticate", "createUser"] {
            assert!(!is_compressible(name), "{name}");
        }
        assert!(is_compressible("insert") && is_compressible("ping"));
    }

    #[test]
    fn zlib_takes_every_level_of_the_connection_string() {
        for level in -1..=9 {
            let mut out = vec![0; HEADER_LENGTH];
            out.extend_from_slice(&[1; 100]);
            compress_tail(&mut out, 0, OpCode::MSG, &mut Compressor::zlib(level)).unwrap();
            let mut plain = Vec::new();
            decompress(&out[HEADER_LENGTH..], 1000, &mut plain).unwrap();
            assert_eq!(plain, [1; 100]);
        }
    }
}
