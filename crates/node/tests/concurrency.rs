//! Writers beside long work: index builds and writes to many documents let others have their turn.
//!
//! Builds are held up in the middle of their scan by a store that stops there, so that what happens
//! meanwhile does not depend on the machine.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use quorate_node::{Command, Interruption, Node, NodeOptions, Outcome};
use quorate_storage::{
    Batch, Bytes, CommitError, CommitSequence, Damage, Direction, KeyRange, KeyspaceError,
    KeyspaceId, LogTotals, ModelStore, ReadError, Scan, Snapshot, Store, StoreStatistics,
    SyncError,
};
use support::{Member, context, now};

/// Documents in the collections: more than are indexed at once.
const DOCUMENTS: i32 = 3000;

/// The item of a scan at which it stops.
const STOP_AT: usize = 1500;

/// How long an interleaving may be waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stops one long scan in its middle.
struct Gate {
    /// How many scans may still pass; none if it is open.
    armed: Mutex<Option<usize>>,
    reached: Sender<()>,
    released: Mutex<Receiver<()>>,
}

impl Gate {
    fn pass(&self) {
        let mut armed = self.armed.lock().unwrap();
        match *armed {
            None => {}
            Some(0) => {
                *armed = None;
                drop(armed);
                self.reached.send(()).unwrap();
                self.released.lock().unwrap().recv().unwrap();
            }
            Some(left) => *armed = Some(left - 1),
        }
    }
}

struct GatedStore {
    store: Arc<ModelStore>,
    gate: Arc<Gate>,
}

struct GatedSnapshot {
    snapshot: Arc<dyn Snapshot>,
    gate: Arc<Gate>,
}

impl Snapshot for GatedSnapshot {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.snapshot.get(keyspace, key)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Scan, ReadError> {
        let gate = Arc::clone(&self.gate);
        let scan = self.snapshot.scan(keyspace, range, direction)?.enumerate();
        Ok(Box::new(scan.map(move |(place, item)| {
            if place == STOP_AT {
                gate.pass();
            }
            item
        })))
    }

    fn log_totals(&self, log: KeyspaceId) -> Result<LogTotals, ReadError> {
        self.snapshot.log_totals(log)
    }
}

impl Store for GatedStore {
    fn create_keyspace(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        self.store.create_keyspace(name)
    }
    fn create_log(&self, name: &str) -> Result<KeyspaceId, KeyspaceError> {
        self.store.create_log(name)
    }
    fn drop_keyspace(&self, keyspace: KeyspaceId) -> Result<(), KeyspaceError> {
        self.store.drop_keyspace(keyspace)
    }
    fn keyspaces(&self) -> Vec<(String, KeyspaceId)> {
        self.store.keyspaces()
    }
    fn snapshot(&self) -> Arc<dyn Snapshot> {
        let (snapshot, gate) = (self.store.snapshot(), Arc::clone(&self.gate));
        Arc::new(GatedSnapshot { snapshot, gate })
    }
    fn commit(&self, batch: Batch) -> Result<CommitSequence, CommitError> {
        self.store.commit(batch)
    }
    fn sync_through(&self, sequence: CommitSequence) -> Result<(), SyncError> {
        self.store.sync_through(sequence)
    }
    fn last_committed(&self) -> CommitSequence {
        self.store.last_committed()
    }
    fn last_synced(&self) -> CommitSequence {
        self.store.last_synced()
    }
    fn statistics(&self) -> StoreStatistics {
        self.store.statistics()
    }
    fn verify(&self) -> Result<Vec<Damage>, ReadError> {
        self.store.verify()
    }
}

/// A member whose index builds can be held up.
struct Held {
    member: Member,
    gate: Arc<Gate>,
    reached: Receiver<()>,
    release: Sender<()>,
}

impl Held {
    fn new() -> Self {
        Self::open(NodeOptions::default())
    }

    fn open(options: NodeOptions) -> Self {
        let held = Self::over(Arc::new(ModelStore::new()), options);
        held.fill();
        held
    }

    /// The collection has a limit, and room for more.
    fn capped() -> Self {
        let held = Self::over(Arc::new(ModelStore::new()), NodeOptions::default());
        held.member.ok(doc! {"create": "c", "capped": true, "size": 1 << 30});
        held.fill();
        held
    }

