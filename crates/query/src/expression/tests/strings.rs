//! Strings and patterns.

use bson::{Bson, bson};

use super::{check, date, refuse};

#[test]
fn joining_and_case() {
    check(vec![
        (bson!({ "$concat": ["a", "b", "$text"] }), bson!("abhéllo")),
        (bson!({ "$concat": ["a", "$nothing"] }), Bson::Null),
        (bson!({ "$toUpper": "abc" }), bson!("ABC")),
        (bson!({ "$toLower": "$absent" }), bson!("")),
        (bson!({ "$toUpper": 12 }), bson!("12")),
        (bson!({ "$toLower": date(0) }), bson!("1970-01-01t00:00:00.000z")),
        (bson!({ "$strcasecmp": ["ABC", "abd"] }), bson!(-1)),
        (bson!({ "$strcasecmp": ["ABC", "abc"] }), bson!(0)),
    ]);
    refuse(vec![(bson!({ "$concat": ["a", 1] }), 16702), (bson!({ "$toUpper": [["a"]] }), 16007)]);
}

#[test]
fn parts_by_bytes_and_by_code_points() {
    check(vec![
        (bson!({ "$substr": ["hello", 1, 3] }), bson!("ell")),
        (bson!({ "$substr": ["hello", 1, -1] }), bson!("ello")),
        (bson!({ "$substrBytes": ["$text", 0, 3] }), bson!("hé")),
        (bson!({ "$substrBytes": ["hello", 9, 1] }), bson!("")),
        (bson!({ "$substrCP": ["$text", 1, 2] }), bson!("él")),
        (bson!({ "$substrCP": ["$text", 9, 2] }), bson!("")),
        (bson!({ "$strLenBytes": "$text" }), bson!(6)),
        (bson!({ "$strLenCP": "$text" }), bson!(5)),
    ]);
    refuse(vec![
        (bson!({ "$substrBytes": ["$text", 2, 1] }), 28656),
        (bson!({ "$substrBytes": ["$text", 0, 2] }), 28657),
        (bson!({ "$substrBytes": ["x", "a", 2] }), 16034),
        (bson!({ "$substrBytes": ["x", 0, "a"] }), 16035),
        (bson!({ "$substrBytes": ["x", -1, 1] }), 50752),
        (bson!({ "$substrCP": ["x", "a", 1] }), 34450),
        (bson!({ "$substrCP": ["x", 1.5, 1] }), 34451),
        (bson!({ "$substrCP": ["x", 0, -1] }), 34454),
        (bson!({ "$strLenCP": 5 }), 34471),
        (bson!({ "$strLenBytes": "$absent" }), 34473),
    ]);
}

#[test]
fn searching_and_splitting() {
    check(vec![
        (bson!({ "$indexOfBytes": ["$text", "l"] }), bson!(3)),
        (bson!({ "$indexOfCP": ["$text", "l"] }), bson!(2)),
        (bson!({ "$indexOfCP": ["$text", "l", 3] }), bson!(3)),
        (bson!({ "$indexOfCP": ["$text", "o", 0, 3] }), bson!(-1)),
        (bson!({ "$indexOfCP": ["abc", "", 1] }), bson!(1)),
        (bson!({ "$indexOfBytes": ["abc", "c", 5] }), bson!(-1)),
        (bson!({ "$indexOfBytes": ["$nothing", "c"] }), Bson::Null),
        (bson!({ "$indexOfBytes": ["$text", "l", 2] }), bson!(3)),
        (bson!({ "$indexOfBytes": ["$text", "é", 0, 2] }), bson!(-1)),
        (bson!({ "$indexOfBytes": ["$text", "é", 2] }), bson!(-1)),
        (bson!({ "$split": ["a-b-", "-"] }), bson!(["a", "b", ""])),
        (bson!({ "$split": ["$nothing", "-"] }), Bson::Null),
    ]);
    refuse(vec![
        (bson!({ "$indexOfBytes": [1, "c"] }), 40091),
        (bson!({ "$indexOfCP": ["a", 1] }), 40094),
        (bson!({ "$indexOfCP": ["a", "a", -1] }), 40097),
        (bson!({ "$indexOfCP": ["a", "a", "b"] }), 40096),
        (bson!({ "$split": ["a", ""] }), 40087),
        (bson!({ "$split": [1, "a"] }), 40085),
        (bson!({ "$split": ["a", 1] }), 40086),
    ]);
}

