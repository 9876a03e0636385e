//! Commands that ask for what no client means: they are refused, and change nothing.

use bson::{Bson, Document, RawDocumentBuf, doc};
use quorate_node::{Command, CommandError};

use super::support::{Member, context};

/// The query need not match the new document, so that it has no position in it.
#[test]
fn find_and_modify_gives_no_position_of_the_new_document() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1, "a": [1, 2]}]);
    let modify = |new: bool| {
        let set = doc! {"$set": {"a.$": 7}};
        doc! {"findAndModify": "c", "query": {"a": 2}, "update": set, "new": new, "fields": {"a.$": 1}}
    };
    assert_eq!(member.code(modify(true)), 2);
    let before = member.ok(modify(false));
    assert_eq!(before.get_document("value").unwrap(), &doc! {"_id": 1, "a": [2]});
}

/// A number that is no 1 is a slip, and would drop everything.
#[test]
fn drop_database_takes_1() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}]);
    for wrong in [Bson::from(2), Bson::from("db"), Bson::from(true)] {
        assert_eq!(member.code(doc! {"dropDatabase": wrong}), 5255100);
    }
    member.ok(doc! {"dropDatabase": 1.0});
    assert_eq!(member.ids(doc! {"find": "c"}), [] as [i32; 0]);
}

/// Such a user could never log in.
#[test]
fn a_user_has_a_mechanism() {
    let member = Member::new();
    let create = |mechanisms: Vec<&str>| {
        doc! {"createUser": "u", "pwd": "p", "roles": [], "mechanisms": mechanisms}
    };
    assert_eq!(member.code(create(Vec::new())), 2);
    assert_eq!(member.code(create(vec!["PLAIN"])), 2);
    member.ok(create(vec!["SCRAM-SHA-256"]));
}

/// Specification: server selection. A misspelt mode would read from a secondary.
#[test]
fn a_read_preference_that_no_client_means_is_refused() {
    let member = Member::new();
    let read = |preference: Bson| doc! {"find": "c", "$readPreference": preference};
    let refused: [(Bson, i32); 8] = [
        (1.into(), 14),
        (doc! {}.into(), 9),
        (doc! {"mode": "secondry"}.into(), 9),
        (doc! {"mode": 1}.into(), 14),
        (doc! {"mode": "primary", "tags": [{"dc": "a"}]}.into(), 2),
        (doc! {"mode": "nearest", "tags": [1]}.into(), 14),
        (doc! {"mode": "primary", "maxStalenessSeconds": 100}.into(), 2),
        (doc! {"mode": "nearest", "maxStalenessSeconds": 89}.into(), 160),
    ];
    for (preference, code) in refused {
        assert_eq!(member.code(read(preference.clone())), code, "{preference}");
    }
    for allowed in [
        doc! {"mode": "primary"},
        doc! {"mode": "primary", "tags": [], "maxStalenessSeconds": -1},
        doc! {"mode": "secondaryPreferred", "tags": [{"dc": "a"}, {}], "maxStalenessSeconds": 90},
        doc! {"mode": "nearest", "hedge": {"enabled": true}},
    ] {
        member.ok(read(allowed.into()));
    }
}

#[test]
fn what_cannot_be_explained_is_told_apart_from_what_is_no_command() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}]);
    let explain = |inner: Document| doc! {"explain": inner};
    assert_eq!(member.code(explain(doc! {"ping": 1})), 20);
    assert_eq!(member.code(explain(doc! {"insert": "c", "documents": [{}]})), 20);
    assert_eq!(member.code(explain(doc! {"explain": {"find": "c"}})), 20);
    assert_eq!(member.code(explain(doc! {"fnid": "c"})), 59);
    assert_eq!(member.code(explain(doc! {"find": "c", "$db": "other"})), 73);
    assert_eq!(member.code(explain(doc! {"find": ""})), 73);
    member.ok(explain(doc! {"find": "c", "$db": "db"}));
    member.ok(explain(doc! {"findandmodify": "c", "remove": true}));
}

fn beside(body: Document, name: &str, documents: &[Document]) -> Result<Command, CommandError> {
    let raw = |document: &Document| RawDocumentBuf::try_from(document).unwrap();
    let sequence = (name.to_owned(), documents.iter().map(raw).collect());
    Command::from_raw(&raw(&body), vec![sequence])
}

/// Specification: OP_MSG, "Sections". A sequence stands for the array of its name; one of the two would be lost.
#[test]
fn a_field_comes_in_the_body_or_beside_it() {
    let documents = [doc! {"_id": 1}];
    let both = doc! {"insert": "c", "documents": &documents[..], "$db": "db"};
    assert_eq!(beside(both, "documents", &documents).unwrap_err().code.0, 40433);
    let member = Member::new();
    let run = |command: Result<Command, CommandError>| match member
        .node
        .run(&context(), command.unwrap())
    {
        quorate_node::Outcome::Reply(reply) => Document::try_from(&*reply.body).unwrap(),
        other => panic!("the command did not answer: {other:?}"),
    };
    let insert = doc! {"insert": "c", "documents": &documents[..], "$db": "db"};
    let unknown = run(beside(insert, "others", &documents));
    assert_eq!(unknown.get_i32("code").unwrap(), 40415, "{unknown}");
    assert_eq!(member.ids(doc! {"find": "c"}), [] as [i32; 0]);
    member.insert("c", vec![doc! {"_id": 1}, doc! {"_id": 2}]);
    let aggregate = doc! {"aggregate": "c", "cursor": {}, "$db": "db"};
    let found = run(beside(aggregate, "pipeline", &[doc! {"$match": {"_id": 2}}]));
    assert_eq!(member.drain(found, "c"), [doc! {"_id": 2}]);
}

