//! What the descriptions of all servers say together.

use std::sync::LazyLock;

use quorate_protocol::Counted;
use regex_lite::Regex;

use super::servers::{DescribedServer, compiled};
use super::{Context, rules};
use crate::finding::Finding;
use crate::remedy;
use crate::words::listed;

static TOPOLOGY: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r#"(?:topology_type: |\(topology |Topology type: |[Tt]opologyDescription \{\s*type: '|(?:topology|Topology): \{ Type: |cluster state is \{\s*(?:ClusterId : [^,]+, )?[Tt]ype ?[=:] ?\x22?)(?P<kind>[A-Za-z_]+)"#,
    )
});

/// The type of the topology that the text describes, in the specification's words.
pub(super) fn topology_type(text: &str) -> Option<String> {
    let kind = TOPOLOGY.captures(text)?.name("kind")?.as_str();
    Some(
        match kind {
            "REPLICA_SET" | "ReplicaSet" => {
                let primary = ["REPLICA_SET_PRIMARY", "ReplicaSetPrimary"];
                match primary.iter().any(|name| text.contains(name)) {
                    true => "ReplicaSetWithPrimary",
                    false => "ReplicaSetNoPrimary",
                }
            }
            "STANDALONE" | "Standalone" => "Single",
            "SHARDED" => "Sharded",
            "UNKNOWN" => "Unknown",
            other => other,
        }
        .to_owned(),
    )
}

/// Findings that follow from the servers rather than from words.
pub(super) fn findings(context: &Context, cause_found: bool) -> Vec<Finding> {
    let servers = &context.servers;
    let mut findings = Vec::new();
    if servers.is_empty() {
        return findings;
    }
    let never: Vec<&DescribedServer> =
        servers.iter().filter(|server| is_unknown(server) && server.error.is_none()).collect();
    if never.len() == servers.len() || (!never.is_empty() && !cause_found) {
        findings.push(never_checked(&never));
    }
    findings.extend(direct_to_secondary(context));
    findings.extend(no_primary(context));
    findings.extend(nobody_serves(context));
    findings.extend(primary_known(context, cause_found));
    findings
}

fn is_unknown(server: &DescribedServer) -> bool {
    server.kind.as_deref().is_none_or(|kind| kind == "Unknown" || kind == "PossiblePrimary")
}

fn never_checked(servers: &[&DescribedServer]) -> Finding {
    let names = listed(servers.iter().map(|server| &server.address));
    finding!(problem "never_checked", "no check of {names} has ended, neither well nor badly")
    .because(
        "Unknown without an error is not a failure: either the server takes the connection and never \
         answers, or the monitor never ran: the runtime was blocked, shut down or forked, or the \
         timeout is shorter than one connection takes",
    )
    .fix(remedy::doctor_which!("tells whether the server answers, plain or with TLS"))
    .fix("keep the runtime that made the client alive, and do not block its threads")
    .fix("make the client after forking, not before")
    .fix("raise serverSelectionTimeoutMS if it is below a second or two")
}

fn direct_to_secondary(context: &Context) -> Option<Finding> {
    let secondary =
        context.servers.iter().find(|server| server.kind.as_deref() == Some("RSSecondary"))?;
    if context.topology.as_deref() != Some("Single") {
        return None;
    }
    Some(
        finding!(problem "direct_to_secondary",
            "mode Single (directConnection=true): {} is a secondary", secondary.address)
        .because("the client uses this one server whatever it is; writes fail here")
        .fix(remedy::connect_to_set("NAME"))
        .fix(remedy::READ_HERE),
    )
}

/// No member is primary: by the votes that can be seen, can one be?
fn no_primary(context: &Context) -> Option<Finding> {
    let servers = &context.servers;
    let answering = servers.iter().filter(|server| !is_unknown(server)).count();
    let primary = servers.iter().any(|server| server.kind.as_deref() == Some("RSPrimary"));
    let member = |server: &DescribedServer| {
        server.kind.as_deref().is_some_and(|kind| matches!(kind, "RSSecondary" | "RSArbiter"))
    };
    if !context.is_replica_set() || primary || !servers.iter().any(member) {
        return None;
    }
    let needed = servers.len() / 2 + 1;
    let silent = listed(servers.iter().filter(|server| is_unknown(server)).map(|s| &s.address));
    let seen = format!(
        "no primary: {answering} of {} answer, an election needs {needed} votes",
        Counted(servers.len(), "server")
    );
    let finding = Finding::problem("no_primary", seen);
    Some(if answering >= needed {
        finding
            .because(
                "enough members answer this client, so that an election is under way, keeps \
                      failing, or the members cannot see each other",
            )
            .fix(remedy::try_again("mongosh URI --eval 'rs.status()' on one that answers"))
            .fix(
                "check priority and votes: mongosh URI --eval 'rs.conf().members.map(m => [m.host, \
                  m.priority, m.votes])'",
            )
    } else {
        finding
            .because(
                "votes are counted against all members, not against those that are up; \
                      without a majority no member may lead",
            )
            .fix(format!("see from here which of them answer: {}", doctor(context)))
            .fix(remedy::reconnect(&silent))
    })
}

/// The examination of the deployment that the message is about.
fn doctor(context: &Context) -> String {
    let known = context.uri.as_ref().map(ToString::to_string);
    remedy::quorate("doctor", known.as_deref().unwrap_or("URI"))
}

/// Members that answer, but are neither primary nor secondary.
fn nobody_serves(context: &Context) -> Option<Finding> {
    let answering: Vec<_> = context.servers.iter().filter(|server| !is_unknown(server)).collect();
    let is_other = |server: &&DescribedServer| server.kind.as_deref() == Some("RSOther");
    if answering.is_empty() || !answering.iter().all(is_other) {
        return None;
    }
    let names = listed(answering.iter().map(|server| &server.address));
    Some(
        finding!(problem "nobody_serves",
            "{names} answer, but none of them is primary or secondary")
        .because("such members are hidden, starting up, syncing, recovering or were removed")
        .fix(format!("ask one: {}", remedy::on_uri(remedy::MEMBER_STATES)))
        .fix("if it says that it is not a member: rs.conf() on another one, and rs.reconfig"),
    )
}

/// A timeout although a primary is known: then the wish is at fault.
fn primary_known(context: &Context, cause_found: bool) -> Option<Finding> {
    let primary =
        context.servers.iter().find(|server| server.kind.as_deref() == Some("RSPrimary"))?;
    if cause_found || !context.is_replica_set() {
        return None;
    }
    let loopback = rules::is_loopback(primary.address.split(':').next().unwrap_or_default());
    let here = if loopback { ", this machine" } else { "" };
    Some(
        finding!(problem "primary_known",
            "the client knows a primary ({}{here}), yet found no server that suits",
            primary.address)
        .because("the read preference asks for a secondary, tags or freshness that no member has")
        .fix(
            "readPreference=secondaryPreferred, or correct readPreferenceTags and \
              maxStalenessSeconds",
        )
        .fix(remedy::doctor_which!("tells what each member lacks")),
    )
}
