//! Rules about the client itself: its connection string, pools, versions and platform.

use super::Context;
use super::rules::{Evidence, Rank, Rule, servers_or, word_of};
use crate::finding::Finding;
use crate::remedy;

pub(super) const RULES: &[Rule] = &[
    Rule::plain(
        "connection_string",
        &[
            r"Invalid scheme, expected connection string to start with|must begin with 'mongodb://|scheme must be \x22mongodb\x22",
            r"must be (?:percent-)?escaped|unescaped characters|unescaped (?:@|colon|slash)|URI malformed|Password contains",
            r"Invalid (?:MongoDB )?(?:connection string|URI)|The connection string is (?:invalid|missing)|error parsing uri|InvalidURI|MongoParseError|Protocol and host list are required",
        ],
        "the driver cannot read the connection string",
        "nothing was dialled yet; the usual causes are an empty environment variable, a \
         character in the password that must be encoded, or quotes that became part of the \
         string",
        &[
            "let us read it and name the place: quorate doctor 'URI'",
            "percent-encode user and password: @ is %40, : is %3A, / is %2F, % is %25, # is %23",
        ],
    ),
    Rule::cause(
        "wire_version",
        &[
            r"Server at (?P<host>[\w.-]+):(?P<port>\d+) (?P<detail>reports (?:maximum )?wire version|requires wire version|reports minimum wire version)[^\n]*",
            r"(?P<also>Unsupported OP_QUERY command|UnsupportedOpQueryCommand|OP_QUERY is only understood for hello)",
            r"MongoIncompatibleDriverException|is incompatible with this version of the driver",
        ],
        wire_version,
    ),
    Rule::plain(
        "pool_exhausted",
        &[
            r"(?i)timed out while checking out a connection|WaitQueueTimeout|WaitQueueFull|timeout was reached while (?:waiting|checking)",
            r"Timed out after \d+(?:\.\d+)? ?\w+ while waiting (?:for a connection|to acquire)",
        ],
        "every connection of the pool was in use for too long",
        "operations are slower than they come in, cursors or transactions are left open, or \
         maxPoolSize is too small; the servers may be perfectly well",
        &[
            "find the slow operations: mongosh URI --eval 'db.currentOp({secs_running: {$gt: 1}})'",
            "use one client for the whole process, not one for each request",
            "raise maxPoolSize, and count: clients × (2 monitors + maxPoolSize) connections \
             arrive at the primary",
        ],
    ),
    Rule::plain(
        "too_many_connections",
        &[
            r"(?i)(?:connection refused because )?too many open connections|too many open files|\bEMFILE\b|connection limit",
        ],
        "a limit on open connections or files was reached",
        "clients × (2 monitors + maxPoolSize) connections arrive at the primary: 200 clients \
         with the default pool of 100 may open 20,400",
        &[
            remedy::FEWER_CONNECTIONS,
            remedy::MORE_CONNECTIONS,
            "count: mongosh URI --eval 'db.serverStatus().connections'",
        ],
    ),
    Rule::plain(
        "client_closed",
        &[
            r"(?i)topology (?:is|was) (?:closed|destroyed)|client is disconnected|must be connected before|Cannot use MongoClient after close|client was (?:shut down|closed)|MongoClient is closed",
        ],
        "the application used its client before connecting or after closing it",
        "no server is at fault: the monitors are stopped, and nothing can be selected",
        &[
            "connect once at the start, close once at the end, and await both",
        ],
    ),
    Rule::plain(
        "pool_cleared",
        &[
            r"Connection pool for (?P<host>[\w.-]+):(?P<port>\d+) was cleared|PoolCleared|pool (?:was )?cleared",
            r"ConnectionPoolPaused|pool is in paused state(?: for server (?:Unspecified/)?(?P<host>[\w.-]+):(?P<port>\d+))?",
        ],
        "the pool of {a server} was cleared because another operation failed",
        "this message is the consequence; the first failure of that server in the log is the cause",
        &[
            "paste the first error about that server, from just before this one",
            "quorate doctor URI",
        ],
    )
    .ranked(Rank::Symptom),
    Rule::cause(
        "buffering_timed_out",
        &[r"buffering timed out after (?P<detail>\d+) ?ms"],
        buffering_timed_out,
    )
    .ranked(Rank::Symptom),
    Rule::plain(
        "cause_hidden",
        &[
            r"(?i)server selection (?:timed out|timeout|error)|ServerSelectionTimeoutError|No suitable servers found|No server is available matching preference|No available servers|No servers found yet|No replica set members found yet|Timed out after \d+ ms while waiting for a server|A timeout occurred after \d+ms selecting a server|Mongo(?:ose)?ServerSelectionError",
        ],
        "no server could be selected in time, and the text does not say why",
        "the cause is the last error of each server, which the driver keeps in the error's \
         reason (Node), topology description (PyMongo, Go, Rust) or cluster state (Java)",
        &[
            remedy::doctor_which!("asks every server itself"),
            "paste the whole message; in Node: console.dir(error.reason, {depth: null})",
        ],
    )
    .ranked(Rank::Symptom),
    Rule::plain(
        "function_platform",
        &[
            r"/var/task/|/var/runtime/|AWS_LAMBDA|Task timed out after [\d.]+ seconds|/vercel/path|FUNCTION_NAME|/home/site/wwwroot",
        ],
        "the program runs on a function platform",
        "it is frozen between calls: connections die unseen, and a check begun before the freeze \
         fails after it",
        &[
            "create the client outside the handler, and do not close it inside",
            "maxPoolSize=1&serverMonitoringMode=poll in the connection string",
        ],
    )
    .noted()
    .ranked(Rank::Circumstance),
];

fn wire_version(evidence: &[Evidence], _: &Context) -> Finding {
    let server = servers_or(evidence, "a server");
    let newer = word_of(evidence, "detail")
        .is_some_and(|detail| detail.starts_with("requires") || detail.contains("minimum"))
        || evidence.iter().any(|evidence| evidence.word("also").is_some());
    let finding = match newer {
        true => finding!(problem "wire_version", "{server} is newer than the driver understands"),
        false => {
            finding!(problem "wire_version", "{server} is older than the driver supports")
        }
    };
    let finding = finding.because(
        "driver and server share no wire version, so that the driver refuses the whole deployment",
    );
    match newer {
        true => finding
            .fix("upgrade the driver")
            .fix("see what the server speaks: mongosh URI --eval 'db.hello().minWireVersion'"),
        false => finding
            .fix("upgrade the server, one major version at a time (featureCompatibilityVersion)")
            .fix("use the last driver version that supports this server"),
    }
}

fn buffering_timed_out(evidence: &[Evidence], _: &Context) -> Finding {
    let millis = word_of(evidence, "detail").unwrap_or("10000");
    finding!(problem "buffering_timed_out",
        "mongoose queued the operation for {millis} ms and never had a connection")
    .because(
        "mongoose.connect() was not called, not awaited, or failed; its error is the \
                  cause, and this message hides it",
    )
    .fix("show it: mongoose.connection.on('error', console.error); await mongoose.connect(URI)")
    .fix("fail at once instead of waiting: mongoose.set('bufferCommands', false)")
    .fix("quorate doctor URI")
}
