//! Replica sets of ours, one process per member: this very program, run as a member.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use quorate_server::{LogFormat, Place, Server, StartOptions, log_to_stderr};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::programs::Process;

/// A set that does not do what is waited for has failed the run.
const PATIENCE: Duration = Duration::from_secs(120);

/// `member PORT DIRECTORY`: serves until it is ended, and prints its port. With `QUORATE_LOG` it logs.
pub fn serve(arguments: &[&str]) {
    let port: u16 = arguments[0].parse().unwrap();
    if std::env::var_os("QUORATE_LOG").is_some() {
        log_to_stderr(tracing::Level::DEBUG, LogFormat::Text);
    }
    let runtime = quorate_server::runtime().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let mut options = StartOptions::new(Place::Directory(arguments[1].into()));
        options.replica_set = Some("rs0".to_owned());
        options.server.max_connections = 50_000;
        let mut running = Server::start(listener, options).await.unwrap();
        println!("{}", running.address().port());
        running.ended().await.unwrap();
    });
}

/// A set of ours.
pub struct Set {
    /// Fields are dropped in this order: the processes end before their directory is removed.
    pub members: Vec<(Option<Process>, u16)>,
    directory: TempDir,
}

impl Set {
    /// Starts processes without a configuration.
    pub fn start(count: usize) -> Self {
        let mut set = Self { directory: tempfile::tempdir().unwrap(), members: Vec::new() };
        for _ in 0..count {
            set.add();
        }
        set
    }

    /// A set of three with default settings whose secondaries follow.
    pub async fn ready() -> Self {
        let set = Self::start(3);
        set.initiate().await;
        set.insert_until_acknowledged(3).await;
        set
    }

    pub async fn initiate(&self) {
        let members: Vec<Bson> = (0..self.members.len())
            .map(|place| doc! { "_id": place as i32, "host": self.host(place) }.into())
            .collect();
        let config = doc! { "_id": "rs0", "version": 1, "members": members };
        self.run(0, doc! { "replSetInitiate": config }).await.unwrap();
    }

    pub fn add(&mut self) -> usize {
        self.members.push((None, 0));
        let place = self.members.len() - 1;
        self.restart(place);
        place
    }

    pub fn restart(&mut self, place: usize) {
        let data = self.directory.path().join(place.to_string()).display().to_string();
        let port = self.members[place].1.to_string();
        let (process, port) = Process::of_this_program(&["member", &port, &data]);
        self.members[place] = (Some(process), port);
    }

    pub fn kill(&mut self, place: usize) {
        self.members[place].0 = None;
    }

    pub fn process(&self, place: usize) -> &Process {
        self.members[place].0.as_ref().unwrap()
    }

    pub fn host(&self, place: usize) -> String {
        format!("127.0.0.1:{}", self.members[place].1)
    }

    pub fn address(&self, place: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.members[place].1).into()
    }

    pub fn uri(&self) -> String {
        let hosts: Vec<String> = (0..self.members.len()).map(|place| self.host(place)).collect();
        format!("mongodb://{}/?replicaSet=rs0&w=majority", hosts.join(","))
    }

    /// Runs a command on one member.
    pub async fn run(&self, place: usize, command: Document) -> Result<Document, String> {
        Talk::open(self.address(place)).await?.run(command).await
    }

    pub async fn primary(&self) -> usize {
        let start = Instant::now();
        loop {
            for place in (0..self.members.len()).filter(|place| self.members[*place].0.is_some()) {
                if let Ok(hello) = self.run(place, doc! { "hello": 1, "$db": "admin" }).await
                    && hello.get_bool("isWritablePrimary").unwrap_or(false)
                {
                    return place;
                }
            }
            assert!(start.elapsed() < PATIENCE, "no primary");
        }
    }

    /// Inserts with this write concern until that works.
    pub async fn insert_until_acknowledged(&self, w: i32) {
        wait("an acknowledged write", async || {
            let command = doc! {
                "insert": "ready", "documents": [{}], "$db": "bench",
                "writeConcern": { "w": w, "wtimeout": 2000 },
            };
            let reply = self.run(self.primary().await, command).await.ok()?;
            (!reply.contains_key("writeConcernError")).then_some(())
        })
        .await;
    }

    /// Fills a collection with records of so many bytes.
    pub async fn fill(&self, collection: &str, records: usize, bytes: usize) {
        const BATCH: usize = 1000;
        let mut talk = Talk::open(self.address(self.primary().await)).await.unwrap();
        for start in (0..records).step_by(BATCH) {
            let ids = start..records.min(start + BATCH);
            let documents: Vec<Bson> = ids
                .map(|id| doc! { "_id": id as i64, "text": "x".repeat(bytes - 40) }.into())
                .collect();
            let command = doc! {
                "insert": collection, "documents": documents, "$db": "bench",
                "writeConcern": { "w": "majority" },
            };
            let reply = talk.run(command).await.unwrap();
            assert!(!reply.contains_key("writeErrors"), "{reply}");
        }
    }
}

