//! Copying entries from a source: a thread that reads its stream and hands batches to the host.
//!
//! It is a thread of its own with sockets of its own, because it may wait for the disk: a few entries
//! are applied, forced to disk and reported by the thread that read them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quorate_member::MAX_BATCH_BYTES;
use quorate_node::ErrorCode;
use quorate_protocol::{OpTime, ServerAddress, Term};
use quorate_replication::{FetchFailure, FetchId, Input};
use quorate_wire::MsgFlags;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::client::{Client, ClientError, check};
use super::inbox::{Applying, Failing};
use super::stream::{find_command, parse_batch};
use super::{Inbox, Message};
use crate::dialer::Dialer;

/// Bytes of entries that are fetched and not applied yet.
const MAX_BUFFERED_KIB: usize = 64 * 1024;

/// How long a source may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Entries from a source, on their way to the host, with their room in the buffer.
pub(super) type Fetched = quorate_member::Fetched<OwnedSemaphorePermit>;

/// Room for entries that wait to be applied.
pub(super) fn buffer() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_BUFFERED_KIB))
}

/// What is to be copied.
pub(super) struct Wanted {
    pub(super) id: FetchId,
    pub(super) source: ServerAddress,
    pub(super) after: OpTime,
    pub(super) term: Term,
}

/// A fetch under way. Dropping it ends it.
pub(super) struct Fetch {
    _ends_when_dropped: oneshot::Sender<()>,
}

impl Fetch {
    /// Starts the thread.
    pub(super) fn start(
        wanted: Wanted,
        buffer: Arc<Semaphore>,
        inbox: Inbox,
        dialer: Dialer,
    ) -> io::Result<Self> {
        let (sender, dropped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("quorate-fetch".to_owned()).spawn(move || {
            let _failing = Failing { inbox: &inbox, thread: "fetching" };
            runtime.block_on(async {
                let (cut, copying) = (inbox.cut.clone(), inbox.copying.clone());
                let fetching = copying.guard(fetch(wanted, &buffer, &inbox, &dialer));
                tokio::select! {
                    biased;
                    _ = dropped => {}
                    () = cut.guard(fetching) => {}
                }
            });
        })?;
        Ok(Self { _ends_when_dropped: sender })
    }
}

/// Reads the stream of a source until it ends, which is told to the host.
async fn fetch(wanted: Wanted, buffer: &Arc<Semaphore>, inbox: &Inbox, dialer: &Dialer) {
    let cause = match read_stream(&wanted, buffer, inbox, dialer).await {
        ClientError::Refused { code, message } => {
            let source = &wanted.source;
            tracing::info!(%source, code, message, "the source refuses to be copied from");
            if code == ErrorCode::CAPPED_POSITION_LOST.0 {
                FetchFailure::PlaceLost
            } else {
                FetchFailure::Refused
            }
        }
        error => {
            tracing::debug!(source = %wanted.source, %error, "copying ended");
            if matches!(error, ClientError::Closed | ClientError::Socket(_)) {
                let peer = wanted.source.clone();
                inbox.post(Message::Input(Input::ConnectionReset { peer }));
            }
            FetchFailure::Connection
        }
    };
    inbox.post(Message::Input(Input::FetchFailed { fetch: wanted.id, cause }));
}

async fn read_stream(
    wanted: &Wanted,
    buffer: &Arc<Semaphore>,
    inbox: &Inbox,
    dialer: &Dialer,
) -> ClientError {
    let Wanted { id, source, after, term } = wanted;
    let mut client = match Client::connect(dialer, source, CONNECT_TIMEOUT).await {
        Ok(client) => client,
        Err(error) => return error,
    };
    let command = find_command(*after, *term);
    if let Err(error) = client.send(&command, MsgFlags::EXHAUST_ALLOWED).await {
        return error;
    }
    loop {
        let received = match client.next().await {
            Ok(received) => received,
            Err(error) => return error,
        };
        let more = received.more_to_come;
        let body = match check(received.body) {
            Ok(body) => body,
            Err(error) => return error,
        };
        let Some(batch) = parse_batch(&body) else {
            return ClientError::Reply("a batch of the oplog cannot be read".to_owned());
        };
        let kib = body.as_bytes().len().min(2 * MAX_BATCH_BYTES) / 1024 + 1;
        let room = match Arc::clone(buffer).try_acquire_many_owned(kib as u32) {
            Ok(room) => Some(room),
            Err(_) => {
                // What was left for later has to be applied now: that makes room.
                inbox.post(Message::LogMoved);
                Arc::clone(buffer).acquire_many_owned(kib as u32).await.ok()
            }
        };
        let fetched = Fetched { fetch: *id, batch: batch.facts, entries: batch.entries, room };
        // What has arrived together is applied together.
        let applying = if client.has_more() { Applying::Later } else { Applying::Here };
        inbox.post_from(applying, Message::Fetched(fetched));
        if !more {
            return ClientError::Closed;
        }
    }
}
