//! Which labels an error carries.
//!
//! Drivers decide by labels what to repeat: `TransientTransactionError` the whole transaction,
//! `RetryableWriteError` the one command. The driver adds `UnknownTransactionCommitResult` itself.
//! Specification: `transactions/transactions.md`, "Error Labels".

use quorate_protocol::ErrorCode;

quorate_protocol::named! {
    /// A label of an error.
    ///
    /// [`name`](Self::name) is the label as it stands in `errorLabels`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Label {
        /// The whole transaction may be repeated.
        TransientTransaction = "TransientTransactionError",
        /// The command may be repeated.
        RetryableWrite = "RetryableWriteError",
    }
}

/// Where an error has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A command outside of transactions that is not repeated by drivers.
    Outside,
    /// A retryable write.
    RetryableWrite,
    /// A statement of a transaction.
    Statement,
    /// `commitTransaction` or `abortTransaction`.
    End,
}

/// The transaction did not happen, wherever this error appears in it.
const NEVER_HAPPENED: [ErrorCode; 5] = [
    ErrorCode::LOCK_TIMEOUT,
    ErrorCode::WRITE_CONFLICT,
    ErrorCode::SNAPSHOT_UNAVAILABLE,
    ErrorCode::NO_SUCH_TRANSACTION,
    ErrorCode::PREPARED_TRANSACTION_IN_PROGRESS,
];

/// The labels of an error with this code.
pub fn labels(code: i32, place: Place) -> Vec<Label> {
    let code = ErrorCode(code);
    let retryable = code.is_retryable_write();
    let transient = match place {
        Place::Outside | Place::RetryableWrite => false,
        Place::Statement => {
            // The server has aborted a transaction that exceeded its lifetime.
            retryable
                || NEVER_HAPPENED.contains(&code)
                || code == ErrorCode::TRANSACTION_EXCEEDED_LIFETIME
        }
        Place::End => NEVER_HAPPENED.contains(&code),
    };
    let repeats = matches!(place, Place::RetryableWrite | Place::End) && retryable;
    let transient = transient.then_some(Label::TransientTransaction);
    let repeats = repeats.then_some(Label::RetryableWrite);
    transient.into_iter().chain(repeats).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSIENT: [Label; 1] = [Label::TransientTransaction];
    const REPEAT: [Label; 1] = [Label::RetryableWrite];

    #[test]
    fn changes_of_state_are_transient_in_statements_and_retryable_at_the_end() {
        for code in [10107, 13435, 13436, 189, 91, 11600, 11602] {
            assert_eq!(labels(code, Place::Statement), TRANSIENT, "{code}");
            assert_eq!(labels(code, Place::End), REPEAT, "{code}");
            assert_eq!(labels(code, Place::RetryableWrite), REPEAT, "{code}");
            assert_eq!(labels(code, Place::Outside), [], "{code}");
        }
    }

    #[test]
    fn what_never_happened_is_transient_wherever_it_is_told() {
        for code in [24, 112, 246, 251, 267] {
            assert_eq!(labels(code, Place::Statement), TRANSIENT, "{code}");
            assert_eq!(labels(code, Place::End), TRANSIENT, "{code}");
            assert_eq!(labels(code, Place::Outside), [], "{code}");
            assert_eq!(labels(code, Place::RetryableWrite), [], "{code}");
        }
        assert_eq!(labels(290, Place::Statement), TRANSIENT);
    }

    #[test]
    fn other_errors_have_no_labels() {
        // Duplicate keys, unsupported operations, too old, committed, too large, time limits,
        // Interrupted, and the three errors of write concerns.
        for code in [11000, 263, 72, 225, 256, 117, 388, 50, 239, 11601, 64, 79, 100] {
            for place in [Place::Outside, Place::RetryableWrite, Place::Statement, Place::End] {
                assert_eq!(labels(code, place), [], "{code} in {place:?}");
            }
        }
    }
}
