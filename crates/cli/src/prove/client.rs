//! One client of a workload: an operation after the other, each written down.

use std::rc::Rc;
use std::time::Duration;

use bson::{RawDocumentBuf, doc};
use quorate_checker::{Action, Outcome};
use quorate_client::{Error, Session};
use quorate_protocol::{ErrorCode, ReadPreference, ReadPreferenceMode};
use tokio::sync::watch;
use tokio::time::sleep;

use super::record::{Begun, Recorder};
use super::transactions;
use super::workload::{Chance, Site, Workload, integer, read_counter};

/// The pause after an operation that failed: a set without a primary is not hammered.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);

/// The pause after one that did not: room for others, and histories of a readable size.
const PAUSE: Duration = Duration::from_millis(5);

/// How many operations a key takes before the clients move on to a new one. It bounds what a check has to search.
pub(super) const OPERATIONS_PER_KEY: i64 = 100;

/// How many keys are in use at a time.
pub(super) const KEYS: u64 = 4;

/// A client of one workload.
pub(super) struct Worker {
    pub(super) workload: Workload,
    number: u8,
    clients: u8,
    pub(super) process: u64,
    pub(super) chance: Chance,
    pub(super) recorder: Rc<Recorder>,
    pub(super) site: Rc<Site>,
    session: Option<Session>,
}

impl Worker {
    pub(super) fn new(
        workload: Workload,
        number: u8,
        clients: u8,
        seed: u64,
        recorder: &Rc<Recorder>,
        site: &Rc<Site>,
    ) -> Self {
        let chance = Chance::new(seed ^ (u64::from(number) << 8) ^ workload as u64);
        let (recorder, site) = (Rc::clone(recorder), Rc::clone(site));
        Self {
            workload,
            number,
            clients,
            process: recorder.process(),
            chance,
            recorder,
            site,
            session: None,
        }
    }

    /// Works until it is told to stop.
    pub(super) async fn run(mut self, stopped: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            let done = match self.workload {
                Workload::Registers => self.use_register().await,
                Workload::Set => self.add().await,
                Workload::Counter => self.count().await,
                Workload::Sessions => self.use_session().await,
                Workload::Append => transactions::append(&mut self).await,
                Workload::Bank => transactions::use_bank(&mut self).await,
            };
            sleep(if done { PAUSE } else { PAUSE_AFTER_FAILURE }).await;
        }
    }

    /// A key of those in use now.
    pub(super) fn key(&mut self) -> i64 {
        let era = self.site.value() / (OPERATIONS_PER_KEY * KEYS as i64);
        era * KEYS as i64 + self.chance.below(KEYS) as i64
    }

    /// Writes the outcome down. Gives whether the operation was acknowledged.
    pub(super) fn end(&mut self, begun: Begun, outcome: Outcome, learnt: Option<Action>) -> bool {
        self.recorder.end(begun, outcome, learnt);
        if outcome == Outcome::Unknown {
            self.process = self.recorder.process();
            self.session = None;
        }
        outcome == Outcome::Ok
    }

    /// Writes down what a read found.
    fn end_read(
        &mut self,
        begun: Begun,
        key: i64,
        found: Result<Option<RawDocumentBuf>, Error>,
    ) -> bool {
        let Ok(found) = found else { return self.end(begun, Outcome::Fail, None) };
        let value = found.as_deref().and_then(|document| integer(document, "v"));
        self.end(begun, Outcome::Ok, Some(Action::Read { key, value }))
    }

    async fn use_register(&mut self) -> bool {
        let key = self.key();
        let collection = self.site.collection(Workload::Registers);
        let register = doc! { "_id": key };
        match self.chance.below(3) {
            0 => {
                let linearizable = collection.with_read_concern("linearizable");
                let begun = self.recorder.begin(self.process, Action::Read { key, value: None });
                let found = linearizable.find_one(register).await;
                self.end_read(begun, key, found)
            }
            1 => {
                let value = self.site.value();
                let begun = self.recorder.begin(self.process, Action::Write { key, value });
                let change = doc! { "$set": { "v": value } };
                let written =
                    collection.update_one(register, change).upsert(true).await.map(|_| Outcome::Ok);
                let outcome = written.unwrap_or_else(|error| outcome(&error));
                self.end(begun, outcome, None)
            }
            _ => {
                let Ok(found) = collection.find_one(register).await else { return false };
                let Some(expected) = found.as_deref().and_then(|document| integer(document, "v"))
                else {
                    return true;
                };
                let value = self.site.value();
                let action = Action::CompareAndSet { key, expected: Some(expected), value };
                let begun = self.recorder.begin(self.process, action);
                let change = doc! { "$set": { "v": value } };
                let written =
                    collection.update_one(doc! { "_id": key, "v": expected }, change).await;
                let outcome = match written {
                    Ok(result) if result.matched_count == 1 => Outcome::Ok,
                    Ok(_) => Outcome::Fail,
                    Err(error) => outcome(&error),
                };
                self.end(begun, outcome, None)
            }
        }
    }

    async fn add(&mut self) -> bool {
        let element = self.site.value();
        let begun = self.recorder.begin(self.process, Action::Add(element));
        let written = self.site.collection(Workload::Set).insert_one(doc! { "_id": element }).await;
        let outcome = written.map_or_else(|error| outcome(&error), |_| Outcome::Ok);
        self.end(begun, outcome, None)
    }

    async fn count(&mut self) -> bool {
        if self.chance.below(4) == 0 {
            return read_counter(&self.site, &self.recorder, self.process).await.is_ok();
        }
        let begun = self.recorder.begin(self.process, Action::Increment(1));
        let collection = self.site.collection(Workload::Counter);
        let written =
            collection.update_one(doc! { "_id": 0 }, doc! { "$inc": { "n": 1_i64 } }).await;
        let outcome = written.map_or_else(|error| outcome(&error), |_| Outcome::Ok);
        self.end(begun, outcome, None)
    }

    /// Writes its own key, or reads one of any client at a secondary. Only its own client writes a key, so that
    /// versions rise.
    async fn use_session(&mut self) -> bool {
        let collection = self.site.collection(Workload::Sessions).with_read_concern("majority");
        let mut session = self.session.take().unwrap_or_else(|| self.site.client.start_session());
        if self.chance.below(3) == 0 {
            let (key, value) = (i64::from(self.number), self.site.value());
            let begun = self.recorder.begin(self.process, Action::Write { key, value });
            let change = doc! { "$set": { "v": value } };
            let written =
                collection.update_one(doc! { "_id": key }, change).session(&mut session).await;
            let outcome = written.map_or_else(|error| outcome(&error), |_| Outcome::Ok);
            self.session = Some(session);
            self.end(begun, outcome, None)
        } else {
            let key = self.chance.below(u64::from(self.clients)) as i64;
            let begun = self.recorder.begin(self.process, Action::Read { key, value: None });
            let anywhere =
                collection.with_read_preference(ReadPreference::new(ReadPreferenceMode::Nearest));
            let found = anywhere.find_one(doc! { "_id": key }).session(&mut session).await;
            self.session = Some(session);
            self.end_read(begun, key, found)
        }
    }
}

/// The outcome of a write that failed: it may have been done, unless the key was there already.
pub(super) fn outcome(error: &Error) -> Outcome {
    match error.code().map(ErrorCode) {
        Some(ErrorCode::DUPLICATE_KEY) => Outcome::Fail,
        _ => Outcome::Unknown,
    }
}
