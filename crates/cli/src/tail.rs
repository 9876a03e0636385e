//! `quorate tail URI [db[.collection]]`: a feed of changes.
//!
//! Prints each change, then stores where the feed is (`--resume-file`). A feed that is killed in
//! between prints the last change again, and never leaves one out.

mod place;
mod show;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bson::raw::RawDocumentBuf;
use quorate_client::{ChangeStream, Client, Error, Watch};

use self::place::{Place, Since};
use crate::arguments::TailArguments;
use crate::connect;
use crate::screen::{Failure, Outcome, Result, Screen};
use crate::signals;
use crate::words::Foreign;
use quorate_protocol::ErrorCode;

/// How long a server waits for a change before it tells how far it has looked, so that the place of
/// a quiet feed moves on.
const MAX_AWAIT: Duration = Duration::from_secs(1);

/// How long a feed goes on trying while the primary of the set changes.
const OPENING_PATIENCE: Duration = Duration::from_secs(60);

/// Between two tries.
const OPENING_PAUSE: Duration = Duration::from_millis(500);

/// `InvalidResumeToken` and `ChangeStreamFatalError`: the place is not one of this deployment.
const FOREIGN_PLACE: [ErrorCode; 2] =
    [ErrorCode::INVALID_RESUME_TOKEN, ErrorCode::CHANGE_STREAM_FATAL];

/// Follows the changes until the feed ends or the process is asked to.
pub(crate) fn run(arguments: &TailArguments, screen: &mut Screen) -> Result<Outcome> {
    let uri = connect::parse(&arguments.uri)?;
    let watched = Watched::parse(arguments.namespace.as_deref())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = arguments.since.as_deref().map(|text| Since::parse(text, now)).transpose()?;
    let mut place = Place::open(arguments.resume_file.as_deref())?;
    let work = async |client: &Client| {
        let asked = signals::stop()?;
        tokio::select! {
            outcome = follow(arguments, client, &watched, since, &mut place, screen) => outcome,
            () = asked => Ok(Outcome::Fine),
            () = signals::reader_gone() => Ok(Outcome::Fine),
        }
    };
    connect::runtime()?.block_on(connect::with_client(&uri, |_| (), work))
}

/// The watched deployment, database or collection.
enum Watched {
    Deployment,
    Database(String),
    Collection(String, String),
}

impl Watched {
    fn parse(text: Option<&str>) -> Result<Self> {
        match text.map(|text| text.split_once('.').unwrap_or((text, ""))) {
            None => Ok(Self::Deployment),
            Some((database, ""))
                if !database.is_empty() && text.is_some_and(|t| !t.ends_with('.')) =>
            {
                Ok(Self::Database(database.to_owned()))
            }
            Some((database, collection)) if !database.is_empty() && !collection.is_empty() => {
                Ok(Self::Collection(database.to_owned(), collection.to_owned()))
            }
            _ => Err(misuse!(
                "{:?} names no database and no collection; write shop or shop.orders",
                text.unwrap_or_default()
            )),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Deployment => "the deployment".to_owned(),
            Self::Database(name) => format!("the database {}", Foreign(name)),
            Self::Collection(database, name) => Foreign(format!("{database}.{name}")).to_string(),
        }
    }

