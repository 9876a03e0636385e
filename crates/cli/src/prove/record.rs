//! The history of one workload while it is being made.

use std::cell::{Cell, RefCell};

use quorate_checker::{Action, History, Operation, Outcome};
use quorate_client::Error;

use crate::clock;

/// The operations so far. All clients of a workload share one; they run on one thread.
pub(super) struct Recorder {
    operations: RefCell<Vec<Operation>>,
    next_process: Cell<u64>,
}

/// An operation that has begun.
#[derive(Clone, Copy)]
pub(super) struct Begun(usize);

impl Recorder {
    pub(super) fn new() -> Self {
        Self { operations: RefCell::new(Vec::new()), next_process: Cell::new(0) }
    }

    /// A number for a client. One whose last outcome is unknown gets a new one: its last operation may still be
    /// under way while it does the next.
    pub(super) fn process(&self) -> u64 {
        let number = self.next_process.get();
        self.next_process.set(number + 1);
        number
    }

    /// An operation begins now. Until it ends its outcome is unknown.
    pub(super) fn begin(&self, process: u64, action: Action) -> Begun {
        let mut operations = self.operations.borrow_mut();
        let index = operations.len();
        let (invoked, outcome) = (clock::now().as_nanos(), Outcome::Unknown);
        operations.push(Operation { index, process, invoked, completed: None, outcome, action });
        Begun(index)
    }

    /// The operation ended now, with what the client learnt.
    pub(super) fn end(&self, Begun(index): Begun, outcome: Outcome, learnt: Option<Action>) {
        let mut operations = self.operations.borrow_mut();
        let operation = &mut operations[index];
        operation.completed = Some(clock::now().as_nanos());
        operation.outcome = outcome;
        if let Some(action) = learnt {
            operation.action = action;
        }
    }

    /// Writes a read down: what it found, or that it failed.
    pub(super) async fn read<T>(
        &self,
        process: u64,
        action: Action,
        read: impl IntoFuture<Output = Result<T, Error>>,
        learnt: impl FnOnce(T) -> Action,
    ) -> Result<(), Error> {
        let begun = self.begin(process, action);
        match read.await {
            Ok(found) => {
                self.end(begun, Outcome::Ok, Some(learnt(found)));
                Ok(())
            }
            Err(error) => {
                self.end(begun, Outcome::Fail, None);
                Err(error)
            }
        }
    }

    pub(super) fn history(&self) -> History {
        History::new(self.operations.borrow().clone())
    }
}

/// How many operations ended how.
pub(super) struct Count {
    pub(super) ok: usize,
    pub(super) failed: usize,
    pub(super) unknown: usize,
}

impl Count {
    pub(super) fn of(history: &History) -> Self {
        let count = |outcome| {
            history.operations().iter().filter(|operation| operation.outcome == outcome).count()
        };
        Self {
            ok: count(Outcome::Ok),
            failed: count(Outcome::Fail),
            unknown: count(Outcome::Unknown),
        }
    }
}