    fn over(store: Arc<ModelStore>, options: NodeOptions) -> Self {
        let (reached, is_reached) = channel();
        let (release, released) = channel();
        let released = Mutex::new(released);
        let gate = Arc::new(Gate { armed: Mutex::new(None), reached, released });
        let gated = GatedStore { store: Arc::clone(&store), gate: Arc::clone(&gate) };
        let node = Node::open(Arc::new(gated), options, now()).unwrap();
        Self { member: Member { node, store }, gate, reached: is_reached, release }
    }

    /// Another process over the same store.
    fn started_again(self) -> Self {
        Self::over(Arc::clone(&self.member.store), NodeOptions::default())
    }

    fn fill(&self) {
        let documents = (0..DOCUMENTS).map(|n| doc! {"_id": n, "u": n, "a": 0});
        self.member.insert("c", documents.collect());
    }

    /// Builds a unique index, and does something while the build stands in its middle.
    fn during_a_build(&self, meanwhile: impl FnOnce(&Member)) -> Document {
        *self.gate.armed.lock().unwrap() = Some(0);
        let member = &self.member;
        std::thread::scope(|threads| {
            let build = threads.spawn(move || {
                let index = doc! {"key": {"u": 1}, "name": "u", "unique": true};
                member.run(doc! {"createIndexes": "c", "indexes": [index]})
            });
            self.reached.recv_timeout(PATIENCE).unwrap();
            meanwhile(member);
            self.release.send(()).unwrap();
            build.join().unwrap()
        })
    }

    /// Runs a command that looks through the collection, and does something while it stands in the
    /// middle of that.
    fn during_a_search(&self, command: Document, meanwhile: impl FnOnce(&Member)) -> Document {
        *self.gate.armed.lock().unwrap() = Some(0);
        let member = &self.member;
        std::thread::scope(|threads| {
            let search = threads.spawn(move || member.run(command));
            self.reached.recv_timeout(PATIENCE).unwrap();
            let (done, is_done) = channel();
            let others = threads.spawn(move || {
                member.insert("other", vec![doc! {}]);
                done.send(()).unwrap();
            });
            let went_on = is_done.recv_timeout(PATIENCE).is_ok();
            if went_on {
                meanwhile(member);
            }
            self.release.send(()).unwrap();
            others.join().unwrap();
            let reply = search.join().unwrap();
            assert!(went_on, "another client's insert waited for the search");
            reply
        })
    }

    fn update(&self, q: Document, u: Document, multi: bool) {
        let updates = vec![doc! {"q": q, "u": u, "multi": multi}];
        let reply = self.member.ok(doc! {"update": "c", "updates": updates});
        assert!(reply.get("writeErrors").is_none(), "{reply}");
    }

    fn delete(&self, q: Document) {
        self.member.ok(doc! {"delete": "c", "deletes": [{"q": q, "limit": 0}]});
    }

    fn indexes(&self) -> usize {
        self.member.drain(self.member.ok(doc! {"listIndexes": "c"}), "c").len()
    }

    fn clean_up(&self) {
        while self.member.node.maintain(now()).unwrap() {}
    }
}

#[test]
fn writes_go_on_while_an_index_is_built_and_are_in_it() {
    let held = Held::new();
    let reply = held.during_a_build(|member| {
        // On both sides of where the scan stands, and keys change hands.
        held.update(doc! {"_id": 10}, doc! {"$set": {"u": 100_000}}, false);
        held.update(doc! {"_id": 2900}, doc! {"$set": {"u": 10}}, false);
        held.update(doc! {"_id": 2}, doc! {"$set": {"u": [7_000, 7_001]}}, false);
        held.delete(doc! {"_id": {"$gte": 20, "$lt": 40}});
        held.delete(doc! {"_id": {"$gte": 2000, "$lt": 2020}});
        member.insert("c", (0..50).map(|n| doc! {"_id": 5000 + n, "u": 5000 + n}).collect());
        held.update(doc! {"_id": {"$gte": 100, "$lt": 1900}}, doc! {"$inc": {"u": 20_000}}, true);
        // Garbage is cleared away at any time, but not what is being built.
        while member.node.maintain(now()).unwrap() {}
    });
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    held.member.validate("c");
    let every = held.member.ids(doc! {"find": "c", "sort": {"_id": 1}});
    assert_eq!(every.len() as i32, DOCUMENTS - 40 + 50);
    let mut indexed =
        held.member.ids(doc! {"find": "c", "hint": "u", "filter": {"u": {"$gte": 0}}});
    indexed.sort_unstable();
    assert_eq!(indexed, every);
    let by = |u: i32| held.member.ids(doc! {"find": "c", "hint": "u", "filter": {"u": u}});
    assert_eq!((by(10), by(100_000), by(7_001)), (vec![2900], vec![10], vec![2]));
    let taken = held.member.ok(doc! {"insert": "c", "documents": [{"_id": 9000, "u": 10}]});
    assert_eq!(taken.get_array("writeErrors").unwrap().len(), 1, "the index is unique");
}

