//! The tables of rights in `docs/security.md`, made from the command table and the roles.
//!
//! `QUORATE_UPDATE_SNAPSHOTS=1 cargo test -p quorate-node the_page_lists_the_rights` writes them anew.
//! `tests/roles.rs` reads them and tries every role, namespace and command.

use std::fmt::Write as _;
use std::path::Path;

use quorate_provision::snapshot;

use super::roles::{ADMIN_ROLES, DATABASE_ROLES, Role};
use crate::command_table::Access;
use crate::commands::TABLE;
use crate::touched::Touch;

const BEGIN: &str = "<!-- The next two tables are made from the code: QUORATE_UPDATE_SNAPSHOTS=1 cargo test -p \
                     quorate-node the_page_lists_the_rights -->\n";
const END: &str = "<!-- End of the made tables. -->\n";

/// The rights, by the names that the page gives them.
const RIGHTS: [(Access, &str); 18] = [
    (Access::Public, "none"),
    (Access::LoggedIn, "login"),
    (Access::Read, "read"),
    (Access::Look, "look"),
    (Access::Measure, "measure"),
    (Access::Write, "write"),
    (Access::Shape, "shape"),
    (Access::DatabaseAdmin, "dbAdmin"),
    (Access::UserAdmin, "userAdmin"),
    (Access::ReadProfile, "profile"),
    (Access::ReadCredentials, "credentials"),
    (Access::ListDatabases, "list"),
    (Access::ReadParameters, "parameters"),
    (Access::MergeUsers, "merge"),
    (Access::ClusterMonitor, "monitor"),
    (Access::ClusterAdmin, "admin"),
    (Access::Everything, "everything"),
    (Access::Internal, "member"),
];

/// The namespaces that the page tells of.
const NAMESPACES: [(&str, Option<&str>); 10] = [
    ("db", None),
    ("other", None),
    ("admin", None),
    ("config", None),
    ("config", Some("system.preimages")),
    ("local", None),
    ("local", Some("oplog.rs")),
    ("local", Some("system.replset")),
    ("admin", Some("system.users")),
    ("db", Some("system.profile")),
];

fn tables() -> String {
    let mut page = String::from("\n| right | commands |\n|---|---|\n");
    for (access, right) in RIGHTS {
        let of_right = TABLE.iter().filter(|facts| facts.access == access);
        let names: Vec<_> = of_right.map(|facts| format!("`{}`", facts.name)).collect();
        if !names.is_empty() {
            let _ = writeln!(page, "| {right} | {} |", names.join(" "));
        }
    }
    page.push_str("\n| role |");
    for (database, collection) in NAMESPACES {
        let dot = collection.map(|name| format!(".{name}")).unwrap_or_default();
        let _ = write!(page, " `{database}{dot}` |");
    }
    page.push_str("\n|---|");
    page.push_str(&"---|".repeat(NAMESPACES.len()));
    page.push('\n');
    let of_database = DATABASE_ROLES.iter().map(|name| (*name, "db"));
    for (name, database) in of_database.chain(ADMIN_ROLES.iter().map(|name| (*name, "admin"))) {
        let role = Role { name: name.to_owned(), database: database.to_owned() };
        let _ = write!(page, "| {name} |");
        for (database, collection) in NAMESPACES {
            let _ = write!(page, " {} |", cell(&role, database, collection));
        }
        page.push('\n');
    }
    page.push('\n');
    page
}

fn cell(role: &Role, database: &str, collection: Option<&str>) -> String {
    let allowed = RIGHTS.iter().filter(|(access, _)| {
        let touch = Touch { database, collection, access: *access, changes: false };
        // Other rights are not about collections.
        let applies = collection.is_none() || *access <= Access::DatabaseAdmin;
        !matches!(access, Access::Public | Access::LoggedIn)
            && applies
            && role.allows(touch.needed(), database, collection)
    });
    let names: Vec<_> = allowed.map(|(_, name)| *name).collect();
    if names.is_empty() { "–".to_owned() } else { names.join(", ") }
}

#[test]
fn the_page_lists_the_rights() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the tables");
    let (_, after) = rest.split_once(END).expect("the tables end");
    let made = format!("{before}{BEGIN}{}{END}{after}", tables());
    snapshot(&path, &made).unwrap_or_else(|difference| panic!("{difference}"));
}
