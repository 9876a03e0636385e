//! Applying entries that another member wrote.
//!
//! Entries are applied in their order, each in one batch with its place in the log, so that a reader
//! only ever sees the set's history up to some entry. Entries of different documents share a batch;
//! what they change is worked out before, by several threads (`prepare`).
//! docs/replication-rules.md#applying.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bson::{Document, RawDocument, RawDocumentBuf};
use quorate_protocol::{OpTime, OpTimeAndWallTime};
use quorate_query::diff::{ToldAs, is_raw_delta};
use quorate_storage::key::RecordId;

use super::Replication;
use super::clone::replaced_by;
use super::entry::{
    LoggedEntry, LoggedOperation, damaged, document_of, namespace_of, object_of, operation_of,
    session_in, uuid_of,
};
use super::prepare::{Change, Prepared, ToApply, prepare_entry};
use crate::catalog::{Collection, Index};
use crate::context::Now;
use crate::error::Result;
use crate::index_keys::first_key;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::DocumentBytes;
use crate::sessions::SessionId;
use crate::transactions::{is_abort, is_apply_ops, is_partial, previous_of};
use crate::writer::{Writer, check_document};

/// The most entries that are applied under one hold of the write lock.
pub const MAX_APPLY_ENTRIES: usize = 5000;

/// What an entry that does not fit the data means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The data is what the log says: a misfit is damage.
    Exact,
    /// The data was copied while it changed, and may be ahead of the log.
    Relaxed,
}

impl Node {
    /// Appends copied entries, which follow `previous`, to the log and applies them. Entries that
    /// are there already are left out. Returns the last entry of the log.
    ///
    /// # Errors
    ///
    /// If the store fails, the log has another end, or an entry does not fit the data.
    pub fn apply(
        &self,
        previous: OpTime,
        entries: impl AsRef<[RawDocumentBuf]>,
        now: Now,
    ) -> Result<OpTimeAndWallTime> {
        self.apply_chunks(read_in_order(entries.as_ref())?, Fit::Exact, Some(previous), now)
    }

    /// Applies entries over a copy, whose log begins with the first of them.
    pub(super) fn apply_over_copy(
        &self,
        entries: &[RawDocumentBuf],
        now: Now,
    ) -> Result<OpTimeAndWallTime> {
        self.apply_chunks(read_in_order(entries)?, Fit::Relaxed, None, now)
    }

    /// `previous` is the entry that the first one follows; none if the log need not be checked.
    fn apply_chunks(
        &self,
        mut entries: Vec<ToApply>,
        fit: Fit,
        mut previous: Option<OpTime>,
        now: Now,
    ) -> Result<OpTimeAndWallTime> {
        while !entries.is_empty() {
            let rest = entries.split_off(entries.len().min(MAX_APPLY_ENTRIES));
            // Over a copy most of it is put where it may be already, which only the writer sees.
            if fit == Fit::Exact {
                self.prepare(&mut entries);
            }
            let last = entries.last().map(|last| last.entry.position.op_time);
            self.write(now).apply(entries.into(), fit, previous)?;
            previous = previous.and(last);
            entries = rest;
        }
        Ok(self.log_positions().written)
    }
}

