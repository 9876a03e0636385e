//! `replIndexPrefetch`: reading what a batch will need before it is applied.
//!
//! Applying is one after another, because each entry may depend on the one before. Reading is not:
//! several threads, each with its own documents, bring the blocks that the batch will touch into the
//! cache, and the writer then finds them there. Decides nothing and changes nothing.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU8, Ordering};

use bson::{RawDocument, RawDocumentBuf};

use super::apply::namespace_of;
use crate::catalog::Catalog;
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::{View, index_entry};
use crate::writer::index_keys_of;

/// Threads that read ahead.
const PREFETCHERS: usize = 4;

/// Bytes of a document that decide which thread reads for it.
const HASHED_BYTES: usize = 32;

/// Below this many entries the writer reads as fast by itself.
const MIN_ENTRIES: usize = 64;

/// How much is read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum IndexPrefetch {
    /// Nothing.
    None,
    /// The `_id` index.
    IdOnly,
    /// The documents and all their indexes.
    #[default]
    All,
}

impl IndexPrefetch {
    const ALL: [Self; 3] = [Self::None, Self::IdOnly, Self::All];

    /// The value of the server parameter.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::IdOnly => "_id_only",
            Self::All => "all",
        }
    }

    /// The setting of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// The setting, which may change while entries are applied.
pub(crate) struct PrefetchSetting(AtomicU8);

impl Default for PrefetchSetting {
    fn default() -> Self {
        let setting = Self(AtomicU8::new(0));
        setting.set(IndexPrefetch::default());
        setting
    }
}

impl PrefetchSetting {
    pub(crate) fn get(&self) -> IndexPrefetch {
        let place = usize::from(self.0.load(Ordering::Relaxed));
        IndexPrefetch::ALL.get(place).copied().unwrap_or_default()
    }

    pub(crate) fn set(&self, prefetch: IndexPrefetch) {
        self.0.store(prefetch as u8, Ordering::Relaxed);
    }
}

impl Node {
    /// Reads what these entries will touch. Failures are left for the writer to meet.
    pub(super) fn prefetch(&self, entries: &[RawDocumentBuf]) {
        let setting = self.replication().map_or(IndexPrefetch::None, |known| known.prefetch.get());
        if setting == IndexPrefetch::None || entries.len() < MIN_ENTRIES {
            return;
        }
        let (catalog, view) = (self.catalog(), self.view());
        std::thread::scope(|scope| {
            for place in 0..PREFETCHERS {
                let (catalog, view) = (&*catalog, &view);
                scope.spawn(move || {
                    for entry in entries {
                        let Some(document) = document_of(entry) else { continue };
                        if share_of(document) == place {
                            let _ = warm(catalog, view, entry, document, setting);
                        }
                    }
                });
            }
        });
    }
}

/// The document, or the `_id`, that an entry is about; none if it reads nothing.
fn document_of(entry: &RawDocument) -> Option<&RawDocument> {
    match entry.get_str("op").ok()? {
        "i" | "d" => entry.get_document("o").ok(),
        "u" => entry.get_document("o2").ok(),
        _ => None,
    }
}

/// Which thread reads for a document: always the same one for the same bytes of its start, which
/// hold the `_id`.
fn share_of(document: &RawDocument) -> usize {
    let mut hasher = DefaultHasher::new();
    let bytes = document.as_bytes();
    bytes.get(4..bytes.len().min(4 + HASHED_BYTES)).hash(&mut hasher);
    (hasher.finish() % PREFETCHERS as u64) as usize
}

fn warm(
    catalog: &Catalog,
    view: &View,
    entry: &RawDocument,
    document: &RawDocument,
    setting: IndexPrefetch,
) -> Result<(), CommandError> {
    let namespace = Namespace::parse(namespace_of(entry)?)?;
    let Some(collection) = catalog.get(&namespace) else { return Ok(()) };
    let Some(index) = collection.indexes.iter().find(|index| index.is_id()) else { return Ok(()) };
    let keys = index_keys_of(index, document)?;
    let Some(key) = keys.keys.iter().next() else { return Ok(()) };
    let record = view.unique_record(index, key)?;
    let (Some(record), IndexPrefetch::All) = (record, setting) else { return Ok(()) };
    let Some(old) = view.record(collection, record)? else { return Ok(()) };
    for index in collection.indexes.iter().filter(|index| !index.is_id()) {
        for key in &index_keys_of(index, &old)?.keys {
            view.snapshot.get(view.keyspaces.indexes, &index_entry(index, key, record).0)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_keeps_what_it_is_given() {
        let setting = PrefetchSetting::default();
        assert_eq!(setting.get(), IndexPrefetch::All);
        for name in ["none", "_id_only", "all"] {
            setting.set(IndexPrefetch::parse(name).unwrap());
            assert_eq!(setting.get().name(), name);
        }
        assert_eq!(IndexPrefetch::parse("some"), None);
    }
}
