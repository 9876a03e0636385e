//! The commands, one file per command or family, and the table that lists them.

mod aggregate;
mod authentication;
mod backup;
mod cluster_parameters;
mod common;
mod count;
mod create;
mod cursor_commands;
mod data_size;
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
mod merge_users;
mod output;
mod outside;
mod parameters;
mod resize_oplog;
mod roles;
mod session_commands;
mod statistics;
mod steps;
mod update;
mod users;
mod x509;

pub(crate) use aggregate::Target;
pub(crate) use cluster_parameters::image_expiry;
pub(crate) use common::WriteConcern;
pub(crate) use default_concerns::{read_concern, write_concern};
pub(crate) use find::project;
pub(crate) use hello::MAX_WRITE_BATCH_SIZE;
pub use hello::StreamedHello;
pub(crate) use insert::check_statement_count;

use crate::command_table::{Access, Answerer, CommandFacts, InTransaction, Run, command};
use crate::touched;

use Access::{
    ClusterAdmin, ClusterMonitor, DatabaseAdmin, Everything, LoggedIn, Look, Measure, MergeUsers,
    Public, Read, ReadParameters, Shape, UserAdmin, Write,
};
use Answerer::{Process, ReplicaSet};
use InTransaction::{AfterTheFirst, Allowed};

