//! `$jsonSchema`: the keywords of JSON Schema draft 4 that the server documents, with `bsonType`.
//!
//! A keyword about one kind of value says nothing about other kinds: `minLength` accepts every
//! number. Keywords that the server knows and refuses are refused here too.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document};

use super::{MAX_QUERY_DEPTH, RegexMatcher};
use crate::error::{QueryError, Result};
use crate::meter::Meter;
use crate::value::{
    ArrayRef, DocumentRef, GroupKey, Number, TypeSet, ValueRef, equal, type_name_of,
};

type Parsed<T> = Result<T>;

/// A parsed schema.
#[derive(Debug, Clone, Default)]
pub(crate) struct Schema {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
enum Rule {
    Type(TypeSet),
    Required(Vec<String>),
    Properties(Properties),
    MinProperties(usize),
    MaxProperties(usize),
    Dependencies(Vec<(String, Dependency)>),
    Items(Schema),
    ItemsByPosition(Vec<Schema>, Option<Box<Schema>>),
    MinItems(usize),
    MaxItems(usize),
    UniqueItems,
    Enum(Vec<Bson>),
    Minimum { limit: Bson, exclusive: bool },
    Maximum { limit: Bson, exclusive: bool },
    MultipleOf(Bson),
    MinLength(usize),
    MaxLength(usize),
    Pattern(RegexMatcher),
    AllOf(Vec<Schema>),
    AnyOf(Vec<Schema>),
    OneOf(Vec<Schema>),
    Not(Box<Schema>),
    Never,
}

#[derive(Debug, Clone, Default)]
struct Properties {
    named: BTreeMap<String, Schema>,
    patterns: Vec<(RegexMatcher, Schema)>,
    additional: Option<Box<Schema>>,
}

#[derive(Debug, Clone)]
enum Dependency {
    Fields(Vec<String>),
    Schema(Schema),
}

impl Schema {
    pub(crate) fn parse(schema: &Document) -> Parsed<Self> {
        Self::parse_at(schema, 0)
    }

    fn parse_at(schema: &Document, depth: usize) -> Parsed<Self> {
        check_schema(schema, depth)?;
        let mut rules = Vec::new();
        for (keyword, argument) in schema {
            if let Some(rule) = parse_keyword(schema, keyword, argument, depth)? {
                rules.push(rule);
            }
        }
        if ["properties", "patternProperties", "additionalProperties"]
            .iter()
            .any(|keyword| schema.contains_key(keyword))
        {
            rules.push(Rule::Properties(parse_properties(schema, depth)?));
        }
        Ok(Self { rules })
    }

    fn never() -> Self {
        Self { rules: vec![Rule::Never] }
    }

    /// Whether the value obeys every rule. Fails if a pattern is too complex for a text, or the
    /// operation has ended.
    pub(crate) fn validates(&self, value: ValueRef<'_>, meter: &Meter) -> Result<bool> {
        let check = Check { meter, failure: RefCell::new(None) };
        let valid = self.obeyed(value, &check);
        check.failure.into_inner().map_or(Ok(valid), Err)
    }

    fn obeyed(&self, value: ValueRef<'_>, check: &Check<'_>) -> bool {
        check.goes_on() && self.rules.iter().all(|rule| rule.holds(value, check))
    }
}

/// One validation. After a failure nothing more is checked, and the answer does not count.
struct Check<'a> {
    meter: &'a Meter,
    failure: RefCell<Option<QueryError>>,
}

impl Check<'_> {
    fn goes_on(&self) -> bool {
        if let Err(error) = self.meter.step() {
            self.failure.borrow_mut().get_or_insert(error);
        }
        self.failure.borrow().is_none()
    }

    fn is_match(&self, regex: &RegexMatcher, text: &str) -> bool {
        regex.is_match(text).unwrap_or_else(|error| {
            self.failure.borrow_mut().get_or_insert(error);
            false
        })
    }
}

impl Rule {
    fn holds(&self, value: ValueRef<'_>, check: &Check<'_>) -> bool {
        if let ValueRef::Document(document) = value
            && !self.holds_for_document(document, check)
        {
            return false;
        }
        if let ValueRef::Array(array) = value
            && !self.holds_for_array(array, check)
        {
            return false;
        }
        match self {
            Self::Type(types) => types.contains(value),
            Self::Enum(values) => values.iter().any(|allowed| equal(allowed, value)),
            Self::Minimum { .. } | Self::Maximum { .. } | Self::MultipleOf(_) => {
                Number::from_value(value).is_none_or(|number| self.holds_for_number(number))
            }
            Self::MinLength(_) | Self::MaxLength(_) | Self::Pattern(_) => match value {
                ValueRef::String(text) => self.holds_for_text(text, check),
                _ => true,
            },
            Self::AllOf(schemas) => schemas.iter().all(|schema| schema.obeyed(value, check)),
            Self::AnyOf(schemas) => schemas.iter().any(|schema| schema.obeyed(value, check)),
            Self::OneOf(schemas) => {
                schemas.iter().filter(|schema| schema.obeyed(value, check)).count() == 1
            }
            Self::Not(schema) => !schema.obeyed(value, check),
            Self::Never => false,
            _ => true,
        }
    }

