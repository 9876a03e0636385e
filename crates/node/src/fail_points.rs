//! Faults on request, for the test suites of drivers.
//!
//! Owns the fail points `failCommand` (which commands it hits, how often, and what happens to them),
//! `onPrimaryTransactionalWrite` (the same for statements of retryable writes) and `stopReplProducer`
//! (a secondary copies nothing). Blocking, closing and not copying are left to the owner of the
//! connections. The shape of the command is in
//! `transactions/tests/README.md` of the driver specifications, under "Server Fail Point".
//!
//! `fillDisk` and `moveClock` are Quorate's own: they break the machine under a member, as `quorate prove` does. The
//! owner of the disk and of the clock asks for them in [`MachineFaults`].

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Bson, Document};

use crate::body::CommandBody;
use crate::context::{Command, Context};
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::{Fields, whole_number};
use crate::sessions::SessionId;

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

/// What fail points do to the machine under a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineFaults {
    /// The disk has no room, whatever the system says.
    pub disk_full: bool,
    /// By how many milliseconds the calendar differs from the machine's.
    pub clock_moved: i64,
}

/// How far `moveClock` moves a calendar, at most: a day. Clients refuse cluster times that are a year ahead.
const MAX_CLOCK_MOVE: i64 = 24 * 60 * 60 * 1000;

/// The state of `failCommand`.
#[derive(Debug, Default)]
pub(crate) struct FailPoints {
    machine: MachineFaults,
    fail_command: Option<FailCommand>,
    transactional_write: Option<TransactionalWrite>,
    /// What the next `getMore` commands fail with, once they have their cursor.
    get_more: Option<(Mode, ErrorCode)>,
    /// Sessions whose running command is to end with its connection.
    cut_off: BTreeSet<SessionId>,
    /// Whether every command with a time limit is to exceed it.
    time_is_always_over: bool,
    /// Whether nothing is to be copied from other members.
    copying_is_stopped: bool,
    /// How often it has been hit, so that tests can tell.
    times_entered: i64,
}

#[derive(Debug)]
struct FailCommand {
    mode: Mode,
    /// Whether the error has labels of its own, be they none.
    gives_labels: bool,
    commands: Vec<String>,
    application: Option<String>,
    namespace: Option<String>,
    injection: Injection,
}

/// `onPrimaryTransactionalWrite`.
#[derive(Debug)]
struct TransactionalWrite {
    mode: Mode,
    /// The statement fails with this code instead of being committed.
    code: Option<ErrorCode>,
    close_connection: bool,
}

#[derive(Debug, PartialEq)]
enum Mode {
    AlwaysOn,
    Times(i64),
    Skip(i64),
}

impl FailPoints {
    /// Carries out `configureFailPoint`. Returns how often the fail point was hit before.
    pub(crate) fn configure(&mut self, command: &Document) -> Result<i64> {
        let fields = Fields::new(command, "configureFailPoint");
        let name = fields.required_string("configureFailPoint")?;
        match name {
            "failCommand" => {}
            "onPrimaryTransactionalWrite" => {
                self.transactional_write = match command.get("mode") {
                    Some(Bson::String(mode)) if mode == "off" => None,
                    mode => Some(TransactionalWrite::parse(mode, &fields)?),
                };
                return Ok(self.times_entered);
            }
            "failGetMoreAfterCursorCheckout" => {
                self.get_more = match command.get("mode") {
                    Some(Bson::String(mode)) if mode == "off" => None,
                    Some(mode) => {
                        let data = fields.document("data")?.cloned().unwrap_or_default();
                        let code = data.get("errorCode").and_then(whole_number);
                        let code = code.and_then(|code| i32::try_from(code).ok());
                        let code = code.ok_or_else(|| {
                            fail!(BAD_VALUE, "the fail point needs data.errorCode")
                        })?;
                        Some((parse_mode(mode)?, ErrorCode(code)))
                    }
                    None => refuse!(BAD_VALUE, "configureFailPoint needs a mode"),
                };
                return Ok(self.times_entered);
            }
            "maxTimeAlwaysTimeOut" => {
                self.time_is_always_over = command.get_str("mode").is_ok_and(|m| m == "alwaysOn");
                return Ok(self.times_entered);
            }
            "stopReplProducer" => {
                self.copying_is_stopped = command.get_str("mode").is_ok_and(|m| m == "alwaysOn");
                return Ok(self.times_entered);
            }
            "fillDisk" => {
                self.machine.disk_full = command.get_str("mode").is_ok_and(|m| m == "alwaysOn");
                return Ok(self.times_entered);
            }
            "moveClock" => {
                self.machine.clock_moved = parse_clock_move(command, &fields)?;
                return Ok(self.times_entered);
            }
            // Time limits hold only while nothing overrules them, which nothing here does.
            "maxTimeNeverTimeOut" => return Ok(self.times_entered),
            _ => {
                refuse!(
                    FAIL_POINT_SET_FAILED,
                    "{name} not found; use failCommand, failGetMoreAfterCursorCheckout, fillDisk, \
                         maxTimeAlwaysTimeOut, moveClock, onPrimaryTransactionalWrite or stopReplProducer"
                );
            }
        }
        self.fail_command = match command.get("mode") {
            Some(Bson::String(mode)) if mode == "off" => None,
            Some(mode) => {
                let mode = parse_mode(mode)?;
                let data = fields.document("data")?.cloned().unwrap_or_default();
                Some(FailCommand::parse(mode, &data)?)
            }
            None => refuse!(BAD_VALUE, "configureFailPoint needs a mode"),
        };
        Ok(self.times_entered)
    }

