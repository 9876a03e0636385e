//! The operations of the test runner itself.
//!
//! Follows "Special Test Operations" of the unified test format.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_client::TransactionPhase;
use tokio::time::{sleep, timeout};

use super::arguments::Arguments;
use super::entities::Entity;
use super::matching::Matcher;
use super::runner::{PATIENCE, Running, create_entities};
use crate::{Result, ensure};

pub(super) async fn run(running: &Arc<Running>, name: &str, arguments: Document) -> Result<()> {
    let mut given = Arguments::new(arguments);
    let done = match name {
        "createEntities" => {
            let entities = given.required("entities", Arguments::value)?;
            create_entities(running, entities.as_array().ok_or("entities is no list")?).await
        }
        "failPoint" => fail_point(running, &mut given).await,
        "wait" => {
            sleep(given.required("ms", Arguments::millis)?).await;
            Ok(())
        }
        "waitForEvent" | "assertEventCount" => events(running, name, &mut given).await,
        "runOnThread" | "waitForThread" => threads(running, name, &mut given).await,
        "recordTopologyDescription" | "assertTopologyType" | "waitForPrimaryChange" => {
            topology(running, name, &mut given).await
        }
        "assertSameLsidOnLastTwoCommands" | "assertDifferentLsidOnLastTwoCommands" => {
            sessions_of_commands(running, name, &mut given)
        }
        "assertSessionDirty"
        | "assertSessionNotDirty"
        | "assertSessionPinned"
        | "assertSessionUnpinned"
        | "assertSessionTransactionState" => session(running, name, &mut given).await,
        "assertNumberConnectionsCheckedOut" => {
            let client = running.entities.client(&given.required("client", Arguments::text)?)?;
            let wanted = given.required("connections", Arguments::signed)?;
            match client.events.checked_out() {
                found if found == wanted => Ok(()),
                found => {
                    Err(format!("{found} connections are checked out, expected {wanted}").into())
                }
            }
        }
        "assertCollectionExists"
        | "assertCollectionNotExists"
        | "assertIndexExists"
        | "assertIndexNotExists" => existence(running, name, &mut given).await,
        _ => Err(format!("the test runner has no operation {name}").into()),
    };
    done?;
    given.finish()
}

async fn fail_point(running: &Running, given: &mut Arguments) -> Result<()> {
    let client = running.entities.client(&given.required("client", Arguments::text)?)?;
    let command = given.required("failPoint", Arguments::document)?;
    // Some files name a session here as well, which has no meaning.
    given.text("session")?;
    running.fail_points.store(true, Ordering::SeqCst);
    client.client.database("admin").run_command(command).await?;
    Ok(())
}

async fn events(running: &Running, name: &str, given: &mut Arguments) -> Result<()> {
    let client = running.entities.client(&given.required("client", Arguments::text)?)?;
    let event = given.required("event", Arguments::document)?;
    let count = given.required("count", Arguments::count)?;
    let count = usize::try_from(count)?;
    let matcher = Matcher { lookup: &running.entities };
    if name == "waitForEvent" {
        return client.events.wait_for(matcher, &event, count, PATIENCE).await;
    }
    let found = client.events.count(matcher, &event)?;
    ensure(found == count, || format!("{event} happened {found} times, expected {count}"))
}

async fn threads(running: &Running, name: &str, given: &mut Arguments) -> Result<()> {
    let thread = running.entities.thread(&given.required("thread", Arguments::text)?)?;
    if name == "runOnThread" {
        let operation = given.required("operation", Arguments::document)?;
        let work = thread.work.lock();
        let sent = work.as_ref().is_some_and(|work| work.send(operation).is_ok());
        return if sent { Ok(()) } else { Err("the thread has ended".into()) };
    }
    drop(thread.work.lock().take());
    let task = thread.task.lock().await.take().ok_or("the thread has been waited for")?;
    match timeout(PATIENCE, task).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err("the thread does not end".into()),
    }
}

