//! What the update operators on arrays do, and which elements a path stands for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{assert_same, context, leaves, regex, updates};
use bson::{Bson, Document, doc};
use quorate_query::expression::{Compiler, Variables};
use quorate_query::{Interrupt, Matcher, QueryError, Update};

#[test]
fn push_appends_a_value() {
    updates(doc! { "$push": { "a": 3 } }, doc! { "a": [1, 2] }, doc! { "a": [1, 2, 3] });
    updates(doc! { "$push": { "a": 3 } }, doc! {}, doc! { "a": [3] });
    updates(doc! { "$push": { "a": [1, 2] } }, doc! { "a": [] }, doc! { "a": [[1, 2]] });
    updates(doc! { "$push": { "a.b": 1 } }, doc! { "a": {} }, doc! { "a": { "b": [1] } });
    updates(doc! { "$push": { "a": { "x": 1 } } }, doc! { "a": [] }, doc! { "a": [{ "x": 1 }] });
}

#[test]
fn push_each_appends_several() {
    updates(
        doc! { "$push": { "a": { "$each": [3, 4] } } },
        doc! { "a": [1] },
        doc! { "a": [1, 3, 4] },
    );
    updates(doc! { "$push": { "a": { "$each": [] } } }, doc! {}, doc! { "a": [] });
    leaves(doc! { "$push": { "a": { "$each": [] } } }, doc! { "a": [1] });
}

#[test]
fn push_position_counts_from_either_end() {
    let push =
        |position: i32| doc! { "$push": { "a": { "$each": [8, 9], "$position": position } } };
    updates(push(0), doc! { "a": [1, 2] }, doc! { "a": [8, 9, 1, 2] });
    updates(push(1), doc! { "a": [1, 2] }, doc! { "a": [1, 8, 9, 2] });
    updates(push(99), doc! { "a": [1, 2] }, doc! { "a": [1, 2, 8, 9] });
    updates(push(-1), doc! { "a": [1, 2] }, doc! { "a": [1, 8, 9, 2] });
    updates(push(-99), doc! { "a": [1, 2] }, doc! { "a": [8, 9, 1, 2] });
}

#[test]
fn push_slice_keeps_one_end() {
    let push = |slice: i32| doc! { "$push": { "a": { "$each": [3, 4], "$slice": slice } } };
    updates(push(3), doc! { "a": [1, 2] }, doc! { "a": [1, 2, 3] });
    updates(push(-3), doc! { "a": [1, 2] }, doc! { "a": [2, 3, 4] });
    updates(push(0), doc! { "a": [1, 2] }, doc! { "a": [] });
    updates(push(99), doc! { "a": [1, 2] }, doc! { "a": [1, 2, 3, 4] });
    leaves(doc! { "$push": { "a": { "$each": [3], "$slice": 2 } } }, doc! { "a": [1, 2] });
}

#[test]
fn push_sorts_before_it_slices() {
    updates(
        doc! { "$push": { "a": { "$slice": 3, "$sort": 1, "$each": [2, 0] } } },
        doc! { "a": [3, 1] },
        doc! { "a": [0, 1, 2] },
    );
    updates(
        doc! { "$push": { "a": { "$each": ["x"], "$sort": -1 } } },
        doc! { "a": [1, "y"] },
        doc! { "a": ["y", "x", 1] },
    );
    updates(
        doc! { "$push": { "a": { "$each": [{ "s": 5, "n": 1 }], "$sort": { "s": -1, "n": 1 }, "$slice": 2 } } },
        doc! { "a": [{ "s": 5, "n": 2 }, { "s": 9 }, 7] },
        doc! { "a": [{ "s": 9 }, { "s": 5, "n": 1 }] },
    );
    updates(
        doc! { "$push": { "a": { "$each": [], "$sort": { "x.y": 1 } } } },
        doc! { "a": [{ "x": { "y": 2 } }, { "x": { "y": 1 } }] },
        doc! { "a": [{ "x": { "y": 1 } }, { "x": { "y": 2 } }] },
    );
}

