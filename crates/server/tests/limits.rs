//! What the machine gives a process: descriptors, permissions, room on the disk.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]
#![allow(dead_code, reason = "the set of processes is shared with other tests")]

#[path = "replica_set/client.rs"]
mod client;
#[path = "replica_set/set.rs"]
mod set;
#[path = "replica_set/small_disk.rs"]
mod small_disk;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bson::{Bson, Document, bson, doc};
use client::{Client, TIMEOUT};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use set::{Set, wait};
use small_disk::SmallDisk;

/// Connections that arrive at once.
const BURST: usize = 2000;

/// When the kernel asks again for a connection that found no room.
const RETRANSMISSION: Duration = Duration::from_secs(1);

/// A server by itself, started by a shell that has done something first.
struct Alone {
    address: SocketAddr,
    process: Child,
}

impl Alone {
    fn start(before: &str, data: &Path) -> Self {
        let mut process = Command::new("sh")
            .args(["-c", &format!("{before} && exec \"$0\" \"$@\"")])
            .args([env!("CARGO_BIN_EXE_quorate-member"), "--leash", "--data"])
            .arg(data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().expect("the server prints its port");
        Self { address: ([127, 0, 0, 1], port).into(), process }
    }

    fn run(&self, command: Document) -> Document {
        Client::connect(self.address, TIMEOUT).unwrap().run(&command, TIMEOUT).unwrap()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn insert(id: i32) -> Document {
    doc! {
        "insert": "c", "documents": [{ "_id": id, "padding": "x".repeat(1000) }], "$db": "db",
        "writeConcern": { "j": true },
    }
}

#[test]
fn silent_connections_leave_the_store_its_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    let server = Alone::start("ulimit -Sn 64 && ulimit -Hn 200", directory.path());
    let mut early = Client::connect(server.address, TIMEOUT).unwrap();
    let reply = early.run(&insert(0), TIMEOUT).unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1);
    let status = early.run(&doc! { "serverStatus": 1, "$db": "admin" }, TIMEOUT).unwrap();
    let connections = status.get_document("connections").unwrap();
    let number = |name: &str| match connections.get(name) {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(number("current") + number("available"), 100, "half of the hard limit");
    // Some of them are refused, some wait to be accepted.
    let silent: Vec<TcpStream> =
        (0..300).filter_map(|_| TcpStream::connect(server.address).ok()).collect();
    assert!(silent.len() > 150);
    for id in 1..200 {
        let reply = early.run(&insert(id), TIMEOUT).unwrap();
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    }
    let collections = (0..50).map(|number| format!("more{number}"));
    for name in collections {
        let create = doc! { "create": name, "$db": "db" };
        let reply = early.run(&create, TIMEOUT).unwrap();
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    }
    drop(silent);
    wait("a new client", || {
        let mut client = Client::connect(server.address, TIMEOUT).ok()?;
        let reply = client.run(&doc! { "ping": 1, "$db": "admin" }, TIMEOUT).ok()?;
        (reply.get_f64("ok").ok() == Some(1.0)).then_some(())
    });
}

/// Clients that all come back after a failover arrive faster than they are accepted. A connection that
/// finds no room in the kernel's queue asks again after a second.
#[test]
fn a_burst_of_connections_finds_room_while_none_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let server = Alone::start("true", directory.path());
    let allowed = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let count = BURST.min(allowed.trim().parse().unwrap());
    let pid = Pid::from_child(&server.process);
    kill_process(pid, Signal::STOP).unwrap();
    let connected: Vec<_> = (0..count)
        .map_while(|_| TcpStream::connect_timeout(&server.address, RETRANSMISSION / 2).ok())
        .collect();
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(connected.len(), count, "the next one was not let in");
    for stream in connected {
        let mut client = Client::over(stream).unwrap();
        let reply = client.run(&doc! { "ping": 1, "$db": "admin" }, TIMEOUT).unwrap();
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    }
}

#[test]
fn data_is_its_owners_alone_whatever_the_umask() {
    let directory = tempfile::tempdir().unwrap();
    for (place, existed) in [("new", false), ("old", true)] {
        let data = directory.path().join(place);
        if existed {
            fs::create_dir(&data).unwrap();
            fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let server = Alone::start("umask 000", &data);
        assert_eq!(server.run(insert(1)).get_i32("n").unwrap(), 1);
        drop(server);
        let mut open = Vec::new();
        let mut left = vec![data];
        while let Some(path) = left.pop() {
            let found = fs::metadata(&path).unwrap();
            if found.permissions().mode() & 0o077 != 0 {
                open.push((path.clone(), found.permissions().mode()));
            }
            if found.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }
}

#[test]
fn a_primary_whose_disk_is_full_hands_over_and_is_healthy_when_there_is_room() {
    let mut set = Set::start(0);
    let Some(disk) = SmallDisk::mount(&set.data(0)) else { return };
    for _ in 0..3 {
        set.add();
    }
    let set = set.initiate(doc! {});
    // The member with the small disk leads.
    set.reconfigure(|config| {
        let members = config.get_array_mut("members").unwrap();
        members[0].as_document_mut().unwrap().insert("priority", 10);
    });
    set.wait("the preferred primary", || {
        let hello = set.run(0, doc! { "hello": 1 }).ok()?;
        hello.get_bool("isWritablePrimary").ok()?.then_some(())
    });
    set.insert(0, doc! { "_id": 1 }, "majority".into()).unwrap();
    disk.fill(8 * 1024 * 1024);
    // Every refusal on the way is one that drivers retry.
    let mut next = 2;
    let refusal = set.wait("the first refusal", || {
        next += 1;
        let command = doc! {
            "insert": "c", "documents": [{ "_id": next }], "$db": "db", "lsid": session(),
            "txnNumber": i64::from(next),
        };
        let reply = set.run(0, command).ok()?;
        (reply.get_f64("ok").ok() == Some(0.0)).then_some(reply)
    });
    let code = refusal.get_i32("code").unwrap();
    assert!([189, 10107, 11602].contains(&code), "{refusal}");
    let labels = refusal.get_array("errorLabels").unwrap();
    assert!(labels.contains(&Bson::from("RetryableWriteError")), "{refusal}");
    let other = set.primary_among(&[1, 2]);
    for id in 1000..1010 {
        set.insert(other, doc! { "_id": id }, Bson::from(2)).unwrap();
    }
    assert!(set.is_running(0), "it is there, and waits");
    disk.make_room();
    set.wait_until_identical();
    set.wait("the preferred primary again", || {
        let hello = set.run(0, doc! { "hello": 1 }).ok()?;
        hello.get_bool("isWritablePrimary").ok()?.then_some(())
    });
    set.insert(0, doc! { "_id": 2000 }, "majority".into()).unwrap();
}

/// Inserts documents of a MiB until one is refused. Returns how many there are.
fn fill(server: &Alone, first: i32) -> i32 {
    let mut client = Client::connect(server.address, TIMEOUT).unwrap();
    for id in first.. {
        let bytes =
            bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![7; 1 << 20] };
        let document = doc! { "_id": id, "half": id % 2, "bytes": bytes };
        let command = doc! { "insert": "c", "documents": [document], "$db": "db" };
        let reply = client.run(&command, TIMEOUT).unwrap();
        if reply.get_f64("ok").unwrap() == 0.0 {
            assert_eq!(reply.get_i32("code").unwrap(), 14031, "{reply}");
            return id;
        }
    }
    unreachable!()
}

/// Nothing is flushed because of so few removals, and no merge of all that is there has room.
#[test]
fn documents_that_are_deleted_on_a_full_disk_make_room() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let Some(_disk) = SmallDisk::mount_of(1024, &data) else { return };
    let server = Alone::start("true", &data);
    let mut count = fill(&server, 0);
    assert!(count > 50, "{count}");
    for filter in [doc! { "half": 1 }, doc! {}] {
        let delete = doc! { "delete": "c", "deletes": [{ "q": filter, "limit": 0 }], "$db": "db" };
        let reply = server.run(delete);
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        wait("room for a document", || {
            let reply = server.run(insert(-1 - count));
            (reply.get_f64("ok").unwrap() == 1.0).then_some(())
        });
        let before = count;
        count = fill(&server, count);
        assert!(count > before + 20, "{count} after {before}");
    }
}

fn session() -> Document {
    let bytes = vec![7; 16];
    doc! { "id": bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes } }
}

