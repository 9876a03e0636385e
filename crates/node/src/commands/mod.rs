//! The commands, one file per command or family, and the table that lists them.

mod aggregate;
mod authentication;
mod common;
mod count;
mod create;
mod cursor_commands;
mod default_concerns;
mod delete;
mod diagnostics;
mod distinct;
mod drop;
mod explain;
mod find;
mod find_and_modify;
mod hello;
mod indexes;
mod insert;
mod list;
mod outside;
mod parameters;
mod resize_oplog;
mod session_commands;
mod statistics;
mod steps;
mod update;
mod users;
mod x509;

pub(crate) use find::project;

use crate::dispatch::{Access, CommandFacts, Effect};

/// Commands that may look at all data there is.
pub(crate) const LONG_COMMANDS: [&str; 11] = [
    "aggregate",
    "collStats",
    "count",
    "createIndexes",
    "dbHash",
    "dbStats",
    "distinct",
    "dropDatabase",
    "explain",
    "listDatabases",
    "validate",
];

macro_rules! table {
    ($($name:literal $(| $alias:literal)* => $run:path, $effect:ident, $access:ident
        $(, $admin:ident)?; $help:literal)+) => {
        /// Every command there is.
        pub(crate) static TABLE: &[CommandFacts] = &[
            $(CommandFacts {
                name: $name,
                aliases: &[$($alias),*],
                effect: Effect::$effect,
                access: Access::$access,
                admin_only: table!(@admin $($admin)?),
                help: $help,
                run: $run,
            },)+
        ];
    };
    (@admin admin) => { true };
    (@admin) => { false };
}

