//! An asynchronous client for MongoDB-compatible deployments.

pub mod connection;
pub mod net;
pub mod tls;
