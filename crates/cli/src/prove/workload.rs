//! The workloads: what each promises, what it needs, and how its history is judged.

use std::cell::Cell;
use std::time::Duration;

use bson::{Document, doc};
use clap::ValueEnum;
use quorate_checker::list_append::Model;
use quorate_checker::{
    Action, History, MicroOperation, Outcome, Verdict, bank, counters, list_append, registers,
    sessions, sets,
};
use quorate_client::{Client, Collection, Error};
use quorate_protocol::SplitMix64;
use tokio::time::{Instant, sleep};

use super::record::Recorder;
use super::transactions;
use crate::clock;

/// How many accounts the bank has, and what each begins with.
pub(super) const ACCOUNTS: i64 = 5;
const BALANCE: i64 = 20;

/// How often a final read is tried: the set may still be electing.
const FINAL_LIMIT: Duration = Duration::from_secs(60);

quorate_protocol::named! {
    /// The operations of the clients.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    pub(crate) enum Workload {
        /// Reads, writes and compare-and-set of single documents.
        Registers = "registers",
        /// Insertions, and a read of everything at the end.
        Set = "set",
        /// Increments of one document.
        Counter = "counter",
        /// Causal sessions that write and read at secondaries.
        Sessions = "sessions",
        /// Transactions that append to lists and read them.
        Append = "append",
        /// Transfers between accounts, and reads of all of them.
        Bank = "bank",
    }
}

impl Workload {
    /// The guarantee that is checked.
    pub(super) fn promise(self) -> &'static str {
        match self {
            Self::Registers => "linearizable, with w: majority and read concern linearizable",
            Self::Set => "nothing acknowledged by a majority is lost",
            Self::Counter => "every increment counts once",
            Self::Sessions => "reads of a causal session never go backwards",
            Self::Append => "snapshot isolation",
            Self::Bank => "the total never changes",
        }
    }

    /// Whether the history has only what the promise explains.
    pub(super) fn check(self, history: &History) -> Verdict {
        let mut verdict = match self {
            Self::Registers => registers::check(history),
            Self::Set => sets::check(history),
            Self::Counter => counters::check(history),
            Self::Sessions => sessions::check(history),
            Self::Append => list_append::check(history, Model::SnapshotIsolation),
            Self::Bank => bank::check(history, ACCOUNTS * BALANCE),
        };
        if history.operations().iter().all(|operation| operation.outcome != Outcome::Ok) {
            verdict.undecided =
                Some("no operation was acknowledged; does this deployment offer what the workload needs?".to_owned());
        }
        verdict
    }
}

/// Numbers by chance, the same for the same seed.
pub(super) struct Chance(SplitMix64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit.max(1)
    }
}

/// Where the workloads put their documents: a database of this run alone.
pub(super) struct Site {
    pub(super) client: Client,
    database: String,
    next_value: Cell<i64>,
}

impl Site {
    pub(super) fn new(client: Client, seed: u64) -> Self {
        let database = format!(
            "quorate_prove_{}_{}",
            seed % 1_000_000,
            clock::now().as_nanos() % 1_000_000_000
        );
        Self { client, database, next_value: Cell::new(1) }
    }

    pub(super) fn collection(&self, workload: Workload) -> Collection {
        self.client.collection(&self.database, workload.name())
    }

    /// A value that no other operation of this run has.
    pub(super) fn value(&self) -> i64 {
        let value = self.next_value.get();
        self.next_value.set(value + 1);
        value
    }

    /// Makes one write that a majority acknowledges.
    pub(super) async fn touch(&self) -> Result<(), Error> {
        let collection = self.client.collection(&self.database, "settled");
        collection
            .update_one(doc! { "_id": 0 }, doc! { "$inc": { "n": 1 } })
            .upsert(true)
            .await
            .map(drop)
    }

    /// Removes the documents. Left behind, they would only be a database to drop by hand.
    pub(super) async fn clean_up(&self) {
        let _ = self.client.database(&self.database).drop_database().await;
    }
}

