//! Indexes: how they are built, what they refuse, and which one explain names.

use super::*;

#[test]
fn indexes_are_built_over_what_is_there_and_kept_up() {
    let member = Member::new();
    member.insert("c", (0..10).map(|n| doc! {"_id": n, "a": n % 3, "tags": [n, n + 1]}).collect());
    let reply = member.ok(doc! {"createIndexes": "c", "indexes": [
        {"key": {"a": 1, "_id": -1}, "name": "a_1__id_-1"},
        {"key": {"tags": 1}, "name": "tags_1"},
    ]});
    assert_eq!(reply.get_i32("numIndexesAfter").unwrap(), 3);
    member.insert("c", vec![doc! {"_id": 10, "a": 1, "tags": []}]);
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": 4}, "limit": 1}]});
    member.validate("c");
    assert_eq!(member.ids(doc! {"find": "c", "filter": {"a": 1}}), [10, 7, 1]);
    assert_eq!(member.ids(doc! {"find": "c", "filter": {"tags": 5}}), [5]);
    assert_eq!(
        member.code(doc! {"createIndexes": "c", "indexes": [
        {"key": {"b": 1}, "name": "tags_1"}]}),
        86
    );
    assert_eq!(
        member.code(doc! {"createIndexes": "c", "indexes": [
        {"key": {"a": 1, "_id": -1}, "name": "other"}]}),
        85
    );
    assert_eq!(
        member.code(doc! {"createIndexes": "c", "indexes": [
        {"key": {"a": 1}, "name": "u", "unique": true}]}),
        11000
    );
    member.ok(doc! {"dropIndexes": "c", "index": "a_1__id_-1"});
    assert_eq!(member.code(doc! {"dropIndexes": "c", "index": "a_1__id_-1"}), 27);
    assert_eq!(member.code(doc! {"dropIndexes": "c", "index": "_id_"}), 72);
    let listed = member.drain(member.ok(doc! {"listIndexes": "c"}), "c");
    assert_eq!(listed.len(), 2);
    assert_eq!(member.code(doc! {"listIndexes": "missing"}), 26);
    while member.node.maintain(now()).unwrap() {}
    member.validate("c");
}

#[test]
fn unique_sparse_and_partial_indexes_refuse_only_what_they_hold() {
    let member = Member::new();
    member.ok(doc! {"createIndexes": "c", "indexes": [
        {"key": {"s": 1}, "name": "s", "unique": true, "sparse": true},
        {"key": {"p": 1}, "name": "p", "unique": true,
            "partialFilterExpression": {"on": true}},
    ]});
    member.insert("c", vec![doc! {}, doc! {}, doc! {"p": 1}, doc! {"p": 1, "on": true, "s": 1}]);
    for duplicate in [doc! {"s": 1}, doc! {"p": 1, "on": true}] {
        let reply = member.ok(doc! {"insert": "c", "documents": [duplicate]});
        assert_eq!(reply.get_i32("n").unwrap(), 0, "{reply}");
    }
    // A sparse index must not hide the documents it leaves out.
    assert_eq!(member.find(doc! {"find": "c", "filter": {"s": Bson::Null}}).len(), 3);
    assert_eq!(member.find(doc! {"find": "c", "filter": {"p": 1}}).len(), 2);
    member.validate("c");
}

/// The update touches no field of the index, but one of its filter.
#[test]
fn an_update_moves_a_document_into_and_out_of_a_partial_index() {
    let member = Member::new();
    let index = doc! {"key": {"p": 1}, "name": "p", "partialFilterExpression": {"on": true}};
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    member.insert("c", vec![doc! {"_id": 1, "p": 1, "on": true}, doc! {"_id": 2, "p": 1}]);
    for (id, on) in [(2, true), (1, false), (2, false), (1, true)] {
        let update = doc! {"q": {"_id": id}, "u": {"$set": {"on": on}}};
        member.ok(doc! {"update": "c", "updates": [update]});
        let filter = doc! {"p": 1, "on": true};
        let indexed = member.find(doc! {"find": "c", "filter": filter.clone(), "hint": "p"});
        let scanned = member.find(doc! {"find": "c", "filter": filter, "hint": {"$natural": 1}});
        assert_eq!(indexed.len(), scanned.len(), "{id} {on}");
        member.validate("c");
    }
}

