//! How long a server takes to answer.
//!
//! Follows "Calculation of Average Round Trip Times" in the Server Selection specification and
//! "Measuring RTT" in the Server Monitoring specification.

use std::time::Duration;

use crate::server_description::RoundTrips;

/// The minimum is taken over this many samples at most.
const RECENT_SAMPLES: usize = 10;

/// The minimum is reported as zero until there are this many samples.
const SAMPLES_FOR_MINIMUM: usize = 2;

/// The average and the minimum of a server's round trips. Emptied when the server becomes Unknown.
#[derive(Clone, Debug, Default)]
pub struct RoundTripEstimator {
    average_nanos: Option<u64>,
    recent: [u64; RECENT_SAMPLES],
    /// Samples since the last reset; the next one goes to the place of this number, modulo the size.
    samples: usize,
}

impl RoundTripEstimator {
    /// No samples.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a sample into account.
    pub fn record(&mut self, round_trip: Duration) {
        let sample = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        self.average_nanos = Some(match self.average_nanos {
            // With an alpha of 0.2: one fifth of the new, four fifths of the old.
            Some(old) => old / 5 * 4 + sample / 5 + (old % 5 * 4 + sample % 5) / 5,
            None => sample,
        });
        self.recent[self.samples % RECENT_SAMPLES] = sample;
        // Past the first round only the place in the ring matters.
        self.samples = match self.samples + 1 {
            count if count == 2 * RECENT_SAMPLES => RECENT_SAMPLES,
            count => count,
        };
    }

    /// Forgets every sample.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The exponentially weighted average, once there is a sample.
    pub fn average(&self) -> Option<Duration> {
        self.average_nanos.map(Duration::from_nanos)
    }

    /// The least of the last ten samples; zero until there are two.
    pub fn minimum(&self) -> Duration {
        if self.samples < SAMPLES_FOR_MINIMUM {
            return Duration::ZERO;
        }
        let held = &self.recent[..self.samples.min(RECENT_SAMPLES)];
        Duration::from_nanos(held.iter().copied().min().unwrap_or(0))
    }

    /// Both, as a description carries them.
    pub fn round_trips(&self) -> RoundTrips {
        let average = self.average();
        RoundTrips { average, minimum: average.map(|_| self.minimum()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimator(samples: &[u64]) -> RoundTripEstimator {
        let mut estimator = RoundTripEstimator::new();
        samples.iter().for_each(|ms| estimator.record(Duration::from_millis(*ms)));
        estimator
    }

    #[test]
    fn the_first_sample_is_the_average_and_later_ones_weigh_a_fifth() {
        assert_eq!(estimator(&[]).average(), None);
        assert_eq!(estimator(&[10]).average(), Some(Duration::from_millis(10)));
        assert_eq!(estimator(&[10, 20]).average(), Some(Duration::from_millis(12)));
    }

    #[test]
    fn the_minimum_is_zero_until_there_are_two_samples() {
        assert_eq!(estimator(&[7]).minimum(), Duration::ZERO);
        assert_eq!(estimator(&[7, 9]).minimum(), Duration::from_millis(7));
    }

    #[test]
    fn the_minimum_forgets_what_is_older_than_ten_samples() {
        let mut samples = vec![1];
        samples.extend([5; 9]);
        assert_eq!(estimator(&samples).minimum(), Duration::from_millis(1));
        samples.push(6);
        assert_eq!(estimator(&samples).minimum(), Duration::from_millis(5));
        samples.extend([8; 35]);
        assert_eq!(estimator(&samples).minimum(), Duration::from_millis(8));
    }

    #[test]
    fn the_minimum_sees_each_of_the_last_ten_samples() {
        for place in 0..10 {
            let mut samples = [5; 10];
            samples[place] = 1;
            assert_eq!(estimator(&samples).minimum(), Duration::from_millis(1), "{place}");
        }
    }

    #[test]
    fn a_reset_forgets_everything() {
        let mut estimator = estimator(&[1, 2, 3]);
        estimator.reset();
        assert_eq!(estimator.round_trips(), RoundTrips::default());
    }

    #[test]
    fn absurd_samples_do_not_overflow() {
        let mut estimator = RoundTripEstimator::new();
        estimator.record(Duration::MAX);
        estimator.record(Duration::MAX);
        assert_eq!(estimator.average(), Some(Duration::from_nanos(u64::MAX)));
    }
}
