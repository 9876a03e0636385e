//! The report of a member about its set, after the login: the state of each member and its reason, how far the
//! oplog reaches back, and why no member leads.
//!
//! Asks with commands that change nothing. A command that a server does not know or refuses is passed over: the
//! stages before this one report the cause.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Document, rawdoc};
use quorate_client::dial::{Connection, Request, Stream};
use quorate_protocol::{MemberState, ServerAddress};
use quorate_wire::command_error;
use tokio::time::{sleep, timeout};

use super::examination::Examination;
use crate::explain::{self, Election};
use crate::finding::{Finding, Stops};
use crate::remedy;
use crate::view::reply::{self, Explanation, MemberStatus, SetSettings, SetStatus, whole};
use crate::words::Foreign;

/// Below this much oplog ahead of a member a word is in place: time to notice, and to act.
const COMFORTABLE_MARGIN: Duration = Duration::from_secs(60 * 60);

/// An oplog fuller than this throws its oldest entries away, or soon will. A younger one is short
/// because the set is young.
const FULL_SHARE: f64 = 0.9;

/// How long to wait before peers are asked again whose word contradicts a member's own: two
/// heartbeats and a little.
const HEARTBEATS: Duration = Duration::from_millis(2_200);

/// How often they are asked again.
const ASKED_AGAIN: usize = 2;

/// The report of one member about its set.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// Its view of every member.
    pub(crate) status: Option<SetStatus>,
    /// The members as the configuration has them.
    pub(crate) settings: Option<SetSettings>,
    /// The configuration as the member sent it.
    pub(crate) config: Option<Document>,
    /// Whether a server of ours answered, which explains its elections.
    pub(crate) is_ours: bool,
    /// The names of the configuration's own rules for `w`.
    pub(crate) write_modes: Option<Vec<String>>,
    /// Which member leads, or why none does.
    pub(crate) election: Option<Election>,
}

/// Asks everything of one member. `limit` bounds each question.
pub(super) async fn ask_all(
    connection: &mut Connection<Stream>,
    seen: &Examination,
    asked: &ServerAddress,
    limit: Duration,
) -> (Inside, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut inside = Inside::default();
    let config = rawdoc! { "replSetGetConfig": 1, "$db": "admin" };
    if let Some(reply) = ask(connection, config, limit).await {
        findings.extend(hasty_elections(&reply, seen));
        inside.settings = reply::set_settings(&reply);
        inside.write_modes = Some(write_modes(&reply));
        inside.config = reply.get_document("config").ok().cloned();
    }
    inside.status = set_status(connection, seen, limit).await;
    if let Some(status) = &inside.status {
        findings.extend(member_states(status, seen));
        inside.election =
            explain::explain(status, inside.settings.as_ref(), |member| seen.own_word(member));
    }
    let operations = rawdoc! { "currentOp": 1, "$db": "admin" };
    if let Some(reply) = ask(connection, operations, limit).await
        && reply.get_bool("fsyncLock").unwrap_or(false)
    {
        findings.push(fsync_locked(asked, seen));
    }
    let explain = rawdoc! { "quorateExplainElection": 1, "$db": "admin" };
    let explanation = ask(connection, explain, limit).await;
    let explanation = explanation.as_ref().and_then(reply::explanation);
    inside.is_ours = explanation.is_some();
    if seen.topology.primary().is_none() {
        findings.extend(explanation.and_then(|why| explained(why, seen)));
    } else if let Some(oplog) = Oplog::read(connection, limit).await {
        findings.extend(oplog_window(&oplog, &seen.lags(), seen));
    }
    (inside, findings)
}

/// The view that the member has of its peers. Where that contradicts a peer's own reply, the member may not have
/// heard of a change yet, and is asked again.
async fn set_status(
    connection: &mut Connection<Stream>,
    seen: &Examination,
    limit: Duration,
) -> Option<SetStatus> {
    let command = rawdoc! { "replSetGetStatus": 1, "$db": "admin" };
    let mut status = reply::set_status(&ask(connection, command.clone(), limit).await?);
    for _ in 0..ASKED_AGAIN {
        let stale = status.members.iter().any(|member| {
            let own = seen.own_word(&member.address);
            own.is_some() && member.state.is_some() && own != member.state
        });
        if !stale {
            break;
        }
        sleep(HEARTBEATS).await;
        match ask(connection, command.clone(), limit).await {
            Some(reply) => status = reply::set_status(&reply),
            None => break,
        }
    }
    Some(status)
}

