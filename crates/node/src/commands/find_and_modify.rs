//! `findAndModify`: one document changes, and the client sees it before or after.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_query::matcher::Matcher;
use quorate_query::{Projection, Update};

use super::common::{WriteConcern, check_collation, command_compiler};
use super::insert::check_writable;
use super::update::{ParsedUpdate, update_context};
use crate::catalog::Collection;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode};
use crate::fields::{Fields, to_raw};
use crate::finder::{Found, InterruptSlot};
use crate::select::Selection;
use crate::writer::Writer;

/// What a client gets to see.
struct Modified {
    last_error: Document,
    value: Option<Document>,
    array_index: Option<usize>,
}

pub(super) fn find_and_modify(
    request: &Request<'_>,
    command: Command,
) -> Result<Outcome, CommandError> {
    let namespace = request.namespace(&command)?;
    check_writable(&namespace)?;
    let fields = Fields::new(&command.body, "findAndModify");
    check_collation(&fields)?;
    let concern = WriteConcern::parse(&fields)?;
    let (remove, upsert, new) =
        (fields.flag("remove")?, fields.flag("upsert")?, fields.flag("new")?);
    check_combination(&fields, remove, upsert, new)?;
    let compiler = command_compiler(request, &fields)?;
    let query = fields.document("query")?.cloned().unwrap_or_default();
    let matcher = Arc::new(Matcher::parse_with(&query, &compiler)?);
    let projection = match fields.document("fields")? {
        Some(wanted) if !wanted.is_empty() => {
            Some(Projection::parse_find_with(wanted, &matcher, &compiler)?)
        }
        _ => None,
    };
    let mut writer = request.node.write(request.context.now);
    let update = match fields.raw("update") {
        None => None,
        Some(change) => {
            let filters = fields.documents("arrayFilters")?.unwrap_or_default();
            Some(ParsedUpdate {
                matcher: Arc::clone(&matcher),
                update: Update::parse_with(change, &filters, &compiler)?,
                context: update_context(&mut writer),
                bypass_validation: fields.flag("bypassDocumentValidation")?,
            })
        }
    };
    let collection = writer.collection(&namespace);
    let found = match &collection {
        Some(collection) => first(request, &writer, collection, matcher, &fields)?,
        None => None,
    };
    let modified = match (collection, found, update) {
        (Some(collection), Some(found), None) => removed(&mut writer, &collection, &found)?,
        (Some(mut collection), Some(found), Some(update)) => {
            updated(&mut writer, &mut collection, &found, &update, new)?
        }
        (_, None, Some(update)) if upsert => {
            let document = update.upsert(&mut writer, &namespace)?;
            let id = document.get("_id").cloned().unwrap_or(Bson::Null);
            Modified {
                last_error: doc! { "n": 1, "updatedExisting": false, "upserted": id },
                value: new.then_some(document),
                array_index: None,
            }
        }
        (_, _, update) => {
            let mut last_error = doc! { "n": 0 };
            if update.is_some() {
                last_error.insert("updatedExisting", false);
            }
            Modified { last_error, value: None, array_index: None }
        }
    };
    let commit = writer.last_commit();
    drop(writer);
    let value = match (modified.value, projection) {
        (Some(document), Some(projection)) => {
            Bson::from(projection.apply(&document, modified.array_index)?)
        }
        (Some(document), None) => Bson::from(document),
        (None, _) => Bson::Null,
    };
    let reply = doc! { "lastErrorObject": modified.last_error, "value": value, "ok": 1.0 };
    Ok(concern.reply(to_raw(&reply)?, commit))
}

fn check_combination(
    fields: &Fields<'_>,
    remove: bool,
    upsert: bool,
    new: bool,
) -> Result<(), CommandError> {
    let has_update = fields.has("update");
    let message = match (remove, has_update) {
        (true, true) => "Cannot specify both an update and remove=true",
        (false, false) => "Either an update or remove=true must be specified",
        (true, false) if upsert => "Cannot specify both upsert=true and remove=true",
        (true, false) if new => {
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted \
             document"
        }
        _ => return Ok(()),
    };
    Err(CommandError::new(ErrorCode::FAILED_TO_PARSE, message))
}

fn first(
    request: &Request<'_>,
    writer: &Writer<'_>,
    collection: &Arc<Collection>,
    matcher: Arc<Matcher>,
    fields: &Fields<'_>,
) -> Result<Option<Found>, CommandError> {
    if collection.view.is_some() {
        return Err(CommandError::new(
            ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
            format!("findAndModify is not supported on the view {}", collection.namespace),
        ));
    }
    let interrupt = InterruptSlot::new(Arc::clone(&request.context.interrupt));
    let selection = Selection {
        sort: fields.document("sort")?.cloned(),
        hint: fields.raw("hint").cloned(),
        limit: Some(1),
        ..Selection::new(Arc::clone(collection), writer.view().clone(), matcher, interrupt)
    };
    selection.run()?.next().transpose()
}

fn removed(
    writer: &mut Writer<'_>,
    collection: &Collection,
    found: &Found,
) -> Result<Modified, CommandError> {
    writer.remove(collection, found.record, &found.document)?;
    Ok(Modified {
        last_error: doc! { "n": 1 },
        value: Some(Document::try_from(&*found.document)?),
        array_index: found.details.array_index,
    })
}

fn updated(
    writer: &mut Writer<'_>,
    collection: &mut Arc<Collection>,
    found: &Found,
    update: &ParsedUpdate,
    new: bool,
) -> Result<Modified, CommandError> {
    let before = Document::try_from(&*found.document)?;
    let after = update.apply(found)?;
    if let Some(after) = &after {
        update.store(writer, collection, found, after)?;
    }
    let value = if new { after.unwrap_or(before) } else { before };
    Ok(Modified {
        last_error: doc! { "n": 1, "updatedExisting": true },
        value: Some(value),
        array_index: found.details.array_index,
    })
}