/// From now on every write of a member to a file fails, as on a disk that is broken.
fn break_disk(set: &Set, place: usize) {
    let pid = Some(set.pid(place));
    let maximum = getrlimit(Resource::Fsize).maximum;
    prlimit(pid, Resource::Fsize, Rlimit { current: Some(0), maximum }).unwrap();
}

/// Codes of a member that leads no more, or is about to: drivers go to the next primary and try again.
const RETRIED: [i32; 4] = [189, 91, 10107, 11602];

/// What a disk that failed holds is unknown. The primary hands over, then its process ends; its clients are
/// sent to the next primary with codes that drivers retry.
#[test]
fn a_primary_whose_disk_fails_hands_over_and_ends() {
    let mut set = Set::start(0);
    // A process is told that a file is too long, and is not ended for it.
    set.before = Some("trap '' XFSZ".to_owned());
    for _ in 0..3 {
        set.add();
    }
    let mut set = set.initiate(doc! {});
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 1 }, Bson::from(3)).unwrap();
    set.wait("members that the primary sees as secondaries", || {
        let status = set.run(primary, doc! { "replSetGetStatus": 1 }).ok()?;
        let members = status.get_array("members").ok()?;
        let states = members.iter().filter_map(|m| m.as_document()?.get_i32("state").ok());
        (states.filter(|state| *state == 2).count() == 2).then_some(())
    });
    break_disk(&set, primary);
    let mut client = Client::connect(set.members[primary].address, TIMEOUT).unwrap();
    // It was applied, and others may have it: the disk fails when the journal is written for all that wait.
    let reply = client.run(&insert(2), TIMEOUT).unwrap();
    let unsure = reply.get_document("writeConcernError").unwrap_or(&reply);
    assert!(RETRIED.contains(&unsure.get_i32("code").unwrap_or_default()), "{reply}");
    let next = set.primary_among(&set.others(primary));
    set.insert(next, doc! { "_id": 3 }, "majority".into()).unwrap();
    let status = set.ok(next, doc! { "replSetGetStatus": 1 });
    let election = status.get_document("electionCandidateMetrics").unwrap();
    // At once: it was asked to, or has seen that the process is gone if it did not have the last write.
    let reason = election.get_str("lastElectionReason").unwrap();
    assert!(["stepUpRequestSkipDryRun", "primaryCrashed"].contains(&reason), "{reason}");
    let mut process = set.take_process(primary);
    let ended = wait("the end of the process", || process.try_wait().unwrap());
    assert!(!ended.success(), "it does not end as if all were well");
    set.restart(primary);
    set.wait_for_state(primary, "SECONDARY");
    set.wait_until_identical();
    for id in [1, 3] {
        let find = doc! { "find": "c", "filter": { "_id": id }, "$db": "db" };
        let reply = set.ok(set.primary(), find);
        let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        assert_eq!(found.len(), 1, "{id}");
    }
}

