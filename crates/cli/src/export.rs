//! `quorate export URI DB.COLLECTION [FILE]`: one collection as JSON lines or CSV.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document};
use clap::{Args, ValueEnum};
use quorate_client::Client;
use quorate_protocol::{Counted, Visible};
use serde_json::json;

use crate::connect;
use crate::run::relaxed;
use crate::screen::{FINE, Failure, Outcome, Result, Screen};
use crate::transfer::layout::Place;
use crate::transfer::reading::{Order, Reading};
use crate::transfer::tally::Tally;
use crate::transfer::{self, csv};
use crate::whole_file;
use crate::words::{Foreign, Span};

/// How documents are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One document a line, as extended JSON.
    Jsonl,
    /// Comma-separated values, the names in the first line.
    Csv,
}

impl Format {
    /// The format by the name of a file.
    pub(crate) fn of(file: Option<&Path>) -> Self {
        match file.and_then(Path::extension) {
            Some(ending) if ending.eq_ignore_ascii_case("csv") => Self::Csv,
            _ => Self::Jsonl,
        }
    }
}

/// `quorate export`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate export 'mongodb://localhost:27017' shop.orders orders.jsonl
  quorate export 'mongodb://localhost:27017' shop.orders --query '{paid: false}' | jq .total
  quorate export 'mongodb://localhost:27017' shop.orders orders.csv --fields _id,customer.name,total

A file is complete or not there. quorate dump keeps indexes and options too.")]
pub(crate) struct ExportArguments {
    /// The connection string of the deployment.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// The collection.
    #[arg(value_name = "DB.COLLECTION")]
    pub(crate) collection: String,
    /// The file to make; stdout unless given, or if it is -.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// How documents are written; as the name of the file says unless given, else jsonl.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// The fields to write, with commas; those of embedded documents with dots. Needed for csv.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// Only documents that match, as in {paid: false}.
    #[arg(long, value_name = "FILTER")]
    pub(crate) query: Option<String>,
    /// In this order, as in {date: -1}.
    #[arg(long, value_name = "ORDER")]
    pub(crate) sort: Option<String>,
    /// At most so many.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Write the type of every number and date, so that import gives the same to the byte.
    #[arg(long)]
    pub(crate) canonical: bool,
}

pub(crate) fn run(arguments: &ExportArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let place = collection_name(&arguments.collection)?;
    let file = transfer::file(arguments.file.as_ref());
    let format = arguments.format.unwrap_or(Format::of(file));
    if let Some(directory) = file.filter(|file| file.is_dir()) {
        return Err(problem!("{} is a directory; give a file", directory.display()));
    }
    refuse_if!(format == Format::Csv && arguments.fields.is_empty() => misuse,
        "csv needs the names of its columns; give them with --fields _id,name,…");
    let filter = document(arguments.query.as_deref(), "--query")?.unwrap_or_default();
    let order = match document(arguments.sort.as_deref(), "--sort")? {
        Some(order) => Order::Sorted(order),
        None => Order::Id,
    };
    connect::runtime()?.block_on(async {
        let (client, _) = connect::client(&uri, |_| ()).await?;
        let order = match order {
            Order::Id => natural_order(&client, &place).await,
            order => order,
        };
        let collection = client.collection(&place.database, &place.collection);
        let reading = Reading::new(collection, order).only(filter, arguments.limit);
        let tally = Tally::default();
        let quiet = file.is_none();
        let written = tally.shown(quiet, write(arguments, format, reading, &tally)).await;
        client.close().await;
        let (documents, took) = written?;
        let to = file.map_or("stdout".to_owned(), |file| file.display().to_string());
        screen.talk(format_args!(
            "{FINE}exported{FINE:#} {} of {} to {to} in {}",
            Counted(documents, "document"),
            Foreign(&place),
            Span(took)
        ));
        Ok(Outcome::Fine)
    })
}

/// By `_id`, so that reading goes on through failovers; but views and capped collections as they are.
async fn natural_order(client: &Client, place: &Place) -> Order {
    let filter = bson::doc! { "name": &place.collection };
    let Ok(mut listed) = client.database(&place.database).list_collections().filter(filter).await
    else {
        return Order::Any;
    };
    let Ok(Some(listed)) = listed.next().await else { return Order::Any };
    let options = listed.get_document("options");
    let is_capped = options.is_ok_and(|options| options.get_bool("capped").unwrap_or(false));
    match listed.get_str("type") {
        Ok("collection") if is_capped => Order::Stored,
        Ok("collection") => Order::Id,
        _ => Order::Any,
    }
}

/// Reads `shop.orders`.
pub(crate) fn collection_name(text: &str) -> Result<Place> {
    match text.split_once('.') {
        Some((database, collection)) if !database.is_empty() && !collection.is_empty() => {
            Ok(Place::new(database, collection))
        }
        _ => Err(misuse!("{text:?} names no collection; write shop.orders")),
    }
}

/// A document as people type it.
fn document(text: Option<&str>, option: &str) -> Result<Option<RawDocumentBuf>> {
    let Some(text) = text else { return Ok(None) };
    let misuse =
        |what: String| misuse!("{option}: {what}; write a document such as '{{paid: false}}'");
    let value = relaxed::parse(text).map_err(|error| misuse(error.to_string()))?;
    match Bson::try_from(value) {
        Ok(Bson::Document(document)) => {
            RawDocumentBuf::try_from(document).map(Some).map_err(|error| misuse(error.to_string()))
        }
        Ok(_) => Err(misuse("it is no document".to_owned())),
        Err(error) => Err(misuse(error.to_string())),
    }
}

