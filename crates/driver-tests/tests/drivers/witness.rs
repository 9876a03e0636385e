//! Stands between a client and the server, passes every byte on, and notes which compressors the
//! messages use (`compression/OP_COMPRESSED.md`). What a client claims to have negotiated is no proof
//! that it compresses.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HEADER_LENGTH: usize = 16;
const OP_COMPRESSED: i32 = 2012;
/// Where the number of the compressor stands: after the header, the original opcode and the length.
const COMPRESSOR_PLACE: usize = HEADER_LENGTH + 8;
/// The longest message of the protocol.
const MAX_MESSAGE_LENGTH: usize = 48_000_000;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Direction {
    Request,
    Reply,
}

/// How many messages went each way with each compressor.
type Seen = Arc<Mutex<BTreeMap<(Direction, u8), u64>>>;

pub(crate) struct Witness {
    pub(crate) address: SocketAddr,
    seen: Seen,
}

impl Witness {
    /// Passes connections on to this server until the runtime ends.
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Seen::default();
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass_on(
                    from_client,
                    to_server,
                    Direction::Request,
                    Arc::clone(&noted),
                ));
                tokio::spawn(pass_on(from_server, to_client, Direction::Reply, Arc::clone(&noted)));
            }
        });
        Self { address, seen }
    }

    /// Messages went both ways with this compressor and with no other.
    pub(crate) fn saw_messages_both_ways(&self, compressor: &str) {
        let number = match compressor {
            "snappy" => 1,
            "zlib" => 2,
            "zstd" => 3,
            other => panic!("{other} has no number"),
        };
        let seen = self.seen.lock().unwrap();
        let keys: Vec<_> = seen.keys().copied().collect();
        let expected = [(Direction::Request, number), (Direction::Reply, number)];
        assert_eq!(keys, expected, "{compressor} was asked for; seen: {seen:?}");
    }
}

/// Ends when either side does, which closes the other.
async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
    seen: Seen,
) -> std::io::Result<()> {
    loop {
        let mut message = vec![0; HEADER_LENGTH];
        from.read_exact(&mut message).await?;
        let field =
            |place: usize| i32::from_le_bytes(message[place..place + 4].try_into().unwrap());
        let (length, opcode) = (field(0) as usize, field(12));
        assert!((HEADER_LENGTH..=MAX_MESSAGE_LENGTH).contains(&length), "{length} bytes");
        message.resize(length, 0);
        from.read_exact(&mut message[HEADER_LENGTH..]).await?;
        if opcode == OP_COMPRESSED {
            *seen.lock().unwrap().entry((direction, message[COMPRESSOR_PLACE])).or_default() += 1;
        }
        to.write_all(&message).await?;
    }
}
