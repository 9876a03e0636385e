//! Calling other members: a connection that is ready for commands.
//!
//! Owns the way from an address to an authenticated stream: TLS, and then the login of a member.
//! The requests are the business of `replica_set`.

use std::io;
use std::sync::Arc;

use bson::RawDocumentBuf;
use quorate_authentication::{Action, Authenticator, RANDOMNESS_LENGTH, Randomness};
use quorate_protocol::ServerAddress;
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::net::{Stream, TcpStream};
use crate::outgoing::Outgoing;
use crate::security::Security;

/// Steps of one login. SCRAM takes three, each with a key derivation at most.
const MAX_STEPS: usize = 16;

/// Opens connections to other members. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dialer {
    security: Arc<Security>,
    outgoing: Arc<Outgoing>,
}

impl Dialer {
    pub(crate) fn new(security: Arc<Security>) -> Self {
        Self { security, outgoing: Arc::default() }
    }

    /// The connections that it has opened.
    pub(crate) fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// Opens a connection. A reply is awaited for every request, so nothing is gained by delaying it.
    pub(crate) async fn connect(&self, address: &ServerAddress) -> io::Result<Stream> {
        let stream = self.call(address).await?;
        Ok(self.outgoing.count(address, stream))
    }

    async fn call(&self, address: &ServerAddress) -> io::Result<Stream> {
        let port = address.port().unwrap_or(quorate_protocol::DEFAULT_PORT);
        let socket = TcpStream::connect((address.host(), port)).await?;
        socket.set_nodelay(true)?;
        let mut stream = match &self.security.tls {
            Some(tls) => tls.call(address.host(), socket).await?,
            None => socket.into(),
        };
        let mut refusal = None;
        for login in &self.security.logins {
            match log_in(login, &mut stream).await {
                Ok(()) => return Ok(stream),
                // Another key may be the one that the other member has.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refusal = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match refusal {
            Some(error) => {
                tracing::warn!(member = %address, %error, "another member does not accept ours");
                Err(error)
            }
            None => Ok(stream),
        }
    }
}

/// Proves to the other side that we are a member, and has it prove the same.
async fn log_in(login: &Authenticator, stream: &mut Stream) -> io::Result<()> {
    let denied = |error: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::PermissionDenied, error.to_string())
    };
    let mut random = [0; RANDOMNESS_LENGTH];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let attempt = login.begin(&Randomness(random));
    let mut conversation = login.converse(attempt, None, None).map_err(|error| denied(&error))?;
    for _ in 0..MAX_STEPS {
        match conversation.next_action() {
            Action::Send(command) => {
                let reply = ask(stream, &command).await?;
                conversation.on_reply(&reply).map_err(|error| denied(&error))?;
            }
            Action::Derive(keys) => {
                let derived = tokio::task::spawn_blocking(move || keys.run()).await;
                let keys = derived.map_err(io::Error::other)?;
                conversation.on_keys(&keys.map_err(|error| denied(&error))?);
            }
            Action::Done => return Ok(()),
        }
    }
    Err(denied(&"the login does not come to an end"))
}

async fn ask(stream: &mut Stream, command: &RawDocumentBuf) -> io::Result<RawDocumentBuf> {
    let mut bytes = Vec::new();
    MsgWriter::new(&mut bytes, RequestId(0), RequestId(0), MsgFlags::NONE, command)
        .finish(None)
        .map_err(io::Error::other)?;
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    let mut decoder = Decoder::new();
    loop {
        if let Some(message) = decoder.next_message().map_err(io::Error::other)? {
            return match &message.payload {
                Payload::Msg(msg) => Ok(msg.body().to_owned()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
        if stream.read_buf(decoder.input()).await? == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
    }
}
