//! The command that a writer works for: it knows whether the write lock is held, so that its expressions end.

use std::sync::Arc;

use quorate_query::Meter;

use super::Writer;
use crate::context::Interrupt;
use crate::error::Result;
use crate::finder::InterruptSlot;

/// The command that a writer works for, told whether the lock is held.
pub(crate) struct Worker(Arc<Interrupt>);

impl Worker {
    pub(crate) fn new(interrupt: &Arc<Interrupt>) -> Self {
        interrupt.set_holding(true);
        Self(Arc::clone(interrupt))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.set_holding(false);
    }
}

impl Writer<'_> {
    /// Tells the command that is worked for whether the lock is held.
    pub(crate) fn note_lock(&self, held: bool) {
        if let Some(Worker(interrupt)) = &self.worker {
            interrupt.set_holding(held);
        }
    }

    /// What counts the steps of expressions that are evaluated under the lock; none if no command is worked for.
    pub(super) fn meter(&self) -> Option<Meter> {
        self.meters()()
    }

    /// What makes such meters.
    pub(super) fn meters(&self) -> impl Fn() -> Option<Meter> + use<> {
        let interrupt = self.worker.as_ref().map(|Worker(interrupt)| Arc::clone(interrupt));
        let memory = Arc::clone(self.node.memory());
        move || {
            let interrupt = Arc::new(InterruptSlot::new(Arc::clone(interrupt.as_ref()?)));
            Some(Meter::of_operation(interrupt, Arc::clone(&memory)))
        }
    }

    /// Evaluates under the lock, or without it if that takes long. Returns what came of it, and whether the lock was free:
    /// then what was looked up before need not be as it was.
    pub(crate) fn evaluate<T>(&mut self, evaluate: impl Fn() -> Result<T>) -> Result<(T, bool)> {
        match self.shortly(&evaluate)? {
            Some(value) => Ok((value, false)),
            None => self.aside(evaluate).map(|value| (value, true)),
        }
    }

    /// Evaluates under the lock; none if that takes long.
    pub(crate) fn shortly<T>(&self, evaluate: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        match &self.worker {
            Some(Worker(interrupt)) => interrupt.evaluate_shortly(evaluate),
            None => evaluate().map(Some),
        }
    }

    /// Whether other writers should get their turn before more is evaluated.
    pub(crate) fn has_evaluated_for_long(&self) -> bool {
        self.worker.as_ref().is_some_and(|Worker(interrupt)| interrupt.has_evaluated_for_long())
    }

    /// Lets other writers go first if expressions were evaluated for long since the lock was taken. Asked between two
    /// documents or statements, each of which may take long. Returns whether the lock was free: then nothing that was
    /// looked up before need be as it was.
    pub(crate) fn give_way_if_long(&mut self) -> Result<bool> {
        if !self.has_evaluated_for_long() {
            return Ok(false);
        }
        self.check_interrupt()?;
        self.give_way()?;
        Ok(true)
    }

    /// Works without the lock, after what was deferred is committed. Afterwards the view is the newest,
    /// nothing that was looked up before need be as it was, and a retryable write knows what a
    /// repetition of it did meanwhile.
    pub(crate) fn aside<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.flush()?;
        self.announcement.tell();
        self.state.let_go();
        self.note_lock(false);
        let done = work();
        self.state.take_again();
        self.note_lock(true);
        if !self.is_staging() {
            self.forget_view();
        }
        self.look_for_repetition()?;
        done
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};
    use quorate_storage::ModelStore;

    use super::*;
    use crate::node::{Node, NodeOptions};
    use crate::test_support::{now, run};

    /// Documents and statements of a command. After two of them others should have had their turn.
    const COUNT: i32 = 9;

    #[test]
    fn others_get_their_turn_between_documents_and_statements_that_evaluate() {
        let node = Node::open(Arc::new(ModelStore::new()), NodeOptions::default(), now()).unwrap();
        // Each sort asks whether to go on.
        let sorted = doc! { "$sortArray": { "input": ["$$this", 1], "sortBy": 1 } };
        let size = doc! { "$size": sorted };
        let long = doc! {
            "$reduce": { "input": { "$range": [0, 400] }, "initialValue": 0, "in": size },
        };
        let rules = doc! { "$expr": { "$eq": [&long, 2] } };
        run(&node, doc! { "create": "c", "validator": &rules });
        let each =
            |statement: &dyn Fn(i32) -> Document| (0..COUNT).map(statement).collect::<Vec<_>>();
        let pipeline = |field: &str| vec![doc! { "$set": { field: &long } }];
        let update = |id| doc! { "q": { "_id": id }, "u": pipeline("x") };
        let into = doc! { "into": "c", "whenMatched": pipeline("y") };
        let delete = |id| doc! { "q": { "_id": id, "$expr": &rules["$expr"] }, "limit": 1 };
        run(&node, doc! { "insert": "from", "documents": each(&|id| doc! { "_id": id }) });
        let commands = [
            doc! { "insert": "c", "documents": each(&|id| doc! { "_id": id }) },
            doc! { "update": "c", "updates": each(&update) },
            doc! { "aggregate": "from", "pipeline": [{ "$merge": into }], "cursor": {} },
            doc! { "delete": "c", "deletes": each(&delete) },
        ];
        let taken = commands.map(|command| {
            let before = node.write(now()).state.times_taken();
            let reply = run(&node, command);
            assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
            assert!(!reply.contains_key("writeErrors"), "{reply}");
            node.write(now()).state.times_taken() - before
        });
        assert!(taken.iter().all(|times| *times > COUNT as u64 / 2), "{taken:?}");
        assert_eq!(run(&node, doc! { "count": "c" }).get_i32("n").unwrap(), 0);
    }
}
