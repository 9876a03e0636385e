//! Rules that the documents of a collection follow.

use bson::{Bson, DateTime, Document, doc};

use super::support::Member;

fn error(reply: &Document) -> Document {
    reply.get_array("writeErrors").unwrap()[0].as_document().unwrap().clone()
}

/// The manual, "Specify Validation With Query Operators": rules may compare fields with `$expr`.
#[test]
fn rules_may_be_expressions() {
    let member = Member::new();
    let total = doc! {"$expr": {"$eq": ["$total", {"$multiply": ["$price", "$count"]}]}};
    member.ok(doc! {"create": "orders", "validator": total.clone()});
    member.insert("orders", vec![doc! {"_id": 1, "total": 6, "price": 2, "count": 3}]);
    let wrong = doc! {"_id": 2, "total": 7, "price": 2, "count": 3};
    let reply = member.run(doc! {"insert": "orders", "documents": [wrong]});
    let error = error(&reply);
    assert_eq!(error.get_i32("code").unwrap(), 121);
    let details = error.get_document("errInfo").unwrap().get_document("details").unwrap();
    let wanted = doc! {
        "operatorName": "$expr", "specifiedAs": total, "reason": "expression did not match",
        "expressionResult": false,
    };
    assert_eq!(details, &wanted);
    let update = doc! {"q": {"_id": 1}, "u": {"$set": {"count": 4}}};
    let refused = member.run(doc! {"update": "orders", "updates": [update]});
    assert_eq!(self::error(&refused).get_i32("code").unwrap(), 121);
    let unknown = doc! {"$expr": {"$eqq": [1, 1]}};
    assert_eq!(member.code(doc! {"create": "c", "validator": unknown.clone()}), 168);
    assert_eq!(member.code(doc! {"collMod": "orders", "validator": unknown}), 168);
}

/// `$$NOW` is the time of the write, not of the rule.
#[test]
fn rules_see_the_time_of_the_write() {
    let member = Member::new();
    member.ok(doc! {"create": "c", "validator": {"$expr": {"$lt": ["$at", "$$NOW"]}}});
    let now = super::now().wall.as_millis();
    let at = |millis: i64| Bson::DateTime(DateTime::from_millis(millis));
    member.insert("c", vec![doc! {"_id": 1, "at": at(now - 1)}]);
    let reply = member.run(doc! {"insert": "c", "documents": [{"_id": 2, "at": at(now + 1)}]});
    assert_eq!(error(&reply).get_i32("code").unwrap(), 121, "{reply}");
    let moderate = doc! {"collMod": "c", "validationLevel": "moderate"};
    member.ok(moderate);
    let update = doc! {"q": {"_id": 1}, "u": {"$set": {"at": at(now + 1)}}};
    let reply = member.run(doc! {"update": "c", "updates": [update]});
    assert_eq!(error(&reply).get_i32("code").unwrap(), 121, "{reply}");
}

/// The manual, "Address Invalid Document Failures".
#[test]
fn a_failed_validation_says_which_rules_are_broken() {
    let member = Member::new();
    let schema = doc! {
        "required": ["name"], "properties": {"year": {"bsonType": "int", "minimum": 2017}},
    };
    member.ok(doc! {"create": "c", "validator": {"$jsonSchema": schema}});
    let document = doc! {"_id": 7, "year": 1990};
    let reply = member.run(doc! {"insert": "c", "documents": [document]});
    let error = error(&reply);
    let info = error.get_document("errInfo").unwrap();
    assert_eq!(info.get_i32("failingDocumentId").unwrap(), 7);
    let rules = info.get_document("details").unwrap().get_array("schemaRulesNotSatisfied").unwrap();
    let names: Vec<_> = rules
        .iter()
        .map(|rule| rule.as_document().unwrap().get_str("operatorName").unwrap())
        .collect();
    assert_eq!(names, ["required", "properties"]);
    let modify =
        doc! {"findAndModify": "c", "query": {"_id": 1}, "update": {"x": 1}, "upsert": true};
    let reply = member.run(modify);
    assert_eq!(reply.get_i32("code").unwrap(), 121);
    assert!(reply.get_document("errInfo").unwrap().contains_key("details"), "{reply}");
}
