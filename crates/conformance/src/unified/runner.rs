//! One test from its initial data to the end of its clients.
//!
//! Follows "Executing a Test" and "Executing an Operation" of the unified test format.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_client::{Client, Collection, Error, Session, TransactionFailure, WriteConcern};
use quorate_connection_string::WriteAcknowledgement;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::time::timeout;

use super::arguments::Arguments;
use super::deployment::Deployment;
use super::entities::{Entities, Entity, SessionEntity, ThreadEntity, transaction_options};
use super::matching::Matcher;
use super::outcome::{Attempt, Outcome, check_error, check_result, plain_documents};
use super::{logs, operations, special};
use crate::{Context, Reason, Result, ensure};

/// A test that runs.
pub(super) struct Running {
    pub(super) deployment: Arc<Deployment>,
    pub(super) entities: Entities,
    /// Whether a fail point was set, which must be taken back.
    pub(super) fail_points: AtomicBool,
}

/// Runs one test of a file. `Err` says what went wrong.
pub(super) async fn run(
    deployment: &Arc<Deployment>,
    file: &Document,
    test: &Document,
) -> Result<()> {
    check_keys(test)?;
    if has_transactions(file) {
        // Transactions that an earlier test left open would hold this one up.
        let _ =
            deployment.client.database("admin").run_command(doc! { "killAllSessions": [] }).await;
    }
    prepare(deployment, file).await.context("initialData")?;
    let running = Arc::new(Running {
        deployment: Arc::clone(deployment),
        entities: Entities::default(),
        fail_points: AtomicBool::new(false),
    });
    let recording = match file.to_string().contains("observeLogMessages") {
        true => Some(logs::Recording::start()?),
        false => None,
    };
    let mut judged = act(&running, file, test).await;
    if running.fail_points.load(Ordering::SeqCst) {
        let lifted = deployment.lift_fail_points().await;
        judged = judged.and(lifted);
    }
    if judged.is_ok() {
        judged = judge(&running, test).await;
    }
    for entity in running.entities.drain() {
        match entity {
            Entity::Client(client) => client.client.close().await,
            Entity::Thread(thread) => {
                if let Some(task) = thread.task.lock().await.take() {
                    task.abort();
                }
            }
            _ => {}
        }
    }
    drop(recording);
    judged
}

fn has_transactions(file: &Document) -> bool {
    file.to_string().contains("Transaction")
}

/// A key that is not known could be an assertion that is never made.
fn check_keys(test: &Document) -> Result<()> {
    const KNOWN: [&str; 7] = [
        "description", "runOnRequirements", "skipReason", "operations", "expectEvents",
        "expectLogMessages", "outcome",
    ];
    match test.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(format!("unknown part of a test: {key}").into()),
    }
}

async fn act(running: &Arc<Running>, file: &Document, test: &Document) -> Result<()> {
    if let Ok(entities) = file.get_array("createEntities") {
        create_entities(running, entities).await?;
    }
    let operations = test.get_array("operations")?;
    for (place, operation) in operations.iter().enumerate() {
        let operation = operation.as_document().ok_or("an operation is no document")?;
        run_operation(running, operation).await.map_err(|reason| {
            let name = operation.get_str("name").unwrap_or_default();
            format!("operation {place} ({name}): {reason}")
        })?;
    }
    Ok(())
}

pub(super) async fn create_entities(running: &Arc<Running>, entities: &[Bson]) -> Result<()> {
    for entity in entities {
        let entity = entity.as_document().ok_or("an entity is no document")?;
        let mut entries = entity.iter();
        let (Some((kind, Bson::Document(given))), None) = (entries.next(), entries.next()) else {
            bail!("an entity has one kind: {entity}");
        };
        if kind == "thread" {
            let id = given.get_str("id")?;
            running.entities.insert(id, Entity::Thread(Arc::new(start_thread(running))))?;
            continue;
        }
        running.entities.create(&running.deployment, kind, given.clone())?;
        if kind == "client" && given.contains_key("awaitMinPoolSizeMS") {
            let id = given.get_str("id")?;
            fill_pools(&running.entities.client(id)?.client, given).await?;
        }
    }
    Ok(())
}

