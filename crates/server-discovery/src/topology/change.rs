//! From a new description to the outputs that follow from it.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use quorate_protocol::{MonotonicTime, ServerAddress, TopologyVersion};

use super::{ServerState, Topology};
use crate::command::{MonitorCommand, Output, PoolCommand};
use crate::event::{DiscoveryEvent, Warning};
use crate::fault::ServerFault;
use crate::options::Threading;
use crate::removal::{Removal, RemovalReason};
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::TopologyType;

/// Servers before this wire version (MongoDB 4.2) close their connections when they step down.
pub(super) const KEEPS_CONNECTIONS: i32 = 8;

impl Topology {
    /// Replaces a server's description, unless it is older than the one there is.
    pub(super) fn update_server(
        &mut self,
        position: usize,
        server: ServerDescription,
        now: MonotonicTime,
    ) {
        let current = self.description.servers.at(position);
        let (known, received) = (current.topology_version(), server.topology_version());
        if TopologyVersion::compare(known, received) == Ordering::Greater {
            return;
        }
        let steady = self.states[position].processed == Some(self.revision)
            && server.server_type() == current.server_type()
            && server.is_equal(current);
        if steady {
            let mut next = TopologyDescription::clone(&self.description);
            next.servers.replace_at(position, Arc::new(server));
            return self.publish(Arc::new(next), false);
        }
        let address = server.address().clone();
        let (next, removed) = self.rules.update(&self.description, server, now);
        self.change(Arc::new(next), removed, Some(&address), now);
        if let Some(position) = self.description.servers.position(&address) {
            self.states[position].processed = Some(self.revision);
        }
    }

    /// "Polling SRV Records for mongos Discovery".
    pub(super) fn seeds_resolved(&mut self, seeds: &[ServerAddress], now: MonotonicTime) {
        let changeable =
            matches!(self.description.topology_type, TopologyType::Unknown | TopologyType::Sharded);
        if seeds.is_empty() || !changeable {
            return;
        }
        let resolved: BTreeSet<&ServerAddress> = seeds.iter().collect();
        let servers = &self.description.servers;
        let kept = resolved.iter().filter(|address| servers.contains(address)).count();
        let mut added: Vec<ServerAddress> = resolved
            .iter()
            .filter(|address| !servers.contains(address))
            .map(|address| (*address).clone())
            .collect();
        if let Some(most) = self.srv_max_hosts.filter(|most| *most > 0 && *most < resolved.len()) {
            added = self.random.sample(added, most.saturating_sub(kept));
        }
        let (next, removed) = self.rules.reseed(&self.description, &added, &resolved, now);
        self.change(Arc::new(next), removed, None, now);
    }

    pub(super) fn close(&mut self, now: MonotonicTime) {
        let empty = TopologyDescription::empty(self.description.selection_settings());
        let removed = self.description.servers.addresses().iter().map(|address| Removal {
            address: address.clone(),
            reason: RemovalReason::Closing,
            at: now,
        });
        let removed = removed.collect();
        self.change(Arc::new(empty), removed, None, now);
        self.event(DiscoveryEvent::TopologyClosed);
        self.closed = true;
    }

    /// Marks the topology to be scanned again before the next selection.
    pub(super) fn mark_stale(&mut self) {
        if !self.description.stale {
            let mut next = TopologyDescription::clone(&self.description);
            next.stale = true;
            self.publish(Arc::new(next), false);
        }
    }

    /// Makes a description the current one and lets everything follow from the difference, in the
    /// order that the contract promises:
    ///
    /// 1. the reporting server's pool becomes ready,
    /// 2. the description is published,
    /// 3. events,
    /// 4. pools are closed and cleared, monitors stopped, checked and started.
    fn change(
        &mut self,
        next: Arc<TopologyDescription>,
        removed: Vec<Removal>,
        reporter: Option<&ServerAddress>,
        now: MonotonicTime,
    ) {
        let previous = Arc::clone(&self.description);
        let differs = !next.is_equal(&previous);
        let leaving = self.realign_states(&previous, &next, now);
        if let Some(reporter) = reporter {
            self.ready_if_usable(&next, reporter);
        }
        self.description = Arc::clone(&next);
        self.push(Output::Publish(Arc::clone(&next)));

        for (address, state) in &leaving {
            self.tell_check_given_up(address, state, now);
        }
        let changed = changed_servers(&previous, &next, reporter);
        for (old, new) in &changed {
            let (previous, new) = (Arc::clone(old), Arc::clone(new));
            self.event(DiscoveryEvent::ServerDescriptionChanged { previous, new });
        }
        let added = added_servers(&previous, &next);
        for address in &added {
            self.event(DiscoveryEvent::ServerOpening { address: address.clone() });
        }
        for Removal { address, reason, .. } in &removed {
            let (address, reason) = (address.clone(), reason.clone());
            self.event(DiscoveryEvent::ServerClosed { address, reason });
        }
        if differs {
            self.revision += 1;
            self.event(DiscoveryEvent::TopologyDescriptionChanged { previous, new: next });
        }
        self.warn_if_emptied(&removed);

        for (address, state) in leaving {
            self.end(&address, state);
        }
        for (old, new) in changed {
            self.follow_invalidation(&old, &new, now);
        }
        for address in added {
            if let Some(position) = self.description.servers.position(&address) {
                self.start_monitor(position, address, now);
            }
        }
    }

