//! A driver that runs one transaction, with repetitions, as `withTransaction` does.

use quorate_checker::{Operation, Outcome, Transaction};

/// How often a transaction is tried.
const MAX_ATTEMPTS: i64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// The next command is this statement.
    Statement(usize),
    /// The next command is the commit.
    Commit,
    /// The commit waits for its write concern.
    Waiting {
        /// For this entry.
        entry: usize,
        /// Whether the answer will be that no such transaction is known.
        unknown: bool,
    },
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// The transaction number, which is also the number of the attempt.
    pub(crate) number: i64,
    pub(crate) operations: Vec<Operation>,
    /// Earlier attempts, and what the client heard of them.
    pub(crate) ended: Vec<(i64, Transaction)>,
}

impl Default for Client {
    fn default() -> Self {
        let (operations, ended) = (Vec::new(), Vec::new());
        Self { phase: Phase::Statement(0), number: 1, operations, ended }
    }
}

impl Client {
    pub(crate) fn next_statement(&mut self, steps: usize) {
        if let Phase::Statement(step) = self.phase {
            let is_last = step + 1 == steps;
            self.phase = if is_last { Phase::Commit } else { Phase::Statement(step + 1) };
        }
    }

    pub(crate) fn end(&mut self, outcome: Outcome) {
        let operations = std::mem::take(&mut self.operations);
        self.ended.push((self.number, Transaction { operations, outcome }));
        self.phase = Phase::Done;
    }

    /// The attempt is known not to have happened.
    pub(crate) fn repeat_transaction(&mut self) {
        self.end(Outcome::Aborted);
        if self.number < MAX_ATTEMPTS {
            self.number += 1;
            self.phase = Phase::Statement(0);
        }
    }

    pub(crate) fn has_committed(&self) -> bool {
        self.ended.iter().any(|(_, ended)| ended.outcome == Outcome::Committed)
    }

    pub(crate) fn history(&self) -> Vec<Transaction> {
        let mut history: Vec<_> = self.ended.iter().map(|(_, ended)| ended.clone()).collect();
        if !self.operations.is_empty() {
            let operations = self.operations.clone();
            history.push(Transaction { operations, outcome: Outcome::Unknown });
        }
        history
    }
}