#[test]
fn expired_documents_go() {
    let member = Member::new();
    let index = doc! {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 60};
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    let date = |seconds: i64| {
        Bson::DateTime(bson::DateTime::from_millis(now().wall.as_millis() - seconds * 1000))
    };
    member.insert(
        "c",
        vec![
            doc! {"_id": 1, "at": date(61)},
            doc! {"_id": 2, "at": date(59)},
            doc! {"_id": 3, "at": "never"},
            doc! {"_id": 4},
            doc! {"_id": 5, "at": [date(0), date(100)]},
        ],
    );
    assert_eq!(member.node.remove_expired(now()).unwrap(), 2);
    assert_eq!(member.ids(doc! {"find": "c"}), [2, 3, 4]);
    member.validate("c");
}

#[test]
fn an_update_that_breaks_a_unique_index_changes_nothing() {
    let member = Member::new();
    let index = doc! {"key": {"u": 1}, "name": "u", "unique": true};
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    member.insert("c", vec![doc! {"_id": 1, "u": 1}, doc! {"_id": 2, "u": 2}]);
    let reply =
        member.ok(doc! {"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"u": 1}}}]});
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), 11000);
    assert_eq!(member.ids(doc! {"find": "c", "filter": {"u": 2}}), [2]);
    member.validate("c");
}

#[test]
fn a_join_by_an_index_finds_what_a_join_without_one_finds_and_explain_tells() {
    let member = Member::new();
    member.insert(
        "c",
        vec![
            doc! {"_id": 1, "of": 1},
            doc! {"_id": 2, "of": [2, 3]},
            doc! {"_id": 3},
            doc! {"_id": 4, "of": Bson::Null},
            doc! {"_id": 5, "of": 99},
        ],
    );
    let others = [
        doc! {"_id": 1, "key": 1},
        doc! {"_id": 2, "key": [1, 2]},
        doc! {"_id": 3, "key": Bson::Null},
        doc! {"_id": 4},
        doc! {"_id": 5, "key": 3.0},
    ];
    member.insert("others", others.to_vec());
    let lookup =
        doc! {"$lookup": {"from": "others", "localField": "of", "foreignField": "key", "as": "k"}};
    let run = || {
        let sorted = doc! {"$set": {"k": {"$sortArray": {"input": "$k", "sortBy": {"_id": 1}}}}};
        let pipeline = vec![lookup.clone(), sorted];
        member.drain(member.ok(doc! {"aggregate": "c", "pipeline": pipeline, "cursor": {}}), "c")
    };
    let explain = || {
        let inner = doc! {"aggregate": "c", "pipeline": [lookup.clone()], "cursor": {}};
        let reply = member.ok(doc! {"explain": inner});
        let stage = reply.get_array("stages").unwrap()[1].as_document().unwrap().clone();
        let index = stage.get_str("indexName").ok().map(str::to_owned);
        (stage.get_str("strategy").unwrap().to_owned(), index)
    };
    let without = run();
    assert_eq!(explain(), ("HashJoin".to_owned(), None));
    let ids = |place: usize| -> Vec<_> {
        let found = without[place].get_array("k").unwrap().iter();
        found.map(|other| other.as_document().unwrap().get_i32("_id").unwrap()).collect()
    };
    assert_eq!([ids(0), ids(1), ids(2), ids(4)], [vec![1, 2], vec![2, 5], vec![3, 4], vec![]]);
    // Such an index does not hold every document.
    let sparse = doc! {"key": {"key": 1}, "name": "sparse", "sparse": true};
    member.ok(doc! {"createIndexes": "others", "indexes": [sparse]});
    assert_eq!((run(), explain().1), (without.clone(), None));
    let whole = doc! {"key": {"key": 1, "_id": 1}, "name": "whole"};
    member.ok(doc! {"createIndexes": "others", "indexes": [whole]});
    assert_eq!(explain(), ("IndexedLoopJoin".to_owned(), Some("whole".to_owned())));
    assert_eq!(run(), without);
}

