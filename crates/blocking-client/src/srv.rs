//! `mongodb+srv://`: seeds from DNS, with the feature `srv`.
//!
//! The standard library cannot ask DNS for SRV and TXT records. `quorate-seed-list` can, on a runtime
//! of its own that lives for the question alone and starts no thread. DNS is asked once: the list of a
//! sharded deployment is not asked for again, so make a new client where routers come and go.

use quorate_connection_string::{ConnectionString, Seeds};

use crate::client::Client;
use crate::options::{ClientOptions, StartError};

impl Client {
    /// A client for any connection string. For `mongodb+srv://`, DNS is asked for the seeds first,
    /// which needs the feature `srv`; servers are contacted by the first operation.
    ///
    /// # Errors
    ///
    /// If the string cannot be read, contradicts itself or asks for what this client does not have,
    /// or DNS has no answer to believe.
    pub fn connect(uri: &str) -> Result<Self, StartError> {
        let string = ConnectionString::parse(uri)?;
        match string.seeds() {
            Seeds::Hosts(_) => Self::new(ClientOptions::from_connection_string(&string)?),
            Seeds::Srv(_) => Self::new(resolved_options(&string)?),
        }
    }
}

#[cfg(feature = "srv")]
fn resolved_options(string: &ConnectionString) -> Result<ClientOptions, StartError> {
    use std::hash::{BuildHasher, RandomState};

    let seed = RandomState::new().hash_one(0_u8);
    let list = quorate_seed_list::blocking::resolve(string, seed)?;
    ClientOptions::with_seeds(&list.connection_string, list.seeds)
}

#[cfg(not(feature = "srv"))]
fn resolved_options(_: &ConnectionString) -> Result<ClientOptions, StartError> {
    Err(StartError::Missing {
        feature: "DNS seed lists",
        next_step: "build it with the feature srv, or name the hosts in a mongodb:// string",
    })
}
