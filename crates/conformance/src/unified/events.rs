//! What a client told while a test ran, and whether that is what the test expects.
//!
//! Follows "expectedEvent" of the unified test format. Events are kept as documents; an assertion on
//! a field that is not known is an error.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_client::pool::{PoolEvent, PoolEventKind};
use quorate_client::{ClientEvent, CommandEvent, CommandEventKind, is_sensitive};
use quorate_server_discovery::DiscoveryEvent;
use tokio::sync::watch;
use tokio::time::timeout;

use quorate_protocol::Lock;

use super::matching::{Level, Matcher};
use crate::{Context, Result};

/// Every event that a test can observe, by what it is about.
const KNOWN: [(&str, &[&str]); 3] = [
    ("command", &["commandStartedEvent", "commandSucceededEvent", "commandFailedEvent"]),
    (
        "cmap",
        &[
            "poolCreatedEvent", "poolReadyEvent", "poolClearedEvent", "poolClosedEvent",
            "connectionCreatedEvent", "connectionReadyEvent", "connectionClosedEvent",
            "connectionCheckOutStartedEvent", "connectionCheckOutFailedEvent",
            "connectionCheckedOutEvent", "connectionCheckedInEvent",
        ],
    ),
    (
        "sdam",
        &[
            "serverDescriptionChangedEvent",
            "serverHeartbeatStartedEvent",
            "serverHeartbeatSucceededEvent",
            "serverHeartbeatFailedEvent",
            "topologyDescriptionChangedEvent",
            "topologyOpeningEvent",
            "topologyClosedEvent",
        ],
    ),
];

fn kind_of(name: &str) -> Result<&'static str> {
    let known = KNOWN.iter().find(|(_, names)| names.contains(&name));
    known.map(|(kind, _)| *kind).ok_or_else(|| format!("unknown event {name}").into())
}

/// An event by its name in the tests.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    name: &'static str,
    fields: Document,
}

/// The events of one client.
#[derive(Debug)]
pub(super) struct EventLog {
    observed: BTreeSet<String>,
    ignored_commands: BTreeSet<String>,
    sensitive: bool,
    events: Lock<Vec<Observed>>,
    checked_out: Lock<i64>,
    revision: watch::Sender<usize>,
}

impl EventLog {
    pub(super) fn new(
        observed: BTreeSet<String>,
        ignored_commands: BTreeSet<String>,
        sensitive: bool,
    ) -> Result<Self> {
        for name in &observed {
            kind_of(name)?;
        }
        Ok(Self {
            observed,
            ignored_commands,
            sensitive,
            events: Lock::default(),
            checked_out: Lock::default(),
            revision: watch::Sender::new(0),
        })
    }

    /// Takes an event in, if the test wants to see it.
    pub(super) fn hear(&self, event: &ClientEvent) {
        if let ClientEvent::Pool(event) = event {
            let change = match event.kind {
                PoolEventKind::CheckedOut { .. } => 1,
                PoolEventKind::CheckedIn { .. } => -1,
                _ => 0,
            };
            *self.checked_out.lock() += change;
        }
        let observed = match event {
            ClientEvent::Command(event) => self.command(event),
            ClientEvent::Pool(event) => pool(event),
            ClientEvent::Discovery(event) => discovery(event),
            _ => None,
        };
        if let Some(observed) = observed.filter(|event| self.observed.contains(event.name)) {
            self.events.lock().push(observed);
        }
        self.revision.send_modify(|revision| *revision += 1);
    }

