//! One test from its initial data to the end of its clients.
//!
//! Follows "Executing a Test" and "Executing an Operation" of the unified test format.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_client::{Collection, WriteConcern};
use quorate_connection_string::WriteAcknowledgement;
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use super::deployment::Deployment;
use super::entities::{Entities, Entity, ThreadEntity};
use super::matching::Matcher;
use super::outcome::{Outcome, check_error, check_result, plain_documents};
use super::{logs, operations, special};

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
) -> Result<(), String> {
    check_keys(test)?;
    prepare(deployment, file).await.map_err(|reason| format!("initialData: {reason}"))?;
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

/// A key that is not known could be an assertion that is never made.
fn check_keys(test: &Document) -> Result<(), String> {
    const KNOWN: [&str; 7] = [
        "description",
        "runOnRequirements",
        "skipReason",
        "operations",
        "expectEvents",
        "expectLogMessages",
        "outcome",
    ];
    match test.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(format!("unknown part of a test: {key}")),
    }
}

async fn act(running: &Arc<Running>, file: &Document, test: &Document) -> Result<(), String> {
    if let Ok(entities) = file.get_array("createEntities") {
        create_entities(running, entities)?;
    }
    let operations = test.get_array("operations").map_err(|error| error.to_string())?;
    for (place, operation) in operations.iter().enumerate() {
        let operation = operation.as_document().ok_or("an operation is no document")?;
        run_operation(running, operation).await.map_err(|reason| {
            let name = operation.get_str("name").unwrap_or_default();
            format!("operation {place} ({name}): {reason}")
        })?;
    }
    Ok(())
}

pub(super) fn create_entities(running: &Arc<Running>, entities: &[Bson]) -> Result<(), String> {
    for entity in entities {
        let entity = entity.as_document().ok_or("an entity is no document")?;
        let mut entries = entity.iter();
        let (Some((kind, Bson::Document(given))), None) = (entries.next(), entries.next()) else {
            return Err(format!("an entity has one kind: {entity}"));
        };
        if kind == "thread" {
            let id = given.get_str("id").map_err(|error| error.to_string())?;
            running.entities.insert(id, Entity::Thread(Arc::new(start_thread(running))))?;
            continue;
        }
        running.entities.create(&running.deployment, kind, given.clone())?;
    }
    Ok(())
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
    ThreadEntity { work: std::sync::Mutex::new(Some(work)), task: AsyncMutex::new(Some(task)) }
}

/// Runs an operation and judges what it gives.
pub(super) async fn run_operation(
    running: &Arc<Running>,
    operation: &Document,
) -> Result<(), String> {
    let (mut name, mut object, mut arguments) = ("", "", Document::new());
    let (mut ignore, mut expected_error, mut expected_result, mut save) = (false, None, None, None);
    for (key, value) in operation {
        match (key.as_str(), value) {
            ("name", Bson::String(given)) => name = given,
            ("object", Bson::String(given)) => object = given,
            ("arguments", Bson::Document(given)) => arguments = given.clone(),
            ("ignoreResultAndError", Bson::Boolean(given)) => ignore = *given,
            ("expectError", Bson::Document(given)) => expected_error = Some(given),
            ("expectResult", given) => expected_result = Some(given),
            ("saveResultAsEntity", Bson::String(given)) => save = Some(given),
            _ => return Err(format!("unknown part of an operation: {key}")),
        }
    }
    if ignore && (expected_error.is_some() || expected_result.is_some() || save.is_some()) {
        return Err("ignoreResultAndError leaves nothing to expect".to_owned());
    }
    if object == "testRunner" {
        return special::run(running, name, arguments).await;
    }
    let entities = &running.entities;
    let attempt = operations::run(entities, object, name, arguments).await?;
    if ignore {
        return Ok(());
    }
    let matcher = Matcher { lookup: entities };
    let outcome = match (attempt, expected_error) {
        (Err(error), Some(expected)) => return check_error(matcher, expected, &error),
        (Err(error), None) => return Err(format!("{error} (labels {:?})", error.labels())),
        (Ok(_), Some(expected)) => return Err(format!("there is no error; expected {expected}")),
        (Ok(outcome), None) => outcome,
    };
    if let Some(expected) = expected_result {
        check_result(matcher, expected, &outcome)?;
    }
    if let Some(name) = save {
        let entity = match outcome {
            Outcome::Cursor(cursor) => Entity::Cursor(Arc::new(AsyncMutex::new(Some(cursor)))),
            Outcome::Collection(collection) => Entity::Collection(collection),
            Outcome::Value(value) => Entity::Value(value),
            Outcome::Documents(documents) => {
                Entity::Value(documents.into_iter().map(Bson::Document).collect())
            }
            Outcome::Nothing => return Err("there is no result to keep".to_owned()),
        };
        entities.insert(name, entity)?;
    }
    Ok(())
}

