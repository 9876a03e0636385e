//! What clients are shown of transactions: `config.transactions`, `serverStatus` and `$currentOp`.

use std::sync::Arc;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_storage::key::RecordId;
use quorate_storage::{Batch, Direction, KeyRange};
use quorate_wire::to_bson_date_time;

use super::overlay::Overlay;
use super::rows::{SessionRow, session_of};
use crate::catalog::{Collection, Ident};
use crate::context::Now;
use crate::error::CommandError;
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::records::{View, record_key};

/// The identifier of a collection that is made up when it is read.
const MADE_UP: Ident = Ident(u64::MAX);

/// The most rows of `config.transactions` that a read is shown.
const MAX_SHOWN: usize = 100_000;

/// `config.transactions`: not stored as such, but made of the rows of sessions. None for other names.
pub(crate) fn transactions_collection(
    namespace: &Namespace,
    view: &View,
) -> Result<Option<(Arc<Collection>, View)>, CommandError> {
    if namespace.database != "config" || namespace.collection != "transactions" {
        return Ok(None);
    }
    let sessions = view.keyspaces.sessions;
    let mut batch = Batch::new();
    let mut record = 0;
    for pair in view.snapshot.scan(sessions, KeyRange::all(), Direction::Forward)? {
        let (key, value) = pair?;
        let (Some(session), Some(row)) = (session_of(&key), SessionRow::from_bytes(&value)) else {
            continue;
        };
        record += 1;
        let key = record_key(MADE_UP, RecordId(record));
        batch.insert(view.keyspaces.records, key, to_raw(&row.shown(&session))?.into_bytes());
        if record as usize == MAX_SHOWN {
            break;
        }
    }
    let overlay = Arc::new(Overlay::default());
    overlay.apply(batch);
    let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: vec![0xff; 16] };
    let collection = Collection::new(namespace.clone(), MADE_UP, uuid, Document::new())?;
    let view = View { snapshot: overlay.view(&view.snapshot), keyspaces: view.keyspaces };
    Ok(Some((Arc::new(collection), view)))
}

impl Node {
    /// `serverStatus.transactions`.
    pub(crate) fn transaction_statistics(&self, now: Now) -> Document {
        let statistics = self.write(now).state.transactions.table.statistics();
        let number = |count: u64| Bson::Int64(count as i64);
        doc! {
            "retriedCommandsCount": number(0),
            "retriedStatementsCount": number(0),
            "transactionsCollectionWriteCount": number(statistics.committed),
            "currentActive": number(statistics.active),
            "currentInactive": number(statistics.open - statistics.active),
            "currentOpen": number(statistics.open),
            "totalAborted": number(statistics.aborted),
            "totalCommitted": number(statistics.committed),
            "totalStarted": number(statistics.started),
            "writeConflicts": number(statistics.conflicts),
        }
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
