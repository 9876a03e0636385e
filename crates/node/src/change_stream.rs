//! Change streams: what happened to documents and collections, in the order of the oplog.
//!
//! Owns how a stream is opened, where it stands, and which committed entries it reads next. What an
//! entry means is `quorate_change_events`' business; waiting for the commit point is the server's. A stream
//! does not keep the oplog from being truncated: one that falls behind fails with error 286.

mod feed;
mod images;
mod open;
mod room;
mod shown;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bson::{Bson, Document};
use quorate_change_events::{
    Event, MAX_EVENT_BYTES, Options, ResumeToken, Scope, TokenKind, TransactionPart, events, split,
    transaction_events,
};
use quorate_protocol::Timestamp;
use quorate_query::QueryError;
use quorate_query::expression::Variables;
use quorate_query::pipeline::{Documents, Environment, Pipeline, SystemStage};
use quorate_wire::{timestamp_from, to_bson_timestamp};

pub(crate) use self::feed::Feed;
use self::images::StoredImages;
pub(crate) use self::images::{IMAGE_ROW, check_images_option, image_rows, keeps_images};
pub(crate) use self::open::{is_change_stream, open};
pub use self::room::{Awaited, StreamWait, Wake};
use self::room::{Passed, shows};
use crate::cursors::MAX_BATCH_BYTES;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::to_raw;
use crate::node::Node;
use crate::records::DocumentBytes;
use crate::replication::entry_position;
use crate::touched::EVERY_DATABASE;

/// Entries that one command reads before it answers: some milliseconds of work. A stream which shows
/// little still tells its client how far it is.
const MAX_SCANNED: usize = 2_000;

/// Entries that are read in one go.
const READ_STEP: usize = 512;

/// Events that wait to be sent; no more are made while there are as many.
const MAX_WAITING: usize = 1_000;

/// Bytes of events that wait to be sent, as many as a reply holds: no more events are made while there are as many. A
/// stream keeps them for as long as its client does not ask.
const MAX_WAITING_BYTES: usize = MAX_BATCH_BYTES;

/// Entries of unfinished transactions that one stream remembers.
const MAX_OPEN_ENTRIES: usize = 10_000;

/// An open stream.
pub(crate) struct ChangeStream {
    options: Options,
    pipeline: Pipeline,
    variables: Variables,
    /// Whether events that are too large come in fragments.
    splits: bool,
    /// Nothing that was committed up to here is shown. All changes of a transaction are committed by its last entry.
    started_at: u64,
    /// Every entry up to here has been read.
    position: u64,
    /// The event after which the stream goes on; it has to be met.
    resume_after: Option<ResumeToken>,
    /// Entries of transactions whose last entry has not come yet, by session and number.
    unfinished: BTreeMap<Vec<u8>, Vec<Arc<Document>>>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// The last event of the entry after `position` that waits or was sent, if others of that entry found no room.
    partly: Option<String>,
    /// The token of the last event that was sent.
    last_sent: Option<String>,
    /// Whether every committed entry had been read the last time.
    caught_up: bool,
    /// Whether the last event has ended the stream.
    ended: bool,
    /// Up to where nothing was for it while it waited.
    passed: Option<Passed>,
}

/// What there is for a stream that has caught up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Nothing: the next commit point may bring something.
    Quiet,
    /// A change that it shows, or has to look at by itself.
    News,
    /// It cannot be told without a command.
    Unknown,
}

/// An event that waits to be sent.
struct Waiting {
    document: DocumentBytes,
    token: String,
}

