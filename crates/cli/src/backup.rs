//! `quorate backup URI DIR`: all that one member has stored, at one moment, as a directory that a member
//! opens; and `--forward`, which brings such a directory to a later moment with the oplog of the set.
//!
//! The directory grows as `DIR.partial` and gets its name when all of it is on disk, so that a backup
//! which was killed, or whose member was, is never taken for one. Going forward keeps the directory whole
//! after every batch: it is a member that applies entries.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::{Timestamp, doc};
use clap::Args;
use quorate_change_events::TransactionPart;
use quorate_client::{Client, ClientOptions, Error};
use quorate_protocol::{OpTime, OpTimeAndWallTime, ReadPreference, ReadPreferenceMode};
use quorate_server::{Backup, BackupError, IncomingBackup};
use serde_json::json;

use crate::connect;
use crate::restore::moment;
use crate::screen::{FINE, Failure, Outcome, Result, Screen};
use crate::transfer;
use crate::transfer::tally::{Size, Tally};
use crate::words::{Foreign, Span};

/// Entries that are applied together.
const BATCH_ENTRIES: usize = 1000;

/// Their bytes, unless one transaction has more.
const BATCH_BYTES: usize = 8 << 20;

/// `quorate backup`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate backup 'mongodb://localhost:27017/?replicaSet=rs0' ./monday
  quorate backup --forward 'mongodb://localhost:27017/?replicaSet=rs0' ./monday
  quorate backup --forward --until 1763251200 'mongodb://localhost:27017/?replicaSet=rs0' ./monday
  quorate serve --data ./monday --replset rs0

The member goes on meanwhile, and the backup is of one moment. The directory has everything, users
and indexes too, and opens as it is. It takes a user with the role root, and a Quorate server.")]
pub(crate) struct BackupArguments {
    /// The connection string of the deployment. A secondary is copied if there is one, unless the
    /// string names a read preference or one member (directConnection=true).
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// The directory to make; with --forward, the backup that is there.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Bring a backup to a later moment, with the entries that the oplog of the deployment has since.
    #[arg(long)]
    pub(crate) forward: bool,
    /// Go forward only to before this time: seconds since 1970, and the number of the entry within the
    /// second.
    #[arg(long, value_name = "SECONDS[:N]", value_parser = moment, requires = "forward")]
    pub(crate) until: Option<Timestamp>,
}

/// Backs up, or goes forward.
pub(crate) fn run(arguments: &BackupArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let change = |options: &mut ClientOptions| {
        if arguments.forward {
            connect::read_committed(options);
        } else if options.read_preference == ReadPreference::PRIMARY {
            let mode = ReadPreferenceMode::SecondaryPreferred;
            options.read_preference = ReadPreference::new(mode);
        }
    };
    let work = async |client: &Client| match arguments.forward {
        true => forward(arguments, client, screen).await,
        false => back_up(arguments, client, screen).await,
    };
    transfer::runtime()?.block_on(connect::with_client(&uri, change, work))
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        Self::Problem(error.to_string())
    }
}

async fn back_up(
    arguments: &BackupArguments,
    client: &Client,
    screen: &mut Screen,
) -> Result<Outcome> {
    let began = Instant::now();
    if arguments.directory.exists() {
        return Err(BackupError::Exists(arguments.directory.clone()).into());
    }
    let tally = Arc::new(Tally::default());
    let work = receive(arguments, client, &tally);
    let (bytes, last) = tally.shown(screen.is_json(), work).await?;
    let took = began.elapsed();
    let place = arguments.directory.display().to_string();
    let last_entry = last.map(shown);
    screen.event(
        "backed_up",
        json!({
            "place": place, "bytes": bytes, "last_entry": last_entry, "elapsed_ms": took.as_secs_f64() * 1e3,
        }),
    )?;
    let moment = last_entry.map(|entry| format!(", up to entry {entry} of the oplog"));
    screen.talk_unless_json(format_args!(
        "{FINE}backed up{FINE:#} {} to {}{} in {}",
        Size(bytes),
        Foreign(&place),
        moment.unwrap_or_default(),
        Span(took)
    ));
    Ok(Outcome::Fine)
}

/// `1 entry`, `2 entries`.
fn entries(count: usize) -> String {
    format!("{count} {}", if count == 1 { "entry" } else { "entries" })
}

/// An entry as `--until` takes it.
fn shown(entry: OpTimeAndWallTime) -> String {
    let timestamp = entry.op_time.timestamp;
    format!("{}:{}", timestamp.seconds, timestamp.increment)
}

async fn receive(
    arguments: &BackupArguments,
    client: &Client,
    tally: &Tally,
) -> Result<(u64, Option<OpTimeAndWallTime>)> {
    let lost = |error: Error| connect::failed(&error, &arguments.uri);
    let admin = client.database("admin");
    let mut pieces =
        admin.run_cursor_command(bson::rawdoc! { "quorateBackup": 1 }).await.map_err(lost)?;
    // Nothing is made before a member has agreed.
    let mut incoming = IncomingBackup::begin(&arguments.directory)?;
    let mut bytes = 0;
    while let Some(document) = pieces.next().await.map_err(lost)? {
        let piece = document.get_binary("piece").map_err(|error| {
            problem!("the server sent no piece of a backup: {error}; is it Quorate?")
        })?;
        tokio::task::block_in_place(|| incoming.take(piece.bytes))?;
        bytes += piece.bytes.len() as u64;
        tally.passed(piece.bytes.len());
    }
    let last = tokio::task::block_in_place(|| incoming.finish())?;
    Ok((bytes, last))
}

