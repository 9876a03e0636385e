//! What a refused command tells its client.
//!
//! Drivers decide by the numeric code and by the labels; people read the message. The codes and
//! their names are the server's documented ones.

use bson::{Bson, Document, doc};
use quorate_query::QueryError;
use quorate_storage::key::KeyError;
use quorate_storage::{CommitError, KeyspaceError, ReadError, SyncError};

macro_rules! codes {
    ($($constant:ident = $code:literal $name:literal),+ $(,)?) => {
        /// A numeric error code as clients know it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct ErrorCode(pub i32);

        #[allow(missing_docs)]
        impl ErrorCode {
            $(pub const $constant: Self = Self($code);)+

            /// The name that goes with the number in the `codeName` field.
            pub fn name(self) -> String {
                match self.0 {
                    $($code => $name.to_owned(),)+
                    other => format!("Location{other}"),
                }
            }
        }
    };
}

codes! {
    INTERNAL_ERROR = 1 "InternalError",
    BAD_VALUE = 2 "BadValue",
    HOST_UNREACHABLE = 6 "HostUnreachable",
    HOST_NOT_FOUND = 7 "HostNotFound",
    FAILED_TO_PARSE = 9 "FailedToParse",
    USER_NOT_FOUND = 11 "UserNotFound",
    UNSUPPORTED_FORMAT = 12 "UnsupportedFormat",
    UNAUTHORIZED = 13 "Unauthorized",
    TYPE_MISMATCH = 14 "TypeMismatch",
    OVERFLOW = 15 "Overflow",
    INVALID_LENGTH = 16 "InvalidLength",
    PROTOCOL_ERROR = 17 "ProtocolError",
    AUTHENTICATION_FAILED = 18 "AuthenticationFailed",
    ILLEGAL_OPERATION = 20 "IllegalOperation",
    ALREADY_INITIALIZED = 23 "AlreadyInitialized",
    NODE_NOT_FOUND = 74 "NodeNotFound",
    NO_REPLICATION_ENABLED = 76 "NoReplicationEnabled",
    UNKNOWN_REPL_WRITE_CONCERN = 79 "UnknownReplWriteConcern",
    INVALID_REPLICA_SET_CONFIG = 93 "InvalidReplicaSetConfig",
    NOT_YET_INITIALIZED = 94 "NotYetInitialized",
    NOT_SECONDARY = 95 "NotSecondary",
    NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE = 103 "NewReplicaSetConfigurationIncompatible",
    NODE_NOT_ELECTABLE = 104 "NodeNotElectable",
    INCONSISTENT_REPLICA_SET_NAMES = 108 "InconsistentReplicaSetNames",
    CONFIGURATION_IN_PROGRESS = 109 "ConfigurationInProgress",
    CANNOT_INITIALIZE_NODE_WITH_DATA = 110 "CannotInitializeNodeWithData",
    COMMAND_FAILED = 125 "CommandFailed",
    CURRENT_CONFIG_NOT_COMMITTED_YET = 308 "CurrentConfigNotCommittedYet",
    LOCK_TIMEOUT = 24 "LockTimeout",
    NAMESPACE_NOT_FOUND = 26 "NamespaceNotFound",
    INDEX_NOT_FOUND = 27 "IndexNotFound",
    PATH_NOT_VIABLE = 28 "PathNotViable",
    CURSOR_NOT_FOUND = 43 "CursorNotFound",
    ROLE_NOT_FOUND = 31 "RoleNotFound",
    CONFLICTING_UPDATE_OPERATORS = 40 "ConflictingUpdateOperators",
    NAMESPACE_EXISTS = 48 "NamespaceExists",
    MAX_TIME_MS_EXPIRED = 50 "MaxTimeMSExpired",
    DOLLAR_PREFIXED_FIELD_NAME = 52 "DollarPrefixedFieldName",
    INVALID_ID_FIELD = 53 "InvalidIdField",
    EMPTY_FIELD_NAME = 56 "EmptyFieldName",
    COMMAND_NOT_FOUND = 59 "CommandNotFound",
    IMMUTABLE_FIELD = 66 "ImmutableField",
    CANNOT_CREATE_INDEX = 67 "CannotCreateIndex",
    INDEX_ALREADY_EXISTS = 68 "IndexAlreadyExists",
    INVALID_OPTIONS = 72 "InvalidOptions",
    INVALID_NAMESPACE = 73 "InvalidNamespace",
    WRITE_CONCERN_FAILED = 64 "WriteConcernFailed",
    INDEX_OPTIONS_CONFLICT = 85 "IndexOptionsConflict",
    INDEX_KEY_SPECS_CONFLICT = 86 "IndexKeySpecsConflict",
    NETWORK_TIMEOUT = 89 "NetworkTimeout",
    SHUTDOWN_IN_PROGRESS = 91 "ShutdownInProgress",
    OPERATION_FAILED = 96 "OperationFailed",
    UNSATISFIABLE_WRITE_CONCERN = 100 "UnsatisfiableWriteConcern",
    WRITE_CONFLICT = 112 "WriteConflict",
    COMMAND_NOT_SUPPORTED = 115 "CommandNotSupported",
    SSL_HANDSHAKE_FAILED = 141 "SSLHandshakeFailed",
    DOCUMENT_VALIDATION_FAILURE = 121 "DocumentValidationFailure",
    NOT_A_REPLICA_SET = 123 "NotAReplicaSet",
    CAPPED_POSITION_LOST = 136 "CappedPositionLost",
    COMMAND_NOT_SUPPORTED_ON_VIEW = 166 "CommandNotSupportedOnView",
    OPTION_NOT_SUPPORTED_ON_VIEW = 167 "OptionNotSupportedOnView",
    INVALID_PIPELINE_OPERATOR = 168 "InvalidPipelineOperator",
    CANNOT_INDEX_PARALLEL_ARRAYS = 171 "CannotIndexParallelArrays",
    TOO_MANY_CURSORS = 146 "ExceededMemoryLimit",
    INVALID_VIEW_DEFINITION = 182 "InvalidViewDefinition",
    PRIMARY_STEPPED_DOWN = 189 "PrimarySteppedDown",
    INVALID_INDEX_SPECIFICATION_OPTION = 197 "InvalidIndexSpecificationOption",
    CLUSTER_TIME_FAILS_RATE_LIMITER = 209 "ClusterTimeFailsRateLimiter",
    INVALID_UUID = 207 "InvalidUUID",
    NOT_IMPLEMENTED = 238 "NotImplemented",
    READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET = 134 "ReadConcernMajorityNotAvailableYet",
    SNAPSHOT_TOO_OLD = 239 "SnapshotTooOld",
    SNAPSHOT_UNAVAILABLE = 246 "SnapshotUnavailable",
    TRANSACTION_COMMITTED = 256 "TransactionCommitted",
    CONFLICTING_OPERATION_IN_PROGRESS = 117 "ConflictingOperationInProgress",
    TRANSACTION_EXCEEDED_LIFETIME = 290 "TransactionExceededLifetimeLimitSeconds",
    TRANSACTION_TOO_LARGE_FOR_CACHE = 388 "TransactionTooLargeForCache",
    PREPARED_TRANSACTION_IN_PROGRESS = 267 "PreparedTransactionInProgress",
    EXCEEDED_TIME_LIMIT = 262 "ExceededTimeLimit",
    TRANSACTION_TOO_OLD = 225 "TransactionTooOld",
    NO_SUCH_TRANSACTION = 251 "NoSuchTransaction",
    OPERATION_NOT_SUPPORTED_IN_TRANSACTION = 263 "OperationNotSupportedInTransaction",
    TOO_MANY_LOGICAL_SESSIONS = 261 "TooManyLogicalSessions",
    QUERY_EXCEEDED_MEMORY_LIMIT = 292 "QueryExceededMemoryLimitNoDiskUseAllowed",
    INVALID_RESUME_TOKEN = 260 "InvalidResumeToken",
    CHANGE_STREAM_FATAL = 280 "ChangeStreamFatalError",
    CHANGE_STREAM_HISTORY_LOST = 286 "ChangeStreamHistoryLost",
    API_VERSION_ERROR = 322 "APIVersionError",
    API_STRICT_ERROR = 323 "APIStrictError",
    TOO_MANY_CONNECTIONS = 462 "IngressRequestRateLimitExceeded",
    FILE_STREAM_FAILED = 39 "FileStreamFailed",
    INTERRUPTED = 11601 "Interrupted",
    INTERRUPTED_AT_SHUTDOWN = 11600 "InterruptedAtShutdown",
    INTERRUPTED_DUE_TO_REPL_STATE_CHANGE = 11602 "InterruptedDueToReplStateChange",
    NOT_WRITABLE_PRIMARY = 10107 "NotWritablePrimary",
    BSON_OBJECT_TOO_LARGE = 10334 "BSONObjectTooLarge",
    DUPLICATE_KEY = 11000 "DuplicateKey",
    NOT_PRIMARY_NO_SECONDARY_OK = 13435 "NotPrimaryNoSecondaryOk",
    NOT_PRIMARY_OR_SECONDARY = 13436 "NotPrimaryOrSecondary",
    OUT_OF_DISK_SPACE = 14031 "OutOfDiskSpace",
    KEY_TOO_LONG = 17280 "KeyTooLong",
    DUPLICATE_FIELD = 40413 "Location40413",
    UNKNOWN_FIELD = 40415 "Location40415",
    MISSING_FIELD = 40414 "Location40414",
}

