//! Rules about operations that the server gave up: transactions, cursors, change streams, time limits.
//!
//! The deployment may be perfectly well. What to do is told, because nothing is wrong with the network.

use super::rules::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::plain(
        "change_stream_history_lost",
        &[
            r"ChangeStreamHistoryLost",
            r"Resume of change stream was not possible",
            r"resume point may no longer be in the oplog",
            r"the resume token was not found",
        ],
        "a change stream cannot go on: what follows its resume token is no longer in the oplog",
        "the reader was away or behind for longer than the oplog reaches back, or the token is of another deployment",
        &[
            "ask whether any member still has it: quorate token TOKEN URI",
            "open the stream without the token, then read the collection once: changes in between were missed",
            "keep more history on every member: db.adminCommand({replSetResizeOplog: 1, size: MEGABYTES})",
        ],
    ),
    Rule::plain(
        "transaction_aborted",
        &[
            r"\bWriteConflict\b|NoSuchTransaction|TransientTransactionError|TransactionTooOld",
            r"does not match any in-progress transactions",
            r"Transaction (?:with \{[^}\n]*\} |\d+ )?has been aborted",
        ],
        "a transaction was ended by the server, and may be run again from its beginning",
        "it met another write to the same document, ran longer than transactionLifetimeLimitSeconds (60 s), or its \
         primary changed",
        &[
            "let the driver run it again: withTransaction in Node.js and Java, with_transaction in PyMongo, \
             WithTransaction in Go and .NET",
            "keep it short, and write documents in the same order everywhere",
        ],
    ),
    Rule::plain(
        "cursor_lost",
        &[r"(?i)\bcursor (?:id )?-?\d+ (?:was )?not found|CursorNotFound"],
        "the server no longer has the cursor of a query",
        "a cursor ends after 10 idle minutes, with its session, and with the member that holds it",
        &[
            "run the query again; after a failover it goes to another member",
            "take fewer documents at a time, so that no batch takes 10 minutes: batchSize",
        ],
    ),
    Rule::plain(
        "time_limit",
        &[r"(?i)operation exceeded time limit|MaxTimeMSExpired"],
        "the server ended an operation because the time that its client gave it was over",
        "maxTimeMS or timeoutMS is shorter than the operation takes; a missing index is the usual cause",
        &[
            "see what it reads: mongosh URI --eval 'db.COLLECTION.find(FILTER).explain(\"executionStats\")'",
            "raise maxTimeMS (timeoutMS) of this operation",
        ],
    ),
    Rule::plain(
        "read_timed_out",
        &[r"SocketReadTimeoutException|Timeout while receiving message"],
        "{a server} was reached, and did not answer an operation in time",
        "socketTimeoutMS is shorter than the operation takes, or a firewall forgot the connection",
        &[
            "find the slow operations: mongosh URI --eval 'db.currentOp({secs_running: {$gt: 1}})'",
            "limit single operations with maxTimeMS or timeoutMS, and leave socketTimeoutMS out",
            "if it happens after idling: set maxIdleTimeMS below the limit of the firewall",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    /// Errors of operations, which are no errors of the network.
    #[test]
    fn operations_that_were_given_up() {
        check(&[
            (
                "PlanExecutor error during aggregation :: caused by :: Resume of change stream was \
                 not possible, as the resume point may no longer be in the oplog.",
                &["change_stream_history_lost"],
                &["quorate token TOKEN URI", "replSetResizeOplog"],
            ),
            (
                "MongoServerError: WriteConflict error: this operation conflicted with another \
                 operation. Please retry your operation or multi-document transaction.",
                &["transaction_aborted"],
                &["withTransaction"],
            ),
            (
                "Given transaction number 1 does not match any in-progress transactions.",
                &["transaction_aborted"],
                &[],
            ),
            ("pymongo.errors.CursorNotFound: cursor id 123 not found", &["cursor_lost"], &[]),
            (
                "MongoServerError: operation exceeded time limit, code 50, MaxTimeMSExpired",
                &["time_limit"],
                &["explain"],
            ),
            (
                "com.mongodb.MongoSocketReadTimeoutException: Timeout while receiving message",
                &["read_timed_out"],
                &["socketTimeoutMS"],
            ),
        ]);
    }

    /// What .NET and Java call things that other drivers name otherwise.
    #[test]
    fn names_of_single_drivers() {
        check(&[
            (
                "MongoDB.Driver.MongoAuthenticationException: Unable to authenticate using sasl \
                 protocol mechanism SCRAM-SHA-1.",
                &["authentication_failed"],
                &["SCRAM-SHA-1", "authSource"],
            ),
            (
                "System.Security.Authentication.AuthenticationException: The remote certificate is \
                 invalid according to the validation procedure.",
                &["certificate_untrusted"],
                &["tlsCAFile"],
            ),
            (
                "The remote certificate is invalid according to the validation procedure: \
                 RemoteCertificateNameMismatch",
                &["certificate_name"],
                &[],
            ),
            (
                "MongoDB.Driver.MongoConnectionPoolPausedException: The connection pool is in \
                 paused state for server Unspecified/db1:27017.",
                &["pool_cleared"],
                &["db1:27017"],
            ),
            (
                "com.mongodb.MongoNodeIsRecoveringException: Command failed with error 11600 \
                 (InterruptedAtShutdown): 'interrupted at shutdown' on server db1:27017",
                &["stepped_down"],
                &["retryWrites=true"],
            ),
            (
                "com.mongodb.MongoWaitQueueFullException: Too many operations are already waiting \
                 for a connection.",
                &["pool_exhausted"],
                &["maxPoolSize"],
            ),
            (
                "MongoServerError: user is not allowed to do action [find] on [shop.orders]",
                &["not_authorized"],
                &["shop"],
            ),
            (
                "MongoServerError: our replica set config is invalid or we are not a member of it",
                &["config_lost_self"],
                &["rs.conf()"],
            ),
            ("MongoServerError: interrupted at shutdown", &["stepped_down"], &[]),
            ("Change streams are only supported on replica sets", &["no_replication"], &[]),
            ("MongoNetworkError: write EPIPE", &["connection_closed"], &[]),
            ("db1:27017 :: caused by :: Connection closed by peer", &["connection_closed"], &[]),
        ]);
    }
}
