//! What clients are shown of transactions: `config.transactions`, `serverStatus` and `$currentOp`.

use std::ops::Bound;
use std::sync::Arc;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Direction, KeyRange};
use quorate_wire::to_bson_date_time;

use super::overlay::Overlay;
use super::rows::{SessionRow, session_of};
use crate::catalog::{Collection, Ident};
use crate::change_stream::shown_images;
use crate::context::Now;
use crate::error::Result;
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::{View, record_key};

/// The identifier of a collection that is made up when it is read.
const MADE_UP: Ident = Ident(u64::MAX);

/// The most rows of such a collection that a read is shown.
const MAX_SHOWN: usize = 100_000;

/// Collections of `local` that show the rows of sessions as they are stored, after the key that their
/// name ends with, in hexadecimal digits. Members that copy everything read them page by page.
const SESSION_ROWS: &str = "replset.sessions.";

/// Rows in one such page.
const PAGE: usize = 10_000;

/// Collections that are not stored as such, but made of a member's own rows: `config.transactions` and
/// pages for members that copy everything of those of sessions, `config.system.preimages` of the images for change streams. None for other names.
pub(crate) fn made_up_collection(
    node: &Node,
    namespace: &Namespace,
    view: &View,
) -> Result<Option<(Arc<Collection>, View)>> {
    let documents = match (namespace.database.as_str(), namespace.collection.as_str()) {
        ("config", "transactions") => transactions(view)?,
        ("config", "system.preimages") => shown_images(node, view, MAX_SHOWN)?,
        ("local", name) => match name.strip_prefix(SESSION_ROWS) {
            Some(after) => session_rows(view, after)?,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let mut batch = Batch::new();
    for (place, document) in documents.into_iter().enumerate() {
        let key = record_key(MADE_UP, RecordId(place as u64 + 1));
        batch.insert(view.keyspaces.records, key, document);
    }
    let overlay = Arc::new(Overlay::default());
    overlay.apply(batch);
    let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: vec![0xff; 16] };
    let collection = Collection::new(namespace.clone(), MADE_UP, uuid, Document::new())?;
    let view = View { snapshot: overlay.view(&view.snapshot), ..view.clone() };
    Ok(Some((Arc::new(collection), view)))
}

/// A page of rows after a key. No row is after what is no key.
fn session_rows(view: &View, after: &str) -> Result<Vec<Vec<u8>>> {
    let digits = |place: usize| u8::from_str_radix(after.get(place..place + 2)?, 16).ok();
    let after: Option<Vec<u8>> = (0..after.len()).step_by(2).map(digits).collect();
    let Some(after) = after else { return Ok(Vec::new()) };
    let range = KeyRange { start: Bound::Excluded(after), end: Bound::Unbounded };
    let binary = |bytes: &[u8]| Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() };
    let scan = view.snapshot.scan(view.keyspaces.sessions, range, Direction::Forward)?;
    let mut rows = Vec::new();
    for pair in scan.take(PAGE) {
        let (key, value) = pair?;
        rows.push(to_raw(&doc! { "_id": binary(&key), "row": binary(&value) })?.into_bytes());
    }
    Ok(rows)
}

/// The documents of `config.transactions`.
fn transactions(view: &View) -> Result<Vec<Vec<u8>>> {
    let sessions = view.keyspaces.sessions;
    let mut shown = Vec::new();
    for pair in view.snapshot.scan(sessions, KeyRange::all(), Direction::Forward)? {
        let (key, value) = pair?;
        let (Some(session), Some(row)) = (session_of(&key), SessionRow::from_bytes(&value)) else {
            continue;
        };
        shown.push(to_raw(&row.shown(&session))?.into_bytes());
        if shown.len() == MAX_SHOWN {
            break;
        }
    }
    Ok(shown)
}

impl Node {
    /// `serverStatus.transactions`.
    pub(crate) fn transaction_statistics(&self, now: Now) -> Document {
        let writer = self.write(now);
        let table = &writer.state.transactions.table;
        let statistics = table.statistics();
        let oldest = table.listed().iter().map(|listed| now.monotonic.since(listed.since)).max();
        let last_committed = writer.state.transactions.last_committed.clone();
        drop(writer);
        let (commands, statements) = self.counters().retried();
        let number = |count: u64| Bson::Int64(count as i64);
        let mut shown = doc! {
            "retriedCommandsCount": commands,
            "retriedStatementsCount": statements,
            "transactionsCollectionWriteCount": number(statistics.committed),
            "currentActive": number(statistics.active),
            "currentInactive": number(statistics.open - statistics.active),
            "currentOpen": number(statistics.open),
            "totalAborted": number(statistics.aborted),
            "totalCommitted": number(statistics.committed),
            "totalStarted": number(statistics.started),
            "writeConflicts": number(statistics.conflicts),
            "waitingWrites": number(self.end_queue().waiting() as u64),
            "oldestOpenMicros": number(oldest.unwrap_or_default().as_micros() as u64),
        };
        if let Some(last) = last_committed {
            let last = doc! {
                "operationCount": last.operations as i64,
                "oplogOperationBytes": last.bytes as i64,
                "writeConcern": last.write_concern.unwrap_or_default(),
            };
            shown.insert("lastCommittedTransaction", last);
        }
        shown
    }

    /// The open transactions without a running statement, as `$currentOp` shows idle sessions.
    pub(crate) fn inactive_transactions(&self, now: Now) -> Vec<Document> {
        let writer = self.write(now);
        let ongoing = &writer.state.transactions;
        let listed = ongoing.table.listed().into_iter().filter(|listed| !listed.active);
        let shown = listed.filter_map(|listed| {
            let body = ongoing.bodies.get(&listed.transaction)?;
            let open = now.monotonic.since(listed.since);
            Some(doc! {
                "type": "idleSession",
                "host": &self.options().host,
                "desc": "inactive transaction",
                "active": false,
                "lsid": listed.session.to_lsid(),
                "transaction": {
                    "parameters": {
                        "txnNumber": listed.number,
                        "autocommit": false,
                        "readConcern": body.read_concern.clone(),
                    },
                    "startWallClockTime": to_bson_date_time(body.began),
                    "timeOpenMicros": open.as_micros() as i64,
                    "heldBytes": listed.bytes as i64,
                    "heldKeys": listed.keys as i64,
                },
            })
        });
        shown.collect()
    }
}
