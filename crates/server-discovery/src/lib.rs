//! What a client believes about the servers of a deployment, and what it should do next.

mod fault;
mod round_trip;
mod server_description;
mod servers;
mod topology_description;
mod types;

pub use fault::{
    ApplicationError, CheckFailure, CheckFailureKind, CommandError, ElectionTuple, ServerError,
    ServerFault, StateChange,
};
pub use round_trip::RoundTripEstimator;
pub use server_description::{RoundTrips, ServerDescription};
pub use servers::Servers;
pub use topology_description::{SelectionSettings, TopologyDescription};
pub use types::{ServerType, TopologyType, UnknownTypeName};
