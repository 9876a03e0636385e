//! What members say about their set, read from their replies.
//!
//! Servers of many versions answer, so reading is lenient: a field that is missing or strange is
//! absent, and never an error. Follows the manual's pages on `replSetGetStatus`, `replSetGetConfig`
//! and `serverStatus`; `quorateExplainElection` is our own.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Bson, Document};
use quorate_protocol::{MemberState, OpTime, ServerAddress, Timestamp, WallTime};

use super::member::{Load, Transactions};

/// The most members that are read from one reply; a set has at most 50.
const MAX_MEMBERS: usize = 64;

/// A reply to `replSetGetStatus`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SetStatus {
    /// The state of the member that answered.
    pub(crate) state: Option<MemberState>,
    pub(crate) term: Option<i64>,
    pub(crate) sync_source: Option<ServerAddress>,
    /// The votes that make a majority.
    pub(crate) majority_votes: Option<u32>,
    /// Why it called the election that it won last.
    pub(crate) election_reason: Option<String>,
    pub(crate) initial_sync: Option<InitialSync>,
    /// What it thinks of every member.
    pub(crate) members: Vec<MemberStatus>,
}

/// One member's view of another member or of itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemberStatus {
    pub(crate) address: ServerAddress,
    /// Whether it is the member that answered.
    pub(crate) is_self: bool,
    pub(crate) state: Option<MemberState>,
    /// Whether it answers heartbeats.
    pub(crate) is_up: bool,
    /// How far its data goes.
    pub(crate) op_time: Option<OpTime>,
    /// The same by the primary's clock.
    pub(crate) op_time_date: Option<WallTime>,
    pub(crate) sync_source: Option<ServerAddress>,
    /// What it or its last heartbeat said, if there was anything to say.
    pub(crate) message: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct InitialSync {
    /// What it is doing.
    pub(crate) stage: Option<String>,
    /// Which attempt this is, or how many failed before.
    pub(crate) attempt: Option<i64>,
    pub(crate) copied_bytes: Option<u64>,
    /// Bytes to copy.
    pub(crate) total_bytes: Option<u64>,
    /// How long it will still take, as the member sees it.
    pub(crate) remaining: Option<Duration>,
}

impl InitialSync {
    /// The part that is done, from 0 to 1.
    pub(crate) fn fraction(&self) -> Option<f64> {
        match (self.copied_bytes, self.total_bytes) {
            (Some(copied), Some(total)) if total > 0 => {
                Some((copied as f64 / total as f64).clamp(0.0, 1.0))
            }
            _ => None,
        }
    }
}

/// A member as the configuration has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemberSettings {
    pub(crate) votes: u32,
    /// How much it wants to be primary.
    pub(crate) priority: f64,
    /// Whether it only votes.
    pub(crate) arbiter_only: bool,
    /// Whether the member is hidden from clients.
    pub(crate) hidden: bool,
}

/// A reply to `replSetGetConfig`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SetSettings {
    /// The version of the configuration.
    pub(crate) version: i64,
    pub(crate) members: BTreeMap<ServerAddress, MemberSettings>,
}

/// A reply to `quorateExplainElection`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Explanation {
    /// Why there is or is no primary, in words.
    pub(crate) text: String,
    /// The same in one or two sentences.
    pub(crate) summary: Option<String>,
    /// Whether the member knows a primary.
    pub(crate) has_primary: bool,
    /// The votes that the member can see.
    pub(crate) votes_visible: Option<u32>,
    /// The votes that make a majority.
    pub(crate) votes_needed: Option<u32>,
}

/// The counters of `serverStatus` that are shown: what clients did since the start of the member.
pub(crate) type Counters = Load<u64>;

/// The same of its transactions.
pub(crate) type TransactionCounters = Transactions<u64>;

/// Reads `replSetGetStatus`.
pub(crate) fn set_status(reply: &Document) -> SetStatus {
    let sync = reply.get_document("initialSyncStatus").ok();
    let metrics = reply.get_document("electionCandidateMetrics").ok();
    let members = reply.get_array("members").into_iter().flatten();
    SetStatus {
        state: state(reply, "myState"),
        term: whole(reply, "term"),
        sync_source: address(reply, "syncSourceHost"),
        majority_votes: unsigned(reply, "majorityVoteCount"),
        election_reason: metrics.and_then(|metrics| text(metrics, "lastElectionReason")),
        initial_sync: sync.map(initial_sync),
        members: members
            .filter_map(Bson::as_document)
            .filter_map(member_status)
            .take(MAX_MEMBERS)
            .collect(),
    }
}