#[test]
fn add_to_set_adds_what_is_not_there() {
    updates(doc! { "$addToSet": { "a": 3 } }, doc! { "a": [1] }, doc! { "a": [1, 3] });
    leaves(doc! { "$addToSet": { "a": 1.0 } }, doc! { "a": [1] });
    updates(
        doc! { "$addToSet": { "a": { "$each": [1, 2, 2, 3] } } },
        doc! { "a": [1] },
        doc! { "a": [1, 2, 3] },
    );
    updates(doc! { "$addToSet": { "a": { "$each": [2, 2] } } }, doc! {}, doc! { "a": [2] });
    updates(
        doc! { "$addToSet": { "a": [1, 2] } },
        doc! { "a": [1, 2] },
        doc! { "a": [1, 2, [1, 2]] },
    );
    leaves(doc! { "$addToSet": { "a": { "x": 1 } } }, doc! { "a": [{ "x": 1 }] });
    updates(
        doc! { "$addToSet": { "a": { "y": 1, "x": 1 } } },
        doc! { "a": [{ "x": 1, "y": 1 }] },
        doc! { "a": [{ "x": 1, "y": 1 }, { "y": 1, "x": 1 }] },
    );
    leaves(doc! { "$addToSet": { "a": 1 } }, doc! { "a": [1, 1] });
}

#[test]
fn pop_takes_one_end() {
    updates(doc! { "$pop": { "a": 1 } }, doc! { "a": [1, 2, 3] }, doc! { "a": [1, 2] });
    updates(doc! { "$pop": { "a": -1 } }, doc! { "a": [1, 2, 3] }, doc! { "a": [2, 3] });
    updates(doc! { "$pop": { "a.0": 1.0 } }, doc! { "a": [[1, 2]] }, doc! { "a": [[1]] });
    leaves(doc! { "$pop": { "a": 1 } }, doc! { "a": [] });
    leaves(doc! { "$pop": { "a": -1 } }, doc! { "a": [] });
    leaves(doc! { "$pop": { "z": 1 } }, doc! { "a": [] });
}

#[test]
fn pull_removes_what_matches() {
    updates(doc! { "$pull": { "a": 2 } }, doc! { "a": [1, 2, 2.0, 3] }, doc! { "a": [1, 3] });
    updates(
        doc! { "$pull": { "a": { "$gte": 2 } } },
        doc! { "a": [1, 2, "x", 3] },
        doc! { "a": [1, "x"] },
    );
    updates(
        doc! { "$pull": { "a": { "$in": [1, "x"] } } },
        doc! { "a": [1, 2, "x"] },
        doc! { "a": [2] },
    );
    updates(
        doc! { "$pull": { "a": { "x": 1, "y": { "$gt": 1 } } } },
        doc! { "a": [{ "x": 1, "y": 2, "z": 3 }, { "x": 1, "y": 1 }, 1] },
        doc! { "a": [{ "x": 1, "y": 1 }, 1] },
    );
    updates(
        doc! { "$pull": { "a": { "l": { "$elemMatch": { "q": 2 } } } } },
        doc! { "a": [{ "l": [{ "q": 1 }] }, { "l": [{ "q": 2 }] }] },
        doc! { "a": [{ "l": [{ "q": 1 }] }] },
    );
    updates(
        doc! { "$pull": { "a": regex("^x", "") } },
        doc! { "a": ["xy", "yx"] },
        doc! { "a": ["yx"] },
    );
    updates(
        doc! { "$pull": { "a": [1, 2] } },
        doc! { "a": [[1, 2], [2, 1], 1] },
        doc! { "a": [[2, 1], 1] },
    );
    updates(
        doc! { "$pull": { "a": Bson::Null } },
        doc! { "a": [Bson::Null, 1] },
        doc! { "a": [1] },
    );
    leaves(doc! { "$pull": { "a": 9 } }, doc! { "a": [1] });
    leaves(doc! { "$pull": { "z": 9 } }, doc! { "a": [1] });
}