    fn holds_for_document(&self, document: DocumentRef<'_>, check: &Check<'_>) -> bool {
        match self {
            Self::Required(fields) => {
                let present: BTreeSet<&str> = document.iter().map(|(name, _)| name).collect();
                fields.iter().all(|field| present.contains(field.as_str()))
            }
            Self::Properties(properties) => properties.hold(document, check),
            Self::MinProperties(least) => document.iter().count() >= *least,
            Self::MaxProperties(most) => document.iter().count() <= *most,
            Self::Dependencies(dependencies) => dependencies
                .iter()
                .filter(|(field, _)| document.get(field).is_some())
                .all(|(_, dependency)| match dependency {
                    Dependency::Fields(fields) => {
                        fields.iter().all(|field| document.get(field).is_some())
                    }
                    Dependency::Schema(schema) => {
                        schema.obeyed(ValueRef::Document(document), check)
                    }
                }),
            _ => true,
        }
    }

    fn holds_for_array(&self, array: ArrayRef<'_>, check: &Check<'_>) -> bool {
        match self {
            Self::Items(schema) => array.iter().all(|element| schema.obeyed(element, check)),
            Self::ItemsByPosition(schemas, additional) => {
                array.iter().enumerate().all(|(position, element)| {
                    match (schemas.get(position), additional) {
                        (Some(schema), _) => schema.obeyed(element, check),
                        (None, Some(schema)) => schema.obeyed(element, check),
                        (None, None) => true,
                    }
                })
            }
            Self::MinItems(least) => array.len() >= *least,
            Self::MaxItems(most) => array.len() <= *most,
            Self::UniqueItems => {
                let mut seen = BTreeSet::new();
                array.iter().all(|element| seen.insert(GroupKey::of(element)))
            }
            _ => true,
        }
    }

    fn holds_for_number(&self, number: Number) -> bool {
        let against = |limit: &Bson| Number::from_value(limit).map(|limit| number.compare(limit));
        match self {
            Self::Minimum { limit, exclusive } => {
                against(limit).is_some_and(|order| order.is_gt() || (order.is_eq() && !exclusive))
            }
            Self::Maximum { limit, exclusive } => {
                against(limit).is_some_and(|order| order.is_lt() || (order.is_eq() && !exclusive))
            }
            Self::MultipleOf(divisor) => Number::from_value(divisor)
                .and_then(|divisor| number.remainder(divisor))
                .is_some_and(Number::is_zero),
            _ => true,
        }
    }

    fn holds_for_text(&self, text: &str, check: &Check<'_>) -> bool {
        match self {
            Self::MinLength(least) => text.chars().count() >= *least,
            Self::MaxLength(most) => text.chars().count() <= *most,
            Self::Pattern(regex) => check.is_match(regex, text),
            _ => true,
        }
    }
}

impl Properties {
    fn hold(&self, document: DocumentRef<'_>, check: &Check<'_>) -> bool {
        document.iter().all(|(name, value)| {
            let named = self.named.get(name);
            if named.is_some_and(|schema| !schema.obeyed(value, check)) {
                return false;
            }
            let mut known = named.is_some();
            for (pattern, schema) in &self.patterns {
                if check.is_match(pattern, name) {
                    known = true;
                    if !schema.obeyed(value, check) {
                        return false;
                    }
                }
            }
            known || self.additional.as_ref().is_none_or(|schema| schema.obeyed(value, check))
        })
    }
}

fn check_schema(schema: &Document, depth: usize) -> Parsed<()> {
    refuse_if!(depth > MAX_QUERY_DEPTH => BAD_VALUE,
        "$jsonSchema is nested beyond {MAX_QUERY_DEPTH} levels; flatten it");
    refuse_if!(schema.contains_key("type") && schema.contains_key("bsonType") => FAILED_TO_PARSE,
        "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'");
    Ok(())
}

// As in `parse`, the functions on the recursive path stay small.
fn parse_keyword(
    schema: &Document,
    keyword: &str,
    argument: &Bson,
    depth: usize,
) -> Parsed<Option<Rule>> {
    match keyword {
        "not" => Ok(Some(Rule::Not(Box::new(subschema(keyword, argument, depth)?)))),
        "allOf" => Ok(Some(Rule::AllOf(schemas(keyword, argument, depth)?))),
        "anyOf" => Ok(Some(Rule::AnyOf(schemas(keyword, argument, depth)?))),
        "oneOf" => Ok(Some(Rule::OneOf(schemas(keyword, argument, depth)?))),
        "items" => items(schema, argument, depth).map(Some),
        "dependencies" => dependencies(argument, depth).map(Some),
        _ => parse_leaf_keyword(schema, keyword, argument),
    }
}

