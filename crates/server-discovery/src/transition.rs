//! From one topology to the next: the table and the actions of the specification.
//!
//! Owns "Updating the TopologyDescription" in the Server Discovery And Monitoring specification: what
//! one new server description does to the topology. It decides nothing about monitors, pools or
//! events; `topology.rs` reads those off the difference between the two descriptions.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use quorate_protocol::{MonotonicTime, ServerAddress};

use crate::fault::{ElectionTuple, ServerError, ServerFault};
use crate::options::DiscoveryOptions;
use crate::removal::{Removal, RemovalReason};
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::{ServerType, TopologyType};

/// The first wire version whose primaries are ordered by (electionId, setVersion): MongoDB 6.0.
const ELECTION_ID_FIRST: i32 = 17;

/// What stays the same for the life of a topology.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    one_seed: bool,
    /// The name given by the user, as opposed to one discovered.
    set_name: Option<String>,
    wire_versions: RangeInclusive<i32>,
    driver_name: String,
}

impl Rules {
    pub(crate) fn new(options: &DiscoveryOptions) -> Self {
        Self {
            one_seed: options.seeds.len() == 1,
            set_name: options.set_name.clone(),
            wire_versions: options.wire_versions.clone(),
            driver_name: options.driver_name.clone(),
        }
    }

    /// The topology after this server was described anew, and the servers that left it.
    ///
    /// The server must be part of the topology, and the description no staler than the current one.
    pub(crate) fn update(
        &self,
        current: &TopologyDescription,
        server: ServerDescription,
        now: MonotonicTime,
    ) -> (TopologyDescription, Vec<Removal>) {
        let mut draft = Draft::of(self, current, now);
        let server = draft.verified(server);
        draft.topology.servers.replace(Arc::clone(&server));
        draft.perform(Action::of(current.topology_type, server.server_type()), &server);
        draft.finish()
    }

    /// The topology after its seed list was resolved anew: "Polling SRV Records for mongos
    /// Discovery".
    pub(crate) fn reseed(
        &self,
        current: &TopologyDescription,
        added: &[ServerAddress],
        resolved: &BTreeSet<&ServerAddress>,
        now: MonotonicTime,
    ) -> (TopologyDescription, Vec<Removal>) {
        let mut draft = Draft::of(self, current, now);
        draft.change_members(added.iter(), |address| {
            (!resolved.contains(address)).then_some(RemovalReason::NotInSrvRecords)
        });
        draft.finish()
    }

    /// Whether no server is incompatible, without a look at each.
    fn speaks_to_all(&self, topology: &TopologyDescription) -> bool {
        let (least, greatest) = (*self.wire_versions.start(), *self.wire_versions.end());
        let theirs = topology.servers.summary().wire_versions;
        theirs.is_none_or(|(min, max)| min <= greatest && max >= least)
    }

    /// "Checking wire protocol compatibility", with the prescribed texts.
    fn incompatibility(&self, server: &ServerDescription) -> Option<Arc<str>> {
        if !server.server_type().is_known() || server.server_type() == ServerType::LoadBalancer {
            return None;
        }
        let (address, driver) = (server.address(), &self.driver_name);
        let theirs = server.wire_versions();
        let (least, greatest) = (*self.wire_versions.start(), *self.wire_versions.end());
        if theirs.min > greatest {
            let required = theirs.min;
            let text = format!(
                "Server at {address} requires wire version {required}, but this version of \
                 {driver} only supports up to {greatest}."
            );
            Some(text.into())
        } else if theirs.max < least {
            let (reported, version) = (theirs.max, mongodb_version(least));
            let text = format!(
                "Server at {address} reports wire version {reported}, but this version of \
                 {driver} requires at least {least} (MongoDB {version})."
            );
            Some(text.into())
        } else {
            None
        }
    }
}

/// The first release that speaks a wire version.
fn mongodb_version(wire_version: i32) -> &'static str {
    match wire_version {
        ..=0 => "2.4",
        1..=2 => "2.6",
        3 => "3.0",
        4 => "3.2",
        5 => "3.4",
        6 => "3.6",
        7 => "4.0",
        8 => "4.2",
        9..=12 => "4.4",
        13..=16 => "5.0",
        17..=20 => "6.0",
        21..=24 => "7.0",
        _ => "8.0",
    }
}

/// What the table prescribes after the server's description was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    NoOp,
    CheckIfHasPrimary,
    UpdateUnknownWithStandalone,
    SetTypeToSharded,
    /// In ReplicaSetWithPrimary, followed by checkIfHasPrimary.
    Remove,
    /// Preceded by setting the type to ReplicaSetWithPrimary.
    UpdateRsFromPrimary,
    /// Preceded by setting the type to ReplicaSetNoPrimary.
    UpdateRsWithoutPrimary,
    UpdateRsWithPrimaryFromMember,
}

