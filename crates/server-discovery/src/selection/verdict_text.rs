//! The words for each verdict: what is so, then the next step.

use std::fmt;
use std::time::Duration;

use quorate_protocol::{ServerAddress, TagSet};

use super::failure::MAX_CAUSE_LENGTH;
use super::failure_kind::FailureKind;
use super::text::{Interval, OneLine};
use super::verdict::{MAX_VOTING_MEMBERS, Verdict, majority};
use crate::fault::ServerFault;

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incompatible { error } => write!(f, "{error}; upgrade the older of the two"),
            Self::EmptiedBySetName { expected, found } => fmt_emptied(f, expected, found),
            Self::NoServers => f.write_str(
                "there is no server left to connect to; check the hosts in the connection string \
                 (or behind its SRV record), and that several seeds are members of one set or \
                 mongoses of one cluster",
            ),
            Self::NeverChecked { servers } => write!(
                f,
                "0 checks completed for {}; is the runtime shut down? Keep the runtime of the \
                 client alive and its threads unblocked; if it is only slow, raise \
                 serverSelectionTimeoutMS",
                Counted(*servers, "server")
            ),
            Self::AllFailing { failures, never_checked } => {
                fmt_failures(f, failures, *never_checked)
            }
            Self::AdvertisedUnusable { answered, me } => write!(
                f,
                "{answered} answered, but its set knows it as {me}, and no address that the set \
                 advertises is usable here; clients must use those, so make the names resolve here \
                 (a line in the hosts file), or advertise others (rs.reconfig), or connect with \
                 directConnection=true (without failover)"
            ),
            Self::NeverInitiated { ghosts, set_name } => {
                fmt_initiate(f, ghosts, set_name.as_deref())
            }
            Self::OnlyArbiters { arbiters } => write!(
                f,
                "{} answered, and arbiters hold no data; start the members that do, or add one \
                 with rs.add(\"host:port\")",
                Counted(*arbiters, "arbiter")
            ),
            Self::NothingReadable { answering } => write!(
                f,
                "{} answered, but none serves reads now (hidden, starting up, recovering); run \
                 rs.status() on one of them to see what it waits for",
                Counted(*answering, "member")
            ),
            Self::PrimaryUnusable { primary, said_by, fault } => {
                write!(f, "{said_by} says that {primary} is the primary, which ")?;
                fmt_unusable(f, fault.as_ref())
            }
            Self::NoPrimary { answering, members } => fmt_no_primary(f, *answering, *members),
            Self::NoSecondary => f.write_str(
                "the primary answers, but no secondary does; start one, or read with \
                 secondaryPreferred",
            ),
            Self::TooStale { max, freshest } => fmt_too_stale(f, *max, *freshest),
            Self::TagsMatchNothing { found } => fmt_tags(f, found),
            Self::RefusedBySelector { offered } => write!(
                f,
                "the application's own server selector refused all of {}; look there",
                Counted(*offered, "suitable server")
            ),
            Self::WrongKind { topology_type } => write!(
                f,
                "the servers that answer are no part of a deployment of type {topology_type}; \
                 check the hosts in the connection string"
            ),
            Self::SuitableNow { server } => {
                write!(f, "{server} has become suitable since; try again")
            }
        }
    }
}

fn fmt_failures(
    f: &mut fmt::Formatter<'_>,
    failures: &[(FailureKind, usize)],
    never_checked: usize,
) -> fmt::Result {
    let Some((first, count)) = failures.first() else { return Ok(()) };
    match (failures.len(), never_checked, *count) {
        (1, 0, 1) => write!(f, "the only server {}", first.symptom())?,
        (1, 0, count) => write!(f, "each of the {count} servers {}", first.symptom())?,
        _ => {
            f.write_str("no server is usable: ")?;
            for (position, (kind, count)) in failures.iter().enumerate() {
                let comma = if position == 0 { "" } else { ", " };
                write!(f, "{comma}{count} × {}", kind.symptom())?;
            }
            if never_checked > 0 {
                write!(f, ", {never_checked} × never checked")?;
            }
        }
    }
    write!(f, "; {}", first.remedy())
}

