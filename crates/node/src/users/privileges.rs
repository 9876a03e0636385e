//! What roles allow, in the words of MongoDB: actions on resources.
//!
//! Nothing is decided here. Every line is asked of [`Role::allows`], so that what is shown is what holds.
//!
//! Specification: the manual, "Resource Document" and "Privilege Actions".

use std::collections::BTreeSet;

use bson::{Bson, Document, doc};

use super::roles::Role;
use super::{USERS, VERSIONS};
use crate::command_table::Access;
use crate::namespace::PROFILE_COLLECTION;
use crate::touched::{EVERY_DATABASE, Touch};

/// The actions that rights on documents, collections and databases stand for.
const ON_DATA: [(Access, &[&str]); 7] = [
    (Access::Read, &["changeStream", "dbHash", "find", "killCursors"]),
    (Access::Look, &["listCollections", "listIndexes"]),
    (Access::Measure, &["collStats", "dbStats", "indexStats"]),
    (Access::Write, &["insert", "remove", "update"]),
    (
        Access::Shape,
        &[
            "createCollection", "createIndex", "dropCollection", "dropIndex",
            "renameCollectionSameDB",
        ],
    ),
    (Access::DatabaseAdmin, &["collMod", "dropDatabase", "enableProfiler", "validate"]),
    (
        Access::UserAdmin,
        &[
            "changeCustomData", "changePassword", "createUser", "dropUser", "grantRole",
            "revokeRole", "viewRole", "viewUser",
        ],
    ),
];

/// The actions that rights on the server stand for.
const ON_CLUSTER: [(Access, &[&str]); 5] = [
    (Access::ListDatabases, &["listDatabases"]),
    (Access::ReadParameters, &["getParameter"]),
    (
        Access::ClusterMonitor,
        &[
            "connPoolStats", "getCmdLineOpts", "getDefaultRWConcern", "getLog", "hostInfo",
            "inprog", "listSessions", "replSetGetConfig", "replSetGetStatus", "serverStatus",
            "top",
        ],
    ),
    (
        Access::ClusterAdmin,
        &[
            "fsync", "getClusterParameter", "killAnyCursor", "killAnySession", "killop",
            "logRotate", "replSetConfigure", "replSetResizeOplog", "replSetStateChange",
            "setClusterParameter", "setDefaultRWConcern", "setParameter", "shutdown", "unlock",
        ],
    ),
    // No action of MongoDB is like it.
    (Access::Everything, &["quorateBackup"]),
];

/// What roles allow together: each resource once, with its actions in order.
pub(crate) fn privileges(roles: &[Role]) -> Vec<Bson> {
    let mut shown = Vec::new();
    let on_cluster =
        actions(&ON_CLUSTER, |access| roles.iter().any(|role| role.allows(access, "admin", None)));
    append(&mut shown, doc! { "cluster": true }, on_cluster);
    for (database, collection) in resources(roles) {
        let collection = Some(collection).filter(|name| !name.is_empty());
        let on_data = actions(&ON_DATA, |access| {
            let touch = Touch { database: &database, collection, access, changes: false };
            // Users belong to databases.
            let applies = collection.is_none() || access != Access::UserAdmin;
            let allows =
                |role: &Role| role.allows(touch.needed(), touch.database, touch.collection);
            applies && roles.iter().any(allows)
        });
        let resource = doc! { "db": database, "collection": collection.unwrap_or_default() };
        append(&mut shown, resource, on_data);
    }
    shown
}

/// The resources on which roles may differ: any ordinary database (no name), their own databases, those that are
/// apart, and the collections that take rights of their own.
fn resources(roles: &[Role]) -> BTreeSet<(String, &'static str)> {
    let own = roles.iter().map(|role| role.database.as_str());
    let databases: BTreeSet<_> =
        own.chain([EVERY_DATABASE, "config", "local"]).map(str::to_owned).collect();
    let mut resources = BTreeSet::from([
        (USERS.0.to_owned(), USERS.1),
        (VERSIONS.0.to_owned(), VERSIONS.1),
        ("config".to_owned(), "system.preimages"),
        ("local".to_owned(), "system.replset"),
    ]);
    for database in databases {
        resources.insert((database.clone(), PROFILE_COLLECTION));
        resources.insert((database, ""));
    }
    resources
}

fn actions(
    known: &[(Access, &'static [&'static str])],
    allows: impl Fn(Access) -> bool,
) -> BTreeSet<&'static str> {
    known
        .iter()
        .filter(|(access, _)| allows(*access))
        .flat_map(|(_, names)| *names)
        .copied()
        .collect()
}

fn append(shown: &mut Vec<Bson>, resource: Document, actions: BTreeSet<&'static str>) {
    if !actions.is_empty() {
        let actions: Vec<_> = actions.into_iter().collect();
        shown.push(doc! { "resource": resource, "actions": actions }.into());
    }
}
