//! Streamed replies to `hello`: one after each change of the member's state.
//!
//! A member may have thousands of clients that wait for its next state, and all of them are told at once. The
//! command is run once, so that what is wrong with it is said. From then on the reply is encoded once for all
//! clients, and what a connection waits for is set up once for all replies. What is out of the ordinary (a fail
//! point, the end of the server) goes the way of every command (`answering.rs`). Specification: `server-discovery-and-monitoring/server-monitoring.md`, "Streaming Protocol".

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bson::RawDocumentBuf;
use quorate_node::{Command, Context, Interrupt, Outcome, StreamedHello};
use quorate_protocol::TopologyVersion;
use quorate_wire::{MsgFlags, RequestId, parse_topology_version, to_bson_topology_version};
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::connection::{Connection, ConnectionError, Next, error_body, read_more};
use crate::server::Shared;

/// How a stream goes on when the replies from here end.
pub(crate) enum Streamed {
    /// This command is answered in the ordinary way, as the answer to this message.
    Ordinary(Command, RequestId),
    /// No reply follows.
    Ended(Next),
}

impl Connection {
    /// Sends a reply after each change of state, as long as nothing is out of the ordinary.
    pub(crate) async fn stream_hellos(
        &mut self,
        mut command: Command,
        mut request: RequestId,
        compressed: bool,
        farewells: &watch::Receiver<u64>,
    ) -> Result<Streamed, ConnectionError> {
        let shared = Arc::clone(&self.shared);
        let (Some(hello), false) =
            (shared.node.streamed_hello(&command), self.is_out_of_the_ordinary())
        else {
            return Ok(Streamed::Ordinary(command, request));
        };
        let mut told = hello.known();
        if let Some(set) = &shared.replica_set
            && set.hear_time(&command, &self.client).is_err()
        {
            return Ok(Streamed::Ordinary(command, request));
        }
        let mut context = Context {
            now: shared.clock.now(),
            client: Arc::clone(&self.client),
            may_wait: true,
            may_look_at: None,
            interrupt: Arc::new(Interrupt::default()),
        };
        let _operation = shared.node.register(&context, &command);
        // Subscribe before the command runs, so that no change is missed.
        let mut waiting = Waiting::new(&shared, hello.at_most());
        let mut next = match shared.node.run(&context, command.clone()) {
            Outcome::Reply(reply) => Some(with_version(reply.body)),
            Outcome::Wait { .. } | Outcome::Long => None,
        };
        context.may_wait = false;
        context.interrupt.set_waiting(true);
        loop {
            let (body, version) = match next.take() {
                Some(first) => first,
                None => {
                    if let Some(end) = self.await_change(&mut waiting, &context, told).await? {
                        return Ok(Streamed::Ended(end));
                    }
                    if shared.quiescing.load(Ordering::SeqCst) {
                        break;
                    }
                    self.next_hello(&hello, &command, &context)
                }
            };
            request = self.send_hello(body, version, request, compressed).await?;
            let Some(version) = version else { return Ok(Streamed::Ended(Next::GoOn)) };
            if farewells.has_changed().unwrap_or(false) {
                return Ok(Streamed::Ended(Next::Close));
            }
            (told, waiting.since) = (version, Instant::now());
            if self.is_out_of_the_ordinary() {
                break;
            }
        }
        command.set("topologyVersion", to_bson_topology_version(told));
        Ok(Streamed::Ordinary(command, request))
    }

    /// Sends a reply of the stream, the last one if it tells no version. Returns the number it went out under.
    async fn send_hello(
        &mut self,
        mut body: RawDocumentBuf,
        version: Option<TopologyVersion>,
        request: RequestId,
        compressed: bool,
    ) -> Result<RequestId, ConnectionError> {
        let flags = match version {
            Some(_) => MsgFlags::MORE_TO_COME,
            None => MsgFlags::NONE,
        };
        if version.is_none() {
            self.shared.node.tell_topology_version(&mut body);
        }
        if let Some(set) = &self.shared.replica_set {
            set.tell_time(&mut body, false);
        }
        self.send(request, false, compressed, flags, &body).await
    }