#[test]
fn explain_says_which_index_is_used() {
    let member = Member::new();
    member.insert("c", (0..20).map(|n| doc! {"_id": n, "a": n % 5}).collect());
    let explain = |filter: Document| {
        let reply = member.ok(doc! {"explain": {"find": "c", "filter": filter}});
        let plan = reply.get_document("queryPlanner").unwrap().get_document("winningPlan").unwrap();
        let stats = reply.get_document("executionStats").unwrap();
        let examined = stats.get_i64("totalDocsExamined").unwrap();
        let input = plan.get_document("inputStage").ok();
        let index = input.map(|stage| stage.get_str("indexName").unwrap().to_owned());
        (plan.get_str("stage").unwrap().to_owned(), index, examined)
    };
    assert_eq!(explain(doc! {"a": 3}), ("COLLSCAN".to_owned(), None, 20));
    member.ok(doc! {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]});
    assert_eq!(explain(doc! {"a": 3}), ("FETCH".to_owned(), Some("a_1".to_owned()), 4));
    assert_eq!(explain(doc! {"_id": 3}), ("IDHACK".to_owned(), None, 1));
    let range = doc! {"_id": {"$gte": 3, "$lt": 5}};
    assert_eq!(explain(range), ("FETCH".to_owned(), Some("_id_".to_owned()), 2));
    let reply = member.ok(doc! {"explain": {"find": "c", "filter": {"_id": 3}}});
    assert!(reply.get_document("queryPlanner").unwrap().get_array("rejectedPlans").is_ok());
    for (projection, expected) in [
        (doc! {"a": 1, "_id": false}, "PROJECTION_SIMPLE"),
        (doc! {"a.b": 1}, "PROJECTION_DEFAULT"),
        (doc! {"b": {"$add": ["$a", 1]}}, "PROJECTION_DEFAULT"),
    ] {
        let find = doc! {"find": "c", "filter": {"_id": 3}, "projection": &projection};
        let reply = member.ok(doc! {"explain": find});
        let plan = reply.get_document("queryPlanner").unwrap().get_document("winningPlan").unwrap();
        assert_eq!(plan.get_str("stage").unwrap(), expected);
        assert_eq!(plan.get_document("transformBy").unwrap(), &projection);
        assert_eq!(plan.get_document("inputStage").unwrap().get_str("stage").unwrap(), "IDHACK");
    }
}

#[test]
fn the_index_on_id_may_be_asked_for_again_as_what_it_is() {
    let member = Member::new();
    member.ok(doc! {"createIndexes": "c", "indexes": [{"key": {"_id": 1}, "name": "_id_"}]});
    member
        .ok(doc! {"createIndexes": "c", "indexes": [{"key": {"_id": 1}, "name": "_id_", "v": 2}]});
    // Everything else is refused, also what is true of it anyway.
    for (option, value) in [
        ("unique", Bson::from(true)),
        ("unique", false.into()),
        ("sparse", true.into()),
        ("background", true.into()),
        ("expireAfterSeconds", 60.into()),
        ("partialFilterExpression", doc! {"a": 1}.into()),
        ("hidden", true.into()),
    ] {
        let spec = doc! {"key": {"_id": 1}, "name": "_id_", option: value};
        assert_eq!(member.code(doc! {"createIndexes": "c", "indexes": [spec]}), 197, "{option}");
    }
    let other = doc! {"key": {"_id": -1}, "name": "_id_-1", "background": true};
    member.ok(doc! {"createIndexes": "d", "indexes": [other]});
    let listed = member.drain(member.ok(doc! {"listIndexes": "c"}), "$cmd.listIndexes.c");
    assert_eq!(listed.len(), 1, "{listed:?}");
}

/// Records that lie one after the other are read on instead of looked up, over small gaps and in both
/// directions; what is found must not depend on it.
#[test]
fn an_index_finds_the_same_documents_whatever_the_order_and_gaps_of_their_records() {
    let member = Member::new();
    // By the first field records rise, by the second they fall, by the third they are scattered.
    let document = |n: i32| doc! {"_id": n, "up": n, "down": -n, "scattered": (n * 7919) % 1009};
    member.insert("c", (0..400).map(document).collect());
    for field in ["up", "down", "scattered"] {
        let index = doc! {"key": {field: 1}, "name": field};
        member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    }
    // Gaps of one to nine records.
    let mut gone: Vec<i32> = Vec::new();
    for gap in 1..10 {
        gone.extend((0..gap).map(|n| gap * 30 + n));
    }
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": {"$in": &gone}}, "limit": 0}]});
    let left: Vec<i32> = (0..400).filter(|n| !gone.contains(n)).collect();
    for field in ["up", "down", "scattered"] {
        for direction in [1, -1] {
            let found = member.find(doc! {
                "find": "c", "hint": field, "sort": {field: direction}, "batchSize": 500,
            });
            let mut expected: Vec<Document> = left.iter().map(|&n| document(n)).collect();
            expected.sort_by_key(|document| document.get_i32(field).unwrap() * direction);
            assert_eq!(found, expected, "{field} {direction}");
        }
    }
}

