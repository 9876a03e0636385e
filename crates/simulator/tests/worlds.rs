//! Faulty worlds of whole members, new ones in every run, and every seed that ever failed.
//!
//! A failing seed prints the command that replays it with its trace, and is kept in `seeds/`, from
//! where it runs again for ever; commit it with a better reason than the one the test found.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::catch_unwind;
use std::path::Path;

use quorate_simulator::{Figures, Story, run};

const KEPT: &str = include_str!("seeds/failed.txt");

/// The story and the seed of a line: `SEED [STORY:] WHY`.
fn kept() -> impl Iterator<Item = (u64, Story)> {
    let lines = KEPT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let mut words = line.split_whitespace();
        let seed = words.next().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| panic!("{line:?} does not begin with a seed"));
        let story = words.next().and_then(|word| word.strip_suffix(':')?.parse().ok());
        (seed, story.unwrap_or_default())
    })
}

/// Adds a seed to those that run again. Where the sources cannot be written, the report is all.
fn keep(seed: u64, story: Story, why: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds/failed.txt");
    let known = kept().any(|known| known == (seed, story));
    if let Ok(mut file) = OpenOptions::new().append(true).open(file)
        && !known
    {
        let _ = writeln!(file, "{seed} {story}: {why}");
    }
}

/// Runs a world; a broken assertion inside a member counts as a failure of the seed, too.
fn world(seed: u64, story: Story) -> Figures {
    match catch_unwind(|| run(seed, story)) {
        Ok(Ok(figures)) => figures,
        Ok(Err(failure)) => {
            keep(seed, story, &failure.verdict.to_string());
            panic!("{failure}")
        }
        Err(_) => {
            keep(seed, story, "a member broke its own invariant");
            panic!(
                "seed {seed}: a member broke its own invariant\n\
                 replay: cargo run -p quorate-simulator --example replay -- {seed} {story}"
            )
        }
    }
}

/// The worlds must not be empty stories: together they hold every kind of misfortune.
fn worlds(seeds: std::ops::Range<u64>) {
    let mut total = Figures::default();
    for seed in seeds {
        let figures = world(seed, Story::Everything);
        total.terms += figures.terms;
        total.acknowledged += figures.acknowledged;
        total.rollbacks += figures.rollbacks;
        total.initial_syncs += figures.initial_syncs;
        total.configs += figures.configs;
        total.crashes += figures.crashes;
        total.vetoes += figures.vetoes;
        total.published += figures.published;
        total.truncations += figures.truncations;
        total.too_stale += figures.too_stale;
        total.wipes += figures.wipes;
        total.reads += figures.reads;
    }
    assert!(total.terms > 40 && total.acknowledged > 1_000, "{total:?}");
    assert!(total.published > 500 && total.reads > 1_000, "{total:?}");
    assert!(total.truncations > 20 && total.too_stale > 0 && total.wipes > 0, "{total:?}");
    assert!(total.crashes > 25 && total.rollbacks > 0, "{total:?}");
    assert!(total.initial_syncs > 30 && total.configs > 150 && total.vetoes > 2, "{total:?}");
}

#[test]
fn worlds_0_to_23_keep_every_promise() {
    worlds(0..24);
}

#[test]
fn worlds_24_to_47_keep_every_promise() {
    worlds(24..48);
}

/// Committed writes may be lost here, by design; agreement and true beliefs at the end may not.
#[test]
fn worlds_that_lose_their_majority_go_on_after_a_forced_reconfiguration() {
    for seed in 0..8 {
        world(seed, Story::MajorityLost);
    }
}

/// Rules that general worlds hardly ever need; each of these has caught one that was broken on purpose.
#[test]
fn worlds_aimed_at_single_rules_keep_every_promise() {
    let aims = [(Story::Configurations, 0..6), (Story::Usurpers, 30..35), (Story::Votes, 0..6)];
    for (story, seeds) in aims {
        let (mut terms, mut installed) = (0, 0);
        for seed in seeds {
            let figures = world(seed, story);
            terms += figures.terms;
            installed += figures.configs;
        }
        assert!(terms > 15, "{story}: {terms} terms show nothing");
        assert!(installed > 30, "{story}: {installed} configurations show nothing");
    }
}

