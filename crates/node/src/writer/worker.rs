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