impl Writer<'_> {
    fn apply(
        &mut self,
        mut entries: VecDeque<ToApply>,
        fit: Fit,
        previous: Option<OpTime>,
    ) -> Result<()> {
        let last = self.node().log_positions().written.op_time;
        // Under the write lock, so that the log cannot grow or be cut between this and the append.
        if let Some(previous) = previous {
            check_that_log_ends_at(previous, last, &entries)?;
        }
        while let Some(next) = entries.front() {
            if next.entry.position.op_time > last {
                break;
            }
            entries.pop_front();
        }
        if fit == Fit::Exact {
            self.defer();
            self.log_state.fit_exactly();
        }
        let mut touched = Touched::default();
        for next in &entries {
            self.node().counters().applied(next.entry.operation);
            touched.notes_documents |= next.entry.operation != LoggedOperation::Insert;
        }
        while let Some(mut next) = entries.pop_front() {
            self.settle_before(&mut next, &mut touched)?;
            if next.entry.operation == LoggedOperation::Insert {
                let run = self.take_run(next, &mut entries, &mut touched)?;
                self.apply_inserts(run, fit)?;
            } else {
                self.replay([next.entry.clone()].into());
                self.apply_one(&next.entry, next.prepared, fit)?;
                self.log_unapplied()?;
            }
            if touched.alone {
                self.flush()?;
                touched.settle();
            }
        }
        self.flush()
    }

    /// Commits what was deferred if this entry must see it.
    fn settle_before(&mut self, next: &mut ToApply, touched: &mut Touched) -> Result<()> {
        if !touched.admit(self, next)? {
            self.flush()?;
            touched.settle();
            touched.admit(self, next)?;
        }
        Ok(())
    }

    /// The entry and the inserts into the same collection that follow it, up to one that must see
    /// what was deferred.
    fn take_run(
        &self,
        first: ToApply,
        entries: &mut VecDeque<ToApply>,
        touched: &mut Touched,
    ) -> Result<Vec<ToApply>> {
        let mut run = vec![first];
        while let Some(next) = entries.front_mut() {
            let joins = next.entry.operation == LoggedOperation::Insert
                && next.entry.namespace() == run[0].entry.namespace()
                && touched.admit(self, next)?;
            if !joins {
                break;
            }
            run.extend(entries.pop_front());
        }
        Ok(run)
    }

    fn apply_inserts(&mut self, run: Vec<ToApply>, fit: Fit) -> Result<()> {
        let namespace = Namespace::parse(namespace_of(&run[0].entry)?)?;
        let Some(mut collection) = self.meant_by(&run[0].entry, &namespace, fit)? else {
            for ToApply { entry, .. } in run {
                self.misfit(fit, &entry)?;
                self.replay([entry].into());
                self.log_unapplied()?;
            }
            return Ok(());
        };
        let mut documents = Vec::with_capacity(run.len());
        let mut entries = VecDeque::with_capacity(run.len());
        let mut fresh = true;
        for ToApply { entry, prepared } in run {
            let document = entry.object()?;
            // Where the data is what the log says, a document cannot be there already.
            fresh &= fit == Fit::Exact || self.find_by_id(&collection, &document)?.is_none();
            let prepared = prepared.filter(|prepared| prepared.is_for(&collection));
            let keys = prepared.and_then(|prepared| match prepared.change {
                Change::Insert { keys } => Some(keys),
                _ => None,
            });
            documents.push((document, keys));
            entries.push_back(entry);
        }
        if fresh {
            self.replay(entries);
            let documents = documents.into_iter();
            let results = self.insert_with_keys(&mut collection, documents, true, true)?;
            return results.into_iter().collect();
        }
        for (entry, (document, _)) in entries.into_iter().zip(documents) {
            if collection.capped.is_some()
                && let Some((record, copied)) = self.find_by_id(&collection, &document)?
            {
                // Its place is after the documents of earlier entries, and those may have come after it was copied.
                self.without_logging(|writer| writer.remove(&collection, record, &copied))?;
            }
            self.replay([entry].into());
            self.put(&mut collection, (*document).to_owned())?;
        }
        Ok(())
    }

    /// Inserts a document or puts it in place of the one with its `_id`.
    pub(crate) fn put(
        &mut self,
        collection: &mut Arc<Collection>,
        document: RawDocumentBuf,
    ) -> Result<()> {
        match self.find_by_id(collection, &document)? {
            Some((record, old)) => {
                self.replace(collection, record, &old, document, (&ToldAs::default()).into(), true)
            }
            None => self.insert(collection, vec![document], true, true)?.into_iter().collect(),
        }
    }

    /// The collection that an entry is about. Over a copy another one may have its name by now, whose
    /// documents are not the entry's business.
    fn meant_by(
        &self,
        entry: &RawDocument,
        namespace: &Namespace,
        fit: Fit,
    ) -> Result<Option<Arc<Collection>>> {
        let found = self.collection(namespace);
        match (fit, found) {
            (Fit::Relaxed, Some(found)) if found.uuid != uuid_of(entry)? => Ok(None),
            (_, found) => Ok(found),
        }
    }

    /// The same for a command. A view of a copy has no UUID that the source told, and is meant by its name.
    fn meant_by_command(
        &mut self,
        entry: &RawDocument,
        namespace: &Namespace,
        command: &Document,
        fit: Fit,
    ) -> Result<Option<Arc<Collection>>> {
        if fit == Fit::Exact {
            return self.meant_by(entry, namespace, fit);
        }
        let uuid = uuid_of(entry)?;
        match command.keys().next().map(String::as_str) {
            Some("drop") => self.no_longer_missing(&uuid),
            Some("renameCollection") => {
                let found = self.meant_by(entry, namespace, fit)?;
                return Ok(found.or_else(|| self.moved_aside(&uuid)));
            }
            _ => {}
        }
        let found = self.collection(namespace);
        let Some(view) = found.filter(|found| found.view.is_some()) else {
            return self.meant_by(entry, namespace, fit);
        };
        // If the entry drops an earlier collection of that name, a later entry makes the view again.
        let is_drop = command.contains_key("drop");
        let options = command.get_document("options");
        let is_of_view = options.is_ok_and(|options| options.contains_key("viewOn"));
        Ok(Some(view).filter(|_| is_drop || is_of_view))
    }

    fn apply_one(
        &mut self,
        entry: &RawDocument,
        prepared: Option<Prepared>,
        fit: Fit,
    ) -> Result<()> {
        let operation = operation_of(entry)?;
        let object = object_of(entry)?;
        match operation {
            "n" => return Ok(()),
            "c" if is_apply_ops(object) => {
                return self
                    .apply_transaction(entry, |writer, inner| writer.apply_one(inner, None, fit));
            }
            "c" if is_abort(object) => return Ok(()),
            "c" => return self.apply_command(entry, object, fit),
            _ => {}
        }
        let namespace = Namespace::parse(namespace_of(entry)?)?;
        let Some(mut collection) = self.meant_by(entry, &namespace, fit)? else {
            return self.misfit(fit, entry);
        };
        let change = match prepared.filter(|prepared| prepared.is_for(&collection)) {
            Some(prepared) => prepared.change,
            None => prepare_entry(&collection, self.view(), entry)?,
        };
        match change {
            Change::Replace { record, old, new, keys } => {
                check_document(&new)?;
                let told_as = ToldAs::default();
                let telling = (&told_as).into();
                self.replace_with_keys(&mut collection, record, (&old, new), keys, telling)
            }
            Change::Remove { record, old, keys } => {
                self.remove_with_keys(&collection, record, &old, keys)
            }
            Change::Missing if operation == "d" => Ok(()),
            Change::Missing if is_raw_delta(object) => self.misfit(fit, entry),
            Change::Missing | Change::Insert { .. } => self.put(&mut collection, object.to_owned()),
        }
    }

    fn apply_command(&mut self, entry: &RawDocument, object: &RawDocument, fit: Fit) -> Result<()> {
        let database = namespace_of(entry)?.strip_suffix(".$cmd").ok_or_else(|| damaged("ns"))?;
        let command = Document::try_from(object).map_err(|_| damaged("o"))?;
        let (name, target) = command.iter().next().ok_or_else(|| damaged("o"))?;
        if name == "dropDatabase" {
            // The entries before it have dropped the collections.
            return Ok(());
        }
        let target = target.as_str().ok_or_else(|| damaged("o"))?;
        let namespace = match name.as_str() {
            "renameCollection" => Namespace::parse(target)?,
            _ => Namespace::new(database, target)?,
        };
        let mut rest = command.clone();
        rest.remove(name);
        if name == "create" {
            let found = self.collection(&namespace);
            return self.apply_create(entry, &namespace, found, rest, fit);
        }
        let Some(mut collection) = self.meant_by_command(entry, &namespace, &command, fit)? else {
            if fit == Fit::Relaxed && name == "renameCollection" {
                self.rename_uncopied(&uuid_of(entry)?, &command)?;
            }
            return self.misfit(fit, entry);
        };
        match name.as_str() {
            "drop" => self.drop_collection(&collection),
            "renameCollection" => {
                let to = command.get_str("to").map_err(|_| damaged("o.to"))?;
                let to = Namespace::parse(to)?;
                let replaced = self.collection(&to).map(|there| there.uuid.clone());
                match fit {
                    Fit::Relaxed => self.rename_copied(&collection, &to, &command),
                    // Only what the entry names may give way.
                    Fit::Exact if replaced != replaced_by(&command) => self.misfit(fit, entry),
                    Fit::Exact => self.rename_collection(&collection, &to),
                }
            }
            "collMod" => {
                let altered = altered(&collection, &rest)?;
                self.alter_deferred_indexes(&collection, &rest);
                self.alter_collection(altered, Some(command)).map(drop)
            }
            "createIndexes" => {
                let spec = rest;
                let index = spec.get_str("name").map_err(|_| damaged("o.name"))?;
                if collection.index(index).is_some() || self.builds_no_indexes() {
                    return Ok(());
                }
                if fit == Fit::Relaxed && self.defer_index(&collection, &spec) {
                    return Ok(());
                }
                self.build_index(&mut collection, spec, || Ok(()))
            }
            "dropIndexes" => {
                let index = command.get_str("index").map_err(|_| damaged("o.index"))?;
                self.forget_deferred_index(&collection, index);
                self.drop_index(&mut collection, index)
            }
            _ => Err(damaged("o")),
        }
    }

    /// Whether this member was configured with `buildIndexes: false`.
    pub(super) fn builds_no_indexes(&self) -> bool {
        let published = self.node().replication().and_then(Replication::published);
        published.is_some_and(|published| published.hello.builds_no_indexes)
    }

    fn apply_create(
        &mut self,
        entry: &RawDocument,
        namespace: &Namespace,
        found: Option<Arc<Collection>>,
        mut options: Document,
        fit: Fit,
    ) -> Result<()> {
        options.remove("idIndex");
        let uuid = uuid_of(entry)?;
        match found {
            Some(collection) if collection.uuid == uuid => return Ok(()),
            // Over a copy the name may have passed on to a later collection, which is here whole.
            Some(_) => return self.misfit(fit, entry),
            None => {}
        }
        if fit == Fit::Relaxed {
            if let Some(aside) = self.moved_aside(&uuid) {
                return self.without_logging(|writer| writer.rename_collection(&aside, namespace));
            }
            // It is here under the name that it gets later.
            if self.catalog().collections().any(|known| known.uuid == uuid) {
                return Ok(());
            }
        }
        self.create_with_uuid(namespace, options, uuid).map(drop)
    }

    /// The record and the document with the same `_id`.
    pub(super) fn find_by_id(
        &self,
        collection: &Collection,
        document: &RawDocument,
    ) -> Result<Option<(RecordId, DocumentBytes)>> {
        self.view().by_id(collection, document)
    }

    /// The entry has changed nothing; its place in the log is kept all the same.
    fn log_unapplied(&mut self) -> Result<()> {
        if !self.has_replayed() {
            return Ok(());
        }
        self.log_noop("")
    }

    fn misfit(&self, fit: Fit, entry: &RawDocument) -> Result<()> {
        match fit {
            Fit::Relaxed => Ok(()),
            Fit::Exact => Err(fail!(
                INTERNAL_ERROR,
                "the oplog entry {entry:?} does not fit the data; resync this member"
            )),
        }
    }
}

