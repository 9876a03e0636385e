//! What a client believes about the servers of a deployment, and what it should do next.

mod fault;
mod selection;
mod server_description;
mod servers;
mod topology_description;
mod types;

pub use fault::{
    ApplicationError, CheckFailure, CheckFailureKind, CommandError, ElectionTuple, ServerError,
    ServerFault, StateChange,
};
pub use selection::{
    FailureKind, IDLE_WRITE_PERIOD, MAX_CAUSE_LENGTH, MAX_REPORTED_SERVERS, OpQueryReadPreference,
    ReadPreferenceArgument, SMALLEST_MAX_STALENESS, SelectionCriteria, SelectionError,
    SelectionFailure, SelectionRequest, ServerReport, ServerSelector, Shortcoming, Verdict, choose,
    latency_window, read_preference_for_op_msg, read_preference_for_op_query,
};
pub use server_description::{RoundTrips, ServerDescription};
pub use servers::Servers;
pub use topology_description::{SelectionSettings, TopologyDescription};
pub use types::{ServerType, TopologyType, UnknownTypeName};
