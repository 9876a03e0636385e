//! How fast a replica set acknowledges: `majority_writes PORT CLIENTS SECONDS [W]`.
//!
//! Each client inserts documents of 200 bytes one after another into the primary on that port and
//! waits for each to be acknowledged by `w` (a majority, unless a number is given).

#![allow(clippy::print_stdout, reason = "the figures are what the example is for")]

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bson::raw::cstr;
use bson::{Bson, RawDocumentBuf, doc};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, clients, seconds, rest @ ..] = &arguments[..] else {
        return Err("usage: majority_writes PORT CLIENTS SECONDS [W]".into());
    };
    let (port, clients): (u16, usize) = (port.parse()?, clients.parse()?);
    let end = Instant::now() + Duration::from_secs(seconds.parse()?);
    let w = match rest.first() {
        Some(number) => Bson::Int32(number.parse()?),
        None => Bson::from("majority"),
    };
    let start = Instant::now();
    let tasks: Vec<_> =
        (0..clients).map(|client| tokio::spawn(write(port, client, w.clone(), end))).collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let elapsed = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize].as_micros();
    println!(
        "{clients} clients: {:.0} writes/s, p50 {} us, p99 {} us",
        latencies.len() as f64 / elapsed,
        at(0.5),
        at(0.99)
    );
    Ok(())
}

async fn write(port: u16, client: usize, w: Bson, end: Instant) -> Result<Vec<Duration>, Failure> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.set_nodelay(true)?;
    let mut decoder = Decoder::new();
    let mut latencies = Vec::new();
    let text = "x".repeat(150);
    let run = std::process::id();
    let command = doc! { "insert": "load", "writeConcern": { "w": w }, "$db": "bench" };
    let body = RawDocumentBuf::try_from(&command)?;
    while Instant::now() < end {
        let id = format!("{run}-{client}-{}", latencies.len());
        let document = RawDocumentBuf::try_from(&doc! { "_id": id, "text": &text })?;
        let mut bytes = Vec::new();
        MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), MsgFlags::NONE, &body)
            .sequence(cstr!("documents"), [&*document])
            .finish(None)?;
        let sent = Instant::now();
        stream.write_all(&bytes).await?;
        loop {
            if let Some(message) = decoder.next_message()? {
                let Payload::Msg(msg) = &message.payload else { return Err("no OP_MSG".into()) };
                if msg.body().get_i32("n")? != 1 || msg.body().get("writeConcernError")?.is_some() {
                    return Err(format!("refused: {:?}", msg.body()).into());
                }
                break;
            }
            let input = decoder.input();
            input.reserve(4096);
            if stream.read_buf(input).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
        latencies.push(sent.elapsed());
    }
    Ok(latencies)
}
