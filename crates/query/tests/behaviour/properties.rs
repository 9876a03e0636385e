//! Properties that hold for any documents, queries and updates.

use crate::support::{assert_same, context};
use bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};
use proptest::prelude::*;
use quorate_query::diff::{
    OplogUpdate, ToldAs, apply_oplog_update, apply_to_part, changed_fields, oplog_update, told,
};
use quorate_query::value::{compare, equal};
use quorate_query::{Matcher, Part, Projection, SortPattern, Update};

fn scalar() -> impl Strategy<Value = Bson> {
    prop_oneof![
        (-3i32..4).prop_map(Bson::Int32),
        (-3i64..4).prop_map(Bson::Int64),
        (-6i32..7).prop_map(|n| Bson::Double(f64::from(n) / 2.0)),
        Just(Bson::Double(f64::NAN)),
        (-3i32..4).prop_map(|n| Bson::Decimal128(format!("{n}.5").parse().unwrap())),
        "[ab$]{0,2}".prop_map(Bson::String),
        Just(Bson::Null),
        any::<bool>().prop_map(Bson::Boolean),
        Just(Bson::MinKey),
        (0i64..3).prop_map(|n| Bson::DateTime(bson::DateTime::from_millis(n))),
    ]
}

pub(crate) fn field() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[ab]", 1 => "[c012]"]
}

pub(crate) fn value() -> impl Strategy<Value = Bson> {
    scalar().prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Bson::Array),
            prop::collection::vec((field(), inner), 0..4)
                .prop_map(|fields| Bson::Document(fields.into_iter().collect())),
        ]
    })
}

pub(crate) fn document() -> impl Strategy<Value = Document> {
    prop::collection::vec((field(), value()), 0..4).prop_map(|fields| fields.into_iter().collect())
}

/// Mostly few paths, so that queries, documents and indexes meet.
fn path() -> impl Strategy<Value = String> {
    let usual = vec!["a", "b", "a.a", "a.b", "a.0", "a.b.c", "b.0.a"];
    prop_oneof![
        4 => prop::sample::select(usual).prop_map(str::to_owned),
        1 => prop::collection::vec(field(), 1..4).prop_map(|parts| parts.join(".")),
    ]
}

fn update_path() -> impl Strategy<Value = String> {
    let part = prop_oneof![6 => field(), 1 => Just("$".to_owned()), 1 => Just("$[]".to_owned())];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("."))
}

/// Anything that looks like a query, well-formed or not.
fn query() -> impl Strategy<Value = Document> {
    let operator = prop::sample::select(vec![
        "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$not", "$exists", "$type",
        "$regex", "$mod", "$size", "$all", "$elemMatch", "$bitsAllSet", "$bitsAnyClear",
    ]);
    let comparison = prop::sample::select(vec!["$eq", "$gt", "$gte", "$lt", "$lte"]);
    let condition = prop_oneof![
        value(),
        (comparison.clone(), scalar())
            .prop_map(|(name, value)| Bson::Document(doc! { name: value })),
        (comparison, scalar(), scalar())
            .prop_map(|(name, low, high)| Bson::Document(doc! { name: low, "$lt": high })),
        prop::collection::vec(scalar(), 0..3)
            .prop_map(|values| Bson::Document(doc! { "$in": values })),
        (operator.clone(), value()).prop_map(|(name, value)| Bson::Document(doc! { name: value })),
        (operator, prop::collection::vec(value(), 0..3))
            .prop_map(|(name, values)| Bson::Document(doc! { name: values })),
    ];
    let leaf = (path(), condition).prop_map(|(path, value)| doc! { path: value });
    leaf.prop_recursive(2, 8, 3, |inner| {
        (prop::sample::select(vec!["$and", "$or", "$nor"]), prop::collection::vec(inner, 1..3))
            .prop_map(|(name, branches)| doc! { name: branches })
    })
}

/// Few values and few paths, so that queries, documents and indexes meet often.
fn small_number() -> impl Strategy<Value = Bson> {
    prop_oneof![6 => (0i32..5).prop_map(Bson::Int32), 1 => Just(Bson::Null), 1 => Just(Bson::from("x"))]
}

