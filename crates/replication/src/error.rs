//! Why a member refuses a command, with the code clients know.

use quorate_protocol::{ErrorCode, MemberId, ServerAddress};

use crate::config_check::ConfigError;
use crate::reconfig_check::ReconfigError;

/// Why a member refuses a command.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// 108: a heartbeat of another set.
    #[error("the set here is {expected:?}, not {found:?}; start both members with one name")]
    InconsistentSetNames {
        /// Ours.
        expected: String,
        /// The sender's.
        found: String,
    },
    /// 2: a heartbeat from a member that claims our id.
    #[error("{0} is my own _id; two processes claim it: look for a copied data directory")]
    DuplicateMemberId(MemberId),
    /// 93: this member is not in its configuration.
    #[error("this member is not in its configuration; add it with rs.add()")]
    Removed,
    /// 94.
    #[error("no replset config has been received; run rs.initiate() on one member")]
    NotYetInitialized,
    /// 23.
    #[error("already initialized; use rs.reconfig() to change the set")]
    AlreadyInitialized,
    /// 110.
    #[error("{0} already holds data or a configuration; only empty members form a new set")]
    CannotInitializeNodeWithData(ServerAddress),
    /// 74.
    #[error("{0}; initiation needs every member to answer")]
    InitiateQuorum(String),
    /// 109.
    #[error("the configuration is being changed; try again when that is done")]
    ConfigurationInProgress,
    /// 93, 74, 103, 104.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// See [`ReconfigError::code`].
    #[error(transparent)]
    Reconfig(#[from] ReconfigError),
    /// 10107.
    #[error("not primary; send it to the primary")]
    NotWritablePrimary,
    /// 117.
    #[error("a step-down is already under way; wait for it")]
    StepDownInProgress,
    /// 262.
    #[error(
        "no electable secondary caught up in time; still primary: raise \
         secondaryCatchUpPeriodSecs, or use force"
    )]
    NoCaughtUpSecondary,
    /// 2.
    #[error("{0}")]
    BadValue(&'static str),
    /// 95.
    #[error("{0}")]
    NotSecondary(&'static str),
    /// 125.
    #[error("the election was not won: {0}")]
    StepUpFailed(String),
    /// 74.
    #[error("{0} is not a member of this set; use a host that rs.conf() lists")]
    UnknownHost(ServerAddress),
    /// 74.
    #[error("{0} is not a member of my configuration; wait for it to spread")]
    UnknownMember(MemberId),
    /// 72.
    #[error("{0}")]
    InvalidOptions(&'static str),
    /// 6.
    #[error("{0} does not answer; choose a member that is up")]
    HostUnreachable(ServerAddress),
    /// 91.
    #[error("the member is shutting down; ask another")]
    ShutdownInProgress,
}

impl RequestError {
    /// The error code.
    pub const fn code(&self) -> i32 {
        match self {
            Self::InconsistentSetNames { .. } => ErrorCode::INCONSISTENT_REPLICA_SET_NAMES.0,
            Self::DuplicateMemberId(_) | Self::BadValue(_) => ErrorCode::BAD_VALUE.0,
            Self::Removed => ErrorCode::INVALID_REPLICA_SET_CONFIG.0,
            Self::NotYetInitialized => ErrorCode::NOT_YET_INITIALIZED.0,
            Self::AlreadyInitialized => ErrorCode::ALREADY_INITIALIZED.0,
            Self::CannotInitializeNodeWithData(_) => ErrorCode::CANNOT_INITIALIZE_NODE_WITH_DATA.0,
            Self::InitiateQuorum(_) | Self::UnknownHost(_) | Self::UnknownMember(_) => {
                ErrorCode::NODE_NOT_FOUND.0
            }
            Self::ConfigurationInProgress => ErrorCode::CONFIGURATION_IN_PROGRESS.0,
            Self::Config(error) => error.code(),
            Self::Reconfig(error) => error.code(),
            Self::NotWritablePrimary => ErrorCode::NOT_WRITABLE_PRIMARY.0,
            Self::StepDownInProgress => ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS.0,
            Self::NoCaughtUpSecondary => ErrorCode::EXCEEDED_TIME_LIMIT.0,
            Self::NotSecondary(_) => ErrorCode::NOT_SECONDARY.0,
            Self::StepUpFailed(_) => ErrorCode::COMMAND_FAILED.0,
            Self::InvalidOptions(_) => ErrorCode::INVALID_OPTIONS.0,
            Self::HostUnreachable(_) => ErrorCode::HOST_UNREACHABLE.0,
            Self::ShutdownInProgress => ErrorCode::SHUTDOWN_IN_PROGRESS.0,
        }
    }
}