    fn command(&self, event: &CommandEvent) -> Option<Observed> {
        let name = event.command_name.as_str();
        let (content, failed) = match &event.kind {
            CommandEventKind::Started { command } => (Some(command), false),
            CommandEventKind::Succeeded { reply, .. } => (Some(reply), false),
            CommandEventKind::Failed { .. } => (None, true),
            _ => return None,
        };
        let hello = name.eq_ignore_ascii_case("hello") || name.eq_ignore_ascii_case("ismaster");
        // A hello with speculative authentication is redacted before the event.
        let secret = match hello {
            true => failed || content.is_some_and(|told| told.is_empty()),
            false => is_sensitive(name, &bson::RawDocumentBuf::new()),
        };
        if self.ignored_commands.contains(name)
            || name == "configureFailPoint"
            || secret && !self.sensitive
        {
            return None;
        }
        let mut fields = doc! { "commandName": name, "databaseName": event.database.as_str() };
        if let Some(id) = event.service_id {
            fields.insert("serviceId", id.to_string());
        }
        if let Some(id) = event.server_connection_id {
            fields.insert("serverConnectionId", id);
        }
        let name = match &event.kind {
            CommandEventKind::Started { command } => {
                fields.insert("command", Document::try_from(command).ok()?);
                "commandStartedEvent"
            }
            CommandEventKind::Succeeded { reply, .. } => {
                fields.insert("reply", Document::try_from(reply).ok()?);
                "commandSucceededEvent"
            }
            CommandEventKind::Failed { .. } => "commandFailedEvent",
            _ => return None,
        };
        Some(Observed { name, fields })
    }

    /// How many connections are checked out.
    pub(super) fn checked_out(&self) -> i64 {
        *self.checked_out.lock()
    }

    /// The commands of the started events, oldest first.
    pub(super) fn commands(&self) -> Vec<Document> {
        let events = self.events.lock();
        let started = events.iter().filter(|event| event.name == "commandStartedEvent");
        started.filter_map(|event| event.fields.get_document("command").ok().cloned()).collect()
    }

    /// How many events so far are like this one.
    pub(super) fn count(&self, matcher: Matcher<'_>, expected: &Document) -> Result<usize> {
        let events = self.events.lock().clone();
        let mut count = 0;
        for event in &events {
            count += usize::from(is_match(matcher, expected, event)?);
        }
        Ok(count)
    }

    /// Waits until there are so many events like this one.
    pub(super) async fn wait_for(
        &self,
        matcher: Matcher<'_>,
        expected: &Document,
        count: usize,
        limit: Duration,
    ) -> Result<()> {
        let mut revisions = self.revision.subscribe();
        let enough = async {
            loop {
                if self.count(matcher, expected)? >= count {
                    return Ok(());
                }
                if revisions.changed().await.is_err() {
                    bail!("the client is gone");
                }
            }
        };
        match timeout(limit, enough).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let found = self.count(matcher, expected)?;
                Err(format!("{expected} happened {found} times, expected {count}").into())
            }
        }
    }

    /// Judges `expectedEventsForClient`.
    pub(super) fn check(&self, matcher: Matcher<'_>, expected: &Document) -> Result<()> {
        let mut kind = "command";
        let mut ignore_extra = false;
        let mut wanted: &[Bson] = &[];
        for (key, value) in expected {
            match (key.as_str(), value) {
                ("client", _) => {}
                ("eventType", Bson::String(given)) => kind = given,
                ("ignoreExtraEvents", Bson::Boolean(given)) => ignore_extra = *given,
                ("events", Bson::Array(given)) => wanted = given,
                _ => bail!("unknown assertion on events: {key}"),
            }
        }
        let mut found = self.events.lock().clone();
        found.retain(|event| kind_of(event.name).is_ok_and(|own| own == kind));
        for (place, wanted) in wanted.iter().enumerate() {
            let wanted = wanted.as_document().ok_or("an event is no document")?;
            let event =
                found.get(place).ok_or_else(|| format!("event {place} is missing: {wanted}"))?;
            compare(matcher, wanted, event).map_err(|reason| {
                format!("event {place} ({} {}): {reason}", event.name, event.fields)
            })?;
        }
        match found.get(wanted.len()) {
            Some(extra) if !ignore_extra => {
                Err(format!("unexpected event {} {}", extra.name, extra.fields).into())
            }
            _ => Ok(()),
        }
    }
}

