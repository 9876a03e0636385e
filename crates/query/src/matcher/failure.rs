//! Why a document fails a validator, as the server tells it in `errInfo.details`.
//!
//! A failure is told rule by rule: each rule is tried by itself, and one that fails becomes a document with its name, what
//! it asks for, a reason, and the value that was considered. Nothing here decides whether a document is valid. The
//! manual: "Address Invalid Document Failures".

use bson::{Bson, Document, doc};

use super::{Matcher, RegexMatcher, Schema, is_operator_document};
use crate::expression::Compiler;
use crate::meter::Meter;
use crate::value::{ArrayRef, DocumentRef, ValueRef, type_name};

/// A value of more bytes is not repeated in the reason.
const MAX_CONSIDERED_BYTES: usize = 4 * 1024;

/// The most names or parts that one rule tells of.
const MAX_LISTED: usize = 100;

/// The rules of a validator that a document breaks.
pub fn failure(validator: &Document, document: DocumentRef<'_>, compiler: &Compiler) -> Document {
    let judge = Judge { document, compiler };
    judge.details(validator).unwrap_or_else(|| doc! { "specifiedAs": validator.clone() })
}

/// A document and what is needed to try rules on it.
struct Judge<'a> {
    document: DocumentRef<'a>,
    compiler: &'a Compiler,
}

impl Judge<'_> {
    /// A query that cannot be tried is not what has failed.
    fn matches(&self, query: &Document) -> bool {
        let matcher = Matcher::parse_with(query, self.compiler);
        matcher.and_then(|matcher| matcher.matches(self.document)).unwrap_or(true)
    }

    /// What a query fails for; none if it does not fail.
    fn details(&self, query: &Document) -> Option<Document> {
        let clauses = clauses(query);
        let mut failing = self.failing(&clauses);
        match (clauses.len(), failing.len()) {
            (_, 0) => None,
            (1, _) => failing.pop().map(|(_, details)| details),
            _ => Some(doc! { "operatorName": "$and", "clausesNotSatisfied": numbered(failing) }),
        }
    }

    fn failing(&self, clauses: &[Document]) -> Vec<(usize, Document)> {
        let failing = clauses.iter().enumerate().filter(|(_, clause)| !self.matches(clause));
        failing.take(MAX_LISTED).map(|(place, clause)| (place, self.clause(clause))).collect()
    }

    /// Why a query of one clause fails.
    fn clause(&self, clause: &Document) -> Document {
        let Some((name, argument)) = clause.iter().next() else { return Document::new() };
        match (name.as_str(), argument) {
            ("$jsonSchema", Bson::Document(schema)) => {
                let mut details = doc! { "operatorName": name };
                details.extend(described(schema));
                let rules = broken_rules(schema, ValueRef::Document(self.document));
                details.insert("schemaRulesNotSatisfied", rules);
                details
            }
            ("$and" | "$or", Bson::Array(inner)) => {
                let inner: Vec<_> =
                    inner.iter().filter_map(Bson::as_document).map(Document::clone).collect();
                let failing = inner
                    .iter()
                    .enumerate()
                    .filter_map(|(place, query)| Some((place, self.details(query)?)))
                    .take(MAX_LISTED);
                doc! { "operatorName": name, "clausesNotSatisfied": numbered(failing) }
            }
            ("$nor", Bson::Array(inner)) => {
                let matching = inner.iter().filter_map(Bson::as_document).enumerate();
                let matching = matching.filter(|(_, query)| self.matches(query));
                let told = matching.map(|(place, query)| {
                    (place, doc! { "specifiedAs": query.clone(), "reason": "expression matched" })
                });
                doc! { "operatorName": name, "clausesSatisfied": numbered(told.take(MAX_LISTED)) }
            }
            ("$expr", _) => doc! {
                "operatorName": name,
                "specifiedAs": clause.clone(),
                "reason": "expression did not match",
                "expressionResult": false,
            },
            _ => self.condition(name, argument, clause),
        }
    }

    /// Why a condition on one path fails.
    fn condition(&self, path: &str, argument: &Bson, clause: &Document) -> Document {
        let operators = argument.as_document().filter(|inner| is_operator_document(inner));
        let operator = operators.and_then(|inner| inner.keys().next());
        let operator = operator.map_or("$eq", String::as_str);
        let mut details = doc! { "operatorName": operator, "specifiedAs": clause.clone() };
        let reason = match operator {
            "$eq" | "$gt" | "$gte" | "$lt" | "$lte" | "$ne" => "comparison failed",
            "$in" => "no matching value found in array",
            "$nin" => "matching value found in array",
            "$type" => "type did not match",
            "$regex" => "regular expression did not match",
            "$exists" => "path does not exist",
            "$size" => "array length was not equal to given size",
            "$mod" => "$mod did not evaluate to expected remainder",
            "$elemMatch" => "array did not satisfy the child predicate",
            "$not" => "child expression matched",
            _ => "expression did not match",
        };
        match (self.at(path), operator) {
            (Reached::Missing, "$exists") => details.insert("reason", reason),
            (Reached::Missing, _) => details.insert("reason", "field was missing"),
            (Reached::Value(_), "$exists") => details.insert("reason", "path does exist"),
            (_, _) => details.insert("reason", reason),
        };
        if let (Reached::Value(value), true) = (self.at(path), operator != "$exists") {
            consider(&mut details, value, operator == "$type");
        }
        details
    }

    /// The value at a path that leads through documents.
    fn at(&self, path: &str) -> Reached<'_> {
        let mut value = ValueRef::Document(self.document);
        for name in path.split('.') {
            match value {
                ValueRef::Document(document) => match document.get(name) {
                    Some(inner) => value = inner,
                    None => return Reached::Missing,
                },
                ValueRef::Array(_) => return Reached::Several,
                _ => return Reached::Missing,
            }
        }
        Reached::Value(value)
    }
}

