//! `createIndexes`, `listIndexes` and `dropIndexes`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_query::matcher::Matcher;
use quorate_query::value::{equal, is_truthy};

use super::common::{WriteConcern, check_uuid, open_list};
use super::create::not_found;
use super::insert::check_writable;
use crate::catalog::{Collection, ID_INDEX, MAX_INDEXES};
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::{CommandError, ErrorCode, Result};
use crate::fields::{Fields, to_raw, whole_number};
use crate::finder::InterruptSlot;
use crate::namespace::Namespace;
use crate::plan::same_key;
use crate::replication::Commit;

/// The most fields of a compound index.
const MAX_INDEX_FIELDS: usize = 32;

/// Options of an index that are understood.
const KNOWN_OPTIONS: [&str; 15] = [
    "dropDups", "v", "key", "name", "ns", "unique", "sparse", "background", "expireAfterSeconds",
    "partialFilterExpression", "hidden", "collation", "prepareUnique", "storageEngine", "comment",
];

pub(super) fn create_indexes(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    check_writable(&namespace)?;
    let fields = Fields::new(&command.body, "createIndexes");
    let concern = WriteConcern::parse(&command)?;
    let specs = fields.documents("indexes")?.unwrap_or_default();
    refuse_if!(specs.is_empty() => BAD_VALUE, "Must specify at least one index to create");
    let specs = specs.iter().map(complete_spec).collect::<Result<Vec<_>, _>>()?;

    let mut writer = request.write();
    let existed = writer.collection(&namespace).is_some();
    let mut collection = writer.collection_or_create(&namespace)?;
    let before = collection.indexes.len();
    let mut commit = writer.last_commit();
    drop(writer);
    let mut made = Vec::new();
    for spec in specs {
        let (name, known) = (spec.get_str("name").unwrap_or("").to_owned(), collection.clone());
        match create_index(request, &namespace, spec, commit) {
            Ok(done) => (collection, commit) = done,
            Err(error) => {
                take_back(request, &namespace, &made);
                return Err(error);
            }
        }
        if known.index(&name).is_none() && collection.index(&name).is_some() {
            made.push(name);
        }
    }
    let after = collection.indexes.len();
    let mut answer = doc! {
        "numIndexesBefore": before as i32,
        "numIndexesAfter": after as i32,
        "createdCollectionAutomatically": !existed,
    };
    if before == after {
        answer.insert("note", "all indexes already exist");
    }
    answer.insert("ok", 1.0);
    Ok(concern.reply(to_raw(&answer)?, commit))
}

/// Drops the indexes that a command has made before another one failed: all of them are made, or none. If one cannot be
/// dropped, as by a member that is primary no longer, it stays.
fn take_back(request: &Request<'_>, namespace: &Namespace, made: &[String]) {
    // A transaction ends with the error, and takes everything back.
    if made.is_empty() || request.transaction.is_some() {
        return;
    }
    let mut writer = request.write();
    let Ok(Some(mut collection)) = writer.unused_collection(namespace) else { return };
    for name in made.iter().rev() {
        if collection.index(name).is_some() {
            let _ = writer.drop_index(&mut collection, name);
        }
    }
}

/// Creates one index, if it is not there. Returns the collection, and the newest commit.
fn create_index(
    request: &Request<'_>,
    namespace: &Namespace,
    spec: Document,
    commit: Option<Commit>,
) -> Result<(Arc<Collection>, Option<Commit>)> {
    let (node, now) = (request.node, request.context.now);
    let interrupt = &request.context.interrupt;
    let check = || {
        interrupt.advance();
        interrupt.check()
    };
    let is_there = |collection: &Collection| {
        if already_there(collection, &spec)? {
            return Ok(true);
        }
        refuse_if!(collection.indexes.len() >= MAX_INDEXES => CANNOT_CREATE_INDEX,
            "add index fails, too many indexes for {namespace}: at most {MAX_INDEXES}");
        Ok(false)
    };
    let mut writer = request.write();
    let mut collection = writer.collection_or_create(namespace)?;
    if is_there(&collection)? {
        return Ok((collection, commit));
    }
    while writer.wait_for_users(collection.ident)? {
        collection = writer.collection_or_create(namespace)?;
    }
    if let Some(documents) = writer.few_documents(&collection)? {
        interrupt.set_total(documents);
        writer.build_index(&mut collection, spec.clone(), check)?;
        return Ok((collection, writer.last_commit()));
    }
    let known = writer.known_totals(&collection);
    let building = writer.begin_build(&collection, spec.clone())?;
    drop(writer);
    // Counting them would take as long as reading them.
    interrupt.set_total(match known {
        Some(totals) => totals.documents,
        None => building.most_documents()?,
    });
    let slot = InterruptSlot::new(Arc::clone(interrupt));
    building.run((node, now), slot, &check, &is_there)
}

