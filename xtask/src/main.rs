//! Chores of the repository, as `cargo xtask <chore>`.
//!
//! Everything that a person or a machine does to this repository besides `cargo build` is here, so
//! that it runs the same everywhere. `cargo xtask ci` is all of it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command-line program")]

/// The failure of a chore, with a text as of `format!`.
macro_rules! fail {
    ($($text:tt)+) => { $crate::Failure(format!($($text)+)) };
}

/// Returns with a failure if a condition holds: `fail_if!(condition => text)`.
macro_rules! fail_if {
    ($condition:expr => $($text:tt)+) => { if $condition { return Err(fail!($($text)+)) } };
}

mod bench;
mod ci;
mod commands;
mod conformance;
mod drills;
mod fuzz;
mod histories;
mod map;
mod mutants;
mod package;
mod pages;
mod process;
mod publishable;
mod purity;
mod pymongo_suite;
mod shape;
mod site;
mod soak;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use pymongo_suite::{Selection, Topology};

/// A chore that did not succeed, in words for the person who asked for it.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

const USAGE: &str = "usage: cargo xtask <chore>

  ci [--fuzz-seconds N]           everything below, and fmt, clippy and the tests (5 s per fuzz target)
  bench [measure]                 our client beside its peers: discovery, moved, operations, gap, watching,
                                  fleet
  bench set [measure…] [--quick]  our replica set beside a bare log, etcd, Redis and PostgreSQL
  bench server [inside] [records] [--ours] [--quick] [word…]
                                  our server beside SQLite, PostgreSQL and Redis, or alone; only measures
                                  with a word;
                                  inside: what requests cost without the network
  bench up                        how long `quorate up` and the test fixtures take until they are ready
  conformance                     the published scenarios against our crates
  drills [--each N]               drills of a set of real processes beside their forecasts (30 of each
                                  kind), for docs/what-if.md
  fuzz [--seconds N] [target…]    the fuzz targets, all or those named (60 s each)
  fuzz-commands [--minutes N]     random commands on a whole member against a plain model, with crashes
  fuzz-commands --seed S          (10 minutes of new seeds); or one seed again
  histories [--minutes N]         transactions through pymongo while primaries are killed around commits
                                  (10 minutes for each workload), judged by the checker
  pymongo-suite [record] [topology] [file…]
                                  pymongo's own tests against our server: standalone, guarded,
                                  encrypted, replica-set or all of them; the files of the baseline
                                  or those named; record writes the results to docs and baseline
  pymongo-suite guard             the part of it that runs with ci: no fewer may pass than before,
                                  and none may fail that is not expected to
  package [--program FILE]        a static program, and the archive, the .deb and the container image
                                  made of it, in target/packages; or those of another program
  pages                           the walks of docs/architecture.md and what comments cite exist
  publishable                     every crate that is not kept to this repository could be published
  purity                          the deterministic crates reach no runtime, socket or randomness
  mutants [word…]                 deliberate bugs, each of which a test must object to; those with a
                                  word in their name, file or package
  map                             draws the crates in docs/architecture.md anew
  shape                           files and functions keep their bounds
  site [--pages-only]             docs and the documentation of the crates as a site in target/site,
                                  links checked
  soak [--minutes N] [--seed S]   a set of real processes under load and faults (10 minutes): members
                                  end identical, and nothing acknowledged is lost

Exit code 0: all is well; 1: something is wrong; 2: no such chore.";

