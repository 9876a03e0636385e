//! Faults on request, for the test suites of drivers.
//!
//! Owns the `failCommand` fail point: which commands it hits, how often, and what happens to them.
//! Blocking and closing are left to whoever owns the connection. The shape of the command is in
//! `transactions/tests/README.md` of the driver specifications, under "Server Fail Point".

use std::time::Duration;

use bson::{Bson, Document};

use crate::context::{Command, Context};
use crate::error::{CommandError, ErrorCode};
use crate::fields::{Fields, whole_number};

/// What a fail point does to a command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injection {
    /// Wait this long first.
    pub block: Option<Duration>,
    /// Close the connection instead of answering.
    pub close_connection: bool,
    /// Answer with this error instead of running the command.
    pub error: Option<CommandError>,
    /// Run the command and add this to its reply.
    pub write_concern_error: Option<Document>,
    /// Labels for the reply that carries the write concern error.
    pub labels: Vec<String>,
}

/// The state of `failCommand`.
#[derive(Debug, Default)]
pub(crate) struct FailPoints {
    fail_command: Option<FailCommand>,
    /// Whether every command with a time limit is to exceed it.
    time_is_always_over: bool,
    /// How often it has been hit, so that tests can tell.
    times_entered: i64,
}

#[derive(Debug)]
struct FailCommand {
    mode: Mode,
    commands: Vec<String>,
    application: Option<String>,
    namespace: Option<String>,
    injection: Injection,
}

#[derive(Debug, PartialEq)]
enum Mode {
    AlwaysOn,
    Times(i64),
    Skip(i64),
}

impl FailPoints {
    /// Carries out `configureFailPoint`. Returns how often the fail point was hit before.
    pub(crate) fn configure(&mut self, command: &Document) -> Result<i64, CommandError> {
        let fields = Fields::new(command, "configureFailPoint");
        let name = fields.required_string("configureFailPoint")?;
        match name {
            "failCommand" => {}
            "maxTimeAlwaysTimeOut" => {
                self.time_is_always_over = command.get_str("mode").is_ok_and(|m| m == "alwaysOn");
                return Ok(self.times_entered);
            }
            // Time limits hold only while nothing overrules them, which nothing here does.
            "maxTimeNeverTimeOut" => return Ok(self.times_entered),
            _ => {
                return Err(CommandError::new(
                    ErrorCode(163),
                    format!("{name} not found; use failCommand or maxTimeAlwaysTimeOut"),
                ));
            }
        }
        self.fail_command = match command.get("mode") {
            Some(Bson::String(mode)) if mode == "off" => None,
            Some(mode) => {
                let mode = parse_mode(mode)?;
                let data = fields.document("data")?.cloned().unwrap_or_default();
                Some(FailCommand::parse(mode, &data)?)
            }
            None => return Err(CommandError::bad_value("configureFailPoint needs a mode")),
        };
        Ok(self.times_entered)
    }

    pub(crate) fn intercept(&mut self, context: &Context, command: &Command) -> Option<Injection> {
        if self.time_is_always_over && command.max_time().is_some() {
            let error =
                CommandError::new(ErrorCode::MAX_TIME_MS_EXPIRED, "operation exceeded time limit");
            return Some(Injection { error: Some(error), ..Injection::default() });
        }
        let active = self.fail_command.as_mut()?;
        if !active.concerns(context, command) {
            return None;
        }
        match &mut active.mode {
            Mode::AlwaysOn => {}
            Mode::Times(0) => return None,
            Mode::Times(left) => *left -= 1,
            Mode::Skip(0) => {}
            Mode::Skip(left) => {
                *left -= 1;
                return None;
            }
        }
        self.times_entered += 1;
        let injection = active.injection.clone();
        if active.mode == Mode::Times(0) {
            self.fail_command = None;
        }
        Some(injection)
    }
}

impl FailCommand {
    fn parse(mode: Mode, data: &Document) -> Result<Self, CommandError> {
        let fields = Fields::new(data, "configureFailPoint.data");
        let strings = |name: &str| -> Result<Vec<String>, CommandError> {
            let items = fields.array(name)?.unwrap_or_default();
            Ok(items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect())
        };
        let labels = strings("errorLabels")?;
        let error = fields.integer("errorCode")?.map(|code| {
            let code = ErrorCode(i32::try_from(code).unwrap_or(i32::MAX));
            let message = "Failing command via 'failCommand' failpoint";
            let mut error = CommandError::new(code, message);
            error.labels.clone_from(&labels);
            if let Ok(Some(extra)) = fields.document("errorExtraInfo") {
                error.details.extend(extra.clone());
            }
            error
        });
        let block = match fields.flag("blockConnection")? {
            true => {
                let millis = fields.count("blockTimeMS")?.unwrap_or(0);
                Some(Duration::from_millis(millis))
            }
            false => None,
        };
        Ok(Self {
            mode,
            commands: strings("failCommands")?,
            application: fields.string("appName")?.map(str::to_owned),
            namespace: fields.string("namespace")?.map(str::to_owned),
            injection: Injection {
                block,
                close_connection: fields.flag("closeConnection")?,
                error,
                write_concern_error: fields.document("writeConcernError")?.cloned(),
                labels,
            },
        })
    }

