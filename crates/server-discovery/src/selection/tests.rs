//! The rules of selection one by one, and the laws that hold for any topology.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use quorate_protocol::{MonotonicTime, ReadPreference, ReadPreferenceMode as Mode, ServerAddress};

use super::suitable::{StalenessClock, shortcoming};
use super::test_topology::{address, failed, member, topology};
use super::{
    SelectionCriteria, SelectionError, SelectionFailure, SelectionRequest, latency_window, suitable,
};
use crate::fault::CheckFailureKind;
use crate::server_description::ServerDescription;
use crate::topology_description::TopologyDescription;
use crate::types::{ServerType, TopologyType};

fn hosts(servers: &[&Arc<ServerDescription>]) -> Vec<String> {
    servers.iter().map(|server| server.address().host().to_owned()).collect()
}

fn suitable(topology: &TopologyDescription, request: SelectionRequest<'_>) -> Vec<String> {
    hosts(&topology.suitable_servers(&request).unwrap())
}

fn reading(topology: &TopologyDescription, preference: &ReadPreference) -> Vec<String> {
    suitable(topology, SelectionRequest::read(preference))
}

fn mode(topology: &TopologyDescription, mode: Mode) -> Vec<String> {
    reading(topology, &ReadPreference::new(mode))
}

fn tagged(mode: Mode, tag_sets: &[&[(&str, &str)]]) -> ReadPreference {
    let tag_sets = tag_sets.iter().map(|tags| tags.iter().copied().collect()).collect();
    ReadPreference { tag_sets, ..ReadPreference::new(mode) }
}

fn at_most(mode: Mode, seconds: u64) -> ReadPreference {
    let max_staleness = Some(Duration::from_secs(seconds));
    ReadPreference { max_staleness, ..ReadPreference::new(mode) }
}

/// A primary in ny, a secondary in ny and one in sf, and everything that is never suitable.
fn set() -> TopologyDescription {
    topology(
        TopologyType::ReplicaSetWithPrimary,
        [
            member("a", ServerType::RsPrimary).rtt(1).tag("dc", "ny").build(),
            member("b", ServerType::RsSecondary).rtt(1).tag("dc", "ny").build(),
            member("c", ServerType::RsSecondary).rtt(100).tag("dc", "sf").build(),
            member("d", ServerType::RsArbiter).rtt(1).build(),
            member("e", ServerType::RsOther).rtt(1).build(),
            member("f", ServerType::RsGhost).rtt(1).build(),
            member("g", ServerType::Unknown).build(),
        ],
    )
}

fn headless_set() -> TopologyDescription {
    topology(
        TopologyType::ReplicaSetNoPrimary,
        [
            member("b", ServerType::RsSecondary).rtt(1).tag("dc", "ny").build(),
            member("g", ServerType::PossiblePrimary).build(),
        ],
    )
}

/// "mode".
#[test]
fn modes_choose_among_primary_and_secondaries() {
    let set = set();
    assert_eq!(mode(&set, Mode::Primary), ["a"]);
    assert_eq!(mode(&set, Mode::PrimaryPreferred), ["a"]);
    assert_eq!(mode(&set, Mode::Secondary), ["b", "c"]);
    assert_eq!(mode(&set, Mode::SecondaryPreferred), ["b", "c"]);
    assert_eq!(mode(&set, Mode::Nearest), ["a", "b", "c"]);
    assert_eq!(suitable(&set, SelectionRequest::WRITE), ["a"]);
}

#[test]
fn without_a_primary_only_secondaries_are_left() {
    let set = headless_set();
    assert!(mode(&set, Mode::Primary).is_empty());
    for other in [Mode::PrimaryPreferred, Mode::Secondary, Mode::SecondaryPreferred, Mode::Nearest]
    {
        assert_eq!(mode(&set, other), ["b"]);
    }
    assert!(suitable(&set, SelectionRequest::WRITE).is_empty());
}