/// Where a path leads.
enum Reached<'a> {
    Value(ValueRef<'a>),
    Missing,
    /// Through an array, to any number of values.
    Several,
}

/// The parts of a query that must all match, each as a query.
fn clauses(query: &Document) -> Vec<Document> {
    let mut clauses = Vec::new();
    for (name, argument) in query {
        match argument {
            Bson::Document(operators)
                if !name.starts_with('$') && is_operator_document(operators) =>
            {
                for (operator, value) in operators.iter().filter(|(name, _)| *name != "$options") {
                    let mut condition = doc! { operator: value.clone() };
                    if let ("$regex", Some(options)) = (&operator[..], operators.get("$options")) {
                        condition.insert("$options", options.clone());
                    }
                    clauses.push(doc! { name: condition });
                }
            }
            _ => clauses.push(doc! { name: argument.clone() }),
        }
    }
    clauses
}

fn numbered(told: impl IntoIterator<Item = (usize, Document)>) -> Vec<Bson> {
    told.into_iter()
        .map(|(place, details)| Bson::from(doc! { "index": place as i32, "details": details }))
        .collect()
}

/// The words that a schema has for people.
fn described(schema: &Document) -> Document {
    let words = ["title", "description"].into_iter();
    words.filter_map(|name| Some((name.to_owned(), schema.get(name)?.clone()))).collect()
}

/// Adds the value that a rule has checked, unless it is long.
fn consider(details: &mut Document, value: ValueRef<'_>, with_type: bool) {
    let is_long = match value {
        ValueRef::String(text) => text.len() > MAX_CONSIDERED_BYTES,
        ValueRef::Binary { bytes, .. } => bytes.len() > MAX_CONSIDERED_BYTES,
        ValueRef::Document(DocumentRef::Raw(raw)) => raw.as_bytes().len() > MAX_CONSIDERED_BYTES,
        ValueRef::Array(ArrayRef::Raw(raw)) => raw.as_bytes().len() > MAX_CONSIDERED_BYTES,
        _ => false,
    };
    if !is_long {
        details.insert("consideredValue", value.to_bson());
    }
    if with_type {
        details.insert("consideredType", type_name(value));
    }
}

/// The keywords of a schema that a value breaks.
fn broken_rules(schema: &Document, value: ValueRef<'_>) -> Vec<Bson> {
    let broken = schema.keys().filter(|keyword| breaks(&alone(schema, keyword), value));
    broken.take(MAX_LISTED).map(|keyword| Bson::from(rule(schema, keyword, value))).collect()
}

fn breaks(schema: &Document, value: ValueRef<'_>) -> bool {
    let parsed = Schema::parse(schema);
    parsed.and_then(|schema| schema.validates(value, &Meter::default())).is_ok_and(|valid| !valid)
}

