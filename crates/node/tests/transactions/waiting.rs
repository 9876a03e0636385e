//! Plain writes beside open transactions: which wait, for how long, and which do not.

use super::*;

/// A plain write that fails changes nothing, so no transaction conflicts with it.
#[test]
fn a_plain_write_that_failed_is_in_no_transactions_way() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "u": 1 }, doc! { "_id": 2, "u": 2 }]);
    let unique = doc! { "key": { "u": 1 }, "name": "u", "unique": true };
    plain(&member, doc! { "createIndexes": "c", "indexes": [unique] });
    let mut session = Session::start(&member, 1, 1);
    assert_eq!(session.values("c", doc! {}).len(), 2);
    let failed = |command: Document| {
        let reply = plain(&member, command);
        let errors = reply.get_array("writeErrors").unwrap();
        assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), 11000);
    };
    failed(doc! { "insert": "c", "documents": [{ "_id": 1, "u": 7 }] });
    // One document of a command fails, the other is inserted.
    failed(
        doc! { "insert": "c", "ordered": false, "documents": [{ "_id": 1 }, { "_id": 3, "u": 3 }] },
    );
    failed(update(2, doc! { "$set": { "u": 1 } }));
    session.ok(update(1, doc! { "$set": { "u": 8 } }));
    session.ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] });
    // What was inserted meanwhile is a conflict all the same.
    let insert = doc! { "insert": "c", "documents": [{ "_id": 3, "u": 4 }] };
    session.fails(insert, 112, TRANSIENT);
}

#[test]
fn a_plain_write_waits_for_the_transaction_and_a_plain_read_does_not() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(update(1, doc! { "$inc": { "x": 1 } }));
    let writes = [
        update(1, doc! { "$inc": { "x": 10 } }),
        doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": { "$inc": { "x": 100 } } },
    ];
    std::thread::scope(|threads| {
        let member = &member;
        let waiting: Vec<_> =
            writes.into_iter().map(|write| threads.spawn(move || plain(member, write))).collect();
        while waits(member) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(find(member, "c"), [doc! { "_id": 1, "x": 0 }]);
        session.commit();
        waiting.into_iter().for_each(|thread| drop(thread.join().unwrap()));
    });
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 111 }]);
}

/// A write that is woken by the end of another transaction meets the same key again, and counts as waiting twice.
#[test]
fn a_waiting_write_is_woken_by_no_other_transaction() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }, doc! { "_id": 2, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(set(1, 1));
    std::thread::scope(|threads| {
        let member = &member;
        let waiting = threads.spawn(move || plain(member, update(1, doc! { "$inc": { "x": 10 } })));
        while waits(member) == 0 {
            std::thread::yield_now();
        }
        for number in 1..=200 {
            let mut other = Session::start(member, 2, number);
            other.ok(update(2, doc! { "$inc": { "x": 1 } }));
            other.commit();
        }
        session.commit();
        waiting.join().unwrap();
    });
    assert_eq!(waits(&member), 1);
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 11 }, doc! { "_id": 2, "x": 200 }]);
}

#[test]
fn a_waiting_write_ends_at_its_time_limit() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(set(1, 1));
    let interrupt = Arc::new(Interrupt::default());
    let limited = Context { interrupt: Arc::clone(&interrupt), ..context() };
    std::thread::scope(|threads| {
        let mut write = set(1, 2);
        write.insert("$db", DB);
        let member = &member;
        let waiting = threads.spawn(move || run_in(member, &limited, write));
        while waits(member) == 0 {
            std::thread::yield_now();
        }
        interrupt.set(Interruption::MaxTime);
        let reply = waiting.join().unwrap();
        // The command fails, not its statement: drivers take the limit for the whole operation's.
        assert_eq!(reply.get_i32("code").ok(), Some(50), "{reply}");
    });
    session.commit();
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 1 }]);
}

#[test]
fn an_upsert_that_waited_finds_what_the_transaction_inserted() {
    let upserts = [
        doc! { "update": "c", "updates": [
            { "q": { "_id": 1 }, "u": { "$inc": { "x": 10 } }, "upsert": true },
        ] },
        doc! {
            "findAndModify": "c", "query": { "_id": 1 }, "update": { "$inc": { "x": 10 } },
            "upsert": true,
        },
    ];
    for (upsert, exists) in upserts.into_iter().flat_map(|it| [(it.clone(), true), (it, false)]) {
        let member = primary();
        if exists {
            insert(&member, "c", vec![doc! { "_id": 0 }]);
        }
        let mut session = Session::start(&member, 1, 1);
        session.ok(doc! { "insert": "c", "documents": [{ "_id": 1, "x": 1 }] });
        std::thread::scope(|threads| {
            let member = &member;
            let upsert = upsert.clone();
            let waiting = threads.spawn(move || plain(member, upsert));
            while waits(member) == 0 {
                std::thread::yield_now();
            }
            session.commit();
            let reply = waiting.join().unwrap();
            assert!(!reply.contains_key("writeErrors"), "{reply}");
        });
        assert_eq!(find(&member, "c").last(), Some(&doc! { "_id": 1, "x": 11 }), "{upsert}");
    }
}