async fn topology(running: &Running, name: &str, given: &mut Arguments) -> Result<()> {
    let entities = &running.entities;
    match name {
        "recordTopologyDescription" => {
            let client = entities.client(&given.required("client", Arguments::text)?)?;
            let id = given.required("id", Arguments::text)?;
            entities.insert(&id, Entity::Topology(client.client.topology()))
        }
        "assertTopologyType" => {
            let topology =
                entities.topology(&given.required("topologyDescription", Arguments::text)?)?;
            let wanted = given.required("topologyType", Arguments::text)?;
            let found = topology.topology_type().name();
            ensure(found == wanted, || format!("the topology is {found}, expected {wanted}"))
        }
        _ => {
            let client = entities.client(&given.required("client", Arguments::text)?)?;
            let prior =
                entities.topology(&given.required("priorTopologyDescription", Arguments::text)?)?;
            let limit = given.millis("timeoutMS")?.unwrap_or(PATIENCE);
            let before = prior.primary().map(|server| server.address().clone());
            let mut heard = client.client.events();
            let changed = async {
                loop {
                    let now = client.client.topology();
                    let primary = now.primary().map(|server| server.address().clone());
                    if primary.is_some() && primary != before {
                        return;
                    }
                    // One that lags has news to look at too.
                    let _ = heard.recv().await;
                }
            };
            timeout(limit.max(Duration::from_secs(1)), changed)
                .await
                .map_err(|_| "the primary does not change".into())
        }
    }
}

async fn session(running: &Running, name: &str, given: &mut Arguments) -> Result<()> {
    let session = running.entities.session(&given.required("session", Arguments::text)?)?;
    let session = session.session.lock().await;
    let session = session.as_ref().ok_or("the session has ended")?;
    match name {
        "assertSessionDirty" | "assertSessionNotDirty" => {
            let dirty = session.is_dirty();
            ensure(dirty == (name == "assertSessionDirty"), || {
                format!("the session is dirty: {dirty}")
            })
        }
        "assertSessionPinned" | "assertSessionUnpinned" => {
            let pinned = session.pinned_server();
            ensure(pinned.is_some() == (name == "assertSessionPinned"), || {
                format!("the session is pinned to {pinned:?}")
            })
        }
        _ => {
            let wanted = given.required("state", Arguments::text)?;
            let found = match session.transaction_phase() {
                TransactionPhase::None => "none",
                TransactionPhase::Starting => "starting",
                TransactionPhase::InProgress => "in_progress",
                TransactionPhase::Committed => "committed",
                TransactionPhase::Aborted => "aborted",
            };
            ensure(found == wanted, || format!("the transaction is {found}, expected {wanted}"))
        }
    }
}

fn sessions_of_commands(running: &Running, name: &str, given: &mut Arguments) -> Result<()> {
    let client = running.entities.client(&given.required("client", Arguments::text)?)?;
    let commands = client.events.commands();
    let [.., one, other] = commands.as_slice() else {
        bail!("fewer than two commands were sent");
    };
    let (one, other) = (one.get_document("lsid"), other.get_document("lsid"));
    let (Ok(one), Ok(other)) = (one, other) else {
        bail!("a command has no lsid");
    };
    ensure((one == other) == (name == "assertSameLsidOnLastTwoCommands"), || {
        format!("the sessions are {one} and {other}")
    })
}

async fn existence(running: &Running, name: &str, given: &mut Arguments) -> Result<()> {
    let database = given.required("databaseName", Arguments::text)?;
    let collection = given.required("collectionName", Arguments::text)?;
    let database = running.deployment.client.database(&database);
    let (sought, names) = match given.text("indexName")? {
        Some(index) => {
            // A collection that does not exist has no indexes.
            let names = database.collection(&collection).list_indexes().names().await;
            (index, names.unwrap_or_default())
        }
        None => {
            let listed = database.list_collection_names();
            let names = listed.filter(doc! { "name": Bson::from(collection.clone()) }).names();
            (collection, names.await?)
        }
    };
    let exists = names.contains(&sought);
    ensure(exists != name.contains("Not"), || format!("{sought} exists: {exists}"))
}
