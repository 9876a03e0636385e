//! JSON to values. The lines are untrusted input.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    CommandError, ElectionId, HelloReply, LastWrite, MonotonicTime, ObjectId, OpTime,
    ServerAddress, ServerMonitoringMode, SetVersion, TagSet, Timestamp, TopologyVersion, WallTime,
    WireVersionRange,
};
use serde_json::{Map, Value};

use super::{RECORDING_VERSION, RecordedInput, RecordingStart};
use crate::command::{CheckId, HandshakeProgress, Input, PoolGeneration};
use crate::event::TopologyId;
use crate::fault::{ApplicationError, CheckFailure, CheckFailureKind};
use crate::function_platform::FunctionPlatform;
use crate::options::{DiscoveryOptions, Threading};

/// The longest line that is read, in bytes: a reply with a thousand members of the longest names
/// is a fourth of it.
pub const MAX_LINE_LENGTH: usize = 4 << 20;

/// A line that is no part of a recording. The author of the file is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// Longer than [`MAX_LINE_LENGTH`].
    #[error("the line is {0} bytes long, more than any recording has; is this the right file?")]
    TooLong(usize),
    /// Not a JSON object.
    #[error("the line is not a JSON object ({0}); the file is damaged, or no recording")]
    NotAnObject(String),
    /// A field is missing or is not what it should be.
    #[error("the field {field:?} {problem}; the file is damaged, or of another version")]
    Field {
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Written by another version.
    #[error(
        "the recording is of version {found}, this program reads version {RECORDING_VERSION}; \
         use the program that wrote it"
    )]
    Version {
        /// The file's version.
        found: u64,
    },
}

pub(super) fn start(line: &str) -> Result<RecordingStart, RecordingError> {
    let fields = parse(line)?;
    let fields = Fields(&fields);
    let found = fields.u64("recording")?;
    if found != RECORDING_VERSION {
        return Err(RecordingError::Version { found });
    }
    Ok(RecordingStart {
        options: options(Fields(fields.object("options")?))?,
        id: TopologyId(fields.u64("topologyId")?),
        seed: fields.u64("seed")?,
        at: MonotonicTime::from_nanos(fields.u64("t_ns")?),
    })
}

fn options(fields: Fields<'_>) -> Result<DiscoveryOptions, RecordingError> {
    let versions = fields.list("wireVersions")?;
    let version = |place: usize| {
        let number = versions.get(place).and_then(Value::as_i64);
        number
            .and_then(|number| i32::try_from(number).ok())
            .ok_or_else(|| fields.error("wireVersions", "is not a pair of versions"))
    };
    Ok(DiscoveryOptions {
        seeds: fields.addresses("seeds")?,
        direct_connection: fields.truth("directConnection")?,
        load_balanced: fields.truth("loadBalanced")?,
        set_name: fields.optional("replicaSet", Fields::text)?.map(str::to_owned),
        threading: match fields.truth("singleThreaded")? {
            true => Threading::Single,
            false => Threading::Multi,
        },
        heartbeat_frequency: fields.optional("heartbeatFrequency_ns", Fields::duration)?,
        connect_timeout: fields.optional("connectTimeout_ns", Fields::duration)?,
        server_monitoring_mode: fields.named(
            "serverMonitoringMode",
            "known mode",
            ServerMonitoringMode::from_name,
        )?,
        function_platform: fields.optional("functionPlatform", |fields, field| {
            fields.named(field, "known platform", FunctionPlatform::from_name)
        })?,
        stable_api: fields.truth("stableApi")?,
        // Recordings from before this rule have no such field.
        displaced_patience: fields.optional("displacedPatience_ns", Fields::duration)?,
        local_threshold: fields.duration("localThreshold_ns")?,
        srv_max_hosts: fields
            .optional("srvMaxHosts", Fields::u64)?
            .map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
        wire_versions: version(0)?..=version(1)?,
        driver_name: fields.text("driverName")?.to_owned(),
    })
}