impl Action {
    /// "TopologyType table".
    fn of(topology: TopologyType, server: ServerType) -> Self {
        use ServerType as S;
        use TopologyType as T;
        match (topology, server) {
            (T::Single | T::LoadBalanced, _) => Self::NoOp,

            (T::ReplicaSetWithPrimary, S::Unknown | S::PossiblePrimary) => Self::CheckIfHasPrimary,
            (_, S::Unknown | S::PossiblePrimary) => Self::NoOp,

            (T::Unknown, S::Standalone) => Self::UpdateUnknownWithStandalone,
            (_, S::Standalone) => Self::Remove,

            (T::Unknown, S::Mongos) => Self::SetTypeToSharded,
            (T::Sharded, S::Mongos) => Self::NoOp,
            (_, S::Mongos) => Self::Remove,

            (T::Sharded, S::RsPrimary) => Self::Remove,
            (_, S::RsPrimary) => Self::UpdateRsFromPrimary,

            (T::Sharded, S::RsSecondary | S::RsArbiter | S::RsOther) => Self::Remove,
            (T::ReplicaSetWithPrimary, S::RsSecondary | S::RsArbiter | S::RsOther) => {
                Self::UpdateRsWithPrimaryFromMember
            }
            (_, S::RsSecondary | S::RsArbiter | S::RsOther) => Self::UpdateRsWithoutPrimary,

            (T::Sharded, S::RsGhost) => Self::Remove,
            (T::ReplicaSetWithPrimary, S::RsGhost) => Self::CheckIfHasPrimary,
            (_, S::RsGhost) => Self::NoOp,

            // Only a topology of type LoadBalanced holds one, and it never changes.
            (_, S::LoadBalancer) => Self::NoOp,
        }
    }
}

/// A topology being changed.
struct Draft<'a> {
    rules: &'a Rules,
    now: MonotonicTime,
    topology: TopologyDescription,
    removed: Vec<Removal>,
}

impl<'a> Draft<'a> {
    fn of(rules: &'a Rules, current: &TopologyDescription, now: MonotonicTime) -> Self {
        Self { rules, now, topology: current.clone(), removed: Vec::new() }
    }

    fn finish(self) -> (TopologyDescription, Vec<Removal>) {
        let mut topology = self.topology;
        topology.derive_from_servers();
        topology.compatibility_error = match self.rules.speaks_to_all(&topology) {
            true => None,
            false => topology.servers.iter().find_map(|server| self.rules.incompatibility(server)),
        };
        topology.removals = Removal::remember(&topology.removals, &self.removed);
        (topology, self.removed)
    }

    /// "Verifying setName with TopologyType Single": a server of another set is as good as none.
    fn verified(&self, server: ServerDescription) -> Arc<ServerDescription> {
        let wanted = match &self.rules.set_name {
            Some(name) if self.topology.topology_type == TopologyType::Single => name,
            _ => return Arc::new(server),
        };
        if !server.server_type().is_known() || server.set_name() == Some(wanted) {
            return Arc::new(server);
        }
        let fault = ServerFault::SetNameMismatch {
            expected: wanted.clone(),
            found: server.set_name().map(str::to_owned),
        };
        Arc::new(self.failed(server.address(), fault))
    }

    /// The reporting server itself, made Unknown. It was checked just now.
    fn failed(&self, address: &ServerAddress, fault: ServerFault) -> ServerDescription {
        let error = ServerError::new(fault, self.now);
        ServerDescription::failed(address.clone(), error, None, Some(self.now))
    }

    fn perform(&mut self, action: Action, server: &ServerDescription) {
        match action {
            Action::NoOp => {}
            Action::CheckIfHasPrimary => self.check_if_has_primary(),
            Action::UpdateUnknownWithStandalone => self.update_unknown_with_standalone(server),
            Action::SetTypeToSharded => self.topology.topology_type = TopologyType::Sharded,
            Action::Remove => {
                let found = server.server_type();
                let expected = self.topology.topology_type;
                self.remove(server.address(), RemovalReason::WrongKind { found, expected });
                if self.topology.topology_type == TopologyType::ReplicaSetWithPrimary {
                    self.check_if_has_primary();
                }
            }
            Action::UpdateRsFromPrimary => {
                self.topology.topology_type = TopologyType::ReplicaSetWithPrimary;
                self.update_rs_from_primary(server);
            }
            Action::UpdateRsWithoutPrimary => {
                self.topology.topology_type = TopologyType::ReplicaSetNoPrimary;
                self.update_rs_without_primary(server);
            }
            Action::UpdateRsWithPrimaryFromMember => {
                self.update_rs_with_primary_from_member(server);
            }
        }
    }

