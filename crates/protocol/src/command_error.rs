//! What a server says went wrong, as a plain value. `quorate-wire` reads it from replies.

use std::fmt;
use std::time::Duration;

use crate::TopologyVersion;

/// A failure that a server reported.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CommandError {
    /// `ok: 1`: the command ran, and something in it failed.
    pub ok: bool,
    /// `code`.
    pub code: Option<i32>,
    /// `codeName`.
    pub code_name: Option<String>,
    /// `errmsg`, or `$err` or `err` of very old servers; empty if the server gave none.
    pub message: String,
    /// `errorLabels`.
    pub labels: Vec<String>,
    /// `topologyVersion`, which tells whether the failure is older than what is known.
    pub topology_version: Option<TopologyVersion>,
    /// `writeConcernError`.
    pub write_concern_error: Option<WriteConcernError>,
    /// Whether there is a `writeErrors` with anything in it.
    pub has_write_errors: bool,
    /// `baseBackoffMS`: how long an overloaded server wants to be left alone, to begin with.
    pub base_backoff_ms: Option<u32>,
}

impl CommandError {
    /// `baseBackoffMS`, if the server named a time.
    pub fn base_backoff(&self) -> Option<Duration> {
        let millis = self.base_backoff_ms.filter(|&millis| millis > 0)?;
        Some(Duration::from_millis(millis.into()))
    }

    /// The part that may say that the server has changed its state: the error at the top, or the one of
    /// the write concern. `None` if only single writes failed, which says nothing about the server.
    pub fn of_server(&self) -> Option<Self> {
        let (code, message) = match (&self.write_concern_error, self.ok) {
            (Some(concern), true) => (concern.code, concern.message.clone()),
            (None, true) if self.message.is_empty() => return None,
            _ => (self.code, self.message.clone()),
        };
        let topology_version = self.topology_version;
        Some(Self { code, message, topology_version, ..Self::default() })
    }

    /// Whether the server gave the error this label.
    pub fn has_label(&self, label: &str) -> bool {
        self.labels.iter().any(|own| own == label)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.write_concern_error, self.ok) {
            (Some(error), true) => write_failure(f, error.code, &error.code_name, &error.message),
            _ if self.ok && self.message.is_empty() => f.write_str("some writes failed"),
            _ => write_failure(f, self.code, &self.code_name, &self.message),
        }
    }
}

impl std::error::Error for CommandError {}

fn write_failure(
    f: &mut fmt::Formatter<'_>,
    code: Option<i32>,
    code_name: &Option<String>,
    message: &str,
) -> fmt::Result {
    f.write_str(if message.is_empty() { "the server gave no reason" } else { message })?;
    match (code, code_name) {
        (Some(code), Some(name)) => write!(f, " ({name}, code {code})"),
        (Some(code), None) => write!(f, " (code {code})"),
        (None, Some(name)) => write!(f, " ({name})"),
        (None, None) => Ok(()),
    }
}

/// The write was done, but not as widely as was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct WriteConcernError {
    /// `code`.
    pub code: Option<i32>,
    /// `codeName`.
    pub code_name: Option<String>,
    /// `errmsg`.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_top_and_the_write_concern_speak_of_the_server() {
        let concern = WriteConcernError { code: Some(91), ..WriteConcernError::default() };
        let at_the_top = CommandError { code: Some(11600), ..CommandError::default() };
        assert_eq!(at_the_top.of_server().unwrap().code, Some(11600));
        let both =
            CommandError { write_concern_error: Some(concern.clone()), ..at_the_top.clone() };
        assert_eq!(both.of_server().unwrap().code, Some(11600));
        let within = CommandError {
            ok: true,
            write_concern_error: Some(concern),
            ..CommandError::default()
        };
        assert_eq!(within.of_server().unwrap().code, Some(91));
        let writes = CommandError { ok: true, has_write_errors: true, ..CommandError::default() };
        assert_eq!(writes.of_server(), None);
    }
}
