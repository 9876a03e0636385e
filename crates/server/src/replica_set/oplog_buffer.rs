//! Entries that a source writes while it is copied, kept so that they cannot be trimmed away there.
//!
//! A task reads the source's stream from the first entry that the copy needs, and writes it to a
//! keyspace of the store (`quorate_node::CopyBuffer`). A stream that is lost is opened again at the last entry that is
//! kept. What does not fit there either is read from the source again when its turn comes. docs/replication-rules.md#initial-sync.

use std::sync::Arc;
use std::time::Duration;

use quorate_member::SentBatch;
use quorate_node::{CommandError, CopyBuffer, Node};
use quorate_protocol::{Lock, OpTime, ServerAddress, Term};
use quorate_wire::MsgFlags;
use tokio::task::{JoinHandle, block_in_place};

use super::client::{Client, ClientError, check};
use super::copying::COMMAND_TIMEOUT;
use super::cut::Cut;
use super::stream::{find_command, parse_batch};
use crate::dialer::Dialer;

/// Bytes of entries that are kept on disk while everything is copied.
const MAX_BUFFERED_BYTES: u64 = 16 * 1024 * 1024 * 1024;

/// How long the task waits before it opens a lost stream again, as long as a step of the copy that was interrupted.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// How often in a row a stream may be lost before an entry of it has come: as often as a step may be interrupted.
const MAX_LOST_IN_A_ROW: u32 = 60;

/// A buffer that fills itself until it is taken or dropped.
pub(super) struct OplogBuffer {
    /// Nothing once it is taken.
    buffer: Arc<Lock<Option<CopyBuffer>>>,
    task: JoinHandle<()>,
}

impl OplogBuffer {
    /// Starts to copy the source's entries, this one first. Fails if the store fails.
    pub(super) fn start(
        node: &Node,
        dialer: Dialer,
        cut: Cut,
        source: ServerAddress,
        from: OpTime,
    ) -> Result<Self, CommandError> {
        let buffer = Arc::new(Lock::new(Some(node.begin_copy_buffer(MAX_BUFFERED_BYTES)?)));
        let filled = Arc::clone(&buffer);
        let task = tokio::spawn(async move {
            if let Err(error) = cut.guard(keep_filling(&dialer, &source, from, &filled)).await {
                tracing::info!(%source, %error, "entries are no longer kept during the initial sync");
            }
        });
        Ok(Self { buffer, task })
    }

    /// Ends it: the entries so far.
    pub(super) fn take(self) -> Option<CopyBuffer> {
        self.task.abort();
        self.buffer.lock().take()
    }
}

impl Drop for OplogBuffer {
    fn drop(&mut self) {
        self.task.abort();
        drop(self.buffer.lock().take());
    }
}

/// Fills the buffer until it is full or gone, through interruptions of the network.
async fn keep_filling(
    dialer: &Dialer,
    source: &ServerAddress,
    from: OpTime,
    buffer: &Lock<Option<CopyBuffer>>,
) -> Result<(), ClientError> {
    let mut lost_in_a_row = 0;
    loop {
        let last = buffer.lock().as_ref().and_then(CopyBuffer::last);
        match fill(dialer, source, last.unwrap_or(from), buffer).await {
            Err(error) if !matches!(error, ClientError::Reply(_)) => {
                let now = buffer.lock().as_ref().and_then(CopyBuffer::last);
                lost_in_a_row = if now == last { lost_in_a_row + 1 } else { 0 };
                if lost_in_a_row >= MAX_LOST_IN_A_ROW {
                    return Err(error);
                }
                tracing::debug!(%source, %error, "the entries of the initial sync are interrupted");
                tokio::time::sleep(REOPEN_AFTER).await;
            }
            end => return end,
        }
    }
}

async fn fill(
    dialer: &Dialer,
    source: &ServerAddress,
    from: OpTime,
    buffer: &Lock<Option<CopyBuffer>>,
) -> Result<(), ClientError> {
    let mut stream = EntryStream::open(dialer, source, from).await?;
    loop {
        let batch = stream.next().await?;
        let kept = block_in_place(|| {
            let mut buffer = buffer.lock();
            buffer.as_mut().map_or(Ok(false), |buffer| buffer.push(&batch.entries))
        });
        match kept {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(ClientError::Reply(error.message)),
        }
    }
}

/// The entries of a source from one of them on.
pub(super) struct EntryStream {
    client: Client,
    /// The entry that the next batch begins with or follows.
    place: OpTime,
    begun: bool,
}

impl EntryStream {
    pub(super) async fn open(
        dialer: &Dialer,
        source: &ServerAddress,
        from: OpTime,
    ) -> Result<Self, ClientError> {
        let mut client = Client::connect(dialer, source, COMMAND_TIMEOUT).await?;
        client.send(&find_command(from, Term(from.term)), MsgFlags::EXHAUST_ALLOWED).await?;
        Ok(Self { client, place: from, begun: false })
    }

    /// The next batch. The first one begins with the entry that was asked for, each further one follows
    /// the one before, or there is a gap.
    pub(super) async fn next(&mut self) -> Result<SentBatch, ClientError> {
        let received = tokio::time::timeout(COMMAND_TIMEOUT, self.client.next()).await;
        let body = check(received.map_err(|_| ClientError::TimedOut)??.body)?;
        let batch = parse_batch(&body)
            .ok_or_else(|| ClientError::Reply("a batch of the oplog cannot be read".to_owned()))?;
        let place = self.place;
        let follows = if self.begun {
            batch.entries.is_empty() || batch.facts.previous == Some(place)
        } else {
            batch.facts.first == Some(place)
        };
        if !follows {
            return Err(ClientError::Reply(format!(
                "the source no longer has its entry {place}; give it a larger oplog \
                 (replSetResizeOplog)"
            )));
        }
        self.begun = true;
        self.place = batch.facts.last.map_or(place, |last| last.op_time);
        Ok(batch)
    }
}
