//! Where a change stream goes on after an error.
//!
//! Follows "Resume Process", "Updating the Cached Resume Token" and "Resumable Error" of the Change
//! Streams specification. Tokens are documents that only servers look into.

use bson::Timestamp;
use bson::raw::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::ErrorCode;
use quorate_wire::AppendSome;

/// What servers of MongoDB 4.4 and later call an error of a change stream that it survives.
pub const RESUMABLE_CHANGE_STREAM_ERROR: &str = "ResumableChangeStreamError";

/// From this `maxWireVersion` on (MongoDB 4.4), servers say by a label what can be resumed.
const LABELLING_WIRE_VERSION: i32 = 9;

/// The least `maxWireVersion` (MongoDB 4.0) that takes `startAtOperationTime`.
const START_AT_WIRE_VERSION: i32 = 7;

/// Where a change stream begins.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ChangeStreamStart {
    /// With what happens from now on.
    #[default]
    Now,
    /// `resumeAfter`: after the event of this token.
    ResumeAfter(RawDocumentBuf),
    /// `startAfter`: the same, also after an event that ended its stream.
    StartAfter(RawDocumentBuf),
    /// `startAtOperationTime`: with what happened at this time or later.
    At(Timestamp),
}

/// A change has no `_id`: a `$project` of the application has removed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Cannot provide resume functionality when the resume token is missing: a change has no _id; \
     let the pipeline keep it"
)]
pub struct MissingToken;

/// Where a change stream would go on.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    start: ChangeStreamStart,
    token: Option<RawDocumentBuf>,
    /// What the first reply told, while there is no token.
    operation_time: Option<Timestamp>,
    returned: bool,
}

impl ResumePoint {
    /// The resume point of a stream that begins here.
    pub fn new(start: ChangeStreamStart) -> Self {
        let token = match &start {
            ChangeStreamStart::ResumeAfter(token) | ChangeStreamStart::StartAfter(token) => {
                Some(token.clone())
            }
            ChangeStreamStart::Now | ChangeStreamStart::At(_) => None,
        };
        Self { start, token, operation_time: None, returned: false }
    }

    /// The token that the stream would be resumed after, for the application to store.
    pub fn token(&self) -> Option<&RawDocumentBuf> {
        self.token.as_ref()
    }

    /// Where the next `aggregate` begins: at first as the application said, later after the last
    /// change that it was given.
    pub fn start(&self) -> ChangeStreamStart {
        match (&self.token, &self.start, self.operation_time) {
            (Some(token), ChangeStreamStart::StartAfter(_), _) if !self.returned => {
                ChangeStreamStart::StartAfter(token.clone())
            }
            (Some(token), _, _) => ChangeStreamStart::ResumeAfter(token.clone()),
            (None, ChangeStreamStart::At(time), _) => ChangeStreamStart::At(*time),
            (None, _, Some(time)) => ChangeStreamStart::At(time),
            (None, _, None) => self.start.clone(),
        }
    }

    /// An `aggregate` or a `getMore` was answered.
    pub fn batch_arrived(&mut self, empty: bool, post_batch_token: Option<&RawDocument>) {
        if let Some(token) = post_batch_token.filter(|_| empty) {
            self.token = Some(token.to_owned());
        }
    }

    /// The first `aggregate` was answered: its time is where to go on if no token comes.
    pub fn opened(
        &mut self,
        max_wire_version: i32,
        empty: bool,
        post_batch_token: Option<&RawDocument>,
        operation_time: Option<Timestamp>,
    ) {
        self.batch_arrived(empty, post_batch_token);
        if self.start == ChangeStreamStart::Now
            && self.token.is_none()
            && empty
            && max_wire_version >= START_AT_WIRE_VERSION
            && self.operation_time.is_none()
        {
            self.operation_time = operation_time;
        }
    }

    /// A change is given to the application. `last` is the token of its batch, if it is the last
    /// change in it.
    ///
    /// # Errors
    ///
    /// If the change has no `_id`.
    pub fn returns(
        &mut self,
        change: &RawDocument,
        last: Option<&RawDocument>,
    ) -> Result<(), MissingToken> {
        let own = match change.get("_id") {
            Ok(Some(RawBsonRef::Document(token))) => token,
            _ => return Err(MissingToken),
        };
        self.token = Some(last.unwrap_or(own).to_owned());
        self.returned = true;
        Ok(())
    }
}

impl ChangeStreamStart {
    /// The `aggregate` that opens a stream here. `watched` is the collection, or 1 for all of a database; `stage` holds the
    /// other options of `$changeStream`.
    pub fn command(
        &self,
        watched: impl Into<RawBson>,
        mut stage: RawDocumentBuf,
        pipeline: &[RawDocumentBuf],
        batch_size: Option<u32>,
    ) -> RawDocumentBuf {
        self.append_to(&mut stage);
        let mut stages = RawArrayBuf::new();
        stages.push(rawdoc! { "$changeStream": stage });
        pipeline.iter().for_each(|stage| stages.push(stage.clone()));
        let mut cursor = RawDocumentBuf::new();
        cursor.append_some(cstr!("batchSize"), batch_size.map(i64::from));
        rawdoc! { "aggregate": watched.into(), "pipeline": stages, "cursor": cursor }
    }

