//! A driver that runs one transaction, with repetitions, as `withTransaction` does.

/// One statement that was done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Done {
    Append { key: u8, value: u8 },
    Read { key: u8, list: Vec<u8> },
}

/// What the client heard of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Heard {
    Committed,
    Aborted,
    Nothing,
}

/// One attempt at the transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub(crate) number: i64,
    pub(crate) done: Vec<Done>,
    pub(crate) heard: Heard,
}

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
    pub(crate) done: Vec<Done>,
    /// Earlier attempts.
    pub(crate) ended: Vec<Attempt>,
}

impl Default for Client {
    fn default() -> Self {
        Self { phase: Phase::Statement(0), number: 1, done: Vec::new(), ended: Vec::new() }
    }
}

impl Client {
    pub(crate) fn next_statement(&mut self, steps: usize) {
        if let Phase::Statement(step) = self.phase {
            let is_last = step + 1 == steps;
            self.phase = if is_last { Phase::Commit } else { Phase::Statement(step + 1) };
        }
    }

    pub(crate) fn end(&mut self, heard: Heard) {
        let done = std::mem::take(&mut self.done);
        self.ended.push(Attempt { number: self.number, done, heard });
        self.phase = Phase::Done;
    }

    /// The attempt is known not to have happened.
    pub(crate) fn repeat_transaction(&mut self) {
        self.end(Heard::Aborted);
        if self.number < MAX_ATTEMPTS {
            self.number += 1;
            self.phase = Phase::Statement(0);
        }
    }

    pub(crate) fn has_committed(&self) -> bool {
        self.ended.iter().any(|ended| ended.heard == Heard::Committed)
    }

    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        let mut attempts = self.ended.clone();
        if !self.done.is_empty() {
            let done = self.done.clone();
            attempts.push(Attempt { number: self.number, done, heard: Heard::Nothing });
        }
        attempts
    }
}
