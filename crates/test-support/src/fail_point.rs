//! The `failCommand` fail point: which commands fail, how, and how often.

use std::time::Duration;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;

/// What happens to which commands.
#[derive(Clone, Debug, PartialEq)]
pub struct FailPoint {
    commands: Vec<String>,
    app_name: Option<String>,
    close_connection: bool,
    block: Option<Duration>,
    error_code: Option<i32>,
    error_labels: Vec<String>,
    write_concern_error: Option<RawDocumentBuf>,
    /// How often it still strikes; `None` is for ever.
    times: Option<i64>,
}

/// What a fail point does to one command.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Strike {
    pub(crate) block: Option<Duration>,
    pub(crate) close_connection: bool,
    pub(crate) reply: Option<RawDocumentBuf>,
    pub(crate) write_concern_error: Option<RawDocumentBuf>,
}

/// A `configureFailPoint` command that this server does not understand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailPointError(pub String);

impl std::fmt::Display for FailPointError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "configureFailPoint: {}", self.0)
    }
}

impl std::error::Error for FailPointError {}

impl FailPoint {
    /// Reads a `configureFailPoint` command; `None` if it turns the fail point off. Fails if it is
    /// about another fail point, or cannot be read.
    pub fn from_command(command: &RawDocument) -> Result<Option<Self>, FailPointError> {
        let wrong = |what: &str| FailPointError(what.to_owned());
        if command.get_str("configureFailPoint").ok() != Some("failCommand") {
            return Err(wrong("only failCommand is known"));
        }
        let times = match command.get("mode").ok().flatten() {
            Some(RawBsonRef::String("off")) => return Ok(None),
            Some(RawBsonRef::String("alwaysOn")) => None,
            Some(RawBsonRef::Document(mode)) => {
                Some(number(mode, "times").ok_or_else(|| wrong("the mode has no times"))?)
            }
            _ => return Err(wrong("the mode cannot be read")),
        };
        let data = command.get_document("data").map_err(|_| wrong("there is no data"))?;
        let texts = |key| {
            let array = data.get_array(key).ok();
            let texts = array.into_iter().flatten().filter_map(|value| value.ok()?.as_str());
            texts.map(str::to_owned).collect::<Vec<_>>()
        };
        let flag = |key| data.get_bool(key).unwrap_or(false);
        let millis = number(data, "blockTimeMS").and_then(|millis| u64::try_from(millis).ok());
        Ok(Some(Self {
            commands: texts("failCommands"),
            app_name: data.get_str("appName").ok().map(str::to_owned),
            close_connection: flag("closeConnection"),
            block: millis.filter(|_| flag("blockConnection")).map(Duration::from_millis),
            error_code: number(data, "errorCode").and_then(|code| i32::try_from(code).ok()),
            error_labels: texts("errorLabels"),
            write_concern_error: data
                .get_document("writeConcernError")
                .ok()
                .map(|error| error.to_owned()),
            times,
        }))
    }

    /// What happens to a command, if anything does; that counts as one time.
    pub(crate) fn strike(&mut self, command: &str, app_name: Option<&str>) -> Option<Strike> {
        let meant = self.commands.iter().any(|name| name == command)
            && self.app_name.as_deref().is_none_or(|name| Some(name) == app_name);
        if !meant || self.times == Some(0) {
            return None;
        }
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        let reply = self.error_code.map(|code| {
            let mut reply = rawdoc! {
                "ok": 0.0, "code": code, "errmsg": "failing command via failCommand fail point"
            };
            if !self.error_labels.is_empty() {
                let labels = self.error_labels.iter().map(String::as_str);
                reply.append(cstr!("errorLabels"), bson::RawArrayBuf::from_iter(labels));
            }
            reply
        });
        Some(Strike {
            block: self.block,
            close_connection: self.close_connection,
            reply,
            write_concern_error: self.write_concern_error.clone(),
        })
    }
}

fn number(document: &RawDocument, key: &str) -> Option<i64> {
    match document.get(key).ok().flatten()? {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        RawBsonRef::Double(number) => Some(number as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_strikes_as_often_as_it_says_and_only_whom_it_means() {
        let command = rawdoc! {
            "configureFailPoint": "failCommand",
            "mode": { "times": 2 },
            "data": { "failCommands": ["find"], "errorCode": 91, "appName": "a" },
        };
        let mut point = FailPoint::from_command(&command).unwrap().unwrap();
        assert_eq!(point.strike("insert", Some("a")), None);
        assert_eq!(point.strike("find", Some("b")), None);
        for _ in 0..2 {
            let reply = point.strike("find", Some("a")).unwrap().reply.unwrap();
            assert_eq!(reply.get_i32("code").unwrap(), 91);
        }
        assert_eq!(point.strike("find", Some("a")), None);
    }

    #[test]
    fn off_is_no_fail_point_and_others_are_unknown() {
        let off = rawdoc! { "configureFailPoint": "failCommand", "mode": "off" };
        assert_eq!(FailPoint::from_command(&off), Ok(None));
        let other = rawdoc! { "configureFailPoint": "other", "mode": "off" };
        assert!(FailPoint::from_command(&other).is_err());
    }
}
