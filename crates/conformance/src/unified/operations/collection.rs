//! Operations of collections.

use bson::{Bson, Document, doc};
use quorate_client::{Collection, CursorType, Find, ReturnDocument, WriteModel};

use super::super::arguments::Arguments;
use super::super::entities::Entities;
use super::super::outcome::{Attempt, Outcome, bulk_result, plain, plain_document, update_result};
use super::client::TransposeWith;
use super::database::collected;
use super::{change_stream, perform, set_options};
use crate::Result;

pub(super) async fn run(
    entities: &Entities,
    collection: &Collection,
    name: &str,
    arguments: Arguments,
) -> Result<Attempt> {
    match name {
        "find"
        | "findOne"
        | "createFindCursor"
        | "aggregate"
        | "distinct"
        | "count"
        | "countDocuments"
        | "estimatedDocumentCount" => read(entities, collection, name, arguments).await,
        "insertOne" | "insertMany" | "bulkWrite" | "updateOne" | "updateMany" | "replaceOne"
        | "deleteOne" | "deleteMany" => write(entities, collection, name, arguments).await,
        "findOneAndUpdate" | "findOneAndReplace" | "findOneAndDelete" => {
            modify(entities, collection, name, arguments).await
        }
        "createIndex" | "dropIndex" | "dropIndexes" | "listIndexes" | "listIndexNames" => {
            index(entities, collection, name, arguments).await
        }
        "createChangeStream" => {
            change_stream::create(entities, arguments, |stages| collection.watch(stages)).await
        }
        "rename" => rename(collection, arguments).await,
        _ => Err(format!("a collection has no operation {name}").into()),
    }
}

async fn rename(collection: &Collection, mut arguments: Arguments) -> Result<Attempt> {
    let database = collection.database_name();
    let to = arguments.required("to", Arguments::text)?;
    let mut command = doc! {
        "renameCollection": format!("{database}.{}", collection.name()),
        "to": format!("{database}.{to}"),
    };
    if let Some(drop) = arguments.flag("dropTarget")? {
        command.insert("dropTarget", drop);
    }
    arguments.finish()?;
    let renamed = collection.client().database("admin").run_command(command).await;
    Ok(renamed.map(|_| Outcome::Nothing))
}

async fn read(
    entities: &Entities,
    collection: &Collection,
    name: &str,
    mut arguments: Arguments,
) -> Result<Attempt> {
    let number = |count: u64| Outcome::Value(Bson::Int64(i64::try_from(count).unwrap_or(i64::MAX)));
    match name {
        "find" => {
            let action = find(collection, &mut arguments)?;
            collected(perform!(entities, arguments, action;)).await
        }
        "createFindCursor" => {
            let action = find(collection, &mut arguments)?;
            Ok(perform!(entities, arguments, action;).map(Outcome::Cursor))
        }
        "findOne" => {
            let filter = arguments.required("filter", Arguments::document)?;
            let found = perform!(entities, arguments, collection.find_one(filter);
                document sort = "sort", document projection = "projection",
                document collation = "collation", count skip = "skip", value hint = "hint",
                value comment = "comment", document let_vars = "let",
                millis max_time = "maxTimeMS", millis timeout = "timeoutMS");
            found.map(plain_document).transpose_with(Outcome::Value)
        }
        "aggregate" => {
            let pipeline = arguments.required("pipeline", Arguments::documents)?;
            let cursor = perform!(entities, arguments, collection.aggregate(pipeline);
                value comment = "comment", document let_vars = "let",
                size batch_size = "batchSize", flag allow_disk_use = "allowDiskUse",
                document collation = "collation", value hint = "hint",
                millis max_time = "maxTimeMS", millis timeout = "timeoutMS",
                flag bypass_document_validation = "bypassDocumentValidation");
            collected(cursor).await
        }
        "distinct" => {
            let field = arguments.required("fieldName", Arguments::text)?;
            let filter = arguments.document("filter")?.unwrap_or_default();
            let values = perform!(entities, arguments, collection.distinct(&field, filter);
                value comment = "comment", document collation = "collation",
                value hint = "hint", millis max_time = "maxTimeMS", millis timeout = "timeoutMS");
            let values =
                values.map(|values| values.into_iter().map(plain).collect::<Result<Vec<Bson>>>());
            values.transpose_with(|values| Outcome::Value(Bson::Array(values)))
        }
        "count" => {
            let filter = arguments.document("filter")?.unwrap_or_default();
            let counted = perform!(entities, arguments, collection.count(filter);
                count skip = "skip", count limit = "limit", document collation = "collation",
                millis max_time = "maxTimeMS", millis timeout = "timeoutMS");
            Ok(counted.map(number))
        }
        "countDocuments" => {
            let filter = arguments.required("filter", Arguments::document)?;
            let counted = perform!(entities, arguments, collection.count_documents(filter);
                count skip = "skip", count limit = "limit", document collation = "collation",
                value comment = "comment", value hint = "hint", millis max_time = "maxTimeMS",
                millis timeout = "timeoutMS");
            Ok(counted.map(number))
        }
        _ => {
            let counted = perform!(entities, arguments, collection.estimated_document_count();
                value comment = "comment", millis max_time = "maxTimeMS",
                millis timeout = "timeoutMS");
            Ok(counted.map(number))
        }
    }
}

