//! One member, asked directly and again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::{Document, rawdoc};
use quorate_client::dial::{
    Connection, Connector, ConnectorOptions, Environment, EstablishError, Handshake, Request,
    Stream, Tls, exchange_hello,
};
use quorate_client::{ClientError, ClientOptions};
use quorate_protocol::{ErrorCode, HelloReply, ServerAddress, SetVersion};
use quorate_wire::command_error;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Shared;
use crate::view::reply::{counters, explanation, oldest_entry, set_settings, set_status};
use crate::view::{Input, Told};
use crate::words::Foreign;

/// How often a member is asked while nothing happens.
const EVERY: Duration = Duration::from_secs(1);

/// The least pause between two rounds, however much happens.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// How long one answer may take, and one connection.
const LIMIT: Duration = Duration::from_secs(2);

/// Codes with which a server says that it will never answer this. It is not asked again on the same
/// connection.
const NEVER: [i32; 3] = [
    ErrorCode::UNAUTHORIZED.0,
    ErrorCode::COMMAND_NOT_FOUND.0,
    ErrorCode::NO_REPLICATION_ENABLED.0,
];

/// Every how many rounds a server is asked whether it is locked: the answer is long on a busy one.
const LOCK_EVERY: u32 = 5;

/// Every how many rounds a member is asked for the oldest entry of its oplog.
const OPLOG_EVERY: u32 = 10;

/// How connections are made; shared by all askers.
#[derive(Debug)]
pub(super) struct Manner {
    connector: Connector,
    handshake: Handshake,
    limit: Duration,
}

impl Manner {
    pub(super) fn new(options: &ClientOptions) -> Result<Self, ClientError> {
        let limit = options.discovery.connect_timeout.map_or(LIMIT, |limit| limit.min(LIMIT));
        let connector = Connector::new(ConnectorOptions {
            connect_timeout: Some(limit),
            host_map: options.host_map.clone(),
            tls: options.tls.as_ref().map(Tls::new).transpose()?,
        });
        let handshake = Handshake::of(options, &Environment::of_this_process())?;
        Ok(Self { connector, handshake, limit })
    }
}

/// The questions besides hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Status,
    Explanation,
    Counters,
    Settings,
    Lock,
    Oplog,
}

impl Question {
    const ALL: [Self; 6] =
        [Self::Settings, Self::Status, Self::Explanation, Self::Counters, Self::Lock, Self::Oplog];

    fn command(self) -> RawDocumentBuf {
        match self {
            Self::Status => rawdoc! { "replSetGetStatus": 1, "$db": "admin" },
            Self::Explanation => rawdoc! { "quorateExplainElection": 1, "$db": "admin" },
            Self::Settings => rawdoc! { "replSetGetConfig": 1, "$db": "admin" },
            Self::Lock => rawdoc! { "currentOp": 1, "$db": "admin" },
            Self::Oplog => rawdoc! {
                "find": "oplog.rs", "sort": { "$natural": 1 }, "projection": { "ts": 1 },
                "limit": 1, "singleBatch": true, "$db": "local",
                "$readPreference": { "mode": "secondaryPreferred" },
            },
            // Request only the displayed sections: some are slow to produce.
            Self::Counters => rawdoc! {
                "serverStatus": 1, "repl": 0, "metrics": 0, "locks": 0, "wiredTiger": 0,
                "tcmalloc": 0, "$db": "admin",
            },
        }
    }

    fn read(self, reply: &Document) -> Option<Told> {
        match self {
            Self::Status => Some(Told::Status(set_status(reply))),
            Self::Explanation => explanation(reply).map(Told::Explanation),
            Self::Settings => set_settings(reply).map(Told::Settings),
            Self::Counters => Some(Told::Counters(counters(reply))),
            Self::Oplog => oldest_entry(reply).map(Told::OldestEntry),
            Self::Lock => Some(Told::Locked(reply.get_bool("fsyncLock").unwrap_or(false))),
        }
    }
}

/// Asks one member.
pub(super) struct Asker {
    address: ServerAddress,
    manner: Arc<Manner>,
    shared: Arc<Shared>,
    connection: Option<Connection<Stream>>,
    /// The questions that it will never answer on this connection.
    given_up: Vec<Question>,
    /// The configuration that was read last.
    settings_of: Option<SetVersion>,
    rounds: u32,
}

impl Asker {
    pub(super) fn new(address: ServerAddress, manner: Arc<Manner>, shared: Arc<Shared>) -> Self {
        let (connection, given_up, settings_of) = (None, Vec::new(), None);
        Self { address, manner, shared, connection, given_up, settings_of, rounds: 0 }
    }

