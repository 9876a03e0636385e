//! Any bytes as the commands of a client, to a member in memory: each is answered, nothing panics,
//! and indexes agree with documents afterwards.
#![no_main]

use std::sync::Arc;

use bson::{Bson, Document, RawDocument, doc};
use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{Choices, words};
use quorate_node::{Client, Command, Context, Interrupt, Node, NodeOptions, Now, Outcome};
use quorate_protocol::{MonotonicTime, WallTime};
use quorate_storage::ModelStore;

/// How many commands one input gives.
const MAX_COMMANDS: usize = 8;

const COMMANDS: &[&str] = &[
    "insert", "update", "delete", "find", "findAndModify", "aggregate", "count", "distinct",
    "create", "collMod", "drop", "createIndexes", "dropIndexes", "listIndexes", "getMore",
    "explain", "collStats", "validate", "renameCollection", "killCursors",
];

const FIELDS: &[&str] = &[
    "documents", "updates", "deletes", "filter", "query", "update", "pipeline", "cursor", "key",
    "indexes", "sort", "projection", "hint", "skip", "limit", "batchSize", "min", "max", "let",
    "arrayFilters", "upsert", "multi", "new", "remove", "q", "u", "ordered", "capped", "size",
    "viewOn", "validator", "partialFilterExpression", "unique", "sparse", "name", "index",
];

fuzz_target!(|bytes: &[u8]| {
    if let Some((&0, raw)) = bytes.split_first() {
        // As they are: what no driver sends.
        if let Ok(body) = RawDocument::from_bytes(raw) {
            if let Ok(command) = Command::from_raw(body, Vec::new()) {
                answered(&member(), command.body.to_document());
            }
        }
        return;
    }
    let node = member();
    let mut choices = Choices::new(bytes);
    let documents: Vec<Document> = (0..3).map(|_| choices.stored()).collect();
    answered(&node, doc! {"insert": "c", "documents": documents});
    for _ in 0..MAX_COMMANDS {
        if choices.is_empty() {
            break;
        }
        let mut command =
            Document::from_iter([(choices.pick(COMMANDS).to_owned(), Bson::from("c"))]);
        for (name, value) in choices.spoken(&[FIELDS, words::QUERY, words::UPDATE, words::STAGES]) {
            command.insert(name, value);
        }
        answered(&node, command);
    }
    let reply = answered(&node, doc! {"validate": "c"});
    if reply.get_f64("ok").is_ok_and(|ok| ok == 1.0) {
        assert!(reply.get_bool("valid").unwrap_or(false), "{reply}");
    }
});

fn now() -> Now {
    Now { wall: WallTime(1_700_000_000_000), monotonic: MonotonicTime::from_millis(1000) }
}

fn member() -> Node {
    let options = NodeOptions {
        seed: 7,
        host: "localhost:27017".to_owned(),
        compressors: Vec::new(),
        authentication: false,
        oplog_bytes: None,
        test_commands: true,
        max_connections: 100,
        ..NodeOptions::default()
    };
    Node::open(Arc::new(ModelStore::new()), options, now()).expect("an empty store opens")
}

fn answered(node: &Node, mut command: Document) -> Document {
    command.insert("$db", "db");
    let context = Context {
        now: now(),
        client: Arc::new(Client { connection_id: 1, ..Client::default() }),
        may_wait: false,
        may_look_at: None,
        interrupt: Arc::new(Interrupt::default()),
    };
    match node.run(&context, Command::new(command.clone())) {
        Outcome::Reply(reply) => {
            let reply = Document::try_from(&*reply.body).expect("a reply is BSON");
            assert!(reply.get_f64("ok").is_ok(), "{command} answered {reply}");
            reply
        }
        other => panic!("{command} did not answer: {other:?}"),
    }
}