/// Every command there is.
pub(crate) static TABLE: &[CommandFacts] = &[
    // The connection.
    command("hello", hello::hello, "what this server is and can do")
        .alias(&["isMaster", "ismaster"])
        .inspects(Public)
        .any_fields()
        .waits()
        .in_transaction(AfterTheFirst)
        .stable(),
    command("ping", diagnostics::ping, "answers").inspects(Public).stable(),
    command("buildInfo", diagnostics::build_info, "the version of the server")
        .alias(&["buildinfo"])
        .inspects(Public)
        .in_transaction(AfterTheFirst),
    command("whatsmyuri", diagnostics::whats_my_uri, "the address of the client").inspects(Public),
    command("connectionStatus", authentication::connection_status, "who is logged in")
        .inspects(Public)
        .fields(&["showPrivileges"])
        .in_transaction(AfterTheFirst),
    command("saslStart", authentication::sasl_start, "begins to log in")
        .inspects(Public)
        .fields(&["mechanism", "payload", "autoAuthorize", "options", "db"])
        .stable(),
    command("saslContinue", authentication::sasl_continue, "goes on logging in")
        .inspects(Public)
        .fields(&["conversationId", "payload"])
        .stable(),
    command("authenticate", x509::authenticate, "logs in with a certificate")
        .inspects(Public)
        .fields(&["mechanism", "user", "db"])
        .stable(),
    command("logout", authentication::logout, "logs out").inspects(Public),
    command("listCommands", diagnostics::list_commands, "this list").inspects(Public),
    // Users.
    command("createUser", users::create_user, "adds a user")
        .writes(UserAdmin)
        .fields(USER)
        .without(&["authenticationRestrictions"]),
    command("updateUser", users::update_user, "changes a user")
        .writes(UserAdmin)
        .fields(USER)
        .without(&["authenticationRestrictions"]),
    command("dropUser", users::drop_user, "removes a user").writes(UserAdmin),
    command("dropAllUsersFromDatabase", users::drop_all_users, "removes the users of a database")
        .writes(UserAdmin),
    command("grantRolesToUser", users::grant_roles, "gives a user roles")
        .writes(UserAdmin)
        .fields(&["roles"]),
    command("revokeRolesFromUser", users::revoke_roles, "takes roles from a user")
        .writes(UserAdmin)
        .fields(&["roles"]),
    command("usersInfo", users::users_info, "the users there are")
        .reads(UserAdmin)
        .on(touched::users)
        .fields(&[
            "showCredentials", "showCustomData", "showPrivileges",
            "showAuthenticationRestrictions", "filter",
        ]),
    command("rolesInfo", roles::roles_info, "the roles there are, and what they allow")
        .reads(UserAdmin)
        .on(touched::roles)
        .fields(&["showPrivileges", "showBuiltinRoles", "showAuthenticationRestrictions"]),
    command("_mergeAuthzCollections", merge_users::merge, "puts the users of a dump in place")
        .writes(MergeUsers)
        .on_admin()
        .on(touched::merged)
        .fields(&["tempUsersCollection", "tempRolesCollection", "drop", "db"]),
    // The process and its settings.
    command("hostInfo", outside::needs_a_process, "the machine it runs on")
        .administers(ClusterMonitor)
        .answered_by(Process),
    command("getCmdLineOpts", diagnostics::get_command_line, "how the server was started")
        .administers(ClusterMonitor),
    command("getLog", outside::needs_a_process, "recent log lines")
        .administers(ClusterMonitor)
        .answered_by(Process),
    command("logRotate", diagnostics::ok, "does nothing").administers(ClusterAdmin),
    command("serverStatus", statistics::server_status, "counters of the server")
        .inspects(ClusterMonitor)
        .any_fields(),
    command("top", statistics::top, "how often each collection was used, and for how long")
        .administers(ClusterMonitor),
    command("getParameter", parameters::get_parameter, "parameters of the server")
        .administers(ReadParameters)
        .any_fields(),
    command("setParameter", parameters::set_parameter, "changes a parameter")
        .administers(ClusterAdmin)
        .any_fields(),
    command("getClusterParameter", cluster_parameters::get, "parameters of the deployment")
        .administers(ClusterAdmin),
    command(
        "setClusterParameter",
        cluster_parameters::set,
        "changes a parameter of the deployment",
    )
    .writes(ClusterAdmin)
    .on_admin(),
    command(
        "getDefaultRWConcern",
        default_concerns::get,
        "the concerns of commands that give none",
    )
    .administers(ClusterMonitor)
    .fields(&["inMemory"]),
    command(
        "setDefaultRWConcern",
        default_concerns::set,
        "chooses the concerns of commands that give none",
    )
    .writes(ClusterAdmin)
    .on_admin()
    .fields(&["defaultReadConcern", "defaultWriteConcern"]),
    command("configureFailPoint", parameters::configure_fail_point, "injects faults")
        .administers(ClusterAdmin)
        .fields(&["mode", "data"])
        .for_tests(),
    command("fsync", diagnostics::fsync, "forces writes to disk")
        .administers(ClusterAdmin)
        .fields(&["lock", "async", "fsyncLockAcquisitionTimeoutMillis"]),
    command("quorateBackup", backup::backup, "everything that is stored, at one moment")
        .administers(Everything),
    command("fsyncUnlock", outside::needs_a_process, "lets writes go on after fsync with lock")
        .administers(ClusterAdmin)
        .answered_by(Process),
    command("currentOp", diagnostics::current_operations, "commands in progress")
        .administers(ClusterMonitor)
        .on(touched::operations)
        .any_fields(),
    command("killOp", diagnostics::kill_operation, "stops a command")
        .administers(LoggedIn)
        .fields(&["op"])
        .interrupts_others(),
    command(
        "profile",
        diagnostics::profile,
        "which commands are told of, in the log and in system.profile",
    )
    .inspects(DatabaseAdmin)
    .fields(&["slowms", "sampleRate", "filter"]),
    command("shutdown", outside::needs_a_process, "ends the server")
        .administers(ClusterAdmin)
        .fields(&["force", "timeoutSecs"])
        .answered_by(Process),
    // Sessions.
    command("startSession", session_commands::start, "starts a session").inspects(LoggedIn),
    command("refreshSessions", session_commands::refresh, "keeps sessions alive")
        .inspects(LoggedIn)
        .stable(),
    command("commitTransaction", crate::transactions::commit, "commits a transaction")
        .writes(LoggedIn)
        .on_admin()
        .fields(&["recoveryToken"])
        .stable(),
    command(
        "abortTransaction",
        crate::transactions::abort,
        "ends a transaction without its changes",
    )
    .writes(LoggedIn)
    .on_admin()
    .fields(&["recoveryToken"])
    .stable(),
    command("endSessions", session_commands::end, "ends sessions").inspects(LoggedIn).stable(),
    command(
        "killSessions",
        session_commands::kill,
        "ends sessions, their cursors and what runs in them",
    )
    .inspects(LoggedIn)
    .interrupts_others(),
    command(
        "killAllSessions",
        session_commands::kill_all,
        "ends all sessions, or those of some users",
    )
    .inspects(ClusterAdmin)
    .interrupts_others(),
    command(
        "killAllSessionsByPattern",
        session_commands::kill_by_pattern,
        "ends the sessions that patterns describe",
    )
    .inspects(ClusterAdmin)
    .interrupts_others(),
    // Documents.
    document_write("insert", insert::insert, "inserts documents").fields(&[
        "documents", "ordered", "bypassDocumentValidation", "bypassEmptyTsReplacement", "stmtId",
        "stmtIds",
    ]),
    document_write("update", update::update, "changes documents").fields(&[
        "updates", "ordered", "bypassDocumentValidation", "bypassEmptyTsReplacement", "let",
        "stmtId", "stmtIds",
    ]),
    document_write("delete", delete::delete, "deletes documents")
        .fields(&["deletes", "ordered", "bypassDocumentValidation", "let", "stmtId", "stmtIds"]),
    document_write(
        "findAndModify",
        find_and_modify::find_and_modify,
        "changes a document and returns it",
    )
    .alias(&["findandmodify"])
    .fields(&[
        "query", "fields", "sort", "hint", "collation", "arrayFilters", "remove", "update",
        "upsert", "new", "let", "bypassDocumentValidation", "bypassEmptyTsReplacement", "stmtId",
    ]),
    command("find", find::find, "reads documents")
        .reads(Read)
        .on(touched::named)
        .fields(&[
            "filter", "sort", "projection", "hint", "skip", "limit", "batchSize", "singleBatch",
            "allowDiskUse", "min", "max", "returnKey", "showRecordId", "tailable", "awaitData",
            "oplogReplay", "noCursorTimeout", "allowPartialResults", "collation", "let", "term",
            "collectionUUID",
        ])
        .without(&["resumeAfter", "$_requestResumeToken", "$_resumeAfter"])
        .reads_snapshots()
        .takes_default_read_concern()
        .in_transaction(Allowed)
        .stable(),
    command("getMore", cursor_commands::get_more, "reads on from a cursor")
        .reads(Read)
        .on(touched::cursor)
        .fields(&["collection", "batchSize", "term", "lastKnownCommittedOpTime"])
        .waits()
        .scans()
        .in_transaction(AfterTheFirst)
        .stable(),
    command("killCursors", cursor_commands::kill_cursors, "closes cursors")
        .inspects(LoggedIn)
        .on(touched::named)
        .fields(&["cursors"])
        .in_transaction(AfterTheFirst)
        .interrupts_others()
        .stable(),
    command("aggregate", aggregate::aggregate, "runs documents through a pipeline")
        .reads(Read)
        .on(touched::pipeline)
        .fields(&[
            "pipeline", "explain", "allowDiskUse", "cursor", "bypassDocumentValidation",
            "bypassEmptyTsReplacement", "collation", "hint", "let",
        ])
        .without(UUID_AND_ENCRYPTION)
        .scans()
        .reads_snapshots()
        .takes_default_read_concern()
        .in_transaction(Allowed)
        .stable(),
    command("count", count::count, "counts documents")
        .reads(Read)
        .on(touched::named)
        .fields(&["query", "limit", "skip", "hint", "collation", "fields"])
        .without(UUID_AND_ENCRYPTION)
        .takes_default_read_concern()
        .stable(),
    command("distinct", distinct::distinct, "the different values of a field")
        .reads(Read)
        .on(touched::named)
        .fields(&["key", "query", "hint", "collation"])
        .without(&["collectionUUID"])
        .reads_snapshots()
        .takes_default_read_concern()
        .in_transaction(Allowed),
    command("explain", explain::explain, "how a command would be carried out")
        .reads(Read)
        .on(touched::explained)
        .fields(&["verbosity"])
        .scans()
        .stable(),
    // Collections, indexes and databases.
    command("create", create::create, "creates a collection or a view")
        .writes(Shape)
        .on(touched::view)
        .fields(&[
            "capped", "size", "max", "validator", "validationLevel", "validationAction", "viewOn",
            "pipeline", "expireAfterSeconds", "collation", "autoIndexId", "idIndex",
            "indexOptionDefaults", "storageEngine", "changeStreamPreAndPostImages", "flags",
            "temp",
        ])
        .without(&["timeseries", "clusteredIndex", "encryptedFields"])
        .in_transaction(Allowed)
        .stable(),
    command("collMod", create::modify, "changes the options of a collection")
        .writes(DatabaseAdmin)
        .on(touched::view)
        .fields(&[
            "index", "validator", "validationLevel", "validationAction", "viewOn", "pipeline",
            "changeStreamPreAndPostImages",
        ])
        .without(&["cappedSize", "cappedMax", "expireAfterSeconds", "timeseries", "dryRun"])
        .stable(),
    command("renameCollection", create::rename, "renames a collection")
        .writes(Shape)
        .on_admin()
        .on(touched::rename)
        .fields(&["to", "dropTarget", "stayTemp"])
        .without(&["collectionUUID"]),
    command("drop", drop::drop_collection, "removes a collection")
        .writes(Shape)
        .on(touched::named)
        .without(&["collectionUUID"])
        .stable(),
    command("dropDatabase", drop::drop_database, "removes a database")
        .writes(DatabaseAdmin)
        .scans()
        .stable(),
    command("createIndexes", indexes::create_indexes, "adds indexes")
        .writes(Shape)
        .on(touched::named)
        .fields(&["indexes", "commitQuorum", "ignoreUnknownIndexOptions"])
        .scans()
        .in_transaction(Allowed)
        .stable(),
    command("listIndexes", indexes::list_indexes, "the indexes of a collection")
        .reads(Look)
        .on(touched::named)
        .fields(&["cursor", "includeBuildUUIDs", "includeIndexBuildInfo", "collectionUUID"])
        .stable(),
    command("dropIndexes", indexes::drop_indexes, "removes indexes")
        .alias(&["deleteIndexes"])
        .writes(Shape)
        .on(touched::named)
        .fields(&["index"])
        .stable(),
    command("listDatabases", list::list_databases, "the databases there are")
        .reads(LoggedIn)
        .on_admin()
        .fields(&["filter", "nameOnly", "authorizedDatabases"])
        .scans()
        .stable(),
    command("listCollections", list::list_collections, "the collections of a database")
        .reads(Look)
        .on(touched::listed)
        .fields(&["cursor", "filter", "nameOnly", "authorizedCollections"])
        .stable(),
    command("collStats", statistics::collection_statistics, "how much a collection holds")
        .alias(&["collstats"])
        .reads(Measure)
        .on(touched::named)
        .fields(&["scale", "verbose", "waitForLock", "numericOnly"])
        .scans(),
    command(
        "dataSize",
        data_size::data_size,
        "how large a collection is, or a range of keys in it",
    )
    .alias(&["datasize"])
    .reads(Read)
    .on(touched::fully_named)
    .fields(&["keyPattern", "min", "max", "estimate"])
    .without(&["maxSize", "maxObjects"])
    .scans(),
    command("dbStats", statistics::database_statistics, "how much a database holds")
        .alias(&["dbstats"])
        .reads(Measure)
        .fields(&["scale", "freeStorage"])
        .scans(),
    command("validate", statistics::validate, "checks that documents and indexes agree")
        .reads(DatabaseAdmin)
        .on(touched::named)
        .fields(&[
            "full", "scandata", "background", "metadata", "enforceFastCount",
            "checkBSONConformance",
        ])
        .without(&["repair", "fixMultikey"])
        .scans(),
    command("dbHash", statistics::database_hash, "a fingerprint of the data")
        .alias(&["dbhash"])
        .reads(Read)
        .fields(&["collections", "skipTempCollections"])
        .scans(),
    // The replica set.
    command(
        "replSetResizeOplog",
        resize_oplog::resize_oplog,
        "how much history this member keeps, and for how long",
    )
    .administers(ClusterAdmin)
    .fields(&["size", "minRetentionHours"]),
    set_command("replSetInitiate", "makes a replica set"),
    set_command("replSetReconfig", "changes the members of the set").fields(&["force"]),
    set_command("replSetStepDown", "hands leadership over")
        .fields(&["force", "secondaryCatchUpPeriodSecs"]),
    set_command("replSetStepUp", "asks to be elected").fields(&["skipDryRun"]),
    set_command("replSetFreeze", "keeps from being elected for a while"),
    set_command("replSetSyncFrom", "chooses whom to copy from"),
    set_command("replSetMaintenance", "takes no reads for a while"),
    set_command("replSetGetStatus", "what the members are doing")
        .inspects(ClusterMonitor)
        .fields(&["initialSync"]),
    set_command("replSetGetConfig", "the configuration of the set")
        .inspects(ClusterMonitor)
        .fields(&["commitmentStatus"]),
    command("connPoolStats", outside::no_connections, "connections to other members")
        .inspects(ClusterMonitor)
        .answered_by(ReplicaSet),
    set_command("quorateExplainElection", "why there is or is not a primary")
        .inspects(ClusterMonitor),
    set_command("replSetGetRBID", "how often this member rolled back").between_members(),
    set_command("replSetHeartbeat", "what members tell each other all the time").between_members(),
    set_command("replSetRequestVotes", "asks for a vote").between_members(),
    set_command("replSetUpdatePosition", "tells how far members have come").between_members(),
];

/// The fields of a user.
const USER: &[&str] = &["pwd", "roles", "customData", "mechanisms", "digestPassword"];

/// What no command of ours that reads or writes documents offers, but `find`.
const UUID_AND_ENCRYPTION: &[&str] = &["collectionUUID", "encryptionInformation"];

/// A command that changes documents.
const fn document_write(name: &'static str, run: Run, help: &'static str) -> CommandFacts {
    command(name, run, help)
        .writes(Write)
        .on(touched::named)
        .without(UUID_AND_ENCRYPTION)
        .retryable()
        .in_transaction(Allowed)
        .stable()
}

/// A command that the host of the replica set answers.
const fn set_command(name: &'static str, help: &'static str) -> CommandFacts {
    command(name, outside::needs_a_set, help).administers(ClusterAdmin).answered_by(ReplicaSet)
}
