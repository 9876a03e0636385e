//! `replSetResizeOplog`: how much history this member keeps, and for how long at least.
//!
//! A member's own business: it is neither logged nor told to others. docs/replication-rules.md#oplog.

use std::time::Duration;

use bson::{Bson, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::writer::oplog_namespace;

/// The least that an oplog may be made, in megabytes.
const MIN_MEGABYTES: f64 = 990.0;

/// The most: a petabyte.
const MAX_MEGABYTES: f64 = (1_u64 << 30) as f64;

/// The longest retention, in hours: a century is for ever.
const MAX_HOURS: f64 = 876_000.0;

pub(super) fn resize_oplog(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let size = number(&command, "size")?;
    let hours = number(&command, "minRetentionHours")?;
    refuse_if!(size.is_none() && hours.is_none() => INVALID_OPTIONS,
        "replSetResizeOplog needs size (megabytes) or minRetentionHours");
    let in_range = |name: &str, value: f64, least: f64, most: f64| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(fail!(
            BAD_VALUE,
            "replSetResizeOplog: {name} is {value}, but must be between {least} and {most}"
        ))
    };
    if let Some(size) = size {
        in_range("size", size, MIN_MEGABYTES, MAX_MEGABYTES)?;
    }
    if let Some(hours) = hours {
        in_range("minRetentionHours", hours, 0.0, MAX_HOURS)?;
    }
    let mut writer = request.node.write(request.context.now);
    if let Some(megabytes) = size {
        let oplog = writer
            .collection(&oplog_namespace())
            .ok_or_else(|| fail!(NAMESPACE_NOT_FOUND, "this member keeps no oplog"))?;
        let bytes = (megabytes * 1024.0 * 1024.0) as u64;
        writer.resize_capped(&oplog, bytes)?;
    }
    if let Some(hours) = hours {
        let retention = Duration::try_from_secs_f64(hours * 3600.0).unwrap_or_default();
        writer.keep_min_retention(retention)?;
    }
    reply(&doc! { "ok": 1.0 })
}

fn number(command: &Command, name: &str) -> Result<Option<f64>> {
    match command.body.get(name) {
        None | Some(Bson::Null) => Ok(None),
        Some(Bson::Double(number)) => Ok(Some(*number)),
        Some(Bson::Int32(number)) => Ok(Some(f64::from(*number))),
        Some(Bson::Int64(number)) => Ok(Some(*number as f64)),
        Some(_) => {
            Err(fail!(TYPE_MISMATCH, "BSON field 'replSetResizeOplog.{name}' must be a number"))
        }
    }
}