    /// Asks for ever; sooner if there is a nudge.
    pub(super) async fn run(mut self, mut nudge: watch::Receiver<()>) {
        loop {
            let outcome = self.round().await;
            if let Err(reason) = outcome {
                self.connection = None;
                self.tell_hello(Err(reason));
            }
            sleep(LEAST_PAUSE).await;
            // If the receiver is gone, so is the reason to ask.
            if let Ok(Err(_)) = timeout(EVERY, nudge.changed()).await {
                return;
            }
        }
    }

    async fn round(&mut self) -> Result<(), String> {
        if self.connection.is_none() {
            self.connection = Some(self.connect().await?);
            self.given_up.clear();
            self.settings_of = None;
        }
        let hello = self.hello().await?;
        let of_a_set = hello.set_name.is_some();
        self.rounds = self.rounds.wrapping_add(1);
        for question in Question::ALL {
            let wanted = match question {
                Question::Counters => true,
                Question::Lock => hello.is_writable_primary && self.rounds % LOCK_EVERY == 1,
                Question::Settings => of_a_set && self.settings_of != hello.set_version,
                Question::Oplog => {
                    of_a_set && !hello.arbiter_only && self.rounds % OPLOG_EVERY == 1
                }
                Question::Status | Question::Explanation => of_a_set,
            };
            if wanted && !self.given_up.contains(&question) {
                self.ask(question, &hello).await?;
            }
        }
        Ok(())
    }

    async fn connect(&self) -> Result<Connection<Stream>, String> {
        let Manner { connector, handshake, limit } = &*self.manner;
        let opened = handshake.open(connector, &self.address, Some(*limit)).await;
        let opened = match opened {
            // Only the login fails: connect without one, and show what the server answers then.
            Err(EstablishError::Authentication(error)) => {
                let why = format!("the login is refused: {}", error.cause);
                self.tell(Told::Login(Foreign(why).to_string()));
                let handshake = Handshake { authenticator: None, ..handshake.clone() };
                handshake.open(connector, &self.address, Some(*limit)).await
            }
            opened => opened,
        };
        opened.map(|(connection, _)| connection).map_err(|error| error.to_string())
    }

    fn tell(&self, told: Told) {
        self.shared.tell(Input::Told { member: self.address.clone(), told });
    }

    async fn hello(&mut self) -> Result<Arc<HelloReply>, String> {
        let connection = self.connection.as_mut().ok_or("not connected")?;
        let Handshake { known_members, .. } = &self.manner.handshake;
        let hello = self.manner.handshake.plain_hello(self.manner.handshake.first_command());
        let began = Instant::now();
        let exchange = exchange_hello(connection, Request::new(&hello), known_members);
        let reply = timeout(LIMIT, exchange).await;
        let reply = reply.map_err(|_| silent("hello"))?.map_err(|error| error.to_string())?;
        let reply = Arc::new(reply);
        self.tell_hello(Ok((Arc::clone(&reply), began.elapsed())));
        Ok(reply)
    }

    async fn ask(&mut self, question: Question, hello: &HelloReply) -> Result<(), String> {
        let connection = self.connection.as_mut().ok_or("not connected")?;
        let mut command = question.command();
        if let Some(api) = &self.manner.handshake.server_api {
            api.append_to(&mut command);
        }
        let name = format!("{question:?}").to_lowercase();
        let reply = timeout(LIMIT, connection.round_trip(Request::new(&command))).await;
        let reply = reply.map_err(|_| silent(&name))?.map_err(|error| error.to_string())?;
        let body = reply.body();
        match command_error(body) {
            Ok(None) => {}
            Ok(Some(error)) if error.code.is_some_and(|code| NEVER.contains(&code)) => {
                if error.code == Some(ErrorCode::UNAUTHORIZED.0)
                    && self.manner.handshake.authenticator.is_none()
                {
                    let why = "the server wants a login: lag and votes are not told without one";
                    self.tell(Told::Login(why.to_owned()));
                }
                self.given_up.push(question);
                return Ok(());
            }
            // It may answer the next time: a member that starts up knows little yet.
            Ok(Some(_)) | Err(_) => return Ok(()),
        }
        let Ok(reply) = Document::try_from(body) else { return Ok(()) };
        if let Some(told) = question.read(&reply) {
            if question == Question::Settings {
                self.settings_of = hello.set_version;
            }
            self.shared.tell(Input::Told { member: self.address.clone(), told });
        }
        Ok(())
    }

    fn tell_hello(&self, outcome: Result<(Arc<HelloReply>, Duration), String>) {
        self.shared.tell(Input::Hello { member: self.address.clone(), outcome });
    }
}

fn silent(what: &str) -> String {
    format!("no answer to {what} within {} s", LIMIT.as_secs())
}
