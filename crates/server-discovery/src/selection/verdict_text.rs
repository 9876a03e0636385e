//! The words for each verdict: what is so, then the next step.

use std::fmt;
use std::time::Duration;

use quorate_protocol::{Counted, MAX_VOTERS, ServerAddress, TagSet, remedy};

use super::failure::MAX_CAUSE_LENGTH;
use super::failure_kind::FailureKind;
use super::text::{Interval, OneLine};
use super::verdict::{Verdict, majority};
use crate::fault::ServerFault;

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seen, remedy) = self.seen_and_remedy();
        write!(f, "{seen}; {remedy}")
    }
}

impl Verdict {
    /// What is so, and what to do next.
    pub fn seen_and_remedy(&self) -> (String, String) {
        let (seen, remedy) = match self {
            Self::Incompatible { error } => (error.to_string(), "upgrade the older of the two"),
            Self::EmptiedBySetName { expected, found } => return emptied(expected, found),
            Self::NoServers => (
                "there is no server left to connect to".to_owned(),
                "check the hosts in the connection string (or behind its SRV record), and that \
                 several seeds are members of one set or mongoses of one cluster",
            ),
            Self::NeverChecked { servers } => (
                format!("0 checks completed for {}", Counted(*servers, "server")),
                "is the runtime shut down? Keep the runtime of the client alive and its threads \
                 unblocked; if it is only slow, raise serverSelectionTimeoutMS",
            ),
            Self::AllFailing { failures, never_checked } => failing(failures, *never_checked),
            Self::AdvertisedUnusable { answered, me } => advertised(answered, me),
            Self::NeverInitiated { ghosts, set_name } => {
                return never_initiated(ghosts, set_name.as_deref());
            }
            Self::OnlyArbiters { arbiters } => (
                format!("{} answered, and arbiters hold no data", Counted(*arbiters, "arbiter")),
                "start the members that do, or add one with rs.add(\"host:port\")",
            ),
            Self::NothingReadable { answering } => (
                format!(
                    "{} answered, but none serves reads now (hidden, starting up, recovering)",
                    Counted(*answering, "member")
                ),
                "run rs.status() on one of them to see what it waits for",
            ),
            Self::PrimaryUnusable { primary, said_by, fault } => {
                let (fact, remedy) = unusable(fault.as_ref());
                (format!("{said_by} says that {primary} is the primary, which {fact}"), remedy)
            }
            Self::NoPrimary { answering, members } => return no_primary(*answering, *members),
            Self::NoSecondary => (
                "the primary answers, but no secondary does".to_owned(),
                "start one, or read with secondaryPreferred",
            ),
            Self::TooStale { max, freshest } => too_stale(*max, *freshest),
            Self::TagsMatchNothing { found } => (
                format!("no member that would do has the wanted tags; they have {}", any_of(found)),
                "correct the tags, or add {} as the last tag set to accept any",
            ),
            Self::RefusedBySelector { offered } => (
                format!(
                    "the application's own server selector refused all of {}",
                    Counted(*offered, "suitable server")
                ),
                "look there",
            ),
            Self::WrongKind { topology_type } => (
                format!(
                    "the servers that answer are no part of a deployment of type {topology_type}"
                ),
                "check the hosts in the connection string",
            ),
            Self::SuitableNow { server } => {
                (format!("{server} has become suitable since"), "try again")
            }
        };
        (seen, remedy.to_owned())
    }
}

fn advertised(answered: &ServerAddress, me: &ServerAddress) -> (String, &'static str) {
    (
        format!(
            "{answered} answered, but its set knows it as {me}, and no address that the set \
             advertises is usable here"
        ),
        "clients must use those, so make the names resolve here (a line in the hosts file), or \
         advertise others (rs.reconfig), or connect with directConnection=true (without failover)",
    )
}

fn failing(failures: &[(FailureKind, usize)], never_checked: usize) -> (String, &'static str) {
    let Some((first, count)) = failures.first() else { return Default::default() };
    let seen = match (failures.len(), never_checked, *count) {
        (1, 0, 1) => format!("the only server {}", first.symptom()),
        (1, 0, count) => format!("each of the {count} servers {}", first.symptom()),
        _ => {
            let failures = failures.iter().map(|(kind, count)| (*count, kind.symptom()));
            let unchecked = (never_checked > 0).then_some((never_checked, "never checked"));
            let counts = failures.chain(unchecked).map(|(count, what)| format!("{count} × {what}"));
            format!("no server is usable: {}", counts.collect::<Vec<_>>().join(", "))
        }
    };
    (seen, first.remedy())
}

fn emptied(expected: &str, found: &[String]) -> (String, String) {
    let expected = one_line(&expected);
    let found = match found {
        [] => "no set".to_owned(),
        found => found.iter().map(|name| one_line(name)).collect::<Vec<_>>().join(", "),
    };
    (
        format!(
            "every server was removed: replicaSet={expected} is wanted, they belong to {found}"
        ),
        format!("{}, or connect to members of {expected}", FailureKind::WrongSetName.remedy()),
    )
}

fn unusable(fault: Option<&ServerFault>) -> (String, &'static str) {
    match fault {
        Some(fault) => {
            let kind = FailureKind::of(Some(fault));
            (format!("{} ({})", kind.symptom(), one_line(fault)), kind.remedy())
        }
        None => (
            "has not been checked from here".to_owned(),
            "check that its name resolves and that it can be reached",
        ),
    }
}

fn too_stale(max: Duration, freshest: Option<Duration>) -> (String, &'static str) {
    let (known, remedy) = match freshest {
        Some(stale) => (
            format!("the freshest may be {} behind", Interval(stale)),
            "raise maxStalenessSeconds or find out why replication lags \
             (rs.printSecondaryReplicationInfo())",
        ),
        None => ("since none tells when it last wrote".to_owned(), "drop maxStalenessSeconds"),
    };
    (format!("no member is known to be within {} of the primary, {known}", Interval(max)), remedy)
}

fn any_of(tags: &[TagSet]) -> String {
    tags.iter().map(|tags| one_line(tags)).collect::<Vec<_>>().join(" or ")
}

fn never_initiated(ghosts: &[ServerAddress], set_name: Option<&str>) -> (String, String) {
    let script = remedy::initiate_script(
        set_name.unwrap_or("NAME"),
        ghosts.iter().map(ServerAddress::as_str),
    );
    let name = match set_name {
        Some(_) => "",
        None => " with the name they were started with (--replSet) for NAME",
    };
    let others = match ghosts.len().saturating_sub(MAX_VOTERS) {
        0 => String::new(),
        others => format!(", then rs.add(\"host:port\") for each of the {others} others"),
    };
    (
        format!("{} answered but the set was never initiated", Counted(ghosts.len(), "member")),
        format!("run in mongosh on one of them: {script}{name}{others}"),
    )
}

fn no_primary(answering: usize, members: usize) -> (String, String) {
    let needed = majority(members);
    let (chance, remedy) = match answering >= needed {
        true => (
            format!(
                "enough to elect one ({needed} votes), so an election is under way or keeps failing"
            ),
            "try again, and if it persists run rs.status() on one of them".to_owned(),
        ),
        false => (
            format!("and an election needs {needed} votes if each has one"),
            remedy::reconnect("the others"),
        ),
    };
    (format!("no primary: {answering} of {} answer, {chance}", Counted(members, "member")), remedy)
}

/// A text from outside, on one line.
fn one_line(value: &dyn fmt::Display) -> String {
    OneLine { value, limit: MAX_CAUSE_LENGTH }.to_string()
}