#[test]
fn a_key_that_two_documents_come_to_share_ends_a_unique_build() {
    let held = Held::new();
    let reply = held.during_a_build(|member| {
        member.insert("c", vec![doc! {"_id": 9000, "u": 5}]);
    });
    assert_eq!(reply.get_i32("code").unwrap(), 11000, "{reply}");
    assert_eq!(held.indexes(), 1);
    held.clean_up();
    held.member.validate("c");
    held.delete(doc! {"_id": 9000});
    let reply = held.during_a_build(|_| {});
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    held.member.validate("c");
    assert_eq!(held.indexes(), 2);
}

#[test]
fn a_collection_that_goes_takes_its_build_along() {
    let held = Held::new();
    let reply = held.during_a_build(|member| {
        member.ok(doc! {"drop": "c"});
        member.insert("c", vec![doc! {"_id": 1}]);
    });
    assert_eq!(reply.get_i32("code").unwrap(), 276, "{reply}");
    held.clean_up();
    assert_eq!(held.indexes(), 1);
    held.member.validate("c");
}

#[test]
fn two_builds_of_one_index_make_one() {
    let held = Held::new();
    let reply = held.during_a_build(|member| {
        let index = doc! {"key": {"u": 1}, "name": "u", "unique": true};
        member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    });
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    assert_eq!(held.indexes(), 2);
    held.clean_up();
    held.member.validate("c");
}

#[test]
fn a_process_that_ends_during_a_build_leaves_garbage_only() {
    let held = Held::new();
    let mut crashed = None;
    held.during_a_build(|member| {
        crashed = Some(member.store.crash(member.store.last_committed()));
    });
    let restarted = Member::over(crashed.unwrap());
    let indexes = restarted.drain(restarted.ok(doc! {"listIndexes": "c"}), "c");
    assert_eq!(indexes.len(), 1);
    assert!(restarted.node.maintain(now()).unwrap(), "there is something to clear away");
    while restarted.node.maintain(now()).unwrap() {}
    restarted.validate("c");
    let index = doc! {"key": {"u": 1}, "name": "u", "unique": true};
    restarted.ok(doc! {"createIndexes": "c", "indexes": [index]});
    restarted.validate("c");
}

fn update_one(q: Document, u: Document) -> Document {
    doc! {"update": "c", "updates": [{"q": q, "u": u}]}
}

#[test]
fn other_writes_go_on_while_a_write_searches_for_its_documents() {
    let missing = doc! {"u": -1};
    for command in [
        update_one(missing.clone(), doc! {"$inc": {"a": 1}}),
        doc! {"update": "c", "updates": [
            {"q": missing.clone(), "u": {"$inc": {"a": 1}}, "multi": true},
        ]},
        doc! {"delete": "c", "deletes": [{"q": missing.clone(), "limit": 1}]},
        doc! {"delete": "c", "deletes": [{"q": missing.clone(), "limit": 0}]},
        doc! {"findAndModify": "c", "query": missing.clone(), "remove": true},
        doc! {"findAndModify": "c", "query": missing, "sort": {"u": 1}, "remove": true},
    ] {
        let held = Held::new();
        let reply = held.during_a_search(command.clone(), |_| {});
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{command}: {reply}");
    }
}

#[test]
fn a_write_for_one_document_takes_one_that_still_matches_when_it_is_changed() {
    let held = Held::new();
    let first = doc! {"u": {"$gte": 2000}};
    let reply = held.during_a_search(update_one(first, doc! {"$set": {"mine": true}}), |member| {
        member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": 2000}, "limit": 1}]});
        member.ok(update_one(doc! {"_id": 2001}, doc! {"$set": {"u": -5}}));
    });
    assert_eq!((reply.get_i32("n").unwrap(), reply.get_i32("nModified").unwrap()), (1, 1));
    assert_eq!(held.member.ids(doc! {"find": "c", "filter": {"mine": true}}), [2002]);

    // The first in an order is taken by another client: the next one is.
    let pop = doc! {"findAndModify": "c", "query": {"a": 0}, "sort": {"u": -1}, "remove": true};
    let reply = held.during_a_search(pop, |member| {
        member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": 2999}, "limit": 1}]});
    });
    assert_eq!(reply.get_document("value").unwrap().get_i32("_id").unwrap(), 2998);
}

