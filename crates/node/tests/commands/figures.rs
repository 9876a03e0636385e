//! What tools that watch a deployment ask: sizes, figures, and what commands are for.

use bson::{Bson, Document, doc};
use quorate_node::DiskRoom;

use crate::support::Member;

fn with_documents() -> Member {
    let member = Member::new();
    member.insert("c", (0..20).map(|n| doc! {"_id": n, "n": n % 4}).collect());
    member.ok(doc! {"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}]});
    member
}

/// The manual, "dataSize".
#[test]
fn the_size_of_a_collection_and_of_a_range_of_keys_is_told() {
    let member = with_documents();
    let one = bson::RawDocumentBuf::try_from(&doc! {"_id": 1, "n": 1}).unwrap();
    let one = one.as_bytes().len() as i64;
    let size = |more: Document| {
        let mut command = doc! {"dataSize": "db.c"};
        command.extend(more);
        let reply = member.ok(command);
        (reply.get_i64("size").unwrap(), reply.get_i64("numObjects").unwrap())
    };
    assert_eq!(size(doc! {}), (20 * one, 20));
    assert_eq!(size(doc! {"estimate": true}), (20 * one, 20));
    let of_key = doc! {"keyPattern": {"n": 1}, "min": {"n": 1}, "max": {"n": 3}};
    assert_eq!(size(of_key.clone()), (10 * one, 10), "the upper bound is left out");
    let mut estimated = of_key;
    estimated.insert("estimate", true);
    assert_eq!(size(estimated), (10 * one, 10));
    assert_eq!(size(doc! {"min": {"_id": 18}, "max": {"_id": 90}}), (2 * one, 2));
    let missing = member.ok(doc! {"dataSize": "db.none"});
    assert_eq!(missing.get_i64("size").unwrap(), 0);
    assert_eq!(member.code(doc! {"dataSize": "db.c", "min": {"n": 1}}), 2);
    let unknown =
        doc! {"dataSize": "db.c", "keyPattern": {"x": 1}, "min": {"x": 1}, "max": {"x": 2}};
    assert_eq!(member.code(unknown), 27);
    assert_eq!(member.code(doc! {"dataSize": "c"}), 73);
    member.ok(doc! {"create": "v", "viewOn": "c", "pipeline": []});
    assert_eq!(member.code(doc! {"dataSize": "db.v"}), 166);
}

#[test]
fn the_size_of_a_collection_is_for_those_who_may_read_it() {
    let member = Member::guarded();
    let reader = member.log_in("reader", &[("read", "db")]);
    member.expect(&reader, doc! {"dataSize": "db.c", "$db": "other"});
    let other = doc! {"dataSize": "other.c", "$db": "db"};
    assert_eq!(member.run_as(&reader, other).get_i32("code").unwrap(), 13);
}

/// The manual, "dbStats": the file system's figures are scaled like the others. A member in memory has none.
#[test]
fn the_room_on_the_disk_is_told_where_there_is_a_disk() {
    let member = with_documents();
    let told = |name: &str| member.ok(doc! {"dbStats": 1, "scale": 1024}).get_f64(name).ok();
    assert_eq!((told("fsUsedSize"), told("fsTotalSize")), (None, None));
    member.node.set_disk_room(DiskRoom { total: 10 << 20, free: 4 << 20 });
    assert_eq!((told("fsUsedSize"), told("fsTotalSize")), (Some(6144.0), Some(10240.0)));
}

/// The manual, "serverStatus": a section is left out by its name and 0.
#[test]
fn sections_are_left_out_on_request() {
    let member = Member::new();
    let full = member.ok(doc! {"serverStatus": 1});
    assert!(full.contains_key("metrics") && full.contains_key("opLatencies"));
    let less = doc! {"serverStatus": 1, "metrics": 0, "network": false, "host": 0, "mem": 1};
    let less = member.ok(less);
    assert!(!less.contains_key("metrics") && !less.contains_key("network"), "{less}");
    assert!(less.contains_key("host") && less.contains_key("connections"), "{less}");
}

/// Shells ask for the help of any command in these words.
#[test]
fn a_command_whose_help_is_asked_for_does_nothing() {
    let member = with_documents();
    for command in [
        doc! {"dropDatabase": 1, "help": true},
        doc! {"drop": "c", "help": 1},
        doc! {"delete": 1, "help": true},
        doc! {"shutdown": 1, "help": true, "$db": "admin"},
    ] {
        let name = command.keys().next().unwrap().clone();
        let reply = member.ok(command);
        let help = reply.get_str("help").unwrap();
        assert!(help.starts_with(&format!("help for: {name} ")), "{help}");
    }
    assert_eq!(member.ok(doc! {"count": "c", "help": false}).get_i32("n").unwrap(), 20);
    assert_eq!(member.code(doc! {"frobnicate": 1, "help": true}), 59);
    assert_eq!(member.code(doc! {"configureFailPoint": "x", "help": true, "$db": "admin"}), 59);
}

#[test]
fn listed_commands_tell_where_they_run() {
    let commands = Member::new().ok(doc! {"listCommands": 1});
    let commands = commands.get_document("commands").unwrap();
    let flags = |name: &str| {
        let command = commands.get_document(name).unwrap();
        let flag = |name: &str| command.get_bool(name).unwrap();
        (flag("secondaryOk"), flag("secondaryOverrideOk"), flag("adminOnly"))
    };
    assert_eq!(flags("ping"), (true, false, false));
    assert_eq!(flags("find"), (false, true, false));
    assert_eq!(flags("insert"), (false, false, false));
    assert_eq!(flags("top"), (true, false, true));
    let find = commands.get_document("find").unwrap();
    assert_eq!(find.get_array("deprecatedApiVersions").unwrap(), &Vec::<Bson>::new());
}

/// The manual, "collMod": an index that is shown again is like one that never was hidden.
#[test]
fn an_index_that_is_shown_again_says_nothing_of_it() {
    let member = with_documents();
    let listed = || {
        let reply = member.ok(doc! {"listIndexes": "c"});
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone();
        batch[1].as_document().unwrap().clone()
    };
    let before = listed();
    let hide = |hidden: bool| doc! {"collMod": "c", "index": {"name": "n_1", "hidden": hidden}};
    member.ok(hide(true));
    assert!(listed().get_bool("hidden").unwrap());
    let reply = member.ok(hide(false));
    assert!(reply.get_bool("hidden_old").unwrap() && !reply.get_bool("hidden_new").unwrap());
    assert_eq!(listed(), before);
}
