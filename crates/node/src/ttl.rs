//! Documents that expire: what an index with `expireAfterSeconds` says is too old goes.

use std::sync::Arc;

use bson::{Bson, DateTime, Document, doc};
use quorate_query::matcher::Matcher;

use crate::catalog::{Collection, Index};
use crate::context::{Interrupt, Now};
use crate::error::Result;
use crate::finder::{Finder, InterruptSlot};
use crate::node::Node;
use crate::plan::{self, Question};
use crate::writer::Writer;

/// Documents removed under one hold of the write lock.
const MAX_REMOVED_AT_ONCE: usize = 1000;

/// Removes expired documents from every collection. Returns how many went.
pub(crate) fn remove_expired(node: &Node, now: Now) -> Result<u64> {
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
) -> Result<u64> {
    let Some(query) = expired(index, seconds, now) else { return Ok(0) };
    let matcher = Arc::new(Matcher::parse(&query)?);
    let removal = Removal { collection, index, matcher };
    let mut writer = node.write(now);
    let mut removed = 0;
    loop {
        let step = removal.step(&mut writer)?;
        removed += step as u64;
        if step < MAX_REMOVED_AT_ONCE {
            return Ok(removed);
        }
        writer.give_way()?;
    }
}

/// The removal of what an index says is too old.
struct Removal<'a> {
    collection: &'a Collection,
    index: &'a Index,
    matcher: Arc<Matcher>,
}

impl Removal<'_> {
    /// Removes some documents under one hold of the write lock. There are no more if they are fewer than the most, or the
    /// index says something else by now.
    fn step(&self, writer: &mut Writer<'_>) -> Result<usize> {
        let Some(current) = writer.collection(&self.collection.namespace) else { return Ok(0) };
        // Others had their turn: they may have dropped the index, or changed what it says.
        let known = current.index(&self.index.name);
        let is_same = known.is_some_and(|known| known.spec == self.index.spec);
        if current.uuid != self.collection.uuid || !is_same {
            return Ok(0);
        }
        let hint = Bson::String(self.index.name.clone());
        let question = Question {
            collection: &current,
            matcher: &self.matcher,
            sort: None,
            hint: Some(&hint),
            min: None,
            max: None,
        };
        let plan = plan::choose(&question)?;
        let interrupt = InterruptSlot::new(Arc::new(Interrupt::default()));
        let (view, matcher) = (writer.view().clone(), Arc::clone(&self.matcher));
        let finder = Finder::new(view, Arc::clone(&current), matcher, plan, interrupt)?;
        let mut removed = 0;
        for found in finder.take(MAX_REMOVED_AT_ONCE) {
            let found = found?;
            match writer.remove(&current, found.record, &found.document) {
                Ok(()) => removed += 1,
                // A transaction holds it: it goes the next time.
                Err(_) if writer.blocked.take().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
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

#[cfg(test)]
mod tests {
    use quorate_storage::ModelStore;

    use super::*;
    use crate::node::NodeOptions;
    use crate::test_support::{now, run};

    /// The manual, TTL indexes: `collMod` changes when documents expire. What was found to be too old before may stay then.
    #[test]
    fn a_removal_ends_when_its_index_changes() {
        let changes = [
            doc! { "collMod": "c", "index": { "name": "at", "expireAfterSeconds": 1_000_000 } },
            doc! { "dropIndexes": "c", "index": "at" },
            doc! { "drop": "c" },
        ];
        for change in changes {
            let store = Arc::new(ModelStore::new());
            let node = Node::open(store, NodeOptions::default(), now()).unwrap();
            let index = doc! { "key": { "at": 1 }, "name": "at", "expireAfterSeconds": 60 };
            run(&node, doc! { "createIndexes": "c", "indexes": [index] });
            let old = DateTime::from_millis(now().wall.as_millis() - 100_000);
            let documents: Vec<_> = (0..2_500).map(|n| doc! { "_id": n, "at": old }).collect();
            run(&node, doc! { "insert": "c", "documents": documents });

            let catalog = node.catalog();
            let collection =
                catalog.collections().find(|it| it.namespace.collection == "c").unwrap();
            let index = collection.index("at").unwrap();
            let query = expired(index, 60, now()).unwrap();
            let matcher = Arc::new(Matcher::parse(&query).unwrap());
            let removal = Removal { collection, index, matcher };
            assert_eq!(removal.step(&mut node.write(now())).unwrap(), MAX_REMOVED_AT_ONCE);
            run(&node, change.clone());
            assert_eq!(removal.step(&mut node.write(now())).unwrap(), 0, "{change}");
        }
    }
}
