//! The view as JSON, for the web page and for programs.
//!
//! Times are `…_ns` on the monotonic clock, like `t_ns` of every event; spans are `…_ms`. What is not
//! known is null.

use std::time::Duration;

use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::ServerType;
use serde_json::{Value, json};

use super::difference::Difference;
use super::log::Entry;
use super::member::{Process, Transactions, Trouble};
use super::summary::MemberSummary;
use super::{Election, View, role};

/// How many log entries one message carries.
const MAX_ENTRIES_SENT: usize = 100;

impl View {
    /// Everything there is to show, now.
    pub(crate) fn to_json(&self, now: MonotonicTime) -> Value {
        let members = self.members();
        let entries: Vec<_> = self.log().entries().rev().take(MAX_ENTRIES_SENT).collect();
        json!({
            "t_ns": now.as_nanos(),
            "began_ns": self.began().as_nanos(),
            "uri": self.uri(),
            "set": self.set_to_json(now),
            "members": members.iter().map(|member| member_to_json(member, now)).collect::<Value>(),
            "elections": self.elections().map(election_to_json).collect::<Value>(),
            "writes": self.writes_to_json(now),
            "log": entries.into_iter().rev().map(|e| entry_to_json(e, now)).collect::<Value>(),
        })
    }

    fn set_to_json(&self, now: MonotonicTime) -> Value {
        let facts = self.facts(now);
        json!({
            "type": facts.topology_type.name(),
            "name": facts.set_name,
            "primary": facts.primary.map(ServerAddress::as_str),
            "has_primary": facts.primary.is_some(),
            "without_primary_ms": facts.without_primary.map(millis),
            "term": facts.term,
            "up": facts.up,
            "members": facts.members,
            "locked": facts.locked.map(ServerAddress::as_str),
            "login": facts.login,
            "votes": facts.votes,
            "votes_up": facts.votes_up,
            "votes_needed": facts.votes_needed,
            "has_majority": facts.has_majority(),
            "election_reason": facts.election_reason,
            "explanation": facts.explanation.as_deref(),
            "incompatible": facts.incompatible,
            "writes_per_second": facts.writes_per_second,
            "reads_per_second": facts.reads_per_second,
            "transactions": facts.transactions.map(|told| transactions_to_json(&told)),
        })
    }

    fn writes_to_json(&self, now: MonotonicTime) -> Value {
        let writes = self.writes();
        let gaps = writes.gaps().map(|gap| {
            json!({
                "from_ns": gap.from.as_nanos(),
                "to_ns": gap.to.as_nanos(),
                "ms": millis(gap.length()),
            })
        });
        json!({
            "any": writes.any(),
            "acknowledged": writes.acknowledged(),
            "failed": writes.failed(),
            "per_second": writes.per_second(),
            "history": writes.history().collect::<Vec<_>>(),
            "open_gap_ms": writes.open_gap(now).map(millis),
            "gaps": gaps.collect::<Value>(),
        })
    }
}

fn transactions_to_json(told: &Transactions) -> Value {
    json!({
        "open": told.open,
        "oldest_ms": told.oldest.map(millis),
        "waiting_writes": told.waiting_writes,
        "conflicts_per_second": told.conflicts,
        "words": told.words(),
    })
}

fn member_to_json(member: &MemberSummary<'_>, now: MonotonicTime) -> Value {
    let trouble = member.trouble.map(|trouble| trouble_to_json(trouble, now));
    let sync = member.initial_sync.map(|sync| {
        json!({
            "stage": sync.stage,
            "attempt": sync.attempt,
            "copied_bytes": sync.copied_bytes,
            "total_bytes": sync.total_bytes,
            "fraction": sync.fraction(),
            "remaining_ms": sync.remaining.map(millis),
        })
    });
    json!({
        "address": member.address.as_str(),
        "role": role(member.shown_type()),
        "client_type": member.client_type.map(ServerType::name),
        "own_type": member.own_type.map(ServerType::name),
        "state": member.state.map(|state| state.name()),
        "health": member.health.name(),
        "peers_up": member.peers.map(|peers| peers.up),
        "peers_asked": member.peers.map(|peers| peers.asked),
        "rtt_ms": member.round_trip.map(millis),
        "rtt_history_ms": member.round_trips.iter().map(|rtt| rtt.map(millis)).collect::<Vec<_>>(),
        "optime": member.op_time.map(|at| at.to_string()),
        "lag_ms": member.lag.map(millis),
        "oplog_window_ms": member.oplog_window.map(millis),
        "votes": member.votes,
        "priority": member.priority,
        "hidden": member.hidden,
        "sync_source": member.sync_source.as_ref().map(ServerAddress::as_str),
        "pool": {
            "state": member.pool.phase.name(),
            "total": member.pool.counts.total,
            "in_use": member.pool.in_use(),
            "waiting": member.pool.counts.waiting,
            "cleared": member.pool.cleared,
        },
        "writes_per_second": member.rates.writes,
        "reads_per_second": member.rates.reads,
        "connections": member.rates.connections,
        "error": trouble,
        "recovered": member.recovered,
        "dropped": member.dropped.map(|dropped| trouble_to_json(dropped, now)),
        "differences": member
            .differences
            .iter()
            .map(|difference| difference_to_json(difference, now))
            .collect::<Value>(),
        "initial_sync": sync,
        "process": member.process.map(|(pid, process)| process_to_json(pid, process)),
        "hello_age_ms": member.hello_at.map(|at| millis(now.since(at))),
        "silent_ms": member.silent_since.map(|since| millis(now.since(since))),
    })
}

fn trouble_to_json(trouble: &Trouble, now: MonotonicTime) -> Value {
    json!({
        "reason": trouble.reason,
        "at_ns": trouble.at.as_nanos(),
        "age_ms": millis(now.since(trouble.at)),
    })
}

fn difference_to_json(difference: &Difference, now: MonotonicTime) -> Value {
    json!({
        "aspect": difference.aspect.name(),
        "client": difference.client,
        "member": difference.member,
        "age_ms": millis(now.since(difference.since)),
    })
}

fn process_to_json(pid: u32, process: &Process) -> Value {
    let how = match process {
        Process::Gone(how) => Some(how.as_str()),
        _ => None,
    };
    json!({"pid": pid, "state": process.name(), "how": how})
}

fn election_to_json(election: &Election) -> Value {
    json!({
        "at_ns": election.at.as_nanos(),
        "primary": election.primary.as_str(),
        "previous": election.previous.as_ref().map(ServerAddress::as_str),
        "term": election.term,
        "without_primary_ms": election.without_primary.map(millis),
        "write_gap_ms": election.write_gap.map(millis),
    })
}

fn entry_to_json(entry: &Entry, now: MonotonicTime) -> Value {
    json!({
        "number": entry.number,
        "at_ns": entry.at.as_nanos(),
        "age_ms": millis(entry.age(now)),
        "times": entry.times,
        "kind": entry.kind.name(),
        "member": entry.member.as_ref().map(ServerAddress::as_str),
        "text": entry.text,
    })
}

fn millis(span: Duration) -> f64 {
    // Microseconds are as fine as anything here is measured.
    (span.as_secs_f64() * 1e6).round() / 1e3
}
