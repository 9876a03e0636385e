//! Fields that a command does not have are refused: a misspelt filter would match everything.

#![allow(clippy::unwrap_used)]

mod support;

use bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};
use quorate_node::{Command, Outcome};
use support::{Member, context};

const UNKNOWN_FIELD: i32 = 40415;

fn refusal(member: &Member, command: Document) -> String {
    let reply = member.run(command.clone());
    assert_eq!(reply.get_i32("code").ok(), Some(UNKNOWN_FIELD), "{command} answered {reply}");
    reply.get_str("errmsg").unwrap().to_owned()
}

#[test]
fn a_misspelt_field_is_refused_and_the_right_one_named() {
    let member = Member::new();
    member.insert("k", vec![doc! {"_id": 1}, doc! {"_id": 2}]);
    let message = refusal(&member, doc! {"find": "k", "fitler": {"_id": 2}});
    assert_eq!(message, "BSON field 'find.fitler' is an unknown field. Did you mean 'filter'?");
    for (command, field, meant) in [
        (doc! {"findAndModify": "k", "qurey": {"_id": 2}, "remove": true}, "qurey", "query"),
        (
            doc! {"update": "k", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "mutli": true}]},
            "mutli",
            "multi",
        ),
        (doc! {"delete": "k", "deletes": [{"q": {}, "limit": 0, "hnit": 1}]}, "hnit", "hint"),
        (doc! {"delete": "k", "delets": []}, "delets", "deletes"),
        (doc! {"count": "k", "qury": {"_id": 2}}, "qury", "query"),
        (doc! {"distinct": "k", "key": "x", "Query": {}}, "Query", "query"),
        (doc! {"aggregate": "k", "pipelin": [], "cursor": {}}, "pipelin", "pipeline"),
        (doc! {"create": "n", "caped": true, "size": 1000}, "caped", "capped"),
        (doc! {"explain": {"find": "k", "fliter": {}}}, "fliter", "filter"),
    ] {
        let message = refusal(&member, command);
        assert!(message.contains(&format!(".{field}' is an unknown field.")), "{message}");
        assert!(message.ends_with(&format!("Did you mean '{meant}'?")), "{message}");
    }
    let message = refusal(&member, doc! {"ping": 1, "whatever": 1});
    assert_eq!(message, "BSON field 'ping.whatever' is an unknown field.");
    // Nothing was done.
    assert_eq!(member.ids(doc! {"find": "k"}), [1, 2]);
    assert_eq!(member.ids(doc! {"find": "k", "filter": {"x": 1}}), [0; 0]);
}

/// A misspelt level reads what no majority has, a misspelt timeout waits without end.
#[test]
fn a_misspelt_field_of_a_nested_document_is_refused() {
    let member = Member::new();
    member.insert("k", vec![doc! {"_id": 1}]);
    let aggregate = |stage: Document| doc! {"aggregate": "k", "pipeline": [stage], "cursor": {}};
    let server =
        |stage: Document| doc! {"aggregate": 1, "pipeline": [stage], "cursor": {}, "$db": "admin"};
    for (command, field) in [
        (doc! {"find": "k", "readConcern": {"levl": "majority"}}, "readConcern.levl"),
        (
            doc! {"insert": "k", "documents": [{"_id": 2}], "writeConcern": {"w": 1, "wtimeoot": 1}},
            "writeConcern.wtimeoot",
        ),
        (
            doc! {"find": "k", "$readPreference": {"mode": "nearest", "tgas": []}},
            "$readPreference.tgas",
        ),
        (doc! {"aggregate": "k", "pipeline": [], "cursor": {"batchsize": 1}}, "cursor.batchsize"),
        (doc! {"listCollections": 1, "cursor": {"batchsize": 1}}, "cursor.batchsize"),
        (
            doc! {"explain": {"update": "k", "updates": [{"q": {}, "u": {}, "mutli": true}]}},
            "update.updates.mutli",
        ),
        (
            doc! {"explain": {"delete": "k", "deletes": [{"q": {}, "limit": 1, "hnit": 1}]}},
            "delete.deletes.hnit",
        ),
        (aggregate(doc! {"$out": {"db": "db", "coll": "o", "x": 1}}), "$out.x"),
        (aggregate(doc! {"$merge": {"into": {"bd": "db", "coll": "o"}}}), "$merge.into.bd"),
        (aggregate(doc! {"$collStats": {"cuont": {}}}), "$collStats.cuont"),
        (server(doc! {"$currentOp": {"allUser": true}}), "$currentOp.allUser"),
        (server(doc! {"$listLocalSessions": {"allUser": true}}), "$listLocalSessions.allUser"),
    ] {
        let message = refusal(&member, command);
        assert!(message.contains(&format!("'{field}' is an unknown field.")), "{message}");
    }
    assert_eq!(member.ids(doc! {"find": "k"}), [1]);
    let roles = bson::bson!([{"role": "read", "db": "db", "bd": "other"}]);
    let user = doc! {"createUser": "u", "pwd": "p", "roles": roles, "$db": "admin"};
    assert!(refusal(&member, user).contains("'roles.bd'"));
}