/// Keys that rise are not looked up; whichever way the greatest one came, it is taken.
#[test]
fn a_unique_key_is_taken_however_it_came() {
    let member = Member::new();
    let index = doc! {"key": {"u": 1}, "name": "u", "unique": true};
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    let taken = |id: i32, u: i32| {
        let reply = member.ok(doc! {"insert": "c", "documents": [{"_id": id, "u": u}]});
        reply.contains_key("writeErrors")
    };
    let set = |id: i32, u: i32| {
        let updates = vec![doc! {"q": {"_id": id}, "u": {"$set": {"u": u}}}];
        member.ok(doc! {"update": "c", "updates": updates}).contains_key("writeErrors")
    };
    assert!(!taken(1, 10) && taken(2, 10), "by an insert");
    assert!(!set(1, 20) && taken(2, 20), "by an update");
    assert!(!taken(2, 15) && set(2, 20), "an update to a taken key");
    assert!(!taken(3, 10), "a key that was given up");
    let documents: Vec<Document> = vec![doc! {"_id": 4, "u": 30}, doc! {"_id": 5, "u": 30}];
    let reply = member.ok(doc! {"insert": "c", "documents": documents});
    assert_eq!(reply.get_i32("n").unwrap(), 1, "within one command");
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"_id": 4}, "limit": 1}]});
    assert!(!taken(4, 30), "by no document after a delete");
    let restarted = Member::over(member.store.crash(member.store.last_committed()));
    let reply = restarted.ok(doc! {"insert": "c", "documents": [{"_id": 9, "u": 30}]});
    assert!(reply.contains_key("writeErrors"), "before a restart");
    let index = doc! {"key": {"v": 1}, "name": "v", "unique": true, "sparse": true};
    restarted.insert("c", vec![doc! {"_id": 20, "u": 40, "v": 7}]);
    restarted.ok(doc! {"createIndexes": "c", "indexes": [index]});
    let reply = restarted.ok(doc! {"insert": "c", "documents": [{"_id": 21, "u": 41, "v": 7}]});
    assert!(reply.contains_key("writeErrors"), "before its index was built");
    restarted.validate("c");
}

#[test]
fn a_running_index_build_tells_how_far_it_is() {
    let member = Member::new();
    member.insert("c", (0..50).map(|id| doc! {"_id": id, "a": id}).collect());
    let build =
        doc! {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}], "$db": "db"};
    let (context, command) = (context(), Command::new(build));
    let registered = member.node.register(&context, &command);
    assert!(matches!(member.node.run(&context, command), Outcome::Reply(_)));
    // It is over only when the thread that ran it lets go.
    let builds = || {
        let reply = member.ok(doc! {"currentOp": 1, "command.createIndexes": "c", "$db": "admin"});
        reply.get_array("inprog").unwrap().clone()
    };
    let running = builds();
    let [Bson::Document(build)] = running.as_slice() else { panic!("{running:?}") };
    let progress = build.get_document("progress").unwrap();
    assert_eq!(progress, &doc! {"done": 50_i64, "total": 50_i64});
    assert!(build.get_str("msg").unwrap().contains("100"), "{build}");
    drop(registered);
    assert!(builds().is_empty());
}

