//! `$out` and `$merge`: the documents of a pipeline are written to a collection.

use std::borrow::Cow;
use std::sync::Arc;

use bson::{Bson, Document, doc};
use quorate_query::diff::ToldAs;
use quorate_query::expression::Variables;
use quorate_query::matcher::Matcher;
use quorate_query::pipeline::{Documents, Environment, Merge, Output, WhenMatched, WhenNotMatched};
use quorate_query::value::{DocumentRef, Path, ValueRef, equal, measure};
use quorate_query::{Charge, Meter};

use super::aggregate::Reading;
use super::common::count_capped;
use super::insert::{check_writable, with_timestamps};
use super::steps::MAX_LOST_EVALUATIONS;
use crate::catalog::Collection;
use crate::dispatch::Request;
use crate::error::{CommandError, Result};
use crate::fields::to_raw;
use crate::finder::Found;
use crate::namespace::Namespace;
use crate::repeated_fields::{self, rewrite};
use crate::replication::{Commit, takes_back};
use crate::select::Selection;
use crate::writer::Writer;

/// How the names of collections begin that take the place of another once they are filled. A number in hexadecimal
/// follows.
const SIDE: &str = "tmp.agg_out.";

/// Documents written by one hold of the write lock in `$out` and `$merge`.
const OUTPUT_CHUNK: usize = 1000;

/// The most bytes of them, beside the last document.
const OUTPUT_BYTES: usize = 4 * 1024 * 1024;

/// Where the documents of `$out` and `$merge` go.
pub(super) struct Sink<'a, 'r> {
    pub(super) request: &'a Request<'r>,
    pub(super) variables: &'a Variables,
    pub(super) reading: &'a Reading,
    pub(super) bypass: bool,
}

impl Sink<'_, '_> {
    pub(super) fn write(&self, output: &Output, documents: Documents) -> Result<Option<Commit>> {
        match output {
            Output::Out { database, collection } => {
                self.replace(&self.target(database.as_deref(), collection)?, documents)
            }
            Output::Merge(merge) => {
                let target = self.target(merge.database.as_deref(), &merge.collection)?;
                self.merge(merge, &target, documents)
            }
        }
    }

    fn target(&self, database: Option<&str>, name: &str) -> Result<Namespace> {
        let namespace = Namespace::new(database.unwrap_or(self.request.database), name)?;
        check_writable(&namespace)?;
        if let Some(found) = self.request.node.catalog().get(&namespace) {
            found.refuse_view()?;
        }
        Ok(namespace)
    }

    /// Fills a collection on the side and puts it in place of the target, so that readers see the
    /// old documents or the new ones.
    fn replace(&self, target: &Namespace, documents: Documents) -> Result<Option<Commit>> {
        let name = format!("{SIDE}{:016x}", self.request.node.next_seed());
        let side = Namespace::new(&target.database, &name)?;
        let filled = self.fill(&side, target, documents);
        let mut writer = self.request.write();
        let placed = filled.and_then(|seen| put_in_place(&mut writer, &side, target, &seen));
        match (placed, writer.collection(&side)) {
            (Err(error), Some(collection)) => {
                // If it cannot be dropped, as by a member that is primary no longer, the next primary does that.
                let _ = writer.drop_collection(&collection);
                Err(error)
            }
            (placed, _) => placed.map(|()| writer.last_commit()),
        }
    }

