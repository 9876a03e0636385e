//! `drop` and `dropDatabase`.

use bson::doc;

use super::common::WriteConcern;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{to_raw, whole_number};
use crate::namespace::PROFILE_COLLECTION;

pub(super) fn drop_collection(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    if namespace.collection == PROFILE_COLLECTION
        && request.node.profiler().lock().of(&namespace.database).level > 0
    {
        refuse!(ILLEGAL_OPERATION, "turn off profiling before dropping system.profile collection");
    }
    let concern = WriteConcern::parse(&command)?;
    let mut writer = request.write();
    let Some(collection) = writer.unused_collection(&namespace)? else {
        // Since 7.0 dropping what does not exist is no error.
        return Ok(concern.reply(to_raw(&doc! { "ok": 1.0 })?, None));
    };
    writer.drop_collection(&collection)?;
    let answer = doc! {
        "nIndexesWas": collection.indexes.len() as i32,
        "ns": namespace.to_string(),
        "ok": 1.0,
    };
    Ok(concern.reply(to_raw(&answer)?, writer.last_commit()))
}

pub(super) fn drop_database(request: &Request<'_>, command: Command) -> Result<Outcome> {
    refuse_if!(["admin", "local", "config"].contains(&request.database) => ILLEGAL_OPERATION,
        "Dropping the '{}' database is prohibited.", request.database);
    refuse_if!(command.body.first().and_then(whole_number) != Some(1) => 5255100,
        "Have to pass 1 as 'dropDatabase' parameter");
    let concern = WriteConcern::parse(&command)?;
    let mut writer = request.write();
    let collections = writer.unused_collections(|writer| {
        writer.catalog().in_database(request.database).cloned().collect()
    })?;
    for collection in &collections {
        writer.drop_collection(collection)?;
    }
    if !collections.is_empty() {
        writer.log_drop_database(request.database)?;
    }
    request.node.cursors().kill_namespaces("dropped", |gone| gone.database == request.database);
    let mut answer = doc! {};
    if !collections.is_empty() {
        answer.insert("dropped", request.database);
    }
    answer.insert("ok", 1.0);
    Ok(concern.reply(to_raw(&answer)?, writer.last_commit()))
}
