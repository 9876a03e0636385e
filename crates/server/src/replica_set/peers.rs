//! Connections to the other members: requests out, answers back, and word of a broken connection.
//!
//! One task per peer holds one connection, sends requests as they come and matches answers by their
//! numbers. An idle connection is read all the time, because its end is how a crash shows first. A
//! report of progress, which a client's write waits for, is written at once by the thread that has it
//! (`Line`), if nothing else is being written.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, RawDocumentBuf};
use quorate_protocol::{Lock, ServerAddress};
use quorate_replication::{Input, Reply, Request, RequestId, Unreachable};
use quorate_wire::MsgFlags;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::{ClientError, Receiver, encode};
use super::commands::{parse_reply, request_body};
use super::{Inbox, Message};
use crate::dialer::Dialer;
use crate::net::{self, Stream, WriteHalf};

/// Requests that wait for one peer. A member has at most one of each kind under way.
const MAX_WAITING: usize = 64;

/// Peers at once: a set has at most 50 members, and a few may have left it.
const MAX_PEERS: usize = 128;

/// `AuthenticationFailed`.
const AUTHENTICATION_FAILED: i32 = quorate_protocol::ErrorCode::AUTHENTICATION_FAILED.0;

/// What a task is to write.
enum Outgoing {
    Request(Wanted),
    /// The end of a report that did not fit into the socket.
    Rest(RequestId, Vec<u8>),
}

struct Wanted {
    request: RequestId,
    message: Request,
    deadline: Instant,
}

/// The tasks that talk to other members.
pub(super) struct Peers {
    inbox: Inbox,
    dialer: Dialer,
    tasks: BTreeMap<ServerAddress, Task>,
}

/// The way to a task.
struct Task {
    requests: mpsc::Sender<Outgoing>,
    line: Arc<Lock<Line>>,
}

/// What a peer's task shares with the threads that write to its socket themselves.
struct Line {
    /// None without a connection, and while the task writes.
    writer: Option<WriteHalf<Stream>>,
    waiting: BTreeMap<i32, Waiting>,
    next: i32,
    /// What the task has not yet written.
    queued: usize,
}

impl Line {
    /// Numbers a request and encodes it. Its answer is waited for, unless it is a report.
    fn begin(&mut self, wanted: Wanted) -> Result<Vec<u8>, ClientError> {
        let Wanted { request, message, deadline } = wanted;
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let body = request_body(&message).map_err(|error| ClientError::Reply(error.to_string()));
        let flags = if is_report(&message) {
            MsgFlags::MORE_TO_COME
        } else {
            let sent = Instant::now();
            self.waiting.insert(id, Waiting { request, message, sent, deadline });
            MsgFlags::NONE
        };
        encode(quorate_wire::RequestId(id), flags, &body?)
    }
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
            // The reply takes a whole election. A connection of its own keeps it from delaying
            // other requests.
            let peer = Peer::new(to.clone(), self.inbox.clone(), self.dialer.clone());
            tokio::spawn(peer.run_once(Wanted { request, message, deadline }));
            return;
        }
        let is_cut = self.inbox.cut.is_cut();
        let task = self.task(to);
        let mut line = task.line.lock();
        let urgent = is_report(&message) && !is_cut;
        let wanted = Wanted { request, message, deadline };
        let outgoing = if urgent && line.queued == 0 && line.writer.is_some() {
            match write_now(&mut line, wanted) {
                Some(rest) => Outgoing::Rest(request, rest),
                None => {
                    drop(line);
                    return self.inbox.post(written(request));
                }
            }
        } else {
            Outgoing::Request(wanted)
        };
        line.queued += 1;
        if task.requests.try_send(outgoing).is_err() {
            line.queued -= 1;
            drop(line);
            let cause = Unreachable::TimedOut;
            self.inbox.post(Message::Input(Input::PeerUnreachable { request, cause }));
        }
    }

    /// Closes the connections to servers that are no longer members.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&ServerAddress) -> bool) {
        self.tasks.retain(|address, _| keep(address));
    }

    fn task(&mut self, to: &ServerAddress) -> &Task {
        if self.tasks.len() >= MAX_PEERS {
            self.tasks.clear();
        }
        self.tasks.entry(to.clone()).or_insert_with(|| {
            let (requests, receiver) = mpsc::channel(MAX_WAITING);
            let peer = Peer::new(to.clone(), self.inbox.clone(), self.dialer.clone());
            let line = Arc::clone(&peer.line);
            tokio::spawn(peer.run(receiver));
            Task { requests, line }
        })
    }
}

/// Whether a request is a report of progress. It gets no answer: its receiver has nothing to say, a
/// lost one is followed by the next, and one that the socket has no room for waits for it.
fn is_report(message: &Request) -> bool {
    matches!(message, Request::UpdatePosition(_))
}

/// Writes a request without waiting for the socket. Gives what did not fit.
fn write_now(line: &mut Line, wanted: Wanted) -> Option<Vec<u8>> {
    // A request that cannot be encoded or written is found out by the task, which tells of it.
    let Ok(mut bytes) = line.begin(wanted) else { return Some(Vec::new()) };
    let (written, is_flushed) = net::write_now(line.writer.as_mut()?, &bytes);
    bytes.drain(..written);
    (!is_flushed).then_some(bytes)
}