    /// Returns what the target was when this began.
    fn fill(
        &self,
        side: &Namespace,
        target: &Namespace,
        mut documents: Documents,
    ) -> Result<Document> {
        let mut writer = self.request.write();
        let existing = writer.collection(target);
        refuse_if!(existing.as_ref().is_some_and(|known| known.capped.is_some()) => 17152,
            "namespace '{target}' is capped so it can't be used for $out");
        let options = existing.as_ref().map(|known| known.options.clone()).unwrap_or_default();
        let mut collection = writer.create_collection(side, options)?;
        for index in existing.iter().flat_map(|known| &known.indexes).filter(|i| !i.is_id()) {
            writer.build_index(&mut collection, index.spec.clone(), || Ok(()))?;
        }
        drop(writer);
        loop {
            // The stream may read through the planner, never under the write lock.
            let (chunk, _charge) = self.next_chunk("$out", &mut documents)?;
            if chunk.is_empty() {
                return Ok(described(existing.as_deref()));
            }
            let raw = chunk.iter().map(to_raw).collect::<Result<Vec<_>, _>>()?;
            drop(chunk);
            let mut writer = self.request.write();
            let raw = raw.into_iter().map(|raw| with_timestamps(&mut writer, raw)).collect();
            let results = writer.insert(&mut collection, raw, true, self.bypass)?;
            results.into_iter().collect::<Result<(), _>>()?;
        }
    }

    /// The documents that are written next, and what they hold of the operation's memory.
    fn next_chunk(
        &self,
        stage: &str,
        documents: &mut Documents,
    ) -> Result<(Vec<Document>, Charge)> {
        let mut charge = self.request.meter().charge();
        let mut chunk = Vec::new();
        while chunk.len() < OUTPUT_CHUNK && charge.bytes() < OUTPUT_BYTES {
            let Some(document) = documents.next().transpose()? else { break };
            // As it is, and as it is stored.
            charge.grow(stage, 2 * measure(&document).bytes)?;
            chunk.push(document);
        }
        Ok((chunk, charge))
    }

    fn merge(
        &self,
        merge: &Merge,
        target: &Namespace,
        mut documents: Documents,
    ) -> Result<Option<Commit>> {
        let on = merge.on.iter().map(|field| Path::parse(field)).collect::<Result<Vec<_>, _>>()?;
        let mut commit = None;
        let mut checked = false;
        loop {
            let (chunk, _charge) = self.next_chunk("$merge", &mut documents)?;
            if chunk.is_empty() && checked {
                return Ok(commit);
            }
            count_capped(self.request, target)?;
            let mut writer = self.request.write();
            let mut collection = writer.collection_or_create(target)?;
            if !checked {
                check_merge_key(merge, &collection)?;
                checked = true;
            }
            for document in &chunk {
                if writer.give_way_if_long()? {
                    collection = writer.collection_or_create(target)?;
                }
                let joined = (merge, &*on);
                while let Err(error) =
                    self.merge_one(joined, &mut writer, &mut collection, document)
                {
                    // Once the transaction in the way has ended, another document may be there, or none.
                    if !writer.wait_if_blocked()? {
                        return Err(error);
                    }
                    collection = writer.collection_or_create(target)?;
                }
            }
            commit = writer.last_commit().or(commit);
            if chunk.is_empty() {
                return Ok(commit);
            }
        }
    }

    /// Merges one document. What becomes of the one that it meets is evaluated without the lock if that takes long. Then it
    /// looks for that one again, and evaluates again if others have changed it.
    fn merge_one(
        &self,
        (merge, on): (&Merge, &[Path]),
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        document: &Document,
    ) -> Result<()> {
        let Some(values) = join_values(on, document)? else {
            return self.merge_new(merge, writer, collection, document);
        };
        let equals =
            |(field, value): (&String, &Bson)| (field.clone(), doc! { "$eq": value }.into());
        let matcher = Arc::new(Matcher::parse(&values.iter().map(equals).collect())?);
        let combine = |found: &Found| {
            let before = repeated_fields::parse(&found.document)?;
            let after = self.combine(merge, &before, document)?;
            Ok(after.map(|after| (before, after)))
        };
        let (mut aside, mut lost): (Option<(Found, _)>, _) = (None, 0);
        loop {
            let Some(found) = self.find(writer, collection, &matcher)? else {
                return self.merge_new(merge, writer, collection, document);
            };
            if matches!(merge.when_matched, WhenMatched::Fail) {
                return Err(matched(values));
            }
            let versions = match aside.take() {
                Some((seen, versions)) if seen.document.as_bytes() == found.document.as_bytes() => {
                    versions
                }
                _ if lost == MAX_LOST_EVALUATIONS => combine(&found)?,
                _ => {
                    let (versions, lock_was_free) = writer.evaluate(|| combine(&found))?;
                    if lock_was_free {
                        *collection = writer.collection_or_create(&collection.namespace)?;
                        (aside, lost) = (Some((found, versions)), lost + 1);
                        continue;
                    }
                    versions
                }
            };
            let Some(versions) = versions else { return Ok(()) };
            return self.merge_into(&merge.when_matched, writer, collection, (&found, versions));
        }
    }

