//! The shipped member, model-checked: three of them, in every order of votes, writes, copies, losses,
//! crashes and long silences within bounds.
//!
//! `stateright` visits every reachable state from a healthy set. Each member is the production value; the
//! model is its host: a log of which a prefix is synced, a disk that stores votes in a step of its own, and
//! a network that delivers requests for votes and their answers in any order, late, or not at all.
//!
//! To keep the space small, some steps are one: a heartbeat or a progress report arrives and is answered at
//! once, unless one of its ends is cut off from the others; so are a batch of entries, its append and its
//! application, and the search for a common point and the cut. Time moves in one way: a member's own clock
//! passes every deadline that is set (members never compare their monotonic clocks).
//!
//! Once no crash can come any more, what is written is on the disk at once.
//!
//! Entries are undone in histories that begin divided: the first primary is cut off and has written an entry, the
//! others have elected another. What follows once they meet again is explored like everything else.
//!
//! `QUORATE_MODEL=3,1,2,1,0,0,1,0,0` checks other bounds than the ordinary run: terms, writes, stands, crashes,
//! losses, long whiles, cuts, whether there are dry runs, and whether the set begins divided.

#![allow(clippy::print_stdout, reason = "the number of states is part of the result")]

mod world;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use stateright::{Checker, Model, Property};

use world::{MEMBERS, World};

/// How much may happen in one history, beside deliveries.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The highest term; the set begins in term 1.
    terms: i64,
    /// Entries that clients write.
    writes: usize,
    /// Candidacies that an administrator asks for.
    stands: usize,
    crashes: usize,
    /// Messages about votes that are lost and known to be.
    losses: usize,
    /// Long whiles.
    elapsed: usize,
    /// How often a member is cut off.
    cuts: usize,
    /// Whether the candidacies begin with a dry run too.
    dry_runs: usize,
    /// Whether the set begins divided: a deposed primary is cut off with an entry of its own.
    divided: usize,
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Write(usize),
    /// The log of a member reaches its disk.
    Sync(usize),
    /// The vote of a member reaches its disk.
    Store(usize),
    /// A member takes the next batch from its source.
    Copy(usize),
    /// A request for a vote, or its answer, arrives.
    Deliver(usize),
    Lose(usize),
    Stand {
        member: usize,
        skip_dry_run: bool,
    },
    Crash(usize),
    Restart(usize),
    Elapse(usize),
    /// A member is cut off, or none any more.
    Cut(Option<usize>),
}

