//! `quorate shell URI`: commands, one after the other, on one connection string.
//!
//! A small companion of `quorate run`: history, completion and extended JSON. It runs commands, not
//! JavaScript, and says so where a person types JavaScript.

mod editor;
mod history;
mod input;
mod keyboard;

use std::io::{self, BufRead, IsTerminal};

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, rawdoc};
use clap::Args;
use quorate_client::{Client, Cursor, Error};
use serde_json::{Value, json};

use self::history::History;
use self::input::Wanted;
use self::keyboard::{Keyboard, Typed};
use crate::connect;
use crate::run::refuse_partial;
use crate::screen::{Failure, Outcome, PROBLEM, QUIET, Result, Screen};
use crate::transfer;
use crate::words::Foreign;

/// How many documents of a cursor are shown at once.
const SHOWN_AT_ONCE: usize = 20;

/// The most words that are offered.
const MAX_WORDS: usize = 10_000;

/// Commands whose replies are cursors.
const WITH_CURSOR: [&str; 4] = ["find", "aggregate", "listCollections", "listIndexes"];

/// Words of the shell itself.
const OWN_WORDS: [&str; 8] =
    ["use", "show", "databases", "collections", "help", "exit", "filter", "limit"];

const HELP: &str = "\
  {ping: 1}                          runs a command: JSON, but keys need no quotes
  {find: \"orders\", filter: {n: 5}}   shows documents, and it shows more of them
  use shop                           goes to another database
  show databases, show collections   lists them
  exit, or Ctrl-D                    ends
Tab completes commands and collections, up and down walk through the history.
Commands are listed by {listCommands: 1}.";

/// `quorate shell`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate shell 'mongodb://localhost:27017/?replicaSet=rs0'
  echo '{find: \"orders\"}' | quorate shell --database shop 'mongodb://localhost:27017'

Each line is a command such as {find: \"orders\"}, or one of help, use, show, it and exit. Lines with
a password are not kept in the history. For JavaScript, use mongosh with the same URI. Where lines
are piped in, it ends in code 1 if a command failed.")]
pub(crate) struct ShellArguments {
    /// The connection string of the deployment.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// The database to begin with; otherwise that of the connection string, otherwise test.
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,
}

/// Reads and runs until the end.
pub(crate) fn run(arguments: &ShellArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let runtime = transfer::runtime()?;
    let (client, options) = runtime.block_on(connect::client(&uri, |_| ()))?;
    let database = arguments.database.clone().or(options.default_database);
    let mut shell = Shell {
        client: client.clone(),
        uri: uri.to_string(),
        given: arguments.uri.clone(),
        database: database.unwrap_or_else(|| "test".to_owned()),
        cursor: None,
        words: Vec::new(),
        failures: 0,
    };
    let is_typed = io::stdin().is_terminal() && io::stdout().is_terminal();
    let ended = match is_typed {
        true => converse(&runtime, &mut shell, screen),
        false => read_lines(&runtime, &mut shell, screen),
    };
    shell.cursor = None;
    runtime.block_on(client.close());
    ended?;
    Ok(if is_typed || shell.failures == 0 { Outcome::Fine } else { Outcome::ProblemFound })
}

/// Lines from a pipe.
fn read_lines(
    runtime: &tokio::runtime::Runtime,
    shell: &mut Shell,
    screen: &mut Screen,
) -> Result<()> {
    let mut text = String::new();
    for line in io::stdin().lock().lines() {
        text.push_str(
            &line
                .map_err(|error| problem!("stdin cannot be read: {error}; write lines of UTF-8"))?,
        );
        text.push('\n');
        if runtime.block_on(shell.take(&mut text, screen))? {
            return Ok(());
        }
    }
    match text.trim().is_empty() {
        true => Ok(()),
        false => Err(Failure::Misuse("the last document does not end; close its }".to_owned())),
    }
}

/// Lines from a person.
fn converse(
    runtime: &tokio::runtime::Runtime,
    shell: &mut Shell,
    screen: &mut Screen,
) -> Result<()> {
    screen.talk(format_args!(
        "commands such as {{ping: 1}}; help tells more. For JavaScript: mongosh '{}'",
        shell.uri
    ));
    let mut history = History::open();
    let mut keyboard = Keyboard::default();
    runtime.block_on(shell.learn_words());
    let mut text = String::new();
    loop {
        let prompt = match text.is_empty() {
            true => format!("{}> ", Foreign(&shell.database)),
            false => "… ".to_owned(),
        };
        let typed = keyboard.line(&prompt, history.lines(), &shell.words).map_err(|error| {
            problem!("the terminal cannot be read: {error}; pipe lines in instead")
        })?;
        match typed {
            Typed::Line(line) => {
                history.add(&line);
                text.push_str(&line);
                text.push('\n');
            }
            Typed::Cancelled => {
                text.clear();
                continue;
            }
            Typed::Left => return Ok(()),
        }
        if runtime.block_on(shell.take(&mut text, screen))? {
            return Ok(());
        }
    }
}

/// Where the shell is.
struct Shell {
    client: Client,
    /// The connection string without its password.
    uri: String,
    /// The connection string as it was given.
    given: String,
    database: String,
    /// The results that are not shown yet.
    cursor: Option<Cursor>,
    words: Vec<String>,
    failures: usize,
}

impl Shell {
    /// Runs what was typed once it is whole, and forgets it. Returns whether the shell is left.
    async fn take(&mut self, text: &mut String, screen: &mut Screen) -> Result<bool> {
        match input::read(text) {
            Wanted::More => return Ok(false),
            Wanted::Leave => return Ok(true),
            wanted => self.carry_out(wanted, screen).await?,
        }
        text.clear();
        Ok(false)
    }

    /// Runs the typed line. Only a failure to write ends the shell.
    async fn carry_out(&mut self, wanted: Wanted, screen: &mut Screen) -> Result<()> {
        let done = match wanted {
            Wanted::Nothing | Wanted::More | Wanted::Leave => Ok(()),
            Wanted::Help => {
                screen.talk(HELP);
                Ok(())
            }
            Wanted::JavaScript => Err(misuse!(
                "this shell runs commands, not JavaScript: write {{find: \"orders\", filter: \
                 {{n: 5}}}}, or run mongosh '{}'",
                self.uri
            )),
            Wanted::Wrong(what) => {
                Err(misuse!("{what}; write a document such as {{ping: 1}}, or help"))
            }
            Wanted::Use(database) => {
                self.database = database;
                self.learn_words().await;
                Ok(())
            }
            Wanted::Databases => self.list(screen, true).await,
            Wanted::Collections => self.list(screen, false).await,
            Wanted::Further => self.show_more(screen).await,
            Wanted::Command(value) => self.command(value, screen).await,
        };
        match done {
            Ok(()) => Ok(screen.flush()?),
            Err(Failure::Output(error)) => Err(Failure::Output(error)),
            Err(failure) => {
                self.failures += 1;
                tell!(screen, "error", {"message": failure.to_string()},
                    "{PROBLEM}error:{PROBLEM:#} {failure}")
            }
        }
    }

    async fn command(&mut self, value: Value, screen: &mut Screen) -> Result<()> {
        let wrong = |what: String| misuse!("{what}; write {{ping: 1}}");
        let document = match Bson::try_from(value).map_err(|error| wrong(error.to_string()))? {
            Bson::Document(document) if !document.is_empty() => document,
            _ => return Err(wrong("a command is a document with a name".to_owned())),
        };
        let has_cursor =
            document.keys().next().is_some_and(|name| WITH_CURSOR.contains(&name.as_str()));
        let command =
            RawDocumentBuf::try_from(&document).map_err(|error| wrong(error.to_string()))?;
        let database = self.client.database(&self.database);
        if has_cursor && !document.contains_key("explain") {
            let cursor = database.run_cursor_command(command).await;
            self.cursor = Some(cursor.map_err(|error| self.failed(&error))?);
            return self.show_more(screen).await;
        }
        let reply = database.run_command(command).await.map_err(|error| self.failed(&error))?;
        let mut reply = shown(reply)?;
        screen.event("reply", json!({"reply": reply}))?;
        // The times of the deployment's clock are of no use to a person.
        if let Value::Object(fields) = &mut reply {
            fields.retain(|name, _| name != "$clusterTime" && name != "operationTime");
        }
        screen.line(format_args!("{reply:#}"))?;
        refuse_partial(&reply)
    }

    /// Shows the next results of the last command.
    async fn show_more(&mut self, screen: &mut Screen) -> Result<()> {
        let Some(cursor) = &mut self.cursor else {
            return Err(misuse!("there are no more results; run a find first"));
        };
        // A program wants everything.
        let limit = if screen.is_json() { usize::MAX } else { SHOWN_AT_ONCE };
        let mut count = 0;
        while count < limit {
            let next = cursor.next().await;
            let next = next.map_err(|error| connect::failed(&error, &self.given))?;
            let Some(document) = next else {
                self.cursor = None;
                return Ok(());
            };
            let document = shown(document)?;
            screen.event("document", json!({"document": document}))?;
            screen.line(document)?;
            count += 1;
        }
        screen.talk_unless_json(format_args!("{QUIET}it shows more{QUIET:#}"));
        Ok(())
    }

    async fn list(&self, screen: &mut Screen, databases: bool) -> Result<()> {
        let names = match databases {
            true => self.client.list_databases().names().await,
            false => self.client.database(&self.database).list_collection_names().names().await,
        };
        for name in names.map_err(|error| self.failed(&error))? {
            screen.event("name", json!({"name": name}))?;
            screen.line(Foreign(name))?;
        }
        Ok(())
    }

    /// The words that Tab completes. If the server lists no names, only the words of the shell remain.
    async fn learn_words(&mut self) {
        let mut words: Vec<String> = OWN_WORDS.map(str::to_owned).to_vec();
        let listed = self.client.database("admin").run_command(rawdoc! { "listCommands": 1 }).await;
        if let Ok(listed) = listed
            && let Ok(commands) = listed.get_document("commands")
        {
            words.extend(commands.into_iter().flatten().map(|(name, _)| name.as_str().to_owned()));
        }
        let names = self.client.database(&self.database).list_collection_names().names().await;
        words.extend(names.unwrap_or_default());
        words.extend(self.client.list_databases().names().await.unwrap_or_default());
        words.truncate(MAX_WORDS);
        self.words = words;
    }

    fn failed(&self, error: &Error) -> Failure {
        connect::failed(error, &self.given)
    }
}

fn shown(document: RawDocumentBuf) -> Result<Value> {
    let document = Document::try_from(document)
        .map_err(|error| problem!("the reply cannot be read: {error}; look at the server's log"))?;
    Ok(Bson::Document(document).into_relaxed_extjson())
}
