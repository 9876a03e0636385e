//! The cluster parameter `changeStreamOptions`: how long images are kept.
//!
//! Cluster parameters are documents of `config.clusterParameters`, which every member copies.

use bson::{Bson, Document, doc};

use super::common::WriteConcern;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, Result};
use crate::fields::{Fields, to_raw, whole_number};
use crate::namespace::Namespace;
use crate::node::Node;

/// The name of the parameter.
const NAME: &str = "changeStreamOptions";

fn namespace() -> Result<Namespace> {
    Namespace::new("config", "clusterParameters")
}

fn stored(node: &Node) -> Result<Option<Document>> {
    let (collection, view) = node.read(&namespace()?);
    let Some(collection) = collection else { return Ok(None) };
    match view.by_id(&collection, &to_raw(&doc! { "_id": NAME })?)? {
        Some((_, document)) => Ok(Some(Document::try_from(&*document)?)),
        None => Ok(None),
    }
}

/// After how many seconds images go; none if they stay as long as their entries.
pub(crate) fn image_expiry(node: &Node) -> Result<Option<i64>> {
    let stored = stored(node)?;
    let images = stored.as_ref().and_then(|it| it.get_document("preAndPostImages").ok());
    Ok(images.and_then(|images| images.get("expireAfterSeconds")).and_then(whole_number))
}

/// `setClusterParameter`.
pub(super) fn set(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "setClusterParameter");
    let parameter = fields.document("setClusterParameter")?;
    let Some((name, value)) = parameter.and_then(|it| it.iter().next()) else {
        refuse!(BAD_VALUE, "setClusterParameter takes an object with one field");
    };
    if name != NAME {
        return Err(unknown(name));
    }
    let expiry = value.as_document().and_then(|value| value.get_document("preAndPostImages").ok());
    let expiry = expiry.and_then(|images| images.get("expireAfterSeconds"));
    let expiry = match expiry {
        Some(Bson::String(off)) if off == "off" => Bson::from("off"),
        Some(number) => match whole_number(number).filter(|seconds| *seconds > 0) {
            Some(seconds) => Bson::Int64(seconds),
            None => return Err(wrong_expiry()),
        },
        None => return Err(wrong_expiry()),
    };
    let document = doc! {
        "_id": NAME,
        "preAndPostImages": { "expireAfterSeconds": expiry },
    };
    let mut writer = request.node.write(request.context.now);
    let mut collection = writer.collection_or_create(&namespace()?)?;
    writer.put(&mut collection, to_raw(&document)?)?;
    let concern = WriteConcern::parse(&command)?;
    Ok(concern.reply(to_raw(&doc! { "ok": 1.0 })?, writer.last_commit()))
}

/// `getClusterParameter`.
pub(super) fn get(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let names: Vec<&str> = match command.body.get("getClusterParameter") {
        Some(Bson::String(name)) if name == "*" => vec![NAME],
        Some(Bson::String(name)) => vec![name.as_str()],
        Some(Bson::Array(names)) => names.iter().filter_map(Bson::as_str).collect(),
        _ => refuse!(BAD_VALUE, "getClusterParameter takes a name or names"),
    };
    if let Some(other) = names.iter().find(|name| **name != NAME) {
        return Err(unknown(other));
    }
    let default = doc! { "_id": NAME, "preAndPostImages": { "expireAfterSeconds": "off" } };
    let parameter = stored(request.node)?.unwrap_or(default);
    let reply = doc! { "clusterParameters": [parameter], "ok": 1.0 };
    Ok(Outcome::Reply(to_raw(&reply)?.into()))
}

fn unknown(name: &str) -> CommandError {
    fail!(INVALID_OPTIONS, "Unknown cluster parameter: {name}; there is {NAME} only")
}

fn wrong_expiry() -> CommandError {
    fail!(
        BAD_VALUE,
        "changeStreamOptions.preAndPostImages.expireAfterSeconds must be 'off' or a positive number"
    )
}