    fn update_unknown_with_standalone(&mut self, server: &ServerDescription) {
        // DNS may have added servers to the one seed since.
        if self.rules.one_seed && self.topology.servers.len() == 1 {
            self.topology.topology_type = TopologyType::Single;
        } else {
            self.remove(server.address(), RemovalReason::StandaloneAmongSeeds);
        }
    }

    fn update_rs_without_primary(&mut self, server: &ServerDescription) {
        if !self.accept_set_name(server) {
            return;
        }
        self.add_listed(server);
        self.note_possible_primary(server);
        self.remove_if_called_otherwise(server);
    }

    fn update_rs_with_primary_from_member(&mut self, server: &ServerDescription) {
        if !self.accept_set_name(server) || self.remove_if_called_otherwise(server) {
            self.check_if_has_primary();
            return;
        }
        self.check_if_has_primary();
        if self.topology.topology_type == TopologyType::ReplicaSetNoPrimary {
            self.note_possible_primary(server);
        }
    }

    fn update_rs_from_primary(&mut self, server: &ServerDescription) {
        if !self.accept_set_name(server) {
            self.check_if_has_primary();
            return;
        }
        if !self.accept_election(server) {
            let newest = ElectionTuple {
                election_id: self.topology.max_election_id,
                set_version: self.topology.max_set_version,
            };
            let fault = ServerFault::StalePrimary { reported: server.election_tuple(), newest };
            let stale = self.failed(server.address(), fault);
            self.topology.servers.replace(Arc::new(stale));
            self.check_if_has_primary();
            return;
        }
        self.invalidate_other_primaries(server.address());
        let listed: BTreeSet<&ServerAddress> = server.members().collect();
        if !listed.iter().copied().eq(self.topology.servers.addresses()) {
            self.adopt_members(server, &listed);
        }
        self.check_if_has_primary();
    }

    /// The primary's list of members is authoritative.
    fn adopt_members(&mut self, server: &ServerDescription, listed: &BTreeSet<&ServerAddress>) {
        self.change_members(listed.iter().copied(), |address| {
            (!listed.contains(address)).then(|| RemovalReason::NotListedByPrimary {
                primary: server.address().clone(),
                me: server.me().cloned(),
            })
        });
    }

    /// Takes the first name it hears, and removes a server with another one.
    fn accept_set_name(&mut self, server: &ServerDescription) -> bool {
        match (&self.topology.set_name, server.set_name()) {
            (None, found) => {
                self.topology.set_name = found.map(Arc::from);
                true
            }
            (Some(expected), Some(found)) if **expected == *found => true,
            (Some(expected), found) => {
                let reason = RemovalReason::WrongSetName {
                    expected: expected.to_string(),
                    found: found.map(str::to_owned),
                };
                self.remove(server.address(), reason);
                false
            }
        }
    }

    /// "Using electionId and setVersion to detect stale primaries". Remembers the tuple of a primary
    /// that is not stale.
    fn accept_election(&mut self, server: &ServerDescription) -> bool {
        let (election_id, set_version) = (server.election_id(), server.set_version());
        let topology = &mut self.topology;
        if server.wire_versions().max >= ELECTION_ID_FIRST {
            // `None` is less than anything, as the specification wants null to be.
            let newest = (topology.max_election_id, topology.max_set_version);
            if (election_id, set_version) < newest {
                return false;
            }
            topology.max_election_id = election_id;
            topology.max_set_version = set_version;
            return true;
        }
        if let (Some(reported_id), Some(reported_version)) = (election_id, set_version) {
            if let (Some(max_id), Some(max_version)) =
                (topology.max_election_id, topology.max_set_version)
                && (max_version, max_id) > (reported_version, reported_id)
            {
                return false;
            }
            topology.max_election_id = Some(reported_id);
        }
        // `None` is less than anything here too.
        topology.max_set_version = topology.max_set_version.max(set_version);
        true
    }

    fn invalidate_other_primaries(&mut self, newer: &ServerAddress) {
        let old: Vec<ServerAddress> = self
            .topology
            .servers
            .iter()
            .filter(|server| {
                server.server_type() == ServerType::RsPrimary && server.address() != newer
            })
            .map(|server| server.address().clone())
            .collect();
        for address in old {
            let fault = ServerFault::NewerPrimary { newer: newer.clone() };
            let error = ServerError::new(fault, self.now);
            // Not checked just now: "infinity ago" lets a single-threaded scan look at it next.
            let server = ServerDescription::failed(address, error, None, None);
            self.topology.servers.replace(Arc::new(server));
        }
    }

