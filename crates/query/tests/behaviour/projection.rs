//! What projections show.

use crate::support::{assert_same, compiler};
use bson::{Bson, Document, bson, doc};
use quorate_query::{Matcher, Projection};

fn find(projection: Document, query: Document, document: &Document) -> Result<Document, i32> {
    let query = Matcher::parse(&query).unwrap();
    let projection = Projection::parse_find_with(&projection, &Matcher::match_all(), &compiler())
        .map_err(|error| error.code().0)?;
    let details = query.matches_with_details(document).unwrap().expect("the query matches");
    projection.apply(document, details.array_index).map_err(|error| error.code().0)
}

fn shows(projection: Document, document: Document, wanted: Document) {
    assert_same(&find(projection, doc! {}, &document).unwrap(), &wanted);
}

fn sample() -> Document {
    doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 }, "l": [{ "x": 1, "y": 2 }, 5, [{ "x": 6 }]] }
}

#[test]
fn inclusion_shows_named_fields_and_the_identifier() {
    shows(doc! { "a": 1 }, sample(), doc! { "_id": 1, "a": 2 });
    shows(doc! { "a": true, "_id": 0 }, sample(), doc! { "a": 2 });
    shows(doc! { "_id": 1 }, sample(), doc! { "_id": 1 });
    shows(doc! { "b": 1, "a": 5.5 }, sample(), doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 } });
    shows(doc! { "zz": 1 }, sample(), doc! { "_id": 1 });
    shows(doc! { "b.c": 1 }, sample(), doc! { "_id": 1, "b": { "c": 3 } });
    shows(doc! { "b": { "c": 1 }, "_id": 0 }, sample(), doc! { "b": { "c": 3 } });
    shows(doc! { "b.zz": 1, "_id": 0 }, sample(), doc! { "b": {} });
    shows(doc! { "a.zz": 1, "_id": 0 }, sample(), doc! {});
    shows(doc! { "l.x": 1, "_id": 0 }, sample(), doc! { "l": [{ "x": 1 }, [{ "x": 6 }]] });
}

#[test]
fn exclusion_hides_named_fields() {
    shows(doc! { "b": 0, "l": false }, sample(), doc! { "_id": 1, "a": 2 });
    shows(doc! { "_id": 0 }, doc! { "_id": 1, "a": 2 }, doc! { "a": 2 });
    shows(doc! { "a": 0, "_id": 1 }, doc! { "_id": 1, "a": 2, "b": 3 }, doc! { "_id": 1, "b": 3 });
    shows(doc! { "b.c": 0, "l": 0 }, sample(), doc! { "_id": 1, "a": 2, "b": { "d": 4 } });
    shows(
        doc! { "l.x": 0, "a": 0, "b": 0 },
        sample(),
        doc! { "_id": 1, "l": [{ "y": 2 }, 5, [{}]] },
    );
    shows(doc! { "a.zz": 0 }, doc! { "a": 1 }, doc! { "a": 1 });
}

#[test]
fn slice_cuts_arrays_and_keeps_the_rest() {
    let document = doc! { "_id": 1, "l": [1, 2, 3, 4], "z": 9 };
    shows(doc! { "l": { "$slice": 2 } }, document.clone(), doc! { "_id": 1, "l": [1, 2], "z": 9 });
    shows(doc! { "l": { "$slice": -1 } }, document.clone(), doc! { "_id": 1, "l": [4], "z": 9 });
    shows(
        doc! { "l": { "$slice": [1, 2] } },
        document.clone(),
        doc! { "_id": 1, "l": [2, 3], "z": 9 },
    );
    shows(
        doc! { "l": { "$slice": [-3, 2] } },
        document.clone(),
        doc! { "_id": 1, "l": [2, 3], "z": 9 },
    );
    shows(
        doc! { "l": { "$slice": [-9, 2] } },
        document.clone(),
        doc! { "_id": 1, "l": [1, 2], "z": 9 },
    );
    shows(doc! { "l": { "$slice": 0 } }, document.clone(), doc! { "_id": 1, "l": [], "z": 9 });
    shows(doc! { "l": { "$slice": [9, 2] } }, document.clone(), doc! { "_id": 1, "l": [], "z": 9 });
    shows(doc! { "l": { "$slice": 1 }, "_id": 1 }, document.clone(), doc! { "_id": 1, "l": [1] });
    shows(
        doc! { "l": { "$slice": 1 }, "z": 1 },
        document.clone(),
        doc! { "_id": 1, "l": [1], "z": 9 },
    );
    shows(doc! { "l": { "$slice": 1 }, "z": 0 }, document, doc! { "_id": 1, "l": [1] });
    shows(doc! { "l": { "$slice": 1 } }, doc! { "l": 5 }, doc! { "l": 5 });
    shows(
        doc! { "a.l": { "$slice": 1 } },
        doc! { "a": { "l": [1, 2], "k": 1 } },
        doc! { "a": { "l": [1], "k": 1 } },
    );
}

#[test]
fn elem_match_shows_the_first_match() {
    let document =
        doc! { "_id": 1, "l": [{ "x": 1 }, { "x": 2, "n": 1 }, { "x": 2, "n": 2 }], "z": 9 };
    shows(
        doc! { "l": { "$elemMatch": { "x": 2 } } },
        document.clone(),
        doc! { "_id": 1, "l": [{ "x": 2, "n": 1 }] },
    );
    shows(doc! { "l": { "$elemMatch": { "x": 7 } } }, document.clone(), doc! { "_id": 1 });
    shows(
        doc! { "l": { "$elemMatch": { "x": 2 } }, "z": 1 },
        document,
        doc! { "_id": 1, "z": 9, "l": [{ "x": 2, "n": 1 }] },
    );
    shows(doc! { "l": { "$elemMatch": { "$gt": 1 } } }, doc! { "l": [1, 2, 3] }, doc! { "l": [2] });
    shows(doc! { "l": { "$elemMatch": { "$gt": 1 } } }, doc! { "l": 5 }, doc! {});
}