/// A keyword with those that change its meaning, and without the others.
fn alone(schema: &Document, keyword: &str) -> Document {
    let companions: &[&str] = match keyword {
        "minimum" => &["exclusiveMinimum"],
        "maximum" => &["exclusiveMaximum"],
        "items" => &["additionalItems"],
        "exclusiveMinimum" | "exclusiveMaximum" | "additionalItems" => return Document::new(),
        _ => &[],
    };
    let mut own: Document = companions
        .iter()
        .chain([&keyword])
        .filter_map(|name| Some(((*name).to_owned(), schema.get(name)?.clone())))
        .collect();
    if keyword == "additionalProperties" {
        // Which properties are named counts, and not what they must be.
        for named in ["properties", "patternProperties"] {
            if let Some(Bson::Document(known)) = schema.get(named) {
                let any = known.keys().map(|name| (name.clone(), Bson::from(doc! {})));
                own.insert(named, any.collect::<Document>());
            }
        }
    }
    own
}

/// Why a keyword is broken.
fn rule(schema: &Document, keyword: &str, value: ValueRef<'_>) -> Document {
    let argument = schema.get(keyword).unwrap_or(&Bson::Null);
    let mut details = doc! { "operatorName": keyword };
    let told = match (keyword, value, argument) {
        ("properties", ValueRef::Document(held), Bson::Document(wanted)) => {
            Some(doc! { "propertiesNotSatisfied": broken_properties(wanted, held) })
        }
        ("patternProperties", ValueRef::Document(held), Bson::Document(wanted)) => {
            Some(doc! { "details": broken_patterns(wanted, held) })
        }
        ("additionalProperties", ValueRef::Document(held), _) => {
            Some(additional(schema, argument, held))
        }
        ("required", ValueRef::Document(held), Bson::Array(names)) => {
            let missing = names
                .iter()
                .filter(|name| name.as_str().is_some_and(|name| held.get(name).is_none()));
            let missing: Vec<_> = missing.take(MAX_LISTED).cloned().collect();
            Some(
                doc! { "specifiedAs": { keyword: argument.clone() }, "missingProperties": missing },
            )
        }
        ("dependencies", ValueRef::Document(held), Bson::Document(wanted)) => {
            Some(doc! { "failingDependencies": broken_dependencies(wanted, held) })
        }
        ("items", ValueRef::Array(array), Bson::Document(wanted)) => {
            let first = array.iter().enumerate().find(|(_, item)| breaks(wanted, *item));
            first.map(|(place, item)| {
                doc! {
                    "reason": "At least one item did not match the sub-schema",
                    "itemIndex": place as i32,
                    "details": broken_rules(wanted, item),
                }
            })
        }
        ("allOf" | "anyOf" | "oneOf", _, Bson::Array(schemas)) => {
            Some(combined(keyword, schemas, value))
        }
        ("not", _, _) => Some(doc! { "reason": "child expression matched" }),
        _ => None,
    };
    match told {
        Some(told) => details.extend(told),
        None => tell_leaf(&mut details, schema, keyword, value),
    }
    details
}

/// A keyword that stands for itself.
fn tell_leaf(details: &mut Document, schema: &Document, keyword: &str, value: ValueRef<'_>) {
    details.insert("specifiedAs", alone(schema, keyword));
    let reason = match keyword {
        "bsonType" | "type" => "type did not match",
        "minimum" | "maximum" => "comparison failed",
        "enum" => "value was not found in enum",
        "minLength" | "maxLength" => "specified string length was not satisfied",
        "pattern" => "regular expression did not match",
        "multipleOf" => "considered value is not a multiple of the specified value",
        "minItems" | "maxItems" => "array did not match specified length",
        "uniqueItems" => "found a duplicate item",
        "minProperties" | "maxProperties" => "specified number of properties was not satisfied",
        _ => "value did not match",
    };
    details.insert("reason", reason);
    match (keyword, value) {
        ("minProperties" | "maxProperties", ValueRef::Document(held)) => {
            details.insert("numberOfProperties", held.iter().count() as i32);
        }
        _ => consider(details, value, matches!(keyword, "bsonType" | "type")),
    }
}

