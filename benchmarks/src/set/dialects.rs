//! What each contestant wants to hear for "store this record, and answer when it is replicated", and
//! when its answer is complete. Bytes only: sockets are the load's business.

use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawDocument, RawDocumentBuf, doc};
use quorate_wire::{MsgFlags, MsgWriter, RequestId};

pub const RECORD_BYTES: usize = 200;

/// The language of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Quorate,
    /// The same in a session of the connection's own, with a number, as drivers send writes that they may repeat.
    QuorateInSession,
    FloorLog,
    Etcd,
    Redis,
    Postgres,
}

impl Dialect {
    /// What a connection says first, if anything, and waits for.
    pub fn greeting(self) -> Option<Vec<u8>> {
        (self == Self::Postgres).then(|| {
            let mut body = 196_608_u32.to_be_bytes().to_vec();
            body.extend(b"user\0postgres\0database\0postgres\0\0");
            let mut message = (body.len() as u32 + 4).to_be_bytes().to_vec();
            message.extend(body);
            message
        })
    }

    /// A request to store one record under a key of its own.
    pub fn request(self, key: &str) -> Vec<u8> {
        let text = "x".repeat(RECORD_BYTES - 50);
        match self {
            Self::Quorate => insert(key, &text, Document::new()),
            Self::QuorateInSession => insert(key, &text, session_of(key)),
            Self::FloorLog => vec![b'x'; RECORD_BYTES],
            Self::Etcd => {
                let body =
                    format!("{{\"key\":\"{}\",\"value\":\"{}\"}}", base64(key), base64(&text));
                format!(
                    "POST /v3/kv/put HTTP/1.1\r\nHost: etcd\r\nContent-Type: application/json\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                )
                .into_bytes()
            }
            Self::Redis => format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{text}\r\n\
                 *3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$5\r\n10000\r\n",
                key.len(),
                text.len()
            )
            .into_bytes(),
            Self::Postgres => {
                let query = format!("INSERT INTO load VALUES ('{key}', '{text}')\0");
                let mut message = vec![b'Q'];
                message.extend((query.len() as u32 + 4).to_be_bytes());
                message.extend(query.as_bytes());
                message
            }
        }
    }

    /// How long the answer at the start of these bytes is; none if it is not complete. Fails if the
    /// contestant refused.
    pub fn answered(self, bytes: &[u8]) -> Result<Option<usize>, String> {
        match self {
            Self::Quorate | Self::QuorateInSession => quorate(bytes),
            Self::FloorLog => Ok((bytes.len() >= 8).then_some(8)),
            Self::Etcd => etcd(bytes),
            Self::Redis => redis(bytes),
            Self::Postgres => postgres(bytes),
        }
    }
}

/// The digits that end a key.
const DIGITS: usize = 10;

/// The requests of one connection, each with a key of its own. The bytes are written once, and only the number in them
/// changes: a client that makes each request anew takes processor time from the contestant.
pub struct Requests {
    dialect: Dialect,
    name: String,
    bytes: Vec<u8>,
    /// Where the digits of the key are; none if the request is made anew, because they are encoded or absent.
    digits: Option<usize>,
    /// Where the number of a session's write is.
    write_number: Option<usize>,
}

impl Requests {
    pub fn new(dialect: Dialect, name: String) -> Self {
        let bytes = dialect.request(&key(&name, 0));
        let place = |sought: &[u8]| bytes.windows(sought.len()).position(|part| part == sought);
        let digits = place(key(&name, 0).as_bytes()).map(|at| at + name.len() + 1);
        let write_number = place(b"\x12txnNumber\0").map(|at| at + "\x12txnNumber\0".len());
        Self { dialect, name, bytes, digits, write_number }
    }

