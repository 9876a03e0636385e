//! A tap on the discovery core: sees everything that goes into it, so that it can be recorded.
//!
//! What the core decides follows from its beginning and its inputs alone. A tap that writes them down
//! (`RecordingStart::to_line`, `RecordedInput::to_line`) has a complete account of what a client saw.

use std::fmt;
use std::sync::Arc;

use quorate_protocol::MonotonicTime;
use quorate_server_discovery::{DiscoveryEvent, Input, RecordingStart};

/// Sees what the discovery core of a client is given, and the events that follow, all in order and
/// each with the time that the core was told. It is called while the client's state is locked: it
/// must return at once and must not call the client.
pub trait Tap: Send + Sync {
    /// The beginning, once, before anything else.
    fn on_start(&self, start: &RecordingStart);

    /// An input, before the core sees it.
    fn on_input(&self, at: MonotonicTime, input: &Input);

    /// An event that follows from the last input, or from the beginning.
    fn on_event(&self, at: MonotonicTime, event: &DiscoveryEvent) {
        let _ = (at, event);
    }
}

/// A tap that is shared, and may be absent.
#[derive(Clone, Default)]
pub(crate) struct OptionalTap(pub(crate) Option<Arc<dyn Tap>>);

impl OptionalTap {
    pub(crate) fn input(&self, at: MonotonicTime, input: &Input) {
        if let Some(tap) = &self.0 {
            tap.on_input(at, input);
        }
    }

    pub(crate) fn event(&self, at: MonotonicTime, event: &DiscoveryEvent) {
        if let Some(tap) = &self.0 {
            tap.on_event(at, event);
        }
    }
}

impl fmt::Debug for OptionalTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a tap" } else { "no tap" })
    }
}
