//! One framed connection to a server: requests out, replies in, one at a time.
//!
//! Owns the bytes of one stream: request ids, the check that a reply answers the request,
//! compression, exhaust replies, and the knowledge of whether the stream is still at a message
//! boundary. What the commands mean is left to others, as are time limits: wrap the futures.
//!
//! ```text
//!           begin                      whole reply
//!   Idle ──────────▶ Busy ────────────────────────────▶ Idle
//!                     │   reply with moreToCome
//!                     ├──────────────────────▶ Streaming ──▶ Busy ──▶ …
//!                     │   error, or the future is dropped
//!                     └──────────────────────▶ Broken (a Busy dropped before its end)
//! ```
//!
//! A future that is dropped leaves the connection Busy. Nothing ends that state, so the connection
//! can only be closed: a half-read reply never reaches the next operation.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bson::raw::{CStr, RawDocument, RawDocumentBuf};
use quorate_wire::{
    BodyWriter, Compressor, DecodeError, Decoder, EncodeError, MAX_MESSAGE_SIZE, MsgFlags,
    MsgWriter, OpMsg, Payload, RequestId, body_around,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// What is read at once, at least: several ordinary replies. This room is on the stack, so that a connection that waits
/// for its next reply keeps none.
const READ_CHUNK: usize = 8 * 1024;

/// The most room made at once, so that a peer's announced length alone takes no memory: it grows
/// with what has arrived.
const MAX_READ_CHUNK: usize = 1 << 20;

/// How much of the buffer for requests is kept after a large one.
const RETAINED_OUTPUT: usize = 1 << 20;

/// A request: a command, and arguments sent as document sequences.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The command, `$db` included.
    pub body: &'a RawDocument,
    /// Arguments sent beside the body.
    pub sequences: &'a [(&'a CStr, &'a [RawDocumentBuf])],
    /// `exhaustAllowed` for a request that takes several replies, `moreToCome` for one that wants
    /// none.
    pub flags: MsgFlags,
}

impl<'a> Request<'a> {
    /// A command that is answered by one reply.
    pub fn new(body: &'a RawDocument) -> Self {
        Self { body, sequences: &[], flags: MsgFlags::NONE }
    }
}

/// Where the stream is between messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At a message boundary; the next message is ours.
    Idle,
    /// In the middle of something. A connection that stays so is never used again.
    Busy,
    /// At a message boundary; the next message is another reply, to this id.
    Streaming(RequestId),
}

