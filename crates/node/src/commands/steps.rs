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

use bson::{Bson, Document, RawDocument};
use quorate_query::matcher::{MatchDetails, Matcher};
use quorate_storage::key::RecordId;

use super::common::LazyCompiler;
use crate::body::CommandBody;
use crate::catalog::Collection;
use crate::error::Result;
use crate::fields::Fields;
use crate::finder::{Found, InterruptSlot};
use crate::plan::Plan;
use crate::records::View;
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

/// How often a change of a document is evaluated without the lock if others change the document meanwhile. Then it is
/// evaluated under the lock.
pub(super) const MAX_LOST_EVALUATIONS: usize = 3;

/// How many of the first documents in an order are found for a statement that changes the first one:
/// others may take some of them before the lock is held.
const CANDIDATES: u64 = 16;

/// For how many documents a search is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    One,
    All,
}

/// What a statement asks for.
pub(super) enum Query<'q> {
    /// The document with this `_id`. It is looked up without a plan, and nothing is compiled for it.
    Id(&'q RawDocument),
    /// The documents that match.
    Matcher(Arc<Matcher>),
}

impl<'q> Query<'q> {
    /// Reads the query of a statement from the field of this name; none if there is no such field.
    pub(super) fn read(
        (statement, body): (&Fields<'_>, &'q CommandBody),
        name: &str,
        compiler: &LazyCompiler<'_>,
    ) -> Result<Option<Self>> {
        let id = body.get_raw_document(name).filter(|query| is_plain_id(query));
        let is_alone =
            !compiler.has_variables() && !statement.has("hint") && !statement.has("sort");
        if let Some(id) = id.filter(|_| is_alone) {
            return Ok(Some(Self::Id(id)));
        }
        let Some(query) = statement.document(name)? else { return Ok(None) };
        Ok(Some(Self::Matcher(Arc::new(Matcher::parse_with(query, compiler.get()?)?))))
    }

    /// What tells whether a document matches.
    pub(super) fn matcher(&self) -> Result<Arc<Matcher>> {
        match self {
            Self::Id(id) => Ok(Arc::new(Matcher::parse(&Document::try_from(*id)?)?)),
            Self::Matcher(matcher) => Ok(Arc::clone(matcher)),
        }
    }
}

/// What a search is for.
pub(super) struct Asked<'q> {
    pub(super) query: &'q Query<'q>,
    pub(super) hint: Option<&'q Bson>,
    /// The order in which the first document is wanted.
    pub(super) sort: Option<&'q Document>,
    pub(super) wanted: Wanted,
    /// Whether a document is inserted if none is found.
    pub(super) upserts: bool,
    /// The number of the statement within its command.
    pub(super) statement: usize,
}

/// Where a search finds its documents.
enum Source<'q> {
    /// Under an `_id`. The view and the collection are the writer's.
    Id { id: &'q RawDocument, is_looked_up: bool },
    /// In the snapshot of a selection.
    Selection {
        selection: Box<Selection>,
        /// How it is looked for the first time.
        plan: Option<Plan>,
        stream: Option<FoundStream>,
    },
}