/// A limit that is cut down or taken for none would let the command run on.
#[test]
fn a_time_limit_is_a_whole_number_of_milliseconds() {
    let member = Member::new();
    let wrong: [Bson; 5] =
        [(-1).into(), 1.5.into(), (1_i64 << 31).into(), "1".into(), f64::NAN.into()];
    for limit in wrong {
        assert_eq!(member.code(doc! {"ping": 1, "maxTimeMS": limit.clone()}), 2, "{limit}");
    }
    for limit in [Bson::from(0), Bson::from(10_i64), Bson::from(i32::MAX), Bson::from(5.0)] {
        member.ok(doc! {"ping": 1, "maxTimeMS": limit});
    }
}

#[test]
fn reads_have_no_write_concern_unless_they_write() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}]);
    let concern = doc! {"w": 1};
    let refused = [
        doc! {"find": "c", "writeConcern": &concern},
        doc! {"count": "c", "writeConcern": &concern},
        doc! {"aggregate": "c", "pipeline": [], "cursor": {}, "writeConcern": &concern},
    ];
    for command in refused {
        assert_eq!(member.code(command.clone()), 72, "{command}");
    }
    let out =
        doc! {"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}, "writeConcern": concern};
    member.ok(out);
}

#[test]
fn a_read_comes_after_one_time_or_shows_another_not_both() {
    let member = Member::new();
    let time = bson::Timestamp { time: 1, increment: 1 };
    let concern = doc! {"level": "snapshot", "afterClusterTime": time, "atClusterTime": time};
    assert_eq!(member.code(doc! {"find": "c", "readConcern": concern}), 72);
}

/// Whether one document goes or all must be said; otherwise nothing goes, of the other statements neither.
#[test]
fn a_delete_says_whether_it_is_about_one_document() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1}, doc! {"_id": 2}]);
    let first = doc! {"q": {"_id": 1}, "limit": 1};
    let delete = |second: Document| doc! {"delete": "c", "deletes": [&first, second]};
    assert_eq!(member.code(delete(doc! {"q": {}})), 40414);
    assert_eq!(member.code(delete(doc! {"q": {}, "limit": 2})), 9);
    assert_eq!(member.ids(doc! {"find": "c"}), [1, 2]);
}

/// A view is made by `create`. A document in `system.views` would be none.
#[test]
fn views_are_not_made_by_writing_documents() {
    let member = Member::new();
    let view = doc! {"_id": "db.v", "viewOn": "c", "pipeline": []};
    assert_eq!(member.code(doc! {"insert": "system.views", "documents": [view]}), 73);
}

#[test]
fn the_natural_order_has_two_directions_and_stands_alone() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 2}, doc! {"_id": 1}]);
    let both: [Document; 2] = [doc! {"$natural": 2}, doc! {"$natural": 1, "_id": 1}];
    for order in both {
        assert_eq!(member.code(doc! {"find": "c", "sort": order.clone()}), 2, "{order}");
        assert_eq!(member.code(doc! {"find": "c", "hint": order.clone()}), 2, "{order}");
    }
    assert_eq!(member.ids(doc! {"find": "c", "sort": {"$natural": -1}}), [1, 2]);
}

#[test]
fn stages_of_the_database_take_no_collection() {
    let member = Member::new();
    for stage in [doc! {"$documents": [{"a": 1}]}, doc! {"$listLocalSessions": {}}] {
        let on = |target: Bson| doc! {"aggregate": target, "pipeline": [&stage], "cursor": {}};
        assert_eq!(member.code(on("c".into())), 73, "{stage}");
        member.ok(on(1.into()));
    }
}

/// Specification: `mongodb-handshake/handshake.md`, "Limitations".
#[test]
fn a_hello_says_little_of_its_client() {
    let member = Member::new();
    let hello = |client: Bson| doc! {"hello": 1, "client": client};
    let good = doc! {"driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}};
    member.ok(hello(good.clone().into()));
    let mut large = good;
    large.insert("platform", "x".repeat(1000));
    assert_eq!(member.code(hello(large.into())), 185);
    assert_eq!(member.code(hello(doc! {"os": {"type": "Linux"}}.into())), 183);
    assert_eq!(member.code(hello("d".into())), 14);
}

/// Specification: the manual's page on `update`. Drivers send them as constants of pipelines.
#[test]
fn a_pipeline_of_an_update_sees_the_constants_of_its_statement() {
    let member = Member::new();
    member.insert("c", vec![doc! {"_id": 1, "n": 1}]);
    let statement = |change: Bson| doc! {"q": {"_id": 1}, "u": change, "c": {"by": 5}};
    let update = |change: Bson| {
        let command =
            doc! {"update": "c", "updates": [statement(change)], "let": {"by": 7, "at": 2}};
        member.ok(command)
    };
    let pipeline = doc! {"$set": {"n": {"$add": ["$n", "$$by", "$$at"]}}};
    update(Bson::Array(vec![pipeline.into()]));
    assert_eq!(member.find(doc! {"find": "c"}), [doc! {"_id": 1, "n": 8}]);
    let refused = update(doc! {"$set": {"n": 1}}.into());
    let error = refused.get_array("writeErrors").unwrap()[0].as_document().unwrap();
    assert_eq!(error.get_i32("code").unwrap(), 51198);
}

/// `$cmd` stands for no collection in the names of cursors.
#[test]
fn no_collection_has_a_dollar_in_its_name() {
    let member = Member::new();
    for name in ["$cmd", "$cmd.aggregate", "a$b"] {
        assert_eq!(member.code(doc! {"create": name}), 73, "{name}");
        assert_eq!(member.code(doc! {"insert": name, "documents": [{}]}), 73, "{name}");
    }
}
