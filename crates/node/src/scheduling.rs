//! Which commands keep others waiting, decided by what they will do.
//!
//! A command runs on a thread that many clients share as long as it is short. Reads begin there and are
//! run again aside once they have looked at [`Context::may_look_at`](crate::Context::may_look_at)
//! documents, or have evaluated expressions for long. Writes and statements of transactions are asked before they
//! begin, as they cannot be run twice: one that looks its documents up by key is short, one that scans for them
//! is long, and so is one with an expression that repeats others.

use std::sync::atomic::{AtomicUsize, Ordering};

use bson::{Bson, Document, RawBsonRef, RawDocument};
use quorate_query::matcher::Matcher;
use quorate_wire::find_field;

use crate::command_table::Effect;
use crate::context::Command;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::plan::{self, Question};
use crate::select::is_plain_id;
use crate::structure::{Depth, check_document_bytes};

/// Counts a long write until it is dropped.
pub(crate) struct LongWrite<'n>(&'n AtomicUsize);

impl<'n> LongWrite<'n> {
    pub(crate) fn begin(running: &'n AtomicUsize) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        Self(running)
    }
}

impl Drop for LongWrite<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node {
    /// Whether a command is known to take long before it begins.
    pub fn is_long(&self, command: &Command) -> bool {
        let Some(facts) = command.facts() else { return false };
        if command.is_wide() {
            return true;
        }
        if facts.scans {
            // A consumer that has seen everything asks again and again.
            let cursor = command.body.get_i64("getMore").ok();
            return !cursor.is_some_and(|cursor| self.is_quiet_stream(cursor));
        }
        match facts.effect {
            // It would wait for the write lock as long as a long write holds it.
            Effect::Writes => {
                self.has_long_writes()
                    || self.scans_to_write(command)
                    || repeats(command)
                    || self.validates_for_long(command)
            }
            Effect::Reads if command.body.contains_key("autocommit") => {
                self.scans_to_read(command) || repeats(command)
            }
            Effect::Reads | Effect::Inspects => false,
        }
    }

    /// Whether the rules of the collection that a command writes to may take long.
    fn validates_for_long(&self, command: &Command) -> bool {
        let catalog = self.catalog();
        if !catalog.has_costly_rules() {
            return false;
        }
        let Some(name) = command.body.get_text(command.name()) else { return false };
        let Ok(namespace) = Namespace::new(command.database(), name) else { return false };
        let collection = catalog.get(&namespace);
        collection.and_then(|found| found.validator.as_ref()).is_some_and(|rules| rules.is_costly)
    }

    /// Whether a read goes through documents that it does not name.
    fn scans_to_read(&self, command: &Command) -> bool {
        match command.body.get("filter") {
            Some(Bson::Document(filter)) if is_by_id(filter.get("_id")) => false,
            Some(Bson::Document(filter)) => !self.plans_points(command, filter),
            _ => true,
        }
    }

    /// Whether a write scans for the documents that it changes.
    fn scans_to_write(&self, command: &Command) -> bool {
        let statements = || command.sequences.iter().flat_map(|(_, statements)| statements);
        match command.facts().map_or("", |facts| facts.name) {
            "update" | "delete" => statements().any(|statement| {
                let query = find_field(statement, "q").and_then(|query| query.document());
                query.is_some_and(|query| !self.names_documents(command, query))
            }),
            "findAndModify" => match command.body.get("query") {
                Some(Bson::Document(query)) if is_by_id(query.get("_id")) => false,
                Some(Bson::Document(query)) => !self.plans_points(command, query),
                _ => true,
            },
            _ => false,
        }
    }

    fn names_documents(&self, command: &Command, query: &RawDocument) -> bool {
        if is_plain_id(query) {
            return true;
        }
        // A statement is not checked yet, and reading recurses. One that is refused is refused soon.
        if check_document_bytes(query.as_bytes(), Depth::COMMAND).is_err() {
            return true;
        }
        let by_id = match query.get("_id") {
            Ok(Some(RawBsonRef::Document(id))) => !is_operator(
                id.iter().next().and_then(|first| first.ok().map(|(name, _)| name.as_str())),
            ),
            Ok(Some(RawBsonRef::RegularExpression(_))) | Ok(None) | Err(_) => false,
            Ok(Some(_)) => true,
        };
        by_id || Document::try_from(query).is_ok_and(|query| self.plans_points(command, &query))
    }

    /// Whether the planner looks the documents up by whole keys. A query that cannot be read fails soon.
    fn plans_points(&self, command: &Command, query: &Document) -> bool {
        let named = command.body.get(command.name()).and_then(Bson::as_str);
        let namespace = named.and_then(|name| Namespace::new(command.database(), name).ok());
        let Some(namespace) = namespace else { return true };
        let catalog = self.catalog();
        let Some(collection) = catalog.get(&namespace) else { return true };
        let Ok(matcher) = Matcher::parse(query) else { return false };
        let question = Question {
            collection,
            matcher: &matcher,
            sort: None,
            hint: None,
            min: None,
            max: None,
        };
        plan::choose(&question).is_ok_and(|plan| plan.is_point())
    }
}

/// Whether a command has an expression that evaluates another for each element of an array: then what it costs is not in
/// proportion to what it reads.
fn repeats(command: &Command) -> bool {
    // What is inserted is not evaluated.
    if command.name() == "insert" {
        return false;
    }
    let documents = command.sequences.iter().flat_map(|(_, documents)| documents);
    let mut parts = documents.map(|document| document.as_bytes()).chain([command.body.bytes()]);
    parts.any(has_repetition)
}

/// Whether there is the name of such an expression among these bytes of BSON.
pub(crate) fn has_repetition(bytes: &[u8]) -> bool {
    const REPEATING: [&[u8]; 3] = [b"$map\0", b"$filter\0", b"$reduce\0"];
    let is_there = |place: usize| REPEATING.iter().any(|name| bytes[place..].starts_with(name));
    memchr::memchr_iter(b'$', bytes).any(is_there)
}

/// Whether a query for this `_id` names one document.
fn is_by_id(id: Option<&Bson>) -> bool {
    match id {
        Some(Bson::Document(id)) => !is_operator(id.keys().next().map(String::as_str)),
        Some(Bson::RegularExpression(_)) | None => false,
        Some(_) => true,
    }
}

fn is_operator(name: Option<&str>) -> bool {
    name.is_some_and(|name| name.starts_with('$'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_dollar_is_found_wherever_it_is() {
        for filler in [0, b'#', b'$', b'%', 0x80, 0xa4, 0xff] {
            for length in 0..40 {
                for place in 0..length {
                    let mut bytes = vec![filler; length];
                    assert!(!has_repetition(&bytes));
                    bytes.splice(place..place, *b"$map\0");
                    assert!(has_repetition(&bytes), "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn expressions_that_repeat_others_are_found_by_their_names() {
        let holds = |name: &str| {
            let document = bson::doc! { "a": "$mapped", "b": { name: 1 }, "c": 5 };
            has_repetition(bson::RawDocumentBuf::try_from(&document).unwrap().as_bytes())
        };
        assert!(["$map", "$filter", "$reduce"].into_iter().all(holds));
        assert!(!["$mapped", "map", "$$map2", "$add"].into_iter().any(holds));
    }
}
