//! One framed connection to a server: a request out, its reply in.
//!
//! Owns the bytes of one stream: request ids, the check that a reply answers the request,
//! compression, and what the handshake told about this connection's limits. After any error the
//! position in the stream is unknown, so the owner drops the connection; a request that is refused
//! before anything is sent is the one exception. What commands mean is left to others.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::{CStr, RawDocument, RawDocumentBuf};
use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::PoolGeneration;
use quorate_tls_config::rustls::ClientConfig;
use quorate_wire::{
    Compressor, ConnectionLimits, DecodeError, Decoder, EncodeError, MsgFlags, MsgWriter, OpCode,
    Payload, RequestId,
};

use crate::clock::{Clock, Deadline};
use crate::net::{DialError, Socket, is_timeout};

/// The least room made before reading: an ordinary reply fits.
const READ_CHUNK: usize = 8 * 1024;

/// The most room made at once: a length that a server merely announces takes no more memory.
const MAX_READ_CHUNK: usize = 256 * 1024;

/// How much of the buffer for requests is kept after a large one.
const RETAINED_OUTPUT: usize = 1 << 20;

/// Why a request has no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// There is no connection to begin with.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The stream broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
    /// The server hung up.
    #[error("the server closed the connection{}", if *.within_message { " in the middle of a message" } else { "" })]
    Closed {
        /// Part of the reply had arrived.
        within_message: bool,
    },
    /// Nothing came in time.
    #[error("no reply within {}", Milliseconds(*.timeout))]
    TimedOut {
        /// The time that was given.
        timeout: Option<Duration>,
    },
    /// The server sent bytes that are no message.
    #[error("the server does not keep to the protocol: {0}")]
    Decode(#[from] DecodeError),
    /// The server answered something else.
    #[error(
        "the server does not keep to the protocol: it answered request {answered}, but {sent} was \
         asked"
    )]
    WrongResponse {
        /// The request that was sent.
        sent: RequestId,
        /// The request that the reply names.
        answered: RequestId,
    },
    /// The server answered with another kind of message.
    #[error("the server does not keep to the protocol: it answered with {0} instead of OP_MSG")]
    WrongOpCode(OpCode),
    /// The server announced or sent unsolicited replies.
    #[error("the server does not keep to the protocol: it sends further replies unasked")]
    UnaskedReplies,
    /// The reply is no reply.
    #[error("the server's reply cannot be read: {0}")]
    BadReply(String),
    /// The request must not be sent. The caller is at fault; the connection is as it was.
    #[error(transparent)]
    Request(#[from] EncodeError),
}

impl ConnectionError {
    /// Whether the only thing known is that nothing came in time.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Dial(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Whether the stream failed, rather than a message on it.
    pub fn is_network(&self) -> bool {
        matches!(
            self,
            Self::Dial(_) | Self::Broken(_) | Self::Closed { .. } | Self::TimedOut { .. }
        )
    }

    /// Whether nothing was sent, so that the connection can still be used.
    pub fn is_callers_fault(&self) -> bool {
        matches!(self, Self::Request(_))
    }
}

struct Milliseconds(Option<Duration>);

impl std::fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(timeout) => write!(f, "{} ms", timeout.as_millis()),
            None => f.write_str("the time that the operating system gives"),
        }
    }
}

/// A connection, which is also the one that its server is monitored by.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    decoder: Decoder,
    output: Vec<u8>,
    last_request: i32,
    compressor: Option<Compressor>,
    pub(crate) limits: ConnectionLimits,
    /// Of the pool when this connection was opened.
    pub(crate) generation: PoolGeneration,
    /// From the handshake; 0 before.
    pub(crate) max_wire_version: i32,
    pub(crate) last_used: MonotonicTime,
    /// `saslSupportedMechs`: what the server said of the user's mechanisms.
    pub(crate) mechanisms: Option<Vec<String>>,
    /// Whether the server knows who we are.
    pub(crate) logged_in: bool,
}

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) body: &'a RawDocument,
    pub(crate) sequence: Option<(&'a CStr, &'a [RawDocumentBuf])>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(body: &'a RawDocument) -> Self {
        Self { body, sequence: None }
    }
}

