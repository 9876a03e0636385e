//! A client that sends one command to one member and waits for the reply.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bson::{Document, RawDocumentBuf};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};

/// A member that does not answer for this long has failed the test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    stream: TcpStream,
    decoder: Decoder,
}

impl Client {
    /// Connects to a member that has this long for it.
    pub(crate) fn connect(member: SocketAddr, timeout: Duration) -> std::io::Result<Self> {
        Self::over(TcpStream::connect_timeout(&member, timeout)?)
    }

    /// Speaks over a connection that is there.
    pub(crate) fn over(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, decoder: Decoder::new() })
    }

    /// Sends a command and waits for nothing.
    pub(crate) fn send(&mut self, command: &Document, flags: MsgFlags) -> std::io::Result<()> {
        let body = RawDocumentBuf::try_from(command).unwrap();
        let mut bytes = Vec::new();
        let (id, none) = (RequestId(1), RequestId(0));
        MsgWriter::new(&mut bytes, id, none, flags, &body).finish(None).unwrap();
        self.stream.write_all(&bytes)
    }

    /// The reply to a command, which may be a refusal.
    pub(crate) fn run(
        &mut self,
        command: &Document,
        timeout: Duration,
    ) -> std::io::Result<Document> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.send(command, MsgFlags::NONE)?;
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                let Payload::Msg(msg) = &message.payload else { panic!("a reply is an OP_MSG") };
                return Ok(Document::try_from(msg.body()).unwrap());
            }
            let mut chunk = [0; 16 * 1024];
            let read = self.stream.read(&mut chunk)?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.decoder.feed(&chunk[..read]);
        }
    }
}
