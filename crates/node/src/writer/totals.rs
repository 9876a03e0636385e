//! How much a collection holds: counted once after a start, and kept up with every commit.

use quorate_storage::Direction;

use super::Writer;
use crate::catalog::{Collection, Ident};
use crate::context::Now;
use crate::error::Result;
use crate::finder::InterruptSlot;
use crate::node::Node;
use crate::records::View;
use crate::transactions::made_up_collection;

/// Records between two looks at whether the command should end.
const LOOK: u64 = 1_000;

/// Bytes of records between two looks: large documents take as long as many small ones.
const LOOK_BYTES: usize = 1024 * 1024;

/// How much a collection holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) documents: u64,
    pub(crate) bytes: u64,
}

impl Totals {
    /// By how much it grows if so much is added.
    pub(crate) fn growth(self) -> Growth {
        Growth { documents: self.documents as i64, bytes: self.bytes as i64 }
    }

    fn grow(&mut self, by: Growth) {
        self.documents = self.documents.saturating_add_signed(by.documents);
        self.bytes = self.bytes.saturating_add_signed(by.bytes);
    }
}

/// By how much a collection grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) documents: i64,
    pub(crate) bytes: i64,
}

impl Growth {
    /// What is left of it without another one.
    pub(crate) fn without(self, other: Self) -> Self {
        Self { documents: self.documents - other.documents, bytes: self.bytes - other.bytes }
    }
}

impl Node {
    /// How often documents of a collection were changed since the start.
    pub(crate) fn changes_of(&self, ident: Ident, now: Now) -> u64 {
        self.write(now).changes_of(ident)
    }

    /// How much a collection holds. The first call after a start looks at every record; writers go on meanwhile.
    pub(crate) fn totals(
        &self,
        collection: &Collection,
        interrupt: &InterruptSlot,
        now: Now,
    ) -> Result<Totals> {
        let look = || {
            // Other commands do not wait for it on their thread.
            interrupt.check_room(true)?;
            interrupt.check()
        };
        if collection.ident == Ident::MADE_UP {
            let images = self.facts_keyspace();
            let made = made_up_collection(images, &collection.namespace, &self.view())?;
            return made
                .map_or(Ok(Totals::default()), |(_, view)| count(&view, collection.ident, look));
        }
        let writer = self.write(now);
        if let Some(totals) = writer.quick_totals(collection)? {
            return Ok(totals);
        }
        let (view, before) = (writer.view().clone(), writer.grown(collection.ident));
        drop(writer);
        let mut totals = count(&view, collection.ident, look)?;
        let mut writer = self.write(now);
        totals.grow(writer.grown(collection.ident).without(before));
        if writer.collection(&collection.namespace).is_some_and(|it| it.ident == collection.ident) {
            writer.state.collections.entry(collection.ident).or_default().totals = Some(totals);
        }
        Ok(totals)
    }
}

fn count(view: &View, ident: Ident, mut look: impl FnMut() -> Result<()>) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut unasked = 0;
    for pair in view.scan_records(ident, Direction::Forward)? {
        let (_, value) = pair?;
        totals.documents += 1;
        totals.bytes += value.len() as u64;
        unasked += value.len();
        if totals.documents % LOOK == 0 || unasked >= LOOK_BYTES {
            look()?;
            unasked = 0;
        }
    }
    Ok(totals)
}

impl Writer<'_> {
    /// How much the collection holds, if that was counted before.
    pub(crate) fn known_totals(&self, collection: &Collection) -> Option<Totals> {
        self.state.collections.get(&collection.ident)?.totals
    }

    /// The same, also where it need not be counted.
    fn quick_totals(&self, collection: &Collection) -> Result<Option<Totals>> {
        let known = self.known_totals(collection);
        if known.is_some() || self.view().keyspaces.history != Some(collection.ident) {
            return Ok(known);
        }
        let log = self.view().snapshot.log_totals(self.view().keyspaces.oplog)?;
        Ok(Some(Totals { documents: log.entries, bytes: log.bytes }))
    }

    fn grown(&self, ident: Ident) -> Growth {
        self.state.collections.get(&ident).map_or_else(Growth::default, |state| state.grown)
    }

    /// How much the collection holds, counted under the write lock if nothing has counted it before.
    pub(crate) fn totals(&mut self, collection: &Collection) -> Result<Totals> {
        let totals = match self.quick_totals(collection)? {
            Some(totals) => totals,
            None => count(self.view(), collection.ident, || Ok(()))?,
        };
        self.state.collections.entry(collection.ident).or_default().totals = Some(totals);
        Ok(totals)
    }

    /// A collection grows by so many documents and bytes, at once or when the stage is committed.
    pub(crate) fn grow_totals(&mut self, ident: Ident, documents: i64, bytes: i64) {
        if !self.stage_growth(ident, documents, bytes) {
            self.adjust_totals(ident, Growth { documents, bytes });
        }
    }

    pub(crate) fn adjust_totals(&mut self, ident: Ident, by: Growth) {
        let state = self.state.collections.entry(ident).or_default();
        state.changes += 1;
        state.grown.documents += by.documents;
        state.grown.bytes += by.bytes;
        if let Some(totals) = &mut state.totals {
            totals.grow(by);
        }
    }

    /// Nothing is left in a collection.
    pub(crate) fn empty_totals(&mut self, ident: Ident) {
        self.state.collections.entry(ident).or_default().totals = Some(Totals::default());
    }
}
