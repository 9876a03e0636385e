//! Histories of transactions through pymongo, with its own retries, while primaries are killed at chosen
//! places: between the first statement and the commit, and between the commit and its reply.
//!
//! The script is `histories/transactions.py`. The judges are those of `quorate-checker`: snapshot isolation by
//! cycles between transactions on lists, and a bank whose total never changes. The ordinary tests make one round of
//! kills; `cargo xtask histories` goes on for minutes.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is the report")]
#![allow(dead_code, reason = "the set of processes is shared with other tests")]

#[path = "replica_set/client.rs"]
mod client;
#[path = "replica_set/set.rs"]
mod set;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bson::doc;
use quorate_checker::list_append::Model;
use quorate_checker::{History, Outcome, Verdict, bank, list_append};
use quorate_test_support::{FaultNetwork, Flow};
use set::{Network, Set};

const PYMONGO: &str = "pymongo==4.19.0";

/// How long kills go on, in seconds. Every kind comes once in any case.
const SECONDS: &str = "QUORATE_HISTORIES_SECONDS";

/// What the accounts of the script hold together.
const TOTAL: i64 = 600;

/// Where the primary is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kill {
    /// After the first statement of a transaction, before its commit.
    BeforeCommit,
    /// After the commit, which no other member has: it is undone.
    CommitLost,
    /// After the commit, which a majority has; the client has no reply.
    CommitKept,
    /// About when the commit is sent.
    AtCommit,
}

const KILLS: [Kill; 4] = [Kill::BeforeCommit, Kill::CommitLost, Kill::CommitKept, Kill::AtCommit];

/// The script, and what it says.
struct Script {
    process: Child,
    output: BufReader<ChildStdout>,
}

/// How a transaction ended that the script was asked for.
#[derive(Debug)]
struct Ended {
    outcome: String,
    attempts: u64,
}

impl Script {
    fn start(set: &Set, workload: &str, history: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories/transactions.py");
        let mut command = Command::new(quorate_provision::python(&[PYMONGO]).unwrap());
        command.arg(script).args([&set.uri(), workload]).arg(history);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut script = Self { process, output };
        assert_eq!(script.line(), "ready");
        script
    }

    fn say(&mut self, words: &str) {
        let input = self.process.stdin.as_mut().unwrap();
        writeln!(input, "{words}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the script gave up; what it says is above");
        line.trim().to_owned()
    }

    fn ended(&mut self) -> Ended {
        let line = self.line();
        let words: Vec<&str> = line.split(' ').collect();
        let ["ended", outcome, attempts, _] = words[..] else { panic!("{line}") };
        Ended { outcome: outcome.to_owned(), attempts: attempts.parse().unwrap() }
    }

    fn finish(mut self) {
        drop(self.process.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.process.wait().unwrap().success(), "{rest}");
        assert_eq!(rest.trim(), "content");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // It has ended, or the test has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until a member shows a mark, committed by a majority or not.
fn wait_for_mark(set: &Set, place: usize, mark: &str) {
    let find = doc! {
        "find": "marks", "filter": { "n": mark.parse::<i64>().unwrap() }, "$db": "histories",
        "readConcern": { "level": "local" }, "$readPreference": { "mode": "primaryPreferred" },
    };
    set.wait("the commit to be made", || {
        let reply = set.run(place, find.clone()).ok()?;
        let batch = reply.get_document("cursor").ok()?.get_array("firstBatch").ok()?;
        (!batch.is_empty()).then_some(())
    });
}

/// Kills the primary at this place of a transaction, and brings it back when the transaction has ended.
fn kill(kill: Kill, set: &mut Set, script: &mut Script) {
    let primary = set.primary();
    let others = set.others(primary);
    let ended = match kill {
        Kill::BeforeCommit => {
            script.say("statement");
            assert_eq!(script.line(), "statement");
            set.kill(primary);
            script.say("go");
            script.ended()
        }
        Kill::CommitLost => {
            script.say("commit majority");
            let mark = script.line().strip_prefix("commit ").unwrap().to_owned();
            set.faults().between(&[primary], &others, Flow::Dropped);
            script.say("go");
            wait_for_mark(set, primary, &mark);
            set.kill(primary);
            set.faults().heal();
            script.ended()
        }
        Kill::CommitKept => {
            let (cut_off, follower) = (others[0], others[1]);
            script.say("commit 3");
            let mark = script.line().strip_prefix("commit ").unwrap().to_owned();
            set.faults().between(&[cut_off], &[primary, follower], Flow::Dropped);
            script.say("go");
            wait_for_mark(set, follower, &mark);
            set.kill(primary);
            set.faults().heal();
            script.ended()
        }
        Kill::AtCommit => {
            script.say("racing");
            assert_eq!(script.line(), "racing");
            set.kill(primary);
            script.ended()
        }
    };
    eprintln!("histories: {kill:?} of member {primary}: {ended:?}");
    assert_eq!(ended.outcome, "ok", "pymongo rides through a failover");
    match kill {
        // The transaction is lost with its primary, so that pymongo repeats it.
        Kill::BeforeCommit | Kill::CommitLost => assert!(ended.attempts > 1, "{ended:?}"),
        // It is committed: only the commit is repeated.
        Kill::CommitKept => assert_eq!(ended.attempts, 1),
        Kill::AtCommit => {}
    }
    set.restart(primary);
    set.wait_for_state(primary, "SECONDARY");
}

/// One history under kills of every kind.
fn history(workload: &str) -> (History, usize) {
    let seconds = std::env::var(SECONDS).map_or(0, |text| text.parse().expect("a whole number"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history.jsonl");
    let settings = doc! { "electionTimeoutMillis": 5000, "heartbeatIntervalMillis": 500 };
    let network = Network::Proxied(FaultNetwork::new());
    let mut set = Set::start_on(network, 3).initiate(settings);
    let mut script = Script::start(&set, workload, &file);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut kills: BTreeMap<Kill, usize> = BTreeMap::new();
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < end {
        for which in KILLS {
            kill(which, &mut set, &mut script);
            *kills.entry(which).or_default() += 1;
        }
        rounds += 1;
    }
    script.finish();
    set.wait_until_identical();
    let history = History::from_lines(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    for operation in history.operations() {
        *outcomes.entry(operation.outcome).or_default() += 1;
    }
    eprintln!("histories: {workload}: {kills:?}, transactions {outcomes:?}");
    (history, rounds)
}

fn judge(verdict: &Verdict, history: &History) {
    assert!(verdict.is_valid(), "{verdict:#?}\n{}", history.to_lines());
    let acknowledged = history.operations().iter().filter(|one| one.outcome == Outcome::Ok);
    assert!(acknowledged.count() > 4 * KILLS.len(), "clients were at work");
}

#[test]
fn lists_keep_snapshot_isolation_while_primaries_are_killed_around_commits() {
    let (history, _) = history("append");
    judge(&list_append::check(&history, Model::SnapshotIsolation), &history);
}

#[test]
fn a_bank_loses_nothing_while_primaries_are_killed_around_commits() {
    let (history, _) = history("bank");
    judge(&bank::check(&history, TOTAL), &history);
}
