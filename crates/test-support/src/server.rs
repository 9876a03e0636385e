//! The scripted server itself: one task to accept, one for each connection.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::{Lock, ObjectId, ServerAddress, TopologyVersion};
use quorate_wire::{
    Decoder, MessageHeader, MsgFlags, MsgWriter, OpMsg, Payload, RequestId, parse_topology_version,
    topology_version_document,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::fail_point::{FailPoint, Strike};

/// The longest that an awaited hello waits, whatever the client asks for.
const MAX_AWAIT: Duration = Duration::from_secs(60);

/// How many commands are remembered; older ones are forgotten.
const MAX_REMEMBERED_COMMANDS: usize = 10_000;

/// The hello reply of a standalone server.
pub fn standalone_hello() -> RawDocumentBuf {
    rawdoc! { "ismaster": true, "isWritablePrimary": true, "minWireVersion": 0, "maxWireVersion": 21,
    "logicalSessionTimeoutMinutes": 30, "readOnly": false }
}

/// The hello reply of the primary of a set with these members.
pub fn primary_hello(
    set_name: &str,
    me: &ServerAddress,
    members: &[ServerAddress],
    term: i64,
) -> RawDocumentBuf {
    let hosts = bson::RawArrayBuf::from_iter(members.iter().map(ServerAddress::as_str));
    let election = quorate_protocol::ElectionId::from_term(term);
    rawdoc! {
        "ismaster": true, "isWritablePrimary": true, "secondary": false, "setName": set_name,
        "setVersion": 1, "electionId": quorate_wire::to_bson_object_id(election.0),
        "hosts": hosts, "me": me.as_str(), "primary": me.as_str(), "minWireVersion": 0,
        "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30,
    }
}

/// A server that does as it is told. Dropping it closes every socket.
#[derive(Debug)]
pub struct FakeServer {
    address: ServerAddress,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    script: Lock<Script>,
    /// The counter of `topologyVersion`; raised whenever the hello reply changes.
    version: watch::Sender<i64>,
    /// Raised to make every connection end.
    kill: watch::Sender<u64>,
    /// How many connections are open.
    open: watch::Sender<usize>,
}

#[derive(Debug)]
struct Script {
    hello: RawDocumentBuf,
    streams: bool,
    replies: BTreeMap<String, RawDocumentBuf>,
    fail_point: Option<FailPoint>,
    seen: Vec<RawDocumentBuf>,
    accepted: usize,
}

impl FakeServer {
    /// A standalone server on a free port of the loopback address. Fails if there is no free port.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string().parse().map_err(io::Error::other)?;
        let script = Script {
            hello: standalone_hello(),
            streams: true,
            replies: BTreeMap::new(),
            fail_point: None,
            seen: Vec::new(),
            accepted: 0,
        };
        let shared = Arc::new(Shared {
            script: Lock::new(script),
            version: watch::Sender::new(1),
            kill: watch::Sender::new(0),
            open: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// A connection string for this server alone.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }

    /// Answers hello with this from now on; `ok`, `helloOk` and `topologyVersion` are added. A client that
    /// streams hears of it at once.
    pub fn set_hello(&self, hello: RawDocumentBuf) {
        self.shared.script.lock().hello = hello;
        self.shared.version.send_modify(|version| *version += 1);
    }

    /// Whether hello replies carry a `topologyVersion`, without which clients poll.
    pub fn set_streaming(&self, streams: bool) {
        self.shared.script.lock().streams = streams;
    }

    /// Answers a command with this from now on. `ok: 1` is added unless it is there.
    pub fn set_reply(&self, command: &str, reply: RawDocumentBuf) {
        self.shared.script.lock().replies.insert(command.to_owned(), reply);
    }

    /// Lets commands fail; `None` lets them be.
    pub fn set_fail_point(&self, fail_point: Option<FailPoint>) {
        self.shared.script.lock().fail_point = fail_point;
    }

    /// The commands received so far, in order, hello included.
    pub fn commands(&self) -> Vec<RawDocumentBuf> {
        self.shared.script.lock().seen.clone()
    }

    /// The names of the commands received so far, without hello.
    pub fn command_names(&self) -> Vec<String> {
        let seen = &self.shared.script.lock().seen;
        let names = seen.iter().filter_map(|command| command_name(command));
        names.filter(|name| !is_hello(name)).map(str::to_owned).collect()
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        *self.shared.open.borrow()
    }

    /// Waits until this many connections are open.
    pub async fn wait_for_open_connections(&self, count: usize) {
        let mut open = self.shared.open.subscribe();
        // The sender lives as long as this server does.
        let _ = open.wait_for(|open| *open == count).await;
    }

    /// How many connections were ever accepted.
    pub fn accepted_connections(&self) -> usize {
        self.shared.script.lock().accepted
    }

    /// Closes every connection; new ones are accepted.
    pub fn kill_connections(&self) {
        self.shared.kill.send_modify(|count| *count += 1);
    }

    /// Stops listening and closes every connection.
    pub fn stop(self) {}
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.accepting.abort();
        self.kill_connections();
    }
}

impl Shared {
    fn topology_version(&self) -> TopologyVersion {
        // One process, one id: a restart is another process.
        let process_id = ObjectId::from_bytes([0x51; 12]);
        TopologyVersion { process_id, counter: *self.version.borrow() }
    }

    fn hello_reply(&self) -> RawDocumentBuf {
        let script = self.script.lock();
        let mut reply = script.hello.clone();
        if script.streams {
            let version = topology_version_document(self.topology_version());
            reply.append(cstr!("topologyVersion"), version);
        }
        reply.append(cstr!("helloOk"), true);
        reply.append(cstr!("ok"), 1.0);
        reply
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Aborting this task drops the set, which aborts the connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                let peer = Peer {
                    stream,
                    decoder: Decoder::new(),
                    shared: Arc::clone(&shared),
                    app_name: None,
                    next_id: 1,
                };
                connections.spawn(peer.serve());
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Counts a connection while it is open.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.script.lock().accepted += 1;
        shared.open.send_modify(|open| *open += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

struct Peer {
    stream: TcpStream,
    decoder: Decoder,
    shared: Arc<Shared>,
    app_name: Option<String>,
    next_id: i32,
}

/// A request, copied out of the decoder.
struct Request {
    header: MessageHeader,
    flags: MsgFlags,
    body: RawDocumentBuf,
}

impl Peer {
    async fn serve(mut self) {
        let _open = Open::new(&self.shared);
        let mut kill = self.shared.kill.subscribe();
        tokio::select! {
            _ = kill.changed() => {}
            _ = self.converse() => {}
        }
    }

    async fn converse(&mut self) -> io::Result<()> {
        while let Some(request) = self.receive().await? {
            self.answer(request).await?;
        }
        Ok(())
    }

    /// The next request; `None` when the client hangs up.
    async fn receive(&mut self) -> io::Result<Option<Request>> {
        loop {
            match self.decoder.next_message().map_err(io::Error::other)? {
                Some(message) => {
                    let Payload::Msg(msg) = message.payload else {
                        return Err(io::Error::other("only OP_MSG is served"));
                    };
                    let (header, flags) = (message.header, msg.flags());
                    return Ok(Some(Request { header, flags, body: whole_command(&msg) }));
                }
                None => {
                    if self.stream.read_buf(self.decoder.input()).await? == 0 {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn answer(&mut self, request: Request) -> io::Result<()> {
        let name = command_name(&request.body).unwrap_or_default().to_owned();
        if let Ok(client) = request.body.get_document("client") {
            let application = client.get_document("application");
            self.app_name = application.and_then(|a| a.get_str("name")).ok().map(str::to_owned);
        }
        let strike = {
            let mut script = self.shared.script.lock();
            if script.seen.len() == MAX_REMEMBERED_COMMANDS {
                script.seen.clear();
            }
            script.seen.push(request.body.clone());
            let app_name = self.app_name.as_deref();
            script.fail_point.as_mut().and_then(|point| point.strike(&name, app_name))
        };
        let strike = strike.unwrap_or_default();
        if let Some(duration) = strike.block {
            tokio::select! {
                () = tokio::time::sleep(duration) => {}
                () = hung_up(&self.stream) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        if strike.close_connection {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if let Some(reply) = &strike.reply {
            return self.reply(request.header.request_id, MsgFlags::NONE, reply).await.map(drop);
        }
        if is_hello(&name) {
            return self.answer_hello(&request).await;
        }
        let reply = self.scripted_reply(&name, &request.body, strike);
        if request.flags.contains(MsgFlags::MORE_TO_COME) {
            return Ok(());
        }
        self.reply(request.header.request_id, MsgFlags::NONE, &reply).await.map(drop)
    }

    fn scripted_reply(&self, name: &str, body: &RawDocument, strike: Strike) -> RawDocumentBuf {
        let mut script = self.shared.script.lock();
        let mut reply = match script.replies.get(name) {
            Some(reply) => reply.clone(),
            None => match name {
                "ping" | "endSessions" | "killCursors" => rawdoc! {},
                "configureFailPoint" => match FailPoint::from_command(body) {
                    Ok(point) => {
                        script.fail_point = point;
                        rawdoc! {}
                    }
                    Err(error) => rawdoc! { "ok": 0.0, "code": 72, "errmsg": error.to_string() },
                },
                _ => {
                    let message = format!("no such command: '{name}'");
                    rawdoc! { "ok": 0.0, "code": 59, "codeName": "CommandNotFound", "errmsg": message }
                }
            },
        };
        if let Some(error) = strike.write_concern_error {
            reply.append(cstr!("writeConcernError"), error);
        }
        if !matches!(reply.get("ok"), Ok(Some(_))) {
            reply.append(cstr!("ok"), 1.0);
        }
        reply
    }

    /// Answers at once, or waits for news if the client knows the latest; streams if it may.
    async fn answer_hello(&mut self, request: &Request) -> io::Result<()> {
        let known = request.body.get_document("topologyVersion").ok();
        let mut known = known.and_then(|document| parse_topology_version(document).ok());
        let patience = match request.body.get("maxAwaitTimeMS").ok().flatten() {
            Some(RawBsonRef::Int64(millis)) => u64::try_from(millis).ok(),
            Some(RawBsonRef::Int32(millis)) => u64::try_from(millis).ok(),
            _ => None,
        };
        let patience = patience.map_or(Duration::ZERO, Duration::from_millis).min(MAX_AWAIT);
        let streams = known.is_some() && request.flags.contains(MsgFlags::EXHAUST_ALLOWED);
        let mut to = request.header.request_id;
        loop {
            if let Some(known) = known.as_ref() {
                let mut version = self.shared.version.subscribe();
                let news = version.wait_for(|counter| *counter > known.counter);
                tokio::select! {
                    _ = tokio::time::timeout(patience, news) => {}
                    () = hung_up(&self.stream) => return Err(io::ErrorKind::BrokenPipe.into()),
                }
            }
            let flags = if streams { MsgFlags::MORE_TO_COME } else { MsgFlags::NONE };
            let told = self.shared.topology_version();
            let reply = self.shared.hello_reply();
            to = self.reply(to, flags, &reply).await?;
            if !streams {
                return Ok(());
            }
            known = Some(told);
        }
    }

    async fn reply(
        &mut self,
        to: RequestId,
        flags: MsgFlags,
        body: &RawDocument,
    ) -> io::Result<RequestId> {
        let id = RequestId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let mut out = Vec::new();
        MsgWriter::new(&mut out, id, to, flags, body).finish(None).map_err(io::Error::other)?;
        self.stream.write_all(&out).await?;
        Ok(id)
    }
}

/// Waits until the client closes its end. One that sends something instead is never done.
async fn hung_up(stream: &TcpStream) {
    if !matches!(stream.peek(&mut [0]).await, Ok(0) | Err(_)) {
        std::future::pending::<()>().await;
    }
}

fn command_name(body: &RawDocument) -> Option<&str> {
    body.iter_elements().next()?.ok().map(|element| element.key().as_str())
}

fn is_hello(name: &str) -> bool {
    matches!(name, "hello" | "isMaster" | "ismaster")
}

/// The command with its document sequences put back as arrays.
fn whole_command(msg: &OpMsg<'_>) -> RawDocumentBuf {
    let mut body = msg.body().to_owned();
    for sequence in msg.sequences() {
        let array = bson::RawArrayBuf::from_iter(sequence.documents().map(RawDocument::to_owned));
        if let Ok(name) = bson::raw::CString::try_from(sequence.identifier().to_owned()) {
            body.append(name, array);
        }
    }
    body
}
