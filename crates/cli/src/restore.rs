//! `quorate restore DIR URI`: the collections of a dump into a deployment.
//!
//! Can be run again after it was killed, or after the deployment was: a document that is there already
//! and equal is passed over, and one that differs is left alone and told. Indexes are made after the
//! documents, and after the changes of `oplog.bson`, since only then do unique keys hold.

mod collection;
mod replay;
mod stream;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bson::{Document, Timestamp, rawdoc};
use clap::Args;
use quorate_client::Client;
use quorate_protocol::Counted;
use serde_json::json;
use tokio::task::JoinSet;

use self::collection::Filled;
pub(crate) use self::collection::Filling;
use self::replay::Replay;
use crate::connect;
use crate::screen::{FINE, Failure, Outcome, PROBLEM, Result, Screen};
use crate::transfer::bson_file::Documents;
use crate::transfer::layout::{Dump, Metadata, Piece, Place};
use crate::transfer::tally::Tally;
use crate::transfer::{self, DEFAULT_JOBS, Selection};
use crate::words::{Foreign, Span};

/// `quorate restore`.
#[derive(Debug, Args)]
#[command(
    override_usage = "quorate restore [OPTIONS] <DIR> <URI>\n       quorate restore [OPTIONS] --archive <FILE> <URI>",
    after_help = "\
Examples:
  quorate restore ./dump 'mongodb://localhost:27017/?replicaSet=rs0'
  quorate restore --drop --only shop ./dump 'mongodb://localhost:27017/?replicaSet=rs0'
  quorate restore --archive dump.archive.gz --gzip 'mongodb://localhost:27017/?replicaSet=rs0'

Reads what quorate dump and mongodump write. May be run again: documents that are there already and
equal are passed over. Others of the same _id are left alone, and then it ends in code 1. Writes
wait for a majority, unless the connection string says otherwise."
)]
pub(crate) struct RestoreArguments {
    /// The directory of the dump, unless --archive is given, and the connection string.
    #[arg(value_names = ["DIR", "URI"], num_args = 1..=2, required = true)]
    pub(crate) places: Vec<String>,
    /// Read one file in place of a directory; - is stdin.
    #[arg(long, value_name = "FILE")]
    pub(crate) archive: Option<PathBuf>,
    /// The archive is compressed. In a directory the names of the files tell.
    #[arg(long, requires = "archive")]
    pub(crate) gzip: bool,
    /// Drop each collection of the dump before it is restored.
    #[arg(long)]
    pub(crate) drop: bool,
    /// Only this database or collection. May be given several times.
    #[arg(long, value_name = "DB[.COLLECTION]")]
    pub(crate) only: Vec<String>,
    /// Leave out the changes of oplog.bson from this time on: seconds since 1970, and the number of
    /// the entry within the second.
    #[arg(long, value_name = "SECONDS[:N]", value_parser = moment)]
    pub(crate) oplog_limit: Option<Timestamp>,
    /// How many collections to write at once, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_JOBS, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) jobs: u8,
}

impl RestoreArguments {
    /// The connection string.
    fn uri(&self) -> &str {
        self.places.last().map_or("", String::as_str)
    }

    /// Where the dump is.
    fn origin(&self) -> Result<Origin<'_>> {
        match (&self.archive, self.places.as_slice()) {
            (None, [directory, _]) => Ok(Origin::Directory(Path::new(directory))),
            (Some(archive), [_]) => Ok(Origin::Archive(archive)),
            (None, _) => Err(misuse!(
                "give the directory of the dump before the connection string, or --archive FILE"
            )),
            (Some(_), _) => {
                Err(misuse!("give a directory or --archive, not both; then the connection string"))
            }
        }
    }
}

enum Origin<'a> {
    Directory(&'a Path),
    Archive(&'a Path),
}

/// `1763251200` or `1763251200:5`.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    let (seconds, number) = text.split_once(':').unwrap_or((text, "0"));
    let read = |text: &str| text.parse::<u32>().map_err(|_| "give seconds since 1970".to_owned());
    Ok(Timestamp { time: read(seconds)?, increment: read(number)? })
}

