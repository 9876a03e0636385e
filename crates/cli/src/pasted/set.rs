//! Rules about replica sets: names, configurations, elections, replication.

use super::Context;
use super::rules::{Evidence, Rank, Rule, servers_of, servers_or, word_of};
use crate::finding::Finding;
use crate::remedy;
use crate::words::{Foreign, listed};

pub(super) const RULES: &[Rule] = &[
    Rule::cause(
        "wrong_set_name",
        &[
            r"Expecting replica set member from set '(?P<wanted>[^']+)', but found one from set '(?P<found>[^']+)'(?:\. Removing (?P<host>[\w.-]+):(?P<port>\d+))?",
            r"replica set named '(?P<wanted>[^']+)' but this node belongs to a set named '?(?P<found>[^'\s]+?)'?(?:[\s.,;)]|$)",
            r"replicaSet=(?P<wanted>[\w.-]+)(?:, the server says it is in| is wanted, they belong to) (?P<found>[\w.-]+)",
            r"(?i)setName mismatch[^\n]*?expected:? '?(?P<wanted>[\w.-]+)'?,? (?:but )?(?:got|found|received):? '?(?P<found>[\w.-]+)",
        ],
        wrong_set_name,
    ),
    Rule::cause(
        "every_host_dropped",
        &[
            r"[Ss]ervers ?[:=] ?\[\s*\]|serverDescriptions=\[\]|servers: Map\(0\)",
            r"every server was removed",
            r"Topology type: ReplicaSetNoPrimary; Set name: [^,\n]+, Member status:\s*$",
        ],
        every_host_dropped,
    ),
    Rule::cause(
        "never_initiated",
        &[
            r"NotYetInitialized|no replset config has been received",
            r"\b(?:RSGhost|REPLICA_SET_GHOST|ReplicaSetGhost)\b",
            r#"(?:error|code)['\x22]?[ :=]+94\b"#,
            r"[Dd]id you (?:forget to )?run rs\.initiate|run rs\.initiate",
        ],
        never_initiated,
    ),
    Rule::cause(
        "config_lost_self",
        &[
            r"(?i)our replica set config is invalid or we are not a member of it",
            r"InvalidReplicaSetConfig",
            r#"(?:error|code)['\x22]?[ :=]+93\b"#,
            r"No host described in new configuration .{0,80}? maps to this node",
        ],
        config_lost_self,
    ),
    Rule::cause(
        "no_replication",
        &[
            r"not running with --replSet|NoReplicationEnabled|not started with replication enabled",
            r"Transaction numbers are only allowed on a replica set member or mongos",
            r"\$changeStream stage is only supported on replica sets",
            r"(?i)change streams are only (?:supported|available) (?:on|against|with) replica sets",
            r"does not support retryable writes",
        ],
        no_replication,
    ),
    Rule::plain(
        "configuration_quorum",
        &[
            r"[Qq]uorum check failed because not (?:enough voting nodes|all proposed set members) responded[^:;]*[;:] ?(?:required (?P<needed>\d+) )?[^:]*?(?P<host>[\w.-]+):(?P<port>\d+)",
            r"[Qq]uorum check failed",
        ],
        "the members do not all reach each other ({the server})",
        "rs.initiate and rs.reconfig ask the members first: a majority (for initiate, all) must \
         answer under the names in the configuration",
        &[
            "from each member: mongosh --host OTHER_MEMBER:27017 --eval 'db.hello().ok'",
            "correct names, firewall, bindIp or the key file, then repeat the command",
        ],
    ),
    Rule::cause(
        "not_primary",
        &[
            r"NotWritablePrimary|NotPrimaryNoSecondaryOk|NotMasterNoSlaveOk|MongoNotPrimaryException|NotPrimaryError",
            r"(?i)not (?:primary|master)(?: and (?:secondary|slave)Ok=false)?",
            r#"(?:error|code)['\x22]?[ :=]+(?:10107|13435)\b"#,
        ],
        not_primary,
    ),
    Rule::cause(
        "recovering",
        &[
            r"node is recovering|NotPrimaryOrSecondary|NotMasterOrSecondary|MongoNodeIsRecoveringException",
        ],
        recovering,
    ),
    Rule::plain(
        "stepped_down",
        &[
            r"PrimarySteppedDown|InterruptedDueToReplStateChange|InterruptedAtShutdown|ShutdownInProgress",
            r"(?i)interrupted at shutdown",
            // The Java driver has one exception for these and for members that recover.
            r"MongoNodeIsRecoveringException: [^\n]{0,40}?error (?:91|189|11600|11602)\b",
            r"primary marked stale due to",
        ],
        "{the server} gave up or lost its place as primary during the operation",
        "an election takes until the others notice (at most electionTimeoutMillis, 10 s) and \
         vote; operations in between fail unless they are retried",
        &[
            "retry: retryWrites=true and retryReads=true in the connection string (both are \
             defaults)",
            "raise serverSelectionTimeoutMS above the election timeout if it was lowered",
            "if it happens often: rs.status() and the server's log tell who called the election",
        ],
    ),
    Rule::plain(
        "write_concern_unsatisfied",
        &[
            r"waiting for replication timed out|WriteConcernFailed|WriteConcernTimeout",
            r"w: \d+ asks for more members than the \d+ that hold data",
            r"Not enough data-bearing nodes|UnsatisfiableWriteConcern|CannotSatisfyWriteConcern",
        ],
        "a write was done, but not on as many members as it asked for",
        "w: \"majority\" counts members that hold data: with a primary, a secondary and an \
         arbiter, one lost data member makes it impossible; lag makes it slow",
        &[
            "mongosh URI --eval 'rs.printSecondaryReplicationInfo(); rs.status().members.map(m \
             => [m.name, m.stateStr])'",
            "start the missing data member, or replace the arbiter by one that holds data",
            "give it more time: wtimeoutMS in the connection string, or timeoutMS",
        ],
    ),
    Rule::cause(
        "read_preference_unsatisfied",
        &[
            r#"Could not find host matching read preference \{ ?mode: \x22?(?P<detail>\w+)"#,
            r#"No replica set members match selector \x22(?P<detail>[^\x22]+)"#,
            r"ReadPreferenceServerSelector\{readPreference=(?P<detail>\w+)",
            r"FailedToSatisfyReadPreference",
        ],
        read_preference_unsatisfied,
    )
    .only(|evidence| {
        // Wanting the primary and finding none is another matter.
        !evidence
            .word("detail")
            .is_some_and(|mode| mode.to_ascii_lowercase().starts_with("primary"))
    }),
    Rule::plain(
        "too_stale",
        &[r"RS102|too stale to catch up|OplogStartMissing|CappedPositionLost|We are too stale"],
        "{the server} fell off the oplog: what it needs next is no longer kept",
        "it was away or lagging longer than the oplog of every sync source reaches back, so it \
         can only start over",
        &[
            "sync it anew: stop it, empty its data directory, start it",
            "keep more history on every member: db.adminCommand({replSetResizeOplog: 1, size: \
             MEGABYTES})",
            "see the window: mongosh URI --eval 'rs.printReplicationInfo()'",
        ],
    ),
    Rule::plain(
        "rolled_back",
        &[
            r"(?i)unrecoverable rollback|UnrecoverableRollbackError|rollback (?:is )?too long|rolled back \d+|rollback files? (?:written|created)|transition to ROLLBACK",
        ],
        "{the server} took back writes that a majority never had",
        "writes acknowledged with w: 1 may vanish when their primary is lost before they are \
         replicated",
        &[
            "find them in the folder rollback of its data directory: bsondump \
             rollback/DATABASE.COLLECTION/*.bson",
            "write with w: \"majority\" (w=majority in the connection string)",
        ],
    ),
    Rule::plain(
        "initial_sync_failed",
        &[r"(?i)initial sync (?:attempt )?failed|InitialSyncFailure|InitialSyncOplogSourceMissing"],
        "{the server} could not copy the data of its sync source",
        "the source went away, the disk is full, or the oplog rolled over during the copy",
        &[
            "see the reason: mongosh URI --eval 'db.adminCommand({replSetGetStatus: 1, \
             initialSync: 1}).initialSyncStatus'",
            "enlarge the oplog of the source, free disk space, then restart the member",
        ],
    ),
    Rule::plain(
        "no_primary",
        &[
            r"No writable server available",
            r"No primary available for writes|No primary (?:server )?(?:is )?available|no primary found|No primary detected",
            r#"match selector \x22Primary\(\)"#,
            r"ReplicaSetNoPrimary",
            r"WritableServerSelector",
        ],
        "the client knows no primary, and the text does not say why",
        "either no majority of the members can see each other, or the primary is not reachable \
         from here",
        &[
            remedy::doctor_which!("asks every member who the primary is"),
            "paste the whole message with the description of each server",
        ],
    )
    .ranked(Rank::Symptom),
];

