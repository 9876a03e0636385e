//! `replSetGetStatus` and `quorateExplainElection`. docs/replication-rules.md#tools.

use bson::{Bson, Document, doc};
use quorate_node::{CommandError, ErrorCode, Now};
use quorate_protocol::{MonotonicTime, OpTimeAndWallTime};
use quorate_replication::{Contact, MemberView, Status};
use quorate_wire::replica_set::optime_document;
use quorate_wire::{to_bson_date_time, to_bson_timestamp};

use quorate_member::CloneProgress;

pub(super) fn status_document(
    status: Status<'_>,
    now: Now,
    progress: &CloneProgress,
) -> Result<Document, CommandError> {
    let (Some(config), Some(counts)) = (status.config(), status.counts()) else {
        return Err(CommandError::new(
            ErrorCode::NOT_YET_INITIALIZED,
            "no replset config has been received; run rs.initiate() on one member",
        ));
    };
    let members = status.members();
    let source = status.sync_source();
    let source_id = source.as_ref().and_then(|source| config.member_at(source));
    let shown = members.iter().map(|member| Bson::from(member_document(status, member, now)));
    let optimes = doc! {
        "lastCommittedOpTime": optime_document(status.commit_point().op_time),
        "lastCommittedWallTime": to_bson_date_time(status.commit_point().wall_time),
        "readConcernMajorityOpTime": optime_document(status.commit_point().op_time),
        "appliedOpTime": optime_document(status.applied().op_time),
        "durableOpTime": optime_document(status.durable().op_time),
        "writtenOpTime": optime_document(status.written().op_time),
        "lastAppliedWallTime": to_bson_date_time(status.applied().wall_time),
        "lastDurableWallTime": to_bson_date_time(status.durable().wall_time),
        "lastWrittenWallTime": to_bson_date_time(status.written().wall_time),
    };
    let mut document = doc! {
        "set": &config.set_name,
        "date": to_bson_date_time(now.wall),
        "myState": status.state().number(),
        "term": status.term().0,
        "syncSourceHost": source.as_ref().map_or("", |source| source.as_str()),
        "syncSourceId": source_id.map_or(-1, |member| member.id.0),
        "heartbeatIntervalMillis": config.settings.heartbeat_interval_millis,
        "majorityVoteCount": counts.majority_vote as i32,
        "writeMajorityCount": counts.write_majority as i32,
        "votingMembersCount": counts.voters as i32,
        "writableVotingMembersCount": counts.writable_voters as i32,
        "optimes": optimes,
    };
    if let Some((reason, at)) = status.election() {
        let mut metrics = doc! { "lastElectionReason": reason.name() };
        metrics.insert("electionTerm", status.term().0);
        if let Some(at) = at {
            metrics.insert("electionTimestamp", to_bson_timestamp(at));
        }
        document.insert("electionCandidateMetrics", metrics);
    }
    if let Some((stage, attempt)) = status.initial_sync() {
        document.insert("initialSyncStatus", progress.document(stage, attempt, now));
    }
    document.insert("members", shown.collect::<Vec<_>>());
    document.insert("ok", 1.0);
    Ok(document)
}

