//! `quorate dump URI DIR`: every collection as files, in the layout of mongodump.
//!
//! The files grow in `DIR.partial`, which becomes `DIR` when all of them are whole and on disk: a dump
//! that was killed is never taken for one, and the next run keeps the collections that it had finished.
//! A failover in between costs nothing, as each collection is read in the order of its `_id` and goes on
//! after the last one that was read.

mod history;
mod progress;
mod target;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bson::{Bson, Document};
use clap::Args;
use quorate_client::{Client, Error};
use quorate_protocol::Counted;
use serde_json::json;
use tokio::task::JoinSet;

use self::progress::Left;
use self::target::{Sink, Target};
use crate::connect;
use crate::screen::{FINE, Outcome, Result, Screen, WARNING};
use crate::transfer::layout::{Metadata, Place};
use crate::transfer::reading::{Order, Reading};
use crate::transfer::tally::{Size, Tally};
use crate::transfer::{self, DEFAULT_JOBS, Selection};
use crate::words::{Foreign, Span};

/// Databases of a member's own.
const NOT_DUMPED: [&str; 2] = ["local", "config"];

/// `quorate dump`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("target").required(true).args(["directory", "archive"])), after_help = "\
Examples:
  quorate dump 'mongodb://localhost:27017/?replicaSet=rs0' ./dump
  quorate dump --oplog --gzip 'mongodb://localhost:27017/?replicaSet=rs0' ./dump
  quorate dump --only shop.orders --archive - 'mongodb://localhost' |
    ssh other quorate restore --archive - 'mongodb://localhost'

The files are those of mongodump, and mongorestore reads them. Users, and the databases local and
config, are left out. Without --oplog, each collection is as it was while it was read.
A dump into a directory that was killed may be run again: it keeps the collections that were whole.")]
pub(crate) struct DumpArguments {
    /// The connection string of the deployment.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// The directory to make. It must not exist, or be empty.
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Write one file in place of a directory; - is stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) archive: Option<PathBuf>,
    /// Compress what is written.
    #[arg(long)]
    pub(crate) gzip: bool,
    /// Add the changes that happen during the dump, so that restoring gives one moment. Of replica
    /// sets only, and of all databases.
    #[arg(long, conflicts_with = "only")]
    pub(crate) oplog: bool,
    /// Only this database or collection. May be given several times.
    #[arg(long, value_name = "DB[.COLLECTION]")]
    pub(crate) only: Vec<String>,
    /// How many collections to read at once, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_JOBS, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) jobs: u8,
}

pub(crate) fn run(arguments: &DumpArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let is_stdout = arguments.archive.as_deref().is_some_and(transfer::is_standard);
    refuse_if!(is_stdout && screen.is_json() => misuse,
        "--archive - takes stdout for the archive, and --json for lines; give the archive a file");
    let selection = Selection::parse(&arguments.only)?;
    let change = |options: &mut quorate_client::ClientOptions| {
        if arguments.oplog {
            connect::read_committed(options);
        }
    };
    let work = async |client: &Client| dump(arguments, &selection, client, screen).await;
    transfer::runtime()?.block_on(connect::with_client(&uri, change, work))
}

async fn dump(
    arguments: &DumpArguments,
    selection: &Selection,
    client: &Client,
    screen: &mut Screen,
) -> Result<Outcome> {
    let began = Instant::now();
    let failed = |error: Error| connect::failed(&error, &arguments.uri);
    let mut left = target::left(arguments)?;
    let start = if arguments.oplog { Some(history::start(client, &mut left).await?) } else { None };
    let found = find_collections(client, selection).await.map_err(failed)?;
    for name in &found.left_out {
        screen.talk(format_args!(
            "{WARNING}warning:{WARNING:#} {} is left out: {}",
            Foreign(&name.0),
            name.1
        ));
    }
    refuse_if!(found.collections.is_empty() && !selection.is_everything() => problem,
        "there is nothing named {}; quorate run '{}' '{{listDatabases: 1}}' shows what there is",
        Foreign(arguments.only.join(" or ")), connect::parse(&arguments.uri)?);
    let tally = Arc::new(Tally::default());
    tally.expect(found.bytes);
    let target = Target::open(arguments, &found.collections, left.as_ref(), start)?;
    let work = write_all(arguments, client, &target, found.collections, left, &tally);
    let Written { collections, kept, documents, bytes } =
        tally.shown(screen.is_json() || target.is_stdout(), work).await?;
    let changes = match start {
        Some(start) => Some(history::write(client, &target, start, &arguments.uri).await?),
        None => None,
    };
    let place = target.finish()?;
    let took = began.elapsed();
    screen.event(
        "dumped",
        json!({
            "place": place, "collections": collections, "documents": documents, "bytes": bytes,
            "changes": changes, "kept": kept, "elapsed_ms": took.as_secs_f64() * 1e3,
        }),
    )?;
    let kept = match kept {
        0 => String::new(),
        kept => format!(" ({kept} were whole already)"),
    };
    let changes = changes.map(|changes| format!(", {}", Counted(changes, "change")));
    screen.talk_unless_json(format_args!(
        "{FINE}dumped{FINE:#} {}{kept}, {}, {}{} to {place} in {}",
        Counted(collections, "collection"),
        Counted(documents, "document"),
        Size(bytes as u64),
        changes.unwrap_or_default(),
        Span(took)
    ));
    Ok(Outcome::Fine)
}

/// A collection or a view to write.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) place: Place,
    pub(crate) metadata: Metadata,
}

impl Source {
    fn has_id_index(&self) -> bool {
        self.metadata.indexes.iter().any(|index| {
            index.get_document("key").is_ok_and(|key| key.len() == 1 && key.contains_key("_id"))
        })
    }
}