/// The documents and sessions that changes concern.
#[derive(Default)]
struct Touched {
    /// Whether documents are noted. New ones need not see each other, so nothing is noted if all entries are inserts.
    notes_documents: bool,
    /// Documents of deferred changes: a change that touches one of them again must see it.
    deferred: BTreeSet<Vec<u8>>,
    /// Documents of changes that are committed: what was prepared before does not hold for them.
    committed: BTreeSet<Vec<u8>>,
    /// Whether documents were changed that are not noted: what was prepared before holds for none.
    changed_unnoted: bool,
    /// Sessions whose rows are deferred: the next entry of one must see its row.
    sessions: BTreeSet<SessionId>,
    /// The session and number of the newest retryable write, whose row the writer still knows.
    last_write: Option<(SessionId, i64)>,
    /// The collection of the last entry and its name. It may change in what does not matter here; what
    /// matters changes by a command only.
    collection: Option<(String, Arc<Collection>)>,
    /// Room for a key.
    key: Vec<u8>,
    /// Whether the last entry may touch more than is noted: it must be committed before the next one.
    alone: bool,
}

/// What a change touches.
struct Place {
    /// Its document, as a key of the index of `_id`.
    document: Vec<u8>,
    /// Whether its collection has a unique key besides `_id`. Such a key may pass from one document to another: the
    /// second must see the first.
    shares_keys: bool,
}

