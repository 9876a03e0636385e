//! What is worked out on bytes is what [`Update`] makes of parsed documents.

use crate::properties::{document, field, value};
use crate::support::context;
use bson::raw::{CString, cstr};
use bson::{Bson, Document, RawBson, RawDocument, RawDocumentBuf, doc, rawdoc};
use proptest::prelude::*;
use quorate_query::diff::{
    OplogUpdate, Told, ToldAs, apply_oplog_update, changed_fields, oplog_update, told,
};
use quorate_query::{Part, PlainChange, PlainDelta, PlainUpdate, Update, UpdateContext};

/// What [`Update`] makes of a document; none if a field is there twice, in which case there is no answer here.
fn by_parsing(
    update: &Update,
    before: &RawDocument,
    context: &UpdateContext,
) -> Option<Result<PlainChange, String>> {
    let whole = Document::try_from(before).unwrap();
    if RawDocumentBuf::try_from(&whole).unwrap().as_bytes() != before.as_bytes() {
        return None;
    }
    let change = match update.change(&whole, context) {
        Err(error) => return Some(Err(error.to_string())),
        Ok(None) => return Some(Ok(PlainChange::Unchanged)),
        Ok(Some(change)) => change,
    };
    let after = match update.touched_fields() {
        Some(fields) => {
            let part = Part::read(before, &fields).unwrap();
            let of_part = update.change(part.before(), context).unwrap().unwrap();
            part.changed_to(&of_part.after).unwrap()
        }
        None => RawDocumentBuf::try_from(&change.after).unwrap(),
    };
    let delta = match told(&whole, &change.after, &change.told_as) {
        Told::Nothing => panic!("a change must be told"),
        Told::Whole => None,
        Told::Delta(delta) => Some(RawDocumentBuf::try_from(&delta).unwrap()),
    };
    Some(Ok(PlainChange::Changed { after, delta }))
}

/// What bytes alone give, after it was compared with what parsing gives. None if the update is not plain.
fn checked(update: &RawDocument, before: &RawDocument) -> Option<PlainChange> {
    let plain = PlainUpdate::parse(update)?;
    let context = context();
    let change = plain.change(before, &context);
    let untold = plain.change(before, &UpdateContext { tells_delta: false, ..context });
    match &change {
        PlainChange::Changed { after, .. } => {
            assert_eq!(untold, PlainChange::Changed { after: after.clone(), delta: None });
        }
        other => assert_eq!(untold, *other),
    }
    let parsed = Update::parse(&Bson::Document(Document::try_from(update).unwrap()));
    let general = parsed.expect("what is plain can be read");
    assert_eq!(plain.is_replacement(), general.is_replacement());
    for name in ["a", "b", "c", "0"] {
        let touched = general.touched_fields();
        let touches = touched.is_none_or(|fields| fields.iter().any(|field| field == name));
        assert_eq!(plain.touches(name), touches, "{name}");
    }
    let expected = by_parsing(&plain.general().unwrap(), before, &context);
    match (&change, expected) {
        (PlainChange::Unusual, _) | (_, None) => {}
        (found, Some(expected)) => assert_eq!(Ok(found), expected.as_ref(), "{update:?}"),
    }
    Some(change)
}

fn is_changed(update: &RawDocument, before: &RawDocument) -> bool {
    matches!(checked(update, before), Some(PlainChange::Changed { .. }))
}

fn operator() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "$set", "$set", "$unset", "$inc", "$mul", "$min", "$max", "$setOnInsert", "$currentDate",
        "$push",
    ])
}

fn path() -> impl Strategy<Value = String> {
    let last = prop_oneof![
        12 => field(), 1 => Just("$".to_owned()), 1 => Just(String::new()),
        1 => Just("_id".to_owned())
    ];
    (prop::collection::vec(field(), 0..3), last).prop_map(|(mut parts, last)| {
        parts.push(last);
        parts.join(".")
    })
}

/// Fields in any order, some of them twice.
fn raw(fields: Vec<(String, Bson)>) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    for (name, value) in fields {
        document.append(CString::try_from(name).unwrap(), RawBson::try_from(value).unwrap());
    }
    document
}

fn fields() -> impl Strategy<Value = Vec<(String, Bson)>> {
    prop::collection::vec((field(), value()), 0..5)
}