fn small_path() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "a.a", "a.b", "a.0", "a.0.b"]).prop_map(str::to_owned)
}

fn small_document() -> impl Strategy<Value = Document> {
    let numbers = prop::collection::vec(small_number(), 0..3).prop_map(Bson::Array);
    let leaf = prop_oneof![2 => small_number(), 1 => numbers].boxed();
    let inner =
        prop::collection::vec((prop::sample::select(vec!["a", "b", "0"]), leaf.clone()), 0..3)
            .prop_map(|fields| {
                Bson::Document(
                    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                )
            })
            .boxed();
    let value =
        prop_oneof![leaf, inner.clone(), prop::collection::vec(inner, 0..3).prop_map(Bson::Array)];
    prop::collection::vec((prop::sample::select(vec!["a", "b"]), value), 0..3).prop_map(|fields| {
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    })
}

fn small_condition() -> impl Strategy<Value = Bson> {
    let comparison = prop::sample::select(vec!["$eq", "$gt", "$gte", "$lt", "$lte"]);
    let one = (comparison.clone(), small_number()).prop_map(|(name, value)| doc! { name: value });
    let two =
        (small_number(), small_number()).prop_map(|(low, high)| doc! { "$gte": low, "$lte": high });
    let list = prop::collection::vec(small_number(), 1..3).prop_map(|list| doc! { "$in": list });
    let exists = any::<bool>().prop_map(|wanted| doc! { "$exists": wanted });
    let operators = prop_oneof![4 => one, 4 => two, 1 => list, 1 => exists].boxed();
    prop_oneof![
        2 => small_number(),
        6 => operators.clone().prop_map(Bson::Document),
        1 => operators.clone().prop_map(|inner| Bson::Document(doc! { "$elemMatch": inner })),
        1 => operators.clone().prop_map(|inner| {
            Bson::Document(doc! { "$elemMatch": { "a": inner } })
        }),
        1 => operators.prop_map(|inner| Bson::Document(doc! { "$not": inner })),
    ]
}

fn small_query() -> impl Strategy<Value = Document> {
    let leaf = (small_path(), small_condition()).prop_map(|(path, value)| doc! { path: value });
    leaf.prop_recursive(2, 6, 2, |inner| {
        (prop::sample::select(vec!["$and", "$or"]), prop::collection::vec(inner, 1..3))
            .prop_map(|(name, branches)| doc! { name: branches })
    })
}