pub(super) fn input(line: &str) -> Result<RecordedInput, RecordingError> {
    let fields = parse(line)?;
    let fields = Fields(&fields);
    let at = MonotonicTime::from_nanos(fields.u64("t_ns")?);
    let input = match fields.text("input")? {
        "helloReceived" => Input::HelloReceived {
            server: fields.address("server")?,
            check: CheckId(fields.u64("check")?),
            reply: Arc::new(reply(Fields(fields.object("reply")?))?),
            round_trip: fields.duration("roundTrip_ns")?,
            more_to_come: fields.truth("moreToCome")?,
        },
        "checkFailed" => Input::CheckFailed {
            server: fields.address("server")?,
            check: CheckId(fields.u64("check")?),
            failure: failure(Fields(fields.object("failure")?))?,
        },
        "roundTripMeasured" => Input::RoundTripMeasured {
            server: fields.address("server")?,
            check: CheckId(fields.u64("check")?),
            round_trip: fields.optional("roundTrip_ns", Fields::duration)?,
        },
        "handshakeReceived" => Input::HandshakeReceived {
            server: fields.address("server")?,
            reply: Arc::new(reply(Fields(fields.object("reply")?))?),
        },
        "applicationFailed" => application_failed(fields)?,
        "checkWanted" => Input::CheckWanted,
        "scanWanted" => Input::ScanWanted,
        "serverCheckWanted" => Input::ServerCheckWanted { server: fields.address("server")? },
        "seedsResolved" => Input::SeedsResolved(fields.addresses("seeds")?),
        "tick" => Input::Tick,
        "close" => Input::Close,
        other => return Err(fields.error("input", &format!("is {other:?}, which is none"))),
    };
    Ok(RecordedInput { at, input })
}

fn application_failed(fields: Fields<'_>) -> Result<Input, RecordingError> {
    Ok(Input::ApplicationFailed {
        server: fields.address("server")?,
        generation: PoolGeneration(fields.u64("generation")?),
        service_id: fields.optional("serviceId", Fields::parsed)?,
        handshake: fields.named("handshake", "known progress", HandshakeProgress::from_name)?,
        max_wire_version: fields.i32("maxWireVersion")?,
        overloaded: fields.truth("overloaded")?,
        cause: cause(Fields(fields.object("cause")?))?,
    })
}

fn failure(fields: Fields<'_>) -> Result<CheckFailure, RecordingError> {
    Ok(CheckFailure {
        kind: fields.named("kind", "known kind of failure", CheckFailureKind::from_name)?,
        message: fields.text("message")?.to_owned(),
    })
}

fn cause(fields: Fields<'_>) -> Result<ApplicationError, RecordingError> {
    let message = fields.text("message")?.to_owned();
    Ok(match fields.text("kind")? {
        "network" => ApplicationError::Network(message),
        "timeout" => ApplicationError::NetworkTimeout(message),
        "establishment" => ApplicationError::Establishment(message),
        "command" => ApplicationError::Command(Box::new(CommandError {
            code: fields.optional("code", Fields::i32)?,
            message,
            topology_version: fields.optional("topologyVersion", Fields::topology_version)?,
            ..CommandError::default()
        })),
        _ => return Err(fields.error("kind", "is no known kind of cause")),
    })
}

fn reply(fields: Fields<'_>) -> Result<HelloReply, RecordingError> {
    let flag = |name| Ok(fields.optional(name, Fields::truth)?.unwrap_or(false));
    let list = |name| Ok(fields.optional(name, Fields::addresses)?.unwrap_or_default().into());
    Ok(HelloReply {
        ok: flag("ok")?,
        is_writable_primary: flag("isWritablePrimary")?,
        hello_ok: flag("helloOk")?,
        is_dbgrid: flag("isdbgrid")?,
        is_replica_set: flag("isreplicaset")?,
        secondary: flag("secondary")?,
        arbiter_only: flag("arbiterOnly")?,
        passive: flag("passive")?,
        hidden: flag("hidden")?,
        set_name: fields.optional("setName", Fields::text)?.map(str::to_owned),
        set_version: fields.optional("setVersion", Fields::i64)?.map(SetVersion),
        election_id: fields.optional("electionId", Fields::parsed)?.map(ElectionId),
        hosts: list("hosts")?,
        passives: list("passives")?,
        arbiters: list("arbiters")?,
        primary: fields.optional("primary", Fields::address)?,
        me: fields.optional("me", Fields::address)?,
        tags: fields.optional("tags", Fields::tags)?.unwrap_or_default(),
        wire_versions: WireVersionRange {
            min: fields.i32("minWireVersion")?,
            max: fields.i32("maxWireVersion")?,
        },
        last_write: fields.optional("lastWrite", Fields::last_write)?,
        logical_session_timeout_minutes: fields
            .optional("logicalSessionTimeoutMinutes", Fields::i64)?,
        topology_version: fields.optional("topologyVersion", Fields::topology_version)?,
        iscryptd: flag("iscryptd")?,
        service_id: fields.optional("serviceId", Fields::parsed)?,
        connection_id: fields.optional("connectionId", Fields::i64)?,
    })
}

fn parse(line: &str) -> Result<Map<String, Value>, RecordingError> {
    if line.len() > MAX_LINE_LENGTH {
        return Err(RecordingError::TooLong(line.len()));
    }
    match serde_json::from_str(line) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(RecordingError::NotAnObject("it is another value".to_owned())),
        Err(error) => Err(RecordingError::NotAnObject(error.to_string())),
    }
}

