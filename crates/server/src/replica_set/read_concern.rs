//! Read concerns: which data a read sees, and what it waits for before it looks.
//!
//! A majority read sees the newest view at or below the commit point, at once; it waits only until
//! that view shows what its client has seen (`afterClusterTime`). A linearizable read proves afterwards
//! that this member is still the primary: by an entry that a majority acknowledges after the read.
//! Specification: `causal-consistency/causal-consistency.md`; the manual's page on read concerns.

use std::sync::LazyLock;
use std::time::Duration;

use bson::raw::{RawDocumentBuf, cstr};
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument, Timestamp, rawdoc};
use quorate_node::{Client, Command, CommandError, CommandFacts, ErrorCode, Standing};
use quorate_replication::WriteConcern;
use quorate_wire::{timestamp_from, to_bson_timestamp};

use super::write_concern::{Wanted, is_statement};
use super::{ReplicaSet, ending};

/// How long a read waits at most for data that its client has seen elsewhere, or for a majority; its
/// `maxTimeMS` may end it before.
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
        let concern = command.read_concern().ok()??;
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
        if !reads || is_statement(command) || command.database() == "local" {
            return Ok(());
        }
        let Some(chosen) = self.node.default_concerns()?.and_then(|known| known.read.clone())
        else {
            return Ok(());
        };
        let mut completed = command.read_concern()?.cloned().unwrap_or_default();
        if !completed.contains_key("level") {
            completed.extend(chosen);
            command.set_read_concern(completed);
        }
        Ok(())
    }

    /// Returns once a read that has just been made is as sure as wanted. What a majority read saw was
    /// sure before it looked.
    pub(crate) async fn confirm(&self, concern: ReadConcern) -> Result<(), CommandError> {
        if concern == ReadConcern::Majority {
            return Ok(());
        }
        let proved = tokio::time::timeout(PATIENCE, self.prove_leadership()).await;
        proved.unwrap_or_else(|_| {
            Err(CommandError::new(
                ErrorCode::EXCEEDED_TIME_LIMIT,
                format!(
                    "no majority confirmed within {} s that this member is the primary; ask again",
                    PATIENCE.as_secs()
                ),
            ))
        })
    }

    /// Returns once this member can show what a read asks for: what had happened at the time that it
    /// comes after (`afterClusterTime`) or shows (`atClusterTime`), and at majority or snapshot a view
    /// of what is committed. A step-down, a rollback and an initial sync end the wait.
    pub(crate) async fn wait_for_cluster_time(
        &self,
        command: &Command,
    ) -> Result<(), CommandError> {
        let Ok(Some(concern)) = command.read_concern() else { return Ok(()) };
        let times = ["afterClusterTime", "atClusterTime"].map(|name| concern.get_timestamp(name));
        let after = times.into_iter().flatten().map(timestamp_from).max();
        let committed = ReadConcern::of(command) == Some(ReadConcern::Majority);
        if after.is_none() && !committed {
            return Ok(());
        }
        let after = after.unwrap_or_default();
        self.check_time_is_known(after)?;
        let shows = |now: &Standing| match committed {
            true => !now.majority.is_null() && now.majority.timestamp >= after,
            false => now.last.op_time.timestamp >= after,
        };
        let mut standing = self.standing.clone();
        let began = *standing.borrow_and_update();
        if shows(&began) {
            return Ok(());
        }
        let settled = standing.wait_for(|now| now.ends_reads_of(&began) || shows(now));
        match tokio::time::timeout(PATIENCE, settled).await {
            Ok(Ok(now)) if now.ends_reads_of(&began) => Err(state_changed()),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ending()),
            Err(_) if committed => Err(CommandError::new(
                ErrorCode::READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET,
                format!(
                    "what this read asks for was not committed within {} s; check that a majority of \
                     the members is up",
                    PATIENCE.as_secs()
                ),
            )),
            Err(_) => Err(CommandError::new(
                ErrorCode::EXCEEDED_TIME_LIMIT,
                format!(
                    "this member did not reach afterClusterTime within {} s; check how far it is \
                     behind, or ask another member",
                    PATIENCE.as_secs()
                ),
            )),
        }
    }

    /// Refuses at once to wait for a time that no member has told: nothing would come. A client says together with its
    /// command what time it has seen elsewhere. Where that is not believed, it may be ahead of this member.
    fn check_time_is_known(&self, after: quorate_protocol::Timestamp) -> Result<(), CommandError> {
        let known = self.node.newest_time().unwrap_or_default();
        if after <= known || self.node.options().authentication {
            return Ok(());
        }
        Err(CommandError::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "readConcern afterClusterTime value must not be greater than the current clusterTime. \
                 Requested clusterTime: {after}; current clusterTime: {known}"
            ),
        ))
    }

    /// Takes the time from a client that has spoken to other members. Without signatures a time proves
    /// nothing: where clients must log in, only members are believed.
    pub(crate) fn hear_time(&self, command: &Command, client: &Client) -> Result<(), CommandError> {
        if !command.body.contains_key("$clusterTime") || self.node.authorize_member(client).is_err()
        {
            return Ok(());
        }
        let given = command.body.get_raw_document("$clusterTime");
        let seen = given.and_then(|given| given.get_timestamp("clusterTime").ok());
        let Some(seen) = seen else {
            return Err(CommandError::type_mismatch(
                "$clusterTime needs a clusterTime, a timestamp",
            ));
        };
        self.node.advance_cluster_time(timestamp_from(seen), self.clock.now())
    }

    /// Adds `$clusterTime` and `operationTime`: what a client says to others, so that they answer
    /// with nothing older. A majority read has seen nothing that is not committed: a later time would
    /// make the client's next one wait for writes of others.
    pub(crate) fn tell_time(&self, reply: &mut RawDocumentBuf, reads_majority: bool) {
        let standing = *self.standing.borrow();
        let last = match reads_majority {
            true => standing.majority.timestamp,
            false => standing.last.op_time.timestamp,
        };
        if last == quorate_protocol::Timestamp::default() {
            // Nothing has happened yet.
            return;
        }
        let (own, seen) = (to_bson_timestamp(last), self.node.cluster_time());
        let time = standing.last.op_time.timestamp.max(seen);
        if let Ok(time) = RawDocument::from_bytes(&cluster_time(time)) {
            reply.append(cstr!("$clusterTime"), time);
        }
        reply.append(cstr!("operationTime"), own);
    }

    async fn prove_leadership(&self) -> Result<(), CommandError> {
        let proof = self.node.append_proof(self.clock.now())?;
        let wanted = Wanted::new(WriteConcern::majority());
        match self.acknowledge(wanted, Some(proof.op_time), None).await {
            None => Ok(()),
            Some(error) => Err(CommandError::new(
                ErrorCode(error.get_i32("code").unwrap_or(ErrorCode::PRIMARY_STEPPED_DOWN.0)),
                error.get_str("errmsg").unwrap_or_default().to_owned(),
            )),
        }
    }
}

