//! The structured log messages of the specification, made from the events.
//!
//! Follows "Log Messages" in the SDAM Logging and Monitoring specification: names, keys and the
//! unstructured sentences are its own. All are of level debug and of the component `topology`;
//! warnings are ours, and of level warn. The core does not log: its owner asks for these and logs them.

use std::fmt;

use quorate_protocol::ServerAddress;

use crate::event::{DiscoveryEvent, Heartbeat, TopologyId};
use crate::recording::reply_to_json;

/// The longest document that a message carries, in characters; the rest is cut.
pub const MAX_LOGGED_DOCUMENT_LENGTH: usize = 1000;

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Detail, shown on request.
    Debug,
    /// Shown by default.
    Warn,
}

/// A message with its keys and values.
#[derive(Clone, Debug, PartialEq)]
pub struct LogMessage {
    /// How much it matters.
    pub level: LogLevel,
    /// The value of the key `message`.
    pub message: &'static str,
    /// The other keys and their values, in the specification's order.
    pub fields: Vec<(&'static str, LogValue)>,
    text: String,
}

/// A value in a structured message.
#[derive(Clone, Debug, PartialEq)]
pub enum LogValue {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number of milliseconds.
    Millis(f64),
    /// True or false.
    Truth(bool),
}

impl LogMessage {
    /// The message for an event. Some events have none: what a server's change would say, the
    /// topology's says too.
    pub fn from_event(topology: TopologyId, event: &DiscoveryEvent) -> Option<Self> {
        let id = topology;
        let message = match event {
            DiscoveryEvent::TopologyOpening => Self::about_topology(
                id,
                "Starting topology monitoring",
                format!("Starting monitoring for topology with ID {id}"),
            ),
            DiscoveryEvent::TopologyClosed => Self::about_topology(
                id,
                "Stopped topology monitoring",
                format!("Stopped monitoring for topology with ID {id}"),
            ),
            DiscoveryEvent::TopologyDescriptionChanged { previous, new } => {
                let text = format!(
                    "Description changed for topology with ID {id}. Previous description: \
                     {previous}. New description: {new}"
                );
                Self::about_topology(id, "Topology description changed", text)
                    .with("previousDescription", LogValue::Text(previous.to_string()))
                    .with("newDescription", LogValue::Text(new.to_string()))
            }
            DiscoveryEvent::ServerOpening { address } => Self::about_server(
                id,
                address,
                "Starting server monitoring",
                format!("Starting monitoring for server {address} in topology with ID {id}"),
            ),
            DiscoveryEvent::ServerClosed { address, .. } => Self::about_server(
                id,
                address,
                "Stopped server monitoring",
                format!("Stopped monitoring for server {address} in topology with ID {id}"),
            ),
            DiscoveryEvent::ServerDescriptionChanged { .. } => return None,
            DiscoveryEvent::ServerHeartbeatStarted { heartbeat } => {
                let Heartbeat { address, connection, awaited } = heartbeat;
                let text = format!(
                    "Heartbeat started for {address} on connection with driver-generated ID \
                     {connection} in topology with ID {id}. Awaited: {awaited}"
                );
                Self::about_heartbeat(id, heartbeat, "Server heartbeat started", None, text)
            }
            DiscoveryEvent::ServerHeartbeatSucceeded { heartbeat, duration, reply } => {
                let Heartbeat { address, connection, awaited } = heartbeat;
                let millis = duration.as_secs_f64() * 1e3;
                // A server says ok as a number.
                let mut document = reply_to_json(reply);
                document["ok"] = serde_json::json!(i32::from(reply.ok));
                let document = cut(document.to_string());
                let server_id = reply.connection_id;
                let text = format!(
                    "Heartbeat succeeded in {millis} ms for {address} on connection with \
                     driver-generated ID {connection} and server-generated ID {} in topology with \
                     ID {id}. Awaited: {awaited}. Reply: {document}",
                    server_id.map_or_else(|| "unknown".to_owned(), |id| id.to_string()),
                );
                Self::about_heartbeat(id, heartbeat, "Server heartbeat succeeded", server_id, text)
                    .with("durationMS", LogValue::Millis(millis))
                    .with("reply", LogValue::Text(document))
            }
            DiscoveryEvent::ServerHeartbeatFailed { heartbeat, duration, failure } => {
                let Heartbeat { address, connection, awaited } = heartbeat;
                let millis = duration.as_secs_f64() * 1e3;
                let text = format!(
                    "Heartbeat failed in {millis} ms for {address} on connection with \
                     driver-generated ID {connection} in topology with ID {id}. Awaited: \
                     {awaited}. Failure: {failure}"
                );
                Self::about_heartbeat(id, heartbeat, "Server heartbeat failed", None, text)
                    .with("durationMS", LogValue::Millis(millis))
                    .with("failure", LogValue::Text(failure.to_string()))
            }
            DiscoveryEvent::Warning(warning) => Self {
                level: LogLevel::Warn,
                ..Self::about_topology(id, "Topology warning", warning.to_string())
            }
            .with("warning", LogValue::Text(warning.to_string())),
        };
        Some(message)
    }

