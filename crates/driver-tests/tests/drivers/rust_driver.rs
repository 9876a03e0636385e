//! The parts for the Rust driver, in this process.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::change_stream::event::OperationType;
use mongodb::error::{Error, ErrorKind};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::{
    AuthMechanism, ClientOptions, Credential, FullDocumentType, IndexOptions, ReturnDocument,
};
use mongodb::{Client, ClientSession, Collection, Database, IndexModel};

/// Runs these parts and returns how many checks were made.
pub(crate) async fn run(uri: &str, parts: &str) -> u64 {
    let mut judge = Judge { uri: uri.to_owned(), checks: 0 };
    for part in parts.split(',') {
        match part {
            "documents" => judge.documents().await,
            "retries" => judge.retries().await,
            "transactions" => judge.transactions().await,
            "watch" => judge.watch().await,
            "round-trip" => judge.round_trip().await,
            "login" => judge.login().await,
            "certificate" => judge.certificate().await,
            other => panic!("no part is called {other}"),
        }
    }
    judge.checks
}

struct Judge {
    uri: String,
    checks: u64,
}

/// The names of the commands that were sent.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<String>>>);

impl Sent {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Judge {
    fn equal<T: Debug + PartialEq<U>, U: Debug>(&mut self, found: T, expected: U) {
        assert_eq!(found, expected);
        self.checks += 1;
    }

    fn fails<T: Debug>(&mut self, code: i32, result: Result<T, Error>) -> Error {
        let error = result.unwrap_err();
        assert!(codes(&error).contains(&code), "{code} expected: {error}");
        self.checks += 1;
        error
    }

    async fn transactions(&mut self) {
        let (client, _) = self.client(|_| ()).await;
        let database = client.database("transactions");
        database.drop().await.unwrap();
        let accounts = database.collection::<Document>("accounts");
        let both = [doc! { "_id": "a", "n": 10 }, doc! { "_id": "b", "n": 0 }];
        accounts.insert_many(both).await.unwrap();
        let mut session = client.start_session().await.unwrap();
        // Its own way to try again: the first attempt meets an injected conflict.
        let admin = client.database("admin");
        let data = doc! { "failCommands": ["insert"], "errorCode": 112 };
        let mode = doc! { "times": 1 };
        let fault = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        admin.run_command(fault).await.unwrap();
        let attempts = Arc::new(AtomicU64::new(0));
        let (kept, tried) = (accounts.clone(), Arc::clone(&attempts));
        let work = async move |session: &mut ClientSession| {
            tried.fetch_add(1, Ordering::Relaxed);
            kept.insert_one(doc! { "_id": "c" }).session(session).await
        };
        session.start_transaction().and_run2(work).await.unwrap();
        self.equal(attempts.load(Ordering::Relaxed), 2);
        self.equal(accounts.count_documents(doc! { "_id": "c" }).await.unwrap(), 1);
        session.start_transaction().await.unwrap();
        let take = doc! { "$inc": { "n": -4 } };
        let (first, second) = (doc! { "_id": "a" }, doc! { "_id": "b" });
        accounts.update_one(first.clone(), take.clone()).session(&mut session).await.unwrap();
        let give = doc! { "$inc": { "n": 4 } };
        accounts.update_one(second, give).session(&mut session).await.unwrap();
        let inside = accounts.find_one(first.clone()).session(&mut session).await.unwrap();
        self.equal(inside.unwrap().get_i32("n").unwrap(), 6);
        let outside = accounts.find_one(first.clone()).await.unwrap();
        self.equal(outside.unwrap().get_i32("n").unwrap(), 10);
        let mut other = client.start_session().await.unwrap();
        other.start_transaction().await.unwrap();
        let late = accounts.update_one(first.clone(), take).session(&mut other).await;
        let error = self.fails(112, late);
        self.equal(error.contains_label("TransientTransactionError"), true);
        session.commit_transaction().await.unwrap();
        session.commit_transaction().await.unwrap();
        let after = accounts.find_one(first).await.unwrap();
        self.equal(after.unwrap().get_i32("n").unwrap(), 6);
    }

