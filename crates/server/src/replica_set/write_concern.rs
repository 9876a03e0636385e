//! Waiting until a write is acknowledged as its client wants. docs/replication-rules.md#commit-point and #errors.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_node::{Command, CommandError, ErrorCode};
use quorate_protocol::OpTime;
use quorate_replication::{
    Acknowledgements, Status, WaiterId, WriteConcern, WriteConcernError, is_acknowledged,
};
use tokio::sync::oneshot;

use super::commands::whole;
use super::{Inbox, Message, ReplicaSet, Unforced};

/// `{ w: "majority" }`, which most commands ask for.
const MAJORITY: &[u8] = b"\x15\0\0\0\x02w\0\x09\0\0\0majority\0\0";

/// The most members that a write concern can name.
const MAX_MEMBERS: i64 = 50;

/// A client that waits for its write.
pub(crate) struct Acknowledgement {
    pub(super) waiter: WaiterId,
    pub(super) op_time: OpTime,
    pub(super) concern: WriteConcern,
    pub(super) answer: oneshot::Sender<Result<(), WriteConcernError>>,
}

/// Tells the host, when dropped, that the client has stopped waiting.
struct Waiting<'a> {
    inbox: &'a Inbox,
    waiter: WaiterId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.inbox.post(Message::Abandoned(self.waiter));
    }
}

/// What a command wants to be sure of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    concern: WriteConcern,
    /// Whether to wait also if the command made no entry: the client asked for it, or this may be a
    /// repeated write whose entry is there already and not committed yet.
    without_entry: bool,
}

impl Wanted {
    pub(super) fn new(concern: WriteConcern) -> Self {
        Self { concern, without_entry: true }
    }

    /// Whether the client waits for a limited time.
    pub(crate) fn is_timed(&self) -> bool {
        self.concern.timeout.is_some()
    }
}

impl ReplicaSet {
    /// The write concern of a command, or the set's default if it has none, if waiting for others is
    /// part of it. What one member can promise alone is left for it to see to.
    pub(crate) fn take_concern(
        &self,
        command: &mut Command,
        writes: bool,
    ) -> Result<Option<Wanted>, CommandError> {
        if is_statement(command) {
            // A transaction's write concern is its commit's; the member refuses any other.
            return Ok(None);
        }
        if self.wants_plain_majority(command, writes)? {
            let acknowledgements = Acknowledgements::Majority;
            let concern = WriteConcern { acknowledgements, journal: None, timeout: None };
            let without_entry =
                ["writeConcern", "txnNumber"].iter().any(|name| command.body.contains_key(name));
            command.set_write_concern(None);
            return Ok(Some(Wanted { concern, without_entry }));
        }
        // The member refuses a write concern that cannot be read.
        let Ok(given) = command.write_concern() else { return Ok(None) };
        let explicit = given.is_some();
        if !explicit && !writes {
            return Ok(None);
        }
        // The set's default completes what the client left out.
        let completed = match given {
            Some(given) if given.contains_key("w") => None,
            given => {
                let mut completed = self.default_concern(command)?;
                completed.extend(given.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
                Some(completed)
            }
        };
        let concern = completed.as_ref().or(given).map(parse).transpose()?.flatten();
        let without_entry = explicit || command.body.contains_key("txnNumber");
        let wanted = concern.map(|concern| Wanted { concern, without_entry });
        if wanted.is_some() {
            command.set_write_concern(None);
        } else if let Some(completed) = completed.filter(|completed| !completed.is_empty()) {
            command.set_write_concern(Some(completed));
        }
        Ok(wanted)
    }

    /// Whether a command waits for a majority and for nothing else, which needs no document to be read.
    fn wants_plain_majority(&self, command: &Command, writes: bool) -> Result<bool, CommandError> {
        if let Some(given) = command.given_write_concern() {
            return Ok(given.as_bytes() == MAJORITY);
        }
        if !writes || command.body.contains_key("writeConcern") {
            return Ok(false);
        }
        let chosen = self.node.default_concerns()?;
        let has_chosen = chosen.is_some_and(|defaults| defaults.write.is_some());
        Ok(!has_chosen && self.view.borrow().majority_by_default)
    }

    /// The write concern of a command that gives none: the one that was chosen for the set, otherwise
    /// a majority, unless arbiters would make every write wait for all data-bearing members.
    fn default_concern(&self, command: &Command) -> Result<Document, CommandError> {
        let majority = || doc! { "w": "majority" };
        // The choice itself must survive a failover.
        if command.name() == "setDefaultRWConcern" {
            return Ok(majority());
        }
        let chosen = self.node.default_concerns()?.and_then(|defaults| defaults.write.clone());
        let implicit = || match self.view.borrow().majority_by_default {
            true => majority(),
            false => Document::new(),
        };
        Ok(chosen.unwrap_or_else(implicit))
    }

    /// Refuses a default write concern that this configuration can never satisfy: no write would be
    /// acknowledged any more.
    pub(crate) async fn check_default(&self, command: &Command) -> Result<(), CommandError> {
        let Ok(given) = command.body.get_document("defaultWriteConcern") else { return Ok(()) };
        let Some(concern) = parse(given)? else { return Ok(()) };
        let check = move |status: Status<'_>, _| {
            let Some(config) = status.config() else { return Ok(Document::new()) };
            is_acknowledged(config, &concern.acknowledgements, |_| true).map_err(|error| {
                let error = WriteConcernError::from(error);
                CommandError::new(ErrorCode(error.code()), error.to_string())
            })?;
            Ok(Document::new())
        };
        self.inspect(check).await.map(drop)
    }

