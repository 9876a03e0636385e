//! Replaying the events of a random history into an empty database rebuilds the data, the order of
//! keys included.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::collections::BTreeMap;

use bson::{Bson, DateTime, Document, Timestamp, doc};
use proptest::prelude::*;
use quorate_change_events::{Event, NoImages, Options, ResumeToken, events};
use quorate_query::diff::{OplogUpdate, oplog_update};
use quorate_query::{Update, UpdateContext};

fn value() -> impl Strategy<Value = Bson> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(Bson::from),
        Just(Bson::Null),
        "[a-c]{0,3}".prop_map(Bson::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Bson::from),
            fields(inner).prop_map(Bson::from),
        ]
    })
}

fn fields(values: impl Strategy<Value = Bson>) -> impl Strategy<Value = Document> {
    let name = prop_oneof!["[a-c]", Just("0".to_owned()), Just("1".to_owned())];
    prop::collection::vec((name, values), 0..4).prop_map(|fields| fields.into_iter().collect())
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof!["[a-c]", Just("0".to_owned()), Just("1".to_owned())], 1..4)
        .prop_map(|parts| parts.join("."))
}

fn operators() -> impl Strategy<Value = Document> {
    let one = prop_oneof![
        (path(), value()).prop_map(|(path, value)| ("$set", path, value)),
        path().prop_map(|path| ("$unset", path, Bson::from(1))),
        (path(), value()).prop_map(|(path, value)| ("$push", path, value)),
        path().prop_map(|path| ("$pop", path, Bson::from(-1))),
        path().prop_map(|path| ("$inc", path, Bson::from(1))),
        (path(), path()).prop_map(|(path, to)| ("$rename", path, Bson::from(to))),
    ];
    prop::collection::vec(one, 1..4).prop_map(|parts| {
        let mut update = Document::new();
        for (operator, path, argument) in parts {
            let entry = update.entry(operator.to_owned()).or_insert(Bson::from(Document::new()));
            if let Bson::Document(arguments) = entry {
                arguments.insert(path, argument);
            }
        }
        update
    })
}

#[derive(Debug, Clone)]
enum Step {
    Insert(i32, Document),
    Change(i32, Document),
    Delete(i32),
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..3_i32;
    prop_oneof![
        (id.clone(), fields(value())).prop_map(|(id, fields)| Step::Insert(id, fields)),
        (id.clone(), prop_oneof![operators(), fields(value())])
            .prop_map(|(id, update)| Step::Change(id, update)),
        id.prop_map(Step::Delete),
    ]
}

/// The entry that a member would log, if the step changes anything.
fn log(data: &mut BTreeMap<i32, Document>, step: Step, time: u32) -> Option<Document> {
    let (op, id, object) = match step {
        Step::Insert(id, fields) if !data.contains_key(&id) => {
            let mut document = doc! { "_id": id };
            document.extend(fields);
            data.insert(id, document.clone());
            ("i", id, document)
        }
        Step::Change(id, update) => {
            let before = data.get(&id)?.clone();
            let update = Update::parse(&update.into()).ok()?;
            let context =
                UpdateContext::new(DateTime::from_millis(0), Timestamp { time: 1, increment: 1 });
            let change = update.change(&before, &context).ok()??;
            let told = oplog_update(&before, &change.after, &change.told_as);
            let OplogUpdate::Entry(object) = told else { return None };
            data.insert(id, change.after);
            ("u", id, object)
        }
        Step::Delete(id) => {
            data.remove(&id)?;
            ("d", id, doc! { "_id": id })
        }
        Step::Insert(..) => return None,
    };
    Some(doc! {
        "op": op, "ns": "d.c", "o": object, "o2": { "_id": id },
        "ts": Timestamp { time, increment: 1 }, "wall": DateTime::from_millis(0),
    })
}

