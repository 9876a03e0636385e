//! Connections to the other members: requests out, answers back, and word of a broken connection.
//!
//! One task per peer holds one connection, sends requests as they come and matches answers by their
//! numbers. An idle connection is read all the time, because its end is how a crash shows first.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bson::{Document, RawDocumentBuf};
use quorate_protocol::ServerAddress;
use quorate_replication::{Input, Reply, Request, RequestId, Unreachable};
use quorate_wire::MsgFlags;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::{ClientError, Receiver, encode};
use super::commands::{parse_reply, request_document};
use super::{Inbox, Message};
use crate::dialer::Dialer;
use crate::net::{Stream, WriteHalf};

/// Requests that wait for one peer. A member has at most one of each kind under way.
const MAX_WAITING: usize = 64;

/// Peers at once: a set has at most 50 members, and a few may have left it.
const MAX_PEERS: usize = 128;

/// `AuthenticationFailed`.
const AUTHENTICATION_FAILED: i32 = 18;

struct Outgoing {
    request: RequestId,
    message: Request,
    deadline: Instant,
}

/// The tasks that talk to other members.
pub(super) struct Peers {
    inbox: Inbox,
    dialer: Dialer,
    tasks: BTreeMap<ServerAddress, mpsc::Sender<Outgoing>>,
}

impl Peers {
    pub(super) fn new(inbox: Inbox, dialer: Dialer) -> Self {
        Self { inbox, dialer, tasks: BTreeMap::new() }
    }

    /// Sends a request. The answer, or word that there is none, comes through the inbox.
    pub(super) fn send(
        &mut self,
        request: RequestId,
        to: &ServerAddress,
        message: Request,
        timeout: Duration,
    ) {
        let deadline = Instant::now() + timeout;
        if matches!(message, Request::StepUp { .. }) {
            // Its answer takes a whole election; others must not wait behind it.
            let peer = Peer::new(to.clone(), self.inbox.clone(), self.dialer.clone());
            tokio::spawn(peer.run_once(Outgoing { request, message, deadline }));
            return;
        }
        let sender = self.task(to);
        let outgoing = Outgoing { request, message, deadline };
        if sender.try_send(outgoing).is_err() {
            let cause = Unreachable::TimedOut;
            self.inbox.post(Message::Input(Input::PeerUnreachable { request, cause }));
        }
    }

    /// Ends the connections to members that are none any more.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&ServerAddress) -> bool) {
        self.tasks.retain(|address, _| keep(address));
    }

    fn task(&mut self, to: &ServerAddress) -> &mpsc::Sender<Outgoing> {
        if self.tasks.len() >= MAX_PEERS {
            self.tasks.clear();
        }
        self.tasks.entry(to.clone()).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(MAX_WAITING);
            let peer = Peer::new(to.clone(), self.inbox.clone(), self.dialer.clone());
            tokio::spawn(peer.run(receiver));
            sender
        })
    }
}

struct Waiting {
    request: RequestId,
    message: Request,
    sent: Instant,
    deadline: Instant,
}

struct Peer {
    address: ServerAddress,
    inbox: Inbox,
    dialer: Dialer,
    connection: Option<(Receiver, WriteHalf<Stream>)>,
    waiting: BTreeMap<i32, Waiting>,
    next: i32,
}

impl Peer {
    fn new(address: ServerAddress, inbox: Inbox, dialer: Dialer) -> Self {
        Self { address, inbox, dialer, connection: None, waiting: BTreeMap::new(), next: 1 }
    }

    async fn run(mut self, mut requests: mpsc::Receiver<Outgoing>) {
        loop {
            let deadline = self.waiting.values().map(|waiting| waiting.deadline).min();
            let timeout = tokio::time::sleep_until(deadline.unwrap_or_else(far));
            tokio::select! {
                outgoing = requests.recv() => match outgoing {
                    Some(outgoing) => self.send(outgoing).await,
                    None => return,
                },
                received = next(&mut self.connection) => self.receive(received),
                () = timeout, if deadline.is_some() => self.fail(Unreachable::TimedOut),
            }
        }
    }