fn fmt_emptied(f: &mut fmt::Formatter<'_>, expected: &str, found: &[String]) -> fmt::Result {
    let expected = OneLine { value: &expected, limit: MAX_CAUSE_LENGTH };
    write!(f, "every server was removed: replicaSet={expected} is wanted, they belong to ")?;
    if found.is_empty() {
        f.write_str("no set")?;
    }
    for (position, name) in found.iter().enumerate() {
        let comma = if position == 0 { "" } else { ", " };
        write!(f, "{comma}{}", OneLine { value: name, limit: MAX_CAUSE_LENGTH })?;
    }
    write!(f, "; correct replicaSet in the connection string, or connect to members of {expected}")
}

fn fmt_unusable(f: &mut fmt::Formatter<'_>, fault: Option<&ServerFault>) -> fmt::Result {
    match fault {
        Some(fault) => {
            let kind = FailureKind::of(Some(fault));
            let words = OneLine { value: fault, limit: MAX_CAUSE_LENGTH };
            write!(f, "{} ({words}); {}", kind.symptom(), kind.remedy())
        }
        None => f.write_str(
            "has not been checked from here; check that its name resolves and that it can be \
             reached",
        ),
    }
}

fn fmt_too_stale(
    f: &mut fmt::Formatter<'_>,
    max: Duration,
    freshest: Option<Duration>,
) -> fmt::Result {
    write!(f, "no member is known to be within {} of the primary", Interval(max))?;
    match freshest {
        Some(stale) => write!(
            f,
            ", the freshest may be {} behind; raise maxStalenessSeconds or find out why \
             replication lags (rs.printSecondaryReplicationInfo())",
            Interval(stale)
        ),
        None => f.write_str(", since none tells when it last wrote; drop maxStalenessSeconds"),
    }
}

fn fmt_tags(f: &mut fmt::Formatter<'_>, found: &[TagSet]) -> fmt::Result {
    f.write_str("no member that would do has the wanted tags; they have ")?;
    for (position, tags) in found.iter().enumerate() {
        let or = if position == 0 { "" } else { " or " };
        write!(f, "{or}{}", OneLine { value: tags, limit: MAX_CAUSE_LENGTH })?;
    }
    f.write_str("; correct the tags, or add {} as the last tag set to accept any")
}

fn fmt_initiate(
    f: &mut fmt::Formatter<'_>,
    ghosts: &[ServerAddress],
    set_name: Option<&str>,
) -> fmt::Result {
    write!(
        f,
        "{} answered but the set was never initiated; run in mongosh on one of them: \
         rs.initiate({{_id: {:?}, members: [",
        Counted(ghosts.len(), "member"),
        set_name.unwrap_or("NAME")
    )?;
    for (position, ghost) in ghosts.iter().take(MAX_VOTING_MEMBERS).enumerate() {
        let comma = if position == 0 { "" } else { ", " };
        write!(f, "{comma}{{_id: {position}, host: {:?}}}", ghost.as_str())?;
    }
    f.write_str("]})")?;
    if set_name.is_none() {
        f.write_str(" with the name they were started with (--replSet) for NAME")?;
    }
    match ghosts.len().saturating_sub(MAX_VOTING_MEMBERS) {
        0 => Ok(()),
        others => write!(f, ", then rs.add(\"host:port\") for each of the {others} others"),
    }
}

fn fmt_no_primary(f: &mut fmt::Formatter<'_>, answering: usize, members: usize) -> fmt::Result {
    let needed = majority(members);
    write!(f, "no primary: {answering} of {} answer, ", Counted(members, "member"))?;
    match answering >= needed {
        true => write!(
            f,
            "enough to elect one ({needed} votes), so an election is under way or keeps failing; \
             try again, and if it persists run rs.status() on one of them"
        ),
        false => write!(
            f,
            "and an election needs {needed} votes if each has one; start the others, or check that \
             they can be reached"
        ),
    }
}

/// `1 server`, `3 servers`.
struct Counted(usize, &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} {}{plural}", self.0, self.1)
    }
}
