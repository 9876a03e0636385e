//! Members in network namespaces: links that go down, packets that vanish in one direction.
//!
//! Here a lost host is silence, as on a real network: no reset, no refusal.

use bson::{Bson, doc};

use crate::load::Load;
use crate::set::{Network, Set, impatient};
use quorate_test_support::Namespaces;

/// Acknowledged writes between two misfortunes.
const A_WHILE: usize = 30;

fn separate(count: usize) -> Option<Set> {
    let set = Set::start_on(Network::Separate(Namespaces::new()?), count);
    Some(set.initiate(impatient()))
}

fn namespaces(set: &Set) -> &Namespaces {
    match &set.network {
        Network::Separate(namespaces) => namespaces,
        Network::Direct | Network::Proxied(_) => panic!("this set has no namespaces"),
    }
}

#[test]
fn a_primary_whose_link_is_down_is_replaced_and_rejoins() {
    let Some(set) = separate(3) else { return };
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    let gone = set.primary();
    namespaces(&set).set_link(gone, "down");
    set.primary_among(&set.others(gone));
    load.wait_for(A_WHILE);
    namespaces(&set).set_link(gone, "up");
    load.wait_for(A_WHILE);
    load.judge(&set);
}

#[test]
fn an_isolated_primary_keeps_what_only_it_had_in_rollback_files() {
    let Some(set) = separate(3) else { return };
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    let isolated = set.primary();
    let others = set.others(isolated);
    for place in &others {
        namespaces(&set).lose(isolated, *place);
        namespaces(&set).lose(*place, isolated);
    }
    let mut lost = 0;
    while set.insert(isolated, doc! { "_id": 1_000_000 + lost }, Bson::Int32(1)).is_ok() {
        lost += 1;
    }
    assert!(lost > 0, "the isolated primary took nothing");
    set.primary_among(&others);
    load.wait_for(A_WHILE);
    for place in &others {
        namespaces(&set).find(isolated, *place);
        namespaces(&set).find(*place, isolated);
    }
    set.wait_for_state(isolated, "SECONDARY");
    load.judge(&set);
    let kept = set
        .rolled_back(isolated)
        .iter()
        .filter(|document| document.get_i64("_id").is_ok_and(|id| id >= 1_000_000))
        .count();
    assert_eq!(kept as i64, lost);
}

#[test]
fn packets_lost_one_way_cost_a_majority_nothing() {
    let Some(set) = separate(5) else { return };
    let load = Load::start(&set);
    load.wait_for(A_WHILE);
    let mute = set.primary();
    let others = set.others(mute);
    for place in &others {
        namespaces(&set).lose(mute, *place);
    }
    set.primary_among(&others);
    load.wait_for(A_WHILE);
    for place in &others {
        namespaces(&set).find(mute, *place);
    }
    load.wait_for(A_WHILE);
    load.judge(&set);
}
