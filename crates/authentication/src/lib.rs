#![doc = include_str!("../README.md")]
//!
//! Three layers, each usable alone:
//!
//! - [`scram`]: SCRAM-SHA-1 and SCRAM-SHA-256 as messages in and messages out, the side that proves
//!   and the side that checks;
//! - [`Authenticator`] and [`Conversation`]: the commands of `source/auth/auth.md` that carry those
//!   messages (and X.509) from a client to a server, as a state machine that says what to send next;
//! - [`KeyFile`]: the secret that members of a set share, and the login that follows from it.
//!
//! Sending, time limits and where the milliseconds of a key derivation may be spent are the caller's:
//! the asynchronous client, the blocking client and the members of a set each have their own answer.
//! Random bytes are arguments.

mod conversation;
mod error;
mod key_file;
pub mod scram;

pub use conversation::{
    Action, Attempt, Authenticator, Conversation, KeyDerivation, RANDOMNESS_LENGTH, Randomness,
};
pub use error::{
    AuthenticationCause, AuthenticationError, ConversationError, UnsupportedMechanism,
};
pub use key_file::{INTERNAL_DATABASE, INTERNAL_USER, KeyFile, KeyFileError};
pub use scram::{ScramError, ScramMechanism};
