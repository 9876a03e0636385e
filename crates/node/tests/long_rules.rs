//! Rules of a collection, and pipelines of upserts, that take long: other clients write meanwhile.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]

mod support;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_node::{Command, Interrupt, Interruption, Node, Outcome};
use support::set::primary;
use support::{Member, context};

const INTERRUPTED: i32 = 11601;

/// An expression that never ends for a document with `slow`.
fn long() -> Document {
    let repeat = |inner: Bson| doc! { "$reduce": { "input": { "$range": [0, 10_000] }, "initialValue": 0, "in": inner } };
    let endless = repeat(repeat(repeat(repeat(Bson::from(1)).into()).into()).into());
    doc! { "$cond": ["$slow", endless, 1] }
}

fn run(node: &Node, interrupt: &Arc<Interrupt>, mut command: Document) -> Document {
    command.entry("$db".to_owned()).or_insert("db".into());
    let context = quorate_node::Context { interrupt: Arc::clone(interrupt), ..context() };
    let Outcome::Reply(reply) = node.run(&context, Command::new(command)) else {
        panic!("it waits")
    };
    Document::try_from(&*reply.body).unwrap()
}

/// Runs a command that never ends while another client writes, and ends it.
fn others_write_during(node: &Node, command: Document) {
    let interrupt = Arc::new(Interrupt::default());
    let other = Arc::new(Interrupt::default());
    let reply = thread::scope(|scope| {
        let long = scope.spawn(|| run(node, &interrupt, command.clone()));
        let deadline = Instant::now() + Duration::from_secs(60);
        // One write comes before the command, and one after it has given the lock back.
        for id in 0.. {
            let insert = doc! { "insert": "other", "documents": [{ "n": id }] };
            assert_eq!(run(node, &other, insert).get_i32("n").unwrap(), 1);
            if id > 1000 || long.is_finished() || Instant::now() > deadline {
                break;
            }
        }
        interrupt.set(Interruption::Killed);
        long.join().unwrap()
    });
    assert_eq!(reply.get_i32("code").ok(), Some(INTERRUPTED), "{command}: {reply}");
}

#[test]
fn others_write_while_rules_of_a_collection_are_evaluated() {
    let node = Member::new().node;
    let none = Arc::new(Interrupt::default());
    let rules = doc! { "$expr": { "$gte": [long(), 0] } };
    let made = run(&node, &none, doc! { "create": "c", "validator": rules });
    assert_eq!(made.get_f64("ok").unwrap(), 1.0, "{made}");
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
    assert_eq!(run(&node, &none, insert).get_i32("n").unwrap(), 1);
    let set = doc! { "$set": { "slow": true } };
    others_write_during(&node, doc! { "insert": "c", "documents": [{ "_id": 2, "slow": true }] });
    others_write_during(
        &node,
        doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": &set }] },
    );
    let upsert = doc! { "q": { "_id": 3 }, "u": &set, "upsert": true };
    others_write_during(&node, doc! { "update": "c", "updates": [upsert] });
    let query = doc! { "name": "new" };
    others_write_during(
        &node,
        doc! { "findAndModify": "c", "query": query, "update": &set, "upsert": true },
    );
    let count = run(&node, &none, doc! { "count": "c" });
    assert_eq!(count.get_i32("n").unwrap(), 1);
}

#[test]
fn others_write_while_the_pipeline_of_an_upsert_is_evaluated() {
    let node = Member::new().node;
    let pipeline = vec![doc! { "$set": { "slow": true } }, doc! { "$set": { "n": long() } }];
    let upsert = doc! { "q": { "_id": 3 }, "u": pipeline.clone(), "upsert": true };
    others_write_during(&node, doc! { "update": "c", "updates": [upsert] });
    let query = doc! { "_id": 4 };
    others_write_during(
        &node,
        doc! { "findAndModify": "c", "query": query, "update": pipeline, "upsert": true },
    );
}

/// An expression that takes longer than other writers should wait, and ends.
fn while_long() -> Document {
    let repeat = |inner: Bson| doc! { "$reduce": { "input": { "$range": [0, 1_050] }, "initialValue": 1, "in": inner } };
    repeat(repeat("$$value".into()).into())
}

/// An expression that asks whether to go on nearly as often as it may while other writers wait. It takes little time for that.
fn nearly_long() -> Document {
    let sorted = doc! { "$sortArray": { "input": ["$$this", 1], "sortBy": 1 } };
    let size = doc! { "$size": sorted };
    doc! { "$reduce": { "input": { "$range": [0, 450] }, "initialValue": 0, "in": size } }
}