enum Chore {
    Bench { measure: Option<String> },
    BenchProgram { name: &'static str, arguments: Vec<String> },
    BenchUp,
    Ci { fuzz_seconds: u64 },
    Conformance,
    Drills { each: u64 },
    Fuzz { seconds: u64, targets: Vec<String> },
    FuzzCommands { wanted: commands::Wanted },
    Histories { minutes: u64 },
    Map,
    Mutants { words: Vec<String> },
    Pages,
    Package { program: Option<PathBuf> },
    Publishable,
    Purity,
    PymongoGuard,
    PymongoSuite { selection: Selection, record: bool },
    Shape,
    Site { api: bool },
    Soak { minutes: u64, seed: Option<u64> },
    Help,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match read_arguments(&arguments) {
        Some(Chore::Bench { measure }) => bench::run(measure.as_deref()),
        Some(Chore::BenchProgram { name, arguments }) => bench::run_program(name, &arguments),
        Some(Chore::BenchUp) => bench::up(),
        Some(Chore::Ci { fuzz_seconds }) => ci::run(fuzz_seconds),
        Some(Chore::Conformance) => conformance::run().map(drop),
        Some(Chore::Drills { each }) => drills::run(each),
        Some(Chore::Fuzz { seconds, targets }) => {
            fuzz::run(fuzz::Effort::Long, seconds, &targets).map(drop)
        }
        Some(Chore::FuzzCommands { wanted }) => commands::run(&wanted),
        Some(Chore::Histories { minutes }) => histories::run(minutes),
        Some(Chore::Publishable) => publishable::run().map(|told| println!("{told}")),
        Some(Chore::Purity) => purity::run(),
        Some(Chore::PymongoGuard) => {
            pymongo_suite::guard(pymongo_suite::build_program, || ()).map(|told| println!("{told}"))
        }
        Some(Chore::PymongoSuite { selection, record }) => pymongo_suite::run(&selection, record),
        Some(Chore::Map) => map::run(true).map(|told| println!("{told}")),
        Some(Chore::Mutants { words }) => mutants::run(&words),
        Some(Chore::Pages) => pages::run().map(|told| println!("{told}")),
        Some(Chore::Package { program }) => package::run(program),
        Some(Chore::Shape) => shape::run().map(|told| println!("{told}")),
        Some(Chore::Site { api }) => site::run(api).map(|told| println!("{told}")),
        Some(Chore::Soak { minutes, seed }) => soak::run(minutes, seed),
        Some(Chore::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        None => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(reason)) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn read_arguments(arguments: &[String]) -> Option<Chore> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["bench"] => Some(Chore::Bench { measure: None }),
        ["bench", "set", arguments @ ..] => Some(bench_program("set", arguments)),
        ["bench", "server", arguments @ ..] => Some(bench_program("server", arguments)),
        ["bench", "up"] => Some(Chore::BenchUp),
        ["bench", measure] if bench::MEASURES.contains(measure) => {
            Some(Chore::Bench { measure: Some((*measure).to_owned()) })
        }
        ["ci"] => Some(Chore::Ci { fuzz_seconds: ci::DEFAULT_FUZZ_SECONDS }),
        ["ci", "--fuzz-seconds", seconds] => Some(Chore::Ci { fuzz_seconds: positive(seconds)? }),
        ["conformance"] => Some(Chore::Conformance),
        ["drills"] => Some(Chore::Drills { each: drills::DEFAULT_EACH }),
        ["drills", "--each", each] => Some(Chore::Drills { each: positive(each)? }),
        ["fuzz", "--seconds", seconds, targets @ ..] => fuzz_chore(positive(seconds)?, targets),
        ["fuzz", targets @ ..] => fuzz_chore(fuzz::DEFAULT_SECONDS, targets),
        ["fuzz-commands", options @ ..] => commands_chore(options),
        ["histories"] => Some(Chore::Histories { minutes: histories::DEFAULT_MINUTES }),
        ["histories", "--minutes", minutes] => {
            Some(Chore::Histories { minutes: positive(minutes)? })
        }
        ["publishable"] => Some(Chore::Publishable),
        ["purity"] => Some(Chore::Purity),
        ["pymongo-suite", "guard"] => Some(Chore::PymongoGuard),
        ["pymongo-suite", "record", rest @ ..] => pymongo_suite_chore(rest, true),
        ["pymongo-suite", rest @ ..] => pymongo_suite_chore(rest, false),
        ["map"] => Some(Chore::Map),
        ["mutants", words @ ..] if !words.iter().any(|word| word.starts_with('-')) => {
            Some(Chore::Mutants { words: words.iter().map(|word| (*word).to_owned()).collect() })
        }
        ["pages"] => Some(Chore::Pages),
        ["package"] => Some(Chore::Package { program: None }),
        ["package", "--program", file] => Some(Chore::Package { program: Some(file.into()) }),
        ["shape"] => Some(Chore::Shape),
        ["site"] => Some(Chore::Site { api: true }),
        ["site", "--pages-only"] => Some(Chore::Site { api: false }),
        ["soak", options @ ..] => soak_chore(options),
        ["help" | "--help" | "-h"] => Some(Chore::Help),
        _ => None,
    }
}

fn commands_chore(options: &[&str]) -> Option<Chore> {
    let wanted = match options {
        [] => commands::Wanted::Minutes(commands::DEFAULT_MINUTES),
        ["--minutes", minutes] => commands::Wanted::Minutes(positive(minutes)?),
        ["--seed", seed] => commands::Wanted::Seed(seed.parse().ok()?),
        _ => return None,
    };
    Some(Chore::FuzzCommands { wanted })
}

fn soak_chore(options: &[&str]) -> Option<Chore> {
    let (mut minutes, mut seed) = (soak::DEFAULT_MINUTES, None);
    for option in options.chunks(2) {
        match option {
            ["--minutes", number] => minutes = positive(number)?,
            ["--seed", number] => seed = Some(positive(number)?),
            _ => return None,
        }
    }
    Some(Chore::Soak { minutes, seed })
}

fn bench_program(name: &'static str, arguments: &[&str]) -> Chore {
    let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
    Chore::BenchProgram { name, arguments }
}

fn fuzz_chore(seconds: u64, targets: &[&str]) -> Option<Chore> {
    if targets.iter().any(|target| target.starts_with('-')) {
        return None;
    }
    Some(Chore::Fuzz { seconds, targets: targets.iter().map(|name| (*name).to_owned()).collect() })
}

fn pymongo_suite_chore(words: &[&str], record: bool) -> Option<Chore> {
    let topology = words.first().and_then(|word| Topology::from_name(word));
    let (topologies, files) = match topology {
        Some(topology) => (vec![topology], &words[1..]),
        None => (Topology::ALL.to_vec(), words),
    };
    if files.iter().any(|file| !file.ends_with(".py")) {
        return None;
    }
    let files = files.iter().map(|file| (*file).to_owned()).collect();
    Some(Chore::PymongoSuite { selection: Selection { topologies, files }, record })
}

/// libFuzzer takes zero seconds for no limit, which is never meant.
fn positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|seconds| *seconds > 0)
}
