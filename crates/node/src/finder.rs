//! Walking a plan: documents out of a snapshot, checked against the query.
//!
//! Owns the scan over records or index ranges. Sorting, projecting and batching come after it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use bson::RawDocumentBuf;
use quorate_query::QueryError;
use quorate_query::matcher::{MatchDetails, Matcher};
use quorate_storage::Scan;
use quorate_storage::key::RecordId;

use crate::catalog::Collection;
use crate::context::Interrupt;
use crate::error::{CommandError, ErrorCode};
use crate::plan::{Access, Plan};
use crate::records::{View, parse_record, record_of_entry};

/// Documents examined between two looks at the interrupt.
const INTERRUPT_INTERVAL: u64 = 64;

/// The interrupt of the command that currently drives a scan. A cursor outlives its commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterruptSlot(Arc<Mutex<Arc<Interrupt>>>);

impl InterruptSlot {
    pub(crate) fn new(interrupt: Arc<Interrupt>) -> Self {
        Self(Arc::new(Mutex::new(interrupt)))
    }

    pub(crate) fn set(&self, interrupt: Arc<Interrupt>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = interrupt;
    }

    pub(crate) fn check(&self) -> Result<(), CommandError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).check()
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