fn write_modes(reply: &Document) -> Vec<String> {
    let settings = reply.get_document("config").and_then(|config| config.get_document("settings"));
    let modes = settings.and_then(|settings| settings.get_document("getLastErrorModes"));
    modes.map(|modes| modes.keys().cloned().collect()).unwrap_or_default()
}

/// Writes wait until the lock is taken away, without an error.
fn fsync_locked(address: &ServerAddress, seen: &Examination) -> Finding {
    finding!(problem "fsync_locked", "{address} is locked by fsync")
        .because("a backup tool locked it and did not unlock it: every write waits, and no error says so")
        .fix(seen.mongosh_on(address, "db.fsyncUnlock()"))
        .stopping(Stops::Writes)
}

/// The reply, if there is one and it is no error.
async fn ask(
    connection: &mut Connection<Stream>,
    command: RawDocumentBuf,
    limit: Duration,
) -> Option<Document> {
    let reply = timeout(limit, connection.round_trip(Request::new(&command))).await.ok()?.ok()?;
    match command_error(reply.body()) {
        Ok(None) => Document::try_from(reply.body()).ok(),
        _ => None,
    }
}

/// An election timeout that ends between two heartbeats.
fn hasty_elections(reply: &Document, seen: &Examination) -> Option<Finding> {
    let settings = reply.get_document("config").ok()?.get_document("settings").ok()?;
    let millis = |name: &str| whole(settings, name);
    let (election, heartbeat) =
        (millis("electionTimeoutMillis")?, millis("heartbeatIntervalMillis")?);
    (election <= heartbeat).then(|| {
        let what = format!(
            "electionTimeoutMillis ({election}) is not above heartbeatIntervalMillis ({heartbeat})"
        );
        Finding::warning("election_timeout", what)
            .because("a healthy primary that is idle is challenged between two heartbeats")
            .fix(
                seen.mongosh(
                    "c = rs.conf(); c.settings.electionTimeoutMillis = 10000; rs.reconfig(c)",
                ),
            )
    })
}

/// Members that neither lead nor follow, with what they say about it.
fn member_states(status: &SetStatus, seen: &Examination) -> Vec<Finding> {
    status.members.iter().filter_map(|member| member_state(status, member, seen)).collect()
}

fn member_state(status: &SetStatus, member: &MemberStatus, seen: &Examination) -> Option<Finding> {
    let name = &member.address;
    let told = member.message.as_ref();
    let text = told.map_or_else(String::new, |text| format!(": {}", Foreign(text)));
    let state = member.state?;
    // A member knows best what it is itself.
    if seen.own_word(name).is_some() {
        let unheard = matches!(state, MemberState::Down | MemberState::Unknown);
        return unheard.then(|| unheard_by_peers(name, &text, seen));
    }
    match state {
        MemberState::Startup2 => {
            let progress = if member.is_self { initial_sync(status) } else { None };
            let progress = progress.map_or(text, |progress| format!(": {progress}"));
            Some(
                finding!(warning "initial_sync", "{name} copies all data{progress}")
                    .because("until it is done it answers no reads and cannot be elected")
                    .fix(format!(
                        "wait; its progress: {}",
                        seen.mongosh_on(name, "rs.status().initialSyncStatus")
                    )),
            )
        }
        MemberState::Recovering => Some(recovering(name, told.map(String::as_str), seen)),
        MemberState::Rollback => Some(
            finding!(warning "rollback", "{name} undoes writes that no majority had{text}")
                .because("writes acknowledged with w=1 vanish from it; they are kept in files")
                .fix("look into the folder rollback of its data directory")
                .fix("write with w=majority what must not vanish"),
        ),
        MemberState::Removed => Some(
            finding!(problem "removed", "{name} is not in the configuration{text}")
                .because("the configuration lists other addresses than the one it goes by")
                .fix(format!(
                    "add it under the name that the others can reach: {}",
                    seen.mongosh(&format!("rs.add({})", remedy::quoted(name.as_str())))
                )),
        ),
        MemberState::Down | MemberState::Unknown => Some(
            finding!(warning "member_down", "{name} does not answer the others{text}")
                .because("what a majority must acknowledge waits for the members that are left")
                .fix(format!("start it, and from another member: nc -vz {}", nc(name.as_str()))),
        ),
        _ => None,
    }
}

