//! `find`.

use std::sync::Arc;

use bson::{Bson, Document, RawDocumentBuf, doc};
use quorate_query::Projection;
use quorate_query::matcher::Matcher;

use super::aggregate;
use super::common::{CursorOptions, check_collation, command_compiler, open_cursor};
use crate::context::{Command, Outcome};
use crate::cursors::DocumentStream;
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode};
use crate::fields::{Fields, to_raw};
use crate::finder::Found;
use crate::select::Selection;
use crate::tail::Tail;

pub(super) fn find(request: &Request<'_>, command: Command) -> Result<Outcome, CommandError> {
    let namespace = request.namespace(&command)?;
    let fields = Fields::new(&command.body, "find");
    check_collation(&fields)?;
    let compiler = command_compiler(request, &fields)?;
    let filter = fields.document("filter")?.cloned().unwrap_or_default();
    let matcher = Arc::new(Matcher::parse_with(&filter, &compiler)?);
    let projection = match fields.document("projection")? {
        Some(projection) if !projection.is_empty() => {
            Some(Projection::parse_find_with(projection, &matcher, &compiler)?)
        }
        _ => None,
    };
    let mut options = CursorOptions::new(request);
    options.batch_size = fields.count("batchSize")?;
    options.single_batch = fields.flag("singleBatch")?;
    options.no_timeout = fields.flag("noCursorTimeout")?;
    options.limit = fields.count("limit")?.filter(|&limit| limit > 0);
    check_options(&fields)?;
    let sort = fields.document("sort")?.cloned();
    let skip = fields.count("skip")?.unwrap_or(0);
    let tailable = fields.flag("tailable")?;
    let (collection, view) = request.node.read(&namespace);
    let Some(collection) = collection else {
        return open_cursor(request, namespace, Box::new(std::iter::empty()), options);
    };
    if collection.view.is_some() {
        return aggregate::find_in_view(request, namespace, &fields, options);
    }
    if tailable {
        if collection.capped.is_none() {
            return Err(CommandError::bad_value(format!(
                "error processing query: ns={namespace}: tailable cursor requested on non capped \
                 collection"
            )));
        }
        let (interrupt, awaits) = (options.interrupt.clone(), fields.flag("awaitData")?);
        let tail = Tail::new(collection, matcher, projection, interrupt, awaits);
        let stream = tail.stream(view)?;
        options.tail = Some(tail);
        return open_cursor(request, namespace, stream, options);
    }
    let selection = Selection {
        sort,
        hint: fields.raw("hint").cloned(),
        skip,
        limit: options.limit,
        ..Selection::new(collection, view, matcher, options.interrupt.clone())
    };
    let stream = projected(selection, projection)?;
    open_cursor(request, namespace, stream, options)
}

/// The documents of a selection with the fields asked for.
fn projected(
    selection: Selection,
    projection: Option<Projection>,
) -> Result<DocumentStream, CommandError> {
    let found = selection.run()?;
    Ok(match projection {
        Some(projection) => Box::new(found.map(move |found| project(&projection, &found?))),
        None => Box::new(found.map(|found| found.map(|found| found.document))),
    })
}

/// One document with the fields asked for.
pub(crate) fn project(
    projection: &Projection,
    found: &Found,
) -> Result<RawDocumentBuf, CommandError> {
    let document = Document::try_from(&*found.document)?;
    to_raw(&projection.apply(&document, found.details.array_index)?)
}

/// Options that would change the result and are not offered.
fn check_options(fields: &Fields<'_>) -> Result<(), CommandError> {
    for name in ["min", "max"] {
        if fields.document(name)?.is_some_and(|bounds| !bounds.is_empty()) {
            return Err(unsupported(name, "put the bounds into the filter"));
        }
    }
    for name in ["returnKey", "showRecordId"] {
        if fields.flag(name)? {
            return Err(unsupported(name, "leave it out"));
        }
    }
    if fields.flag("awaitData")? && !fields.flag("tailable")? {
        return Err(CommandError::new(
            ErrorCode::FAILED_TO_PARSE,
            "Cannot set 'awaitData' without also setting 'tailable'",
        ));
    }
    Ok(())
}

fn unsupported(name: &str, instead: &str) -> CommandError {
    CommandError::new(
        ErrorCode::COMMAND_NOT_SUPPORTED,
        format!("find with {name} is not supported; {instead}"),
    )
}

/// A find as the stages that do the same.
pub(super) fn as_pipeline(fields: &Fields<'_>) -> Result<Vec<Bson>, CommandError> {
    let mut stages = Vec::new();
    if let Some(filter) = fields.document("filter")? {
        stages.push(doc! { "$match": filter.clone() });
    }
    if let Some(sort) = fields.document("sort")?.filter(|sort| !sort.is_empty()) {
        stages.push(doc! { "$sort": sort.clone() });
    }
    if let Some(skip) = fields.count("skip")?.filter(|&skip| skip > 0) {
        stages.push(doc! { "$skip": skip as i64 });
    }
    if let Some(limit) = fields.count("limit")?.filter(|&limit| limit > 0) {
        stages.push(doc! { "$limit": limit as i64 });
    }
    if let Some(projection) = fields.document("projection")?.filter(|p| !p.is_empty()) {
        stages.push(doc! { "$project": projection.clone() });
    }
    Ok(stages.into_iter().map(Bson::from).collect())
}