#[test]
fn references_are_found_joined_and_indexed_by_their_fields() {
    let member = Member::new();
    let reference = |id: i32| doc! {"$ref": "d", "$id": id};
    member
        .insert("c", vec![doc! {"_id": 1, "r": reference(7), "all": [reference(7), reference(8)]}]);
    member.insert("d", vec![doc! {"_id": 7, "name": "seven"}]);
    let index = doc! {"key": {"r.$id": 1}, "name": "by_reference"};
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    assert_eq!(member.ids(doc! {"find": "c", "filter": {"r.$id": 7}}), [1]);
    let element = doc! {"all": {"$elemMatch": {"$id": 8, "$ref": "d"}}};
    assert_eq!(member.ids(doc! {"find": "c", "filter": element}), [1]);
    assert_eq!(member.code(doc! {"find": "c", "filter": {"$id": 8}}), 2);
    let joined =
        doc! {"$lookup": {"from": "d", "localField": "r.$id", "foreignField": "_id", "as": "j"}};
    let shown = doc! {"$project": {"id": "$r.$id", "names": "$j.name", "ids": {"$map": {"input": "$all", "in": "$$this.$id"}}}};
    let pipeline = vec![Bson::from(joined), Bson::from(shown)];
    let reply = member.ok(doc! {"aggregate": "c", "pipeline": pipeline, "cursor": {}});
    let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let expected = doc! {"_id": 1, "id": 7, "names": ["seven"], "ids": [7, 8]};
    assert_eq!(found, &[Bson::from(expected)]);
    for pulled in [reference(8), doc! {"$id": 7}] {
        let pull = doc! {"q": {"_id": 1}, "u": {"$pull": {"all": pulled}}};
        let reply = member.ok(doc! {"update": "c", "updates": [pull]});
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    }
    assert_eq!(member.ids(doc! {"find": "c", "filter": {"all": []}}), [1]);
}

/// A number in a path is a place in an array, or the name of a field of its elements. An index holds one of the two.
#[test]
fn a_number_in_the_path_of_an_index_means_one_thing() {
    let member = Member::new();
    member.ok(doc! {"createIndexes": "c", "indexes": [{"key": {"a.1": 1}, "name": "n"}]});
    member.insert("c", vec![doc! {"_id": 1, "a": [{"1": 5}]}, doc! {"_id": 2, "a": [4, 5]}]);
    assert_eq!(member.ids(doc! {"find": "c", "filter": {"a.1": 5}, "hint": "n"}), [1, 2]);
    assert_eq!(member.ids(doc! {"find": "c", "filter": {"a.1": {"$gte": 5, "$lt": 6}}}), [1, 2]);
    let both = doc! {"_id": 3, "a": [{"1": 5}, 6]};
    let reply = member.run(doc! {"insert": "c", "documents": [both.clone()]});
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), 16746);
    member.insert("d", vec![both]);
    let index = doc! {"createIndexes": "d", "indexes": [{"key": {"a.1": 1}, "name": "n"}]};
    assert_eq!(member.code(index), 16746);
    member.validate("c");
}

/// What a partial index does not hold does not expire, and neither does what its index no longer says.
#[test]
fn documents_outside_a_partial_index_do_not_expire() {
    let member = Member::new();
    let old = bson::DateTime::from_millis(0);
    let index = doc! {
        "key": {"t": 1}, "name": "t_1", "expireAfterSeconds": 60,
        "partialFilterExpression": {"done": true},
    };
    member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    member.insert(
        "c",
        vec![
            doc! {"_id": 1, "t": old, "done": true},
            doc! {"_id": 2, "t": old, "done": false},
            doc! {"_id": 3, "t": old},
        ],
    );
    assert_eq!(member.node.remove_expired(now()).unwrap(), 1);
    assert_eq!(member.ids(doc! {"find": "c"}), [2, 3]);
    member.validate("c");
}

#[test]
fn an_index_may_be_asked_for_again_in_other_words() {
    let member = Member::new();
    let ask = |options: Document| {
        let mut index = doc! {"key": {"a": 1}, "name": "a_1"};
        index.extend(options);
        doc! {"createIndexes": "c", "indexes": [index]}
    };
    member.ok(ask(doc! {"unique": false, "expireAfterSeconds": 60}));
    for same in [
        doc! {"expireAfterSeconds": 60},
        doc! {"expireAfterSeconds": 60.0, "sparse": false, "background": true},
        doc! {"expireAfterSeconds": 60_i64, "hidden": true},
    ] {
        let reply = member.ok(ask(same));
        assert_eq!(reply.get_i32("numIndexesAfter").unwrap(), 2, "{reply}");
    }
    member.ok(doc! {"collMod": "c", "index": {"name": "a_1", "hidden": true}});
    member.ok(ask(doc! {"expireAfterSeconds": 60}));
    for other in [doc! {}, doc! {"expireAfterSeconds": 61}] {
        assert_eq!(member.code(ask(other)), 85);
    }
    // That is another index, whose name is taken.
    assert_eq!(member.code(ask(doc! {"expireAfterSeconds": 60, "unique": true})), 86);
}