/// Waits until every pool of a client holds `minPoolSize` connections.
async fn fill_pools(client: &Client, given: &Document) -> Result<()> {
    let mut given = Arguments::new(given.clone());
    let limit = given.required("awaitMinPoolSizeMS", Arguments::millis)?;
    let options = given.document("uriOptions")?.unwrap_or_default();
    let least = Arguments::new(options).count("minPoolSize")?.unwrap_or(0);
    let mut events = client.events();
    let full = async {
        loop {
            let pools = client.pools();
            if !pools.is_empty() && pools.iter().all(|(_, counts)| counts.available as u64 >= least)
            {
                return;
            }
            // A receiver that lags has news to look at as well.
            let _ = events.recv().await;
        }
    };
    timeout(limit.max(PATIENCE), full).await.map_err(|_| "the pools are not filled".into())
}

fn start_thread(running: &Arc<Running>) -> ThreadEntity {
    // Bounded by the test, which is finite.
    let (work, mut received) = mpsc::unbounded_channel::<Document>();
    // Weak, because the thread is an entity of what it works on.
    let weak = Arc::downgrade(running);
    let task = tokio::spawn(async move {
        while let Some(operation) = received.recv().await {
            let running = weak.upgrade().ok_or("the test is over")?;
            Box::pin(run_operation(&running, &operation)).await?;
        }
        Ok(())
    });
    ThreadEntity {
        work: quorate_protocol::Lock::new(Some(work)),
        task: AsyncMutex::new(Some(task)),
    }
}

/// Runs an operation and judges what it gives.
pub(super) async fn run_operation(running: &Arc<Running>, operation: &Document) -> Result<()> {
    match try_operation(running, operation).await? {
        Some(Unexpected(error)) => Err(format!("{error} (labels {:?})", error.labels()).into()),
        None => Ok(()),
    }
}

/// An error of the client that the test has not foreseen where it happened.
struct Unexpected(Error);

/// The same, with an error of the client left to the caller.
async fn try_operation(running: &Arc<Running>, operation: &Document) -> Result<Option<Unexpected>> {
    let wanted = Wanted::read(operation)?;
    if wanted.object == "testRunner" {
        special::run(running, wanted.name, wanted.arguments).await?;
        return Ok(None);
    }
    let attempt = wanted.attempt(running).await?;
    match wanted.judge(&running.entities, attempt) {
        Ok(_) => Ok(None),
        Err(Verdict::Test(reason)) => Err(reason),
        Err(Verdict::Client(error)) => Ok(Some(Unexpected(error))),
    }
}

/// An operation of a callback. Its errors reach the transaction, foreseen or not.
async fn run_in_callback(running: &Arc<Running>, operation: &Document) -> Result<(), Verdict> {
    let wanted = Wanted::read(operation).map_err(Verdict::Test)?;
    if wanted.object == "testRunner" {
        let ran = special::run(running, wanted.name, wanted.arguments).await;
        return ran.map_err(Verdict::Test);
    }
    let attempt = wanted.attempt(running).await.map_err(Verdict::Test)?;
    match wanted.judge(&running.entities, attempt)? {
        Some(error) => Err(Verdict::Client(error)),
        None => Ok(()),
    }
}

/// Why a callback, or an operation, stops.
enum Verdict {
    /// The client gave an error.
    Client(Error),
    /// The test fails.
    Test(Reason),
}

impl From<Error> for Verdict {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl TransactionFailure for Verdict {
    fn client_error(&self) -> Option<&Error> {
        match self {
            Self::Client(error) => Some(error),
            Self::Test(_) => None,
        }
    }
}

/// `withTransaction`: the operations of its callback run in the session that the entity names, which
/// the entity lends out meanwhile.
///
/// Boxed, since the callback runs operations in turn.
fn with_transaction(
    running: &Arc<Running>,
    entity: Arc<SessionEntity>,
    arguments: Document,
) -> Pin<Box<dyn Future<Output = Result<Attempt>> + Send + '_>> {
    Box::pin(run_with_transaction(running, entity, arguments))
}

