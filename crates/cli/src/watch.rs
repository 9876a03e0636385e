//! `quorate watch URI`: the live topology of any deployment, on a screen or line by line.
//!
//! One client watches in either mode, so that a recording is the same and DNS is asked again for
//! `mongodb+srv://` as in any client. On a terminal the `dashboard` shows the `view`; elsewhere the
//! `teller` puts every change into a line with its reason.

mod fleet;
mod notes;
mod ours;
mod recorder;
mod teller;

use std::io;
use std::pin::pin;
use std::sync::Arc;

use quorate_client::{Client, ClientOptions};
use quorate_connection_string::ConnectionString;
use tokio::sync::mpsc;

use crate::arguments::WatchArguments;
use crate::clock;
use crate::connect;
use crate::dashboard;
use crate::exporter::{self, Access, Exporter, TlsFiles};
use crate::screen::{Failure, Outcome, Result, Screen};
use crate::signals;
use crate::view::actions::Actions;
use crate::view::collector::Live;
use crate::web::{self, Otherwise, Page};
use notes::{Notes, Seen};
use ours::Ours;
use recorder::Recorder;
use teller::Teller;

/// Watches until told to stop.
pub(crate) fn run(arguments: &WatchArguments, screen: &mut Screen) -> Result<Outcome> {
    if let Some(file) = &arguments.fleet {
        return connect::runtime()?.block_on(fleet::run(file, screen));
    }
    let uri = connect::parse(arguments.uri.as_deref().unwrap_or_default())?;
    let recorder = match &arguments.record {
        None => None,
        Some(path) => Some(Recorder::create(path).map_err(|error| {
            let path = path.display();
            misuse!("cannot record to {path}: {error}; choose another file")
        })?),
    };
    let on_screen = !screen.is_json() && dashboard::is_possible();
    connect::runtime()?.block_on(async {
        match on_screen {
            true => watch_on_screen(arguments, &uri, recorder, screen).await,
            false => watch_in_lines(arguments, &uri, recorder, screen).await,
        }
    })
}

async fn watch_on_screen(
    arguments: &WatchArguments,
    uri: &ConnectionString,
    recorder: Option<Recorder>,
    screen: &mut Screen,
) -> Result<Outcome> {
    let stop = signals::stop()?;
    let notes = Notes::new(recorder);
    let (client, options) = client(uri, &notes).await?;
    let live = Live::start(client.clone(), &options, uri.to_string())?;
    let ours = Ours::find(&options.discovery.seeds);
    let actions = ours.clone().map(|ours| ours as Arc<dyn Actions>);
    let telling = async {
        match &ours {
            Some(ours) => ours.keep_telling(&live).await,
            None => std::future::pending().await,
        }
    };
    let page = page(arguments, &live, &client, screen).await?;
    let exporter = exporter(arguments, &live, &client, screen).await?;
    tokio::select! {
        () = stop => {}
        () = telling => {}
        error = notes.failed() => return Err(not_recorded(&error)),
        left = dashboard::show(&live, actions) => left.map_err(|error| {
            let advice = "add --json, or pipe the output, for lines";
            problem!("the terminal cannot be used: {error}; {advice}")
        })?,
    }
    drop((live, page, exporter));
    client.close().await;
    Ok(Outcome::Fine)
}

async fn watch_in_lines(
    arguments: &WatchArguments,
    uri: &ConnectionString,
    recorder: Option<Recorder>,
    screen: &mut Screen,
) -> Result<Outcome> {
    let mut stop = pin!(signals::stop()?);
    let mut reader_gone = pin!(signals::reader_gone());
    let (notes, mut events) = Notes::with_events(recorder);
    let (client, options) = client(uri, &notes).await?;
    let shown = match arguments.web.is_some() || arguments.metrics.is_some() {
        false => None,
        true => {
            let live = Live::start(client.clone(), &options, uri.to_string())?;
            let page = page(arguments, &live, &client, screen).await?;
            Some((page, exporter(arguments, &live, &client, screen).await?))
        }
    };
    screen.talk_unless_json(format_args!("watching {uri}; Ctrl-C stops"));
    let teller = Teller::new(clock::now());
    let mut login = pin!(login_refused(&client, uri));
    let mut tried = false;
    loop {
        let (at, event) = tokio::select! {
            () = &mut stop => break,
            () = &mut reader_gone => break,
            refused = &mut login, if !tried => {
                tried = true;
                if let Some(why) = refused {
                    teller.tell_login(clock::now(), &why, screen)?;
                }
                continue;
            }
            error = notes.failed() => return Err(not_recorded(&error)),
            seen = next(&mut events) => seen,
        };
        teller.tell(at, &event, screen)?;
    }
    drop(shown);
    // What closing does is recorded, but not told.
    client.close().await;
    Ok(Outcome::Fine)
}

/// The page, if there is to be one. It only shows: the deployment is not ours to break.
async fn page(
    arguments: &WatchArguments,
    live: &Live,
    client: &Client,
    screen: &mut Screen,
) -> Result<Option<Page>> {
    let Some(address) = arguments.web else { return Ok(None) };
    let page = web::serve(address, Otherwise::Refuse, live.clone(), client.clone(), None).await?;
    page.tell(screen)?;
    Ok(Some(page))
}

/// Tries the login of the connection string once: watching needs none, so that a wrong one would go
/// unnoticed. Returns why it is refused.
async fn login_refused(client: &Client, uri: &ConnectionString) -> Option<String> {
    uri.credential()?;
    let ping = bson::rawdoc! { "ping": 1 };
    let outcome = client.run_command("admin", &ping).await;
    let error = outcome.err()?;
    let text = error.to_string();
    text.contains("authentication failed").then_some(text)
}

/// The figures for monitors, if they are wanted.
async fn exporter(
    arguments: &WatchArguments,
    live: &Live,
    client: &Client,
    screen: &mut Screen,
) -> Result<Option<Exporter>> {
    let Some(address) = arguments.metrics else { return Ok(None) };
    let token = arguments.metrics_token.as_deref().map(exporter::read_token).transpose()?;
    let files = arguments.metrics_cert.clone().zip(arguments.metrics_key.clone());
    let tls = files.map(|(certificate, key)| {
        let authority = arguments.metrics_ca.clone();
        TlsFiles { certificate, key, authority }
    });
    let access = Access { token, tls };
    let exporter = exporter::serve(address, access, live.clone(), client.clone()).await?;
    exporter.tell(screen)?;
    Ok(Some(exporter))
}

/// A client that only watches.
async fn client(uri: &ConnectionString, notes: &Arc<Notes>) -> Result<(Client, ClientOptions)> {
    let notes = Arc::clone(notes);
    connect::client(uri, |options| {
        // A watcher sends no operations, and so needs no connections.
        options.pool.min_pool_size = 0;
        options.tap = Some(notes);
    })
    .await
}

/// The notes live as long as the client, which outlives the loop.
async fn next(events: &mut mpsc::Receiver<Seen>) -> Seen {
    match events.recv().await {
        Some(seen) => seen,
        None => std::future::pending().await,
    }
}

fn not_recorded(error: &io::Error) -> Failure {
    problem!("the recording cannot be written: {error}; check the disk")
}