impl Model for Bounds {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![if self.divided > 0 { World::divided() } else { World::begin() }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        for (node, process) in world.processes.iter().enumerate() {
            if process.member.is_none() {
                steps.push(Step::Restart(node));
                continue;
            }
            if process.is_writable() && world.writes < self.writes {
                steps.push(Step::Write(node));
            }
            if world.can_sync(node) {
                steps.push(Step::Sync(node));
            }
            if process.stores_a_vote() {
                steps.push(Step::Store(node));
            }
            if world.copy_brings_news(node) {
                steps.push(Step::Copy(node));
            }
            if world.crashes < self.crashes {
                steps.push(Step::Crash(node));
            }
            if world.elapsed < self.elapsed {
                steps.push(Step::Elapse(node));
            }
            // The first candidate is member 1, and member 2 is its like; in a divided set it is the deposed primary.
            let first = if self.divided > 0 { 0 } else { 1 };
            let may_stand = node == first || world.stands > 0 || world.crashes > 0;
            if !process.is_primary() && may_stand && world.stands < self.stands {
                steps.push(Step::Stand { member: node, skip_dry_run: true });
                if self.dry_runs > 0 {
                    steps.push(Step::Stand { member: node, skip_dry_run: false });
                }
            }
        }
        for (index, message) in world.messages.iter().enumerate() {
            if world.passes(message) {
                steps.push(Step::Deliver(index));
            }
            if message.is_about_votes() && world.losses < self.losses {
                steps.push(Step::Lose(index));
            }
        }
        if world.cut.is_some() {
            steps.push(Step::Cut(None));
        } else if world.cuts < self.cuts {
            steps.extend((0..MEMBERS).map(|node| Step::Cut(Some(node))));
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        match step {
            Step::Write(node) => world.write(node),
            Step::Sync(node) => world.sync(node),
            Step::Store(node) => world.store(node),
            Step::Copy(node) => world.copy(node),
            Step::Deliver(index) => world.deliver(index),
            Step::Lose(index) => world.lose(index),
            Step::Stand { member, skip_dry_run } => world.stand(member, skip_dry_run),
            Step::Crash(node) => world.crash(node),
            Step::Restart(node) => world.start(node),
            Step::Elapse(node) => world.elapse(node),
            Step::Cut(node) => world.cut(node),
        }
        world.pump();
        if world.crashes == self.crashes {
            world.finish_writes();
        }
        Some(world)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.processes.iter().all(|process| process.term().0 <= self.terms)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(RULES[0], |_, world: &World| world.broken.is_none()),
            Property::always(RULES[1], |_, world: &World| world.votes_are_stored()),
            Property::sometimes("another member leads the next term", |_, world: &World| {
                world.processes[1..].iter().any(|process| process.is_writable())
            }),
            Property::sometimes("two members lead, in different terms", |_, world: &World| {
                world.processes.iter().filter(|process| process.is_primary()).count() == 2
            }),
            Property::sometimes("a crash takes a vote along", |_, world: &World| {
                world.processes.iter().any(|process| process.lost_vote)
            }),
            Property::sometimes("a crash takes entries along", |_, world: &World| {
                let longest = world.committed.len();
                world.processes.iter().any(|p| p.member.is_none() && p.log.len() < longest)
            }),
            Property::sometimes("a member undoes an entry", |_, world: &World| world.undone),
            Property::sometimes("a set that was divided is one again", |_, world: &World| {
                let same = |process: &world::Process| process.log == world.committed;
                world.undone && world.processes.iter().all(same)
            }),
            Property::sometimes(
                "an entry of an older term commits with a newer one",
                |_, world: &World| {
                    let terms: Vec<i64> = world.committed.iter().map(|e| e.op_time.term).collect();
                    terms.windows(3).any(|t| t == [1, 1, 2] || t == [1, 2, 2])
                },
            ),
        ]
    }
}

const RULES: [&str; 2] = ["every rule holds", "a vote is stored before it is answered"];

/// Checks every state within these bounds, and returns the names of the interesting ones that were reached.
fn check(bounds: Bounds) -> BTreeSet<&'static str> {
    let checker = bounds.checker().threads(2).spawn_bfs().join();
    println!(
        "replication: {} states, {} unique, depth {} ({bounds:?}, {MEMBERS} members)",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
    );
    for rule in RULES {
        checker.assert_no_discovery(rule);
    }
    let names = bounds.properties().into_iter().map(|property| property.name);
    names.filter(|name| checker.discovery(name).is_some()).collect()
}

/// The bounds that the environment asks for.
fn wanted() -> Option<Bounds> {
    let text = std::env::var("QUORATE_MODEL").ok()?;
    let numbers: Vec<usize> = text.split(',').map(|number| number.parse().unwrap()).collect();
    let [terms, writes, stands, crashes, losses, elapsed, cuts, dry_runs, divided] = numbers[..]
    else {
        panic!("QUORATE_MODEL has nine numbers, not {text:?}");
    };
    let terms = terms as i64;
    Some(Bounds { terms, writes, stands, crashes, losses, elapsed, cuts, dry_runs, divided })
}

#[test]
fn every_order_of_an_election_keeps_the_rules() {
    if let Some(bounds) = wanted() {
        println!("reached: {:?}", check(bounds));
        return;
    }
    let plain = Bounds {
        terms: 2,
        writes: 0,
        stands: 1,
        crashes: 0,
        losses: 0,
        elapsed: 0,
        cuts: 0,
        dry_runs: 0,
        divided: 0,
    };
    let mut reached = check(Bounds { writes: 1, ..plain });
    reached.extend(check(Bounds { crashes: 1, ..plain }));
    reached.extend(check(Bounds { cuts: 1, ..plain }));
    let divided = Bounds { stands: 0, writes: 1, divided: 1, ..plain };
    reached.extend(check(Bounds { elapsed: 1, ..divided }));
    reached.extend(check(Bounds { terms: 3, stands: 1, ..divided }));
    reached.extend(check(Bounds { crashes: 1, ..divided }));
    let all: BTreeSet<&str> = plain.properties().iter().map(|property| property.name).collect();
    let missed: Vec<_> = all.difference(&reached).filter(|name| !RULES.contains(name)).collect();
    assert!(missed.is_empty(), "no state shows that {missed:?}");
}