/// "tag_sets": tried in order, the first that matches anything decides.
#[test]
fn the_first_tag_set_that_matches_decides() {
    let set = set();
    let secondary = |sets: &[&[(&str, &str)]]| reading(&set, &tagged(Mode::Secondary, sets));
    assert_eq!(secondary(&[&[("dc", "sf")]]), ["c"]);
    assert_eq!(secondary(&[&[("dc", "tokyo")], &[("dc", "ny")], &[]]), ["b"]);
    assert_eq!(secondary(&[&[("dc", "tokyo")], &[]]), ["b", "c"]);
    assert!(secondary(&[&[("dc", "tokyo")]]).is_empty());
    assert_eq!(secondary(&[]), ["b", "c"]);
    // The primary that secondaryPreferred falls back to needs no tags; that of nearest does.
    assert_eq!(reading(&set, &tagged(Mode::SecondaryPreferred, &[&[("dc", "tokyo")]])), ["a"]);
    assert_eq!(reading(&set, &tagged(Mode::PrimaryPreferred, &[&[("dc", "sf")]])), ["a"]);
    assert!(reading(&set, &tagged(Mode::Nearest, &[&[("dc", "tokyo")]])).is_empty());
}

/// Max Staleness, "Client": the formula for a known primary.
#[test]
fn staleness_is_measured_against_the_primary() {
    let set = |written: i64| {
        topology(
            TopologyType::ReplicaSetWithPrimary,
            [
                member("p", ServerType::RsPrimary).updated(60).wrote(1000).build(),
                member("s", ServerType::RsSecondary).updated(70).wrote(written).build(),
            ],
        )
    };
    // (70 − written) − (60 − 1000) + 10 = 1020 − written
    let preference = at_most(Mode::Secondary, 90);
    assert_eq!(reading(&set(930), &preference), ["s"]);
    assert!(reading(&set(929), &preference).is_empty());
    assert_eq!(reading(&set(929), &at_most(Mode::SecondaryPreferred, 90)), ["p"]);
    assert_eq!(reading(&set(929), &at_most(Mode::Nearest, 90)), ["p"]);
    // A clock far ahead makes the estimate negative, which is fresh enough.
    assert_eq!(reading(&set(5000), &preference), ["s"]);
}

/// Max Staleness, "Client": the formula for no known primary.
#[test]
fn without_a_primary_staleness_is_measured_against_the_freshest_secondary() {
    let set = topology(
        TopologyType::ReplicaSetNoPrimary,
        [
            member("a", ServerType::RsSecondary).wrote(1000).build(),
            member("b", ServerType::RsSecondary).wrote(920).build(),
            member("c", ServerType::RsSecondary).wrote(919).build(),
            member("d", ServerType::RsSecondary).build(),
        ],
    );
    assert_eq!(reading(&set, &at_most(Mode::Nearest, 90)), ["a", "b"]);
}

/// A deprioritized server keeps telling how fresh the others are.
#[test]
fn the_deprioritized_still_tell_the_time() {
    let set = topology(
        TopologyType::ReplicaSetWithPrimary,
        [
            member("p", ServerType::RsPrimary).wrote(1000).build(),
            member("s", ServerType::RsSecondary).wrote(1).build(),
            member("t", ServerType::RsSecondary).wrote(1000).build(),
        ],
    );
    let preference = at_most(Mode::Nearest, 90);
    let avoided = [address("p")];
    let request =
        SelectionRequest { deprioritized: &avoided, ..SelectionRequest::read(&preference) };
    assert_eq!(suitable(&set, request), ["t"]);
}

/// "A driver MUST raise an error if the TopologyType is ReplicaSet… and either is false".
#[test]
fn a_staleness_that_cannot_be_measured_is_refused_by_replica_sets_alone() {
    let small = at_most(Mode::Nearest, 89);
    let too_small = |least| SelectionError::MaxStalenessTooSmall {
        asked: Duration::from_secs(89),
        least: Duration::from_secs(least),
    };
    let asked = |topology: &TopologyDescription, preference: &ReadPreference| {
        topology.suitable_servers(&SelectionRequest::read(preference)).map(|found| found.len())
    };
    assert_eq!(asked(&set(), &small), Err(too_small(90)));
    assert_eq!(asked(&headless_set(), &small), Err(too_small(90)));
    assert!(!set().has_readable_server(Some(&small)));

    let mut slow = set();
    slow.selection.heartbeat_frequency = Duration::from_secs(120);
    assert_eq!(asked(&slow, &small), Err(too_small(130)));
    assert!(asked(&slow, &at_most(Mode::Nearest, 130)).is_ok());

    let mongos = topology(TopologyType::Sharded, [member("m", ServerType::Mongos).build()]);
    assert_eq!(asked(&mongos, &small), Ok(1));
    let single = topology(TopologyType::Single, [member("s", ServerType::Standalone).build()]);
    assert_eq!(asked(&single, &small), Ok(1));
    let unknown = topology(TopologyType::Unknown, [member("u", ServerType::Unknown).build()]);
    assert_eq!(asked(&unknown, &small), Ok(0));
}

