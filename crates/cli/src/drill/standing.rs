//! Which members may stand for election while a primary hands over.
//!
//! `replSetFreeze` keeps a secondary from standing for a while, and with 0 lets it stand again.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::rawdoc;
use quorate_client::Client;
use quorate_connection_string::ConnectionString;
use quorate_protocol::ServerAddress;
use quorate_server_discovery::{ServerType, TopologyDescription};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::timeline;
use crate::remedy;
use crate::screen::Result;
use crate::words::listed;

/// How long the others are kept from standing, in seconds: longer than an election takes, and over by
/// itself if it is not undone.
const FROZEN_SECONDS: i32 = 60;

/// How long one member may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long a member that is to lead may take until the client has seen what it is.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// Returns when the client knows what the named member is, or does not list it, or has waited long enough:
/// a client finds the primary before it has heard of every member.
pub(super) async fn known(to: &ServerAddress, client: &Client) {
    let settled = timeline::until(client, |topology| !is_awaited(to, topology));
    let _ = timeout(KNOWN_WITHIN, settled).await;
}

/// Whether the set lists this member, and the client does not know yet that it can lead. A member that is
/// down or copies everything may answer as a secondary in a moment.
pub(super) fn is_awaited(to: &ServerAddress, topology: &TopologyDescription) -> bool {
    topology.servers().iter().find(|server| server.address() == to).is_some_and(|server| {
        matches!(
            server.server_type(),
            ServerType::Unknown | ServerType::PossiblePrimary | ServerType::RsOther
        )
    })
}

/// The secondaries besides the one that is to lead; none if none was named. Fails if the named one
/// is no secondary of the set, or has priority 0.
pub(super) fn others(
    to: Option<&ServerAddress>,
    topology: &TopologyDescription,
) -> Result<Vec<ServerAddress>> {
    let Some(to) = to else { return Ok(Vec::new()) };
    let secondaries: Vec<ServerAddress> = topology
        .servers()
        .iter()
        .filter(|server| server.server_type() == ServerType::RsSecondary)
        .map(|server| server.address().clone())
        .collect();
    refuse_if!(secondaries.is_empty() => problem,
        "{to} cannot lead now: no member is a secondary; quorate doctor URI tells what is wrong with each");
    refuse_if!(!secondaries.contains(to) => misuse,
        "{to} is no secondary of this set, so that it cannot lead; choose among {}",
        listed(&secondaries));
    let primary =
        topology.servers().iter().find(|server| server.server_type() == ServerType::RsPrimary);
    if let Some(primary) = primary.filter(|primary| primary.passives().contains(to)) {
        // What the primary lists is known, while other members may not have answered yet.
        let may_lead = primary.hosts().iter().filter(|host| *host != primary.address());
        return Err(misuse!(
            "{to} has priority 0 and never leads; give it another with replSetReconfig, or choose among {}",
            listed(may_lead)
        ));
    }
    let servers = topology.servers().iter().map(|server| (server.address(), server.server_type()));
    Ok(rivals(to, servers))
}

/// The members that could stand instead of the named one. One that the client does not know to be a secondary may have
/// become one by the time of the election.
fn rivals<'a>(
    to: &ServerAddress,
    servers: impl Iterator<Item = (&'a ServerAddress, ServerType)>,
) -> Vec<ServerAddress> {
    let may_stand =
        |server_type| !matches!(server_type, ServerType::RsPrimary | ServerType::RsArbiter);
    servers
        .filter(|(address, server_type)| *address != to && may_stand(*server_type))
        .map(|(address, _)| address.clone())
        .collect()
}

/// Keeps these members from standing for a while.
pub(super) async fn forbid(uri: &ConnectionString, members: &[ServerAddress]) {
    ask_all(uri, members, &rawdoc! { "replSetFreeze": FROZEN_SECONDS }).await;
}

/// Lets these members stand again.
pub(super) async fn allow<'a>(
    uri: &ConnectionString,
    members: impl IntoIterator<Item = &'a ServerAddress>,
) {
    ask_all(uri, members, &rawdoc! { "replSetFreeze": 0 }).await;
}

/// Sends a command to each of these members. One that is silent keeps the others waiting no longer than itself.
async fn ask_all<'a>(
    uri: &ConnectionString,
    members: impl IntoIterator<Item = &'a ServerAddress>,
    command: &RawDocumentBuf,
) {
    let mut asked = JoinSet::new();
    for member in members {
        let (uri, member, command) = (uri.clone(), member.clone(), command.clone());
        asked.spawn(async move { ask(&uri, &member, command).await });
    }
    while asked.join_next().await.is_some() {}
}

/// Asks a member to stand now instead of waiting for its timeout.
pub(super) async fn encourage(uri: &ConnectionString, member: &ServerAddress) {
    ask(uri, member, rawdoc! { "replSetStepUp": 1 }).await;
}

/// Sends a command to one member. What it says to it is no matter: a member that is down cannot
/// stand, and servers without the command elect as they always do.
async fn ask(uri: &ConnectionString, member: &ServerAddress, command: RawDocumentBuf) {
    let uri = remedy::member_uri(&uri.to_uri_with_secrets(), member.as_str());
    let Ok(client) = Client::with_uri(&uri) else { return };
    let _ = timeout(ANSWER_WITHIN, client.run_command("admin", &command)).await;
    client.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that has just restarted wins the election unless it is frozen.
    #[test]
    fn every_other_member_that_may_stand_is_kept_from_it() {
        let address = |port: u16| -> ServerAddress { format!("m:{port}").parse().unwrap() };
        let servers = [
            (address(1), ServerType::RsPrimary),
            (address(2), ServerType::RsSecondary),
            (address(3), ServerType::RsSecondary),
            (address(4), ServerType::Unknown),
            (address(5), ServerType::RsOther),
            (address(6), ServerType::RsArbiter),
        ];
        let servers = servers.iter().map(|(address, server_type)| (address, *server_type));
        assert_eq!(rivals(&address(2), servers), [address(3), address(4), address(5)]);
    }
}