/// At every moment one document has the token; a search that meets no holder begins again.
#[test]
fn a_write_for_one_document_searches_again_if_what_it_found_matches_no_longer() {
    let held = Held::new();
    held.update(doc! {"_id": 2500}, doc! {"$set": {"token": 1}}, false);
    let take = update_one(doc! {"token": 1}, doc! {"$set": {"taken": true}});
    let reply = held.during_a_search(take, |member| {
        member.ok(update_one(doc! {"_id": 7}, doc! {"$set": {"token": 1}}));
        member.ok(update_one(doc! {"_id": 2500}, doc! {"$unset": {"token": 1}}));
    });
    assert_eq!(reply.get_i32("n").unwrap(), 1);
    assert_eq!(held.member.ids(doc! {"find": "c", "filter": {"taken": true}}), [7]);
}

#[test]
fn an_upsert_finds_what_was_inserted_during_its_search() {
    let upsert = doc! {"update": "c", "updates": [
        {"q": {"name": "x"}, "u": {"$inc": {"n": 1}}, "upsert": true},
    ]};
    let modify = doc! {
        "findAndModify": "c", "query": {"name": "x"}, "update": {"$inc": {"n": 1}}, "upsert": true,
    };
    for command in [upsert, modify] {
        let held = Held::new();
        held.during_a_search(command, |member| {
            member.insert("c", vec![doc! {"_id": 9000, "name": "x", "n": 1}]);
        });
        let found = held.member.find(doc! {"find": "c", "filter": {"name": "x"}});
        assert_eq!(found, [doc! {"_id": 9000, "name": "x", "n": 2}]);
    }
}

/// A driver repeats a write whose connection broke, while the first one still searches.
#[test]
fn a_write_that_is_repeated_during_its_search_is_done_once() {
    let id = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![3; 16] };
    let update = update_one(doc! {"u": 2500}, doc! {"$inc": {"a": 1}});
    let delete = doc! {"delete": "c", "deletes": [{"q": {"u": {"$gte": 2500}}, "limit": 1}]};
    let modify = doc! {
        "findAndModify": "c", "query": {"u": 2500}, "update": {"$inc": {"a": 1}}, "new": true,
    };
    for mut command in [update, delete, modify] {
        let held = Held::open(NodeOptions { oplog_bytes: Some(1 << 30), ..NodeOptions::default() });
        command.insert("lsid", doc! {"id": id.clone()});
        command.insert("txnNumber", 1_i64);
        let mut repeated = Document::new();
        let first = held.during_a_search(command.clone(), |member| {
            repeated = member.ok(command.clone());
        });
        for field in ["n", "nModified", "value"] {
            assert_eq!(first.get(field), repeated.get(field), "{first} {repeated}");
        }
        let changed = held.member.find(doc! {"find": "c", "filter": {"a": {"$ne": 0}}});
        assert!(changed.iter().all(|document| document.get_i32("a").unwrap() == 1), "{changed:?}");
        let count = held.member.find(doc! {"find": "c"}).len() as i32;
        let deleted = command.contains_key("delete");
        assert_eq!(
            (changed.len(), count),
            if deleted { (0, DOCUMENTS - 1) } else { (1, DOCUMENTS) }
        );
    }
}

#[test]
fn writers_get_their_turn_within_a_write_to_many_documents() {
    let member = Member::with_history(ModelStore::new(), 1 << 30);
    member.insert("c", (0..DOCUMENTS).map(|n| doc! {"_id": n, "round": -1}).collect());
    let done = AtomicBool::new(false);
    let within = std::thread::scope(|threads| {
        threads.spawn(|| {
            // What goes while the others are changed must not come back with a change.
            for id in 0.. {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                let deletes = vec![doc! {"q": {"_id": DOCUMENTS - 1 - id}, "limit": 1}];
                run(&member, doc! {"delete": "c", "deletes": deletes});
                run(&member, doc! {"insert": "other", "documents": [{"_id": id}]});
            }
        });
        let deadline = Instant::now() + PATIENCE;
        let mut found = false;
        for round in 0.. {
            let updates = vec![doc! {"q": {}, "u": {"$set": {"round": round}}, "multi": true}];
            run(&member, doc! {"update": "c", "updates": updates});
            found = somebody_came_within(&member, round);
            if found || Instant::now() > deadline {
                break;
            }
        }
        done.store(true, Ordering::SeqCst);
        found
    });
    assert!(within, "no other write came between two changes of one statement");
    member.validate("c");
    for entry in history(&member, doc! {"op": "d"}) {
        let id = entry.get_document("o").unwrap().get_i32("_id").unwrap();
        assert_eq!(member.ids(doc! {"find": "c", "filter": {"_id": id}}), [] as [i32; 0]);
    }
}

