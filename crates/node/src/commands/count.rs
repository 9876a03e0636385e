//! `count`.

use bson::{Bson, doc};
use quorate_query::matcher::Matcher;

use super::aggregate::read_view;
use super::common::{check_collation, parse_filter, reply};
use crate::catalog::Collection;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, Result};
use crate::fields::Fields;
use crate::select::Selection;

pub(super) fn count(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    let fields = Fields::new(&command.body, "count");
    check_collation(&fields)?;
    let matcher = parse_filter(request, &fields, "query")?;
    let skip = fields.count("skip")?.unwrap_or(0);
    // A negative limit means the same as a positive one.
    let limit = fields.integer("limit")?.map_or(0, i64::unsigned_abs);
    let (collection, view) = request.read(&namespace)?;
    let Some(collection) = collection else { return reply(&doc! { "n": 0, "ok": 1.0 }) };
    let needed = if limit == 0 { u64::MAX } else { skip.saturating_add(limit) };
    let total = if collection.view.is_some() {
        let query = fields.document("query")?.cloned().unwrap_or_default();
        let stages = [Bson::from(doc! { "$match": query })];
        counted_up_to(read_view(request, &namespace, &stages)?.map(|d| d.map(drop)), needed)?
    } else if let (false, Some(known)) =
        (fields.has("hint"), known_total(request, &collection, &matcher)?)
    {
        known
    } else {
        let interrupt = request.interrupt.clone();
        let selection = Selection {
            hint: fields.raw("hint").cloned(),
            ..Selection::new(collection, view, matcher, interrupt)
        };
        counted_up_to(selection.run()?.map(|found| found.map(drop)), needed)?
    };
    let mut counted = total.saturating_sub(skip);
    if limit > 0 {
        counted = counted.min(limit);
    }
    // Small counts are int32, as clients expect.
    match i32::try_from(counted) {
        Ok(counted) => reply(&doc! { "n": counted, "ok": 1.0 }),
        Err(_) => reply(&doc! { "n": counted as i64, "ok": 1.0 }),
    }
}

/// How many documents the collection holds, without looking at them; none if only some are meant, or
/// if the command reads other data than the newest.
fn known_total(
    request: &Request<'_>,
    collection: &Collection,
    matcher: &Matcher,
) -> Result<Option<u64>> {
    if !matcher.matches_everything() {
        return Ok(None);
    }
    let is_newest = || {
        let newest = request.node.standing().last.op_time.timestamp;
        request.moment.as_ref().is_none_or(|moment| moment.time == newest)
    };
    if !is_newest() {
        return Ok(None);
    }
    let totals = request.totals(collection)?;
    // Counting may have taken a while.
    Ok(Some(totals.documents).filter(|_| is_newest()))
}

fn counted_up_to<E>(documents: impl Iterator<Item = Result<(), E>>, most: u64) -> Result<u64>
where
    CommandError: From<E>,
{
    let mut total = 0;
    for document in documents {
        document?;
        total += 1;
        if total == most {
            break;
        }
    }
    Ok(total)
}
