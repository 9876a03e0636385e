//! The bare loop: what no client can do without.

use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId, parse_hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The least room made before reading.
const READ_CHUNK: usize = 8 * 1024;

pub struct Raw {
    stream: TcpStream,
    decoder: Decoder,
    out: Vec<u8>,
}

impl Raw {
    pub async fn connect(host: &str) -> Self {
        let stream = TcpStream::connect(host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, decoder: Decoder::new(), out: Vec::new() }
    }

    pub async fn send(&mut self, flags: MsgFlags, body: &RawDocument) {
        self.out.clear();
        MsgWriter::new(&mut self.out, RequestId(1), RequestId(0), flags, body)
            .finish(None)
            .unwrap();
        self.stream.write_all(&self.out).await.unwrap();
    }

    pub async fn receive<T>(&mut self, read: impl FnOnce(&RawDocument) -> T) -> T {
        loop {
            let missing = self.decoder.missing().unwrap();
            if missing == 0 {
                break;
            }
            // Room for the whole reply, or it is read in many small pieces.
            self.decoder.input().reserve(missing.max(READ_CHUNK));
            self.stream.read_buf(self.decoder.input()).await.unwrap();
        }
        let message = self.decoder.next_message().unwrap().unwrap();
        let Payload::Msg(msg) = message.payload else { panic!("not OP_MSG") };
        read(msg.body())
    }
}

pub fn command(name: &str) -> RawDocumentBuf {
    let mut body = RawDocumentBuf::new();
    match name {
        "hello" => body.append(cstr!("hello"), 1),
        _ => body.append(cstr!("ping"), 1),
    }
    body.append(cstr!("$db"), "admin");
    body
}

/// Connects to the seed and then to every member at once, and parses what each says.
pub async fn discover(seed: &str) -> usize {
    let hosts = say_hello(seed.to_owned()).await;
    let others = hosts.iter().filter(|host| *host != seed).cloned().map(only_say_hello);
    1 + futures_util::future::join_all(others).await.len()
}

/// Reads no more of the reply than a client must know: all members list the same members.
async fn only_say_hello(host: String) -> bool {
    let mut raw = Raw::connect(&host).await;
    raw.send(MsgFlags::NONE, &command("hello")).await;
    raw.receive(|body| body.get_bool("isWritablePrimary").unwrap()).await
}

async fn say_hello(host: String) -> Vec<String> {
    let mut raw = Raw::connect(&host).await;
    raw.send(MsgFlags::NONE, &command("hello")).await;
    let reply = raw.receive(|body| parse_hello(body).unwrap()).await;
    reply.hosts.iter().map(ToString::to_string).collect()
}

/// Awaits the next change on one connection.
async fn await_change(raw: &mut Raw) {
    raw.send(MsgFlags::NONE, &command("hello")).await;
    let version = raw.receive(|body| parse_hello(body).unwrap()).await.topology_version.unwrap();
    let mut body = RawDocumentBuf::new();
    body.append(cstr!("hello"), 1);
    body.append(cstr!("topologyVersion"), quorate_wire::topology_version_document(version));
    body.append(cstr!("maxAwaitTimeMS"), 10_000_i64);
    body.append(cstr!("$db"), "admin");
    raw.send(MsgFlags::NONE, &body).await;
}

/// Awaits the next change, and tells when it was heard.
pub async fn hear_change(mut raw: Raw) -> (Raw, u64) {
    await_change(&mut raw).await;
    raw.receive(|body| parse_hello(body).unwrap()).await;
    (raw, crate::now_ns())
}

pub fn insert() -> RawDocumentBuf {
    bson::rawdoc! {"insert": "c", "documents": [{"_id": 1, "x": 1}], "$db": "test"}
}
