//! Commands in progress: their client, start and progress, and how to stop them.
//!
//! Owns the registry behind `currentOp`, `$currentOp` and `killOp`. The shell registers a command when
//! it arrives and forgets it with its reply, so that waiting is seen as well; stopping is left to the
//! command's [`Interrupt`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bson::{Bson, Document, doc};

use quorate_protocol::Lock;

use crate::body::CommandBody;
use crate::context::{Client, Command, Context, Interrupt, Interruption, Now};
use crate::profile::Work;
use crate::records::DocumentBytes;
use crate::sessions::SessionId;
use crate::users::LoggedIn;

/// Elements of an array that a description shows; of a longer one it tells the length.
const MAX_SHOWN_ELEMENTS: usize = 16;

/// The longest statement that a description shows.
const MAX_SHOWN_STATEMENT: usize = 4 * 1024;

/// Commands whose arguments are secrets.
const SECRET: [&str; 5] = ["saslStart", "saslContinue", "authenticate", "createUser", "updateUser"];

/// A command in progress, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(pub i64);

/// What is known of a command in progress.
pub(crate) struct Operation {
    client: Arc<Client>,
    started: Now,
    command: Arc<CommandBody>,
    /// The first statement of an update or a delete.
    statement: Option<DocumentBytes>,
    interrupt: Arc<Interrupt>,
    /// Whether the command came before the profiler of its database was switched on.
    precedes_profile: bool,
}

/// The registry.
pub(crate) struct Operations {
    next: AtomicI64,
    running: Lock<Running>,
    /// Connections there are, and how many there were.
    connections: (AtomicI64, AtomicI64),
}

/// Commands in progress, in no order: each has a place, which is another's once it has ended.
#[derive(Default)]
struct Running {
    places: Vec<Option<(OperationId, Arc<Operation>)>>,
    free: Vec<usize>,
}

impl Running {
    /// Adds a command. Returns its place.
    fn add(&mut self, id: OperationId, operation: Arc<Operation>) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.places[place] = Some((id, operation));
                place
            }
            None => {
                self.places.push(Some((id, operation)));
                self.places.len() - 1
            }
        }
    }

    fn remove(&mut self, place: usize) -> Option<(OperationId, Arc<Operation>)> {
        self.free.push(place);
        self.places[place].take()
    }

    fn iter(&self) -> impl Iterator<Item = &(OperationId, Arc<Operation>)> {
        self.places.iter().flatten()
    }

    /// All of them, in the order in which they came.
    fn in_order(&self) -> Vec<&(OperationId, Arc<Operation>)> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    fn get(&self, wanted: OperationId) -> Option<&Operation> {
        self.iter().find(|(id, _)| *id == wanted).map(|(_, operation)| &**operation)
    }
}

impl Default for Operations {
    fn default() -> Self {
        Self { next: AtomicI64::new(1), running: Lock::default(), connections: Default::default() }
    }
}

/// Keeps a command registered until it is dropped.
pub struct Registered {
    operations: Arc<Operations>,
    id: OperationId,
    place: usize,
    operation: Arc<Operation>,
}

impl Registered {
    /// Whether the command has waited for something to happen.
    pub fn has_waited(&self) -> bool {
        self.operation.interrupt.has_waited()
    }

    pub(crate) fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The name of the command.
    pub fn name(&self) -> &str {
        self.operation.command.name()
    }

    /// What the command works on.
    pub fn namespace(&self) -> String {
        self.operation.namespace()
    }

    /// The number by which `killOp` knows it.
    pub fn id(&self) -> OperationId {
        self.id
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // What it held is freed without the lock.
        let _ended = self.operations.running.lock().remove(self.place);
    }
}

/// Counts as a connection until it is dropped.
pub struct Connected(Arc<Operations>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A long piece of work, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The command.
    pub operation: OperationId,
    /// What it works on.
    pub namespace: String,
    /// Pieces that are done.
    pub done: u64,
    /// Pieces that there are.
    pub total: u64,
}

