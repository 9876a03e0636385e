//! `find`.

use super::common::{CursorOptions, check_collation, open_cursor, parse_filter};
use crate::context::{Command, Outcome};
use crate::cursors::DocumentStream;
use crate::dispatch::Request;
use crate::error::CommandError;
use crate::fields::Fields;
use crate::finder::Finder;
use crate::plan::{self, Question};
use crate::sort::{self, SortOrder};

pub(super) fn find(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    let namespace = request.namespace(&command)?;
    let fields = Fields::new(&command.body, "find");
    check_collation(&fields)?;
    let matcher = parse_filter(&fields, "filter")?;
    let mut options = CursorOptions::new(request);
    options.batch_size = fields.count("batchSize")?;
    options.single_batch = fields.flag("singleBatch")?;
    options.no_timeout = fields.flag("noCursorTimeout")?;
    options.limit = fields.count("limit")?.filter(|&limit| limit > 0);
    let skip = fields.count("skip")?.unwrap_or(0);
    let (collection, view) = request.node.read(&namespace);
    let Some(collection) = collection else {
        return open_cursor(request, namespace, Box::new(std::iter::empty()), options);
    };
    let question = Question {
        collection: &collection,
        matcher: &matcher,
        sort: fields.document("sort")?,
        hint: fields.raw("hint"),
    };
    let sort = parse_sort(&fields)?;
    let plan = plan::choose(&question)?;
    let finder = Finder::new(view, collection, matcher, &plan, options.interrupt.clone())?;
    let documents = finder.map(|found| found.map(|found| found.document));
    let skipped = usize::try_from(skip).unwrap_or(usize::MAX);
    let stream: DocumentStream = match sort.filter(|_| !plan.sorted) {
        Some(sort) => {
            let needed = options.limit.map(|limit| limit.saturating_add(skip));
            let needed = needed.and_then(|needed| usize::try_from(needed).ok());
            let sorted = sort::sort(&sort, documents, |document| document, needed)?;
            Box::new(sorted.into_iter().skip(skipped).map(Ok))
        }
        None => Box::new(documents.skip(skipped)),
    };
    open_cursor(request, namespace, stream, options)
}

/// The order asked for; none if it is empty or the natural one.
pub(super) fn parse_sort(fields: &Fields<'_>) -> Result<Option<SortOrder>, CommandError> {
    match fields.document("sort")? {
        Some(sort) if !sort.is_empty() && !sort.contains_key("$natural") => {
            SortOrder::parse(sort).map(Some)
        }
        _ => Ok(None),
    }
}