fn wrong_set_name(evidence: &[Evidence], _: &Context) -> Finding {
    let wanted = word_of(evidence, "wanted").unwrap_or("NAME");
    let found = word_of(evidence, "found").unwrap_or("another");
    let no_set = matches!(found, "None" | "null" | "no");
    let server = servers_or(evidence, "the server");
    let seen = match no_set {
        true => {
            format!("the connection string says replicaSet={wanted}, {server} belongs to no set")
        }
        false => format!("the connection string says replicaSet={wanted}, {server} says {found}"),
    };
    let finding = Finding::problem("wrong_set_name", seen)
        .because("drivers drop a host whose set has another name, and then have no server to ask");
    if no_set {
        // Whether it is empty is not known, so that no line to paste is given.
        return finding.fix(remedy::NAME_NO_SET).fix(remedy::make_member(wanted, "rs.initiate()"));
    }
    finding.fix(remedy::name_set(found)).fix(remedy::members_of(wanted))
}

/// The connection string of the message, without its password; a place for it otherwise.
fn set_of(context: &Context) -> String {
    context.uri.as_ref().map_or_else(|| "URI".to_owned(), ToString::to_string)
}

/// The connection string of one member of it.
fn member_of(context: &Context, host: &str) -> String {
    let known = context.uri.as_ref().map(ToString::to_string);
    remedy::member_uri(known.as_deref().unwrap_or("mongodb://HOST"), host)
}

