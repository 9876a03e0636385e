//! Makes processes that listen a set that takes writes: the configuration, the first user, and a
//! write that a majority acknowledges.

use std::time::Duration;

use bson::oid::ObjectId;
use bson::raw::RawDocumentBuf;
use bson::rawdoc;
use quorate_client::{Client, ClientOptions};
use quorate_protocol::ErrorCode;
use tokio::time::sleep;

use super::access::USER;
use super::members::Members;
use super::plan::Plan;
use crate::connect;
use crate::screen::Result;

/// The interval of heartbeats that a set has unless its configuration names another, in milliseconds.
const DEFAULT_HEARTBEAT_MS: u128 = 2_000;

/// How often the first user is asked for before the set is given up: a primary may step down while it
/// is asked.
const FIRST_USER_TRIES: usize = 20;

/// The pause between two of these attempts.
const FIRST_USER_PAUSE: Duration = Duration::from_millis(100);

/// Makes the members a set, unless they are one already, and waits for a majority write.
pub(super) async fn assemble(plan: &Plan, members: &Members) -> Result<(Client, ClientOptions)> {
    initiate(plan, members).await?;
    if let Some(password) = plan.access.password() {
        create_first_user(plan, members, password).await?;
    }
    let uri = uri(plan, members);
    let options = ClientOptions::from_connection_string(&connect::parse(&uri)?);
    let client = Client::with_options(options.clone())?;
    let failed = |error| connect::failed(&error, &uri);
    apply_election_timeout(plan, &client).await.map_err(failed)?;
    write_to_a_majority(plan, &client).await.map_err(failed)?;
    Ok((client, options))
}

/// Writes a document that a majority acknowledges, and removes it with its collection: the set shows what its users make
/// and nothing else. The collection has a name that no other has.
async fn write_to_a_majority(plan: &Plan, client: &Client) -> Result<(), quorate_client::Error> {
    let collection = format!("ready.{}", ObjectId::new());
    let insert = rawdoc! {
        "insert": collection.as_str(),
        "documents": [{ "members": i32::from(plan.members) }],
        "writeConcern": { "w": "majority" },
    };
    client.run_command("quorate", &insert).await?;
    client.run_command("quorate", &rawdoc! { "drop": collection }).await?;
    Ok(())
}

/// The connection string of the members that hold data.
pub(super) fn uri(plan: &Plan, members: &Members) -> String {
    plan.access.set_uri(&hosts(plan, members), &plan.name)
}

fn hosts<'a>(plan: &Plan, members: &'a Members) -> Vec<&'a str> {
    members.iter().filter(|member| member.id < plan.members).map(|member| member.host()).collect()
}

async fn initiate(plan: &Plan, members: &Members) -> Result<()> {
    let first = plan.access.member_uri_without_login(members.first().host());
    let direct = Client::with_uri(&first)?;
    let command = rawdoc! { "replSetInitiate": configuration(plan, members) };
    let outcome = direct.run_command("admin", &command).await;
    direct.close().await;
    match outcome {
        // Where there are users, there is a set.
        // The data directory holds a set, which may have users already.
        Err(error)
            if matches!(
                error.code().map(ErrorCode),
                Some(ErrorCode::ALREADY_INITIALIZED | ErrorCode::UNAUTHORIZED)
            ) =>
        {
            Ok(())
        }
        Err(error) => Err(connect::failed(&error, &first)),
        Ok(_) => Ok(()),
    }
}

/// The first user may be made without a login, from this machine.
async fn create_first_user(plan: &Plan, members: &Members, password: &str) -> Result<()> {
    let uri = plan.access.set_uri_without_login(&hosts(plan, members), &plan.name);
    let client = Client::with_uri(&uri)?;
    let create = rawdoc! {
        "createUser": USER,
        "pwd": password,
        "roles": ["root"],
        "writeConcern": { "w": "majority" },
    };
    let mut outcome = client.run_command("admin", &create).await;
    for _ in 0..FIRST_USER_TRIES {
        match &outcome {
            Ok(_) => break,
            // An earlier run made it.
            Err(error) if error.code() == Some(ErrorCode::UNAUTHORIZED.0) => break,
            Err(_) => {}
        }
        sleep(FIRST_USER_PAUSE).await;
        outcome = client.run_command("admin", &create).await;
    }
    client.close().await;
    match outcome {
        Err(error) if error.code() != Some(ErrorCode::UNAUTHORIZED.0) => {
            Err(connect::failed(&error, &uri))
        }
        _ => Ok(()),
    }
}

/// Gives a set that was there already the wanted election timeout.
async fn apply_election_timeout(plan: &Plan, client: &Client) -> Result<(), quorate_client::Error> {
    let Some(wanted) = plan.election_timeout else { return Ok(()) };
    let reply = client.run_command("admin", &rawdoc! { "replSetGetConfig": 1 }).await?;
    let Ok(config) = reply.get_document("config") else { return Ok(()) };
    let Ok(mut config) = bson::Document::try_from(config) else { return Ok(()) };
    let mut settings = config.get_document("settings").cloned().unwrap_or_default();
    let found = settings.get("electionTimeoutMillis").and_then(|millis| match millis {
        bson::Bson::Int32(millis) => Some(i64::from(*millis)),
        bson::Bson::Int64(millis) => Some(*millis),
        bson::Bson::Double(millis) => Some(*millis as i64),
        _ => None,
    });
    if found == i64::try_from(wanted.as_millis()).ok() {
        return Ok(());
    }
    for (name, millis) in timing(wanted) {
        settings.insert(name, millis);
    }
    let version = config.get_i32("version").unwrap_or(1);
    config.insert("settings", settings);
    config.insert("version", version.saturating_add(1));
    let Ok(config) = RawDocumentBuf::try_from(config) else { return Ok(()) };
    client.run_command("admin", &rawdoc! { "replSetReconfig": config }).await.map(drop)
}

/// The settings for an election timeout. Heartbeats must be more frequent than it.
fn timing(timeout: Duration) -> [(&'static str, i64); 2] {
    let millis = timeout.as_millis();
    let heartbeat = DEFAULT_HEARTBEAT_MS.min(millis / 2).max(1);
    [("electionTimeoutMillis", millis as i64), ("heartbeatIntervalMillis", heartbeat as i64)]
}

fn configuration(plan: &Plan, members: &Members) -> RawDocumentBuf {
    let mut list = bson::raw::RawArrayBuf::new();
    for member in members.iter() {
        let mut document = rawdoc! { "_id": i32::from(member.id), "host": member.host() };
        if member.id >= plan.members {
            document.append(bson::raw::cstr!("arbiterOnly"), true);
        }
        list.push(document);
    }
    let mut config = rawdoc! { "_id": plan.name.as_str(), "version": 1, "members": list };
    if let Some(timeout) = plan.election_timeout {
        let [(_, election), (_, heartbeat)] = timing(timeout);
        let settings = rawdoc! {
            "electionTimeoutMillis": election, "heartbeatIntervalMillis": heartbeat,
        };
        config.append(bson::raw::cstr!("settings"), settings);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_come_more_often_than_the_election_timeout() {
        let of = |millis| timing(Duration::from_millis(millis)).map(|(_, value)| value);
        assert_eq!(of(10_000), [10_000, 2_000]);
        assert_eq!(of(1_000), [1_000, 500]);
        assert_eq!(of(100), [100, 50]);
    }
}
