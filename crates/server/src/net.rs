//! The only door to sockets, so that a simulated network can take their place.

pub(crate) use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
pub(crate) use tokio::net::{TcpListener, TcpStream};
