//! Whether a key of a unique index is taken.
//!
//! New keys mostly rise: identifiers made by drivers, counters, dates. So a bound is remembered for
//! each unique index, above which it holds no key; only keys at or below it are looked up. Every
//! key that is about to be written passes here, so the bound is never too low; if a write fails
//! after all it is too high, which only costs a look-up.

use quorate_storage::{Direction, KeyRange};

use super::Writer;
use crate::catalog::Index;
use crate::error::Result;

impl Writer<'_> {
    /// Whether a key, the ident included, is taken in what is committed. The caller writes it if it
    /// is free, and knows itself about keys that it has not committed yet.
    pub(super) fn is_taken(&mut self, index: &Index, entry: &[u8]) -> Result<bool> {
        Ok(!self.raise_greatest(index, entry)? && self.view().unique_entry(entry)?.is_some())
    }

    /// Whether a key is above all keys of its index, which it then becomes the greatest of.
    pub(super) fn raise_greatest(&mut self, index: &Index, entry: &[u8]) -> Result<bool> {
        let greatest = match self.state.greatest_keys.get_mut(&index.ident) {
            Some(greatest) => greatest,
            None => {
                let whole = KeyRange::prefix(&index.ident.prefix());
                let view = self.newest_view();
                let last = view.scan_index(whole, Direction::Backward)?.next().transpose()?;
                let last = last.map(|(key, _)| key.to_vec()).unwrap_or_default();
                self.state.greatest_keys.entry(index.ident).or_insert(last)
            }
        };
        let rises = entry > greatest.as_slice();
        if rises {
            greatest.clear();
            greatest.extend_from_slice(entry);
        }
        Ok(rises)
    }
}