async fn write(
    arguments: &ExportArguments,
    format: Format,
    mut reading: Reading,
    tally: &Tally,
) -> Result<(usize, std::time::Duration)> {
    let began = Instant::now();
    let file = transfer::file(arguments.file.as_ref());
    let growing = file.map(|file| whole_file::beside(file, ".partial"));
    let mut out: BufWriter<Box<dyn Write>> = BufWriter::new(match &growing {
        Some(path) => Box::new(File::create(path).map_err(unwritable)?),
        None => Box::new(io::stdout()),
    });
    if format == Format::Csv {
        let names: Vec<String> =
            arguments.fields.iter().map(|name| csv::quote(name, false)).collect();
        writeln!(out, "{}", names.join(",")).map_err(unwritable)?;
    }
    let on_terminal = file.is_none() && io::stdout().is_terminal();
    let mut documents = 0;
    let failed = |error| connect::failed(&error, &arguments.uri);
    while let Some(raw) = reading.next().await.map_err(failed)? {
        let document = Document::try_from(raw.clone()).map_err(|error| {
            problem!("a document cannot be read: {error}; look at the server's log")
        })?;
        let line = match format {
            // Text of a table has no escapes: a file keeps it as it is, a terminal is not steered by it.
            Format::Csv if on_terminal => Visible(row(&document, &arguments.fields)).to_string(),
            Format::Csv => row(&document, &arguments.fields),
            Format::Jsonl => {
                let document = chosen(document, &arguments.fields);
                let json = match arguments.canonical {
                    true => Bson::Document(document).into_canonical_extjson(),
                    false => Bson::Document(document).into_relaxed_extjson(),
                };
                Visible(json).to_string()
            }
        };
        writeln!(out, "{line}").map_err(unwritable)?;
        documents += 1;
        tally.counted(1);
        tally.passed(raw.as_bytes().len());
    }
    out.flush().map_err(unwritable)?;
    drop(out);
    if let (Some(growing), Some(file)) = (growing, file) {
        whole_file::put_in_place(&growing, file).map_err(unwritable)?;
    }
    Ok((documents, began.elapsed()))
}

fn unwritable(error: io::Error) -> Failure {
    match error.kind() {
        // The reader has what it wanted.
        io::ErrorKind::BrokenPipe => Failure::Output(io::Error::from(io::ErrorKind::BrokenPipe)),
        _ => problem!(
            "the file cannot be written: {error}; make room, or give another, and export again"
        ),
    }
}

/// The document with these fields only; all if none are named.
fn chosen(document: Document, fields: &[String]) -> Document {
    if fields.is_empty() {
        return document;
    }
    let mut kept = Document::new();
    for field in fields {
        if let Some(value) = csv::get(&document, field) {
            csv::put(&mut kept, field, value.clone());
        }
    }
    kept
}

fn row(document: &Document, fields: &[String]) -> String {
    let cells = fields.iter().map(|field| match csv::get(document, field) {
        None | Some(Bson::Null) => String::new(),
        Some(Bson::String(text)) => csv::quote(text, true),
        Some(Bson::ObjectId(id)) => id.to_hex(),
        Some(Bson::DateTime(time)) => {
            time.try_to_rfc3339_string().unwrap_or_else(|_| time.timestamp_millis().to_string())
        }
        Some(Bson::Int32(number)) => number.to_string(),
        Some(Bson::Int64(number)) => number.to_string(),
        Some(Bson::Double(number)) => json!(number).to_string(),
        Some(Bson::Decimal128(number)) => number.to_string(),
        Some(Bson::Boolean(yes)) => yes.to_string(),
        Some(other) => {
            csv::quote(&Visible(other.clone().into_relaxed_extjson()).to_string(), false)
        }
    });
    cells.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn a_row_has_a_cell_for_each_field() {
        let document = doc! {
            "_id": 1, "name": "a, \"b\"", "at": { "city": "Bonn" }, "zip": "01234", "n": 1.5,
            "list": [1, 2], "big": 5_000_000_000_i64, "yes": true, "none": null, "code": "12",
        };
        let fields =
            ["_id", "name", "at.city", "zip", "n", "list", "big", "yes", "none", "x", "code"];
        let fields: Vec<String> = fields.map(str::to_owned).to_vec();
        assert_eq!(
            row(&document, &fields),
            "1,\"a, \"\"b\"\"\",Bonn,01234,1.5,\"[1,2]\",5000000000,true,,,\"12\""
        );
        assert_eq!(
            chosen(document, &["at.city".to_owned(), "x".to_owned()]),
            doc! { "at": { "city": "Bonn" } }
        );
    }

    #[test]
    fn the_name_of_a_file_tells_its_format() {
        assert_eq!(Format::of(Some(Path::new("a.CSV"))), Format::Csv);
        assert_eq!(Format::of(Some(Path::new("a.json"))), Format::Jsonl);
        assert_eq!(Format::of(None), Format::Jsonl);
        assert!(collection_name("shop").is_err() && collection_name(".a").is_err());
    }
}