/// Makes what the clients of a workload expect.
pub(super) async fn set_up(workload: Workload, site: &Site, clients: u8) -> Result<(), Error> {
    let collection = site.collection(workload);
    let documents: Vec<Document> = match workload {
        Workload::Counter => vec![doc! { "_id": 0, "n": 0_i64 }],
        Workload::Bank => {
            (0..ACCOUNTS).map(|account| doc! { "_id": account, "balance": BALANCE }).collect()
        }
        Workload::Sessions => {
            (0..i64::from(clients)).map(|key| doc! { "_id": key, "v": 0_i64 }).collect()
        }
        // The collection is there before the first transaction, which then need not make it.
        Workload::Registers | Workload::Set | Workload::Append => vec![doc! { "_id": "made" }],
    };
    collection.insert_many(documents).await?;
    if matches!(workload, Workload::Registers | Workload::Set | Workload::Append) {
        collection.delete_one(doc! { "_id": "made" }).await?;
    }
    Ok(())
}

/// Reads everything a last time, where the check needs it.
pub(super) async fn final_reads(workload: Workload, site: &Site, recorder: &Recorder) {
    let deadline = Instant::now() + FINAL_LIMIT;
    loop {
        let done = match workload {
            Workload::Set => read_set(site, recorder).await,
            Workload::Counter => read_counter(site, recorder, recorder.process()).await,
            Workload::Append => read_lists(site, recorder).await,
            Workload::Bank => transactions::read_balances(site, recorder, recorder.process()).await,
            Workload::Registers | Workload::Sessions => Ok(()),
        };
        // A final read that never succeeds leaves the history without it, and the check undecided where it needs one.
        if done.is_ok() || Instant::now() > deadline {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

async fn read_set(site: &Site, recorder: &Recorder) -> Result<(), Error> {
    let collection = site.collection(Workload::Set).with_read_concern("majority");
    let read = async { collection.find(doc! {}).sort(doc! { "_id": 1 }).await?.collect().await };
    let learnt = |documents: Vec<bson::RawDocumentBuf>| {
        let elements = documents.iter().filter_map(|document| integer(document, "_id"));
        Action::ReadAll(Some(elements.collect()))
    };
    recorder.read(recorder.process(), Action::ReadAll(None), read, learnt).await
}

pub(super) async fn read_counter(
    site: &Site,
    recorder: &Recorder,
    process: u64,
) -> Result<(), Error> {
    let collection = site.collection(Workload::Counter).with_read_concern("linearizable");
    let learnt = |found: Option<bson::RawDocumentBuf>| {
        Action::Count(found.as_deref().and_then(|document| integer(document, "n")))
    };
    let read = collection.find_one(doc! { "_id": 0 });
    recorder.read(process, Action::Count(None), read, learnt).await
}

/// Reads every list in one go, each as a transaction of its own.
async fn read_lists(site: &Site, recorder: &Recorder) -> Result<(), Error> {
    let collection = site.collection(Workload::Append).with_read_concern("majority");
    let documents = collection.find(doc! {}).await?.collect().await?;
    for document in documents {
        let Some(key) = integer(&document, "_id") else { continue };
        let steps = vec![MicroOperation::Read { key, list: None }];
        let begun = recorder.begin(recorder.process(), Action::Transaction(steps));
        let found = collection.find_one(doc! { "_id": key }).await;
        let Ok(found) = found else {
            recorder.end(begun, Outcome::Fail, None);
            continue;
        };
        let list = found.as_deref().map(list).unwrap_or_default();
        let steps = vec![MicroOperation::Read { key, list: Some(list) }];
        recorder.end(begun, Outcome::Ok, Some(Action::Transaction(steps)));
    }
    Ok(())
}

/// A whole number of a document, of either width.
pub(super) fn integer(document: &bson::RawDocument, field: &str) -> Option<i64> {
    whole(document.get(field).ok()??)
}

fn whole(value: bson::RawBsonRef<'_>) -> Option<i64> {
    value.as_i64().or_else(|| value.as_i32().map(i64::from))
}

pub(super) fn list(document: &bson::RawDocument) -> Vec<i64> {
    let values = document.get_array("list").ok().into_iter().flatten().filter_map(Result::ok);
    values.filter_map(whole).collect()
}
