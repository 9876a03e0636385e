//! Where the program's words go, and how it ends.
//!
//! Data goes to stdout and talk to stderr. Colours are written everywhere and taken out again where
//! they cannot be seen: if the stream is no terminal, or `NO_COLOR` is set.

use std::io::{self, Write};
use std::process::ExitCode;

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use quorate_client::ClientError;
use quorate_protocol::{MonotonicTime, Visible};
use quorate_seed_list::ResolveError;
use serde_json::{Map, Value};

use crate::clock;

pub(crate) const PROBLEM: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const NOTE: Style = AnsiColor::Cyan.on_default();
/// The style of good news.
pub(crate) const FINE: Style = AnsiColor::Green.on_default();
/// The style of text that stands out.
pub(crate) const STRONG: Style = Style::new().bold();
/// The style of text that stands back.
pub(crate) const QUIET: Style = Style::new().dimmed();

/// How a command ended that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is wrong.
    Fine,
    /// Something is wrong, and the program has said so.
    ProblemFound,
    /// A command that was run here ended with this code.
    Code(u8),
}

/// Why a command could not do its work. The text ends in a next step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line is wrong.
    #[error("{0}")]
    Misuse(String),
    /// The command met a problem.
    #[error("{0}")]
    Problem(String),
    /// Its output could not be written.
    #[error("cannot write the output: {0}; check where stdout leads")]
    Output(#[from] io::Error),
}

impl From<ResolveError> for Failure {
    /// DNS had no answer to believe.
    fn from(error: ResolveError) -> Self {
        Self::Problem(error.to_string())
    }
}

impl From<ClientError> for Failure {
    /// The client could not be made.
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Resolve(error) => error.into(),
            error => Self::Misuse(format!("{error}; correct the connection string")),
        }
    }
}

/// The result of a step of a command.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// A problem that the command met, with a text as of `format!`.
macro_rules! problem {
    ($($text:tt)+) => { $crate::screen::Failure::Problem(format!($($text)+)) };
}

/// A wrong command line, with a text as of `format!`.
macro_rules! misuse {
    ($($text:tt)+) => { $crate::screen::Failure::Misuse(format!($($text)+)) };
}

/// Returns with a `problem` or a `misuse` if a condition holds: `refuse_if!(condition => misuse, text)`.
macro_rules! refuse_if {
    ($condition:expr => $kind:ident, $($text:tt)+) => { if $condition { return Err($kind!($($text)+)) } };
}

/// One fact: an event of these fields for programs, or a line of talk, as of `format!`, for people.
macro_rules! tell {
    ($screen:expr, $name:expr, $fields:tt, $($text:tt)+) => {
        $screen.tell($name, serde_json::json!($fields), format_args!($($text)+))
    };
}

/// The two streams of the process, and whether the data is JSON.
pub(crate) struct Screen {
    data: Box<dyn Write>,
    talk: Box<dyn Write>,
    json: bool,
    hushed: bool,
}

impl Screen {
    /// The streams of this process.
    pub(crate) fn of_process(json: bool) -> Self {
        Self {
            data: Box::new(AutoStream::auto(io::stdout())),
            talk: Box::new(AutoStream::auto(io::stderr())),
            json,
            hushed: false,
        }
    }

    /// Whether the data is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether talk is kept back, while something else is drawn on the terminal.
    pub(crate) fn hush(&mut self, hushed: bool) {
        self.hushed = hushed;
    }

    /// One line of data for people; `--json` hides it.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        writeln!(self.data, "{}", Visible(text))
    }

    /// One line of data for programs, told now; hidden without `--json`.
    pub(crate) fn event(&mut self, name: &str, fields: Value) -> io::Result<()> {
        self.event_at(clock::now(), name, fields)
    }

    /// One line of data for programs with a time of its own. Flushed, because a reader waits for it.
    pub(crate) fn event_at(
        &mut self,
        at: MonotonicTime,
        name: &str,
        fields: Value,
    ) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        let mut line = Map::new();
        line.insert("t_ns".to_owned(), at.as_nanos().into());
        line.insert("event".to_owned(), name.into());
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        writeln!(self.data, "{}", Visible(Value::Object(line)))?;
        self.data.flush()
    }

    /// One fact: an event for programs, or a line of talk for people.
    pub(crate) fn tell(
        &mut self,
        name: &str,
        fields: Value,
        text: impl std::fmt::Display,
    ) -> Result<()> {
        self.talk_unless_json(text);
        Ok(self.event(name, fields)?)
    }

    /// Data as it is, in either mode.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.data.write_all(bytes)
    }

    /// Flushes the data for the reader that waits for it.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.data.flush()
    }

    /// A line of talk for people; programs that read JSON know from the events.
    pub(crate) fn talk_unless_json(&mut self, text: impl std::fmt::Display) {
        if !self.json {
            self.talk(text);
        }
    }

    /// A line of talk. Ignores errors: stderr may be closed.
    pub(crate) fn talk(&mut self, text: impl std::fmt::Display) {
        if !self.hushed {
            let _ = writeln!(self.talk, "{}", Visible(text));
        }
    }

    /// Tells a failure, and turns the result into the exit code.
    pub(crate) fn conclude(&mut self, result: Result<Outcome>) -> ExitCode {
        let result = result.and_then(|outcome| {
            self.data.flush()?;
            Ok(outcome)
        });
        let failure = match result {
            Ok(Outcome::Fine) => return ExitCode::SUCCESS,
            Ok(Outcome::ProblemFound) => return ExitCode::from(1),
            Ok(Outcome::Code(code)) => return ExitCode::from(code),
            // `quorate … | head` is no problem: the reader has what it wanted.
            Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::SUCCESS;
            }
            Err(failure) => failure,
        };
        self.talk(format_args!("{PROBLEM}error:{PROBLEM:#} {failure}"));
        let fields = serde_json::json!({"message": failure.to_string()});
        if self.event("error", fields).is_err() {
            self.talk("and stdout cannot be written to");
        }
        ExitCode::from(match failure {
            Failure::Misuse(_) => 2,
            Failure::Problem(_) | Failure::Output(_) => 1,
        })
    }
}
