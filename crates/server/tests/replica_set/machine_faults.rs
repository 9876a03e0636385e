//! The fail points that break the machine under a member: a full disk and a moved calendar.

use bson::{Bson, Document, doc};

use crate::set::Set;

/// Ten minutes.
const FAR: i64 = 600_000;

fn majority() -> Bson {
    Bson::String("majority".to_owned())
}

fn set_point(set: &Set, place: usize, name: &str, mode: &str, data: Document) {
    let command = doc! { "configureFailPoint": name, "mode": mode, "data": data };
    // A step-down ends connections.
    set.wait("the fail point to be set", || {
        let reply = set.run(place, command.clone()).ok()?;
        reply.get_f64("ok").is_ok_and(|ok| ok == 1.0).then_some(())
    });
}

/// The calendar of a member, in milliseconds.
fn calendar(set: &Set, place: usize) -> i64 {
    let told = set.ok(place, doc! { "hello": 1, "$db": "admin" });
    told.get_datetime("localTime").unwrap().timestamp_millis()
}

/// The second of the newest entry of a member.
fn newest(set: &Set, place: usize) -> u32 {
    let status = set.own_status(place).unwrap();
    status.get_document("optime").unwrap().get_timestamp("ts").unwrap().time
}

#[test]
fn a_primary_whose_disk_is_filled_hands_over_and_follows_when_there_is_room() {
    let set = Set::initiated(3);
    let full = set.primary();
    set.insert(full, doc! { "_id": 1 }, majority()).unwrap();
    set_point(&set, full, "fillDisk", "alwaysOn", doc! {});
    let next = set.primary_among(&set.others(full));
    set.wait("the next primary to take writes", || {
        set.insert(next, doc! { "_id": 2 }, majority()).ok()
    });
    let refused = set.insert(full, doc! { "_id": 3 }, Bson::Int32(1));
    assert!(refused.is_err(), "a member without room takes no writes");
    let held = newest(&set, full);
    set_point(&set, full, "fillDisk", "off", doc! {});
    set.wait_until_identical();
    assert!(newest(&set, full) >= held);
}

#[test]
fn a_moved_calendar_is_told_and_the_history_never_goes_back() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let (before, others) = (calendar(&set, primary), set.others(primary));
    set_point(&set, primary, "moveClock", "alwaysOn", doc! { "millis": FAR });
    assert!(calendar(&set, primary) >= before + FAR);
    assert!(calendar(&set, others[0]) < before + FAR, "the calendars of the others stay");
    set.insert(primary, doc! { "_id": 1 }, majority()).unwrap();
    let ahead = newest(&set, primary);
    assert!(i64::from(ahead) * 1000 > before + FAR / 2, "entries are written by that calendar");
    set_point(&set, primary, "moveClock", "alwaysOn", doc! { "millis": -FAR });
    set.insert(primary, doc! { "_id": 2 }, majority()).unwrap();
    assert!(newest(&set, primary) >= ahead, "the history never goes back");
    set_point(&set, primary, "moveClock", "off", doc! {});
    set.wait_until_identical();
}
