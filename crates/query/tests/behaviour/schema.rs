//! `$jsonSchema`.

use crate::support::{check, decimal, refusal};
use bson::{Bson, Document, doc};

fn schema(schema: Document, yes: &[Document], no: &[Document]) {
    check(doc! { "$jsonSchema": schema }, yes, no);
}

#[test]
fn types_of_fields() {
    schema(
        doc! { "properties": { "a": { "bsonType": "int" }, "b": { "type": "number" } } },
        &[doc! {}, doc! { "a": 1 }, doc! { "b": 1.5 }, doc! { "b": decimal("1") }],
        &[doc! { "a": 1.0 }, doc! { "a": "1" }, doc! { "b": "x" }, doc! { "a": [1] }],
    );
    schema(
        doc! { "properties": { "a": { "bsonType": ["string", "null"] } } },
        &[doc! { "a": "x" }, doc! { "a": Bson::Null }],
        &[doc! { "a": 1 }],
    );
    schema(doc! { "bsonType": "object" }, &[doc! {}], &[]);
    schema(doc! { "type": "boolean" }, &[], &[doc! {}]);
}

#[test]
fn required_and_counts_of_fields() {
    schema(
        doc! { "required": ["a", "b"] },
        &[doc! { "a": 1, "b": Bson::Null }],
        &[doc! { "a": 1 }, doc! {}],
    );
    schema(
        doc! { "minProperties": 1, "maxProperties": 2 },
        &[doc! { "a": 1 }, doc! { "a": 1, "b": 1 }],
        &[doc! {}, doc! { "a": 1, "b": 1, "c": 1 }],
    );
    schema(
        doc! { "dependencies": { "a": ["b"], "c": { "required": ["d"] } } },
        &[doc! {}, doc! { "a": 1, "b": 1 }, doc! { "c": 1, "d": 1 }],
        &[doc! { "a": 1 }, doc! { "c": 1 }],
    );
}

#[test]
fn additional_and_pattern_properties() {
    schema(
        doc! { "properties": { "a": {} }, "additionalProperties": false },
        &[doc! { "a": 1 }, doc! {}],
        &[doc! { "a": 1, "b": 1 }],
    );
    schema(
        doc! { "properties": { "a": {} }, "additionalProperties": { "bsonType": "string" } },
        &[doc! { "a": 1, "b": "x" }],
        &[doc! { "b": 1 }],
    );
    schema(
        doc! { "patternProperties": { "^n_": { "type": "number" } }, "additionalProperties": false },
        &[doc! { "n_a": 1 }],
        &[doc! { "n_a": "x" }, doc! { "m": 1 }],
    );
}

#[test]
fn numbers_and_strings() {
    let a = |rules: Document| doc! { "properties": { "a": rules } };
    schema(
        a(doc! { "minimum": 1, "maximum": 5 }),
        &[doc! { "a": 1 }, doc! { "a": 5.0 }, doc! { "a": "x" }],
        &[doc! { "a": 0 }, doc! { "a": 6 }],
    );
    schema(
        a(doc! { "minimum": 1, "exclusiveMinimum": true, "maximum": 5, "exclusiveMaximum": true }),
        &[doc! { "a": 2 }],
        &[doc! { "a": 1 }, doc! { "a": 5 }],
    );
    schema(
        a(doc! { "multipleOf": 3 }),
        &[doc! { "a": 9 }, doc! { "a": 0 }],
        &[doc! { "a": 10 }, doc! { "a": 3.5 }],
    );
    schema(
        a(doc! { "minLength": 2, "maxLength": 3 }),
        &[doc! { "a": "éé" }, doc! { "a": 1 }],
        &[doc! { "a": "x" }, doc! { "a": "abcd" }],
    );
    schema(
        a(doc! { "pattern": "^x" }),
        &[doc! { "a": "xy" }, doc! { "a": 5 }],
        &[doc! { "a": "yx" }],
    );
    schema(
        a(doc! { "enum": ["x", 1, Bson::Null] }),
        &[doc! { "a": "x" }, doc! { "a": 1.0 }, doc! { "a": Bson::Null }],
        &[doc! { "a": "y" }],
    );
}

#[test]
fn arrays() {
    let a = |rules: Document| doc! { "properties": { "a": rules } };
    schema(
        a(doc! { "items": { "bsonType": "int" } }),
        &[doc! { "a": [1, 2] }, doc! { "a": [] }, doc! { "a": "x" }],
        &[doc! { "a": [1, "x"] }],
    );
    schema(
        a(
            doc! { "items": [{ "bsonType": "int" }, { "bsonType": "string" }], "additionalItems": false },
        ),
        &[doc! { "a": [1, "x"] }, doc! { "a": [1] }],
        &[doc! { "a": ["x"] }, doc! { "a": [1, "x", 1] }],
    );
    schema(
        a(doc! { "minItems": 1, "maxItems": 2 }),
        &[doc! { "a": [1] }],
        &[doc! { "a": [] }, doc! { "a": [1, 2, 3] }],
    );
    schema(a(doc! { "uniqueItems": true }), &[doc! { "a": [1, "1"] }], &[doc! { "a": [1, 1.0] }]);
    schema(a(doc! { "uniqueItems": false }), &[doc! { "a": [1, 1] }], &[]);
}

#[test]
fn combinations() {
    let int = doc! { "required": ["i"] };
    let text = doc! { "required": ["t"] };
    let (neither, one, both) = (doc! {}, doc! { "i": 1 }, doc! { "i": 1, "t": 1 });
    schema(
        doc! { "allOf": [int.clone(), text.clone()] },
        std::slice::from_ref(&both),
        &[one.clone(), neither.clone()],
    );
    schema(
        doc! { "anyOf": [int.clone(), text.clone()] },
        &[both.clone(), one.clone()],
        std::slice::from_ref(&neither),
    );
    schema(
        doc! { "oneOf": [int.clone(), text] },
        std::slice::from_ref(&one),
        &[both, neither.clone()],
    );
    schema(doc! { "not": int }, &[neither], &[one]);
}

#[test]
fn malformed_schemas_are_refused() {
    let code = |schema: Document| refusal(doc! { "$jsonSchema": schema });
    assert_eq!(refusal(doc! { "$jsonSchema": 1 }), 14);
    assert_eq!(code(doc! { "propertys": {} }), 9);
    assert_eq!(code(doc! { "$ref": "x" }), 9);
    assert_eq!(code(doc! { "format": "x" }), 9);
    assert_eq!(code(doc! { "type": "string", "bsonType": "string" }), 9);
    assert_eq!(code(doc! { "type": "integer" }), 2);
    assert_eq!(code(doc! { "required": [] }), 9);
    assert_eq!(code(doc! { "required": "a" }), 14);
    assert_eq!(code(doc! { "minLength": -1 }), 9);
    assert_eq!(code(doc! { "exclusiveMinimum": true }), 9);
    assert_eq!(code(doc! { "multipleOf": 0 }), 9);
    assert_eq!(code(doc! { "pattern": "(" }), 51091);
    let deep = (0..300).fold(doc! {}, |inner, _| doc! { "not": inner });
    assert_eq!(code(deep), 2);
}
