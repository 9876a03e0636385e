//! The concerns of commands that give none: chosen once, and kept by every member.

use bson::{Document, doc};

use crate::set::Set;

fn insert(set: &Set, place: usize, id: i32, more: Document) -> Document {
    let mut command = doc! { "insert": "c", "documents": [{ "_id": id }], "$db": "db" };
    command.extend(more);
    set.ok(place, command)
}

/// Has the primary write while one of its followers hangs.
fn write_without_one(set: &Set, id: i32) {
    let primary = set.primary();
    let hanging = (primary + 1) % 3;
    set.freeze(hanging);
    let reply = insert(set, primary, id, doc! {});
    let error = reply.get_document("writeConcernError").unwrap();
    assert_eq!(error.get_i32("code").unwrap(), 64, "{reply}");
    let own = insert(set, primary, id + 1, doc! { "writeConcern": { "w": 2 } });
    assert!(!own.contains_key("writeConcernError"), "{own}");
    set.thaw(hanging);
}

#[test]
fn chosen_write_concerns_hold_for_all_who_give_none_also_under_the_next_primary() {
    let set = Set::initiated(3);
    let primary = set.primary();
    for (bad, code) in [(doc! { "w": 4 }, 100), (doc! { "w": "nowhere" }, 79), (doc! { "w": 0 }, 2)]
    {
        let choice = doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": bad };
        let refusal = set.run(primary, choice).unwrap();
        assert_eq!(refusal.get_i32("code").unwrap(), code, "{refusal}");
    }
    let chosen = doc! { "w": 3, "wtimeout": 300 };
    let choice = doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": chosen.clone() };
    set.ok(primary, choice);
    write_without_one(&set, 0);
    set.step_down();
    write_without_one(&set, 10);
    for place in 0..3 {
        set.wait("the choice on every member", || {
            let reply = set.run(place, doc! { "getDefaultRWConcern": 1 }).ok()?;
            (reply.get_document("defaultWriteConcern").ok()? == &chosen).then_some(())
        });
    }
}

#[test]
fn a_chosen_read_concern_holds_for_reads_that_give_none() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let level = doc! { "level": "majority" };
    set.ok(primary, doc! { "setDefaultRWConcern": 1, "defaultReadConcern": level });
    let others = set.others(primary);
    for place in &others {
        set.freeze(*place);
    }
    insert(&set, primary, 1, doc! { "writeConcern": { "w": 1 } });
    let found = |command: Document| {
        let reply = set.ok(primary, command);
        reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().len()
    };
    let find = doc! { "find": "c", "$db": "db", "maxTimeMS": 5000 };
    assert_eq!(found(find.clone()), 0, "no other member has it");
    let mut own = find;
    own.insert("readConcern", doc! { "level": "local" });
    assert_eq!(found(own), 1);
    for place in others {
        set.thaw(place);
    }
}

#[test]
fn a_chosen_write_concern_lets_an_arbiter_come_that_would_change_the_implicit_one() {
    let mut set = Set::initiated(2);
    let primary = set.primary();
    let arbiter = set.add();
    let add = || {
        let mut config = set.ok(primary, doc! { "replSetGetConfig": 1 });
        let config = config.get_document_mut("config").unwrap();
        let version = config.get_i32("version").unwrap();
        config.insert("version", version + 1);
        let member = doc! { "_id": 9, "host": set.host(arbiter), "arbiterOnly": true };
        config.get_array_mut("members").unwrap().push(member.into());
        set.run(primary, doc! { "replSetReconfig": config.clone() }).unwrap()
    };
    let refusal = add();
    assert_eq!(refusal.get_i32("code").unwrap(), 103, "{refusal}");
    let chosen = doc! { "w": "majority" };
    set.ok(primary, doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": chosen });
    let done = add();
    assert_eq!(done.get_f64("ok").unwrap(), 1.0, "{done}");
}