    async fn watch(&mut self) {
        let (client, _) = self.client(|_| ()).await;
        let database = client.database("watched");
        database.drop().await.unwrap();
        let orders = database.collection::<Document>("orders");
        let mut stream =
            orders.watch().full_document(FullDocumentType::UpdateLookup).await.unwrap();
        let mut of_database = database.watch().await.unwrap();
        let mut of_all = client.watch().await.unwrap();
        let one = doc! { "_id": 1 };
        orders.insert_one(doc! { "_id": 1, "n": 1 }).await.unwrap();
        orders.update_one(one.clone(), doc! { "$inc": { "n": 1 } }).await.unwrap();
        orders.replace_one(one.clone(), doc! { "r": 1 }).await.unwrap();
        orders.delete_one(one.clone()).await.unwrap();
        let mut events = Vec::new();
        for _ in 0..4 {
            let event = stream.try_next().await.unwrap().unwrap();
            let same = [of_database.try_next().await, of_all.try_next().await];
            for same in same {
                self.equal(same.unwrap().unwrap().id, event.id.clone());
            }
            self.equal(event.document_key.clone(), Some(one.clone()));
            events.push(event);
        }
        let types: Vec<_> = events.iter().map(|event| event.operation_type.clone()).collect();
        use OperationType::{Delete, Insert, Replace, Update};
        self.equal(types, [Insert, Update, Replace, Delete]);
        let changed = &events[1].update_description.as_ref().unwrap().updated_fields;
        self.equal(changed, &doc! { "n": 2 });
        // From the first event on, and across a connection that breaks.
        let mut stream = orders.watch().resume_after(events[0].id.clone()).await.unwrap();
        self.equal(stream.try_next().await.unwrap().unwrap().operation_type, Update);
        let data = doc! { "failCommands": ["getMore"], "closeConnection": true };
        let mode = doc! { "times": 1 };
        let fault = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        client.database("admin").run_command(fault).await.unwrap();
        orders.insert_one(doc! { "_id": 2 }).await.unwrap();
        for expected in [Replace, Delete, Insert] {
            self.equal(stream.try_next().await.unwrap().unwrap().operation_type, expected);
        }
        // A transaction shows all of its changes, with its number.
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let both = [doc! { "_id": "x" }, doc! { "_id": "y" }];
        orders.insert_many(both).session(&mut session).await.unwrap();
        self.equal(stream.next_if_any().await.unwrap().is_none(), true);
        session.commit_transaction().await.unwrap();
        for id in ["x", "y"] {
            let event = stream.try_next().await.unwrap().unwrap();
            self.equal(event.document_key, Some(doc! { "_id": id }));
            self.equal(event.txn_number.is_some(), true);
        }
    }

    async fn client(&self, change: impl FnOnce(&mut ClientOptions)) -> (Client, Sent) {
        let sent = Sent::default();
        let names = sent.clone();
        let mut options = ClientOptions::parse(&self.uri).await.unwrap();
        options.command_event_handler = Some(EventHandler::callback(move |event| {
            if let CommandEvent::Started(event) = event {
                names.0.lock().unwrap().push(event.command_name);
            }
        }));
        change(&mut options);
        (Client::with_options(options).unwrap(), sent)
    }

    async fn documents(&mut self) {
        let (client, sent) = self.client(|_| ()).await;
        let db = client.database("clients");
        let build = db.run_command(doc! { "buildInfo": 1 }).await.unwrap();
        self.equal(&build.get_array("versionArray").unwrap()[0], &bson::Bson::Int32(7));
        db.drop().await.unwrap();
        let things: Collection<Document> = db.collection("things");
        self.crud(&things).await;
        self.cursors(&db, &things, &sent).await;
        self.indexes(&things).await;
        self.aggregation(&db, &things).await;
        self.bulk_writes(&db.collection("bulk")).await;
    }

