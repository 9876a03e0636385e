//! An asynchronous client for MongoDB-compatible deployments.

pub mod authentication;
mod clock;
pub mod connection;
pub mod discovery;
pub mod establish;
pub mod handshake;
pub mod metadata;
mod monitor;
pub mod net;
pub mod pool;
pub mod tls;

pub use clock::Clock;
