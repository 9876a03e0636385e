//! Which errors of a transaction get which label.
//!
//! Follows "Error Labels" of the Transactions specification. Servers label what they say; a client
//! labels what it finds out by itself.

use std::time::Duration;

use quorate_protocol::ErrorCode;

/// The whole transaction may be tried again.
pub const TRANSIENT_TRANSACTION_ERROR: &str = "TransientTransactionError";

/// Whether the transaction is committed is not known; the commit may be sent again.
pub const UNKNOWN_TRANSACTION_COMMIT_RESULT: &str = "UnknownTransactionCommitResult";

/// A write with this label may be sent again.
pub const RETRYABLE_WRITE_ERROR: &str = "RetryableWriteError";

/// The write concern itself is wrong, so that another attempt would fail as well.
const WRONG_WRITE_CONCERNS: [i32; 2] =
    [ErrorCode::UNKNOWN_REPL_WRITE_CONCERN.0, ErrorCode::UNSATISFIABLE_WRITE_CONCERN.0];

/// The server stopped waiting; the commit may happen all the same.
const UNKNOWN_COMMIT_CODES: [i32; 2] =
    [ErrorCode::MAX_TIME_MS_EXPIRED.0, ErrorCode::WRITE_CONCERN_FAILED.0];

/// What the labels depend on, whatever the client's type of errors is.
pub trait Failure {
    /// Whether the network failed, or the pool was cleared because it had.
    fn is_network(&self) -> bool;

    /// Whether no server was found in time.
    fn is_selection(&self) -> bool;

    /// Whether the client's own time limit passed.
    fn is_timeout(&self) -> bool;

    /// Whether the client found the error before it sent the command, as when no connection could be
    /// had: no write was attempted. `timeoutMS` is none of these; it is told whatever came before.
    fn is_unsent(&self) -> bool;

    /// Whether the server carried the command out, but its write concern was not met.
    fn is_write_concern_failure(&self) -> bool;

    /// The server's code, inside a write concern error as well.
    fn code(&self) -> Option<i32>;

    /// Whether the error has this label.
    fn has_label(&self, label: &str) -> bool;

    /// Adds a label, unless it is there.
    fn add_label(&mut self, label: &'static str);

    /// `baseBackoffMS`: how long an overloaded server wants to be left alone, to begin with.
    fn base_backoff(&self) -> Option<Duration>;
}

/// Whether the client labels a failed statement, or a failed abort, `TransientTransactionError`.
pub fn is_transient(failure: &impl Failure) -> bool {
    failure.is_network() || failure.is_selection() || failure.is_timeout()
}

/// Whether the client labels a failed commit `UnknownTransactionCommitResult`.
pub fn is_unknown_commit(failure: &impl Failure) -> bool {
    if failure.is_network() || failure.is_selection() || failure.is_timeout() {
        return true;
    }
    if failure.is_write_concern_failure() {
        return !failure.code().is_some_and(|code| WRONG_WRITE_CONCERNS.contains(&code));
    }
    failure.has_label(RETRYABLE_WRITE_ERROR)
        || failure.code().is_some_and(|code| UNKNOWN_COMMIT_CODES.contains(&code))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An error that says what a test wants.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub(crate) struct Said {
        pub(crate) network: bool,
        pub(crate) selection: bool,
        pub(crate) timeout: bool,
        pub(crate) unsent: bool,
        pub(crate) concern: bool,
        pub(crate) code: Option<i32>,
        pub(crate) label: &'static str,
        pub(crate) added: Option<&'static str>,
        pub(crate) backoff: Option<Duration>,
    }

    impl Said {
        pub(crate) fn labelled(label: &'static str) -> Self {
            Self { label, ..Self::default() }
        }

        pub(crate) fn coded(code: i32) -> Self {
            Self { code: Some(code), ..Self::default() }
        }
    }

    impl Failure for Said {
        fn is_network(&self) -> bool {
            self.network
        }

        fn is_selection(&self) -> bool {
            self.selection
        }

        fn is_timeout(&self) -> bool {
            self.timeout
        }

        fn is_unsent(&self) -> bool {
            self.unsent
        }

        fn is_write_concern_failure(&self) -> bool {
            self.concern
        }

        fn code(&self) -> Option<i32> {
            self.code
        }

        fn has_label(&self, label: &str) -> bool {
            self.label.split(' ').any(|own| own == label) || self.added == Some(label)
        }

        fn add_label(&mut self, label: &'static str) {
            self.added = Some(label);
        }

        fn base_backoff(&self) -> Option<Duration> {
            self.backoff
        }
    }

    #[test]
    fn what_no_server_answered_is_transient_in_statements_and_unknown_in_commits() {
        for failure in [
            Said { network: true, ..Said::default() },
            Said { selection: true, ..Said::default() },
            Said { timeout: true, ..Said::default() },
        ] {
            assert!(is_transient(&failure) && is_unknown_commit(&failure));
        }
        assert!(!is_transient(&Said::coded(11000)));
    }

    #[test]
    fn write_concerns_that_can_never_be_met_leave_nothing_unknown() {
        for (code, unknown) in [(64, true), (91, true), (50, true), (79, false), (100, false)] {
            let failure = Said { concern: true, ..Said::coded(code) };
            assert_eq!(is_unknown_commit(&failure), unknown, "{code}");
        }
    }

    #[test]
    fn errors_of_the_commit_are_unknown_by_code_and_by_label() {
        assert!(is_unknown_commit(&Said::coded(50)));
        assert!(is_unknown_commit(&Said::labelled("RetryableWriteError")));
        assert!(!is_unknown_commit(&Said::coded(251)));
        assert!(!is_unknown_commit(&Said::coded(11601)));
    }
}