impl Operations {
    pub(crate) fn register(
        self: &Arc<Self>,
        context: &Context,
        command: &Command,
        precedes_profile: bool,
    ) -> Registered {
        let id = OperationId(self.next.fetch_add(1, Ordering::Relaxed));
        let operation = Arc::new(Operation {
            client: Arc::clone(&context.client),
            started: context.now,
            command: Arc::clone(&command.body),
            statement: first_statement(command),
            interrupt: Arc::clone(&context.interrupt),
            precedes_profile,
        });
        let place = self.running.lock().add(id, Arc::clone(&operation));
        Registered { operations: Arc::clone(self), id, place, operation }
    }

    pub(crate) fn count_connection(self: &Arc<Self>) -> Connected {
        self.connections.0.fetch_add(1, Ordering::Relaxed);
        self.connections.1.fetch_add(1, Ordering::Relaxed);
        Connected(Arc::clone(self))
    }

    /// How many connections there are, and how many there have been.
    pub(crate) fn connections(&self) -> (i64, i64) {
        let (current, created) = &self.connections;
        (current.load(Ordering::Relaxed), created.load(Ordering::Relaxed))
    }

    /// Asks a command to stop; none if there is no such command. Where a user is given, only if it is the user's own:
    /// returns whether it is asked.
    pub(crate) fn kill(&self, id: OperationId, by: Option<&LoggedIn>) -> Option<bool> {
        let running = self.running.lock();
        let operation = running.get(id)?;
        let may = by.is_none_or(|by| operation.user().as_ref() == Some(by));
        if may {
            operation.interrupt.set(Interruption::Killed);
        }
        Some(may)
    }

    /// Asks the commands of these sessions to stop, but for the one that asks.
    pub(crate) fn kill_sessions(&self, ended: &BTreeSet<SessionId>, asking: &Arc<Interrupt>) {
        for (_, operation) in self.running.lock().iter() {
            let is_ended = operation.session().is_some_and(|id| ended.contains(&id));
            if is_ended && !Arc::ptr_eq(&operation.interrupt, asking) {
                operation.interrupt.set(Interruption::Killed);
            }
        }
    }

    /// The sessions that commands run in.
    pub(crate) fn sessions(&self) -> BTreeSet<SessionId> {
        self.running.lock().iter().filter_map(|(_, operation)| operation.session()).collect()
    }

    /// Every command in progress, or those of a user, as `currentOp` shows it.
    pub(crate) fn list(&self, host: &str, now: Now, of: Option<&LoggedIn>) -> Vec<Document> {
        let running = self.running.lock();
        let is_wanted =
            |operation: &Operation| of.is_none_or(|user| operation.user().as_ref() == Some(user));
        let wanted = running.in_order().into_iter().filter(|(_, operation)| is_wanted(operation));
        wanted.map(|(id, operation)| operation.document(*id, host, now)).collect()
    }

    /// How many commands read or look at something, and how many write.
    pub(crate) fn active(&self) -> (i32, i32) {
        let running = self.running.lock();
        let is_write = |(_, operation): &&(OperationId, Arc<Operation>)| {
            matches!(operation.kind(), "insert" | "update" | "remove")
        };
        let (all, writers) = (running.iter().count(), running.iter().filter(is_write).count());
        ((all - writers) as i32, writers as i32)
    }

    /// The commands that say how far they are.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        let running = self.running.lock();
        let known = running.in_order().into_iter().filter_map(|(id, operation)| {
            let (done, total) = operation.interrupt.progress()?;
            let namespace = operation.namespace();
            Some(Progress { operation: *id, namespace, done, total })
        });
        known.collect()
    }
}

impl Operation {
    pub(crate) fn command(&self) -> &CommandBody {
        &self.command
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The user that it runs for, by now.
    fn user(&self) -> Option<LoggedIn> {
        self.client.login.state().user.clone()
    }

    fn session(&self) -> Option<SessionId> {
        SessionId::from_command(&self.command).ok().flatten()
    }

    pub(crate) fn kind(&self) -> &'static str {
        kind_of(self.command.name())
    }

    pub(crate) fn database(&self) -> &str {
        self.command.database()
    }

    pub(crate) fn namespace(&self) -> String {
        namespace_of(&self.command)
    }

