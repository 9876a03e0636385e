//! What a test works with: clients, databases, collections, sessions, cursors, threads, values.
//!
//! Follows "Entity Map" of the unified test format: names are unique, and a test that asks for one of
//! another kind than it is gets an error. A key that is not known is an error too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bson::{Bson, Document};
use quorate_client::{
    ChangeStream, Client, ClientOptions, Collection, Cursor, Database, EventListener, ServerApi,
    Session, SessionOptions, TransactionOptions,
};
use quorate_connection_string::ConnectionString;
use quorate_server_discovery::TopologyDescription;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinHandle;

use quorate_protocol::Lock;

use super::arguments::{Arguments, set_options};
use super::deployment::Deployment;
use super::events::EventLog;
use super::matching::Lookup;
use crate::{Context, Result};

/// How often monitors of clients look again that do not say how often.
const HEARTBEAT_FREQUENCY_MS: u32 = 500;

/// Longer than any command or reply of a test.
const LOGGED_DOCUMENT_LENGTH: usize = 10_000;

/// The only version of the stable API there is.
const API_VERSION: &str = "1";

/// A client and what it told.
pub(super) struct ClientEntity {
    pub(super) client: Client,
    pub(super) events: Arc<EventLog>,
    /// Components of log messages and their least severities.
    pub(super) logs: Document,
}

/// A session, until it is ended.
pub(super) struct SessionEntity {
    pub(super) session: AsyncMutex<Option<Session>>,
    id: Lock<Option<Document>>,
}

impl SessionEntity {
    /// Remembers the id that commands carried, which outlives the session.
    pub(super) fn remember(&self, session: &Session) {
        let id = session.id().and_then(|id| Document::try_from(id).ok());
        if id.is_some() {
            *self.id.lock() = id;
        }
    }
}

/// A thread of the test: operations that run one after the other, beside the main ones.
pub(super) struct ThreadEntity {
    pub(super) work: Lock<Option<mpsc::UnboundedSender<Document>>>,
    pub(super) task: AsyncMutex<Option<JoinHandle<Result<()>>>>,
}

/// Anything that has a name.
#[derive(Clone)]
pub(super) enum Entity {
    Client(Arc<ClientEntity>),
    Database(Database),
    Collection(Collection),
    Session(Arc<SessionEntity>),
    Cursor(Arc<AsyncMutex<Option<Cursor>>>),
    ChangeStream(Arc<AsyncMutex<Option<ChangeStream>>>),
    Thread(Arc<ThreadEntity>),
    Topology(Arc<TopologyDescription>),
    Value(Bson),
}

/// Everything that has a name.
#[derive(Default)]
pub(super) struct Entities {
    map: Lock<BTreeMap<String, Entity>>,
}

/// Takes an entity of one kind out of the map.
macro_rules! typed {
    ($($method:ident: $variant:ident => $kind:ty),* $(,)?) => {
        $(pub(super) fn $method(&self, name: &str) -> Result<$kind> {
            match self.get(name)? {
                Entity::$variant(found) => Ok(found),
                _ => Err(format!("{name} is no {}", stringify!($method)).into()),
            }
        })*
    };
}

/// A database or a collection with the options that are given under a key.
macro_rules! configured {
    ($owner:expr, $given:ident, $key:literal) => {{
        let mut owner = $owner;
        if let Some(options) = $given.document($key)? {
            let mut options = Arguments::new(options);
            if let Some(level) = read_concern(&mut options)? {
                owner = owner.with_read_concern(&level);
            }
            set_options!(options, owner;
                preference with_read_preference = "readPreference",
                concern with_write_concern = "writeConcern", millis with_timeout = "timeoutMS");
            options.finish()?;
        }
        owner
    }};
}

impl Entities {
    typed! {
        client: Client => Arc<ClientEntity>,
        database: Database => Database,
        session: Session => Arc<SessionEntity>,
        thread: Thread => Arc<ThreadEntity>,
        topology: Topology => Arc<TopologyDescription>,
    }

    pub(super) fn get(&self, name: &str) -> Result<Entity> {
        self.map
            .lock()
            .get(name)
            .cloned()
            .ok_or_else(|| format!("there is no entity {name}").into())
    }

    pub(super) fn insert(&self, name: &str, entity: Entity) -> Result<()> {
        match self.map.lock().insert(name.to_owned(), entity) {
            None => Ok(()),
            Some(_) => Err(format!("there are two entities {name}").into()),
        }
    }

    /// Everything, in the order of names; the map is empty afterwards.
    pub(super) fn drain(&self) -> Vec<Entity> {
        std::mem::take(&mut *self.map.lock()).into_values().collect()
    }

    /// Makes an entity of `createEntities`, threads excepted: those need the runner.
    pub(super) fn create(
        &self,
        deployment: &Deployment,
        kind: &str,
        given: Document,
    ) -> Result<()> {
        let mut given = Arguments::new(given);
        let id = given.required("id", Arguments::text)?;
        let entity = match kind {
            "client" => Entity::Client(Arc::new(client(deployment, &mut given)?)),
            "database" => {
                let client = self.client(&given.required("client", Arguments::text)?)?;
                let name = given.required("databaseName", Arguments::text)?;
                let database = client.client.database(&name);
                Entity::Database(configured!(database, given, "databaseOptions"))
            }
            "collection" => {
                let database = self.database(&given.required("database", Arguments::text)?)?;
                let name = given.required("collectionName", Arguments::text)?;
                let collection = database.collection(&name);
                Entity::Collection(configured!(collection, given, "collectionOptions"))
            }
            "session" => {
                let client = self.client(&given.required("client", Arguments::text)?)?;
                let options =
                    given.within("sessionOptions", |wanted| self.session_options(wanted))?;
                let options = options.unwrap_or_default();
                let session = client.client.start_session_with(options)?;
                let session = AsyncMutex::new(Some(session));
                Entity::Session(Arc::new(SessionEntity { session, id: Lock::default() }))
            }
            other => bail!("unknown kind of entity {other}"),
        };
        given.finish()?;
        self.insert(&id, entity)
    }
}

