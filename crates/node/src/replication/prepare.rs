//! Working out what entries change, by several threads, before one commit changes it.
//!
//! Each thread has its own documents: it reads what an entry is about, applies the entry to it and
//! makes the old and the new index keys. Nothing is changed here. The writer takes the changes in
//! the order of the log and commits them together, so that readers see all of them or none; a change
//! that was worked out too early, because its document or its collection changed since, it works out
//! again. docs/replication-rules.md#applying.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::{Document, RawDocument, RawDocumentBuf};
use quorate_query::diff::{apply_to_part, changed_fields, is_raw_delta};
use quorate_query::{Part, PlainDelta};
use quorate_storage::key::RecordId;

use super::entry::{
    LoggedEntry, damaged, document_of, namespace_of, object_of, operation_of, target_of,
};
use super::prefetch::PrefetchSetting;
use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use crate::index_keys::DocumentKeys;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::{DocumentBytes, View};
use crate::repeated_fields::apply_change;
use crate::writer::{ChangedKeys, changed_keys, keys_of};

/// Threads that work on one batch.
const PREPARERS: usize = 4;

/// Below this many entries the writer is as fast by itself.
pub(super) const MIN_ENTRIES: usize = 512;

/// Bytes of a document that decide which thread works on it.
const HASHED_BYTES: usize = 32;

/// An entry, and what it changes as far as that is known.
pub(super) struct ToApply {
    pub(super) entry: LoggedEntry,
    pub(super) prepared: Option<Prepared>,
}

impl From<LoggedEntry> for ToApply {
    fn from(entry: LoggedEntry) -> Self {
        Self { entry, prepared: None }
    }
}

/// What an entry changes.
pub(super) struct Prepared {
    /// The collection as it was, which is what the keys are for.
    collection: Arc<Collection>,
    pub(super) change: Change,
}

impl Prepared {
    /// Whether it was worked out for the collection as it is now.
    pub(super) fn is_for(&self, collection: &Arc<Collection>) -> bool {
        Arc::ptr_eq(&self.collection, collection)
    }
}

/// A change of one document.
pub(super) enum Change {
    /// It is new. Where that is not certain, the writer looks.
    Insert { keys: Vec<DocumentKeys> },
    /// It is replaced.
    Replace { record: RecordId, old: DocumentBytes, new: RawDocumentBuf, keys: Vec<ChangedKeys> },
    /// It is removed.
    Remove { record: RecordId, old: DocumentBytes, keys: Vec<DocumentKeys> },
    /// It is not there.
    Missing,
}

impl Node {
    /// Lets threads prepare batches of so many entries or more, for tests with small batches.
    pub fn prepare_from(&self, entries: usize) {
        if let Some(replication) = self.replication() {
            replication.prepares_from.store(entries, Ordering::Relaxed);
        }
    }

    /// Works out what these entries change. Failures are left for the writer to meet.
    pub(super) fn prepare(&self, entries: &mut [ToApply]) {
        let Some(replication) = self.replication() else { return };
        if entries.len() < replication.prepares_from() {
            return;
        }
        let prefetch = &replication.prefetch;
        let (catalog, view) = (self.catalog(), self.view());
        let mut prepared: Vec<Option<Prepared>> = Vec::new();
        prepared.resize_with(entries.len(), || None);
        std::thread::scope(|scope| {
            let (catalog, view, entries) = (&*catalog, &view, &*entries);
            let threads: Vec<_> = (0..PREPARERS)
                .map(|share| {
                    scope.spawn(move || prepare_share(catalog, view, entries, share, prefetch))
                })
                .collect();
            for thread in threads {
                // A thread that panicked has prepared nothing; the writer meets what it met.
                for (place, change) in thread.join().unwrap_or_default() {
                    prepared[place] = Some(change);
                }
            }
        });
        for (next, prepared) in entries.iter_mut().zip(prepared) {
            next.prepared = prepared;
        }
    }
}

/// What the entries of one thread change, with their places.
fn prepare_share(
    catalog: &Catalog,
    view: &View,
    entries: &[ToApply],
    share: usize,
    prefetch: &PrefetchSetting,
) -> Vec<(usize, Prepared)> {
    let setting = prefetch.get();
    let mut prepared = Vec::new();
    for (place, ToApply { entry, .. }) in entries.iter().enumerate() {
        let Some(document) = document_of(entry) else { continue };
        if share_of(document) != share {
            continue;
        }
        let Ok(namespace) = namespace_of(entry).and_then(Namespace::parse) else { continue };
        let Some(collection) = catalog.get(&namespace) else { continue };
        let Ok(change) = prepare_entry(collection, view, entry) else { continue };
        // What cannot be read now cannot be read by the writer either, which tells of it.
        let _ = setting.warm(collection, view, &change, &prefetch.count);
        prepared.push((place, Prepared { collection: Arc::clone(collection), change }));
    }
    prepared
}

/// What an entry changes in a view.
pub(super) fn prepare_entry(
    collection: &Collection,
    view: &View,
    entry: &RawDocument,
) -> Result<Change> {
    let object = object_of(entry)?;
    match operation_of(entry)? {
        "i" => Ok(Change::Insert { keys: keys_of(collection, object)? }),
        "u" => {
            let id = target_of(entry)?;
            let Some((record, old)) = view.by_id(collection, id)? else {
                return Ok(Change::Missing);
            };
            if let Some(delta) = PlainDelta::read(object)
                && let Some(new) = delta.apply(&old)
            {
                let touches = |name: &str| delta.touches(name);
                let keys = changed_keys(collection, (&old, &new), Some(&touches))?;
                return Ok(Change::Replace { record, old, new, keys });
            }
            let delta = is_raw_delta(object).then(|| Document::try_from(object)).transpose()?;
            let touched = delta.as_ref().and_then(changed_fields);
            let new = match &delta {
                Some(delta) => updated(&old, delta, touched.as_deref())?,
                None => object.to_owned(),
            };
            let touches = |name: &str| touched.as_ref().is_none_or(|fields| fields.contains(&name));
            let keys = changed_keys(collection, (&old, &new), Some(&touches))?;
            Ok(Change::Replace { record, old, new, keys })
        }
        "d" => match view.by_id(collection, object)? {
            Some((record, old)) => {
                let keys = keys_of(collection, &old)?;
                Ok(Change::Remove { record, old, keys })
            }
            None => Ok(Change::Missing),
        },
        _ => Err(damaged("op")),
    }
}

/// The document after an update that touches these fields alone, or any.
fn updated(
    old: &RawDocument,
    change: &Document,
    touched: Option<&[&str]>,
) -> Result<RawDocumentBuf> {
    if let Some(part) = touched.and_then(|fields| Part::read(old, fields))
        && let Some(new) = apply_to_part(&part, change)?
    {
        return Ok(new);
    }
    apply_change(old, change)
}

/// Which thread works on a document: always the same one for the same bytes of its start, which
/// hold the `_id`.
fn share_of(document: &RawDocument) -> usize {
    let mut hasher = DefaultHasher::new();
    let bytes = document.as_bytes();
    bytes.get(4..bytes.len().min(4 + HASHED_BYTES)).hash(&mut hasher);
    (hasher.finish() % PREPARERS as u64) as usize
}
