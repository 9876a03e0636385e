//! The read and write concern of commands that give none, as the set's administrator chose them.
//!
//! They are one document of `config.settings`, which travels to the other members as any write does,
//! so that they hold after a failover and a restart. Every command asks for them: the document is kept
//! in memory and read again only after a change of that collection was committed.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bson::{DateTime, Document, Timestamp, doc, rawdoc};

use crate::commands::{read_concern, write_concern};
use crate::error::Result;
use crate::namespace::Namespace;
use crate::node::Node;

/// The `_id` of the document.
const DOCUMENT_ID: &str = "ReadWriteConcernDefaults";

const DATABASE: &str = "config";
const COLLECTION: &str = "settings";

/// What holds for commands that give no concern of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct DefaultConcerns {
    /// The read concern, if one was chosen.
    pub read: Option<Document>,
    /// The write concern, if one was chosen.
    pub write: Option<Document>,
    pub(crate) updated: Timestamp,
    pub(crate) updated_wall: DateTime,
}

impl DefaultConcerns {
    /// Reads the stored document. What the command would have refused does not count: it was written
    /// by another way, before the collection was protected.
    fn from_document(document: &Document) -> Self {
        let concern = |name| document.get_document(name).ok();
        let read = concern("defaultReadConcern").and_then(|given| read_concern(given).ok()?);
        let write = concern("defaultWriteConcern").and_then(|given| write_concern(given).ok()?);
        Self {
            read,
            write,
            updated: document
                .get_timestamp("updateOpTime")
                .unwrap_or(Timestamp { time: 0, increment: 0 }),
            updated_wall: document
                .get_datetime("updateWallClockTime")
                .copied()
                .unwrap_or(DateTime::from_millis(0)),
        }
    }

    /// The document as it is stored.
    pub(crate) fn to_document(&self) -> Document {
        let mut document = doc! { "_id": DOCUMENT_ID };
        document.extend(self.fields());
        document
    }

    /// What the stored document and the replies share.
    pub(crate) fn fields(&self) -> Document {
        let mut fields = Document::new();
        for (name, concern) in
            [("defaultReadConcern", &self.read), ("defaultWriteConcern", &self.write)]
        {
            if let Some(concern) = concern {
                fields.insert(name, concern.clone());
            }
        }
        fields.insert("updateOpTime", self.updated);
        fields.insert("updateWallClockTime", self.updated_wall);
        fields
    }
}

/// Where the document is kept.
pub(crate) fn settings_namespace() -> Namespace {
    Namespace { database: DATABASE.to_owned(), collection: COLLECTION.to_owned() }
}

/// Whether changes of this collection may change the defaults.
pub(crate) fn is_settings(namespace: &Namespace) -> bool {
    is_settings_collection(&namespace.database, &namespace.collection)
}

/// Whether it is the collection of the settings.
pub(crate) fn is_settings_collection(database: &str, collection: &str) -> bool {
    collection == COLLECTION && database == DATABASE
}

/// The document in memory.
pub(crate) struct DefaultsCache {
    known: RwLock<Option<Arc<DefaultConcerns>>>,
    stale: AtomicBool,
    /// When this member saw the last change, in milliseconds of the wall clock.
    changed: AtomicI64,
}

impl DefaultsCache {
    pub(crate) fn new(now: quorate_protocol::WallTime) -> Self {
        Self {
            known: RwLock::default(),
            stale: AtomicBool::new(true),
            changed: AtomicI64::new(now.as_millis()),
        }
    }

    /// A change was committed: the next look reads again.
    pub(crate) fn changed(&self, now: quorate_protocol::WallTime) {
        self.changed.store(now.as_millis(), Ordering::Relaxed);
        self.stale.store(true, Ordering::Release);
    }

    pub(crate) fn changed_at(&self) -> DateTime {
        DateTime::from_millis(self.changed.load(Ordering::Relaxed))
    }
}

impl Node {
    /// The concerns of commands that give none; none if none was chosen.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn default_concerns(&self) -> Result<Option<Arc<DefaultConcerns>>> {
        let cache = self.defaults_cache();
        if cache.stale.load(Ordering::Acquire) {
            // One at a time: what was read first must not be noted last.
            let mut known = cache.known.write().unwrap_or_else(PoisonError::into_inner);
            if cache.stale.swap(false, Ordering::AcqRel) {
                let read = self.stored_default_concerns().inspect_err(|_| {
                    // The old ones may not be used any more.
                    cache.stale.store(true, Ordering::Release);
                })?;
                *known = read.map(Arc::new);
            }
        }
        Ok(cache.known.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// The same, from the store.
    pub(crate) fn stored_default_concerns(&self) -> Result<Option<DefaultConcerns>> {
        let (collection, view) = self.read(&settings_namespace());
        let Some(collection) = collection else { return Ok(None) };
        let found = view.by_id(&collection, &rawdoc! { "_id": DOCUMENT_ID })?;
        let Some((_, document)) = found else { return Ok(None) };
        Ok(Some(DefaultConcerns::from_document(&Document::try_from(&*document)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_command_would_have_refused_does_not_count() {
        let stored = |write: Document| {
            DefaultConcerns::from_document(&doc! {
                "defaultReadConcern": { "level": "majority" }, "defaultWriteConcern": write,
            })
        };
        let good = stored(doc! { "w": 2, "wtimeout": 0 });
        assert!(good.read.is_some() && good.write.is_some());
        let bad = stored(doc! { "w": 0 });
        assert!(bad.read.is_some() && bad.write.is_none());
    }
}
