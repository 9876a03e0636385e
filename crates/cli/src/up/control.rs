//! How other commands ask the `quorate up` that looks after a set: a socket beside the file of the
//! set, in a directory that only this user may enter. One line is asked and one answered.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_protocol::ServerAddress;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::time::timeout;

use super::keeper::Handle;
use super::running::RunningSet;
use crate::screen::{Failure, Result};
use crate::view::actions::{Action, Actions};

/// The longest line that is read.
const MAX_LINE: u64 = 4096;

/// How long an answer may take: longer than a member may take to listen.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// How long a client may take to say what it wants.
const ASK_WITHIN: Duration = Duration::from_secs(5);

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Start this member again.
    Start(String),
}

impl Order {
    fn to_line(&self) -> String {
        match self {
            Self::Start(member) => format!("{}\n", json!({"order": "start", "member": member})),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let member = value["member"].as_str()?.to_owned();
        match value["order"].as_str()? {
            "start" => Some(Self::Start(member)),
            _ => None,
        }
    }
}

/// Asks the process that looks after this set. Returns what it says.
pub(crate) fn order(set: &RunningSet, order: &Order) -> Result<String> {
    let failed = |error: std::io::Error| {
        problem!(
            "the quorate up of {} (process {}) does not answer: {error}; stop the set with {} and \
             start it again",
            set.name,
            set.keeper.pid(),
            set.stop_command()
        )
    };
    let mut stream = UnixStream::connect(set.control_path()?).map_err(failed)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(failed)?;
    stream.write_all(order.to_line().as_bytes()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).map_err(failed)?;
    let answer: Value = serde_json::from_str(&line).unwrap_or_default();
    match (answer["done"].as_str(), answer["error"].as_str()) {
        (Some(done), _) => Ok(done.to_owned()),
        (None, Some(error)) => Err(Failure::Problem(error.to_owned())),
        (None, None) => Err(failed(std::io::Error::other("the answer makes no sense"))),
    }
}

/// The socket, for as long as the set runs.
pub(super) struct Control {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Control {
    /// Takes orders from now on.
    pub(super) fn serve(set: &RunningSet, handle: Handle) -> Result<Self> {
        let path = set.control_path()?;
        // A file that a crash left behind; the file of a set that runs has another name.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|error| unusable(&path, &error))?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // One after the other: orders are rare.
                answer(stream, &handle).await;
            }
        });
        Ok(Self { path, task })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    problem!(
        "cannot listen on {}: {error}; set XDG_RUNTIME_DIR to a directory of your own with a short \
         name",
        path.display()
    )
}

async fn answer(stream: tokio::net::UnixStream, handle: &Handle) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut lines = tokio::io::BufReader::new(read.take(MAX_LINE));
    let asked = timeout(ASK_WITHIN, lines.read_line(&mut line)).await;
    if !matches!(asked, Ok(Ok(1..))) {
        return;
    }
    let answer = match carry_out(&line, handle).await {
        Ok(done) => json!({"done": done}),
        Err(error) => json!({"error": error}),
    };
    // Ignore send errors: the receiver may be gone, and it was done all the same.
    let _ = write.write_all(format!("{answer}\n").as_bytes()).await;
}

async fn carry_out(line: &str, handle: &Handle) -> Result<String, String> {
    let Some(Order::Start(member)) = Order::parse(line) else {
        return Err("this quorate up is of another version; start the set again".to_owned());
    };
    let member: ServerAddress = member.parse().map_err(|error| format!("{error}"))?;
    handle.perform(Action::Restore, &member).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_were_written() {
        let order = Order::Start("127.0.0.1:27018".to_owned());
        assert_eq!(Order::parse(&order.to_line()), Some(order));
        assert_eq!(Order::parse("{\"order\": \"explode\", \"member\": \"a:1\"}"), None);
        assert_eq!(Order::parse("start"), None);
    }
}