#[test]
fn mode_primary_takes_neither_tags_nor_staleness() {
    let error = |preference: &ReadPreference| {
        set().select(&SelectionRequest::read(preference), 0, |_| 0).map(|_| ()).unwrap_err()
    };
    assert_eq!(error(&at_most(Mode::Primary, 120)), SelectionError::MaxStalenessWithPrimary);
    assert_eq!(error(&tagged(Mode::Primary, &[&[("a", "b")]])), SelectionError::TagsWithPrimary);
    assert_eq!(reading(&set(), &tagged(Mode::Primary, &[&[]])), ["a"]);
}

/// Step 2.
#[test]
fn an_incompatible_server_ends_every_selection() {
    let mut set = set();
    set.compatibility_error = Some("Server at a reports wire version 99".into());
    let error = set.select(&SelectionRequest::WRITE, 0, |_| 0).map(|_| ()).unwrap_err();
    assert_eq!(error, SelectionError::Incompatible("Server at a reports wire version 99".into()));
}

/// The notes on deprioritized servers under "Read operations", and step 3.
#[test]
fn the_deprioritized_are_the_last_resort() {
    let set = set();
    let asked = |preference: &ReadPreference, avoided: &[&str]| {
        let avoided: Vec<_> = avoided.iter().map(|host| address(host)).collect();
        let request =
            SelectionRequest { deprioritized: &avoided, ..SelectionRequest::read(preference) };
        suitable(&set, request)
    };
    let plain = ReadPreference::new;
    assert_eq!(asked(&plain(Mode::Primary), &["a"]), ["a"]);
    assert_eq!(asked(&plain(Mode::PrimaryPreferred), &["a"]), ["b", "c"]);
    assert_eq!(asked(&plain(Mode::PrimaryPreferred), &["a", "b", "c"]), ["a"]);
    assert_eq!(asked(&plain(Mode::SecondaryPreferred), &["b", "c"]), ["a"]);
    assert_eq!(asked(&plain(Mode::SecondaryPreferred), &["a", "b", "c"]), ["b", "c"]);
    assert_eq!(asked(&plain(Mode::Secondary), &["b"]), ["c"]);
    assert_eq!(asked(&plain(Mode::Nearest), &["a", "x"]), ["b", "c"]);
    let ny_or_sf = tagged(Mode::Secondary, &[&[("dc", "ny")], &[("dc", "sf")]]);
    assert_eq!(asked(&ny_or_sf, &["b"]), ["c"]);
}

/// Step 4: the selector sees the suitable servers, before the latency window.
#[test]
fn the_selector_filters_what_is_suitable() {
    let set = set();
    let preference = ReadPreference::new(Mode::Nearest);
    let request = SelectionRequest {
        selector: Some(&|mut servers| {
            assert_eq!(hosts(&servers), ["a", "b", "c"]);
            servers.retain(|server| server.address().host() == "c");
            servers
        }),
        ..SelectionRequest::read(&preference)
    };
    let chosen = set.select(&request, 7, |_| 0).unwrap().unwrap();
    assert_eq!(chosen.address().host(), "c");
    let request =
        SelectionRequest { selector: Some(&|_| Vec::new()), ..SelectionRequest::read(&preference) };
    assert!(set.select(&request, 7, |_| 0).unwrap().is_none());
}

#[test]
fn other_topologies_ignore_the_read_preference() {
    let preference = tagged(Mode::Secondary, &[&[("dc", "nowhere")]]);
    let found = |kind, servers: Vec<ServerDescription>| {
        let topology = topology(kind, servers);
        let read = reading(&topology, &preference);
        assert_eq!(read, suitable(&topology, SelectionRequest::WRITE));
        read
    };
    let of = |kind| member("m", kind).build();
    for kind in [ServerType::Standalone, ServerType::RsSecondary, ServerType::RsGhost] {
        assert_eq!(found(TopologyType::Single, vec![of(kind)]), ["m"]);
    }
    assert!(found(TopologyType::Single, vec![of(ServerType::Unknown)]).is_empty());
    assert!(found(TopologyType::Unknown, vec![of(ServerType::RsGhost)]).is_empty());
    assert_eq!(found(TopologyType::LoadBalanced, vec![of(ServerType::LoadBalancer)]), ["m"]);
    let other = member("n", ServerType::Unknown).build();
    assert_eq!(found(TopologyType::Sharded, vec![of(ServerType::Mongos), other]), ["m"]);
}

