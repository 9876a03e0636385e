//! `quorate token TOKEN [URI]`: what a resume token says, and whether a deployment can still resume
//! from it.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Timestamp, doc};
use clap::Args;
use quorate_change_events::{ResumeToken, TokenKind};
use quorate_client::{Client, Error};
use serde_json::{Value, json};

use crate::connect;
use crate::screen::{FINE, Outcome, PROBLEM, Result, Screen};
use crate::words::Foreign;
use quorate_protocol::ErrorCode;

/// How long the server may look for the token's place before it answers.
const MAX_AWAIT: Duration = Duration::from_millis(100);

/// `InvalidResumeToken` and `ChangeStreamFatalError`.
const FOREIGN: [i32; 2] = [ErrorCode::INVALID_RESUME_TOKEN.0, ErrorCode::CHANGE_STREAM_FATAL.0];

/// `quorate token`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate token 8263515EAC000000022B0429296E1404
  quorate token '{\"_data\": \"8263515EAC000000022B0429296E1404\"}' \\
    'mongodb://localhost:27017/?replicaSet=rs0'

With a URI, a token that the deployment cannot resume from ends in code 1.")]
pub(crate) struct TokenArguments {
    /// The token: its digits, or the document as it was stored, {"_data": "82…"}.
    #[arg(value_name = "TOKEN")]
    pub(crate) token: String,
    /// A deployment to ask whether it can still resume from the token, and for how long.
    #[arg(value_name = "URI")]
    pub(crate) uri: Option<String>,
}

/// Tells what the token says.
pub(crate) fn run(arguments: &TokenArguments, screen: &mut Screen) -> Result<Outcome> {
    let token = read(&arguments.token)?;
    screen.event("token", told(&token))?;
    screen.line(Foreign(token.explain()))?;
    let Some(uri) = &arguments.uri else { return Ok(Outcome::Fine) };
    let parsed = connect::parse(uri)?;
    let work = async |client: &Client| {
        let verdict = ask(client, &token).await;
        let window = Window::read(client).await;
        Ok((verdict.map_err(|error| connect::failed(&error, uri))?, window))
    };
    let (verdict, window) =
        connect::runtime()?.block_on(connect::with_client(&parsed, |_| (), work))?;
    tell(screen, &token, verdict, window)
}

/// Reads the digits, or a document with them in `_data`.
fn read(text: &str) -> Result<ResumeToken> {
    let misuse = |what: String| misuse!("{what}; give the _id of a change as it was stored");
    let text = text.trim();
    let digits = match text.starts_with('{') {
        false => text.to_owned(),
        true => {
            let document: Value = serde_json::from_str(text)
                .map_err(|error| misuse(format!("the token is no JSON document: {error}")))?;
            let data = document.get("_data").and_then(Value::as_str);
            data.ok_or_else(|| misuse("the document has no _data".to_owned()))?.to_owned()
        }
    };
    ResumeToken::from_hex(&digits).map_err(|error| misuse(Foreign(error).to_string()))
}

fn told(token: &ResumeToken) -> Value {
    let explained = token.explain();
    let key = explained.document_key.map(|key| Bson::Document(key).into_relaxed_extjson());
    json!({
        "kind": match token.kind {
            TokenKind::HighWaterMark => "highWaterMark",
            TokenKind::Event => "event",
        },
        "seconds": token.cluster_time.time,
        "increment": token.cluster_time.increment,
        "version": token.version,
        "operation": explained.operation,
        "documentKey": key,
        "collection": token.uuid.map(|uuid| bson::Uuid::from_bytes(uuid).to_string()),
        "transactionIndex": token.transaction_index,
        "afterInvalidate": token.after_invalidate,
    })
}

/// Whether a deployment can resume from a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Resumable,
    /// The log no longer goes back that far.
    Lost,
    /// The token is not a place in this deployment's log.
    Foreign,
}

/// Opens a stream after the token, and looks once.
async fn ask(client: &Client, token: &ResumeToken) -> Result<Verdict, Error> {
    const EVERYTHING: [RawDocumentBuf; 0] = [];
    let watch = client.watch(EVERYTHING).max_await_time(MAX_AWAIT);
    let looked = match watch.start_after(token.to_document()).await {
        Ok(mut stream) => stream.next_if_any().await.map(drop),
        Err(error) => Err(error),
    };
    match looked {
        Ok(()) => Ok(Verdict::Resumable),
        Err(error) if error.code() == Some(ErrorCode::CHANGE_STREAM_HISTORY_LOST.0) => {
            Ok(Verdict::Lost)
        }
        Err(error) if error.code().is_some_and(|code| FOREIGN.contains(&code)) => {
            Ok(Verdict::Foreign)
        }
        Err(error) => Err(error),
    }
}