/// The manual, partial, sparse and unique indexes: since 5.0 the same fields may have several indexes, which differ in
/// that.
#[test]
fn the_same_fields_may_have_indexes_of_several_kinds() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1, "a": 1, "b": 1}, doc! {"_id": 2, "a": 1, "b": 9}]);
    let create = |name: &str, options: Document| {
        let mut index = doc! {"key": {"a": 1}, "name": name};
        index.extend(options);
        doc! {"createIndexes": "c", "indexes": [index]}
    };
    member.ok(create("plain", doc! {}));
    let large = doc! {"partialFilterExpression": {"b": {"$gt": 5}}};
    member.ok(create("large", large.clone()));
    member.ok(create("small", doc! {"partialFilterExpression": {"b": {"$lt": 5}}}));
    member.ok(create("sparse", doc! {"sparse": true}));
    let mut unique = large.clone();
    unique.insert("unique", true);
    member.ok(create("unique", unique));
    member.validate("c");
    assert_eq!(member.code(create("other", large.clone())), 85, "it has another name");
    assert_eq!(member.code(create("plain", large.clone())), 86, "the name is another index's");
    assert_eq!(member.code(create("plain", doc! {"expireAfterSeconds": 5})), 85);
    let found = |hint: Bson, filter: Document| {
        member.run(doc! {"find": "c", "filter": filter, "hint": hint})
    };
    let ids = |name: &str, filter: Document| {
        let reply = found(name.into(), filter);
        member.drain(reply, "c").iter().map(|it| it.get_i32("_id").unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(ids("plain", doc! {"a": 1}), [1, 2]);
    assert_eq!(ids("large", doc! {"a": 1, "b": {"$gt": 6}}), [2]);
    assert_eq!(ids("small", doc! {"a": 1, "b": {"$lt": 4}}), [1]);
    // Fields alone name none of them.
    let key = doc! {"a": 1};
    assert_eq!(found(key.clone().into(), key.clone()).get_i32("code").unwrap(), 181);
    assert_eq!(member.code(doc! {"dropIndexes": "c", "index": key.clone()}), 181);
    let hide = doc! {"collMod": "c", "index": {"keyPattern": key, "hidden": true}};
    assert_eq!(member.code(hide), 181);
    let duplicate = member.run(doc! {"insert": "c", "documents": [{"_id": 3, "a": 1, "b": 8}]});
    assert!(duplicate.contains_key("writeErrors"), "{duplicate}");
    member.insert("c", vec![doc! {"_id": 4, "a": 1, "b": 2}]);
    member.validate("c");
}

/// The manual, `createIndexes`: either all of the indexes are made or none.
#[test]
fn one_command_makes_all_of_its_indexes_or_none() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1, "a": 1, "b": 1}, doc! {"_id": 2, "a": 2, "b": 1}]);
    let index =
        |field: &str, unique: bool| doc! {"key": {field: 1}, "name": field, "unique": unique};
    let create = |indexes: Vec<Document>| doc! {"createIndexes": "c", "indexes": indexes};
    let names = || -> Vec<String> {
        let listed = member.drain(member.ok(doc! {"listIndexes": "c"}), "c");
        listed.iter().map(|it| it.get_str("name").unwrap().to_owned()).collect()
    };
    member.ok(create(vec![index("x", false)]));
    let failing = vec![index("x", false), index("a", true), index("y", false), index("b", true)];
    assert_eq!(member.code(create(failing)), 11000);
    assert_eq!(names(), ["_id_", "x"], "what was there before stays");
    member.ok(create(vec![index("a", true), index("y", false)]));
    assert_eq!(names(), ["_id_", "x", "a", "y"]);
    member.validate("c");
}