/// The collections of a deployment.
#[derive(Default)]
struct Found {
    collections: Vec<Source>,
    /// Collections that are left out although they were asked for, and why.
    left_out: Vec<(String, &'static str)>,
    /// How many bytes the server says the databases have.
    bytes: u64,
}

async fn find_collections(client: &Client, selection: &Selection) -> Result<Found, Error> {
    let mut found = Found::default();
    for database in client.list_databases().await? {
        let Ok(name) = database.get_str("name") else { continue };
        if NOT_DUMPED.contains(&name) || !selection.has_database(name) {
            continue;
        }
        let mut cursor = client.database(name).list_collections().await?;
        while let Some(listed) = cursor.next().await? {
            let Ok(listed) = Document::try_from(listed) else { continue };
            let Ok(collection) = listed.get_str("name") else { continue };
            if !selection.has(name, collection) {
                continue;
            }
            match source(client, name, collection, &listed).await? {
                Kind::Wanted(source) => found.collections.push(*source),
                Kind::LeftOut(why) => found.left_out.push((format!("{name}.{collection}"), why)),
                Kind::OfTheServer => {}
            }
        }
        if selection.is_everything() {
            found.bytes += match database.get("sizeOnDisk") {
                Ok(Some(bson::RawBsonRef::Int64(size))) => size.unsigned_abs(),
                Ok(Some(bson::RawBsonRef::Double(size))) => size as u64,
                _ => 0,
            };
        }
    }
    found.collections.sort_by(|one, other| one.place.cmp(&other.place));
    Ok(found)
}

enum Kind {
    Wanted(Box<Source>),
    LeftOut(&'static str),
    OfTheServer,
}

async fn source(
    client: &Client,
    database: &str,
    collection: &str,
    listed: &Document,
) -> Result<Kind, Error> {
    let kind = listed.get_str("type").unwrap_or("collection");
    if kind == "timeseries" || collection.starts_with("system.buckets.") {
        return Ok(Kind::LeftOut("it is a time series; use mongodump for those"));
    }
    if collection.starts_with("system.") && collection != "system.js" {
        return Ok(Kind::OfTheServer);
    }
    let mut metadata = Metadata {
        options: listed.get_document("options").cloned().unwrap_or_default(),
        collection: Some(collection.to_owned()),
        kind: Some(kind.to_owned()),
        ..Metadata::default()
    };
    if kind != "view" {
        let uuid = listed.get_document("info").ok().and_then(|info| match info.get("uuid") {
            Some(Bson::Binary(uuid)) => Some(&uuid.bytes),
            _ => None,
        });
        metadata.uuid = uuid.map(hex::encode);
        let mut indexes = client.collection(database, collection).list_indexes().await?;
        while let Some(index) = indexes.next().await? {
            if let Ok(index) = Document::try_from(index) {
                metadata.indexes.push(index);
            }
        }
    }
    Ok(Kind::Wanted(Box::new(Source { place: Place::new(database, collection), metadata })))
}

/// Totals of the dump, and how many of the collections an earlier run had finished.
#[derive(Default)]
struct Written {
    collections: usize,
    kept: usize,
    documents: usize,
    bytes: usize,
}

/// Writes all collections, several at once, except those that are whole already.
async fn write_all(
    arguments: &DumpArguments,
    client: &Client,
    target: &Target,
    sources: Vec<Source>,
    left: Option<Left>,
    tally: &Arc<Tally>,
) -> Result<Written> {
    let mut written = Written::default();
    let mut waiting = sources.into_iter();
    let mut running = JoinSet::new();
    loop {
        while running.len() < usize::from(arguments.jobs) {
            let Some(source) = waiting.next() else { break };
            written.collections += 1;
            if source.metadata.is_view() {
                target.view(&source)?;
                continue;
            }
            if let Some(whole) = left.as_ref().and_then(|left| target.whole(left, &source)) {
                written.kept += 1;
                written.documents += whole.documents;
                written.bytes += whole.bytes;
                tally.counted(whole.documents);
                tally.passed(whole.bytes);
                continue;
            }
            let sink = target.sink(&source)?;
            let (client, tally) = (client.clone(), Arc::clone(tally));
            let uri = arguments.uri.clone();
            running.spawn(async move {
                let counts = write(&client, &source, sink, &tally, &uri).await;
                counts.map(|counts| (source, counts))
            });
        }
        match running.join_next().await {
            None => return Ok(written),
            Some(Ok(Ok((source, counts)))) => {
                target.finished(&source, counts)?;
                written.documents += counts.0;
                written.bytes += counts.1;
            }
            Some(Ok(Err(failure))) => return Err(failure),
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Reads a collection to its end. Returns how many documents and bytes.
async fn write(
    client: &Client,
    source: &Source,
    mut sink: Sink,
    tally: &Tally,
    uri: &str,
) -> Result<(usize, usize)> {
    let Place { database, collection } = &source.place;
    let (mut documents, mut bytes) = (0, 0);
    // Read a capped collection in its stored order, which a restore must keep.
    let by_id =
        source.has_id_index() && !source.metadata.options.get_bool("capped").unwrap_or(false);
    let order = if by_id { Order::Id } else { Order::Stored };
    let mut reading = Reading::new(client.collection(database, collection), order);
    while let Some(document) = reading.next().await.map_err(|error| connect::failed(&error, uri))? {
        sink.write(document.as_bytes()).map_err(target::unwritable)?;
        documents += 1;
        bytes += document.as_bytes().len();
        tally.counted(1);
        tally.passed(document.as_bytes().len());
    }
    sink.finish().map_err(target::unwritable)?;
    Ok((documents, bytes))
}
