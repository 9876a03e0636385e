//! `quorate run URI COMMAND`: one command through server selection.

pub(crate) mod relaxed;

use std::time::Instant;

use bson::{Bson, Document, RawDocumentBuf};
use quorate_client::{Client, ClientOptions};
use quorate_connection_string::ConnectionString;
use quorate_protocol::{Counted, ReadPreference};
use serde_json::{Value, json};

use crate::arguments::RunArguments;
use crate::connect;
use crate::screen::{Outcome, Result, Screen};
use crate::words::{Foreign, Span};

/// The database of commands whose connection string names none: most commands about a deployment
/// want it.
const DEFAULT_DATABASE: &str = "admin";

/// Runs the command and prints the reply.
pub(crate) fn run(arguments: &RunArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let command = command(&arguments.command)?;
    let runtime = connect::runtime()?;
    let began = Instant::now();
    let reply = runtime.block_on(exchange(arguments, uri, &command))?;
    let took = began.elapsed();
    screen.event("reply", json!({"elapsed_ms": took.as_secs_f64() * 1e3, "reply": reply}))?;
    screen.line(format_args!("{reply:#}"))?;
    screen.talk_unless_json(format_args!("answered in {}", Span(took)));
    refuse_partial(&reply)?;
    Ok(Outcome::Fine)
}

/// Fails if the server answered ok and says in the reply that it did not do all of the writes.
pub(crate) fn refuse_partial(reply: &Value) -> Result<()> {
    let Some(errors) = reply.get("writeErrors").and_then(Value::as_array) else { return Ok(()) };
    let Some(first) = errors.first() else { return Ok(()) };
    let number = first.get("index").and_then(Value::as_u64).unwrap_or(0);
    let why = first.get("errmsg").and_then(Value::as_str).unwrap_or("no reason was given");
    let why = Foreign(why);
    Err(problem!(
        "the server refused {}; the first is number {number}, counted from 0: {why}; correct it and \
         send it again, and in an ordered command what stands after it",
        Counted(errors.len(), "write")
    ))
}

fn command(text: &str) -> Result<RawDocumentBuf> {
    let misuse =
        |what: String| misuse!("{what}; write a document such as '{{ping: 1}}', in single quotes");
    let value = relaxed::parse(text).map_err(|error| misuse(error.to_string()))?;
    let document = match Bson::try_from(value) {
        Ok(Bson::Document(document)) => document,
        Ok(_) => return Err(misuse("the command is not a document".to_owned())),
        Err(error) => return Err(misuse(format!("a value in the command is not right: {error}"))),
    };
    if document.is_empty() {
        return Err(misuse("the command is empty".to_owned()));
    }
    RawDocumentBuf::try_from(document).map_err(|error| misuse(error.to_string()))
}

async fn exchange(
    arguments: &RunArguments,
    uri: ConnectionString,
    command: &RawDocumentBuf,
) -> Result<Value> {
    let (uri, seeds) = connect::find_seeds(uri).await?;
    let mut options = ClientOptions::from_connection_string(&uri);
    options.discovery.seeds = seeds;
    let preference = match arguments.read_preference {
        Some(mode) => ReadPreference::new(mode),
        None => options.read_preference.clone(),
    };
    let named = arguments.database.clone().or_else(|| options.default_database.clone());
    let database = named.unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
    let client = Client::with_options(options)?;
    let reply = client.run_command_with(&database, command, &preference, None).await;
    client.close().await;
    let reply = reply.map_err(|error| connect::failed(&error, &arguments.uri))?;
    let document = Document::try_from(reply)
        .map_err(|error| problem!("the reply cannot be read: {error}; look at the server's log"))?;
    Ok(Bson::Document(document).into_relaxed_extjson())
}