#[test]
fn the_positional_operator_shows_the_matched_element() {
    let document = doc! { "_id": 1, "l": [{ "x": 1 }, { "x": 2 }], "m": [1, 2, 3], "z": 1 };
    let found = find(doc! { "l.$": 1 }, doc! { "l.x": 2 }, &document).unwrap();
    assert_same(&found, &doc! { "_id": 1, "l": [{ "x": 2 }] });
    let found = find(doc! { "m.$": 1, "_id": 0 }, doc! { "m": { "$gt": 1 } }, &document).unwrap();
    assert_same(&found, &doc! { "m": [2] });
    assert_eq!(find(doc! { "l.$": 1 }, doc! {}, &document), Err(51246));
    assert_eq!(find(doc! { "l.$": 1 }, doc! { "m": 3 }, &document), Err(51247));
    assert_eq!(find(doc! { "l.$": 0 }, doc! { "l.x": 1 }, &document), Err(31395));
    assert_eq!(find(doc! { "l.$": 1, "m.$": 1 }, doc! { "l.x": 1, "m": 1 }, &document), Err(31276));
    assert_eq!(find(doc! { "l.$.x.$": 1 }, doc! { "l.x": 1 }, &document), Err(31394));
    assert_eq!(find(doc! { "l.$.x": 1 }, doc! { "l.x": 1 }, &document), Err(31394));
    assert_eq!(find(doc! { "l.$": { "x": 1 } }, doc! { "l.x": 1 }, &document), Err(31271));
    assert_eq!(find(doc! { "l.$": "x" }, doc! { "l.x": 1 }, &document), Err(31308));
    assert_eq!(
        find(doc! { "l.$": 1 }, doc! { "l": { "$exists": true }, "z": 1 }, &document).map(|_| ()),
        Ok(())
    );
    assert_eq!(find(doc! { "l.$": 1 }, doc! { "l": { "$size": 2 } }, &document), Err(51246));
}

#[test]
fn expressions_and_literals_are_computed() {
    shows(doc! { "n": "$b.c" }, sample(), doc! { "_id": 1, "n": 3 });
    shows(doc! { "n": { "$literal": 1 }, "a": 1 }, sample(), doc! { "_id": 1, "a": 2, "n": 1 });
    shows(doc! { "n": "text", "_id": 0 }, sample(), doc! { "n": "text" });
    shows(doc! { "n": "$missing", "_id": 0 }, sample(), doc! {});
    shows(doc! { "b.e": "$a", "_id": 0 }, sample(), doc! { "b": { "e": 2 } });
    shows(doc! { "q.r.s": "$a", "_id": 0 }, sample(), doc! { "q": { "r": { "s": 2 } } });
    shows(
        doc! { "l": { "z": "$a" }, "_id": 0 },
        sample(),
        doc! { "l": [{ "z": 2 }, { "z": 2 }, [{ "z": 2 }]] },
    );
    shows(doc! { "_id": "$a" }, sample(), doc! { "_id": 2 });
    assert_eq!(find(doc! { "a": 0, "n": "$b" }, doc! {}, &sample()), Err(31310));
    assert_eq!(find(doc! { "a": 0, "n": { "$literal": 1 } }, doc! {}, &sample()), Err(31252));
}

#[test]
fn mixing_and_collisions_are_refused() {
    let code = |projection: Document| find(projection, doc! {}, &sample()).unwrap_err();
    assert_eq!(code(doc! { "a": 1, "b": 0 }), 31254);
    assert_eq!(code(doc! { "a": 0, "b": 1 }), 31253);
    assert_eq!(code(doc! { "b": 1, "b.c": 1 }), 31249);
    assert_eq!(code(doc! { "b.c": 1, "b": 1 }), 31250);
    assert_eq!(code(doc! { "b": { "c": 1 }, "b.c": 1 }), 31250);
    assert_eq!(code(doc! { "b": {} }), 51270);
    assert_eq!(code(doc! { "b.": 1 }), 40353);
    assert_eq!(code(doc! { "b..c": 1 }), 15998);
    assert_eq!(code(doc! { "": 1 }), 40352);
    assert_eq!(code(doc! { "$b": 1 }), 16410);
    assert_eq!(code(doc! { "a.l": { "$elemMatch": {} } }), 31275);
    assert_eq!(code(doc! { "l": { "$elemMatch": 1 } }), 31274);
    assert_eq!(code(doc! { "s": { "$meta": "textScore" } }), 2);
    let deep = (0..300).fold(bson!(1), |inner, _| bson!({ "a": inner }));
    assert_eq!(code(doc! { "a": deep }), 15);
}

#[test]
fn malformed_slices_are_refused() {
    let code = |argument: Bson| {
        let projection = doc! { "l": { "$slice": argument } };
        Projection::parse_find(&projection, &Matcher::match_all()).unwrap_err().code().0
    };
    assert_eq!(code(bson!([1, 0])), 31259);
    assert_eq!(code(bson!([1])), 31272);
    assert_eq!(code(bson!(["x", 1])), 31257);
    assert_eq!(code(bson!([1, "x"])), 31258);
    assert_eq!(code(bson!("x")), 31273);
}