fn pool(event: &PoolEvent) -> Option<Observed> {
    use PoolEventKind as Kind;
    let mut fields = Document::new();
    let name = match &event.kind {
        Kind::PoolCreated { .. } => "poolCreatedEvent",
        Kind::PoolReady => "poolReadyEvent",
        Kind::PoolCleared { service_id, interrupt_in_use_connections } => {
            if let Some(id) = service_id {
                fields.insert("serviceId", id.to_string());
            }
            fields.insert("interruptInUseConnections", *interrupt_in_use_connections);
            "poolClearedEvent"
        }
        Kind::PoolClosed => "poolClosedEvent",
        Kind::ConnectionCreated { .. } => "connectionCreatedEvent",
        Kind::ConnectionReady { .. } => "connectionReadyEvent",
        Kind::ConnectionClosed { reason, .. } => {
            fields.insert("reason", reason.name());
            "connectionClosedEvent"
        }
        Kind::CheckOutStarted => "connectionCheckOutStartedEvent",
        Kind::CheckOutFailed { reason, .. } => {
            fields.insert("reason", reason.name());
            "connectionCheckOutFailedEvent"
        }
        Kind::CheckedOut { .. } => "connectionCheckedOutEvent",
        Kind::CheckedIn { .. } => "connectionCheckedInEvent",
        _ => return None,
    };
    Some(Observed { name, fields })
}

fn discovery(event: &DiscoveryEvent) -> Option<Observed> {
    use DiscoveryEvent as Event;
    let (name, fields) = match event {
        Event::ServerDescriptionChanged { previous, new, .. } => (
            "serverDescriptionChangedEvent",
            doc! {
                "previousDescription": { "type": previous.server_type().name() },
                "newDescription": { "type": new.server_type().name() },
            },
        ),
        Event::TopologyDescriptionChanged { previous, new } => (
            "topologyDescriptionChangedEvent",
            doc! {
                "previousDescription": { "type": previous.topology_type().name() },
                "newDescription": { "type": new.topology_type().name() },
            },
        ),
        Event::TopologyOpening => ("topologyOpeningEvent", doc! {}),
        Event::TopologyClosed => ("topologyClosedEvent", doc! {}),
        Event::ServerHeartbeatStarted { heartbeat } => {
            ("serverHeartbeatStartedEvent", doc! { "awaited": heartbeat.awaited })
        }
        Event::ServerHeartbeatSucceeded { heartbeat, .. } => {
            ("serverHeartbeatSucceededEvent", doc! { "awaited": heartbeat.awaited })
        }
        Event::ServerHeartbeatFailed { heartbeat, .. } => {
            ("serverHeartbeatFailedEvent", doc! { "awaited": heartbeat.awaited })
        }
        _ => return None,
    };
    Some(Observed { name, fields })
}

fn named(expected: &Document) -> Result<(&str, &Document)> {
    let mut entries = expected.iter();
    match (entries.next(), entries.next()) {
        (Some((name, Bson::Document(fields))), None) => {
            kind_of(name)?;
            Ok((name, fields))
        }
        _ => Err(format!("an expected event has one name: {expected}").into()),
    }
}

fn is_match(matcher: Matcher<'_>, expected: &Document, event: &Observed) -> Result<bool> {
    let (name, _) = named(expected)?;
    Ok(name == event.name && compare(matcher, expected, event).is_ok())
}

fn compare(matcher: Matcher<'_>, expected: &Document, event: &Observed) -> Result<()> {
    let (name, fields) = named(expected)?;
    if name != event.name {
        bail!("expected {expected}");
    }
    for (key, wanted) in fields {
        let found = match key.as_str() {
            "command"
            | "reply"
            | "commandName"
            | "databaseName"
            | "reason"
            | "awaited"
            | "interruptInUseConnections"
            | "previousDescription"
            | "newDescription" => event.fields.get(key),
            "hasServiceId" | "hasServerConnectionId" => {
                let field = if key == "hasServiceId" { "serviceId" } else { "serverConnectionId" };
                if wanted.as_bool() != Some(event.fields.contains_key(field)) {
                    bail!("{key} is not {wanted}");
                }
                continue;
            }
            _ => bail!("unknown assertion on an event: {key}"),
        };
        matcher.check(wanted, found, Level::Root).context(key)?;
    }
    Ok(())
}