impl ChangeStream {
    /// Whether nothing more will come.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended && self.waiting.is_empty()
    }

    /// Whether only a new commit point brings anything new.
    pub(crate) fn has_caught_up(&self) -> bool {
        self.caught_up
    }

    /// The time up to which the stream has read entries.
    pub(crate) fn position(&self) -> Timestamp {
        Timestamp::from_u64(self.position)
    }

    /// The next event, if one waits and fits.
    pub(crate) fn next_within(&mut self, bytes: usize) -> Option<DocumentBytes> {
        let size = self.waiting.front()?.document.as_bytes().len();
        if size > bytes {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.waiting_bytes -= size;
        self.last_sent = Some(next.token);
        Some(next.document)
    }

    /// Where a client goes on that has seen everything sent so far.
    pub(crate) fn resume_token(&self) -> String {
        let hex = |time| ResumeToken::high_water_mark(to_bson_timestamp(time)).to_hex();
        let mark = hex(self.mark());
        match &self.last_sent {
            // More of what was scanned is still to be sent, or more of its entry is still to be scanned.
            Some(sent) if !self.waiting.is_empty() || self.partly.is_some() => sent.clone(),
            None if !self.waiting.is_empty() => self.start_token(),
            // The last entry that was read is the one that was shown last.
            Some(sent) if *sent > hex(self.position()) => sent.clone(),
            _ => match &self.resume_after {
                Some(start) if start.to_hex() > mark => start.to_hex(),
                _ => mark,
            },
        }
    }

    /// The time from which a client goes on that has seen all there is to see so far. Of a transaction
    /// whose last entry has not come yet nothing has been shown.
    fn mark(&self) -> Timestamp {
        let unseen = self.unfinished.values().filter_map(|entries| time_of(entries.first()?)).min();
        let unseen = unseen.map_or(u64::MAX, |time| time.max(self.started_at + 1));
        // A mark stands before the events of its time, and those up to here are over.
        Timestamp::from_u64(self.position.saturating_add(1).min(unseen))
    }

    /// The place that the right to read is needed for, besides the collection of the cursor.
    pub(crate) fn reads(&self) -> Option<&str> {
        match &self.options.scope {
            Scope::Collection { .. } => None,
            Scope::Database(database) => Some(database),
            Scope::Deployment => Some(EVERY_DATABASE),
        }
    }

    /// What comes before everything that waits.
    fn start_token(&self) -> String {
        let first = self.waiting.front().and_then(|first| ResumeToken::from_hex(&first.token).ok());
        let time = first.map_or_else(|| to_bson_timestamp(self.position()), |it| it.cluster_time);
        ResumeToken::high_water_mark(time).to_hex()
    }

    /// Looks at committed entries until there are `wanted` events or no more entries.
    pub(crate) fn advance(&mut self, node: &Node, wanted: usize) -> Result<()> {
        let mut scanned = 0;
        self.catch_up();
        self.caught_up = false;
        while !self.has_enough(wanted) && scanned < MAX_SCANNED && !self.ended {
            self.variables.meter().step()?;
            let feed = node.change_feed();
            let entries = feed.readable_after(node, self.position, &self.options, READ_STEP)?;
            if entries.is_empty() {
                self.caught_up = true;
                return Ok(());
            }
            for (timestamp, entry) in entries {
                scanned += 1;
                if !self.look_at(node, timestamp, &entry)? {
                    break;
                }
                self.position = timestamp;
                if self.ended || self.has_enough(wanted) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether so many events wait, or as many as a stream keeps.
    fn has_enough(&self, wanted: usize) -> bool {
        let most = wanted.min(MAX_WAITING);
        self.waiting.len() >= most || self.waiting_bytes >= MAX_WAITING_BYTES
    }

    /// Moves on past what was not for this stream while it waited.
    fn catch_up(&mut self) {
        if let Some(passed) = self.passed.take() {
            self.position = self.position.max(passed.get());
        }
    }

    /// Whether it has read everything there is, and keeps no event to send.
    fn is_quiet(&mut self, node: &Node) -> bool {
        self.catch_up();
        let entries = || node.change_feed().readable_after(node, self.position, &self.options, 1);
        !self.keeps_something() && entries().is_ok_and(|entries| entries.is_empty())
    }

    /// Whether it has something to tell, or to look for, besides the entries that follow.
    fn keeps_something(&self) -> bool {
        let within = !self.unfinished.is_empty() || self.partly.is_some();
        self.resume_after.is_some() || !self.waiting.is_empty() || self.ended || within
    }

    /// What a stream that has caught up has to tell by now. It moves on past the changes that it does not show.
    fn outlook(&mut self, node: &Node) -> Outlook {
        self.catch_up();
        if self.keeps_something() {
            return Outlook::Unknown;
        }
        let blind = self.options.shows_images();
        // Until there are no more, so that none is left when it begins to wait.
        for _ in 0..MAX_SCANNED.div_ceil(READ_STEP) {
            let feed = node.change_feed();
            let Ok(found) = feed.events_after(node, self.position, &self.options, READ_STEP) else {
                return Outlook::News;
            };
            if found.is_empty() {
                return Outlook::Quiet;
            }
            for (timestamp, events) in found {
                match events {
                    Some(events) if events.is_empty() => {}
                    Some(events) if !blind && !shows(&self.pipeline, &events) => {}
                    _ => return Outlook::News,
                }
                self.position = timestamp;
            }
        }
        Outlook::News
    }

    /// Lets the events of an entry wait. Returns false if there was no room for all: the entry is to be looked at again.
    fn look_at(&mut self, node: &Node, timestamp: u64, entry: &Arc<Document>) -> Result<bool> {
        let images = StoredImages::of(node, self.seen());
        let found = match transaction_key(entry) {
            None => events(entry, &images, &self.options).map_err(event_error)?,
            Some(key) => self.transaction(node, key, entry, &images)?,
        };
        let mut found = found.into_iter().peekable();
        while let Some(event) = found.next() {
            let token = event.token.to_hex();
            if self.partly.as_ref().is_some_and(|taken| token <= *taken) {
                continue;
            }
            if self.passes(&event)? {
                self.take(event, &images)?;
            }
            if self.ended {
                return Ok(true);
            }
            if found.peek().is_some() && self.has_enough(MAX_WAITING) {
                self.partly = Some(token);
                return Ok(false);
            }
        }
        self.partly = None;
        // The whole entry has been read, and the event to resume after was not in it. A transaction that holds the
        // event is told with its last entry.
        if let Some(resume) = &self.resume_after
            && timestamp > timestamp_from(resume.cluster_time).as_u64()
            && !self.is_within(timestamp_from(resume.cluster_time).as_u64())
        {
            return Err(not_found(resume));
        }
        Ok(true)
    }

    /// The last event that the client has, for streams that show images. Of a fragment the event is shown once more.
    fn seen(&self) -> Bound<String> {
        match (&self.partly, &self.resume_after) {
            _ if !self.options.shows_images() => Bound::Unbounded,
            (Some(taken), _) => Bound::Included(taken.clone()),
            (None, Some(resume)) => {
                let whole = ResumeToken { fragment: None, ..resume.clone() }.to_hex();
                match resume.fragment {
                    Some(_) => Bound::Excluded(whole),
                    None => Bound::Included(whole),
                }
            }
            (None, None) => Bound::Unbounded,
        }
    }

    /// Whether a transaction whose last entry has not come yet has an entry of this time.
    fn is_within(&self, time: u64) -> bool {
        let mut entries = self.unfinished.values().flatten();
        entries.any(|entry| time_of(entry) == Some(time))
    }

    /// The events of a transaction, with its last entry.
    fn transaction(
        &mut self,
        node: &Node,
        key: Vec<u8>,
        entry: &Arc<Document>,
        images: &StoredImages<'_>,
    ) -> Result<Vec<Event>> {
        let part = TransactionPart::of(entry);
        if part == Some(TransactionPart::Abort) {
            self.unfinished.remove(&key);
            return Ok(Vec::new());
        }
        let mut entries = match self.unfinished.remove(&key) {
            Some(entries) => entries,
            None => earlier_entries(node, entry)?,
        };
        entries.push(Arc::clone(entry));
        if part == Some(TransactionPart::Partial) {
            let kept: usize = self.unfinished.values().map(Vec::len).sum();
            if kept + entries.len() > MAX_OPEN_ENTRIES {
                return Err(fatal(
                    "more entries of unfinished transactions than a stream can hold",
                ));
            }
            self.unfinished.insert(key, entries);
            return Ok(Vec::new());
        }
        let entries: Vec<Document> = entries.into_iter().map(Arc::unwrap_or_clone).collect();
        transaction_events(&entries, images, &self.options).map_err(event_error)
    }

    /// Whether the event comes after the place that the stream was resumed at.
    fn passes(&mut self, event: &Event) -> Result<bool> {
        let Some(resume) = &self.resume_after else { return Ok(true) };
        let whole = ResumeToken { fragment: None, ..resume.clone() };
        let (seen, here) = (whole.to_hex(), event.token.to_hex());
        match here.cmp(&seen) {
            std::cmp::Ordering::Less => Ok(false),
            std::cmp::Ordering::Equal => {
                // A fragment is resumed within its event.
                let within = resume.fragment.is_some();
                if !within {
                    // The client has it: no token that it is given may lie before it.
                    self.resume_after = None;
                    self.last_sent = Some(seen);
                }
                Ok(within)
            }
            std::cmp::Ordering::Greater => Err(not_found(resume)),
        }
    }

    /// Puts an event through the pipeline and lets what is left of it wait.
    fn take(&mut self, event: Event, images: &StoredImages<'_>) -> Result<()> {
        let Event { token, document, ends_stream } = event;
        let id = token.to_document();
        let input = Box::new(std::iter::once(Ok(document)));
        let environment: Arc<dyn Environment> = Arc::new(NoCollections);
        let mut shown = match self.pipeline.is_empty() {
            true => input as Documents,
            false => self.pipeline.run(input, environment, &self.variables),
        };
        // The stream ends with `invalidate`, whatever its filter.
        self.ended = ends_stream;
        let Some(document) = shown.next().transpose()? else { return Ok(()) };
        if document.get("_id") != Some(&Bson::Document(id)) {
            return Err(fatal(
                "Encountered an event whose _id field, which contains the resume token, was modified \
                 by the pipeline. Modifying the _id field of an event makes it impossible to resume \
                 the stream from that point. Only transformations that retain the unmodified _id \
                 field are allowed.",
            ));
        }
        images.check()?;
        if !self.splits {
            let raw = to_raw(&document)?;
            if raw.as_bytes().len() > MAX_EVENT_BYTES {
                return Err(labelled(fail!(
                    BSON_OBJECT_TOO_LARGE,
                    "an event is larger than 16 MiB; use $changeStreamSplitLargeEvent"
                )));
            }
            self.let_wait(raw.into(), token.to_hex());
            return Ok(());
        }
        let seen = self.resume_after.take().and_then(|resume| resume.fragment);
        let fragments = split(document, &token, MAX_EVENT_BYTES).map_err(event_error)?;
        let whole = fragments.len() == 1;
        for (place, fragment) in fragments.iter().enumerate() {
            if seen.is_some_and(|seen| place as i64 <= seen) {
                continue;
            }
            let number = (!whole).then_some(place as i64);
            let token = ResumeToken { fragment: number, ..token.clone() }.to_hex();
            self.let_wait(to_raw(fragment)?.into(), token);
        }
        Ok(())
    }

    fn let_wait(&mut self, document: DocumentBytes, token: String) {
        self.waiting_bytes += document.as_bytes().len();
        self.waiting.push_back(Waiting { document, token });
    }
}

fn time_of(entry: &Document) -> Option<u64> {
    entry.get_timestamp("ts").ok().map(|time| timestamp_from(time).as_u64())
}

/// The entries of a transaction before this one. A stream that is resumed between them has not read them,
/// and an operation's token holds its place among all operations.
fn earlier_entries(node: &Node, entry: &Document) -> Result<Vec<Arc<Document>>> {
    let previous = |entry: &Document| {
        let time = entry.get_document("prevOpTime").ok()?.get_timestamp("ts").ok()?;
        Some(timestamp_from(time)).filter(|time| time.as_u64() > 0)
    };
    let mut found = Vec::new();
    let mut next = previous(entry);
    while let Some(time) = next {
        if found.len() >= MAX_OPEN_ENTRIES {
            return Err(fatal("a transaction has more entries than a stream can hold"));
        }
        let read =
            node.read_oplog(Bound::Included(time), 1, usize::MAX)?.entries.into_iter().next();
        let earlier = read.ok_or_else(history_lost)?;
        if entry_position(&earlier)?.op_time.timestamp != time {
            return Err(history_lost());
        }
        let earlier = Document::try_from(&*earlier)?;
        next = previous(&earlier);
        found.push(Arc::new(earlier));
    }
    found.reverse();
    Ok(found)
}

/// Which transaction an entry belongs to, if it does.
fn transaction_key(entry: &Document) -> Option<Vec<u8>> {
    TransactionPart::of(entry)?;
    let mut key = Document::new();
    key.insert("lsid", entry.get("lsid")?.clone());
    key.insert("txnNumber", entry.get("txnNumber")?.clone());
    key.to_vec().ok()
}

/// A pipeline over events reads no collection.
struct NoCollections;

impl Environment for NoCollections {
    fn read(&self, _: &str, _: Option<&Document>) -> Result<Documents, QueryError> {
        Ok(Box::new(std::iter::empty()))
    }

    fn system(&self, stage: &SystemStage) -> Result<Vec<Document>, QueryError> {
        Err(QueryError::location(40602, format!("{} cannot follow $changeStream", stage.name())))
    }
}

/// The label of errors that no resuming helps against.
const NOT_RESUMABLE: &str = "NonResumableChangeStreamError";

/// The label of errors that a driver resumes after.
const RESUMABLE: &str = "ResumableChangeStreamError";

/// Puts the label on an error of a stream's `getMore` that drivers resume after.
pub(crate) fn with_stream_label(mut error: CommandError) -> CommandError {
    if error.code.is_resumable() && !error.labels.iter().any(|it| it == RESUMABLE) {
        error.labels.push(RESUMABLE.to_owned());
    }
    error
}

fn labelled(mut error: CommandError) -> CommandError {
    error.labels.push(NOT_RESUMABLE.to_owned());
    error
}

fn fatal(message: impl Into<String>) -> CommandError {
    labelled(CommandError::new(ErrorCode::CHANGE_STREAM_FATAL, message))
}

fn event_error(error: quorate_change_events::EventError) -> CommandError {
    labelled(CommandError::new(ErrorCode(error.code), error.message))
}

fn not_found(resume: &ResumeToken) -> CommandError {
    fatal(format!(
        "cannot resume stream; the resume token was not found. {{_data: \"{}\"}}: {}",
        resume.to_hex(),
        resume.explain()
    ))
}

/// The stream's place is no longer in the oplog.
pub(crate) fn history_lost() -> CommandError {
    labelled(fail!(
        CHANGE_STREAM_HISTORY_LOST,
        "Resume of change stream was not possible, as the resume point may no longer be in the \
         oplog. Open a new stream, copy what it watches, and give the oplog more room"
    ))
}

/// Where a stream starts.
enum Start {
    /// After everything that is committed now.
    Now,
    /// At the first entry of this time or after it.
    At(Timestamp),
    /// After this event.
    After(Box<ResumeToken>),
}

impl Start {
    /// The token of a client.
    fn of_token(token: ResumeToken) -> Self {
        match token.kind {
            TokenKind::HighWaterMark => Self::At(timestamp_from(token.cluster_time)),
            TokenKind::Event => Self::After(Box::new(token)),
        }
    }
}
