//! Properties that hold for any documents, queries and updates.

use crate::support::{assert_same, context};
use bson::{Bson, Document, RawDocumentBuf, doc};
use proptest::prelude::*;
use quorate_query::diff::{OplogUpdate, apply_oplog_update, oplog_update};
use quorate_query::value::{compare, equal};
use quorate_query::{Matcher, Projection, SortPattern, Update};

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

fn field() -> impl Strategy<Value = String> {
    prop_oneof!["[abc]", "[012]"]
}

fn value() -> impl Strategy<Value = Bson> {
    scalar().prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Bson::Array),
            prop::collection::vec((field(), inner), 0..4)
                .prop_map(|fields| Bson::Document(fields.into_iter().collect())),
        ]
    })
}

fn document() -> impl Strategy<Value = Document> {
    prop::collection::vec((field(), value()), 0..4).prop_map(|fields| fields.into_iter().collect())
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(field(), 1..4).prop_map(|parts| parts.join("."))
}

fn update_path() -> impl Strategy<Value = String> {
    let part = prop_oneof![6 => field(), 1 => Just("$".to_owned()), 1 => Just("$[]".to_owned())];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("."))
}

/// Anything that looks like a query, well-formed or not.
fn query() -> impl Strategy<Value = Document> {
    let operator = prop::sample::select(vec![
        "$eq",
        "$ne",
        "$gt",
        "$gte",
        "$lt",
        "$lte",
        "$in",
        "$nin",
        "$not",
        "$exists",
        "$type",
        "$regex",
        "$mod",
        "$size",
        "$all",
        "$elemMatch",
        "$bitsAllSet",
        "$bitsAnyClear",
    ]);
    let condition = prop_oneof![
        value(),
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

fn update() -> impl Strategy<Value = Document> {
    let operator = prop::sample::select(vec![
        "$set",
        "$unset",
        "$inc",
        "$mul",
        "$min",
        "$max",
        "$rename",
        "$currentDate",
        "$bit",
        "$push",
        "$addToSet",
        "$pop",
        "$pull",
        "$pullAll",
        "$setOnInsert",
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
    fn a_match_has_a_key_within_the_bounds(query in query(), document in document(), path in path()) {
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
    fn updates_never_panic_and_are_stable(update in update(), before in document()) {
        let context = context().with_array_index(Some(0));
        if let Ok(parsed) = Update::parse(&update.clone().into())
            && let Ok(Some(after)) = parsed.apply(&before, &context)
        {
            prop_assert_ne!(after.to_vec().unwrap(), before.to_vec().unwrap());
            let OplogUpdate::Entry(entry) = oplog_update(&before, &after) else {
                return Err(TestCaseError::fail("a change must give an entry"));
            };
            assert_same(&apply_oplog_update(&before, &entry).unwrap(), &after);
        }
    }

    #[test]
    fn deltas_lead_from_any_version_to_any_other(before in document(), after in document()) {
        match oplog_update(&before, &after) {
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
