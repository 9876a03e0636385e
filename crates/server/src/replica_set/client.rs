//! A small client of other members: one connection, one message at a time or a stream of them.

use std::io;
use std::time::Duration;

use bson::{Document, RawDocumentBuf};
use quorate_protocol::ServerAddress;
use quorate_wire::{
    DecodeError, Decoder, EncodeError, MsgFlags, MsgWriter, Payload, RequestId, find_field,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::dialer::Dialer;
use crate::net::{ReadHalf, Stream, WriteHalf};

/// Room for the next read.
const READ_CHUNK: usize = 64 * 1024;

/// Talking to another member failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("the connection failed: {0}")]
    Socket(#[from] io::Error),
    #[error("the member sent something that is no message: {0}")]
    Decode(#[from] DecodeError),
    #[error("a request could not be encoded: {0}")]
    Encode(#[from] EncodeError),
    #[error("the member sent something that is no reply: {0}")]
    Reply(String),
    #[error("the member did not answer in time")]
    TimedOut,
    #[error("the member closed the connection")]
    Closed,
    #[error("the member refused: {message} ({code})")]
    Refused { code: i32, message: String },
}

/// The receiving half: whole messages out of a stream of bytes.
pub(super) struct Receiver {
    reader: ReadHalf<Stream>,
    decoder: Decoder,
}

/// A message from the other side.
pub(super) struct Received {
    pub(super) response_to: RequestId,
    pub(super) more_to_come: bool,
    pub(super) body: RawDocumentBuf,
}

impl Receiver {
    pub(super) fn new(reader: ReadHalf<Stream>) -> Self {
        Self { reader, decoder: Decoder::new() }
    }

    /// The next message. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Received, ClientError> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                let Payload::Msg(msg) = &message.payload else {
                    return Err(ClientError::Reply("it is no OP_MSG".to_owned()));
                };
                return Ok(Received {
                    response_to: message.header.response_to,
                    more_to_come: msg.flags().contains(MsgFlags::MORE_TO_COME),
                    body: msg.body().to_owned(),
                });
            }
            let input = self.decoder.input();
            input.reserve(READ_CHUNK);
            if self.reader.read_buf(input).await? == 0 {
                return Err(ClientError::Closed);
            }
        }
    }
}

/// Encodes a command.
pub(super) fn encode(
    id: RequestId,
    flags: MsgFlags,
    body: &RawDocumentBuf,
) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::with_capacity(body.as_bytes().len() + 32);
    MsgWriter::new(&mut bytes, id, RequestId(0), flags, body).finish(None)?;
    Ok(bytes)
}

/// One connection for a few commands in a row, each answered before the next.
pub(super) struct Client {
    receiver: Receiver,
    writer: WriteHalf<Stream>,
    next: i32,
    timeout: Duration,
}

impl Client {
    pub(super) async fn connect(
        dialer: &Dialer,
        address: &ServerAddress,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let stream = tokio::time::timeout(timeout, dialer.connect(address)).await;
        let (reader, writer) = stream.map_err(|_| ClientError::TimedOut)??.into_split();
        Ok(Self { receiver: Receiver::new(reader), writer, next: 1, timeout })
    }

    /// Sends a command and gives its reply, which says `ok: 1`.
    pub(super) async fn run(&mut self, command: &Document) -> Result<RawDocumentBuf, ClientError> {
        self.send(command, MsgFlags::NONE).await?;
        let received = tokio::time::timeout(self.timeout, self.receiver.next()).await;
        check(received.map_err(|_| ClientError::TimedOut)??.body)
    }

    /// Sends a command whose replies are read by [`next`](Self::next).
    pub(super) async fn send(
        &mut self,
        command: &Document,
        flags: MsgFlags,
    ) -> Result<(), ClientError> {
        let body = RawDocumentBuf::try_from(command)
            .map_err(|error| ClientError::Reply(error.to_string()))?;
        let bytes = encode(RequestId(self.next), flags, &body)?;
        self.next = self.next.wrapping_add(1);
        self.writer.write_all(&bytes).await?;
        self.writer.flush().await?;
        Ok(())
    }

    pub(super) async fn next(&mut self) -> Result<Received, ClientError> {
        self.receiver.next().await
    }

    /// Whether the next message is here already.
    pub(super) fn has_more(&self) -> bool {
        matches!(self.receiver.decoder.missing(), Ok(0))
    }
}

/// The reply, if it is no refusal.
pub(super) fn check(body: RawDocumentBuf) -> Result<RawDocumentBuf, ClientError> {
    let ok = find_field(&body, "ok");
    if ok.is_some_and(|ok| ok.double() == Some(1.0) || ok.int32() == Some(1)) {
        return Ok(body);
    }
    let code = body.get_i32("code").unwrap_or(1);
    let message = body.get_str("errmsg").unwrap_or("no message").to_owned();
    Err(ClientError::Refused { code, message })
}
