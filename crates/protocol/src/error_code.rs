//! The numeric error codes that clients and servers decide by, with their names.
//!
//! The codes and their names are the documented ones of MongoDB. This is their one home: servers answer
//! with them, clients ask which of them tell of a change of state or may be retried.

use std::fmt;

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
    GRAPH_CONTAINS_CYCLE = 5 "GraphContainsCycle",
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
    INVALID_BSON = 22 "InvalidBSON",
    ALREADY_INITIALIZED = 23 "AlreadyInitialized",
    LOCK_TIMEOUT = 24 "LockTimeout",
    NAMESPACE_NOT_FOUND = 26 "NamespaceNotFound",
    INDEX_NOT_FOUND = 27 "IndexNotFound",
    PATH_NOT_VIABLE = 28 "PathNotViable",
    ROLE_NOT_FOUND = 31 "RoleNotFound",
    CANNOT_BACKFILL_ARRAY = 34 "CannotBackfillArray",
    FILE_STREAM_FAILED = 39 "FileStreamFailed",
    CONFLICTING_UPDATE_OPERATORS = 40 "ConflictingUpdateOperators",
    CURSOR_NOT_FOUND = 43 "CursorNotFound",
    NO_MATCHING_DOCUMENT = 47 "NoMatchingDocument",
    NAMESPACE_EXISTS = 48 "NamespaceExists",
    MAX_TIME_MS_EXPIRED = 50 "MaxTimeMSExpired",
    DOLLAR_PREFIXED_FIELD_NAME = 52 "DollarPrefixedFieldName",
    INVALID_ID_FIELD = 53 "InvalidIdField",
    NOT_SINGLE_VALUE_FIELD = 54 "NotSingleValueField",
    EMPTY_FIELD_NAME = 56 "EmptyFieldName",
    COMMAND_NOT_FOUND = 59 "CommandNotFound",
    STALE_SHARD_VERSION = 63 "StaleShardVersion",
    WRITE_CONCERN_FAILED = 64 "WriteConcernFailed",
    IMMUTABLE_FIELD = 66 "ImmutableField",
    CANNOT_CREATE_INDEX = 67 "CannotCreateIndex",
    INDEX_ALREADY_EXISTS = 68 "IndexAlreadyExists",
    INVALID_OPTIONS = 72 "InvalidOptions",
    INVALID_NAMESPACE = 73 "InvalidNamespace",
    NODE_NOT_FOUND = 74 "NodeNotFound",
    NO_REPLICATION_ENABLED = 76 "NoReplicationEnabled",
    UNKNOWN_REPL_WRITE_CONCERN = 79 "UnknownReplWriteConcern",
    INDEX_OPTIONS_CONFLICT = 85 "IndexOptionsConflict",
    INDEX_KEY_SPECS_CONFLICT = 86 "IndexKeySpecsConflict",
    NETWORK_TIMEOUT = 89 "NetworkTimeout",
    SHUTDOWN_IN_PROGRESS = 91 "ShutdownInProgress",
    INVALID_REPLICA_SET_CONFIG = 93 "InvalidReplicaSetConfig",
    NOT_YET_INITIALIZED = 94 "NotYetInitialized",
    NOT_SECONDARY = 95 "NotSecondary",
    OPERATION_FAILED = 96 "OperationFailed",
    UNSATISFIABLE_WRITE_CONCERN = 100 "UnsatisfiableWriteConcern",
    NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE = 103 "NewReplicaSetConfigurationIncompatible",
    NODE_NOT_ELECTABLE = 104 "NodeNotElectable",
    INCONSISTENT_REPLICA_SET_NAMES = 108 "InconsistentReplicaSetNames",
    CONFIGURATION_IN_PROGRESS = 109 "ConfigurationInProgress",
    CANNOT_INITIALIZE_NODE_WITH_DATA = 110 "CannotInitializeNodeWithData",
    WRITE_CONFLICT = 112 "WriteConflict",
    COMMAND_NOT_SUPPORTED = 115 "CommandNotSupported",
    CONFLICTING_OPERATION_IN_PROGRESS = 117 "ConflictingOperationInProgress",
    DOCUMENT_VALIDATION_FAILURE = 121 "DocumentValidationFailure",
    NOT_A_REPLICA_SET = 123 "NotAReplicaSet",
    COMMAND_FAILED = 125 "CommandFailed",
    FAILED_TO_SATISFY_READ_PREFERENCE = 133 "FailedToSatisfyReadPreference",
    READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET = 134 "ReadConcernMajorityNotAvailableYet",
    CAPPED_POSITION_LOST = 136 "CappedPositionLost",
    SSL_HANDSHAKE_FAILED = 141 "SSLHandshakeFailed",
    EXCEEDED_MEMORY_LIMIT = 146 "ExceededMemoryLimit",
    STALE_EPOCH = 150 "StaleEpoch",
    MAX_STALENESS_OUT_OF_RANGE = 160 "MaxStalenessOutOfRange",
    VIEW_DEPTH_LIMIT_EXCEEDED = 165 "ViewDepthLimitExceeded",
    COMMAND_NOT_SUPPORTED_ON_VIEW = 166 "CommandNotSupportedOnView",
    OPTION_NOT_SUPPORTED_ON_VIEW = 167 "OptionNotSupportedOnView",
    INVALID_PIPELINE_OPERATOR = 168 "InvalidPipelineOperator",
    CANNOT_INDEX_PARALLEL_ARRAYS = 171 "CannotIndexParallelArrays",
    QUERY_PLAN_KILLED = 175 "QueryPlanKilled",
    AMBIGUOUS_INDEX_KEY_PATTERN = 181 "AmbiguousIndexKeyPattern",
    INVALID_VIEW_DEFINITION = 182 "InvalidViewDefinition",
    CLIENT_METADATA_MISSING_FIELD = 183 "ClientMetadataMissingField",
    CLIENT_METADATA_APP_NAME_TOO_LARGE = 184 "ClientMetadataAppNameTooLarge",
    CLIENT_METADATA_DOCUMENT_TOO_LARGE = 185 "ClientMetadataDocumentTooLarge",
    PRIMARY_STEPPED_DOWN = 189 "PrimarySteppedDown",
    INVALID_INDEX_SPECIFICATION_OPTION = 197 "InvalidIndexSpecificationOption",
    NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT = 202 "NetworkInterfaceExceededTimeLimit",
    INVALID_UUID = 207 "InvalidUUID",
    CLUSTER_TIME_FAILS_RATE_LIMITER = 209 "ClusterTimeFailsRateLimiter",
    TRANSACTION_TOO_OLD = 225 "TransactionTooOld",
    MAX_SUB_PIPELINE_DEPTH_EXCEEDED = 232 "MaxSubPipelineDepthExceeded",
    RETRY_CHANGE_STREAM = 234 "RetryChangeStream",
    CURSOR_KILLED = 237 "CursorKilled",
    NOT_IMPLEMENTED = 238 "NotImplemented",
    SNAPSHOT_TOO_OLD = 239 "SnapshotTooOld",
    CONVERSION_FAILURE = 241 "ConversionFailure",
    SNAPSHOT_UNAVAILABLE = 246 "SnapshotUnavailable",
    NO_SUCH_TRANSACTION = 251 "NoSuchTransaction",
    TRANSACTION_COMMITTED = 256 "TransactionCommitted",
    INVALID_RESUME_TOKEN = 260 "InvalidResumeToken",
    TOO_MANY_LOGICAL_SESSIONS = 261 "TooManyLogicalSessions",
    EXCEEDED_TIME_LIMIT = 262 "ExceededTimeLimit",
    OPERATION_NOT_SUPPORTED_IN_TRANSACTION = 263 "OperationNotSupportedInTransaction",
    TOO_MANY_FILES_OPEN = 264 "TooManyFilesOpen",
    FAIL_POINT_SET_FAILED = 266 "FailPointSetFailed",
    PREPARED_TRANSACTION_IN_PROGRESS = 267 "PreparedTransactionInProgress",
    INDEX_BUILD_ABORTED = 276 "IndexBuildAborted",
    CHANGE_STREAM_FATAL = 280 "ChangeStreamFatalError",
    CHANGE_STREAM_HISTORY_LOST = 286 "ChangeStreamHistoryLost",
    TRANSACTION_EXCEEDED_LIFETIME = 290 "TransactionExceededLifetimeLimitSeconds",
    QUERY_EXCEEDED_MEMORY_LIMIT = 292 "QueryExceededMemoryLimitNoDiskUseAllowed",
    CURRENT_CONFIG_NOT_COMMITTED_YET = 308 "CurrentConfigNotCommittedYet",
    API_VERSION_ERROR = 322 "APIVersionError",
    API_STRICT_ERROR = 323 "APIStrictError",
    MECHANISM_UNAVAILABLE = 334 "MechanismUnavailable",
    UNSUPPORTED_OP_QUERY_COMMAND = 352 "UnsupportedOpQueryCommand",
    COLLECTION_UUID_MISMATCH = 361 "CollectionUUIDMismatch",
    TRANSACTION_TOO_LARGE_FOR_CACHE = 388 "TransactionTooLargeForCache",
    TOO_MANY_CONNECTIONS = 462 "IngressRequestRateLimitExceeded",
    REAUTHENTICATION_REQUIRED = 391 "ReauthenticationRequired",
    SOCKET_EXCEPTION = 9001 "SocketException",
    LEGACY_NOT_PRIMARY = 10058 "LegacyNotPrimary",
    NOT_WRITABLE_PRIMARY = 10107 "NotWritablePrimary",
    BSON_OBJECT_TOO_LARGE = 10334 "BSONObjectTooLarge",
    DUPLICATE_KEY = 11000 "DuplicateKey",
    INTERRUPTED_AT_SHUTDOWN = 11600 "InterruptedAtShutdown",
    INTERRUPTED = 11601 "Interrupted",
    INTERRUPTED_DUE_TO_REPL_STATE_CHANGE = 11602 "InterruptedDueToReplStateChange",
    DATABASE_DIFFER_CASE = 13297 "DatabaseDifferCase",
    STALE_CONFIG = 13388 "StaleConfig",
    NOT_PRIMARY_NO_SECONDARY_OK = 13435 "NotPrimaryNoSecondaryOk",
    NOT_PRIMARY_OR_SECONDARY = 13436 "NotPrimaryOrSecondary",
    OUT_OF_DISK_SPACE = 14031 "OutOfDiskSpace",
    KEY_TOO_LONG = 17280 "KeyTooLong",
    DUPLICATE_FIELD = 40413 "Location40413",
    MISSING_FIELD = 40414 "Location40414",
    UNKNOWN_FIELD = 40415 "Location40415",
}

