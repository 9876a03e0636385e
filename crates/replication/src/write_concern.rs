//! Write concerns as values, and the outcomes a waiting client can meet.
//!
//! The counting is in `quorum`, the waiting in `waiting`. docs/replication-rules.md#commit-point and #errors.

use std::time::Duration;

use quorate_protocol::ErrorCode;

/// Whose acknowledgement a write waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acknowledgements {
    /// `w: n`: so many members that hold data, the primary among them.
    Number(u32),
    /// `w: "majority"`.
    Majority,
    /// `w: "name"`: a mode of `getLastErrorModes`.
    Mode(String),
}

/// What a client asked to be true before its write is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteConcern {
    /// `w`.
    pub acknowledgements: Acknowledgements,
    /// `j`: on disk rather than in memory. `None` leaves it to the configuration for a majority,
    /// and means no otherwise.
    pub journal: Option<bool>,
    /// `wtimeout`; `None` waits as long as this member is primary.
    pub timeout: Option<Duration>,
}

impl WriteConcern {
    /// `{w: n}`.
    pub const fn number(n: u32) -> Self {
        Self { acknowledgements: Acknowledgements::Number(n), journal: None, timeout: None }
    }

    /// `{w: "majority"}`.
    pub const fn majority() -> Self {
        Self { acknowledgements: Acknowledgements::Majority, journal: None, timeout: None }
    }
}

/// A concern that this configuration can never satisfy. The client or the administrator is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsatisfiableWriteConcern {
    /// 100: more members than hold data.
    #[error("w: {wanted} asks for more members than the {present} that hold data; lower w")]
    TooFewMembers {
        /// How many were asked for.
        wanted: usize,
        /// How many hold data.
        present: usize,
    },
    /// 79: a mode that `getLastErrorModes` does not define.
    #[error("no write concern mode named {0:?}; define it in settings.getLastErrorModes")]
    UnknownMode(String),
    /// 100: a mode that asks for more values of a tag than there are.
    #[error(
        "mode {mode:?} wants {wanted} values of tag {tag:?} but {present} exist; tag more members"
    )]
    TooFewTagValues {
        /// The mode.
        mode: String,
        /// The tag.
        tag: String,
        /// How many distinct values were asked for.
        wanted: i64,
        /// How many there are.
        present: i64,
    },
}

/// Why a write was not acknowledged. The write itself stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteConcernError {
    /// 79 or 100.
    #[error(transparent)]
    Unsatisfiable(#[from] UnsatisfiableWriteConcern),
    /// 64: `wtimeout` passed.
    #[error("waiting for replication timed out; the write stays, and may still replicate")]
    TimedOut,
    /// 189: this member is not primary any more.
    #[error(
        "primary stepped down while waiting for replication; look for the write at its successor"
    )]
    PrimarySteppedDown,
    /// 91: this member shuts down.
    #[error("the member is shutting down; look for the write at its successor")]
    ShutdownInProgress,
    /// 202: the bound on waiting writes was reached.
    #[error("{0} writes already wait for replication here; retry when some have finished")]
    TooManyWaiters(usize),
}

impl WriteConcernError {
    /// The code in `writeConcernError`.
    pub const fn code(&self) -> i32 {
        match self {
            Self::Unsatisfiable(UnsatisfiableWriteConcern::UnknownMode(_)) => {
                ErrorCode::UNKNOWN_REPL_WRITE_CONCERN.0
            }
            Self::Unsatisfiable(_) => ErrorCode::UNSATISFIABLE_WRITE_CONCERN.0,
            Self::TimedOut => ErrorCode::WRITE_CONCERN_FAILED.0,
            Self::PrimarySteppedDown => ErrorCode::PRIMARY_STEPPED_DOWN.0,
            Self::ShutdownInProgress => ErrorCode::SHUTDOWN_IN_PROGRESS.0,
            Self::TooManyWaiters(_) => ErrorCode::NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_rules_section_13() {
        let unknown = UnsatisfiableWriteConcern::UnknownMode("x".into());
        assert_eq!(WriteConcernError::from(unknown).code(), 79);
        let few = UnsatisfiableWriteConcern::TooFewMembers { wanted: 4, present: 3 };
        assert_eq!(WriteConcernError::from(few).code(), 100);
        assert_eq!(WriteConcernError::TimedOut.code(), 64);
        assert_eq!(WriteConcernError::PrimarySteppedDown.code(), 189);
        assert_eq!(WriteConcernError::ShutdownInProgress.code(), 91);
    }
}
