//! How long it takes to pick a server from a published description, and to explain that there is
//! none. Aim: under 100 ns for primary and nearest at 3 and 50 servers.
//!
//! `cargo bench -p quorate-server-discovery --bench selection`

use std::sync::Arc;
use std::time::Duration;

use divan::{Bencher, black_box};
use quorate_protocol::{
    HelloReply, LastWrite, MonotonicTime, ReadPreference, ReadPreferenceMode, WallTime,
};
use quorate_server_discovery::{
    RoundTrips, SelectionFailure, SelectionRequest, SelectionSettings, ServerDescription,
    TopologyDescription, TopologyType,
};

const SIZES: [usize; 3] = [3, 50, 1000];

fn main() {
    divan::main();
}

/// A primary and its secondaries, within one latency window, tagged by two data centres.
fn replica_set(size: usize) -> TopologyDescription {
    let servers = (0..size).map(|number| {
        let reply = HelloReply {
            ok: true,
            set_name: Some("rs".to_owned()),
            is_writable_primary: number == 0,
            secondary: number != 0,
            tags: [("dc", if number % 2 == 0 { "ny" } else { "sf" })].into_iter().collect(),
            last_write: Some(LastWrite { op_time: None, last_write_date: Some(WallTime(0)) }),
            ..HelloReply::default()
        };
        let average = Some(Duration::from_micros(500 + number as u64));
        ServerDescription::from_reply(
            format!("host{number:04}.example:27017").parse().expect("an address"),
            Arc::new(reply),
            RoundTrips { average, minimum: average },
            MonotonicTime::ZERO,
        )
    });
    TopologyDescription::assemble(
        TopologyType::ReplicaSetWithPrimary,
        servers,
        SelectionSettings::default(),
    )
}

fn tagged() -> ReadPreference {
    ReadPreference {
        tag_sets: vec![[("dc", "sf")].into_iter().collect()],
        ..ReadPreference::new(ReadPreferenceMode::Nearest)
    }
}

/// Picks from a description that was picked from before; [`nearest_first_pick`] measures the other
/// case. The bits come from a cheap random source, so that no branch is always the same.
fn pick(bencher: Bencher<'_, '_>, size: usize, preference: ReadPreference) {
    let topology = replica_set(size);
    let first = topology.select(&SelectionRequest::read(&preference), 0, |_| 0);
    assert!(first.is_ok_and(|server| server.is_some()));
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    bencher.bench_local(|| {
        bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let request = SelectionRequest::read(black_box(&preference));
        let found = topology.select(&request, bits, |address| address.as_str().len() as u64);
        found.map(|server| server.map(Arc::as_ptr))
    });
}

#[divan::bench(args = SIZES)]
fn primary(bencher: Bencher<'_, '_>, size: usize) {
    pick(bencher, size, ReadPreference::PRIMARY);
}

#[divan::bench(args = SIZES)]
fn nearest(bencher: Bencher<'_, '_>, size: usize) {
    pick(bencher, size, ReadPreference::new(ReadPreferenceMode::Nearest));
}

#[divan::bench(args = SIZES)]
fn tags(bencher: Bencher<'_, '_>, size: usize) {
    pick(bencher, size, tagged());
}

#[divan::bench(args = SIZES)]
fn max_staleness(bencher: Bencher<'_, '_>, size: usize) {
    let mut preference = ReadPreference::new(ReadPreferenceMode::Nearest);
    preference.max_staleness = Some(Duration::from_secs(90));
    pick(bencher, size, preference);
}

/// The first pick from a description, which finds its latency window.
#[divan::bench(args = SIZES)]
fn nearest_first_pick(bencher: Bencher<'_, '_>, size: usize) {
    let topology = replica_set(size);
    let preference = ReadPreference::new(ReadPreferenceMode::Nearest);
    bencher.with_inputs(|| topology.clone()).bench_local_refs(|topology| {
        let request = SelectionRequest::read(&preference);
        topology.select(&request, 0, |_| 0).map(|server| server.map(Arc::as_ptr))
    });
}

/// From the timeout to the words: the verdict, a line per server, the sentence.
#[divan::bench(args = SIZES)]
fn failure_text(bencher: Bencher<'_, '_>, size: usize) {
    let topology = Arc::new(replica_set(size));
    let mut preference = tagged();
    preference.tag_sets = vec![[("dc", "tokyo")].into_iter().collect()];
    bencher.bench_local(|| {
        let request = SelectionRequest::read(&preference);
        let now = MonotonicTime::from_millis(5_000);
        SelectionFailure::new(topology.clone(), &request, now, Duration::from_secs(30)).to_string()
    });
}
