//! The client's view of a member beside the member's own words, line by line.

use quorate_protocol::ServerAddress;
use quorate_server_discovery::{ServerDescription, ServerType};

use super::difference::Aspect;
use super::member::Own;
use super::{View, brief, without_address};
use crate::words::{Foreign, Span};

/// One line: what both say of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compared {
    /// What it is about.
    pub(crate) name: &'static str,
    /// What the client believes.
    pub(crate) client: Option<String>,
    /// What the member says.
    pub(crate) member: Option<String>,
    /// Whether they disagree.
    pub(crate) differs: bool,
}

impl View {
    /// Everything that can be compared about a member; nothing for an address that is not shown.
    pub(crate) fn comparison(&self, address: &ServerAddress) -> Vec<Compared> {
        let Some(member) = self.members.get(address) else { return Vec::new() };
        let topology = self.topology.as_deref();
        let belief = member.belief.as_deref();
        let hello = member.hello();
        let differs = |aspect| member.differences.iter().any(|found| found.aspect == aspect);
        let line = |aspect: Aspect, client: Option<String>, told: Option<String>| Compared {
            name: aspect.name(),
            client,
            member: told,
            differs: differs(aspect),
        };
        let client_answers = belief.map(|belief| match belief.error() {
            Some(error) => brief(&without_address(error, address)).to_owned(),
            None if belief.server_type().is_known() => "yes".to_owned(),
            None => "not checked yet".to_owned(),
        });
        let own_answers = match &member.own {
            Own::NotAsked => None,
            Own::Answered { .. } => {
                let round_trip = member.round_trips.last().copied().flatten();
                Some(round_trip.map_or("yes".to_owned(), |span| format!("yes, in {}", Span(span))))
            }
            Own::Silent { reason, .. } => Some(brief(reason).to_owned()),
        };
        let client_type = belief.map_or("not a member", |belief| belief.server_type().name());
        let own_type = hello.map(|hello| ServerType::from_reply(hello).name().to_owned());
        let told = |text: Option<&ServerAddress>| text.map(ServerAddress::to_string);
        let own_primary = hello.filter(|hello| hello.set_name.is_some());
        let own_primary =
            own_primary.map(|hello| told(hello.primary.as_ref()).unwrap_or("none".to_owned()));
        let client_primary = topology.filter(|found| found.topology_type().is_replica_set());
        let client_primary = client_primary.map(|topology| {
            told(topology.primary().map(|primary| primary.address())).unwrap_or("none".to_owned())
        });
        let client_version = belief.and_then(ServerDescription::set_version);
        vec![
            line(Aspect::Answers, client_answers, own_answers),
            line(Aspect::Type, Some(client_type.to_owned()), own_type),
            line(
                Aspect::Name,
                Some(address.to_string()),
                hello.and_then(|hello| told(hello.me.as_ref())),
            ),
            line(
                Aspect::SetName,
                topology.and_then(|topology| topology.set_name()).map(str::to_owned),
                hello.and_then(|hello| hello.set_name.as_ref()).map(|n| Foreign(n).to_string()),
            ),
            line(
                Aspect::SetVersion,
                client_version.map(|version| version.to_string()),
                hello.and_then(|hello| hello.set_version).map(|version| version.to_string()),
            ),
            line(Aspect::Primary, client_primary, own_primary),
        ]
    }
}
