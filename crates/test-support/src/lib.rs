//! A scripted server on real sockets, for tests of clients.
//!
//! It speaks the wire protocol through `quorate-wire`, answers hello (streaming included) from a
//! document that the test may change at any time, answers other commands from a script, and knows
//! the `failCommand` fail point well enough for the published scenarios. It stores nothing.
//!
//! [`FaultNetwork`] stands between real members of a set and loses, holds, delays or resets what they
//! send each other. [`Tmux`] is a real terminal for programs that draw. [`Authority`] issues
//! certificates. [`CountingAllocator`] counts allocations. [`Namespaces`] are hosts with links and names of
//! their own. [`tell`] prints a line at the end of a run.

mod allocations;
mod authority;
mod fail_point;
mod fault_network;
mod namespaces;
mod server;
mod tell;
mod tmux;

pub use allocations::CountingAllocator;
pub use authority::Authority;
pub use fail_point::{FailPoint, FailPointError};
pub use fault_network::{FaultNetwork, Flow};
pub use namespaces::Namespaces;
pub use server::{FakeServer, primary_hello, standalone_hello};
pub use tell::{TOLD, leave_out, tell};
pub use tmux::Tmux;
