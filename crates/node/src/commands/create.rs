//! `create`, `collMod` and `renameCollection`.

use std::collections::BTreeSet;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use quorate_query::pipeline::Pipeline;

use super::common::{WriteConcern, check_collation, command_variables, reply};
use super::insert::check_writable;
use crate::catalog::{Catalog, Collection, ID_INDEX, Index, Validator};
use crate::change_stream::check_images_option;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::{Fields, check_known, to_raw};
use crate::generic_arguments::is_generic;
use crate::namespace::Namespace;
use crate::touched::joined;

/// Options of `create` that are kept and shown by `listCollections`.
const KEPT_OPTIONS: [&str; 9] = [
    "capped", "size", "max", "validator", "validationLevel", "validationAction", "viewOn",
    "pipeline", "changeStreamPreAndPostImages",
];

/// Whether documents are kept as they were before a change.
const IMAGES_OPTION: &str = "changeStreamPreAndPostImages";

/// Options that change what a collection is in ways not offered here.
const REFUSED_OPTIONS: [&str; 3] = ["timeseries", "clusteredIndex", "encryptedFields"];

pub(super) fn create(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    check_writable(&namespace)?;
    let fields = Fields::new(&command.body, "create");
    let concern = WriteConcern::parse(&command)?;
    check_collation(&fields)?;
    let options = kept_options(request, &fields)?;
    let mut writer = request.write();
    if let Some(existing) = writer.collection(&namespace) {
        // A transaction gets an error, since it did not create what it asked for.
        if existing.options == options && request.transaction.is_none() {
            return reply(&doc! { "ok": 1.0 });
        }
        refuse!(NAMESPACE_EXISTS, "Collection {namespace} already exists.");
    }
    check_view_cycle(&writer.catalog(), &namespace, &options)?;
    writer.create_collection(&namespace, options)?;
    Ok(concern.reply(to_raw(&doc! { "ok": 1.0 })?, writer.last_commit()))
}

fn kept_options(request: &Request<'_>, fields: &Fields<'_>) -> Result<Document> {
    if let Some(refused) = REFUSED_OPTIONS.iter().find(|name| fields.has(name)) {
        refuse!(COMMAND_NOT_SUPPORTED, "create with {refused} is not supported; leave it out");
    }
    if let Some(images) = fields.raw(IMAGES_OPTION) {
        check_images_option(images)?;
    }
    check_unkept_options(fields)?;
    let mut options = Document::new();
    for name in KEPT_OPTIONS {
        if let Some(value) = fields.raw(name) {
            options.insert(name, value.clone());
        }
    }
    if fields.flag("capped")? {
        let size = fields.integer("size")?.unwrap_or(0);
        refuse_if!(size <= 0 => INVALID_OPTIONS,
            "the 'size' field is required when 'capped' is true");
        fields.integer("max")?;
        options.insert("capped", true);
        // The server rounds up to 256 bytes.
        options.insert("size", (size.saturating_add(255) / 256 * 256).max(256));
    } else {
        options.remove("capped");
        refuse_if!(fields.has("size") || fields.has("max") => INVALID_OPTIONS,
            "the 'capped' field needs to be true when either the 'size' or 'max' fields are \
             present");
    }
    check_view_pipeline(request, fields)?;
    check_view_options(fields, &options)?;
    refuse_if!(fields.has("pipeline") && !fields.has("viewOn") => INVALID_OPTIONS,
        "'pipeline' requires 'viewOn' to also be specified");
    Ok(options)
}

/// Refuses wrong values of options that are not kept as they are.
fn check_unkept_options(fields: &Fields<'_>) -> Result<()> {
    check_validation(fields)?;
    fields.check_flags(&["autoIndexId"])?;
    for name in ["storageEngine", "indexOptionDefaults"] {
        fields.document(name)?;
    }
    if fields.has("expireAfterSeconds") {
        refuse!(
            INVALID_OPTIONS,
            "'expireAfterSeconds' is an option of time series, which are not offered here; create an index with \
             expireAfterSeconds on a field that holds dates"
        );
    }
    Ok(())
}

