//! A member over a store in memory, driven by hand.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod set;

use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_node::{
    Certificate, Client, Command, Context, Interrupt, Node, NodeOptions, Now, Outcome,
};
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
        may_look_at: None,
        interrupt: Arc::new(Interrupt::default()),
    }
}

fn options() -> NodeOptions {
    NodeOptions {
        seed: 7,
        host: "localhost:27017".to_owned(),
        compressors: vec!["zstd".to_owned()],
        max_connections: 100,
        ..NodeOptions::default()
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

    /// The same, with its own source of identifiers.
    #[allow(dead_code, reason = "most test programs have one member that makes collections")]
    pub(crate) fn with_history_and_seed(store: ModelStore, bytes: u64, seed: u64) -> Self {
        let oplog_bytes = Some(bytes);
        Self::open_with(store, NodeOptions { oplog_bytes, test_commands: true, seed, ..options() })
    }

    /// A member whose clients must log in.
    pub(crate) fn guarded() -> Self {
        let options = NodeOptions { authentication: true, test_commands: true, ..options() };
        Self::open_with(ModelStore::new(), options)
    }

    /// The same, with a history.
    pub(crate) fn guarded_with_history(store: ModelStore, bytes: u64) -> Self {
        let oplog_bytes = Some(bytes);
        let options =
            NodeOptions { authentication: true, test_commands: true, oplog_bytes, ..options() };
        Self::open_with(store, options)
    }

    /// A member that lets tests inject faults.
    pub(crate) fn for_tests() -> Self {
        Self::open_with(ModelStore::new(), NodeOptions { test_commands: true, ..options() })
    }

    fn open(store: ModelStore, oplog_bytes: Option<u64>) -> Self {
        Self::open_with(
            store,
            NodeOptions { oplog_bytes, test_commands: oplog_bytes.is_some(), ..options() },
        )
    }

    fn open_with(store: ModelStore, options: NodeOptions) -> Self {
        let store = Arc::new(store);
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        Self { node: Node::open(shared, options, now()).unwrap(), store }
    }

    /// Makes a user that logs in with a certificate, and gives its connection, which has.
    pub(crate) fn log_in(&self, name: &str, roles: &[(&str, &str)]) -> Context {
        let role = |(role, db): &(&str, &str)| Bson::from(doc! {"role": *role, "db": *db});
        let roles: Vec<_> = roles.iter().map(role).collect();
        let subject = format!("CN={name}");
        let create = doc! {"createUser": &subject, "roles": roles, "$db": "$external"};
        self.expect(&self.connect("CN=member", true), create);
        self.connect(&subject, false)
    }

    /// A connection that has logged in with a certificate.
    pub(crate) fn connect(&self, subject: &str, is_member: bool) -> Context {
        let certificate = Some(Certificate { subject: subject.to_owned(), is_member });
        let client = Client { connection_id: 2, certificate, ..Client::default() };
        let context = Context { client: Arc::new(client), ..context() };
        self.expect(
            &context,
            doc! {
                "authenticate": 1, "mechanism": "MONGODB-X509", "$db": "$external",
            },
        );
        context
    }

    /// Runs a command over a connection.
    pub(crate) fn run_as(&self, context: &Context, mut command: Document) -> Document {
        if !command.contains_key("$db") {
            command.insert("$db", "db");
        }
        match self.node.run(context, Command::new(command)) {
            Outcome::Reply(mut reply) => {
                // As the server around a member does with every reply.
                self.node.tell_topology_version(&mut reply.body);
                Document::try_from(&*reply.body).unwrap()
            }
            other => panic!("the command did not answer: {other:?}"),
        }
    }

    /// Runs a command over a connection, which must succeed.
    pub(crate) fn expect(&self, context: &Context, command: Document) -> Document {
        let reply = self.run_as(context, command.clone());
        assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{command} answered {reply}");
        reply
    }

    /// Runs a command on the database `db`, or the one it names.
    pub(crate) fn run(&self, command: Document) -> Document {
        self.run_as(&context(), command)
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
            let namespace = cursor.get_str("ns").unwrap();
            let database = namespace.split('.').next().unwrap().to_owned();
            let more =
                doc! {"getMore": id, "collection": collection, "batchSize": 3, "$db": database};
            reply = self.ok(more);
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
