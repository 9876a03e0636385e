//! A scripted member on a real socket.
//!
//! Each member has a listener on 127.0.0.1, port 0 at first, and a thread for each connection. It
//! answers hello with a document that tests change, ping with success, and everything else by
//! script. All members of a set write what they receive into one journal, so the order in which a
//! client talks to them can be asserted. Nothing here sleeps.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::raw::{RawArrayBuf, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::ServerAddress;
use quorate_wire::{Decoder, MsgFlags, MsgWriter, OpReply, Payload, ReplyFlags, RequestId};

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long a dripping server waits between two bytes.
const DRIP: Duration = Duration::from_millis(20);

/// What a member does with a command.
#[derive(Clone, Debug)]
pub(crate) enum Reaction {
    /// Answers.
    Reply(RawDocumentBuf),
    /// Answers a request that was never made.
    WrongResponseTo(RawDocumentBuf),
    /// Answers and announces more.
    MoreToCome(RawDocumentBuf),
    /// Answers by OP_REPLY.
    OldReply(RawDocumentBuf),
    /// Sends these bytes instead of a message.
    Bytes(Vec<u8>),
    /// Sends the first half of this reply and hangs up.
    Half(RawDocumentBuf),
    /// Sends this reply byte by byte, slowly.
    Drip(RawDocumentBuf),
    /// Says nothing.
    Stall,
    /// Hangs up.
    HangUp,
}

/// A command that a member received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) member: ServerAddress,
    /// Counts the connections of the member, from 1.
    pub(crate) connection: usize,
    pub(crate) name: String,
    pub(crate) body: RawDocumentBuf,
    pub(crate) sequence: Vec<RawDocumentBuf>,
    pub(crate) compressed: bool,
}

/// What all members received, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<Received>>>);

impl Journal {
    /// Everything since the last call.
    pub(crate) fn take(&self) -> Vec<Received> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// The names of the commands since the last call, each with the member's place in `members`.
    pub(crate) fn take_names(&self, members: &[FakeMember]) -> Vec<(usize, String)> {
        let place = |address: &ServerAddress| {
            members.iter().position(|member| member.address() == address).unwrap()
        };
        self.take().into_iter().map(|received| (place(&received.member), received.name)).collect()
    }
}

struct Shared {
    address: ServerAddress,
    journal: Journal,
    hello: Mutex<RawDocumentBuf>,
    /// What to do with the next commands of a name, and with all that follow.
    script: Mutex<BTreeMap<String, VecDeque<Reaction>>>,
    always: Mutex<BTreeMap<String, Reaction>>,
    streams: Mutex<Vec<TcpStream>>,
    accepted: AtomicUsize,
    stopping: AtomicBool,
    closed: Sender<()>,
}

pub(crate) struct FakeMember {
    shared: Arc<Shared>,
    closed: Receiver<()>,
    acceptor: Option<JoinHandle<()>>,
}

