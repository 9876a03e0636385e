//! The writer of a drill: one majority write after the other, each acknowledgement remembered.

use std::sync::Arc;
use std::time::Duration;

use bson::rawdoc;
use quorate_client::{Collection, Error};
use quorate_protocol::{ErrorCode, Lock, MonotonicTime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::clock;
use crate::words::Foreign;

/// The pause between two writes: what a gap is measured with, and polite to other clients.
const PAUSE: Duration = Duration::from_millis(1);

/// The pause after a write that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(20);

/// How many writes one drill makes at most; at a thousand a second that is longer than any drill.
const MAX_WRITES: i64 = 1_000_000;

/// How long the writer may take to end its last write.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// A write that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// Its `_id`.
    pub(super) id: i64,
    /// When its acknowledgement came.
    pub(super) at: MonotonicTime,
    /// How long it took.
    pub(super) took: Duration,
}

/// The first acknowledgement of its kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    /// How many came up to it.
    pub(super) number: usize,
    /// When it came.
    pub(super) at: MonotonicTime,
}

/// The writes of the writer.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    /// In the order of their acknowledgement.
    pub(super) acknowledged: Vec<Acknowledged>,
    /// Writes that failed for the client, after its retries. They may be stored or not.
    pub(super) failed: u64,
    /// Why the last one failed.
    pub(super) last_error: Option<String>,
}

/// A time without acknowledgements: from the last one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// When the last acknowledgement before it came.
    pub(super) began: MonotonicTime,
    /// When the first one after it came.
    pub(super) ended: MonotonicTime,
}

impl Gap {
    /// How long it was.
    pub(super) fn length(&self) -> Duration {
        self.ended.since(self.began)
    }
}

impl Written {
    /// The longest time between two acknowledgements of which the later one came after this moment.
    pub(super) fn longest_gap(&self, after: MonotonicTime) -> Option<Gap> {
        let pairs = self.acknowledged.windows(2);
        let gaps = pairs.filter_map(|pair| match pair {
            [earlier, later] if later.at > after => {
                Some(Gap { began: earlier.at, ended: later.at })
            }
            _ => None,
        });
        gaps.max_by_key(Gap::length)
    }
}

/// A writer at work. Dropping it ends the work.
pub(super) struct Writer {
    written: Arc<Lock<Written>>,
    count: watch::Receiver<usize>,
    refusal: watch::Receiver<Option<Arc<Error>>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Writer {
    pub(super) fn start(collection: Collection) -> Self {
        let written = Arc::new(Lock::new(Written::default()));
        let (counted, count) = watch::channel(0);
        let (stop, stopped) = watch::channel(false);
        let (refused, refusal) = watch::channel(None);
        let writing = write(collection, Arc::clone(&written), counted, stopped);
        let task = tokio::spawn(async move {
            if let Err(error) = writing.await {
                refused.send_replace(Some(Arc::new(error)));
            }
        });
        Self { written, count, refusal, stop, task }
    }

    /// The refusal that ended the writer: this client may not write.
    pub(super) async fn refused(&self) -> Arc<Error> {
        let mut refusal = self.refusal.clone();
        let refused = refusal.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match refused {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// Returns when so many writes are acknowledged.
    pub(super) async fn acknowledged(&self, count: usize) {
        // The sender is gone only when the writer has ended; then nothing comes any more.
        if self.count.clone().wait_for(|now| *now >= count).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The first acknowledgement that came after this moment.
    pub(super) async fn acknowledged_after(&self, moment: MonotonicTime) -> First {
        let mut count = self.count.clone();
        let mut seen = 0;
        loop {
            {
                let written = self.written.lock();
                let mut fresh = written.acknowledged.iter().enumerate().skip(seen);
                if let Some((index, write)) = fresh.find(|(_, write)| write.at >= moment) {
                    return First { number: index + 1, at: write.at };
                }
                seen = written.acknowledged.len();
            }
            if count.wait_for(|now| *now > seen).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// How long the writes took that were acknowledged so far.
    pub(super) fn took(&self) -> Vec<Duration> {
        self.written.lock().acknowledged.iter().map(|write| write.took).collect()
    }

    /// Why the last write failed.
    pub(super) fn last_error(&self) -> Option<String> {
        self.written.lock().last_error.clone()
    }

    /// Stops the writers and returns their counts.
    pub(super) async fn stop(mut self) -> Written {
        self.stop.send_replace(true);
        // A hanging write counts as not acknowledged.
        let _ = tokio::time::timeout(STOP_WITHIN, &mut self.task).await;
        self.task.abort();
        self.written.lock().clone()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes until it is stopped. Fails if the first write is refused for want of a login or a role.
async fn write(
    collection: Collection,
    written: Arc<Lock<Written>>,
    counted: watch::Sender<usize>,
    stopped: watch::Receiver<bool>,
) -> Result<(), Error> {
    for id in 0..MAX_WRITES {
        if *stopped.borrow() {
            return Ok(());
        }
        let began = clock::now();
        let outcome = collection.insert_one(rawdoc! { "_id": id }).await;
        let at = clock::now();
        match outcome {
            Ok(_) => {
                let count = {
                    let mut written = written.lock();
                    written.acknowledged.push(Acknowledged { id, at, took: at.since(began) });
                    written.acknowledged.len()
                };
                counted.send_replace(count);
                sleep(PAUSE).await;
            }
            Err(error) if id == 0 && error.code() == Some(ErrorCode::UNAUTHORIZED.0) => {
                return Err(error);
            }
            Err(error) => {
                {
                    let mut written = written.lock();
                    written.failed += 1;
                    written.last_error = Some(Foreign(error).to_string());
                }
                sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_the_longest_silence_that_ends_after_the_fault() {
        let at = |millis| MonotonicTime::from_millis(millis);
        let write = |millis| Acknowledged { id: 0, at: at(millis), took: Duration::ZERO };
        let acknowledged = [10, 500, 510, 520, 700, 710].map(write).to_vec();
        let written = Written { acknowledged, ..Written::default() };
        // The silence from 10 to 500 is older than the fault; that of 520 to 700 straddles it.
        let gap = Some(Gap { began: at(520), ended: at(700) });
        assert_eq!(written.longest_gap(at(600)), gap);
        assert_eq!(gap.map(|gap| gap.length()), Some(Duration::from_millis(180)));
        // The last write before it took effect does not hide it.
        assert_eq!(written.longest_gap(at(515)), gap);
        assert_eq!(written.longest_gap(at(710)), None);
        assert_eq!(Written::default().longest_gap(at(0)), None);
    }
}
