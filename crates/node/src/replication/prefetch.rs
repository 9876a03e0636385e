//! `replIndexPrefetch`: reading the index entries that a batch will touch before it is applied.
//!
//! The threads that work out what entries change (`prepare`) bring the blocks of the indexes into the
//! cache, and the writer then finds them there. Decides nothing and changes nothing.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::prepare::Change;
use crate::catalog::{Collection, Index};
use crate::error::Result;
use crate::index_keys::DocumentKeys;
use crate::records::{View, index_entry};

quorate_protocol::named! {
    /// How much is read ahead.
    ///
    /// [`name`](Self::name) is the value of the server parameter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum IndexPrefetch {
        /// Nothing.
        None = "none",
        /// The `_id` index.
        IdOnly = "_id_only",
        /// All indexes.
        #[default]
        All = "all",
    }
}

impl IndexPrefetch {
    /// Reads the index entries that a change will touch, and counts them.
    pub(super) fn warm(
        self,
        collection: &Collection,
        view: &View,
        change: &Change,
        count: &AtomicU64,
    ) -> Result<()> {
        let record = match change {
            Change::Replace { record, .. } | Change::Remove { record, .. } => *record,
            Change::Insert { .. } | Change::Missing => return Ok(()),
        };
        if matches!(self, Self::None) {
            return Ok(());
        }
        // The look-up that found the record has read what the index of `_id` says.
        count.fetch_add(1, Ordering::Relaxed);
        if matches!(self, Self::IdOnly) {
            return Ok(());
        }
        let warm = |index: &Index, keys: &DocumentKeys| -> Result<()> {
            for key in &keys.keys {
                view.snapshot.get(view.keyspaces.indexes, &index_entry(index, key, record).0)?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        match change {
            Change::Replace { keys, .. } => keys.iter().try_for_each(|keys| {
                let index = collection.indexes.get(keys.place);
                index.map_or(Ok(()), |index| warm(index, &keys.before))
            }),
            Change::Remove { keys, .. } => {
                let all = collection.indexes.iter().zip(keys);
                all.filter(|(index, _)| !index.is_id())
                    .try_for_each(|(index, keys)| warm(index, keys))
            }
            Change::Insert { .. } | Change::Missing => Ok(()),
        }
    }
}

/// The setting, which may change while entries are applied.
#[derive(Default)]
pub(crate) struct PrefetchSetting {
    setting: AtomicU8,
    /// Index entries that were read ahead.
    pub(crate) count: AtomicU64,
}

impl PrefetchSetting {
    pub(crate) fn new(prefetch: IndexPrefetch) -> Self {
        let setting = Self::default();
        setting.set(prefetch);
        setting
    }

    pub(crate) fn get(&self) -> IndexPrefetch {
        let place = usize::from(self.setting.load(Ordering::Relaxed));
        IndexPrefetch::ALL.get(place).copied().unwrap_or_default()
    }

    pub(crate) fn set(&self, prefetch: IndexPrefetch) {
        self.setting.store(prefetch as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_keeps_what_it_is_given() {
        let setting = PrefetchSetting::new(IndexPrefetch::default());
        assert_eq!(setting.get(), IndexPrefetch::All);
        for name in ["none", "_id_only", "all"] {
            setting.set(IndexPrefetch::from_name(name).unwrap());
            assert_eq!(setting.get().name(), name);
        }
        assert_eq!(IndexPrefetch::from_name("some"), None);
    }
}