fn find<'a>(collection: &'a Collection, arguments: &mut Arguments) -> Result<Find<'a>> {
    let filter = arguments.required("filter", Arguments::document)?;
    let mut action = collection.find(filter);
    set_options!(arguments, action;
        document sort = "sort", document projection = "projection",
        document collation = "collation", document min = "min", document max = "max",
        document let_vars = "let", value hint = "hint", value comment = "comment",
        count skip = "skip", signed limit = "limit", size batch_size = "batchSize",
        flag allow_disk_use = "allowDiskUse", flag no_cursor_timeout = "noCursorTimeout",
        flag allow_partial_results = "allowPartialResults", flag return_key = "returnKey",
        flag show_record_id = "showRecordId", millis max_time = "maxTimeMS",
        millis max_await_time = "maxAwaitTimeMS", millis timeout = "timeoutMS");
    if let Some(kind) = arguments.text("cursorType")? {
        action = action.cursor_type(match kind.as_str() {
            "tailable" => CursorType::Tailable,
            "tailableAwait" => CursorType::TailableAwait,
            "nonTailable" => CursorType::NonTailable,
            other => bail!("unknown type of cursor {other}"),
        });
    }
    Ok(action)
}

async fn write(
    entities: &Entities,
    collection: &Collection,
    name: &str,
    mut arguments: Arguments,
) -> Result<Attempt> {
    match name {
        "insertOne" => {
            let document = arguments.required("document", Arguments::document)?;
            let id = perform!(entities, arguments, collection.insert_one(document);
                value comment = "comment", millis timeout = "timeoutMS",
                flag bypass_document_validation = "bypassDocumentValidation");
            let result = id.map(|id| Ok(Bson::Document(doc! { "insertedId": plain(id)? })));
            result.transpose_with(Outcome::Value)
        }
        "insertMany" => {
            let documents = arguments.required("documents", Arguments::documents)?;
            let ids = perform!(entities, arguments, collection.insert_many(documents);
                flag ordered = "ordered", value comment = "comment", millis timeout = "timeoutMS",
                flag bypass_document_validation = "bypassDocumentValidation");
            let result = ids.map(|ids| {
                let pairs = ids.into_iter().enumerate();
                let ids = pairs.map(|(place, id)| Ok((place.to_string(), plain(id)?)));
                let ids = ids.collect::<Result<Document>>()?;
                let count = i64::try_from(ids.len()).unwrap_or(i64::MAX);
                Ok(Bson::Document(doc! {
                    "insertedCount": count, "insertedIds": ids, "deletedCount": 0,
                    "matchedCount": 0, "modifiedCount": 0, "upsertedCount": 0, "upsertedIds": {},
                }))
            });
            result.transpose_with(Outcome::Value)
        }
        "bulkWrite" => {
            let requests = arguments.required("requests", Arguments::documents)?;
            let models = requests.into_iter().map(model).collect::<Result<Vec<_>, _>>()?;
            let result = perform!(entities, arguments, collection.bulk_write(models);
                flag ordered = "ordered", value comment = "comment", document let_vars = "let",
                millis timeout = "timeoutMS",
                flag bypass_document_validation = "bypassDocumentValidation");
            result.map(|result| bulk_result(&result)).transpose_with(Outcome::Value)
        }
        "deleteOne" | "deleteMany" => {
            let filter = arguments.required("filter", Arguments::document)?;
            let action = match name {
                "deleteOne" => collection.delete_one(filter),
                _ => collection.delete_many(filter),
            };
            let acknowledged = is_acknowledged(collection, &arguments);
            let deleted = perform!(entities, arguments, action;
                value comment = "comment", document let_vars = "let", value hint = "hint",
                document collation = "collation", millis timeout = "timeoutMS");
            Ok(deleted.map(|count| match acknowledged {
                true => {
                    let count = i64::try_from(count).unwrap_or(i64::MAX);
                    Outcome::Value(Bson::Document(doc! { "deletedCount": count }))
                }
                false => Outcome::Value(Bson::Document(doc! { "acknowledged": false })),
            }))
        }
        _ => {
            let filter = arguments.required("filter", Arguments::document)?;
            let action = match name {
                "replaceOne" => {
                    let replacement = arguments.required("replacement", Arguments::document)?;
                    collection.replace_one(filter, replacement)
                }
                "updateOne" => {
                    let update = arguments.required("update", Arguments::value)?;
                    collection.update_one(filter, update)
                }
                _ => {
                    let update = arguments.required("update", Arguments::value)?;
                    collection.update_many(filter, update)
                }
            };
            let updated = perform!(entities, arguments, action;
                flag upsert = "upsert", value comment = "comment", document let_vars = "let",
                value hint = "hint", document collation = "collation", document sort = "sort",
                documents array_filters = "arrayFilters", millis timeout = "timeoutMS",
                flag bypass_document_validation = "bypassDocumentValidation");
            updated.map(update_result).transpose_with(Outcome::Value)
        }
    }
}

