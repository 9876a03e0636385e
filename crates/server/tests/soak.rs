//! Faults without end on a set of real processes under load: `cargo xtask soak` runs it for minutes, the
//! usual tests for some seconds.
//!
//! After every fault the set takes writes again. At the end all members have equal hashes and nothing that
//! a majority acknowledged is lost; meanwhile no term has two primaries. The faults: a follower that is
//! stopped until it falls off the oplog, members killed, terminated and frozen, a primary cut off from the
//! others, step-downs, a full disk. The seed decides which; it is printed.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is the report")]
#![allow(dead_code, reason = "the set of processes is shared with other tests")]

#[path = "replica_set/client.rs"]
mod client;
#[path = "replica_set/load.rs"]
mod load;
#[path = "replica_set/set.rs"]
mod set;
#[path = "replica_set/small_disk.rs"]
mod small_disk;

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bson::doc;
use load::Load;
use quorate_test_support::{FaultNetwork, Flow};
use set::{Network, Set, impatient};
use small_disk::SmallDisk;

/// How long it goes on, in seconds.
const SECONDS: &str = "QUORATE_SOAK_SECONDS";

/// Which faults come, in which order.
const SEED: &str = "QUORATE_SOAK_SEED";

/// How long faults go on unless the variable says more; `cargo xtask soak` gives minutes.
const DEFAULT_SECONDS: u64 = 10;

/// Acknowledged writes between two faults, and while a member is gone.
const A_WHILE: usize = 40;

/// A history that a stopped follower falls off soon.
const OPLOG_BYTES: &str = "100000";

/// Entries that are more than such a history holds.
const MORE_THAN_THE_OPLOG: usize = 800;

/// How often a follower is stopped, and the acknowledged writes of one stop.
const SLICES: usize = 8;
const SLICE: usize = 150;

/// Writes of one stop that fill what lies between two members, and the bytes of each.
const LARGE_WRITES: usize = 30;
const LARGE: usize = 1024 * 1024;

const FULL: u64 = 4 * 1024 * 1024;

/// How often members may be wiped before all are healthy again.
const MAX_WIPES: usize = 6;

/// How long that may take.
const HEALING: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    FallOff,
    Kill,
    KillPrimary,
    Terminate,
    FreezePrimary,
    CutPrimary,
    StepDown,
    FullDisk,
}

const FAULTS: [Fault; 8] = [
    Fault::FallOff,
    Fault::Kill,
    Fault::KillPrimary,
    Fault::Terminate,
    Fault::FreezePrimary,
    Fault::CutPrimary,
    Fault::StepDown,
    Fault::FullDisk,
];

/// A small generator: the same seed gives the same faults.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a whole number"))
}

#[test]
fn faults_end_in_identical_members_and_nothing_acknowledged_is_lost() {
    let seconds = number(SECONDS).unwrap_or(DEFAULT_SECONDS);
    let drawn = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number(SEED).unwrap_or_else(drawn) | 1;
    eprintln!("soak: {seconds} s, seed {seed}");
    let mut dice = Dice(seed);
    let network = Network::Proxied(FaultNetwork::new());
    let mut set = Set::launch(network, 0, &["--oplog-bytes", OPLOG_BYTES]);
    // Of the disk of the first member only; without the right to mount there is no such fault.
    let disk = SmallDisk::mount(&set.data(0));
    for _ in 0..3 {
        set.add();
    }
    let mut set = set.initiate(impatient());
    let load = Load::start(&set);
    let mut told: BTreeMap<Fault, usize> = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    // Every kind at least once where there is time, then by chance.
    let mut first =
        FAULTS.iter().copied().filter(|fault| disk.is_some() || *fault != Fault::FullDisk);
    load.wait_for(A_WHILE);
    while Instant::now() < end {
        load.wait_for(A_WHILE);
        let fault = first.next().unwrap_or_else(|| FAULTS[dice.below(FAULTS.len())]);
        if fault == Fault::FullDisk && disk.is_none() {
            continue;
        }
        eprintln!("soak: {fault:?} after {} acknowledged writes", load.acknowledged());
        *told.entry(fault).or_default() += 1;
        commit(fault, &mut set, &load, disk.as_ref(), &mut dice);
        heal(&mut set);
        load.knows(&set);
    }
    let acknowledged = load.acknowledged();
    load.judge(&set);
    eprintln!(
        "soak: {told:?}; {acknowledged} acknowledged writes, none lost; all members identical"
    );
}

