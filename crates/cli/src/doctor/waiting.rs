//! Findings about waiting inside a server: writes behind a transaction or a slow majority, and consumers behind the oplog.

use bson::RawDocument;
use quorate_protocol::ServerAddress;

use super::examination::Examination;
use crate::finding::Finding;

/// A transaction may be open for this long before it is said to hold others up.
const PATIENT_MICROS: u64 = 5_000_000;

/// A change stream may be behind by this much before it is mentioned.
const PATIENT_SECONDS: u64 = 60;

/// The findings from `serverStatus` about transactions, flow control and change streams.
pub(super) fn findings(
    seen: &Examination,
    address: &ServerAddress,
    status: &RawDocument,
) -> Vec<Finding> {
    let held_up = held_up(seen, address, status);
    let slowed = slowed(seen, address, status);
    held_up.into_iter().chain(slowed).chain(falling_behind(seen, address, status)).collect()
}

fn held_up(seen: &Examination, address: &ServerAddress, status: &RawDocument) -> Option<Finding> {
    let section = status.get_document("transactions").ok()?;
    let (waiting, open) = (count(section, "waitingWrites")?, count(section, "oldestOpenMicros")?);
    if waiting == 0 || open < PATIENT_MICROS {
        return None;
    }
    let seconds = open / 1_000_000;
    let what = format!(
        "{address}: {waiting} writes wait for transactions, the oldest of which is open for \
         {seconds} s"
    );
    let list = "db.getSiblingDB('admin').aggregate([{$currentOp: {allUsers: true, idleSessions: \
                true}}, {$match: {type: 'idleSession'}}])";
    Some(
        Finding::warning("transaction_holds_others_up", what)
            .because(
                "an application began a transaction and does not end it: what it changed stays \
                 locked until transactionLifetimeLimitSeconds (60)",
            )
            .fix(seen.mongosh_on(address, list))
            .fix("end its session: db.adminCommand({killSessions: [lsid]})"),
    )
}

fn slowed(seen: &Examination, address: &ServerAddress, status: &RawDocument) -> Option<Finding> {
    let section = status.get_document("flowControl").ok()?;
    if !section.get_bool("isLagged").ok()? {
        return None;
    }
    let rate = count(section, "targetRateLimit")?;
    let what = format!(
        "{address} slows its writers to {rate} writes a second: a majority of the members does not \
         keep up"
    );
    Some(
        Finding::warning("flow_control", what)
            .because(
                "what no majority has would be lost with this member, and the others would fall out of \
                 its oplog",
            )
            .fix(seen.mongosh_on(address, "rs.printSecondaryReplicationInfo()"))
            .fix("help the members that lag: disk, network, or a load of reads that can go elsewhere"),
    )
}

fn falling_behind(
    seen: &Examination,
    address: &ServerAddress,
    status: &RawDocument,
) -> Option<Finding> {
    let section = status.get_document("changeStreams").ok()?;
    let behind = count(section, "mostSecondsBehind")?;
    let left = count(section, "leastSecondsLeft")?;
    if behind < PATIENT_SECONDS || left >= behind {
        return None;
    }
    let what = format!(
        "{address}: a change stream is {behind} s behind, and the oplog reaches back {left} s \
         before it"
    );
    let list = "db.getSiblingDB('admin').aggregate([{$currentOp: {allUsers: true, idleCursors: \
                true}}, {$match: {type: 'idleCursor'}}])";
    Some(
        Finding::warning("change_stream_falls_behind", what)
            .because("it ends with ChangeStreamHistoryLost (286) once the oplog has moved past it")
            .fix(seen.mongosh_on(address, list))
            .fix("give the oplog more room: db.adminCommand({replSetResizeOplog: 1, size: MB})"),
    )
}

/// A counter of a section of `serverStatus`.
pub(super) fn count(section: &RawDocument, name: &str) -> Option<u64> {
    let value = section.get(name).ok().flatten()?;
    let number = value.as_i64().or_else(|| value.as_i32().map(i64::from))?;
    u64::try_from(number).ok()
}
