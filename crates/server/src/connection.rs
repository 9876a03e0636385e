//! One client: messages in, replies out, in order.
//!
//! Owns the framing of messages and replies (compressed or not, streamed or not). What becomes of a
//! command in between is in `answering.rs`. Specifications: `message/OP_MSG.md`, `compression/OP_COMPRESSED.md`, and for streamed
//! replies `server-discovery-and-monitoring/server-monitoring.md`.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bson::{Document, RawDocument, RawDocumentBuf};
use quorate_node::{
    Client, Command, CommandError, CommandFacts, DocumentBytes, ErrorCode, MAX_SHORT_BYTES,
    check_client_metadata, check_document_count,
};
use quorate_protocol::OpTime;
use quorate_wire::{
    Compressor, CompressorId, DecodeError, Decoder, EncodeError, MAX_MESSAGE_SIZE, Message,
    MsgFlags, MsgWriter, OpReply, Payload, ReplyFlags, RequestId,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::block_in_place;

use crate::hello_stream::Streamed;
use crate::leaving::Leaving;
use crate::member_connection::MemberConnection;
use crate::net::{ReadHalf, Stream, WriteHalf, write_now};
use crate::patience::reached;
use crate::replica_set::ReplicaSet;
use crate::server::Shared;

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
pub(crate) enum Next {
    GoOn,
    Close,
}

/// A message that has been taken apart.
pub(crate) struct Received {
    pub(crate) request: RequestId,
    flags: MsgFlags,
    /// Whether it is an OP_QUERY, which wants an OP_REPLY.
    legacy: bool,
    compressed: bool,
    command: Result<Command, CommandError>,
}

impl Received {
    /// Where the oplog begins that another member asks to be sent as it grows.
    pub(crate) fn oplog_from(&self, set: &ReplicaSet) -> Option<OpTime> {
        let command = self.command.as_ref().ok()?;
        let streams = self.flags.contains(MsgFlags::EXHAUST_ALLOWED) && !self.legacy;
        streams.then(|| set.stream_wanted(command)).flatten()
    }
}

pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stream: Stream,
    pub(crate) decoder: Decoder,
    output: Vec<u8>,
    pub(crate) client: Arc<Client>,
    compressor: Option<Compressor>,
    next_request: i32,
    /// What its first message is answered with, before the connection closes.
    refusal: Option<CommandError>,
    /// Whether the command that is being answered reads what a majority has.
    pub(crate) reads_majority: bool,
    /// Whether a fail point has made the error that the command is answered with.
    pub(crate) is_injected: bool,
    /// Whether the client reads the reply to the command that is being answered. If it does and leaves,
    /// the command is stopped.
    pub(crate) is_read_from: bool,
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
            reads_majority: false,
            is_read_from: false,
            is_injected: false,
        }
    }

    /// The halves of its socket, and the number of its next message.
    pub(crate) fn into_halves(self) -> (ReadHalf<Stream>, WriteHalf<Stream>, i32) {
        let (reader, writer) = self.stream.into_split();
        (reader, writer, self.next_request)
    }

    /// A connection whose client is told why it may not stay.
    pub(crate) fn refusing(self, refusal: CommandError) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Serves the client until it leaves or the server ends.
    pub(crate) async fn run(mut self) -> Result<(), ConnectionError> {
        let mut leaving = Leaving::new(&self.shared);
        // When the first bytes arrived of a message that a client without a login has not finished.
        let mut begun: Option<Instant> = None;
        loop {
            if leaving.has_farewell() {
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
                    match is_long(&message) {
                        true => block_in_place(|| take_apart(&message)),
                        false => take_apart(&message),
                    }
                }
                None => {
                    if is_stranger && self.decoder.has_input() {
                        begun.get_or_insert_with(Instant::now);
                    }
                    let due = begun.map(|begun| begun + self.shared.stranger_timeout);
                    match self.read_or_leave(&mut leaving, due).await? {
                        0 => return Ok(()),
                        _ => continue,
                    }
                }
            };
            match self.set_of_member(&received) {
                Ok(None) => {}
                // On the heap: clients' connections need no room for it.
                Ok(Some(set)) => {
                    return Box::pin(MemberConnection::new(self, set).run(received)).await;
                }
                Err(stranger) => {
                    let body = error_body(&stranger);
                    self.send(received.request, false, false, MsgFlags::NONE, &body).await?;
                    continue;
                }
            }
            if let Next::Close = self.serve(received).await? {
                return Ok(());
            }
        }
    }

    /// Reads more of the client's bytes. Zero means that the connection ends: the client has left, or has to.
    async fn read_or_leave(
        &mut self,
        leaving: &mut Leaving,
        due: Option<Instant>,
    ) -> Result<usize, ConnectionError> {
        let mut late = pin!(reached(due));
        let mut reading = pin!(read_more(&mut self.stream, &mut self.decoder));
        poll_fn(|context| {
            if leaving.poll(context).is_ready() {
                return Poll::Ready(Ok(0));
            }
            if let Poll::Ready(read) = reading.as_mut().poll(context) {
                return Poll::Ready(read);
            }
            late.as_mut().poll(context).map(|()| Err(ConnectionError::SlowStranger))
        })
        .await
    }

    /// The set, if this message shows that another member of it is at the other end. A client that asks to
    /// be sent the oplog as members are is refused.
    fn set_of_member(&self, received: &Received) -> Result<Option<Arc<ReplicaSet>>, CommandError> {
        let (Some(set), Ok(command), None) =
            (&self.shared.replica_set, &received.command, &self.refusal)
        else {
            return Ok(None);
        };
        let follows = received.oplog_from(set).is_some();
        if !follows && !command.facts().is_some_and(CommandFacts::is_between_members) {
            return Ok(None);
        }
        match self.shared.node.authorize_member(&self.client) {
            Err(stranger) if follows => Err(stranger),
            // Other refusals are made where commands are admitted.
            authorized => Ok(authorized.ok().map(|()| Arc::clone(set))),
        }
    }

    /// Whether the client has yet to prove who it is, where it must.
    fn is_stranger(&self) -> bool {
        self.shared.node.options().authentication && !self.client.login.is_complete()
    }

    pub(crate) async fn serve(&mut self, received: Received) -> Result<Next, ConnectionError> {
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
        let streams = flags.contains(MsgFlags::EXHAUST_ALLOWED) && !legacy;
        if streams && is_hello(command.name()) && !command.body.contains_key("maxAwaitTimeMS") {
            let why =
                "a hello that streams needs maxAwaitTimeMS; send it, or leave exhaustAllowed out";
            let body = error_body(&CommandError::new(ErrorCode(51756), why));
            self.send(request, legacy, compressed, MsgFlags::NONE, &body).await?;
            return Ok(Next::GoOn);
        }
        let farewells = streams.then(|| self.shared.farewells.subscribe());
        loop {
            if let Some(farewells) = &farewells
                && is_hello(command.name())
            {
                let streaming = self.stream_hellos(command, request, compressed, farewells);
                // On the heap: other commands need no room for it.
                match Box::pin(streaming).await? {
                    Streamed::Ended(next) => return Ok(next),
                    Streamed::Ordinary(next, last) => (command, request) = (next, last),
                }
            }
            let again = streams.then(|| command.clone());
            self.is_read_from = acknowledged;
            let Some(body) = self.execute(command).await? else { return Ok(Next::Close) };
            if !acknowledged {
                // The client reads no reply: a closed connection is how it learns that it
                // must look for the primary.
                return Ok(if is_not_primary(&body) { Next::Close } else { Next::GoOn });
            }
            let next = again.and_then(|command| next_of_stream(command, &body));
            let flags = match next {
                Some(_) => MsgFlags::MORE_TO_COME,
                None => MsgFlags::NONE,
            };
            let sent = self.send(request, legacy, compressed, flags, &body).await?;
            let leaves = farewells.as_ref().is_some_and(|it| it.has_changed().unwrap_or(false));
            match next {
                Some(_) if leaves => return Ok(Next::Close),
                Some(following) => {
                    command = following;
                    // Yield first: the other clients of this worker are sent the change before this
                    // one waits again.
                    tokio::task::yield_now().await;
                }
                None => return Ok(Next::GoOn),
            }
            // Each streamed reply answers the one before it.
            request = sent;
        }
    }

    /// Remembers who the client is and how it wants replies compressed.
    fn note_handshake(&mut self, command: &Command) {
        if !is_hello(command.name()) {
            return;
        }
        if let Ok(metadata) = command.body.get_document("client")
            && self.client.metadata.is_empty()
            && check_client_metadata(metadata).is_ok()
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
    pub(crate) async fn send(
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
        // Nearly every client takes its reply at once. Only the others need a timer.
        let (written, is_flushed) = write_now(&mut self.stream, &self.output);
        if !is_flushed {
            let writing = async {
                self.stream.write_all(&self.output[written..]).await?;
                self.stream.flush().await
            };
            tokio::time::timeout(self.shared.write_timeout, writing)
                .await
                .map_err(|_| ConnectionError::SlowClient)??;
        }
        if self.output.capacity() > RETAINED_OUTPUT {
            self.output = Vec::new();
        }
        Ok(id)
    }
}

