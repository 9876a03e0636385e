//! What becomes of clients' connections when their primary steps down.

use bson::doc;

use crate::client::{Client, TIMEOUT};
use crate::set::Set;

#[test]
fn connections_outlive_a_step_down_unless_the_parameter_says_otherwise() {
    let set = Set::initiated(3);
    let ping = doc! { "ping": 1, "$db": "admin" };
    let parameter = "closeConnectionsOnStepDown";
    for closes in [false, true] {
        let primary = set.primary();
        let was = set.ok(primary, doc! { "setParameter": 1, parameter: closes });
        assert!(!was.get_bool("was").unwrap());
        let known = set.ok(primary, doc! { "getParameter": 1, parameter: 1 });
        assert_eq!(known.get_bool(parameter).unwrap(), closes);
        let mut client = Client::connect(set.members[primary].address, TIMEOUT).unwrap();
        client.run(&ping, TIMEOUT).unwrap();
        let step_down = doc! {
            "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 20, "$db": "admin",
        };
        // The answer may or may not come before the connection ends.
        let mut asking = Client::connect(set.members[primary].address, TIMEOUT).unwrap();
        let asked = asking.run(&step_down, TIMEOUT);
        assert!(closes || asked.is_ok(), "{asked:?}");
        set.primary_among(&set.others(primary));
        assert_eq!(client.run(&ping, TIMEOUT).is_err(), closes);
        set.wait("its followers to come back", || {
            set.run(primary, doc! { "replSetFreeze": 0 }).ok().map(drop)
        });
    }
    // Those between members go on.
    let primary = set.primary();
    set.insert(primary, doc! { "_id": 1 }, 3.into()).unwrap();
}

/// The manual, "shutdown": the primary waits for a secondary that has caught up.
#[test]
fn the_command_that_ends_a_primary_lets_the_others_have_its_last_writes() {
    let set = Set::initiated(3);
    let primary = set.primary();
    let others = set.others(primary);
    set.insert(primary, doc! { "_id": 1 }, 3.into()).unwrap();
    let copying = |mode: &str| {
        for place in &others {
            set.ok(*place, doc! { "configureFailPoint": "stopReplProducer", "mode": mode });
        }
    };
    copying("alwaysOn");
    // More than what is under way between two members.
    let text = "x".repeat(14 * 1024 * 1024);
    set.insert(primary, doc! { "_id": 2, "text": text }, 1.into()).unwrap();
    let mut client = Client::connect(set.members[primary].address, TIMEOUT).unwrap();
    let asked = client.run(&doc! { "shutdown": 1, "$db": "admin" }, TIMEOUT);
    assert!(asked.is_err(), "the connection ends without an answer: {asked:?}");
    copying("off");
    let next = set.primary_among(&others);
    let counted = set.ok(next, doc! { "count": "c", "$db": "db" });
    assert_eq!(counted.get_i32("n").unwrap(), 2);
}
