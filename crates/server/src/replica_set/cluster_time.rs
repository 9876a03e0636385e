//! The logical clock of the set as clients see it: `operationTime`, `$clusterTime`, and reads that
//! wait for a time.
//!
//! The clock is the timestamp of the newest entry of the log, so that it moves with the set and needs
//! no gossip of its own: a time that a client brings from one member is one that the others reach by
//! copying. Signatures are the empty ones of servers without keys. Specification:
//! `causal-consistency/causal-consistency.md`.

use std::time::Duration;

use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, RawDocumentBuf, rawdoc};
use quorate_node::{Command, CommandError, ErrorCode};
use quorate_protocol::Timestamp;
use quorate_wire::{timestamp_from, to_bson_timestamp};

use super::{ReplicaSet, ending};

/// How long a read waits for a time unless its `maxTimeMS` says so.
const PATIENCE: Duration = Duration::from_secs(60);

/// The length of a signature.
const SIGNATURE_LENGTH: usize = 20;

/// The time that a read must not be older than.
pub(crate) fn after_cluster_time(command: &Command) -> Result<Option<Timestamp>, CommandError> {
    let Ok(concern) = command.body.get_document("readConcern") else { return Ok(None) };
    match concern.get("afterClusterTime") {
        None => Ok(None),
        Some(Bson::Timestamp(time)) => Ok(Some(timestamp_from(*time))),
        Some(_) => Err(CommandError::type_mismatch("afterClusterTime must be a timestamp")),
    }
}

impl ReplicaSet {
    /// Adds the set's time to a reply.
    pub(crate) fn stamp(&self, body: &mut RawDocumentBuf) {
        let last = self.node.log_positions().written.op_time.timestamp;
        if last == Timestamp::default() {
            return;
        }
        let time = to_bson_timestamp(last);
        let hash = Binary { subtype: BinarySubtype::Generic, bytes: vec![0; SIGNATURE_LENGTH] };
        let signature = rawdoc! { "hash": hash, "keyId": 0_i64 };
        let cluster_time = rawdoc! { "clusterTime": time, "signature": signature };
        body.append(cstr!("$clusterTime"), cluster_time);
        body.append(cstr!("operationTime"), time);
    }

    /// Returns once this member has everything up to a time.
    pub(crate) async fn wait_for_time(
        &self,
        time: Timestamp,
        max_time: Option<Duration>,
    ) -> Result<(), CommandError> {
        let mut appended = self.appended();
        let is_there = appended.borrow().op_time.timestamp >= time;
        if is_there {
            return Ok(());
        }
        // A primary has nobody to copy from: its own next entry is what brings it there.
        if self.view().borrow().is_primary {
            self.node.append_proof(self.clock.now())?;
        }
        let waiting = appended.wait_for(|last| last.op_time.timestamp >= time);
        match tokio::time::timeout(max_time.unwrap_or(PATIENCE), waiting).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ending()),
            Err(_) => Err(CommandError::new(
                ErrorCode::MAX_TIME_MS_EXPIRED,
                "operation exceeded time limit while waiting for afterClusterTime",
            )),
        }
    }
}
