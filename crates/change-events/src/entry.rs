//! One entry of the oplog, or one operation within it, as far as events need it.

use bson::spec::BinarySubtype;
use bson::{Bson, DateTime, Document, Timestamp};

use crate::error::{EventError, Result};

/// What is the same for all operations of an entry.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) timestamp: Timestamp,
    pub(crate) wall: DateTime,
    pub(crate) session: Option<Bson>,
    pub(crate) number: Option<Bson>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation<'a> {
    pub(crate) kind: &'a str,
    pub(crate) database: &'a str,
    pub(crate) collection: &'a str,
    pub(crate) uuid: Option<[u8; 16]>,
    pub(crate) object: &'a Document,
    pub(crate) target: Option<&'a Document>,
}

impl Place {
    pub(crate) fn of(entry: &Document) -> Result<Self> {
        let timestamp = entry.get_timestamp("ts").map_err(|_| missing("ts"))?;
        let wall = entry.get_datetime("wall").map_err(|_| missing("wall"))?;
        Ok(Self { timestamp, wall: *wall, session: None, number: None })
    }

    /// The same, with the session that the entry belongs to.
    pub(crate) fn in_transaction(mut self, entry: &Document) -> Self {
        self.session = entry.get("lsid").cloned();
        self.number = entry.get("txnNumber").cloned();
        self
    }
}

impl<'a> Operation<'a> {
    pub(crate) fn of(entry: &'a Document) -> Result<Self> {
        let kind = entry.get_str("op").map_err(|_| missing("op"))?;
        let namespace = entry.get_str("ns").map_err(|_| missing("ns"))?;
        let (database, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
        let object = entry.get_document("o").map_err(|_| missing("o"))?;
        let uuid = match entry.get("ui") {
            Some(Bson::Binary(binary)) if binary.subtype == BinarySubtype::Uuid => {
                binary.bytes.as_slice().try_into().ok()
            }
            _ => None,
        };
        let target = entry.get_document("o2").ok();
        Ok(Self { kind, database, collection, uuid, object, target })
    }

    /// The name and argument of a command.
    pub(crate) fn command(&self) -> Option<(&'a str, &'a Bson)> {
        self.object.iter().next().map(|(name, argument)| (name.as_str(), argument))
    }
}

fn missing(field: &str) -> EventError {
    EventError::entry(format!("it has no field {field}"))
}
