//! Findings about the deployment as a whole: set names, votes, arbiters, reads and writes.
//!
//! A function of the facts, and of the topology that the discovery core derives from them.

use std::time::Duration;

use quorate_connection_string::WriteAcknowledgement;
use quorate_protocol::{Counted, HelloReply, ReadPreferenceMode, ServerAddress};
use quorate_server_discovery::{
    RemovalReason, SelectionFailure, SelectionRequest, ServerType, TopologyType, Verdict,
};

use super::examination::Examination;
use super::inside::Inside;
use crate::clock;
use crate::explain::{self, Election, Reason};
use crate::finding::{Finding, Stops};
use crate::remedy;
use crate::words::{Foreign, listed};

/// How far behind the primary a secondary may be without a word.
const TOLERATED_LAG: Duration = Duration::from_secs(10);

/// How far clocks may differ without a word.
const TOLERATED_SKEW_MS: i64 = 2_000;

/// Everything about the deployment. `explained` tells that a problem was found already.
pub(super) fn findings(
    seen: &Examination,
    inside: Option<&Inside>,
    explained: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(two_sets(seen));
    findings.extend(set_names(seen));
    findings.extend(never_initiated(seen));
    findings.extend(incompatible(seen));
    findings.extend(direct(seen));
    findings.extend(nobody_serves(seen));
    findings.extend(votes(seen));
    findings.extend(lag(seen));
    findings.extend(clocks(seen));
    let explained =
        explained || !findings.iter().all(|f| f.severity != crate::finding::Severity::Problem);
    findings.extend(writes(seen, inside, explained));
    findings.extend(reads(seen));
    findings
}

fn kind_of(seen: &Examination, address: &ServerAddress) -> Option<ServerType> {
    Some(ServerType::from_reply(&seen.probes.get(address)?.answer()?.reply))
}

/// Seeds of unrelated deployments that happen to share a name: each knows nothing of the other.
fn two_sets(seen: &Examination) -> Option<Finding> {
    let seeds: Vec<_> = seen
        .answers()
        .filter(|(address, answer)| {
            seen.is_seed(address) && answer.reply.members().next().is_some()
        })
        .collect();
    let (first, first_answer) = seeds.first()?;
    let (second, second_answer) = seeds.iter().find(|(_, answer)| {
        answer.reply.set_name == first_answer.reply.set_name
            && !answer
                .reply
                .members()
                .any(|member| first_answer.reply.members().any(|other| other == member))
    })?;
    let name = first_answer.reply.set_name.as_deref().unwrap_or_default();
    let hosts = |reply: &HelloReply| listed(reply.members());
    Some(
        finding!(problem "two_sets",
            "{first} and {second} belong to two different sets that are both called {}: one has \
             {}, the other has {}",
            Foreign(name), hosts(&first_answer.reply), hosts(&second_answer.reply))
        .because(
            "a client uses the set whose primary answers first and drops the hosts of the other: \
             reads and writes go to one of them by chance",
        )
        .fix(format!("keep the hosts of one set: {}", hosts_of(seen, &first_answer.reply)))
        .fix(format!("or of the other: {}", hosts_of(seen, &second_answer.reply))),
    )
}

/// The examined connection string with these hosts alone.
fn hosts_of(seen: &Examination, reply: &HelloReply) -> String {
    let text = seen.uri.to_string();
    let rest = text.split_once("://").map_or(text.as_str(), |(_, rest)| rest);
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let login = rest[..end].rsplit_once('@').map(|(login, _)| format!("{login}@"));
    let hosts = listed_hosts(reply.members());
    format!("mongodb://{}{hosts}{}", login.unwrap_or_default(), &rest[end..])
}