impl Touched {
    /// What was deferred is committed.
    fn settle(&mut self) {
        self.committed.append(&mut self.deferred);
        self.sessions.clear();
        self.last_write = None;
        self.alone = false;
    }

    /// Notes what an entry touches; false if it must not be deferred together with the others.
    fn admit(&mut self, writer: &Writer<'_>, next: &mut ToApply) -> Result<bool> {
        let entry = &next.entry;
        match entry.operation {
            LoggedOperation::Noop => return Ok(true),
            LoggedOperation::Insert if !self.notes_documents => {
                return Ok(!entry.has_session || self.admit_write_of_session(entry)?);
            }
            LoggedOperation::Insert | LoggedOperation::Update | LoggedOperation::Delete => {}
            LoggedOperation::Command | LoggedOperation::Unknown => {
                return self.admit_command(writer, entry);
            }
        }
        if self.changed_unnoted {
            next.prepared = None;
        }
        let Some(place) = self.place_of(writer, entry)? else {
            self.changed_unnoted = true;
            return Ok(self.deferred.is_empty());
        };
        if self.committed.contains(&place.document) {
            next.prepared = None;
        }
        let fits = self.has_room_for(&[&place]) && self.admit_write_of_session(entry)?;
        self.deferred.insert(place.document);
        Ok(fits)
    }

