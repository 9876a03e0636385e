//! How far a transfer is: counted by its tasks, drawn on a terminal.

use std::io::{self, IsTerminal, Read};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::progress::{bar, overwrite};

/// Work that is done sooner needs no line.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the line is drawn.
const EVERY: Duration = Duration::from_millis(200);

/// How many characters the bar has.
const WIDTH: usize = 20;

/// What all tasks of a transfer have done together.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Bytes of the files that were read, or of the documents that were received.
    bytes: AtomicU64,
    documents: AtomicU64,
    /// How many bytes there are; 0 if that is not known.
    whole: AtomicU64,
}

/// Counts the bytes read from the file, so that progress is correct for compressed files too.
pub(crate) struct Counting<R> {
    pub(crate) inner: R,
    pub(crate) tally: Arc<Tally>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.tally.passed(read);
        Ok(read)
    }
}

impl Tally {
    /// There are so many bytes to pass.
    pub(crate) fn expect(&self, bytes: u64) {
        self.whole.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes more are done.
    pub(crate) fn passed(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many documents more are done.
    pub(crate) fn counted(&self, documents: usize) {
        self.documents.fetch_add(documents as u64, Ordering::Relaxed);
    }

    /// The line after this time.
    fn line(&self, elapsed: Duration) -> String {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let documents = self.documents.load(Ordering::Relaxed);
        let whole = self.whole.load(Ordering::Relaxed);
        let rate = bytes as f64 / elapsed.as_secs_f64().max(1e-3);
        let done = format!("{documents} documents, {}, {}/s", Size(bytes), Size(rate as u64));
        // The sizes that servers tell are estimates: more may come than they said.
        if whole == 0 || bytes > whole {
            return done;
        }
        let part = bytes as f64 / whole as f64;
        let left = (whole - bytes) as f64 / rate.max(1.0);
        format!("{} {:>3.0} %  {done}, {left:.0} s left", bar(part, WIDTH), part * 100.0)
    }

    /// Runs the work and draws how far it is, where a person looks and no program reads along.
    pub(crate) async fn shown<T>(&self, json: bool, work: impl Future<Output = T>) -> T {
        if json || !io::stderr().is_terminal() {
            return work.await;
        }
        let began = Instant::now();
        let mut work = pin!(work);
        let mut drawn = false;
        loop {
            tokio::select! {
                done = &mut work => {
                    if drawn {
                        overwrite("");
                    }
                    return done;
                }
                () = tokio::time::sleep(EVERY) => {
                    if began.elapsed() >= PATIENCE {
                        drawn = true;
                        overwrite(self.line(began.elapsed()));
                    }
                }
            }
        }
    }
}

/// So many bytes, as people say it.
pub(crate) struct Size(pub(crate) u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [&str; 5] = ["bytes", "KB", "MB", "GB", "TB"];
        let mut size = self.0 as f64;
        let mut unit = 0;
        while size >= 1000.0 && unit + 1 < UNITS.len() {
            size /= 1000.0;
            unit += 1;
        }
        match unit {
            0 => write!(f, "{size:.0} {}", UNITS[unit]),
            _ => write!(f, "{size:.1} {}", UNITS[unit]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_bytes_rate_and_what_is_left() {
        let tally = Tally::default();
        tally.passed(2_000_000);
        tally.counted(30);
        let second = Duration::from_secs(1);
        assert_eq!(tally.line(second), "30 documents, 2.0 MB, 2.0 MB/s");
        tally.expect(8_000_000);
        assert_eq!(
            tally.line(second),
            format!(
                "{}{}  25 %  30 documents, 2.0 MB, 2.0 MB/s, 3 s left",
                "█".repeat(5),
                "░".repeat(15)
            )
        );
        assert_eq!(Size(999).to_string(), "999 bytes");
        assert_eq!(Size(25_600_000_000).to_string(), "25.6 GB");
    }
}
