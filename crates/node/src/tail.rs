//! Tailable cursors: reading on in a capped collection where the last batch ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_query::Projection;
use quorate_query::matcher::Matcher;
use quorate_storage::key::RecordId;

use crate::catalog::Collection;
use crate::commands::project;
use crate::cursors::DocumentStream;
use crate::error::Result;
use crate::finder::{Finder, InterruptSlot};
use crate::generic_arguments::ReadsAt;
use crate::plan::{Access, Plan};
use crate::records::{DocumentBytes, View};

/// What a tailable cursor needs to go on.
#[derive(Clone)]
pub(crate) struct Tail {
    pub(crate) collection: Arc<Collection>,
    pub(crate) matcher: Arc<Matcher>,
    pub(crate) projection: Option<Arc<Projection>>,
    pub(crate) interrupt: InterruptSlot,
    /// Whether a `getMore` at the end waits for new documents.
    pub(crate) awaits: bool,
    /// Which data it reads.
    pub(crate) reads_at: ReadsAt,
    /// The last record that was handed out; 0 before the first.
    last: Arc<AtomicU64>,
}

impl Tail {
    pub(crate) fn new(
        collection: Arc<Collection>,
        matcher: Arc<Matcher>,
        projection: Option<Projection>,
        interrupt: InterruptSlot,
        awaits: bool,
        reads_at: ReadsAt,
    ) -> Self {
        let projection = projection.map(Arc::new);
        Self { collection, matcher, projection, interrupt, awaits, reads_at, last: Arc::default() }
    }

    /// Whether the last record handed out is gone, and perhaps others after it.
    pub(crate) fn has_lost_its_place(&self, view: &View) -> Result<bool> {
        let last = RecordId(self.last.load(Ordering::Relaxed));
        Ok(last != RecordId(0) && view.record(&self.collection, last)?.is_none())
    }

    /// What there is in this view after the last record handed out.
    pub(crate) fn stream(&self, view: View) -> Result<DocumentStream> {
        let after = RecordId(self.last.load(Ordering::Relaxed));
        let plan = Plan { access: Access::After(after), sorted: false };
        let finder = Finder::new(
            view,
            Arc::clone(&self.collection),
            Arc::clone(&self.matcher),
            plan,
            self.interrupt.clone(),
        )?;
        let (last, projection) = (Arc::clone(&self.last), self.projection.clone());
        Ok(Box::new(finder.map(move |found| {
            let found = found?;
            last.store(found.record.0, Ordering::Relaxed);
            match &projection {
                Some(projection) => project(projection, &found).map(DocumentBytes::from),
                None => Ok(found.document),
            }
        })))
    }
}
