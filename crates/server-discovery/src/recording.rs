//! Every input as one line, and back.
//!
//! What the core decides follows from its options, its seed and its inputs alone. Written down, they
//! are a complete account of what a client saw: replaying them gives the same outputs, to the byte,
//! on any machine at any later time.
//!
//! A recording is JSON lines. The first holds the options; each further one holds a time and an
//! input. Names are the specification's where it has one. The lines are values: the code that has a file
//! or a socket writes and reads them.
//!
//! ```text
//! {"recording":1,"topologyId":1,"seed":7,"t_ns":0,"options":{"seeds":["a:27017"],…}}
//! {"t_ns":1000000,"input":"helloReceived","server":"a:27017","check":1,…}
//! ```

mod read;
mod write;

use quorate_protocol::MonotonicTime;

use crate::command::Input;
use crate::event::TopologyId;
use crate::options::{DiscoveryOptions, OptionsError};
use crate::topology::Topology;

pub use read::{MAX_LINE_LENGTH, RecordingError};
pub(crate) use write::reply as reply_to_json;

/// The format's version. A reader refuses any other.
pub const RECORDING_VERSION: u64 = 1;

/// The first line: everything that [`Topology::new`] was given.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordingStart {
    /// The options.
    pub options: DiscoveryOptions,
    /// What tells the topology from others.
    pub id: TopologyId,
    /// What feeds its random choices.
    pub seed: u64,
    /// When it began.
    pub at: MonotonicTime,
}

impl RecordingStart {
    /// The line, without a line break.
    pub fn to_line(&self) -> String {
        write::start(self).to_string()
    }

    /// Reads a line that [`to_line`](Self::to_line) wrote.
    ///
    /// # Errors
    ///
    /// If the line is damaged, or of another version.
    pub fn from_line(line: &str) -> Result<Self, RecordingError> {
        read::start(line)
    }

    /// The topology that was recorded, as it was before its first input.
    ///
    /// # Errors
    ///
    /// If the options contradict each other, which those of a real recording do not.
    pub fn topology(&self) -> Result<Topology, OptionsError> {
        Topology::new(&self.options, self.id, self.seed, self.at)
    }
}

/// One further line: an input and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedInput {
    /// When it was handled.
    pub at: MonotonicTime,
    /// The input.
    pub input: Input,
}

impl RecordedInput {
    /// The line, without a line break.
    pub fn to_line(&self) -> String {
        write::input(self).to_string()
    }

    /// Reads a line that [`to_line`](Self::to_line) wrote.
    ///
    /// # Errors
    ///
    /// If the line is damaged.
    pub fn from_line(line: &str) -> Result<Self, RecordingError> {
        read::input(line)
    }
}