    /// Gives each server of the next description its state, and returns those of servers that leave.
    fn realign_states(
        &mut self,
        previous: &TopologyDescription,
        next: &TopologyDescription,
        now: MonotonicTime,
    ) -> Vec<(ServerAddress, ServerState)> {
        if previous.servers.same_members(&next.servers) {
            return Vec::new();
        }
        let mut leaving = Vec::new();
        let mut staying = Vec::with_capacity(next.servers.len());
        let old = std::mem::take(&mut self.states);
        for (address, mut state) in previous.servers.addresses().iter().zip(old) {
            if next.servers.contains(address) {
                staying.push((address, state));
            } else {
                if let Some(at) = state.timer.take() {
                    self.timers.remove(&(at, address.clone()));
                }
                leaving.push((address.clone(), state));
            }
        }
        let mut staying = staying.into_iter().peekable();
        let mut states = Vec::with_capacity(next.servers.len());
        for address in next.servers.addresses() {
            match staying.next_if(|(stayed, _)| *stayed == address) {
                Some((_, state)) => states.push(state),
                None => states.push(self.new_state(now)),
            }
        }
        self.states = states;
        leaving
    }

    /// "Marking the connection pool as ready": after a successful check, before an operation can select
    /// the server.
    fn ready_if_usable(&mut self, next: &TopologyDescription, reporter: &ServerAddress) {
        let Some(position) = next.servers.position(reporter) else { return };
        let server_type = next.servers.at(position).server_type();
        let direct = next.topology_type == TopologyType::Single && server_type.is_known();
        if server_type.is_data_bearing() || direct {
            self.make_pool_ready(position, reporter);
        }
    }

    fn warn_if_emptied(&mut self, removed: &[Removal]) {
        if let Some(Removal { address, reason, .. }) = removed.last()
            && self.description.servers.is_empty()
            && *reason != RemovalReason::Closing
        {
            let (address, reason) = (address.clone(), reason.clone());
            self.event(DiscoveryEvent::Warning(Warning::LastServerRemoved { address, reason }));
        }
    }

    fn end(&mut self, address: &ServerAddress, state: ServerState) {
        if state.pool.open {
            self.pool_command(address, PoolCommand::Close);
        }
        if self.monitored {
            self.monitor_command(address, MonitorCommand::Stop);
        }
    }

    /// "A note on invalidating the old primary".
    fn follow_invalidation(
        &mut self,
        old: &ServerDescription,
        new: &ServerDescription,
        now: MonotonicTime,
    ) {
        let superseded = |error: &crate::fault::ServerError| {
            matches!(error.fault(), ServerFault::NewerPrimary { .. })
        };
        if !new.error().is_some_and(superseded) {
            return;
        }
        let Some(position) = self.description.servers.position(new.address()) else { return };
        if old.wire_versions().max < KEEPS_CONNECTIONS {
            self.clear_pool(position, None, false);
        }
        if self.threading == Threading::Multi {
            self.states[position].monitor.request_check(now);
            let since = self.asked_at(position, now).max(now);
            let until = self.displaced_patience.map(|patience| since + patience);
            self.states[position].displaced_until = until;
            self.sync_timer(position);
        }
    }
}

fn added_servers(previous: &TopologyDescription, next: &TopologyDescription) -> Vec<ServerAddress> {
    if previous.servers.same_members(&next.servers) {
        return Vec::new();
    }
    let addresses = next.servers.addresses().iter();
    addresses.filter(|address| !previous.servers.contains(address)).cloned().collect()
}

/// The servers whose descriptions differ in something that counts, the reporting one first.
fn changed_servers(
    previous: &TopologyDescription,
    next: &TopologyDescription,
    reporter: Option<&ServerAddress>,
) -> Vec<(Arc<ServerDescription>, Arc<ServerDescription>)> {
    let differ = |(old, new): &(&Arc<ServerDescription>, &Arc<ServerDescription>)| {
        !Arc::ptr_eq(old, new) && !old.is_equal(new)
    };
    let share = |(old, new): (&Arc<_>, &Arc<_>)| (Arc::clone(old), Arc::clone(new));
    let mut changed: Vec<_> = if previous.servers.same_members(&next.servers) {
        let pairs = previous.servers.differing(&next.servers).into_iter();
        pairs.filter(differ).map(share).collect()
    } else {
        let pairs = next
            .servers
            .iter()
            .filter_map(|new| previous.servers.get(new.address()).map(|old| (old, new)));
        pairs.filter(differ).map(share).collect()
    };
    changed.sort_by_key(|(_, new)| Some(new.address()) != reporter);
    changed
}