    /// Notes what a transaction touches that is one entry and changes documents only. Every other command is
    /// applied alone, and what a transaction among them changes is not noted.
    fn admit_command(&mut self, writer: &Writer<'_>, entry: &RawDocument) -> Result<bool> {
        let object = object_of(entry)?;
        let mut places = Vec::new();
        let is_whole = is_apply_ops(object) && !is_partial(object) && previous_of(entry).is_none();
        if let (true, Ok(operations)) = (is_whole, object.get_array("applyOps")) {
            for operation in operations {
                let operation = operation.ok().and_then(|operation| operation.as_document());
                let changes_one = |change: &&RawDocument| document_of(change).is_some();
                match operation.filter(changes_one) {
                    Some(change) => places.push(self.place_of(writer, change)?),
                    None => places.push(None),
                }
            }
        }
        let known: Option<Vec<Place>> = places.into_iter().collect();
        let Some(places) = known.filter(|_| is_whole) else {
            self.collection = None;
            self.alone = true;
            // Its changes may stand in entries before the batch, or be of a collection that it creates. Other commands
            // change no document of a collection that stays the same.
            self.changed_unnoted |= is_apply_ops(object) && !is_partial(object);
            return Ok(self.deferred.is_empty() && self.sessions.is_empty());
        };
        let fits = self.has_room_for(&places.iter().collect::<Vec<_>>());
        self.deferred.extend(places.into_iter().map(|place| place.document));
        self.last_write = None;
        let Some((session, _)) = session_in(entry) else { return Ok(fits) };
        Ok(fits && self.sessions.insert(SessionId::from_entry(session)?))
    }