/// What a delta makes of bytes, after it was compared with what it makes of the parsed document.
fn delta_applied(entry: &Document, document: &Document) -> bool {
    let (raw, entry_raw) = [document, entry].map(|of| RawDocumentBuf::try_from(of).unwrap()).into();
    let Some(delta) = PlainDelta::read(&entry_raw) else { return false };
    for name in ["a", "b", "c", "0", "1"] {
        let fields = changed_fields(entry).unwrap();
        assert_eq!(delta.touches(name), fields.contains(&name), "{name} of {entry}");
    }
    let Some(after) = delta.apply(&raw) else { return false };
    let expected = apply_oplog_update(document, entry).unwrap();
    let expected = RawDocumentBuf::try_from(&expected).unwrap();
    assert_eq!(after.as_bytes(), expected.as_bytes(), "{entry} of {document}");
    true
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 4096, ..ProptestConfig::default()
    })]

    #[test]
    fn operators_make_the_same_of_bytes_and_of_documents(
        parts in prop::collection::vec(
            (operator(), prop::collection::vec((path(), value()), 0..4)), 1..3,
        ),
        before in document(),
    ) {
        let mut update = RawDocumentBuf::new();
        for (operator, arguments) in parts {
            update.append(CString::try_from(operator).unwrap(), raw(arguments));
        }
        let mut with_id = doc! { "_id": 1 };
        with_id.extend(before);
        checked(&update, &RawDocumentBuf::try_from(&with_id).unwrap());
    }

    #[test]
    fn replacements_make_the_same_of_bytes_and_of_documents(
        update in fields(), id in 0..4, before in document(),
    ) {
        let mut update = raw(update);
        // The same `_id`, another one, or one of another type, after the other fields.
        match id {
            0 => {}
            1 => update.append(cstr!("_id"), 1.0),
            other => update.append(cstr!("_id"), other - 1),
        }
        let mut with_id = doc! { "_id": 1 };
        with_id.extend(before);
        checked(&update, &RawDocumentBuf::try_from(&with_id).unwrap());
    }

    #[test]
    fn deltas_make_the_same_of_bytes_and_of_documents(
        before in document(), after in document(), other in document(),
    ) {
        let entry = oplog_update(&before, &after, &ToldAs::ShortestDifference);
        if let OplogUpdate::Entry(entry) = entry {
            delta_applied(&entry, &before);
            delta_applied(&entry, &other);
        }
    }

    #[test]
    fn any_bytes_may_be_given_as_a_delta(entry in document(), diff in document(), before in document()) {
        let mut with_diff = doc! { "$v": 2, "diff": diff };
        with_diff.extend(entry);
        for entry in [&with_diff, &before] {
            let raw = RawDocumentBuf::try_from(entry).unwrap();
            let before = RawDocumentBuf::try_from(&before).unwrap();
            PlainDelta::read(&raw).and_then(|delta| delta.apply(&before));
        }
    }

    /// Nothing is lost of a document that has a field twice.
    #[test]
    fn fields_that_are_there_twice_are_left_to_parsing(
        before in fields(), name in field(), value in value(),
    ) {
        let is_twice = before.iter().filter(|(known, _)| *known == name).count() > 1;
        let update = raw(vec![("$set".to_owned(), Bson::from(doc! { &name: value }))]);
        let before = raw(before);
        if let PlainChange::Changed { after, .. } = checked(&update, &before).unwrap_or(PlainChange::Unusual) {
            prop_assert!(!is_twice);
            let others = |of: &RawDocument| -> Vec<(String, RawBson)> {
                let all = of.iter().map(Result::unwrap);
                let others = all.filter(|(known, _)| known.as_str() != name);
                others.map(|(name, value)| (name.as_str().to_owned(), value.into())).collect()
            };
            let both = [&before, &after].map(|of| format!("{:?}", others(of)));
            prop_assert_eq!(&both[0], &both[1]);
        }
    }
}

#[test]
fn usual_updates_are_worked_out_on_bytes() {
    let before = rawdoc! {
        "_id": "x", "n": 1, "d": 1.5, "t": "text", "s": { "n": 1_i64, "deep": { "x": 1 } },
        "l": [1, { "a": 2 }],
    };
    for update in [
        rawdoc! { "$set": { "t": "other" } },
        rawdoc! { "$set": { "s.deep.x": "other", "s.new.far": [1, 2] }, "$inc": { "n": 1 } },
        rawdoc! { "$inc": { "n": 1, "s.n": 2, "d": 0.5 }, "$unset": { "t": "" } },
        rawdoc! { "$mul": { "n": 3, "none": 2.0 } },
        rawdoc! { "$max": { "n": 5 }, "$min": { "d": 1, "l": 3 } },
        rawdoc! { "$currentDate": { "at": true }, "$setOnInsert": { "made": 1 } },
        rawdoc! { "$set": { "l": [], "s": { "whole": true } } },
        rawdoc! { "t": "a replacement", "_id": "x" },
        rawdoc! {},
    ] {
        assert!(is_changed(&update, &before), "{update:?}");
    }
    for update in [
        rawdoc! { "$set": { "t": "text", "l": [1, { "a": 2 }] }, "$min": { "n": 2 } },
        rawdoc! { "$unset": { "none": 1, "none2.x": 1 }, "$setOnInsert": { "q": 1 } },
        rawdoc! { "$set": {} },
    ] {
        assert_eq!(checked(&update, &before), Some(PlainChange::Unchanged), "{update:?}");
    }
}