    /// The document of the target that a new one meets.
    fn find(
        &self,
        writer: &Writer<'_>,
        collection: &Arc<Collection>,
        matcher: &Arc<Matcher>,
    ) -> Result<Option<Found>> {
        let (view, interrupt) = (writer.view().clone(), self.request.interrupt.clone());
        let (collection, matcher) = (Arc::clone(collection), Arc::clone(matcher));
        Selection::new(collection, view, matcher, interrupt).run()?.next().transpose()
    }

    /// What the two documents make together; none if the one that is there stays.
    fn combine(
        &self,
        merge: &Merge,
        before: &Document,
        new: &Document,
    ) -> Result<Option<Document>> {
        let environment: Arc<dyn Environment> = Arc::new(self.reading.clone());
        let variables = match merge.when_matched {
            // Its own meter: that of the command must not take an evaluation that gave way for its end.
            WhenMatched::Pipeline(_) => {
                let interrupt = Arc::new(self.request.interrupt.clone());
                let memory = Arc::clone(self.request.node.memory());
                let meter = Meter::of_operation(interrupt, memory);
                Cow::Owned(self.variables.clone().with_meter(meter))
            }
            _ => Cow::Borrowed(self.variables),
        };
        Ok(merge.combine(before, new, &environment, &variables)?)
    }

    /// Replaces the document that was found by what came of both.
    fn merge_into(
        &self,
        when_matched: &WhenMatched,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        (found, (before, after)): (&Found, (Document, Document)),
    ) -> Result<()> {
        let after = keep_id(&before, after)?;
        let old = &found.document;
        let (raw, told_as) = match when_matched {
            WhenMatched::Replace => (with_timestamps(writer, to_raw(&after)?), ToldAs::Replacement),
            _ => {
                let told_as = ToldAs::ShortestDifference;
                (rewrite(old, (&before, &after), &told_as)?, told_as)
            }
        };
        if raw.as_bytes() == old.as_bytes() {
            return Ok(());
        }
        writer.replace(collection, found.record, old, raw, (&told_as).into(), self.bypass)
    }

    /// What becomes of a document that meets no other one.
    fn merge_new(
        &self,
        merge: &Merge,
        writer: &mut Writer<'_>,
        collection: &mut Arc<Collection>,
        document: &Document,
    ) -> Result<()> {
        match merge.when_not_matched {
            WhenNotMatched::Discard => Ok(()),
            WhenNotMatched::Fail => Err(fail!(
                13113,
                "$merge could not find a matching document in the target collection"
            )),
            WhenNotMatched::Insert => {
                let raw = to_raw(document)?;
                // The others are updates that insert, which leave empty timestamps as they are.
                let raw = match merge.when_matched {
                    WhenMatched::Fail | WhenMatched::Replace => with_timestamps(writer, raw),
                    _ => raw,
                };
                writer.without_waiting(|writer| {
                    let results = writer.insert(collection, vec![raw], true, self.bypass)?;
                    results.into_iter().collect()
                })
            }
        }
    }
}