    fn append_to(&self, stage: &mut RawDocumentBuf) {
        match self {
            Self::Now => {}
            Self::ResumeAfter(token) => stage.append(cstr!("resumeAfter"), token),
            Self::StartAfter(token) => stage.append(cstr!("startAfter"), token),
            Self::At(time) => stage.append(cstr!("startAtOperationTime"), *time),
        }
    }
}

/// Whether a stream survives a `getMore` that failed like this.
pub fn is_resumable_change_stream_error(
    network: bool,
    code: Option<i32>,
    has_label: impl FnOnce(&str) -> bool,
    max_wire_version: i32,
) -> bool {
    let code = code.map(ErrorCode);
    // No server labels a cursor that is gone.
    if network || code == Some(ErrorCode::CURSOR_NOT_FOUND) {
        return true;
    }
    match max_wire_version >= LABELLING_WIRE_VERSION {
        true => has_label(RESUMABLE_CHANGE_STREAM_ERROR),
        false => code.is_some_and(ErrorCode::is_resumable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn token(text: &str) -> RawDocumentBuf {
        rawdoc! { "_data": text }
    }

    fn change(text: &str) -> RawDocumentBuf {
        rawdoc! { "_id": token(text), "operationType": "insert" }
    }

    const THEN: Timestamp = Timestamp { time: 9, increment: 1 };

    #[test]
    fn a_stream_is_resumed_after_the_last_change_that_was_returned() {
        let mut point = ResumePoint::new(ChangeStreamStart::Now);
        point.opened(21, false, Some(&token("p")), Some(THEN));
        assert_eq!(point.start(), ChangeStreamStart::Now);
        point.returns(&change("a"), None).unwrap();
        assert_eq!(point.start(), ChangeStreamStart::ResumeAfter(token("a")));
        point.returns(&change("b"), Some(&token("p"))).unwrap();
        assert_eq!(point.token(), Some(&token("p")));
        point.batch_arrived(false, Some(&token("q")));
        assert_eq!(point.token(), Some(&token("p")), "changes of the batch are not returned yet");
        point.batch_arrived(true, Some(&token("q")));
        assert_eq!(point.token(), Some(&token("q")));
        point.batch_arrived(true, None);
        assert_eq!(point.token(), Some(&token("q")));
    }

    #[test]
    fn start_after_is_kept_until_a_change_was_returned() {
        let mut point = ResumePoint::new(ChangeStreamStart::StartAfter(token("s")));
        assert_eq!(point.start(), ChangeStreamStart::StartAfter(token("s")));
        point.opened(21, true, Some(&token("p")), Some(THEN));
        assert_eq!(point.start(), ChangeStreamStart::StartAfter(token("p")));
        point.returns(&change("a"), None).unwrap();
        assert_eq!(point.start(), ChangeStreamStart::ResumeAfter(token("a")));
    }

    /// Without a token, the time of the first reply; but only if that reply held nothing.
    #[test]
    fn without_a_token_the_time_of_the_first_reply_counts() {
        let resumed = |wire, empty, start| {
            let mut point = ResumePoint::new(start);
            point.opened(wire, empty, None, Some(THEN));
            point.start()
        };
        assert_eq!(resumed(21, true, ChangeStreamStart::Now), ChangeStreamStart::At(THEN));
        assert_eq!(resumed(6, true, ChangeStreamStart::Now), ChangeStreamStart::Now);
        assert_eq!(resumed(21, false, ChangeStreamStart::Now), ChangeStreamStart::Now);
        let earlier = Timestamp { time: 3, increment: 1 };
        let at = ChangeStreamStart::At(earlier);
        assert_eq!(resumed(21, true, at.clone()), at);
        let after = ChangeStreamStart::ResumeAfter(token("r"));
        assert_eq!(resumed(21, true, after.clone()), after);
    }

    #[test]
    fn a_change_without_a_token_cannot_be_resumed_after() {
        let mut point = ResumePoint::new(ChangeStreamStart::Now);
        let error = point.returns(&rawdoc! { "operationType": "insert" }, None).unwrap_err();
        assert!(error.to_string().contains("resume token is missing"));
    }

    #[test]
    fn newer_servers_say_by_a_label_what_older_ones_say_by_a_code() {
        let resumable = |code, label: bool, wire| {
            is_resumable_change_stream_error(false, code, |_| label, wire)
        };
        assert!(resumable(Some(43), false, 21));
        assert!(resumable(Some(1), true, 9));
        assert!(!resumable(Some(91), false, 9));
        assert!(resumable(Some(91), false, 8));
        assert!(!resumable(Some(286), true, 8));
        assert!(is_resumable_change_stream_error(true, None, |_| false, 21));
    }

    #[test]
    fn each_start_is_an_option_of_the_stage() {
        let stage = |start: ChangeStreamStart| {
            let mut stage = RawDocumentBuf::new();
            start.append_to(&mut stage);
            stage
        };
        assert!(stage(ChangeStreamStart::Now).is_empty());
        let after = stage(ChangeStreamStart::ResumeAfter(token("a")));
        assert_eq!(after, rawdoc! { "resumeAfter": { "_data": "a" } });
        let after = stage(ChangeStreamStart::StartAfter(token("a")));
        assert_eq!(after, rawdoc! { "startAfter": { "_data": "a" } });
        assert_eq!(stage(ChangeStreamStart::At(THEN)), rawdoc! { "startAtOperationTime": THEN });
    }
}