/// A command was refused or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// What drivers decide by.
    pub code: ErrorCode,
    /// What people read.
    pub message: String,
    /// Labels that tell drivers what they may do next.
    pub labels: Vec<String>,
    /// Further fields of the reply, such as `keyPattern`.
    pub details: Box<Document>,
}

impl ErrorCode {
    /// Whether it tells that the member is not, or no longer, what the client took it for: it is not
    /// primary, steps down, or shuts down. Follows the server discovery and monitoring specification,
    /// "Not writable primary and node is recovering".
    pub fn is_state_change(self) -> bool {
        matches!(
            self,
            Self::SHUTDOWN_IN_PROGRESS
                | Self::PRIMARY_STEPPED_DOWN
                | Self::NOT_WRITABLE_PRIMARY
                | Self::INTERRUPTED_AT_SHUTDOWN
                | Self::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
                | Self::NOT_PRIMARY_NO_SECONDARY_OK
                | Self::NOT_PRIMARY_OR_SECONDARY
        )
    }

    /// Whether it says that the disk failed, rather than what was asked of it.
    pub fn is_of_disk(self) -> bool {
        matches!(self, Self::FILE_STREAM_FAILED | Self::OUT_OF_DISK_SPACE)
    }
}

impl CommandError {
    /// An error with a code and a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), labels: Vec::new(), details: Box::default() }
    }

    /// A value of the command that is not allowed.
    pub fn bad_value(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BAD_VALUE, message)
    }

    /// A field of the command that has the wrong type.
    pub fn type_mismatch(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TYPE_MISMATCH, message)
    }

    /// The reply that carries this error.
    pub fn reply(&self) -> Document {
        let mut reply = doc! {
            "ok": 0.0,
            "errmsg": &self.message,
            "code": self.code.0,
            "codeName": self.code.name(),
        };
        if !self.labels.is_empty() {
            let labels = self.labels.iter().map(|label| Bson::from(label.as_str()));
            reply.insert("errorLabels", labels.collect::<Vec<_>>());
        }
        reply.extend((*self.details).clone());
        reply
    }

    /// The entry of `writeErrors` that carries this error for one statement.
    pub fn write_error(&self, index: usize) -> Document {
        let mut error = doc! {
            "index": i32::try_from(index).unwrap_or(i32::MAX),
            "code": self.code.0,
        };
        error.extend((*self.details).clone());
        error.insert("errmsg", &self.message);
        error
    }
}

