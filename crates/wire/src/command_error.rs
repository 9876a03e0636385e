//! Reading what a reply says went wrong.
//!
//! A command can fail in four places: at the top (`ok: 0`), in `writeConcernError`, in
//! `writeErrors`, and, on very old servers, in `err` of `getLastError` or `$err` of a failed query.
//! What a failure means (retry, clear the pool, give up) is left to others.

use bson::raw::{RawBsonRef, RawDocument};
use quorate_protocol::{CommandError, WriteConcernError};

use crate::field::{Field, FieldError, elements};
use crate::hello::parse_topology_version;
use crate::raw_fields::RawFields;

/// How many error labels are kept. Servers send two or three.
const MAX_ERROR_LABELS: usize = 32;

/// What a reply says went wrong; `None` if nothing did.
///
/// # Errors
///
/// If the reply is not BSON, or `ok` or `topologyVersion` cannot be read. Oddities in the other
/// fields are passed over: a failure that is badly described is still that failure.
pub fn command_error(reply: &RawDocument) -> Result<Option<CommandError>, FieldError> {
    if is_plain_success(reply) {
        return Ok(None);
    }
    let mut error = CommandError::default();
    let mut found = false;
    let mut legacy_message = None;
    for element in elements(reply, "the reply") {
        let element = element?;
        match element.key().as_str() {
            "ok" => error.ok = Field::new("ok", element).truth()?,
            "code" => error.code = lenient_code(element.value().ok()),
            "codeName" => error.code_name = lenient_text(element.value().ok()),
            "errmsg" => error.message = lenient_text(element.value().ok()).unwrap_or_default(),
            // `err` is null where nothing failed.
            "err" | "$err" => legacy_message = lenient_text(element.value().ok()),
            "errorLabels" => error.labels = lenient_labels(element.value().ok()),
            "topologyVersion" => {
                let document = Field::new("topologyVersion", element).document()?;
                error.topology_version = document.map(parse_topology_version).transpose()?;
            }
            "writeConcernError" => {
                if let Ok(RawBsonRef::Document(document)) = element.value() {
                    error.write_concern_error = Some(parse_write_concern_error(document));
                }
            }
            "baseBackoffMS" => {
                let millis = lenient_code(element.value().ok());
                error.base_backoff_ms = millis.and_then(|millis| u32::try_from(millis).ok());
            }
            "writeErrors" => {
                if let Ok(RawBsonRef::Array(array)) = element.value() {
                    error.has_write_errors = !array.is_empty();
                }
            }
            _ => {}
        }
    }
    if let Some(message) = legacy_message {
        found = true;
        error.message = message;
    }
    found |= !error.ok || error.write_concern_error.is_some() || error.has_write_errors;
    Ok(found.then_some(error))
}

/// Whether a reply says `ok` and has none of the fields that could say otherwise. Most replies are such, and
/// need no further look. `false` decides nothing.
fn is_plain_success(reply: &RawDocument) -> bool {
    let mut fields = RawFields::of(reply);
    let mut ok = false;
    for field in &mut fields {
        match field.key() {
            b"ok" if field.is_true() => ok = true,
            b"ok" | b"code" | b"codeName" | b"errmsg" | b"err" | b"$err" | b"errorLabels"
            | b"topologyVersion" | b"writeConcernError" | b"baseBackoffMS" | b"writeErrors" => {
                return false;
            }
            key if !key.is_ascii() => return false,
            _ => {}
        }
    }
    ok && fields.is_at_end()
}

fn parse_write_concern_error(document: &RawDocument) -> WriteConcernError {
    let get = |key| document.get(key).ok().flatten();
    WriteConcernError {
        code: lenient_code(get("code")),
        code_name: lenient_text(get("codeName")),
        message: lenient_text(get("errmsg")).unwrap_or_default(),
    }
}

fn lenient_code(value: Option<RawBsonRef<'_>>) -> Option<i32> {
    match value? {
        RawBsonRef::Int32(code) => Some(code),
        RawBsonRef::Int64(code) => i32::try_from(code).ok(),
        RawBsonRef::Double(code) if code.fract() == 0.0 => i32::try_from(code as i64).ok(),
        _ => None,
    }
}

fn lenient_text(value: Option<RawBsonRef<'_>>) -> Option<String> {
    value?.as_str().map(str::to_owned)
}

fn lenient_labels(value: Option<RawBsonRef<'_>>) -> Vec<String> {
    let Some(RawBsonRef::Array(labels)) = value else { return Vec::new() };
    let texts = labels.into_iter().map_while(Result::ok).filter_map(RawBsonRef::as_str);
    texts.take(MAX_ERROR_LABELS).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;
    use quorate_protocol::ObjectId;

    #[test]
    fn success_is_no_error() {
        for reply in [
            rawdoc! { "ok": 1 },
            rawdoc! { "ok": 1.0, "writeErrors": [] },
            rawdoc! { "err": bson::RawBson::Null, "ok": true },
        ] {
            assert_eq!(command_error(&reply), Ok(None));
        }
    }

    #[test]
    fn a_state_change_error_carries_code_labels_and_topology_version() {
        let reply = rawdoc! {
            "ok": 0.0,
            "errmsg": "not primary",
            "code": 10107_i64,
            "codeName": "NotWritablePrimary",
            "errorLabels": ["RetryableWriteError", 3],
            "topologyVersion": {
                "processId": bson::oid::ObjectId::from_bytes([9; 12]),
                "counter": 4_i64,
            },
        };
        let error = command_error(&reply).unwrap().unwrap();
        assert!(!error.ok && error.code == Some(10107));
        assert!(error.has_label("RetryableWriteError"));
        assert_eq!(error.labels.len(), 1);
        let version = error.topology_version.unwrap();
        assert_eq!((version.process_id, version.counter), (ObjectId::from_bytes([9; 12]), 4));
        assert_eq!(error.to_string(), "not primary (NotWritablePrimary, code 10107)");
    }

    #[test]
    fn failures_inside_a_command_that_ran_are_found() {
        let reply = rawdoc! {
            "ok": 1,
            "n": 1,
            "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" },
        };
        let error = command_error(&reply).unwrap().unwrap();
        assert!(error.ok && !error.has_write_errors);
        assert_eq!(error.write_concern_error.as_ref().unwrap().code, Some(64));
        assert_eq!(error.to_string(), "waiting for replication timed out (code 64)");

        let reply = rawdoc! { "ok": 1, "writeErrors": [{ "index": 0, "code": 11000 }] };
        assert!(command_error(&reply).unwrap().unwrap().has_write_errors);
    }

    #[test]
    fn the_words_of_very_old_servers_are_understood() {
        let failed = rawdoc! { "$err": "not master and slaveOk=false", "code": 13435 };
        let error = command_error(&failed).unwrap().unwrap();
        assert_eq!((error.code, &*error.message), (Some(13435), "not master and slaveOk=false"));

        let failed = rawdoc! { "ok": 1, "err": "not master", "code": 10058 };
        let error = command_error(&failed).unwrap().unwrap();
        assert_eq!((error.code, &*error.message), (Some(10058), "not master"));
    }

    #[test]
    fn a_badly_described_failure_is_still_a_failure() {
        let reply = rawdoc! { "ok": 0, "code": "x", "errmsg": 3, "errorLabels": "y" };
        let error = command_error(&reply).unwrap().unwrap();
        assert_eq!(error, CommandError::default());
        assert_eq!(error.to_string(), "the server gave no reason");
    }
}
