//! The profiler: which commands are recorded, in the log and in `system.profile`.
//!
//! Owns the level of each database, what counts as slow, and the documents that tell of a command. They
//! go to a small capped collection of the same database, on this member only: a secondary's reads are its
//! own. Nothing of this outlives the process but the documents.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bson::{Bson, Document, RawDocument, doc};
use quorate_query::matcher::Matcher;
use quorate_wire::to_bson_date_time;

use quorate_protocol::Lock;

use crate::catalog::Collection;
use crate::context::{Client, Now};
use crate::error::Result;
use crate::fields::to_raw;
use crate::finder::Examined;
use crate::namespace::{Namespace, PROFILE_COLLECTION};
use crate::node::Node;
use crate::operations::{Operation, Registered};
use crate::users::LoggedIn;
use crate::writer::Writer;

/// How long a command takes until it counts as slow, unless `profile` says so.
const DEFAULT_SLOW_MILLIS: i64 = 100;

/// How much `system.profile` holds before the oldest goes.
const PROFILE_BYTES: i32 = 1024 * 1024;

/// How much a command has examined, and by which plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) examined: Examined,
    pub(crate) plan: Option<Cow<'static, str>>,
}

/// Which commands of a database are recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    /// 0 writes nothing, 1 slow commands, 2 all.
    pub(crate) level: i32,
    /// Commands that are recorded instead of slow ones.
    pub(crate) filter: Option<(Document, Arc<Matcher>)>,
}

/// Which commands are recorded.
#[derive(Clone, Debug)]
pub(crate) struct ProfilerState {
    pub(crate) slow_millis: i64,
    /// The share of slow commands that is recorded.
    pub(crate) sample_rate: f64,
    databases: BTreeMap<String, Profile>,
}

impl ProfilerState {
    pub(crate) fn of(&self, database: &str) -> Profile {
        self.databases.get(database).cloned().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, database: &str, profile: Profile) {
        if profile.level == 0 && profile.filter.is_none() {
            self.databases.remove(database);
        } else {
            self.databases.insert(database.to_owned(), profile);
        }
    }
}

/// The settings, shared by all commands.
#[derive(Debug)]
pub(crate) struct Profiler {
    state: Lock<ProfilerState>,
    /// From how many milliseconds on a command is recorded: 0 while a database is profiled. Nearly all
    /// commands look at this only.
    threshold: AtomicI64,
}

impl Default for Profiler {
    fn default() -> Self {
        let state = ProfilerState {
            slow_millis: DEFAULT_SLOW_MILLIS,
            sample_rate: 1.0,
            databases: BTreeMap::new(),
        };
        Self { state: Lock::new(state), threshold: AtomicI64::new(DEFAULT_SLOW_MILLIS) }
    }
}

impl Profiler {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ProfilerState> {
        self.state.lock()
    }

    /// Changes the settings.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut ProfilerState) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let threshold = if state.databases.is_empty() { state.slow_millis } else { 0 };
        self.threshold.store(threshold, Ordering::Relaxed);
        result
    }
}

/// Whether a command is worth telling of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    log: bool,
    write: bool,
}

impl Node {
    /// Whether a command that took so long may be worth telling of.
    pub fn may_be_told(&self, took: Duration) -> bool {
        let threshold = self.profiler().threshold.load(Ordering::Relaxed);
        took.as_millis() >= u128::try_from(threshold).unwrap_or(0)
    }

    /// A command has come to its end: writes it into the profile of its database, if it belongs there.
    /// Returns whether it is worth a line in the log as well. Where nothing may be written at the moment,
    /// nothing is.
    ///
    /// # Errors
    ///
    /// If the store fails. The command itself is not affected.
    pub fn finish(
        &self,
        registered: &Registered,
        now: Now,
        took: Duration,
        reply: &RawDocument,
        may_write: bool,
    ) -> Result<bool> {
        let operation = registered.operation();
        let database = operation.database();
        let state = self.profiler().lock();
        let slow = took.as_millis() >= u128::try_from(state.slow_millis).unwrap_or(0);
        let profile = state.databases.get(database);
        if profile.is_none() && !slow {
            return Ok(false);
        }
        let (profile, rate) = (profile.cloned().unwrap_or_default(), state.sample_rate);
        drop(state);
        let sampled = |node: &Self| rate >= 1.0 || node.draw() < rate;
        let mut shown = None;
        let wanted = match &profile.filter {
            Some((_, matcher)) => {
                let described = describe(operation, now, took, reply);
                let wanted = matcher.matches(&*to_raw(&described)?)?;
                shown = Some(described);
                wanted
            }
            None => slow && sampled(self),
        };
        let everything = profile.level >= 2;
        let verdict = Verdict {
            log: wanted || everything,
            write: (everything || profile.level == 1 && wanted) && !operation.precedes_profile(),
        };
        if verdict.write && may_write {
            let document = shown.unwrap_or_else(|| describe(operation, now, took, reply));
            self.write_profile(database, &document, now)?;
        }
        Ok(verdict.log)
    }

