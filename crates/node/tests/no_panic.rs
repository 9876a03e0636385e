//! Commands with random fields: whatever a client sends, it gets a reply, and the data stays sound.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use bson::{Bson, Document, doc};
use proptest::prelude::*;
use support::{Member, now};

/// Commands and fields that touch data or parse much.
const COMMANDS: [&str; 24] = [
    "insert", "update", "delete", "find", "findAndModify", "aggregate", "count", "distinct",
    "create", "collMod", "drop", "createIndexes", "dropIndexes", "listIndexes", "listCollections",
    "getMore", "killCursors", "explain", "hello", "collStats", "validate", "saslStart",
    "createUser", "configureFailPoint",
];

const FIELDS: [&str; 44] = [
    "documents", "updates", "deletes", "filter", "query", "update", "pipeline", "cursor", "key",
    "indexes", "index", "sort", "projection", "fields", "hint", "skip", "limit", "batchSize",
    "min", "max", "let", "collation", "arrayFilters", "upsert", "multi", "new", "remove", "q", "u",
    "ordered", "capped", "size", "viewOn", "validator", "readConcern", "writeConcern", "lsid",
    "txnNumber", "maxTimeMS", "mode", "data", "payload", "mechanism", "topologyVersion",
];

const NAMES: [&str; 30] = [
    "a", "b", "a.b", "_id", "$set", "$inc", "$push", "$unset", "$gt", "$in", "$or", "$not",
    "$elemMatch", "$exists", "$regex", "$match", "$group", "$project", "$sort", "$lookup", "$add",
    "$cond", "q", "u", "key", "name", "unique", "level", "id", "$",
];

fn value() -> impl Strategy<Value = Bson> {
    let leaf = prop_oneof![
        Just(Bson::Null),
        any::<bool>().prop_map(Bson::from),
        prop_oneof![Just(0), Just(1), Just(-1), any::<i32>()].prop_map(Bson::from),
        any::<i64>().prop_map(Bson::from),
        any::<f64>().prop_map(Bson::from),
        prop_oneof![
            Just("c".to_owned()),
            Just("$a".to_owned()),
            Just("*".to_owned()),
            Just("a".to_owned()),
            Just("$$ROOT".to_owned()),
            Just(String::new()),
            Just("(".to_owned()),
        ]
        .prop_map(Bson::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let field = (proptest::sample::select(NAMES.to_vec()), inner.clone());
        prop_oneof![
            proptest::collection::vec(inner, 0..3).prop_map(Bson::Array),
            proptest::collection::vec(field, 0..4).prop_map(|fields| {
                let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
                Bson::Document(fields.collect())
            }),
        ]
    })
}

fn command() -> impl Strategy<Value = Document> {
    let first = prop_oneof![4 => Just(Bson::from("c")), 1 => value()];
    let field = (proptest::sample::select(FIELDS.to_vec()), value());
    (proptest::sample::select(COMMANDS.to_vec()), first, proptest::collection::vec(field, 0..5))
        .prop_map(|(name, first, fields)| {
            let mut command = doc! {name: first};
            command.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
            command
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn every_command_gets_a_reply(commands in proptest::collection::vec(command(), 1..12)) {
        let member = Member::for_tests();
        member.insert("c", (0..4).map(|n| doc! {"_id": n, "a": [n, {"b": n}]}).collect());
        for command in commands {
            let reply = member.run(command.clone());
            prop_assert!(reply.get_f64("ok").is_ok(), "{command} answered {reply}");
        }
        while member.node.maintain(now()).unwrap() {}
        for name in ["c", "a", "$a"] {
            let reply = member.run(doc! {"validate": name});
            if reply.get_f64("ok").unwrap() == 1.0 {
                prop_assert!(reply.get_bool("valid").unwrap(), "{reply}");
            }
        }
    }
}
