//! Streams of bytes behind a trait, so that a simulated network can take the place of sockets.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite};
pub(crate) use tokio::io::{ReadHalf, WriteHalf};
pub(crate) use tokio::net::{TcpListener, TcpStream};

/// What bytes are read from and written to: a socket, one whose first bytes were peeked at, or TLS over either.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Socket for S {}

/// A connection, encrypted or not.
pub(crate) type Stream = Box<dyn Socket>;

impl dyn Socket {
    /// A half for reading and a half for writing.
    pub(crate) fn into_split(self: Box<Self>) -> (ReadHalf<Stream>, WriteHalf<Stream>) {
        tokio::io::split(self)
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Box::new(stream)
    }
}

/// Writes as much as a stream takes without waiting. Returns how much that was, and whether nothing is held back. An error
/// of the socket counts as no room: a task that waits for room meets it.
pub(crate) fn write_now(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> (usize, bool) {
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
