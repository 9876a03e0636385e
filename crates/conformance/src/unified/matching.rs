//! Whether an actual value is what a test expects.
//!
//! Follows "Evaluating Matches" of the unified test format, special operators included. An operator
//! that is not known is an error, never a match.

use bson::{Bson, Document};

use crate::{Context, Reason, Result};

/// Looks up what operators refer to.
pub(super) trait Lookup: Sync {
    /// The id of a session, as commands carry it.
    fn session_id(&self, name: &str) -> Result<Document>;

    /// A value that an earlier operation left.
    fn value(&self, name: &str) -> Result<Bson>;
}

/// Whether extra fields are let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// A document that a test describes in part.
    Root,
    /// Anything inside one.
    Nested,
}

/// Judges values.
#[derive(Clone, Copy)]
pub(super) struct Matcher<'a> {
    pub(super) lookup: &'a dyn Lookup,
}

impl Matcher<'_> {
    /// Compares a value that may be absent. `Err` says where they differ.
    pub(super) fn check(&self, expected: &Bson, actual: Option<&Bson>, level: Level) -> Result<()> {
        if let Some((operator, argument)) = operator(expected) {
            return self.operate(operator, argument, actual, level);
        }
        let actual = actual.ok_or_else(|| format!("expected {expected}, found nothing"))?;
        match (expected, actual) {
            (Bson::Document(expected), Bson::Document(actual)) => {
                self.documents(expected, actual, level)
            }
            (Bson::Array(expected), Bson::Array(actual)) => {
                if expected.len() != actual.len() {
                    let (wanted, found) = (expected.len(), actual.len());
                    bail!("expected {wanted} elements, found {found}: {actual:?}");
                }
                for (place, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                    self.check(expected, Some(actual), Level::Nested)
                        .context(format_args!("[{place}]"))?;
                }
                Ok(())
            }
            (expected, actual) if scalars_are_equal(expected, actual) => Ok(()),
            (expected, actual) => Err(format!("expected {expected}, found {actual}").into()),
        }
    }

    fn documents(&self, expected: &Document, actual: &Document, level: Level) -> Result<()> {
        for (key, wanted) in expected {
            self.check(wanted, actual.get(key), Level::Nested).context(key)?;
        }
        if level == Level::Nested
            && let Some(extra) = actual.keys().find(|key| !expected.contains_key(key))
        {
            bail!("{extra} was not expected in {actual}");
        }
        Ok(())
    }

    fn operate(
        &self,
        operator: &str,
        argument: &Bson,
        actual: Option<&Bson>,
        level: Level,
    ) -> Result<()> {
        let wrong = || Err(format!("{operator} {argument} does not hold for {actual:?}").into());
        let require = || actual.ok_or_else(|| format!("{operator}: there is no value"));
        let holds = match operator {
            "$$exists" => argument.as_bool().ok_or("$$exists takes a boolean")? == actual.is_some(),
            "$$type" => has_type(argument, require()?)?,
            "$$unsetOrMatches" => match actual {
                None => true,
                actual => return self.check(argument, actual, level),
            },
            "$$matchesEntity" => {
                let name = argument.as_str().ok_or("$$matchesEntity takes a name")?;
                let value = self.lookup.value(name)?;
                return self.check(&value, actual, level);
            }
            "$$sessionLsid" => {
                let name = argument.as_str().ok_or("$$sessionLsid takes a name")?;
                let id = Bson::Document(self.lookup.session_id(name)?);
                return self.check(&id, actual, Level::Nested);
            }
            "$$lte" => match (number(argument), number(require()?)) {
                (Some(most), Some(found)) => found <= most,
                _ => return wrong(),
            },
            "$$matchAsDocument" => {
                let text = require()?.as_str().ok_or("$$matchAsDocument needs a text")?;
                let json: serde_json::Value = serde_json::from_str(text).context(text)?;
                let document = Bson::try_from(json).context(text)?;
                return self.check(argument, Some(&document), Level::Nested);
            }
            "$$matchAsRoot" => return self.check(argument, actual, Level::Root),
            "$$matchesHexBytes" => {
                let (Bson::String(hex), Bson::Binary(binary)) = (argument, require()?) else {
                    return wrong();
                };
                let found = hex::encode(&binary.bytes);
                hex.eq_ignore_ascii_case(&found)
            }
            _ => bail!("unknown operator {operator}"),
        };
        if holds { Ok(()) } else { wrong() }
    }
}

/// The operator of `{"$$…": argument}`.
fn operator(expected: &Bson) -> Option<(&str, &Bson)> {
    let document = expected.as_document().filter(|document| document.len() == 1)?;
    let (key, argument) = document.iter().next()?;
    key.starts_with("$$").then_some((key.as_str(), argument))
}

/// The number in a value that flexible comparison looks at.
fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(number) => Some(f64::from(*number)),
        Bson::Int64(number) => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    }
}