fn parse_leaf_keyword(schema: &Document, keyword: &str, argument: &Bson) -> Parsed<Option<Rule>> {
    Ok(Some(match keyword {
        "bsonType" => Rule::Type(parse_types(keyword, argument, TypeSet::from_alias)?),
        "type" => Rule::Type(parse_types(keyword, argument, json_type)?),
        "required" => Rule::Required(field_names(keyword, argument)?),
        "minProperties" => Rule::MinProperties(count(keyword, argument)?),
        "maxProperties" => Rule::MaxProperties(count(keyword, argument)?),
        "minItems" => Rule::MinItems(count(keyword, argument)?),
        "maxItems" => Rule::MaxItems(count(keyword, argument)?),
        "uniqueItems" if boolean(keyword, argument)? => Rule::UniqueItems,
        "enum" => Rule::Enum(nonempty_array(keyword, argument)?.to_vec()),
        "minimum" => Rule::Minimum {
            limit: number(keyword, argument)?,
            exclusive: exclusive(schema, "exclusiveMinimum", "minimum")?,
        },
        "maximum" => Rule::Maximum {
            limit: number(keyword, argument)?,
            exclusive: exclusive(schema, "exclusiveMaximum", "maximum")?,
        },
        "exclusiveMinimum" => {
            exclusive(schema, "exclusiveMinimum", "minimum")?;
            return Ok(None);
        }
        "exclusiveMaximum" => {
            exclusive(schema, "exclusiveMaximum", "maximum")?;
            return Ok(None);
        }
        "multipleOf" => multiple_of(argument)?,
        "minLength" => Rule::MinLength(count(keyword, argument)?),
        "maxLength" => Rule::MaxLength(count(keyword, argument)?),
        "pattern" => Rule::Pattern(RegexMatcher::new(text(keyword, argument)?, "")?),
        "title" | "description" => {
            text(keyword, argument)?;
            return Ok(None);
        }
        "properties"
        | "patternProperties"
        | "additionalProperties"
        | "additionalItems"
        | "uniqueItems" => return Ok(None),
        "$ref" | "$schema" | "default" | "definitions" | "format" | "id" | "encrypt"
        | "encryptMetadata" => {
            refuse!(FAILED_TO_PARSE, "$jsonSchema keyword '{keyword}' is not currently supported");
        }
        unknown => {
            refuse!(FAILED_TO_PARSE, "Unknown $jsonSchema keyword: {unknown}");
        }
    }))
}

fn parse_types(
    keyword: &str,
    argument: &Bson,
    lookup: fn(&str) -> Option<TypeSet>,
) -> Parsed<TypeSet> {
    let names = match argument {
        Bson::Array(_) => nonempty_array(keyword, argument)?,
        single => std::slice::from_ref(single),
    };
    names.iter().try_fold(TypeSet::default(), |set, name| {
        let name = text(keyword, name)?;
        let types =
            lookup(name).ok_or_else(|| fail!(BAD_VALUE, "Unknown type name alias: {name}"))?;
        Ok(set.union(types))
    })
}

fn json_type(name: &str) -> Option<TypeSet> {
    match name {
        "boolean" => TypeSet::from_alias("bool"),
        "object" | "array" | "number" | "string" | "null" => TypeSet::from_alias(name),
        _ => None,
    }
}

fn parse_properties(schema: &Document, depth: usize) -> Parsed<Properties> {
    let mut properties = Properties::default();
    if let Some(argument) = schema.get("properties") {
        for (field, inner) in document("properties", argument)? {
            properties.named.insert(field.clone(), subschema("properties", inner, depth)?);
        }
    }
    if let Some(argument) = schema.get("patternProperties") {
        for (pattern, inner) in document("patternProperties", argument)? {
            let regex = RegexMatcher::new(pattern, "")?;
            properties.patterns.push((regex, subschema("patternProperties", inner, depth)?));
        }
    }
    if let Some(argument) = schema.get("additionalProperties") {
        properties.additional = additional("additionalProperties", argument, depth)?;
    }
    Ok(properties)
}

/// `true` allows everything, `false` nothing, a schema what it describes.
fn additional(keyword: &str, argument: &Bson, depth: usize) -> Parsed<Option<Box<Schema>>> {
    match argument {
        Bson::Boolean(true) => Ok(None),
        Bson::Boolean(false) => Ok(Some(Box::new(Schema::never()))),
        Bson::Document(_) => Ok(Some(Box::new(subschema(keyword, argument, depth)?))),
        other => Err(wrong_type(keyword, "an object or a boolean", other)),
    }
}

