//! Collections that are not stored as such: their records are a member's own rows, made as they are read.
//!
//! ```text
//!   config.transactions            rows of sessions              →  {_id: <session>, txnNum: <number>, …}
//!   config.system.preimages        rows of images                →  the row as it is
//!   local.replset.sessions.<key>   rows of sessions after a key  →  {_id: <key>, row: <bytes>}
//! ```
//!
//! A read goes through them as through any collection, row by row in one snapshot, and holds none of them: a scan of
//! records checks the interrupt and gives way as elsewhere. Records are numbered as they are read, so that no record is
//! found by its number.

use std::ops::Bound;
use std::sync::Arc;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, rawdoc};
use quorate_storage::key::RecordId;
use quorate_storage::{
    Bytes, Direction, KeyRange, KeyspaceId, LogTotals, ReadError, Scan, ScanWalk, Snapshot, Walk,
};

use super::rows::{SessionRow, number_key, session_of};
use crate::catalog::{Collection, Ident};
use crate::change_stream::image_rows;
use crate::error::Result;
use crate::fields::to_raw;
use crate::namespace::Namespace;
use crate::records::{View, record_key};
use crate::sessions::{SessionId, UUID_BYTES};

/// Collections of `local` that show the rows of sessions as they are stored, after the key that their
/// name ends with, in hexadecimal digits. Members that copy everything read them page by page.
const SESSION_ROWS: &str = "replset.sessions.";

/// Rows in one such page.
const PAGE: usize = 10_000;

/// Results of one session that are passed over before the scan goes on behind them: a session may have a result for
/// each statement of a command, which are many, and most have none.
const MAX_PASSED: u32 = 16;

/// A collection that is made up of rows, and the view in which its records are read; none for other names. The
/// keyspace holds the images for change streams, where a member keeps them.
pub(crate) fn made_up_collection(
    images: Option<KeyspaceId>,
    namespace: &Namespace,
    view: &View,
) -> Result<Option<(Arc<Collection>, View)>> {
    if !has_made_up_collections(&namespace.database) {
        return Ok(None);
    }
    let sessions = view.keyspaces.sessions;
    let rows = match (namespace.database.as_str(), namespace.collection.as_str()) {
        ("config", "transactions") => Rows::Sessions(sessions),
        ("config", "system.preimages") => images.map_or(Rows::None, Rows::Images),
        ("local", name) => match name.strip_prefix(SESSION_ROWS) {
            Some(after) => hex::decode(after).map_or(Rows::None, |key| Rows::Page(sessions, key)),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: vec![0xff; UUID_BYTES] };
    let collection = Collection::new(namespace.clone(), Ident::MADE_UP, uuid, Document::new())?;
    let base = Arc::clone(&view.snapshot);
    let snapshot = Arc::new(WithRows { base, records: view.keyspaces.records, rows });
    Ok(Some((Arc::new(collection), View { snapshot, ..view.clone() })))
}

/// Whether some collections of a database may be made up.
pub(crate) fn has_made_up_collections(database: &str) -> bool {
    matches!(database, "config" | "local")
}

/// What the records of a collection are made of, and the keyspace of it.
enum Rows {
    /// A member without a set keeps no images, and no row is after what is no key.
    None,
    Sessions(KeyspaceId),
    Images(KeyspaceId),
    /// The rows of sessions after a key.
    Page(KeyspaceId, Vec<u8>),
}

impl Rows {
    /// The rows as clients are shown them, in the order of their keys.
    fn scan(&self, base: &Arc<dyn Snapshot>, direction: Direction) -> Result<Scan, ReadError> {
        match self {
            Self::None => Ok(Box::new(std::iter::empty())),
            Self::Sessions(keyspace) => {
                let rest = base.scan(*keyspace, KeyRange::all(), direction)?;
                let base = Arc::clone(base);
                Ok(Box::new(Sessions { base, keyspace: *keyspace, direction, rest, passed: 0 }))
            }
            Self::Images(keyspace) => base.scan(*keyspace, image_rows(), direction),
            Self::Page(keyspace, after) => {
                let range =
                    KeyRange { start: Bound::Excluded(after.clone()), end: Bound::Unbounded };
                let rows = base.scan(*keyspace, range, direction)?.take(PAGE);
                Ok(Box::new(rows.map(|pair| pair.map(|(key, row)| stored_row(key, &row)))))
            }
        }
    }
}

/// A row of a session with its key, in a document.
fn stored_row(key: Bytes, row: &[u8]) -> (Bytes, Bytes) {
    let binary = |bytes: &[u8]| Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() };
    let document = rawdoc! { "_id": binary(&key), "row": binary(row) };
    (key, document.into_bytes().into())
}