/// The documents that one statement changes.
pub(super) struct Search<'q> {
    source: Source<'q>,
    interrupt: InterruptSlot,
    /// Found and not looked at again yet.
    group: VecDeque<Found>,
    wanted: Wanted,
    upserts: bool,
    statement: usize,
    /// Whether the query names a few documents by whole keys.
    by_key: bool,
    /// Whether it names any number of them so.
    by_keys: bool,
    /// Whether it takes long to tell if these match.
    is_long: bool,
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
    /// Looks in the writer's view for what is asked.
    pub(super) fn new(
        writer: &Writer<'_>,
        collection: &Arc<Collection>,
        asked: &Asked<'q>,
        interrupt: InterruptSlot,
    ) -> Result<Self> {
        let (source, by_key, by_keys) = match asked.query {
            Query::Id(id) if collection.id_index().is_some() => {
                (Source::Id { id, is_looked_up: false }, true, true)
            }
            query => {
                let (view, matcher) = (writer.view().clone(), query.matcher()?);
                let selection = Box::new(Selection {
                    hint: asked.hint.cloned(),
                    limit: asked.sort.is_some().then_some(CANDIDATES),
                    sort: asked.sort.cloned(),
                    ..Selection::new(Arc::clone(collection), view, matcher, interrupt.clone())
                });
                let plan = selection.plan()?;
                let (by_key, by_keys) = (plan.is_point(), plan.has_points());
                let plan = Some(plan);
                (Source::Selection { selection, plan, stream: None }, by_key, by_keys)
            }
        };
        Ok(Self {
            source,
            interrupt,
            group: VecDeque::new(),
            wanted: asked.wanted,
            upserts: asked.upserts,
            statement: asked.statement,
            by_key,
            by_keys,
            is_long: false,
            changed: BTreeSet::new(),
            searches: 1,
            changes: writer.changes_of(collection.ident),
            found: false,
            lost: false,
        })
    }

    /// Looks the document up that is asked for by its `_id`. False if something else is asked for.
    fn look_up(&mut self, collection: &Collection, present: &View) -> Result<bool> {
        let Source::Id { id, is_looked_up } = &mut self.source else { return Ok(false) };
        if !std::mem::replace(is_looked_up, true) {
            self.group.extend(look_up(collection, present, id, &self.interrupt)?);
        }
        Ok(true)
    }

    /// Finds the next documents in the snapshot.
    fn fill(&mut self) -> Result<()> {
        let Source::Selection { selection, plan, stream } = &mut self.source else {
            return Ok(());
        };
        let stream = match stream {
            Some(stream) => stream,
            empty => {
                let selection = Selection::clone(selection);
                empty.insert(match plan.take() {
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

    /// Whether a document still is one that the statement asks for. A record keeps its `_id`.
    fn matches(&self, document: &RawDocument) -> Result<Option<MatchDetails>> {
        match &self.source {
            Source::Id { .. } => Ok(Some(MatchDetails::default())),
            Source::Selection { selection, .. } => {
                Ok(selection.matcher.matches_with_details(document)?)
            }
        }
    }

    /// What it did not find shortly under the lock it looks for without the lock, from the beginning.
    fn begin_aside(&mut self) {
        self.is_long = true;
        self.group.clear();
        if let Source::Selection { stream, .. } = &mut self.source {
            *stream = None;
        }
    }

    /// A document that was found is left alone: another one may match.
    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    /// Begins at the front again if the collection was changed to the statement's harm meanwhile.
    fn begins_again(&mut self, writer: &Writer<'_>, collection: &Arc<Collection>) -> Result<bool> {
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
        refuse_if!(self.searches >= MAX_LOST_SEARCHES => WRITE_CONFLICT,
            "other clients changed what was found {MAX_LOST_SEARCHES} times before it \
             could be changed; try again, or add an index for the query");
        match &mut self.source {
            Source::Id { is_looked_up, .. } => *is_looked_up = false,
            Source::Selection { selection, stream, .. } => {
                selection.collection = Arc::clone(collection);
                selection.view = writer.view().clone();
                *stream = None;
            }
        }
        (self.changes, self.lost) = (changes, false);
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

    /// Changes what the search finds: evaluates what becomes of a document, and carries it out. Ends early if a
    /// repetition of the command has done so meanwhile: then the writer has an earlier result.
    pub(super) fn each<T>(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        mut search: Search<'_>,
        evaluate: impl Fn(&Found) -> Result<T>,
        mut change: impl FnMut(&mut Writer<'_>, &mut Arc<Collection>, &Found, T) -> Result<()>,
    ) -> Result<()> {
        while let Some(found) = self.next(writer, collection, &mut search)? {
            let record = found.record;
            let how = (&evaluate, &mut change);
            let changed = self.change(writer, collection, &search, found, how)?;
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
    ) -> Result<Option<Found>> {
        loop {
            if search.group.is_empty() {
                self.find(writer, collection, search)?;
            } else if writer.has_evaluated_for_long() {
                writer.give_way()?;
                self.come_back(writer, collection)?;
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
            match self.look_again(writer, collection, search, found)? {
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
    ) -> Result<()> {
        if search.by_key && !search.is_long {
            if self.began {
                writer.give_way()?;
                self.come_back(writer, collection)?;
            }
            self.began = true;
            if search.look_up(collection, writer.view())? {
                return Ok(());
            }
            if writer.shortly(|| search.fill())?.is_some() {
                return Ok(());
            }
            search.begin_aside();
        }
        writer.aside(|| search.fill())?;
        self.come_back(writer, collection)
    }

    /// The lock was free for a while.
    fn come_back(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
    ) -> Result<()> {
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
        search: &Search<'_>,
        found: Found,
    ) -> Result<Option<Found>> {
        if !self.gave_way {
            return Ok(Some(found));
        }
        let Some(document) = writer.view().record(collection, found.record)? else {
            return Ok(None);
        };
        if document.as_bytes() == found.document.as_bytes() {
            return Ok(Some(found));
        }
        let details = search.matches(&document)?;
        Ok(details.map(|details| Found { record: found.record, document, details }))
    }

    /// Evaluates what becomes of a document. Others may write meanwhile if that takes long; none if the document is not
    /// to be changed any more.
    pub(super) fn evaluate<T>(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        search: &Search<'_>,
        mut found: Found,
        evaluate: &impl Fn(&Found) -> Result<T>,
    ) -> Result<Option<(Found, T)>> {
        for _ in 0..MAX_LOST_EVALUATIONS {
            let (value, lock_was_free) = writer.evaluate(|| evaluate(&found))?;
            if !lock_was_free {
                return Ok(Some((found, value)));
            }
            self.come_back(writer, collection)?;
            if writer.earlier_result(search.statement).is_some() {
                return Ok(None);
            }
            let evaluated = found.document.clone();
            match self.look_again(writer, collection, search, found)? {
                Some(again) if again.document.as_bytes() == evaluated.as_bytes() => {
                    return Ok(Some((again, value)));
                }
                Some(again) => found = again,
                None => return Ok(None),
            }
        }
        let value = evaluate(&found)?;
        Ok(Some((found, value)))
    }

    /// Changes a document. If a transaction holds a key of it, waits until that transaction ends and
    /// looks at the document again; it is left alone if it is gone or matches no longer, or if a
    /// repetition of the command was faster. Returns whether it was changed.
    fn change<T>(
        &mut self,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        search: &Search<'_>,
        mut found: Found,
        (evaluate, change): (
            &impl Fn(&Found) -> Result<T>,
            &mut impl FnMut(&mut Writer<'_>, &mut Arc<Collection>, &Found, T) -> Result<()>,
        ),
    ) -> Result<bool> {
        loop {
            let evaluated = self.evaluate(writer, collection, search, found, evaluate)?;
            let Some((same, value)) = evaluated else { return Ok(false) };
            let error = match change(writer, collection, &same, value) {
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
            match self.look_again(writer, collection, search, same)? {
                Some(again) => found = again,
                None => return Ok(false),
            }
        }
    }

    /// Ends a statement: what it changed is committed, even if it failed on the way.
    pub(super) fn end<T>(writer: &mut Writer<'_>, result: Result<T>) -> Result<T> {
        let settled = writer.settle();
        result.and_then(|value| settled.map(|()| value))
    }
}

/// Whether documents of one batch cannot be in each other's way: whether a key is taken is looked up
/// in what is committed.
fn commits_together(collection: &Collection) -> bool {
    collection.indexes.iter().all(|index| !index.unique || index.is_id())
}

fn current(writer: &Writer<'_>, collection: &Collection) -> Result<Arc<Collection>> {
    let found = writer.collection(&collection.namespace);
    found.filter(|found| found.uuid == collection.uuid).ok_or_else(|| {
        fail!(
            QUERY_PLAN_KILLED,
            "collection dropped or renamed while it was written to: '{}'",
            collection.namespace
        )
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use bson::{doc, rawdoc};
    use quorate_storage::ModelStore;

    use super::*;
    use crate::context::Interrupt;
    use crate::namespace::Namespace;
    use crate::node::{Node, NodeOptions};
    use crate::test_support::{now, run};

    /// Changes the documents 0 to 3, in order. Returns what the statement's parts have told.
    fn change_each<T>(
        node: &Node,
        query: &Query<'_>,
        wanted: Wanted,
        evaluate: impl Fn(&Interrupt, &Found) -> Result<T>,
        mut change: impl FnMut(&Writer<'_>, &Found, T),
    ) {
        let interrupt = Arc::new(Interrupt::default());
        let mut writer = node.write(now());
        writer.work_for(&interrupt);
        let mut collection = writer.collection(&Namespace::new("db", "c").unwrap()).unwrap();
        let asked = Asked { query, hint: None, sort: None, wanted, upserts: false, statement: 0 };
        let slot = InterruptSlot::new(Arc::clone(&interrupt));
        let search = Search::new(&writer, &collection, &asked, slot).unwrap();
        let mut steps = Steps::begin(&mut writer, &collection, wanted);
        let result = steps.each(
            &mut writer,
            &mut collection,
            search,
            |found| evaluate(&interrupt, found),
            |writer, _, found, value| {
                change(writer, found, value);
                Ok(())
            },
        );
        Steps::end(&mut writer, result).unwrap();
    }

    fn ask(interrupt: &Interrupt, times: usize) -> Result<()> {
        (0..times).try_for_each(|_| interrupt.check_held_evaluation())
    }

    fn node() -> Node {
        let node = Node::open(Arc::new(ModelStore::new()), NodeOptions::default(), now()).unwrap();
        let documents: Vec<_> = (0..4).map(|id| doc! { "_id": id, "n": 0 }).collect();
        run(&node, doc! { "insert": "c", "documents": documents });
        node
    }

    /// What is evaluated for long is evaluated while others write, and again if they changed the document.
    #[test]
    fn others_write_while_a_change_is_evaluated_for_long() {
        let node = node();
        let id = rawdoc! { "_id": 2 };
        let evaluations = Cell::new(0);
        let mut changed = Vec::new();
        let evaluate = |interrupt: &Interrupt, found: &Found| {
            ask(interrupt, 5_000)?;
            assert!(!interrupt.is_holding(), "others wait");
            evaluations.set(evaluations.get() + 1);
            if evaluations.get() == 1 {
                let increase = doc! { "q": { "_id": 2 }, "u": { "$inc": { "n": 1 } } };
                let reply = run(&node, doc! { "update": "c", "updates": [increase] });
                assert_eq!(reply.get_i32("nModified").unwrap(), 1);
            }
            Ok(found.document.get_i32("n").unwrap())
        };
        change_each(&node, &Query::Id(&id), Wanted::One, evaluate, |_, found, n| {
            changed.push((found.document.get_i32("n").unwrap(), n));
        });
        assert_eq!((evaluations.get(), changed), (2, vec![(1, 1)]));
    }

    /// A document that others change each time is changed in the end.
    #[test]
    fn a_change_that_others_are_faster_than_is_evaluated_under_the_lock() {
        let node = node();
        let id = rawdoc! { "_id": 2 };
        let aside = Cell::new(0);
        let mut changed = 0;
        let evaluate = |interrupt: &Interrupt, _: &Found| {
            ask(interrupt, 5_000)?;
            if !interrupt.is_holding() {
                aside.set(aside.get() + 1);
                let increase = doc! { "q": { "_id": 2 }, "u": { "$inc": { "n": 1 } } };
                run(&node, doc! { "update": "c", "updates": [increase] });
            }
            Ok(())
        };
        change_each(&node, &Query::Id(&id), Wanted::One, evaluate, |_, _, ()| changed += 1);
        assert_eq!((aside.get(), changed), (MAX_LOST_EVALUATIONS, 1));
    }

    #[test]
    fn other_writers_get_their_turn_between_documents_that_take_a_while() {
        let node = node();
        let all = Query::Matcher(Arc::new(Matcher::parse(&doc! {}).unwrap()));
        let long = RefCell::new(Vec::new());
        let evaluate = |interrupt: &Interrupt, _: &Found| ask(interrupt, 600);
        change_each(&node, &all, Wanted::All, evaluate, |writer, _, ()| {
            long.borrow_mut().push(writer.has_evaluated_for_long());
        });
        assert_eq!(long.into_inner(), [false, true, false, true]);
    }
}