/// Pipelines, and what their refusal names.
type Refused = Vec<(&'static str, Vec<Bson>)>;

/// Expressions that multiply what a client wrote.
fn multiplying_expressions() -> Refused {
    let numbers = |count: i32| bson!({ "$range": [0, count] });
    let some = || numbers(250_000);
    let doubled = |operator: &str, start: Bson| {
        bson!({ "$reduce": {
            "input": { "$range": [0, 100] }, "initialValue": start,
            "in": { operator: ["$$value", "$$value"] },
        } })
    };
    let nested = (0..12).fold(some(), |inner, _| {
        bson!({ "$let": { "vars": { "v": inner }, "in": { "$concatArrays": ["$$v", "$$v"] } } })
    });
    let variables = bson!({ "a": some(), "b": some(), "c": some(), "d": some() });
    let replaced = bson!({ "input": "$text", "find": "x", "replacement": "$text" });
    let expressions = [
        ("$range", numbers(2_500_000)),
        ("$zip", bson!({ "$zip": { "inputs": [some(), some(), some()] } })),
        ("$concatArrays", doubled("$concatArrays", bson!(["x"]))),
        ("$concat", doubled("$concat", bson!("xy"))),
        ("$setUnion", bson!({ "$setUnion": [some(), { "$range": [250_000, 625_000] }] })),
        ("$range", bson!({ "$let": { "vars": variables, "in": 1 } })),
        ("$map", bson!({ "$map": { "input": numbers(1000), "in": numbers(10_000) } })),
        ("array", Bson::Array(vec![some(); 100])),
        ("$concatArrays", nested),
        ("$replaceAll", bson!({ "$replaceAll": replaced })),
    ];
    let stages = |value: Bson| vec![bson!({ "$limit": 1 }), bson!({ "$project": { "v": value } })];
    expressions.into_iter().map(|(holder, value)| (holder, stages(value))).collect()
}

/// Stages that multiply what a client wrote.
fn multiplying_stages() -> Refused {
    let tenfold = |last: Bson| {
        let each = bson!({ "$addFields": { "each": { "$range": [0, 10] } } });
        vec![each, bson!({ "$unwind": "$each" }), last]
    };
    let ten = |value: Bson| (0..10).map(move |n| (format!("f{n}"), value.clone()));
    let mut pushes = doc! { "_id": "$k" };
    pushes.extend(ten(bson!({ "$push": "$$ROOT" })));
    let mut chained = vec![bson!({ "$limit": 1 }), bson!({ "$addFields": { "a": "$text" } })];
    chained.extend((0..30).map(|_| bson!({ "$addFields": { "a": ["$a", "$a"] } })));
    let key = bson!({ "$add": [{ "$multiply": ["$_id", 10] }, "$each"] });
    let buckets = doc! {
        "groupBy": "$_id", "buckets": 2, "output": { "all": { "$push": "$$ROOT" } },
    };
    let window = doc! { "sortBy": { "_id": 1 }, "output": { "n": { "$sum": 1 } } };
    vec![
        ("array", chained),
        ("$facet", vec![bson!({ "$facet": ten(bson!([{ "$match": {} }])).collect::<Document>() })]),
        ("$group", vec![bson!({ "$group": pushes })]),
        ("$group", tenfold(bson!({ "$group": { "_id": key, "t": { "$first": "$text" } } }))),
        ("$bucketAuto", tenfold(bson!({ "$bucketAuto": buckets }))),
        ("$setWindowFields", tenfold(bson!({ "$setWindowFields": window }))),
    ]
}

/// The memory of a process, in MiB.
fn resident(process: &Child) -> u64 {
    mebibytes(process, "VmRSS:")
}

/// The most that it has had.
fn most_resident(process: &Child) -> u64 {
    mebibytes(process, "VmHWM:")
}

fn mebibytes(process: &Child, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

/// What is left, in MiB, of the gibibyte that was held: data, caches, and pages that are free in part.
const SMALL_AGAIN: u64 = 320;

/// The most that the process may have been, in MiB: half as much again as all operations may hold together.
const LARGEST: u64 = 1536;

/// No limit is set: each operation has its 100 MiB, and all of them together have 1 GiB.
#[test]
fn pipelines_that_multiply_end_at_the_usual_limits_and_the_process_becomes_small_again() {
    let directory = tempfile::tempdir().unwrap();
    let server = Alone::start("true", &directory.path().join("data"));
    let text = "x".repeat(100_000);
    for chunk in 0..20 {
        let documents = (0..10).map(|n| doc! { "_id": chunk * 10 + n, "k": 1, "text": &text });
        let documents: Vec<_> = documents.collect();
        server.run(doc! { "insert": "c", "documents": documents, "$db": "db" });
    }
    let aggregate = |pipeline: &[Bson]| {
        let pipeline = Bson::Array(pipeline.to_vec());
        server.run(doc! {
            "aggregate": "c", "pipeline": pipeline, "cursor": {}, "allowDiskUse": false, "$db": "db",
        })
    };
    let mut pipelines = multiplying_expressions();
    pipelines.extend(multiplying_stages());
    assert_eq!(pipelines.len(), 16);
    for (holder, pipeline) in &pipelines {
        let refusal = aggregate(pipeline);
        assert_eq!(refusal.get_i32("code").ok(), Some(292), "{pipeline:?}: {refusal}");
        assert!(refusal.get_str("errmsg").unwrap().contains(holder), "{holder}: {refusal}");
    }
    // All at the same time, several times: some meet the limit of the process first.
    std::thread::scope(|threads| {
        for (_, pipeline) in pipelines.iter().cycle().take(3 * pipelines.len()) {
            let aggregate = &aggregate;
            threads.spawn(move || {
                for _ in 0..2 {
                    let refusal = aggregate(pipeline);
                    let code = refusal.get_i32("code");
                    assert!(matches!(code, Ok(292 | 146)), "{pipeline:?}: {refusal}");
                }
            });
        }
    });
    let largest = most_resident(&server.process);
    wait("the process is small again", || (resident(&server.process) < SMALL_AGAIN).then_some(()));
    println!("{largest} MiB at most, {} MiB later", resident(&server.process));
    assert!(largest < LARGEST, "what operations have freed is not given back: {largest} MiB");
}
