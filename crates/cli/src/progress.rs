//! Progress bars: for whatever takes more than a second.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Work that is done sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the bar is drawn.
const EVERY: Duration = Duration::from_millis(100);

/// How many characters a bar on a line of its own has.
const WIDTH: usize = 24;

/// A bar of this many characters, filled by a part between 0 and 1.
pub(crate) fn bar(fraction: f64, width: usize) -> String {
    let full = (fraction.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

/// Puts this in the place of the last line of stderr. Errors are ignored: the terminal may be gone.
pub(crate) fn overwrite(line: impl Display) {
    let _ = write!(io::stderr(), "\r\x1b[2K{line}");
    let _ = io::stderr().flush();
}

/// The present stage, on a line of stderr that is written over. Nothing is drawn into a pipe, or beside `--json`.
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    /// A line on stderr, if that is a terminal and programs do not read along.
    pub(crate) fn new(json: bool) -> Self {
        Self { shown: !json && io::stderr().is_terminal() }
    }

    /// Shows the stage that begins.
    pub(crate) fn stage(&mut self, stage: &str) {
        if self.shown {
            overwrite(format_args!("{stage} …"));
        }
    }

    /// Takes the line away, so that something else can be said.
    pub(crate) fn clear(&mut self) {
        if self.shown {
            overwrite("");
        }
    }
}

/// How far the reading of a file is, on a line of stderr that is written over. It is drawn only where
/// it disturbs nothing: stderr is a terminal, and the data is not printed to the same terminal.
pub(crate) struct Reading {
    whole: Option<u64>,
    read: u64,
    began: Instant,
    drawn: Option<Instant>,
    shown: bool,
}

impl Reading {
    /// Of so many bytes; `None` if that is unknown, and then nothing is drawn.
    pub(crate) fn new(whole: Option<u64>) -> Self {
        let shown = io::stderr().is_terminal() && !io::stdout().is_terminal();
        Self { whole, read: 0, began: Instant::now(), drawn: None, shown }
    }

    /// Counts bytes that were read, and draws the bar.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.read += bytes as u64;
        if !self.shown || self.began.elapsed() < PATIENCE {
            return;
        }
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < EVERY) {
            return;
        }
        if let Some(line) = self.line() {
            self.drawn = Some(Instant::now());
            overwrite(line);
        }
    }

    fn line(&self) -> Option<String> {
        let fraction = self.read as f64 / self.whole.filter(|whole| *whole > 0)? as f64;
        Some(format!("{} {:>3.0} %", bar(fraction, WIDTH), fraction.min(1.0) * 100.0))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            overwrite("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_the_work_is_done() {
        assert_eq!(bar(0.5, 4), "██░░");
        assert_eq!((bar(-1.0, 2), bar(7.0, 2)), ("░░".to_owned(), "██".to_owned()));
    }

    #[test]
    fn a_line_needs_a_whole() {
        let mut reading = Reading::new(Some(200));
        reading.advance(50);
        assert_eq!(reading.line().unwrap(), format!("{}{}  25 %", "█".repeat(6), "░".repeat(18)));
        assert_eq!(Reading::new(None).line(), None);
        assert_eq!(Reading::new(Some(0)).line(), None);
    }
}