fn broken_properties(wanted: &Document, held: DocumentRef<'_>) -> Vec<Bson> {
    let broken = wanted.iter().filter_map(|(name, inner)| {
        let (inner, value) = (inner.as_document()?, held.get(name)?);
        breaks(inner, value).then(|| property(name, inner, value))
    });
    broken.take(MAX_LISTED).map(Bson::from).collect()
}

fn property(name: &str, schema: &Document, value: ValueRef<'_>) -> Document {
    let mut told = doc! { "propertyName": name };
    told.extend(described(schema));
    told.insert("details", broken_rules(schema, value));
    told
}

fn broken_patterns(wanted: &Document, held: DocumentRef<'_>) -> Vec<Bson> {
    let mut told = Vec::new();
    for (pattern, inner) in wanted {
        let (Ok(regex), Some(inner)) = (RegexMatcher::new(pattern, ""), inner.as_document()) else {
            continue;
        };
        let matching = held.iter().filter(|(name, _)| regex.is_match(name).unwrap_or(false));
        for (name, value) in matching.filter(|(_, value)| breaks(inner, *value)) {
            let mut property = property(name, inner, value);
            property.insert("regexMatched", pattern);
            told.push(Bson::from(property));
            if told.len() == MAX_LISTED {
                return told;
            }
        }
    }
    told
}

/// The properties that the schema has no name for.
fn additional(schema: &Document, argument: &Bson, held: DocumentRef<'_>) -> Document {
    let none = Document::new();
    let named = schema.get_document("properties").unwrap_or(&none);
    let patterns = schema.get_document("patternProperties").unwrap_or(&none);
    let patterns: Vec<_> =
        patterns.keys().filter_map(|pattern| RegexMatcher::new(pattern, "").ok()).collect();
    let is_additional = |name: &str| {
        let is_match = |regex: &RegexMatcher| regex.is_match(name).unwrap_or(false);
        !named.contains_key(name) && !patterns.iter().any(is_match)
    };
    let mut additional = held.iter().filter(|(name, _)| is_additional(name));
    match argument {
        Bson::Document(inner) => match additional.find(|(_, value)| breaks(inner, *value)) {
            Some((name, value)) => doc! {
                "reason": "at least one additional property did not match the subschema",
                "failingProperty": name,
                "details": broken_rules(inner, value),
            },
            None => Document::new(),
        },
        _ => {
            let names: Vec<_> =
                additional.take(MAX_LISTED).map(|(name, _)| Bson::from(name)).collect();
            doc! {
                "specifiedAs": { "additionalProperties": argument.clone() },
                "additionalProperties": names,
            }
        }
    }
}

fn broken_dependencies(wanted: &Document, held: DocumentRef<'_>) -> Vec<Bson> {
    let mut told = Vec::new();
    for (name, inner) in wanted.iter().filter(|(name, _)| held.get(name).is_some()) {
        match inner {
            Bson::Array(names) => {
                let is_missing =
                    |name: &&Bson| name.as_str().is_some_and(|it| held.get(it).is_none());
                let missing: Vec<_> = names.iter().filter(is_missing).cloned().collect();
                if !missing.is_empty() {
                    told.push(
                        doc! { "conditionalProperty": name, "missingProperties": missing }.into(),
                    );
                }
            }
            Bson::Document(inner) if breaks(inner, ValueRef::Document(held)) => {
                let details = broken_rules(inner, ValueRef::Document(held));
                told.push(doc! { "conditionalProperty": name, "details": details }.into());
            }
            _ => {}
        }
    }
    told
}