/// Rules that take a while and end: the change is made once, or refused.
#[test]
fn a_verdict_that_was_found_aside_counts() {
    let node = Member::new().node;
    let none = Arc::new(Interrupt::default());
    let rules = doc! { "$expr": { "$and": [{ "$gte": [while_long(), 0] }, { "$ne": ["$n", 7] }] } };
    run(&node, &none, doc! { "create": "c", "validator": rules, "validationLevel": "moderate" });
    let documents = vec![doc! { "_id": 1, "n": 1 }, doc! { "_id": 2, "n": 7 }];
    let reply = run(&node, &none, doc! { "insert": "c", "documents": documents, "ordered": false });
    assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), 121);
    let updates = vec![
        doc! { "q": { "_id": 1 }, "u": { "$set": { "n": 7 } } },
        doc! { "q": { "name": "x" }, "u": { "$set": { "n": 2 } }, "upsert": true },
    ];
    let reply = run(&node, &none, doc! { "update": "c", "updates": updates, "ordered": false });
    assert_eq!(reply.get_i32("nModified").unwrap(), 0, "{reply}");
    assert_eq!(reply.get_array("upserted").unwrap().len(), 1, "{reply}");
    assert_eq!(reply.get_array("writeErrors").unwrap().len(), 1, "{reply}");
}

/// A document for which the rules fail is refused alone, however long it takes to find that out.
#[test]
fn an_error_of_rules_that_take_long_concerns_one_document() {
    let node = Member::new().node;
    let none = Arc::new(Interrupt::default());
    let errors = [Bson::from(1), while_long().into()].map(|dividend| {
        let rules = doc! { "$expr": { "$lt": [{ "$divide": [dividend, "$n"] }, 9] } };
        run(&node, &none, doc! { "drop": "c" });
        run(&node, &none, doc! { "create": "c", "validator": rules });
        let documents: Vec<_> =
            [1, 0, 1].iter().zip(1..).map(|(n, id)| doc! { "_id": id, "n": *n }).collect();
        let insert = doc! { "insert": "c", "documents": documents, "ordered": false };
        let reply = run(&node, &none, insert);
        assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
        reply.get_array("writeErrors").unwrap().clone()
    });
    assert_eq!(errors[0].len(), 1);
    assert_eq!(errors[0][0].as_document().unwrap().get_i32("index").unwrap(), 1);
    assert_eq!(errors[0], errors[1]);
}

/// How many evaluations that are nearly long are too many while other writers wait.
const MANY: i32 = 130;

fn numbered(count: i32) -> Vec<Document> {
    (0..count).map(|id| doc! { "_id": id, "n": 0 }).collect()
}

/// A command whose evaluations are short: other writers get their turn in between, and none of them is refused.
fn does_all(node: &Node, command: Document, count: &str) {
    let reply = run(node, &Arc::default(), command);
    assert!(!reply.contains_key("writeErrors"), "{reply}");
    assert_eq!(reply.get_i32(count).ok(), Some(MANY), "{reply}");
}

fn each(statement: impl Fn(i32) -> Document) -> Vec<Document> {
    (0..MANY).map(statement).collect()
}

#[test]
fn an_insert_may_evaluate_as_much_as_its_documents_take_together() {
    let node = Member::new().node;
    let rules = doc! { "$expr": { "$eq": [nearly_long(), 2] } };
    run(&node, &Arc::default(), doc! { "create": "c", "validator": &rules });
    does_all(&node, doc! { "insert": "c", "documents": numbered(MANY) }, "n");
}

#[test]
fn updates_and_deletes_may_evaluate_as_much_as_their_statements_take_together() {
    let node = Member::new().node;
    does_all(&node, doc! { "insert": "c", "documents": numbered(MANY) }, "n");
    let update = |id| doc! { "q": { "_id": id }, "u": [{ "$set": { "n": nearly_long() } }] };
    does_all(&node, doc! { "update": "c", "updates": each(update) }, "nModified");
    let rule = doc! { "$eq": [nearly_long(), "$n"] };
    let delete = |id| doc! { "q": { "_id": id, "$expr": &rule }, "limit": 1 };
    does_all(&node, doc! { "delete": "c", "deletes": each(delete) }, "n");
}

