//! One client: messages in, replies out, in order.
//!
//! Owns the framing of replies (compressed or not, streamed or not) and all waiting on behalf of a
//! command. Specifications: `message/OP_MSG.md`, `compression/OP_COMPRESSED.md`, and for streamed
//! replies `server-discovery-and-monitoring/server-monitoring.md`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use quorate_node::{
    Answerer, Client, Command, CommandError, CommandFacts, Context, ErrorCode, Injection,
    Interrupt, Outcome, Registered, Reply, Standing, WaitFor,
};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_wire::{
    Compressor, CompressorId, DecodeError, Decoder, EncodeError, MAX_MESSAGE_SIZE, Message,
    MsgFlags, MsgWriter, OpReply, Payload, ReplyFlags, RequestId, topology_version_document,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use crate::logging::get_log;
use crate::net::Stream;
use crate::patience::{Patience, reached};
use crate::replica_set::{OplogStream, ReadConcern, ReplicaSet, write_concern_error};
use crate::server::Shared;
use crate::write_gate::Entered;

/// Room for the next read when nothing is known about its size.
const READ_CHUNK: usize = 4 * 1024;

/// The most bytes asked for at once: an announced length is not believed before it arrives.
const MAX_READ_CHUNK: usize = 256 * 1024;

/// Memory kept for replies after a large one.
const RETAINED_OUTPUT: usize = 64 * 1024;

/// The longest message, as it comes and decompressed, of a client that has yet to log in where logins
/// are required. Handshakes, monitors and logins need less.
const MAX_STRANGER_MESSAGE: usize = 16 * 1024;

/// A connection came to an end that its client did not ask for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the socket failed")]
    Socket(#[from] io::Error),
    #[error("the client sent something that is no message")]
    Decode(#[from] DecodeError),
    #[error("a reply could not be encoded")]
    Encode(#[from] EncodeError),
    #[error("the client does not take its reply")]
    SlowClient,
    #[error("a client that has not logged in did not finish its message in time")]
    SlowStranger,
}

/// Whether the connection goes on.
enum Next {
    GoOn,
    Close,
}

/// A message that has been taken apart.
struct Received {
    request: RequestId,
    flags: MsgFlags,
    /// Whether it is an OP_QUERY, which wants an OP_REPLY.
    legacy: bool,
    compressed: bool,
    command: Result<Command, CommandError>,
}

/// What a command may wait for.
struct Events {
    topology: watch::Receiver<()>,
    commits: watch::Receiver<u64>,
    kills: watch::Receiver<()>,
    commit_point: CommitPoint,
}

/// The commit point, and what a command has seen of it.
struct CommitPoint {
    /// Where the log stands, on a member of a set.
    standing: Option<watch::Receiver<Standing>>,
    seen: OpTimeAndWallTime,
}

impl Events {
    fn of(shared: &Shared) -> Self {
        let standing = shared.replica_set.as_ref().map(|set| set.standing_changes());
        let seen = standing.as_ref().map(|now| now.borrow().commit_point).unwrap_or_default();
        Self {
            topology: shared.topology.subscribe(),
            commits: shared.commits.subscribe(),
            kills: shared.kills.subscribe(),
            commit_point: CommitPoint { standing, seen },
        }
    }
}

impl CommitPoint {
    /// Returns when the commit point is another than the command has seen.
    async fn moved(&mut self) {
        let seen = self.seen;
        match &mut self.standing {
            Some(standing) => {
                let found = standing.wait_for(|now| now.commit_point != seen).await;
                match found.map(|now| now.commit_point) {
                    Ok(moved) => self.seen = moved,
                    Err(_) => std::future::pending().await,
                }
            }
            None => std::future::pending().await,
        }
    }
}

pub(crate) struct Connection {
    shared: Arc<Shared>,
    stream: Stream,
    decoder: Decoder,
    output: Vec<u8>,
    client: Arc<Client>,
    compressor: Option<Compressor>,
    next_request: i32,
    /// What its first message is answered with, before the connection closes.
    refusal: Option<CommandError>,
    /// Whether another member of the set is at the other end, as far as its commands tell.
    is_member: bool,
    /// Whether the command that is being answered reads what a majority has.
    reads_majority: bool,
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>, stream: Stream, client: Client) -> Self {
        let mut decoder = Decoder::new();
        if shared.node.options().authentication {
            decoder.set_limit(MAX_STRANGER_MESSAGE);
        }
        Self {
            shared,
            stream,
            decoder,
            output: Vec::new(),
            client: Arc::new(client),
            compressor: None,
            next_request: 1,
            refusal: None,
            is_member: false,
            reads_majority: false,
        }
    }

    /// A connection whose client is told why it may not stay.
    pub(crate) fn refusing(self, refusal: CommandError) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Serves the client until it leaves or the server ends.
    pub(crate) async fn run(mut self) -> Result<(), ConnectionError> {
        let mut ending = self.shared.ending.subscribe();
        let mut farewells = self.shared.farewells.subscribe();
        // When the message began that a stranger has yet to finish.
        let mut begun: Option<Instant> = None;
        loop {
            // Members go on talking to each other.
            if farewells.has_changed().unwrap_or(false) && !self.is_member {
                return Ok(());
            }
            let is_stranger = self.is_stranger();
            self.decoder.set_limit(if is_stranger {
                MAX_STRANGER_MESSAGE
            } else {
                MAX_MESSAGE_SIZE
            });
            let received = match self.decoder.next_message()? {
                Some(message) => {
                    begun = None;
                    self.shared.node.count_received(message.header.message_length);
                    take_apart(&message)
                }
                None => {
                    if is_stranger && self.decoder.has_input() {
                        begun.get_or_insert_with(Instant::now);
                    }
                    let due = begun.map(|begun| begun + self.shared.stranger_timeout);
                    tokio::select! {
                        () = reached(due) => return Err(ConnectionError::SlowStranger),
                        read = read_more(&mut self.stream, &mut self.decoder) => {
                            if read? == 0 {
                                return Ok(());
                            }
                        }
                        _ = ending.wait_for(|ending| *ending) => return Ok(()),
                        _ = farewells.changed(), if !self.is_member => return Ok(()),
                    }
                    continue;
                }
            };
            if let Next::Close = self.serve(received).await? {
                return Ok(());
            }
        }
    }

    /// Whether the client has yet to prove who it is, where it must.
    fn is_stranger(&self) -> bool {
        self.shared.node.options().authentication && !self.client.login.is_complete()
    }

    async fn serve(&mut self, received: Received) -> Result<Next, ConnectionError> {
        let Received { mut request, flags, legacy, compressed, command } = received;
        let acknowledged = !flags.contains(MsgFlags::MORE_TO_COME);
        if let Some(refusal) = &self.refusal {
            let body = error_body(refusal);
            self.send(request, legacy, false, MsgFlags::NONE, &body).await?;
            return Ok(Next::Close);
        }
        let mut command = match command {
            Ok(command) => command,
            Err(error) if acknowledged => {
                let body = error_body(&error);
                self.send(request, legacy, compressed, MsgFlags::NONE, &body).await?;
                return Ok(Next::GoOn);
            }
            Err(_) => return Ok(Next::GoOn),
        };
        self.note_handshake(&command);
        self.is_member |= command.facts().is_some_and(CommandFacts::is_between_members);
        let streams = flags.contains(MsgFlags::EXHAUST_ALLOWED) && !legacy;
        if streams && is_hello(command.name()) && !command.body.contains_key("maxAwaitTimeMS") {
            let why =
                "a hello that streams needs maxAwaitTimeMS; send it, or leave exhaustAllowed out";
            let body = error_body(&CommandError::new(ErrorCode(51756), why));
            self.send(request, legacy, compressed, MsgFlags::NONE, &body).await?;
            return Ok(Next::GoOn);
        }
        if streams
            && let Some(set) = self.shared.replica_set.clone()
            && let Some(from) = set.stream_wanted(&command)
        {
            self.is_member = true;
            if let Err(error) = self.shared.node.authorize_member(&self.client) {
                let body = error_body(&error);
                self.send(request, legacy, compressed, MsgFlags::NONE, &body).await?;
                return Ok(Next::GoOn);
            }
            return set.cut().guard(self.stream_oplog(&set, request, from)).await;
        }
        let farewells = self.shared.farewells.subscribe();
        loop {
            let again = streams.then(|| command.clone());
            let Some(body) = self.execute(command).await? else { return Ok(Next::Close) };
            if !acknowledged {
                // Nobody reads a reply: a closed connection is how such a client learns that it
                // must look for the primary.
                return Ok(if is_not_primary(&body) { Next::Close } else { Next::GoOn });
            }
            let next = again.and_then(|command| next_of_stream(command, &body));
            let flags = match next {
                Some(_) => MsgFlags::MORE_TO_COME,
                None => MsgFlags::NONE,
            };
            let sent = self.send(request, legacy, compressed, flags, &body).await?;
            match next {
                Some(_) if farewells.has_changed().unwrap_or(false) => return Ok(Next::Close),
                Some(following) => command = following,
                None => return Ok(Next::GoOn),
            }
            // Each streamed reply answers the one before it.
            request = sent;
        }
    }

    /// Pushes the oplog to another member until it leaves.
    async fn stream_oplog(
        &mut self,
        set: &ReplicaSet,
        mut request: RequestId,
        from: OpTime,
    ) -> Result<Next, ConnectionError> {
        let node = Arc::clone(&self.shared.node);
        let mut ending = self.shared.ending.subscribe();
        let mut stream = match OplogStream::open(set, &node, from) {
            Ok(stream) => stream,
            Err(error) => {
                let body = error_body(&error);
                self.send(request, false, false, MsgFlags::NONE, &body).await?;
                return Ok(Next::GoOn);
            }
        };
        let mut say_something = true;
        loop {
            match stream.next_batch(&node, say_something) {
                Ok(Some(body)) => {
                    let flags = MsgFlags::MORE_TO_COME;
                    request = self.send(request, false, false, flags, &body).await?;
                }
                Ok(None) => {}
                Err(error) => {
                    let body = error_body(&error);
                    self.send(request, false, false, MsgFlags::NONE, &body).await?;
                    return Ok(Next::Close);
                }
            }
            if stream.has_ended() {
                return Ok(Next::Close);
            }
            say_something = tokio::select! {
                due = stream.news() => due,
                // A follower has nothing to say: whatever it does, it is leaving.
                _ = read_more(&mut self.stream, &mut self.decoder) => return Ok(Next::Close),
                _ = ending.wait_for(|ending| *ending) => return Ok(Next::Close),
            };
        }
    }

    /// Runs a command to its reply; none if the connection must be closed instead. Members of a set
    /// add their clock.
    async fn execute(
        &mut self,
        command: Command,
    ) -> Result<Option<RawDocumentBuf>, ConnectionError> {
        let (started, name) = (Instant::now(), command.name().to_owned());
        // What members say to each other has its own times.
        let internal = command.facts().is_some_and(CommandFacts::is_between_members);
        self.reads_majority = false;
        let mut context = Context {
            now: self.shared.clock.now(),
            client: Arc::clone(&self.client),
            may_wait: true,
            interrupt: Arc::new(Interrupt::default()),
        };
        let operation = self.shared.node.register(&context, &command);
        let mut body = self.answer(command, &mut context).await?;
        // What waits on purpose is not slow.
        if let Some(body) = &body
            && !is_hello(&name)
            && !operation.has_waited()
        {
            self.tell(&operation, &name, started.elapsed(), body);
        }
        drop(operation);
        if let (Some(set), Some(body), false) = (&self.shared.replica_set, &mut body, internal) {
            set.tell_time(body, self.reads_majority);
        }
        Ok(body)
    }

    /// Tells of a command that has ended, in the profile and in the log, if it is worth it.
    fn tell(&self, operation: &Registered, name: &str, took: Duration, body: &RawDocumentBuf) {
        if !self.shared.node.may_be_told(took) {
            return;
        }
        let now = self.shared.clock.now();
        let entered = self.shared.gate.try_enter();
        match self.shared.node.finish(operation, now, took, body, entered.is_some()) {
            Ok(false) => {}
            Ok(true) => {
                let (connection, millis) = (self.client.connection_id, took.as_millis() as u64);
                let namespace = operation.namespace();
                tracing::info!(command = name, namespace, connection, millis, "slow command");
            }
            Err(error) => tracing::warn!(%error, "the profile cannot be written"),
        }
    }

    async fn answer(
        &mut self,
        mut command: Command,
        context: &mut Context,
    ) -> Result<Option<RawDocumentBuf>, ConnectionError> {
        let injection = self.shared.node.intercept(context, &command);
        if let Some(injection) = &injection {
            if let Some(block) = injection.block {
                tokio::time::sleep(block).await;
            }
            if injection.close_connection {
                return Ok(None);
            }
            if let Some(error) = &injection.error {
                return Ok(Some(error_body(error)));
            }
        }
        if is_answered_here(&command)
            && let Err(error) = self.shared.node.authorize(&self.client, &command)
        {
            return Ok(Some(error_body(&error)));
        }
        if command.name() == "getLog" {
            let reply = get_log(&command).unwrap_or_else(|error| error.reply());
            return Ok(Some(RawDocumentBuf::try_from(&reply).unwrap_or_default()));
        }
        if let Some(body) = self.lock_writes(&command, context).await {
            return Ok(Some(body));
        }
        if command.name() == "shutdown" {
            self.shared.ending.send_replace(true);
            return Ok(None);
        }
        if is_hello(command.name()) && self.shared.quiescing.load(Ordering::SeqCst) {
            return Ok(Some(self.quiesce_reply()));
        }
        let writes = command.may_write();
        let set = self.shared.replica_set.clone();
        let wanted = match &set {
            None => None,
            Some(set) => {
                if let Err(error) = set.hear_time(&command, &self.client) {
                    return Ok(Some(error_body(&error)));
                }
                if let Some(body) = set.answer(&command).await {
                    return Ok(Some(body));
                }
                if let Some(body) = set.forward(&command).await {
                    return Ok(Some(body));
                }
                if let Err(error) = set.check_default(&command).await {
                    return Ok(Some(error_body(&error)));
                }
                let completed = set.complete_read_concern(&mut command);
                match completed.and_then(|()| set.take_concern(&mut command, writes)) {
                    Ok(wanted) => wanted,
                    Err(error) => return Ok(Some(error_body(&error))),
                }
            }
        };
        let limit = self.shared.node.time_left(&command);
        let (patience, began) =
            (Patience::start(&self.shared, limit, &context.interrupt), Instant::now());
        if let Some(set) = &set
            && let Err(error) = patience.wait(set.wait_for_cluster_time(&command)).await
        {
            return Ok(Some(error_body(&error)));
        }
        let hello = is_hello(command.name());
        // Only a retryable write can meet the fail point that cuts its connection off.
        let retryable = command.body.contains_key("txnNumber");
        let lsid = command.body.get_document("lsid").ok().filter(|_| retryable).cloned();
        let read_concern = set.as_ref().and_then(|_| ReadConcern::of(&command));
        self.reads_majority = read_concern == Some(ReadConcern::Majority) && !writes;
        let may_run_again = command.clone_if_it_may_wait();
        // Listening starts before the command looks, so that nothing falls in between.
        let mut events = may_run_again.as_ref().map(|_| Events::of(&self.shared));
        let shared = Arc::clone(&self.shared);
        let entered = match writes.then(|| shared.gate.try_enter()) {
            None => None,
            Some(Some(entered)) => Some(entered),
            Some(None) => {
                context.interrupt.set_waiting(true);
                match patience.wait(pass(&shared)).await {
                    Ok(entered) => Some(entered),
                    Err(error) => return Ok(Some(error_body(&error))),
                }
            }
        };
        context.interrupt.set_waiting(false);
        let mut outcome = self.run_command(context, command);
        drop(entered);
        if let (Some(limit), Outcome::Reply(reply)) = (limit, &outcome) {
            self.shared.node.keep_time_left(reply, limit.saturating_sub(began.elapsed()));
        }
        if let (Outcome::Wait { until, at_most }, Some(command), Some(events)) =
            (&outcome, may_run_again, &mut events)
        {
            context.interrupt.set_waiting(true);
            if !self.wait_for(events, *until, *at_most, &context.interrupt).await? {
                return Ok(None);
            }
            context.interrupt.set_waiting(false);
            context.may_wait = false;
            context.now = self.shared.clock.now();
            outcome = self.run_command(context, command);
        }
        if lsid.is_some_and(|lsid| self.shared.node.take_cut_off(&lsid)) {
            return Ok(None);
        }
        // The news may have come while the command ran, with or without waiting.
        if hello && self.shared.quiescing.load(Ordering::SeqCst) {
            return Ok(Some(self.quiesce_reply()));
        }
        let reply = match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Wait { .. } => return Ok(None),
        };
        let op_time = reply.op_time;
        let (mut body, late) = self.when_durable(reply, writes, &patience).await;
        if let Some(late) = late {
            append_write_concern_error(&mut body, late, retryable, &[]);
            return Ok(Some(body));
        }
        if let (Some(set), Some(concern)) = (&set, read_concern)
            && let Err(error) = patience.wait(set.confirm(concern)).await
        {
            return Ok(Some(error_body(&error)));
        }
        if let (Some(set), Some(wanted)) = (set, wanted) {
            let acknowledged = async { Ok(set.acknowledge(wanted, op_time).await) };
            // The write was done, whatever becomes of the waiting.
            let error = patience
                .wait(acknowledged)
                .await
                .unwrap_or_else(|why| (op_time.is_some()).then(|| write_concern_error(&why)));
            if let Some(error) = error {
                append_write_concern_error(&mut body, error, retryable, &[]);
            }
        }
        if let Some(Injection { write_concern_error: Some(error), labels, .. }) = injection {
            append_write_concern_error(&mut body, error, retryable, &labels);
        }
        Ok(Some(body))
    }

    /// `fsync` with `lock`, and `fsyncUnlock`; none for other commands.
    async fn lock_writes(&self, command: &Command, context: &Context) -> Option<RawDocumentBuf> {
        let Shared { gate, node, durability, .. } = &*self.shared;
        let done = match command.name() {
            "fsync" if locks(command) => {
                let limit = command.max_time();
                let patience = Patience::start(&self.shared, limit, &context.interrupt);
                match patience.wait(gate.lock(node)).await {
                    Err(error) => Err(error),
                    Ok(count) => match durability.wait(node.durability().0).await {
                        Ok(()) => Ok(doc! {
                            "info": "now locked against writes, use db.fsyncUnlock() to unlock",
                            "lockCount": count as i64,
                            "ok": 1.0,
                        }),
                        Err(error) => gate.unlock(node).await.and(Err(error)),
                    },
                }
            }
            "fsyncUnlock" => gate.unlock(node).await.map(|count| {
                doc! { "info": "fsyncUnlock completed", "lockCount": count as i64, "ok": 1.0 }
            }),
            _ => return None,
        };
        let document = done.unwrap_or_else(|error| error.reply());
        Some(RawDocumentBuf::try_from(&document).unwrap_or_default())
    }

    /// Tells a client that this server is about to end. The topology version makes it news.
    fn quiesce_reply(&self) -> RawDocumentBuf {
        let mut error = CommandError::new(
            ErrorCode::SHUTDOWN_IN_PROGRESS,
            "The server is in quiesce mode and will shut down",
        );
        let version = topology_version_document(self.shared.node.topology_version());
        if let Ok(version) = Document::try_from(&*version) {
            error.details.insert("topologyVersion", version);
        }
        error_body(&error)
    }

    /// Short commands run where they are; others let this worker's other tasks move on.
    fn run_command(&self, context: &Context, command: Command) -> Outcome {
        let node = &self.shared.node;
        let kills = command.facts().is_some_and(CommandFacts::may_interrupt_others);
        let breaks = command.name() == "configureFailPoint";
        let outcome = if command.is_short() {
            node.run(context, command)
        } else {
            tokio::task::block_in_place(|| node.run(context, command))
        };
        if kills {
            self.shared.kills.send_replace(());
        }
        if let (true, Some(set)) = (breaks, &self.shared.replica_set) {
            set.stop_copying(node.copying_is_stopped());
        }
        if self.shared.commits.receiver_count() > 0 {
            let committed = node.durability().0.as_u64();
            self.shared.commits.send_if_modified(|known| {
                let news = committed > *known;
                *known = committed.max(*known);
                news
            });
        }
        outcome
    }

    /// The reply once the disk has what it tells of, and for a write that waited in vain the error of
    /// waiting: the write itself was done.
    async fn when_durable(
        &self,
        reply: Reply,
        writes: bool,
        patience: &Patience,
    ) -> (RawDocumentBuf, Option<Document>) {
        let Some(sequence) = reply.durable else { return (reply.body, None) };
        match patience.wait(self.shared.durability.wait(sequence)).await {
            Ok(()) => (reply.body, None),
            Err(error) if writes && patience.is_over() => {
                (reply.body, Some(write_concern_error(&error)))
            }
            Err(error) => (error_body(&error), None),
        }
    }

    /// Waits for an event. Returns false if the client left or the server ends meanwhile.
    async fn wait_for(
        &mut self,
        events: &mut Events,
        event: WaitFor,
        at_most: Duration,
        interrupt: &Interrupt,
    ) -> Result<bool, ConnectionError> {
        let mut ending = self.shared.ending.subscribe();
        let timeout = tokio::time::sleep(at_most);
        tokio::pin!(timeout);
        loop {
            tokio::select! {
                () = &mut timeout => return Ok(true),
                _ = events.topology.changed(), if event == WaitFor::TopologyChange => return Ok(true),
                _ = events.commits.changed(), if event == WaitFor::Commit => return Ok(true),
                () = events.commit_point.moved(), if event == WaitFor::CommitPoint => {
                    return Ok(true);
                }
                _ = events.kills.changed() => {
                    if interrupt.check().is_err() {
                        return Ok(true);
                    }
                }
                _ = ending.wait_for(|ending| *ending) => return Ok(false),
                // What is sent ahead is read up to one message.
                read = read_more(&mut self.stream, &mut self.decoder),
                    if self.decoder.missing().is_ok_and(|missing| missing > 0) =>
                {
                    if read? == 0 {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Remembers who the client is and how it wants replies compressed.
    fn note_handshake(&mut self, command: &Command) {
        if !is_hello(command.name()) {
            return;
        }
        if let Ok(metadata) = command.body.get_document("client")
            && self.client.metadata.is_empty()
        {
            let client = Client { metadata: metadata.clone(), ..(*self.client).clone() };
            self.client = Arc::new(client);
        }
        if let Ok(wanted) = command.body.get_array("compression")
            && self.compressor.is_none()
        {
            let offered = &self.shared.node.options().compressors;
            self.compressor = wanted
                .iter()
                .filter_map(|name| name.as_str())
                .filter(|name| offered.iter().any(|offer| offer == name))
                .find_map(|name| Compressor::new(CompressorId::from_name(name)?).ok());
        }
    }

    /// Sends a reply and returns the number it went out under.
    async fn send(
        &mut self,
        response_to: RequestId,
        legacy: bool,
        compressed: bool,
        flags: MsgFlags,
        body: &RawDocumentBuf,
    ) -> Result<RequestId, ConnectionError> {
        let id = RequestId(self.next_request);
        self.next_request = self.next_request.wrapping_add(1);
        self.output.clear();
        if legacy {
            let flags = ReplyFlags::AWAIT_CAPABLE;
            OpReply::append_one(&mut self.output, id, response_to, flags, body)?;
        } else {
            let compressor = self.compressor.as_mut().filter(|_| compressed);
            MsgWriter::new(&mut self.output, id, response_to, flags, body).finish(compressor)?;
        }
        self.shared.node.count_sent(self.output.len());
        let writing = async {
            self.stream.write_all(&self.output).await?;
            self.stream.flush().await
        };
        tokio::time::timeout(self.shared.write_timeout, writing)
            .await
            .map_err(|_| ConnectionError::SlowClient)??;
        if self.output.capacity() > RETAINED_OUTPUT {
            self.output = Vec::new();
        }
        Ok(id)
    }
}

async fn read_more(stream: &mut Stream, decoder: &mut Decoder) -> Result<usize, ConnectionError> {
    let missing = decoder.missing()?;
    let input = decoder.input();
    input.reserve(missing.clamp(READ_CHUNK, MAX_READ_CHUNK));
    Ok(stream.read_buf(input).await?)
}

fn take_apart(message: &Message<'_>) -> Received {
    let (flags, legacy, command) = match &message.payload {
        Payload::Msg(msg) => {
            let sequences = msg.sequences().map(|sequence| {
                let documents = sequence.documents().map(ToOwned::to_owned).collect();
                (sequence.identifier().to_owned(), documents)
            });
            let command = Command::from_raw(msg.body(), sequences.collect());
            (msg.flags(), false, command)
        }
        Payload::Query(query) => {
            let command = Command::from_raw(query.query, Vec::new()).and_then(|mut command| {
                if !query.is_command() || !is_hello(command.name()) {
                    return Err(CommandError::new(
                        ErrorCode(352),
                        "OP_QUERY is only understood for hello; use OP_MSG",
                    ));
                }
                command.body_mut().insert("$db", query.database());
                Ok(command)
            });
            (MsgFlags::NONE, true, command)
        }
        Payload::Reply(_) => {
            let error = CommandError::bad_value("a client must not send replies");
            (MsgFlags::NONE, false, Err(error))
        }
    };
    Received {
        request: message.header.request_id,
        flags,
        legacy,
        compressed: message.compressed,
        command,
    }
}

fn is_hello(name: &str) -> bool {
    name.eq_ignore_ascii_case("hello") || name.eq_ignore_ascii_case("ismaster")
}

/// Whether another component than the member answers the command, or acts before the member does, so
/// that whether it is allowed is asked here.
fn is_answered_here(command: &Command) -> bool {
    locks(command)
        || command.name() == "setDefaultRWConcern"
        || command.facts().is_some_and(|facts| facts.answerer() != Answerer::Member)
}

/// Waits until writes may pass, or the server ends.
async fn pass(shared: &Shared) -> Result<Entered<'_>, CommandError> {
    let mut ending = shared.ending.subscribe();
    tokio::select! {
        entered = shared.gate.enter() => Ok(entered),
        _ = ending.wait_for(|ending| *ending) => Err(CommandError::new(
            ErrorCode::INTERRUPTED_AT_SHUTDOWN,
            "the server is shutting down while writes are locked out",
        )),
    }
}

/// Whether it is the `fsync` that locks writes out.
fn locks(command: &Command) -> bool {
    command.name() == "fsync"
        && match command.body.get("lock") {
            Some(Bson::Boolean(lock)) => *lock,
            Some(Bson::Int32(lock)) => *lock != 0,
            Some(Bson::Int64(lock)) => *lock != 0,
            Some(Bson::Double(lock)) => *lock != 0.0,
            _ => false,
        }
}

/// The command whose reply follows in a stream; none if this was the last.
fn next_of_stream(mut command: Command, reply: &RawDocumentBuf) -> Option<Command> {
    if reply.get_f64("ok").ok()? != 1.0 {
        return None;
    }
    if is_hello(command.name()) {
        // Only a hello that may wait is worth repeating.
        command.body.get("maxAwaitTimeMS")?;
        let version = reply.get_document("topologyVersion").ok()?;
        command.body_mut().insert("topologyVersion", Document::try_from(version).ok()?);
        return Some(command);
    }
    if command.name() == "getMore" {
        let id = reply.get_document("cursor").ok()?.get_i64("id").ok()?;
        return (id != 0).then_some(command);
    }
    None
}

/// Whether a reply says that this member is not, or no longer, the one to write to.
fn is_not_primary(reply: &RawDocument) -> bool {
    matches!(reply.get_i32("code"), Ok(10107 | 11602 | 189 | 13435 | 13436))
}

fn error_body(error: &CommandError) -> RawDocumentBuf {
    RawDocumentBuf::try_from(&error.reply()).unwrap_or_default()
}

/// Whether an error tells that another member is or will be the primary.
fn is_elsewhere(code: i32) -> bool {
    matches!(code, 91 | 189 | 10107 | 11600 | 11602 | 13435 | 13436)
}

/// The write was done; that others have it could not be promised.
fn append_write_concern_error(
    body: &mut RawDocumentBuf,
    error: Document,
    retryable: bool,
    labels: &[String],
) {
    let Ok(mut reply) = Document::try_from(&**body) else { return };
    let mut labels: Vec<_> = labels.iter().map(|label| bson::Bson::from(label.as_str())).collect();
    // Repeating the write at the next primary is safe, and finds out.
    let elsewhere = error.get("code").and_then(bson::Bson::as_i32).is_some_and(is_elsewhere);
    if labels.is_empty() && retryable && elsewhere {
        labels.push("RetryableWriteError".into());
    }
    if !labels.is_empty() {
        reply.insert("errorLabels", labels);
    }
    reply.insert("writeConcernError", error);
    if let Ok(changed) = RawDocumentBuf::try_from(&reply) {
        *body = changed;
    }
}