table! {
    "hello" | "isMaster" | "ismaster" => hello::hello, Inspects, Anybody;
        "what this server is and can do"
    "ping" => diagnostics::ping, Inspects, Anybody; "answers"
    "buildInfo" | "buildinfo" => diagnostics::build_info, Inspects, Anybody;
        "the version of the server"
    "hostInfo" => diagnostics::host_info, Inspects, ClusterMonitor, admin; "the machine it runs on"
    "whatsmyuri" => diagnostics::whats_my_uri, Inspects, Anybody; "the address of the client"
    "connectionStatus" => authentication::connection_status, Inspects, Anybody; "who is logged in"
    "saslStart" => authentication::sasl_start, Inspects, Anybody; "begins to log in"
    "saslContinue" => authentication::sasl_continue, Inspects, Anybody; "goes on logging in"
    "authenticate" => x509::authenticate, Inspects, Anybody; "logs in with a certificate"
    "logout" => authentication::logout, Inspects, Anybody; "logs out"
    "createUser" => users::create_user, Writes, UserAdmin; "adds a user"
    "updateUser" => users::update_user, Writes, UserAdmin; "changes a user"
    "dropUser" => users::drop_user, Writes, UserAdmin; "removes a user"
    "dropAllUsersFromDatabase" => users::drop_all_users, Writes, UserAdmin;
        "removes the users of a database"
    "grantRolesToUser" => users::grant_roles, Writes, UserAdmin; "gives a user roles"
    "revokeRolesFromUser" => users::revoke_roles, Writes, UserAdmin; "takes roles from a user"
    "usersInfo" => users::users_info, Reads, UserAdmin; "the users there are"
    "listCommands" => diagnostics::list_commands, Inspects, Anybody; "this list"
    "getCmdLineOpts" => diagnostics::get_command_line, Inspects, ClusterMonitor, admin;
        "how the server was started"
    "getLog" => outside::needs_a_process, Inspects, ClusterMonitor, admin; "recent log lines"
    "logRotate" => diagnostics::ok, Inspects, ClusterAdmin, admin; "does nothing"
    "serverStatus" => statistics::server_status, Inspects, ClusterMonitor;
        "counters of the server"
    "getParameter" => parameters::get_parameter, Inspects, ClusterMonitor, admin;
        "parameters of the server"
    "setParameter" => parameters::set_parameter, Inspects, ClusterAdmin, admin;
        "changes a parameter"
    "getDefaultRWConcern" => default_concerns::get, Inspects, ClusterMonitor, admin;
        "the concerns of commands that give none"
    "setDefaultRWConcern" => default_concerns::set, Writes, ClusterAdmin, admin;
        "chooses the concerns of commands that give none"
    "configureFailPoint" => parameters::configure_fail_point, Inspects, ClusterAdmin, admin;
        "injects faults"
    "startSession" => session_commands::start, Inspects, LoggedIn; "starts a session"
    "refreshSessions" => session_commands::refresh, Inspects, LoggedIn; "keeps sessions alive"
    "commitTransaction" => crate::transactions::commit, Writes, LoggedIn, admin;
        "commits a transaction"
    "abortTransaction" => crate::transactions::abort, Writes, LoggedIn, admin;
        "ends a transaction without its changes"
    "endSessions" => session_commands::end, Inspects, LoggedIn; "ends sessions"
    "killSessions" => session_commands::kill, Inspects, LoggedIn;
        "ends sessions, their cursors and what runs in them"
    "killAllSessions" => session_commands::kill_all, Inspects, ClusterAdmin;
        "ends all sessions, or those of some users"
    "killAllSessionsByPattern" => session_commands::kill_by_pattern, Inspects, ClusterAdmin;
        "ends the sessions that patterns describe"
    "insert" => insert::insert, Writes, ReadWrite; "inserts documents"
    "delete" => delete::delete, Writes, ReadWrite; "deletes documents"
    "update" => update::update, Writes, ReadWrite; "changes documents"
    "findAndModify" | "findandmodify" => find_and_modify::find_and_modify, Writes, ReadWrite;
        "changes a document and returns it"
    "aggregate" => aggregate::aggregate, Reads, Read; "runs documents through a pipeline"
    "explain" => explain::explain, Reads, Read; "how a command would be carried out"
    "find" => find::find, Reads, Read; "reads documents"
    "getMore" => cursor_commands::get_more, Reads, Read; "reads on from a cursor"
    "killCursors" => cursor_commands::kill_cursors, Inspects, LoggedIn; "closes cursors"
    "count" => count::count, Reads, Read; "counts documents"
    "distinct" => distinct::distinct, Reads, Read; "the different values of a field"
    "create" => create::create, Writes, ReadWrite; "creates a collection or a view"
    "collMod" => create::modify, Writes, DatabaseAdmin; "changes the options of a collection"
    "renameCollection" => create::rename, Writes, ReadWrite, admin; "renames a collection"
    "drop" => drop::drop_collection, Writes, ReadWrite; "removes a collection"
    "dropDatabase" => drop::drop_database, Writes, DatabaseAdmin; "removes a database"
    "listDatabases" => list::list_databases, Reads, LoggedIn, admin; "the databases there are"
    "listCollections" => list::list_collections, Reads, Read; "the collections of a database"
    "createIndexes" => indexes::create_indexes, Writes, ReadWrite; "adds indexes"
    "listIndexes" => indexes::list_indexes, Reads, Read; "the indexes of a collection"
    "dropIndexes" | "deleteIndexes" => indexes::drop_indexes, Writes, ReadWrite; "removes indexes"
    "collStats" | "collstats" => statistics::collection_statistics, Reads, Read;
        "how much a collection holds"
    "dbStats" | "dbstats" => statistics::database_statistics, Reads, Read;
        "how much a database holds"
    "validate" => statistics::validate, Reads, DatabaseAdmin;
        "checks that documents and indexes agree"
    "dbHash" | "dbhash" => statistics::database_hash, Reads, Read; "a fingerprint of the data"
    "replSetResizeOplog" => resize_oplog::resize_oplog, Inspects, ClusterAdmin, admin;
        "how much history this member keeps, and for how long"
    "fsync" => diagnostics::fsync, Inspects, ClusterAdmin, admin; "forces writes to disk"
    "fsyncUnlock" => outside::needs_a_process, Inspects, ClusterAdmin, admin;
        "lets writes go on after fsync with lock"
    "currentOp" => diagnostics::current_operations, Inspects, ClusterMonitor, admin;
        "commands in progress"
    "killOp" => diagnostics::kill_operation, Inspects, ClusterAdmin, admin; "stops a command"
    "profile" => diagnostics::profile, Inspects, DatabaseAdmin;
        "which commands are told of, in the log and in system.profile"
    "shutdown" => outside::needs_a_process, Inspects, ClusterAdmin, admin; "ends the server"
    "replSetInitiate" => outside::needs_a_set, Inspects, ClusterAdmin, admin; "makes a replica set"
    "replSetReconfig" => outside::needs_a_set, Inspects, ClusterAdmin, admin;
        "changes the members of the set"
    "replSetStepDown" => outside::needs_a_set, Inspects, ClusterAdmin, admin;
        "hands leadership over"
    "replSetStepUp" => outside::needs_a_set, Inspects, ClusterAdmin, admin; "asks to be elected"
    "replSetFreeze" => outside::needs_a_set, Inspects, ClusterAdmin, admin;
        "keeps from being elected for a while"
    "replSetSyncFrom" => outside::needs_a_set, Inspects, ClusterAdmin, admin;
        "chooses whom to copy from"
    "replSetMaintenance" => outside::needs_a_set, Inspects, ClusterAdmin, admin;
        "takes no reads for a while"
    "replSetGetStatus" => outside::needs_a_set, Inspects, ClusterMonitor, admin;
        "what the members are doing"
    "replSetGetConfig" => outside::needs_a_set, Inspects, ClusterMonitor, admin;
        "the configuration of the set"
    "quorateExplainElection" => outside::needs_a_set, Inspects, ClusterMonitor, admin;
        "why there is or is not a primary"
    "replSetGetRBID" => outside::needs_a_set, Inspects, Internal, admin;
        "how often this member rolled back"
    "replSetHeartbeat" => outside::needs_a_set, Inspects, Internal, admin;
        "what members tell each other all the time"
    "replSetRequestVotes" => outside::needs_a_set, Inspects, Internal, admin;
        "asks for a vote"
    "replSetUpdatePosition" => outside::needs_a_set, Inspects, Internal, admin;
        "tells how far members have come"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once() {
        let mut names: Vec<_> =
            TABLE.iter().flat_map(|facts| facts.aliases.iter().chain([&facts.name])).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