/// Checks a specification and fills in what may be left out.
fn complete_spec(spec: &Document) -> Result<Document> {
    let cannot = |message: String| CommandError::new(ErrorCode::CANNOT_CREATE_INDEX, message);
    let fields = Fields::new(spec, "createIndexes.indexes");
    if let Some(unknown) = spec.keys().find(|name| !KNOWN_OPTIONS.contains(&name.as_str())) {
        refuse!(
            INVALID_INDEX_SPECIFICATION_OPTION,
            "Error in specification {spec} :: caused by :: The field '{unknown}' is not valid \
                 for an index specification"
        );
    }
    super::common::check_collation(&fields)?;
    check_options(&fields)?;
    let key = fields.document("key")?.ok_or_else(|| {
        fail!(FAILED_TO_PARSE, "The 'key' field is a required property of an index specification")
    })?;
    if key.is_empty() || key.len() > MAX_INDEX_FIELDS {
        return Err(cannot(format!(
            "an index has 1 to {MAX_INDEX_FIELDS} fields, not {}",
            key.len()
        )));
    }
    for (name, direction) in key {
        check_field(name, direction)?;
    }
    check_id_index(spec, key)?;
    check_combination(&fields, key)?;
    let generated = || {
        let parts: Vec<_> =
            key.iter().map(|(name, way)| format!("{name}_{}", plain(way))).collect();
        parts.join("_")
    };
    let name = fields.string("name")?.map_or_else(generated, str::to_owned);
    refuse_if!(name.is_empty() || name == "*" => BAD_VALUE, "'{name}' cannot name an index");
    let mut complete = doc! { "v": 2, "key": key.clone(), "name": name };
    for (option, value) in spec {
        let kept = !["v", "key", "name", "ns", "dropDups", "collation", "comment"]
            .contains(&option.as_str());
        // What was asked for is shown, even where it changes nothing.
        let value = match FLAGS.contains(&option.as_str()) {
            true => Bson::Boolean(fields.flag(option)?),
            false => value.clone(),
        };
        let switched_off = value == Bson::Boolean(false) && option != "background";
        if kept && !switched_off && fields.has(option) {
            complete.insert(option, value);
        }
    }
    Ok(complete)
}

/// Refuses options that the key or another option rules out.
fn check_combination(fields: &Fields<'_>, key: &Document) -> Result<()> {
    let cannot = |message: &str| CommandError::new(ErrorCode::CANNOT_CREATE_INDEX, message);
    if fields.flag("unique")? && key.values().any(|kind| kind.as_str() == Some("hashed")) {
        refuse!(
            16764,
            "Currently hashed indexes cannot guarantee uniqueness. Use a regular index."
        );
    }
    if let Some(filter) = fields.document("partialFilterExpression")? {
        Matcher::parse(filter)?;
        check_partial_filter(filter)?;
        if fields.flag("sparse")? {
            return Err(cannot("cannot mix \"partialFilterExpression\" and \"sparse\""));
        }
    }
    if let Some(seconds) = fields.raw("expireAfterSeconds") {
        let seconds = whole_number(seconds).unwrap_or(-1);
        if !(0..=i64::from(i32::MAX)).contains(&seconds) || key.len() != 1 {
            return Err(cannot(
                "expireAfterSeconds must be between 0 and 2147483647, on an index of one field",
            ));
        }
    }
    Ok(())
}