/// Members that answer, none of which is primary or secondary.
fn nobody_serves(seen: &Examination) -> Option<Finding> {
    let kinds: Vec<(&ServerAddress, ServerType)> = seen
        .answers()
        .map(|(address, answer)| (address, ServerType::from_reply(&answer.reply)))
        .collect();
    let others: Vec<&ServerAddress> = kinds
        .iter()
        .filter(|(_, kind)| *kind == ServerType::RsOther)
        .map(|(address, _)| *address)
        .collect();
    let serves = |kind: ServerType| kind.is_data_bearing();
    if others.is_empty() || kinds.iter().any(|(_, kind)| serves(*kind)) {
        return None;
    }
    let state = remedy::MEMBER_STATES;
    Some(
        finding!(problem "nobody_serves",
            "{} answer, but none of them is primary or secondary", listed(&others))
        .because("such members start up, copy the data, recover, or were removed from their set")
        .fix(seen.mongosh_on(others[0], state))
        .stopping(Stops::Everything),
    )
}

fn set_names(seen: &Examination) -> Vec<Finding> {
    let Some(wanted) = seen.uri.options().replica_set.as_deref() else { return Vec::new() };
    let mut findings = Vec::new();
    for (address, answer) in seen.answers() {
        let kind = ServerType::from_reply(&answer.reply);
        match answer.reply.set_name.as_deref() {
            Some(name) if name == wanted => {}
            Some(name) => {
                let name = Foreign(name);
                findings.push(
                    finding!(problem "wrong_set_name",
                        "the URI says {wanted}, {address} says {name}: the host is removed")
                    .because("drivers drop a host whose set has another name")
                    .fix(remedy::name_set(name))
                    .fix(remedy::members_of(wanted)),
                );
            }
            None if kind == ServerType::Standalone => findings.push(
                finding!(problem "no_set",
                    "the URI says {wanted}, {address} is a standalone and belongs to no set")
                .because(
                    "drivers drop it; a standalone has no oplog, no failover and no transactions",
                )
                .fix(remedy::NAME_NO_SET)
                .fix(remedy::make_member(
                    wanted,
                    &seen.mongosh_on(address, &remedy::initiate(wanted, [address.as_str()])),
                )),
            ),
            None if kind == ServerType::Mongos => findings.push(
                finding!(problem "mongos_with_set_name",
                    "the URI says {wanted}, {address} is a mongos")
                .because("a mongos belongs to no set, and drivers that look for one drop it")
                .fix(remedy::NAME_NO_SET),
            ),
            None => {}
        }
    }
    findings
}

fn never_initiated(seen: &Examination) -> Option<Finding> {
    let ghosts: Vec<&ServerAddress> = seen
        .answers()
        .filter(|(_, answer)| ServerType::from_reply(&answer.reply) == ServerType::RsGhost)
        .map(|(address, _)| address)
        .collect();
    if ghosts.is_empty() {
        return None;
    }
    let name = seen.uri.options().replica_set.as_deref().unwrap_or("NAME");
    let script = remedy::initiate(name, ghosts.iter().map(|ghost| ghost.as_str()));
    Some(
        finding!(problem "never_initiated",
            "{} started with a set name, but without a configuration", listed(&ghosts))
        .because(
            "the set was never initiated, or its configuration no longer names this host; \
             no member can be elected",
        )
        .fix(format!(
            "if it is new, with the name given to --replSet: {}",
            seen.mongosh_on(ghosts[0], &script)
        ))
        .fix(format!(
            "if it was a member before, its address has changed; give its old entry this one on \
             the primary of its set: {}",
            remedy::mongosh(
                "URI_OF_ITS_SET",
                &remedy::rename_member("OLD_NAME:27017", ghosts[0].as_str())
            )
        ))
        .stopping(Stops::Everything),
    )
}

fn incompatible(seen: &Examination) -> Option<Finding> {
    let error = seen.topology.compatibility_error()?;
    Some(
        Finding::problem("wire_version", Foreign(error).to_string())
            .because("driver and server share no wire version, and the whole deployment is refused")
            .fix("upgrade the older of the two"),
    )
}