    /// Waits for the acknowledgement of a write, and forces what it left to this connection. Gives the error to add to its
    /// reply, if any.
    pub(crate) async fn acknowledge(
        &self,
        wanted: Wanted,
        op_time: Option<OpTime>,
        unforced: Option<Unforced>,
    ) -> Option<Document> {
        let op_time = match op_time {
            Some(op_time) => op_time,
            // A write that changed nothing is as safe as the newest entry it saw.
            None if wanted.without_entry => self.node.log_positions().written.op_time,
            None => return None,
        };
        let (answer, answered) = oneshot::channel();
        let given = wanted.concern.clone();
        let waiter = WaiterId(self.next_waiter.fetch_add(1, Ordering::Relaxed));
        self.inbox.post(Message::Wanted(Acknowledgement {
            waiter,
            op_time,
            concern: wanted.concern,
            answer,
        }));
        let waiting = Waiting { inbox: &self.inbox, waiter };
        if let Some(unforced) = unforced {
            unforced.force(&self.node, &self.inbox, &self.standby);
        }
        let result = answered.await.unwrap_or(Err(WriteConcernError::ShutdownInProgress));
        std::mem::forget(waiting);
        let error = result.err()?;
        let why = CommandError::new(ErrorCode(error.code()), error.to_string());
        let mut document = write_concern_error(&why);
        document.insert("errInfo", doc! { "writeConcern": concern_document(&given) });
        if error == WriteConcernError::TimedOut
            && let Ok(info) = document.get_document_mut("errInfo")
        {
            info.insert("wtimeout", true);
        }
        Some(document)
    }
}

/// Whether a command is a statement of a transaction.
pub(crate) fn is_statement(command: &Command) -> bool {
    let ends = matches!(command.name(), "commitTransaction" | "abortTransaction");
    command.body.contains_key("autocommit") && !ends
}

/// An error of waiting as it stands in the reply of a write that was done.
pub(crate) fn write_concern_error(why: &CommandError) -> Document {
    doc! { "code": why.code.0, "codeName": why.code.name(), "errmsg": &why.message }
}