/// Refuses a view with the options of a collection.
fn check_view_options(fields: &Fields<'_>, options: &Document) -> Result<()> {
    let not_of_view = [
        "capped", "size", "max", "validator", "validationLevel", "validationAction", IMAGES_OPTION,
    ];
    if let (true, Some(option)) =
        (fields.has("viewOn"), not_of_view.into_iter().find(|name| options.contains_key(name)))
    {
        refuse!(INVALID_OPTIONS, "option not supported on a view: {option}");
    }
    Ok(())
}

/// Refuses rules for documents that cannot be followed.
fn check_validation(fields: &Fields<'_>) -> Result<()> {
    if let Some(validator) = fields.document("validator")? {
        Validator::parse(validator)?;
    }
    fields.one_of("validationLevel", &["off", "moderate", "strict"])?;
    fields.one_of("validationAction", &["error", "warn"])?;
    Ok(())
}

/// Refuses a view that could not be read, or whose reading would write.
fn check_view_pipeline(request: &Request<'_>, fields: &Fields<'_>) -> Result<()> {
    refuse_if!(fields.string("viewOn")?.is_some_and(str::is_empty) => BAD_VALUE,
        "'viewOn' cannot be empty");
    let Some(stages) = fields.array("pipeline")? else { return Ok(()) };
    let writes = |stage: &&str| matches!(*stage, "$out" | "$merge");
    let names = stages.iter().filter_map(Bson::as_document).filter_map(|stage| stage.keys().next());
    if let Some(stage) = names.map(String::as_str).find(writes) {
        refuse!(
            OPTION_NOT_SUPPORTED_ON_VIEW,
            "{stage} cannot be part of a view; run it with aggregate"
        );
    }
    Pipeline::parse(stages, &command_variables(request, fields)?)?;
    Ok(())
}

/// Refuses a view that reads itself, by way of other views and of their joins too.
fn check_view_cycle(catalog: &Catalog, namespace: &Namespace, options: &Document) -> Result<()> {
    let (mut reached, mut unseen) = (BTreeSet::new(), read_by_view(options)?);
    while let Some(name) = unseen.pop() {
        refuse_if!(name == namespace.collection => GRAPH_CONTAINS_CYCLE,
            "View cycle detected: {namespace} would read itself");
        let next = Namespace { database: namespace.database.clone(), collection: name.clone() };
        if reached.insert(name)
            && let Some(known) = catalog.get(&next)
        {
            unseen.extend(read_by_view(&known.options)?);
        }
    }
    Ok(())
}

/// The names of what a view with these options reads.
fn read_by_view(options: &Document) -> Result<Vec<String>> {
    let Ok(on) = options.get_str("viewOn") else { return Ok(Vec::new()) };
    let mut names = vec![on.to_owned()];
    joined(options.get_array("pipeline").map_or(&[], Vec::as_slice), &mut |name| {
        names.push(name.to_owned());
        Ok(())
    })?;
    Ok(names)
}

pub(super) fn modify(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    let fields = Fields::new(&command.body, "collMod");
    check_view_pipeline(request, &fields)?;
    check_validation(&fields)?;
    let mut writer = request.write();
    let collection = writer.unused_collection(&namespace)?;
    let collection = collection.ok_or_else(|| not_found(&namespace))?;
    check_kind(&collection, &fields)?;
    let mut options = collection.options.clone();
    if let Some(images) = fields.raw(IMAGES_OPTION) {
        check_images_option(images)?;
    }
    for name in
        ["validator", "validationLevel", "validationAction", "viewOn", "pipeline", IMAGES_OPTION]
    {
        if let Some(value) = fields.raw(name) {
            options.insert(name, value.clone());
        }
    }
    check_view_cycle(&writer.catalog(), &namespace, &options)?;
    let mut altered =
        Collection::new(namespace, collection.ident, collection.uuid.clone(), options)?;
    altered.indexes.clone_from(&collection.indexes);
    let mut before = collection.options.clone();
    before.insert("uuid", collection.uuid.clone());
    let mut before = doc! { "collectionOptions": before };
    let mut answer = Document::new();
    if let Some(change) = fields.document("index")? {
        modify_index(&mut altered, change, &mut answer)?;
        before.insert("indexOptions", index_options_before(&answer));
    }
    let given = command.body.iter().filter(|(name, _)| !is_generic(name.as_bytes()));
    let mut change: Document = given.map(|(name, it)| (name.to_owned(), it.clone())).collect();
    // Change streams show it.
    change.insert("stateBeforeChange", before);
    writer.alter_collection(altered, Some(change))?;
    answer.insert("ok", 1.0);
    let concern = WriteConcern::parse(&command)?;
    Ok(concern.reply(to_raw(&answer)?, writer.last_commit()))
}