/// A member that answers here and is not heard by the one that was asked.
fn unheard_by_peers(name: &ServerAddress, text: &str, seen: &Examination) -> Finding {
    finding!(warning "unheard_by_peers",
        "{name} answers here, but another member of its set does not hear it{text}")
    .because("the members are parted from each other: it neither votes nor acknowledges")
    .fix(format!("from the other members: nc -vz {}", nc(name.as_str())))
    .fix(seen.quorate("status"))
}

fn recovering(name: &ServerAddress, told: Option<&str>, seen: &Examination) -> Finding {
    let text = told.map_or_else(String::new, |text| format!(": {}", Foreign(text)));
    let finding = finding!(warning "recovering", "{name} is RECOVERING{text}")
        .because("it answers no reads and cannot be elected");
    let too_stale = told.is_some_and(|text| text.to_lowercase().contains("stale"));
    match too_stale {
        true => finding.fix(
            "it fell behind every oplog and says so: stop it, move its data directory away, start \
             it; it copies everything anew",
        ),
        false => finding
            .fix(format!(
                "see what it waits for: {}",
                seen.mongosh_on(name, "rs.status().members.find(m => m.self)")
            ))
            .fix(format!(
                "if it was put into maintenance: {}",
                seen.mongosh_on(name, "db.adminCommand({replSetMaintenance: false})")
            )),
    }
}

/// `host port` as nc takes them.
fn nc(address: &str) -> String {
    address
        .rsplit_once(':')
        .map_or_else(|| address.to_owned(), |(host, port)| format!("{host} {port}"))
}

/// How far a member is that copies everything, in its own words.
fn initial_sync(status: &SetStatus) -> Option<String> {
    let text = status.initial_sync.as_ref()?.stage.as_ref()?;
    Some(Foreign(text).to_string())
}

/// Why no member leads, as a member of ours explains it.
fn explained(explanation: Explanation, seen: &Examination) -> Option<Finding> {
    // A client may be without a primary that the members agree on: then the reason is elsewhere.
    if explanation.has_primary {
        return None;
    }
    Some(
        Finding::note("election", Foreign(explanation.summary?).to_string())
            .because("so says the member that was asked, from what it heard of the others")
            .fix(format!(
                "{} '{{quorateExplainElection: 1}}' --read-preference nearest",
                seen.quorate("run")
            )),
    )
}

/// The oplog of the asked member.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Oplog {
    /// From its oldest entry to its newest.
    window: Duration,
    /// How much of its room is used, if it says.
    used: Option<f64>,
}

impl Oplog {
    async fn read(connection: &mut Connection<Stream>, limit: Duration) -> Option<Self> {
        let oldest = edge(connection, 1, limit).await?;
        let newest = edge(connection, -1, limit).await?;
        let stats = rawdoc! { "collStats": "oplog.rs", "$db": "local" };
        let stats = ask(connection, stats, limit).await;
        let field = |name| stats.as_ref().and_then(|stats| whole(stats, name));
        let used = field("size").zip(field("maxSize")).filter(|(_, most)| *most > 0);
        Some(Self {
            window: Duration::from_secs(u64::from(newest.saturating_sub(oldest))),
            used: used.map(|(size, most)| size as f64 / most as f64),
        })
    }
}

/// The seconds of the first entry in this direction.
async fn edge(connection: &mut Connection<Stream>, way: i32, limit: Duration) -> Option<u32> {
    let find = rawdoc! {
        "find": "oplog.rs", "sort": { "$natural": way }, "projection": { "ts": 1 }, "limit": 1,
        "singleBatch": true, "$db": "local",
    };
    let reply = ask(connection, find, limit).await?;
    let batch = reply.get_document("cursor").ok()?.get_array("firstBatch").ok()?;
    let entry = batch.first()?.as_document()?;
    Some(entry.get_timestamp("ts").ok()?.time)
}

