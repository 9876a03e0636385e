//! `setDefaultRWConcern` and `getDefaultRWConcern`: what commands of a set get that do not say what
//! they want to be sure of.

use bson::{Bson, Document, doc};

use super::common::{WriteConcern, reply};
use crate::context::{Command, Outcome};
use crate::default_concerns::{DefaultConcerns, settings_namespace};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, to_raw, whole_number};

/// The read concerns that may be a default: the others need more than a level, or a primary.
const READ_LEVELS: [&str; 3] = ["local", "available", "majority"];

/// The most members that a write concern can name.
const MAX_MEMBERS: i64 = 50;

pub(super) fn set(request: &Request<'_>, command: Command) -> Result<Outcome> {
    require_set(request)?;
    let fields = Fields::new(&command.body, "setDefaultRWConcern");
    let concern = WriteConcern::parse(&command)?;
    let read = fields.document("defaultReadConcern")?.map(read_concern).transpose()?;
    let write = fields.document("defaultWriteConcern")?.map(write_concern).transpose()?;
    refuse_if!(read.is_none() && write.is_none() => BAD_VALUE,
        "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields must be \
         present");
    let mut writer = request.node.write(request.context.now);
    let before = request.node.stored_default_concerns()?;
    let (read_before, write_before) =
        before.map_or((None, None), |before| (before.read, before.write));
    refuse_if!(write == Some(None) && write_before.is_some() => ILLEGAL_OPERATION,
        "The global default write concern cannot be unset once it is set.");
    let defaults = DefaultConcerns {
        read: read.unwrap_or(read_before),
        write: write.unwrap_or(write_before),
        updated: writer.next_timestamp(),
        updated_wall: quorate_wire::to_bson_date_time(request.context.now.wall),
    };
    let mut collection = writer.collection_or_create(&settings_namespace())?;
    writer.put(&mut collection, to_raw(&defaults.to_document())?)?;
    let commit = writer.last_commit();
    drop(writer);
    Ok(concern.reply(to_raw(&shown(request, Some(&defaults)))?, commit))
}

pub(super) fn get(request: &Request<'_>, command: Command) -> Result<Outcome> {
    require_set(request)?;
    let fields = Fields::new(&command.body, "getDefaultRWConcern");
    if fields.flag("inMemory")? {
        let known = request.node.default_concerns()?;
        let mut shown = shown(request, known.as_deref());
        shown.insert("inMemory", true);
        return reply(&shown);
    }
    reply(&shown(request, request.node.stored_default_concerns()?.as_ref()))
}

/// A server by itself has one copy of the data, and nothing to choose.
fn require_set(request: &Request<'_>) -> Result<()> {
    if request.node.replication().is_some() {
        return Ok(());
    }
    Err(fail!(51300, "'{}' is not supported on standalone nodes.", request.name))
}

/// The concerns in force, and their sources.
fn shown(request: &Request<'_>, defaults: Option<&DefaultConcerns>) -> Document {
    let mut shown = defaults.map(DefaultConcerns::fields).unwrap_or_default();
    let mut source = |name: &str, implicit: Document| {
        let is_chosen = shown.contains_key(name);
        if !is_chosen {
            shown.insert(name, implicit);
        }
        shown.insert(format!("{name}Source"), if is_chosen { "global" } else { "implicit" });
    };
    let published = request.node.replication().and_then(|replication| replication.published());
    let majority = published.is_none_or(|published| published.majority_by_default);
    let w = if majority { Bson::from("majority") } else { Bson::from(1) };
    source("defaultWriteConcern", doc! { "w": w, "wtimeout": 0 });
    source("defaultReadConcern", doc! { "level": "local" });
    shown.insert("localUpdateWallClockTime", request.node.defaults_cache().changed_at());
    shown.insert("ok", 1.0);
    shown
}

/// A read concern that may be a default; none takes the chosen one back.
pub(crate) fn read_concern(given: &Document) -> Result<Option<Document>> {
    if given.is_empty() {
        return Ok(None);
    }
    if let Some(other) = given.keys().find(|name| *name != "level") {
        refuse!(
            BAD_VALUE,
            "a default read concern has a level and nothing else; leave {other} out"
        );
    }
    match given.get_str("level") {
        Ok(level) if READ_LEVELS.contains(&level) => Ok(Some(doc! { "level": level })),
        _ => Err(fail!(
            BAD_VALUE,
            "level: only local, available and majority are suitable for the default read concern"
        )),
    }
}

/// A write concern that may be a default; none takes the chosen one back.
pub(crate) fn write_concern(given: &Document) -> Result<Option<Document>> {
    if given.is_empty() {
        return Ok(None);
    }
    let known = ["w", "j", "wtimeout"];
    if let Some(other) = given.keys().find(|name| !known.contains(&name.as_str())) {
        refuse!(BAD_VALUE, "a default write concern has w, j and wtimeout; leave {other} out");
    }
    let fields = Fields::new(given, "defaultWriteConcern");
    let w = match fields.raw("w") {
        Some(Bson::String(mode)) if !mode.is_empty() => Bson::from(mode.as_str()),
        Some(number) => match whole_number(number) {
            Some(0) => {
                refuse!(
                    BAD_VALUE,
                    "Unacknowledged write concern is not suitable for the default write concern"
                );
            }
            Some(number @ 1..=MAX_MEMBERS) => Bson::from(number as i32),
            _ => {
                refuse!(
                    BAD_VALUE,
                    "w must be a number from 1 to {MAX_MEMBERS}, \"majority\" or the name of a mode"
                );
            }
        },
        None => refuse!(BAD_VALUE, "a default write concern needs w"),
    };
    let mut concern = doc! { "w": w };
    if let Some(journal) = fields.boolean("j")? {
        concern.insert("j", journal);
    }
    let timeout = fields.count("wtimeout")?.unwrap_or(0);
    concern.insert("wtimeout", i32::try_from(timeout).unwrap_or(i32::MAX));
    Ok(Some(concern))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn only_what_every_command_can_use_may_be_a_default() {
        for level in READ_LEVELS {
            assert_eq!(read_concern(&doc! { "level": level }).unwrap().unwrap().len(), 1);
        }
        for bad in [
            doc! { "level": "linearizable" },
            doc! { "level": "snapshot" },
            doc! { "level": 1 },
            doc! { "level": "local", "afterClusterTime": 1 },
        ] {
            assert_eq!(read_concern(&bad).unwrap_err().code, ErrorCode::BAD_VALUE, "{bad}");
        }
        assert_eq!(read_concern(&doc! {}).unwrap(), None);
    }

    #[test]
    fn a_default_write_is_acknowledged_by_somebody() {
        for good in [doc! { "w": 1 }, doc! { "w": "majority", "j": true }, doc! { "w": "far" }] {
            let stored = write_concern(&good).unwrap().unwrap();
            assert_eq!(stored.get("w"), good.get("w"));
            assert_eq!(stored.get_i32("wtimeout").unwrap(), 0);
        }
        for bad in [doc! { "w": 0 }, doc! { "w": 51 }, doc! { "j": true }, doc! { "w": 1, "x": 1 }]
        {
            assert_eq!(write_concern(&bad).unwrap_err().code, ErrorCode::BAD_VALUE, "{bad}");
        }
        assert_eq!(write_concern(&doc! {}).unwrap(), None);
    }
}