/// "Determining If A Topology Has Readable/Writable Servers".
#[test]
fn readable_and_writable_follow_the_table() {
    let secondary = ReadPreference::new(Mode::Secondary);
    let asked = |topology: &TopologyDescription| {
        (
            topology.has_readable_server(None),
            topology.has_readable_server(Some(&secondary)),
            topology.has_writable_server(),
        )
    };
    assert_eq!(asked(&set()), (true, true, true));
    assert_eq!(asked(&headless_set()), (false, true, false));
    let one = |kind, server| topology(kind, [member("m", server).build()]);
    assert_eq!(asked(&one(TopologyType::Unknown, ServerType::Unknown)), (false, false, false));
    assert_eq!(asked(&one(TopologyType::Single, ServerType::Unknown)), (false, false, false));
    assert_eq!(asked(&one(TopologyType::Single, ServerType::RsOther)), (true, true, true));
    assert_eq!(asked(&one(TopologyType::Sharded, ServerType::Unknown)), (false, false, false));
    assert_eq!(asked(&one(TopologyType::Sharded, ServerType::Mongos)), (true, true, true));
    let balanced = one(TopologyType::LoadBalanced, ServerType::LoadBalancer);
    assert_eq!(asked(&balanced), (true, true, true));
    let nowhere = tagged(Mode::Nearest, &[&[("dc", "nowhere")]]);
    assert!(!set().has_readable_server(Some(&nowhere)));
    let alone = one(TopologyType::ReplicaSetWithPrimary, ServerType::RsPrimary);
    assert_eq!(asked(&alone), (true, false, true));
}

/// A server as a property test makes it: kind, round trip, data centre, seconds of its last write.
type Drawn = (u8, u64, u8, Option<i64>);

fn drawn_server(kinds: &[ServerType], number: usize, drawn: Drawn) -> ServerDescription {
    let (kind, rtt, dc, wrote) = drawn;
    let kind = kinds[usize::from(kind) % kinds.len()];
    let mut drawn = member(&format!("h{number:02}"), kind).rtt(rtt);
    if dc > 0 {
        drawn = drawn.tag("dc", &dc.to_string());
    }
    match wrote {
        Some(seconds) => drawn.wrote(seconds).build(),
        None => drawn.build(),
    }
}

fn topologies() -> impl Strategy<Value = TopologyDescription> {
    const MEMBERS: [ServerType; 7] = [
        ServerType::RsSecondary,
        ServerType::RsSecondary,
        ServerType::RsArbiter,
        ServerType::RsOther,
        ServerType::RsGhost,
        ServerType::Unknown,
        ServerType::PossiblePrimary,
    ];
    let server = (any::<u8>(), 0..40_u64, 0..3_u8, proptest::option::of(0..200_i64));
    (0..5_u8, proptest::collection::vec(server, 0..12)).prop_map(|(kind, drawn)| {
        let many = |kinds: &'static [ServerType]| {
            let drawn = drawn.clone();
            drawn.into_iter().enumerate().map(|(n, drawn)| drawn_server(kinds, n, drawn))
        };
        match kind {
            0 => topology(TopologyType::Unknown, many(&[ServerType::Unknown, ServerType::RsGhost])),
            1 => topology(TopologyType::Single, many(&MEMBERS).take(1)),
            2 => topology(TopologyType::Sharded, many(&[ServerType::Mongos, ServerType::Unknown])),
            3 => topology(TopologyType::ReplicaSetNoPrimary, many(&MEMBERS)),
            _ => {
                let primary = member("p", ServerType::RsPrimary).rtt(10).wrote(200).build();
                topology(TopologyType::ReplicaSetWithPrimary, many(&MEMBERS).chain([primary]))
            }
        }
    })
}

