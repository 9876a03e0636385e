//! A replica set that only says hello: the same for every client that is measured.
//!
//! It runs in a process of its own and is told what to do on its standard input: `primary N` moves
//! the primary, and the answer is the monotonic time at which it did. It does as little as a server
//! can, so that what is measured is the client.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bson::raw::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr};
use quorate_protocol::{ElectionId, ErrorCode, ObjectId, TopologyVersion};
use quorate_wire::{
    Decoder, MsgFlags, MsgWriter, OpReply, Payload, ReplyFlags, RequestId, to_bson_object_id,
    topology_version_document,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::now_ns;
use crate::pings::Answerer;

struct Set {
    hosts: Vec<String>,
    /// The same as every reply lists them, written once: a set of 1,000 would write a million names.
    listed: RawArrayBuf,
    primary: AtomicUsize,
    version: watch::Sender<i64>,
    routers: bool,
}

/// Takes every connection after its first ping.
static ANSWERER: LazyLock<Answerer> = LazyLock::new(Answerer::start);

/// Serves until the standard input ends. Prints the ports first.
pub fn serve(members: usize, routers: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let set = open(members, routers).await;
        println!("{}", set.hosts.join(","));
        let (commands, mut received) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                if commands.send(line).is_err() {
                    break;
                }
            }
        });
        while let Some(line) = received.recv().await {
            if let Some(primary) = line.strip_prefix("primary ").and_then(|n| n.parse().ok()) {
                set.primary.store(primary, Ordering::SeqCst);
                let at = now_ns();
                set.version.send_modify(|version| *version += 1);
                println!("{at}");
                std::io::stdout().flush().unwrap();
            }
        }
    });
}

/// Serves so many sets of three until the standard input ends. Prints the ports first, each set in one
/// word.
pub fn serve_fleet(sets: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut all = Vec::new();
        for _ in 0..sets {
            all.push(open(3, false).await.hosts.join(","));
        }
        println!("{}", all.join(" "));
        let ends = tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().for_each(drop));
        let _ = ends.await;
    });
}

/// A set whose members take connections.
async fn open(members: usize, routers: bool) -> Arc<Set> {
    let mut listeners = Vec::new();
    for _ in 0..members {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let hosts: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let listed = hosts.iter().map(String::as_str).collect();
    let (primary, version) = (AtomicUsize::new(0), watch::Sender::new(1));
    let set = Arc::new(Set { hosts, listed, primary, version, routers });
    for (member, listener) in listeners.into_iter().enumerate() {
        let set = Arc::clone(&set);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                tokio::spawn(converse(Arc::clone(&set), member, stream));
            }
        });
    }
    set
}

async fn converse(set: Arc<Set>, member: usize, mut stream: TcpStream) -> Option<()> {
    let mut decoder = Decoder::new();
    let mut out = Vec::new();
    let mut versions = set.version.subscribe();
    loop {
        out.clear();
        let mut streaming = None;
        let mut pings = false;
        while let Some(message) = decoder.next_message().ok()? {
            let id = message.header.request_id;
            match message.payload {
                Payload::Query(_) => {
                    let version = *versions.borrow_and_update();
                    let reply = hello(&set, member, version);
                    OpReply::append_one(&mut out, RequestId(1), id, ReplyFlags::default(), &reply)
                        .ok()?;
                }
                Payload::Msg(msg) => {
                    let name = msg.command_name()?;
                    let body = msg.body();
                    if matches!(name, "hello" | "isMaster" | "ismaster") {
                        if let Ok(wait) = body.get_i64("maxAwaitTimeMS") {
                            let known = body.get_document("topologyVersion").ok()?;
                            streaming = Some(Stream {
                                id,
                                known: known.get_i64("counter").ok()?,
                                wait: Duration::from_millis(wait.unsigned_abs()),
                                exhaust: msg.flags().contains(MsgFlags::EXHAUST_ALLOWED),
                            });
                            break;
                        }
                        let version = *versions.borrow_and_update();
                        write(&mut out, id, MsgFlags::NONE, &hello(&set, member, version));
                    } else {
                        pings = name == "ping";
                        let reply = answer(&set, member, name, *versions.borrow());
                        write(&mut out, id, MsgFlags::NONE, &reply);
                    }
                }
                Payload::Reply(_) => return None,
            }
        }
        if !out.is_empty() {
            stream.write_all(&out).await.ok()?;
        }
        if pings {
            ANSWERER.take(stream.into_std().ok()?);
            return None;
        }
        if let Some(streaming) = streaming {
            streaming.tell(&set, member, &mut stream, &mut versions).await?;
        }
        if stream.read_buf(decoder.input()).await.ok()? == 0 {
            return None;
        }
    }
}

