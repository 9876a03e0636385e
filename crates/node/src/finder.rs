//! Walking a plan: documents out of a snapshot, checked against the query.
//!
//! Owns the scan over records or index ranges. Sorting, projecting and batching come after it.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bson::RawDocument;
use quorate_query::QueryError;
use quorate_query::matcher::{MatchDetails, Matcher};
use quorate_storage::key::RecordId;
use quorate_storage::{Direction, Scan};

use quorate_protocol::Lock;

use crate::catalog::{Collection, Index};
use crate::context::Interrupt;
use crate::error::Result;
use crate::helpers::Helpers;
use crate::plan::{Access, IndexAccess, IndexKeys, Plan};
use crate::record_scan::{Examiner, Pace, RecordScan, Records, record_of_key};
use crate::records::{DocumentBytes, LentDocument, View, record_of_entry};
use crate::sort::{Bar, Sortable};

/// Records that an index must name one after the other until they are read on instead of looked up.
const RUN_LENGTH: u32 = 4;

/// How far apart two records may lie and still count as one after the other: those in between are
/// read and thrown away, which must cost less than looking the wanted one up.
const MAX_GAP: u64 = 4;

/// How often the evaluation of expressions may ask whether to go on, on a thread that many clients share: every thousand
/// steps, so this is a fraction of a millisecond.
const SHORT_EVALUATION: u64 = 16;

/// The interrupt of the command that currently drives a scan, and what its scans have looked at. A
/// cursor outlives its commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterruptSlot(Arc<Slot>);

#[derive(Debug, Default)]
struct Slot {
    interrupt: Lock<Arc<Interrupt>>,
    keys: AtomicU64,
    documents: AtomicU64,
    /// How the documents were reached, the first time that was decided.
    way: OnceLock<Way>,
    /// How many documents may be examined; 0 without a limit.
    may_look_at: AtomicU64,
    /// How often the evaluation of expressions has asked whether to go on, of a command that can be run again aside.
    asked: Option<AtomicU64>,
    /// Whether that was not enough.
    gave_way: AtomicBool,
}

/// Adds to what was examined. One thread runs a command at a time: a plain load and store are several
/// times cheaper than an atomic addition, for every document.
fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// How documents are reached.
#[derive(Clone, Debug)]
enum Way {
    Collection,
    /// One document by its `_id`.
    Id,
    Index(Arc<Index>),
}

impl InterruptSlot {
    pub(crate) fn new(interrupt: Arc<Interrupt>) -> Self {
        Self::within(interrupt, None, false)
    }

    /// The same for a command that may look at so many documents, and then must give way to others. One that can be run
    /// again gives way to them as well if it evaluates expressions for long.
    pub(crate) fn within(
        interrupt: Arc<Interrupt>,
        may_look_at: Option<u64>,
        can_run_again: bool,
    ) -> Self {
        Self(Arc::new(Slot {
            interrupt: Lock::new(interrupt),
            keys: AtomicU64::new(0),
            documents: AtomicU64::new(0),
            way: OnceLock::new(),
            may_look_at: AtomicU64::new(may_look_at.unwrap_or(0)),
            asked: can_run_again.then(AtomicU64::default),
            gave_way: AtomicBool::new(false),
        }))
    }

    /// Whether the command ended because it must give way.
    pub(crate) fn has_given_way(&self) -> bool {
        self.0.gave_way.load(Ordering::Relaxed)
    }

    /// Refuses to look at more than the command may while it keeps others waiting. What comes of the
    /// command then is thrown away. Large documents are as bad as many.
    pub(crate) fn check_room(&self, heavy: bool) -> Result<()> {
        let limit = self.0.may_look_at.load(Ordering::Relaxed);
        let few = !heavy && self.0.documents.load(Ordering::Relaxed) <= limit;
        if few {
            return Ok(());
        }
        self.give_way()
    }