/// The document of `config.transactions` that a row is shown as; none if it is about something else.
fn shown_session(key: &Bytes, row: &[u8]) -> Option<Bytes> {
    let (session, row) = (session_of(key)?, SessionRow::from_bytes(row)?);
    Some(to_raw(&row.shown(&session)).ok()?.into_bytes().into())
}

/// The documents of `config.transactions`.
struct Sessions {
    base: Arc<dyn Snapshot>,
    keyspace: KeyspaceId,
    direction: Direction,
    rest: Scan,
    /// Rows since the last one that was shown, or since the scan was begun anew.
    passed: u32,
}

impl Sessions {
    fn next_row(&mut self) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        while let Some((key, row)) = self.rest.next().transpose()? {
            if let Some(shown) = shown_session(&key, &row) {
                self.passed = 0;
                return Ok(Some((key, shown)));
            }
            self.passed += 1;
            if self.passed == MAX_PASSED {
                self.passed = 0;
                if let Some(range) = beyond_results(&key, self.direction) {
                    self.rest = self.base.scan(self.keyspace, range, self.direction)?;
                }
            }
        }
        Ok(None)
    }
}

impl Iterator for Sessions {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row().transpose()
    }
}

/// What comes after the results of a session, one of which has this key. They lie behind the row of its number. None if
/// it is no key of a result, or nothing comes after it.
fn beyond_results(key: &[u8], direction: Direction) -> Option<KeyRange> {
    let session = key.first_chunk()?;
    let number = number_key(&SessionId::from_bytes(*session)).to_vec();
    if *key <= number[..] {
        return None;
    }
    match (direction, KeyRange::prefix(session).end) {
        (Direction::Forward, Bound::Excluded(next)) => {
            Some(KeyRange { start: Bound::Included(next), end: Bound::Unbounded })
        }
        (Direction::Forward, _) => None,
        (Direction::Backward, _) => {
            Some(KeyRange { start: Bound::Unbounded, end: Bound::Included(number) })
        }
    }
}

/// A snapshot in which rows are the records of a collection.
struct WithRows {
    base: Arc<dyn Snapshot>,
    /// Where the records of collections lie.
    records: KeyspaceId,
    rows: Rows,
}

impl WithRows {
    fn are_rows(&self, keyspace: KeyspaceId, range: &KeyRange) -> bool {
        let all = KeyRange::prefix(&Ident::MADE_UP.prefix());
        let first = |range: &KeyRange| match &range.start {
            Bound::Included(key) | Bound::Excluded(key) => key.first_chunk().copied(),
            Bound::Unbounded => None,
        };
        let are_rows = keyspace == self.records && first(range) == Some(Ident::MADE_UP.prefix());
        debug_assert!(!are_rows || *range == all, "made-up records are read from one end");
        are_rows
    }
}

impl Snapshot for WithRows {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.base.get(keyspace, key)
    }

    fn get_known(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.base.get_known(keyspace, key)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Scan, ReadError> {
        if !self.are_rows(keyspace, &range) {
            return self.base.scan(keyspace, range, direction);
        }
        let numbered = self.rows.scan(&self.base, direction)?.zip(1..);
        Ok(Box::new(numbered.map(|(pair, number)| {
            pair.map(|(_, document)| (record_key(Ident::MADE_UP, RecordId(number)), document))
        })))
    }

    fn walk(&self, keyspace: KeyspaceId, range: KeyRange) -> Result<Box<dyn Walk>, ReadError> {
        match self.are_rows(keyspace, &range) {
            true => Ok(Box::new(ScanWalk::from(self.scan(keyspace, range, Direction::Forward)?))),
            false => self.base.walk(keyspace, range),
        }
    }

    fn log_totals(&self, keyspace: KeyspaceId) -> Result<LogTotals, ReadError> {
        self.base.log_totals(keyspace)
    }
}
