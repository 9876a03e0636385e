//! Walking a plan: documents out of a snapshot, checked against the query.
//!
//! Owns the scan over records or index ranges. Sorting, projecting and batching come after it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bson::RawDocumentBuf;
use quorate_query::QueryError;
use quorate_query::matcher::{MatchDetails, Matcher};
use quorate_storage::Scan;
use quorate_storage::key::RecordId;

use crate::catalog::{Collection, Index};
use crate::context::Interrupt;
use crate::error::{CommandError, ErrorCode};
use crate::plan::{Access, Plan};
use crate::records::{View, parse_record, record_of_entry};
use crate::sort::Sortable;

/// Documents examined between two looks at the interrupt.
const INTERRUPT_INTERVAL: u64 = 64;

/// The interrupt of the command that currently drives a scan, and what its scans have looked at. A
/// cursor outlives its commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterruptSlot(Arc<Slot>);

#[derive(Debug, Default)]
struct Slot {
    interrupt: Mutex<Arc<Interrupt>>,
    keys: AtomicU64,
    documents: AtomicU64,
    /// How the documents were reached, the first time that was decided.
    way: OnceLock<Way>,
}

/// How documents are reached.
#[derive(Clone, Debug)]
enum Way {
    Collection,
    Index(Arc<Index>),
}

impl InterruptSlot {
    pub(crate) fn new(interrupt: Arc<Interrupt>) -> Self {
        Self(Arc::new(Slot { interrupt: Mutex::new(interrupt), ..Slot::default() }))
    }

    pub(crate) fn set(&self, interrupt: Arc<Interrupt>) {
        *self.0.interrupt.lock().unwrap_or_else(PoisonError::into_inner) = interrupt;
    }

    pub(crate) fn check(&self) -> Result<(), CommandError> {
        self.0.interrupt.lock().unwrap_or_else(PoisonError::into_inner).check()
    }

    fn note(&self, plan: &Plan) {
        self.0.way.get_or_init(|| match &plan.access {
            Access::Collection(_) | Access::After(_) => Way::Collection,
            Access::Index(access) => Way::Index(Arc::clone(&access.index)),
        });
    }

    /// What has been looked at since this was asked last.
    pub(crate) fn take_examined(&self) -> Examined {
        Examined {
            keys: self.0.keys.swap(0, Ordering::Relaxed),
            documents: self.0.documents.swap(0, Ordering::Relaxed),
        }
    }

    /// Counts what was looked at on behalf of this command.
    pub(crate) fn absorb(&self, other: &Self) {
        let examined = other.take_examined();
        self.0.keys.fetch_add(examined.keys, Ordering::Relaxed);
        self.0.documents.fetch_add(examined.documents, Ordering::Relaxed);
        if let Some(way) = other.0.way.get() {
            self.0.way.get_or_init(|| way.clone());
        }
    }

    /// How documents were reached, for people.
    pub(crate) fn plan_summary(&self) -> Option<String> {
        Some(match self.0.way.get()? {
            Way::Collection => "COLLSCAN".to_owned(),
            Way::Index(index) => format!("IXSCAN {}", index.key()),
        })
    }
}

impl quorate_query::expression::Interrupt for InterruptSlot {
    fn check(&self) -> Result<(), QueryError> {
        Self::check(self).map_err(Into::into)
    }
}

/// A document that matches.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: RecordId,
    pub(crate) document: RawDocumentBuf,
    pub(crate) details: MatchDetails,
}

impl Sortable for Found {
    fn document(&self) -> &RawDocumentBuf {
        &self.document
    }

    fn numbers(&self) -> [u64; 2] {
        // A place in an array is one less than what is kept of it; nothing is none.
        let place = self.details.array_index.map_or(0, |place| place as u64 + 1);
        [self.record.0, place]
    }

    fn restore(document: RawDocumentBuf, [record, place]: [u64; 2]) -> Self {
        let array_index = place.checked_sub(1).map(|place| place as usize);
        Self { record: RecordId(record), document, details: MatchDetails { array_index } }
    }
}

