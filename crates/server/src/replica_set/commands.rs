//! The commands of a replica set: documents to requests, answers to documents.
//!
//! What members say to each other is in `quorate-wire`; here are the administrator's commands and the
//! table that joins both. docs/replication-rules.md#errors and #tools.

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, doc};
use quorate_node::{CommandError, ErrorCode};
use quorate_protocol::ServerAddress;
use quorate_replication::{Reply, Request};
use quorate_wire::replica_set as wire;

/// How long a step-down lasts unless the command says so.
const DEFAULT_STEP_DOWN: Duration = Duration::from_secs(60);
/// How long a step-down waits for a secondary unless the command says so.
const DEFAULT_CATCH_UP: Duration = Duration::from_secs(10);

/// The request that a command makes; none if it is not one of these.
pub(super) fn request(command: &Document) -> Option<Result<Request, CommandError>> {
    let name = command.keys().next()?;
    let parsed = match name.as_str() {
        "replSetHeartbeat" => wire::parse_heartbeat_request(command).map(Request::Heartbeat),
        "replSetRequestVotes" => wire::parse_vote_request(command).map(Request::Vote),
        "replSetUpdatePosition" => {
            wire::parse_position_report(command).map(Request::UpdatePosition)
        }
        "replSetInitiate" => return Some(initiate(command)),
        "replSetReconfig" => return Some(reconfig(command)),
        "replSetStepDown" => return Some(step_down(command)),
        "replSetStepUp" => Ok(Request::StepUp { skip_dry_run: flag(command, "skipDryRun") }),
        "replSetFreeze" => return Some(seconds(command, "replSetFreeze").map(Request::Freeze)),
        "replSetSyncFrom" => return Some(sync_from(command)),
        "replSetMaintenance" => Ok(Request::Maintenance(flag(command, "replSetMaintenance"))),
        _ => return None,
    };
    Some(parsed.map_err(|error| CommandError::new(ErrorCode::TYPE_MISMATCH, error.to_string())))
}

fn initiate(command: &Document) -> Result<Request, CommandError> {
    match command.get("replSetInitiate") {
        Some(Bson::Document(config)) if !config.is_empty() => {
            Ok(Request::Initiate(Some(Box::new(config_of(config)?))))
        }
        Some(Bson::Document(_) | Bson::Null) | None => Ok(Request::Initiate(None)),
        Some(other) if whole(other).is_some() => Ok(Request::Initiate(None)),
        Some(_) => Err(CommandError::type_mismatch("replSetInitiate must be a document")),
    }
}

fn reconfig(command: &Document) -> Result<Request, CommandError> {
    let Some(Bson::Document(config)) = command.get("replSetReconfig") else {
        return Err(CommandError::bad_value("replSetReconfig must be a configuration document"));
    };
    let max_time = command.get("maxTimeMS").and_then(whole).and_then(|ms| u64::try_from(ms).ok());
    Ok(Request::Reconfig {
        config: Box::new(config_of(config)?),
        force: flag(command, "force"),
        max_time: max_time.map(Duration::from_millis),
    })
}

fn config_of(document: &Document) -> Result<quorate_protocol::ReplicaSetConfig, CommandError> {
    // 93 is how clients know a bad configuration, whatever is wrong with it.
    wire::parse_config(document).map_err(|error| {
        CommandError::new(ErrorCode::INVALID_REPLICA_SET_CONFIG, error.to_string())
    })
}

fn step_down(command: &Document) -> Result<Request, CommandError> {
    let period = match command.get("replSetStepDown") {
        Some(Bson::Boolean(_)) | None => DEFAULT_STEP_DOWN,
        Some(_) => match seconds(command, "replSetStepDown")? {
            Duration::ZERO => DEFAULT_STEP_DOWN,
            period => period,
        },
    };
    let force = flag(command, "force");
    let catch_up_period = match command.get("secondaryCatchUpPeriodSecs") {
        Some(_) => seconds(command, "secondaryCatchUpPeriodSecs")?,
        None if force => Duration::ZERO,
        None => DEFAULT_CATCH_UP.min(period / 2),
    };
    Ok(Request::StepDown { period, catch_up_period, force })
}

fn sync_from(command: &Document) -> Result<Request, CommandError> {
    let target = command.get_str("replSetSyncFrom").map_err(|_| {
        CommandError::type_mismatch("replSetSyncFrom must name a member as host:port")
    })?;
    let address: ServerAddress =
        target.parse().map_err(|error| CommandError::bad_value(format!("{target}: {error}")))?;
    Ok(Request::SyncFrom(address))
}