#[test]
fn pull_all_removes_listed_values() {
    updates(
        doc! { "$pullAll": { "a": [1, "x"] } },
        doc! { "a": [1, 2, "x", 1.0] },
        doc! { "a": [2] },
    );
    updates(
        doc! { "$pullAll": { "a": [{ "x": 1 }] } },
        doc! { "a": [{ "x": 1 }, { "x": 1, "y": 1 }] },
        doc! { "a": [{ "x": 1, "y": 1 }] },
    );
    leaves(doc! { "$pullAll": { "a": [] } }, doc! { "a": [1] });
    leaves(doc! { "$pullAll": { "z": [1] } }, doc! { "a": [1] });
}

#[test]
fn every_element_can_be_updated() {
    updates(doc! { "$inc": { "a.$[]": 1 } }, doc! { "a": [1, 2] }, doc! { "a": [2, 3] });
    updates(
        doc! { "$set": { "a.$[].b": 0 } },
        doc! { "a": [{ "b": 1 }, { "c": 2 }] },
        doc! { "a": [{ "b": 0 }, { "c": 2, "b": 0 }] },
    );
    updates(
        doc! { "$inc": { "a.$[].$[]": 1 } },
        doc! { "a": [[1], [2, 3]] },
        doc! { "a": [[2], [3, 4]] },
    );
    updates(
        doc! { "$unset": { "a.$[]": 1 } },
        doc! { "a": [1, 2] },
        doc! { "a": [Bson::Null, Bson::Null] },
    );
    leaves(doc! { "$set": { "a.$[]": 1 } }, doc! { "a": [] });
}

fn filtered(
    update: Document,
    filters: &[Document],
    before: Document,
) -> Result<Document, QueryError> {
    let update = Update::parse_with(&update.into(), filters, &Compiler::refusing())?;
    Ok(update.apply(&before, &context())?.unwrap_or(before))
}

#[test]
fn array_filters_choose_elements() {
    let found = filtered(
        doc! { "$set": { "g.$[e]": 100 } },
        &[doc! { "e": { "$gte": 100 } }],
        doc! { "g": [95, 102, 90, 150] },
    );
    assert_same(&found.unwrap(), &doc! { "g": [95, 100, 90, 100] });
    let found = filtered(
        doc! { "$inc": { "g.$[e].n": 1 } },
        &[doc! { "e.k": "x", "e.n": { "$lt": 5 } }],
        doc! { "g": [{ "k": "x", "n": 1 }, { "k": "x", "n": 9 }, { "k": "y", "n": 1 }, 3] },
    );
    let wanted =
        doc! { "g": [{ "k": "x", "n": 2 }, { "k": "x", "n": 9 }, { "k": "y", "n": 1 }, 3] };
    assert_same(&found.unwrap(), &wanted);
    let found = filtered(
        doc! { "$set": { "g.$[a].l.$[b]": 0 } },
        &[doc! { "a.on": true }, doc! { "$or": [{ "b": 1 }, { "b": 2 }] }],
        doc! { "g": [{ "on": true, "l": [1, 2, 3] }, { "on": false, "l": [1] }] },
    );
    let wanted = doc! { "g": [{ "on": true, "l": [0, 0, 3] }, { "on": false, "l": [1] }] };
    assert_same(&found.unwrap(), &wanted);
    let found = filtered(
        doc! { "$pull": { "g.$[a]": 1 } },
        &[doc! { "a": { "$size": 2 } }],
        doc! { "g": [[1, 2], [1]] },
    );
    assert_same(&found.unwrap(), &doc! { "g": [[2], [1]] });
}