/// Where the time stands in the document that tells it: after the length, the type and the name.
const TIME_AT: usize = 4 + 1 + "clusterTime".len() + 1;

/// `{clusterTime, signature}`. Every reply of a set has one, so that it is made once and only the time
/// is put in.
fn cluster_time(time: quorate_protocol::Timestamp) -> Vec<u8> {
    static EMPTY: LazyLock<Vec<u8>> = LazyLock::new(|| {
        // It carries no signature; docs/security.md says whose times are believed.
        let hash = Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 20] };
        let signature = rawdoc! { "hash": hash, "keyId": 0_i64 };
        let none = Timestamp { time: 0, increment: 0 };
        rawdoc! { "clusterTime": none, "signature": signature }.into_bytes()
    });
    let mut document = EMPTY.clone();
    // The increment comes first, and both have their lowest byte first.
    document[TIME_AT..TIME_AT + 8].copy_from_slice(&time.as_u64().to_le_bytes());
    document
}

/// Ends a read that waited on a member whose state has changed. Drivers repeat it.
fn state_changed() -> CommandError {
    CommandError::new(
        ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
        "the member stepped down or its log was cut while the read waited; read again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_time_is_put_where_it_belongs() {
        let time = quorate_protocol::Timestamp { seconds: 7, increment: 300 };
        let bytes = cluster_time(time);
        let told = RawDocument::from_bytes(&bytes).unwrap();
        assert_eq!(told.get_timestamp("clusterTime").unwrap(), to_bson_timestamp(time));
        let signature = told.get_document("signature").unwrap();
        assert_eq!(signature.get_i64("keyId").unwrap(), 0);
        assert_eq!(signature.get_binary("hash").unwrap().bytes, [0; 20]);
    }
}