#[test]
fn a_change_of_a_description_waits_for_those_who_use_the_collection() {
    for command in [
        doc! { "drop": "c" },
        doc! { "dropDatabase": 1 },
        doc! { "collMod": "c", "validationLevel": "moderate" },
        doc! { "createIndexes": "c", "indexes": [{ "key": { "x": 1 }, "name": "x_1" }] },
        doc! { "renameCollection": "db.c", "to": "db.d", "$db": "admin" },
    ] {
        let member = primary();
        insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
        let mut session = Session::start(&member, 1, 1);
        session.ok(set(1, 1));
        std::thread::scope(|threads| {
            let member = &member;
            let mut command = command.clone();
            if !command.contains_key("$db") {
                command.insert("$db", DB);
            }
            let waiting = threads.spawn(move || run(member, command));
            while waits(member) == 0 {
                std::thread::yield_now();
            }
            // It has not happened yet, and another transaction lets it go first, for a moment.
            assert_eq!(find(member, "c"), [doc! { "_id": 1, "x": 0 }]);
            let mut second = Session::start(member, 2, 1);
            second.fails(doc! { "find": "c" }, 24, TRANSIENT);
            session.commit();
            let reply = waiting.join().unwrap();
            assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
        });
    }
}

/// A document is there before and after the transaction, so a write that names it finds it.
#[test]
fn a_write_that_waited_finds_a_document_that_was_removed_and_inserted_again() {
    let one = |change: Document| doc! { "q": { "_id": 1 }, "u": change };
    let statement = |multi: bool, upsert: bool| {
        let mut statement = one(doc! { "$set": { "y": 1 } });
        statement.extend(doc! { "multi": multi, "upsert": upsert });
        doc! { "update": "c", "updates": [statement] }
    };
    let delete = |limit: i32| {
        doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": limit }] }
    };
    let writes = [
        statement(false, false),
        statement(true, false),
        statement(false, true),
        delete(1),
        delete(0),
        doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": { "$set": { "y": 1 } } },
    ];
    for write in writes {
        let member = primary();
        insert(&member, "c", vec![doc! { "_id": 1, "x": 0 }]);
        let mut session = Session::start(&member, 1, 1);
        session.ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] });
        session.ok(doc! { "insert": "c", "documents": [{ "_id": 1, "x": 1 }] });
        let reply = after_commit(&member, session, write.clone());
        let about = reply.get_document("lastErrorObject").unwrap_or(&reply);
        assert_eq!(about.get_i32("n").unwrap(), 1, "{write} answered {reply}");
        assert!(!reply.contains_key("writeErrors"), "{write} answered {reply}");
    }
}

/// A statement for several documents that are named has changed one when it meets the transaction.
#[test]
fn a_write_to_several_documents_finds_one_that_was_removed_and_inserted_again() {
    let some: Vec<i32> = (0..3).collect();
    let many: Vec<i32> = (0..200).collect();
    // More than an index is read for in as many ranges.
    let most: Vec<i32> = (0..1100).collect();
    for ids in [some, many, most] {
        let q = doc! { "_id": { "$in": &ids } };
        let writes = [
            doc! { "update": "c", "updates": [{ "q": q.clone(), "u": { "$inc": { "y": 1 } }, "multi": true }] },
            doc! { "delete": "c", "deletes": [{ "q": q, "limit": 0 }] },
        ];
        for write in writes {
            let member = primary();
            insert(&member, "c", ids.iter().map(|id| doc! { "_id": *id, "y": 0 }).collect());
            let mut session = Session::start(&member, 1, 1);
            session.ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] });
            session.ok(doc! { "insert": "c", "documents": [{ "_id": 1, "y": 0 }] });
            let reply = after_commit(&member, session, write.clone());
            assert_eq!(reply.get_i32("n").unwrap(), ids.len() as i32, "{write} answered {reply}");
            let held = find(&member, "c");
            let is_changed_once = |document: &Document| document.get_i32("y").unwrap() == 1;
            assert!(held.iter().all(is_changed_once), "{write} leaves {held:?}");
        }
    }
}

/// Runs a command that must wait for an open transaction, which is committed then.
fn after_commit(member: &Member, session: Session<'_>, command: Document) -> Document {
    std::thread::scope(|threads| {
        let waiting = threads.spawn(move || plain(member, command));
        while waits(member) == 0 {
            assert!(!waiting.is_finished(), "it did not wait: {:?}", waiting.join());
            std::thread::yield_now();
        }
        session.commit();
        waiting.join().unwrap()
    })
}

/// A follower that applies the log holds the same.
fn check_follower(member: &Member) {
    let follower = support::set::secondary();
    let log = support::set::entries(member);
    follower.node.apply(quorate_protocol::OpTime::NULL, log, support::now()).unwrap();
    assert_eq!(support::set::hash(&follower), support::set::hash(member));
}