/// Refuses options of a view for a collection, whose documents could no longer be read, and the other way
/// round.
fn check_kind(collection: &Collection, fields: &Fields<'_>) -> Result<()> {
    let invalid = |message: String| Err(CommandError::new(ErrorCode::INVALID_OPTIONS, message));
    let of_view: Vec<_> =
        ["viewOn", "pipeline"].into_iter().filter(|name| fields.has(name)).collect();
    let of_collection =
        ["validator", "validationLevel", "validationAction", "index", IMAGES_OPTION];
    match (collection.view.is_some(), of_view.as_slice()) {
        (false, [name, ..]) => invalid(format!("'{name}' option only supported on a view")),
        (true, [_]) => {
            invalid("Must specify both 'viewOn' and 'pipeline' when modifying a view".into())
        }
        (true, _) => match of_collection.into_iter().find(|name| fields.has(name)) {
            Some(name) => invalid(format!("option not supported on a view: {name}")),
            None => Ok(()),
        },
        (false, []) => Ok(()),
    }
}

/// What the options of an index were that a command has changed.
fn index_options_before(answer: &Document) -> Document {
    let old = |(name, value): (&String, &Bson)| {
        Some((name.strip_suffix("_old")?.to_owned(), value.clone()))
    };
    answer.iter().filter_map(old).collect()
}

/// Changes the expiry of a TTL index, or hides an index from the planner.
fn modify_index(
    collection: &mut Collection,
    change: &Document,
    answer: &mut Document,
) -> Result<()> {
    let fields = Fields::new(change, "collMod.index");
    check_index_change(change, &fields)?;
    let (name, key) = (fields.string("name")?, fields.document("keyPattern")?);
    let found = match (name, key) {
        (Some(name), _) => collection.index(name),
        (None, Some(key)) => collection.index_with_key(key)?,
        (None, None) => None,
    };
    let ident = found.map(|index| index.ident);
    let place = collection.indexes.iter().position(|index| Some(index.ident) == ident);
    let place = place.ok_or_else(|| {
        fail!(INDEX_NOT_FOUND, "cannot find index for ns {}", collection.namespace)
    })?;
    let index = &collection.indexes[place];
    refuse_if!(index.name == ID_INDEX => INVALID_OPTIONS,
        "the _id index can neither be hidden nor let documents expire");
    let mut spec = index.spec.clone();
    let expiry = fields.integer("expireAfterSeconds")?.map(Bson::Int64);
    let hidden = fields.boolean("hidden")?.map(Bson::Boolean);
    for (name, value) in [("expireAfterSeconds", expiry), ("hidden", hidden)] {
        let Some(value) = value else { continue };
        // An index that is not hidden says nothing of it, as one that never was.
        let old = match value {
            Bson::Boolean(false) => spec.remove(name),
            _ => spec.insert(name, value.clone()),
        };
        answer.insert(format!("{name}_old"), old.unwrap_or(Bson::Boolean(false)));
        answer.insert(format!("{name}_new"), value.clone());
    }
    let mut changed = Index::from_spec(index.ident, spec)?;
    changed.multikey = index.multikey;
    collection.indexes[place] = changed.into();
    Ok(())
}

