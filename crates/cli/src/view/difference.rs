//! Where the client's view of a member differs from what the member says of itself.
//!
//! Neither is wrong by itself: a client marks a stale primary Unknown on purpose, and drops members
//! that are called otherwise. But a person who looks for a fault looks here first.

use quorate_protocol::{HelloReply, MonotonicTime, ServerAddress};
use quorate_server_discovery::{ServerDescription, ServerType, TopologyDescription};

use crate::words::Foreign;

quorate_protocol::named! {
    /// The points that can differ.
    ///
    /// [`name`](Self::name) is its name, as people and programs read it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Aspect {
        /// Whether it answers.
        Answers = "answers",
        Type = "type",
        Name = "me",
        /// The set it belongs to.
        SetName = "setName",
        /// The version of the configuration.
        SetVersion = "setVersion",
        Primary = "primary",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The point.
    pub(crate) aspect: Aspect,
    /// The client's view.
    pub(crate) client: String,
    /// The member's own word.
    pub(crate) member: String,
    pub(crate) since: MonotonicTime,
    /// Whether it was put into the log.
    pub(super) told: bool,
}

/// The member's own word, or that it does not answer.
pub(super) type Own<'a> = Result<&'a HelloReply, &'a str>;

/// All differences. The times of those that were there before are kept.
pub(super) fn differences(
    now: MonotonicTime,
    address: &ServerAddress,
    topology: &TopologyDescription,
    belief: Option<&ServerDescription>,
    own: Own<'_>,
    before: &[Difference],
) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut add = |aspect, client: String, member: String| {
        let earlier = before.iter().find(|difference| difference.aspect == aspect);
        let since = earlier.map_or(now, |difference| difference.since);
        let told = earlier.is_some_and(|difference| difference.told);
        found.push(Difference { aspect, client, member, since, told });
    };
    let known = belief.is_some_and(|belief| belief.server_type().is_known());
    let hello = match own {
        Ok(hello) => hello,
        Err(reason) => {
            if known {
                add(Aspect::Answers, "answers".to_owned(), Foreign(reason).to_string());
            }
            return found;
        }
    };
    let own_type = ServerType::from_reply(hello);
    let client_type = match belief {
        Some(belief) => belief.server_type().name(),
        None => "not a member",
    };
    // Clients are not told of a hidden member.
    let unheard_of = belief.is_none() && hello.hidden;
    if client_type != own_type.name() && !unheard_of {
        add(Aspect::Type, client_type.to_owned(), own_type.name().to_owned());
    }
    if let Some(me) = hello.me.as_ref().filter(|me| *me != address) {
        add(Aspect::Name, address.to_string(), me.to_string());
    }
    if let (Some(client), Some(member)) = (topology.set_name(), hello.set_name.as_deref())
        && client != member
    {
        add(Aspect::SetName, client.to_owned(), Foreign(member).to_string());
    }
    let client_version = belief.and_then(ServerDescription::set_version);
    if let (Some(client), Some(member)) = (client_version, hello.set_version)
        && client != member
    {
        add(Aspect::SetVersion, client.to_string(), member.to_string());
    }
    let client_primary = topology.primary().map(|primary| primary.address());
    let of_set = topology.topology_type().is_replica_set() && hello.set_name.is_some();
    if of_set && client_primary != hello.primary.as_ref() {
        let told = |primary: Option<&ServerAddress>| {
            primary.map_or("none".to_owned(), ServerAddress::to_string)
        };
        add(Aspect::Primary, told(client_primary), told(hello.primary.as_ref()));
    }
    found
}
