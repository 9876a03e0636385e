//! Something to look at: a writer that never stops, and what it and the client notice.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bson::rawdoc;
use quorate_client::{Client, ClientEvent};
use quorate_server_discovery::{DiscoveryEvent, TopologyDescription};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::screen::Screen;

/// The pause between two writes: often enough to see a gap, seldom enough to leave the machine alone.
const PAUSE: Duration = Duration::from_millis(10);

/// A pause between two acknowledgements that is worth telling, however fast the writer is.
const GAP: Duration = Duration::from_millis(100);

/// How many times its own recent pace a pause must be to be worth telling: a busy machine is slow all
/// the time.
const PACES: u32 = 8;

/// How much of the pace the last write makes.
const WEIGHT: u32 = 16;

/// How often the count is printed while nothing happens.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// How many lines may wait to be shown; the writer waits with them.
const LINES_WAITING: usize = 64;

/// Says what the user could do now.
pub(super) fn invite(pid: u32, screen: &mut Screen) {
    screen.talk_unless_json(format_args!(
        "a writer is at work; break something and watch: kill -9 {pid}"
    ));
}

/// Nothing to look at.
pub(super) fn silence() -> mpsc::Receiver<String> {
    mpsc::channel(LINES_WAITING).1
}

/// Starts the writer and the watcher; what they notice comes out as lines. They end with the receiver.
pub(super) fn start(client: &Client) -> mpsc::Receiver<String> {
    let (lines, told) = mpsc::channel(LINES_WAITING);
    tokio::spawn(watch(client.clone(), lines.clone()));
    tokio::spawn(write(client.clone(), lines));
    told
}

async fn watch(client: Client, lines: mpsc::Sender<String>) {
    let mut events = client.events();
    let mut last = String::new();
    loop {
        let line = match events.recv().await {
            Ok(ClientEvent::Discovery(DiscoveryEvent::TopologyDescriptionChanged {
                new, ..
            })) => described(&new),
            Ok(_) | Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        // Events also tell changes that a line does not show.
        if line == last {
            continue;
        }
        last.clone_from(&line);
        if lines.send(line).await.is_err() {
            return;
        }
    }
}

async fn write(client: Client, lines: mpsc::Sender<String>) {
    let collection = client.collection("quorate", "workload");
    let (mut written, mut reported) = (0_u64, Instant::now());
    let mut last = Instant::now();
    let mut pace = PAUSE;
    loop {
        sleep(PAUSE).await;
        let outcome = collection.insert_one(rawdoc! { "at": bson::DateTime::now() }).await;
        let line = match outcome {
            Ok(_) => {
                written += 1;
                let gap = std::mem::replace(&mut last, Instant::now()).elapsed();
                let since = reported.elapsed();
                let is_gap = is_gap(gap, pace);
                pace = next_pace(pace, gap, is_gap);
                if is_gap {
                    format!("writes go on after a gap of {} ms", gap.as_millis())
                } else if since > REPORT_EVERY {
                    let rate = written as f64 / since.as_secs_f64();
                    (written, reported) = (0, Instant::now());
                    format!("the writer: {rate:.0} writes a second, each acknowledged")
                } else {
                    continue;
                }
            }
            Err(error) => format!("a write failed: {error}"),
        };
        if lines.send(line).await.is_err() {
            return;
        }
    }
}

/// Whether a pause is one, for a writer of this pace.
fn is_gap(pause: Duration, pace: Duration) -> bool {
    pause > GAP.max(pace * PACES)
}

/// The pace after one more write. A gap says nothing about it.
fn next_pace(pace: Duration, pause: Duration, is_gap: bool) -> Duration {
    if is_gap { pace } else { pace * (WEIGHT - 1) / WEIGHT + pause / WEIGHT }
}

fn described(topology: &TopologyDescription) -> String {
    let mut text = format!("{}:", topology.topology_type());
    for server in topology.servers().iter() {
        let _ = write!(text, " {} {}", server.address(), server.server_type());
        if let Some(error) = server.error() {
            // The remedy is the business of `quorate doctor`.
            let error = error.to_string();
            let _ = write!(text, " ({})", error.split(';').next().unwrap_or_default());
        }
        text.push(',');
    }
    text.trim_end_matches([',', ':']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A busy machine writes slowly all the time, so only outliers are printed.
    #[test]
    fn a_gap_is_judged_by_the_writers_own_pace() {
        let millis = Duration::from_millis;
        let mut pace = PAUSE;
        let mut told = 0;
        for number in 0..500 {
            let pause = millis(40 + number % 60);
            let is_gap = is_gap(pause, pace);
            told += usize::from(is_gap);
            pace = next_pace(pace, pause, is_gap);
        }
        assert_eq!(told, 0, "pace {pace:?}");
        assert!(is_gap(millis(1500), pace), "a failover stands out: {pace:?}");
        assert!(is_gap(millis(150), PAUSE), "and on a fast machine sooner");
    }
}