/// A hello that waits for news.
struct Stream {
    id: RequestId,
    /// The version that the client knows.
    known: i64,
    wait: Duration,
    /// Whether the client takes more than one reply.
    exhaust: bool,
}

impl Stream {
    /// Tells the news: once, or until the client hangs up.
    async fn tell(
        mut self,
        set: &Set,
        member: usize,
        stream: &mut TcpStream,
        versions: &mut watch::Receiver<i64>,
    ) -> Option<()> {
        let mut out = Vec::new();
        loop {
            if *versions.borrow_and_update() <= self.known {
                tokio::select! {
                    _ = tokio::time::timeout(self.wait, versions.changed()) => {}
                    // The client hangs up; it never talks while it listens.
                    _ = stream.readable() => if self.exhaust { return None },
                }
            }
            self.known = *versions.borrow_and_update();
            out.clear();
            let flags = if self.exhaust { MsgFlags::MORE_TO_COME } else { MsgFlags::NONE };
            write(&mut out, self.id, flags, &hello(set, member, self.known));
            stream.write_all(&out).await.ok()?;
            if !self.exhaust {
                return Some(());
            }
            self.id = RequestId(1);
        }
    }
}

fn write(out: &mut Vec<u8>, to: RequestId, flags: MsgFlags, reply: &RawDocument) {
    MsgWriter::new(out, RequestId(1), to, flags, reply).finish(None).unwrap();
}

fn version_document(counter: i64) -> RawDocumentBuf {
    let process_id = ObjectId::from_bytes([7; 12]);
    topology_version_document(TopologyVersion { process_id, counter })
}

fn answer(set: &Set, member: usize, name: &str, version: i64) -> RawDocumentBuf {
    let mut reply = RawDocumentBuf::new();
    let writes = matches!(name, "insert" | "update" | "delete");
    if writes && set.primary.load(Ordering::SeqCst) != member {
        reply.append(cstr!("ok"), 0.0);
        reply.append(cstr!("code"), ErrorCode::NOT_WRITABLE_PRIMARY.0);
        reply.append(cstr!("codeName"), "NotWritablePrimary");
        reply.append(cstr!("errmsg"), "not primary");
        let labels: RawArrayBuf = ["RetryableWriteError"].into_iter().collect();
        reply.append(cstr!("errorLabels"), labels);
        reply.append(cstr!("topologyVersion"), version_document(version));
    } else {
        if writes {
            reply.append(cstr!("n"), 1);
        }
        reply.append(cstr!("ok"), 1.0);
    }
    reply
}

fn hello(set: &Set, member: usize, version: i64) -> RawDocumentBuf {
    let primary = set.primary.load(Ordering::SeqCst);
    let mut reply = RawDocumentBuf::new();
    reply.append(cstr!("isWritablePrimary"), member == primary);
    reply.append(cstr!("ismaster"), member == primary);
    reply.append(cstr!("secondary"), member != primary);
    reply.append(cstr!("helloOk"), true);
    if set.routers {
        reply.append(cstr!("msg"), "isdbgrid");
    } else {
        append_set(set, member, version, &mut reply);
    }
    reply.append(cstr!("minWireVersion"), 0);
    reply.append(cstr!("maxWireVersion"), 21);
    reply.append(cstr!("maxBsonObjectSize"), 16_777_216);
    reply.append(cstr!("maxMessageSizeBytes"), 48_000_000);
    reply.append(cstr!("maxWriteBatchSize"), 100_000);
    reply.append(cstr!("logicalSessionTimeoutMinutes"), 30);
    reply.append(cstr!("topologyVersion"), version_document(version));
    reply.append(cstr!("ok"), 1.0);
    reply
}

fn append_set(set: &Set, member: usize, version: i64, reply: &mut RawDocumentBuf) {
    let primary = set.primary.load(Ordering::SeqCst);
    reply.append(cstr!("setName"), "rs0");
    reply.append(cstr!("setVersion"), 1);
    if member == primary {
        let id = ElectionId::from_term(version).0;
        reply.append(cstr!("electionId"), to_bson_object_id(id));
    }
    reply.append(cstr!("hosts"), set.listed.clone());
    reply.append(cstr!("primary"), set.hosts[primary].as_str());
    reply.append(cstr!("me"), set.hosts[member].as_str());
}