/// Findings about a direct connection.
fn direct(seen: &Examination) -> Option<Finding> {
    if seen.uri.options().direct_connection != Some(true) {
        return None;
    }
    let (address, answer) = seen.answers().next()?;
    let kind = ServerType::from_reply(&answer.reply);
    let primary = answer.reply.primary.as_ref();
    let elsewhere = primary.map_or_else(
        || "it knows no primary".to_owned(),
        |primary| format!("the primary is {primary}"),
    );
    match kind {
        ServerType::RsSecondary | ServerType::RsArbiter | ServerType::RsOther => Some(
            finding!(problem "direct_to_other",
                "mode Single (directConnection=true): {address} is {kind}, so writes fail; \
                 {elsewhere}")
            .because("a direct connection uses this one server whatever it is, and never another")
            .fix(format!(
                "mongodb://{}/?replicaSet={} in place of this connection string",
                listed_hosts(answer.reply.hosts.iter()),
                answer.reply.set_name.as_deref().unwrap_or("NAME")
            ))
            .fix(remedy::READ_HERE),
        ),
        ServerType::RsPrimary => Some(
            finding!(warning "direct_to_primary",
                "mode Single (directConnection=true): {address} is the primary now")
            .because(
                "there is no failover: when another member is elected, writes fail here \
                 until the connection string is changed",
            )
            .fix(remedy::connect_to_set(answer.reply.set_name.as_deref().unwrap_or("NAME"))),
        ),
        _ => None,
    }
}

fn listed_hosts<'a>(hosts: impl Iterator<Item = &'a ServerAddress>) -> String {
    hosts.map(ServerAddress::as_str).collect::<Vec<_>>().join(",")
}

/// The members of the set by the primary's list, or by the longest one.
struct Members<'a> {
    data: Vec<&'a ServerAddress>,
    arbiters: Vec<&'a ServerAddress>,
}

impl<'a> Members<'a> {
    fn of(seen: &'a Examination) -> Option<Self> {
        let (_, answer) = seen
            .answers()
            .filter(|(_, answer)| answer.reply.members().next().is_some())
            .max_by_key(|(_, answer)| {
                (answer.reply.is_writable_primary, answer.reply.members().count())
            })?;
        let reply = &answer.reply;
        Some(Self {
            data: reply.hosts.iter().chain(&reply.passives).collect(),
            arbiters: reply.arbiters.iter().collect(),
        })
    }

    fn count(&self) -> usize {
        self.data.len() + self.arbiters.len()
    }

    fn majority(&self) -> usize {
        self.count() / 2 + 1
    }
}

/// Findings about votes, majorities and arbiters.
fn votes(seen: &Examination) -> Vec<Finding> {
    let Some(members) = Members::of(seen) else { return Vec::new() };
    if seen.uri.options().direct_connection == Some(true) {
        return Vec::new();
    }
    // Without a primary no write is acknowledged at all, which is another finding.
    let has_arbiters = !members.arbiters.is_empty() && seen.topology.primary().is_some();
    let mut findings = if has_arbiters { arbiters(seen, &members) } else { Vec::new() };
    if members.count() == 2 {
        findings.push(
            Finding::warning("two_members", "two members vote: losing either stops writes")
                .because("a majority of two is two")
                .fix(format!(
                    "add a third member that holds data: {}",
                    seen.mongosh("rs.add(\"HOST:27017\")")
                )),
        );
    }
    findings
}

/// Findings about arbiters in a set that has a primary.
fn arbiters(seen: &Examination, members: &Members<'_>) -> Vec<Finding> {
    let holds_data = |address: &&&ServerAddress| {
        let kind = kind_of(seen, address);
        matches!(kind, Some(ServerType::RsPrimary | ServerType::RsSecondary))
    };
    let answering = members.data.iter().filter(holds_data).count();
    let majority = members.majority();
    let count = members.arbiters.len();
    let (data, told_data) = (members.data.len(), Counted(members.data.len(), "data member"));
    let mut findings = Vec::new();
    if answering < majority {
        let answer = if answering == 1 { "answers" } else { "answer" };
        let waits = seen.uri.options().w == Some(WriteAcknowledgement::Majority);
        findings.push(
            finding!(problem "majority_without_data",
                "majority needs {majority} data members, {answering} {answer} here: w: \
                 \"majority\" cannot complete")
            .because(format!(
                "the set has {told_data} and {}; arbiters vote, but acknowledge no \
                 write",
                Counted(count, "arbiter")
            ))
            .fix("start the missing data member")
            .fix("until then, w=1 is acknowledged, and may be rolled back")
            .stopping(if waits { Stops::Writes } else { Stops::Nothing }),
        );
    } else if data.saturating_sub(1) < majority {
        findings.push(
            finding!(warning "arbiter_trap",
                "{told_data} and {}: losing one data member stops w: \"majority\"",
                Counted(count, "arbiter"))
            .because(
                "the arbiter keeps a primary elected that cannot commit anything by \
                 majority; memory and lag grow on it",
            )
            .fix(format!(
                "replace the arbiter by a data member: {}",
                seen.mongosh(&format!(
                    "rs.remove({}); rs.add(\"HOST:27017\")",
                    remedy::quoted(members.arbiters[0].as_str())
                ))
            )),
        );
    }
    if count > 1 {
        findings.push(
            finding!(warning "several_arbiters", "the set has {count} arbiters")
                .because("a majority may then hold fewer copies of the data than it seems")
                .fix(seen.mongosh(&format!(
                    "rs.remove({})",
                    remedy::quoted(members.arbiters[count - 1].as_str())
                ))),
        );
    }
    findings
}