pub(crate) async fn read_more(
    stream: &mut Stream,
    decoder: &mut Decoder,
) -> Result<usize, ConnectionError> {
    let missing = decoder.missing()?;
    let input = decoder.input();
    input.reserve(missing.clamp(READ_CHUNK, MAX_READ_CHUNK));
    Ok(stream.read_buf(input).await?)
}

/// Whether the worker is left to other connections while a command is read.
fn is_long(message: &Message<'_>) -> bool {
    matches!(message.payload, Payload::Msg(_)) && message.header.message_length > MAX_SHORT_BYTES
}

pub(crate) fn take_apart(message: &Message<'_>) -> Received {
    let (flags, legacy, command) = match &message.payload {
        Payload::Msg(msg) => {
            let sequences = msg.sequences().map(|sequence| {
                let documents = sequence.documents().map(DocumentBytes::from).collect();
                (sequence.identifier().to_owned(), documents)
            });
            let command = check_document_count(msg.document_count())
                .and_then(|()| Command::received(msg.body(), sequences.collect()))
                .and_then(with_database);
            (msg.flags(), false, command)
        }
        Payload::Query(query) => {
            let command = Command::from_raw(query.query, Vec::new()).and_then(|mut command| {
                if !query.is_command() || !is_hello(command.name()) {
                    return Err(CommandError::new(
                        ErrorCode::UNSUPPORTED_OP_QUERY_COMMAND,
                        "OP_QUERY is only understood for hello; use OP_MSG",
                    ));
                }
                command.set("$db", query.database());
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

/// Refuses a message that does not say which database it is for.
fn with_database(command: Command) -> Result<Command, CommandError> {
    match command.body.has_text("$db") {
        true => Ok(command),
        false if command.body.contains_key("$db") => {
            Err(CommandError::type_mismatch("$db must be a string"))
        }
        false => Err(CommandError::new(ErrorCode(40571), "OP_MSG requests require a $db argument")),
    }
}

pub(crate) fn is_hello(name: &str) -> bool {
    name.eq_ignore_ascii_case("hello") || name.eq_ignore_ascii_case("ismaster")
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
        command.set("topologyVersion", Document::try_from(version).ok()?);
        return Some(command);
    }
    if command.name() == "getMore" {
        let id = reply.get_document("cursor").ok()?.get_i64("id").ok()?;
        return (id != 0).then_some(command);
    }
    None
}

/// Whether a reply is an error that sends its client to the primary.
fn is_not_primary(reply: &RawDocument) -> bool {
    reply.get_i32("code").is_ok_and(|code| is_news(ErrorCode(code)))
}

/// Whether an error tells its receiver to ask another member.
pub(crate) fn is_news(code: ErrorCode) -> bool {
    let ends = matches!(code, ErrorCode::SHUTDOWN_IN_PROGRESS | ErrorCode::INTERRUPTED_AT_SHUTDOWN);
    code.is_state_change() && !ends
}

pub(crate) fn error_body(error: &CommandError) -> RawDocumentBuf {
    RawDocumentBuf::try_from(&error.reply()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bson::raw::cstr;
    use bson::rawdoc;

    use super::*;

    /// Takes a `ping` apart that comes with so many documents. Says besides whether the worker is left to others.
    fn ping_with(documents: usize, document: &RawDocument) -> (Received, bool) {
        let body = rawdoc! { "ping": 1, "$db": "admin" };
        let (mut bytes, id) = (Vec::new(), RequestId(1));
        MsgWriter::new(&mut bytes, id, id, MsgFlags::NONE, &body)
            .sequence(cstr!("documents"), std::iter::repeat_n(document, documents))
            .finish(None)
            .unwrap();
        let mut decoder = Decoder::new();
        decoder.feed(&bytes);
        let message = decoder.next_message().unwrap().unwrap();
        (take_apart(&message), is_long(&message))
    }

    /// A message has room for millions of them, and each takes many times its bytes.
    #[test]
    fn a_message_of_too_many_documents_is_refused_whatever_its_command() {
        let (received, _) = ping_with(100_001, &rawdoc! {});
        assert_eq!(received.command.unwrap_err().code, ErrorCode::INVALID_LENGTH);
        assert!(ping_with(100_000, &rawdoc! {}).0.command.is_ok());
    }

    #[test]
    fn a_message_is_long_by_all_that_is_in_it() {
        let text = rawdoc! { "text": "x".repeat(1024) };
        assert!(!ping_with(MAX_SHORT_BYTES / 2048, &text).1);
        assert!(ping_with(MAX_SHORT_BYTES / 1024, &text).1);
    }
}