async fn run_with_transaction(
    running: &Arc<Running>,
    entity: Arc<SessionEntity>,
    arguments: Document,
) -> Result<Attempt> {
    let mut given = Arguments::new(arguments);
    let operations = given.required("callback", Arguments::documents)?;
    let limit = given.millis("timeoutMS")?;
    let options = transaction_options(&mut given)?;
    given.finish()?;
    let mut session = entity.session.lock().await.take().ok_or("the session has ended")?;
    *entity.session.lock().await = Some(session.client().start_session());
    let mut transaction = session.transaction().options(options);
    if let Some(limit) = limit {
        transaction = transaction.timeout(limit);
    }
    let callback =
        Callback { running: Arc::clone(running), entity: Arc::clone(&entity), operations };
    let outcome =
        transaction.run_with(callback, |session, callback| Box::pin(callback.run(session))).await;
    entity.remember(&session);
    *entity.session.lock().await = Some(session);
    match outcome {
        Ok(()) => Ok(Ok(Outcome::Nothing)),
        Err(Verdict::Client(error)) => Ok(Err(error)),
        Err(Verdict::Test(reason)) => Err(format!("in the callback: {reason}").into()),
    }
}

/// The work of `withTransaction`.
struct Callback {
    running: Arc<Running>,
    entity: Arc<SessionEntity>,
    operations: Vec<Document>,
}

impl Callback {
    async fn run(&mut self, session: &mut Session) -> Result<(), Verdict> {
        swap(&self.entity, session).await;
        let mut outcome = Ok(());
        for operation in &self.operations {
            outcome = run_in_callback(&self.running, operation).await;
            if outcome.is_err() {
                break;
            }
        }
        swap(&self.entity, session).await;
        outcome
    }
}

async fn swap(entity: &SessionEntity, session: &mut Session) {
    if let Some(own) = entity.session.lock().await.as_mut() {
        std::mem::swap(own, session);
    }
}

/// An operation as the test writes it.
struct Wanted<'a> {
    name: &'a str,
    object: &'a str,
    arguments: Document,
    ignore: bool,
    error: Option<&'a Document>,
    result: Option<&'a Bson>,
    save: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    fn read(operation: &'a Document) -> Result<Self> {
        let mut wanted = Self {
            name: "",
            object: "",
            arguments: Document::new(),
            ignore: false,
            error: None,
            result: None,
            save: None,
        };
        for (key, value) in operation {
            match (key.as_str(), value) {
                ("name", Bson::String(given)) => wanted.name = given,
                ("object", Bson::String(given)) => wanted.object = given,
                ("arguments", Bson::Document(given)) => wanted.arguments = given.clone(),
                ("ignoreResultAndError", Bson::Boolean(given)) => wanted.ignore = *given,
                ("expectError", Bson::Document(given)) => wanted.error = Some(given),
                ("expectResult", given) => wanted.result = Some(given),
                ("saveResultAsEntity", Bson::String(given)) => wanted.save = Some(given),
                _ => bail!("unknown part of an operation: {key}"),
            }
        }
        let expects = wanted.error.is_some() || wanted.result.is_some() || wanted.save.is_some();
        if wanted.ignore && expects {
            bail!("ignoreResultAndError leaves nothing to expect");
        }
        Ok(wanted)
    }

    async fn attempt(&self, running: &Arc<Running>) -> Result<Attempt> {
        let (entities, arguments) = (&running.entities, self.arguments.clone());
        if self.name == "withTransaction" {
            let session = entities.session(self.object)?;
            return with_transaction(running, session, arguments).await;
        }
        operations::run(entities, self.object, self.name, arguments).await
    }

    /// Judges what the operation gave. `Ok(Some(_))` is an error that was foreseen.
    fn judge(&self, entities: &Entities, attempt: Attempt) -> Result<Option<Error>, Verdict> {
        if self.ignore {
            return Ok(attempt.err());
        }
        let matcher = Matcher { lookup: entities };
        let outcome = match (attempt, self.error) {
            (Err(error), Some(expected)) => {
                check_error(matcher, expected, &error).map_err(Verdict::Test)?;
                return Ok(Some(error));
            }
            (Err(error), None) => return Err(Verdict::Client(error)),
            (Ok(_), Some(expected)) => {
                return Err(Verdict::Test(
                    format!("there is no error; expected {expected}").into(),
                ));
            }
            (Ok(outcome), None) => outcome,
        };
        if let Some(expected) = self.result {
            check_result(matcher, expected, &outcome).map_err(Verdict::Test)?;
        }
        if let Some(name) = self.save {
            save(entities, name, outcome).map_err(Verdict::Test)?;
        }
        Ok(None)
    }
}

