//! A member over a store in memory, driven by hand.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_node::{Client, Command, Context, Interrupt, Node, NodeOptions, Now, Outcome};
use quorate_protocol::{MonotonicTime, WallTime};
use quorate_storage::{ModelStore, Store};

pub(crate) struct Member {
    pub(crate) node: Node,
    pub(crate) store: Arc<ModelStore>,
}

pub(crate) fn now() -> Now {
    Now { wall: WallTime(1_700_000_000_000), monotonic: MonotonicTime::from_millis(1000) }
}

pub(crate) fn context() -> Context {
    Context {
        now: now(),
        client: Arc::new(Client { connection_id: 1, ..Client::default() }),
        may_wait: true,
        interrupt: Arc::new(Interrupt::default()),
    }
}

impl Member {
    pub(crate) fn new() -> Self {
        Self::over(ModelStore::new())
    }

    pub(crate) fn over(store: ModelStore) -> Self {
        Self::open(store, None)
    }

    /// A member that keeps a history, as those of a set do.
    pub(crate) fn with_history(store: ModelStore, bytes: u64) -> Self {
        Self::open(store, Some(bytes))
    }

    fn open(store: ModelStore, oplog_bytes: Option<u64>) -> Self {
        let store = Arc::new(store);
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        let options = NodeOptions {
            seed: 7,
            host: "localhost:27017".to_owned(),
            compressors: vec!["zstd".to_owned()],
            authentication: false,
            oplog_bytes,
            max_connections: 100,
            ..NodeOptions::default()
        };
        Self { node: Node::open(shared, options, now()).unwrap(), store }
    }

    /// Runs a command on the database `db`, or the one it names.
    pub(crate) fn run(&self, mut command: Document) -> Document {
        if !command.contains_key("$db") {
            command.insert("$db", "db");
        }
        match self.node.run(&context(), Command::new(command)) {
            Outcome::Reply(reply) => Document::try_from(&*reply.body).unwrap(),
            Outcome::Wait { .. } => panic!("the command wants to wait"),
        }
    }

    /// Runs a command that must succeed.
    pub(crate) fn ok(&self, command: Document) -> Document {
        let reply = self.run(command.clone());
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{command} answered {reply}");
        reply
    }

    /// Runs a command that must fail, and gives the code.
    pub(crate) fn code(&self, command: Document) -> i32 {
        let reply = self.run(command.clone());
        assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{command} answered {reply}");
        reply.get_i32("code").unwrap()
    }

    /// Inserts documents that must all be accepted.
    pub(crate) fn insert(&self, collection: &str, documents: Vec<Document>) {
        let count = documents.len() as i32;
        let reply = self.ok(doc! {"insert": collection, "documents": documents});
        assert_eq!(reply.get_i32("n").unwrap(), count, "{reply}");
    }

    /// All documents that a find returns, over all batches.
    pub(crate) fn find(&self, mut command: Document) -> Vec<Document> {
        command.entry("batchSize".to_owned()).or_insert(Bson::Int32(3));
        let collection = command.get_str("find").unwrap().to_owned();
        self.drain(self.ok(command), &collection)
    }

    pub(crate) fn drain(&self, first: Document, collection: &str) -> Vec<Document> {
        let (mut all, mut reply, mut name) = (Vec::new(), first, "firstBatch");
        loop {
            let cursor = reply.get_document("cursor").unwrap();
            let batch = cursor.get_array(name).unwrap();
            all.extend(batch.iter().map(|item| item.as_document().unwrap().clone()));
            let id = cursor.get_i64("id").unwrap();
            if id == 0 {
                return all;
            }
            name = "nextBatch";
            reply = self.ok(doc! {"getMore": id, "collection": collection, "batchSize": 3});
        }
    }

    /// The `_id`s of what a find returns.
    pub(crate) fn ids(&self, command: Document) -> Vec<i32> {
        let ids = self.find(command).into_iter().map(|document| document.get_i32("_id").unwrap());
        ids.collect()
    }

    /// Checks that documents and indexes agree.
    pub(crate) fn validate(&self, collection: &str) {
        let reply = self.ok(doc! {"validate": collection});
        assert!(reply.get_bool("valid").unwrap(), "{reply}");
    }
}