    /// Refuses to evaluate for longer than a command may while it keeps others waiting: a document is enough for that.
    fn check_evaluation(&self) -> Result<()> {
        let Some(asked) = &self.0.asked else { return Ok(()) };
        count(asked, 1);
        if asked.load(Ordering::Relaxed) <= SHORT_EVALUATION {
            return Ok(());
        }
        self.give_way()
    }

    /// Ends a command that keeps others waiting. It may go on if it does not.
    fn give_way(&self) -> Result<()> {
        if self.0.may_look_at.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.0.gave_way.store(true, Ordering::Relaxed);
        Err(fail!(INTERNAL_ERROR, "the command takes long and is run again aside"))
    }

    /// Hands the scans on to another command, which runs on a thread of its own.
    pub(crate) fn set(&self, interrupt: Arc<Interrupt>) {
        self.0.may_look_at.store(0, Ordering::Relaxed);
        *self.0.interrupt.lock() = interrupt;
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.0.interrupt.lock().check()
    }

    /// The threads that the host lends to the command.
    pub(crate) fn helpers(&self) -> Option<Arc<Helpers>> {
        self.0.interrupt.lock().helpers()
    }

    /// Counts documents that were examined. For the thread that runs the command.
    pub(crate) fn count_documents(&self, more: u64) {
        count(&self.0.documents, more);
    }

    fn note(&self, plan: &Plan) {
        self.0.way.get_or_init(|| match &plan.access {
            Access::Collection(_) | Access::After(_) => Way::Collection,
            Access::Index(access) if access.is_by_id() => Way::Id,
            Access::Index(access) => Way::Index(Arc::clone(&access.index)),
        });
    }

    /// Counts a document that was looked up by its `_id`.
    pub(crate) fn note_look_up(&self, found: bool) {
        self.0.way.get_or_init(|| Way::Id);
        count(&self.0.keys, u64::from(found));
        count(&self.0.documents, u64::from(found));
    }

    /// What has been examined since the last call.
    pub(crate) fn take_examined(&self) -> Examined {
        Examined {
            keys: self.0.keys.swap(0, Ordering::Relaxed),
            documents: self.0.documents.swap(0, Ordering::Relaxed),
        }
    }

    /// Counts what was examined on behalf of this command.
    pub(crate) fn absorb(&self, other: &Self) {
        let examined = other.take_examined();
        self.0.keys.fetch_add(examined.keys, Ordering::Relaxed);
        self.0.documents.fetch_add(examined.documents, Ordering::Relaxed);
        if let Some(way) = other.0.way.get() {
            self.0.way.get_or_init(|| way.clone());
        }
    }

    /// How documents were reached, for people.
    pub(crate) fn plan_summary(&self) -> Option<Cow<'static, str>> {
        Some(match self.0.way.get()? {
            Way::Collection => "COLLSCAN".into(),
            Way::Id => "IDHACK".into(),
            Way::Index(index) => format!("IXSCAN {}", index.key()).into(),
        })
    }
}

impl quorate_query::expression::Interrupt for InterruptSlot {
    fn check(&self) -> Result<(), QueryError> {
        let interrupt = self.0.interrupt.lock();
        interrupt.check()?;
        interrupt.check_held_evaluation()?;
        drop(interrupt);
        self.check_evaluation().map_err(Into::into)
    }

    fn leave(&self, remains: Box<dyn Any + Send>) {
        let interrupt = self.0.interrupt.lock();
        interrupt.leave(remains);
    }
}

/// A document that matches.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: RecordId,
    pub(crate) document: DocumentBytes,
    pub(crate) details: MatchDetails,
}

impl Sortable for Found {
    fn document(&self) -> &RawDocument {
        &self.document
    }

    fn numbers(&self) -> [u64; 2] {
        // A place in an array is one less than what is kept of it; nothing is none.
        let place = self.details.array_index.map_or(0, |place| place as u64 + 1);
        [self.record.0, place]
    }

    fn restore(document: DocumentBytes, [record, place]: [u64; 2]) -> Self {
        let array_index = place.checked_sub(1).map(|place| place as usize);
        Self { record: RecordId(record), document, details: MatchDetails { array_index } }
    }
}