fn every_host_dropped(_: &[Evidence], context: &Context) -> Finding {
    let name = context.uri.as_ref().and_then(|uri| uri.options().replica_set.clone());
    let wanted = name.map_or_else(String::new, |name| format!(" (replicaSet={})", Foreign(name)));
    Finding::problem("every_host_dropped", "the client has dropped every host it was given")
        .because(format!(
            "the hosts answered, but belong to another set or to none: the name in the connection \
             string{wanted} is not theirs"
        ))
        .fix("see the real name: mongosh --host HOST --eval 'db.hello().setName'")
        .fix(
            "write that name after replicaSet=, or remove replicaSet if the server is a standalone",
        )
}

fn never_initiated(evidence: &[Evidence], context: &Context) -> Finding {
    let ghosts: Vec<&str> = context
        .servers
        .iter()
        .filter(|server| server.kind.as_deref() == Some("RSGhost"))
        .map(|server| server.address.as_str())
        .collect();
    let mut hosts: Vec<String> = servers_of(evidence);
    if hosts.is_empty() {
        hosts = ghosts.iter().map(|&ghost| ghost.to_owned()).collect();
    }
    if hosts.is_empty() {
        hosts.push("HOST:27017".to_owned());
    }
    let name = context.uri.as_ref().and_then(|uri| uri.options().replica_set.clone());
    let name = name.unwrap_or_else(|| "NAME".to_owned());
    let script = remedy::initiate(&name, hosts.iter().map(String::as_str));
    finding!(problem "never_initiated",
        "{} was started with a set name, but the set was never initiated", listed(&hosts))
    .because("without a configuration there are no members, and none can be elected")
    .fix(format!(
        "with the name given to --replSet: {}",
        remedy::mongosh(&member_of(context, &hosts[0]), &script)
    ))
}