async fn forward(
    arguments: &BackupArguments,
    client: &Client,
    screen: &mut Screen,
) -> Result<Outcome> {
    let began = Instant::now();
    // Opening would make a directory of its own there.
    let is_empty =
        std::fs::read_dir(&arguments.directory).is_ok_and(|mut files| files.next().is_none());
    refuse_if!(is_empty || !arguments.directory.exists() => problem,
        "there is no backup in {}; give the directory of one, or take it without --forward",
        arguments.directory.display());
    let mut backup = tokio::task::block_in_place(|| Backup::open(&arguments.directory))?;
    let from = backup.last();
    let applied = go_forward(arguments, client, &mut backup).await;
    // Entries that were applied are kept even if a later one fails.
    let finished = tokio::task::block_in_place(|| backup.finish());
    let applied = applied?;
    let last = finished?;
    let took: Duration = began.elapsed();
    let place = arguments.directory.display().to_string();
    tell!(screen, "went_forward", {
            "place": place, "entries": applied, "from": shown(from), "last_entry": shown(last),
            "elapsed_ms": took.as_secs_f64() * 1e3,
        },
        "{FINE}brought forward{FINE:#} {} by {}, up to entry {} of the oplog, in {}",
        Foreign(&place), entries(applied), shown(last), Span(took))?;
    Ok(Outcome::Fine)
}

/// Applies the entries of the oplog after the backup's last one. Returns their number.
async fn go_forward(
    arguments: &BackupArguments,
    client: &Client,
    backup: &mut Backup,
) -> Result<usize> {
    let lost = |error: Error| connect::failed(&error, &arguments.uri);
    let start = backup.last().op_time;
    let since = Timestamp { time: start.timestamp.seconds, increment: start.timestamp.increment };
    let mut wanted = doc! { "$gte": since };
    if let Some(until) = arguments.until {
        refuse_if!(until <= since => problem,
            "the backup is of {}:{} already; take an earlier one for a moment before that",
            since.time, since.increment);
        wanted.insert("$lt", until);
    }
    let oplog = client.collection("local", "oplog.rs");
    let mut entries = oplog.find(doc! { "ts": wanted }).await.map_err(lost)?;
    let first = entries.next().await.map_err(lost)?;
    if first.as_ref().and_then(op_time_of) != Some(start) {
        return Err(problem!(
            "the oplog of the deployment does not have the backup's last entry ({}:{}) any more, or never \
             had it; take a new backup, and keep a longer oplog (replSetResizeOplog)",
            since.time,
            since.increment
        ));
    }
    let mut batch = Batch::default();
    let mut applied = 0;
    while let Some(entry) = entries.next().await.map_err(lost)? {
        batch.push(entry);
        if batch.is_full() {
            applied += apply(backup, batch.whole())?;
        }
    }
    Ok(applied + apply(backup, batch.whole())?)
}

fn apply(backup: &mut Backup, entries: Vec<RawDocumentBuf>) -> Result<usize> {
    let count = entries.len();
    tokio::task::block_in_place(|| backup.apply(entries))?;
    Ok(count)
}

fn op_time_of(entry: &RawDocumentBuf) -> Option<OpTime> {
    let time = entry.get_timestamp("ts").ok()?;
    let term = entry.get_i64("t").unwrap_or(-1);
    Some(OpTime::new(term, quorate_protocol::Timestamp::new(time.time, time.increment)))
}

/// Entries to be applied. A transaction of several entries is applied whole or not at all.
#[derive(Default)]
struct Batch {
    entries: Vec<RawDocumentBuf>,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, entry: RawDocumentBuf) {
        self.bytes += entry.as_bytes().len();
        self.entries.push(entry);
    }

    fn is_full(&self) -> bool {
        let many = self.entries.len() >= BATCH_ENTRIES || self.bytes >= BATCH_BYTES;
        many && !self.entries.last().is_some_and(is_part)
    }

    /// The entries that can be applied. Parts of a transaction without its end stay.
    fn whole(&mut self) -> Vec<RawDocumentBuf> {
        let end = self.entries.iter().rposition(|entry| !is_part(entry)).map_or(0, |last| last + 1);
        let rest = self.entries.split_off(end);
        self.bytes = rest.iter().map(|entry| entry.as_bytes().len()).sum();
        std::mem::replace(&mut self.entries, rest)
    }
}

/// Whether more entries of the same transaction follow.
fn is_part(entry: &RawDocumentBuf) -> bool {
    TransactionPart::of_raw(entry) == Some(TransactionPart::Partial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_transaction_is_not_applied_in_parts() {
        let mut batch = Batch::default();
        batch.push(rawdoc! { "op": "i", "o": { "_id": 1 } });
        batch.push(rawdoc! { "op": "c", "o": { "applyOps": [], "partialTxn": true } });
        assert_eq!(batch.whole().len(), 1);
        assert_eq!(batch.whole().len(), 0);
        batch.push(rawdoc! { "op": "c", "o": { "applyOps": [] } });
        assert_eq!(batch.whole().len(), 2);
        assert_eq!((batch.entries.len(), batch.bytes), (0, 0));
        // A document may have the same fields.
        batch.push(rawdoc! { "op": "i", "o": { "_id": 1, "applyOps": [], "partialTxn": true } });
        assert_eq!(batch.whole().len(), 1);
    }
}
