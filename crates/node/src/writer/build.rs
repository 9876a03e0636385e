//! Building an index while documents come and go.
//!
//! ```text
//!   lock     note the build                      ─┐ the state S₀
//!            write the keys of all documents      │ of S₀, in steps
//!   lock     which records changed since S₀?      │ the state S₁
//!            take their old keys out, put the     │
//!            new ones in, in steps                │ … until few have changed
//!   lock     the same for the last ones, and show the index, in one hold
//! ```
//!
//! Writers do not touch the keys of an index that is being built: they only note which records they
//! changed. After each pass the keys are exactly those of the state that the pass looked at, so
//! what the next one must take out is known from that state, and a unique index is checked against
//! states that have existed: documents that share a key at any of them end the build. The other
//! members hear of the index when it is shown, and build it at that place of the history.
//!
//! Until then the index has a row that calls its keys garbage, which is what they are if the build
//! fails or the process ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{Document, RawDocument, doc};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Bytes, Direction};

mod gathered;

use self::gathered::{Gathered, Sorted};
use super::Writer;
use super::check::{duplicate_key, index_keys_of};
use crate::catalog::{Collection, Ident, Index};
use crate::context::Now;
use crate::error::{CommandError, Result};
use crate::finder::InterruptSlot;
use crate::index_keys::DocumentKeys;
use crate::node::Node;
use crate::record_scan::{Examiner, RecordScan, Records};
use crate::records::{DocumentBytes, LentDocument, View, index_entry};
use crate::replication::Commit;

/// Bytes of keys written under one hold of the lock.
const STEP_BYTES: usize = 256 * 1024;

/// Bytes of keys that are put in order before they are written: a tree takes keys in their order at a
/// fraction of what it takes others at.
const SORTED_BYTES: usize = if cfg!(test) { 16 * 1024 } else { 16 * 1024 * 1024 };

/// Bytes of keys in order from which on they are written as tables and not through the journal.
const INGESTED_BYTES: usize = if cfg!(test) { 4 * 1024 } else { 256 * 1024 };

/// Records that are looked at under one hold of the lock: a collection with no more is indexed at
/// once, and a build with no more changes to follow comes to its end.
const LAST_STEP: usize = 1000;

/// How often a build follows changes before it makes all writers wait for the rest.
const MAX_PASSES: usize = 10;

/// What writers know about an index that is being built.
pub(crate) struct Build {
    collection: Ident,
    index: Ident,
    /// The records that were changed since the state that was looked at last.
    changed: BTreeSet<RecordId>,
}

impl Writer<'_> {
    /// Notes that a record is about to change, for the index builds of its collection.
    pub(crate) fn note_change(&mut self, collection: Ident, record: RecordId) {
        if self.stage_record(collection, record) {
            return;
        }
        for build in &mut self.state.builds {
            if build.collection == collection {
                build.changed.insert(record);
            }
        }
    }

    /// Whether an index is being built under this ident.
    pub(super) fn is_being_built(&self, ident: Ident) -> bool {
        self.state.builds.iter().any(|build| build.index == ident)
    }

    /// How many documents there are, if they are so few that they can be indexed at once.
    pub(crate) fn few_documents(&self, collection: &Collection) -> Result<Option<u64>> {
        let records = self.view().scan_records(collection.ident, Direction::Forward)?;
        let count = records.take(LAST_STEP + 1).count();
        Ok((count <= LAST_STEP).then_some(count as u64))
    }

    /// Notes that an index is going to be built, of the state that this writer sees.
    pub(crate) fn begin_build(
        &mut self,
        collection: &Arc<Collection>,
        spec: Document,
    ) -> Result<Building> {
        let ident = self.allocate_hidden(collection)?;
        let index = Index::from_spec(ident, spec)?;
        let (changed, view) = (BTreeSet::new(), self.view().clone());
        self.state.builds.push(Build { collection: collection.ident, index: ident, changed });
        Ok(Building { collection: Arc::clone(collection), index, state: view })
    }

    fn take_changed(&mut self, index: Ident) -> BTreeSet<RecordId> {
        let build = self.state.builds.iter_mut().find(|build| build.index == index);
        build.map(|build| std::mem::take(&mut build.changed)).unwrap_or_default()
    }

    pub(crate) fn end_build(&mut self, index: Ident) {
        self.state.builds.retain(|build| build.index != index);
    }
}