    /// The command without its secrets and without what is long.
    pub(crate) fn description(&self) -> Document {
        describe(&self.command)
    }

    /// The same as the profiler shows it: of an update or a delete the statement.
    pub(crate) fn profiled(&self) -> Document {
        match self.statement.as_ref().map(|statement| Document::try_from(&**statement)) {
            Some(Ok(statement)) => statement,
            _ => {
                let listed = ["updates", "deletes"].iter().find_map(|name| self.command.get(name));
                let first = listed.and_then(|listed| listed.as_array()?.first()?.as_document());
                first.cloned().unwrap_or_else(|| self.description())
            }
        }
    }

    /// Whether the command came before the profiler of its database was switched on.
    pub(crate) fn precedes_profile(&self) -> bool {
        self.precedes_profile
    }

    /// What it has examined.
    pub(crate) fn work(&self) -> Work {
        self.interrupt.work()
    }

    fn document(&self, id: OperationId, host: &str, now: Now) -> Document {
        let took = now.monotonic.since(self.started.monotonic);
        let description = self.description();
        let mut document = doc! {
            "type": "op",
            "host": host,
            "desc": format!("conn{}", self.client.connection_id),
            "connectionId": self.client.connection_id,
            "client": &self.client.address,
        };
        if let Some(name) = self.client.application_name() {
            document.insert("appName", name);
        }
        if let Some(LoggedIn { name, database }) = self.user() {
            document.insert("effectiveUsers", [doc! { "user": name, "db": database }]);
        }
        document.extend(doc! {
            "clientMetadata": self.client.metadata.clone(),
            "active": true,
            "opid": self.id_value(id),
            "secs_running": took.as_secs() as i64,
            "microsecs_running": took.as_micros() as i64,
            "op": self.kind(),
            "ns": self.namespace(),
            "command": description.clone(),
            "waiting": self.interrupt.is_waiting(),
            "waitingForLock": false,
            "writeConflicts": self.interrupt.conflicts() as i64,
            "killPending": self.interrupt.check().is_err(),
        });
        if let Some(session) = description.get("lsid") {
            document.insert("lsid", session.clone());
        }
        if let Some((done, total)) = self.interrupt.progress() {
            let share = done * 100 / total.max(1);
            document.insert("msg", format!("{done}/{total} {share}%"));
            document.insert("progress", doc! { "done": done as i64, "total": total as i64 });
        }
        document
    }

    /// A number as clients expect it: 32 bits as long as they are enough.
    fn id_value(&self, id: OperationId) -> Bson {
        i32::try_from(id.0).map_or(Bson::Int64(id.0), Bson::Int32)
    }
}

/// The first statement of an update or a delete, for the profiler. Long ones are not kept.
fn first_statement(command: &Command) -> Option<DocumentBytes> {
    let is_statement = |name: &str| matches!(name, "updates" | "deletes");
    let (_, statements) = command.sequences.iter().find(|(name, _)| is_statement(name))?;
    let first = statements.first();
    first.filter(|first| first.as_bytes().len() <= MAX_SHOWN_STATEMENT).cloned()
}

fn kind_of(name: &str) -> &'static str {
    match name {
        "find" => "query",
        "getMore" => "getmore",
        "insert" => "insert",
        "update" => "update",
        "delete" => "remove",
        _ => "command",
    }
}

fn namespace_of(command: &CommandBody) -> String {
    let database = command.database();
    match (command.get(command.name()), command.get("collection")) {
        (Some(Bson::String(collection)), _) | (_, Some(Bson::String(collection))) => {
            format!("{database}.{collection}")
        }
        _ => format!("{database}.$cmd"),
    }
}

/// The command without its secrets and without what is long.
fn describe(command: &CommandBody) -> Document {
    let name = command.name();
    if SECRET.contains(&name) {
        return doc! { name: "xxx", "$db": command.database() };
    }
    let shown = command.iter().map(|(key, value)| match value {
        Bson::Array(elements) if elements.len() > MAX_SHOWN_ELEMENTS => {
            (key.to_owned(), Bson::from(format!("{} elements", elements.len())))
        }
        value => (key.to_owned(), value.clone()),
    });
    shown.collect()
}