/// Judges what is expected after the operations.
async fn judge(running: &Running, test: &Document) -> Result<(), String> {
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

fn name_of_client(expected: &Document) -> Result<&str, String> {
    expected.get_str("client").map_err(|error| error.to_string())
}

fn list<'a>(document: &'a Document, key: &str) -> Result<Vec<&'a Document>, String> {
    let Some(value) = document.get(key) else { return Ok(Vec::new()) };
    let items = value.as_array().ok_or_else(|| format!("{key} is no list"))?;
    let documents = items.iter().map(Bson::as_document).collect::<Option<Vec<_>>>();
    documents.ok_or_else(|| format!("{key} holds something else than documents"))
}

fn collection_of(deployment: &Deployment, data: &Document) -> Result<Collection, String> {
    let database = data.get_str("databaseName").map_err(|error| error.to_string())?;
    let collection = data.get_str("collectionName").map_err(|error| error.to_string())?;
    let concern =
        WriteConcern { w: Some(WriteAcknowledgement::Majority), ..WriteConcern::default() };
    Ok(deployment.client.collection(database, collection).with_write_concern(concern))
}

/// Sets the collections of `initialData` up.
async fn prepare(deployment: &Deployment, file: &Document) -> Result<(), String> {
    for data in list(file, "initialData")? {
        let collection = collection_of(deployment, data)?;
        collection.drop_collection().await.map_err(|error| format!("drop: {error}"))?;
        let documents = list(data, "documents")?;
        let options = data.get_document("createOptions").ok();
        if options.is_some() || documents.is_empty() {
            let database = data.get_str("databaseName").map_err(|error| error.to_string())?;
            let mut command = doc! { "create": collection.name() };
            command.extend(options.cloned().unwrap_or_default());
            command.insert("writeConcern", doc! { "w": "majority" });
            let made = deployment.client.database(database).run_command(command).await;
            made.map_err(|error| format!("create: {error}"))?;
        }
        if !documents.is_empty() {
            let inserted = collection.insert_many(documents).await;
            inserted.map_err(|error| format!("insert: {error}"))?;
        }
    }
    Ok(())
}

/// Whether a collection holds exactly these documents.
async fn check_outcome(deployment: &Deployment, expected: &Document) -> Result<(), String> {
    let collection = collection_of(deployment, expected)?.with_read_concern("local");
    let cursor = collection.find(doc! {}).sort(doc! { "_id": 1 }).await;
    let cursor = cursor.map_err(|error| format!("outcome: {error}"))?;
    let found = cursor.collect().await.map_err(|error| format!("outcome: {error}"))?;
    let found: Vec<Bson> = plain_documents(found)?.into_iter().map(normal).collect();
    let wanted: Vec<Bson> = list(expected, "documents")?.into_iter().cloned().map(normal).collect();
    if found == wanted {
        return Ok(());
    }
    Err(format!("outcome: {} holds {found:?}, expected {wanted:?}", collection.name()))
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
