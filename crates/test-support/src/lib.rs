//! A scripted server on real sockets, for tests of clients.
//!
//! It speaks the wire protocol through `quorate-wire`, answers hello (streaming included) from a
//! document that the test may change at any time, answers other commands from a script, and knows
//! the `failCommand` fail point well enough for the published scenarios. It stores nothing.

mod fail_point;
mod server;

pub use fail_point::{FailPoint, FailPointError};
pub use server::{FakeServer, primary_hello, standalone_hello};