impl From<CommandError> for QueryError {
    fn from(error: CommandError) -> Self {
        Self::new(quorate_query::ErrorCode(error.code.0), error.message)
    }
}

impl From<QueryError> for CommandError {
    fn from(error: QueryError) -> Self {
        Self::new(ErrorCode(error.code().0), error.message())
    }
}

impl From<KeyError> for CommandError {
    fn from(error: KeyError) -> Self {
        Self::bad_value(error.to_string())
    }
}

impl From<ReadError> for CommandError {
    fn from(error: ReadError) -> Self {
        Self::new(code_of_store(&error), with_source(&error))
    }
}

impl From<KeyspaceError> for CommandError {
    fn from(error: KeyspaceError) -> Self {
        Self::new(code_of_store(&error), with_source(&error))
    }
}

impl From<SyncError> for CommandError {
    fn from(error: SyncError) -> Self {
        let code = match error {
            SyncError::Poisoned => ErrorCode::FILE_STREAM_FAILED,
            _ => code_of_store(&error),
        };
        Self::new(code, with_source(&error))
    }
}

impl From<CommitError> for CommandError {
    fn from(error: CommitError) -> Self {
        let code = match error {
            CommitError::KeyLength { .. } => ErrorCode::KEY_TOO_LONG,
            CommitError::Poisoned => ErrorCode::FILE_STREAM_FAILED,
            _ => code_of_store(&error),
        };
        Self::new(code, with_source(&error))
    }
}