/// The fields of an object, read by name.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn error(self, field: &str, problem: &str) -> RecordingError {
        RecordingError::Field { field: field.to_owned(), problem: problem.to_owned() }
    }

    fn read<T>(
        self,
        field: &str,
        what: &str,
        reader: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, RecordingError> {
        let value = self.0.get(field).ok_or_else(|| self.error(field, "is missing"))?;
        reader(value).ok_or_else(|| self.error(field, &format!("is not {what}")))
    }

    /// A field that may be absent or null.
    fn optional<T>(
        self,
        field: &str,
        reader: impl FnOnce(Self, &str) -> Result<T, RecordingError>,
    ) -> Result<Option<T>, RecordingError> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => reader(self, field).map(Some),
        }
    }

    fn u64(self, field: &str) -> Result<u64, RecordingError> {
        self.read(field, "a whole number", Value::as_u64)
    }

    fn i64(self, field: &str) -> Result<i64, RecordingError> {
        self.read(field, "a whole number", Value::as_i64)
    }

    fn i32(self, field: &str) -> Result<i32, RecordingError> {
        self.read(field, "a small whole number", |value| i32::try_from(value.as_i64()?).ok())
    }

    fn truth(self, field: &str) -> Result<bool, RecordingError> {
        self.read(field, "true or false", Value::as_bool)
    }

    fn text(self, field: &str) -> Result<&'a str, RecordingError> {
        self.read(field, "a text", Value::as_str)
    }

    fn named<T>(
        self,
        field: &str,
        what: &str,
        from_name: impl Fn(&str) -> Option<T>,
    ) -> Result<T, RecordingError> {
        let found = from_name(self.text(field)?);
        found.ok_or_else(|| self.error(field, &format!("is no {what}")))
    }

    fn list(self, field: &str) -> Result<&'a [Value], RecordingError> {
        self.read(field, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    fn object(self, field: &str) -> Result<&'a Map<String, Value>, RecordingError> {
        self.read(field, "an object", Value::as_object)
    }

    fn duration(self, field: &str) -> Result<Duration, RecordingError> {
        self.u64(field).map(Duration::from_nanos)
    }

    fn parsed<T: FromStr>(self, field: &str) -> Result<T, RecordingError> {
        self.read(field, "well-formed", |value| value.as_str()?.parse().ok())
    }

    fn address(self, field: &str) -> Result<ServerAddress, RecordingError> {
        self.parsed(field)
    }

    fn addresses(self, field: &str) -> Result<Vec<ServerAddress>, RecordingError> {
        self.read(field, "a list of addresses", |value| {
            value.as_array()?.iter().map(|address| address.as_str()?.parse().ok()).collect()
        })
    }

    fn tags(self, field: &str) -> Result<TagSet, RecordingError> {
        self.read(field, "a map of texts", |value| {
            value
                .as_object()?
                .iter()
                .map(|(name, tag)| Some((name.as_str(), tag.as_str()?)))
                .collect()
        })
    }

    fn topology_version(self, field: &str) -> Result<TopologyVersion, RecordingError> {
        let inner = Fields(self.object(field)?);
        let process_id: ObjectId = inner.parsed("processId")?;
        Ok(TopologyVersion { process_id, counter: inner.i64("counter")? })
    }

    fn last_write(self, field: &str) -> Result<LastWrite, RecordingError> {
        let inner = Fields(self.object(field)?);
        let date = inner.optional("lastWriteDate_ms", Fields::i64)?;
        let op_time = inner.optional("opTime", |fields, name| {
            let inner = Fields(fields.object(name)?);
            Ok(OpTime::new(inner.i64("t")?, Timestamp::from_u64(inner.u64("ts")?)))
        })?;
        Ok(LastWrite { op_time, last_write_date: date.map(WallTime) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(line: &str) -> String {
        input(line).unwrap_err().to_string()
    }

    #[test]
    fn damaged_lines_say_what_is_wrong() {
        assert!(problem("{").contains("not a JSON object"));
        assert!(problem("[]").contains("not a JSON object"));
        assert!(problem("{}").contains("\"t_ns\" is missing"));
        assert!(problem(r#"{"t_ns":1,"input":"guess"}"#).contains("which is none"));
        let bad_server = r#"{"t_ns":1,"input":"serverCheckWanted","server":"a:b:c"}"#;
        assert!(problem(bad_server).contains("\"server\" is not well-formed"));
        assert!(matches!(
            input(&" ".repeat(MAX_LINE_LENGTH + 1)),
            Err(RecordingError::TooLong(length)) if length == MAX_LINE_LENGTH + 1
        ));
    }

    #[test]
    fn other_versions_are_refused() {
        let line = r#"{"recording":2}"#;
        assert_eq!(start(line), Err(RecordingError::Version { found: 2 }));
    }
}
