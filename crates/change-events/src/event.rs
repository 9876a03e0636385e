//! The events of one entry.
//!
//! An entry of a document gives one event, an entry of a transaction one for each of its operations, an
//! entry of the catalog one or, where it ends the stream, two. What a stream does not show gives none.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, Timestamp, doc};

use crate::description::update_description;
use crate::entry::{Operation, Place};
use crate::error::{EventError, Result};
use crate::token::ResumeToken;

/// What a stream watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One collection, by the name it has.
    Collection {
        /// The database.
        database: String,
        /// The collection.
        collection: String,
    },
    /// All collections of a database.
    Database(String),
    /// All databases.
    Deployment,
}

/// What the field `fullDocument` of an update holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FullDocument {
    /// Nothing: only inserts and replacements have it.
    #[default]
    Default,
    /// The document as it is now.
    UpdateLookup,
    /// The document after the change if it was kept, else null.
    WhenAvailable,
    /// The document after the change, or the stream fails.
    Required,
}

/// What the field `fullDocumentBeforeChange` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FullDocumentBeforeChange {
    /// The field is absent.
    #[default]
    Off,
    /// The document before the change if it was kept, else null.
    WhenAvailable,
    /// The document before the change, or the stream fails.
    Required,
}

/// How a stream was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What it watches.
    pub scope: Scope,
    /// What updates tell of the document.
    pub full_document: FullDocument,
    /// What changes tell of the document before them.
    pub before_change: FullDocumentBeforeChange,
    /// Whether changes of the catalog are shown, and what they show more.
    pub show_expanded_events: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scope: Scope::Deployment,
            full_document: FullDocument::default(),
            before_change: FullDocumentBeforeChange::default(),
            show_expanded_events: false,
        }
    }
}

impl Options {
    /// Whether events have images besides what the oplog tells.
    pub fn shows_images(&self) -> bool {
        self.full_document != FullDocument::default()
            || self.before_change != FullDocumentBeforeChange::default()
    }
}

/// Where images of documents come from.
pub trait Images {
    /// Whether the client has seen the event with this token: no image is asked for it, and none is required.
    fn is_seen(&self, token: &ResumeToken) -> bool;

    /// The document before the operation at this place, if it was kept.
    fn before(
        &self,
        uuid: Option<[u8; 16]>,
        timestamp: Timestamp,
        transaction_index: i64,
    ) -> Option<Document>;

    /// What an update made of a document, given what the entry says.
    fn after(&self, before: &Document, change: &Document) -> Option<Document>;

    /// The document with this key as it is now.
    fn current(&self, database: &str, collection: &str, key: &Document) -> Option<Document>;
}

/// No images at all.
#[derive(Debug, Clone, Copy)]
pub struct NoImages;

impl Images for NoImages {
    fn is_seen(&self, _: &ResumeToken) -> bool {
        false
    }

    fn before(&self, _: Option<[u8; 16]>, _: Timestamp, _: i64) -> Option<Document> {
        None
    }

    fn after(&self, _: &Document, _: &Document) -> Option<Document> {
        None
    }

    fn current(&self, _: &str, _: &str, _: &Document) -> Option<Document> {
        None
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Where it stands; also the `_id` of the document.
    pub token: ResumeToken,
    /// What clients get.
    pub document: Document,
    /// Whether the stream ends after it.
    pub ends_stream: bool,
}

/// The events that a stream shows of one entry. The entries of a transaction that come before its last
/// one give nothing: see [`transaction_events`].
///
/// # Errors
///
/// If the entry is damaged, or an image is required and was not kept.
pub fn events(entry: &Document, images: &dyn Images, options: &Options) -> Result<Vec<Event>> {
    let operation = Operation::of(entry)?;
    match operation.kind {
        "c" if operation.object.contains_key("applyOps") => {
            transaction_events(std::slice::from_ref(entry), images, options)
        }
        _ => {
            let place = Place::of(entry)?;
            Translator { images, options }.operation(&place, operation, 0)
        }
    }
}

/// The events of a transaction, from all its entries, the last one last. Each operation has the time of
/// the entry that holds it, and its place among all operations.
///
/// # Errors
///
/// As [`events`].
pub fn transaction_events(
    entries: &[Document],
    images: &dyn Images,
    options: &Options,
) -> Result<Vec<Event>> {
    let Some(last) = entries.last() else { return Ok(Vec::new()) };
    let unfinished = |object: &Document| {
        let flag = |name: &str| object.get(name) == Some(&Bson::Boolean(true));
        flag("partialTxn") || flag("prepare")
    };
    if Operation::of(last).is_ok_and(|operation| unfinished(operation.object)) {
        return Ok(Vec::new());
    }
    let translator = Translator { images, options };
    let mut found = Vec::new();
    let mut index = 0;
    for entry in entries {
        let place = Place::of(entry)?.in_transaction(entry);
        let operations = Operation::of(entry)?.object.get_array("applyOps");
        for inner in operations.map_err(|_| EventError::entry("it has no applyOps"))? {
            let Bson::Document(inner) = inner else {
                return Err(EventError::entry("an operation in it is no document"));
            };
            found.extend(translator.operation(&place, Operation::of(inner)?, index)?);
            index += 1;
        }
    }
    Ok(found)
}

struct Translator<'a> {
    images: &'a dyn Images,
    options: &'a Options,
}

