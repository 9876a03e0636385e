//! A reader of a change stream knows nothing but events, and rebuilds every document from them.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document, doc};

use crate::running::{BESIDE, Run, Verdict, expect_ok, sync};
use crate::steps::{VIEWS, database_of, full_name, name_of, name_of_view};
use crate::support::set::{commit, position};
use crate::support::{self, Member};

/// A collection as events tell of it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rebuilt {
    documents: BTreeMap<i64, Document>,
    /// Whether documents are kept as they were before a change.
    images: bool,
}

/// A reader of the change stream of all databases.
pub(crate) struct Watching {
    /// It has seen everything up to here.
    token: Document,
    rebuilt: BTreeMap<String, Rebuilt>,
    /// The member and its process, and the cursor that is open there.
    cursor: Option<(u64, i64)>,
}

/// A stream: its cursor, and what it has shown.
struct Stream {
    id: i64,
    database: String,
    collection: String,
    token: Document,
    events: Vec<Document>,
}

impl Stream {
    /// Opens a stream of a collection or a database; one of all databases if none is named.
    fn open(
        member: &Member,
        (database, target): (Option<&str>, Bson),
        options: Document,
        batch: i32,
    ) -> Result<Self, String> {
        let mut stage =
            doc! { "showExpandedEvents": true, "fullDocumentBeforeChange": "whenAvailable" };
        stage.extend(options);
        if database.is_none() {
            stage.insert("allChangesForCluster", true);
        }
        let command = doc! {
            "aggregate": target, "pipeline": [{ "$changeStream": stage }], "cursor": { "batchSize": batch },
            "$db": database.unwrap_or("admin"),
        };
        let reply = member.run(command.clone());
        expect_ok(&reply).map_err(|error| format!("{command}: {error}"))?;
        let cursor = reply.get_document("cursor").map_err(text)?;
        let (database, collection) =
            cursor.get_str("ns").map_err(text)?.split_once('.').ok_or("no namespace")?;
        let mut stream = Self {
            id: 0,
            database: database.to_owned(),
            collection: collection.to_owned(),
            token: Document::new(),
            events: Vec::new(),
        };
        stream.take(&reply, "firstBatch")?;
        Ok(stream)
    }

    fn take(&mut self, reply: &Document, name: &str) -> Result<bool, String> {
        expect_ok(reply)?;
        let cursor = reply.get_document("cursor").map_err(text)?;
        self.id = cursor.get_i64("id").map_err(text)?;
        self.token = cursor.get_document("postBatchResumeToken").map_err(text)?.clone();
        let batch = cursor.get_array(name).map_err(text)?;
        self.events.extend(batch.iter().filter_map(|event| event.as_document().cloned()));
        Ok(!batch.is_empty())
    }

    /// Reads everything there is.
    fn read(&mut self, member: &Member, batch: i32) -> Verdict {
        while self.id != 0 {
            let command = doc! {
                "getMore": self.id, "collection": &self.collection, "batchSize": batch,
                "$db": &self.database,
            };
            let context = quorate_node::Context { may_wait: false, ..support::context() };
            let reply = member.run_as(&context, command);
            if !self.take(&reply, "nextBatch")? {
                break;
            }
        }
        Ok(())
    }

    fn close(self, member: &Member) -> Vec<Document> {
        if self.id != 0 {
            member.run(doc! {
                "killCursors": &self.collection, "cursors": [self.id], "$db": &self.database,
            });
        }
        self.events
    }
}

/// All events after a place, from a stream of their own.
fn all(
    member: &Member,
    target: (Option<&str>, Bson),
    options: Document,
    batch: i32,
) -> Result<Vec<Document>, String> {
    let mut stream = Stream::open(member, target, options, batch)?;
    stream.read(member, batch)?;
    Ok(stream.close(member))
}