    async fn crud(&mut self, things: &Collection<Document>) {
        let one = things.insert_one(doc! { "_id": 0, "a": 0 }).await.unwrap();
        self.equal(one.inserted_id.as_i32(), Some(0));
        let many = (1..1000).map(|n| doc! { "_id": n, "a": n % 7 });
        self.equal(things.insert_many(many).await.unwrap().inserted_ids.len(), 999);
        self.fails(11000, things.insert_one(doc! { "_id": 1 }).await);
        self.equal(
            things.find_one(doc! { "_id": 8 }).await.unwrap(),
            Some(doc! { "_id": 8, "a": 1 }),
        );
        self.equal(things.count_documents(doc! { "a": 3 }).await.unwrap(), 143);
        self.equal(things.estimated_document_count().await.unwrap(), 1000);
        self.equal(things.distinct("a", doc! {}).await.unwrap().len(), 7);
        let change = doc! { "$set": { "b.c": 1 }, "$inc": { "a": 10 } };
        let updated = things.update_one(doc! { "_id": 1 }, change).await.unwrap();
        self.equal((updated.matched_count, updated.modified_count), (1, 1));
        let expected = doc! { "_id": 1, "a": 11, "b": { "c": 1 } };
        self.equal(things.find_one(doc! { "_id": 1 }).await.unwrap(), Some(expected));
        let pushed = things.update_many(doc! { "a": 2 }, doc! { "$push": { "l": 1 } }).await;
        self.equal(pushed.unwrap().modified_count, 143);
        let new = doc! { "_id": "new" };
        let replaced = things.replace_one(new.clone(), doc! { "r": 1 }).upsert(true).await.unwrap();
        self.equal(replaced.upserted_id.unwrap().as_str(), Some("new"));
        let found = things
            .find_one_and_update(new.clone(), doc! { "$mul": { "r": 5 } })
            .return_document(ReturnDocument::After)
            .await;
        self.equal(found.unwrap(), Some(doc! { "_id": "new", "r": 5 }));
        let found = things.find_one_and_delete(new).await.unwrap();
        self.equal(found, Some(doc! { "_id": "new", "r": 5 }));
        let deleted = things.delete_many(doc! { "_id": { "$gte": 990 } }).await.unwrap();
        self.equal(deleted.deleted_count, 10);
    }

    async fn cursors(&mut self, db: &Database, things: &Collection<Document>, sent: &Sent) {
        sent.take();
        let all = things.find(doc! {}).sort(doc! { "_id": -1 }).batch_size(100).await.unwrap();
        self.equal(ids(all.try_collect().await.unwrap()), (0..990).rev().collect::<Vec<_>>());
        let mut expected = vec!["find"];
        expected.extend(["getMore"; 9]);
        self.equal(sent.take(), expected);
        let opened = db.run_command(doc! { "find": "things", "batchSize": 2 }).await.unwrap();
        let opened = opened.get_document("cursor").unwrap().get_i64("id").unwrap();
        let kill = doc! { "killCursors": "things", "cursors": [opened] };
        let killed = db.run_command(kill).await.unwrap();
        self.equal(killed.get_array("cursorsKilled").unwrap(), &vec![bson::Bson::Int64(opened)]);
        let more = doc! { "getMore": opened, "collection": "things" };
        self.fails(43, db.run_command(more).await);
    }

    async fn indexes(&mut self, things: &Collection<Document>) {
        let index = |keys: Document, options: Option<IndexOptions>| {
            IndexModel::builder().keys(keys).options(options).build()
        };
        let made = things.create_index(index(doc! { "a": 1, "_id": -1 }, None)).await.unwrap();
        self.equal(made.index_name, "a_1__id_-1");
        let few = things.find(doc! { "a": 3, "_id": { "$lt": 20 } }).await.unwrap();
        self.equal(ids(few.try_collect().await.unwrap()), vec![17, 10, 3]);
        let unique = IndexOptions::builder().unique(true).sparse(true).build();
        let made = things.create_index(index(doc! { "u": 1 }, Some(unique))).await.unwrap();
        self.equal(made.index_name, "u_1");
        things.insert_one(doc! { "_id": "u", "u": 5 }).await.unwrap();
        self.fails(11000, things.insert_one(doc! { "u": 5 }).await);
        let names = things.list_index_names().await.unwrap();
        self.equal(names, vec!["_id_", "a_1__id_-1", "u_1"]);
        things.drop_index("u_1").await.unwrap();
        let names = things.list_index_names().await.unwrap();
        self.equal(names, vec!["_id_", "a_1__id_-1"]);
        things.delete_one(doc! { "_id": "u" }).await.unwrap();
    }