impl From<i32> for ErrorCode {
    fn from(code: i32) -> Self {
        Self(code)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
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

    /// Whether a write may be sent again after it, with the same transaction number. Follows the
    /// retryable writes specification, "RetryableWriteError".
    pub fn is_retryable_write(self) -> bool {
        self.is_state_change()
            || matches!(
                self,
                Self::HOST_UNREACHABLE
                    | Self::HOST_NOT_FOUND
                    | Self::NETWORK_TIMEOUT
                    | Self::EXCEEDED_TIME_LIMIT
                    | Self::SOCKET_EXCEPTION
            )
    }

    /// Whether a change stream goes on after it with a new cursor, where the server gives no label.
    /// Follows the change streams specification, "Resumable Error".
    pub fn is_resumable(self) -> bool {
        self.is_retryable_write()
            || matches!(
                self,
                Self::STALE_SHARD_VERSION
                    | Self::FAILED_TO_SATISFY_READ_PREFERENCE
                    | Self::STALE_EPOCH
                    | Self::RETRY_CHANGE_STREAM
                    | Self::STALE_CONFIG
            )
    }

    /// Whether a read may be sent again after it. Follows the retryable reads specification.
    pub fn is_retryable_read(self) -> bool {
        self.is_retryable_write() || self == Self::READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_are_locations() {
        assert_eq!(ErrorCode(31249).name(), "Location31249");
        assert_eq!(ErrorCode::CURSOR_NOT_FOUND.name(), "CursorNotFound");
    }

    #[test]
    fn what_queries_and_updates_are_refused_with_has_names() {
        for code in [
            2, 5, 9, 14, 15, 22, 28, 34, 40, 52, 53, 54, 56, 66, 72, 115, 146, 160, 171, 181, 292,
            10334,
        ] {
            assert!(!ErrorCode(code).name().starts_with("Location"), "{code}");
        }
    }

    #[test]
    fn what_a_replica_set_answers_has_names() {
        for code in [23, 74, 76, 79, 93, 94, 95, 103, 104, 108, 109, 110, 125, 262, 308] {
            assert!(!ErrorCode(code).name().starts_with("Location"), "{code}");
        }
    }

    #[test]
    fn the_sets_are_those_of_the_specifications() {
        let of = |wanted: fn(ErrorCode) -> bool| -> Vec<i32> {
            (0..20_000).filter(|code| wanted(ErrorCode(*code))).collect()
        };
        assert_eq!(of(ErrorCode::is_state_change), [91, 189, 10107, 11600, 11602, 13435, 13436]);
        assert_eq!(
            of(ErrorCode::is_retryable_write),
            [6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436]
        );
        assert_eq!(
            of(ErrorCode::is_retryable_read),
            [6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436]
        );
        assert_eq!(
            of(ErrorCode::is_resumable),
            [
                6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435,
                13436
            ]
        );
    }
}