impl Translator<'_> {
    fn operation(&self, place: &Place, operation: Operation<'_>, index: i64) -> Result<Vec<Event>> {
        match operation.kind {
            "i" | "u" | "d" if self.shows(operation.database, operation.collection) => {
                self.document(place, operation, index).map(|event| vec![event])
            }
            "c" => self.command(place, operation, index),
            _ => Ok(Vec::new()),
        }
    }

    /// Whether changes of a collection's documents are shown.
    fn shows(&self, database: &str, collection: &str) -> bool {
        if matches!(database, "admin" | "config" | "local") || collection.starts_with("system.") {
            return false;
        }
        match &self.options.scope {
            Scope::Collection { database: watched, collection: name } => {
                database == watched && collection == name
            }
            Scope::Database(watched) => database == watched,
            Scope::Deployment => true,
        }
    }

    fn document(&self, place: &Place, operation: Operation<'_>, index: i64) -> Result<Event> {
        let id_of = |document: &Document| match document.get("_id") {
            Some(id) => doc! { "_id": id.clone() },
            None => Document::new(),
        };
        // A delta begins with `$v`. A whole document begins with `_id`, and may have both fields.
        let is_delta = operation.object.keys().next().is_some_and(|name| name == "$v");
        let delta = operation.object.get_document("diff").ok().filter(|_| is_delta);
        let (kind, key) = match (operation.kind, delta) {
            ("i", _) => ("insert", id_of(operation.object)),
            ("d", _) => ("delete", id_of(operation.object)),
            (_, Some(_)) => ("update", operation.target.map(id_of).unwrap_or_default()),
            _ => ("replace", operation.target.map_or_else(|| id_of(operation.object), id_of)),
        };
        let identifier = doc! { "operationType": kind, "documentKey": key.clone() };
        let token = ResumeToken::event(place.timestamp, index, operation.uuid, identifier);
        let mut event = self.common(place, &token, kind, operation.uuid);
        let is_seen = self.options.shows_images() && self.images.is_seen(&token);
        let (mut before, mut full) = (None, None);
        if !is_seen {
            before = self.before(place, &operation, index, kind, &key)?;
            full = self.full_document(&operation, kind, &key, before.as_ref())?;
        }
        if let Some(full) = full {
            event.insert("fullDocument", full);
        }
        event.insert("ns", doc! { "db": operation.database, "coll": operation.collection });
        event.insert("documentKey", key);
        if let ("update", Some(diff)) = (kind, delta) {
            let description = update_description(diff, self.options.show_expanded_events)?;
            event.insert("updateDescription", description);
        }
        if self.options.before_change != FullDocumentBeforeChange::Off && kind != "insert" {
            event.insert("fullDocumentBeforeChange", before.map_or(Bson::Null, Bson::Document));
        }
        Ok(Event { token, document: event, ends_stream: false })
    }

    /// The fields that every event has.
    fn common(
        &self,
        place: &Place,
        token: &ResumeToken,
        kind: &str,
        uuid: Option<[u8; 16]>,
    ) -> Document {
        let mut event = doc! {
            "_id": token.to_document(),
            "operationType": kind,
            "clusterTime": place.timestamp,
            "wallTime": place.wall,
        };
        if let (true, Some(uuid)) = (self.options.show_expanded_events, uuid) {
            let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: uuid.to_vec() };
            event.insert("collectionUUID", uuid);
        }
        if let (Some(session), Some(number)) = (&place.session, &place.number) {
            event.insert("lsid", session.clone());
            event.insert("txnNumber", number.clone());
        }
        event
    }

    /// The document before the change, where it is needed.
    fn before(
        &self,
        place: &Place,
        operation: &Operation<'_>,
        index: i64,
        kind: &str,
        key: &Document,
    ) -> Result<Option<Document>> {
        let shown = self.options.before_change != FullDocumentBeforeChange::Off;
        let for_after = kind == "update"
            && matches!(
                self.options.full_document,
                FullDocument::WhenAvailable | FullDocument::Required
            );
        if kind == "insert" || !(shown || for_after) {
            return Ok(None);
        }
        let before = self.images.before(operation.uuid, place.timestamp, index);
        if before.is_none() && self.options.before_change == FullDocumentBeforeChange::Required {
            return Err(not_kept("pre-image", kind, key));
        }
        Ok(before)
    }

    fn full_document(
        &self,
        operation: &Operation<'_>,
        kind: &str,
        key: &Document,
        before: Option<&Document>,
    ) -> Result<Option<Bson>> {
        let null = |found: Option<Document>| found.map_or(Bson::Null, Bson::Document);
        Ok(match (kind, self.options.full_document) {
            ("insert" | "replace", _) => Some(Bson::Document(operation.object.clone())),
            ("update", FullDocument::UpdateLookup) => {
                Some(null(self.images.current(operation.database, operation.collection, key)))
            }
            ("update", wanted @ (FullDocument::WhenAvailable | FullDocument::Required)) => {
                let after = before.and_then(|before| self.images.after(before, operation.object));
                if after.is_none() && wanted == FullDocument::Required {
                    return Err(not_kept("post-image", kind, key));
                }
                Some(null(after))
            }
            _ => None,
        })
    }

    fn command(&self, place: &Place, operation: Operation<'_>, index: i64) -> Result<Vec<Event>> {
        let Some((name, argument)) = operation.command() else { return Ok(Vec::new()) };
        let database = operation.database;
        let argument = argument.as_str().unwrap_or("");
        match name {
            "drop" => self.dropped(place, operation, argument, index),
            "renameCollection" => self.renamed(place, operation, index),
            "dropDatabase" => self.dropped_database(place, operation, index),
            "create" | "createIndexes" | "dropIndexes" | "collMod"
                if self.options.show_expanded_events && self.shows(database, argument) =>
            {
                Ok(vec![self.catalog(place, operation, name, argument, index)])
            }
            _ => Ok(Vec::new()),
        }
    }

    /// An event of the catalog without fields of its own.
    fn plain(
        &self,
        place: &Place,
        kind: &str,
        operation: &Operation<'_>,
        description: Document,
        index: i64,
    ) -> Event {
        let identifier = doc! { "operationType": kind, "operationDescription": description };
        let token = ResumeToken::event(place.timestamp, index, operation.uuid, identifier);
        let document = self.common(place, &token, kind, operation.uuid);
        Event { token, document, ends_stream: false }
    }

    /// The event, and the invalidate that ends the stream after it.
    fn ended(&self, place: &Place, event: Event) -> Vec<Event> {
        let token = event.token.invalidating();
        let document = doc! {
            "_id": token.to_document(),
            "operationType": "invalidate",
            "clusterTime": place.timestamp,
            "wallTime": place.wall,
        };
        vec![event, Event { token, document, ends_stream: true }]
    }

    fn dropped(
        &self,
        place: &Place,
        operation: Operation<'_>,
        collection: &str,
        index: i64,
    ) -> Result<Vec<Event>> {
        let is_view = operation.object.contains_key("viewOn");
        let hidden = is_view && !self.options.show_expanded_events;
        if hidden || !self.shows(operation.database, collection) {
            return Ok(Vec::new());
        }
        let mut event = self.plain(place, "drop", &operation, Document::new(), index);
        event.document.insert("ns", doc! { "db": operation.database, "coll": collection });
        Ok(self.gone(place, event))
    }

    /// The collection of an event is not there any more under its name: a stream on it ends.
    fn gone(&self, place: &Place, event: Event) -> Vec<Event> {
        match self.options.scope {
            Scope::Collection { .. } => self.ended(place, event),
            Scope::Database(_) | Scope::Deployment => vec![event],
        }
    }

    fn renamed(&self, place: &Place, operation: Operation<'_>, index: i64) -> Result<Vec<Event>> {
        let text = |name: &str| operation.object.get_str(name).unwrap_or("");
        let split = |name: &str| match name.split_once('.') {
            Some((database, collection)) => (database.to_owned(), collection.to_owned()),
            None => (name.to_owned(), String::new()),
        };
        let (from, to) = (split(text("renameCollection")), split(text("to")));
        if !self.shows(&from.0, &from.1) && !self.shows(&to.0, &to.1) {
            return Ok(Vec::new());
        }
        let to = doc! { "db": to.0, "coll": to.1 };
        let mut description = doc! { "to": to.clone() };
        if let Some(target) = operation.object.get("dropTarget") {
            description.insert("dropTarget", target.clone());
        }
        let mut event = self.plain(place, "rename", &operation, description.clone(), index);
        event.document.insert("ns", doc! { "db": from.0, "coll": from.1 });
        event.document.insert("to", to);
        if self.options.show_expanded_events {
            event.document.insert("operationDescription", description);
        }
        Ok(self.gone(place, event))
    }

    fn dropped_database(
        &self,
        place: &Place,
        operation: Operation<'_>,
        index: i64,
    ) -> Result<Vec<Event>> {
        let shown = match &self.options.scope {
            Scope::Collection { database, .. } | Scope::Database(database) => {
                database == operation.database
            }
            Scope::Deployment => self.shows(operation.database, ""),
        };
        if !shown {
            return Ok(Vec::new());
        }
        let mut event = self.plain(place, "dropDatabase", &operation, Document::new(), index);
        event.document.insert("ns", doc! { "db": operation.database });
        let mut found = match self.options.scope {
            Scope::Deployment => vec![event],
            _ => self.ended(place, event),
        };
        // A stream on a collection tells that it ends, not why: its own drop came before.
        if matches!(self.options.scope, Scope::Collection { .. }) {
            found.remove(0);
        }
        Ok(found)
    }

    /// `create`, `createIndexes`, `dropIndexes` and `modify`.
    fn catalog(
        &self,
        place: &Place,
        operation: Operation<'_>,
        name: &str,
        collection: &str,
        index: i64,
    ) -> Event {
        let mut rest = operation.object.clone();
        rest.remove(name);
        let (kind, description, before) = match name {
            "create" => {
                let id_index = doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" };
                if !rest.contains_key("viewOn") {
                    rest.entry("idIndex".to_owned()).or_insert(id_index.into());
                }
                ("create", rest, None)
            }
            "collMod" => {
                let before = rest.remove("stateBeforeChange");
                // What the collection became is for the other members.
                rest.remove("options");
                rest.remove("indexes");
                ("modify", rest, before)
            }
            "dropIndexes" => {
                let name = || rest.get_str("index").map(|name| doc! { "name": name });
                let dropped = operation.target.cloned().or_else(|| name().ok());
                ("dropIndexes", doc! { "indexes": [dropped.unwrap_or_default()] }, None)
            }
            other => (other, doc! { "indexes": indexes(rest) }, None),
        };
        let mut event = self.plain(place, kind, &operation, description.clone(), index);
        event.document.insert("ns", doc! { "db": operation.database, "coll": collection });
        event.document.insert("operationDescription", description);
        if let Some(before) = before {
            event.document.insert("stateBeforeChange", before);
        }
        event
    }
}

