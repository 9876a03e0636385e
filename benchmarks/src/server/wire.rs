//! A blocking connection that carries one request at a time, as bytes. The callers of all servers use
//! it, so that each spends as little of the shared processors as the others do.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// What a connection has room for at first; it doubles while an answer is longer.
const ROOM: usize = 4 * 1024;

pub struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Wire {
    /// Fails if no server listens there.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: vec![0; ROOM] })
    }

    /// Sends a request and waits for its answer, whose length `complete` tells once it is there
    /// whole. Fails if the server closes the connection.
    pub fn exchange(
        &mut self,
        request: &[u8],
        mut complete: impl FnMut(&[u8]) -> Option<usize>,
    ) -> io::Result<&[u8]> {
        self.stream.write_all(request)?;
        let mut filled = 0;
        loop {
            if filled == self.received.len() {
                self.received.resize(filled * 2, 0);
            }
            let length = self.stream.read(&mut self.received[filled..])?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += length;
            if let Some(length) = complete(&self.received[..filled]) {
                return Ok(&self.received[..length]);
            }
        }
    }
}