fn member_status(member: &Document) -> Option<MemberStatus> {
    let date = member.get_datetime("optimeDate").ok();
    Some(MemberStatus {
        address: address(member, "name")?,
        is_self: member.get_bool("self").unwrap_or(false),
        state: state(member, "state"),
        // Of itself a member always says 1.
        is_up: whole(member, "health") == Some(1),
        op_time: member.get("optime").and_then(op_time),
        op_time_date: date.map(|date| WallTime(date.timestamp_millis())),
        sync_source: address(member, "syncSourceHost"),
        message: ["infoMessage", "lastHeartbeatMessage"]
            .into_iter()
            .filter_map(|name| text(member, name))
            .find(|message| !message.is_empty()),
    })
}

fn initial_sync(sync: &Document) -> InitialSync {
    let bytes = |name| whole(sync, name).and_then(|bytes| u64::try_from(bytes).ok());
    let remaining = bytes("remainingInitialSyncEstimatedMillis");
    InitialSync {
        stage: text(sync, "stage"),
        attempt: whole(sync, "attempt").or_else(|| whole(sync, "failedInitialSyncAttempts")),
        copied_bytes: bytes("approxTotalBytesCopied"),
        total_bytes: bytes("approxTotalDataSize"),
        remaining: remaining.map(Duration::from_millis),
    }
}

/// Reads `replSetGetConfig`.
pub(crate) fn set_settings(reply: &Document) -> Option<SetSettings> {
    let config = reply.get_document("config").ok()?;
    let members = config.get_array("members").ok()?.iter().filter_map(Bson::as_document);
    let members = members.filter_map(|member| {
        let settings = MemberSettings {
            votes: unsigned(member, "votes").unwrap_or(1),
            priority: number(member, "priority").unwrap_or(1.0),
            arbiter_only: member.get_bool("arbiterOnly").unwrap_or(false),
            hidden: member.get_bool("hidden").unwrap_or(false),
        };
        Some((address(member, "host")?, settings))
    });
    Some(SetSettings {
        version: whole(config, "version").unwrap_or(0),
        members: members.take(MAX_MEMBERS).collect(),
    })
}

/// Reads `quorateExplainElection`.
pub(crate) fn explanation(reply: &Document) -> Option<Explanation> {
    Some(Explanation {
        text: text(reply, "text")?,
        summary: text(reply, "summary"),
        has_primary: whole(reply, "primaryId").is_some_and(|id| id >= 0),
        votes_visible: unsigned(reply, "votesVisible"),
        votes_needed: unsigned(reply, "votesNeeded"),
    })
}

/// Reads `serverStatus`.
pub(crate) fn counters(reply: &Document) -> Counters {
    let operations = reply.get_document("opcounters").ok();
    let sum = |names: &[&str]| {
        let counts = names.iter().map(|name| whole(operations?, name));
        counts.flatten().map(|count| u64::try_from(count).ok()).sum::<Option<u64>>()
    };
    let connections = reply.get_document("connections").ok();
    Counters {
        writes: operations.and_then(|_| sum(&["insert", "update", "delete"])),
        reads: operations.and_then(|_| sum(&["query", "getmore"])),
        connections: connections
            .and_then(|connections| whole(connections, "current"))
            .and_then(|count| u64::try_from(count).ok()),
        transactions: reply.get_document("transactions").ok().and_then(transaction_counters),
    }
}

fn transaction_counters(told: &Document) -> Option<TransactionCounters> {
    let count = |name| whole(told, name).and_then(|count| u64::try_from(count).ok());
    Some(TransactionCounters {
        open: count("currentOpen")?,
        oldest: count("oldestOpenMicros").map(Duration::from_micros),
        waiting_writes: count("waitingWrites"),
        conflicts: count("writeConflicts"),
    })
}

/// Reads the first entry of an oplog that was asked for its oldest one.
pub(crate) fn oldest_entry(reply: &Document) -> Option<Timestamp> {
    let batch = reply.get_document("cursor").ok()?.get_array("firstBatch").ok()?;
    let at = batch.first()?.as_document()?.get_timestamp("ts").ok()?;
    Some(Timestamp::new(at.time, at.increment))
}

/// A whole number, however it was written.
pub(crate) fn whole(document: &Document, name: &str) -> Option<i64> {
    match document.get(name)? {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.is_finite() => Some(*number as i64),
        _ => None,
    }
}

fn number(document: &Document, name: &str) -> Option<f64> {
    match document.get(name)? {
        Bson::Double(number) => Some(*number),
        _ => whole(document, name).map(|number| number as f64),
    }
}

