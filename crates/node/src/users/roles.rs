//! What the built-in roles allow.

use bson::{Bson, Document, doc};

use crate::command_table::Access;

/// A role on a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) database: String,
}

/// The roles there are on every database.
pub(super) const DATABASE_ROLES: [&str; 5] =
    ["read", "readWrite", "dbAdmin", "userAdmin", "dbOwner"];

/// The roles there are on `admin` only.
pub(super) const ADMIN_ROLES: [&str; 11] = [
    "readAnyDatabase", "readWriteAnyDatabase", "dbAdminAnyDatabase", "userAdminAnyDatabase",
    "clusterMonitor", "clusterManager", "clusterAdmin", "hostManager", "backup", "restore", "root",
];

/// The collections of `local` that tell of the set.
const OF_THE_SET: [&str; 3] = ["system.replset", "replset.election", "replset.minvalid"];

impl Role {
    /// Reads a role as commands give it: a name, or `{role, db}`.
    pub(crate) fn parse(value: &Bson, database: &str) -> Option<Self> {
        let (name, database) = match value {
            Bson::String(name) => (name.as_str(), database),
            Bson::Document(role) => (role.get_str("role").ok()?, role.get_str("db").ok()?),
            _ => return None,
        };
        Some(Self { name: name.to_owned(), database: database.to_owned() })
    }

    /// The same of a client that asks for a role, by its name and its database alone.
    pub(crate) fn asked(value: &Bson, database: &str) -> Option<Self> {
        match value {
            Bson::Document(role) if role.len() != 2 => None,
            value => Self::parse(value, database),
        }
    }

    /// The built-in roles of a database.
    pub(crate) fn built_in(database: &str) -> Vec<Self> {
        let admin = if database == "admin" { &ADMIN_ROLES[..] } else { &[] };
        let names = DATABASE_ROLES.iter().chain(admin);
        let role = |name: &&str| Self { name: (*name).to_owned(), database: database.to_owned() };
        names.map(role).collect()
    }

    pub(crate) fn to_document(&self) -> Document {
        doc! { "role": &self.name, "db": &self.database }
    }

    pub(crate) fn exists(&self) -> bool {
        let name = self.name.as_str();
        DATABASE_ROLES.contains(&name) || self.database == "admin" && ADMIN_ROLES.contains(&name)
    }

    /// Whether the role gives this right on this database, and on this collection if one is named.
    ///
    /// `local` and `config` are outside the roles for any database: the oplog holds what every database
    /// holds, credentials among it.
    pub(crate) fn allows(&self, access: Access, database: &str, collection: Option<&str>) -> bool {
        let own = self.database == database;
        let on_admin = self.database == "admin";
        let any = on_admin && !matches!(database, "local" | "config");
        match self.name.as_str() {
            _ if access == Access::Internal => false,
            "root" => on_admin,
            "read" => own && reads(access),
            "readWrite" => own && writes(access),
            "dbAdmin" => own && shapes(access),
            "userAdmin" => own && manages_users(access),
            "dbOwner" => own && (writes(access) || shapes(access) || manages_users(access)),
            "readAnyDatabase" => any && (reads(access) || lists(access)),
            // What a dump of everything reads, the oplog and the users too.
            "backup" => {
                let whole = matches!(access, Access::ReadProfile | Access::ReadCredentials);
                on_admin && (reads(access) || whole || lists(access) || reads_parameters(access))
            }
            "readWriteAnyDatabase" => any && (writes(access) || lists(access)),
            // A dump holds users. Tools compare a parameter before they put them in place.
            "restore" => {
                let of_dump = writes(access) || lists(access) || access == Access::MergeUsers;
                any && (of_dump || reads_parameters(access))
            }
            "dbAdminAnyDatabase" => any && (shapes(access) || lists(access)),
            "userAdminAnyDatabase" => {
                any && (manages_users(access) || lists(access) || access == Access::MergeUsers)
            }
            "clusterMonitor" => {
                on_admin
                    && (access == Access::ClusterMonitor
                        || lists(access)
                        || reads_parameters(access)
                        || measures(access)
                        || reads(access) && shows_the_set(database, collection))
            }
            "clusterAdmin" | "clusterManager" | "hostManager" => {
                on_admin
                    && (is_about_the_server(access)
                        || self.name == "clusterAdmin" && measures(access)
                        || reads(access) && shows_the_set(database, collection))
            }
            _ => false,
        }
    }
}