    /// A number from 0 up to 1.
    fn draw(&self) -> f64 {
        (self.next_seed() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn write_profile(&self, database: &str, document: &Document, now: Now) -> Result<()> {
        let document = to_raw(document)?;
        let mut writer = self.write(now);
        let mut collection = profile_collection(&mut writer, database)?;
        writer.insert(&mut collection, vec![document], true, true)?.into_iter().collect()
    }

    /// Makes the collection before the first document comes, so that it can be tailed.
    pub(crate) fn prepare_profile(&self, database: &str, now: Now) -> Result<()> {
        profile_collection(&mut self.write(now), database).map(drop)
    }
}

fn profile_collection(writer: &mut Writer<'_>, database: &str) -> Result<Arc<Collection>> {
    let namespace = Namespace::new(database, PROFILE_COLLECTION)?;
    match writer.collection(&namespace) {
        Some(collection) => Ok(collection),
        None => {
            let options = doc! { "capped": true, "size": PROFILE_BYTES };
            writer.create_collection(&namespace, options)
        }
    }
}

/// A command that has ended, as tools read it.
fn describe(operation: &Operation, now: Now, took: Duration, reply: &RawDocument) -> Document {
    let Work { examined, plan } = operation.work();
    let mut shown = doc! {
        "op": operation.kind(),
        "ns": operation.namespace(),
        "command": operation.profiled(),
    };
    if operation.kind() == "getmore"
        && let Some(id) = operation.description().get("getMore")
    {
        shown.insert("cursorid", id.clone());
    }
    shown.insert("keysExamined", examined.keys as i64);
    shown.insert("docsExamined", examined.documents as i64);
    append_results(&mut shown, operation.kind(), reply);
    shown.insert("numYield", 0);
    shown.insert("locks", doc! {});
    if let Ok(code) = reply.get_i32("code") {
        shown.insert("ok", 0.0);
        shown.insert("errMsg", reply.get_str("errmsg").unwrap_or_default());
        shown.insert("errName", reply.get_str("codeName").unwrap_or_default());
        shown.insert("errCode", code);
    }
    shown.insert("responseLength", reply.as_bytes().len() as i32);
    shown.insert("protocol", "op_msg");
    shown.insert("millis", i32::try_from(took.as_millis()).unwrap_or(i32::MAX));
    if let Some(plan) = plan {
        shown.insert("planSummary", plan.as_ref());
    }
    shown.insert("ts", to_bson_date_time(now.wall));
    append_client(&mut shown, operation.client());
    shown
}

/// What the reply says of the documents that were met.
fn append_results(shown: &mut Document, kind: &str, reply: &RawDocument) {
    let number = |name: &str| reply.get_i32(name).ok();
    if let Ok(cursor) = reply.get_document("cursor") {
        let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"));
        if let Ok(batch) = batch {
            shown.insert("nreturned", batch.into_iter().count() as i32);
        }
        if let Ok(id) = cursor.get_i64("id") {
            if id == 0 {
                shown.insert("cursorExhausted", true);
            } else {
                shown.insert("cursorid", id);
            }
        }
    }
    let renamed: &[(&str, &str)] = match kind {
        "insert" => &[("n", "ninserted")],
        "remove" => &[("n", "ndeleted")],
        "update" => &[("n", "nMatched"), ("nModified", "nModified")],
        _ => &[],
    };
    for (name, told) in renamed {
        if let Some(number) = number(name) {
            shown.insert(*told, number);
        }
    }
    if kind == "update" && reply.get("upserted").ok().flatten().is_some() {
        shown.insert("upsert", true);
    }
}

fn append_client(shown: &mut Document, client: &Client) {
    let address = client.address.rsplit_once(':').map_or("", |(host, _)| host);
    shown.insert("client", address);
    if let Some(name) = client.application_name() {
        shown.insert("appName", name);
    }
    let user = client.login.state().user.clone();
    let named = |who: &LoggedIn| doc! { "user": &who.name, "db": &who.database };
    shown.insert("allUsers", user.iter().map(|who| Bson::from(named(who))).collect::<Vec<_>>());
    let full = user.map(|who| format!("{}@{}", who.name, who.database)).unwrap_or_default();
    shown.insert("user", full);
}