fn unsigned(document: &Document, name: &str) -> Option<u32> {
    whole(document, name).and_then(|number| u32::try_from(number).ok())
}

fn text(document: &Document, name: &str) -> Option<String> {
    document.get_str(name).ok().map(str::to_owned)
}

fn state(document: &Document, name: &str) -> Option<MemberState> {
    let number = whole(document, name).and_then(|number| i32::try_from(number).ok())?;
    MemberState::from_number(number)
}

fn address(document: &Document, name: &str) -> Option<ServerAddress> {
    document.get_str(name).ok().filter(|text| !text.is_empty())?.parse().ok()
}

/// A bare timestamp before terms, `{ts, t}` since.
fn op_time(value: &Bson) -> Option<OpTime> {
    let (timestamp, term) = match value {
        Bson::Timestamp(timestamp) => (*timestamp, -1),
        Bson::Document(document) => {
            (document.get_timestamp("ts").ok()?, whole(document, "t").unwrap_or(-1))
        }
        _ => return None,
    };
    Some(OpTime::new(term, Timestamp::new(timestamp.time, timestamp.increment)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn a_status_is_read_with_all_that_is_shown() {
        let ts = bson::Timestamp { time: 7, increment: 2 };
        let status = set_status(&doc! {
            "myState": 2, "term": 4_i64, "syncSourceHost": "b:2", "majorityVoteCount": 2,
            "initialSyncStatus": {
                "approxTotalDataSize": 200_i64, "approxTotalBytesCopied": 50_i64,
                "remainingInitialSyncEstimatedMillis": 1500_i64,
            },
            "members": [
                { "name": "a:1", "health": 1.0, "state": 2, "self": true,
                  "optime": { "ts": ts, "t": 4_i64 },
                  "optimeDate": bson::DateTime::from_millis(7000) },
                { "name": "b:2", "health": 0, "state": 8, "lastHeartbeatMessage": "no answer" },
                { "health": 1 },
            ],
        });
        assert_eq!(status.state, Some(MemberState::Secondary));
        assert_eq!(status.sync_source.unwrap().as_str(), "b:2");
        assert_eq!(status.members.len(), 2, "a member without a name is none");
        assert_eq!(status.members[0].op_time, Some(OpTime::new(4, Timestamp::new(7, 2))));
        assert_eq!(status.members[0].op_time_date, Some(WallTime(7000)));
        assert!(status.members[0].is_up && !status.members[1].is_up);
        assert_eq!(status.members[1].message.as_deref(), Some("no answer"));
        let sync = status.initial_sync.unwrap();
        assert_eq!(sync.fraction(), Some(0.25));
        assert_eq!(sync.remaining, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn strange_replies_are_no_error() {
        assert_eq!(set_status(&doc! { "myState": "two", "members": 3 }), SetStatus::default());
        assert_eq!(set_settings(&doc! { "config": { "members": "none" } }), None);
        assert_eq!(counters(&doc! { "opcounters": 1 }), Counters::default());
        assert_eq!(explanation(&doc! {}), None);
    }

    #[test]
    fn votes_and_priority_have_the_defaults_of_the_manual() {
        let reply = doc! { "config": { "version": 3, "members": [
            { "host": "a:1" }, { "host": "b:2", "votes": 0, "priority": 0.5, "hidden": true },
        ] } };
        let settings = set_settings(&reply).unwrap();
        assert_eq!(settings.version, 3);
        let plain = &settings.members[&"a:1".parse().unwrap()];
        assert_eq!((plain.votes, plain.priority), (1, 1.0));
        let hidden = &settings.members[&"b:2".parse().unwrap()];
        assert_eq!((hidden.votes, hidden.priority, hidden.hidden), (0, 0.5, true));
    }

    #[test]
    fn counters_are_summed_by_direction() {
        let reply = doc! {
            "opcounters": { "insert": 5, "update": 2_i64, "delete": 1, "query": 4, "getmore": 3 },
            "connections": { "current": 9 },
            "transactions": {
                "currentOpen": 2_i64, "oldestOpenMicros": 1_500_000_i64, "waitingWrites": 1_i64,
                "writeConflicts": 12_i64,
            },
        };
        let expected = Counters {
            writes: Some(8),
            reads: Some(7),
            connections: Some(9),
            transactions: Some(TransactionCounters {
                open: 2,
                oldest: Some(Duration::from_millis(1500)),
                waiting_writes: Some(1),
                conflicts: Some(12),
            }),
        };
        assert_eq!(counters(&reply), expected);
    }
}