fn update() -> impl Strategy<Value = Document> {
    let operator = prop::sample::select(vec![
        "$set", "$unset", "$inc", "$mul", "$min", "$max", "$rename", "$currentDate", "$bit",
        "$push", "$addToSet", "$pop", "$pull", "$pullAll", "$setOnInsert",
    ]);
    prop::collection::vec((operator, update_path(), value()), 1..3).prop_map(|parts| {
        parts
            .into_iter()
            .map(|(name, path, value)| (name.to_owned(), Bson::from(doc! { path: value })))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_is_total(a in value(), b in value(), c in value()) {
        prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        prop_assert!(equal(&a, &a));
        if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
            prop_assert!(compare(&a, &c).is_le());
        }
    }

    #[test]
    fn raw_and_parsed_documents_match_alike(query in query(), document in document()) {
        if let Ok(matcher) = Matcher::parse(&query) {
            let raw = RawDocumentBuf::try_from(&document).unwrap();
            prop_assert_eq!(
                matcher.matches_with_details(&document).unwrap(),
                matcher.matches_with_details(&raw).unwrap()
            );
        }
    }

    #[test]
    fn nor_is_the_opposite(query in query(), document in document()) {
        if let (Ok(plain), Ok(negated)) =
            (Matcher::parse(&query), Matcher::parse(&doc! { "$nor": [query] }))
        {
            prop_assert_ne!(plain.matches(&document).unwrap(), negated.matches(&document).unwrap());
        }
    }

    #[test]
    fn a_match_has_a_key_within_the_bounds(
        query in small_query(), document in small_document(), path in small_path(),
    ) {
        if let Ok(matcher) = Matcher::parse(&query)
            && matcher.matches(&document).unwrap()
        {
            let parsed = quorate_query::value::Path::parse(&path).unwrap();
            let Ok(found) = quorate_query::value::FieldKeys::of(&[parsed], (&document).into()) else {
                return Ok(());
            };
            if let Some(bounds) = matcher.bounds(&path, found.multikey) {
                let inside = found.keys.iter().any(|key| {
                    bounds.intervals().iter().any(|interval| interval.contains(&key[0]))
                });
                prop_assert!(inside, "{:?} not in {:?}", found.keys, bounds);
            }
        }
    }

    #[test]
    fn a_match_has_a_compound_key_within_all_bounds(
        query in small_query(), other in small_query(), document in small_document(),
        a in small_path(), b in small_path(),
    ) {
        if let Ok(matcher) = Matcher::parse(&doc! { "$and": [query, other] })
            && matcher.matches(&document).unwrap()
        {
            let paths = [&a, &b].map(|path| quorate_query::value::Path::parse(path).unwrap());
            let Ok(found) = quorate_query::value::FieldKeys::of(&paths, (&document).into()) else {
                return Ok(());
            };
            let bounds = matcher.compound_bounds(&[&a, &b], found.multikey);
            let inside = found.keys.iter().any(|key| {
                key.iter().zip(&bounds).all(|(value, bounds)| match bounds {
                    Some(bounds) => bounds.intervals().iter().any(|i| i.contains(value)),
                    None => true,
                })
            });
            prop_assert!(inside, "{:?} not in {:?}", found.keys, bounds);
        }
    }

    #[test]
    fn what_a_query_implies_holds_for_its_matches(
        query in small_query(), filter in small_query(), document in small_document(),
    ) {
        if let (Ok(query), Ok(filter)) = (Matcher::parse(&query), Matcher::parse(&filter))
            && query.implies(&filter)
            && query.matches(&document).unwrap()
        {
            prop_assert!(filter.matches(&document).unwrap());
        }
    }

    #[test]
    fn updates_never_panic_and_are_stable(update in update(), before in document()) {
        let context = context().with_array_index(Some(0));
        if let Ok(parsed) = Update::parse(&update.clone().into())
            && let Ok(Some(change)) = parsed.change(&before, &context)
        {
            let after = change.after;
            prop_assert_ne!(after.to_vec().unwrap(), before.to_vec().unwrap());
            for told_as in [ToldAs::Replacement, change.told_as, ToldAs::ShortestDifference] {
                let OplogUpdate::Entry(entry) = oplog_update(&before, &after, &told_as) else {
                    return Err(TestCaseError::fail("a change must give an entry"));
                };
                let once = apply_oplog_update(&before, &entry).unwrap();
                assert_same(&once, &after);
                assert_same(&apply_oplog_update(&once, &entry).unwrap(), &after);
            }
        }
    }

    /// An update of the fields that it touches makes the same of a document as an update of the whole.
    #[test]
    fn a_part_becomes_what_the_whole_would(update in update(), before in document()) {
        let context = context().with_array_index(Some(0));
        let Ok(parsed) = Update::parse(&update.clone().into()) else { return Ok(()) };
        let whole = parsed.change(&before, &context);
        let raw = RawDocumentBuf::try_from(&before).unwrap();
        let Some(fields) = parsed.touched_fields() else { return Ok(()) };
        let part = Part::read(&raw, &fields).unwrap();
        match (parsed.change(part.before(), &context), whole) {
            (Err(of_part), Err(of_whole)) => prop_assert_eq!(of_part, of_whole),
            (Ok(None), Ok(None)) => {}
            (Ok(Some(of_part)), Ok(Some(of_whole))) => {
                let spliced = part.changed_to(&of_part.after).unwrap();
                assert_same(&Document::try_from(&spliced).unwrap(), &of_whole.after);
                let of_part = told(part.before(), &of_part.after, &of_part.told_as);
                let of_whole = told(&before, &of_whole.after, &of_whole.told_as);
                // As text, in which a NaN is equal to itself.
                prop_assert_eq!(format!("{of_part:?}"), format!("{of_whole:?}"));
            }
            (of_part, of_whole) => {
                return Err(TestCaseError::fail(format!("{of_part:?} and {of_whole:?}")));
            }
        }
    }

    /// A delta applied to the fields that it changes makes the same of any document as applied to the whole.
    #[test]
    fn a_delta_of_a_part_is_that_of_the_whole(
        before in document(), after in document(), other in document(),
    ) {
        let OplogUpdate::Entry(entry) = oplog_update(&before, &after, &ToldAs::default()) else {
            return Ok(());
        };
        let Some(fields) = changed_fields(&entry) else { return Ok(()) };
        for document in [before, other] {
            let raw = RawDocumentBuf::try_from(&document).unwrap();
            let part = Part::read(&raw, &fields).unwrap();
            if let Some(spliced) = apply_to_part(&part, &entry).unwrap() {
                let whole = apply_oplog_update(&document, &entry).unwrap();
                assert_same(&Document::try_from(&spliced).unwrap(), &whole);
            }
        }
    }

    #[test]
    fn deltas_lead_from_any_version_to_any_other(before in document(), after in document()) {
        match oplog_update(&before, &after, &ToldAs::default()) {
            OplogUpdate::Unchanged => assert_same(&before, &after),
            OplogUpdate::Entry(entry) => {
                let once = apply_oplog_update(&before, &entry).unwrap();
                assert_same(&once, &after);
                assert_same(&apply_oplog_update(&once, &entry).unwrap(), &after);
            }
        }
    }

    #[test]
    fn projections_and_sorts_never_panic(fields in document(), document in document()) {
        if let Ok(projection) = Projection::parse_find(&fields, &Matcher::match_all())
            && let Ok(shown) = projection.apply(&document, None)
        {
            prop_assert!(shown.len() <= document.len() + fields.len());
        }
        if let Ok(pattern) = SortPattern::parse(&fields)
            && let Ok(key) = pattern.key(&document)
        {
            prop_assert_eq!(key.values().len(), fields.len());
        }
    }

    #[test]
    fn an_upsert_of_equalities_matches_its_own_query(equalities in document()) {
        let matcher = Matcher::parse(&equalities).unwrap();
        let update = Update::parse(&doc! { "$setOnInsert": { "unrelated": 1 } }.into()).unwrap();
        let inserted = update.upsert_document(&matcher, &context()).unwrap();
        prop_assert!(matcher.matches(&inserted).unwrap());
    }
}

/// Random updates hardly ever rename to a name that may be renamed to.
#[test]
fn a_part_sees_both_ends_of_a_rename() {
    let before = doc! { "_id": 1, "a": 1, "b": 2, "c": { "d": 3 } };
    let raw = RawDocumentBuf::try_from(&before).unwrap();
    for (source, target) in [("a", "new"), ("a", "b"), ("c.d", "a"), ("a", "c.e"), ("none", "a")] {
        let update = Update::parse(&doc! { "$rename": { source: target } }.into()).unwrap();
        let part = Part::read(&raw, &update.touched_fields().unwrap()).unwrap();
        let whole = update.apply(&before, &context()).unwrap();
        let spliced = update.apply(part.before(), &context()).unwrap();
        let spliced = spliced.map(|after| part.changed_to(&after).unwrap());
        let spliced = spliced.map(|raw| Document::try_from(&raw).unwrap());
        assert_eq!(spliced, whole, "{source} to {target}");
    }
}

/// The entry of an update does not tell how items are named, so that followers keep their names: an array that would be
/// numbered anew is left to what examines the whole document.
#[test]
fn a_part_with_an_array_whose_items_are_not_numbered_is_refused() {
    // An array whose only item is numbered 1.
    let odd = [&[8, 0, 0, 0, 0x0a, b'1', 0, 0][..]].concat();
    let mut bytes = [&[0, 0, 0, 0, 0x04, b'c', 0][..], &odd, &[0]].concat();
    bytes[0] = bytes.len() as u8;
    let raw = RawDocumentBuf::from_bytes(bytes).unwrap();
    assert!(Part::read(&raw, &["c"]).is_none());
    let inner = rawdoc! { "s": raw.clone(), "n": 1 };
    assert!(Part::read(&inner, &["s"]).is_none());
    let part = Part::read(&inner, &["n"]).unwrap();
    let whole = part.changed_to(&doc! { "n": 2 }).unwrap();
    assert_eq!(whole, rawdoc! { "s": raw, "n": 2 });
}