impl Connection {
    /// Opens a connection. The handshake is still to be made.
    pub(crate) fn open(
        server: &ServerAddress,
        tls: Option<&Arc<ClientConfig>>,
        generation: PoolGeneration,
        clock: &dyn Clock,
        timeout: Option<Duration>,
    ) -> Result<Self, DialError> {
        Ok(Self {
            socket: Socket::dial(server, tls, clock, timeout)?,
            decoder: Decoder::new(),
            output: Vec::new(),
            last_request: 0,
            compressor: None,
            limits: ConnectionLimits::default(),
            generation,
            max_wire_version: 0,
            last_used: clock.now(),
            mechanisms: None,
            logged_in: false,
        })
    }

    pub(crate) fn set_compressor(&mut self, compressor: Option<Compressor>) {
        self.compressor = compressor;
    }

    /// Sends a request and waits for its reply, both within `timeout`.
    pub(crate) fn round_trip(
        &mut self,
        request: Request<'_>,
        clock: &dyn Clock,
        timeout: Option<Duration>,
    ) -> Result<RawDocumentBuf, ConnectionError> {
        let deadline = Deadline::after(clock, timeout);
        let told = |error: io::Error| match is_timeout(&error) {
            true => ConnectionError::TimedOut { timeout },
            false => ConnectionError::Broken(error),
        };
        let sent = self.encode(request)?;
        self.socket.write_all(&self.output, clock, deadline).map_err(told)?;
        self.fill(clock, deadline, told)?;
        let reply = self.take_reply(sent)?;
        if self.decoder.has_input() {
            // A late reply would be taken for the reply to the next request.
            return Err(ConnectionError::UnaskedReplies);
        }
        self.last_used = clock.now();
        Ok(reply)
    }

    fn encode(&mut self, request: Request<'_>) -> Result<RequestId, EncodeError> {
        self.last_request = self.last_request.checked_add(1).unwrap_or(1);
        let id = RequestId(self.last_request);
        self.output.clear();
        self.output.shrink_to(RETAINED_OUTPUT);
        let flags = MsgFlags::NONE;
        let mut writer = MsgWriter::new(&mut self.output, id, RequestId(0), flags, request.body)
            .limit(self.limits.max_message_size);
        if let Some((name, documents)) = request.sequence {
            writer = writer.sequence(name, documents.iter().map(|document| &**document));
        }
        writer.finish(self.compressor.as_mut())?;
        Ok(id)
    }

    /// Reads until a whole message is here.
    fn fill(
        &mut self,
        clock: &dyn Clock,
        deadline: Deadline,
        told: impl Fn(io::Error) -> ConnectionError,
    ) -> Result<(), ConnectionError> {
        // Each round reads at least one byte, and the decoder refuses more than the message limit.
        loop {
            let missing = self.decoder.missing()?;
            if missing == 0 {
                return Ok(());
            }
            let within_message = self.decoder.has_input();
            let buffer = self.decoder.input();
            let start = buffer.len();
            buffer.resize(start + missing.clamp(READ_CHUNK, MAX_READ_CHUNK), 0);
            let read = self.socket.read(&mut buffer[start..], clock, deadline);
            buffer.truncate(start + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(ConnectionError::Closed { within_message }),
                Ok(_) => {}
                Err(error) => return Err(told(error)),
            }
        }
    }

    fn take_reply(&mut self, sent: RequestId) -> Result<RawDocumentBuf, ConnectionError> {
        let Some(message) = self.decoder.next_message()? else {
            return Err(ConnectionError::Closed { within_message: true });
        };
        if message.header.response_to != sent {
            let answered = message.header.response_to;
            return Err(ConnectionError::WrongResponse { sent, answered });
        }
        match message.payload {
            Payload::Msg(reply) if reply.flags().contains(MsgFlags::MORE_TO_COME) => {
                Err(ConnectionError::UnaskedReplies)
            }
            Payload::Msg(reply) => Ok(reply.body().to_owned()),
            _ => Err(ConnectionError::WrongOpCode(message.header.op_code)),
        }
    }
}