    /// Whether changes of these documents need not see anything that is deferred.
    fn has_room_for(&self, places: &[&Place]) -> bool {
        self.deferred.is_empty()
            || places
                .iter()
                .all(|place| !place.shares_keys && !self.deferred.contains(&place.document))
    }

    /// Notes the session of a retryable write; false if its row is deferred, unless the writer knows it.
    fn admit_write_of_session(&mut self, entry: &RawDocument) -> Result<bool> {
        let Some((session, number)) = session_in(entry) else { return Ok(true) };
        let write = (SessionId::from_entry(session)?, number);
        let fits = self.last_write == Some(write) || self.sessions.insert(write.0);
        if fits {
            self.last_write = Some(write);
        }
        Ok(fits)
    }

    /// What a change of one document touches; none if its collection is not known.
    fn place_of(&mut self, writer: &Writer<'_>, change: &RawDocument) -> Result<Option<Place>> {
        let document = document_of(change).ok_or_else(|| damaged("o"))?;
        let namespace = namespace_of(change)?;
        if self.collection.as_ref().is_none_or(|(known, _)| known != namespace) {
            let found = writer.collection(&Namespace::parse(namespace)?);
            self.collection = found.map(|found| (namespace.to_owned(), found));
        }
        let Some((_, collection)) = &self.collection else { return Ok(None) };
        let Some(index) = collection.id_index() else {
            return Ok(None);
        };
        let shares_keys = collection.indexes.iter().any(|index| index.unique && !index.is_id());
        first_key(document, &index.fields, &mut self.key)?;
        let document = [&index.ident.prefix()[..], &self.key].concat();
        Ok(Some(Place { document, shares_keys }))
    }
}

/// Entries on top of any other log would be a history that no member wrote. The log may be ahead of
/// `previous` only if it ends with one of these entries: then the first of them were applied before.
fn check_that_log_ends_at(
    previous: OpTime,
    last: OpTime,
    entries: &VecDeque<ToApply>,
) -> Result<()> {
    let is_among = || entries.iter().any(|next| next.entry.position.op_time == last);
    if last == previous || (last > previous && is_among()) {
        return Ok(());
    }
    Err(fail!(INTERNAL_ERROR, "the log ends at {last}, but entries that follow {previous} came"))
}

/// Reads entries. Their positions rise from one to the next, terms and timestamps each by themselves.
fn read_in_order(entries: &[RawDocumentBuf]) -> Result<Vec<ToApply>> {
    let mut before = OpTime::NULL;
    let mut read = Vec::with_capacity(entries.len());
    for entry in entries {
        let entry = LoggedEntry::read(entry)?;
        let at = entry.position.op_time;
        refuse_if!(at.timestamp <= before.timestamp || at.term < before.term => INTERNAL_ERROR,
            "the source sent the entry {at} after {before}; resync this member");
        before = at;
        read.push(ToApply::from(entry));
    }
    Ok(read)
}

/// The collection with the options and the index specifications of a `collMod` entry.
pub(super) fn altered(collection: &Collection, change: &Document) -> Result<Collection> {
    let options = change.get_document("options").map_err(|_| damaged("o.options"))?.clone();
    let namespace = collection.namespace.clone();
    let mut altered =
        Collection::new(namespace, collection.ident, collection.uuid.clone(), options)?;
    let specs = change.get_array("indexes").map_err(|_| damaged("o.indexes"))?;
    for index in &collection.indexes {
        let spec = specs.iter().filter_map(|spec| spec.as_document());
        let spec =
            spec.into_iter().find(|spec| spec.get_str("name").is_ok_and(|name| name == index.name));
        let mut changed = Index::from_spec(index.ident, spec.unwrap_or(&index.spec).clone())?;
        changed.multikey = index.multikey;
        altered.indexes.push(Arc::new(changed));
    }
    Ok(altered)
}