/// A transaction keeps the collection that it changed until it ends.
#[test]
fn out_waits_for_transactions_that_use_its_target() {
    let member = primary();
    insert(&member, "from", vec![doc! { "_id": 1 }]);
    insert(&member, "c", vec![doc! { "_id": 2 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(doc! { "insert": "c", "documents": [{ "_id": 3 }] });
    let out = doc! { "aggregate": "from", "pipeline": [{ "$out": "c" }], "cursor": {} };
    let reply = after_commit(&member, session, out);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    assert_eq!(find(&member, "c"), [doc! { "_id": 1 }]);
    check_follower(&member);
}

#[test]
fn merge_waits_for_transactions_that_hold_its_documents() {
    let member = primary();
    insert(&member, "from", vec![doc! { "_id": 1, "x": 1 }, doc! { "_id": 2, "x": 1 }]);
    insert(&member, "c", vec![doc! { "_id": 1, "y": 1 }]);
    let mut session = Session::start(&member, 1, 1);
    session.ok(update(1, doc! { "$set": { "y": 2 } }));
    let merge = doc! { "aggregate": "from", "pipeline": [{ "$merge": "c" }], "cursor": {} };
    let reply = after_commit(&member, session, merge);
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    let merged = [doc! { "_id": 1, "y": 2, "x": 1 }, doc! { "_id": 2, "x": 1 }];
    assert_eq!(find(&member, "c"), merged);
    check_follower(&member);
}

/// While a rename waits for a transaction on one side, another one begins on the other side. It waits for both.
#[test]
fn a_rename_waits_for_transactions_on_both_sides() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1 }]);
    insert(&member, "d", vec![doc! { "_id": 1 }]);
    let mut first = Session::start(&member, 1, 1);
    first.ok(update(1, doc! { "$set": { "x": 1 } }));
    let rename = doc! {
        "renameCollection": "db.c", "to": "db.d", "dropTarget": true, "$db": "admin",
    };
    std::thread::scope(|threads| {
        let member = &member;
        let renaming = threads.spawn(move || member.ok(rename));
        while waits(member) == 0 {
            std::thread::yield_now();
        }
        let mut second = Session::start(member, 2, 1);
        second.ok(doc! { "insert": "d", "documents": [{ "_id": 2 }] });
        first.commit();
        while waits(member) == 0 {
            assert!(!renaming.is_finished(), "it did not wait");
            std::thread::yield_now();
        }
        second.commit();
        renaming.join().unwrap();
    });
    assert_eq!(find(&member, "d"), [doc! { "_id": 1, "x": 1 }]);
    check_follower(&member);
}

/// While `dropDatabase` waits for a transaction on one collection, another one begins on a collection that was free. It
/// waits for both, and nothing goes before.
#[test]
fn drop_database_waits_until_all_collections_are_free_at_once() {
    let member = primary();
    insert(&member, "c", vec![doc! { "_id": 1 }]);
    insert(&member, "d", vec![doc! { "_id": 1 }]);
    let mut first = Session::start(&member, 1, 1);
    first.ok(doc! { "insert": "d", "documents": [{ "_id": 2 }] });
    std::thread::scope(|threads| {
        let member = &member;
        let dropping = threads.spawn(move || plain(member, doc! { "dropDatabase": 1 }));
        while waits(member) == 0 {
            std::thread::yield_now();
        }
        let mut second = Session::start(member, 2, 1);
        second.ok(update(1, doc! { "$set": { "x": 1 } }));
        first.commit();
        while waits(member) < 2 {
            assert!(!dropping.is_finished(), "it did not wait");
            std::thread::yield_now();
        }
        assert_eq!(find(member, "c").len() + find(member, "d").len(), 3, "nothing is dropped yet");
        second.commit();
        dropping.join().unwrap();
    });
    assert!(find(&member, "c").is_empty() && find(&member, "d").is_empty());
    check_follower(&member);
}

/// A document that stays the same is not written, so no transaction conflicts with that.
#[test]
fn merge_writes_only_what_changes() {
    let member = primary();
    insert(&member, "from", vec![doc! { "_id": 1, "x": 1 }]);
    insert(&member, "c", vec![doc! { "_id": 1, "x": 1 }]);
    let mut session = Session::start(&member, 1, 1);
    assert_eq!(session.values("c", doc! {}).len(), 1);
    for matched in ["replace", "merge", "keepExisting"] {
        let merge = doc! { "$merge": { "into": "c", "whenMatched": matched } };
        plain(&member, doc! { "aggregate": "from", "pipeline": [merge], "cursor": {} });
    }
    session.ok(update(1, doc! { "$set": { "x": 2 } }));
    session.commit();
    assert_eq!(find(&member, "c"), [doc! { "_id": 1, "x": 2 }]);
}
