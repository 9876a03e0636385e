//! The notes of a watcher about a client: every input of its core into a file, every event for a teller.
//!
//! A tap sees both in order, so the recording equals the watched events.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quorate_client::Tap;
use quorate_protocol::{Lock, MonotonicTime};
use quorate_server_discovery::{DiscoveryEvent, Input, RecordedInput, RecordingStart};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::recorder::Recorder;
use crate::clock;

/// How many events may wait to be told. A change of a set of fifty makes some hundred.
const MAX_UNTOLD_EVENTS: usize = 65_536;

/// An event, and its time by the clock of this machine.
pub(super) type Seen = (MonotonicTime, DiscoveryEvent);

/// The tap.
pub(super) struct Notes {
    /// Absent if another part of the program prints the events.
    events: Option<mpsc::Sender<Seen>>,
    recorder: Option<Lock<Recorder>>,
    /// How far the machine's clock is ahead of the client's.
    ahead: OnceLock<Duration>,
    /// The first thing that went wrong.
    failure: Lock<Option<io::Error>>,
    failed: Notify,
}

impl Notes {
    /// Notes for a recorder alone.
    pub(super) fn new(recorder: Option<Recorder>) -> Arc<Self> {
        Arc::new(Self::with(recorder, None))
    }

    /// Notes for a recorder, and for the receiver of the events.
    pub(super) fn with_events(recorder: Option<Recorder>) -> (Arc<Self>, mpsc::Receiver<Seen>) {
        let (sender, events) = mpsc::channel(MAX_UNTOLD_EVENTS);
        (Arc::new(Self::with(recorder, Some(sender))), events)
    }

    fn with(recorder: Option<Recorder>, events: Option<mpsc::Sender<Seen>>) -> Self {
        Self {
            events,
            recorder: recorder.map(Lock::new),
            ahead: OnceLock::new(),
            failure: Lock::new(None),
            failed: Notify::new(),
        }
    }

    /// Ready when notes cannot be taken any more, with the reason.
    pub(super) async fn failed(&self) -> io::Error {
        loop {
            let told = self.failed.notified();
            let failure = self.failure.lock().take();
            if let Some(failure) = failure {
                return failure;
            }
            told.await;
        }
    }

    fn fail(&self, error: io::Error) {
        let mut failure = self.failure.lock();
        failure.get_or_insert(error);
        self.failed.notify_one();
    }

    fn record(&self, line: &str) {
        let Some(recorder) = &self.recorder else { return };
        let written = recorder.lock().write(line);
        if let Err(error) = written {
            self.fail(error);
        }
    }
}

impl Tap for Notes {
    fn on_start(&self, start: &RecordingStart) {
        // Lines of several programs on one machine can be put in order by the machine's clock.
        let _ = self.ahead.set(clock::now().since(start.at));
        self.record(&start.to_line());
        self.record(&crate::recording::wall_line(start.at, clock::wall_time(clock::now())));
    }

    fn on_input(&self, at: MonotonicTime, input: &Input) {
        if self.recorder.is_some() {
            self.record(&RecordedInput { at, input: input.clone() }.to_line());
        }
    }

    fn on_event(&self, at: MonotonicTime, event: &DiscoveryEvent) {
        let Some(events) = &self.events else { return };
        let at = at + self.ahead.get().copied().unwrap_or_default();
        match events.try_send((at, event.clone())) {
            // The sender is gone, and with it the reader.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => {
                let reason = format!("more than {MAX_UNTOLD_EVENTS} events wait to be told");
                self.fail(io::Error::other(reason));
            }
        }
    }
}
