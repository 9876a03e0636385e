//! The bytes of indexes, as `collStats` and `dbStats` tell them.
//!
//! An index is measured by reading all of it. In between its size is estimated by the number of documents: it is read
//! again once a share of the collection has changed. Reading it so costs a few entries for each change.

use std::collections::BTreeMap;

use quorate_storage::{Direction, KeyRange};

use quorate_protocol::Lock;

use crate::catalog::{Catalog, Collection, Ident, Index};
use crate::dispatch::Request;
use crate::error::Result;
use crate::node::Node;
use crate::writer::Totals;

/// Entries of an index that are read between two checks of the interrupt.
const ENTRIES_BETWEEN_LOOKS: usize = 1_000;

/// An index is measured again once one document in so many has changed, or a byte in so many has come or gone.
const MEASURED_AFTER: u64 = 10;

/// What an index held when it was measured, and its collection then.
#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes: u64,
    totals: Totals,
    /// How often documents of the collection had been changed.
    changes: u64,
}

impl Measured {
    /// The bytes of the index by now; none if too much has changed to tell.
    fn estimate(self, totals: Totals, changes: u64) -> Option<u64> {
        let then = self.totals;
        // A batch of inserts is one change.
        let changed = changes.abs_diff(self.changes) + totals.documents.abs_diff(then.documents);
        let moved = totals.bytes.abs_diff(then.bytes);
        if changed > then.documents / MEASURED_AFTER || moved > then.bytes / MEASURED_AFTER {
            return None;
        }
        let scaled = u128::from(self.bytes) * u128::from(totals.documents);
        Some((scaled / u128::from(then.documents.max(1))) as u64)
    }
}

/// The sizes of the indexes that were asked for.
#[derive(Default)]
pub(crate) struct IndexSizes(Lock<BTreeMap<Ident, Measured>>);

impl IndexSizes {
    fn get(&self, index: Ident) -> Option<Measured> {
        self.0.lock().get(&index).copied()
    }

    /// Remembers a size. Indexes that are gone are forgotten.
    fn keep(&self, index: Ident, measured: Measured, catalog: &Catalog) {
        let exists = |ident: &Ident| {
            let mut indexes = catalog.collections().flat_map(|collection| &collection.indexes);
            indexes.any(|index| index.ident == *ident)
        };
        let mut sizes = self.0.lock();
        sizes.insert(index, measured);
        let known = catalog.collections().map(|collection| collection.indexes.len()).sum();
        if sizes.len() > known {
            sizes.retain(|ident, _| exists(ident));
        }
    }
}

/// The bytes of an index of a collection that holds so much.
pub(crate) fn index_size(
    request: &Request<'_>,
    collection: &Collection,
    index: &Index,
    totals: Totals,
) -> Result<i64> {
    let node = request.node;
    let changes = node.changes_of(collection.ident, request.context.now);
    let known = node.index_sizes().get(index.ident);
    if let Some(bytes) = known.and_then(|known| known.estimate(totals, changes)) {
        return Ok(bytes as i64);
    }
    let bytes = measure(request, node, index)?;
    let measured = Measured { bytes, totals, changes };
    node.index_sizes().keep(index.ident, measured, &node.catalog());
    Ok(bytes as i64)
}

fn measure(request: &Request<'_>, node: &Node, index: &Index) -> Result<u64> {
    let mut bytes = 0;
    let range = KeyRange::prefix(&index.ident.prefix());
    for (place, pair) in node.view().scan_index(range, Direction::Forward)?.enumerate() {
        let (key, value) = pair?;
        bytes += (key.len() + value.len()) as u64;
        if place % ENTRIES_BETWEEN_LOOKS == 0 {
            request.interrupt.check()?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(documents: u64, bytes: u64) -> Totals {
        Totals { documents, bytes }
    }

    #[test]
    fn a_size_is_estimated_until_a_share_of_the_documents_has_changed() {
        let measured = Measured { bytes: 5_000, totals: totals(100, 10_000), changes: 7 };
        assert_eq!(measured.estimate(totals(100, 10_000), 7), Some(5_000));
        assert_eq!(measured.estimate(totals(104, 10_400), 11), Some(5_200));
        assert_eq!(measured.estimate(totals(100, 10_000), 17), Some(5_000));
        assert_eq!(measured.estimate(totals(100, 10_000), 18), None, "many changes");
        assert_eq!(measured.estimate(totals(111, 10_000), 8), None, "one batch of many documents");
        assert_eq!(
            measured.estimate(totals(100, 11_100), 8),
            None,
            "one transaction of many bytes"
        );
        let empty = Measured { bytes: 0, totals: totals(0, 0), changes: 7 };
        assert_eq!(empty.estimate(totals(0, 0), 7), Some(0));
        assert_eq!(empty.estimate(totals(1, 20), 8), None);
    }
}