/// Word of a report that has left this process, or is lost with its connection.
fn written(request: RequestId) -> Message {
    let (reply, round_trip) = (Reply::Done, Duration::ZERO);
    Message::Input(Input::ReplyReceived { request, reply, round_trip })
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
    receiver: Option<Receiver>,
    line: Arc<Lock<Line>>,
}

impl Peer {
    fn new(address: ServerAddress, inbox: Inbox, dialer: Dialer) -> Self {
        let line = Line { writer: None, waiting: BTreeMap::new(), next: 1, queued: 0 };
        Self { address, inbox, dialer, receiver: None, line: Arc::new(Lock::new(line)) }
    }

    async fn run(mut self, mut requests: mpsc::Receiver<Outgoing>) {
        loop {
            let deadline = self.line.lock().waiting.values().map(|waiting| waiting.deadline).min();
            let timeout = tokio::time::sleep_until(deadline.unwrap_or_else(far));
            tokio::select! {
                outgoing = requests.recv() => {
                    let Some(outgoing) = outgoing else { return };
                    match outgoing {
                        Outgoing::Request(wanted) => self.send(wanted).await,
                        Outgoing::Rest(request, bytes) => {
                            self.write(&bytes, far()).await;
                            self.inbox.post(written(request));
                        }
                    }
                    self.line.lock().queued -= 1;
                }
                received = next(&mut self.receiver) => self.receive(received),
                () = timeout, if deadline.is_some() => self.fail(Unreachable::TimedOut),
            }
        }
    }

    async fn run_once(mut self, wanted: Wanted) {
        let deadline = wanted.deadline;
        self.send(wanted).await;
        while !self.line.lock().waiting.is_empty() {
            tokio::select! {
                received = next(&mut self.receiver) => self.receive(received),
                () = tokio::time::sleep_until(deadline) => self.fail(Unreachable::TimedOut),
            }
        }
    }

    async fn send(&mut self, wanted: Wanted) {
        let (request, report) = (wanted.request, is_report(&wanted.message));
        self.deliver(wanted).await;
        if report {
            self.inbox.post(written(request));
        }
    }

    /// Writes a request, over a new connection if there is none. Requests whose
    /// answer cannot come fail.
    async fn deliver(&mut self, wanted: Wanted) {
        let deadline = wanted.deadline;
        let bytes = self.line.lock().begin(wanted);
        if self.inbox.cut.is_cut() {
            return;
        }
        if self.receiver.is_none() {
            match tokio::time::timeout_at(deadline, self.dialer.connect(&self.address)).await {
                Ok(Ok(stream)) => {
                    let (reader, writer) = stream.into_split();
                    self.receiver = Some(Receiver::new(reader));
                    self.line.lock().writer = Some(writer);
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return self.deny(&error.to_string());
                }
                Ok(Err(error)) => return self.fail(cause_of(&error)),
                Err(_) => return self.fail(Unreachable::TimedOut),
            }
        }
        match bytes {
            Ok(bytes) => self.write(&bytes, deadline).await,
            Err(_) => self.fail(Unreachable::Other),
        }
    }

    async fn write(&mut self, bytes: &[u8], deadline: Instant) {
        let Some(mut writer) = self.line.lock().writer.take() else {
            return self.fail(Unreachable::Other);
        };
        let writing = async {
            writer.write_all(bytes).await?;
            writer.flush().await
        };
        match tokio::time::timeout_at(deadline, writing).await {
            Ok(Ok(())) => self.line.lock().writer = Some(writer),
            Ok(Err(error)) => self.fail(cause_of(&error)),
            Err(_) => self.fail(Unreachable::TimedOut),
        }
    }

    fn receive(&mut self, received: Result<super::client::Received, ClientError>) {
        if self.inbox.cut.is_cut() {
            if received.is_err() {
                // The request ends by its timeout.
                self.disconnect();
            }
            return;
        }
        match received {
            Ok(received) => {
                let waiting = self.line.lock().waiting.remove(&received.response_to.0);
                let Some(waiting) = waiting else { return };
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
        for waiting in self.take_waiting() {
            let reply = Reply::Refused { code: AUTHENTICATION_FAILED, message: why.to_owned() };
            let (request, round_trip) = (waiting.request, waiting.sent.elapsed());
            self.inbox.post(Message::Input(Input::ReplyReceived { request, reply, round_trip }));
        }
    }

    /// Ends the connection; whether there was one.
    fn disconnect(&mut self) -> bool {
        self.line.lock().writer = None;
        self.receiver.take().is_some()
    }

    fn take_waiting(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.line.lock().waiting).into_values().collect()
    }

    /// The connection is of no more use: all requests in flight end with the reason.
    fn fail(&mut self, cause: Unreachable) {
        let established = self.disconnect();
        let waiting = self.take_waiting();
        let idle = waiting.is_empty();
        for waiting in waiting {
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
async fn next(receiver: &mut Option<Receiver>) -> Result<super::client::Received, ClientError> {
    match receiver {
        Some(receiver) => receiver.next().await,
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