/// What needs other members; none for `w: 0` and `w: 1`.
fn parse(given: &Document) -> Result<Option<WriteConcern>, CommandError> {
    let bad = |why: &str| CommandError::new(ErrorCode::FAILED_TO_PARSE, why.to_owned());
    let acknowledgements = match given.get("w") {
        None => return Ok(None),
        Some(Bson::String(mode)) if mode == "majority" => Acknowledgements::Majority,
        Some(Bson::String(mode)) => Acknowledgements::Mode(mode.clone()),
        Some(number) => match whole(number) {
            Some(0 | 1) => return Ok(None),
            Some(number) if (2..=MAX_MEMBERS).contains(&number) => {
                Acknowledgements::Number(number as u32)
            }
            _ => {
                return Err(bad(
                    "w has to be a non-negative number and not greater than 50; or a string",
                ));
            }
        },
    };
    let journal = match given.get("j") {
        None | Some(Bson::Null) => None,
        Some(Bson::Boolean(journal)) => Some(*journal),
        Some(other) => {
            Some(whole(other).ok_or_else(|| bad("j must be numeric or a boolean"))? != 0)
        }
    };
    if let Some(timeout) = given.get("wtimeout")
        && !matches!(timeout, Bson::Null | Bson::Double(_))
        && whole(timeout).is_none()
    {
        // It would wait without end.
        return Err(bad("wtimeout must be a number of milliseconds"));
    }
    Ok(Some(WriteConcern { acknowledgements, journal, timeout: timeout_of(given) }))
}

fn timeout_of(given: &Document) -> Option<Duration> {
    let millis = match given.get("wtimeout")? {
        // Part of a millisecond is no reason to wait without end.
        Bson::Double(millis) => millis.ceil() as i64,
        other => whole(other)?,
    };
    u64::try_from(millis).ok().filter(|millis| *millis > 0).map(Duration::from_millis)
}

fn concern_document(concern: &WriteConcern) -> Document {
    let w = match &concern.acknowledgements {
        Acknowledgements::Number(number) => Bson::from(*number as i32),
        Acknowledgements::Majority => "majority".into(),
        Acknowledgements::Mode(mode) => mode.as_str().into(),
    };
    let mut document = doc! { "w": w };
    if let Some(journal) = concern.journal {
        document.insert("j", journal);
    }
    document.insert("wtimeout", concern.timeout.map_or(0, |timeout| timeout.as_millis() as i32));
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_others_is_taken_from_the_command() {
        assert_eq!(parse(&doc! { "w": 1, "j": true }).unwrap(), None);
        assert_eq!(parse(&doc! { "w": 0 }).unwrap(), None);
        let three = parse(&doc! { "w": 3, "wtimeout": 100 }).unwrap().unwrap();
        assert_eq!(three.acknowledgements, Acknowledgements::Number(3));
        assert_eq!(three.timeout, Some(Duration::from_millis(100)));
        assert_eq!(parse(&doc! { "w": "majority" }).unwrap(), Some(WriteConcern::majority()));
        let mode = parse(&doc! { "w": "far", "j": false }).unwrap().unwrap();
        assert_eq!(mode.acknowledgements, Acknowledgements::Mode("far".into()));
        let half = parse(&doc! { "w": 2, "wtimeout": 0.5 }).unwrap().unwrap();
        assert_eq!(half.timeout, Some(Duration::from_millis(1)));
        assert!(parse(&doc! { "w": 2, "wtimeout": "soon" }).is_err());
        assert!(parse(&doc! { "w": 51 }).is_err());
        assert!(parse(&doc! { "w": -1 }).is_err());
    }

    /// A driver may send null for what was not given; the write still waits for the set's default.
    #[test]
    fn a_write_concern_of_null_is_none() {
        let insert = |concern: Bson| {
            Command::new(doc! { "insert": "c", "writeConcern": concern })
                .write_concern()
                .map(|given| given.cloned())
        };
        for none in [Bson::Null, Bson::Undefined] {
            assert_eq!(insert(none), Ok(None));
        }
        assert_eq!(Command::new(doc! { "insert": "c" }).write_concern(), Ok(None));
        assert_eq!(insert(doc! { "w": 1 }.into()), Ok(Some(doc! { "w": 1 })));
        assert!(insert(1.into()).is_err());
    }
}