    async fn run_once(mut self, outgoing: Outgoing) {
        let deadline = outgoing.deadline;
        self.send(outgoing).await;
        while !self.waiting.is_empty() {
            tokio::select! {
                received = next(&mut self.connection) => self.receive(received),
                () = tokio::time::sleep_until(deadline) => self.fail(Unreachable::TimedOut),
            }
        }
    }

    async fn send(&mut self, outgoing: Outgoing) {
        let Outgoing { request, message, deadline } = outgoing;
        let sent = Instant::now();
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let command = request_document(&message);
        self.waiting.insert(id, Waiting { request, message, sent, deadline });
        if self.inbox.cut.is_cut() {
            return;
        }
        if self.connection.is_none() {
            match tokio::time::timeout_at(deadline, self.dialer.connect(&self.address)).await {
                Ok(Ok(stream)) => {
                    let (reader, writer) = stream.into_split();
                    self.connection = Some((Receiver::new(reader), writer));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return self.deny(&error.to_string());
                }
                Ok(Err(error)) => return self.fail(cause_of(&error)),
                Err(_) => return self.fail(Unreachable::TimedOut),
            }
        }
        let bytes = encode(quorate_wire::RequestId(id), MsgFlags::NONE, &command);
        let (Ok(bytes), Some((_, writer))) = (bytes, &mut self.connection) else {
            return self.fail(Unreachable::Other);
        };
        let writing = async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        };
        match tokio::time::timeout_at(deadline, writing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(cause_of(&error)),
            Err(_) => self.fail(Unreachable::TimedOut),
        }
    }

    fn receive(&mut self, received: Result<super::client::Received, ClientError>) {
        if self.inbox.cut.is_cut() {
            if received.is_err() {
                // Whoever waits learns no more than that time runs out.
                self.connection = None;
            }
            return;
        }
        match received {
            Ok(received) => {
                let Some(waiting) = self.waiting.remove(&received.response_to.0) else { return };
                let round_trip = waiting.sent.elapsed();
                let request = waiting.request;
                let reply = parse(&waiting.message, &received.body);
                self.inbox.post(Message::Input(match reply {
                    Some(reply) => Input::ReplyReceived { request, reply, round_trip },
                    None => Input::PeerUnreachable { request, cause: Unreachable::Other },
                }));
            }
            Err(ClientError::Closed) => self.fail(Unreachable::Reset),
            Err(ClientError::Socket(error)) => self.fail(cause_of(&error)),
            Err(_) => self.fail(Unreachable::Other),
        }
    }

    /// The other side does not take us for a member, or is none itself.
    fn deny(&mut self, why: &str) {
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            let reply = Reply::Refused { code: AUTHENTICATION_FAILED, message: why.to_owned() };
            let (request, round_trip) = (waiting.request, waiting.sent.elapsed());
            self.inbox.post(Message::Input(Input::ReplyReceived { request, reply, round_trip }));
        }
    }

    /// The connection is of no more use: everybody who waits for an answer is told why.
    fn fail(&mut self, cause: Unreachable) {
        let established = self.connection.take().is_some();
        let idle = self.waiting.is_empty();
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            let request = waiting.request;
            self.inbox.post(Message::Input(Input::PeerUnreachable { request, cause }));
        }
        if established && idle && cause != Unreachable::TimedOut {
            let peer = self.address.clone();
            self.inbox.post(Message::Input(Input::ConnectionReset { peer }));
        }
    }
}

/// The next message of a connection; never, without one.
async fn next(
    connection: &mut Option<(Receiver, WriteHalf<Stream>)>,
) -> Result<super::client::Received, ClientError> {
    match connection {
        Some((receiver, _)) => receiver.next().await,
        None => std::future::pending().await,
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn parse(message: &Request, body: &RawDocumentBuf) -> Option<Reply> {
    parse_reply(message, &Document::try_from(&**body).ok()?)
}

fn cause_of(error: &io::Error) -> Unreachable {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Unreachable::Refused,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::UnexpectedEof => Unreachable::Reset,
        io::ErrorKind::TimedOut => Unreachable::TimedOut,
        _ => Unreachable::Other,
    }
}