fn lag(seen: &Examination) -> Vec<Finding> {
    let lags = seen.lags().into_iter().filter(|(_, lag)| *lag > TOLERATED_LAG);
    lags.map(|(address, lag)| {
        finding!(warning "lag", "{address} is {} s behind the primary", lag.as_secs())
            .because(
                "reads from it are old, and once it falls behind the oplog it must be synced anew",
            )
            .fix(seen.mongosh("rs.printSecondaryReplicationInfo(); rs.printReplicationInfo()"))
    })
    .collect()
}

fn clocks(seen: &Examination) -> Vec<Finding> {
    let skewed = seen.answers().filter_map(|(address, answer)| {
        let ahead = answer.clock_ahead_ms?;
        if ahead.abs() <= TOLERATED_SKEW_MS {
            return None;
        }
        let (seconds, way) = (ahead.abs() / 1000, if ahead > 0 { "ahead of" } else { "behind" });
        Some(
            finding!(warning "clock_skew",
                "the clock of {address} is {seconds} s {way} this machine's")
            .because("lag, TTL indexes, certificates and log files are judged by the clock")
            .fix("on both machines: timedatectl; chronyc tracking"),
        )
    });
    skewed.collect()
}

/// Whether a write finds a server, and if not, why.
fn writes(seen: &Examination, inside: Option<&Inside>, explained: bool) -> Option<Finding> {
    if seen.topology.has_writable_server() || seen.topology.compatibility_error().is_some() {
        return None;
    }
    // If a member says that it leads, an earlier finding says why it cannot be used from here.
    let is_led = seen
        .answers()
        .any(|(_, answer)| ServerType::from_reply(&answer.reply) == ServerType::RsPrimary);
    let is_set = seen.topology.topology_type() == TopologyType::ReplicaSetNoPrimary && !is_led;
    let election = inside.and_then(|inside| inside.election.as_ref()).filter(|_| is_set);
    if let Some(election) = election {
        let is_led = matches!(election.reason, Reason::Led(_));
        return (!is_led || !explained).then(|| unled(seen, election));
    }
    let failure = failed_selection(seen, &SelectionRequest::WRITE);
    match failure.verdict() {
        Verdict::NoPrimary { answering, members } => Some(counted(seen, *answering, *members)),
        // The findings so far say more than their sum.
        _ if explained && !is_set => None,
        _ if is_set => {
            let members = Members::of(seen).map_or(0, |members| members.count());
            let answering = seen.answers().count();
            (members > 0).then(|| counted(seen, answering, members))
        }
        verdict => {
            let (seen, step) = verdict.seen_and_remedy();
            Some(
                Finding::problem(verdict.name(), seen).because("no write finds a server").fix(step),
            )
        }
    }
}

const ALL_VOTES: &str = "votes are counted against all members of the configuration, not against \
                         those that are up";

