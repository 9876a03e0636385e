//! Operations of databases.

use bson::Document;
use quorate_client::{Cursor, Database, Error};

use super::super::arguments::Arguments;
use super::super::entities::Entities;
use super::super::outcome::{Attempt, Outcome, plain_document, plain_documents};
use super::client::TransposeWith;
use super::{change_stream, perform, set_options};
use crate::Result;

pub(super) async fn run(
    entities: &Entities,
    database: &Database,
    name: &str,
    mut arguments: Arguments,
) -> Result<Attempt> {
    match name {
        "createChangeStream" => {
            change_stream::create(entities, arguments, |pipeline| database.watch(pipeline)).await
        }
        "runCommand" => {
            let command = named_command(&mut arguments)?;
            let reply = perform!(entities, arguments, database.run_command(command);
                preference read_preference = "readPreference", millis timeout = "timeoutMS");
            reply.map(|reply| plain_document(Some(reply))).transpose_with(Outcome::Value)
        }
        "runCursorCommand" => {
            let cursor = cursor_command(entities, database, arguments).await?;
            collected(cursor).await
        }
        "createCommandCursor" => {
            let cursor = cursor_command(entities, database, arguments).await?;
            Ok(cursor.map(Outcome::Cursor))
        }
        "aggregate" => {
            let pipeline = arguments.required("pipeline", Arguments::documents)?;
            let cursor = perform!(entities, arguments, database.aggregate(pipeline);
                value comment = "comment", document let_vars = "let",
                size batch_size = "batchSize", flag allow_disk_use = "allowDiskUse",
                millis max_time = "maxTimeMS", millis timeout = "timeoutMS",
                flag bypass_document_validation = "bypassDocumentValidation");
            collected(cursor).await
        }
        "createCollection" => {
            let collection = arguments.required("collection", Arguments::text)?;
            let mut action = database.create_collection(&collection);
            if let Some(on) = arguments.text("viewOn")? {
                action = action.view(&on, arguments.documents("pipeline")?.unwrap_or_default());
            }
            if arguments.flag("capped")? == Some(true) {
                action = action.capped(arguments.required("size", Arguments::count)?);
            }
            let made = perform!(entities, arguments, action;
                document validator = "validator", count max_documents = "max",
                document change_stream_pre_and_post_images = "changeStreamPreAndPostImages");
            Ok(made.map(|()| Outcome::Collection(database.collection(&collection))))
        }
        "modifyCollection" => {
            let collection = arguments.required("collection", Arguments::text)?;
            let changed = perform!(entities, arguments, database.modify_collection(&collection);
                document validator = "validator",
                document change_stream_pre_and_post_images = "changeStreamPreAndPostImages");
            Ok(changed.map(|()| Outcome::Nothing))
        }
        "dropCollection" => {
            let collection = arguments.required("collection", Arguments::text)?;
            let collection = database.collection(&collection);
            let dropped = perform!(entities, arguments, collection.drop_collection(););
            Ok(dropped.map(|()| Outcome::Nothing))
        }
        "listCollections" => {
            let cursor = perform!(entities, arguments, database.list_collections();
                document filter = "filter", size batch_size = "batchSize",
                millis timeout = "timeoutMS");
            collected(cursor).await
        }
        "listCollectionNames" => {
            let mut action = database.list_collection_names();
            set_options!(arguments, action; document filter = "filter", millis timeout = "timeoutMS");
            arguments.finish()?;
            Ok(action.names().await.map(Outcome::names))
        }
        _ => Err(format!("a database has no operation {name}").into()),
    }
}

/// The command, whose name must come first: JSON does not promise that it does.
fn named_command(arguments: &mut Arguments) -> Result<Document> {
    let name = arguments.required("commandName", Arguments::text)?;
    let mut rest = arguments.required("command", Arguments::document)?;
    let first = rest.remove(&name).ok_or_else(|| format!("there is no {name} in the command"))?;
    let mut command = Document::new();
    command.insert(name, first);
    command.extend(rest);
    Ok(command)
}

async fn cursor_command(
    entities: &Entities,
    database: &Database,
    mut arguments: Arguments,
) -> Result<Result<Cursor, Error>> {
    let command = named_command(&mut arguments)?;
    // The command itself makes the cursor tailable; the option is only checked.
    if let Some(kind) = arguments.text("cursorType")?
        && !["tailable", "tailableAwait", "nonTailable"].contains(&kind.as_str())
    {
        bail!("unknown type of cursor {kind}");
    }
    Ok(perform!(entities, arguments, database.run_cursor_command(command);
        preference read_preference = "readPreference", size batch_size = "batchSize",
        millis max_time = "maxTimeMS", value comment = "comment", millis timeout = "timeoutMS"))
}

/// Everything that a cursor holds.
pub(super) async fn collected(cursor: Result<Cursor, Error>) -> Result<Attempt> {
    let documents = match cursor {
        Ok(cursor) => cursor.collect().await,
        Err(error) => Err(error),
    };
    documents.map(plain_documents).transpose_with(Outcome::Documents)
}