    /// The text of a key.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.value(key)? {
            LogValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The whole number of a key.
    pub fn integer(&self, key: &str) -> Option<i64> {
        match self.value(key)? {
            LogValue::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The milliseconds of a key.
    pub fn millis(&self, key: &str) -> Option<f64> {
        match self.value(key)? {
            LogValue::Millis(millis) => Some(*millis),
            _ => None,
        }
    }

    /// The truth of a key.
    pub fn truth(&self, key: &str) -> Option<bool> {
        match self.value(key)? {
            LogValue::Truth(truth) => Some(*truth),
            _ => None,
        }
    }

    fn value(&self, key: &str) -> Option<&LogValue> {
        self.fields.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    fn about_topology(id: TopologyId, message: &'static str, text: String) -> Self {
        let fields = vec![("topologyId", LogValue::Integer(id.0.cast_signed()))];
        Self { level: LogLevel::Debug, message, fields, text }
    }

    fn about_server(
        id: TopologyId,
        address: &ServerAddress,
        message: &'static str,
        text: String,
    ) -> Self {
        let told = Self::about_topology(id, message, text)
            .with("serverHost", LogValue::Text(address.host().to_owned()));
        match address.port() {
            Some(port) => told.with("serverPort", LogValue::Integer(port.into())),
            None => told,
        }
    }

    fn about_heartbeat(
        id: TopologyId,
        heartbeat: &Heartbeat,
        message: &'static str,
        server_connection: Option<i64>,
        text: String,
    ) -> Self {
        let connection = heartbeat.connection.0.cast_signed();
        let mut told = Self::about_server(id, &heartbeat.address, message, text)
            .with("driverConnectionId", LogValue::Integer(connection));
        if let Some(server_connection) = server_connection {
            told = told.with("serverConnectionId", LogValue::Integer(server_connection));
        }
        told.with("awaited", LogValue::Truth(heartbeat.awaited))
    }

    fn with(mut self, key: &'static str, value: LogValue) -> Self {
        self.fields.push((key, value));
        self
    }
}

impl fmt::Display for LogMessage {
    /// The unstructured form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn cut(mut document: String) -> String {
    if let Some((end, _)) = document.char_indices().nth(MAX_LOGGED_DOCUMENT_LENGTH) {
        document.truncate(end);
        document.push_str("...");
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{MonitorConnectionId, Warning};
    use quorate_protocol::HelloReply;
    use std::sync::Arc;
    use std::time::Duration;

    fn heartbeat() -> Heartbeat {
        Heartbeat {
            address: "db.example:27018".parse().unwrap(),
            connection: MonitorConnectionId(3),
            awaited: true,
        }
    }

    #[test]
    fn a_heartbeat_carries_every_key_of_the_specification() {
        let reply = HelloReply { ok: true, connection_id: Some(99), ..HelloReply::default() };
        let event = DiscoveryEvent::ServerHeartbeatSucceeded {
            heartbeat: heartbeat(),
            duration: Duration::from_micros(1500),
            reply: Arc::new(reply),
        };
        let message = LogMessage::from_event(TopologyId(1), &event).unwrap();
        assert_eq!(message.message, "Server heartbeat succeeded");
        let keys: Vec<_> = message.fields.iter().map(|(key, _)| *key).collect();
        assert_eq!(
            keys,
            [
                "topologyId", "serverHost", "serverPort", "driverConnectionId",
                "serverConnectionId", "awaited", "durationMS", "reply"
            ]
        );
        assert!(message.to_string().starts_with(
            "Heartbeat succeeded in 1.5 ms for db.example:27018 on connection with \
             driver-generated ID 3 and server-generated ID 99 in topology with ID 1. Awaited: true."
        ));
    }

    #[test]
    fn long_replies_are_cut_between_characters() {
        assert_eq!(cut("é".repeat(1000)), "é".repeat(1000));
        assert_eq!(cut("é".repeat(1001)), format!("{}...", "é".repeat(1000)));
    }

    #[test]
    fn warnings_stand_out() {
        let event = DiscoveryEvent::Warning(Warning::NoSeeds);
        let message = LogMessage::from_event(TopologyId(1), &event).unwrap();
        assert_eq!(message.level, LogLevel::Warn);
        assert!(message.to_string().contains("name at least one host"));
    }
}