#[test]
fn a_merge_may_evaluate_as_much_as_its_documents_take_together() {
    let node = Member::new().node;
    for name in ["c", "from"] {
        does_all(&node, doc! { "insert": name, "documents": numbered(MANY) }, "n");
    }
    let pipeline = vec![doc! { "$set": { "n": nearly_long() } }];
    let merge = doc! { "$merge": { "into": "c", "whenMatched": pipeline } };
    let merge = doc! { "aggregate": "from", "pipeline": [merge], "cursor": {} };
    let reply = run(&node, &Arc::default(), merge);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    does_all(&node, doc! { "count": "c", "query": { "n": 2 } }, "n");
}

#[test]
fn an_insert_of_a_transaction_may_evaluate_as_much_as_its_documents_take_together() {
    let node = primary().node;
    let none = Arc::new(Interrupt::default());
    let rules = doc! { "$expr": { "$eq": [nearly_long(), 2] } };
    run(&node, &none, doc! { "create": "c", "validator": rules });
    let mut insert = doc! { "insert": "c", "documents": numbered(MANY) };
    insert.extend(doc! { "startTransaction": true });
    insert.extend(in_transaction());
    let reply = run(&node, &none, insert);
    assert_eq!(reply.get_i32("n").ok(), Some(MANY), "{reply}");
    assert!(!reply.contains_key("writeErrors"), "{reply}");
    let mut commit = doc! { "commitTransaction": 1 };
    commit.extend(in_transaction());
    commit.insert("$db", "admin");
    let reply = run(&node, &none, commit);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
}

fn in_session() -> Document {
    let id = Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] };
    doc! { "lsid": { "id": id }, "txnNumber": 1_i64 }
}

fn in_transaction() -> Document {
    let mut fields = in_session();
    fields.insert("autocommit", false);
    fields
}

/// Specification: retryable-writes. A command and its repetition, which give way to each other, do each statement once.
#[test]
fn a_repetition_that_comes_between_statements_does_nothing_twice() {
    let node = primary().node;
    let none = Arc::new(Interrupt::default());
    let rules = doc! { "$expr": { "$eq": [nearly_long(), 2] } };
    run(&node, &none, doc! { "create": "c", "validator": &rules });
    let count = 12;
    let update = |id| {
        let set = doc! { "n": { "$add": ["$n", 1] }, "x": nearly_long() };
        doc! { "q": { "_id": id }, "u": [{ "$set": set }] }
    };
    let commands = [
        doc! { "insert": "c", "documents": numbered(count) },
        doc! { "update": "c", "updates": (0..count).map(update).collect::<Vec<_>>() },
    ];
    for (mut command, number) in commands.into_iter().zip(1_i64..) {
        command.extend(in_session());
        command.insert("txnNumber", number);
        let both = Barrier::new(2);
        thread::scope(|scope| {
            let running = [(); 2].map(|()| {
                scope.spawn(|| {
                    both.wait();
                    run(&node, &Arc::default(), command.clone())
                })
            });
            for reply in running.map(|running| running.join().unwrap()) {
                assert_eq!(reply.get_i32("n").ok(), Some(count), "{reply}");
                assert!(!reply.contains_key("writeErrors"), "{reply}");
            }
        });
    }
    let once = doc! { "count": "c", "query": { "n": 1 } };
    assert_eq!(run(&node, &none, once).get_i32("n").ok(), Some(count));
}

#[test]
fn others_write_while_the_pipeline_of_a_merge_is_evaluated() {
    let node = Member::new().node;
    let none = Arc::new(Interrupt::default());
    let insert = |name: &str, document: Document| {
        run(&node, &none, doc! { "insert": name, "documents": [document] });
    };
    insert("from", doc! { "_id": 1 });
    insert("c", doc! { "_id": 1, "n": 0, "slow": true });
    let merge = |value: Document| {
        let pipeline = vec![doc! { "$set": { "n": value } }];
        let into = doc! { "into": "c", "whenMatched": pipeline };
        doc! { "aggregate": "from", "pipeline": [{ "$merge": into }], "cursor": {} }
    };
    others_write_during(&node, merge(long()));
    // Two of them do not undo each other's change.
    let increase = merge(doc! { "$add": ["$n", while_long()] });
    thread::scope(|scope| {
        let running =
            [(); 2].map(|()| scope.spawn(|| run(&node, &Arc::default(), increase.clone())));
        for reply in running.map(|running| running.join().unwrap()) {
            assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
        }
    });
    let found = doc! { "count": "c", "query": { "_id": 1, "n": 2 } };
    assert_eq!(run(&node, &none, found).get_i32("n").ok(), Some(1));
}
