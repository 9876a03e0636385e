//! `find`.

use std::sync::Arc;

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use quorate_query::Projection;
use quorate_query::matcher::Matcher;
use quorate_query::value::{DocumentRef, Path};

use super::aggregate;
use super::common::{
    CursorOptions, check_collation, check_uuid, command_compiler, open_cursor, sort_room,
};
use crate::body::CommandBody;
use crate::context::{Command, Outcome};
use crate::cursors::{DocumentStream, reply_of_one};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, to_raw};
use crate::finder::Found;
use crate::generic_arguments::is_generic;
use crate::namespace::{Namespace, check_names};
use crate::plan::Access;
use crate::records::DocumentBytes;
use crate::select::{self, Selection, is_plain_id};
use crate::tail::Tail;

pub(super) fn find(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "find");
    if let Some(collection) = command.body.first_text() {
        check_names(request.database, collection)?;
        if let Some(id) = wanted_id(&command.body, &fields)?
            && let Some(found) = look_up(request, (request.database, collection), id)?
        {
            return Ok(found);
        }
    }
    let namespace = request.namespace(&command)?;
    check_collation(&fields)?;
    let compiler = command_compiler(request, &fields)?;
    let matcher = Arc::new(match fields.document("filter")? {
        Some(filter) => Matcher::parse_with(filter, &compiler)?,
        None => Matcher::parse_with(&Document::new(), &compiler)?,
    });
    let projection = match fields.document("projection")? {
        Some(projection) if !projection.is_empty() => {
            Some(Projection::parse_find_with(projection, &matcher, &compiler)?)
        }
        _ => None,
    };
    let options = cursor_options(request, &fields)?;
    let (sort, skip) = (fields.document("sort")?.cloned(), fields.count("skip")?.unwrap_or(0));
    let (min, max) = (fields.document("min")?.cloned(), fields.document("max")?.cloned());
    let shape = Shape {
        projection,
        keys_only: fields.flag("returnKey")?,
        record_ids: fields.flag("showRecordId")?,
    };
    let (collection, view) = request.read(&namespace)?;
    check_uuid(&fields, &namespace, collection.as_deref())?;
    let Some(collection) = collection else {
        return open_cursor(request, namespace, Box::new(std::iter::empty()), options);
    };
    if collection.view.is_some() {
        return aggregate::find_in_view(request, namespace, &fields, options);
    }
    let selection = Selection {
        sort,
        hint: fields.raw("hint").cloned(),
        skip,
        limit: options.limit,
        min: min.filter(|bound| !bound.is_empty()),
        max: max.filter(|bound| !bound.is_empty()),
        room: Some(sort_room(request, &fields)?),
        ..Selection::new(collection, view, matcher, options.interrupt.clone())
    };
    if fields.flag("tailable")? {
        let awaits = fields.flag("awaitData")?;
        return tail(request, namespace, selection, shape.projection, options, awaits);
    }
    open_cursor(request, namespace, shape.stream(selection)?, options)
}

/// The fields of a find that asks for one document by its `_id`, besides those that every command may have.
const LOOK_UP_FIELDS: [&[u8]; 5] = [b"find", b"filter", b"limit", b"batchSize", b"singleBatch"];

/// The filter of a find that asks for the document with an `_id` and for nothing else. It needs no plan.
fn wanted_id<'c>(body: &'c CommandBody, fields: &Fields<'_>) -> Result<Option<&'c RawDocument>> {
    if !body.raw_keys().all(|name| LOOK_UP_FIELDS.contains(&name) || is_generic(name)) {
        return Ok(None);
    }
    let Some(filter) = body.get_raw_document("filter") else { return Ok(None) };
    fields.count("limit")?;
    fields.flag("singleBatch")?;
    let leaves_open = fields.count("batchSize")? == Some(0);
    Ok((is_plain_id(filter) && !leaves_open).then_some(filter))
}