#[test]
fn usual_deltas_are_applied_to_bytes() {
    let before = doc! { "_id": 1, "a": 1, "b": { "c": 1, "d": 2 }, "l": [1], "e": 5 };
    for diff in [
        doc! { "u": { "a": 2 } },
        doc! { "d": { "e": false, "none": false }, "u": { "l": [] }, "i": { "x": 1, "y": {} } },
        doc! { "sb": { "d": { "c": false }, "i": { "x": 1 } }, "u": { "e": "text" } },
    ] {
        assert!(delta_applied(&doc! { "$v": 2, "diff": &diff }, &before), "{diff}");
    }
    for diff in [
        doc! { "u": { "none": 1 } },
        doc! { "i": { "a": 1 } },
        doc! { "u": { "a": 1 }, "i": { "a": 1 } },
        doc! { "sa": { "u": { "x": 1 } } },
        doc! { "snone": { "u": { "x": 1 } } },
        doc! { "sl": { "a": true, "u0": 2 } },
        doc! { "sb": { "a": true, "u0": 2 } },
        doc! { "x": { "a": true } },
    ] {
        let entry = RawDocumentBuf::try_from(&doc! { "$v": 2, "diff": &diff }).unwrap();
        let applied = PlainDelta::read(&entry)
            .and_then(|delta| delta.apply(&RawDocumentBuf::try_from(&before).unwrap()));
        assert_eq!(applied, None, "{diff}");
    }
    let twice = raw(vec![("a".to_owned(), 1.into()), ("a".to_owned(), 2.into())]);
    let entry = rawdoc! { "$v": 2, "diff": { "u": { "a": 3 } } };
    assert_eq!(PlainDelta::read(&entry).unwrap().apply(&twice), None);
    for entry in [
        rawdoc! { "$v": 1, "diff": { "u": { "a": 2 } } },
        rawdoc! { "$v": 2, "diff": { "u": { "a": 2 } }, "x": 1 },
        rawdoc! { "$v": 2 },
        rawdoc! { "_id": 1 },
    ] {
        assert!(PlainDelta::read(&entry).is_none(), "{entry:?}");
    }
}

#[test]
fn what_is_not_usual_is_left_to_parsing() {
    let before = rawdoc! {
        "_id": 1, "n": i64::MAX, "t": "text", "l": [1], "m": RawBson::MinKey,
        "dec": "1.50".parse::<bson::Decimal128>().unwrap(),
    };
    for update in [
        rawdoc! { "$inc": { "n": 1 } },
        rawdoc! { "$inc": { "t": 1 } },
        rawdoc! { "$inc": { "dec": 1 } },
        rawdoc! { "$set": { "t.x": 1 } },
        rawdoc! { "$set": { "l.0": 1 } },
        rawdoc! { "$set": { "m": 1 } },
        rawdoc! { "a": 1 },
    ] {
        assert_eq!(checked(&update, &before), Some(PlainChange::Unusual), "{update:?}");
    }
    let empty = bson::Timestamp { time: 0, increment: 0 };
    for update in [rawdoc! { "_id": 2, "a": 1 }, rawdoc! { "a": empty }] {
        let before = rawdoc! { "_id": 1, "a": 1 };
        assert_eq!(checked(&update, &before), Some(PlainChange::Unusual), "{update:?}");
    }
    let both = raw(vec![("a".to_owned(), doc! {}.into()), ("a".to_owned(), doc! {}.into())]);
    let update = rawdoc! { "$set": { "a.b": 1 } };
    assert_eq!(checked(&update, &both), Some(PlainChange::Unusual), "a field that is there twice");
    let twice = raw(vec![("a".to_owned(), 1.into()), ("a".to_owned(), 2.into())]);
    let mut of_operators = RawDocumentBuf::new();
    of_operators.append(cstr!("$set"), rawdoc! { "a": 1 });
    of_operators.append(cstr!("$set"), rawdoc! { "b": 1 });
    for update in [
        rawdoc! { "$set": { "_id": 1 } },
        rawdoc! { "$set": { "a.$": 1 } },
        rawdoc! { "$set": { "a": 1, "a.b": 1 } },
        rawdoc! { "$set": { "a": 1 }, "$inc": { "a": 1 } },
        rawdoc! { "$set": { "a": { "x": twice.clone() } } },
        rawdoc! { "$set": { "a.1": 1, "a.10": 1 } },
        rawdoc! { "$set": 1 },
        rawdoc! { "$set": { "a": RawBson::MaxKey } },
        rawdoc! { "$push": { "a": 1 } },
        rawdoc! { "$inc": { "a": "1" } },
        rawdoc! { "$inc": { "a": "1.50".parse::<bson::Decimal128>().unwrap() } },
        rawdoc! { "$currentDate": { "a": { "$type": "date" } } },
        rawdoc! { "a": 1, "$set": { "b": 1 } },
        of_operators,
        twice,
    ] {
        assert_eq!(checked(&update, &before), None, "{update:?}");
    }
}
