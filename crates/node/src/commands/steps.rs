//! Writes that search for their documents, in steps: other writers get their turn meanwhile.
//!
//! Documents that a query names by whole keys are looked up under the write lock. For all others the
//! lock is let go while the statement looks for the next few documents in its snapshot, and taken
//! again to change them in one batch of the store, with its entries of the history. What another
//! writer changed in between is respected: each document is looked at again under the lock, and left
//! alone if it is gone or matches no longer. A statement for one document then goes on to the next
//! one, and looks through the collection again if none was left.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bson::RawDocument;
use quorate_query::matcher::Matcher;
use quorate_storage::key::RecordId;

use crate::catalog::Collection;
use crate::error::{CommandError, ErrorCode};
use crate::finder::Found;
use crate::plan::Plan;
use crate::select::{FoundStream, Selection, is_plain_id, look_up};
use crate::writer::Writer;

/// Documents that are changed under one hold of the write lock.
const STEP_DOCUMENTS: usize = 128;

/// Bytes of documents that are found before the lock is taken to change them; the last may exceed it.
const STEP_BYTES: usize = 4 << 20;

/// How often an upsert looks through the collection if others change it meanwhile, so that what it did
/// not find may be there. Then it inserts: two clients that insert the same need a unique index.
const MAX_UPSERT_SEARCHES: usize = 3;

/// How often a statement for one document looks through the collection if others were faster with
/// every document that it found. Each time another client's write was done.
const MAX_LOST_SEARCHES: usize = 100;

/// How many of the first documents in an order are found for a statement that changes the first one:
/// others may take some of them before the lock is held.
pub(super) const CANDIDATES: u64 = 16;

/// For how many documents a search is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    One,
    All,
}

/// The documents that one statement changes.
pub(super) struct Search<'q> {
    selection: Selection,
    /// The `_id` that is all the statement asks for.
    id: Option<&'q RawDocument>,
    /// How it is looked for the first time otherwise.
    plan: Option<Plan>,
    stream: Option<FoundStream>,
    /// Found and not looked at again yet.
    group: VecDeque<Found>,
    wanted: Wanted,
    /// Whether a document is inserted if none is found.
    upserts: bool,
    /// The number of the statement within its command.
    statement: usize,
    /// Whether the query names a few documents by whole keys.
    by_key: bool,
    /// Whether it names any number of them so.
    by_keys: bool,
    /// Whether the document with the `_id` was looked up.
    is_looked_up: bool,
    /// The documents that were named and are changed.
    changed: BTreeSet<RecordId>,
    searches: usize,
    /// How often the collection had been changed when the search began.
    changes: u64,
    /// Whether any document was found and is to be changed.
    found: bool,
    /// Whether a document that was found is left alone.
    lost: bool,
}

impl<'q> Search<'q> {
    /// Looks for what a selection of the writer's view selects. `query` is its filter, as the client sent it.
    pub(super) fn new(
        writer: &Writer<'_>,
        selection: Selection,
        query: Option<&'q RawDocument>,
        statement: usize,
        wanted: Wanted,
        upserts: bool,
    ) -> Result<Self, CommandError> {
        let is_looked_up = selection.hint.is_none() && selection.collection.id_index().is_some();
        let id = query.filter(|query| is_looked_up && is_plain_id(query));
        let plan = id.is_none().then(|| selection.plan()).transpose()?;
        let by_key = plan.as_ref().is_none_or(Plan::is_point);
        let by_keys = plan.as_ref().is_none_or(Plan::has_points);
        let changes = writer.changes_of(selection.collection.ident);
        Ok(Self {
            selection,
            id,
            plan,
            stream: None,
            group: VecDeque::new(),
            wanted,
            upserts,
            statement,
            by_key,
            by_keys,
            is_looked_up: false,
            changed: BTreeSet::new(),
            searches: 1,
            changes,
            found: false,
            lost: false,
        })
    }

    /// Finds the next documents in the snapshot.
    fn fill(&mut self) -> Result<(), CommandError> {
        if let Some(id) = self.id {
            self.group.extend(match self.is_looked_up {
                true => None,
                false => {
                    let Selection { collection, view, interrupt, .. } = &self.selection;
                    look_up(collection, view, id, interrupt)?
                }
            });
            self.is_looked_up = true;
            return Ok(());
        }
        let stream = match &mut self.stream {
            Some(stream) => stream,
            empty => {
                let selection = self.selection.clone();
                empty.insert(match self.plan.take() {
                    Some(plan) => selection.run_plan(plan)?,
                    None => selection.run()?,
                })
            }
        };
        let most = match self.wanted {
            Wanted::One => 1,
            Wanted::All => STEP_DOCUMENTS,
        };
        let mut bytes = 0;
        while self.group.len() < most && bytes < STEP_BYTES {
            let Some(found) = stream.next().transpose()? else { break };
            bytes += found.document.as_bytes().len();
            self.group.push_back(found);
        }
        Ok(())
    }

    /// Begins at the front again if the collection was changed to the statement's harm meanwhile.
    fn begins_again(
        &mut self,
        writer: &Writer<'_>,
        collection: &Arc<Collection>,
    ) -> Result<bool, CommandError> {
        let changes = writer.changes_of(collection.ident);
        // A document that is named may have been removed and inserted again while the statement waited for a
        // transaction. What was changed before is passed over then.
        let lost = self.lost && (self.wanted == Wanted::One || self.by_keys);
        let unsure = self.upserts
            && !self.found
            && !self.by_key
            && changes != self.changes
            && self.searches < MAX_UPSERT_SEARCHES;
        if !(lost || unsure) {
            return Ok(false);
        }
        if self.searches >= MAX_LOST_SEARCHES {
            return Err(CommandError::new(
                ErrorCode::WRITE_CONFLICT,
                format!(
                    "other clients changed what was found {MAX_LOST_SEARCHES} times before it \
                     could be changed; try again, or add an index for the query"
                ),
            ));
        }
        self.selection.collection = Arc::clone(collection);
        self.selection.view = writer.view().clone();
        (self.stream, self.changes, self.lost) = (None, changes, false);
        self.is_looked_up = false;
        self.searches += 1;
        Ok(true)
    }
}

