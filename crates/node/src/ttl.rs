//! Documents that expire: what an index with `expireAfterSeconds` says is too old goes.

use std::sync::Arc;

use bson::{Bson, DateTime, Document, doc};
use quorate_query::matcher::Matcher;

use crate::catalog::{Collection, Index};
use crate::context::{Interrupt, Now};
use crate::error::CommandError;
use crate::finder::{Finder, InterruptSlot};
use crate::node::Node;
use crate::plan::{self, Question};

/// Documents removed under one hold of the write lock.
const MAX_REMOVED_AT_ONCE: usize = 1000;

/// Removes expired documents from every collection. Returns how many went.
pub(crate) fn remove_expired(node: &Node, now: Now) -> Result<u64, CommandError> {
    let mut removed = 0;
    let catalog = node.catalog();
    for collection in catalog.collections() {
        for index in &collection.indexes {
            if let Some(seconds) = index.expire_after_seconds {
                removed += remove_from(node, now, collection, index, seconds)?;
            }
        }
    }
    Ok(removed)
}

fn remove_from(
    node: &Node,
    now: Now,
    collection: &Arc<Collection>,
    index: &Index,
    seconds: i64,
) -> Result<u64, CommandError> {
    let Some(query) = expired(index, seconds, now) else { return Ok(0) };
    let matcher = Arc::new(Matcher::parse(&query)?);
    let hint = Bson::String(index.name.clone());
    let mut removed = 0;
    loop {
        let mut writer = node.write(now);
        let Some(current) = writer.collection(&collection.namespace) else { return Ok(removed) };
        // Others had their turn: they may have dropped the index, or changed what it says.
        let is_same = current.index(&index.name).is_some_and(|known| known.spec == index.spec);
        if current.uuid != collection.uuid || !is_same {
            return Ok(removed);
        }
        let question = Question {
            collection: &current,
            matcher: &matcher,
            sort: None,
            hint: Some(&hint),
            min: None,
            max: None,
        };
        let plan = plan::choose(&question)?;
        let interrupt = InterruptSlot::new(Arc::new(Interrupt::default()));
        let view = writer.view().clone();
        let finder =
            Finder::new(view, Arc::clone(&current), Arc::clone(&matcher), plan, interrupt)?;
        let mut step = 0;
        for found in finder.take(MAX_REMOVED_AT_ONCE) {
            let found = found?;
            match writer.remove(&current, found.record, &found.document) {
                Ok(()) => step += 1,
                // A transaction holds it: it goes the next time.
                Err(_) if writer.blocked.take().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        removed += step as u64;
        if step < MAX_REMOVED_AT_ONCE {
            return Ok(removed);
        }
    }
}

/// Which documents are too old: those that the index holds, for a partial one is silent about the others.
fn expired(index: &Index, seconds: i64, now: Now) -> Option<Document> {
    let path = index.paths.first()?;
    let limit = now.wall.as_millis().saturating_sub(seconds.saturating_mul(1000));
    // Only dates expire; of an array the earliest one counts, which is what `$lte` asks.
    let old = doc! { path.as_str(): { "$lte": Bson::DateTime(DateTime::from_millis(limit)) } };
    Some(match index.spec.get_document("partialFilterExpression") {
        Ok(partial) => doc! { "$and": [old, partial.clone()] },
        Err(_) => old,
    })
}
