//! `listDatabases` and `listCollections`.

use bson::{Bson, Document, doc};
use quorate_query::matcher::Matcher;

use super::common::{open_list, reply};
use crate::catalog::{Collection, ID_INDEX};
use crate::command_table::Access;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::Fields;
use crate::namespace::Namespace;
use crate::touched::EVERY_DATABASE;
use crate::users::Rights;

pub(super) fn list_databases(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "listDatabases");
    let names_only = fields.flag("nameOnly")?;
    let filter = fields.document("filter")?.map(Matcher::parse).transpose()?;
    let rights = Rights::of(request.node, &request.context.client)?;
    let sees_all = rights.allow(Access::ListDatabases, EVERY_DATABASE);
    let only_own = fields.boolean("authorizedDatabases")?.unwrap_or(!sees_all);
    refuse_if!(!only_own && !sees_all => UNAUTHORIZED,
        "not authorized to list all databases; leave authorizedDatabases out to see your own");
    let catalog = request.node.catalog();
    let mut names = catalog.databases();
    // Clients expect these to be there, even on a server that has just started.
    names.extend(["admin", "config", "local"].map(str::to_owned));
    let (mut databases, mut total) = (Vec::new(), 0);
    for name in names.into_iter().filter(|name| !only_own || rights.reach(name)) {
        let collections: Vec<_> = catalog.in_database(&name).cloned().collect();
        let mut description = doc! { "name": &name };
        if !names_only {
            let mut size = 0;
            for collection in &collections {
                size += request.totals(collection)?.bytes;
            }
            total += size;
            description.insert("sizeOnDisk", size as i64);
            description.insert("empty", collections.is_empty());
        }
        if filter.as_ref().is_none_or(|filter| filter.matches(&description).unwrap_or(false)) {
            databases.push(Bson::from(description));
        }
    }
    let mut answer = doc! { "databases": databases };
    if !names_only {
        answer.insert("totalSize", total as i64);
        answer.insert("totalSizeMb", (total / (1024 * 1024)) as i64);
    }
    answer.insert("ok", 1.0);
    reply(&answer)
}

pub(super) fn list_collections(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "listCollections");
    let names_only = fields.flag("nameOnly")?;
    let filter = fields.document("filter")?.map(Matcher::parse).transpose()?;
    let rights = Rights::of(request.node, &request.context.client)?;
    // Without this right a client asks for the names of what it may see, and roles give that for whole databases.
    let sees = rights.allow(Access::Look, request.database);
    let mut listed = Vec::new();
    for collection in request.node.catalog().in_database(request.database).filter(|_| sees) {
        let description = describe(collection);
        // The filter sees the whole description, whatever is shown.
        if let Some(filter) = &filter
            && !filter.matches(&description)?
        {
            continue;
        }
        listed.push(if names_only {
            doc! {
                "name": &collection.namespace.collection,
                "type": description.get_str("type").unwrap_or("collection"),
            }
        } else {
            description
        });
    }
    let namespace = Namespace::new(request.database, "$cmd.listCollections")?;
    open_list(request, namespace, listed, &command.body)
}

fn describe(collection: &Collection) -> Document {
    let is_view = collection.view.is_some();
    let mut information = doc! { "readOnly": is_view };
    let mut description = doc! {
        "name": &collection.namespace.collection,
        "type": if is_view { "view" } else { "collection" },
        "options": collection.options.clone(),
    };
    if is_view {
        description.insert("info", information);
    } else {
        information.insert("uuid", collection.uuid.clone());
        description.insert("info", information);
        description.insert("idIndex", doc! { "v": 2, "key": { "_id": 1 }, "name": ID_INDEX });
    }
    description
}
