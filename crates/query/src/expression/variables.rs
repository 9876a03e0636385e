//! The variables that an expression can read besides its document: system variables, the caller's variables, the
//! variables it binds itself, and the seed of `$rand`.
//!
//! Nothing here reads a clock: `$$NOW` and `$$CLUSTER_TIME` are what the caller says they are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bson::{Bson, DateTime, Document, Timestamp, doc};
use quorate_protocol::SplitMix64;

use super::operand::Operand;
use crate::error::{QueryError, Result};
use crate::meter::{Interrupt, Meter};

/// The values that one operation's expressions share.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    now: Option<DateTime>,
    cluster_time: Option<Timestamp>,
    user_roles: Option<Arc<UserRoles>>,
    /// `None` is a variable that is defined and missing.
    user: BTreeMap<String, Option<Bson>>,
    random: Arc<SharedRandom>,
    meter: Meter,
}

impl Variables {
    /// No variables; `$rand` starts from this seed.
    pub fn new(seed: u64) -> Self {
        Self::metered(seed, Meter::default())
    }

    /// The same, with the operation's meter.
    pub fn metered(seed: u64, meter: Meter) -> Self {
        let random = Arc::new(SharedRandom(AtomicU64::new(seed)));
        Self { random, meter, ..Self::default() }
    }

    /// The same with `$$NOW`.
    #[must_use]
    pub fn with_now(mut self, now: DateTime) -> Self {
        self.now = Some(now);
        self
    }

    /// The same with `$$CLUSTER_TIME`.
    #[must_use]
    pub fn with_cluster_time(mut self, cluster_time: Timestamp) -> Self {
        self.cluster_time = Some(cluster_time);
        self
    }

    /// The same with `$$USER_ROLES`, which is an empty array unless it is given.
    #[must_use]
    pub fn with_user_roles(mut self, roles: Arc<UserRoles>) -> Self {
        self.user_roles = Some(roles);
        self
    }

    /// The same with an interrupt that is asked whether to go on, on a fresh meter.
    #[must_use]
    pub fn with_interrupt(mut self, interrupt: Arc<dyn Interrupt>) -> Self {
        self.meter = self.meter.with_interrupt(interrupt);
        self
    }

    /// The same with the operation's meter.
    #[must_use]
    pub fn with_meter(mut self, meter: Meter) -> Self {
        self.meter = meter;
        self
    }

    /// The meter of the operation's steps and bytes.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Counts a step of a loop, and asks from time to time whether to go on.
    pub(crate) fn step(&self) -> Result<()> {
        self.meter.step()
    }

    #[cfg(test)]
    pub(crate) fn with_variable(mut self, name: impl Into<String>, value: Bson) -> Self {
        self.set(name, value);
        self
    }

    /// Sets a variable of the caller's.
    pub fn set(&mut self, name: impl Into<String>, value: Bson) {
        self.user.insert(name.into(), Some(value));
    }

    /// Defines a variable of the caller's that has no value.
    pub fn set_missing(&mut self, name: impl Into<String>) {
        self.user.insert(name.into(), None);
    }

    /// The names of the caller's variables.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.user.keys().map(String::as_str)
    }

    pub(crate) fn user(&self, name: &str) -> Option<&Bson> {
        self.user.get(name)?.as_ref()
    }

    pub(super) fn now(&self) -> Result<Bson> {
        self.now.map(Bson::DateTime).ok_or_else(|| unavailable("NOW"))
    }

    pub(super) fn cluster_time(&self) -> Result<Bson> {
        self.cluster_time.map(Bson::Timestamp).ok_or_else(|| unavailable("CLUSTER_TIME"))
    }

    pub(super) fn user_roles(&self) -> &Bson {
        static NONE: Bson = Bson::Array(Vec::new());
        self.user_roles.as_ref().map_or(&NONE, |roles| roles.value())
    }

    /// The next number of the seeded sequence.
    pub(crate) fn next_random(&self) -> u64 {
        self.random.next()
    }
}

/// The roles of the user who runs an operation, each with its database. The value is made when an expression reads it.
#[derive(Debug, Default)]
pub struct UserRoles {
    roles: Vec<(String, String)>,
    value: OnceLock<Bson>,
}

impl UserRoles {
    /// These roles: name and database.
    pub fn new(roles: Vec<(String, String)>) -> Self {
        Self { roles, value: OnceLock::new() }
    }

    fn value(&self) -> &Bson {
        let role = |(role, db): &(String, String)| {
            Bson::from(doc! { "_id": format!("{db}.{role}"), "role": role, "db": db })
        };
        self.value.get_or_init(|| self.roles.iter().map(role).collect::<Vec<_>>().into())
    }
}

fn unavailable(name: &str) -> QueryError {
    fail!(51144, "Builtin variable '$${name}' is not available")
}

/// The state of a [`SplitMix64`] sequence, from which clones of [`Variables`] draw together: a step of it is one addition.
#[derive(Debug, Default)]
struct SharedRandom(AtomicU64);

impl SharedRandom {
    fn next(&self) -> u64 {
        SplitMix64::new(self.0.fetch_add(SplitMix64::STEP, Ordering::Relaxed)).next_u64()
    }
}

/// The place at which an expression is computed.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// `$$ROOT`.
    pub(crate) root: &'a Document,
    /// `$$CURRENT`, which only `$redact` makes differ from the root.
    pub(crate) current: &'a Document,
    /// The variables that the whole operation shares.
    pub(crate) variables: &'a Variables,
    /// The variables that `$let`, `$map`, `$filter` and `$reduce` around this place have bound.
    pub(super) scope: Option<&'a Scope<'a>>,
}

impl<'a> Frame<'a> {
    /// The outermost frame of a document.
    pub(crate) fn new(root: &'a Document, variables: &'a Variables) -> Self {
        Self { root, current: root, variables, scope: None }
    }

    /// The value in a slot that the parser assigned.
    pub(super) fn slot(&self, slot: usize) -> &'a Operand<'a> {
        let mut scope = self.scope;
        while let Some(inner) = scope {
            if slot >= inner.first_slot {
                return inner.values.get(slot - inner.first_slot).unwrap_or(&Operand::MISSING);
            }
            scope = inner.parent;
        }
        &Operand::MISSING
    }
}

/// Variables bound by one operator; slots are numbered from the outside in.
pub(super) struct Scope<'a> {
    pub(super) first_slot: usize,
    pub(super) values: Vec<Operand<'a>>,
    pub(super) parent: Option<&'a Scope<'a>>,
}