/// A write of a bulk: `{"insertOne": {…}}`.
fn model(request: Document) -> Result<WriteModel> {
    let mut entries = request.into_iter();
    let (Some((name, Bson::Document(given))), None) = (entries.next(), entries.next()) else {
        bail!("a request has one name");
    };
    let mut given = Arguments::new(given);
    let mut filter = || given.required("filter", Arguments::document);
    let mut model = match name.as_str() {
        "insertOne" => WriteModel::insert_one(given.required("document", Arguments::document)?),
        "deleteOne" => WriteModel::delete_one(filter()?),
        "deleteMany" => WriteModel::delete_many(filter()?),
        "replaceOne" => {
            let filter = filter()?;
            let replacement = given.required("replacement", Arguments::document)?;
            WriteModel::replace_one(filter, replacement)
        }
        "updateOne" => {
            WriteModel::update_one(filter()?, given.required("update", Arguments::value)?)
        }
        "updateMany" => {
            WriteModel::update_many(filter()?, given.required("update", Arguments::value)?)
        }
        other => bail!("unknown write {other}"),
    };
    set_options!(given, model;
        flag upsert = "upsert", value hint = "hint", document collation = "collation",
        documents array_filters = "arrayFilters", document sort = "sort");
    given.finish()?;
    Ok(model)
}

async fn modify(
    entities: &Entities,
    collection: &Collection,
    name: &str,
    mut arguments: Arguments,
) -> Result<Attempt> {
    let filter = arguments.required("filter", Arguments::document)?;
    let mut action = match name {
        "findOneAndDelete" => collection.find_one_and_delete(filter),
        "findOneAndReplace" => {
            let replacement = arguments.required("replacement", Arguments::document)?;
            collection.find_one_and_replace(filter, replacement)
        }
        _ => {
            let update = arguments.required("update", Arguments::value)?;
            collection.find_one_and_update(filter, update)
        }
    };
    if let Some(which) = arguments.text("returnDocument")? {
        action = action.return_document(match which.to_lowercase().as_str() {
            "before" => ReturnDocument::Before,
            "after" => ReturnDocument::After,
            other => bail!("returnDocument cannot be {other}"),
        });
    }
    let acknowledged = is_acknowledged(collection, &arguments);
    let found = perform!(entities, arguments, action;
        document projection = "projection", document sort = "sort", flag upsert = "upsert",
        value comment = "comment", document let_vars = "let", value hint = "hint",
        document collation = "collation", documents array_filters = "arrayFilters",
        millis max_time = "maxTimeMS", millis timeout = "timeoutMS",
        flag bypass_document_validation = "bypassDocumentValidation");
    if !acknowledged {
        return Ok(found.map(|_| Outcome::Nothing));
    }
    found.map(plain_document).transpose_with(Outcome::Value)
}

/// Whether a write is answered. The write concern of a collection does not count in a transaction, and
/// outside of one a session takes no write without an answer.
fn is_acknowledged(collection: &Collection, arguments: &Arguments) -> bool {
    collection.write_concern().is_acknowledged() || arguments.has("session")
}

async fn index(
    entities: &Entities,
    collection: &Collection,
    name: &str,
    mut arguments: Arguments,
) -> Result<Attempt> {
    match name {
        "createIndex" => {
            let keys = arguments.required("keys", Arguments::document)?;
            let mut action = collection.create_index(keys);
            if let Some(name) = arguments.text("name")? {
                action = action.name(&name);
            }
            let made = perform!(entities, arguments, action;
                flag unique = "unique", flag sparse = "sparse", value comment = "comment",
                millis max_time = "maxTimeMS", millis timeout = "timeoutMS");
            Ok(made.map(|name| Outcome::Value(Bson::from(name))))
        }
        "dropIndex" => {
            let name = arguments.required("name", Arguments::text)?;
            let dropped = perform!(entities, arguments, collection.drop_index(&name);
                millis max_time = "maxTimeMS", millis timeout = "timeoutMS");
            Ok(dropped.map(|()| Outcome::Nothing))
        }
        "dropIndexes" => {
            let dropped = perform!(entities, arguments, collection.drop_index("*");
                millis max_time = "maxTimeMS", millis timeout = "timeoutMS");
            Ok(dropped.map(|()| Outcome::Nothing))
        }
        "listIndexes" => {
            let cursor = perform!(entities, arguments, collection.list_indexes();
                size batch_size = "batchSize", value comment = "comment",
                millis timeout = "timeoutMS");
            collected(cursor).await
        }
        _ => {
            let mut action = collection.list_indexes();
            set_options!(arguments, action; millis timeout = "timeoutMS");
            arguments.finish()?;
            Ok(action.names().await.map(Outcome::names))
        }
    }
}