    /// Whether the next reply is to go the way of every command.
    fn is_out_of_the_ordinary(&self) -> bool {
        self.shared.node.may_intercept() || self.shared.quiescing.load(Ordering::SeqCst)
    }

    /// The next reply, and the version that it tells; an error has none, and is the last.
    fn next_hello(
        &self,
        hello: &StreamedHello,
        command: &Command,
        context: &Context,
    ) -> (RawDocumentBuf, Option<TopologyVersion>) {
        let (node, now) = (&self.shared.node, self.shared.clock.now());
        if let Err(interrupted) = context.interrupt.check() {
            return (error_body(&interrupted), None);
        }
        if let Some((body, version)) = node.repeat_hello(hello, &self.client, now) {
            return (body, Some(version));
        }
        // No client has been answered like this since the state changed.
        let context = Context { now, ..context.clone() };
        match node.run(&context, command.clone()) {
            Outcome::Reply(reply) => with_version(reply.body),
            // Never reached: the context does not let the command wait.
            Outcome::Wait { .. } | Outcome::Long => (RawDocumentBuf::new(), None),
        }
    }

    /// Returns when the client is to be told something, or how the connection goes on if it is not.
    async fn await_change(
        &mut self,
        waiting: &mut Waiting,
        context: &Context,
        told: TopologyVersion,
    ) -> Result<Option<Next>, ConnectionError> {
        if self.shared.node.topology_version() != told {
            // Yield first: the other clients of this worker are sent the last change before this
            // one waits again.
            tokio::task::yield_now().await;
            return Ok(None);
        }
        loop {
            let due = waiting.since + waiting.at_most;
            tokio::select! {
                biased;
                _ = waiting.topology.changed() => {
                    if self.shared.node.topology_version() != told {
                        return Ok(None);
                    }
                }
                () = &mut waiting.timeout => {
                    if due <= Instant::now() {
                        return Ok(None);
                    }
                    // It was set before the last reply.
                    waiting.timeout.as_mut().reset(due.into());
                }
                _ = waiting.kills.changed() => {
                    if context.interrupt.check().is_err() {
                        return Ok(None);
                    }
                }
                _ = waiting.ending.wait_for(|ending| *ending) => return Ok(Some(Next::Close)),
                // What is sent ahead is read up to one message.
                read = read_more(&mut self.stream, &mut self.decoder),
                    if self.decoder.missing().is_ok_and(|missing| missing > 0) =>
                {
                    if read? == 0 {
                        return Ok(Some(Next::Close));
                    }
                }
            }
        }
    }
}

/// What wakes a stream that waits.
struct Waiting {
    topology: watch::Receiver<()>,
    kills: watch::Receiver<()>,
    ending: watch::Receiver<bool>,
    /// Fires no later than the next reply is due.
    timeout: Pin<Box<Sleep>>,
    at_most: Duration,
    /// When the last reply was sent.
    since: Instant,
}

impl Waiting {
    fn new(shared: &Shared, at_most: Duration) -> Self {
        let since = Instant::now();
        Self {
            topology: shared.topology.subscribe(),
            kills: shared.kills.subscribe(),
            ending: shared.ending.subscribe(),
            timeout: Box::pin(tokio::time::sleep_until((since + at_most).into())),
            at_most,
            since,
        }
    }
}

/// A reply with the version that it tells; an error counts as without one.
fn with_version(body: RawDocumentBuf) -> (RawDocumentBuf, Option<TopologyVersion>) {
    let is_fine = body.get_f64("ok").is_ok_and(|ok| ok == 1.0);
    let told = body.get_document("topologyVersion").ok().filter(|_| is_fine);
    let version = told.and_then(|told| parse_topology_version(told).ok());
    (body, version)
}
