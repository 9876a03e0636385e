//! Pings without a runtime: both ends as fast as they can be written.
//!
//! The server's end answers every message with the same reply, on one thread, so that what is measured is
//! not the server. The floor's end has no more than a client must: one system call to send and one to
//! receive, no task, no lock, no memory. One caller waits in `read`; many are served by one thread that
//! sends for whichever connection has its reply.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use bson::rawdoc;
use mio::{Events, Interest, Poll, Token, Waker};
use quorate_wire::{MsgFlags, MsgWriter, RequestId};

use crate::floor;
use crate::measures::{self, Tally};

/// Messages of a ping are far shorter.
const BUFFER: usize = 4096;

/// How many connections the server's end serves.
const MAX_CONNECTIONS: usize = 1024;

const WAKE: Token = Token(MAX_CONNECTIONS);

fn ping() -> Vec<u8> {
    let mut out = Vec::new();
    MsgWriter::new(&mut out, RequestId(1), RequestId(0), MsgFlags::NONE, &floor::command("ping"))
        .finish(None)
        .unwrap();
    out
}

fn reply() -> Vec<u8> {
    let mut out = Vec::new();
    let body = rawdoc! { "ok": 1.0 };
    MsgWriter::new(&mut out, RequestId(1), RequestId(0), MsgFlags::NONE, &body)
        .finish(None)
        .unwrap();
    out
}

/// The length that a message announces.
fn announced(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize
}

/// Takes connections whose first ping is answered, and answers all that follows.
pub struct Answerer {
    connections: Sender<TcpStream>,
    waker: Waker,
}

impl Answerer {
    pub fn start() -> Self {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), WAKE).unwrap();
        let (connections, received) = channel();
        std::thread::spawn(move || answer(poll, &received));
        Self { connections, waker }
    }

    pub fn take(&self, stream: TcpStream) {
        self.connections.send(stream).unwrap();
        self.waker.wake().unwrap();
    }
}

struct Answered {
    stream: mio::net::TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

fn answer(mut poll: Poll, received: &Receiver<TcpStream>) {
    let reply = reply();
    let mut events = Events::with_capacity(MAX_CONNECTIONS);
    let mut connections: Vec<Option<Answered>> = Vec::new();
    loop {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            if event.token() == WAKE {
                while let Ok(stream) = received.try_recv() {
                    let mut stream = mio::net::TcpStream::from_std(stream);
                    let token = Token(connections.len());
                    poll.registry().register(&mut stream, token, Interest::READABLE).unwrap();
                    connections.push(Some(Answered {
                        stream,
                        input: Vec::new(),
                        output: Vec::new(),
                    }));
                    serve(&mut connections[token.0], &reply);
                }
            } else {
                serve(&mut connections[event.token().0], &reply);
            }
        }
    }
}

/// Answers what has arrived; closes a connection whose client is gone.
fn serve(place: &mut Option<Answered>, reply: &[u8]) {
    let Some(Answered { stream, input, output }) = place else { return };
    let mut bytes = [0; BUFFER];
    // Registered for edges: read until there is less than asked for.
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return *place = None,
            Ok(count) => {
                input.extend_from_slice(&bytes[..count]);
                if count < BUFFER {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => return *place = None,
        }
    }
    output.clear();
    while input.len() >= 4 && input.len() >= announced(input) {
        let start = output.len();
        output.extend_from_slice(reply);
        output[start + 8..start + 12].copy_from_slice(&input[4..8]);
        input.drain(..announced(input));
    }
    if !output.is_empty() && stream.write(output).ok() != Some(output.len()) {
        *place = None;
    }
}

/// The floor with this many callers, until the tally says that it is enough.
pub fn floor(host: &str, callers: usize, tally: Tally) -> JoinHandle<()> {
    let host = host.to_owned();
    std::thread::spawn(move || match callers {
        1 => one(&host, &tally),
        _ => many(&host, callers, &tally),
    })
}

fn connect(host: &str) -> TcpStream {
    let stream = TcpStream::connect(host).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn one(host: &str, tally: &Tally) {
    let mut stream = connect(host);
    let (ping, mut bytes) = (ping(), [0; BUFFER]);
    while tally.another() {
        stream.write_all(&ping).unwrap();
        let mut read = stream.read(&mut bytes).unwrap();
        while read < 4 || read < announced(&bytes) {
            read += stream.read(&mut bytes[read..]).unwrap();
        }
    }
}

fn many(host: &str, callers: usize, tally: &Tally) {
    let mut poll = Poll::new().unwrap();
    let ping = ping();
    let mut streams = Vec::new();
    for place in 0..callers {
        let mut stream = connect(host);
        stream.write_all(&ping).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = mio::net::TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(place), Interest::READABLE).unwrap();
        streams.push((stream, 0, [0; BUFFER]));
    }
    let mut events = Events::with_capacity(callers);
    loop {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            let (stream, read, bytes) = &mut streams[event.token().0];
            match stream.read(&mut bytes[*read..]) {
                Ok(count) => *read += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            }
            if *read >= 4 && *read >= announced(bytes) {
                *read = 0;
                if !tally.another() {
                    return;
                }
                stream.write_all(&ping).unwrap();
            }
        }
    }
}

/// Pings so often with one client in a process of its own, for tools that count its instructions,
/// system calls and context switches.
pub fn operate(who: &str, uri: &str, callers: usize, operations: u64) {
    let tally = Tally::until(operations);
    if who == "floor" {
        floor(uri, callers, tally).join().unwrap();
    } else {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let client = crate::ours::connected(uri, 3).await;
            let callers: Vec<_> = (0..callers)
                .map(|_| tokio::spawn(measures::ping_with_ours(client.clone(), tally.clone())))
                .collect();
            for caller in callers {
                caller.await.unwrap();
            }
        });
    }
}
