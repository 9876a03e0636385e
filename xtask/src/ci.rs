//! `cargo xtask ci`: everything that must hold before a change is taken, in one command.
//!
//! A step that fails does not keep the others from running, so that one run tells all there is to
//! tell. Tests wait for elections and deadlines most of their time. What only needs the processor runs beside
//! them, at the lowest priority, so that it takes what they leave.

use std::collections::BTreeSet;
use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{self, Transcript};
use crate::{Failure, fuzz, map, pages, publishable, purity, pymongo_suite, shape};

/// How long each fuzz target runs by default: enough to see that it works.
pub(crate) const DEFAULT_FUZZ_SECONDS: u64 = 5;

/// Names to the tests the file of what they tell the run, as `quorate-test-support` has it.
const TOLD: &str = "QUORATE_TOLD";

/// How many tests run at a time for each processor: many wait for elections and deadlines most of their time.
const TESTS_PER_PROCESSOR: usize = 2;

/// What a step has to say for itself beside "ok", such as how many tests it ran.
type Outcome = Result<String, Failure>;

type Step = (&'static str, Box<dyn Fn() -> Outcome + Send>);

struct Finished {
    name: &'static str,
    elapsed: Duration,
    outcome: Outcome,
}

/// Runs every step.
pub(crate) fn run(fuzz_seconds: u64) -> Result<(), Failure> {
    let fuzz = move || {
        fuzz::run(fuzz::Effort::Smoke, fuzz_seconds, &[])
            .map(|targets| format!("{targets} targets"))
    };
    let first: Vec<Step> = vec![
        ("fmt", Box::new(fmt)),
        ("shape", Box::new(shape::run)),
        ("map", Box::new(|| map::run(false))),
        ("pages", Box::new(pages::run)),
        ("purity", Box::new(|| quiet(purity::run()))),
        ("publishable", Box::new(publishable::run)),
        ("build", Box::new(build)),
    ];
    // Clippy locks the folder in which the tests are built, and tests that run cargo themselves would wait for it with a
    // deadline: it runs beside pymongo's tests, which run none.
    let mut finished = take(first);
    let (begin_clippy, clippy_begins) = mpsc::channel();
    let guard = move || {
        let built = || build().map(drop);
        pymongo_suite::guard(built, || {
            // Ignore send errors: the receiver is gone if the thread of clippy has panicked.
            let _ = begin_clippy.send(());
        })
    };
    finished.extend(thread::scope(|scope| {
        let computing = scope.spawn(move || {
            process::yield_to_others();
            let mut finished = take(vec![("fuzz", Box::new(fuzz))]);
            // An error says that pymongo's tests have ended before they began.
            let _ = clippy_begins.recv();
            finished.extend(take(vec![("clippy", Box::new(clippy))]));
            finished
        });
        let mut both = take(vec![("tests", Box::new(tests)), ("pymongo", Box::new(guard))]);
        both.extend(computing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        both.extend(take(vec![("doctests", Box::new(doctests))]));
        both
    }));
    summarise(&finished)
}

/// Takes these steps one after another.
fn take(steps: Vec<Step>) -> Vec<Finished> {
    let taken = steps.into_iter().map(|(name, step)| {
        eprintln!("ci: {name} …");
        let started = Instant::now();
        let outcome = step();
        if let Err(Failure(reason)) = &outcome {
            eprintln!("ci: {name} failed: {reason}");
        }
        Finished { name, elapsed: started.elapsed(), outcome }
    });
    taken.collect()
}

fn summarise(finished: &[Finished]) -> Result<(), Failure> {
    println!();
    let mut failed = Vec::new();
    for Finished { name, elapsed, outcome } in finished {
        let seconds = elapsed.as_secs_f64();
        match outcome {
            Ok(note) if note.is_empty() => println!("ci: {name:<12} ok     {seconds:7.1} s"),
            Ok(note) => println!("ci: {name:<12} ok     {seconds:7.1} s  {note}"),
            Err(Failure(reason)) => {
                println!("ci: {name:<12} FAILED {seconds:7.1} s  {reason}");
                failed.push(*name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(fail!("failed: {}", failed.join(", "))) }
}

fn quiet(result: Result<(), Failure>) -> Outcome {
    result.map(|()| String::new())
}

fn cargo(arguments: &[&str]) -> Outcome {
    quiet(process::run(process::cargo().args(arguments)))
}

fn fmt() -> Outcome {
    cargo(&["fmt", "--all", "--check"])?;
    // Workspaces of their own.
    cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])?;
    cargo(&["fmt", "--manifest-path", "benchmarks/Cargo.toml", "--check"])
}

fn doctests() -> Outcome {
    cargo(&["test", "--workspace", "--doc", "--quiet"])
}

fn clippy() -> Outcome {
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"])
}

/// Whether nextest is installed, which runs test programs side by side.
fn has_nextest() -> bool {
    process::watch(process::cargo().args(["nextest", "--version"]), false)
        .is_ok_and(|transcript| transcript.succeeded)
}

/// Builds the tests, which takes all processors, before anything runs beside them.
fn build() -> Outcome {
    match has_nextest() {
        true => cargo(&["nextest", "run", "--workspace", "--no-run"]),
        false => cargo(&["test", "--workspace", "--no-run", "--lib", "--bins", "--tests"]),
    }
}

/// With nextest where it is installed. A test that fails is tried once more; one that then passes is named in
/// the outcome, because it is a defect to look at.
fn tests() -> Outcome {
    let arguments: &[&str] = if has_nextest() {
        &[
            "nextest", "run", "--workspace", "--no-fail-fast", "--retries", "1", "--status-level",
            "retry", "--final-status-level", "flaky", "--color", "never",
        ]
    } else {
        &["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests", "--color", "never"]
    };
    let told = process::target_directory().join("told.txt");
    // Of an earlier run, if it is there.
    let _ = fs::remove_file(&told);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut command = process::cargo();
    command.env("NEXTEST_TEST_THREADS", (processors * TESTS_PER_PROCESSOR).to_string());
    command.args(arguments).env(TOLD, &told).env("QUORATE_CONTAINERS", "without");
    let transcript = process::watch(&mut command, true)?;
    let passed = count(&transcript, " passed");
    // A skipped test is believed to be running.
    let skipped = count(&transcript, " skipped") + count(&transcript, " ignored");
    if !transcript.succeeded {
        let names = failed(&transcript.lines);
        return Err(fail!("{} tests fail: {}", names.len(), names.join(", ")));
    }
    fail_if!(passed == 0 => "no test was run");
    fail_if!(skipped > 0 => "{skipped} tests were skipped; run or remove them");
    let flaky: Vec<&str> = transcript.lines.iter().filter_map(|line| flaky(line)).collect();
    let mut note = format!("{passed} tests");
    if !flaky.is_empty() {
        let names = flaky.join(", ");
        note += &format!(", of which {} passed only when tried again: {names}", flaky.len());
    }
    let told = fs::read_to_string(&told).unwrap_or_default();
    note += &format!(", {} published scenarios", scenarios(&told));
    for line in told.lines() {
        if line.starts_with("NOT SHOWN: ") {
            note += &format!("\n    {line}");
        } else {
            eprintln!("{line}");
        }
    }
    Ok(note)
}

/// How many scenarios the lines of `quorate-conformance` tell of: `conformance: NAME PASSED/TOTAL, ...` each.
fn scenarios(told: &str) -> u64 {
    let totals = told.lines().filter_map(|line| {
        let (_, rest) = line.strip_prefix("conformance: ")?.split_once('/')?;
        rest.split(',').next()?.parse::<u64>().ok()
    });
    totals.sum()
}

/// The tests that nextest's last summary calls failed or hung, or that cargo's own runner does.
fn failed(lines: &[String]) -> Vec<&str> {
    // Before the summary stands every try, also of tests that passed in the end.
    let summary = lines.iter().position(|line| line.trim_start().starts_with("Summary ["));
    let names = lines[summary.unwrap_or(0)..].iter().filter_map(|line| {
        let line = line.trim_start();
        if let Some(test) = line.strip_prefix("test ") {
            return test.strip_suffix(" ... FAILED");
        }
        let has_failed = ["FAIL ", "TIMEOUT ", "TRY ", "SIG", "ABORT ", "LEAK-FAIL "];
        has_failed.iter().find(|word| line.starts_with(**word))?;
        let (_, rest) = line.split_once("] ")?;
        Some(rest.split_once(") ").map_or(rest, |(_, name)| name))
    });
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The test that a line of nextest's last summary calls flaky.
fn flaky(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (_, rest) = line.strip_prefix("FLAKY ")?.split_once("] ")?;
    Some(rest.split_once(") ").map_or(rest, |(_, name)| name))
}

/// The number before "passed" in the summaries: one of nextest's, one per program of cargo's.
fn count(transcript: &Transcript, what: &str) -> u64 {
    let summaries = transcript.lines.iter().filter(|line| {
        let line = line.trim_start();
        line.starts_with("Summary [") || line.starts_with("test result: ")
    });
    summaries.filter_map(|line| number_before(line, what)).sum()
}

fn number_before(line: &str, word: &str) -> Option<u64> {
    let (front, _) = line.split_once(word)?;
    front.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(lines: &[&str]) -> u64 {
        counted(lines, " passed")
    }

    fn counted(lines: &[&str], what: &str) -> u64 {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        super::count(&Transcript { succeeded: true, lines }, what)
    }

    #[test]
    fn skipped_tests_are_noticed() {
        let nextest = "     Summary [   0.5s] 77 tests run: 77 passed, 2 skipped";
        assert_eq!(counted(&[nextest], " skipped"), 2);
        let libtest = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(counted(&[libtest], " ignored"), 1);
    }

    #[test]
    fn tests_that_passed_only_at_the_second_try_are_named() {
        let line = "   FLAKY 2/2 [   1.022s] (17/77) quorate-server::replica_set drivers::one";
        assert_eq!(flaky(line), Some("quorate-server::replica_set drivers::one"));
        assert_eq!(flaky("        PASS [   1.022s] quorate-server one"), None);
        let summary = "     Summary [  5.0s] 77 tests run: 77 passed (1 flaky), 0 skipped";
        assert_eq!((count(&[summary]), counted(&[summary], " skipped")), (77, 0));
    }

    #[test]
    fn published_scenarios_are_counted() {
        let told =
            "conformance: auth 8/8\nNOT SHOWN: a/7\nconformance: crud 295/437, skipped: 5 a/b\n";
        assert_eq!(scenarios(told), 445);
    }

    #[test]
    fn tests_that_fail_are_named() {
        let lines = [
            "  TRY 1 FAIL [   0.006s] (1/3) quorate-a::b flaky",
            "     Summary [   5.0s] 3 tests run: 1 passed (1 flaky), 2 failed, 0 skipped",
            "  TRY 2 FAIL [   0.006s] (2/3) quorate-a::b one",
            "     TIMEOUT [ 600.000s] (3/3) quorate-a::b two",
            "   FLAKY 2/2 [   1.022s] (1/3) quorate-a::b flaky",
            "error: test run failed",
        ];
        let lines = lines.map(str::to_owned);
        assert_eq!(failed(&lines), ["quorate-a::b one", "quorate-a::b two"]);
        let lines = ["test a::one ... ok", "test a::two ... FAILED"].map(str::to_owned);
        assert_eq!(failed(&lines), ["a::two"]);
    }

    #[test]
    fn tests_are_counted_in_either_summary() {
        assert_eq!(count(&["     Summary [   0.5s] 77 tests run: 76 passed, 1 failed"]), 76);
        assert_eq!(
            count(&["test result: ok. 3 passed; 0 failed", "test result: ok. 62 passed; 0 failed"]),
            65
        );
        assert_eq!(count(&["running 3 tests", "9 passed on the way"]), 0);
    }
}