/// The members that fall off, and when.
fn oplog_window(
    oplog: &Oplog,
    lags: &[(ServerAddress, Duration)],
    seen: &Examination,
) -> Vec<Finding> {
    if oplog.used.is_some_and(|used| used < FULL_SHARE) {
        return Vec::new();
    }
    let window = minutes(oplog.window);
    let resize = "db.adminCommand({replSetResizeOplog: 1, size: MEGABYTES})";
    let enlarge = match seen.topology.primary() {
        Some(primary) => {
            format!("for each member, as here: {}", seen.mongosh_on(primary.address(), resize))
        }
        None => seen.mongosh(resize),
    };
    let mut findings: Vec<Finding> = lags
        .iter()
        .filter(|(_, lag)| *lag > Duration::from_secs(60))
        .filter(|(_, lag)| oplog.window.saturating_sub(*lag) < COMFORTABLE_MARGIN)
        .map(|(address, lag)| {
            let left = minutes(oplog.window.saturating_sub(*lag));
            finding!(problem "falls_off_oplog",
                "{address} falls off the oplog in {left} min (window {window} − lag {})",
                minutes(*lag))
            .because("the next entry it needs is then gone: it must copy everything anew")
            .fix(enlarge.as_str())
            .fix("find what slows it down: disk, network, or a long index build")
        })
        .collect();
    if findings.is_empty() && oplog.window < COMFORTABLE_MARGIN {
        findings.push(
            finding!(warning "short_oplog", "the oplog reaches back {window} min only")
                .because("a member that is away for longer must copy everything anew")
                .fix(enlarge),
        );
    }
    findings
}

fn minutes(span: Duration) -> u64 {
    span.as_secs() / 60
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing was asked of this deployment.
    fn seen() -> Examination {
        Examination::unasked("mongodb://b:1/?replicaSet=rs0")
    }

    fn oplog(minutes: u64, used: Option<f64>) -> Oplog {
        Oplog { window: Duration::from_secs(minutes * 60), used }
    }

    fn lag(minutes: u64) -> Vec<(ServerAddress, Duration)> {
        vec![("b:1".parse().expect("an address"), Duration::from_secs(minutes * 60))]
    }

    #[test]
    fn a_member_that_falls_off_is_told_when() {
        let findings = oplog_window(&oplog(90, Some(1.0)), &lag(49), &seen());
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].seen, "b:1 falls off the oplog in 41 min (window 90 − lag 49)");
    }

    #[test]
    fn an_election_timeout_between_two_heartbeats_is_told() {
        let settings = |election: i64, heartbeat: i64| {
            let settings = bson::doc! {
                "electionTimeoutMillis": election, "heartbeatIntervalMillis": heartbeat,
            };
            hasty_elections(&bson::doc! { "config": { "settings": settings } }, &seen())
        };
        assert!(settings(10_000, 2_000).is_none());
        assert!(settings(2_000, 2_000).is_some());
        assert!(hasty_elections(&Document::new(), &seen()).is_none(), "a server that does not say");
    }

    #[test]
    fn a_young_oplog_is_no_short_one() {
        assert!(oplog_window(&oplog(3, Some(0.1)), &lag(2), &seen()).is_empty());
        let findings = oplog_window(&oplog(3, Some(0.95)), &[], &seen());
        assert_eq!(findings[0].code, "short_oplog");
        assert!(oplog_window(&oplog(600, Some(0.95)), &lag(2), &seen()).is_empty());
    }

    #[test]
    fn states_that_neither_lead_nor_follow_are_told_with_their_message() {
        let status = bson::doc! { "members": [
            { "name": "a:1", "state": 1, "self": true },
            { "name": "b:1", "state": 3, "infoMessage": "90 s too stale" },
            { "name": "c:1", "state": 8, "lastHeartbeatMessage": "refused" },
            { "name": "d:1", "state": 99 },
        ] };
        let findings = member_states(&reply::set_status(&status), &seen());
        let told: Vec<_> = findings.iter().map(|finding| (finding.code, &*finding.seen)).collect();
        assert_eq!(
            told,
            [
                ("recovering", "b:1 is RECOVERING: 90 s too stale"),
                ("member_down", "c:1 does not answer the others: refused"),
            ]
        );
        assert!(
            findings[0].fixes[0].contains("copies everything anew"),
            "it says that it is stale"
        );
    }

    /// Emptying a data directory is proposed only to a member that says that it is too stale.
    #[test]
    fn a_member_that_recovers_is_not_wiped_on_suspicion() {
        let name = "b:1".parse().expect("an address");
        for told in [None, Some("applying what it missed")] {
            let finding = recovering(&name, told, &seen());
            let fixes = finding.fixes.join("\n");
            assert!(!fixes.contains("data directory"), "{fixes}");
            assert!(fixes.contains("mongodb://b:1/?directConnection=true"), "{fixes}");
        }
    }
}