/// How far a statement has come.
pub(super) struct Steps {
    /// Whether documents were found under this or an earlier hold of the lock.
    began: bool,
    gave_way: bool,
}

impl Steps {
    /// Begins a statement; one for many documents commits them together. [`end`](Self::end) it,
    /// whatever comes of it.
    pub(super) fn begin(writer: &mut Writer<'_>, collection: &Collection, wanted: Wanted) -> Self {
        if wanted == Wanted::All && commits_together(collection) {
            writer.defer();
        }
        Self { began: false, gave_way: false }
    }

    /// Changes what the search finds. Ends early if a repetition of the command has done so meanwhile:
    /// then the writer has an earlier result.
    pub(super) fn each(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        mut search: Search<'_>,
        mut change: impl FnMut(
            &mut Writer<'_>,
            &mut Arc<Collection>,
            &Found,
        ) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        while let Some(found) = self.next(writer, collection, &mut search)? {
            let record = found.record;
            let changed = self.change(writer, collection, &search, found, &mut change)?;
            if changed && search.wanted == Wanted::One {
                return Ok(());
            }
            if changed && search.by_keys {
                search.changed.insert(record);
            }
            search.found |= changed;
            search.lost |= !changed;
        }
        Ok(())
    }

    /// The next document as it is now. None if there is no other, or a repetition of the command has
    /// done the statement's work meanwhile.
    pub(super) fn next(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        search: &mut Search<'_>,
    ) -> Result<Option<Found>, CommandError> {
        loop {
            if search.group.is_empty() {
                self.find(writer, collection, search)?;
            }
            if self.gave_way && writer.earlier_result(search.statement).is_some() {
                return Ok(None);
            }
            let Some(found) = search.group.pop_front() else {
                if search.begins_again(writer, collection)? {
                    continue;
                }
                return Ok(None);
            };
            if search.changed.contains(&found.record) {
                continue;
            }
            let matcher = Arc::clone(&search.selection.matcher);
            match self.look_again(writer, collection, &matcher, found)? {
                Some(found) => return Ok(Some(found)),
                None => search.lost = true,
            }
        }
    }

    /// Finds the next documents, and lets other writers go first where that takes long.
    fn find(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        search: &mut Search<'_>,
    ) -> Result<(), CommandError> {
        if search.by_key {
            if self.began {
                writer.give_way()?;
                self.come_back(writer, collection)?;
            }
            self.began = true;
            return search.fill();
        }
        writer.aside(|| search.fill())?;
        self.come_back(writer, collection)
    }

    /// The lock was free for a while.
    fn come_back(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
    ) -> Result<(), CommandError> {
        self.gave_way = true;
        *collection = current(writer, collection)?;
        if !commits_together(collection) {
            writer.settle()?;
        }
        Ok(())
    }

    /// The document as it is now, if it still is to be changed.
    fn look_again(
        &self,
        writer: &Writer<'_>,
        collection: &Collection,
        matcher: &Matcher,
        found: Found,
    ) -> Result<Option<Found>, CommandError> {
        if !self.gave_way {
            return Ok(Some(found));
        }
        let Some(document) = writer.view().record(collection, found.record)? else {
            return Ok(None);
        };
        if document.as_bytes() == found.document.as_bytes() {
            return Ok(Some(found));
        }
        let details = matcher.matches_with_details(&*document)?;
        Ok(details.map(|details| Found { record: found.record, document, details }))
    }

    /// Changes a document. If a transaction holds a key of it, waits until that transaction ends and
    /// looks at the document again; it is left alone if it is gone or matches no longer, or if a
    /// repetition of the command was faster. Returns whether it was changed.
    fn change(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        search: &Search<'_>,
        found: Found,
        change: &mut impl FnMut(
            &mut Writer<'_>,
            &mut Arc<Collection>,
            &Found,
        ) -> Result<(), CommandError>,
    ) -> Result<bool, CommandError> {
        let mut found = found;
        loop {
            let error = match change(writer, collection, &found) {
                Ok(()) => return Ok(true),
                Err(error) => error,
            };
            if !writer.wait_if_blocked()? {
                return Err(error);
            }
            self.come_back(writer, collection)?;
            if writer.earlier_result(search.statement).is_some() {
                return Ok(false);
            }
            match self.look_again(writer, collection, &search.selection.matcher, found)? {
                Some(again) => found = again,
                None => return Ok(false),
            }
        }
    }

    /// Ends a statement: what it changed is committed, even if it failed on the way.
    pub(super) fn end<T>(
        writer: &mut Writer<'_>,
        result: Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let settled = writer.settle();
        result.and_then(|value| settled.map(|()| value))
    }
}

/// Whether documents of one batch cannot be in each other's way: whether a key is taken is looked up
/// in what is committed.
fn commits_together(collection: &Collection) -> bool {
    collection.indexes.iter().all(|index| !index.unique || index.is_id())
}

fn current(writer: &Writer<'_>, collection: &Collection) -> Result<Arc<Collection>, CommandError> {
    let found = writer.collection(&collection.namespace);
    found.filter(|found| found.uuid == collection.uuid).ok_or_else(|| {
        CommandError::new(
            ErrorCode::QUERY_PLAN_KILLED,
            format!(
                "collection dropped or renamed while it was written to: '{}'",
                collection.namespace
            ),
        )
    })
}