    /// What a `getMore` that has its cursor fails with, if it is to.
    pub(crate) fn take_get_more(&mut self) -> Option<CommandError> {
        let (mode, code) = self.get_more.as_mut()?;
        let hit = match mode {
            Mode::AlwaysOn => true,
            Mode::Times(left) if *left > 0 => {
                *left -= 1;
                true
            }
            Mode::Times(_) => false,
            Mode::Skip(left) if *left > 0 => {
                *left -= 1;
                false
            }
            Mode::Skip(_) => true,
        };
        if !hit {
            return None;
        }
        self.times_entered += 1;
        let message = "Hit the 'failGetMoreAfterCursorCheckout' failpoint";
        Some(CommandError::new(*code, message))
    }

    /// Whether [`Self::intercept`] may do something.
    pub(crate) fn may_intercept(&self) -> bool {
        self.time_is_always_over || self.fail_command.is_some()
    }

    pub(crate) fn intercept(
        &mut self,
        context: &Context,
        command: &Command,
        is_limited: impl FnOnce() -> bool,
    ) -> Option<Injection> {
        if self.time_is_always_over && is_limited() {
            let error = fail!(MAX_TIME_MS_EXPIRED, "operation exceeded time limit");
            return Some(Injection { error: Some(error), ..Injection::default() });
        }
        let active = self.fail_command.as_mut()?;
        if !active.concerns(context, command) {
            return None;
        }
        if !active.mode.hits() {
            return None;
        }
        self.times_entered += 1;
        let mut injection = active.injection.clone();
        // Without labels of its own the error has those of a true one.
        if let Some(error) = injection.error.as_mut().filter(|_| !active.gives_labels) {
            crate::transactions::label(error, &command.body);
        }
        if active.mode == Mode::Times(0) {
            self.fail_command = None;
        }
        Some(injection)
    }
}

impl FailPoints {
    pub(crate) fn copying_is_stopped(&self) -> bool {
        self.copying_is_stopped
    }

    pub(crate) fn machine(&self) -> MachineFaults {
        self.machine
    }

    /// A statement of a retryable write is about to be committed. Fails if it must not be.
    pub(crate) fn on_transactional_write(&mut self, session: &SessionId) -> Result<()> {
        let Some(active) = &mut self.transactional_write else { return Ok(()) };
        if !active.mode.hits() {
            return Ok(());
        }
        self.times_entered += 1;
        if active.close_connection {
            self.cut_off.insert(*session);
        }
        match active.code {
            None => Ok(()),
            Some(code) => {
                let message = "Failing write via 'onPrimaryTransactionalWrite' failpoint";
                Err(CommandError::new(code, message))
            }
        }
    }

    /// Whether the command that a session has just run is to end with its connection.
    pub(crate) fn take_cut_off(&mut self, command: &CommandBody) -> bool {
        if self.cut_off.is_empty() {
            return false;
        }
        let session = SessionId::from_command(command).ok().flatten();
        session.is_some_and(|session| self.cut_off.remove(&session))
    }
}

impl Mode {
    /// Whether this time counts. Uses it up if so.
    fn hits(&mut self) -> bool {
        match self {
            Self::AlwaysOn | Self::Skip(0) => true,
            Self::Times(0) => false,
            Self::Times(left) => {
                *left -= 1;
                true
            }
            Self::Skip(left) => {
                *left -= 1;
                false
            }
        }
    }
}

impl TransactionalWrite {
    fn parse(mode: Option<&Bson>, fields: &Fields<'_>) -> Result<Self> {
        let mode = mode
            .ok_or_else(|| fail!(BAD_VALUE, "configureFailPoint needs a mode"))
            .and_then(parse_mode)?;
        let data = fields.document("data")?.cloned().unwrap_or_default();
        let data = Fields::new(&data, "configureFailPoint.data");
        let code = data.integer("failBeforeCommitExceptionCode")?;
        Ok(Self {
            mode,
            code: code.map(|code| ErrorCode(i32::try_from(code).unwrap_or(i32::MAX))),
            close_connection: data.boolean("closeConnection")?.unwrap_or(true),
        })
    }
}

