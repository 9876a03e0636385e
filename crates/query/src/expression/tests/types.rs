//! Types and conversions.

use bson::oid::ObjectId;
use bson::{Bson, bson};

use super::{check, date, decimal, missing, refuse, try_evaluate};

#[test]
fn types_have_names() {
    check(vec![
        (bson!({ "$type": "$a" }), bson!("int")),
        (bson!({ "$type": "$absent" }), bson!("missing")),
        (bson!({ "$type": "$nothing" }), bson!("null")),
        (bson!({ "$type": "$b" }), bson!("object")),
        (bson!({ "$isNumber": "$long" }), bson!(true)),
        (bson!({ "$isNumber": "1" }), bson!(false)),
    ]);
}

#[test]
fn conversions() {
    let id = ObjectId::parse_str("507f1f77bcf86cd799439011").unwrap();
    check(vec![
        (bson!({ "$toInt": "42" }), bson!(42)),
        (bson!({ "$toInt": 3.99 }), bson!(3)),
        (bson!({ "$toInt": true }), bson!(1)),
        (bson!({ "$toInt": decimal("-7.5") }), bson!(-7)),
        (bson!({ "$toLong": "-5" }), bson!(-5_i64)),
        (bson!({ "$toLong": date(12) }), bson!(12_i64)),
        (bson!({ "$toDouble": "1.5e3" }), bson!(1500.0)),
        (bson!({ "$toDouble": date(12) }), bson!(12.0)),
        (bson!({ "$toDecimal": "1.50" }), decimal("1.50")),
        (bson!({ "$toDecimal": true }), decimal("1")),
        (bson!({ "$toString": 1.5 }), bson!("1.5")),
        (bson!({ "$toString": 3.0 }), bson!("3")),
        (bson!({ "$toString": 1e20 }), bson!("1e+20")),
        (bson!({ "$toString": date(0) }), bson!("1970-01-01T00:00:00.000Z")),
        (bson!({ "$toString": id }), bson!("507f1f77bcf86cd799439011")),
        (bson!({ "$toString": false }), bson!("false")),
        (bson!({ "$toBool": "false" }), bson!(true)),
        (bson!({ "$toBool": 0.0 }), bson!(false)),
        (bson!({ "$toDate": 12_i64 }), date(12)),
        (bson!({ "$toDate": "2018-03-03" }), date(1_520_035_200_000)),
        (bson!({ "$toDate": id }), date(1_350_508_407_000)),
        (bson!({ "$toObjectId": "507f1f77bcf86cd799439011" }), Bson::ObjectId(id)),
        (bson!({ "$toInt": "$nothing" }), Bson::Null),
        (bson!({ "$convert": { "input": "1", "to": 16 } }), bson!(1)),
        (bson!({ "$convert": { "input": "x", "to": "int", "onError": "bad" } }), bson!("bad")),
        (
            bson!({ "$convert": { "input": "$absent", "to": "int", "onNull": "none" } }),
            bson!("none"),
        ),
        (bson!({ "$convert": { "input": 1, "to": "$nothing" } }), Bson::Null),
    ]);
    missing(vec![bson!({ "$convert": { "input": "x", "to": "int", "onError": "$absent" } })]);
}

#[test]
fn what_cannot_be_converted() {
    refuse(vec![
        (bson!({ "$toInt": "4.5" }), 241),
        (bson!({ "$toInt": "" }), 241),
        (bson!({ "$toInt": "99999999999" }), 241),
        (bson!({ "$toInt": 3e9 }), 241),
        (bson!({ "$toInt": f64::NAN }), 241),
        (bson!({ "$toInt": [[1]] }), 241),
        (bson!({ "$toInt": date(1) }), 241),
        (bson!({ "$toLong": 1e30 }), 241),
        (bson!({ "$toDouble": " 1" }), 241),
        (bson!({ "$toDouble": "0x1F" }), 241),
        (bson!({ "$toDouble": "1e999" }), 241),
        (bson!({ "$toDecimal": "abc" }), 241),
        (bson!({ "$toDate": 5 }), 241),
        (bson!({ "$toDate": "yesterday-ish" }), 241),
        (bson!({ "$toObjectId": "xyz" }), 241),
        (bson!({ "$toString": [[1]] }), 241),
        (bson!({ "$convert": { "input": 1, "to": "array" } }), 241),
        (bson!({ "$convert": { "input": 1, "to": "nonsense" } }), 2),
        (bson!({ "$convert": { "input": 1 } }), 9),
        (bson!({ "$convert": { "input": 1, "to": "int", "x": 1 } }), 9),
    ]);
    let error = try_evaluate(bson!({ "$toInt": "abc" })).unwrap_err();
    assert_eq!(
        error.message(),
        "Failed to parse number 'abc' in $convert with no onError value: Did not consume whole \
         string."
    );
}