    /// Lets a single-threaded client look at the rumoured primary before other servers.
    fn note_possible_primary(&mut self, server: &ServerDescription) {
        let rumoured = server.primary().and_then(|primary| self.topology.servers.get(primary));
        if let Some(primary) = rumoured
            && primary.server_type() == ServerType::Unknown
        {
            let primary = ServerDescription::clone(primary).into_possible_primary();
            self.topology.servers.replace(Arc::new(primary));
        }
    }

    /// "Using me field to detect seed list members that do not match host names in the replica set
    /// configuration". A member that does not say what it is called is believed.
    fn remove_if_called_otherwise(&mut self, server: &ServerDescription) -> bool {
        match server.me() {
            Some(me) if me != server.address() => {
                let reason = RemovalReason::CalledOtherwise { me: me.clone() };
                self.remove(server.address(), reason);
                true
            }
            _ => false,
        }
    }

    fn check_if_has_primary(&mut self) {
        self.topology.topology_type = if self.topology.servers.summary().has_primary {
            TopologyType::ReplicaSetWithPrimary
        } else {
            TopologyType::ReplicaSetNoPrimary
        };
    }

    /// Adds all that a member lists. Every member lists the same: most lists were added before.
    fn add_listed(&mut self, server: &ServerDescription) {
        let Some(lists) = server.lists() else { return };
        let is_adopted = self.topology.adopted.as_ref().is_some_and(|adopted| {
            adopted.iter().zip(&lists).all(|(one, other)| one.is_shared_with(other))
        });
        if !is_adopted {
            self.change_members(server.members(), |_| None);
            self.topology.adopted = Some(lists);
        }
    }

    fn remove(&mut self, address: &ServerAddress, reason: RemovalReason) {
        let mut reason = Some(reason);
        self.change_members(
            [].iter(),
            |member| {
                if member == address { reason.take() } else { None }
            },
        );
    }

    fn change_members<'s>(
        &mut self,
        added: impl Iterator<Item = &'s ServerAddress>,
        mut removal: impl FnMut(&ServerAddress) -> Option<RemovalReason>,
    ) {
        let (removed, at) = (&mut self.removed, self.now);
        let removed_before = removed.len();
        let servers = &mut self.topology.servers;
        let added: Vec<_> = added
            .filter(|address| !servers.contains(address))
            .map(|address| Arc::new(ServerDescription::unknown(address.clone())))
            .collect();
        servers.change_members(added, |address| match removal(address) {
            Some(reason) => {
                removed.push(Removal { address: address.clone(), reason, at });
                false
            }
            None => true,
        });
        if self.removed.len() > removed_before {
            self.topology.adopted = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cell of the "TopologyType table", row by row as the specification prints it.
    #[test]
    fn the_table_is_the_specifications() {
        use Action::{
            CheckIfHasPrimary as Check, NoOp, Remove, SetTypeToSharded as Sharded,
            UpdateRsFromPrimary as FromPrimary, UpdateRsWithPrimaryFromMember as FromMember,
            UpdateRsWithoutPrimary as WithoutPrimary, UpdateUnknownWithStandalone as Standalone,
        };
        let columns = [
            TopologyType::Unknown,
            TopologyType::Sharded,
            TopologyType::ReplicaSetNoPrimary,
            TopologyType::ReplicaSetWithPrimary,
        ];
        let rows = [
            (ServerType::Unknown, [NoOp, NoOp, NoOp, Check]),
            (ServerType::Standalone, [Standalone, Remove, Remove, Remove]),
            (ServerType::Mongos, [Sharded, NoOp, Remove, Remove]),
            (ServerType::RsPrimary, [FromPrimary, Remove, FromPrimary, FromPrimary]),
            (ServerType::RsSecondary, [WithoutPrimary, Remove, WithoutPrimary, FromMember]),
            (ServerType::RsArbiter, [WithoutPrimary, Remove, WithoutPrimary, FromMember]),
            (ServerType::RsOther, [WithoutPrimary, Remove, WithoutPrimary, FromMember]),
            (ServerType::RsGhost, [NoOp, Remove, NoOp, Check]),
        ];
        for (server, actions) in rows {
            for (topology, action) in columns.into_iter().zip(actions) {
                assert_eq!(Action::of(topology, server), action, "{topology} {server}");
            }
        }
    }

    #[test]
    fn versions_are_named_in_the_error() {
        assert_eq!(mongodb_version(6), "3.6");
        assert_eq!(mongodb_version(2), "2.6");
        assert_eq!(mongodb_version(8), "4.2");
        assert_eq!(mongodb_version(25), "8.0");
    }
}
