//! Views: what may be asked of them, and what their stages see.

use bson::{Bson, Document, doc};

use super::support::Member;
use super::support::set::primary;

fn aggregate(collection: &str, stages: Vec<Document>) -> Document {
    doc! {"aggregate": collection, "pipeline": stages, "cursor": {}}
}

fn with_view(pipeline: Vec<Document>) -> Member {
    let member = Member::new();
    member.insert("c", (0..6).map(|n| doc! {"_id": n}).collect());
    member.ok(doc! {"create": "v", "viewOn": "c", "pipeline": pipeline});
    member
}

/// The manual, views: operations that look at what is stored are refused with CommandNotSupportedOnView.
#[test]
fn commands_about_what_is_stored_refuse_views() {
    let member = with_view(vec![doc! {"$match": {"_id": 1}}]);
    let refused = [
        doc! {"validate": "v"},
        doc! {"collStats": "v"},
        doc! {"listIndexes": "v"},
        doc! {"dropIndexes": "v", "index": "*"},
        doc! {"createIndexes": "v", "indexes": [{"key": {"a": 1}, "name": "a"}]},
        doc! {"insert": "v", "documents": [{}]},
        aggregate("v", vec![doc! {"$collStats": {}}]),
        aggregate("v", vec![doc! {"$indexStats": {}}]),
    ];
    for command in refused {
        assert_eq!(member.code(command.clone()), 166, "{command}");
    }
    assert_eq!(member.ok(doc! {"collStats": "c"}).get_i64("count").unwrap(), 6);
    assert!(member.ok(doc! {"validate": "c"}).get_bool("valid").unwrap());
}

/// The manual, `$collStats`: each section is there if it is asked for.
#[test]
fn coll_stats_tells_the_sections_that_are_asked_for() {
    let member = with_view(Vec::new());
    let told = |options: Document| {
        let reply = member.ok(aggregate("c", vec![doc! {"$collStats": options}]));
        member.drain(reply, "c").remove(0)
    };
    let sections = |told: &Document| -> Vec<String> { told.keys().skip(3).cloned().collect() };
    assert!(sections(&told(doc! {})).is_empty());
    assert_eq!(sections(&told(doc! {"count": {}})), ["count"]);
    let scaled = told(doc! {"storageStats": {"scale": 2}});
    assert_eq!(sections(&scaled), ["storageStats"]);
    let (plain, scaled) = (told(doc! {"storageStats": {}}), scaled);
    let size =
        |told: &Document| told.get_document("storageStats").unwrap().get_i64("size").unwrap();
    assert_eq!(size(&plain) / 2, size(&scaled));
    let code = |name: &str, options: Bson| {
        member.code(aggregate(name, vec![doc! {"$collStats": options}]))
    };
    assert_eq!(code("c", doc! {"count": 1}.into()), 14);
    assert_eq!(code("c", doc! {"storageStats": {"scale": 0}}.into()), 2);
    assert_eq!(sections(&told(doc! {"latencyStats": {}})), ["latencyStats"]);
    assert_eq!(code("c", doc! {"queryExecStats": {}}.into()), 115);
    assert_eq!(code("c", 1.into()), 9);
    assert_eq!(code("missing", doc! {"count": {}}.into()), 26);
    let missing = member.ok(aggregate("missing", vec![doc! {"$collStats": {}}]));
    assert_eq!(member.drain(missing, "missing").len(), 1);
}

/// The manual, `create`: a view that would read itself is refused (5, GraphContainsCycle).
#[test]
fn a_view_does_not_read_itself() {
    let member = with_view(Vec::new());
    let view = |name: &str, on: &str, stages: Vec<Document>| {
        doc! {"create": name, "viewOn": on, "pipeline": stages}
    };
    member.ok(view("w", "v", vec![doc! {"$unionWith": {"coll": "later", "pipeline": []}}]));
    assert_eq!(member.code(view("self", "self", Vec::new())), 5);
    assert_eq!(member.code(view("later", "w", Vec::new())), 5);
    assert_eq!(member.code(view("self", "c", vec![doc! {"$unionWith": "self"}])), 5);
    let inner = doc! {"$facet": {"f": [{"$unionWith": "w"}]}};
    assert_eq!(member.code(view("later", "c", vec![inner])), 5);
    assert_eq!(member.code(doc! {"collMod": "v", "viewOn": "w", "pipeline": []}), 5);
    member.ok(view("later", "v", Vec::new()));
    assert_eq!(member.ids(doc! {"find": "w"}).len(), 12, "two ways to one view are no cycle");
}

/// The stages of a view see the time, whichever command reads it.
#[test]
fn stages_of_a_view_see_the_time() {
    let earlier = bson::DateTime::from_millis(1_600_000_000_000);
    let past = doc! {"$match": {"$expr": {"$lt": [earlier, "$$NOW"]}}};
    let member = with_view(vec![past]);
    assert_eq!(member.ids(doc! {"find": "v"}).len(), 6);
    assert_eq!(member.ok(doc! {"count": "v"}).get_i32("n").unwrap(), 6);
    let values = member.ok(doc! {"distinct": "v", "key": "_id"});
    assert_eq!(values.get_array("values").unwrap().len(), 6);
    let lookup =
        doc! {"$lookup": {"from": "v", "localField": "_id", "foreignField": "_id", "as": "same"}};
    let joined = member.drain(member.ok(aggregate("c", vec![lookup])), "c");
    assert!(joined.iter().all(|found| found.get_array("same").unwrap().len() == 1), "{joined:?}");
    let union = aggregate("c", vec![doc! {"$unionWith": "v"}, doc! {"$count": "n"}]);
    assert_eq!(member.drain(member.ok(union), "c")[0].get_i32("n").unwrap(), 12);
}

/// The manual, `$$CLUSTER_TIME`: a member of a set knows it, a server by itself does not.
#[test]
fn expressions_see_the_time_of_the_set() {
    let shown = doc! {"$project": {"time": "$$CLUSTER_TIME"}};
    let member = primary();
    member.insert("c", vec![doc! {"_id": 1}]);
    let newest = quorate_wire::to_bson_timestamp(member.node.standing().last.op_time.timestamp);
    let found = member.drain(member.ok(aggregate("c", vec![shown.clone()])), "c").remove(0);
    assert_eq!(found.get_timestamp("time").unwrap(), newest);
    let set = doc! {"q": {"_id": 1}, "u": [{"$set": {"at": "$$CLUSTER_TIME"}}]};
    member.ok(doc! {"update": "c", "updates": [set]});
    let stored = member.find(doc! {"find": "c"}).remove(0);
    assert_eq!(stored.get_timestamp("at").unwrap(), newest);
    let seen = quorate_protocol::Timestamp { seconds: newest.time + 100, increment: 3 };
    member.node.advance_cluster_time(seen, super::now()).unwrap();
    let filter = doc! {"$expr": {"$eq": ["$$CLUSTER_TIME", quorate_wire::to_bson_timestamp(seen)]}};
    assert_eq!(member.ids(doc! {"find": "c", "filter": filter}), [1], "a time heard of counts");

    let alone = Member::new();
    alone.insert("c", vec![doc! {"_id": 1}]);
    assert_eq!(alone.code(aggregate("c", vec![shown])), 51144);
}