    async fn aggregation(&mut self, db: &Database, things: &Collection<Document>) {
        let totals = things.aggregate([
            doc! { "$match": { "a": { "$lt": 3 } } },
            doc! { "$group": { "_id": "$a", "n": { "$sum": 1 }, "most": { "$max": "$_id" } } },
            doc! { "$sort": { "_id": 1 } },
        ]);
        let totals: Vec<Document> = totals.await.unwrap().try_collect().await.unwrap();
        let expected = [
            doc! { "_id": 0, "n": 142, "most": 987 },
            doc! { "_id": 1, "n": 141, "most": 988 },
            doc! { "_id": 2, "n": 142, "most": 989 },
        ];
        self.equal(totals, expected);
        let names = (0..7).map(|n| doc! { "_id": n, "name": n.to_string() });
        db.collection::<Document>("names").insert_many(names).await.unwrap();
        let join = doc! {
            "from": "names", "localField": "a", "foreignField": "_id", "as": "names",
        };
        let joined = things.aggregate([
            doc! { "$match": { "_id": 10 } },
            doc! { "$lookup": join },
            doc! { "$unwind": "$names" },
            doc! { "$replaceWith": { "name": "$names.name" } },
        ]);
        let joined: Vec<Document> = joined.await.unwrap().try_collect().await.unwrap();
        self.equal(joined, [doc! { "name": "3" }]);
        let batches = things.aggregate([doc! { "$project": { "a": 1 } }]).batch_size(50);
        let all: Vec<Document> = batches.await.unwrap().try_collect().await.unwrap();
        self.equal(all.len(), 990);
    }

    /// This driver has bulk writes of one kind only, until the server announces `bulkWrite`.
    async fn bulk_writes(&mut self, bulk: &Collection<Document>) {
        let twice = [5, 5, 6].map(|n| doc! { "_id": n });
        let error = self.fails(11000, bulk.insert_many(twice).ordered(false).await);
        let ErrorKind::InsertMany(failure) = *error.kind else { panic!("{error}") };
        let places: Vec<usize> =
            failure.write_errors.unwrap().iter().map(|error| error.index).collect();
        self.equal(places, [1]);
        self.equal(bulk.count_documents(doc! {}).await.unwrap(), 2);
    }

    async fn retries(&mut self) {
        let (client, sent) = self.client(|_| ()).await;
        let admin = client.database("admin");
        let in_set = admin.run_command(doc! { "hello": 1 }).await.unwrap().contains_key("setName");
        let things: Collection<Document> = client.database("clients").collection("retried");
        things.drop().await.unwrap();
        things.insert_one(doc! { "_id": 1 }).await.unwrap();
        let fail = async |data: Document| {
            let mode = doc! { "times": 1 };
            let fault = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
            admin.run_command(fault).await.unwrap();
            sent.take();
        };
        let find = async || things.find_one(doc! {}).await;
        fail(doc! { "failCommands": ["find"], "closeConnection": true }).await;
        self.equal(find().await.unwrap(), Some(doc! { "_id": 1 }));
        self.equal(sent.take(), ["find", "find"]);
        fail(doc! { "failCommands": ["find"], "errorCode": 11600 }).await;
        self.equal(find().await.unwrap(), Some(doc! { "_id": 1 }));
        self.equal(sent.take(), ["find", "find"]);
        fail(doc! { "failCommands": ["find"], "errorCode": 2 }).await;
        self.fails(2, find().await);
        self.equal(sent.take(), ["find"]);
        fail(doc! { "failCommands": ["insert"], "closeConnection": true }).await;
        let inserted = things.insert_one(doc! { "_id": 2 }).await;
        let expected = if in_set {
            inserted.unwrap();
            self.equal(sent.take(), ["insert", "insert"]);
            let labels = ["RetryableWriteError"];
            fail(doc! { "failCommands": ["update"], "errorCode": 91, "errorLabels": labels }).await;
            let change = doc! { "$inc": { "n": 1 } };
            let updated = things.update_one(doc! { "_id": 2 }, change).await.unwrap();
            self.equal(updated.modified_count, 1);
            self.equal(sent.take(), ["update", "update"]);
            vec![doc! { "_id": 1 }, doc! { "_id": 2, "n": 1 }]
        } else {
            let error = inserted.unwrap_err();
            assert!(matches!(*error.kind, ErrorKind::Io(_)), "{error}");
            self.equal(sent.take(), ["insert"]);
            vec![doc! { "_id": 1 }]
        };
        let all: Vec<Document> = things.find(doc! {}).await.unwrap().try_collect().await.unwrap();
        self.equal(all, expected);
    }