/// An index on its way. Holds no lock.
pub(crate) struct Building {
    collection: Arc<Collection>,
    pub(crate) index: Index,
    /// The state whose documents are indexed.
    state: View,
}

/// How the keys of a build are committed.
enum Hand<'a, 'n> {
    /// A step at a time, the lock taken for each.
    Free(&'a Node, Now),
    /// The holder of the lock.
    Holder(&'a mut Writer<'n>),
}

impl Hand<'_, '_> {
    fn commit(&mut self, batch: Batch) -> Result<View> {
        match self {
            Self::Free(node, now) => {
                let mut writer = node.write(*now);
                writer.commit(batch)?;
                Ok(writer.view().clone())
            }
            Self::Holder(writer) => {
                writer.commit(batch)?;
                // Whether a key is taken is looked up in what is committed.
                writer.flush()?;
                Ok(writer.view().clone())
            }
        }
    }
}

impl Hand<'_, '_> {
    /// Writes entries in their order, straight to the tables of the store.
    fn ingest(&mut self, entries: &mut dyn Iterator<Item = (Bytes, Bytes)>) -> Result<View> {
        match self {
            Self::Free(node, _) => {
                node.ingest_entries(entries)?;
                Ok(node.view())
            }
            Self::Holder(writer) => {
                // The row that calls the entries garbage comes first.
                writer.flush()?;
                writer.node.ingest_entries(entries)?;
                writer.forget_view();
                Ok(writer.view().clone())
            }
        }
    }
}

impl Building {
    /// How many documents there are to index at most, by the numbers of the first and the last record.
    pub(crate) fn most_documents(&self) -> Result<u64> {
        let end = |direction| -> Result<u64> {
            let mut records = self.state.scan_records(self.collection.ident, direction)?;
            let key = records.next().transpose()?.map(|(key, _)| key);
            Ok(key.and_then(|key| RecordId::from_suffix(&key)).map_or(0, |record| record.0))
        };
        Ok(end(Direction::Backward)?.saturating_sub(end(Direction::Forward)?) + 1)
    }

    /// Builds the index and shows it. The recheck says whether meanwhile another command has made the
    /// same index. Returns the collection with it.
    pub(crate) fn run(
        mut self,
        (node, now): (&Node, Now),
        interrupt: InterruptSlot,
        check: &dyn Fn() -> Result<()>,
        recheck: &dyn Fn(&Collection) -> Result<bool>,
    ) -> Result<(Arc<Collection>, Option<Commit>)> {
        let ident = self.index.ident;
        let filled = self.fill(Hand::Free(node, now), interrupt, check);
        let result = filled.and_then(|()| self.finish(node, now, check, recheck));
        if result.is_err() {
            // What was written is garbage, and said so from the beginning.
            node.write(now).end_build(ident);
        }
        result
    }

    /// Follows what was changed meanwhile, and shows the index.
    fn finish(
        &mut self,
        node: &Node,
        now: Now,
        check: &dyn Fn() -> Result<()>,
        recheck: &dyn Fn(&Collection) -> Result<bool>,
    ) -> Result<(Arc<Collection>, Option<Commit>)> {
        let mut passes = 0;
        loop {
            let mut writer = node.write(now);
            let current = self.current(&writer)?;
            let changed = writer.take_changed(self.index.ident);
            let next = writer.view().clone();
            if changed.len() <= LAST_STEP || passes == MAX_PASSES {
                self.follow(Hand::Holder(&mut writer), &changed, next, check)?;
                return self.show(writer, current, recheck);
            }
            drop(writer);
            self.follow(Hand::Free(node, now), &changed, next, check)?;
            passes += 1;
        }
    }