pub(crate) fn run(arguments: &RestoreArguments, screen: &mut Screen) -> Result<Outcome> {
    let origin = arguments.origin()?;
    let uri = connect::parse(arguments.uri())?;
    let selection = Selection::parse(&arguments.only)?;
    // Before the deployment is asked: a wrong directory is an error at once.
    let dump = match origin {
        Origin::Directory(directory) => Some(Dump::open(directory)?),
        Origin::Archive(_) => None,
    };
    let runtime = transfer::runtime()?;
    runtime.block_on(async {
        let (client, _) = connect::client(&uri, transfer::wait_for_majority).await?;
        let work = Work {
            arguments,
            selection,
            client: client.clone(),
            tally: Arc::default(),
            began: Instant::now(),
        };
        let restored = match (dump, origin) {
            (Some(dump), _) => work.directory(dump, screen).await,
            (None, Origin::Archive(path)) => work.archive(path, screen).await,
            (None, Origin::Directory(_)) => unreachable!("a directory was opened above"),
        };
        client.close().await;
        restored
    })
}

/// A restore under way.
struct Work<'a> {
    arguments: &'a RestoreArguments,
    selection: Selection,
    client: Client,
    tally: Arc<Tally>,
    began: Instant,
}

/// The progress of a restore.
#[derive(Default)]
struct Done {
    collections: usize,
    filled: Filled,
    /// Documents that were there and differ.
    conflicts: Vec<String>,
}

impl Done {
    fn add(&mut self, place: &Place, filled: Filled) {
        if let Some(first) = &filled.first_conflict {
            self.conflicts.push(format!(
                "{} of {} differ from those that are there (the first has _id {}) and were left alone",
                Counted(filled.conflicts, "document"),
                Foreign(place),
                Foreign(first)
            ));
        }
        self.filled.inserted += filled.inserted;
        self.filled.present += filled.present;
        self.filled.conflicts += filled.conflicts;
    }
}

