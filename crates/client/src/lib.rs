//! An asynchronous client for MongoDB-compatible deployments.

mod clock;
pub mod connection;
pub mod net;
pub mod pool;
pub mod tls;

pub use clock::Clock;