/// Refuses what a partial index cannot be filtered by. Specification: the manual's page on partial indexes.
fn check_partial_filter(filter: &Document) -> Result<()> {
    let refused = |what: &str| {
        fail!(
            CANNOT_CREATE_INDEX,
            "Expression not supported in partial index: {what}; use equality, $exists: true, $gt, $gte, \
                 $lt, $lte, $type, $in, $and and $or"
        )
    };
    for (name, condition) in filter {
        match (name.as_str(), condition) {
            ("$and" | "$or", Bson::Array(parts)) => {
                for part in parts.iter().filter_map(Bson::as_document) {
                    check_partial_filter(part)?;
                }
            }
            ("$comment", _) => {}
            (name, _) if name.starts_with('$') => return Err(refused(name)),
            (_, Bson::RegularExpression(_)) => return Err(refused("$regex")),
            (_, Bson::Document(operators)) => {
                for (operator, value) in operators {
                    match operator.as_str() {
                        "$eq" | "$gt" | "$gte" | "$lt" | "$lte" | "$type" | "$in" => {}
                        "$exists" if is_truthy(value) => {}
                        operator if operator.starts_with('$') => return Err(refused(operator)),
                        _ => break,
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Options of an index that are true or false.
const FLAGS: [&str; 6] = ["unique", "sparse", "hidden", "background", "dropDups", "prepareUnique"];

/// Refuses options of the wrong type, which would be taken for others.
fn check_options(fields: &Fields<'_>) -> Result<()> {
    fields.check_flags(&FLAGS)?;
    fields.document("storageEngine")?;
    refuse_if!(fields.flag("prepareUnique")? => COMMAND_NOT_SUPPORTED,
        "prepareUnique is not offered here; create the index with unique");
    match fields.integer("v")? {
        None | Some(1 | 2) => Ok(()),
        Some(version) => Err(fail!(
            CANNOT_CREATE_INDEX,
            "Invalid index specification: cannot create an index with v={version}; use 2"
        )),
    }
}

/// Refuses options of the index on `_id`, as MongoDB does: it is unique and sees every document anyway, and cannot
/// be otherwise.
fn check_id_index(spec: &Document, key: &Document) -> Result<()> {
    const ALLOWED: [&str; 6] = ["key", "name", "v", "ns", "collation", "comment"];
    let is_id = key.len() == 1 && key.get("_id").and_then(whole_number) == Some(1);
    match spec.keys().find(|option| is_id && !ALLOWED.contains(&option.as_str())) {
        Some(option) => Err(fail!(
            INVALID_INDEX_SPECIFICATION_OPTION,
            "The field '{option}' is not valid for an _id index specification; leave it out. \
                 Specification: {spec}"
        )),
        None => Ok(()),
    }
}

fn check_field(name: &str, direction: &Bson) -> Result<()> {
    let cannot = |message: String| CommandError::new(ErrorCode::CANNOT_CREATE_INDEX, message);
    if name.is_empty() || name.split('.').any(str::is_empty) {
        return Err(cannot("Index keys cannot contain an empty field.".into()));
    }
    // The fields of a database reference are the only names that start so.
    let is_field = |part: &str| !part.starts_with('$') || matches!(part, "$ref" | "$id" | "$db");
    if !name.split('.').all(is_field) {
        return Err(cannot(format!(
            "Index key '{name}' is not supported; wildcard indexes are not offered"
        )));
    }
    match direction {
        // Equality is all a hashed index promises, and any order serves it.
        Bson::String(kind) if kind == "hashed" => Ok(()),
        Bson::String(kind) if kind == "text" => Err(cannot(
            "text indexes are not offered here; search with $regex, or keep the words of a text in an \
             array with an index of its own"
                .into(),
        )),
        Bson::String(kind) if kind.starts_with("2d") || kind == "geoHaystack" => Err(cannot(format!(
            "{kind} indexes are not offered here; index the coordinates as numbers and compare them"
        ))),
        Bson::String(kind) => {
            Err(cannot(format!("Unknown index plugin '{kind}'; use 1, -1 or 'hashed'")))
        }
        Bson::Double(number) if *number != 0.0 && !number.is_nan() => Ok(()),
        other => match whole_number(other) {
            Some(0) => Err(cannot("Values in the index key pattern cannot be 0.".into())),
            Some(_) => Ok(()),
            None => Err(cannot(format!(
                "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, numbers \
                 < 0, and strings are allowed.",
                quorate_query::value::type_name_of(other)
            ))),
        },
    }
}

fn plain(direction: &Bson) -> String {
    match direction {
        Bson::String(text) => text.clone(),
        other => whole_number(other).map_or_else(|| other.to_string(), |n| n.to_string()),
    }
}

/// The options of an index that two indexes with the same fields may differ in. One that is off is as if it were absent.
/// The manual: since 5.0 indexes that differ in them are different ones.
fn identity(spec: &Document) -> (bool, bool, Option<&Bson>) {
    let is_on = |name: &str| spec.get(name).is_some_and(is_truthy);
    (is_on("unique"), is_on("sparse"), spec.get("partialFilterExpression"))
}

/// The options of an index besides those. Whether queries pass the index over can be changed at any time.
fn other_options(spec: &Document) -> Bson {
    const NOT_COMPARED: [&str; 9] = [
        "v", "ns", "key", "name", "background", "hidden", "unique", "sparse",
        "partialFilterExpression",
    ];
    let is_compared = |(name, _): &(&String, &Bson)| !NOT_COMPARED.contains(&name.as_str());
    let options: BTreeMap<&String, &Bson> = spec.iter().filter(is_compared).collect();
    Bson::Document(options.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Whether this very index exists; an error if one that contradicts it does.
fn already_there(collection: &Collection, spec: &Document) -> Result<bool> {
    let name = spec.get_str("name").unwrap_or("");
    let key = spec.get_document("key").cloned().unwrap_or_default();
    if same_key(&key, &doc! { "_id": 1 }) {
        return Ok(true);
    }
    let refused = |code: ErrorCode, why: String| Err(CommandError::new(code, why));
    for index in &collection.indexes {
        let is_same = same_key(&index.key(), &key) && same_identity(&index.spec, spec);
        match (index.name == name, is_same) {
            (true, true) if equal(&other_options(&index.spec), &other_options(spec)) => {
                return Ok(true);
            }
            (true, true) => {
                return refused(
                    ErrorCode::INDEX_OPTIONS_CONFLICT,
                    format!(
                        "An equivalent index already exists with the same name but different \
                         options. Requested index: {spec}, existing index: {}",
                        index.spec
                    ),
                );
            }
            (true, false) => {
                return refused(
                    ErrorCode::INDEX_KEY_SPECS_CONFLICT,
                    format!(
                        "An existing index has the same name as the requested index. Requested \
                         index: {spec}, existing index: {}",
                        index.spec
                    ),
                );
            }
            (false, true) => {
                return refused(
                    ErrorCode::INDEX_OPTIONS_CONFLICT,
                    format!("Index already exists with a different name: {}", index.name),
                );
            }
            (false, false) => {}
        }
    }
    Ok(false)
}

fn same_identity(left: &Document, right: &Document) -> bool {
    let ((unique, sparse, partial), other) = (identity(left), identity(right));
    let same_filter = match (partial, other.2) {
        (Some(left), Some(right)) => equal(left, right),
        (left, right) => left.is_none() && right.is_none(),
    };
    (unique, sparse) == (other.0, other.1) && same_filter
}

pub(super) fn list_indexes(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    let catalog = request.node.catalog();
    let found = catalog.get(&namespace);
    let fields = Fields::new(&command.body, "listIndexes");
    check_uuid(&fields, &namespace, found.map(|found| &**found))?;
    let collection = found.ok_or_else(|| not_found(&namespace))?;
    collection.refuse_view()?;
    let specs = collection.indexes.iter().map(|index| index.spec.clone()).collect();
    open_list(request, namespace, specs, &command.body)
}

pub(super) fn drop_indexes(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let namespace = request.namespace(&command)?;
    let fields = Fields::new(&command.body, "dropIndexes");
    let concern = WriteConcern::parse(&command)?;
    let mut writer = request.write();
    let mut collection = writer
        .unused_collection(&namespace)?
        .ok_or_else(|| fail!(NAMESPACE_NOT_FOUND, "ns not found {namespace}"))?;
    collection.refuse_view()?;
    let before = collection.indexes.len();
    for name in named_indexes(&collection, fields.raw("index"))? {
        writer.drop_index(&mut collection, &name)?;
    }
    let answer = doc! { "nIndexesWas": before as i32, "ok": 1.0 };
    Ok(concern.reply(to_raw(&answer)?, writer.last_commit()))
}

fn named_indexes(collection: &Arc<Collection>, wanted: Option<&Bson>) -> Result<Vec<String>> {
    let by_name = |name: &str| {
        refuse_if!(name == ID_INDEX => INVALID_OPTIONS, "cannot drop _id index");
        match collection.index(name) {
            Some(index) => Ok(index.name.clone()),
            None => Err(fail!(INDEX_NOT_FOUND, "index not found with name [{name}]")),
        }
    };
    match wanted {
        Some(Bson::String(name)) if name == "*" => {
            let others = collection.indexes.iter().filter(|index| !index.is_id());
            Ok(others.map(|index| index.name.clone()).collect())
        }
        Some(Bson::String(name)) => Ok(vec![by_name(name)?]),
        Some(Bson::Array(names)) => {
            names.iter().map(|name| by_name(name.as_str().unwrap_or(""))).collect::<Result<_, _>>()
        }
        Some(Bson::Document(key)) => {
            let found = collection.index_with_key(key)?;
            match found {
                Some(index) => Ok(vec![by_name(&index.name)?]),
                None => Err(fail!(INDEX_NOT_FOUND, "can't find index with key: {key}")),
            }
        }
        _ => Err(fail!(
            TYPE_MISMATCH,
            "dropIndexes needs 'index': a name, a list of names, a key pattern or '*'"
        )),
    }
}