/// A connection over any stream.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    decoder: Decoder,
    /// The latest request.
    output: Vec<u8>,
    /// Where its body ends.
    body_end: usize,
    /// How much of it the stream has taken.
    sent: usize,
    /// Whether all of it is on its way.
    flushed: bool,
    next_request: i32,
    state: State,
    compressor: Option<Compressor>,
    max_message_size: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// A connection over a fresh stream.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: Decoder::new(),
            output: Vec::new(),
            body_end: 0,
            sent: 0,
            flushed: true,
            next_request: 1,
            state: State::Idle,
            compressor: None,
            max_message_size: MAX_MESSAGE_SIZE,
        }
    }

    /// Compresses what may be compressed from now on.
    pub fn set_compressor(&mut self, compressor: Option<Compressor>) {
        self.compressor = compressor;
    }

    /// Refuses to send messages longer than the server takes.
    pub fn set_max_message_size(&mut self, limit: usize) {
        self.max_message_size = limit.min(MAX_MESSAGE_SIZE);
    }

    /// Whether a request can be sent: no error has happened, no future was dropped in the middle,
    /// no further reply is announced, and the server has not sent anything unasked.
    pub fn is_usable(&self) -> bool {
        self.state == State::Idle && !self.decoder.has_input()
    }

    /// Whether the server announced another reply.
    pub fn is_streaming(&self) -> bool {
        matches!(self.state, State::Streaming(_))
    }

    /// Sends a request and waits for its reply, which is lent until the next call.
    ///
    /// After a reply with `moreToCome`, [`next_reply`](Self::next_reply) waits for the next one.
    ///
    /// # Errors
    ///
    /// If the stream breaks or the server does not keep to the protocol. The connection is not
    /// usable then. A request that is too long is refused before anything is sent, and the
    /// connection stays usable.
    pub async fn round_trip(&mut self, request: Request<'_>) -> Result<OpMsg<'_>, ConnectionError> {
        debug_assert!(!request.flags.contains(MsgFlags::MORE_TO_COME), "it wants no reply");
        let id = self.send(request).await?;
        self.receive(id, request.flags.contains(MsgFlags::EXHAUST_ALLOWED)).await
    }

    /// Sends a request that wants no reply (`moreToCome` is set).
    ///
    /// # Errors
    ///
    /// As [`round_trip`](Self::round_trip).
    pub async fn send_unacknowledged(
        &mut self,
        mut request: Request<'_>,
    ) -> Result<(), ConnectionError> {
        request.flags = request.flags.with(MsgFlags::MORE_TO_COME);
        self.send(request).await?;
        self.end_unacknowledged();
        Ok(())
    }

    /// Waits for the next of several replies.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::NotStreaming`] if none was announced; otherwise as
    /// [`round_trip`](Self::round_trip).
    pub async fn next_reply(&mut self) -> Result<OpMsg<'_>, ConnectionError> {
        let State::Streaming(previous) = self.state else {
            return Err(ConnectionError::NotStreaming);
        };
        self.state = State::Busy;
        self.receive(previous, true).await
    }

    /// Says goodbye to the transport (a TLS close, a TCP FIN). Errors do not matter any more.
    pub async fn shut_down(mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Writes the body of the next request, to which `add` appends. Nothing is sent, and the request before is
    /// forgotten.
    pub(crate) fn compose<E>(
        &mut self,
        command: &RawDocument,
        add: impl FnOnce(&mut BodyWriter<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let added = add(&mut BodyWriter::new(&mut self.output, command));
        self.body_end = self.output.len();
        added
    }

    /// The body of the latest request.
    pub(crate) fn composed(&self) -> Result<&RawDocument, EncodeError> {
        body_around(&self.output[..self.body_end.min(self.output.len())])
    }

    /// How long that body is.
    pub(crate) fn composed_length(&self) -> usize {
        self.composed().map_or(self.body_end, |body| body.as_bytes().len())
    }

    /// Whether [`composed`](Self::composed) can be asked for after the reply as well, if nothing is sent beside it.
    pub(crate) fn keeps_composed(&self) -> bool {
        self.compressor.is_none() && self.output.capacity() <= RETAINED_OUTPUT
    }

    /// Makes a request of what was composed, for [`poll_send`](Self::poll_send).
    pub(crate) fn begin(
        &mut self,
        flags: MsgFlags,
        sequences: &[(&CStr, &[RawDocumentBuf])],
    ) -> Result<RequestId, ConnectionError> {
        if !self.is_usable() {
            return Err(ConnectionError::Unusable);
        }
        let id = RequestId(self.next_request);
        let mut writer = MsgWriter::around(&mut self.output, id, RequestId(0), flags)
            .limit(self.max_message_size);
        for (name, documents) in sequences {
            writer = writer.sequence(name, documents.iter().map(|document| &**document));
        }
        writer.finish(self.compressor.as_mut())?;
        self.next_request = self.next_request.wrapping_add(1);
        self.sent = 0;
        self.flushed = false;
        self.state = State::Busy;
        Ok(id)
    }

    /// Sends what was begun.
    pub(crate) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        while self.sent < self.output.len() {
            let rest = &self.output[self.sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into())),
                count => self.sent += count,
            }
        }
        // A stream that encrypts may hold some of it back.
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.flushed = true;
        Poll::Ready(Ok(()))
    }

    /// Sends what was begun, and reads until a whole message is here: see [`take_reply`](Self::take_reply).
    pub(crate) fn poll_round_trip(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        if !self.flushed {
            ready!(self.poll_send(context))?;
        }
        self.poll_fill(context)
    }

    /// What was sent wants no reply.
    pub(crate) fn end_unacknowledged(&mut self) {
        self.state = State::Idle;
        self.shrink();
    }

    /// Keeps no more memory than most requests need.
    fn shrink(&mut self) {
        if self.output.capacity() > RETAINED_OUTPUT {
            self.output = Vec::new();
        }
    }

    /// Reads until a whole message is here.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        debug_assert_eq!(self.state, State::Busy);
        loop {
            let missing = self.decoder.missing()?;
            if missing == 0 {
                return Poll::Ready(Ok(()));
            }
            let inside_a_message = self.decoder.has_input();
            let read = match missing {
                0..=READ_CHUNK => {
                    let mut space = [const { MaybeUninit::uninit() }; READ_CHUNK];
                    let mut piece = ReadBuf::uninit(&mut space);
                    ready!(Pin::new(&mut self.stream).poll_read(context, &mut piece))?;
                    self.decoder.feed(piece.filled());
                    piece.filled().len()
                }
                _ => {
                    let input = self.decoder.input();
                    input.reserve(missing.min(MAX_READ_CHUNK));
                    // The future has no state besides its buffer: a new one goes on where the last has stopped.
                    ready!(pin!(self.stream.read_buf(input)).poll(context))?
                }
            };
            if read == 0 {
                return Poll::Ready(Err(ConnectionError::Closed { inside_a_message }));
            }
        }
    }

    async fn send(&mut self, request: Request<'_>) -> Result<RequestId, ConnectionError> {
        let Ok(()) = self.compose(request.body, |_| Ok::<_, Infallible>(()));
        let id = self.begin(request.flags, request.sequences)?;
        poll_fn(|context| self.poll_send(context)).await?;
        Ok(id)
    }

    async fn receive(
        &mut self,
        request: RequestId,
        several: bool,
    ) -> Result<OpMsg<'_>, ConnectionError> {
        poll_fn(|context| self.poll_fill(context)).await?;
        self.take_reply(request, several)
    }

    /// The reply that was read.
    pub(crate) fn take_reply(
        &mut self,
        request: RequestId,
        several: bool,
    ) -> Result<OpMsg<'_>, ConnectionError> {
        self.shrink();
        let Some(message) = self.decoder.next_message()? else {
            return Err(ConnectionError::Unusable);
        };
        let answered = message.header.response_to;
        if answered != request {
            return Err(ConnectionError::WrongResponse { request, answered });
        }
        let Payload::Msg(reply) = message.payload else {
            return Err(ConnectionError::NotAReply);
        };
        if reply.flags().contains(MsgFlags::MORE_TO_COME) {
            if !several {
                return Err(ConnectionError::UnaskedStream);
            }
            self.state = State::Streaming(message.header.request_id);
        } else {
            self.state = State::Idle;
        }
        Ok(reply)
    }
}