    /// The collection as it is now, if it is still the same.
    fn current(&self, writer: &Writer<'_>) -> Result<Arc<Collection>> {
        let found = writer.collection(&self.collection.namespace);
        found.filter(|found| found.uuid == self.collection.uuid).ok_or_else(|| {
            fail!(
                INDEX_BUILD_ABORTED,
                "the collection {} was dropped or renamed while its index {} was built",
                self.collection.namespace,
                self.index.name
            )
        })
    }

    /// Writes the keys of all documents.
    fn fill(
        &mut self,
        hand: Hand<'_, '_>,
        interrupt: InterruptSlot,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let mut keys = KeyWriter::new(hand, self.state.clone());
        let mut gathered = Gathered::default();
        let records = Records {
            view: self.state.clone(),
            collection: self.collection.ident,
            after: None,
            direction: Direction::Forward,
        };
        let mut scan = RecordScan::new(records, KeysIn(self.index.clone()), interrupt)?;
        while let Some((record, found)) = scan.next()? {
            check()?;
            self.index.multikey |= found.multikey;
            for key in &found.keys {
                gathered.add(&self.index, key, record);
            }
            if gathered.bytes() > SORTED_BYTES {
                self.write_in_order(&mut keys, std::mem::take(&mut gathered))?;
            }
        }
        self.write_in_order(&mut keys, gathered)
    }

    /// Writes entries, the first ones first.
    fn write_in_order(&self, keys: &mut KeyWriter<'_, '_>, gathered: Gathered) -> Result<()> {
        let entries = gathered.into_sorted();
        if self.index.unique {
            self.check_unique(&entries, keys)?;
        }
        if entries.bytes() < INGESTED_BYTES {
            for (entry, record) in entries.iter() {
                keys.add(&self.index, entry, record)?;
            }
            return keys.step();
        }
        keys.ingest(
            &mut entries.iter().map(|(entry, record)| (entry, value_of(&self.index, record))),
        )
    }

    /// Refuses entries of a unique index that two records have.
    fn check_unique(&self, entries: &Sorted, keys: &KeyWriter<'_, '_>) -> Result<()> {
        // Equal entries stand side by side, and nothing is there before the first ones are written.
        let mut last: Option<Bytes> = None;
        for (entry, record) in entries.iter() {
            let is_taken = last.as_ref() == Some(&entry)
                || keys.has_written && keys.view.unique_entry(&entry)?.is_some();
            if is_taken {
                return Err(self.duplicate(record));
            }
            last = Some(entry);
        }
        Ok(())
    }

    /// The refusal of a record whose key another one has.
    fn duplicate(&self, record: RecordId) -> CommandError {
        match self.state.record(&self.collection, record) {
            Ok(Some(document)) => duplicate_key(&self.collection, &self.index, &document),
            Ok(None) => fail!(
                INTERNAL_ERROR,
                "a record of {} is missing; run validate",
                self.collection.namespace
            ),
            Err(error) => error,
        }
    }

    /// Brings the keys from the state that they belong to, to the next.
    fn follow(
        &mut self,
        hand: Hand<'_, '_>,
        changed: &BTreeSet<RecordId>,
        next: View,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let before = std::mem::replace(&mut self.state, next.clone());
        let mut keys = KeyWriter::new(hand, next.clone());
        // All that goes, first: another document may have got the key.
        for &record in changed {
            check()?;
            let (old, new) = (self.keys_of(&before, record)?.0, self.keys_of(&next, record)?.0);
            self.index.multikey |= new.multikey;
            for key in old.keys.difference(&new.keys) {
                keys.take(&self.index, key, record)?;
            }
        }
        keys.step()?;
        for &record in changed {
            check()?;
            let (old, (new, document)) =
                (self.keys_of(&before, record)?.0, self.keys_of(&next, record)?);
            let Some(document) = document else { continue };
            for key in new.keys.difference(&old.keys) {
                keys.put(&self.collection, &self.index, key, record, &document)?;
            }
        }
        keys.step()
    }