#[test]
fn array_filters_must_fit_the_update() {
    let code = |update: Document, filters: &[Document]| {
        filtered(update, filters, doc! { "a": [1] }).unwrap_err().code().0
    };
    let set = doc! { "$set": { "a.$[e]": 1 } };
    assert_eq!(code(set.clone(), &[]), 2);
    assert_eq!(code(set.clone(), &[doc! { "e": 1 }, doc! { "f": 1 }]), 9);
    assert_eq!(code(set.clone(), &[doc! { "e": 1 }, doc! { "e": 2 }]), 9);
    assert_eq!(code(set.clone(), &[doc! {}]), 9);
    assert_eq!(code(set.clone(), &[doc! { "e": 1, "f": 2 }]), 9);
    assert_eq!(code(doc! { "$set": { "a.$[E]": 1 } }, &[doc! { "E": 1 }]), 2);
    assert_eq!(code(doc! { "x": 1 }, &[doc! { "e": 1 }]), 9);
    assert_eq!(code(doc! { "$set": { "z.$[e]": 1 } }, &[doc! { "e": 1 }]), 2);
    assert_eq!(code(doc! { "$set": { "a.0.$[e]": 1 } }, &[doc! { "e": 1 }]), 2);
    assert_eq!(
        code(doc! { "$set": { "a.$[e]": 1, "a.$[f]": 2 } }, &[doc! { "e": 1 }, doc! { "f": 1 }]),
        40
    );
}

#[test]
fn the_positional_operator_takes_the_matched_element() {
    let positional = |query: Document, update: Document, before: &Document| {
        let details =
            Matcher::parse(&query).unwrap().matches_with_details(before).unwrap().unwrap();
        let update = Update::parse(&update.into()).unwrap();
        let context = context().with_array_index(details.array_index);
        update.apply(before, &context).map_err(|error| error.code().0)
    };
    let before = doc! { "g": [80, 85, 90] };
    let found = positional(doc! { "g": 85 }, doc! { "$set": { "g.$": 82 } }, &before);
    assert_same(&found.unwrap().unwrap(), &doc! { "g": [80, 82, 90] });
    let before = doc! { "g": [{ "k": 1 }, { "k": 2, "v": 1 }] };
    let found = positional(doc! { "g.k": 2 }, doc! { "$inc": { "g.$.v": 1 } }, &before);
    assert_same(&found.unwrap().unwrap(), &doc! { "g": [{ "k": 1 }, { "k": 2, "v": 2 }] });
    let found = positional(
        doc! { "g": { "$elemMatch": { "k": 2 } } },
        doc! { "$unset": { "g.$.v": 1 } },
        &before,
    );
    assert_same(&found.unwrap().unwrap(), &doc! { "g": [{ "k": 1 }, { "k": 2 }] });
    assert_eq!(positional(doc! {}, doc! { "$set": { "g.$": 1 } }, &before), Err(2));
}

/// Counts the questions, and never says no.
#[derive(Debug, Default)]
struct Counter(AtomicU32);

impl Interrupt for Counter {
    fn check(&self) -> Result<(), QueryError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A document may hold a million values: an update of one document is not one step.
#[test]
fn operators_on_long_arrays_ask_meanwhile() {
    const LENGTH: i32 = 20_000;
    let many: Vec<Bson> = (0..LENGTH).map(|n| Bson::Int32(n * 7919 % LENGTH)).collect();
    let before = doc! { "_id": 1, "a": many.clone(), "b": [] };
    for update in [
        doc! { "$addToSet": { "a": { "$each": [-1] } } },
        doc! { "$addToSet": { "b": { "$each": many.clone() } } },
        doc! { "$addToSet": { "c": { "$each": many.clone() } } },
        doc! { "$push": { "a": { "$each": [], "$sort": 1 } } },
        doc! { "$pull": { "a": 5 } },
        doc! { "$pull": { "a": { "$gt": LENGTH - 2 } } },
        doc! { "$pullAll": { "a": [5] } },
        doc! { "$pullAll": { "b": many } },
        doc! { "$inc": { "a.$[]": 1 } },
        doc! { "$max": { "a.$[x]": 7 } },
    ] {
        let counter = Arc::new(Counter::default());
        let compiler = Compiler::new(Variables::new(0).with_interrupt(counter.clone()));
        let filters = match update.contains_key("$max") {
            true => vec![doc! { "x": { "$lt": 0 } }],
            false => Vec::new(),
        };
        let parsed = Update::parse_with(&update.clone().into(), &filters, &compiler).unwrap();
        parsed.apply(&before, &context()).unwrap();
        let asked = counter.0.load(Ordering::Relaxed);
        assert!(asked >= 10, "{:.60} asks {asked} times", update.to_string());
    }
}