/// Refuses a change of an index that is not offered, or that changes nothing.
fn check_index_change(change: &Document, fields: &Fields<'_>) -> Result<()> {
    const KNOWN: [&str; 7] = [
        "name", "keyPattern", "expireAfterSeconds", "hidden", "unique", "prepareUnique",
        "forceNonUnique",
    ];
    let invalid = |message: &str| Err(CommandError::new(ErrorCode::INVALID_OPTIONS, message));
    check_known(change.keys(), "collMod.index", &KNOWN)?;
    if let Some(refused) =
        ["unique", "prepareUnique", "forceNonUnique"].into_iter().find(|name| fields.has(name))
    {
        refuse!(
            COMMAND_NOT_SUPPORTED,
            "collMod does not change '{refused}' of an index; drop it and create it anew"
        );
    }
    match (fields.string("name")?, fields.document("keyPattern")?) {
        (Some(_), Some(_)) => return invalid("Cannot specify both key pattern and name."),
        (None, None) => return invalid("Must specify either index name or key pattern."),
        _ => {}
    }
    fields.boolean("hidden")?;
    match fields.integer("expireAfterSeconds")? {
        Some(seconds) if !(0..=i64::from(i32::MAX)).contains(&seconds) => {
            invalid("expireAfterSeconds must be between 0 and 2147483647")
        }
        None if !fields.has("hidden") => {
            invalid("no expireAfterSeconds, hidden, unique, or prepareUnique field")
        }
        _ => Ok(()),
    }
}

pub(super) fn rename(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "renameCollection");
    let source = Namespace::parse(fields.required_string("renameCollection")?)?;
    let target = Namespace::parse(fields.required_string("to")?)?;
    check_writable(&source)?;
    check_writable(&target)?;
    let (drop_target, expected) = drop_target(&fields)?;
    let concern = WriteConcern::parse(&command)?;
    refuse_if!(source == target => ILLEGAL_OPERATION, "Can't rename a collection to itself");
    if request.node.oplog().is_some() && source.is_unreplicated() != target.is_unreplicated() {
        // Other members have no collection that they could rename, or would keep the one that is gone here.
        refuse!(
            ILLEGAL_OPERATION,
            "Cannot rename '{source}' to '{target}': one of them is replicated and the other is not; \
                 copy the documents with an aggregation and $merge, then drop the collection"
        );
    }
    let mut writer = request.write();
    writer.unused_collections(|writer| {
        [&source, &target].into_iter().filter_map(|side| writer.collection(side)).collect()
    })?;
    let collection = writer
        .collection(&source)
        .ok_or_else(|| fail!(NAMESPACE_NOT_FOUND, "Source collection {source} does not exist"))?;
    refuse_if!(collection.view.is_some() => COMMAND_NOT_SUPPORTED_ON_VIEW,
        "Namespace {source} is a view, not a collection; drop it and create it anew");
    if writer.collection(&target).is_some_and(|found| found.view.is_some()) {
        refuse!(NAMESPACE_EXISTS, "a view already exists with that name: {target}");
    }
    refuse_if!(writer.collection(&target).is_some() && !drop_target => NAMESPACE_EXISTS,
        "target namespace exists");
    if let Some(expected) = expected {
        check_target_uuid(&target, writer.collection(&target).as_deref(), expected)?;
    }
    writer.catalog().check_case(&target.database)?;
    writer.rename_collection(&collection, &target)?;
    Ok(concern.reply(to_raw(&doc! { "ok": 1.0 })?, writer.last_commit()))
}

/// Whether a rename may drop the collection that has the new name, and which one that has to be, if the command tells.
fn drop_target<'a>(fields: &Fields<'a>) -> Result<(bool, Option<&'a Binary>)> {
    match fields.raw("dropTarget") {
        Some(Bson::Binary(uuid)) if uuid.subtype == BinarySubtype::Uuid => Ok((true, Some(uuid))),
        _ => Ok((fields.flag("dropTarget")?, None)),
    }
}

/// Refuses to drop another collection than the one that the command means by its UUID.
fn check_target_uuid(
    target: &Namespace,
    found: Option<&Collection>,
    expected: &Binary,
) -> Result<()> {
    if found.is_some_and(|found| found.uuid == *expected) {
        return Ok(());
    }
    Err(fail!(
        COLLECTION_UUID_MISMATCH,
        "{target} is not the collection that dropTarget means by its UUID; it was renamed or dropped: look for it \
             with listCollections"
    ))
}

pub(super) fn not_found(namespace: &Namespace) -> CommandError {
    fail!(NAMESPACE_NOT_FOUND, "ns does not exist: {namespace}")
}