    async fn open(
        &self,
        client: &Client,
        set: impl FnOnce(Watch<'_>) -> Watch<'_>,
    ) -> Result<ChangeStream, Error> {
        const EVERYTHING: [RawDocumentBuf; 0] = [];
        match self {
            Self::Deployment => set(client.watch(EVERYTHING)).await,
            Self::Database(name) => set(client.database(name).watch(EVERYTHING)).await,
            Self::Collection(database, name) => {
                set(client.collection(database, name).watch(EVERYTHING)).await
            }
        }
    }
}

async fn follow(
    arguments: &TailArguments,
    client: &Client,
    watched: &Watched,
    since: Option<Since>,
    place: &mut Place,
    screen: &mut Screen,
) -> Result<Outcome> {
    let stored = place.token().cloned();
    if stored.is_some() && since.is_some() {
        screen.talk("the resume file says where to go on; --since is left out");
    }
    let explained = |error: Error| explain(&error, arguments);
    let mut stream =
        open_patiently(client, watched, stored.as_ref(), since).await.map_err(explained)?;
    let from = match (&stored, since) {
        (Some(_), _) => "where the resume file says",
        (None, Some(_)) => "the time given",
        (None, None) => "now",
    };
    let whole = watched.name();
    tell!(screen, "tail", {"watching": whole, "from": from},
        "following {whole} from {from}; Ctrl-C ends it")?;
    let mut reached = stream.resume_token().or(stored);
    loop {
        let change = match stream.next_if_any().await {
            Ok(change) => change,
            // The client resumed once already; the primary may change more than once.
            Err(error) if error.is_retryable_read() => {
                let opened = open_patiently(client, watched, reached.as_ref(), since).await;
                stream = opened.map_err(explained)?;
                continue;
            }
            Err(error) => return Err(explained(error)),
        };
        if let Some(change) = &change {
            show::change(screen, change)?;
        }
        if let Some(token) = stream.resume_token() {
            place.store(&token)?;
            reached = Some(token);
        }
        if change.is_none() && stream.is_over() {
            screen.talk_unless_json("the feed is over: what it followed is gone");
            return Ok(Outcome::Fine);
        }
    }
}

/// Opens the stream at this place, as soon as a primary of the set lets it.
async fn open_patiently(
    client: &Client,
    watched: &Watched,
    after: Option<&RawDocumentBuf>,
    since: Option<Since>,
) -> Result<ChangeStream, Error> {
    let begun = Instant::now();
    loop {
        let opened = watched.open(client, |watch| {
            let watch = watch.max_await_time(MAX_AWAIT);
            match (after, since) {
                (Some(token), _) => watch.start_after(token.clone()),
                (None, Some(since)) => watch.start_at_operation_time(since.time()),
                (None, None) => watch,
            }
        });
        match opened.await {
            Err(error) if error.is_retryable_read() && begun.elapsed() < OPENING_PATIENCE => {
                tokio::time::sleep(OPENING_PAUSE).await;
            }
            opened => return opened,
        }
    }
}

/// Why the feed stopped, and what to do.
fn explain(error: &Error, arguments: &TailArguments) -> Failure {
    let told = connect::failed(error, &arguments.uri);
    let file = arguments.resume_file.as_ref().map(|path| path.display());
    match (error.code().map(ErrorCode), file) {
        (Some(ErrorCode::CHANGE_STREAM_HISTORY_LOST), Some(file)) => problem!(
            "{told}; changes since the place in {file} are lost: remove the file to begin now, and \
             give the members a longer oplog"
        ),
        (Some(ErrorCode::CHANGE_STREAM_HISTORY_LOST), None) => problem!(
            "{told}; the deployment no longer has changes of that time: give a later --since"
        ),
        (Some(code), Some(file)) if FOREIGN_PLACE.contains(&code) => {
            problem!("{told}; the place in {file} is not one of this deployment: give another file")
        }
        _ => told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_database_or_a_collection_in_one() {
        assert!(matches!(Watched::parse(None), Ok(Watched::Deployment)));
        assert!(
            matches!(Watched::parse(Some("shop")), Ok(Watched::Database(name)) if name == "shop")
        );
        assert!(matches!(
            Watched::parse(Some("shop.orders.eu")),
            Ok(Watched::Collection(database, name)) if database == "shop" && name == "orders.eu"
        ));
        for wrong in ["", ".orders", "shop."] {
            assert!(matches!(Watched::parse(Some(wrong)), Err(Failure::Misuse(_))), "{wrong}");
        }
    }
}
