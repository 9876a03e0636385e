//! What the built-in roles allow.

use bson::{Bson, Document, doc};

use crate::dispatch::Access;

/// A role on a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) database: String,
}

/// The roles there are on every database.
const DATABASE_ROLES: [&str; 5] = ["read", "readWrite", "dbAdmin", "userAdmin", "dbOwner"];

/// The roles there are on `admin` only.
const ADMIN_ROLES: [&str; 11] = [
    "readAnyDatabase",
    "readWriteAnyDatabase",
    "dbAdminAnyDatabase",
    "userAdminAnyDatabase",
    "clusterMonitor",
    "clusterManager",
    "clusterAdmin",
    "hostManager",
    "backup",
    "restore",
    "root",
];

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

    pub(crate) fn to_document(&self) -> Document {
        doc! { "role": &self.name, "db": &self.database }
    }

    /// Whether there is such a role.
    pub(crate) fn exists(&self) -> bool {
        let name = self.name.as_str();
        DATABASE_ROLES.contains(&name) || self.database == "admin" && ADMIN_ROLES.contains(&name)
    }

    /// Whether the role allows this kind of command on this database.
    pub(crate) fn allows(&self, access: Access, database: &str) -> bool {
        let own = self.database == database;
        let on_admin = self.database == "admin";
        match self.name.as_str() {
            _ if access == Access::Internal => false,
            "root" => on_admin,
            "read" => own && access == Access::Read,
            "readWrite" => own && matches!(access, Access::Read | Access::ReadWrite),
            "dbAdmin" => own && access == Access::DatabaseAdmin,
            "userAdmin" => own && access == Access::UserAdmin,
            "dbOwner" => own && is_about_a_database(access),
            "readAnyDatabase" | "backup" => on_admin && access == Access::Read,
            "readWriteAnyDatabase" | "restore" => {
                on_admin && matches!(access, Access::Read | Access::ReadWrite)
            }
            "dbAdminAnyDatabase" => on_admin && access == Access::DatabaseAdmin,
            "userAdminAnyDatabase" => on_admin && access == Access::UserAdmin,
            "clusterMonitor" => on_admin && access == Access::ClusterMonitor,
            "clusterAdmin" | "clusterManager" | "hostManager" => {
                on_admin && matches!(access, Access::ClusterMonitor | Access::ClusterAdmin)
            }
            _ => false,
        }
    }
}

fn is_about_a_database(access: Access) -> bool {
    matches!(access, Access::Read | Access::ReadWrite | Access::DatabaseAdmin | Access::UserAdmin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, database: &str) -> Role {
        Role { name: name.to_owned(), database: database.to_owned() }
    }

    #[test]
    fn roles_hold_on_their_own_database() {
        assert!(role("read", "a").allows(Access::Read, "a"));
        assert!(!role("read", "a").allows(Access::Read, "b"));
        assert!(!role("read", "a").allows(Access::ReadWrite, "a"));
        assert!(role("readWrite", "a").allows(Access::Read, "a"));
        assert!(!role("readWrite", "a").allows(Access::UserAdmin, "a"));
        assert!(!role("dbOwner", "a").allows(Access::ClusterAdmin, "a"));
    }

    #[test]
    fn wide_roles_hold_everywhere_and_only_from_admin() {
        assert!(role("readAnyDatabase", "admin").allows(Access::Read, "b"));
        assert!(!role("readAnyDatabase", "b").allows(Access::Read, "b"));
        assert!(role("root", "admin").allows(Access::ClusterAdmin, "admin"));
        assert!(role("clusterMonitor", "admin").allows(Access::ClusterMonitor, "admin"));
        assert!(!role("clusterMonitor", "admin").allows(Access::ClusterAdmin, "admin"));
        assert!(role("root", "admin").exists() && !role("root", "b").exists());
        assert!(!role("emperor", "admin").exists());
    }
}
