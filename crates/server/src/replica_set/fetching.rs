//! Copying entries from a source: a task that reads its stream and hands batches to the host.

use std::sync::Arc;
use std::time::Duration;

use bson::RawDocumentBuf;
use quorate_protocol::{OpTime, ServerAddress, Term};
use quorate_replication::{FetchFailure, FetchId, FetchedBatch, Input};
use quorate_wire::MsgFlags;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client::{Client, ClientError, check};
use super::stream::{MAX_BATCH_BYTES, find_command, parse_batch};
use super::{Inbox, Message};
use crate::dialer::Dialer;

/// Bytes of entries that are fetched and not applied yet.
const MAX_BUFFERED_KIB: usize = 64 * 1024;

/// How long a source may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Entries from a source, on their way to the host.
pub(super) struct Fetched {
    pub(super) fetch: FetchId,
    pub(super) batch: FetchedBatch,
    pub(super) entries: Vec<RawDocumentBuf>,
    /// Room in the buffer, given back when the entries are applied.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// Room for entries that wait to be applied.
pub(super) fn buffer() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_BUFFERED_KIB))
}

/// Reads the stream of a source until it ends, which is told to the host.
pub(super) async fn fetch(
    fetch: FetchId,
    source: ServerAddress,
    after: OpTime,
    term: Term,
    buffer: Arc<Semaphore>,
    inbox: Inbox,
    dialer: Dialer,
) {
    let cause = match read_stream(fetch, &source, after, term, &buffer, &inbox, &dialer).await {
        ClientError::Refused { code, message } => {
            tracing::info!(%source, code, message, "the source refuses to be copied from");
            FetchFailure::Refused
        }
        error => {
            tracing::debug!(%source, %error, "copying ended");
            if matches!(error, ClientError::Closed | ClientError::Socket(_)) {
                inbox.post(Message::Input(Input::ConnectionReset { peer: source }));
            }
            FetchFailure::Connection
        }
    };
    inbox.post(Message::Input(Input::FetchFailed { fetch, cause }));
}

async fn read_stream(
    fetch: FetchId,
    source: &ServerAddress,
    after: OpTime,
    term: Term,
    buffer: &Arc<Semaphore>,
    inbox: &Inbox,
    dialer: &Dialer,
) -> ClientError {
    let mut client = match Client::connect(dialer, source, CONNECT_TIMEOUT).await {
        Ok(client) => client,
        Err(error) => return error,
    };
    if let Err(error) = client.send(&find_command(after, term), MsgFlags::EXHAUST_ALLOWED).await {
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
        let room = Arc::clone(buffer).acquire_many_owned(kib as u32).await.ok();
        let fetched = Fetched { fetch, batch: batch.facts, entries: batch.entries, room };
        inbox.post(Message::Fetched(fetched));
        if !more {
            return ClientError::Closed;
        }
    }
}
