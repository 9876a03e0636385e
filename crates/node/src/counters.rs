//! What has happened since the member started, as `serverStatus` tells it.
//!
//! Counters that only grow. Nothing waits for them, and no decision depends on them.

use std::sync::atomic::{AtomicU64, Ordering};

use bson::{Bson, Document, doc};

use crate::command_table::CommandFacts;
use crate::commands::TABLE;
use crate::context::Command;
use crate::finder::Examined;
use crate::replication::LoggedOperation;

/// A counter that only grows.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, number: u64) {
        // What other threads count is not taken from their caches for nothing.
        if number == 0 {
            return;
        }
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed) as i64
    }
}

/// Operations by kind. An insert counts its documents, other writes their statements.
#[derive(Debug, Default)]
struct Operations {
    inserts: Count,
    queries: Count,
    updates: Count,
    deletes: Count,
    get_mores: Count,
    commands: Count,
}

impl Operations {
    fn document(&self) -> Document {
        doc! {
            "insert": self.inserts.get(),
            "query": self.queries.get(),
            "update": self.updates.get(),
            "delete": self.deletes.get(),
            "getmore": self.get_mores.get(),
            "command": self.commands.get(),
        }
    }
}

/// How often a command was run, and how often it failed.
#[derive(Debug, Default)]
struct Runs {
    total: Count,
    failed: Count,
}

/// All counters of a member.
#[derive(Debug)]
pub(crate) struct Counters {
    operations: Operations,
    applied: Operations,
    bytes_in: Count,
    bytes_out: Count,
    requests: Count,
    keys: Count,
    documents: Count,
    returned: Count,
    write_conflicts: Count,
    retried_commands: Count,
    retried_statements: Count,
    inserted: Count,
    updated: Count,
    deleted: Count,
    /// In the order of the table.
    runs: Vec<Runs>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            operations: Operations::default(),
            applied: Operations::default(),
            bytes_in: Count::default(),
            bytes_out: Count::default(),
            requests: Count::default(),
            keys: Count::default(),
            documents: Count::default(),
            returned: Count::default(),
            write_conflicts: Count::default(),
            retried_commands: Count::default(),
            retried_statements: Count::default(),
            inserted: Count::default(),
            updated: Count::default(),
            deleted: Count::default(),
            runs: TABLE.iter().map(|_| Runs::default()).collect(),
        }
    }
}

impl Counters {
    /// A command of a client is about to run.
    pub(crate) fn command(&self, facts: &CommandFacts, command: &Command) {
        let operations = &self.operations;
        match facts.name {
            "insert" => operations.inserts.add(statements(command, "documents")),
            "update" => operations.updates.add(statements(command, "updates")),
            "delete" => operations.deletes.add(statements(command, "deletes")),
            "find" => operations.queries.add(1),
            "getMore" => operations.get_mores.add(1),
            _ => operations.commands.add(1),
        }
    }

    /// A command that is no operation on documents has run again, in a stream.
    pub(crate) fn repeated(&self, facts: &CommandFacts) {
        self.operations.commands.add(1);
        self.ran(facts, false, Examined::default());
    }

    /// A command has run.
    pub(crate) fn ran(&self, facts: &CommandFacts, failed: bool, examined: Examined) {
        if let Some(runs) = place_of(facts).and_then(|place| self.runs.get(place)) {
            runs.total.add(1);
            runs.failed.add(u64::from(failed));
        }
        self.keys.add(examined.keys);
        self.documents.add(examined.documents);
    }

    /// How many commands have failed.
    pub(crate) fn failures(&self) -> i64 {
        self.runs.iter().map(|runs| runs.failed.get()).sum()
    }

    /// An entry of another member's oplog was applied.
    pub(crate) fn applied(&self, operation: LoggedOperation) {
        match operation {
            LoggedOperation::Insert => self.applied.inserts.add(1),
            LoggedOperation::Update => self.applied.updates.add(1),
            LoggedOperation::Delete => self.applied.deletes.add(1),
            LoggedOperation::Command => self.applied.commands.add(1),
            LoggedOperation::Noop | LoggedOperation::Unknown => {}
        }
    }

    /// A message came.
    pub(crate) fn received(&self, bytes: usize) {
        self.bytes_in.add(bytes as u64);
        self.requests.add(1);
    }

    /// A message went.
    pub(crate) fn sent(&self, bytes: usize) {
        self.bytes_out.add(bytes as u64);
    }

    /// Documents that clients were given.
    pub(crate) fn returned(&self, documents: usize) {
        self.returned.add(documents as u64);
    }

    /// A plain write met a key that an open transaction holds.
    pub(crate) fn write_conflict(&self) {
        self.write_conflicts.add(1);
    }

    /// A command was repeated, with statements that were done the first time.
    pub(crate) fn retried_command(&self, statements: usize) {
        if statements > 0 {
            self.retried_commands.add(1);
            self.retried_statements.add(statements as u64);
        }
    }

    /// How many commands were repeated, and how many of their statements had been done.
    pub(crate) fn retried(&self) -> (i64, i64) {
        (self.retried_commands.get(), self.retried_statements.get())
    }

    pub(crate) fn inserted(&self, documents: u64) {
        self.inserted.add(documents);
    }

    pub(crate) fn updated(&self, documents: u64) {
        self.updated.add(documents);
    }

    pub(crate) fn deleted(&self, documents: u64) {
        self.deleted.add(documents);
    }

    /// `opcounters`, `opcountersRepl` and `network`.
    pub(crate) fn sections(&self) -> Document {
        let (bytes_in, bytes_out) = (self.bytes_in.get(), self.bytes_out.get());
        doc! {
            "opcounters": self.operations.document(),
            "opcountersRepl": self.applied.document(),
            "network": {
                "bytesIn": bytes_in,
                "bytesOut": bytes_out,
                "physicalBytesIn": bytes_in,
                "physicalBytesOut": bytes_out,
                "numRequests": self.requests.get(),
            },
        }
    }

    /// What goes under `metrics`: the commands that were run, and what they did with documents.
    pub(crate) fn metrics(&self) -> Document {
        let mut commands = Document::new();
        for (facts, runs) in TABLE.iter().zip(&self.runs) {
            let total = runs.total.get();
            if total > 0 {
                commands.insert(facts.name, doc! { "failed": runs.failed.get(), "total": total });
            }
        }
        doc! {
            "commands": commands,
            "document": {
                "deleted": self.deleted.get(),
                "inserted": self.inserted.get(),
                "returned": self.returned.get(),
                "updated": self.updated.get(),
            },
            "operation": { "writeConflicts": self.write_conflicts.get() },
            "queryExecutor": {
                "scanned": self.keys.get(),
                "scannedObjects": self.documents.get(),
            },
        }
    }
}

/// The place of an entry in the table, which its address tells.
fn place_of(facts: &CommandFacts) -> Option<usize> {
    let behind_first = std::ptr::from_ref(facts).addr().checked_sub(TABLE.as_ptr().addr())?;
    Some(behind_first / size_of::<CommandFacts>()).filter(|&place| place < TABLE.len())
}

/// How many statements a write has.
fn statements(command: &Command, name: &str) -> u64 {
    if let Some((_, documents)) = command.sequences.iter().find(|(known, _)| known == name) {
        return documents.len() as u64;
    }
    command.body.get(name).and_then(Bson::as_array).map_or(0, |items| items.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_command_is_its_place_in_the_table() {
        let places: Vec<_> = TABLE.iter().map(place_of).collect();
        assert!(places.into_iter().eq((0..TABLE.len()).map(Some)));
    }
}
