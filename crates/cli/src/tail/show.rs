//! One change as a line.

use anstyle::Style;
use bson::raw::{RawBsonRef, RawDocument};
use bson::{Bson, Document};
use serde_json::{Value, json};

use crate::screen::{FINE, NOTE, PROBLEM, QUIET, Result, STRONG, Screen, WARNING};
use crate::words::Foreign;

/// Shows a change.
pub(super) fn change(screen: &mut Screen, change: &RawDocument) -> Result<()> {
    let shown = Shown::read(change)?;
    let fields = json!({
        "operation": shown.operation,
        "namespace": shown.namespace,
        "change": shown.whole,
    });
    screen.event("change", fields)?;
    let Shown { operation, namespace, time, key, what, .. } = &shown;
    let style = style(operation);
    let (operation, namespace) = (Foreign(operation), Foreign(namespace));
    let (key, what) = (Foreign(key), Foreign(what));
    screen.line(format_args!(
        "{QUIET}{time}{QUIET:#} {style}{operation:<10}{style:#} {STRONG}{namespace}{STRONG:#} \
         {key} {what}"
    ))?;
    Ok(screen.flush()?)
}

fn style(operation: &str) -> Style {
    match operation {
        "insert" | "create" | "createIndexes" => FINE,
        "update" | "replace" | "modify" => NOTE,
        "delete" | "dropIndexes" => WARNING,
        "drop" | "dropDatabase" | "rename" | "invalidate" => PROBLEM,
        _ => STRONG,
    }
}

struct Shown {
    operation: String,
    namespace: String,
    time: String,
    key: String,
    what: String,
    whole: Value,
}

impl Shown {
    fn read(change: &RawDocument) -> Result<Self> {
        let document = Document::try_from(change).map_err(|error| {
            problem!("a change cannot be read: {error}; look at the server's log")
        })?;
        let ns = document.get_document("ns").ok();
        let name = |key| ns.and_then(|ns| ns.get_str(key).ok());
        let namespace = match (name("db"), name("coll")) {
            (Some(database), Some(collection)) => format!("{database}.{collection}"),
            (Some(database), None) => database.to_owned(),
            _ => String::new(),
        };
        let what = ["updateDescription", "fullDocument", "to", "operationDescription"]
            .into_iter()
            .filter_map(|key| document.get(key))
            .find(|value| !matches!(value, Bson::Null));
        Ok(Self {
            operation: document.get_str("operationType").unwrap_or("change").to_owned(),
            namespace,
            time: time(change),
            key: document.get("documentKey").map(compact).unwrap_or_default(),
            what: what.map(compact).unwrap_or_default(),
            whole: Bson::Document(document).into_relaxed_extjson(),
        })
    }
}

/// When it happened: the server's wall clock, or else the second of its log.
fn time(change: &RawDocument) -> String {
    let millis = match (change.get("wallTime"), change.get("clusterTime")) {
        (Ok(Some(RawBsonRef::DateTime(time))), _) => time.timestamp_millis(),
        (_, Ok(Some(RawBsonRef::Timestamp(time)))) => i64::from(time.time) * 1000,
        _ => return "-".to_owned(),
    };
    let time = bson::DateTime::from_millis(millis);
    time.try_to_rfc3339_string().unwrap_or_else(|_| "-".to_owned())
}

fn compact(value: &Bson) -> String {
    value.clone().into_relaxed_extjson().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{DateTime, Timestamp, rawdoc};

    #[test]
    fn a_change_tells_when_what_and_where() {
        let change = rawdoc! {
            "_id": { "_data": "82" }, "operationType": "update",
            "clusterTime": Timestamp { time: 60, increment: 1 },
            "wallTime": DateTime::from_millis(60_250),
            "ns": { "db": "shop", "coll": "orders" }, "documentKey": { "_id": 1 },
            "updateDescription": { "updatedFields": { "n": 2 }, "removedFields": [] },
        };
        let shown = Shown::read(&change).unwrap();
        assert_eq!((&*shown.operation, &*shown.namespace), ("update", "shop.orders"));
        assert_eq!(shown.time, "1970-01-01T00:01:00.25Z");
        assert_eq!(shown.key, r#"{"_id":1}"#);
        assert!(shown.what.contains(r#""updatedFields":{"n":2}"#), "{}", shown.what);
        assert_eq!(shown.whole["operationType"], "update");
    }

    #[test]
    fn what_is_missing_is_left_out() {
        let change = rawdoc! {
            "_id": { "_data": "82" }, "operationType": "dropDatabase", "ns": { "db": "shop" },
            "clusterTime": Timestamp { time: 60, increment: 1 },
        };
        let shown = Shown::read(&change).unwrap();
        assert_eq!((&*shown.namespace, &*shown.key, &*shown.what), ("shop", "", ""));
        assert_eq!(shown.time, "1970-01-01T00:01:00Z");
        let bare = Shown::read(&rawdoc! { "_id": { "_data": "82" } }).unwrap();
        assert_eq!((&*bare.operation, &*bare.time), ("change", "-"));
    }
}
