//! Read concerns: a reply is held back until what it shows cannot be lost.
//!
//! A majority read is a local read whose reply waits until the commit point has reached the entry it
//! was read at. A linearizable one proves besides that this member is still the primary: by an entry
//! that a majority acknowledges after the read. Digest §6.

use std::time::Duration;

use bson::raw::{RawDocumentBuf, cstr};
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, doc, rawdoc};
use quorate_node::{Client, Command, CommandError, CommandFacts, ErrorCode};
use quorate_replication::WriteConcern;
use quorate_wire::{timestamp_from, to_bson_timestamp};

use super::write_concern::Wanted;
use super::{ReplicaSet, ending};

/// How long a read waits for a majority at most; its `maxTimeMS` may end it before.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a read wants to be sure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadConcern {
    /// What it shows is on a majority.
    Majority,
    /// And nothing newer was acknowledged before it was asked.
    Linearizable,
}

impl ReadConcern {
    /// The read concern of a command, if it needs other members.
    pub(crate) fn of(command: &Command) -> Option<Self> {
        let concern = command.body.get_document("readConcern").ok()?;
        match concern.get_str("level").ok()? {
            "majority" | "snapshot" => Some(Self::Majority),
            "linearizable" => Some(Self::Linearizable),
            _ => None,
        }
    }
}

impl ReplicaSet {
    /// Gives a read the level that was chosen for the set, if it names none. What members keep to
    /// themselves has no level.
    pub(crate) fn complete_read_concern(&self, command: &mut Command) -> Result<(), CommandError> {
        let reads = command.facts().is_some_and(CommandFacts::takes_a_default_read_concern);
        if !reads || command.database() == "local" {
            return Ok(());
        }
        let Some(chosen) = self.node.default_concerns()?.and_then(|known| known.read.clone())
        else {
            return Ok(());
        };
        let given =
            command.body_mut().entry("readConcern".to_owned()).or_insert(Bson::from(doc! {}));
        if let Bson::Document(given) = given
            && !given.contains_key("level")
        {
            given.extend(chosen);
        }
        Ok(())
    }

    /// Returns once a read that has just been made is as sure as wanted.
    pub(crate) async fn confirm(&self, concern: ReadConcern) -> Result<(), CommandError> {
        let late = || {
            CommandError::new(
                ErrorCode::MAX_TIME_MS_EXPIRED,
                "operation exceeded time limit while waiting for a majority",
            )
        };
        let waiting = async {
            match concern {
                ReadConcern::Majority => self.wait_until_committed().await,
                ReadConcern::Linearizable => self.prove_leadership().await,
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.unwrap_or_else(|_| Err(late()))
    }

    /// Returns once this member knows what had happened at the time that a read comes after
    /// (`afterClusterTime`) or shows (`atClusterTime`).
    pub(crate) async fn wait_for_cluster_time(
        &self,
        command: &Command,
    ) -> Result<(), CommandError> {
        let Ok(concern) = command.body.get_document("readConcern") else { return Ok(()) };
        let times = ["afterClusterTime", "atClusterTime"].map(|name| concern.get_timestamp(name));
        let Some(after) = times.into_iter().flatten().map(timestamp_from).max() else {
            return Ok(());
        };
        let mut appended = self.appended();
        let reached = appended.wait_for(|last| last.op_time.timestamp >= after);
        match tokio::time::timeout(PATIENCE, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ending()),
            Err(_) => Err(CommandError::new(
                ErrorCode::MAX_TIME_MS_EXPIRED,
                "operation exceeded time limit while waiting for afterClusterTime",
            )),
        }
    }

    /// Takes the time from a client that has spoken to other members. Without signatures a time proves
    /// nothing: where clients must log in, only members are believed.
    pub(crate) fn hear_time(&self, command: &Command, client: &Client) -> Result<(), CommandError> {
        let Some(given) = command.body.get("$clusterTime") else { return Ok(()) };
        if self.node.authorize_member(client).is_err() {
            return Ok(());
        }
        let seen = given.as_document().and_then(|given| given.get_timestamp("clusterTime").ok());
        let Some(seen) = seen else {
            return Err(CommandError::type_mismatch(
                "$clusterTime needs a clusterTime, a timestamp",
            ));
        };
        self.node.advance_cluster_time(timestamp_from(seen), self.clock.now())
    }

    /// Adds `$clusterTime` and `operationTime`: what a client says to others, so that they answer
    /// with nothing older.
    pub(crate) fn tell_time(&self, reply: &mut RawDocumentBuf) {
        let last = self.appended.borrow().op_time.timestamp;
        if last == quorate_protocol::Timestamp::default() {
            // Nothing has happened yet.
            return;
        }
        let (own, seen) = (to_bson_timestamp(last), self.node.cluster_time());
        let time = to_bson_timestamp(last.max(seen));
        // Nobody checks it; docs/security.md says who is believed.
        let hash = Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 20] };
        let signature = rawdoc! { "hash": hash, "keyId": 0_i64 };
        reply
            .append(cstr!("$clusterTime"), rawdoc! { "clusterTime": time, "signature": signature });
        reply.append(cstr!("operationTime"), own);
    }

    async fn wait_until_committed(&self) -> Result<(), CommandError> {
        let read_at = self.node.log_positions().written.op_time;
        let mut view = self.view();
        let rollback_id = view.borrow().rollback_id;
        let settled = view.wait_for(|view| {
            view.commit_point.op_time >= read_at || view.rollback_id != rollback_id
        });
        let after = *settled.await.map_err(|_| ending())?;
        if after.commit_point.op_time >= read_at {
            Ok(())
        } else {
            Err(CommandError::new(
                ErrorCode::OPERATION_FAILED,
                "what was read has been rolled back; read again",
            ))
        }
    }

    async fn prove_leadership(&self) -> Result<(), CommandError> {
        let proof = self.node.append_proof(self.clock.now())?;
        let wanted = Wanted::new(WriteConcern::majority());
        match self.acknowledge(wanted, Some(proof.op_time)).await {
            None => Ok(()),
            Some(error) => Err(CommandError::new(
                ErrorCode(error.get_i32("code").unwrap_or(189)),
                error.get_str("errmsg").unwrap_or_default().to_owned(),
            )),
        }
    }
}