/// Why a connection is of no use any more.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The stream broke.
    #[error("the connection broke: {0}")]
    Io(Arc<io::Error>),
    /// The server closed the stream.
    #[error("the server closed the connection{}", if *.inside_a_message { " inside a message" } else { "" })]
    Closed {
        /// Whether part of a message had arrived.
        inside_a_message: bool,
    },
    /// The server does not keep to the protocol.
    #[error("{0}")]
    Decode(#[from] DecodeError),
    /// The request cannot be sent. The connection is still good.
    #[error("{0}")]
    Encode(#[from] EncodeError),
    /// A reply to something else.
    #[error("the server answered request {answered} when request {request} was open")]
    WrongResponse {
        /// What was asked.
        request: RequestId,
        /// What was answered.
        answered: RequestId,
    },
    /// A message that servers do not send.
    #[error("the server sent a message that is not an OP_MSG")]
    NotAReply,
    /// `moreToCome` without `exhaustAllowed`.
    #[error("the server announced further replies to a request that takes one")]
    UnaskedStream,
    /// The caller asks for a further reply where none was announced.
    #[error("no further reply was announced on this connection")]
    NotStreaming,
    /// An earlier operation was given up in the middle, or failed.
    #[error("the connection was left in the middle of an operation and must be closed")]
    Unusable,
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl ConnectionError {
    /// Whether the specification calls this a network error: the stream broke or was closed.
    pub fn is_network(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Closed { .. })
    }
}

#[cfg(test)]
mod tests;