impl Lookup for Entities {
    fn session_id(&self, name: &str) -> Result<Document> {
        let id = self.session(name)?.id.lock().clone();
        id.ok_or_else(|| format!("{name} has not been used").into())
    }

    fn value(&self, name: &str) -> Result<Bson> {
        match self.get(name)? {
            Entity::Value(value) => Ok(value),
            _ => Err(format!("{name} is no value").into()),
        }
    }
}

impl Entities {
    fn session_options(&self, wanted: &mut Arguments) -> Result<SessionOptions> {
        let defaults = wanted.within("defaultTransactionOptions", transaction_options)?;
        // The name of a value that an operation has saved.
        let time = match wanted.text("snapshotTime")? {
            Some(name) => Some(self.value(&name)?.as_timestamp().ok_or("no time was saved")?),
            None => None,
        };
        Ok(SessionOptions {
            causal_consistency: wanted.flag("causalConsistency")?,
            snapshot: wanted.flag("snapshot")?.unwrap_or(false),
            snapshot_time: time,
            default_transaction_options: defaults.unwrap_or_default(),
            default_timeout: wanted.millis("defaultTimeoutMS")?,
        })
    }
}

/// The options of a transaction, wherever they are given.
pub(super) fn transaction_options(given: &mut Arguments) -> Result<TransactionOptions> {
    Ok(TransactionOptions {
        read_concern: read_concern(given)?,
        write_concern: given.concern("writeConcern")?,
        read_preference: given.preference("readPreference")?,
        max_commit_time: given.millis("maxCommitTimeMS")?,
    })
}

fn read_concern(options: &mut Arguments) -> Result<Option<String>> {
    options.within("readConcern", |concern| concern.required("level", Arguments::text))
}

fn client(deployment: &Deployment, given: &mut Arguments) -> Result<ClientEntity> {
    // Only sharded clusters and load balancers have several of them.
    given.flag("useMultipleMongoses")?;
    // The runner waits for it when the client is made.
    given.millis("awaitMinPoolSizeMS")?;
    let observed = names(given, "observeEvents")?;
    let ignored = names(given, "ignoreCommandMonitoringEvents")?;
    let sensitive = given.flag("observeSensitiveCommands")?.unwrap_or(false);
    let logs = given.document("observeLogMessages")?.unwrap_or_default();
    let events = Arc::new(EventLog::new(observed, ignored, sensitive)?);
    let uri_options = given.document("uriOptions")?.unwrap_or_default();
    let uri = deployment.uri(&uri_text(&uri_options)?);
    let string = ConnectionString::parse(&uri).context(&uri)?;
    if let Some(warning) = string.warnings().first() {
        bail!("{uri}: {warning}");
    }
    let mut options = ClientOptions::from_connection_string(&string);
    let listener: EventListener = {
        let events = Arc::clone(&events);
        Arc::new(move |event| events.hear(&event))
    };
    options.listener = Some(listener);
    // Tests read whole documents out of log messages.
    options.logged_document_length = Some(LOGGED_DOCUMENT_LENGTH);
    options.server_api = server_api(given)?;
    let client = Client::with_options(options)?;
    Ok(ClientEntity { client, events, logs })
}

fn names(given: &mut Arguments, key: &str) -> Result<BTreeSet<String>> {
    let Some(value) = given.value(key)? else { return Ok(BTreeSet::new()) };
    let list = value.as_array().ok_or_else(|| format!("{key} is no list"))?;
    let names = list.iter().map(|name| name.as_str().map(str::to_owned));
    names
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{key} holds something else than names").into())
}

fn server_api(given: &mut Arguments) -> Result<Option<ServerApi>> {
    given.within("serverApi", |api| {
        let version = api.required("version", Arguments::text)?;
        if version != API_VERSION {
            bail!("there is no version {version} of the stable API");
        }
        let strict = api.flag("strict")?;
        Ok(ServerApi { version, strict, deprecation_errors: api.flag("deprecationErrors")? })
    })
}

/// `a=1&b=2` of a document of options.
fn uri_text(options: &Document) -> Result<String> {
    let mut parts = Vec::new();
    for (name, value) in options {
        let texts = match value {
            Bson::Array(values) => values.iter().map(text_of).collect::<Result<_, _>>()?,
            value => vec![text_of(value)?],
        };
        parts.extend(texts.into_iter().map(|text| format!("{name}={text}")));
    }
    if !options.contains_key("heartbeatFrequencyMS") {
        parts.push(format!("heartbeatFrequencyMS={HEARTBEAT_FREQUENCY_MS}"));
    }
    Ok(parts.join("&"))
}

fn text_of(value: &Bson) -> Result<String> {
    match value {
        Bson::String(text) => Ok(text.clone()),
        Bson::Int32(number) => Ok(number.to_string()),
        Bson::Int64(number) => Ok(number.to_string()),
        Bson::Boolean(truth) => Ok(truth.to_string()),
        other => Err(format!("{other} cannot be part of a connection string").into()),
    }
}
