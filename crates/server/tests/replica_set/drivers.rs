//! The official drivers, mongosh and our own client against a real set.
//!
//! The scripts are in `drivers/`; what they need is installed by `quorate-provision`. A script that is
//! content says so last; whatever else it says is in the report of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use bson::{Bson, doc};
use quorate_client::Client;

use crate::set::Set;

const PYMONGO: &str = "pymongo==4.19.0";
const NODE_DRIVER: &str = "mongodb@7.8.0";
const SHELL: &str = "mongosh@2.12.0";

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replica_set/drivers").join(name)
}

fn python(name: &str) -> Command {
    let mut command = Command::new(quorate_provision::python(&[PYMONGO]).unwrap());
    command.arg(script(name));
    command
}

fn node(set: &Set, monitoring: &str) -> Command {
    let modules = quorate_provision::npm(&[NODE_DRIVER]).unwrap();
    let mut node = Command::new("node");
    let uri = format!("{}&serverMonitoringMode={monitoring}", set.uri());
    node.arg(script("failover.mjs")).arg(uri).arg(modules);
    node
}

/// Runs a script to its end, which must be a good one.
fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A script that writes until it is told to stop, and tells how far it is.
struct Writer {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Writer {
    fn start(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = piped.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// Waits until it has written some more from now on.
    fn writes(&mut self) {
        let asked = self.process.stdin.as_mut().map(|input| input.write_all(b"more\n"));
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let answered = matches!(asked, Some(Ok(()))) && !line.is_empty();
        assert!(answered, "the writer gave up: {}", self.complaint());
    }

    fn finish(mut self) {
        drop(self.process.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        let complaint = self.complaint();
        assert!(self.process.wait().unwrap().success(), "{rest}{complaint}");
        assert_eq!(rest.lines().last(), Some("content"), "{complaint}");
    }

    fn complaint(&mut self) -> String {
        let mut complaint = String::new();
        if let Some(mut errors) = self.process.stderr.take() {
            errors.read_to_string(&mut complaint).unwrap();
        }
        complaint
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It has ended, or the test has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Kills the primary, brings it back, and has the next one step down, twice; `writes` returns when
/// clients have written again.
fn break_the_set(set: &mut Set, mut writes: impl FnMut()) {
    writes();
    for _ in 0..2 {
        let primary = set.primary();
        set.kill(primary);
        writes();
        set.restart(primary);
        set.wait_for_state(primary, "SECONDARY");
        writes();
        set.step_down();
        writes();
    }
}

#[test]
fn mongosh_administers_a_set() {
    let set = Set::start(4);
    let modules = quorate_provision::npm(&[SHELL]).unwrap();
    let hosts: Vec<String> = (0..4).map(|place| set.host(place)).collect();
    let mut shell = Command::new(modules.join(".bin/mongosh"));
    shell.args(["--nodb", "--quiet", "--norc"]).arg(script("shell.js"));
    succeed(shell.env("MEMBERS", hosts.join(",")));
}

#[test]
fn pymongo_sees_no_error_while_primaries_die_and_step_down() {
    let mut set = Set::initiated(3);
    let mut writer = Writer::start(python("failover.py").arg(set.uri()));
    break_the_set(&mut set, || writer.writes());
    writer.finish();
}

/// The Node driver does not retry a write whose connection its monitor has found dead first: it then
/// takes the error for a stale one. A killed process closes both at once, so only a polling monitor
/// never wins that race.
#[test]
fn the_node_driver_sees_no_error_while_primaries_die_and_step_down() {
    let mut set = Set::initiated(3);
    let mut writer = Writer::start(&mut node(&set, "poll"));
    break_the_set(&mut set, || writer.writes());
    writer.finish();
}

#[test]
fn the_node_driver_with_streaming_monitors_sees_no_error_while_primaries_step_down() {
    let set = Set::initiated(3);
    let mut writer = Writer::start(&mut node(&set, "stream"));
    for _ in 0..4 {
        writer.writes();
        set.step_down();
    }
    writer.writes();
    writer.finish();
}

#[test]
fn our_client_sees_no_error_while_primaries_die_and_step_down() {
    let mut set = Set::initiated(3);
    let uri = format!("{}&w=majority&serverSelectionTimeoutMS=60000", set.uri());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let client = {
        let _inside = runtime.enter();
        Client::with_uri(&uri).unwrap()
    };
    let (written, stop) = (AtomicI32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            runtime.block_on(async {
                let orders = client.collection("shop", "orders");
                while !stop.load(Ordering::Relaxed) {
                    let id = written.load(Ordering::Relaxed);
                    orders.insert_one(doc! { "_id": id, "n": 0 }).await.unwrap();
                    let change = doc! { "$inc": { "n": 1 } };
                    orders.update_one(doc! { "_id": id }, change).await.unwrap();
                    written.store(id + 1, Ordering::Relaxed);
                }
            });
        });
        break_the_set(&mut set, || {
            let goal = written.load(Ordering::Relaxed) + 20;
            crate::set::wait("our client to write", || {
                assert!(!writer.is_finished(), "the client saw an error");
                (written.load(Ordering::Relaxed) >= goal).then_some(())
            });
        });
        stop.store(true, Ordering::Relaxed);
    });
    let count = runtime.block_on(async {
        let orders = client.collection("shop", "orders");
        orders.count_documents(doc! { "n": 1 }).await.unwrap()
    });
    assert_eq!(count as i32, written.load(Ordering::Relaxed));
    runtime.block_on(client.close());
}

#[test]
fn pymongo_reads_by_every_preference_and_tag_set() {
    let set = Set::start(3);
    let mut config = set.config();
    for (place, member) in config.get_array_mut("members").unwrap().iter_mut().enumerate() {
        let member = member.as_document_mut().unwrap();
        member.insert("tags", doc! { "place": place.to_string(), "kind": "test" });
    }
    set.ok(0, doc! { "replSetInitiate": config });
    let primary = set.primary();
    for place in set.others(primary) {
        set.wait_for_state(place, "SECONDARY");
    }
    assert_eq!(set.insert(primary, doc! { "_id": 0 }, Bson::Int32(3)), Ok(()));
    succeed(python("reads.py").arg(set.uri()));
}