fn run(member: &Member, mut command: Document) {
    command.insert("$db", "db");
    let outcome = member.node.run(&context(), Command::new(command));
    let Outcome::Reply(reply) = outcome else { panic!("it wants to wait") };
    assert_eq!(reply.body.get_f64("ok").unwrap(), 1.0, "{:?}", reply.body);
}

/// Whether the history has another write between the updates of a round.
fn somebody_came_within(member: &Member, round: i32) -> bool {
    let filter = doc! {"$or": [{"op": {"$ne": "u"}}, {"o.diff.u.round": round}]};
    let entries = history(member, filter);
    let kinds: Vec<bool> =
        entries.iter().map(|entry| entry.get_str("op").is_ok_and(|op| op == "u")).collect();
    let first = kinds.iter().position(|&update| update);
    let last = kinds.iter().rposition(|&update| update);
    match (first, last) {
        (Some(first), Some(last)) => kinds[first..last].iter().any(|&update| !update),
        _ => panic!("the round has no updates in the history"),
    }
}

/// Entries of the history, as many as fit into one reply.
fn history(member: &Member, filter: Document) -> Vec<Document> {
    let find = doc! {
        "find": "oplog.rs", "filter": filter, "batchSize": i32::MAX, "singleBatch": true,
        "$db": "local",
    };
    member.drain(member.ok(find), "oplog.rs")
}

/// After a start a member does not know how many documents a collection has. The first command that asks has them counted,
/// and writes go on meanwhile.
#[test]
fn writes_go_on_while_documents_are_counted_and_are_counted_too() {
    for command in [
        doc! {"count": "c"},
        doc! {"collStats": "c"},
        doc! {"dbStats": 1},
        doc! {"listDatabases": 1, "$db": "admin"},
        doc! {"validate": "c"},
    ] {
        let held = Held::new();
        let reply = held.during_a_search(command.clone(), |member| {
            member.insert("c", vec![doc! {"_id": -1}]);
            held.delete(doc! {"_id": {"$lt": 2}});
        });
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        let member = &held.member;
        let counted = member.ok(doc! {"count": "c"});
        assert_eq!(counted.get_i32("n").unwrap(), DOCUMENTS - 2, "{command}");
        member.validate("c");
    }
}

/// An index is measured by reading all of it, which `killOp` and `maxTimeMS` end.
#[test]
fn figures_of_a_collection_end_when_they_are_killed() {
    for command in [doc! {"collStats": "c"}, doc! {"dbStats": 1}] {
        let held = Held::new();
        // The documents are counted, so that the index is what takes long.
        held.member.ok(doc! {"count": "c"});
        let asking = context();
        *held.gate.armed.lock().unwrap() = Some(0);
        let reply = std::thread::scope(|threads| {
            let figures = threads.spawn(|| held.member.run_as(&asking, command.clone()));
            held.reached.recv_timeout(PATIENCE).unwrap();
            asking.interrupt.set(Interruption::Killed);
            held.release.send(()).unwrap();
            figures.join().unwrap()
        });
        assert_eq!(reply.get_i32("code").ok(), Some(11601), "{command} answered {reply}");
    }
}

/// What adds documents to a capped collection has to know how much it holds. The first one after a start has it counted
/// before it takes the write lock.
#[test]
fn writes_go_on_while_a_capped_collection_is_counted() {
    let update = doc! {"q": {"_id": -1}, "u": {"$set": {"a": 1}}, "upsert": true};
    for command in [
        doc! {"insert": "c", "documents": [{"_id": -1}]},
        doc! {"update": "c", "updates": [update]},
        doc! {"findAndModify": "c", "query": {"_id": -1}, "update": {"a": 1}, "upsert": true},
        doc! {"aggregate": "one", "pipeline": [{"$merge": "c"}], "cursor": {}},
    ] {
        let held = Held::capped();
        held.member.insert("one", vec![doc! {"_id": -1}]);
        let held = held.started_again();
        let reply = held.during_a_search(command.clone(), |_| {});
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        let counted = held.member.ok(doc! {"count": "c"});
        assert_eq!(counted.get_i32("n").unwrap(), DOCUMENTS + 1, "{command}");
        held.member.validate("c");
    }
}
