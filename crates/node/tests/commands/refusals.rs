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
