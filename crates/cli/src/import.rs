//! `quorate import URI DB.COLLECTION [FILE]`: documents from JSON lines or CSV into a collection.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document};
use clap::Args;
use quorate_protocol::Counted;
use serde_json::{Value, json};

use crate::connect;
use crate::export::{Format, collection_name};
use crate::restore::Filling;
use crate::screen::{FINE, Failure, Outcome, PROBLEM, Result, Screen};
use crate::transfer;
use crate::transfer::csv::{self, Records};
use crate::transfer::tally::{Counting, Tally};
use crate::words::{Foreign, Span};

/// The mark that editors of some systems write before UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// `quorate import`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate import 'mongodb://localhost:27017' shop.orders orders.jsonl
  quorate import 'mongodb://localhost:27017' shop.customers customers.csv
  curl -s https://example.com/orders.json | quorate import 'mongodb://localhost:27017' shop.orders

JSON may be one document a line, documents one after the other, or arrays of them, with the types of
extended JSON. May be run again where documents have an _id: those that are there already and equal
are passed over, others of the same _id are left alone, and then it ends in code 1.")]
pub(crate) struct ImportArguments {
    /// The connection string of the deployment.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// The collection.
    #[arg(value_name = "DB.COLLECTION")]
    pub(crate) collection: String,
    /// The file to read; stdin unless given, or if it is -.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// How documents are written; as the name of the file says unless given, else jsonl.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// The names of the columns of csv, with commas; the first line has them unless given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// Take every value of csv as a text. Otherwise numbers without quotes become numbers.
    #[arg(long)]
    pub(crate) text: bool,
    /// Drop the collection first.
    #[arg(long)]
    pub(crate) drop: bool,
}

pub(crate) fn run(arguments: &ImportArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let place = collection_name(&arguments.collection)?;
    let file = transfer::file(arguments.file.as_ref());
    let format = arguments.format.unwrap_or(Format::of(file));
    let tally = Arc::new(Tally::default());
    let source = open(file, &tally)?;
    let began = Instant::now();
    let filled = transfer::runtime()?.block_on(async {
        let (client, _) = connect::client(&uri, transfer::wait_for_majority).await?;
        if arguments.drop {
            let collection = client.collection(&place.database, &place.collection);
            let dropped = collection.drop_collection().await;
            dropped.map_err(|error| connect::failed(&error, &arguments.uri))?;
        }
        let mut filling = Filling::new(&client, place.clone(), &tally, &arguments.uri);
        let work = async {
            let read = match format {
                Format::Jsonl => read_json(source, &mut filling).await,
                Format::Csv => read_csv(arguments, source, &mut filling).await,
            };
            // Documents before a syntax error are imported.
            let filled = filling.finish().await?;
            read.map(|()| filled)
        };
        let filled = tally.shown(screen.is_json(), work).await;
        client.close().await;
        filled
    })?;
    let took = began.elapsed();
    screen.event(
        "imported",
        json!({
            "documents": filled.inserted, "present": filled.present,
            "conflicts": filled.conflicts, "elapsed_ms": took.as_secs_f64() * 1e3,
        }),
    )?;
    let present = match filled.present {
        0 => String::new(),
        present => format!(", {present} were there already"),
    };
    screen.talk_unless_json(format_args!(
        "{FINE}imported{FINE:#} {}{present} into {} in {}",
        Counted(filled.inserted, "document"),
        Foreign(&place),
        Span(took)
    ));
    let Some(first) = filled.first_conflict else { return Ok(Outcome::Fine) };
    screen.talk_unless_json(format_args!(
        "{PROBLEM}problem:{PROBLEM:#} {} differ{} from what is there (the first has _id {}) and {} left \
         alone; import into another collection and compare, or replace all with --drop",
        Counted(filled.conflicts, "document"),
        if filled.conflicts == 1 { "s" } else { "" },
        Foreign(first),
        if filled.conflicts == 1 { "was" } else { "were" }
    ));
    Ok(Outcome::ProblemFound)
}

