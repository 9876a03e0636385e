//! The time that a command took, in the replies that have a field for it.
//!
//! A member has no clock: the shell around it measures, and lets the field be added here.

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf};

/// Adds to the reply of a command how long it took, if such a reply tells it: `executionTimeMillis` of what an
/// `explain` has run, and `millis` of `dataSize`.
pub fn tell_duration(body: &mut RawDocumentBuf, command: &str, took: Duration) {
    if !matches!(command, "explain" | "dataSize" | "datasize") {
        return;
    }
    let Ok(mut reply) = Document::try_from(&**body) else { return };
    let millis = i32::try_from(took.as_millis()).unwrap_or(i32::MAX);
    if command == "explain" {
        tell_execution(&mut reply, millis);
    } else if reply.contains_key("numObjects") {
        reply.insert("millis", millis);
    }
    if let Ok(changed) = RawDocumentBuf::try_from(&reply) {
        *body = changed;
    }
}

fn tell_execution(reply: &mut Document, millis: i32) {
    insert_time(reply, millis);
    let Ok(stages) = reply.get_array_mut("stages") else { return };
    for stage in stages.iter_mut().filter_map(Bson::as_document_mut) {
        if let Ok(cursor) = stage.get_document_mut("$cursor") {
            insert_time(cursor, millis);
        }
    }
}

/// Puts the time behind the number of documents, where MongoDB has it.
fn insert_time(explained: &mut Document, millis: i32) {
    let Ok(stats) = explained.get_document_mut("executionStats") else { return };
    let mut timed = Document::new();
    for (name, value) in std::mem::take(stats) {
        let is_place = name == "nReturned";
        timed.insert(name, value);
        if is_place {
            timed.insert("executionTimeMillis", millis);
        }
    }
    *stats = timed;
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn told(command: &str, reply: &Document) -> Document {
        let mut body = RawDocumentBuf::try_from(reply).unwrap();
        tell_duration(&mut body, command, Duration::from_millis(7));
        Document::try_from(&*body).unwrap()
    }

    #[test]
    fn what_an_explain_has_run_has_its_time_and_nothing_else_has() {
        let ran = doc! { "executionStats": { "nReturned": 1_i64, "totalKeysExamined": 2_i64 } };
        let timed = doc! { "executionStats": {
            "nReturned": 1_i64, "executionTimeMillis": 7, "totalKeysExamined": 2_i64,
        } };
        assert_eq!(told("explain", &ran), timed);
        let stages = doc! { "stages": [{ "$cursor": ran.clone() }, { "$group": {} }], "ok": 1.0 };
        let expected = doc! { "stages": [{ "$cursor": timed }, { "$group": {} }], "ok": 1.0 };
        assert_eq!(told("explain", &stages), expected);
        for unchanged in [doc! { "queryPlanner": {} }, doc! { "ok": 0.0 }] {
            assert_eq!(told("explain", &unchanged), unchanged);
        }
        assert_eq!(told("find", &ran), ran);
        let size = doc! { "size": 1_i64, "numObjects": 1_i64 };
        assert_eq!(told("dataSize", &size).get_i32("millis").unwrap(), 7);
        assert_eq!(told("dataSize", &doc! { "ok": 0.0 }), doc! { "ok": 0.0 });
    }
}