/// The reply with the document that has this `_id`; none if the collection has no index to look it up in.
fn look_up(
    request: &Request<'_>,
    names: (&str, &str),
    id: &RawDocument,
) -> Result<Option<Outcome>> {
    let (Some(collection), view) = request.read_named(names)? else { return Ok(None) };
    if collection.id_index().is_none() {
        return Ok(None);
    }
    let found = select::look_up(&collection, &view, id, &request.interrupt)?;
    request.node.counters().returned(usize::from(found.is_some()));
    let document = found.as_ref().map(|found| found.document.as_bytes());
    let reply = reply_of_one(document, &[names.0, ".", names.1], request.at_cluster_time())?;
    Ok(Some(Outcome::Reply(reply.into())))
}

fn cursor_options(request: &Request<'_>, fields: &Fields<'_>) -> Result<CursorOptions> {
    refuse_if!(fields.flag("awaitData")? && !fields.flag("tailable")? => FAILED_TO_PARSE,
        "Cannot set 'awaitData' without also setting 'tailable'");
    refuse_if!(fields.flag("tailable")? && request.transaction.is_some() => INVALID_OPTIONS,
        "It is illegal to open a tailable cursor in a transaction: it shows what comes after the snapshot");
    let mut options = CursorOptions::new(request);
    options.batch_size = fields.count("batchSize")?;
    options.single_batch = fields.flag("singleBatch")?;
    options.no_timeout = fields.flag("noCursorTimeout")?;
    options.limit = fields.count("limit")?.filter(|&limit| limit > 0);
    Ok(options)
}

fn tail(
    request: &Request<'_>,
    namespace: Namespace,
    selection: Selection,
    projection: Option<Projection>,
    mut options: CursorOptions,
    awaits: bool,
) -> Result<Outcome> {
    let Selection { collection, view, matcher, interrupt, mut skip, .. } = selection;
    refuse_if!(collection.capped.is_none() => BAD_VALUE,
        "error processing query: ns={namespace}: tailable cursor requested on non capped \
         collection");
    let tail = Tail::new(collection, matcher, projection, interrupt, awaits, request.reads_at);
    let stream = tail.stream(view)?.filter(move |found| {
        let skipped = found.is_ok() && skip > 0;
        skip -= u64::from(skipped);
        !skipped
    });
    options.tail = Some(tail);
    open_cursor(request, namespace, Box::new(stream), options)
}

/// What is shown of the documents found.
struct Shape {
    projection: Option<Projection>,
    /// Only the fields of the index that was used.
    keys_only: bool,
    record_ids: bool,
}

impl Shape {
    fn stream(self, selection: Selection) -> Result<DocumentStream> {
        let plan = selection.plan()?;
        let keys = match &plan.access {
            Access::Index(access) if self.keys_only => access.index.paths.clone(),
            _ => Vec::new(),
        };
        let found = selection.run_plan(plan)?;
        if self.projection.is_none() && !self.keys_only && !self.record_ids {
            return Ok(Box::new(found.map(|found| found.map(|found| found.document))));
        }
        Ok(Box::new(found.map(move |found| self.show(&found?, &keys))))
    }

    fn show(&self, found: &Found, keys: &[Path]) -> Result<DocumentBytes> {
        let mut shown = if self.keys_only {
            let mut values = Document::new();
            for path in keys {
                let value = path.get(DocumentRef::Raw(&found.document));
                values.insert(path.as_str(), value.map_or(Bson::Null, |value| value.to_bson()));
            }
            to_raw(&values)?
        } else {
            match &self.projection {
                Some(projection) => project(projection, found)?,
                None => RawDocument::to_owned(&found.document),
            }
        };
        if self.record_ids && !self.keys_only {
            shown.append(bson::raw::cstr!("$recordId"), found.record.0 as i64);
        }
        Ok(shown.into())
    }
}

/// One document with the fields asked for.
pub(crate) fn project(projection: &Projection, found: &Found) -> Result<RawDocumentBuf> {
    let document = Document::try_from(&*found.document)?;
    to_raw(&projection.apply(&document, found.details.array_index)?)
}

/// A find as the stages that do the same.
pub(super) fn as_pipeline(fields: &Fields<'_>) -> Result<Vec<Bson>> {
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
