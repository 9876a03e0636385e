//! Flow control on real processes: a primary slows its writers while a majority falls behind.

use bson::{Document, doc};

use crate::set::{Set, impatient};

/// So small that a test fills it.
const OPLOG_BYTES: &str = "1048576";

fn flow_control(set: &Set, place: usize) -> Document {
    let status = set.ok(place, doc! { "serverStatus": 1, "$db": "admin" });
    status.get_document("flowControl").unwrap().clone()
}

fn copying(set: &Set, places: &[usize], mode: &str) {
    for place in places {
        set.ok(*place, doc! { "configureFailPoint": "stopReplProducer", "mode": mode });
    }
}

/// Writes 16 KiB that only the primary need have.
fn write(set: &Set, place: usize) {
    let insert = doc! {
        "insert": "c", "documents": [{ "text": "x".repeat(16 * 1024) }], "$db": "db",
        "writeConcern": { "w": 1 },
    };
    set.ok(place, insert);
}

#[test]
fn a_primary_slows_its_writers_while_a_majority_falls_behind() {
    let set = Set::start_with(3, &["--oplog-bytes", OPLOG_BYTES]).initiate(impatient());
    let primary = set.primary();
    let others = set.others(primary);
    for _ in 0..8 {
        write(&set, primary);
    }
    set.wait_until_identical();
    assert_eq!(flow_control(&set, primary).get_bool("isLagged").ok(), Some(false));

    copying(&set, &others, "alwaysOn");
    set.wait("writers to be slowed", || {
        write(&set, primary);
        let told = flow_control(&set, primary);
        (told.get_i64("pausedWrites").unwrap() > 0).then_some(())
    });
    let told = flow_control(&set, primary);
    assert_eq!(told.get_bool("isLagged").ok(), Some(true), "{told}");
    assert!(told.get_i64("uncommittedBytes").unwrap() > 0, "{told}");

    copying(&set, &others, "off");
    set.wait("writers to be free again", || {
        write(&set, primary);
        (flow_control(&set, primary).get_bool("isLagged").ok() == Some(false)).then_some(())
    });
    set.wait_until_identical();
}

#[test]
fn writers_are_not_slowed_where_flow_control_is_switched_off() {
    let set = Set::start_with(3, &["--oplog-bytes", OPLOG_BYTES]).initiate(impatient());
    let primary = set.primary();
    let off = doc! { "setParameter": 1, "enableFlowControl": false, "$db": "admin" };
    assert_eq!(set.ok(primary, off).get_bool("was").ok(), Some(true));
    copying(&set, &set.others(primary), "alwaysOn");
    for _ in 0..100 {
        write(&set, primary);
    }
    let told = flow_control(&set, primary);
    assert!(told.get_i64("uncommittedBytes").unwrap() > 1024 * 1024, "{told}");
    assert_eq!(told.get_i64("pausedWrites").ok(), Some(0), "{told}");
}