/// A driver that sends null for what was not given (Node's does unless it is told otherwise) gets the same answer:
/// MongoDB's parser of commands takes null for absent in every field that may be absent.
#[test]
fn null_in_an_optional_field_is_as_if_it_were_absent() {
    let member = support::set::primary();
    member.insert("k", (1..6).map(|id| doc! {"_id": id, "x": id % 2}).collect());
    let first = member.ok(doc! {"find": "k", "batchSize": 1});
    let cursor = first.get_document("cursor").unwrap().get_i64("id").unwrap();
    let generic = "comment maxTimeMS readConcern lsid apiVersion apiStrict apiDeprecationErrors";
    for (command, statements, optional) in [
        (
            doc! {"find": "k"},
            "",
            "filter sort projection hint skip limit singleBatch max min returnKey showRecordId tailable \
             awaitData allowDiskUse collation let noCursorTimeout allowPartialResults",
        ),
        (
            doc! {"aggregate": "k", "pipeline": [{"$match": {}}], "cursor": {}},
            "",
            "allowDiskUse bypassDocumentValidation collation hint let explain",
        ),
        (doc! {"getMore": cursor, "collection": "k"}, "", "batchSize"),
        (doc! {"count": "k"}, "", "query limit skip hint collation"),
        (doc! {"distinct": "k", "key": "x"}, "", "query collation hint"),
        (
            doc! {"insert": "k", "documents": [{"_id": 10}]},
            "",
            "ordered bypassDocumentValidation writeConcern",
        ),
        (
            doc! {"update": "k", "updates": [{"q": {"_id": 1}, "u": {"$set": {"y": 1}}}]},
            "updates: upsert multi collation hint arrayFilters",
            "ordered bypassDocumentValidation writeConcern let",
        ),
        (
            doc! {"delete": "k", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
            "deletes: collation hint",
            "ordered writeConcern let",
        ),
        (
            doc! {"findAndModify": "k", "query": {"_id": 2}, "update": {"$set": {"y": 1}}},
            "",
            "sort remove new upsert fields collation hint arrayFilters let bypassDocumentValidation writeConcern",
        ),
        (
            doc! {"createIndexes": "k", "indexes": [{"key": {"x": 1}, "name": "x"}]},
            "",
            "writeConcern commitQuorum",
        ),
        (
            doc! {"create": "made"},
            "",
            "capped size max validator collation writeConcern viewOn pipeline",
        ),
        (doc! {"listCollections": 1}, "", "filter nameOnly authorizedCollections"),
        (doc! {"listIndexes": "k"}, "", "cursor"),
        (doc! {"drop": "made"}, "", "writeConcern"),
    ] {
        let null = |name: &str| (name.to_owned(), Bson::Null);
        let mut nulls = command.clone();
        nulls.extend(optional.split_whitespace().chain(generic.split_whitespace()).map(null));
        if let Some((array, fields)) = statements.split_once(": ") {
            let items = nulls.get_array_mut(array).unwrap();
            let Bson::Document(statement) = &mut items[0] else { panic!("{array}") };
            statement.extend(fields.split_whitespace().map(null));
        }
        let reply = member.run(nulls.clone());
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{nulls} answered {reply}");
        assert!(!reply.contains_key("writeErrors"), "{nulls} answered {reply}");
    }
    assert_eq!(member.ids(doc! {"find": "k", "filter": {"y": 1}}), [2]);
    assert_eq!(member.ids(doc! {"find": "k"}), [2, 3, 4, 5, 10]);
}

#[test]
fn what_drivers_and_shells_send_along_is_taken() {
    let member = Member::new();
    let lsid = bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16] };
    let generic = doc! {
        "lsid": {"id": lsid},
        "comment": "why",
        "maxTimeMS": 1000,
        "apiVersion": "1",
        "apiStrict": false,
        "apiDeprecationErrors": false,
        "$readPreference": {"mode": "primary"},
        "$clusterTime": {"clusterTime": bson::Timestamp {time: 1, increment: 1}},
        "rawData": false,
    };
    let all = |mut command: Document| {
        command.extend(generic.clone());
        member.ok(command)
    };
    all(
        doc! {"insert": "c", "documents": [{"_id": 1}], "ordered": true, "bypassEmptyTsReplacement": false, "writeConcern": {"w": 1}},
    );
    all(
        doc! {"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": false, "upsert": false, "hint": "_id_", "arrayFilters": []}], "let": {}},
    );
    all(
        doc! {"delete": "c", "deletes": [{"q": {"_id": 9}, "limit": 1, "collation": {"locale": "simple"}}]},
    );
    all(
        doc! {"find": "c", "readConcern": {"level": "local"}, "oplogReplay": true, "allowPartialResults": false},
    );
    all(doc! {"aggregate": "c", "pipeline": [], "cursor": {}, "allowDiskUse": true});
    all(doc! {"ping": 1});
    all(doc! {"hello": 1, "anything": {"goes": "here"}});
    all(doc! {"serverStatus": 1, "metrics": 0});
    all(doc! {"getParameter": 1, "featureCompatibilityVersion": 1, "$db": "admin"});
}

