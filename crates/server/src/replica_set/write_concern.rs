//! Waiting until a write is acknowledged as its client wants. Digest §6 and §13.

use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_node::{Command, CommandError, ErrorCode};
use quorate_protocol::OpTime;
use quorate_replication::{Acknowledgements, WriteConcern, WriteConcernError};
use tokio::sync::oneshot;

use super::commands::whole;
use super::{Message, ReplicaSet};

/// The most members that a write concern can name.
const MAX_MEMBERS: i64 = 50;

/// A client that waits for its write.
pub(crate) struct Acknowledgement {
    pub(super) op_time: OpTime,
    pub(super) concern: WriteConcern,
    pub(super) answer: oneshot::Sender<Result<(), WriteConcernError>>,
}

/// What a command wants to be sure of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    concern: WriteConcern,
    /// Whether the client said so, rather than the set's default.
    explicit: bool,
}

impl Wanted {
    pub(super) fn new(concern: WriteConcern) -> Self {
        Self { concern, explicit: true }
    }
}

impl ReplicaSet {
    /// Takes the write concern out of a command, if waiting for others is part of it. What one
    /// member can promise alone is left for it to read.
    pub(crate) fn take_concern(
        &self,
        command: &mut Command,
    ) -> Result<Option<Wanted>, CommandError> {
        let Some(given) = command.body.get("writeConcern") else {
            let majority = self.view.borrow().majority_by_default;
            let concern = WriteConcern::majority();
            return Ok(majority.then_some(Wanted { concern, explicit: false }));
        };
        let Bson::Document(given) = given else { return Ok(None) };
        let concern = match parse(given)? {
            Some(concern) => concern,
            None if self.view.borrow().majority_by_default && !given.contains_key("w") => {
                let timeout = timeout_of(given);
                WriteConcern { timeout, ..WriteConcern::majority() }
            }
            None => return Ok(None),
        };
        command.body_mut().remove("writeConcern");
        Ok(Some(Wanted { concern, explicit: true }))
    }

    /// Waits for the acknowledgement of a write. Gives the error to add to its reply, if any.
    pub(crate) async fn acknowledge(
        &self,
        wanted: Wanted,
        op_time: Option<OpTime>,
    ) -> Option<Document> {
        let op_time = match op_time {
            Some(op_time) => op_time,
            // A write that changed nothing is as safe as the newest entry it saw.
            None if wanted.explicit => self.node.log_positions().written.op_time,
            None => return None,
        };
        let (answer, answered) = oneshot::channel();
        let given = concern_document(&wanted.concern);
        self.inbox.post(Message::Wanted(Acknowledgement {
            op_time,
            concern: wanted.concern,
            answer,
        }));
        let result = answered.await.unwrap_or(Err(WriteConcernError::ShutdownInProgress));
        let error = result.err()?;
        let code = ErrorCode(error.code());
        let mut document = doc! {
            "code": code.0, "codeName": code.name(), "errmsg": error.to_string(),
            "errInfo": { "writeConcern": given },
        };
        if error == WriteConcernError::TimedOut
            && let Ok(info) = document.get_document_mut("errInfo")
        {
            info.insert("wtimeout", true);
        }
        Some(document)
    }
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
    Ok(Some(WriteConcern { acknowledgements, journal, timeout: timeout_of(given) }))
}

fn timeout_of(given: &Document) -> Option<Duration> {
    let millis = given.get("wtimeout").and_then(whole)?;
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
        assert!(parse(&doc! { "w": 51 }).is_err());
        assert!(parse(&doc! { "w": -1 }).is_err());
    }
}