/// How much a scan has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Examined {
    pub(crate) keys: u64,
    pub(crate) documents: u64,
}

/// The documents of a plan that match a query, in the order of the plan.
pub(crate) struct Finder {
    view: View,
    collection: Arc<Collection>,
    matcher: Arc<Matcher>,
    source: Source,
    interrupt: InterruptSlot,
    pub(crate) examined: Examined,
}

enum Source {
    Records(Scan),
    Index {
        access: crate::plan::IndexAccess,
        next_range: usize,
        scan: Option<Scan>,
        /// Records met before, where arrays give a record several keys.
        seen: Option<BTreeSet<RecordId>>,
    },
    Ended,
}

impl Finder {
    pub(crate) fn new(
        view: View,
        collection: Arc<Collection>,
        matcher: Arc<Matcher>,
        plan: &Plan,
        interrupt: InterruptSlot,
    ) -> Result<Self, CommandError> {
        interrupt.note(plan);
        let source = match &plan.access {
            Access::Collection(direction) => {
                Source::Records(view.scan_records(collection.ident, *direction)?)
            }
            Access::After(record) => {
                Source::Records(view.scan_records_after(collection.ident, *record)?)
            }
            Access::Index(access) => Source::Index {
                access: access.clone(),
                next_range: 0,
                scan: None,
                seen: access.index.multikey.then(BTreeSet::new),
            },
        };
        let examined = Examined::default();
        Ok(Self { view, collection, matcher, source, interrupt, examined })
    }

    /// The next document, matching or not.
    fn next_candidate(&mut self) -> Result<Option<(RecordId, RawDocumentBuf)>, CommandError> {
        match &mut self.source {
            Source::Ended => Ok(None),
            Source::Records(scan) => match scan.next() {
                None => Ok(None),
                Some(pair) => {
                    let (key, value) = pair?;
                    let record = RecordId::from_suffix(&key).ok_or_else(|| {
                        CommandError::new(ErrorCode::INTERNAL_ERROR, "a record key is damaged")
                    })?;
                    Ok(Some((record, parse_record(&value)?)))
                }
            },
            Source::Index { access, next_range, scan, seen } => loop {
                let Some(current) = scan else {
                    let Some(range) = access.ranges.get(*next_range) else { return Ok(None) };
                    *next_range += 1;
                    *scan = Some(self.view.scan_index(range.clone(), access.direction)?);
                    continue;
                };
                let Some(pair) = current.next() else {
                    *scan = None;
                    continue;
                };
                let (key, value) = pair?;
                self.examined.keys += 1;
                self.interrupt.0.keys.fetch_add(1, Ordering::Relaxed);
                let record = record_of_entry(&access.index, &key, &value)?;
                if seen.as_mut().is_some_and(|seen| !seen.insert(record)) {
                    continue;
                }
                let Some(document) = self.view.record(&self.collection, record)? else {
                    return Err(CommandError::new(
                        ErrorCode::INTERNAL_ERROR,
                        format!(
                            "index {} of {} names a missing record; run validate",
                            access.index.name, self.collection.namespace
                        ),
                    ));
                };
                return Ok(Some((record, document)));
            },
        }
    }

    fn next_found(&mut self) -> Result<Option<Found>, CommandError> {
        while let Some((record, document)) = self.next_candidate()? {
            self.examined.documents += 1;
            self.interrupt.0.documents.fetch_add(1, Ordering::Relaxed);
            if self.examined.documents.is_multiple_of(INTERRUPT_INTERVAL) {
                self.interrupt.check()?;
            }
            if let Some(details) = self.matcher.matches_with_details(&*document)? {
                return Ok(Some(Found { record, document, details }));
            }
        }
        Ok(None)
    }
}

impl Iterator for Finder {
    type Item = Result<Found, CommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.next_found().transpose();
        if !matches!(found, Some(Ok(_))) {
            self.source = Source::Ended;
        }
        found
    }
}