impl FailCommand {
    fn parse(mode: Mode, data: &Document) -> Result<Self> {
        let fields = Fields::new(data, "configureFailPoint.data");
        let strings = |name: &str| -> Result<Vec<String>> {
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
            gives_labels: fields.has("errorLabels"),
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
        // Otherwise it could not be switched off.
        named && application && namespace && name != "configureFailPoint"
    }
}

fn is_hello(name: &str) -> bool {
    name.eq_ignore_ascii_case("hello") || name.eq_ignore_ascii_case("isMaster")
}

/// By how much `moveClock` moves the calendar: `data.millis`, forwards or backwards.
fn parse_clock_move(command: &Document, fields: &Fields<'_>) -> Result<i64> {
    if command.get_str("mode").is_ok_and(|mode| mode == "off") {
        return Ok(0);
    }
    let data = fields.document("data")?;
    let millis = data.and_then(|data| data.get("millis")).and_then(whole_number);
    millis.filter(|millis| millis.abs() <= MAX_CLOCK_MOVE).ok_or_else(|| {
        fail!(BAD_VALUE, "moveClock needs data.millis, at most a day in either direction")
    })
}

fn parse_mode(mode: &Bson) -> Result<Mode> {
    let invalid = || fail!(BAD_VALUE, "mode is \"off\", \"alwaysOn\", {{times}} or {{skip}}");
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
            may_look_at: None,
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
        points.intercept(&context("app"), &Command::new(doc! {name: 1}), || false).is_some()
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
        assert_eq!(points.intercept(&context("other"), &command, || false), None);
        let error = points.intercept(&context("app"), &command, || false).unwrap().error.unwrap();
        assert_eq!((error.code.0, error.labels.len()), (91, 1));
    }

    #[test]
    fn transactional_writes_fail_before_or_after_their_commit() {
        let session = SessionId::from_bytes([1; 16]);
        let mut points = FailPoints::default();
        let set = |points: &mut FailPoints, mode: Bson, data: Document| {
            let name = "onPrimaryTransactionalWrite";
            points
                .configure(&doc! {"configureFailPoint": name, "mode": mode, "data": data})
                .unwrap()
        };
        assert!(points.on_transactional_write(&session).is_ok());
        set(&mut points, Bson::Document(doc! {"times": 1}), doc! {});
        assert!(!points.take_cut_off(&doc! { "lsid": session.to_lsid() }.into()));
        assert!(points.on_transactional_write(&session).is_ok());
        assert!(points.take_cut_off(&doc! { "lsid": session.to_lsid() }.into()));
        assert!(points.on_transactional_write(&session).is_ok());
        assert!(!points.take_cut_off(&doc! { "lsid": session.to_lsid() }.into()));
        let data = doc! {"failBeforeCommitExceptionCode": 1, "closeConnection": false};
        set(&mut points, Bson::Document(doc! {"skip": 1}), data);
        assert!(points.on_transactional_write(&session).is_ok());
        assert_eq!(points.on_transactional_write(&session).unwrap_err().code, ErrorCode(1));
        assert!(!points.take_cut_off(&doc! { "lsid": session.to_lsid() }.into()));
        set(&mut points, "off".into(), doc! {});
        assert!(points.on_transactional_write(&session).is_ok());
    }

    #[test]
    fn copying_stops_until_the_fail_point_is_off() {
        let mut points = FailPoints::default();
        for (mode, stopped) in [("alwaysOn", true), ("off", false)] {
            points
                .configure(&doc! {"configureFailPoint": "stopReplProducer", "mode": mode})
                .unwrap();
            assert_eq!(points.copying_is_stopped(), stopped);
        }
    }

    #[test]
    fn a_full_disk_and_a_moved_clock_last_until_they_are_off() {
        let mut points = FailPoints::default();
        let set = |points: &mut FailPoints, name: &str, mode: &str, data: Document| {
            points.configure(&doc! {"configureFailPoint": name, "mode": mode, "data": data})
        };
        set(&mut points, "fillDisk", "alwaysOn", doc! {}).unwrap();
        set(&mut points, "moveClock", "alwaysOn", doc! { "millis": -5_000 }).unwrap();
        assert_eq!(points.machine(), MachineFaults { disk_full: true, clock_moved: -5_000 });
        assert!(set(&mut points, "moveClock", "alwaysOn", doc! {}).is_err());
        let beyond = doc! { "millis": MAX_CLOCK_MOVE + 1 };
        assert!(set(&mut points, "moveClock", "alwaysOn", beyond).is_err());
        assert_eq!(points.machine().clock_moved, -5_000, "a refusal changes nothing");
        set(&mut points, "fillDisk", "off", doc! {}).unwrap();
        set(&mut points, "moveClock", "off", doc! {}).unwrap();
        assert_eq!(points.machine(), MachineFaults::default());
    }

    #[test]
    fn unknown_fail_points_are_refused() {
        let mut points = FailPoints::default();
        let unknown = doc! {"configureFailPoint": "explode", "mode": "alwaysOn"};
        let refused = points.configure(&unknown).unwrap_err();
        assert_eq!((refused.code.0, refused.code.name().as_ref()), (266, "FailPointSetFailed"));
        let nothing = doc! {"configureFailPoint": "failCommand"};
        assert!(points.configure(&nothing).is_err());
    }
}
