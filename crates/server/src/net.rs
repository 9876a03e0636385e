//! The only door to sockets, so that a simulated network can take their place.
//!
//! Owns the stream of bytes that connections read and write, whether it is encrypted or not.
//! `tls.rs` decides which peers may connect without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
pub(crate) use tokio::io::{ReadHalf, WriteHalf};
pub(crate) use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsStream;

/// A connection, encrypted or not.
pub(crate) enum Stream {
    Plain(Replayed),
    Tls(Box<TlsStream<Replayed>>),
}

impl Stream {
    /// A half for reading and a half for writing.
    pub(crate) fn into_split(self) -> (ReadHalf<Self>, WriteHalf<Self>) {
        tokio::io::split(self)
    }
}

/// Writes as much as a stream takes without waiting. Returns how much that was, and whether nothing is held back. An error
/// of the socket counts as no room: a task that waits for room meets it.
pub(crate) fn write_now(writer: &mut WriteHalf<Stream>, bytes: &[u8]) -> (usize, bool) {
    let mut context = Context::from_waker(Waker::noop());
    let mut written = 0;
    while written < bytes.len() {
        match Pin::new(&mut *writer).poll_write(&mut context, &bytes[written..]) {
            Poll::Ready(Ok(count)) if count > 0 => written += count,
            _ => return (written, false),
        }
    }
    (written, matches!(Pin::new(writer).poll_flush(&mut context), Poll::Ready(Ok(()))))
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream.into())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A socket whose first bytes were looked at, and are read again.
pub(crate) struct Replayed {
    ahead: Vec<u8>,
    socket: TcpStream,
}

impl Replayed {
    pub(crate) fn new(ahead: Vec<u8>, socket: TcpStream) -> Self {
        Self { ahead, socket }
    }
}

impl From<TcpStream> for Replayed {
    fn from(socket: TcpStream) -> Self {
        Self { ahead: Vec::new(), socket }
    }
}

impl AsyncRead for Replayed {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            return Pin::new(&mut this.socket).poll_read(context, buffer);
        }
        let count = this.ahead.len().min(buffer.remaining());
        buffer.put_slice(&this.ahead[..count]);
        this.ahead = this.ahead.split_off(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replayed {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }
}