fn replay(data: &mut BTreeMap<i32, Document>, event: &Event) {
    let event = &event.document;
    let id = event.get_document("documentKey").unwrap().get_i32("_id").unwrap();
    match event.get_str("operationType").unwrap() {
        "insert" | "replace" => {
            data.insert(id, event.get_document("fullDocument").unwrap().clone());
        }
        "delete" => {
            data.remove(&id);
        }
        "update" => {
            let told = event.get_document("updateDescription").unwrap();
            describe(data.get_mut(&id).unwrap(), told);
        }
        other => panic!("{other}"),
    }
}

fn describe(document: &mut Document, told: &Document) {
    let exact = told.get_document("disambiguatedPaths").unwrap();
    let steps = |dotted: &str| match exact.get_array(dotted) {
        Ok(steps) => steps.clone(),
        Err(_) => dotted.split('.').map(Bson::from).collect(),
    };
    let mut root = Bson::Document(std::mem::take(document));
    for truncated in told.get_array("truncatedArrays").unwrap() {
        let truncated = truncated.as_document().unwrap();
        let array = reach(&mut root, &steps(truncated.get_str("field").unwrap()));
        let size = truncated.get_i32("newSize").unwrap() as usize;
        array.unwrap().as_array_mut().unwrap().truncate(size);
    }
    for removed in told.get_array("removedFields").unwrap() {
        let steps = steps(removed.as_str().unwrap());
        let (last, parents) = steps.split_last().unwrap();
        let parent = reach(&mut root, parents).unwrap().as_document_mut().unwrap();
        parent.remove(last.as_str().unwrap());
    }
    for (dotted, value) in told.get_document("updatedFields").unwrap() {
        let steps = steps(dotted);
        let (last, parents) = steps.split_last().unwrap();
        match reach(&mut root, parents).unwrap() {
            Bson::Document(parent) => {
                parent.insert(last.as_str().unwrap(), value.clone());
            }
            Bson::Array(parent) => {
                let index = place(last).unwrap();
                if parent.len() <= index {
                    parent.resize(index + 1, Bson::Null);
                }
                parent[index] = value.clone();
            }
            other => panic!("{other}"),
        }
    }
    *document = root.as_document().unwrap().clone();
}

fn place(step: &Bson) -> Option<usize> {
    match step {
        Bson::Int32(index) => usize::try_from(*index).ok(),
        Bson::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn reach<'a>(mut value: &'a mut Bson, steps: &[Bson]) -> Option<&'a mut Bson> {
    for step in steps {
        value = match value {
            Bson::Document(document) => document.get_mut(step.as_str()?)?,
            Bson::Array(elements) => elements.get_mut(place(step)?)?,
            _ => return None,
        };
    }
    Some(value)
}

proptest! {
    #[test]
    fn events_rebuild_the_data(steps in prop::collection::vec(step(), 0..24)) {
        let options = Options { show_expanded_events: true, ..Options::default() };
        let (mut data, mut rebuilt) = (BTreeMap::new(), BTreeMap::new());
        let mut last = String::new();
        for (time, step) in steps.into_iter().enumerate() {
            let Some(entry) = log(&mut data, step, time as u32 + 1) else { continue };
            for event in events(&entry, &NoImages, &options).unwrap() {
                replay(&mut rebuilt, &event);
                let token = event.token.to_hex();
                prop_assert!(last < token, "{} {}", last, token);
                prop_assert_eq!(ResumeToken::from_hex(&token), Ok(event.token.clone()));
                last = token;
            }
            let bytes = |data: &BTreeMap<i32, Document>| {
                data.values().map(|document| document.to_vec().unwrap()).collect::<Vec<_>>()
            };
            prop_assert_eq!(bytes(&data), bytes(&rebuilt), "{}", entry);
        }
    }

    #[test]
    fn tokens_of_any_identifier_are_read_back(id in value(), index in 0..1_000_000_i64) {
        let identifier = doc! { "operationType": "insert", "documentKey": { "_id": id } };
        let time = Timestamp { time: 5, increment: 6 };
        let token = ResumeToken::event(time, index, Some([7; 16]), identifier);
        prop_assert_eq!(ResumeToken::from_hex(&token.to_hex()), Ok(token));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = ResumeToken::from_bytes(&bytes);
    }
}
