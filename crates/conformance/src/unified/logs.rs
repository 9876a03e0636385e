//! The log messages of clients, taken from `tracing`.
//!
//! Follows "expectedLogMessagesForClient" of the unified test format. There is one subscriber for
//! the process, which keeps messages only while a test asks for them; every message carries the
//! `topologyId` of its client.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, OnceLock};

use bson::{Bson, Document};
use quorate_server_discovery::TopologyId;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level as TracingLevel, Metadata, Subscriber};

use quorate_protocol::Lock;

use super::matching::{Level, Matcher};
use crate::{Context, Result};

/// Where the clients' messages come from.
const PREFIX: &str = "quorate::";

/// Severities of the logging specification that `tracing` tells apart, the gravest first.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// How many tests are recording.
static RECORDING: AtomicUsize = AtomicUsize::new(0);
static MESSAGES: Lock<Vec<Message>> = Lock::new(Vec::new());

#[derive(Clone, Debug)]
pub(super) struct Message {
    level: &'static str,
    component: &'static str,
    data: Document,
}

/// Keeps messages while it lives.
pub(super) struct Recording;

impl Recording {
    /// Starts recording. Earlier records are dropped unless another test records as well.
    pub(super) fn start() -> Result<Self> {
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        if !INSTALLED.get_or_init(|| set_global_default(Ear).is_ok()) {
            bail!("another subscriber of tracing is installed");
        }
        let mut messages = messages();
        if RECORDING.fetch_add(1, Ordering::SeqCst) == 0 {
            messages.clear();
        }
        Ok(Self)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDING.fetch_sub(1, Ordering::SeqCst);
    }
}

fn messages() -> MutexGuard<'static, Vec<Message>> {
    MESSAGES.lock()
}

/// Judges `expectedLogMessagesForClient`. `observed` are the components and their least severities.
pub(super) fn check(
    matcher: Matcher<'_>,
    expected: &Document,
    client: TopologyId,
    observed: &Document,
) -> Result<()> {
    let mut ignore_extra = false;
    let (mut wanted, mut ignored): (&[Bson], &[Bson]) = (&[], &[]);
    for (key, value) in expected {
        match (key.as_str(), value) {
            ("client", _) => {}
            ("messages", Bson::Array(given)) => wanted = given,
            ("ignoreMessages", Bson::Array(given)) => ignored = given,
            ("ignoreExtraMessages", Bson::Boolean(given)) => ignore_extra = *given,
            _ => bail!("unknown assertion on log messages: {key}"),
        }
    }
    let mut found = messages().clone();
    found.retain(|message| is_observed(message, client, observed));
    for ignored in ignored {
        let ignored = ignored.as_document().ok_or("an ignored message is no document")?;
        found.retain(|message| compare(matcher, ignored, message).is_err());
    }
    for (place, wanted) in wanted.iter().enumerate() {
        let wanted = wanted.as_document().ok_or("a message is no document")?;
        let message =
            found.get(place).ok_or_else(|| format!("message {place} is missing: {wanted}"))?;
        compare(matcher, wanted, message).context(format_args!("message {place} {message:?}"))?;
    }
    match found.get(wanted.len()) {
        Some(extra) if !ignore_extra => Err(format!("unexpected message {extra:?}").into()),
        _ => Ok(()),
    }
}

fn is_observed(message: &Message, client: TopologyId, observed: &Document) -> bool {
    let severity = |level: &str| LEVELS.iter().position(|known| *known == level);
    let least = observed.get_str(message.component).ok().and_then(severity);
    let own = message.data.get_i64("topologyId").is_ok_and(|id| id.cast_unsigned() == client.0);
    own && least.is_some_and(|least| severity(message.level) <= Some(least))
}

fn compare(matcher: Matcher<'_>, expected: &Document, found: &Message) -> Result<()> {
    for (key, wanted) in expected {
        match (key.as_str(), wanted) {
            ("level", Bson::String(level)) if level == found.level => {}
            // The package's copies say debug where the specification says info: "Waiting for
            // suitable server to become available".
            ("level", Bson::String(level)) if level == "debug" && found.level == "info" => {}
            ("component", Bson::String(component)) if component == found.component => {}
            ("data", wanted) => {
                let data = Bson::Document(found.data.clone());
                matcher.check(wanted, Some(&data), Level::Root)?;
            }
            ("failureIsRedacted", Bson::Boolean(redacted)) => {
                let failure = found.data.get_str("failure").map_err(|_| "there is no failure")?;
                if failure.contains("(redacted)") != *redacted {
                    bail!("failureIsRedacted is not {redacted}: {failure}");
                }
            }
            ("level" | "component", _) => bail!("expected {key} {wanted}"),
            _ => bail!("unknown assertion on a log message: {key}"),
        }
    }
    Ok(())
}

/// The subscriber.
struct Ear;

impl Subscriber for Ear {
    // Asked every time: which test runs decides.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match metadata.target().starts_with(PREFIX) {
            true => Interest::sometimes(),
            false => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        RECORDING.load(Ordering::Relaxed) > 0 && metadata.target().starts_with(PREFIX)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(component) = metadata.target().strip_prefix(PREFIX) else { return };
        let level = match *metadata.level() {
            TracingLevel::ERROR => "error",
            TracingLevel::WARN => "warn",
            TracingLevel::INFO => "info",
            TracingLevel::DEBUG => "debug",
            TracingLevel::TRACE => "trace",
        };
        let mut fields = Fields(Document::new());
        event.record(&mut fields);
        messages().push(Message { level, component, data: fields.0 });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event as a document.
struct Fields(Document);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name(), value);
    }
}
