//! The log: one line for each event, on stderr, and the newest kept for `getLog`.
//!
//! Owns the subscriber of `tracing` that the program installs. Fields keep their names, so that a
//! line can be searched and, as JSON, read by programs.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::OnceLock;

use bson::{Bson, Document, doc};
use quorate_node::{Command, CommandError, ErrorCode};
use quorate_protocol::{Lock, Visible};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines that `getLog` can give.
const MAX_RECENT: usize = 1024;

/// The lines told last, and how many there were.
static RECENT: OnceLock<Lock<Recent>> = OnceLock::new();

#[derive(Default)]
struct Recent {
    lines: VecDeque<String>,
    written: u64,
}

/// How a line looks on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: time, level, message and fields.
    Text,
    /// For programs: one JSON object.
    Json,
}

/// Sends what this process tells to stderr, from this level up. Returns false if another subscriber takes
/// it already.
pub fn log_to_stderr(level: Level, format: LogFormat) -> bool {
    tracing::subscriber::set_global_default(Log { level, format }).is_ok()
}

/// The answer to `getLog`.
pub(crate) fn get_log(command: &Command) -> Result<Document, CommandError> {
    match command.body.get("getLog") {
        Some(Bson::String(name)) if name == "*" => {
            Ok(doc! { "names": ["global", "startupWarnings"], "ok": 1.0 })
        }
        Some(Bson::String(name)) if name == "global" => {
            let recent = RECENT.get_or_init(Lock::default);
            let recent = recent.lock();
            let lines: Vec<Bson> = recent.lines.iter().map(|line| line.as_str().into()).collect();
            Ok(doc! { "totalLinesWritten": recent.written as i64, "log": lines, "ok": 1.0 })
        }
        Some(Bson::String(name)) if name == "startupWarnings" => {
            Ok(doc! { "totalLinesWritten": 0, "log": [], "ok": 1.0 })
        }
        _ => Err(CommandError::new(
            ErrorCode::OPERATION_FAILED,
            "no such log; use getLog: '*' for their names",
        )),
    }
}

struct Log {
    level: Level,
    format: LogFormat,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with("quorate")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let time = bson::DateTime::now().try_to_rfc3339_string().unwrap_or_default();
        let (level, target) = (event.metadata().level().as_str(), event.metadata().target());
        // Clients choose some of the words: none of them may turn a line around or break it.
        let json = Visible(fields.json(&time, level, target)).to_string();
        let shown = match self.format {
            LogFormat::Json => json.clone(),
            LogFormat::Text => {
                one_line(&format!("{time} {level} {}{}", fields.message, fields.rest))
            }
        };
        // If stderr is closed, the line is lost, and nothing else.
        let _ = writeln!(std::io::stderr().lock(), "{shown}");
        let recent = RECENT.get_or_init(Lock::default);
        let mut recent = recent.lock();
        recent.written += 1;
        if recent.lines.len() >= MAX_RECENT {
            recent.lines.pop_front();
        }
        recent.lines.push_back(json);
    }

    // Spans are not logged: the server creates none.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The text on one line, with characters shown that would steer a terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match quorate_protocol::steers(character) {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}

/// The fields of an event, put into words.
#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
    attributes: Map<String, Value>,
}

impl Fields {
    fn json(&self, time: &str, level: &str, target: &str) -> String {
        let line = json!({
            "t": time, "level": level, "target": target, "msg": self.message,
            "attr": self.attributes,
        });
        line.to_string()
    }

    fn add(&mut self, field: &Field, shown: String, value: Value) {
        if field.name() == "message" {
            self.message = shown;
        } else {
            // Writing to a string cannot fail.
            let _ = write!(self.rest, " {}={shown}", field.name());
            self.attributes.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.to_string(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.to_string(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.to_string(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let shown = format!("{value:?}");
        self.add(field, shown.clone(), shown.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_forge_a_line_or_turn_it_around() {
        let hostile = "db.\u{202e}c\n2026 ERROR forged\u{1b}[2J\u{9b}0m";
        let line = one_line(hostile);
        assert_eq!(line, "db.\\u{202e}c\\n2026 ERROR forged\\u{1b}[2J\\u{9b}0m");
        let fields = Fields { message: hostile.to_owned(), ..Fields::default() };
        let json = Visible(fields.json("now", "INFO", "quorate")).to_string();
        assert!(!json.chars().any(quorate_protocol::steers), "{json}");
        let read: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["msg"], hostile, "the same to a reader of JSON");
    }
}