    fn keys_of(
        &self,
        view: &View,
        record: RecordId,
    ) -> Result<(DocumentKeys, Option<DocumentBytes>)> {
        let document = view.record(&self.collection, record)?;
        let keys = match &document {
            Some(document) => index_keys_of(&self.index, document)?,
            None => DocumentKeys::default(),
        };
        Ok((keys, document))
    }

    /// Makes the index one of the collection's.
    fn show(
        &mut self,
        mut writer: Writer<'_>,
        mut current: Arc<Collection>,
        recheck: &dyn Fn(&Collection) -> Result<bool>,
    ) -> Result<(Arc<Collection>, Option<Commit>)> {
        if !recheck(&current)? {
            writer.add_index(&mut current, self.index.clone())?;
        }
        writer.end_build(self.index.ident);
        Ok((current, writer.last_commit()))
    }
}

/// Makes the keys of documents in an index.
struct KeysIn(Index);

impl Examiner for KeysIn {
    type Item = (RecordId, DocumentKeys);

    fn examine(&self, record: RecordId, document: LentDocument<'_>) -> Result<Option<Self::Item>> {
        Ok(Some((record, index_keys_of(&self.0, &document)?)))
    }
}

/// What an index keeps under the entry of a record.
fn value_of(index: &Index, record: RecordId) -> Bytes {
    if index.unique { Bytes::from(&record.to_bytes()) } else { Bytes::from(&[]) }
}

/// Collects keys and writes them in steps.
struct KeyWriter<'a, 'n> {
    hand: Hand<'a, 'n>,
    batch: Batch,
    bytes: usize,
    /// Keys of a unique index in the batch, which the view does not show.
    pending: BTreeSet<Bytes>,
    /// Whether some keys are written.
    has_written: bool,
    view: View,
}

impl<'a, 'n> KeyWriter<'a, 'n> {
    fn new(hand: Hand<'a, 'n>, view: View) -> Self {
        let (batch, pending) = (Batch::new(), BTreeSet::new());
        Self { hand, batch, bytes: 0, pending, has_written: false, view }
    }

    fn put(
        &mut self,
        collection: &Collection,
        index: &Index,
        key: &[u8],
        record: RecordId,
        document: &RawDocument,
    ) -> Result<()> {
        let (entry, _) = index_entry(index, key, record);
        if index.unique {
            if self.pending.contains(&entry) || self.view.unique_entry(&entry)?.is_some() {
                return Err(duplicate_key(collection, index, document));
            }
            self.pending.insert(entry.clone());
        }
        self.add(index, entry, record)
    }

    /// Adds an entry that no other record has.
    fn add(&mut self, index: &Index, entry: impl Into<Bytes>, record: RecordId) -> Result<()> {
        let entry = entry.into();
        self.bytes += entry.len();
        self.batch.insert(self.view.keyspaces.indexes, entry, value_of(index, record));
        self.step_if_full()
    }

    /// Writes entries that no other record has, in their order, after what was added before.
    fn ingest(&mut self, entries: &mut dyn Iterator<Item = (Bytes, Bytes)>) -> Result<()> {
        self.step()?;
        self.view = self.hand.ingest(entries)?;
        Ok(())
    }

    fn take(&mut self, index: &Index, key: &[u8], record: RecordId) -> Result<()> {
        let (entry, _) = index_entry(index, key, record);
        self.bytes += entry.len();
        self.batch.remove(self.view.keyspaces.indexes, entry);
        self.step_if_full()
    }

    fn step_if_full(&mut self) -> Result<()> {
        if self.bytes > STEP_BYTES { self.step() } else { Ok(()) }
    }