/// The specifications of indexes in an entry: a list, or one specification written out.
fn indexes(mut specification: Document) -> Vec<Bson> {
    match specification.remove("indexes") {
        Some(Bson::Array(indexes)) => indexes,
        _ => vec![specification.into()],
    }
}

fn not_kept(image: &str, kind: &str, key: &Document) -> EventError {
    EventError::new(
        EventError::NO_MATCHING_DOCUMENT,
        format!(
            "Change stream was configured to require a {image} for all update, delete and replace \
             events, but the {image} was not found for this {kind} of {key}; enable \
             changeStreamPreAndPostImages on the collection, or ask for 'whenAvailable'"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(op: &str, ns: &str, object: Document) -> Document {
        doc! {
            "op": op, "ns": ns, "o": object, "o2": { "_id": 1 },
            "ui": Binary { subtype: BinarySubtype::Uuid, bytes: vec![3; 16] },
            "ts": Timestamp { time: 5, increment: 1 }, "wall": bson::DateTime::from_millis(9),
        }
    }

    fn watching(collection: &str) -> Options {
        let scope =
            Scope::Collection { database: "d".to_owned(), collection: collection.to_owned() };
        Options { scope, ..Options::default() }
    }

    fn types(entry: &Document, options: &Options) -> Vec<String> {
        let found = events(entry, &NoImages, options).unwrap();
        let kind = |event: &Event| event.document.get_str("operationType").unwrap().to_owned();
        found.iter().map(kind).collect()
    }

    #[test]
    fn changes_of_documents_have_the_documented_shape() {
        let insert = entry("i", "d.c", doc! { "_id": 1, "a": 1 });
        let found = events(&insert, &NoImages, &watching("c")).unwrap().remove(0).document;
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        let expected = [
            "_id", "operationType", "clusterTime", "wallTime", "fullDocument", "ns", "documentKey",
        ];
        assert_eq!(names, expected);
        assert_eq!(types(&entry("u", "d.c", doc! { "_id": 1 }), &watching("c")), ["replace"]);
        let delta = doc! { "$v": 2, "diff": { "u": { "a": 1 } } };
        assert_eq!(types(&entry("u", "d.c", delta), &watching("c")), ["update"]);
        // Stored documents begin with `_id`, and deltas with `$v`.
        let whole = doc! { "_id": 1, "$v": 2, "diff": { "u": { "a": 1 } } };
        assert_eq!(types(&entry("u", "d.c", whole), &watching("c")), ["replace"]);
        assert_eq!(types(&entry("d", "d.c", doc! { "_id": 1 }), &watching("c")), ["delete"]);
    }

    #[test]
    fn a_stream_shows_only_what_it_watches() {
        let insert = |ns: &str| entry("i", ns, doc! { "_id": 1 });
        let database = Options { scope: Scope::Database("d".into()), ..Options::default() };
        for (ns, collection, of_database, deployment) in [
            ("d.c", 1, 1, 1),
            ("d.e", 0, 1, 1),
            ("x.c", 0, 0, 1),
            ("d.system.js", 0, 0, 0),
            ("admin.c", 0, 0, 0),
            ("config.c", 0, 0, 0),
            ("local.c", 0, 0, 0),
        ] {
            let count = |options: &Options| types(&insert(ns), options).len();
            let counts = [&watching("c"), &database, &Options::default()].map(count);
            assert_eq!(counts, [collection, of_database, deployment], "{ns}");
        }
    }

    #[test]
    fn the_end_of_what_is_watched_invalidates() {
        let database = Options { scope: Scope::Database("d".into()), ..Options::default() };
        let drop = entry("c", "d.$cmd", doc! { "drop": "c" });
        assert_eq!(types(&drop, &watching("c")), ["drop", "invalidate"]);
        assert_eq!(types(&drop, &watching("e")), [] as [&str; 0]);
        assert_eq!(types(&drop, &database), ["drop"]);
        let rename = entry("c", "d.$cmd", doc! { "renameCollection": "d.c", "to": "d.e" });
        assert_eq!(types(&rename, &watching("c")), ["rename", "invalidate"]);
        assert_eq!(types(&rename, &watching("e")), ["rename", "invalidate"]);
        assert_eq!(types(&rename, &database), ["rename"]);
        let gone = entry("c", "d.$cmd", doc! { "dropDatabase": 1 });
        assert_eq!(types(&gone, &database), ["dropDatabase", "invalidate"]);
        assert_eq!(types(&gone, &Options::default()), ["dropDatabase"]);
        let both = events(&drop, &NoImages, &watching("c")).unwrap();
        assert!(both[0].token.to_hex() < both[1].token.to_hex());
        assert!(both[1].ends_stream && both[1].token.after_invalidate);
    }

    #[test]
    fn the_catalog_is_shown_to_those_who_ask() {
        let create = entry("c", "d.$cmd", doc! { "create": "c", "capped": true });
        assert_eq!(types(&create, &watching("c")), [] as [&str; 0]);
        let expanded = Options { show_expanded_events: true, ..watching("c") };
        let found = events(&create, &NoImages, &expanded).unwrap().remove(0).document;
        let described = found.get_document("operationDescription").unwrap();
        assert!(described.get_bool("capped").unwrap() && described.contains_key("idIndex"));
        assert!(found.contains_key("collectionUUID"));
        let index = doc! { "createIndexes": "c", "v": 2, "key": { "a": 1 }, "name": "a_1" };
        let found = events(&entry("c", "d.$cmd", index), &NoImages, &expanded).unwrap().remove(0);
        let expected = doc! { "indexes": [{ "v": 2, "key": { "a": 1 }, "name": "a_1" }] };
        assert_eq!(found.document.get_document("operationDescription").unwrap(), &expected);
        let mut dropped = entry("c", "d.$cmd", doc! { "dropIndexes": "c", "index": "a_1" });
        dropped.insert("o2", doc! { "v": 2, "key": { "a": 1 }, "name": "a_1" });
        let found = events(&dropped, &NoImages, &expanded).unwrap().remove(0);
        assert_eq!(found.document.get_document("operationDescription").unwrap(), &expected);
    }

    #[test]
    fn operations_of_a_transaction_are_events_of_their_own() {
        let inner =
            |id: i32| doc! { "op": "i", "ns": "d.c", "o": { "_id": id }, "o2": { "_id": id } };
        let part = |ops: Vec<Document>, partial: bool, time: u32| {
            let mut object = doc! { "applyOps": ops };
            if partial {
                object.insert("partialTxn", true);
            }
            let mut whole = entry("c", "admin.$cmd", object);
            whole.insert("lsid", doc! { "id": 1 });
            whole.insert("txnNumber", 4_i64);
            whole.insert("ts", Timestamp { time, increment: 1 });
            whole
        };
        let first = part(vec![inner(1), inner(2)], true, 5);
        assert!(events(&first, &NoImages, &watching("c")).unwrap().is_empty());
        let last = part(vec![inner(3)], false, 6);
        let found = transaction_events(&[first, last], &NoImages, &watching("c")).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|event| (event.token.cluster_time.time, event.token.transaction_index))
            .collect();
        assert_eq!(told, [(5, 0), (5, 1), (6, 2)]);
        assert_eq!(found[0].document.get_i64("txnNumber").unwrap(), 4);
    }

    /// An image for every document, and the place of the first operation that the client has not seen.
    struct Kept(Option<Document>, i64);

    impl Images for Kept {
        fn is_seen(&self, token: &ResumeToken) -> bool {
            token.transaction_index < self.1
        }

        fn before(&self, _: Option<[u8; 16]>, _: Timestamp, _: i64) -> Option<Document> {
            self.0.clone()
        }

        fn after(&self, before: &Document, _: &Document) -> Option<Document> {
            let mut after = before.clone();
            after.insert("after", true);
            Some(after)
        }

        fn current(&self, _: &str, _: &str, key: &Document) -> Option<Document> {
            Some(key.clone())
        }
    }

    #[test]
    fn images_are_shown_as_asked() {
        let delta = doc! { "$v": 2, "diff": { "u": { "a": 1 } } };
        let update = entry("u", "d.c", delta);
        let ask = |full_document, before_change, kept: Option<Document>| {
            let options = Options { full_document, before_change, ..watching("c") };
            events(&update, &Kept(kept, 0), &options).map(|mut found| found.remove(0).document)
        };
        use FullDocumentBeforeChange as Before;
        let image = doc! { "_id": 1, "a": 0 };
        let off = ask(FullDocument::Default, Before::Off, Some(image.clone())).unwrap();
        assert!(!off.contains_key("fullDocument"));
        assert!(!off.contains_key("fullDocumentBeforeChange"));
        let looked = ask(FullDocument::UpdateLookup, Before::Off, None).unwrap();
        assert_eq!(looked.get_document("fullDocument").unwrap(), &doc! { "_id": 1 });
        let both = ask(FullDocument::Required, Before::Required, Some(image.clone())).unwrap();
        assert_eq!(both.get_document("fullDocumentBeforeChange").unwrap(), &image);
        assert!(both.get_document("fullDocument").unwrap().contains_key("after"));
        let none = ask(FullDocument::WhenAvailable, Before::WhenAvailable, None).unwrap();
        assert_eq!(none.get("fullDocument"), Some(&Bson::Null));
        assert_eq!(none.get("fullDocumentBeforeChange"), Some(&Bson::Null));
        assert_eq!(ask(FullDocument::Default, Before::Required, None).unwrap_err().code, 47);
        assert_eq!(ask(FullDocument::Required, Before::Off, None).unwrap_err().code, 47);
    }

    /// A stream is resumed within a transaction: what came before is not shown again.
    #[test]
    fn no_image_is_required_of_an_event_that_was_seen() {
        let inner = |id: i32| doc! { "op": "d", "ns": "d.c", "o": { "_id": id } };
        let entry = entry("c", "admin.$cmd", doc! { "applyOps": [inner(1), inner(2)] });
        let before_change = FullDocumentBeforeChange::Required;
        let options = Options { before_change, ..watching("c") };
        let code = |first| events(&entry, &Kept(None, first), &options).map_err(|error| error.code);
        assert_eq!(code(0).unwrap_err(), 47);
        assert_eq!(code(1).unwrap_err(), 47);
        assert_eq!(code(2).map(|found| found.len()), Ok(2));
    }
}
