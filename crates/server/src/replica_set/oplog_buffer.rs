//! Entries that a source writes while it is copied, kept so that they cannot be trimmed away there.
//!
//! A task reads the source's stream from the first entry that the copy needs. What does not fit is
//! read from the source again when its turn comes. Digest §10.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bson::RawDocumentBuf;
use quorate_protocol::{OpTime, ServerAddress, Term};
use quorate_wire::MsgFlags;
use tokio::task::JoinHandle;

use super::client::{Client, ClientError, check};
use super::copying::COMMAND_TIMEOUT;
use super::cut::Cut;
use super::stream::{Batch, find_command, parse_batch};
use crate::dialer::Dialer;

/// Bytes of entries that are kept in memory while everything is copied.
const MAX_BUFFERED_BYTES: usize = 64 * 1024 * 1024;

#[derive(Default)]
struct Buffered {
    batches: VecDeque<Vec<RawDocumentBuf>>,
    bytes: usize,
    last: Option<OpTime>,
}

/// A buffer that fills itself until it is taken or dropped.
pub(super) struct OplogBuffer {
    buffered: Arc<Mutex<Buffered>>,
    task: JoinHandle<()>,
}

impl OplogBuffer {
    /// Starts to copy the source's entries, this one first.
    pub(super) fn start(dialer: Dialer, cut: Cut, source: ServerAddress, from: OpTime) -> Self {
        let buffered = Arc::new(Mutex::new(Buffered::default()));
        let filled = Arc::clone(&buffered);
        let task = tokio::spawn(async move {
            if let Err(error) = cut.guard(fill(&dialer, &source, from, &filled)).await {
                tracing::info!(%source, %error, "entries are no longer kept during the initial sync");
            }
        });
        Self { buffered, task }
    }

    /// Ends it: the batches so far, and their last entry.
    pub(super) fn take(self) -> (VecDeque<Vec<RawDocumentBuf>>, Option<OpTime>) {
        self.task.abort();
        let mut buffered = self.buffered.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut buffered.batches), buffered.last)
    }
}

impl Drop for OplogBuffer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn fill(
    dialer: &Dialer,
    source: &ServerAddress,
    from: OpTime,
    buffered: &Mutex<Buffered>,
) -> Result<(), ClientError> {
    let mut stream = EntryStream::open(dialer, source, from).await?;
    loop {
        let batch = stream.next().await?;
        let bytes: usize = batch.entries.iter().map(|entry| entry.as_bytes().len()).sum();
        let mut buffered = buffered.lock().unwrap_or_else(PoisonError::into_inner);
        if buffered.bytes + bytes > MAX_BUFFERED_BYTES {
            return Ok(());
        }
        buffered.bytes += bytes;
        if let Some(last) = batch.facts.last {
            buffered.last = Some(last.op_time);
            buffered.batches.push_back(batch.entries);
        }
    }
}

/// The entries of a source from one of them on.
pub(super) struct EntryStream {
    client: Client,
    from: Option<OpTime>,
}

impl EntryStream {
    pub(super) async fn open(
        dialer: &Dialer,
        source: &ServerAddress,
        from: OpTime,
    ) -> Result<Self, ClientError> {
        let mut client = Client::connect(dialer, source, COMMAND_TIMEOUT).await?;
        client.send(&find_command(from, Term(from.term)), MsgFlags::EXHAUST_ALLOWED).await?;
        Ok(Self { client, from: Some(from) })
    }

    /// The next batch. The first one begins with the entry that was asked for, or there is a gap.
    pub(super) async fn next(&mut self) -> Result<Batch, ClientError> {
        let received = tokio::time::timeout(COMMAND_TIMEOUT, self.client.next()).await;
        let body = check(received.map_err(|_| ClientError::TimedOut)??.body)?;
        let batch = parse_batch(&body)
            .ok_or_else(|| ClientError::Reply("a batch of the oplog cannot be read".to_owned()))?;
        if let Some(from) = self.from.take()
            && batch.facts.first != Some(from)
        {
            return Err(ClientError::Reply(format!(
                "the source no longer has its entry {from}; give it a larger oplog \
                 (replSetResizeOplog)"
            )));
        }
        Ok(batch)
    }
}
