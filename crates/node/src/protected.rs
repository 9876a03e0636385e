//! Which collections clients may not change, whatever the command and whatever their rights.
//!
//! A member of a set writes its oplog and the facts about its set itself: a change from elsewhere would
//! lose acknowledged writes. Users and settings are changed by commands that check what they store.
//! Commands are refused here, before they run, by the namespaces that the command table says they
//! change.

use crate::command_table::CommandFacts;
use crate::context::Command;
use crate::default_concerns::is_settings_collection;
use crate::error::Result;
use crate::node::Node;
use crate::touched::{Asked, is_users, is_versions};

/// Why clients may not change a collection; none if they may.
fn reason(database: &str, collection: &str, in_a_set: bool) -> Option<&'static str> {
    let is_of_the_set = collection == "oplog.rs"
        || collection == "system.replset"
        || collection.starts_with("replset.");
    if database == "local" && is_of_the_set && in_a_set {
        return Some(
            "belongs to this member of its replica set; to repair it, restart the member without \
             --replset, or let it copy everything anew",
        );
    }
    if database == "config" && matches!(collection, "transactions" | "system.preimages") {
        return Some("shows what this member keeps for sessions and change streams");
    }
    if is_settings_collection(database, collection) {
        return Some("is changed by setDefaultRWConcern only");
    }
    if is_users(database, collection) {
        return Some("is changed by createUser, updateUser, dropUser and their like only");
    }
    if is_versions(database, collection) {
        return Some("says in which form this member stores users");
    }
    None
}

/// Refuses a command that would change a protected collection.
pub(crate) fn check(node: &Node, facts: &CommandFacts, command: &Command) -> Result<()> {
    let in_a_set = node.oplog().is_some();
    let asked = Asked { facts, body: &command.body, database: command.database() };
    (facts.touching)(asked, &mut |touch| {
        let (true, Some(collection)) = (touch.changes, touch.collection) else { return Ok(()) };
        match reason(touch.database, collection, in_a_set) {
            None => Ok(()),
            Some(reason) => Err(fail!(
                ILLEGAL_OPERATION,
                "{} refused: '{}.{collection}' {reason}",
                facts.name,
                touch.database
            )),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_belongs_to_the_set_is_protected_in_local() {
        for name in ["oplog.rs", "system.replset", "replset.election", "replset.minvalid"] {
            assert!(reason("local", name, true).is_some(), "{name}");
            assert!(reason("local", name, false).is_none(), "{name}");
            assert!(reason("db", name, true).is_none(), "{name}");
        }
        for name in ["startup_log", "oplog.rs2", "replset", "oplog.r"] {
            assert!(reason("local", name, true).is_none(), "{name}");
        }
        assert!(reason("config", "settings", false).is_some());
        assert!(reason("admin", "system.users", false).is_some());
        assert!(reason("admin", "system.version", false).is_some());
    }
}
