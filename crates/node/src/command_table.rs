//! What the server knows of a command besides its code: one entry per command.
//!
//! An entry says which fields the command has, which component answers it, which namespaces it reads
//! and changes and what right that takes, and where it may run: before a login, on a secondary, inside
//! a transaction, between members. The entries themselves are in `commands.rs`. Nothing else lists
//! commands by name.

use std::fmt;
use std::sync::LazyLock;

use crate::body::{MARKS, mark_of};
use crate::commands;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::touched::{self, Asked, Visit};

/// What a command does to the data, which decides where it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Looks at the server, not at data.
    Inspects,
    /// Reads data: on a secondary only if the client allows it.
    Reads,
    /// Changes data: on a primary only.
    Writes,
}

/// The right that a command takes on a namespace that it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// None, and no login.
    Public,
    /// None, after a login.
    LoggedIn,
    /// To read documents.
    Read,
    /// To see which collections and indexes there are.
    Look,
    /// To see how large collections and databases are, and how much indexes are used.
    Measure,
    /// To change documents.
    Write,
    /// To create and remove collections and indexes.
    Shape,
    /// To administer the database.
    DatabaseAdmin,
    /// To administer the users of the database.
    UserAdmin,
    /// To read what the profiler tells of every user's commands.
    ReadProfile,
    /// To read the stored users, with their credentials.
    ReadCredentials,
    /// To see the names of all databases.
    ListDatabases,
    /// To read the parameters of the server.
    ReadParameters,
    /// To put the users of a dump in place, with their credentials.
    MergeUsers,
    /// To watch the server.
    ClusterMonitor,
    /// To administer the server.
    ClusterAdmin,
    /// To read all that is stored, credentials too.
    Everything,
    /// To speak as another member of the set.
    Internal,
}

impl Access {
    /// The narrowest built-in role that gives it, for messages.
    pub(crate) fn role(self) -> &'static str {
        match self {
            Self::Public | Self::LoggedIn => "none",
            Self::Read | Self::Look | Self::Measure => "read",
            Self::Write | Self::Shape => "readWrite",
            Self::DatabaseAdmin | Self::ReadProfile => "dbAdmin",
            Self::UserAdmin | Self::ReadCredentials => "userAdmin",
            Self::ListDatabases | Self::ReadParameters | Self::ClusterMonitor => "clusterMonitor",
            Self::MergeUsers => "restore",
            Self::ClusterAdmin => "clusterAdmin",
            Self::Everything => "root",
            Self::Internal => "__system",
        }
    }
}

/// The component that answers a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answerer {
    /// The member: its data and what it keeps in memory.
    Member,
    /// The process around the member: its log, its end, its lock against writes.
    Process,
    /// The host of the replica set, where there is one.
    ReplicaSet,
}

/// Whether a command may be part of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InTransaction {
    /// Never.
    Refused,
    /// Yes, but it cannot begin one.
    AfterTheFirst,
    /// Yes, and it may begin one.
    Allowed,
}

/// The fields that a command has, besides those of every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownFields {
    /// These. Others are refused.
    Only(&'static [&'static str]),
    /// Any: they name what is asked for, or come from members of other versions.
    Any,
}

pub(crate) type Run = fn(&Request<'_>, Command) -> Result<Outcome>;

/// Shows the namespaces that a command touches, one after the other.
pub(crate) type Touching = fn(Asked<'_>, &mut Visit<'_>) -> Result<()>;

/// One entry of the table.
pub struct CommandFacts {
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) help: &'static str,
    pub(crate) effect: Effect,
    pub(crate) access: Access,
    pub(crate) fields: KnownFields,
    /// Fields that MongoDB's command has and this one does not.
    pub(crate) not_offered: &'static [&'static str],
    pub(crate) touching: Touching,
    pub(crate) answered_by: Answerer,
    pub(crate) in_transaction: InTransaction,
    pub(crate) admin_only: bool,
    pub(crate) waits: bool,
    pub(crate) scans: bool,
    pub(crate) between_members: bool,
    pub(crate) test_only: bool,
    pub(crate) retryable: bool,
    pub(crate) reads_snapshots: bool,
    pub(crate) has_default_read_concern: bool,
    pub(crate) in_stable_api: bool,
    pub(crate) interrupts_others: bool,
    pub(crate) run: Run,
}

/// An entry with the most common values; the methods change them.
pub(crate) const fn command(name: &'static str, run: Run, help: &'static str) -> CommandFacts {
    CommandFacts {
        name,
        aliases: &[],
        help,
        effect: Effect::Inspects,
        access: Access::ClusterAdmin,
        fields: KnownFields::Only(&[]),
        not_offered: &[],
        touching: touched::database,
        answered_by: Answerer::Member,
        in_transaction: InTransaction::Refused,
        admin_only: false,
        waits: false,
        scans: false,
        between_members: false,
        test_only: false,
        retryable: false,
        reads_snapshots: false,
        has_default_read_concern: false,
        in_stable_api: false,
        interrupts_others: false,
        run,
    }
}

impl CommandFacts {
    /// Looks at the server, with this right.
    pub(crate) const fn inspects(mut self, access: Access) -> Self {
        (self.effect, self.access) = (Effect::Inspects, access);
        self
    }

    /// Reads data, with this right.
    pub(crate) const fn reads(mut self, access: Access) -> Self {
        (self.effect, self.access) = (Effect::Reads, access);
        self
    }

    /// Changes data, with this right.
    pub(crate) const fn writes(mut self, access: Access) -> Self {
        (self.effect, self.access) = (Effect::Writes, access);
        self
    }

