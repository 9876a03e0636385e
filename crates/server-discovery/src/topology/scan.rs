//! How a single-threaded client checks its servers: all of them, one by one, when an operation
//! needs it.
//!
//! Follows "Single-threaded monitoring" in the Server Monitoring specification.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_protocol::{MonotonicTime, ServerAddress};

use super::Topology;
use crate::options::{COOLDOWN, MIN_HEARTBEAT_FREQUENCY, Threading};
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::ServerType;

/// How often one scan may check one server. Once is the rule; a second time is for an old primary
/// that a new one invalidated. Two members that both claim to be primary, without election ids to
/// tell them apart, would otherwise keep a scan going for ever.
const MAX_CHECKS_PER_SCAN: u32 = 2;

/// Where the scanning stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    under: Option<ScanUnderway>,
    last_ended: Option<MonotonicTime>,
}

#[derive(Clone, Debug)]
struct ScanUnderway {
    started: MonotonicTime,
    checks: BTreeMap<ServerAddress, u32>,
}

impl Topology {
    /// Whether a single-threaded client has to scan before it selects: never scanned, marked stale,
    /// or the last scan ended `heartbeatFrequencyMS` ago.
    pub fn scan_is_due(&self, now: MonotonicTime) -> bool {
        self.threading == Threading::Single
            && self.monitored
            && (self.description.stale
                || self
                    .scan
                    .last_ended
                    .is_none_or(|ended| now.since(ended) >= self.settings.heartbeat_frequency))
    }

    /// The earliest time for the next scan: `minHeartbeatFrequencyMS` after the last one ended.
    pub fn earliest_scan(&self) -> MonotonicTime {
        self.scan.last_ended.map_or(MonotonicTime::ZERO, |ended| ended + MIN_HEARTBEAT_FREQUENCY)
    }

    pub(super) fn scan_wanted(&mut self, now: MonotonicTime) {
        if self.threading == Threading::Multi || self.scan.under.is_some() {
            return;
        }
        self.scan.under = Some(ScanUnderway { started: now, checks: BTreeMap::new() });
        self.continue_scan(now);
    }

    pub(super) fn server_check_wanted(&mut self, server: &ServerAddress, now: MonotonicTime) {
        let Some(position) = self.description.servers.position(server) else { return };
        let monitor = &mut self.states[position].monitor;
        match self.threading {
            Threading::Multi => {
                monitor.request_check(now);
                self.sync_timer(position);
                self.tick(now);
            }
            // One thread checks one server at a time; a scan under way comes to this one too.
            Threading::Single if self.is_checking() => {}
            Threading::Single => self.start_check(position, server, now),
        }
    }

    /// Whether a single-threaded client waits for an answer.
    fn is_checking(&self) -> bool {
        self.states.iter().any(|state| state.monitor.underway().is_some())
    }

    /// Checks the next server, or ends the scan. Does nothing if none is under way, or if the answer
    /// to a check is still to come.
    pub(super) fn continue_scan(&mut self, now: MonotonicTime) {
        if self.is_checking() {
            return;
        }
        let Some(scan) = self.scan.under.take() else { return };
        let next = self.next_to_scan(&scan);
        let Some(position) = next else {
            self.scan.last_ended = Some(now);
            if self.description.stale {
                let mut fresh = TopologyDescription::clone(&self.description);
                fresh.stale = false;
                self.publish(Arc::new(fresh), false);
            }
            return;
        };
        let address = self.address_at(position);
        let mut scan = scan;
        *scan.checks.entry(address.clone()).or_default() += 1;
        self.scan.under = Some(scan);
        self.start_check(position, &address, now);
    }

    /// "Scanning order".
    fn next_to_scan(&mut self, scan: &ScanUnderway) -> Option<usize> {
        let cooling = |server: &ServerDescription| {
            // Written as a sum: the clock may be younger than the cooldown.
            server.server_type() == ServerType::Unknown
                && server.last_update_time().is_some_and(|at| at + COOLDOWN > scan.started)
        };
        let candidates: Vec<(usize, &Arc<ServerDescription>)> = self
            .description
            .servers
            .iter()
            .enumerate()
            .filter(|(_, server)| {
                server.last_update_time().is_none_or(|at| at < scan.started)
                    && !cooling(server)
                    && scan.checks.get(server.address()).copied().unwrap_or(0) < MAX_CHECKS_PER_SCAN
            })
            .collect();
        let rank = |server: &ServerDescription| match server.server_type() {
            ServerType::RsPrimary => 0,
            ServerType::PossiblePrimary => 1,
            ServerType::Unknown | ServerType::RsGhost => 3,
            _ => 2,
        };
        // `None`, never checked, comes before every time.
        let urgency = |server: &ServerDescription| (rank(server), server.last_update_time());
        let first = candidates.iter().map(|(_, server)| urgency(server)).min()?;
        let equals: Vec<usize> = candidates
            .iter()
            .filter(|(_, server)| urgency(server) == first)
            .map(|(position, _)| *position)
            .collect();
        Some(equals[self.random.below(equals.len())])
    }
}