/// How much a scan has examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Examined {
    pub(crate) keys: u64,
    pub(crate) documents: u64,
}

/// The documents of a plan that match a query, in the order of the plan.
pub(crate) struct Finder {
    source: Source,
    interrupt: InterruptSlot,
    pub(crate) examined: Examined,
}

enum Source {
    Records(Box<RecordScan<Matching>>),
    Index(Box<IndexSource>),
    Ended,
}

/// Finds the documents that match a query.
pub(crate) struct Matching {
    pub(crate) matcher: Arc<Matcher>,
    /// What documents must pass besides, if they are sorted and only the first are wanted.
    pub(crate) bar: Option<Arc<Bar>>,
}

impl From<Arc<Matcher>> for Matching {
    fn from(matcher: Arc<Matcher>) -> Self {
        Self { matcher, bar: None }
    }
}

impl Matching {
    fn matches(&self, document: &RawDocument) -> Result<Option<MatchDetails>> {
        let details = self.matcher.matches_with_details(document)?;
        match (&details, &self.bar) {
            (Some(_), Some(bar)) if !bar.may_pass(document)? => Ok(None),
            _ => Ok(details),
        }
    }
}

impl Examiner for Matching {
    type Item = Found;

    fn examine(&self, record: RecordId, document: LentDocument<'_>) -> Result<Option<Found>> {
        let details = self.matches(&document)?;
        Ok(details.map(|details| Found { record, document: document.keep(), details }))
    }
}

/// Records in the order of an index.
struct IndexSource {
    collection: Arc<Collection>,
    matching: Matching,
    access: IndexAccess,
    /// How many of the keys or ranges were begun.
    begun: usize,
    scan: Option<Scan>,
    /// Records met before, where arrays give a record several keys.
    seen: Option<BTreeSet<RecordId>>,
    records: RecordReader,
    keys: u64,
    pace: Pace,
}

impl Finder {
    pub(crate) fn new(
        view: View,
        collection: Arc<Collection>,
        matching: impl Into<Matching>,
        plan: Plan,
        interrupt: InterruptSlot,
    ) -> Result<Self> {
        interrupt.note(&plan);
        let matching = matching.into();
        let (after, direction) = match plan.access {
            Access::Collection(direction) => (None, direction),
            Access::After(record) => (Some(record), Direction::Forward),
            Access::Index(access) => {
                let source = Source::Index(Box::new(IndexSource {
                    collection,
                    matching,
                    begun: 0,
                    scan: None,
                    seen: access.index.multikey.then(BTreeSet::new),
                    records: RecordReader::new(view),
                    access,
                    keys: 0,
                    pace: Pace::default(),
                }));
                return Ok(Self { source, interrupt, examined: Examined::default() });
            }
        };
        let records = Records { view, collection: collection.ident, after, direction };
        let scan = RecordScan::new(records, matching, interrupt.clone())?;
        let source = Source::Records(Box::new(scan));
        Ok(Self { source, interrupt, examined: Examined::default() })
    }

    fn next_found(&mut self) -> Result<Option<Found>> {
        match &mut self.source {
            Source::Ended => Ok(None),
            Source::Records(scan) => {
                let found = scan.next();
                self.examined.documents = scan.examined();
                found
            }
            Source::Index(source) => {
                let before = source.keys;
                let found = source.next(&self.interrupt);
                count(&self.interrupt.0.keys, source.keys - before);
                self.examined = Examined { keys: source.keys, documents: source.pace.examined() };
                found
            }
        }
    }
}

impl Iterator for Finder {
    type Item = Result<Found>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.next_found().transpose();
        if !matches!(found, Some(Ok(_))) {
            self.source = Source::Ended;
        }
        found
    }
}