/// No primary, as far as the lists of members tell: votes and priorities are not known.
fn counted(seen: &Examination, answering: usize, members: usize) -> Finding {
    let needed = members / 2 + 1;
    let told = format!("no primary: votes visible {answering} of {members}, need {needed}");
    match answering >= needed {
        true => Finding::problem("no_primary_elected", told)
            .because("enough members answer, so that an election is under way or keeps failing")
            .fix(remedy::try_again(&seen.quorate("status"))),
        false => Finding::problem("no_majority", told)
            .because(ALL_VOTES)
            .fix(remedy::reconnect("the others")),
    }
}

/// No primary, by the votes, priorities and states that the members report.
fn unled(seen: &Examination, election: &Election) -> Finding {
    let code = match &election.reason {
        Reason::NoMajority => "no_majority",
        Reason::ElectableDown(_) | Reason::NoneElectable => "nobody_electable",
        Reason::UnderWay | Reason::Led(_) => "no_primary_elected",
    };
    let finding = Finding::problem(code, explain::sentence(election));
    match &election.reason {
        Reason::NoMajority => finding
            .because(ALL_VOTES)
            .fix(remedy::reconnect(&listed(&election.down))),
        Reason::ElectableDown(members) => finding
            .because(
                "the others vote, but may not lead: they have priority 0, hold no data, or recover",
            )
            .fix(format!("start {}", listed(members)))
            .fix(format!(
                "once there is a primary, let another member be elected as well: {}",
                seen.mongosh("c = rs.conf(); c.members.find(m => m.host === \"HOST:27017\").priority = 1; rs.reconfig(c)")
            )),
        Reason::NoneElectable => finding
            .because("a candidate holds data, has a priority above 0 and is a secondary")
            .fix(format!("see what they wait for: {}", seen.quorate("status"))),
        Reason::UnderWay => finding
            .because("a majority and a candidate are up: an election is under way or keeps failing")
            .fix(remedy::try_again(&seen.quorate("status"))),
        Reason::Led(leader) => finding!(problem "primary_unusable",
            "the members say that {leader} leads, and it cannot be used from here")
        .because("the set is well; this client does not reach its primary")
        .fix(format!("make {leader} reachable from here: names, ports, firewall")),
    }
}

/// Whether the connection string's own read preference finds a server.
fn reads(seen: &Examination) -> Option<Finding> {
    let options = seen.uri.options();
    options.read_preference?;
    let preference = options.whole_read_preference();
    let request = SelectionRequest::read(&preference);
    let is_primary = preference.mode == ReadPreferenceMode::Primary;
    let text = match seen.topology.suitable_servers(&request) {
        Ok(servers) if servers.is_empty() && !is_primary => {
            if seen.topology.topology_type() == TopologyType::Unknown {
                // No server answered, which is an earlier finding.
                return None;
            }
            failed_selection(seen, &request).verdict().to_string()
        }
        Ok(_) => return None,
        Err(error) => error.to_string(),
    };
    let (why, step) = text.split_once("; ").unwrap_or((&text, "correct readPreference"));
    Some(
        finding!(problem "read_preference_unsatisfied",
            "a read from {preference} finds no server: {why}")
        .because("reads with this connection string wait for serverSelectionTimeoutMS and fail")
        .fix(step),
    )
}

fn failed_selection(seen: &Examination, request: &SelectionRequest<'_>) -> SelectionFailure {
    SelectionFailure::new(seen.topology.clone(), request, clock::now(), Duration::ZERO)
}

/// Hosts that a client drops, with the reason, for the summary.
pub(super) fn removals(seen: &Examination) -> Vec<(ServerAddress, String)> {
    let kept = |address: &ServerAddress| seen.topology.servers().get(address).is_some();
    let removed = seen.topology.removals().iter().filter(|removal| !kept(&removal.address));
    removed
        .map(|removal| {
            let reason = match &removal.reason {
                RemovalReason::CalledOtherwise { me } => format!("its set calls it {me}"),
                // The primary's name for itself says nothing about another host.
                RemovalReason::NotListedByPrimary { primary, me: Some(me) }
                    if *primary == removal.address =>
                {
                    format!("its set calls it {me}")
                }
                RemovalReason::NotListedByPrimary { primary, .. } => {
                    format!("the set of {primary} does not list it")
                }
                reason => reason.to_string(),
            };
            (removal.address.clone(), reason)
        })
        .collect()
}
