//! `count`.

use std::sync::Arc;

use bson::doc;

use super::common::{check_collation, parse_filter, reply};
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::CommandError;
use crate::fields::Fields;
use crate::finder::{Finder, InterruptSlot};
use crate::plan::{self, Question};

pub(super) fn count(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    let namespace = request.namespace(&command)?;
    let fields = Fields::new(&command.body, "count");
    check_collation(&fields)?;
    let matcher = parse_filter(&fields, "query")?;
    let skip = fields.count("skip")?.unwrap_or(0);
    // A negative limit means the same as a positive one.
    let limit = fields.integer("limit")?.map_or(0, i64::unsigned_abs);
    let (collection, view) = request.node.read(&namespace);
    let Some(collection) = collection else { return reply(&doc! { "n": 0, "ok": 1.0 }) };
    let total = if matcher.matches_everything() && collection.view.is_none() {
        request.node.write(request.context.now).totals(&collection)?.documents
    } else {
        let question = Question {
            collection: &collection,
            matcher: &matcher,
            sort: None,
            hint: fields.raw("hint"),
        };
        let plan = plan::choose(&question)?;
        let interrupt = InterruptSlot::new(Arc::clone(&request.context.interrupt));
        let needed = if limit == 0 { u64::MAX } else { skip.saturating_add(limit) };
        let mut total = 0;
        for found in Finder::new(view, collection, matcher, &plan, interrupt)? {
            found?;
            total += 1;
            if total == needed {
                break;
            }
        }
        total
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
