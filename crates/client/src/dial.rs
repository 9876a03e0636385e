//! One connection to one server, without discovery and pools: for tools that look at a server by
//! themselves, as the doctor of `quorate` does.
//!
//! A [`Connector`] opens a [`Stream`], a [`Handshake`] greets and logs in, and a [`Connection`] carries
//! commands. The errors of these are also those of the [`Client`](crate::Client).

pub use crate::authentication::{
    AuthenticationCause, AuthenticationError, Authenticator, ConversationError, HandshakeAnswers,
    UnsupportedMechanism,
};
pub use crate::connection::{Connection, ConnectionError, Request};
pub use crate::handshake::{
    ConnectionFacts, EstablishError, Handshake, HandshakeError, exchange_hello,
};
pub use crate::metadata::Environment;
pub use crate::net::{ConnectError, ConnectErrorKind, Connector, ConnectorOptions, Duplex, Stream};
pub use crate::tls::Tls;