fn preferences() -> impl Strategy<Value = Option<ReadPreference>> {
    let tags = proptest::collection::vec(0..3_u8, 0..3);
    let read = (0..5_usize, tags, any::<bool>()).prop_map(|(mode, tags, stale)| {
        let mode = Mode::ALL[mode];
        if mode == Mode::Primary {
            return ReadPreference::PRIMARY;
        }
        let tag_sets = tags
            .iter()
            .map(|dc| match dc {
                0 => quorate_protocol::TagSet::EMPTY,
                dc => [("dc", dc.to_string())].into_iter().collect(),
            })
            .collect();
        let max_staleness = stale.then_some(Duration::from_secs(100));
        ReadPreference { tag_sets, max_staleness, ..ReadPreference::new(mode) }
    });
    proptest::option::of(read)
}

fn request<'a>(
    preference: Option<&'a ReadPreference>,
    deprioritized: &'a [ServerAddress],
) -> SelectionRequest<'a> {
    let criteria = preference.map_or(SelectionCriteria::Write, SelectionCriteria::Read);
    SelectionRequest { criteria, deprioritized, selector: None }
}

proptest! {
    /// The chosen server is suitable, within the window, and deprioritized only if nothing else is
    /// suitable; something is chosen whenever something is suitable.
    #[test]
    fn the_chosen_server_is_suitable_and_near(
        topology in topologies(),
        preference in preferences(),
        avoided in proptest::collection::vec(0..12_usize, 0..6),
        bits in any::<u64>(),
    ) {
        let avoided: Vec<_> = avoided.iter().map(|n| address(&format!("h{n:02}"))).collect();
        let request = request(preference.as_ref(), &avoided);
        let all = suitable::suitable(&topology, request.criteria, &[]);
        let left = suitable::suitable(&topology, request.criteria, &avoided);
        let window = latency_window(&left, topology.selection_settings().local_threshold);
        match topology.select(&request, bits, |_| 0).unwrap() {
            None => prop_assert!(all.is_empty()),
            Some(chosen) => {
                prop_assert!(window.iter().any(|server| Arc::ptr_eq(server, chosen)));
                if avoided.contains(chosen.address()) {
                    prop_assert!(left.iter().all(|server| avoided.contains(server.address())));
                }
            }
        }
    }

    /// The cached windows and the specification's algorithm agree.
    #[test]
    fn the_short_way_and_the_long_way_agree(
        topology in topologies(),
        preference in preferences(),
        bits in any::<u64>(),
    ) {
        let plain = request(preference.as_ref(), &[]);
        // No server has this name, but it forces the long way.
        let stranger = [address("stranger")];
        let long = request(preference.as_ref(), &stranger);
        let count = |address: &ServerAddress| u64::from(address.as_str().len().is_multiple_of(2));
        let short_way = topology.select(&plain, bits, count).unwrap();
        let long_way = topology.select(&long, bits, count).unwrap();
        prop_assert_eq!(short_way.map(|s| s.address()), long_way.map(|s| s.address()));
        let readable = topology.has_suitable_server(plain.criteria);
        prop_assert_eq!(readable, long_way.is_some());
    }

    /// If nothing is suitable, something speaks against every server, and the failure says so
    /// without calling anything suitable.
    #[test]
    fn what_is_not_suitable_has_a_shortcoming(
        topology in topologies(),
        preference in preferences(),
    ) {
        let request = request(preference.as_ref(), &[]);
        let found = suitable::suitable(&topology, request.criteria, &[]);
        let clock = StalenessClock::of(&topology);
        let flawless = topology
            .servers()
            .iter()
            .filter(|server| shortcoming(&topology, &clock, request.criteria, server).is_none())
            .count();
        prop_assert_eq!(found.is_empty(), flawless == 0);
        let failure = SelectionFailure::new(
            Arc::new(topology.clone()),
            &request,
            MonotonicTime::ZERO,
            Duration::ZERO,
        );
        prop_assert_eq!(failure.verdict().name() == "suitable_now", !found.is_empty());
        prop_assert!(failure.to_string().lines().count() <= topology.servers().len() + 2);
    }
}

#[test]
fn a_failed_server_is_never_suitable() {
    let down = failed("a", CheckFailureKind::Network, "refused", 1);
    let single = topology(TopologyType::Single, [down]);
    assert!(suitable(&single, SelectionRequest::WRITE).is_empty());
}
