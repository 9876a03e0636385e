//! What clients may not write: the collections that belong to the member of a set, and its settings.

#![allow(clippy::unwrap_used)]

mod support;

use bson::{Document, doc};
use quorate_storage::ModelStore;
use support::Member;

const ILLEGAL_OPERATION: i32 = 20;

/// The collections that the member writes itself while it belongs to a set.
const OWN: [&str; 5] =
    ["oplog.rs", "system.replset", "replset.election", "replset.minvalid", "replset.anything.else"];

fn member() -> Member {
    Member::with_history(ModelStore::new(), 1 << 20)
}

/// Every command that could change a collection of `local`.
fn writes(name: &str) -> Vec<Document> {
    let full = format!("local.{name}");
    let mut commands = vec![
        doc! {"insert": name, "documents": [{"_id": 1}]},
        doc! {"update": name, "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": true}]},
        doc! {"update": name, "updates": [{"q": {"_id": 7}, "u": {"x": 1}, "upsert": true}]},
        doc! {"delete": name, "deletes": [{"q": {}, "limit": 0}]},
        doc! {"findAndModify": name, "query": {}, "remove": true},
        doc! {"findandmodify": name, "query": {"_id": 1}, "update": {"x": 1}, "upsert": true},
        doc! {"create": name},
        doc! {"create": name, "viewOn": "startup_log", "pipeline": []},
        doc! {"collMod": name, "validator": {"x": 1}},
        doc! {"drop": name},
        doc! {"createIndexes": name, "indexes": [{"key": {"x": 1}, "name": "x_1"}]},
        doc! {"dropIndexes": name, "index": "*"},
        doc! {"deleteIndexes": name, "index": "*"},
        doc! {"aggregate": "startup_log", "pipeline": [{"$out": name}], "cursor": {}},
        doc! {"aggregate": "startup_log", "pipeline": [{"$merge": name}], "cursor": {}},
    ];
    let elsewhere = [
        doc! {"aggregate": "c", "pipeline": [{"$out": {"db": "local", "coll": name}}], "cursor": {}, "$db": "db"},
        doc! {"aggregate": "c", "pipeline": [{"$merge": {"into": {"db": "local", "coll": name}}}], "cursor": {}, "$db": "db"},
        doc! {"renameCollection": &full, "to": "local.away", "$db": "admin"},
        doc! {"renameCollection": &full, "to": "db.away", "$db": "admin"},
        doc! {"renameCollection": "local.startup_log", "to": &full, "dropTarget": true, "$db": "admin"},
        doc! {"renameCollection": "db.c", "to": &full, "dropTarget": true, "$db": "admin"},
    ];
    for command in &mut commands {
        command.insert("$db", "local");
    }
    commands.extend(elsewhere);
    commands
}

#[test]
fn no_command_writes_what_belongs_to_a_member_of_a_set() {
    let member = member();
    member.insert("c", vec![doc! {"_id": 1}]);
    member.ok(doc! {"insert": "startup_log", "documents": [{"_id": 1}], "$db": "local"});
    let count = |member: &Member| {
        member.ok(doc! {"count": "oplog.rs", "$db": "local"}).get_i32("n").unwrap()
    };
    let before = count(&member);
    assert!(before > 0);
    for name in OWN {
        for command in writes(name) {
            let reply = member.run(command.clone());
            let code = reply.get_i32("code").ok();
            assert_eq!(code, Some(ILLEGAL_OPERATION), "{command} answered {reply}");
            let message = reply.get_str("errmsg").unwrap();
            assert!(message.contains(&format!("local.{name}")), "{message}");
        }
    }
    assert_eq!(member.code(doc! {"dropDatabase": 1, "$db": "local"}), ILLEGAL_OPERATION);
    assert_eq!(count(&member), before);
    // What is not the set's stays the administrator's.
    member.ok(doc! {"insert": "notes", "documents": [{"_id": 1}], "$db": "local"});
    // Reading and explaining stay allowed.
    let read = doc! {"find": "oplog.rs", "$db": "local"};
    member.ok(read.clone());
    member.ok(doc! {"explain": read, "$db": "local"});
}

/// The other members could not follow: they have no such collection, or would keep the one that is gone.
#[test]
fn nothing_is_renamed_between_what_is_replicated_and_what_is_not() {
    let both =
        [("db.c", "local.notes"), ("local.startup_log", "db.new"), ("db.c", "db.system.profile")];
    let member = member();
    member.insert("c", vec![doc! {"_id": 1}]);
    member.ok(doc! {"insert": "startup_log", "documents": [{"_id": 1}], "$db": "local"});
    for (from, to) in both {
        let rename = doc! {"renameCollection": from, "to": to, "dropTarget": true, "$db": "admin"};
        let reply = member.run(rename.clone());
        assert_ne!(reply.get_f64("ok").unwrap(), 1.0, "{rename} answered {reply}");
    }
    let rename = doc! {"renameCollection": "db.c", "to": "local.notes", "$db": "admin"};
    assert_eq!(member.code(rename.clone()), ILLEGAL_OPERATION);
    member.ok(doc! {"renameCollection": "local.startup_log", "to": "local.notes", "$db": "admin"});
    // A server without a set has no other members.
    let alone = Member::new();
    alone.insert("c", vec![doc! {"_id": 1}]);
    alone.ok(rename);
}

#[test]
fn a_server_without_a_set_may_be_repaired_by_hand() {
    let member = Member::new();
    member.ok(doc! {"insert": "oplog.rs", "documents": [{"_id": 1}], "$db": "local"});
    member.ok(doc! {"drop": "oplog.rs", "$db": "local"});
}

#[test]
fn the_settings_are_written_by_their_command_only() {
    for member in [Member::new(), member()] {
        let own = doc! {"_id": "ReadWriteConcernDefaults", "defaultWriteConcern": {"w": 0}};
        for command in [
            doc! {"insert": "settings", "documents": [own.clone()], "$db": "config"},
            doc! {"update": "settings", "updates": [{"q": {}, "u": own.clone(), "upsert": true}], "$db": "config"},
            doc! {"drop": "settings", "$db": "config"},
            doc! {"renameCollection": "db.c", "to": "config.settings", "$db": "admin"},
            doc! {"aggregate": "c", "pipeline": [{"$out": {"db": "config", "coll": "settings"}}], "cursor": {}},
        ] {
            assert_eq!(member.code(command.clone()), ILLEGAL_OPERATION, "{command}");
        }
    }
}