fn save(entities: &Entities, name: &str, outcome: Outcome) -> Result<()> {
    let entity = match outcome {
        Outcome::Cursor(cursor) => Entity::Cursor(Arc::new(AsyncMutex::new(Some(cursor)))),
        Outcome::ChangeStream(stream) => {
            Entity::ChangeStream(Arc::new(AsyncMutex::new(Some(*stream))))
        }
        Outcome::Collection(collection) => Entity::Collection(collection),
        Outcome::Value(value) => Entity::Value(value),
        Outcome::Documents(documents) => {
            Entity::Value(documents.into_iter().map(Bson::Document).collect())
        }
        Outcome::Nothing => bail!("there is no result to keep"),
    };
    entities.insert(name, entity)
}

/// Checks the expected events, logs and documents after the operations.
async fn judge(running: &Running, test: &Document) -> Result<()> {
    let matcher = Matcher { lookup: &running.entities };
    for expected in list(test, "expectEvents")? {
        let client = running.entities.client(name_of_client(expected)?)?;
        client.events.check(matcher, expected)?;
    }
    for expected in list(test, "expectLogMessages")? {
        let client = running.entities.client(name_of_client(expected)?)?;
        logs::check(matcher, expected, client.client.topology_id(), &client.logs)?;
    }
    for expected in list(test, "outcome")? {
        check_outcome(&running.deployment, expected).await?;
    }
    Ok(())
}

fn name_of_client(expected: &Document) -> Result<&str> {
    Ok(expected.get_str("client")?)
}

fn list<'a>(document: &'a Document, key: &str) -> Result<Vec<&'a Document>> {
    let Some(value) = document.get(key) else { return Ok(Vec::new()) };
    let items = value.as_array().ok_or_else(|| format!("{key} is no list"))?;
    let documents = items.iter().map(Bson::as_document).collect::<Option<Vec<_>>>();
    documents.ok_or_else(|| format!("{key} holds something else than documents").into())
}

fn collection_of(deployment: &Deployment, data: &Document) -> Result<Collection> {
    let database = data.get_str("databaseName")?;
    let collection = data.get_str("collectionName")?;
    let concern =
        WriteConcern { w: Some(WriteAcknowledgement::Majority), ..WriteConcern::default() };
    Ok(deployment.client.collection(database, collection).with_write_concern(concern))
}

/// Sets the collections of `initialData` up.
async fn prepare(deployment: &Deployment, file: &Document) -> Result<()> {
    for data in list(file, "initialData")? {
        let collection = collection_of(deployment, data)?;
        collection.drop_collection().await.context("drop")?;
        let documents = list(data, "documents")?;
        let options = data.get_document("createOptions").ok();
        if options.is_some() || documents.is_empty() {
            let database = data.get_str("databaseName")?;
            let mut command = doc! { "create": collection.name() };
            command.extend(options.cloned().unwrap_or_default());
            command.insert("writeConcern", doc! { "w": "majority" });
            deployment.client.database(database).run_command(command).await.context("create")?;
        }
        if !documents.is_empty() {
            collection.insert_many(documents).await.context("insert")?;
        }
    }
    Ok(())
}

/// Whether a collection holds exactly these documents.
async fn check_outcome(deployment: &Deployment, expected: &Document) -> Result<()> {
    let collection = collection_of(deployment, expected)?.with_read_concern("local");
    let cursor = collection.find(doc! {}).sort(doc! { "_id": 1 }).await.context("outcome")?;
    let found = cursor.collect().await.context("outcome")?;
    let found: Vec<Bson> = plain_documents(found)?.into_iter().map(normal).collect();
    let wanted: Vec<Bson> = list(expected, "documents")?.into_iter().cloned().map(normal).collect();
    ensure(found == wanted, || {
        format!("outcome: {} holds {found:?}, expected {wanted:?}", collection.name())
    })
}

/// A document with its keys in order, for their order does not count.
fn normal(document: Document) -> Bson {
    let mut pairs: Vec<(String, Bson)> = document.into_iter().collect();
    pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
    let pairs = pairs.into_iter().map(|(key, value)| {
        let value = match value {
            Bson::Document(document) => normal(document),
            Bson::Array(items) => Bson::Array(
                items
                    .into_iter()
                    .map(|item| match item {
                        Bson::Document(document) => normal(document),
                        other => other,
                    })
                    .collect(),
            ),
            other => other,
        };
        (key, value)
    });
    Bson::Document(pairs.collect())
}

/// How long something that must happen may take. The format says ten seconds; a loaded machine may
/// need more, and nothing here passes by waiting longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