/// What is never used can be dropped, and `$indexStats` is how one finds out.
#[test]
fn an_index_counts_the_operations_that_read_it() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1, "a": 1}, doc! {"_id": 2, "a": 2}]);
    member.insert("d", vec![doc! {"_id": 1}]);
    for name in ["a", "b"] {
        let index = doc! {"key": {name: 1}, "name": name};
        member.ok(doc! {"createIndexes": "c", "indexes": [index]});
    }
    let uses = |name: &str| {
        let stats = doc! {"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}};
        let stats = member.drain(member.ok(stats), "c");
        let of = stats.iter().find(|index| index.get_str("name").unwrap() == name).unwrap();
        of.get_document("accesses").unwrap().get_i64("ops").unwrap()
    };
    assert_eq!((uses("a"), uses("b"), uses("_id_")), (0, 0, 0));
    member.ok(doc! {"find": "c", "filter": {"a": 1}});
    member.ok(doc! {"count": "c", "query": {"a": {"$gt": 1}}});
    member.ok(doc! {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"z": 1}}}]});
    member.ok(doc! {"delete": "c", "deletes": [{"q": {"a": 7}, "limit": 1}]});
    member.ok(doc! {"aggregate": "c", "pipeline": [{"$match": {"a": 1}}], "cursor": {}});
    assert_eq!((uses("a"), uses("b"), uses("_id_")), (5, 0, 0));
    let join =
        doc! {"$lookup": {"from": "c", "localField": "_id", "foreignField": "a", "as": "found"}};
    member.ok(doc! {"aggregate": "d", "pipeline": [join], "cursor": {}});
    assert_eq!(uses("a"), 6);
    member.ok(doc! {"find": "c", "filter": {"_id": 1}});
    // An index that has met an array is described anew, and counts on.
    member.insert("c", vec![doc! {"_id": 3, "a": [1, 2]}]);
    assert_eq!((uses("a"), uses("b"), uses("_id_")), (6, 0, 1));
}

/// Specification: the manual's page on partial indexes.
#[test]
fn a_partial_index_has_a_filter_of_few_kinds() {
    let member = Member::new();
    let create = |filter: Document| {
        let index = doc! {"key": {"a": 1}, "name": "a", "partialFilterExpression": filter};
        doc! {"createIndexes": "c", "indexes": [index]}
    };
    let refused = [
        doc! {"a": {"$ne": 1}},
        doc! {"a": {"$exists": false}},
        doc! {"a": {"$not": {"$gt": 1}}},
        doc! {"$nor": [{"a": 1}]},
        doc! {"$and": [{"a": {"$regex": "x"}}]},
        doc! {"a": bson::Regex { pattern: "x".try_into().unwrap(), options: "".try_into().unwrap() }},
    ];
    for filter in refused {
        assert_eq!(member.code(create(filter.clone())), 67, "{filter}");
    }
    let kept = doc! {
        "$or": [{"a": {"$gt": 1, "$lte": 9}}, {"b": {"$exists": true}}],
        "$and": [{"c": {"$in": [1, 2]}}, {"d": {"$type": "int"}}],
        "e": {"x": 1},
    };
    member.ok(create(kept));
}

#[test]
fn a_hashed_index_is_not_unique() {
    let member = Member::new();
    let index = doc! {"key": {"a": "hashed"}, "name": "a", "unique": true};
    assert_eq!(member.code(doc! {"createIndexes": "c", "indexes": [index]}), 16764);
}

/// The stage that uses no other.
fn innermost(stage: &Document) -> &Document {
    stage.get_document("inputStage").map_or(stage, innermost)
}

#[test]
fn explain_tells_what_came_of_each_stage() {
    let member = Member::new();
    member.insert("c", (0..20).map(|n| doc! {"_id": n, "a": n % 5}).collect());
    member.ok(doc! {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]});
    let stats = |command: Document| {
        let reply = member.ok(doc! {"explain": command, "verbosity": "executionStats"});
        reply.get_document("executionStats").unwrap().clone()
    };
    let find = stats(doc! {"find": "c", "filter": {"a": 3}, "limit": 2, "skip": 1});
    let stages = find.get_document("executionStages").unwrap();
    assert_eq!(stages.get_str("stage").unwrap(), "LIMIT");
    assert_eq!(stages.get_i64("nReturned").unwrap(), 2);
    let scan = innermost(stages);
    assert_eq!(scan.get_str("stage").unwrap(), "IXSCAN");
    assert_eq!(scan.get_i64("keysExamined").unwrap(), 3);
    let writes: [(Document, &str, &str, i64); 4] = [
        (doc! {"count": "c", "query": {"a": 3}}, "COUNT", "nCounted", 4),
        (
            doc! {"delete": "c", "deletes": [{"q": {"a": 3}, "limit": 0}]},
            "DELETE",
            "nWouldDelete",
            4,
        ),
        (
            doc! {"update": "c", "updates": [{"q": {"a": 3}, "u": {"$set": {"b": 1}}}]},
            "UPDATE",
            "nMatched",
            1,
        ),
        (
            doc! {"findAndModify": "c", "query": {"a": 3}, "remove": true},
            "DELETE",
            "nWouldDelete",
            1,
        ),
    ];
    for (command, stage, figure, expected) in writes {
        let stats = stats(command.clone());
        let top = stats.get_document("executionStages").unwrap();
        assert_eq!(top.get_str("stage").unwrap(), stage, "{command}");
        assert_eq!(top.get_i64(figure).unwrap(), expected, "{command}");
    }
    let none = stats(doc! {"find": "nothing"});
    assert_eq!(none.get_document("executionStages").unwrap().get_str("stage").unwrap(), "EOF");
}