impl Work<'_> {
    async fn directory(&self, dump: Dump, screen: &mut Screen) -> Result<Outcome> {
        refuse_if!(dump.oplog.is_none() && self.arguments.oplog_limit.is_some() => problem,
            "the dump has no oplog.bson, so that --oplog-limit limits nothing; leave it out, or dump with --oplog");
        let pieces: Vec<Piece> =
            dump.pieces.into_iter().filter(|piece| self.is_wanted(&piece.place)).collect();
        for path in pieces.iter().filter_map(|piece| piece.documents.as_ref()).chain(&dump.oplog) {
            self.tally.expect(std::fs::metadata(path).map_or(0, |metadata| metadata.len()));
        }
        let mut done = Done::default();
        let mut indexes = indexes_of(pieces.iter().map(|piece| (&piece.place, &piece.metadata)));
        let views = views_of(pieces.iter().map(|piece| (&piece.place, &piece.metadata)));
        let work = async {
            self.fill_from_files(pieces, &mut done).await?;
            let Some(path) = &dump.oplog else { return Ok(0) };
            let mut entries = Documents::open(path, &self.tally)?;
            let mut replay = self.replay(&mut indexes);
            while let Some(entry) = entries.next()? {
                replay.apply(&entry).await?;
            }
            replay.finish().await
        };
        let changes = self.tally.shown(screen.is_json(), work).await?;
        self.conclude(done, changes, &indexes, &views, screen).await
    }

    /// The steps after the documents: indexes, views, and the report.
    async fn conclude(
        &self,
        done: Done,
        changes: usize,
        indexes: &BTreeMap<Place, Vec<Document>>,
        views: &[(Place, Metadata)],
        screen: &mut Screen,
    ) -> Result<Outcome> {
        for (place, indexes) in indexes {
            collection::make_indexes(&self.client, place, indexes, self.arguments.uri()).await?;
        }
        for (place, metadata) in views {
            collection::prepare(&self.client, place, metadata, self.arguments).await?;
        }
        let took = self.began.elapsed();
        let Done { collections, filled, conflicts } = done;
        let collections = collections + views.len();
        refuse_if!(collections == 0 && changes == 0 && !self.selection.is_everything() => problem,
            "the dump has nothing named {}, and nothing was restored; correct --only",
            Foreign(self.arguments.only.join(" or ")));
        screen.event(
            "restored",
            json!({
                "collections": collections, "documents": filled.inserted,
                "present": filled.present, "conflicts": filled.conflicts, "changes": changes,
                "elapsed_ms": took.as_secs_f64() * 1e3,
            }),
        )?;
        let also = |count: usize, what: &str| match count {
            0 => String::new(),
            count => format!(", {count} {what}"),
        };
        screen.talk_unless_json(format_args!(
            "{FINE}restored{FINE:#} {}, {}{}{} in {}",
            Counted(collections, "collection"),
            Counted(filled.inserted, "document"),
            also(filled.present, "were there already"),
            also(changes, "changes of oplog.bson"),
            Span(took)
        ));
        for conflict in &conflicts {
            tell!(screen, "conflict", {"message": conflict},
                "{PROBLEM}problem:{PROBLEM:#} {conflict}")?;
        }
        if conflicts.is_empty() {
            return Ok(Outcome::Fine);
        }
        screen.talk_unless_json(
            "run it again with --drop to replace those collections, or compare them first",
        );
        Ok(Outcome::ProblemFound)
    }

    async fn fill_from_files(&self, pieces: Vec<Piece>, done: &mut Done) -> Result<()> {
        let mut waiting = pieces.into_iter();
        let mut running = JoinSet::new();
        loop {
            while running.len() < usize::from(self.arguments.jobs) {
                let Some(piece) = waiting.next() else { break };
                if piece.metadata.is_view() {
                    continue;
                }
                collection::prepare(&self.client, &piece.place, &piece.metadata, self.arguments)
                    .await?;
                done.collections += 1;
                let filling = self.filling(&piece.place);
                let tally = Arc::clone(&self.tally);
                running.spawn(async move {
                    let filled = match &piece.documents {
                        Some(path) => filling.take_file(Documents::open(path, &tally)?).await?,
                        None => Filled::default(),
                    };
                    Ok::<_, Failure>((piece.place, filled))
                });
            }
            match running.join_next().await {
                None => return Ok(()),
                Some(Ok(Ok((place, filled)))) => done.add(&place, filled),
                Some(Ok(Err(failure))) => return Err(failure),
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }

    fn filling(&self, place: &Place) -> Filling {
        Filling::new(&self.client, place.clone(), &self.tally, self.arguments.uri())
    }

    fn replay<'a>(&'a self, indexes: &'a mut BTreeMap<Place, Vec<Document>>) -> Replay<'a> {
        Replay::new(
            &self.client,
            &self.selection,
            self.arguments.oplog_limit,
            indexes,
            self.arguments.uri(),
        )
    }

    /// Whether a collection of the dump is restored. Users and settings belong to their server.
    fn is_wanted(&self, place: &Place) -> bool {
        is_restorable(&place.database, &place.collection)
            && self.selection.has(&place.database, &place.collection)
    }
}

/// Whether a client may write the collection. A dump may also hold collections of the server itself.
fn is_restorable(database: &str, collection: &str) -> bool {
    let is_of_the_server = collection.starts_with("system.") && collection != "system.js";
    !matches!(database, "local" | "config" | "")
        && !is_of_the_server
        && !collection.starts_with('$')
}

fn indexes_of<'a>(
    pieces: impl Iterator<Item = (&'a Place, &'a Metadata)>,
) -> BTreeMap<Place, Vec<Document>> {
    pieces
        .filter(|(_, metadata)| !metadata.is_view())
        .map(|(place, metadata)| (place.clone(), metadata.indexes.clone()))
        .collect()
}

fn views_of<'a>(pieces: impl Iterator<Item = (&'a Place, &'a Metadata)>) -> Vec<(Place, Metadata)> {
    pieces
        .filter(|(_, metadata)| metadata.is_view())
        .map(|(place, metadata)| (place.clone(), metadata.clone()))
        .collect()
}

/// Runs a command on the primary, with the write concern of the deployment's clients.
async fn administer(
    client: &Client,
    database: &str,
    mut command: bson::RawDocumentBuf,
) -> Result<(), quorate_client::Error> {
    command.append(bson::raw::cstr!("writeConcern"), rawdoc! { "w": "majority" });
    client.database(database).run_command(command).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_second_and_a_number() {
        assert_eq!(moment("60"), Ok(Timestamp { time: 60, increment: 0 }));
        assert_eq!(moment("60:7"), Ok(Timestamp { time: 60, increment: 7 }));
        for wrong in ["", "x", "60:", "-1", "60:x"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn users_and_what_is_of_the_server_are_not_restored() {
        assert!(is_restorable("shop", "orders") && is_restorable("shop", "system.js"));
        for (database, collection) in [
            ("admin", "system.users"),
            ("local", "x"),
            ("config", "x"),
            ("shop", "$admin.system.users"),
            ("", "oplog"),
        ] {
            assert!(!is_restorable(database, collection), "{database}.{collection}");
        }
    }
}