/// Each slice is shorter than the history, and all of them are longer: the follower goes on with its copy
/// again and again, and at some moment its place is gone. It says so, or it has everything.
#[test]
fn a_follower_that_is_stopped_in_slices_says_that_it_is_too_stale_or_misses_nothing() {
    let set = Set::launch(Network::Direct, 3, &["--oplog-bytes", OPLOG_BYTES]);
    let mut set = set.initiate(impatient());
    let follower = set.others(set.primary())[0];
    let load = Load::start(&set);
    for _ in 0..SLICES {
        set.freeze(follower);
        // More than fits between the two members: the source's place in its history stays where it is.
        for _ in 0..LARGE_WRITES {
            let large = doc! { "text": "x".repeat(LARGE) };
            let insert = doc! { "insert": "large", "documents": [large], "$db": "soak" };
            let _ = set.run(set.primary(), insert);
        }
        load.wait_for(SLICE);
        set.thaw(follower);
        // It answers again, which is when it goes on copying.
        set.wait("the follower", || set.own_status(follower));
    }
    heal(&mut set);
    load.knows(&set);
    load.judge(&set);
}

/// Does something to the set, and takes it back after a while.
fn commit(fault: Fault, set: &mut Set, load: &Load, disk: Option<&SmallDisk>, dice: &mut Dice) {
    let primary = set.primary();
    let others = set.others(primary);
    let follower = others[dice.below(others.len())];
    match fault {
        Fault::FallOff => {
            set.freeze(follower);
            load.wait_for(MORE_THAN_THE_OPLOG);
            set.thaw(follower);
        }
        Fault::Kill | Fault::KillPrimary => {
            let victim = if fault == Fault::Kill { follower } else { primary };
            set.kill(victim);
            load.wait_for(A_WHILE);
            set.restart(victim);
        }
        Fault::Terminate => {
            set.terminate(follower);
            load.wait_for(A_WHILE);
            set.restart(follower);
        }
        Fault::FreezePrimary => {
            set.freeze(primary);
            load.wait_for(A_WHILE);
            set.thaw(primary);
        }
        Fault::CutPrimary => {
            set.faults().between(&[primary], &others, Flow::Held);
            load.wait_for(A_WHILE);
            set.faults().heal();
        }
        Fault::StepDown => {
            // It may be asked too early, or lead no more.
            let command = doc! { "replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 4 };
            let _ = set.run(primary, command);
        }
        Fault::FullDisk => {
            let disk = disk.unwrap();
            disk.fill(FULL);
            load.wait_for(A_WHILE);
            disk.make_room();
        }
    }
}

/// Waits until a write is on the disk of every member. One that has fallen off the oplog says so, and is
/// wiped, as it advises.
///
/// To lead or to follow is not enough: a member shows SECONDARY until it has noticed that it is too stale,
/// and a wiped voter counts as failed until all others have answered it (docs/replication.md). The next
/// fault would then leave no majority.
fn heal(set: &mut Set) {
    let start = Instant::now();
    let mut wipes = 0;
    while !is_on_every_disk(set) {
        assert!(start.elapsed() < HEALING, "not every member takes part again");
        for place in 0..set.members.len() {
            if is_too_stale(set, place) {
                wipes += 1;
                assert!(wipes <= MAX_WIPES, "members fall off the oplog again and again");
                eprintln!("soak: wipes m{place}");
                set.kill(place);
                set.wipe(place);
                set.restart(place);
            }
        }
    }
}

fn is_too_stale(set: &Set, place: usize) -> bool {
    let says =
        |own: bson::Document| own.get_str("infoMessage").is_ok_and(|m| m.contains("too stale"));
    set.own_status(place).is_some_and(says)
}

/// Writes, and waits a moment for every member.
fn is_on_every_disk(set: &Set) -> bool {
    let command = doc! {
        "insert": "healed", "documents": [{}], "$db": "db",
        "writeConcern": { "w": set.members.len() as i32, "j": true, "wtimeout": 500 },
    };
    let Ok(reply) = set.run(set.primary(), command) else { return false };
    reply.get_f64("ok").ok() == Some(1.0)
        && !reply.contains_key("writeErrors")
        && !reply.contains_key("writeConcernError")
}