fn reads(access: Access) -> bool {
    matches!(access, Access::Read | Access::Look | Access::Measure)
}

fn writes(access: Access) -> bool {
    reads(access) || matches!(access, Access::Write | Access::Shape)
}

fn shapes(access: Access) -> bool {
    matches!(access, Access::Look | Access::Shape | Access::DatabaseAdmin) || measures(access)
}

fn manages_users(access: Access) -> bool {
    matches!(access, Access::UserAdmin | Access::ReadCredentials)
}

/// What tools that watch a deployment look at in every database, without a document of a user.
fn measures(access: Access) -> bool {
    matches!(access, Access::Measure | Access::ReadProfile)
}

fn lists(access: Access) -> bool {
    access == Access::ListDatabases
}

fn reads_parameters(access: Access) -> bool {
    access == Access::ReadParameters
}

fn is_about_the_server(access: Access) -> bool {
    matches!(access, Access::ClusterMonitor | Access::ClusterAdmin)
        || lists(access)
        || reads_parameters(access)
}

/// Whether a collection tells of the set and its settings, and of no documents. In `config` those of the system hold
/// documents from before a change, and in `local` those with the rows of sessions hold replies to clients.
fn shows_the_set(database: &str, collection: Option<&str>) -> bool {
    match (database, collection) {
        ("config", Some(name)) => !name.starts_with("system."),
        ("config", None) => true,
        ("local", Some(name)) => OF_THE_SET.contains(&name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, database: &str) -> Role {
        Role { name: name.to_owned(), database: database.to_owned() }
    }

    #[test]
    fn roles_hold_on_their_own_database() {
        assert!(role("read", "a").allows(Access::Read, "a", None));
        assert!(!role("read", "a").allows(Access::Read, "b", None));
        assert!(!role("read", "a").allows(Access::Write, "a", None));
        assert!(role("readWrite", "a").allows(Access::Read, "a", None));
        assert!(!role("readWrite", "a").allows(Access::UserAdmin, "a", None));
        assert!(!role("dbOwner", "a").allows(Access::ClusterAdmin, "a", None));
    }

    #[test]
    fn wide_roles_hold_everywhere_and_only_from_admin() {
        assert!(role("readAnyDatabase", "admin").allows(Access::Read, "b", None));
        assert!(!role("readAnyDatabase", "b").allows(Access::Read, "b", None));
        assert!(role("root", "admin").allows(Access::ClusterAdmin, "admin", None));
        assert!(role("clusterMonitor", "admin").allows(Access::ClusterMonitor, "admin", None));
        assert!(!role("clusterMonitor", "admin").allows(Access::ClusterAdmin, "admin", None));
        assert!(role("root", "admin").exists() && !role("root", "b").exists());
        assert!(!role("emperor", "admin").exists());
    }

    #[test]
    fn a_monitor_measures_every_database_and_reads_none() {
        let monitor = role("clusterMonitor", "admin");
        assert!(monitor.allows(Access::Measure, "b", Some("c")));
        assert!(monitor.allows(Access::ReadProfile, "b", Some("system.profile")));
        assert!(
            !monitor.allows(Access::Look, "b", None) && !monitor.allows(Access::Read, "b", None)
        );
        assert!(!role("clusterMonitor", "b").allows(Access::Measure, "b", None));
    }

    #[test]
    fn a_backup_reads_all_that_a_dump_holds_and_changes_nothing() {
        let backup = role("backup", "admin");
        assert!(backup.allows(Access::Read, "local", Some("oplog.rs")));
        assert!(backup.allows(Access::ReadCredentials, "admin", Some("system.users")));
        assert!(
            !backup.allows(Access::Write, "b", None)
                && !backup.allows(Access::UserAdmin, "admin", None)
        );
        assert!(!role("readAnyDatabase", "admin").allows(Access::Read, "local", Some("oplog.rs")));
    }
}