impl Run {
    /// The reader sees the events since it looked last, and has rebuilt what the model holds. Streams that begin
    /// later or show less see the same of it.
    pub(crate) fn watch(&mut self, batch: i32, collection: usize, skipped: u64) -> Verdict {
        let after = doc! { "fullDocument": "whenAvailable" };
        commit(&self.member, position(&self.member));
        // What a majority has is neither lost nor undone.
        sync(&self.member)?;
        self.settle();
        let process = self.opened.get();
        let Some(mut watching) = self.watching.take() else {
            let stream = Stream::open(&self.member, (None, 1.into()), after, batch)?;
            let rebuilt = self.rebuilt();
            let cursor = Some((process, stream.id));
            self.watching = Some(Watching { token: stream.token, rebuilt, cursor });
            return Ok(());
        };
        let mut options = after.clone();
        options.insert("resumeAfter", watching.token.clone());
        let mut stream = Stream::open(&self.member, (None, 1.into()), options, batch)?;
        stream.read(&self.member, batch)?;
        let events = match watching.cursor.filter(|(of, _)| *of == process) {
            Some((_, id)) => {
                let (database, collection) = ("admin".to_owned(), "$cmd.aggregate".to_owned());
                let token = Document::new();
                let mut open = Stream { id, database, collection, token, events: Vec::new() };
                open.read(&self.member, batch)?;
                same(&open.events, &stream.events, "an open stream")?;
                watching.token = open.token;
                stream.close(&self.member)
            }
            None => {
                (watching.token, watching.cursor) = (stream.token, Some((process, stream.id)));
                stream.events
            }
        };
        self.figures.events += events.len() as u64;
        for event in events.iter().filter(|event| is_told(event)) {
            apply(&mut watching.rebuilt, event).map_err(|error| format!("{error}: {event}"))?;
        }
        in_order(&events)?;
        let wanted = self.rebuilt();
        if watching.rebuilt != wanted {
            return Err(format!(
                "rebuilt {:?}\n  expected {wanted:?}\n  from {events:?}",
                watching.rebuilt
            ));
        }
        if let Some(place) = (events.len() as u64 * skipped / 1_000).checked_sub(1) {
            let mut options = after;
            let token = events[place as usize].get_document("_id").map_err(text)?;
            options.insert("resumeAfter", token.clone());
            let later = all(&self.member, (None, 1.into()), options, batch)?;
            same(&later, &events[place as usize + 1..], "a stream that begins later")?;
        }
        self.watch_collection(&events, collection, batch)?;
        self.watch_database(&events, database_of(collection), batch)?;
        self.watching = Some(watching);
        Ok(())
    }

    /// A stream of a collection from the first of these events on shows those of the collection, and documents as
    /// they are now.
    fn watch_collection(&self, events: &[Document], collection: usize, batch: i32) -> Verdict {
        let Some(first) = events.first() else { return Ok(()) };
        let time = first.get_timestamp("clusterTime").map_err(text)?;
        let (database, name) = (database_of(collection), full_name(collection));
        let options = doc! { "fullDocument": "updateLookup", "startAtOperationTime": time };
        let target = (Some(database), name_of(collection).into());
        let mut shown = all(&self.member, target, options, batch)?;
        let is_of_database = |event: &Document| {
            let named = event.get_document("ns").and_then(|ns| ns.get_str("db"));
            kind_of(event) == "dropDatabase" && named.is_ok_and(|named| named == database)
        };
        let is_meant = |event: &&Document| is_about(event, &name) || is_of_database(event);
        let mut wanted: Vec<Document> = events.iter().filter(is_meant).cloned().collect();
        // The end of the collection or of its database is the end of its stream, which does not tell of the latter.
        let end = |event: &Document| matches!(kind_of(event), "drop" | "rename" | "dropDatabase");
        if let Some(end) = wanted.iter().position(end) {
            wanted.truncate(end + 1);
            wanted.retain(|event| !is_of_database(event));
            let last = shown.pop().ok_or("a stream that ends without a word")?;
            if kind_of(&last) != "invalidate" {
                return Err(format!("a stream of {name} ends with {last}"));
            }
        } else {
            let held = self.model.collections.get(&collection);
            for (place, event) in shown.iter().enumerate() {
                let key = event.get_document("documentKey").ok();
                let is_later = |other: &Document| other.get_document("documentKey").ok() == key;
                if key.is_none() || shown[place + 1..].iter().any(is_later) {
                    continue;
                }
                let id = key.and_then(|key| key.get_i32("_id").ok()).ok_or("no document")?;
                let held = held.and_then(|held| held.documents.get(&id));
                if kind_of(event) == "update" && event.get_document("fullDocument").ok() != held {
                    return Err(format!("{event}\n  looked up, but is {held:?}"));
                }
            }
        }
        for event in shown.iter_mut().chain(&mut wanted) {
            if kind_of(event) == "update" {
                event.remove("fullDocument");
            }
        }
        same(&shown, &wanted, &format!("a stream of {name}"))
    }

