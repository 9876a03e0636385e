//! A deployment under observation: the client's monitors, and nothing else of a client.
//!
//! A watcher sends no operations, so it needs neither connections in pools nor credentials. Every
//! input of the core passes the tap here, so what is recorded is exactly what was watched.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use quorate_client::discovery::{Discovery, Settings};
use quorate_client::handshake::Handshake;
use quorate_client::net::Connector;
use quorate_client::pool::PoolOptions;
use quorate_client::{Clock, Tap};
use quorate_protocol::MonotonicTime;
use quorate_server_discovery::{DiscoveryEvent, Input, RecordedInput, RecordingStart, Topology};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::recorder::Recorder;

/// How many events may wait to be told. A change of a set of fifty makes some hundred.
const MAX_UNTOLD_EVENTS: usize = 65_536;

/// How connections are made; shared by all checks.
#[derive(Debug)]
pub(super) struct Manner {
    pub(super) connector: Connector,
    pub(super) handshake: Handshake,
}

/// A deployment under observation.
pub(super) struct Observer {
    discovery: Arc<Discovery>,
    events: Receiver<Seen>,
    notes: Arc<Notes>,
}

/// What happened, and when.
pub(super) type Seen = (MonotonicTime, DiscoveryEvent);

/// Passes events on and writes inputs down.
struct Notes {
    events: Sender<Seen>,
    recorder: Option<Mutex<Recorder>>,
    /// The first thing that went wrong.
    failure: Mutex<Option<io::Error>>,
}

impl Notes {
    fn fail(&self, error: io::Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
    }

    /// # Errors
    ///
    /// What went wrong since the last call.
    fn check(&self) -> io::Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    fn record(&self, line: &str) {
        let Some(recorder) = &self.recorder else { return };
        let written = recorder.lock().unwrap_or_else(PoisonError::into_inner).write(line);
        if let Err(error) = written {
            self.fail(error);
        }
    }
}

impl Tap for Notes {
    fn on_start(&self, start: &RecordingStart) {
        self.record(&start.to_line());
    }

    fn on_input(&self, at: MonotonicTime, input: &Input) {
        if self.recorder.is_some() {
            self.record(&RecordedInput { at, input: input.clone() }.to_line());
        }
    }

    fn on_event(&self, at: MonotonicTime, event: &DiscoveryEvent) {
        match self.events.try_send((at, event.clone())) {
            // The observer is gone, and with it whoever wants to know.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => {
                let reason = format!("more than {MAX_UNTOLD_EVENTS} events wait to be told");
                self.fail(io::Error::other(reason));
            }
        }
    }
}

impl Observer {
    /// Begins to observe. The first events come with it.
    ///
    /// # Errors
    ///
    /// If the recording cannot be written.
    pub(super) fn start(
        topology: Topology,
        start: &RecordingStart,
        manner: Manner,
        recorder: Option<Recorder>,
    ) -> io::Result<(Self, Vec<Seen>)> {
        let (sender, events) = mpsc::channel(MAX_UNTOLD_EVENTS);
        let notes = Arc::new(Notes {
            events: sender,
            recorder: recorder.map(Mutex::new),
            failure: Mutex::new(None),
        });
        notes.on_start(start);
        notes.check()?;
        let settings = Settings {
            connector: manner.connector,
            handshake: manner.handshake,
            connect_timeout: start.options.connect_timeout,
            // Nobody checks a connection out, so that none is ever opened.
            pool_options: PoolOptions::default(),
        };
        let tap: Arc<dyn Tap> = Arc::clone(&notes) as _;
        let clock = Clock::starting_at(start.at);
        let nobody = Arc::new(|_| ());
        let discovery = Discovery::begin(topology, clock, settings, nobody, Some(tap));
        let mut observer = Self { discovery, events, notes };
        let seen = observer.drain();
        observer.notes.check()?;
        Ok((observer, seen))
    }

    /// Waits for the next thing to happen. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// If the recording cannot be written, or events are told more slowly than they come.
    pub(super) async fn next(&mut self) -> io::Result<Vec<Seen>> {
        let first = self.events.recv().await;
        let mut seen = Vec::from_iter(first);
        seen.append(&mut self.drain());
        self.notes.check()?;
        Ok(seen)
    }

    /// Ends every check and closes every socket.
    ///
    /// # Errors
    ///
    /// If the recording cannot be written.
    pub(super) fn close(&mut self) -> io::Result<Vec<Seen>> {
        self.discovery.shut_down();
        let seen = self.drain();
        self.notes.check()?;
        Ok(seen)
    }

    /// Bounded by the length of the queue.
    fn drain(&mut self) -> Vec<Seen> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}