fn member_document(status: Status<'_>, member: &MemberView, now: Now) -> Document {
    let up = member.contact == Contact::Up;
    let mut document = doc! {
        "_id": member.id.0,
        "name": member.address.as_str(),
        "health": if up { 1.0 } else { 0.0 },
        "state": member.state.number(),
        "stateStr": member.state.name(),
        "uptime": if up { status.uptime(now.monotonic).as_secs() as i64 } else { 0 },
    };
    let put = |document: &mut Document, name: &str, at: OpTimeAndWallTime| {
        document.insert(name, optime_document(at.op_time));
        document.insert(format!("{name}Date"), to_bson_date_time(at.wall_time));
    };
    put(&mut document, "optime", member.applied);
    put(&mut document, "optimeDurable", member.durable);
    if !member.is_self {
        if let Some(at) = member.last_heard {
            document.insert("lastHeartbeat", wall_time_of(at, now));
        }
        if let Some(at) = member.last_heartbeat_received {
            document.insert("lastHeartbeatRecv", wall_time_of(at, now));
        }
        let ping = member.ping.map_or(0, |ping| ping.as_millis() as i64);
        document.insert("pingMs", ping);
        document.insert("lastHeartbeatMessage", if up { "" } else { "the member does not answer" });
    }
    let source = member.sync_source.as_ref();
    document.insert("syncSourceHost", source.map_or("", |source| source.as_str()));
    let source_id = source.and_then(|source| status.config()?.member_at(source));
    document.insert("syncSourceId", source_id.map_or(-1, |member| member.id.0));
    let trouble = if member.is_self { status.trouble() } else { None };
    document.insert("infoMessage", trouble.unwrap_or_default());
    if let Some(at) = member.election_time {
        document.insert("electionTime", to_bson_timestamp(at));
        document.insert("electionDate", bson::DateTime::from_millis(i64::from(at.seconds) * 1000));
    }
    if let Some(version) = member.config_version {
        document.insert("configVersion", version.version as i32);
        document.insert("configTerm", version.term.map_or(-1, |term| term.0));
    }
    if member.is_self {
        document.insert("self", true);
    }
    document
}

/// `quorateExplainElection`: its shape is in `docs/replication.md`.
pub(super) fn explanation_document(status: Status<'_>, now: Now) -> Result<Document, CommandError> {
    let explanation = status.explain();
    let host = |id| status.address_of(id).map_or("", |address| address.as_str());
    let members = explanation.members.iter().map(|member| {
        let mut document = doc! {
            "_id": member.id.0,
            "host": member.host.as_str(),
            "self": member.is_self,
            "votes": member.votes as i32,
            "priority": member.priority.0,
            "state": member.state.number(),
            "stateStr": member.state.name(),
            "reachable": member.is_reachable(),
            "optime": optime_document(member.applied.op_time),
            "optimeDate": to_bson_date_time(member.applied.wall_time),
            "secondsBehind": i64::from(member.seconds_behind),
            "canLead": member.obstacle.is_none(),
        };
        if let Some(at) = member.last_heard {
            document.insert("lastHeard", wall_time_of(at, now));
        }
        if let Contact::Down { since, cause } = member.contact {
            document.insert("downSince", wall_time_of(since, now));
            document.insert("downBecause", cause.to_string());
        }
        if let Some(obstacle) = &member.obstacle {
            document.insert("cannotLeadBecause", format!("it {obstacle}"));
        }
        if let Some(veto) = member.last_veto {
            let by = doc! {
                "by": veto.by.0,
                "byHost": host(veto.by),
                "reason": veto.veto.to_string(),
                "at": wall_time_of(veto.at, now),
            };
            document.insert("lastVeto", by);
        }
        Bson::from(document)
    });
    let mut document = doc! {
        "set": status.config().map_or("", |config| config.set_name.as_str()),
        "term": explanation.term.0,
        "me": explanation.me.map_or(-1, |id| id.0),
        "primaryId": explanation.primary.map_or(-1, |id| id.0),
        "primary": explanation.primary.map_or("", host),
        "summary": explanation.summary(),
        "voters": explanation.voters as i32,
        "votesVisible": explanation.votes_visible as i32,
        "votesNeeded": explanation.votes_needed as i32,
        "vetoedDryRuns": explanation.vetoed_dry_runs as i32,
        "campaigning": explanation.campaigning,
        "members": members.collect::<Vec<_>>(),
        "text": explanation.to_string(),
    };
    if let Some(last) = &explanation.last_campaign {
        let last = doc! {
            "reason": last.reason.name(),
            "term": last.term.0,
            "outcome": &last.outcome,
            "at": wall_time_of(last.at, now),
        };
        document.insert("lastCampaign", last);
    }
    document.insert("ok", 1.0);
    Ok(document)
}

/// When something happened, by the wall clock of this member.
fn wall_time_of(at: MonotonicTime, now: Now) -> bson::DateTime {
    let elapsed = now.monotonic.since(at).as_millis() as i64;
    bson::DateTime::from_millis(now.wall.as_millis() - elapsed)
}