/// Whether two values are the same, noting flexible numerics.
pub(super) fn scalars_are_equal(expected: &Bson, actual: &Bson) -> bool {
    match (expected, actual) {
        (Bson::Int64(one), Bson::Int64(other)) => one == other,
        _ => match (number(expected), number(actual)) {
            (Some(one), Some(other)) => one == other || one.is_nan() && other.is_nan(),
            _ => expected == actual,
        },
    }
}

fn has_type(types: &Bson, actual: &Bson) -> Result<bool> {
    let one = |name: &Bson| {
        let name = name.as_str().ok_or("$$type takes names")?;
        Ok::<bool, Reason>(match name {
            "number" => number(actual).is_some() || matches!(actual, Bson::Decimal128(_)),
            name if TYPES.contains(&name) => type_name(actual) == Some(name),
            other => bail!("unknown type {other}"),
        })
    };
    match types {
        Bson::Array(names) => {
            for name in names {
                if one(name)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        name => one(name),
    }
}

const TYPES: [&str; 20] = [
    "double", "string", "object", "array", "binData", "undefined", "objectId", "bool", "date",
    "null", "regex", "dbPointer", "javascript", "symbol", "int", "timestamp", "long", "decimal",
    "minKey", "maxKey",
];

fn type_name(value: &Bson) -> Option<&'static str> {
    Some(match value {
        Bson::Double(_) => "double",
        Bson::String(_) => "string",
        Bson::Document(_) => "object",
        Bson::Array(_) => "array",
        Bson::Binary(_) => "binData",
        Bson::Undefined => "undefined",
        Bson::ObjectId(_) => "objectId",
        Bson::Boolean(_) => "bool",
        Bson::DateTime(_) => "date",
        Bson::Null => "null",
        Bson::RegularExpression(_) => "regex",
        Bson::JavaScriptCode(_) => "javascript",
        Bson::Symbol(_) => "symbol",
        Bson::Int32(_) => "int",
        Bson::Timestamp(_) => "timestamp",
        Bson::Int64(_) => "long",
        Bson::Decimal128(_) => "decimal",
        Bson::MinKey => "minKey",
        Bson::MaxKey => "maxKey",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{bson, doc};

    struct Nothing;

    impl Lookup for Nothing {
        fn session_id(&self, name: &str) -> Result<Document> {
            Err(format!("no session {name}").into())
        }

        fn value(&self, name: &str) -> Result<Bson> {
            Err(format!("no value {name}").into())
        }
    }

    fn root(expected: Document, actual: Document) -> Result<()> {
        let (expected, actual) = (Bson::Document(expected), Bson::Document(actual));
        Matcher { lookup: &Nothing }.check(&expected, Some(&actual), Level::Root)
    }

    #[test]
    fn extra_fields_pass_at_the_root_alone() {
        assert!(root(doc! { "a": 1 }, doc! { "a": 1_i64, "b": 2 }).is_ok());
        assert!(root(doc! { "a": { "b": 1 } }, doc! { "a": { "b": 1, "c": 2 } }).is_err());
        assert!(root(doc! { "a": 1, "b": 1 }, doc! { "a": 1 }).is_err());
        assert!(root(doc! { "a": 1 }, doc! { "a": 1.5 }).is_err());
        assert!(root(doc! { "a": [1] }, doc! { "a": [1, 2] }).is_err());
    }

    #[test]
    fn operators_judge_and_unknown_ones_are_errors() {
        assert!(root(doc! { "a": { "$$exists": false } }, doc! {}).is_ok());
        assert!(root(doc! { "a": { "$$exists": false } }, doc! { "a": null }).is_err());
        assert!(root(doc! { "a": { "$$type": ["int", "long"] } }, doc! { "a": 1 }).is_ok());
        assert!(root(doc! { "a": { "$$type": "string" } }, doc! { "a": 1 }).is_err());
        assert!(root(doc! { "a": { "$$type": "strange" } }, doc! { "a": 1 }).is_err());
        assert!(root(doc! { "a": { "$$unsetOrMatches": 1 } }, doc! {}).is_ok());
        assert!(root(doc! { "a": { "$$unsetOrMatches": 1 } }, doc! { "a": 2 }).is_err());
        assert!(root(doc! { "a": { "$$lte": 5 } }, doc! { "a": 5.5 }).is_err());
        let text = doc! { "a": "{\"x\": 1, \"y\": 2}" };
        let part = doc! { "a": { "$$matchAsDocument": { "$$matchAsRoot": { "x": 1 } } } };
        assert!(root(part, text.clone()).is_ok());
        assert!(root(doc! { "a": { "$$matchAsDocument": { "x": 1 } } }, text).is_err());
        assert!(root(doc! { "a": { "$$sessionLsid": "s" } }, doc! { "a": {} }).is_err());
        assert!(root(doc! { "a": { "$$wish": 1 } }, doc! { "a": 1 }).is_err());
        let matcher = Matcher { lookup: &Nothing };
        assert!(matcher.check(&bson!({ "$$exists": true }), None, Level::Root).is_err());
    }
}
