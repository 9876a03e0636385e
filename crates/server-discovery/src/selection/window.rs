//! The latency window, and the choice of two within it.
//!
//! Follows "Filtering suitable servers based on the latency window" and steps 6 and 7 of the
//! multi-threaded algorithm in the Server Selection specification.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::ServerAddress;

use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::ServerType;

/// The servers whose average round trip is at most `local_threshold` above the shortest.
///
/// A server without an average (a load balancer is never measured) is neither an anchor nor left
/// out: nothing speaks against it.
pub fn latency_window<'t>(
    suitable: &[&'t Arc<ServerDescription>],
    local_threshold: Duration,
) -> Vec<&'t Arc<ServerDescription>> {
    let limit = limit(suitable.iter().copied(), local_threshold);
    suitable.iter().copied().filter(|server| is_within(server, limit)).collect()
}

/// Takes two servers at random and returns the one with fewer operations; the first at a tie.
///
/// `None` only if the window is empty. One random number gives both: its halves are scaled to the
/// size of the window, which favours no server by more than one part in 2³² per thousand servers.
pub fn choose<'t>(
    window: &[&'t Arc<ServerDescription>],
    random_bits: u64,
    operation_count: impl Fn(&ServerAddress) -> u64,
) -> Option<&'t Arc<ServerDescription>> {
    choose_position(window.len(), random_bits, |index| operation_count(window[index].address()))
        .map(|index| window[index])
}

/// [`choose`], for callers that have the window in another form.
pub(super) fn choose_position(
    size: usize,
    random_bits: u64,
    operation_count: impl Fn(usize) -> u64,
) -> Option<usize> {
    match size {
        0 => None,
        1 => Some(0),
        _ => {
            let first = scale(random_bits >> 32, size);
            // One of the others, so that the two always differ.
            let other = scale(random_bits & u64::from(u32::MAX), size - 1);
            let second = if other < first { other } else { other + 1 };
            match operation_count(second) < operation_count(first) {
                true => Some(second),
                false => Some(first),
            }
        }
    }
}

/// Maps 32 random bits onto `0..size`.
fn scale(bits: u64, size: usize) -> usize {
    ((bits as u128 * size as u128) >> 32) as usize
}

/// The positions of the servers of a kind that are within the latency window.
pub(super) fn positions(
    topology: &TopologyDescription,
    is_candidate: impl Fn(ServerType) -> bool,
) -> Box<[usize]> {
    let candidates =
        || topology.servers.iter().enumerate().filter(|(_, s)| is_candidate(s.server_type()));
    let limit = limit(candidates().map(|(_, server)| server), topology.selection.local_threshold);
    candidates()
        .filter(|(_, server)| is_within(server, limit))
        .map(|(position, _)| position)
        .collect()
}

fn limit<'t>(
    servers: impl Iterator<Item = &'t Arc<ServerDescription>>,
    local_threshold: Duration,
) -> Duration {
    let shortest = servers.filter_map(|server| server.round_trip_time()).min();
    shortest.map_or(Duration::MAX, |shortest| shortest.saturating_add(local_threshold))
}

fn is_within(server: &ServerDescription, limit: Duration) -> bool {
    server.round_trip_time().is_none_or(|average| average <= limit)
}

#[cfg(test)]
mod tests {
    use super::super::test_topology::{member, topology};
    use super::*;
    use crate::types::TopologyType;

    fn window(round_trips: &[u64]) -> Vec<usize> {
        let servers = round_trips
            .iter()
            .enumerate()
            .map(|(n, ms)| member(&format!("h{n}"), ServerType::Mongos).rtt(*ms).build());
        let topology = topology(TopologyType::Sharded, servers);
        let suitable: Vec<_> = topology.servers().iter().collect();
        let window = latency_window(&suitable, Duration::from_millis(15));
        let cached = positions(&topology, |kind| kind == ServerType::Mongos);
        let found: Vec<_> =
            window.iter().filter_map(|s| topology.servers().position(s.address())).collect();
        assert_eq!(*cached, *found);
        found
    }

    /// "A ≤ RTT ≤ B": both ends belong to the window.
    #[test]
    fn the_window_ends_one_threshold_above_the_shortest() {
        assert_eq!(window(&[20, 5, 21, 19]), [0, 1, 3]);
        assert_eq!(window(&[7]), [0]);
        assert!(window(&[]).is_empty());
    }

    #[test]
    fn a_server_never_measured_stays_in_the_window() {
        let unmeasured = member("a", ServerType::Mongos).build();
        let slow = member("b", ServerType::Mongos).rtt(500).build();
        let topology = topology(TopologyType::Sharded, [unmeasured, slow]);
        let suitable: Vec<_> = topology.servers().iter().collect();
        assert_eq!(latency_window(&suitable, Duration::ZERO).len(), 2);
    }

    #[test]
    fn the_two_always_differ_and_cover_every_server() {
        for size in 2..=5 {
            let mut seen = vec![false; size];
            for high in 0..64_u64 {
                for low in 0..64_u64 {
                    let asked = std::cell::RefCell::new(Vec::new());
                    let bits = (high << 58) | (low << 26);
                    let chosen = choose_position(size, bits, |index| {
                        asked.borrow_mut().push(index);
                        0
                    });
                    let asked = asked.into_inner();
                    assert_eq!(asked.len(), 2);
                    assert_ne!(asked[0], asked[1]);
                    assert!(asked.iter().all(|index| *index < size));
                    seen[chosen.unwrap()] = true;
                }
            }
            assert!(seen.iter().all(|seen| *seen), "{size}");
        }
    }

    #[test]
    fn fewer_operations_win() {
        for bits in [0, u64::MAX, 1 << 63, 0x1234_5678_9abc_def0] {
            assert_eq!(choose_position(2, bits, |index| [7, 3][index]), Some(1));
        }
        assert_eq!(choose_position(1, u64::MAX, |_| 9), Some(0));
        assert_eq!(choose_position(0, 0, |_| 0), None);
    }
}