fn flag(command: &Document, name: &str) -> bool {
    match command.get(name) {
        Some(Bson::Boolean(flag)) => *flag,
        Some(other) => whole(other).is_some_and(|number| number != 0),
        None => false,
    }
}

fn seconds(command: &Document, name: &str) -> Result<Duration, CommandError> {
    let number = command.get(name).and_then(whole).and_then(|secs| u64::try_from(secs).ok());
    number.map(Duration::from_secs).ok_or_else(|| {
        CommandError::type_mismatch(format!("{name} must be a number of seconds from 0 up"))
    })
}

pub(super) fn whole(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.fract() == 0.0 => Some(*number as i64),
        _ => None,
    }
}

/// The command that a request makes, encoded.
pub(super) fn request_body(request: &Request) -> Result<RawDocumentBuf, bson::error::Error> {
    let mut command = match request {
        Request::UpdatePosition(report) => return Ok(wire::position_report_body(report)),
        Request::Heartbeat(heartbeat) => wire::heartbeat_request_document(heartbeat),
        Request::Vote(vote) => wire::vote_request_document(vote),
        Request::StepUp { skip_dry_run } => {
            doc! { "replSetStepUp": 1, "skipDryRun": *skip_dry_run }
        }
        Request::Initiate(config) => doc! {
            "replSetInitiate": config.as_ref().map(|config| wire::config_document(config)),
        },
        Request::Reconfig { config, force, .. } => {
            doc! { "replSetReconfig": wire::config_document(config), "force": *force }
        }
        Request::StepDown { period, force, .. } => {
            doc! { "replSetStepDown": period.as_secs() as i64, "force": *force }
        }
        Request::Freeze(period) => doc! { "replSetFreeze": period.as_secs() as i64 },
        Request::SyncFrom(address) => doc! { "replSetSyncFrom": address.as_str() },
        Request::Maintenance(on) => doc! { "replSetMaintenance": *on },
    };
    command.insert("$db", "admin");
    RawDocumentBuf::try_from(&command)
}

/// The answer of another member; none if it makes no sense.
pub(super) fn parse_reply(request: &Request, body: &Document) -> Option<Reply> {
    if body.get("ok").and_then(whole) != Some(1) {
        return Some(Reply::Refused {
            code: body.get_i32("code").unwrap_or(1),
            message: body.get_str("errmsg").unwrap_or_default().to_owned(),
        });
    }
    match request {
        Request::Heartbeat(_) => {
            wire::parse_heartbeat_reply(body).ok().map(|reply| Reply::Heartbeat(Box::new(reply)))
        }
        Request::Vote(_) => wire::parse_vote_reply(body).ok().map(Reply::Vote),
        _ => Some(Reply::Done),
    }
}

/// The document of an answer.
pub(super) fn reply_document(reply: &Reply) -> Document {
    match reply {
        Reply::Heartbeat(reply) => wire::heartbeat_reply_document(reply),
        Reply::Vote(reply) => wire::vote_reply_document(reply),
        Reply::Done => doc! { "ok": 1.0 },
        Reply::SyncFrom { previous, warning } => {
            let mut document = doc! {};
            if let Some(previous) = previous {
                document.insert("prevSyncTarget", previous.as_str());
            }
            if let Some(warning) = warning {
                document.insert("warning", warning.as_str());
            }
            document.insert("ok", 1.0);
            document
        }
        Reply::Refused { code, message } => {
            CommandError::new(ErrorCode(*code), message.clone()).reply()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_down_has_the_defaults_of_the_manual() {
        let parsed = request(&doc! { "replSetStepDown": 60 }).unwrap().unwrap();
        let expected = Request::StepDown {
            period: Duration::from_secs(60),
            catch_up_period: Duration::from_secs(10),
            force: false,
        };
        assert_eq!(parsed, expected);
        let parsed = request(&doc! { "replSetStepDown": 5, "force": true }).unwrap().unwrap();
        assert!(matches!(parsed, Request::StepDown { catch_up_period: Duration::ZERO, .. }));
    }

    #[test]
    fn a_bad_configuration_is_93_and_names_the_field() {
        let bad = doc! { "replSetInitiate": { "_id": "rs0", "members": [{ "_id": "x" }] } };
        let error = request(&bad).unwrap().unwrap_err();
        assert_eq!(error.code.0, 93);
        assert!(error.message.contains("members._id"), "{}", error.message);
        assert!(request(&doc! { "ping": 1 }).is_none());
    }
}