impl FakeMember {
    pub(crate) fn start(journal: &Journal) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (sender, closed) = channel();
        let shared = Arc::new(Shared {
            address,
            journal: journal.clone(),
            hello: Mutex::new(rawdoc! { "ok": 1 }),
            script: Mutex::default(),
            always: Mutex::default(),
            streams: Mutex::default(),
            accepted: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            closed: sender,
        });
        let acceptor = Some(accept(listener, Arc::clone(&shared)));
        Self { shared, closed, acceptor }
    }

    pub(crate) fn address(&self) -> &ServerAddress {
        &self.shared.address
    }

    /// How many connections were ever made to it.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    pub(crate) fn set_hello(&self, hello: RawDocumentBuf) {
        *lock(&self.shared.hello) = hello;
    }

    /// What to do with the next command of this name.
    pub(crate) fn next(&self, command: &str, reaction: Reaction) {
        lock(&self.shared.script).entry(command.to_owned()).or_default().push_back(reaction);
    }

    /// What to do with every command of this name.
    pub(crate) fn always(&self, command: &str, reaction: Reaction) {
        lock(&self.shared.always).insert(command.to_owned(), reaction);
    }

    /// Closes every connection, and goes on listening.
    pub(crate) fn hang_up(&self) {
        for stream in lock(&self.shared.streams).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Stops listening and hangs up: connections are refused from now on.
    pub(crate) fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        if let Some(acceptor) = self.acceptor.take() {
            // Wakes the thread that accepts; what it accepts is dropped.
            let _ = TcpStream::connect(self.address().as_str());
            acceptor.join().unwrap();
        }
        self.hang_up();
    }

    /// Listens again, on the same port.
    pub(crate) fn restart(&mut self) {
        self.stop();
        let listener = TcpListener::bind(self.address().as_str()).unwrap();
        self.shared.stopping.store(false, Ordering::SeqCst);
        self.acceptor = Some(accept(listener, Arc::clone(&self.shared)));
    }

    /// Waits until so many connections have ended.
    pub(crate) fn wait_for_ended_connections(&self, count: usize) {
        for _ in 0..count {
            self.closed.recv_timeout(PATIENCE).expect("the client closes its connection");
        }
    }
}

impl Drop for FakeMember {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Members that name each other.
pub(crate) struct FakeSet {
    pub(crate) members: Vec<FakeMember>,
    pub(crate) journal: Journal,
}

impl FakeSet {
    /// A set whose first member is primary.
    pub(crate) fn start(size: usize) -> Self {
        let journal = Journal::default();
        let members = (0..size).map(|_| FakeMember::start(&journal)).collect();
        let set = Self { members, journal };
        set.elect(0, 1);
        set
    }

    /// Makes a member the primary of a term.
    pub(crate) fn elect(&self, primary: usize, term: u8) {
        for place in 0..self.members.len() {
            self.members[place].set_hello(self.hello(place, Some(primary), term));
        }
    }

    /// Takes the primary away.
    pub(crate) fn depose(&self) {
        for place in 0..self.members.len() {
            self.members[place].set_hello(self.hello(place, None, 0));
        }
    }

    pub(crate) fn hello(&self, place: usize, primary: Option<usize>, term: u8) -> RawDocumentBuf {
        let is_primary = primary == Some(place);
        let mut hosts = RawArrayBuf::new();
        for member in &self.members {
            hosts.push(member.address().as_str());
        }
        let mut hello = rawdoc! {
            "helloOk": true,
            "isWritablePrimary": is_primary,
            "secondary": !is_primary,
            "setName": "rs",
            "setVersion": 1,
            "me": self.members[place].address().as_str(),
            "minWireVersion": 0,
            "maxWireVersion": 21,
            "logicalSessionTimeoutMinutes": 30,
        };
        hello.append(cstr!("hosts"), hosts);
        if let Some(primary) = primary {
            hello.append(cstr!("primary"), self.members[primary].address().as_str());
        }
        if is_primary {
            let mut election = [0; 12];
            election[11] = term;
            hello.append(cstr!("electionId"), ObjectId::from_bytes(election));
        }
        hello.append(cstr!("ok"), 1);
        hello
    }

    /// A connection string that names the members at these places.
    pub(crate) fn uri(&self, seeds: &[usize], options: &str) -> String {
        let seeds: Vec<_> =
            seeds.iter().map(|place| self.members[*place].address().as_str()).collect();
        format!("mongodb://{}/?replicaSet=rs&{options}", seeds.join(","))
    }
}

/// A reply that a server gives when it is no longer primary.
pub(crate) fn not_primary() -> Reaction {
    Reaction::Reply(rawdoc! {
        "ok": 0,
        "errmsg": "not primary",
        "code": 10107,
        "codeName": "NotWritablePrimary",
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn accept(listener: TcpListener, shared: Arc<Shared>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if shared.stopping.load(Ordering::SeqCst) {
                return;
            }
            let stream = stream.unwrap();
            let connection = shared.accepted.fetch_add(1, Ordering::SeqCst) + 1;
            lock(&shared.streams).push(stream.try_clone().unwrap());
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                serve(stream, connection, &shared);
                let _ = shared.closed.send(());
            });
        }
    })
}