#[test]
fn fields_that_are_not_offered_are_not_ignored() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}]);
    for command in [
        doc! {"collMod": "c", "cappedSize": 100},
        doc! {"validate": "c", "repair": true},
        doc! {"createUser": "u", "pwd": "p", "roles": [], "authenticationRestrictions": [{"clientSource": ["10.0.0.1"]}]},
        doc! {"drop": "c", "collectionUUID": bson::Binary {subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16]}},
    ] {
        let reply = member.run(command.clone());
        assert_eq!(reply.get_i32("code").ok(), Some(115), "{command} answered {reply}");
    }
    member.ok(doc! {"validate": "c", "repair": false});
}

#[test]
fn a_field_that_comes_twice_is_refused() {
    let mut body: RawDocumentBuf = rawdoc! {"find": "c", "filter": {"_id": 1}, "$db": "db"};
    body.append(bson::raw::cstr!("filter"), rawdoc! {});
    let error = Command::from_raw(&body, Vec::new()).unwrap_err();
    assert_eq!(error.code.0, 40413, "{error}");
    assert!(error.message.contains("find.filter"), "{error}");
}

#[test]
fn commands_that_are_not_offered_say_what_to_use_instead() {
    let member = Member::new();
    for (name, way) in [("mapReduce", "$group"), ("compact", "background"), ("applyOps", "insert")]
    {
        let Outcome::Reply(reply) =
            member.node.run(&context(), Command::new(doc! {name: "c", "$db": "db"}))
        else {
            panic!("{name} wants to wait");
        };
        assert_eq!(reply.body.get_i32("code").unwrap(), 59);
        let message = reply.body.get_str("errmsg").unwrap();
        assert!(message.contains("not offered") && message.contains(way), "{message}");
    }
    let message = member.run(doc! {"nonsense": 1});
    assert_eq!(message.get_str("errmsg").unwrap(), "no such command: 'nonsense'");
}

#[test]
fn a_command_that_says_which_collection_it_means_reads_no_other() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}]);
    member.insert("d", vec![doc! {"_id": 2}]);
    let uuid = |name: &str| {
        let listed = member.ok(doc! {"listCollections": 1, "filter": {"name": name}});
        let batch = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone();
        batch[0].as_document().unwrap().get_document("info").unwrap().get("uuid").unwrap().clone()
    };
    let (c, d) = (uuid("c"), uuid("d"));
    for command in ["find", "listIndexes"] {
        member.ok(doc! {command: "c", "collectionUUID": c.clone()});
        for (name, other) in [("c", &d), ("gone", &c)] {
            assert_eq!(member.code(doc! {command: name, "collectionUUID": other.clone()}), 361);
        }
        assert_eq!(member.code(doc! {command: "c", "collectionUUID": "c"}), 14);
    }
    member.ok(doc! {"renameCollection": "db.c", "to": "db.e", "$db": "admin"});
    assert_eq!(member.code(doc! {"find": "c", "collectionUUID": c.clone()}), 361);
    assert_eq!(member.ids(doc! {"find": "e", "collectionUUID": c}), [1]);
}

