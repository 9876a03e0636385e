//! `findAndModify`: one document changes, and the client sees it before or after.

use std::sync::Arc;

use bson::raw::cstr;
use bson::{Bson, Document, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use quorate_query::Projection;
use quorate_query::matcher::Matcher;

use super::common::{LazyCompiler, WriteConcern, check_collation, count_capped};
use super::insert::{REPLY_BYTES, check_writable};
use super::steps::{Asked, Query, Search, Steps, Wanted};
use super::update::{Changed, ParsedUpdate, update_context};
use crate::catalog::Collection;
use crate::context::{Command, Outcome};
use crate::counters::Counters;
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::{Fields, to_raw};
use crate::finder::Found;
use crate::namespace::Namespace;
use crate::records::DocumentBytes;
use crate::writer::{Writer, with_room_for};

/// What is to be done, and what the client gets to see of it.
struct Modification {
    action: Action,
    last_error: RawDocumentBuf,
    value: Option<DocumentBytes>,
    array_index: Option<usize>,
}

/// Which image of the document the entry of a retryable findAndModify answers a repetition with.
const PRE_IMAGE: &str = "preImage";
const POST_IMAGE: &str = "postImage";

enum Action {
    Nothing,
    Remove(Found),
    Store(Box<(Found, Changed)>),
    Insert(Document),
}

pub(super) fn find_and_modify(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    check_writable(&namespace)?;
    let fields = Fields::new(&command.body, "findAndModify");
    check_collation(&fields)?;
    let concern = WriteConcern::parse(&command)?;
    let (remove, upsert, new) =
        (fields.flag("remove")?, fields.flag("upsert")?, fields.flag("new")?);
    check_combination(&fields, remove, upsert, new)?;
    let compiler = LazyCompiler::new(request, fields);
    let source = (&fields, &*command.body);
    let query = match Query::read(source, "query", &compiler)? {
        Some(query) => query,
        None => Query::Matcher(Arc::new(Matcher::parse_with(&Document::new(), compiler.get()?)?)),
    };
    let projection = match fields.document("fields")? {
        // What the query matched need not be in the new document.
        Some(wanted) if new && wanted.keys().any(|name| name.ends_with(".$")) => {
            refuse!(BAD_VALUE, "cannot use a positional projection and return the new document");
        }
        Some(wanted) if !wanted.is_empty() => {
            Some(Projection::parse_find_with(wanted, &*query.matcher()?, compiler.get()?)?)
        }
        _ => None,
    };
    let mut update = match remove {
        true => None,
        false => {
            let context = update_context(request, &fields)?;
            let options = (context, fields.flag("bypassDocumentValidation")?);
            ParsedUpdate::read(source, "update", &compiler, options)?
        }
    };
    if upsert {
        count_capped(request, &namespace)?;
    }
    let mut writer = request.write();
    if let Some(update) = &mut update {
        update.context.timestamp = writer.next_timestamp();
    }
    writer.begin_retryable(request.retryable.as_ref(), 1)?;
    let mut reply = loop {
        if let Some(reply) = earlier_reply(request, &writer) {
            return Ok(concern.reply(to_raw(&reply)?, None));
        }
        let mut collection = writer.collection(&namespace);
        let found = match &mut collection {
            Some(collection) => {
                let asked = (&query, update.as_ref());
                first(request, &mut writer, collection, asked, &fields)?
            }
            None => None,
        };
        if writer.earlier_result(0).is_some() {
            // A repetition of the command was faster.
            continue;
        }
        let modification = match (found, &update) {
            (Some((found, None)), _) => removal(found),
            (Some((found, Some(after))), _) => change(found, after, new),
            (None, Some(update)) if upsert => {
                let Some(document) = update.upserted(&mut writer, &query)? else { continue };
                insertion(document, new)?
            }
            (None, update) => nothing(update.is_some()),
        };
        let reply = modification.reply(projection.as_ref())?;
        let counted = counted(&modification.action);
        let target = (&namespace, collection, update.as_ref());
        match carry_out(&mut writer, modification.action, target, (&reply, new)) {
            Ok(()) => {
                counted(request.node.counters());
                break reply;
            }
            // Once the transaction in the way has ended, another document may be the first.
            Err(error) => {
                if writer.wait_if_blocked()? {
                    continue;
                } else {
                    return Err(error);
                }
            }
        }
    };
    let commit = request.end_writes(writer, true);
    reply.append(cstr!("ok"), 1.0);
    Ok(concern.reply(reply, commit))
}

impl Modification {
    /// What the client is told, but for whether the command went through.
    fn reply(&self, projection: Option<&Projection>) -> Result<RawDocumentBuf> {
        let shown = self.value.as_ref().map_or(0, |value| value.as_bytes().len());
        let mut reply = with_room_for(REPLY_BYTES + shown);
        reply.append(cstr!("lastErrorObject"), &*self.last_error);
        match (&self.value, projection) {
            (Some(document), Some(projection)) => {
                let document = Document::try_from(&**document)?;
                let shown = projection.apply(&document, self.array_index)?;
                reply.append(cstr!("value"), to_raw(&shown)?);
            }
            (Some(document), None) => reply.append(cstr!("value"), &**document),
            (None, _) => reply.append(cstr!("value"), RawBsonRef::Null),
        }
        Ok(reply)
    }
}

/// What the command was answered with before, if it was done before.
fn earlier_reply(request: &Request<'_>, writer: &Writer<'_>) -> Option<Document> {
    let mut reply = writer.earlier_result(0)?.clone();
    request.node.counters().retried_command(1);
    reply.insert("retriedStmtId", writer.statement_id(0)?);
    reply.insert("ok", 1.0);
    Some(reply)
}

/// Counts what an action does, once it is done.
fn counted(action: &Action) -> fn(&Counters) {
    match action {
        Action::Nothing => |_| {},
        Action::Remove(_) => |counters| counters.deleted(1),
        Action::Store(..) => |counters| counters.updated(1),
        Action::Insert(_) => |counters| counters.inserted(1),
    }
}

/// Makes the change, with the reply as the result for a client that repeats it.
fn carry_out(
    writer: &mut Writer<'_>,
    action: Action,
    target: (&Namespace, Option<Arc<Collection>>, Option<&ParsedUpdate<'_>>),
    (reply, new): (&RawDocument, bool),
) -> Result<()> {
    match (action, target) {
        (Action::Remove(found), (_, Some(collection), _)) => {
            writer.enter_statement(0, || reply.to_owned());
            writer.enter_image(PRE_IMAGE);
            writer.remove(&collection, found.record, &found.document)
        }
        (Action::Store(change), (_, Some(mut collection), Some(update))) => {
            let (found, after) = *change;
            writer.enter_statement(0, || reply.to_owned());
            writer.enter_image(if new { POST_IMAGE } else { PRE_IMAGE });
            update.store(writer, &mut collection, &found, after)
        }
        (Action::Insert(document), (namespace, _, Some(update))) => {
            writer.enter_statement(0, || reply.to_owned());
            update.insert(writer, namespace, &document)
        }
        _ => Ok(()),
    }
}

fn check_combination(fields: &Fields<'_>, remove: bool, upsert: bool, new: bool) -> Result<()> {
    let has_update = fields.has("update");
    let message = match (remove, has_update) {
        (true, true) => "Cannot specify both an update and remove=true",
        (false, false) => "Either an update or remove=true must be specified",
        (true, false) if upsert => "Cannot specify both upsert=true and remove=true",
        (true, false) if new => {
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted \
             document"
        }
        (true, false) if fields.has("arrayFilters") => {
            "Cannot specify arrayFilters and remove=true"
        }
        _ => return Ok(()),
    };
    Err(CommandError::new(ErrorCode::FAILED_TO_PARSE, message))
}

/// What an update makes of a document; none if that stays the same.
type After = Option<Changed>;

/// The first document that matches, as it is now, and what the update makes of it, if there is one.
fn first(
    request: &Request<'_>,
    writer: &mut Writer<'_>,
    collection: &mut Arc<Collection>,
    (query, update): (&Query<'_>, Option<&ParsedUpdate<'_>>),
    fields: &Fields<'_>,
) -> Result<Option<(Found, Option<After>)>> {
    refuse_if!(collection.view.is_some() => COMMAND_NOT_SUPPORTED_ON_VIEW,
        "findAndModify is not supported on the view {}", collection.namespace);
    let asked = Asked {
        query,
        hint: fields.raw("hint"),
        sort: fields.document("sort")?,
        wanted: Wanted::One,
        upserts: fields.flag("upsert")?,
        statement: 0,
    };
    let mut search = Search::new(writer, collection, &asked, request.interrupt.clone())?;
    let mut steps = Steps::begin(writer, collection, Wanted::One);
    let evaluate = |found: &Found| update.map(|update| update.apply(found)).transpose();
    while let Some(found) = steps.next(writer, collection, &mut search)? {
        let evaluated = steps.evaluate(writer, collection, &search, found, &evaluate)?;
        if evaluated.is_some() {
            return Ok(evaluated);
        }
        search.lose();
    }
    Ok(None)
}

fn nothing(is_update: bool) -> Modification {
    let mut last_error = rawdoc! { "n": 0 };
    if is_update {
        last_error.append(cstr!("updatedExisting"), false);
    }
    Modification { action: Action::Nothing, last_error, value: None, array_index: None }
}

fn insertion(document: Document, new: bool) -> Result<Modification> {
    let id = RawBson::try_from(document.get("_id").cloned().unwrap_or(Bson::Null))?;
    Ok(Modification {
        last_error: rawdoc! { "n": 1, "updatedExisting": false, "upserted": id },
        value: new.then(|| to_raw(&document)).transpose()?.map(DocumentBytes::from),
        array_index: None,
        action: Action::Insert(document),
    })
}

fn removal(found: Found) -> Modification {
    Modification {
        last_error: rawdoc! { "n": 1 },
        value: Some(found.document.clone()),
        array_index: found.details.array_index,
        action: Action::Remove(found),
    }
}

fn change(found: Found, after: After, new: bool) -> Modification {
    let value = match &after {
        Some(change) if new => change.whole.clone().into(),
        _ => found.document.clone(),
    };
    Modification {
        last_error: rawdoc! { "n": 1, "updatedExisting": true },
        value: Some(value),
        array_index: found.details.array_index,
        action: match after {
            Some(after) => Action::Store(Box::new((found, after))),
            None => Action::Nothing,
        },
    }
}