    fn concerns(&self, context: &Context, command: &Command) -> bool {
        let name = command.name();
        let named = self.commands.iter().any(|known| {
            known == name || is_hello(known) && is_hello(name) && known.eq_ignore_ascii_case(name)
        });
        let application = self
            .application
            .as_deref()
            .is_none_or(|wanted| context.client.application_name() == Some(wanted));
        let namespace = self.namespace.as_deref().is_none_or(|wanted| {
            let collection = command.body.get_str(name).unwrap_or("");
            wanted.split_once('.') == Some((command.database(), collection))
        });
        // Otherwise nobody could switch it off.
        named && application && namespace && name != "configureFailPoint"
    }
}

fn is_hello(name: &str) -> bool {
    name.eq_ignore_ascii_case("hello") || name.eq_ignore_ascii_case("isMaster")
}

fn parse_mode(mode: &Bson) -> Result<Mode, CommandError> {
    let invalid = || CommandError::bad_value("mode is \"off\", \"alwaysOn\", {times} or {skip}");
    match mode {
        Bson::String(mode) if mode == "alwaysOn" => Ok(Mode::AlwaysOn),
        Bson::Document(mode) => {
            if let Some(times) = mode.get("times") {
                whole_number(times).filter(|times| *times >= 0).map(Mode::Times).ok_or_else(invalid)
            } else if let Some(skip) = mode.get("skip") {
                whole_number(skip).filter(|skip| *skip >= 0).map(Mode::Skip).ok_or_else(invalid)
            } else {
                Err(invalid())
            }
        }
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{Client, Interrupt, Now};
    use bson::doc;
    use quorate_protocol::{MonotonicTime, WallTime};
    use std::sync::Arc;

    fn context(application: &str) -> Context {
        let metadata = doc! {"application": {"name": application}};
        Context {
            now: Now { wall: WallTime(0), monotonic: MonotonicTime::ZERO },
            client: Arc::new(Client { metadata, ..Client::default() }),
            may_wait: true,
            interrupt: Arc::new(Interrupt::default()),
        }
    }

    fn points(mode: Bson, data: Document) -> FailPoints {
        let mut points = FailPoints::default();
        points
            .configure(&doc! {"configureFailPoint": "failCommand", "mode": mode, "data": data})
            .unwrap();
        points
    }

    fn hits(points: &mut FailPoints, name: &str) -> bool {
        points.intercept(&context("app"), &Command::new(doc! {name: 1})).is_some()
    }

    #[test]
    fn times_counts_down_and_skip_waits() {
        let data = doc! {"failCommands": ["find"], "errorCode": 6};
        let mut twice = points(Bson::Document(doc! {"times": 2}), data.clone());
        assert!(!hits(&mut twice, "insert"));
        assert!(hits(&mut twice, "find") && hits(&mut twice, "find") && !hits(&mut twice, "find"));
        let mut later = points(Bson::Document(doc! {"skip": 1}), data);
        assert!(!hits(&mut later, "find") && hits(&mut later, "find") && hits(&mut later, "find"));
        later.configure(&doc! {"configureFailPoint": "failCommand", "mode": "off"}).unwrap();
        assert!(!hits(&mut later, "find"));
    }

    #[test]
    fn the_error_carries_code_and_labels() {
        let data = doc! {
            "failCommands": ["find"], "errorCode": 91, "errorLabels": ["RetryableWriteError"],
            "appName": "app",
        };
        let mut points = points("alwaysOn".into(), data);
        let command = Command::new(doc! {"find": "c"});
        assert_eq!(points.intercept(&context("other"), &command), None);
        let error = points.intercept(&context("app"), &command).unwrap().error.unwrap();
        assert_eq!((error.code.0, error.labels.len()), (91, 1));
    }

    #[test]
    fn unknown_fail_points_are_refused() {
        let mut points = FailPoints::default();
        let unknown = doc! {"configureFailPoint": "explode", "mode": "alwaysOn"};
        assert!(points.configure(&unknown).is_err());
        let nothing = doc! {"configureFailPoint": "failCommand"};
        assert!(points.configure(&nothing).is_err());
    }
}