#[test]
fn trimming_and_replacing() {
    check(vec![
        (bson!({ "$trim": { "input": " \t a b \u{a0}\0" } }), bson!("a b")),
        (bson!({ "$ltrim": { "input": "xxaxx", "chars": "x" } }), bson!("axx")),
        (bson!({ "$rtrim": { "input": "xxaxyx", "chars": "xy" } }), bson!("xxa")),
        (bson!({ "$trim": { "input": "$nothing" } }), Bson::Null),
        (
            bson!({ "$replaceOne": { "input": "aXbX", "find": "X", "replacement": "-" } }),
            bson!("a-bX"),
        ),
        (
            bson!({ "$replaceAll": { "input": "aXbX", "find": "X", "replacement": "-" } }),
            bson!("a-b-"),
        ),
        (
            bson!({ "$replaceAll": { "input": "a", "find": Bson::Null, "replacement": "-" } }),
            Bson::Null,
        ),
    ]);
    refuse(vec![
        (bson!({ "$trim": "x" }), 50696),
        (bson!({ "$trim": { "chars": "x" } }), 50695),
        (bson!({ "$trim": { "input": "x", "y": 1 } }), 50694),
        (bson!({ "$trim": { "input": 1 } }), 50699),
        (bson!({ "$trim": { "input": "x", "chars": 1 } }), 50700),
        (bson!({ "$replaceOne": { "input": 1, "find": "X", "replacement": "-" } }), 51746),
        (bson!({ "$replaceOne": { "input": "a", "find": "X" } }), 51747),
    ]);
}

#[test]
fn patterns() {
    check(vec![
        (
            bson!({ "$regexMatch": { "input": "Hello", "regex": "^h", "options": "i" } }),
            bson!(true),
        ),
        (bson!({ "$regexMatch": { "input": "Hello", "regex": "^h" } }), bson!(false)),
        (bson!({ "$regexMatch": { "input": "$nothing", "regex": "^h" } }), bson!(false)),
        (bson!({ "$regexMatch": { "input": "ab", "regex": "a(?=b)" } }), bson!(true)),
        (
            bson!({ "$regexFind": { "input": "$text", "regex": "l(l)(x)?" } }),
            bson!({ "match": "ll", "idx": 2, "captures": ["l", Bson::Null] }),
        ),
        (bson!({ "$regexFind": { "input": "abc", "regex": "x" } }), Bson::Null),
        (bson!({ "$regexFindAll": { "input": "$nothing", "regex": "x" } }), bson!([])),
        (
            bson!({ "$regexFindAll": { "input": "ébéb", "regex": "b" } }),
            bson!([
                { "match": "b", "idx": 1, "captures": [] },
                { "match": "b", "idx": 3, "captures": [] },
            ]),
        ),
        (bson!({ "$size": [{ "$regexFindAll": { "input": "abc", "regex": "" } }] }), bson!(4)),
    ]);
    refuse(vec![
        (bson!({ "$regexMatch": "x" }), 51103),
        (bson!({ "$regexMatch": { "input": "x", "regex": "(" } }), 51111),
        (bson!({ "$regexMatch": { "input": 1, "regex": "a" } }), 51104),
        (bson!({ "$regexMatch": { "input": "x", "regex": 1 } }), 51105),
        (bson!({ "$regexMatch": { "input": "x", "regex": "a", "options": "z" } }), 51108),
        (bson!({ "$regexMatch": { "regex": "a" } }), 31022),
        (bson!({ "$regexMatch": { "input": "a" } }), 31023),
    ]);
}
