#![doc = include_str!("../README.md")]
//!
//! [`Topology`] holds what a client believes about the servers of a deployment. It takes what happened ([`Input`]) with the
//! time, and gives what to do ([`Output`]): check this server, clear that pool, publish this description, tell this event.
//!
//! ```text
//!   sockets, timers ──Input──▶ Topology ──Output──▶ monitors, pools, listeners
//!                                 │
//!                        TopologyDescription ──select──▶ a server for an operation
//! ```

mod command;
mod event;
mod fault;
mod function_platform;
mod log;
mod monitor;
mod options;
mod random;
mod recording;
mod removal;
mod round_trip;
mod selection;
mod server_description;
mod servers;
mod topology;
mod topology_description;
mod transition;
mod types;

pub use command::{
    CheckId, CheckKind, HandshakeProgress, Input, MonitorCommand, Output, PoolCommand,
    PoolGeneration,
};
pub use event::{DiscoveryEvent, Heartbeat, MonitorConnectionId, TopologyId, Warning};
pub use fault::{
    ApplicationError, CheckFailure, CheckFailureKind, ElectionTuple, ServerError, ServerFault,
    StateChange,
};
pub use function_platform::FunctionPlatform;
pub use log::{LogLevel, LogMessage, LogValue, MAX_LOGGED_DOCUMENT_LENGTH};
pub use options::{
    COOLDOWN, DEFAULT_CONNECT_TIMEOUT, DEFAULT_DISPLACED_PATIENCE, DEFAULT_HEARTBEAT_FREQUENCY,
    DEFAULT_SCAN_FREQUENCY, DiscoveryOptions, MIN_HEARTBEAT_FREQUENCY, OptionsError,
    SOCKET_CHECK_INTERVAL, SUPPORTED_WIRE_VERSIONS, Threading,
};
pub use quorate_protocol::CommandError;
pub use recording::{
    MAX_LINE_LENGTH, RECORDING_VERSION, RecordedInput, RecordingError, RecordingStart,
};
pub use removal::{MAX_REMEMBERED_REMOVALS, Removal, RemovalReason};
pub use round_trip::RoundTripEstimator;
pub use selection::{
    FailureKind, IDLE_WRITE_PERIOD, MAX_CAUSE_LENGTH, MAX_REPORTED_SERVERS, OpQueryReadPreference,
    ReadPreferenceArgument, SMALLEST_MAX_STALENESS, SelectionCriteria, SelectionError,
    SelectionFailure, SelectionRequest, ServerReport, ServerSelector, Shortcoming, Verdict, choose,
    latency_window, read_preference_for_op_msg, read_preference_for_op_query,
};
pub use server_description::{RoundTrips, ServerDescription};
pub use servers::Servers;
pub use topology::Topology;
pub use topology_description::{SelectionSettings, TopologyDescription};
pub use types::{ServerType, TopologyType, UnknownTypeName};