/// A value that is no value of an option is taken for another: `unique: "yes"` made an index that is not.
#[test]
fn values_that_an_option_cannot_have_are_refused() {
    let member = Member::new();
    member.insert("k", vec![doc! {"_id": 1, "a": 1}]);
    member.ok(doc! {"create": "v", "viewOn": "k", "pipeline": []});
    member.ok(doc! {"createIndexes": "k", "indexes": [{"key": {"a": 1}, "name": "a"}]});
    let index = |option: &str, value: Bson| doc! {"createIndexes": "k", "indexes": [{"key": {"b": 1}, "name": "b", option: value}]};
    let change = |index: Document| doc! {"collMod": "k", "index": index};
    for (command, code) in [
        (doc! {"explain": {"find": "k"}, "verbosity": "queryPlaner"}, 2),
        (doc! {"count": "k", "hint": "gone"}, 2),
        (doc! {"count": "k", "hint": true}, 9),
        (doc! {"create": "n", "validationLevel": "strct"}, 2),
        (doc! {"create": "n", "validationAction": "wran"}, 2),
        (doc! {"create": "n", "validationLevel": 1}, 14),
        (doc! {"create": "n", "storageEngine": "x"}, 14),
        (doc! {"create": "n", "autoIndexId": "x"}, 14),
        (doc! {"create": "n", "expireAfterSeconds": 5}, 72),
        (doc! {"create": "n", "capped": true, "size": 1000, "max": "x"}, 14),
        (doc! {"create": "n", "viewOn": "k", "validator": {}}, 72),
        (doc! {"renameCollection": "db.v", "to": "db.w", "$db": "admin"}, 166),
        (doc! {"renameCollection": "db.k", "to": "db.v", "dropTarget": true, "$db": "admin"}, 48),
        (doc! {"aggregate": "k", "pipeline": [{"$out": "v"}], "cursor": {}}, 166),
        (doc! {"aggregate": "k", "pipeline": [{"$merge": "v"}], "cursor": {}}, 166),
        (doc! {"collMod": "k", "validator": "x"}, 14),
        (doc! {"collMod": "k", "validator": {"$jsonSchma": {}}}, 2),
        (doc! {"collMod": "k", "validationLevel": "strct"}, 2),
        (doc! {"collMod": "k", "validationAction": true}, 14),
        (doc! {"collMod": "k", "viewOn": "other", "pipeline": []}, 72),
        (doc! {"collMod": "k", "pipeline": []}, 72),
        (doc! {"collMod": "v", "viewOn": "k"}, 72),
        (doc! {"collMod": "v", "viewOn": 1, "pipeline": []}, 14),
        (doc! {"collMod": "v", "validator": {}}, 72),
        (change(doc! {"name": "a", "hiden": true}), UNKNOWN_FIELD),
        (change(doc! {"name": "a"}), 72),
        (change(doc! {"hidden": true}), 72),
        (change(doc! {"name": "a", "keyPattern": {"a": 1}, "hidden": true}), 72),
        (change(doc! {"name": "a", "hidden": "yes"}), 14),
        (change(doc! {"name": "a", "expireAfterSeconds": "soon"}), 14),
        (change(doc! {"name": "a", "expireAfterSeconds": -1}), 72),
        (change(doc! {"name": "a", "unique": true}), 115),
        (change(doc! {"name": "_id_", "hidden": true}), 72),
        (index("unique", "yes".into()), 14),
        (index("sparse", doc! {}.into()), 14),
        (index("hidden", Bson::Array(Vec::new())), 14),
        (index("background", "x".into()), 14),
        (index("prepareUnique", true.into()), 115),
        (index("storageEngine", 1.into()), 14),
        (index("v", "5".into()), 14),
        (index("v", 7.into()), 67),
    ] {
        assert_eq!(member.code(command.clone()), code, "{command}");
    }
    // A view is changed, and a number is a truth.
    member.ok(doc! {"collMod": "v", "viewOn": "k", "pipeline": [{"$match": {"a": 2}}]});
    assert_eq!(member.ids(doc! {"find": "v"}), [0; 0]);
    member.ok(index("unique", 1.into()));
    member.insert("k", vec![doc! {"_id": 2, "b": 2}]);
    let again =
        doc! {"findAndModify": "k", "query": {"_id": 3}, "update": {"b": 2}, "upsert": true};
    assert_eq!(member.code(again), 11000);
}

#[test]
fn rules_for_documents_are_as_strict_as_was_said() {
    let member = Member::new();
    let write = |id: i32, a: i32| {
        doc! {"findAndModify": "k", "query": {"_id": id}, "update": {"$set": {"a": a}}, "upsert": true}
    };
    member.insert("k", vec![doc! {"_id": 1, "a": -1}]);
    let rules = doc! {"a": {"$gte": 0}};
    member.ok(doc! {"collMod": "k", "validator": rules, "validationLevel": "moderate"});
    assert_eq!(member.code(write(2, -1)), 121, "a new document");
    member.ok(write(1, -2));
    member.ok(write(1, 5));
    assert_eq!(member.code(write(1, -2)), 121, "it was as it should be");
    member.ok(doc! {"collMod": "k", "validationLevel": "off"});
    member.ok(write(1, -2));
    member.ok(doc! {"collMod": "k", "validationLevel": "strict"});
    assert_eq!(member.code(write(1, -3)), 121);
}