/// Answers until the client hangs up, or the script says to.
fn serve(mut stream: TcpStream, connection: usize, shared: &Shared) {
    let mut decoder = Decoder::new();
    let mut chunk = [0; 4096];
    loop {
        while decoder.missing().unwrap() > 0 {
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(count) => decoder.feed(&chunk[..count]),
            }
        }
        let message = decoder.next_message().unwrap().unwrap();
        let id = message.header.request_id;
        let Payload::Msg(request) = message.payload else { panic!("only OP_MSG is expected") };
        let received = Received {
            member: shared.address.clone(),
            connection,
            name: request.command_name().unwrap().to_owned(),
            body: request.body().to_owned(),
            sequence: request
                .sequences()
                .flat_map(|sequence| sequence.documents())
                .map(ToOwned::to_owned)
                .collect(),
            compressed: message.compressed,
        };
        let reaction = shared.reaction(&received.name);
        lock(&shared.journal.0).push(received);
        if !react(&mut stream, id, reaction) {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

impl Shared {
    fn reaction(&self, name: &str) -> Reaction {
        let hello = matches!(name, "hello" | "isMaster");
        let key = if hello { "hello" } else { name };
        if let Some(reaction) = lock(&self.script).get_mut(key).and_then(VecDeque::pop_front) {
            return reaction;
        }
        if let Some(reaction) = lock(&self.always).get(key) {
            return reaction.clone();
        }
        Reaction::Reply(match key {
            "hello" => lock(&self.hello).clone(),
            "ping" => rawdoc! { "ok": 1 },
            _ => rawdoc! { "ok": 0, "code": 59, "errmsg": "no such command" },
        })
    }
}

/// Whether the connection goes on.
fn react(stream: &mut TcpStream, id: RequestId, reaction: Reaction) -> bool {
    match reaction {
        Reaction::Reply(reply) => send(stream, &message(id, MsgFlags::NONE, &reply)),
        Reaction::WrongResponseTo(reply) => {
            send(stream, &message(RequestId(id.0 + 1000), MsgFlags::NONE, &reply))
        }
        Reaction::MoreToCome(reply) => send(stream, &message(id, MsgFlags::MORE_TO_COME, &reply)),
        Reaction::OldReply(reply) => {
            let mut bytes = Vec::new();
            OpReply::append_one(&mut bytes, RequestId(1), id, ReplyFlags::NONE, &reply).unwrap();
            send(stream, &bytes)
        }
        Reaction::Bytes(bytes) => send(stream, &bytes),
        Reaction::Half(reply) => {
            let bytes = message(id, MsgFlags::NONE, &reply);
            send(stream, &bytes[..bytes.len() / 2]);
            false
        }
        Reaction::Drip(reply) => drip(stream, &message(id, MsgFlags::NONE, &reply)),
        Reaction::Stall => true,
        Reaction::HangUp => false,
    }
}

/// Ends early when the client hangs up.
fn drip(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.set_read_timeout(Some(DRIP)).unwrap();
    for byte in bytes {
        let waited = stream.read(&mut [0]);
        let silent = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
        if !waited.is_err_and(|error| silent(error.kind())) || !send(stream, &[*byte]) {
            return false;
        }
    }
    true
}

fn message(response_to: RequestId, flags: MsgFlags, reply: &RawDocumentBuf) -> Vec<u8> {
    let mut bytes = Vec::new();
    MsgWriter::new(&mut bytes, RequestId(1), response_to, flags, reply).finish(None).unwrap();
    bytes
}

fn send(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).is_ok()
}