    /// Other names of the command.
    pub(crate) const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    pub(crate) const fn fields(mut self, fields: &'static [&'static str]) -> Self {
        self.fields = KnownFields::Only(fields);
        self
    }

    /// Its fields name what is asked for.
    pub(crate) const fn any_fields(mut self) -> Self {
        self.fields = KnownFields::Any;
        self
    }

    /// Fields that MongoDB's command has and this one does not.
    pub(crate) const fn without(mut self, fields: &'static [&'static str]) -> Self {
        self.not_offered = fields;
        self
    }

    /// Which namespaces it touches, if not the database as a whole.
    pub(crate) const fn on(mut self, touching: Touching) -> Self {
        self.touching = touching;
        self
    }

    /// Runs against the database `admin` only.
    pub(crate) const fn on_admin(mut self) -> Self {
        self.admin_only = true;
        self
    }

    /// Looks at the server with this right, against the database `admin` only.
    pub(crate) const fn administers(self, access: Access) -> Self {
        self.inspects(access).on_admin()
    }

    pub(crate) const fn answered_by(mut self, answerer: Answerer) -> Self {
        self.answered_by = answerer;
        self
    }

    pub(crate) const fn in_transaction(mut self, rule: InTransaction) -> Self {
        self.in_transaction = rule;
        self
    }

    /// May ask to be run again after an event.
    pub(crate) const fn waits(mut self) -> Self {
        self.waits = true;
        self
    }

    /// May look at all the data there is, whatever its arguments.
    pub(crate) const fn scans(mut self) -> Self {
        self.scans = true;
        self
    }

    /// Only members send it to each other.
    pub(crate) const fn between_members(mut self) -> Self {
        (self.between_members, self.fields) = (true, KnownFields::Any);
        (self.effect, self.access) = (Effect::Inspects, Access::Internal);
        self
    }

    /// For tests: there only with `--enable-test-commands`.
    pub(crate) const fn for_tests(mut self) -> Self {
        self.test_only = true;
        self
    }

    /// A client may repeat it under the same transaction number.
    pub(crate) const fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Can read what was there at one time.
    pub(crate) const fn reads_snapshots(mut self) -> Self {
        self.reads_snapshots = true;
        self
    }

    /// Takes the set's default read concern where the client gives none.
    pub(crate) const fn takes_default_read_concern(mut self) -> Self {
        self.has_default_read_concern = true;
        self
    }

    /// Part of version 1 of the stable API.
    pub(crate) const fn stable(mut self) -> Self {
        self.in_stable_api = true;
        self
    }

    /// May end what other clients run, so that those that wait must look again.
    pub(crate) const fn interrupts_others(mut self) -> Self {
        self.interrupts_others = true;
        self
    }
}

impl fmt::Debug for CommandFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CommandFacts").field(&self.name).finish()
    }
}

/// What the server around a member asks of the table.
impl CommandFacts {
    /// The name, whatever alias the client used.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The component that answers it.
    pub fn answerer(&self) -> Answerer {
        self.answered_by
    }

    /// Whether only members send it to each other.
    pub fn is_between_members(&self) -> bool {
        self.between_members
    }

    /// Whether it may ask to be run again after an event.
    pub fn may_wait(&self) -> bool {
        self.waits
    }

    /// Whether it takes the set's default read concern where the client gives none.
    pub fn takes_a_default_read_concern(&self) -> bool {
        self.has_default_read_concern
    }

    /// Whether commands that wait must look whether they were ended.
    pub fn may_interrupt_others(&self) -> bool {
        self.interrupts_others
    }
}

/// An entry under its name or an alias.
type Named = (&'static str, &'static CommandFacts);

/// The entries by the marks of their names and aliases: few share one.
static BY_MARK: LazyLock<[Vec<Named>; MARKS]> = LazyLock::new(|| {
    let names = |facts: &'static CommandFacts| {
        facts.aliases.iter().chain([&facts.name]).map(move |name| (*name, facts))
    };
    let mut entries = [const { Vec::new() }; MARKS];
    for entry in commands::TABLE.iter().flat_map(names) {
        entries[usize::from(mark_of(entry.0.as_bytes()))].push(entry);
    }
    entries
});

/// The command of this name. `isMaster` is matched in any case.
pub(crate) fn find(name: &str) -> Option<&'static CommandFacts> {
    let by_name = |wanted: &str| {
        let named = &BY_MARK[usize::from(mark_of(wanted.as_bytes()))];
        named.iter().find(|(name, _)| *name == wanted).map(|(_, facts)| *facts)
    };
    by_name(name)
        .or_else(|| name.eq_ignore_ascii_case("isMaster").then(|| by_name("isMaster")).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once_and_found() {
        let mut names: Vec<_> = BY_MARK.iter().flatten().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert!(names.iter().all(|name| find(name).is_some()));
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(find("findandmodify").unwrap().name, "findAndModify");
        assert_eq!(find("ISMASTER").unwrap().name, "hello");
        assert!(find("Find").is_none() && find("").is_none());
    }

    #[test]
    fn fields_are_listed_once_and_are_not_generic_ones() {
        for facts in commands::TABLE {
            let KnownFields::Only(fields) = facts.fields else { continue };
            let mut all: Vec<_> = fields.iter().chain(facts.not_offered).collect();
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "{}", facts.name);
            let generic = |field: &&&str| crate::generic_arguments::is_generic(field.as_bytes());
            assert!(!all.iter().any(generic), "{}", facts.name);
        }
    }
}