    async fn round_trip(&mut self) {
        let (client, _) = self.client(|_| ()).await;
        let packed: Collection<Document> = client.database("clients").collection("packed");
        packed.drop().await.unwrap();
        let texts = (0..300).map(|_| doc! { "text": "x".repeat(1000) });
        packed.insert_many(texts).await.unwrap();
        let all: Vec<Document> = packed.find(doc! {}).await.unwrap().try_collect().await.unwrap();
        let lengths = all.iter().map(|document| document.get_str("text").unwrap().len());
        self.equal(lengths.sum::<usize>(), 300_000);
    }

    async fn login(&mut self) {
        let things = |client: &Client| client.database("clients").collection::<Document>("things");
        let (stranger, _) = self.client(|_| ()).await;
        self.fails(13, things(&stranger).insert_one(doc! {}).await);
        let admin = stranger.database("admin");
        let create = doc! { "createUser": "root", "pwd": "secret", "roles": ["root"] };
        admin.run_command(create).await.unwrap();
        let create = doc! { "createUser": "b", "pwd": "b", "roles": [] };
        self.fails(13, admin.run_command(create).await);
        for mechanism in [None, Some(AuthMechanism::ScramSha1), Some(AuthMechanism::ScramSha256)] {
            let root = self.logged_in("root", "secret", "admin", mechanism.clone()).await;
            let status =
                root.database("admin").run_command(doc! { "connectionStatus": 1 }).await.unwrap();
            let who = status.get_document("authInfo").unwrap();
            let expected = vec![doc! { "user": "root", "db": "admin" }.into()];
            self.equal(who.get_array("authenticatedUsers").unwrap(), &expected);
            let wrong = self.logged_in("root", "wrong", "admin", mechanism).await;
            self.fails(18, things(&wrong).find_one(doc! {}).await);
        }
        let root = self.logged_in("root", "secret", "admin", None).await;
        things(&root).insert_one(doc! { "_id": 1 }).await.unwrap();
        let create = doc! { "createUser": "reader", "pwd": "p\u{e9}", "roles": ["read"] };
        root.database("clients").run_command(create).await.unwrap();
        let reader = self.logged_in("reader", "p\u{e9}", "clients", None).await;
        let found = things(&reader).find_one(doc! {}).await.unwrap();
        self.equal(found, Some(doc! { "_id": 1 }));
        self.fails(13, things(&reader).insert_one(doc! {}).await);
    }

    async fn certificate(&mut self) {
        let (client, _) = self.client(|_| ()).await;
        let admin = client.database("admin");
        let status = admin.run_command(doc! { "connectionStatus": 1 }).await;
        let status = status.unwrap_or_else(|error| panic!("{error}"));
        let who = status.get_document("authInfo").unwrap();
        let expected = vec![doc! { "user": "CN=alice,O=Quorate", "db": "$external" }.into()];
        self.equal(who.get_array("authenticatedUsers").unwrap(), &expected);
        let things: Collection<Document> = client.database("clients").collection("things");
        things.insert_one(doc! { "_id": 1 }).await.unwrap();
        self.equal(things.find_one(doc! {}).await.unwrap(), Some(doc! { "_id": 1 }));
        let others: Collection<Document> = client.database("others").collection("things");
        self.fails(13, others.insert_one(doc! {}).await);
    }

    async fn logged_in(
        &self,
        user: &str,
        password: &str,
        source: &str,
        mechanism: Option<AuthMechanism>,
    ) -> Client {
        let mut credential = Credential::default();
        credential.username = Some(user.to_owned());
        credential.password = Some(password.to_owned());
        credential.source = Some(source.to_owned());
        credential.mechanism = mechanism;
        self.client(|options| options.credential = Some(credential)).await.0
    }
}

fn ids(documents: Vec<Document>) -> Vec<i32> {
    documents.iter().map(|document| document.get_i32("_id").unwrap()).collect()
}

/// The codes in an error, wherever this driver puts them. A refused login hides its code in the
/// cause.
fn codes(error: &Error) -> Vec<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => vec![error.code],
        ErrorKind::Write(mongodb::error::WriteFailure::WriteError(error)) => vec![error.code],
        ErrorKind::InsertMany(error) => {
            error.write_errors.iter().flatten().map(|error| error.code).collect()
        }
        ErrorKind::Authentication { .. } => {
            use std::error::Error as _;
            let source = error.source().and_then(|source| source.downcast_ref::<Error>());
            source.map_or(vec![18], codes)
        }
        _ => Vec::new(),
    }
}