/// What a document has in the fields of `on`. None if it has yet to get an `_id`: then it meets no other one.
fn join_values(on: &[Path], document: &Document) -> Result<Option<Document>> {
    let (mut values, mut gets_id) = (Document::new(), false);
    for path in on {
        match path.get(DocumentRef::Parsed(document)) {
            None if path.as_str() == "_id" => gets_id = true,
            None | Some(ValueRef::Null | ValueRef::Undefined) => refuse!(
                51132,
                "$merge write error: 'on' field '{path}' cannot be missing, null or undefined; leave such \
                 documents out with $match"
            ),
            Some(ValueRef::Array(_)) => refuse!(
                51185,
                "$merge write error: 'on' field '{path}' cannot be an array; leave such documents out with \
                 $match"
            ),
            Some(value) => {
                values.insert(path.as_str(), value.to_bson());
            }
        }
    }
    Ok((!gets_id).then_some(values))
}

/// Gives a document the `_id` of the one that it replaces, as its first field; another is refused.
fn keep_id(before: &Document, mut after: Document) -> Result<Document> {
    let Some(id) = before.get("_id") else { return Ok(after) };
    let is_altered = after.get("_id").is_some_and(|made| !equal(made, id));
    refuse_if!(is_altered => IMMUTABLE_FIELD,
        "$merge would modify the immutable field '_id' of the document that it found; leave '_id' out with \
         $unset");
    if after.keys().next().is_some_and(|first| first == "_id") {
        after.insert("_id", id.clone());
        return Ok(after);
    }
    after.remove("_id");
    let mut with_id = doc! { "_id": id.clone() };
    with_id.extend(after);
    Ok(with_id)
}

/// The refusal of a document that is there already.
fn matched(values: Document) -> CommandError {
    let mut error =
        fail!(DUPLICATE_KEY, "$merge failed due to a duplicate key: whenMatched is 'fail'");
    let pattern = values.keys().map(|field| (field.clone(), Bson::Int32(1)));
    error.details.insert("keyPattern", pattern.collect::<Document>());
    error.details.insert("keyValue", values);
    error
}

/// The fields of `on` must be those of a unique index, so that at most one document is met.
fn check_merge_key(merge: &Merge, collection: &Collection) -> Result<()> {
    let covered = collection.indexes.iter().any(|index| {
        let names: Vec<_> = index.paths.iter().map(|path| path.as_str()).collect();
        index.unique
            && index.partial.is_none()
            && names.len() == merge.on.len()
            && merge.on.iter().all(|field| names.contains(&field.as_str()))
    });
    if covered {
        return Ok(());
    }
    Err(fail!(51183, "Cannot find index to verify that join fields will be unique"))
}

/// Puts a collection in place of the target, which is as it was.
fn put_in_place(
    writer: &mut Writer<'_>,
    side: &Namespace,
    target: &Namespace,
    seen: &Document,
) -> Result<()> {
    let current = writer.unused_collection(target)?;
    if described(current.as_deref()) != *seen {
        refuse!(
            28768,
            "options or indexes of the target collection {target} changed while $out was running; run it again"
        );
    }
    let filled = writer.collection(side).ok_or_else(|| {
        fail!(NAMESPACE_NOT_FOUND, "{side}, which $out filled, was dropped; run it again")
    })?;
    writer.rename_collection(&filled, target)
}

fn described(collection: Option<&Collection>) -> Document {
    collection.map(takes_back::description).unwrap_or_default()
}

impl Writer<'_> {
    /// Drops what `$out` left behind when its process ended, or its primary stepped down.
    pub(crate) fn drop_side_collections(&mut self) -> Result<()> {
        let is_number =
            |rest: &str| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_side = |known: &&Arc<Collection>| {
            known.namespace.collection.strip_prefix(SIDE).is_some_and(is_number)
        };
        let catalog = self.node().catalog();
        for collection in catalog.collections().filter(is_side) {
            self.drop_collection(collection)?;
        }
        Ok(())
    }
}