/// Values from the wire and from disk have been checked before; this guards against our mistakes.
impl From<bson::error::Error> for CommandError {
    fn from(error: bson::error::Error) -> Self {
        Self::new(ErrorCode::FAILED_TO_PARSE, format!("a BSON value is malformed: {error}"))
    }
}

/// Whether the system failed the store, or the store itself.
fn code_of_store(error: &(dyn std::error::Error + 'static)) -> ErrorCode {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(system) = error.downcast_ref::<std::io::Error>() {
            return match system.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    ErrorCode::OUT_OF_DISK_SPACE
                }
                _ if system.raw_os_error().is_some() => ErrorCode::FILE_STREAM_FAILED,
                _ => ErrorCode::INTERNAL_ERROR,
            };
        }
        cause = error.source();
    }
    ErrorCode::INTERNAL_ERROR
}

fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_carry_what_drivers_decide_by() {
        let mut error = CommandError::new(ErrorCode::DUPLICATE_KEY, "E11000 duplicate key");
        error.labels.push("RetryableWriteError".to_owned());
        let reply = error.reply();
        assert_eq!(reply.get_f64("ok").unwrap(), 0.0);
        assert_eq!(reply.get_i32("code").unwrap(), 11000);
        assert_eq!(reply.get_str("codeName").unwrap(), "DuplicateKey");
        assert_eq!(reply.get_array("errorLabels").unwrap().len(), 1);
        assert_eq!(error.write_error(3).get_i32("index").unwrap(), 3);
    }

    #[test]
    fn numbers_without_a_name_are_locations() {
        // What members say about their set has a name for people, as everything else.
        for (code, name) in [
            (23, "AlreadyInitialized"),
            (74, "NodeNotFound"),
            (76, "NoReplicationEnabled"),
            (79, "UnknownReplWriteConcern"),
            (93, "InvalidReplicaSetConfig"),
            (94, "NotYetInitialized"),
            (95, "NotSecondary"),
            (103, "NewReplicaSetConfigurationIncompatible"),
            (104, "NodeNotElectable"),
            (108, "InconsistentReplicaSetNames"),
            (109, "ConfigurationInProgress"),
            (110, "CannotInitializeNodeWithData"),
            (125, "CommandFailed"),
            (308, "CurrentConfigNotCommittedYet"),
        ] {
            assert_eq!(ErrorCode(code).name(), name);
        }
        assert_eq!(ErrorCode(31249).name(), "Location31249");
        assert_eq!(ErrorCode::CURSOR_NOT_FOUND.name(), "CursorNotFound");
    }
}