impl IndexSource {
    fn next(&mut self, interrupt: &InterruptSlot) -> Result<Option<Found>> {
        while let Some((record, document)) = self.next_record()? {
            let document = match document {
                Some(guessed) => Some(guessed),
                None => self.records.read(&self.collection, record)?,
            };
            let Some(document) = document else {
                refuse!(
                    INTERNAL_ERROR,
                    "index {} of {} names a missing record; run validate",
                    self.access.index.name,
                    self.collection.namespace
                );
            };
            self.pace.step(document.as_bytes().len(), interrupt)?;
            if let Some(details) = self.matching.matches(&document)? {
                return Ok(Some(Found { record, document, details }));
            }
        }
        Ok(None)
    }

    /// The record of the next entry, with its document if that was needed to find it.
    fn next_record(&mut self) -> Result<Option<(RecordId, Option<DocumentBytes>)>> {
        loop {
            let found = match &self.access.keys {
                IndexKeys::Points(entries) => {
                    let Some(entry) = entries.get(self.begun) else { return Ok(None) };
                    self.begun += 1;
                    let (view, index) = (&self.records.view, &self.access.index);
                    match self.access.is_by_id() {
                        true => view.by_id_entry(&self.collection, index, entry, None)?,
                        false => view.unique_entry(entry)?.map(|record| (record, None)),
                    }
                }
                IndexKeys::Ranges(ranges) => {
                    let Some(scan) = &mut self.scan else {
                        let Some(range) = ranges.get(self.begun) else { return Ok(None) };
                        self.begun += 1;
                        let (range, direction) = (range.clone(), self.access.direction);
                        self.scan = Some(self.records.view.scan_index(range, direction)?);
                        continue;
                    };
                    match scan.next().transpose()? {
                        Some((key, value)) => {
                            Some((record_of_entry(&self.access.index, &key, &value)?, None))
                        }
                        None => {
                            self.scan = None;
                            None
                        }
                    }
                }
            };
            let Some((record, document)) = found else { continue };
            self.keys += 1;
            if self.seen.as_mut().is_none_or(|seen| seen.insert(record)) {
                return Ok(Some((record, document)));
            }
        }
    }
}

/// Reads the records that an index names.
///
/// Documents that were inserted in the order of an index lie one after the other. Once a few in a
/// row did, the records are read on from there, which costs a fraction of looking each one up.
struct RecordReader {
    view: View,
    last: RecordId,
    /// How many records in a row lay close after the one before, in this direction.
    run: u32,
    direction: Direction,
    /// Stands behind the last record.
    scan: Option<Scan>,
}

impl RecordReader {
    fn new(view: View) -> Self {
        Self { view, last: RecordId(0), run: 0, direction: Direction::Forward, scan: None }
    }

    fn read(&mut self, collection: &Collection, record: RecordId) -> Result<Option<DocumentBytes>> {
        self.follow(record);
        if self.run >= RUN_LENGTH {
            if self.scan.is_none() {
                let from = self.view.scan_records_from(collection.ident, record, self.direction)?;
                self.scan = Some(from);
            }
            if let Some(document) = self.read_on(record)? {
                return Ok(Some(document));
            }
            self.run = 0;
        }
        self.scan = None;
        self.view.record(collection, record)
    }

    /// Counts how many records in a row lay close together.
    fn follow(&mut self, record: RecordId) {
        let direction = if record > self.last { Direction::Forward } else { Direction::Backward };
        let close = (1..=MAX_GAP).contains(&record.0.abs_diff(self.last.0));
        if close && direction == self.direction {
            self.run = self.run.saturating_add(1);
        } else {
            (self.run, self.scan) = (u32::from(close), None);
        }
        (self.last, self.direction) = (record, direction);
    }

    /// The record, if the scan comes to it.
    fn read_on(&mut self, record: RecordId) -> Result<Option<DocumentBytes>> {
        let Some(scan) = &mut self.scan else { return Ok(None) };
        for pair in scan.take(MAX_GAP as usize) {
            let (key, value) = pair?;
            if record_of_key(&key)? == record {
                return DocumentBytes::stored(value).map(Some);
            }
        }
        Ok(None)
    }
}