    /// A stream of a database from the first of these events on shows those of the database, until it is dropped.
    fn watch_database(&self, events: &[Document], database: &str, batch: i32) -> Verdict {
        let Some(first) = events.first() else { return Ok(()) };
        let time = first.get_timestamp("clusterTime").map_err(text)?;
        let options = doc! { "fullDocument": "whenAvailable", "startAtOperationTime": time };
        let mut shown = all(&self.member, (Some(database), 1.into()), options, batch)?;
        let is_within = |event: &&Document| {
            ["ns", "to"].into_iter().any(|field| {
                event
                    .get_document(field)
                    .is_ok_and(|named| named.get_str("db").is_ok_and(|db| db == database))
            })
        };
        let mut wanted: Vec<Document> = events.iter().filter(is_within).cloned().collect();
        if let Some(end) = wanted.iter().position(|event| kind_of(event) == "dropDatabase") {
            wanted.truncate(end + 1);
            let last = shown.pop().ok_or("a stream that ends without a word")?;
            if kind_of(&last) != "invalidate" {
                return Err(format!("a stream of {database} ends with {last}"));
            }
        }
        same(&shown, &wanted, &format!("a stream of {database}"))
    }

    /// What a reader should have rebuilt.
    fn rebuilt(&self) -> BTreeMap<String, Rebuilt> {
        let held = self.model.collections.iter().map(|(collection, known)| {
            let documents = known.documents.iter();
            let documents =
                documents.map(|(id, document)| (i64::from(*id), document.clone())).collect();
            (full_name(*collection), Rebuilt { documents, images: known.images })
        });
        held.collect()
    }
}

/// The collection that a field of an event names.
fn named(event: &Document, field: &str) -> Option<String> {
    let named = event.get_document(field).ok()?;
    Some(format!("{}.{}", named.get_str("db").ok()?, named.get_str("coll").ok()?))
}

/// Whether an event is about a collection of this name, also by its new one.
fn is_about(event: &Document, name: &str) -> bool {
    ["ns", "to"].into_iter().any(|field| named(event, field).is_some_and(|named| named == name))
}

/// Whether an event is about a collection that is rebuilt: no view, and none beside the others.
fn is_told(event: &Document) -> bool {
    let views = (0..VIEWS as usize).map(name_of_view);
    let mut left_out = views.chain([BESIDE.to_owned()]);
    named(event, "ns").is_some_and(|name| left_out.all(|left_out| name != format!("db.{left_out}")))
}

fn kind_of(event: &Document) -> &str {
    event.get_str("operationType").unwrap_or_default()
}

fn same(shown: &[Document], wanted: &[Document], what: &str) -> Verdict {
    match shown == wanted {
        true => Ok(()),
        false => Err(format!("{what} shows {shown:?}\n  expected {wanted:?}")),
    }
}

/// Tokens grow, and the events of a transaction stand together.
fn in_order(events: &[Document]) -> Verdict {
    let token = |event: &Document| {
        let token = event.get_document("_id").and_then(|token| token.get_str("_data"));
        token.unwrap_or_default().to_owned()
    };
    if !events.is_sorted_by(|one, two| token(one) < token(two)) {
        return Err(format!("tokens do not grow: {events:?}"));
    }
    let (mut seen, mut last) = (BTreeSet::new(), None);
    for event in events {
        let transaction = event.get("lsid").zip(event.get("txnNumber"));
        let transaction = transaction.map(|(session, number)| format!("{session} {number}"));
        if transaction != last && transaction.clone().is_some_and(|of| !seen.insert(of)) {
            return Err(format!("a transaction is shown in parts: {events:?}"));
        }
        last = transaction;
    }
    Ok(())
}