/// Opens what is read, before anything is changed.
fn open(file: Option<&Path>, tally: &Arc<Tally>) -> Result<Box<dyn BufRead>> {
    let Some(path) = file else { return Ok(Box::new(BufReader::new(io::stdin()))) };
    let shown = path.display();
    let unopened = |error: io::Error| problem!("{shown} cannot be opened: {error}; give a file");
    let file = File::open(path).map_err(unopened)?;
    let metadata = file.metadata().map_err(unopened)?;
    refuse_if!(metadata.is_dir() => problem, "{shown} is a directory; give a file");
    tally.expect(metadata.len());
    let counted = Counting { inner: file, tally: Arc::clone(tally) };
    Ok(Box::new(BufReader::new(counted)))
}

/// The failure for an error in the file. Documents before the error stay imported.
fn wrong(what: String) -> Failure {
    problem!("{what}; correct the file: what comes before is imported")
}

/// Reads documents: a line at a time as long as each holds one value, which is the usual file and the fast way.
async fn read_json(mut source: Box<dyn BufRead>, filling: &mut Filling) -> Result<()> {
    let (mut line, mut lines) = (Vec::new(), 0_usize);
    loop {
        line.clear();
        let read = source.read_until(b'\n', &mut line);
        if read.map_err(|error| wrong(format!("the file cannot be read: {error}")))? == 0 {
            return Ok(());
        }
        if lines == 0 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if !line.trim_ascii().is_empty() {
            let text = std::str::from_utf8(&line).ok();
            let Some(value) = text.and_then(|text| text.parse().ok()) else { break };
            add_json(filling, value).await?;
        }
        lines += 1;
    }
    // A value may go on in the next line, or others follow it in its own.
    let rest = Cursor::new(line).chain(source);
    for value in serde_json::Deserializer::from_reader(rest).into_iter::<Value>() {
        let value = value.map_err(|error| wrong(no_json(&error, lines)))?;
        add_json(filling, value).await?;
    }
    Ok(())
}

/// What is wrong with text that begins after so many lines of the file.
fn no_json(error: &serde_json::Error, lines: usize) -> String {
    let (line, column) = (error.line(), error.column());
    let told = error.to_string();
    let what = told.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&told);
    format!("line {}, column {column}: the file is no JSON: {what}", lines + line)
}

/// Adds a document, or each of an array of them.
async fn add_json(filling: &mut Filling, value: Value) -> Result<()> {
    let values = match value {
        Value::Array(values) => values,
        other => vec![other],
    };
    for value in values {
        // A copy for the message of a failure costs far less than its text.
        let document = match Bson::try_from(value.clone()) {
            Ok(Bson::Document(document)) => document,
            Ok(_) => return Err(wrong(format!("{} is no document", Foreign(&value)))),
            Err(error) => {
                return Err(wrong(format!("{} is no document: {error}", Foreign(&value))));
            }
        };
        add(filling, &document).await?;
    }
    Ok(())
}

async fn read_csv(
    arguments: &ImportArguments,
    source: Box<dyn BufRead>,
    filling: &mut Filling,
) -> Result<()> {
    let wrong = |line: usize, what: String| wrong(format!("line {line}: {what}"));
    let mut records = Records::new(source);
    let mut names = arguments.fields.clone();
    while let Some(record) =
        records.next().map_err(|error| wrong(records.line, error.to_string()))?
    {
        if names.is_empty() {
            // A mark of byte order is no part of the first name.
            names = record.into_iter().map(|field| field.text).collect();
            names[0] = names[0].trim_start_matches('\u{feff}').to_owned();
            if let Some(empty) = names.iter().position(String::is_empty) {
                return Err(wrong(records.line, format!("column {} has no name", empty + 1)));
            }
            continue;
        }
        if record.len() != names.len() {
            let what = format!("{} values for {} columns", record.len(), names.len());
            return Err(wrong(records.line, what));
        }
        let mut document = Document::new();
        for (name, field) in names.iter().zip(record) {
            // An empty value is a missing field; an empty string has quotes.
            if field.text.is_empty() && !field.quoted {
                continue;
            }
            let value = match field.quoted || arguments.text {
                true => Bson::String(field.text),
                false => csv::guess(&field.text),
            };
            if !csv::put(&mut document, name, value) {
                return Err(wrong(
                    records.line,
                    format!("the columns {name} are in each other's way"),
                ));
            }
        }
        add(filling, &document).await?;
    }
    Ok(())
}

async fn add(filling: &mut Filling, document: &Document) -> Result<()> {
    let raw = RawDocumentBuf::try_from(document)
        .map_err(|error| problem!("a document cannot be written: {error}; correct the file"))?;
    filling.add(raw).await
}