#[test]
fn explain_of_a_pipeline_tells_what_its_query_examined() {
    let member = Member::new();
    member.insert("c", (0..20).map(|n| doc! {"_id": n, "a": n % 5}).collect());
    let pipeline = doc! {"aggregate": "c", "pipeline": [{"$match": {"a": 3}}], "cursor": {}};
    let reply = member.ok(doc! {"explain": pipeline, "verbosity": "executionStats"});
    // A pipeline that is a query is explained as one.
    let stats = reply.get_document("executionStats").unwrap();
    assert_eq!(stats.get_i64("totalDocsExamined").unwrap(), 20);
    assert_eq!(stats.get_i64("nReturned").unwrap(), 4);
    let command = reply.get_document("command").unwrap();
    assert_eq!(command.get_str("aggregate").unwrap(), "c");
}

/// The stages that the query takes over are told once, as the query, and with their limits.
#[test]
fn explain_of_a_pipeline_tells_each_stage_once() {
    let member = Member::new();
    member.insert("c", (0..20).map(|n| doc! {"_id": n, "a": n % 5}).collect());
    let explain = |pipeline: Vec<Document>| {
        let inner = doc! {"aggregate": "c", "pipeline": pipeline, "cursor": {}};
        let reply = member.ok(doc! {"explain": inner, "verbosity": "executionStats"});
        assert_eq!(reply.get_str("explainVersion").unwrap(), "1", "{reply}");
        let stages = reply.get_array("stages").cloned().unwrap_or_default();
        let first = stages.first().and_then(|stage| stage.as_document());
        let query = first.map_or(&reply, |first| first.get_document("$cursor").unwrap());
        let stats = query.get_document("executionStats").unwrap();
        let names =
            stages.iter().map(|stage| stage.as_document().unwrap().keys().next().unwrap().clone());
        (stats.get_i64("totalDocsExamined").unwrap(), names.collect::<Vec<_>>())
    };
    let group = doc! {"$group": {"_id": "$a"}};
    let matches = doc! {"$match": {"_id": {"$gte": 5}}};
    let sort = doc! {"$sort": {"_id": 1}};
    let (skip, limit) = (doc! {"$skip": 1}, doc! {"$limit": 2});
    let none: Vec<String> = Vec::new();
    assert_eq!(explain(vec![limit.clone()]), (2, none.clone()));
    assert_eq!(explain(vec![sort.clone(), matches.clone(), skip, limit.clone()]), (3, none));
    assert_eq!(
        explain(vec![sort.clone(), sort.clone(), matches.clone(), group.clone()]).1,
        ["$cursor", "$sort", "$group"]
    );
    assert_eq!(explain(vec![limit, matches, group]).1, ["$cursor", "$match", "$group"]);
}

/// A plan without the limits of the index would promise more work than there is.
#[test]
fn explain_keeps_to_min_and_max() {
    let member = Member::new();
    member.insert("c", (0..20).map(|n| doc! {"_id": n}).collect());
    let find = doc! {"find": "c", "hint": {"_id": 1}, "min": {"_id": 5}, "max": {"_id": 8}};
    let reply = member.ok(doc! {"explain": find, "verbosity": "executionStats"});
    let stats = reply.get_document("executionStats").unwrap();
    assert_eq!(stats.get_i64("totalDocsExamined").unwrap(), 3);
}