    fn step(&mut self) -> Result<()> {
        self.view = self.hand.commit(std::mem::take(&mut self.batch))?;
        self.pending.clear();
        self.has_written = true;
        self.bytes = 0;
        Ok(())
    }
}

impl Writer<'_> {
    /// A number for an index that is not visible yet. Until it is added its keys are garbage: a crash
    /// leaves nothing behind.
    pub(super) fn allocate_hidden(&mut self, collection: &Arc<Collection>) -> Result<Ident> {
        let shared = Arc::clone(collection);
        self.change_catalog(None, |catalog, keyspace, batch| {
            let ident = catalog.allocate_ident();
            catalog.discard(ident, keyspace, batch);
            Ok((ident, shared))
        })
    }

    /// Shows an index whose keys are complete, and logs it.
    pub(super) fn add_index(
        &mut self,
        collection: &mut Arc<Collection>,
        index: Index,
    ) -> Result<()> {
        let mut command = doc! { "createIndexes": &collection.namespace.collection };
        command.extend(index.spec.clone());
        let ident = index.ident;
        let mut altered = (**collection).clone();
        altered.indexes.push(Arc::new(index));
        *collection = self.change_catalog(Some(command), |catalog, keyspace, batch| {
            catalog.forget(ident, keyspace, batch);
            let collection = catalog.put(altered, keyspace, batch)?;
            Ok((Arc::clone(&collection), collection))
        })?;
        Ok(())
    }

    /// Adds an index over the documents that are there, in one hold of the lock.
    pub(crate) fn build_index(
        &mut self,
        collection: &mut Arc<Collection>,
        spec: Document,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        if self.is_staging() {
            return self.add_staged_index(collection, spec);
        }
        let index = Index::from_spec(self.allocate_hidden(collection)?, spec)?;
        let state = self.view().clone();
        let mut building = Building { collection: Arc::clone(collection), index, state };
        let alone = InterruptSlot::default();
        building.fill(Hand::Holder(self), alone, &check)?;
        self.add_index(collection, building.index)
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};
    use quorate_storage::ModelStore;

    use super::*;
    use crate::node::NodeOptions;
    use crate::test_support::{now, run};

    /// More keys than are put in order at once.
    const DOCUMENTS: i32 = 3000;

    /// A unique index over keys in no order, of which two records may have one.
    fn build(twice: Option<(i32, i32)>) -> Document {
        let node = Node::open(Arc::new(ModelStore::new()), NodeOptions::default(), now()).unwrap();
        let documents: Vec<Document> = (0..DOCUMENTS)
            .map(|id| {
                let from = twice.filter(|(_, second)| *second == id).map_or(id, |(first, _)| first);
                doc! { "_id": id, "u": (from * 7919) % 10_007 }
            })
            .collect();
        run(&node, doc! { "insert": "c", "documents": documents });
        let index = doc! { "key": { "u": 1 }, "name": "u", "unique": true };
        let reply = run(&node, doc! { "createIndexes": "c", "indexes": [index] });
        let checked = run(&node, doc! { "validate": "c", "full": true });
        assert_eq!(checked.get_bool("valid").ok(), Some(true), "{checked}");
        if reply.contains_key("code") {
            return reply;
        }
        let filter = doc! { "u": { "$gte": 0 } };
        run(&node, doc! { "count": "c", "query": filter, "hint": "u" })
    }

    /// Equal keys are found within what is put in order at once, and across.
    #[test]
    fn keys_are_written_in_order_and_equal_ones_are_found_wherever_they_are() {
        assert_eq!(build(None).get_i32("n").ok(), Some(DOCUMENTS));
        for twice in [(5, 6), (5, DOCUMENTS - 1), (DOCUMENTS - 2, DOCUMENTS - 1), (0, 1500)] {
            let refused = build(Some(twice));
            assert_eq!(refused.get_i32("code").ok(), Some(11000), "{twice:?}: {refused}");
        }
    }
}