/// Two members that miss their primary in the same moment do not split the vote: without giving way,
/// a fifth of these elections were lost.
#[test]
fn elections_after_a_crash_are_hardly_ever_lost() {
    let (mut held, mut lost) = (0, 0);
    for seed in 0..4 {
        let figures = world(seed, Story::Crashes);
        held += figures.crash_elections;
        lost += figures.crash_elections_lost;
    }
    assert!(held > 20, "{held} elections show nothing");
    assert!(lost * 25 <= held, "{lost} of {held} elections were lost");
}

/// Messages that are late by seconds: what they say was true once. The clients of these worlds also
/// read linearizably.
#[test]
fn worlds_of_late_messages_keep_every_promise() {
    let mut reads = 0;
    for seed in 0..10 {
        reads += world(seed, Story::Delays).reads;
    }
    assert!(reads > 400, "{reads} reads show nothing");
}

/// Processes that are paused, clocks that drift and jump, slow links, disks that are full or fail, upgrades from the
/// last release; and a minority that never comes back.
#[test]
fn worlds_of_failing_machines_keep_every_promise() {
    let (mut sleeps, mut left_behind, mut reads, mut upgrades) = (0, 0, 0, 0);
    for seed in 0..12 {
        let figures = world(seed, Story::Machines);
        sleeps += figures.sleeps;
        left_behind += figures.left_behind;
        reads += figures.reads;
        upgrades += figures.upgrades;
    }
    assert!(upgrades > 8, "{upgrades} upgrades show nothing");
    assert!(sleeps > 40 && left_behind > 0, "{sleeps} pauses, {left_behind} left behind");
    assert!(reads > 400, "{reads} reads show nothing");
}

/// Transactions whose primaries crash, step down and are cut off between any two statements, and consumers of
/// change streams that are killed: snapshot isolation, nothing twice, nothing missed.
#[test]
fn worlds_of_transactions_keep_every_promise() {
    let mut total = Figures::default();
    for seed in 0..16 {
        let figures = world(seed, Story::Transactions);
        total.transactions += figures.transactions;
        total.repeated_transactions += figures.repeated_transactions;
        total.undone_transactions += figures.undone_transactions;
        total.unknown_commits += figures.unknown_commits;
        total.strange_statements += figures.strange_statements;
        total.events += figures.events;
        total.rollbacks += figures.rollbacks;
    }
    println!("{total:?}");
    assert!(total.transactions > 500 && total.repeated_transactions > 50, "{total:?}");
    assert!(total.unknown_commits > 0 && total.strange_statements > 0, "{total:?}");
    assert!(total.undone_transactions > 5, "{total:?}");
    assert!(total.events > 1_000 && total.rollbacks > 0, "{total:?}");
}

/// Worlds that no run has seen before. The first seed is printed, and a failing one is kept with the
/// command that replays it.
#[test]
#[allow(clippy::disallowed_methods, reason = "the one place where chance is wanted: new seeds")]
fn worlds_that_were_never_run_before_keep_every_promise() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let first = 1_000_000_000 + (now.as_nanos() as u64 / 1_000) % 1_000_000_000_000;
    println!(
        "fresh seeds from {first}: sweep -- {first} 6, and sweep -- {first} 3 with delays, transactions or machines"
    );
    for seed in first..first + 6 {
        world(seed, Story::Everything);
    }
    for seed in first..first + 3 {
        world(seed, Story::Delays);
        world(seed, Story::Transactions);
        world(seed, Story::Machines);
    }
}

#[test]
fn the_same_seed_is_the_same_world() {
    // The ninth world of machines has the store of real servers, with its threads.
    for (seed, story) in [(7, Story::Everything), (7, Story::Crashes), (9, Story::Machines)] {
        assert_eq!(world(seed, story), world(seed, story));
    }
}

#[test]
fn seeds_that_once_failed_stay_fixed() {
    for (seed, story) in kept() {
        world(seed, story);
    }
}
