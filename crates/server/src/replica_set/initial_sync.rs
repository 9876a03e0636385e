//! Copying everything from another member, step by step as the member orders.
//!
//! What to ask the source and what to do with its answers is in `quorate_member::Copying`; here are the
//! connection, and the entries that are kept while everything is copied.
//! docs/replication-rules.md#initial-sync.

use std::sync::Arc;
use std::time::Duration;

use quorate_member::{Ask, CloneProgress, CopyFailure, CopyWork, Copying, apply_copied};
use quorate_node::{CommandError, Node, entry_position};
use quorate_protocol::OpTimeAndWallTime;
use quorate_replication::{InitialSyncOutcome, InitialSyncStep, Input};
use tokio::task::{JoinHandle, block_in_place};

use super::Message;
use super::client::{Client, ClientError};
use super::copying::COMMAND_TIMEOUT;
use super::host::Host;
use super::oplog_buffer::{EntryStream, OplogBuffer};
use crate::clock::Clock;
use crate::dialer::Dialer;

/// How often the log is told of the progress.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Bytes of kept entries that are in memory at a time.
const READ_BACK_BYTES: usize = 8 * 1024 * 1024;

/// The attempt under way.
#[derive(Default)]
pub(super) struct InitialSync {
    task: Option<JoinHandle<()>>,
    /// What the source writes while it is copied.
    buffer: Option<OplogBuffer>,
}

impl InitialSync {
    fn end_step(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl Drop for InitialSync {
    fn drop(&mut self) {
        self.end_step();
    }
}

impl Host {
    /// Does a step of the copy, in place of any other.
    pub(super) fn copy(&mut self, work: CopyWork) {
        self.initial_sync.end_step();
        let mut buffer = None;
        match &work.step {
            InitialSyncStep::Clone { begin_fetching, .. } => {
                // A step that goes on after a blip finds its buffer filled.
                let known = self.initial_sync.buffer.take();
                let (dialer, cut) = (self.dialer.clone(), self.inbox.cut.clone());
                let (source, begin) = (work.source.clone(), *begin_fetching);
                let fresh = || OplogBuffer::start(&self.node, dialer, cut, source, begin);
                self.initial_sync.buffer = known.or_else(|| {
                    // Without one, the entries are read from the source when their turn comes.
                    fresh()
                        .inspect_err(|error| tracing::warn!(%error, "entries cannot be kept"))
                        .ok()
                });
            }
            InitialSyncStep::ApplyThrough(_) => buffer = self.initial_sync.buffer.take(),
            InitialSyncStep::ReadStopPoint { .. } => {}
            // Another attempt begins at another entry, and maybe at another source.
            _ => self.initial_sync.buffer = None,
        }
        let (inbox, clock, dialer) = (self.inbox.clone(), self.clock.clone(), self.dialer.clone());
        let node = Arc::clone(&self.node);
        self.initial_sync.task = Some(tokio::spawn(async move {
            let (source, attempt) = (work.source.clone(), work.attempt);
            let step = Step { dialer, node: &node, clock };
            let outcome = match inbox.cut.clone().guard(step.run(work, buffer)).await {
                Ok(outcome) => outcome,
                Err(ClientError::Reply(why)) => {
                    tracing::warn!(%source, why, "the initial sync failed");
                    InitialSyncOutcome::Failed
                }
                Err(error) => {
                    tracing::warn!(%source, %error, "the initial sync was interrupted");
                    InitialSyncOutcome::Interrupted
                }
            };
            inbox.post(Message::Input(Input::InitialSync { attempt, outcome }));
        }));
    }
}

/// What a step works with.
struct Step<'a> {
    dialer: Dialer,
    node: &'a Node,
    clock: Clock,
}

impl Step<'_> {
    async fn run(
        &self,
        work: CopyWork,
        buffer: Option<OplogBuffer>,
    ) -> Result<InitialSyncOutcome, ClientError> {
        let (source, progress) = (work.source.clone(), work.progress.clone());
        if let InitialSyncStep::ApplyThrough(stop) = work.step {
            self.apply_kept(stop, &progress, buffer)?;
            if self.node.log_positions().written.op_time >= stop.op_time {
                block_in_place(|| self.node.finish_clone(stop, self.clock.now())).map_err(local)?;
                return Ok(InitialSyncOutcome::AppliedThrough(stop));
            }
        }
        let mut copying = Copying::new(work, self.node, self.clock.now());
        let mut client = None;
        let mut stream = None;
        let mut told = self.clock.now().monotonic;
        loop {
            match copying.ask() {
                Ask::Command(command) => {
                    let client = match &mut client {
                        Some(client) => client,
                        None => {
                            let connecting =
                                Client::connect(&self.dialer, &source, COMMAND_TIMEOUT);
                            client.insert(connecting.await?)
                        }
                    };
                    let reply = match client.run(&command).await {
                        Err(ClientError::Refused { code, .. }) if copying.take_refusal(code) => {
                            continue;
                        }
                        reply => reply?,
                    };
                    let take = || copying.take_reply(&reply, self.node, self.clock.now());
                    block_in_place(take).map_err(failed)?;
                }
                Ask::Entries(from) => {
                    let opened = EntryStream::open(&self.dialer, &source, from).await?;
                    let batch = stream.insert(opened).next().await?;
                    let take = || copying.take_entries(batch, self.node, self.clock.now());
                    block_in_place(take).map_err(failed)?;
                }
                Ask::MoreEntries => {
                    let Some(stream) = &mut stream else { return Err(ClientError::Closed) };
                    let batch = stream.next().await?;
                    let take = || copying.take_entries(batch, self.node, self.clock.now());
                    block_in_place(take).map_err(failed)?;
                }
                Ask::Done(outcome) => return Ok(outcome),
            }
            let now = self.clock.now();
            if now.monotonic.since(told) >= TELL_EVERY {
                told = now.monotonic;
                tracing::info!("{}", progress.line(now));
            }
        }
    }

    /// Applies the entries that were kept during the copy, up to `stop`.
    fn apply_kept(
        &self,
        stop: OpTimeAndWallTime,
        progress: &CloneProgress,
        buffer: Option<OplogBuffer>,
    ) -> Result<(), ClientError> {
        let Some(kept) = buffer.and_then(OplogBuffer::take) else { return Ok(()) };
        let read = |after| block_in_place(|| kept.read(after, READ_BACK_BYTES)).map_err(local);
        let mut entries = read(None)?;
        while let Some(end) = entries.last() {
            let end = entry_position(end).map_err(local)?.op_time.timestamp;
            let now = self.clock.now();
            let apply = || apply_copied(entries, stop, progress, self.node, now);
            block_in_place(apply).map_err(failed)?;
            entries = read(Some(end))?;
        }
        Ok(())
    }
}

/// The attempt cannot go on.
fn failed(failure: CopyFailure) -> ClientError {
    ClientError::Reply(failure.0)
}

/// Our own side failed, not the source.
fn local(error: CommandError) -> ClientError {
    ClientError::Reply(error.message)
}