/// One event changes what was rebuilt.
fn apply(rebuilt: &mut BTreeMap<String, Rebuilt>, event: &Document) -> Verdict {
    let kind = kind_of(event);
    let name = named(event, "ns").ok_or("is about no collection")?;
    match kind {
        "create" => {
            let described = event.get_document("operationDescription").map_err(text)?;
            let images = described.get_document("changeStreamPreAndPostImages");
            let images = images.is_ok_and(|images| images.get_bool("enabled").unwrap_or(false));
            match rebuilt.insert(name, Rebuilt { images, ..Rebuilt::default() }) {
                Some(_) => Err("is made twice".to_owned()),
                None => Ok(()),
            }
        }
        "drop" => rebuilt.remove(&name).map(|_| ()).ok_or("was not there".to_owned()),
        "rename" => {
            let to = named(event, "to").ok_or("has no new name")?;
            let moved = rebuilt.remove(&name).ok_or("was not there")?;
            rebuilt.insert(to, moved);
            Ok(())
        }
        "createIndexes" | "dropIndexes" => Ok(()),
        "modify" => {
            let changed = event.get_document("operationDescription").map_err(text)?;
            let known = rebuilt.get_mut(&name).ok_or("was not there")?;
            if let Ok(images) = changed.get_document("changeStreamPreAndPostImages") {
                known.images = images.get_bool("enabled").map_err(text)?;
            }
            Ok(())
        }
        _ => apply_to_document(rebuilt.get_mut(&name).ok_or("is in no collection")?, kind, event),
    }
}

fn apply_to_document(known: &mut Rebuilt, kind: &str, event: &Document) -> Verdict {
    let key = event.get_document("documentKey").map_err(text)?;
    let id = match key.get("_id") {
        Some(Bson::Int32(id)) => i64::from(*id),
        Some(Bson::Int64(id)) => *id,
        _ => return Err("has no key".to_owned()),
    };
    let before = known.documents.remove(&id);
    if before.is_none() != (kind == "insert") {
        return Err(format!("is not about {before:?}"));
    }
    let full = event.get_document("fullDocument").ok().cloned();
    let image = event.get_document("fullDocumentBeforeChange").ok();
    if kind != "insert" && image != before.as_ref().filter(|_| known.images) {
        return Err(format!("images: {}, and it was {before:?}", known.images));
    }
    let after = match (kind, before) {
        ("delete", _) => None,
        ("insert" | "replace", _) => Some(full.clone().ok_or("has no document")?),
        ("update", Some(mut document)) => {
            describe(&mut document, event.get_document("updateDescription").map_err(text)?)?;
            if full != known.images.then(|| document.clone()) {
                return Err(format!("images: {}, and becomes {document:?}", known.images));
            }
            Some(document)
        }
        _ => return Err("is unknown".to_owned()),
    };
    known.documents.extend(after.map(|document| (id, document)));
    Ok(())
}

/// Changes a document as an event describes it.
fn describe(document: &mut Document, described: &Document) -> Verdict {
    for removed in described.get_array("removedFields").map_err(text)? {
        let name = removed.as_str().ok_or("removes no field")?;
        document.remove(name).ok_or("removes a field that is not there")?;
    }
    for truncated in described.get_array("truncatedArrays").map_err(text)? {
        let truncated = truncated.as_document().ok_or("truncates nothing")?;
        let name = truncated.get_str("field").map_err(text)?;
        let size = truncated.get_i32("newSize").map_err(text)?;
        document.get_array_mut(name).map_err(text)?.truncate(size as usize);
    }
    for (path, value) in described.get_document("updatedFields").map_err(text)? {
        match path.split_once('.') {
            None => {
                document.insert(path, value.clone());
            }
            Some((name, place)) => {
                let items = document.get_array_mut(name).map_err(text)?;
                let place: usize = place.parse().map_err(text)?;
                match items.len() {
                    size if place < size => items[place] = value.clone(),
                    size if place == size => items.push(value.clone()),
                    _ => return Err("leaves a gap".to_owned()),
                }
            }
        }
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
