//! Many drills, and how well they were foreseen.

use std::time::Duration;

use serde_json::{Value, json};

use crate::screen::{Result, STRONG, Screen};
use crate::what_if::Forecast;
use crate::words::Span;

/// One drill beside the forecast that was made before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scored {
    /// The time without acknowledged writes.
    pub(super) gap: Duration,
    /// The median of the futures.
    half: Duration,
    /// The 95th percentile of the futures.
    most: Duration,
}

impl Scored {
    /// None if the forecast has no end.
    pub(super) fn new(gap: Duration, forecast: &Forecast) -> Option<Self> {
        Some(Self { gap, half: forecast.quantile(0.5)?, most: forecast.quantile(0.95)? })
    }

    /// How far the drill was from the middle of its forecast, as a share of the forecast.
    fn error(&self) -> f64 {
        let (gap, half) = (self.gap.as_secs_f64(), self.half.as_secs_f64());
        if half > 0.0 { (gap - half).abs() / half } else { f64::INFINITY }
    }
}

/// The drills of one run.
#[derive(Debug, Default)]
pub(super) struct Score(Vec<Scored>);

impl Score {
    pub(super) fn add(&mut self, scored: Option<Scored>) {
        self.0.extend(scored);
    }

    fn middle(&self, share: f64, span: fn(&Scored) -> Duration) -> Duration {
        let mut spans: Vec<Duration> = self.0.iter().map(span).collect();
        spans.sort_unstable();
        let index = (share * spans.len() as f64).ceil().max(1.0) as usize - 1;
        spans.get(index).copied().unwrap_or_default()
    }

    fn count(&self, holds: impl Fn(&Scored) -> bool) -> usize {
        self.0.iter().filter(|scored| holds(scored)).count()
    }

    fn median_error(&self) -> f64 {
        let mut errors: Vec<f64> = self.0.iter().map(Scored::error).collect();
        errors.sort_by(f64::total_cmp);
        errors.get(errors.len() / 2).copied().unwrap_or_default()
    }

    /// Tells the sum, if there is more than one drill to sum up.
    pub(super) fn tell(&self, screen: &mut Screen) -> Result<()> {
        if self.0.len() < 2 {
            return Ok(());
        }
        let drills = self.0.len();
        screen.line(format_args!("{STRONG}{drills} drills and their forecasts{STRONG:#}"))?;
        screen.line(format_args!(
            "  measured   {} (half of the drills), {} (95 %)",
            Span(self.middle(0.5, |scored| scored.gap)),
            Span(self.middle(0.95, |scored| scored.gap)),
        ))?;
        screen.line(format_args!(
            "  predicted  {} (half of the futures), {} (95 %)",
            Span(self.middle(0.5, |scored| scored.half)),
            Span(self.middle(0.5, |scored| scored.most)),
        ))?;
        screen.line(format_args!(
            "  {} of {drills} stayed within the half, {} within the 95 %; the error is {:.0} %",
            self.count(|scored| scored.gap <= scored.half),
            self.count(|scored| scored.gap <= scored.most),
            self.median_error() * 100.0,
        ))?;
        screen.event("score", self.to_json())?;
        Ok(())
    }

    fn to_json(&self) -> Value {
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        json!({
            "drills": self.0.len(),
            "measured_ms": {
                "p50": millis(self.middle(0.5, |scored| scored.gap)),
                "p95": millis(self.middle(0.95, |scored| scored.gap)),
            },
            "predicted_ms": {
                "p50": millis(self.middle(0.5, |scored| scored.half)),
                "p95": millis(self.middle(0.5, |scored| scored.most)),
            },
            "within_p50": self.count(|scored| scored.gap <= scored.half),
            "within_p95": self.count(|scored| scored.gap <= scored.most),
            "median_error": self.median_error(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(gap: u64, half: u64, most: u64) -> Scored {
        let millis = Duration::from_millis;
        Scored { gap: millis(gap), half: millis(half), most: millis(most) }
    }

    #[test]
    fn drills_are_counted_against_their_own_forecasts() {
        let mut score = Score::default();
        for drill in [scored(10, 20, 40), scored(30, 20, 40), scored(50, 20, 40)] {
            score.add(Some(drill));
        }
        score.add(None);
        let told = score.to_json();
        assert_eq!((&told["within_p50"], &told["within_p95"]), (&1.into(), &2.into()), "{told}");
        assert_eq!((&told["measured_ms"]["p50"], &told["drills"]), (&30.0.into(), &3.into()));
        assert_eq!(told["median_error"], 0.5, "10 and 30 are half of 20 away");
    }
}