/// Which of several schemas fail; of `oneOf`, which match if they are too many.
fn combined(keyword: &str, schemas: &[Bson], value: ValueRef<'_>) -> Document {
    let schemas = || schemas.iter().filter_map(Bson::as_document).enumerate();
    let matching: Vec<_> = schemas().filter(|(_, inner)| !breaks(inner, value)).collect();
    if keyword == "oneOf" && matching.len() > 1 {
        let places: Vec<_> = matching.iter().map(|(place, _)| *place as i32).collect();
        return doc! {
            "reason": "more than one subschema matched", "matchingSchemaIndexes": places,
        };
    }
    let failing = schemas().filter(|(_, inner)| breaks(inner, value)).take(MAX_LISTED);
    let told = failing.map(|(place, inner)| {
        let mut told = doc! { "index": place as i32 };
        told.extend(described(inner));
        told.insert("details", broken_rules(inner, value));
        Bson::from(told)
    });
    doc! { "schemasNotSatisfied": told.collect::<Vec<_>>() }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::expression::{Compiler, Variables};

    fn told(validator: Document, document: Document) -> Document {
        let compiler = Compiler::new(Variables::new(0));
        let matcher = Matcher::parse_with(&validator, &compiler).unwrap();
        assert!(!matcher.matches(&document).unwrap(), "{validator} takes {document}");
        let parsed = failure(&validator, (&document).into(), &compiler);
        let raw = bson::RawDocumentBuf::try_from(&document).unwrap();
        assert_eq!(failure(&validator, DocumentRef::Raw(&raw), &compiler), parsed);
        parsed
    }

    /// The manual's page on schema validation has such an answer for its students.
    #[test]
    fn rules_of_a_schema_are_told_with_the_values_that_break_them() {
        let schema = doc! {
            "bsonType": "object",
            "title": "Student",
            "required": ["name", "year", "gpa"],
            "properties": {
                "name": { "bsonType": "string", "description": "must be a string" },
                "year": { "bsonType": "int", "minimum": 2017, "maximum": 3017 },
                "gpa": { "bsonType": ["double"] },
            },
        };
        let wanted = doc! {
            "operatorName": "$jsonSchema",
            "title": "Student",
            "schemaRulesNotSatisfied": [
                {
                    "operatorName": "required",
                    "specifiedAs": { "required": ["name", "year", "gpa"] },
                    "missingProperties": ["gpa"],
                },
                {
                    "operatorName": "properties",
                    "propertiesNotSatisfied": [
                        {
                            "propertyName": "name",
                            "description": "must be a string",
                            "details": [{
                                "operatorName": "bsonType",
                                "specifiedAs": { "bsonType": "string" },
                                "reason": "type did not match",
                                "consideredValue": 5,
                                "consideredType": "int",
                            }],
                        },
                        {
                            "propertyName": "year",
                            "details": [{
                                "operatorName": "minimum",
                                "specifiedAs": { "minimum": 2017 },
                                "reason": "comparison failed",
                                "consideredValue": 2016,
                            }],
                        },
                    ],
                },
            ],
        };
        assert_eq!(told(doc! { "$jsonSchema": schema }, doc! { "name": 5, "year": 2016 }), wanted);
    }

    /// The only rule of a schema that is broken.
    fn broken(schema: Document, value: Bson) -> Document {
        let schema = doc! { "$jsonSchema": { "properties": { "v": schema } } };
        let details = told(schema, doc! { "v": value });
        let rules = details.get_array("schemaRulesNotSatisfied").unwrap();
        let properties =
            rules[0].as_document().unwrap().get_array("propertiesNotSatisfied").unwrap();
        let rules = properties[0].as_document().unwrap().get_array("details").unwrap();
        assert_eq!(rules.len(), 1, "{rules:?}");
        rules[0].as_document().unwrap().clone()
    }

    #[test]
    fn each_keyword_has_its_reason() {
        let cases: [(Document, Bson, &str); 9] = [
            (doc! { "maximum": 3, "exclusiveMaximum": true }, 3.into(), "comparison failed"),
            (doc! { "enum": [1, 2] }, 3.into(), "value was not found in enum"),
            (doc! { "minLength": 3 }, "ab".into(), "specified string length was not satisfied"),
            (doc! { "pattern": "^x" }, "ab".into(), "regular expression did not match"),
            (
                doc! { "multipleOf": 2 },
                3.into(),
                "considered value is not a multiple of the specified value",
            ),
            (doc! { "maxItems": 1 }, vec![1, 2].into(), "array did not match specified length"),
            (doc! { "uniqueItems": true }, vec![1, 1].into(), "found a duplicate item"),
            (doc! { "not": {} }, 1.into(), "child expression matched"),
            (
                doc! { "minProperties": 2 },
                doc! { "a": 1 }.into(),
                "specified number of properties was not satisfied",
            ),
        ];
        for (schema, value, reason) in cases {
            let told = broken(schema.clone(), value);
            assert_eq!(told.get_str("reason").unwrap(), reason, "{schema}");
            assert_eq!(told.get_str("operatorName").unwrap(), schema.keys().next().unwrap());
        }
        let limits = broken(doc! { "minimum": 3, "exclusiveMinimum": true }, 3.into());
        let wanted = doc! { "exclusiveMinimum": true, "minimum": 3 };
        assert_eq!(limits.get_document("specifiedAs").unwrap(), &wanted);
    }

    #[test]
    fn nested_rules_are_told_where_they_are() {
        let items =
            broken(doc! { "items": { "bsonType": "int" } }, vec![Bson::from(1), "x".into()].into());
        assert_eq!(items.get_i32("itemIndex").unwrap(), 1);
        assert_eq!(items.get_array("details").unwrap().len(), 1);
        let more = doc! {
            "properties": { "a": {} }, "patternProperties": { "^p": {} }, "additionalProperties": false,
        };
        let more = broken(more, doc! { "a": 1, "pq": 1, "other": 2 }.into());
        assert_eq!(more.get_array("additionalProperties").unwrap(), &[Bson::from("other")]);
        let any = broken(doc! { "anyOf": [{ "bsonType": "int" }, { "minimum": 5.0 }] }, 1.5.into());
        assert_eq!(any.get_array("schemasNotSatisfied").unwrap().len(), 2);
        let one = broken(
            doc! { "oneOf": [{ "minimum": 1 }, { "maximum": 0 }, { "minimum": 2 }] },
            3.into(),
        );
        let both = one.get_array("matchingSchemaIndexes").unwrap();
        assert_eq!(both, &[Bson::from(0), Bson::from(2)]);
        let depends = broken(doc! { "dependencies": { "a": ["b"] } }, doc! { "a": 1 }.into());
        assert_eq!(depends.get_array("failingDependencies").unwrap().len(), 1);
    }

    #[test]
    fn conditions_are_told_with_the_values_that_fail_them() {
        let details = told(doc! { "a.b": { "$gt": 5 } }, doc! { "a": { "b": 3 } });
        let wanted = doc! {
            "operatorName": "$gt",
            "specifiedAs": { "a.b": { "$gt": 5 } },
            "reason": "comparison failed",
            "consideredValue": 3,
        };
        assert_eq!(details, wanted);
        let reason = |validator: Document, document: Document| {
            let details = told(validator, document);
            details.get_str("reason").unwrap().to_owned()
        };
        assert_eq!(reason(doc! { "a": { "$gt": 5 } }, doc! {}), "field was missing");
        assert_eq!(reason(doc! { "a": { "$exists": true } }, doc! {}), "path does not exist");
        assert_eq!(reason(doc! { "a": { "$exists": false } }, doc! { "a": 1 }), "path does exist");
        assert_eq!(
            reason(doc! { "a": { "$type": "int" } }, doc! { "a": "x" }),
            "type did not match"
        );
        let product = doc! { "$expr": { "$eq": ["$a", { "$multiply": ["$b", 2] }] } };
        assert_eq!(reason(product, doc! { "a": 3, "b": 1 }), "expression did not match");
        let both = told(doc! { "a": { "$gt": 5, "$lt": 9 }, "b": 1 }, doc! { "a": 10, "b": 2 });
        assert_eq!(both.get_str("operatorName").unwrap(), "$and");
        let clauses = both.get_array("clausesNotSatisfied").unwrap();
        let places: Vec<_> =
            clauses.iter().map(|it| it.as_document().unwrap().get_i32("index").unwrap()).collect();
        assert_eq!(places, [1, 2]);
        let either = told(doc! { "$or": [{ "a": 1 }, { "b": 1 }] }, doc! { "a": 2 });
        assert_eq!(either.get_array("clausesNotSatisfied").unwrap().len(), 2);
    }

    #[test]
    fn a_long_value_is_not_repeated() {
        let long = "x".repeat(MAX_CONSIDERED_BYTES + 1);
        let details = told(doc! { "a": { "$type": "int" } }, doc! { "a": long });
        assert!(!details.contains_key("consideredValue"));
        assert_eq!(details.get_str("consideredType").unwrap(), "string");
        let raw = rawdoc! { "a": 1 };
        assert!(
            failure(&doc! {}, DocumentRef::Raw(&raw), &Compiler::refusing())
                .contains_key("specifiedAs")
        );
    }
}