fn items(schema: &Document, argument: &Bson, depth: usize) -> Parsed<Rule> {
    match argument {
        Bson::Array(list) => {
            let mut schemas = Vec::with_capacity(list.len());
            for inner in list {
                schemas.push(subschema("items", inner, depth)?);
            }
            let rest = match schema.get("additionalItems") {
                Some(argument) => additional("additionalItems", argument, depth)?,
                None => None,
            };
            Ok(Rule::ItemsByPosition(schemas, rest))
        }
        argument => Ok(Rule::Items(subschema("items", argument, depth)?)),
    }
}

fn dependencies(argument: &Bson, depth: usize) -> Parsed<Rule> {
    let mut dependencies = Vec::new();
    for (field, inner) in document("dependencies", argument)? {
        let dependency = match inner {
            Bson::Array(_) => Dependency::Fields(field_names("dependencies", inner)?),
            inner => Dependency::Schema(subschema("dependencies", inner, depth)?),
        };
        dependencies.push((field.clone(), dependency));
    }
    Ok(Rule::Dependencies(dependencies))
}

fn multiple_of(argument: &Bson) -> Parsed<Rule> {
    let limit = number("multipleOf", argument)?;
    let positive =
        Number::from_value(&limit).is_some_and(|number| number.compare(Number::Int32(0)).is_gt());
    refuse_if!(!positive => FAILED_TO_PARSE,
        "$jsonSchema keyword 'multipleOf' must have a positive value");
    Ok(Rule::MultipleOf(limit))
}

fn exclusive(schema: &Document, keyword: &str, needs: &str) -> Parsed<bool> {
    match schema.get(keyword) {
        None => Ok(false),
        Some(_) if !schema.contains_key(needs) => Err(fail!(
            FAILED_TO_PARSE,
            "$jsonSchema keyword '{needs}' must be a present if {keyword} is present"
        )),
        Some(argument) => boolean(keyword, argument),
    }
}

fn schemas(keyword: &str, argument: &Bson, depth: usize) -> Parsed<Vec<Schema>> {
    let list = nonempty_array(keyword, argument)?;
    let mut schemas = Vec::with_capacity(list.len());
    for inner in list {
        schemas.push(subschema(keyword, inner, depth)?);
    }
    Ok(schemas)
}

fn subschema(keyword: &str, argument: &Bson, depth: usize) -> Parsed<Schema> {
    Schema::parse_at(document(keyword, argument)?, depth + 1)
}

fn field_names(keyword: &str, argument: &Bson) -> Parsed<Vec<String>> {
    nonempty_array(keyword, argument)?
        .iter()
        .map(|name| text(keyword, name).map(str::to_owned))
        .collect()
}

fn document<'a>(keyword: &str, argument: &'a Bson) -> Parsed<&'a Document> {
    argument.as_document().ok_or_else(|| wrong_type(keyword, "an object", argument))
}

fn text<'a>(keyword: &str, argument: &'a Bson) -> Parsed<&'a str> {
    argument.as_str().ok_or_else(|| wrong_type(keyword, "a string", argument))
}

fn boolean(keyword: &str, argument: &Bson) -> Parsed<bool> {
    argument.as_bool().ok_or_else(|| wrong_type(keyword, "a boolean", argument))
}

fn number(keyword: &str, argument: &Bson) -> Parsed<Bson> {
    match Number::from_value(argument) {
        Some(_) => Ok(argument.clone()),
        None => Err(wrong_type(keyword, "a number", argument)),
    }
}

fn count(keyword: &str, argument: &Bson) -> Parsed<usize> {
    let number =
        Number::from_value(argument).ok_or_else(|| wrong_type(keyword, "a number", argument))?;
    number.to_i64_exact().and_then(|number| usize::try_from(number).ok()).ok_or_else(|| {
        fail!(
            FAILED_TO_PARSE,
            "$jsonSchema keyword '{keyword}' must be a non-negative integer, but got {argument}"
        )
    })
}

fn nonempty_array<'a>(keyword: &str, argument: &'a Bson) -> Parsed<&'a [Bson]> {
    match argument {
        Bson::Array(items) if items.is_empty() => {
            Err(fail!(FAILED_TO_PARSE, "$jsonSchema keyword '{keyword}' cannot be an empty array"))
        }
        Bson::Array(items) => Ok(items),
        other => Err(wrong_type(keyword, "an array", other)),
    }
}

fn wrong_type(keyword: &str, wanted: &str, found: &Bson) -> QueryError {
    fail!(
        TYPE_MISMATCH,
        "$jsonSchema keyword '{keyword}' must be {wanted}, but got {}",
        type_name_of(found)
    )
}