/// The first and the last entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    first: Timestamp,
    last: Timestamp,
}

impl Window {
    /// `None` if the log cannot be read, as by most users.
    async fn read(client: &Client) -> Option<Self> {
        let oplog = client.collection("local", "oplog.rs");
        let end = async |direction: i32| {
            let found = oplog.find_one(doc! {}).sort(doc! { "$natural": direction });
            found.await.ok().flatten()?.get_timestamp("ts").ok()
        };
        Some(Self { first: end(1).await?, last: end(-1).await? })
    }

    /// How long the place of a token stays, if the log goes on to be written and cut as it was.
    fn left(self, token: &ResumeToken) -> Duration {
        Duration::from_secs(u64::from(token.cluster_time.time.saturating_sub(self.first.time)))
    }
}

fn tell(
    screen: &mut Screen,
    token: &ResumeToken,
    verdict: Verdict,
    window: Option<Window>,
) -> Result<Outcome> {
    let left = window.map(|window| window.left(token)).filter(|_| verdict == Verdict::Resumable);
    screen.event(
        "resumable",
        json!({
            "resumable": verdict == Verdict::Resumable,
            "seconds_left": left.map(|left| left.as_secs()),
            "oplog_first_seconds": window.map(|window| window.first.time),
            "oplog_last_seconds": window.map(|window| window.last.time),
        }),
    )?;
    match verdict {
        Verdict::Resumable => {
            screen.line(format_args!("{FINE}this deployment can resume from it{FINE:#}"))?;
            match left {
                Some(left) => screen.line(format_args!(
                    "its place leaves the log in about {} if writes go on as they did",
                    Long(left)
                ))?,
                None => screen.line("how long it can, the log would tell, which cannot be read")?,
            }
            Ok(Outcome::Fine)
        }
        Verdict::Lost => {
            let behind = window
                .map(|window| window.first.time - token.cluster_time.time.min(window.first.time));
            screen.line(format_args!(
                "{PROBLEM}this deployment cannot resume from it{PROBLEM:#}: its log begins later{}",
                behind
                    .map(|s| format!(" by {}", Long(Duration::from_secs(s.into()))))
                    .unwrap_or_default()
            ))?;
            screen.line("begin a new stream, read again what it follows, and give the members a longer oplog")?;
            Ok(Outcome::ProblemFound)
        }
        Verdict::Foreign => {
            screen.line(format_args!(
                "{PROBLEM}this deployment cannot resume from it{PROBLEM:#}: it is no place in its log"
            ))?;
            screen
                .line("see whether it comes from another deployment, or from before a restore")?;
            Ok(Outcome::ProblemFound)
        }
    }
}

/// A time as people say it, in its two greatest units.
struct Long(Duration);

impl std::fmt::Display for Long {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs();
        let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
        let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
        match (days, hours, minutes) {
            (0, 0, 0) => write!(f, "{rest} s"),
            (0, 0, minutes) => write!(f, "{minutes} min {rest} s"),
            (0, hours, minutes) => write!(f, "{hours} h {minutes} min"),
            (days, hours, _) => write!(f, "{days} d {hours} h"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Failure;

    const MARK: &str = "8263515EAC000000022B0429296E1404";

    #[test]
    fn tokens_are_read_as_digits_and_as_documents() {
        let token = read(MARK).unwrap();
        assert_eq!(token.cluster_time, Timestamp { time: 0x6351_5EAC, increment: 2 });
        assert_eq!(read(&format!("{{\"_data\": \"{MARK}\"}}")).unwrap(), token);
        assert_eq!(told(&token)["kind"], "highWaterMark");
        for wrong in ["", "82", "zz", "{}", "{\"_data\": 1}", "{", "99999999"] {
            assert!(matches!(read(wrong), Err(Failure::Misuse(_))), "{wrong:?}");
        }
    }

    #[test]
    fn the_place_stays_as_long_as_the_log_reaches_back_behind_it() {
        let token = read(MARK).unwrap();
        let at = |seconds| Timestamp { time: seconds, increment: 1 };
        let now = token.cluster_time.time;
        let left = |first| Window { first: at(first), last: at(now) }.left(&token);
        assert_eq!(left(now - 3600), Duration::from_secs(3600));
        assert_eq!(left(now + 5), Duration::ZERO);
        assert_eq!(Long(Duration::from_secs(3660)).to_string(), "1 h 1 min");
        assert_eq!(Long(Duration::from_secs(90_000)).to_string(), "1 d 1 h");
        assert_eq!(Long(Duration::from_secs(61)).to_string(), "1 min 1 s");
    }
}