fn config_lost_self(evidence: &[Evidence], context: &Context) -> Finding {
    finding!(problem "config_lost_self",
        "{} does not find itself in its set's configuration", servers_or(evidence, "the server"))
    .because(
        "its address changed (a new container or pod, another IP or host name), or it was removed; \
         until the configuration names it again it serves no client",
    )
    .fix("compare: in mongosh on that member: rs.conf().members.map(m => m.host) and db.hello().me")
    .fix(format!(
        "on the primary: {}",
        remedy::mongosh(
            &set_of(context),
            &remedy::rename_member("OLD_NAME:27017", "NEW_NAME:27017")
        )
    ))
}

fn no_replication(_: &[Evidence], _: &Context) -> Finding {
    Finding::problem("no_replication", "the server runs alone, not as a member of a replica set")
        .because(
            "transactions, change streams and retryable writes need the oplog, which only \
                  members of a set keep",
        )
        .fix(format!(
            "restart it as a set of one: mongod --replSet rs0 …, then {}",
            remedy::mongosh(
                "mongodb://HOST:27017/?directConnection=true",
                &remedy::initiate("rs0", ["HOST:27017"])
            )
        ))
        .fix("if only retryable writes are refused: retryWrites=false in the connection string")
}

fn not_primary(evidence: &[Evidence], context: &Context) -> Finding {
    let direct = context.topology.as_deref() == Some("Single")
        || context.uri.as_ref().is_some_and(|uri| uri.options().direct_connection == Some(true));
    let server = servers_or(evidence, "the server");
    if direct {
        return finding!(problem "not_primary_direct",
            "the client is tied to one server (mode Single), and {server} is not the primary")
        .because(
            "directConnection=true, or one host without replicaSet, uses that server \
                  whatever it is: writes fail on a secondary, and no failover happens",
        )
        .fix(remedy::connect_to_set("NAME"))
        .fix(remedy::READ_HERE)
        .fix("find the primary: mongosh --host THAT_HOST --eval 'db.hello().primary'");
    }
    finding!(problem "not_primary", "{server} was asked for what only a primary does, and is none")
        .because(
            "a failover happened after the server was chosen, or the client is tied to one member",
        )
        .fix("use a driver with retryable writes (retryWrites=true, the default since 4.2 drivers)")
        .fix("name the set: replicaSet=NAME in the connection string, and no directConnection=true")
        .fix("for reads that may be a little old: readPreference=secondaryPreferred")
}

fn recovering(evidence: &[Evidence], _: &Context) -> Finding {
    finding!(problem "recovering",
        "{} is starting up, syncing or recovering", servers_or(evidence, "the server"))
    .because("such a member serves neither reads nor writes until it has caught up")
    .fix(format!("see what it waits for: {}", remedy::on_uri(remedy::MEMBER_STATES)))
    .fix("wait, or read from others: readPreference=nearest")
}

fn read_preference_unsatisfied(evidence: &[Evidence], _: &Context) -> Finding {
    let wish = word_of(evidence, "detail").map(|wish| format!(" ({})", Foreign(wish)));
    finding!(problem "read_preference_unsatisfied",
        "no member satisfies the read preference{}", wish.unwrap_or_default())
    .because("the members that answer have another role, other tags, or are too stale")
    .fix("accept the primary too: readPreference=secondaryPreferred")
    .fix("compare the tags: mongosh URI --eval 'rs.conf().members.map(m => [m.host, m.tags])'")
    .fix(remedy::doctor_which!("checks the read preference of the connection string"))
}