/// Waits until something is there.
pub async fn wait<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

/// A connection that sends commands and reads replies.
pub struct Talk {
    stream: TcpStream,
    decoder: Decoder,
}

impl Talk {
    pub async fn open(to: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(to).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self { stream, decoder: Decoder::new() })
    }

    pub async fn run(&mut self, command: Document) -> Result<Document, String> {
        self.send(command, MsgFlags::NONE).await?;
        let reply = self.receive().await?;
        match reply.get_f64("ok") {
            Ok(1.0) => Ok(reply),
            _ => Err(reply.to_string()),
        }
    }

    /// The same without documents in between, as the clients of the peers are: bytes out, and of the reply only
    /// whether it is an error.
    pub async fn exchange(&mut self, command: &RawDocument) -> Result<(), String> {
        self.send_raw(command, MsgFlags::NONE).await?;
        self.receive_as(|reply| match reply.get_f64("ok") {
            Ok(1.0) => Ok(()),
            _ => Err(Document::try_from(reply).unwrap_or_default().to_string()),
        })
        .await
    }

    pub async fn send(&mut self, mut command: Document, flags: MsgFlags) -> Result<(), String> {
        if !command.contains_key("$db") {
            command.insert("$db", "admin");
        }
        let body = RawDocumentBuf::try_from(&command).map_err(|error| error.to_string())?;
        self.send_raw(&body, flags).await
    }

    async fn send_raw(&mut self, body: &RawDocument, flags: MsgFlags) -> Result<(), String> {
        let mut bytes = Vec::new();
        MsgWriter::new(&mut bytes, RequestId(1), RequestId(0), flags, body)
            .finish(None)
            .map_err(|error| error.to_string())?;
        self.stream.write_all(&bytes).await.map_err(|error| error.to_string())
    }

    pub async fn receive(&mut self) -> Result<Document, String> {
        self.receive_as(|reply| Document::try_from(reply).map_err(|error| error.to_string())).await
    }

    /// Receives a reply to `hello` and reads which version of the topology it tells, as a monitor must at least.
    pub async fn receive_version(&mut self) -> Result<i64, String> {
        self.receive_as(|reply| {
            let version =
                reply.get_document("topologyVersion").map_err(|error| error.to_string())?;
            version.get_i64("counter").map_err(|error| error.to_string())
        })
        .await
    }

    async fn receive_as<T>(
        &mut self,
        read: impl Fn(&RawDocument) -> Result<T, String>,
    ) -> Result<T, String> {
        loop {
            let message = self.decoder.next_message().map_err(|error| error.to_string())?;
            if let Some(Payload::Msg(reply)) = message.map(|message| message.payload) {
                return read(reply.body());
            }
            let input = self.decoder.input();
            input.reserve(4096);
            let read = self.stream.read_buf(input).await.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err("the connection was closed".to_owned());
            }
        }
    }
}
