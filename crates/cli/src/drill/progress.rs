//! The progress of a drill on a terminal: one line of stderr that is written over.
//!
//! Nothing is drawn where no terminal is: into a pipe, or beside `--json`.

use std::future::Future;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use crate::progress::{bar, overwrite};

/// How often the line is drawn.
const EVERY: Duration = Duration::from_millis(100);

/// How many characters the bar has.
const WIDTH: usize = 24;

/// The line, and what it says.
pub(super) struct Progress {
    shown: bool,
    stage: &'static str,
}

impl Progress {
    /// A line on stderr, if that is a terminal and programs do not read along.
    pub(super) fn new(json: bool) -> Self {
        Self { shown: !json && io::stderr().is_terminal(), stage: "" }
    }

    /// Shows the stage that begins.
    pub(super) fn stage(&mut self, stage: &'static str) {
        self.stage = stage;
        self.draw(0.0, Duration::ZERO);
    }

    /// Takes the line away, so that something else can be said.
    pub(super) fn clear(&mut self) {
        if self.shown {
            overwrite("");
        }
    }

    /// Draws while the work is done. `None` if it is not done in time.
    pub(super) async fn follow<T>(
        &mut self,
        within: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        self.follow_until(Instant::now() + within, work).await
    }

    /// The same, with the moment at which the time is over.
    pub(super) async fn follow_until<T>(
        &mut self,
        deadline: Instant,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let began = Instant::now();
        let whole = deadline.duration_since(began);
        let mut work = pin!(timeout_at(deadline, work));
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                done = &mut work => return done.ok(),
                _ = ticks.tick() => {
                    let passed = began.elapsed();
                    self.draw(passed.as_secs_f64() / whole.as_secs_f64().max(0.001), passed);
                }
            }
        }
    }

    fn draw(&self, fraction: f64, passed: Duration) {
        if self.shown {
            overwrite(line(self.stage, fraction, passed));
        }
    }
}

fn line(stage: &str, fraction: f64, passed: Duration) -> String {
    format!("{} {:>5.1} s  {stage}", bar(fraction, WIDTH), passed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_eighty_columns_and_never_overflows() {
        let half = line("waiting for an acknowledged write", 0.5, Duration::from_secs(60));
        assert_eq!(half.chars().filter(|c| *c == '█').count(), WIDTH / 2);
        assert!(half.chars().count() < 80, "{half}");
        let over = line("waiting", 7.0, Duration::from_secs(1));
        assert_eq!(over.chars().filter(|c| *c == '█').count(), WIDTH);
    }
}
