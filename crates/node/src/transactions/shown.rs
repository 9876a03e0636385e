//! What clients are shown of transactions in `serverStatus` and `$currentOp`.

use bson::{Bson, Document, doc};
use quorate_wire::to_bson_date_time;

use crate::context::Now;
use crate::node::Node;

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