    /// The request with this number.
    pub fn nth(&mut self, number: usize) -> &[u8] {
        match self.digits {
            None if self.dialect != Dialect::FloorLog => {
                self.bytes = self.dialect.request(&key(&self.name, number));
            }
            None => {}
            Some(at) => {
                let mut rest = number;
                for digit in self.bytes[at..at + DIGITS].iter_mut().rev() {
                    *digit = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
            }
        }
        if let Some(at) = self.write_number {
            self.bytes[at..at + 8].copy_from_slice(&(number as i64 + 1).to_le_bytes());
        }
        &self.bytes
    }
}

fn key(name: &str, number: usize) -> String {
    format!("{name}-{number:0DIGITS$}")
}

/// The session and the number of a write, from its key: the name of the connection and how many it wrote before.
fn session_of(key: &str) -> Document {
    let (name, number) = key.rsplit_once('-').unwrap_or((key, "0"));
    // FNV-1a, twice: each connection has a name of its own, and needs an id of its own.
    let hash = |seed: u64| {
        name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    };
    let halves = [hash(0xcbf2_9ce4_8422_2325), hash(0x9e37_79b9_7f4a_7c15)];
    let bytes = halves.iter().flat_map(|half| half.to_be_bytes()).collect();
    let id = Binary { subtype: BinarySubtype::Uuid, bytes };
    doc! { "lsid": { "id": id }, "txnNumber": number.parse::<i64>().unwrap_or(0) + 1 }
}

fn insert(key: &str, text: &str, more: Document) -> Vec<u8> {
    let mut command =
        doc! { "insert": "load", "writeConcern": { "w": "majority" }, "$db": "bench" };
    command.extend(more);
    let body = RawDocumentBuf::try_from(&command).unwrap();
    let document = RawDocumentBuf::try_from(&doc! { "_id": key, "text": text }).unwrap();
    let mut bytes = Vec::new();
    MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), MsgFlags::NONE, &body)
        .sequence(cstr!("documents"), [&*document])
        .finish(None)
        .unwrap();
    bytes
}

fn quorate(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if bytes.len() < length {
        return Ok(None);
    }
    let body = bytes.get(BODY..length).and_then(|body| RawDocument::from_bytes(body).ok());
    let Some(body) = body else { return Err("no OP_MSG with one section".to_owned()) };
    let fine = body.get_i32("n").is_ok_and(|n| n == 1)
        && body.get("writeConcernError").is_ok_and(|error| error.is_none());
    if fine { Ok(Some(length)) } else { Err(format!("{body:?}")) }
}

/// Where the body of an OP_MSG begins: behind the header, the flags and the kind of its section.
const BODY: usize = 16 + 4 + 1;

fn etcd(bytes: &[u8]) -> Result<Option<usize>, String> {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return Ok(None) };
    if !head.starts_with("HTTP/1.1 200") {
        return Err(text.into_owned());
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
    });
    let length: usize = length.ok_or("no Content-Length")?;
    let whole = head.len() + 4 + length;
    Ok((bytes.len() >= whole).then_some(whole))
}

fn redis(bytes: &[u8]) -> Result<Option<usize>, String> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split_inclusive("\r\n");
    let (Some(stored), Some(replicas)) = (lines.next(), lines.next()) else { return Ok(None) };
    if !replicas.ends_with("\r\n") {
        return Ok(None);
    }
    let enough = stored == "+OK\r\n" && matches!(replicas, ":1\r\n" | ":2\r\n");
    if enough { Ok(Some(stored.len() + replicas.len())) } else { Err(text.into_owned()) }
}

fn postgres(bytes: &[u8]) -> Result<Option<usize>, String> {
    match postgres_answer(bytes) {
        Some((_, Some(refusal))) => Err(refusal),
        Some((length, None)) => Ok(Some(length)),
        None => Ok(None),
    }
}

/// Messages up to "ready for query": how long they are, and the error among them.
pub fn postgres_answer(bytes: &[u8]) -> Option<(usize, Option<String>)> {
    let (mut at, mut refusal) = (0, None);
    while let (Some(kind), Some(length)) =
        (bytes.get(at), bytes.get(at + 1..).and_then(<[u8]>::first_chunk::<4>))
    {
        let end = at + 1 + u32::from_be_bytes(*length) as usize;
        if bytes.len() < end {
            return None;
        }
        match kind {
            b'E' => refusal = Some(String::from_utf8_lossy(&bytes[at..end]).into_owned()),
            b'Z' => return Some((end, refusal)),
            _ => {}
        }
        at = end;
    }
    None
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    out
}
