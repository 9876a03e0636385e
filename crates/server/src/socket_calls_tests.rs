//! How often a connection turns to its socket for a command: counts that do not depend on the machine.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use quorate_node::{Client, Node, NodeOptions};
use quorate_storage::{FillableFiles, ModelStore};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, RequestId};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use crate::clock::Clock;
use crate::connection::Connection;
use crate::security::{Membership, Security};
use crate::server::{Machine, Server, ServerOptions};

/// Reads that one client makes, one after the other.
const ROUNDS: u64 = 50;

/// What a connection has asked of its socket.
#[derive(Default)]
struct Calls {
    received: AtomicU64,
    /// Of those the ones that filled the room that they were given: the next one asks the system although nothing may be
    /// there.
    filled: AtomicU64,
    /// Times in which there was nothing to receive.
    waited: AtomicU64,
    sent: AtomicU64,
}

struct CountedSocket(TcpStream, Arc<Calls>);

impl AsyncRead for CountedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(context, buffer);
        let count = if read.is_ready() { &self.1.received } else { &self.1.waited };
        count.fetch_add(1, Ordering::Relaxed);
        if read.is_ready() && buffer.remaining() == 0 {
            self.1.filled.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for CountedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1.sent.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

fn message(body: &RawDocument) -> Vec<u8> {
    let mut bytes = Vec::new();
    MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), MsgFlags::NONE, body)
        .finish(None)
        .unwrap();
    bytes
}

/// Sends commands one after the other, each once the one before it is answered.
fn ask_one_by_one(server: SocketAddr, commands: &[RawDocumentBuf]) {
    let mut stream = std::net::TcpStream::connect(server).unwrap();
    let mut decoder = Decoder::new();
    let mut chunk = [0; 4096];
    for command in commands {
        stream.write_all(&message(command)).unwrap();
        while decoder.next_message().unwrap().is_none() {
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the connection was closed");
            decoder.feed(&chunk[..read]);
        }
    }
}

/// A server without a disk.
fn server() -> Server {
    let clock = Clock::new();
    let store = Arc::new(ModelStore::new());
    let node = Node::open(store, NodeOptions::default(), clock.now()).unwrap();
    let security = Security::new(None, &Membership::Unchecked, false).unwrap();
    let machine = Machine { clock, files: FillableFiles::default() };
    let options = ServerOptions::default();
    Server::prepare(Arc::new(node), machine, options, security, None).unwrap()
}

#[tokio::test]
async fn a_read_is_received_once_and_answered_once() {
    let server = server();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "db" };
    let find = rawdoc! { "find": "c", "filter": { "_id": 1 }, "limit": 1, "$db": "db" };
    let commands: Vec<_> =
        [insert].into_iter().chain(std::iter::repeat_n(find, ROUNDS as usize)).collect();
    let count = commands.len() as u64;
    let client = std::thread::spawn(move || ask_one_by_one(address, &commands));
    let (stream, _) = listener.accept().await.unwrap();
    let calls = Arc::<Calls>::default();
    let socket = Box::new(CountedSocket(stream, Arc::clone(&calls)));
    Connection::new(server.shared(), socket, Client::default()).run().await.unwrap();
    client.join().unwrap();
    let [received, filled, waited, sent] =
        [&calls.received, &calls.filled, &calls.waited, &calls.sent]
            .map(|calls| calls.load(Ordering::Relaxed));
    // The last one learns that the client has left.
    assert_eq!((received, sent, filled), (count + 1, count, 0));
    // Once for each command at most: the task sleeps until the socket has something.
    assert!(waited <= count + 1, "{waited} times for {count} commands");
}
