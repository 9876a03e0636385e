//! How often and how soon `with_transaction` tries again.
//!
//! Follows "Sequence of Actions" of the Convenient API for Transactions specification. The caller
//! reads the clock and draws the chance.

use std::time::Duration;

use quorate_protocol::{ErrorCode, MonotonicTime};

use crate::labels::{Failure, UNKNOWN_TRANSACTION_COMMIT_RESULT};

/// How long `with_transaction` goes on trying where `timeoutMS` says nothing.
pub const WITH_TRANSACTION_LIMIT: Duration = Duration::from_secs(120);

/// `BACKOFF_INITIAL`.
pub const BACKOFF_INITIAL: Duration = Duration::from_millis(5);

/// `BACKOFF_MAX`.
pub const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// What the pause grows by with each attempt.
const BACKOFF_FACTOR: f64 = 1.5;

/// After this many attempts the pause no longer grows: 5 ms × 1.5^12 is above `BACKOFF_MAX`.
const LAST_GROWTH: u32 = 12;

/// The attempts of one call of `with_transaction`.
#[derive(Clone, Debug)]
pub struct Attempts {
    began: MonotonicTime,
    limit: Duration,
    made: u32,
}

/// There is no time for another attempt: the caller gets the last error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfTime;

impl Attempts {
    /// The attempts of a call that begins now. `timeout` is `timeoutMS`, if it is set.
    pub fn new(now: MonotonicTime, timeout: Option<Duration>) -> Self {
        Self { began: now, limit: timeout.unwrap_or(WITH_TRANSACTION_LIMIT), made: 0 }
    }

    /// How long the whole call may take.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How long to wait before the next attempt. `chance` is evenly spread over `[0, 1)`.
    ///
    /// # Errors
    ///
    /// If the time would be up by then.
    pub fn begin(&mut self, now: MonotonicTime, chance: f64) -> Result<Duration, OutOfTime> {
        let made = self.made;
        if made == 0 {
            self.made = 1;
            return Ok(Duration::ZERO);
        }
        let growth = BACKOFF_FACTOR.powi(made.min(LAST_GROWTH).cast_signed());
        let pause = BACKOFF_INITIAL.mul_f64(growth).min(BACKOFF_MAX).mul_f64(chance);
        if now.since(self.began) + pause >= self.limit {
            return Err(OutOfTime);
        }
        self.made = made.saturating_add(1);
        Ok(pause)
    }

    /// Whether a commit that failed like this is sent again at once.
    ///
    /// # Errors
    ///
    /// If it would be, but the time is up.
    pub fn repeats_commit(
        &self,
        now: MonotonicTime,
        failure: &impl Failure,
    ) -> Result<bool, OutOfTime> {
        let unknown = failure.has_label(UNKNOWN_TRANSACTION_COMMIT_RESULT)
            && failure.code() != Some(ErrorCode::MAX_TIME_MS_EXPIRED.0);
        match unknown {
            false => Ok(false),
            true if now.since(self.began) >= self.limit => Err(OutOfTime),
            true => Ok(true),
        }
    }
}

/// Whether a failure of the callback or the commit lets the whole transaction be tried again.
pub fn retried_transaction(failure: &impl Failure) -> bool {
    failure.has_label(crate::labels::TRANSIENT_TRANSACTION_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::tests::Said;

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime::from_millis(millis)
    }

    #[test]
    fn the_first_attempt_waits_for_nothing_and_later_ones_for_longer_and_longer() {
        let mut attempts = Attempts::new(at(0), None);
        assert_eq!(attempts.begin(at(0), 1.0), Ok(Duration::ZERO));
        let pauses: Vec<f64> =
            (0..14).map(|_| attempts.begin(at(0), 1.0).unwrap().as_secs_f64() * 1000.0).collect();
        assert_eq!(&pauses[..3], &[7.5, 11.25, 16.875]);
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&500.0));
    }

    /// "Retry Backoff is Enforced" of the specification's prose tests: 13 retries wait for nothing
    /// with the least chance, and about 2.2 s with the greatest.
    #[test]
    fn chance_spreads_the_pauses() {
        let total = |chance| {
            let mut attempts = Attempts::new(at(0), None);
            attempts.begin(at(0), chance).unwrap();
            (0..13).map(|_| attempts.begin(at(0), chance).unwrap()).sum::<Duration>()
        };
        assert_eq!(total(0.0), Duration::ZERO);
        let most = total(1.0).as_secs_f64();
        assert!((2.1..2.3).contains(&most), "{most}");
    }

    #[test]
    fn a_pause_that_would_end_after_the_limit_is_not_begun() {
        let mut attempts = Attempts::new(at(1000), None);
        attempts.begin(at(1000), 1.0).unwrap();
        assert!(attempts.begin(at(120_990), 1.0).is_ok());
        assert_eq!(attempts.begin(at(120_990), 1.0), Err(OutOfTime));
        assert!(attempts.begin(at(120_990), 0.0).is_ok());
        assert_eq!(attempts.begin(at(121_000), 0.0), Err(OutOfTime));
        let mut short = Attempts::new(at(0), Some(Duration::from_millis(50)));
        short.begin(at(0), 1.0).unwrap();
        assert_eq!(short.begin(at(50), 0.0), Err(OutOfTime));
    }

    #[test]
    fn commits_are_repeated_while_their_result_is_unknown() {
        let attempts = Attempts::new(at(0), None);
        let unknown = Said::labelled(UNKNOWN_TRANSACTION_COMMIT_RESULT);
        assert_eq!(attempts.repeats_commit(at(119_999), &unknown), Ok(true));
        assert_eq!(attempts.repeats_commit(at(120_000), &unknown), Err(OutOfTime));
        let expired = Said { code: Some(50), ..unknown };
        assert_eq!(attempts.repeats_commit(at(0), &expired), Ok(false));
        let known = Said::labelled("TransientTransactionError");
        assert_eq!(attempts.repeats_commit(at(120_000), &known), Ok(false));
        assert!(retried_transaction(&known));
    }
}
