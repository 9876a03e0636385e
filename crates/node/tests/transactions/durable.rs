//! What an answer with `j: true` waits for on the disk. The manual, "Write Concern", under "j".

use bson::{Document, doc};
use quorate_node::{Command, Durable, Outcome, Reply};

use crate::support::set::primary;
use crate::support::{Member, context};
use crate::{DB, Session, find, insert, set, update};

fn reply_of(member: &Member, command: Command) -> Reply {
    match member.node.run(&context(), command) {
        Outcome::Reply(reply) => reply,
        other => panic!("it waits: {other:?}"),
    }
}

/// What the answer waits for.
fn awaited(member: &Member, mut command: Document) -> Option<Durable> {
    command.entry("$db".to_owned()).or_insert(DB.into());
    let reply = reply_of(member, Command::new(command.clone()));
    assert_eq!(reply.body.get_f64("ok").ok(), Some(1.0), "{command} answered {:?}", reply.body);
    reply.durable
}

/// What such a write finds may not have reached the disk yet: its first attempt, for one, whose answer was lost.
#[test]
fn a_write_that_changes_nothing_waits_for_what_it_found() {
    let member = primary();
    let numbered = |mut command: Document| {
        let session = Session::start(&member, 1, 1).fields(doc! {});
        command.insert("lsid", session.get("lsid").unwrap());
        command.extend(doc! { "txnNumber": 1_i64, "writeConcern": { "w": 1, "j": true } });
        command
    };
    let first = awaited(&member, numbered(doc! { "insert": "c", "documents": [{ "_id": 1 }] }));
    assert!(matches!(first, Some(Durable::Commit(_))), "{first:?}");
    let nothing = [
        numbered(doc! { "insert": "c", "documents": [{ "_id": 1 }] }),
        doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "_id": 1 }, "upsert": true }] },
        doc! { "delete": "c", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] },
        doc! { "findAndModify": "c", "query": { "_id": 2 }, "remove": true },
        doc! { "insert": "c", "documents": [{ "_id": 1 }] },
    ];
    for command in nothing {
        for (j, expected) in [(true, Some(Durable::All)), (false, None)] {
            let mut command = command.clone();
            command.insert("writeConcern", doc! { "w": 1, "j": j });
            assert_eq!(awaited(&member, command.clone()), expected, "{command}");
        }
    }
}

#[test]
fn a_commit_waits_for_the_disk_as_often_as_it_is_asked_to() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let commit = |session: &Session<'_>, concern: Document| {
        let command = doc! { "commitTransaction": 1, "$db": "admin", "writeConcern": concern };
        awaited(&member, session.fields(command))
    };
    for (number, journal) in (1..).zip([doc! { "j": true }, doc! { "j": 1 }]) {
        let mut session = Session::start(&member, 1, number);
        session.ok(update(1, doc! { "$inc": { "x": 1 } }));
        let first = commit(&session, journal.clone());
        assert!(matches!(first, Some(Durable::Commit(_))), "{journal}: {first:?}");
        assert_eq!(commit(&session, journal), Some(Durable::All), "it was committed before");
        assert_eq!(commit(&session, doc! { "w": 1 }), None);
    }
    // One that the set has chosen, as `setDefaultRWConcern` lets it.
    let mut session = Session::start(&member, 1, 9);
    session.ok(set(1, 5));
    let mut command = Command::new(session.fields(doc! { "commitTransaction": 1, "$db": "admin" }));
    command.set_write_concern(Some(doc! { "w": 1, "j": true }));
    assert!(matches!(reply_of(&member, command).durable, Some(Durable::Commit(_))));
}

#[test]
fn a_commit_whose_write_concern_cannot_be_read_is_refused_before_it_is_done() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(set(1, 5));
    let commit = doc! { "commitTransaction": 1, "$db": "admin", "writeConcern": 1 };
    session.fails(commit, 14, &[]);
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 0 }]);
    session.commit();
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 5 }]);
}
