//! `$out` and `$merge`: the collection into which the caller writes the result.

use std::sync::Arc;

use bson::{Bson, Document};

use super::parse::{Place, parse};
use super::{Environment, Pipeline};
use crate::error::Result;
use crate::expression::{Expression, ParseContext, Variables};
use crate::typed::{Typed, unknown_field};

/// The most fields that tell which document a new one meets: those of one index.
const MAX_ON_FIELDS: usize = 32;

/// The destination of a pipeline's result.
#[derive(Clone, Debug)]
pub enum Output {
    /// `$out`: replaces the collection with the result, all at once.
    Out {
        /// The database, if it is not that of the command.
        database: Option<String>,
        /// The collection.
        collection: String,
    },
    /// `$merge`: document by document into the collection.
    Merge(Merge),
}

/// A `$merge` stage.
#[derive(Clone, Debug)]
pub struct Merge {
    /// The database, if it is not that of the command.
    pub database: Option<String>,
    /// The collection.
    pub collection: String,
    /// The fields that tell which existing document a new one meets; a unique index covers them.
    pub on: Vec<String>,
    /// The action on an existing document.
    pub when_matched: WhenMatched,
    /// The action on a new document that meets no existing one.
    pub when_not_matched: WhenNotMatched,
    variables: Vec<(String, Expression)>,
}

/// The action of `$merge` on an existing document.
#[derive(Clone, Debug)]
pub enum WhenMatched {
    /// The new document takes its place.
    Replace,
    /// The existing document stays.
    KeepExisting,
    /// The fields of the new document are put into it.
    Merge,
    /// The command fails.
    Fail,
    /// The existing document goes through a pipeline that sees the new one as `$$new`.
    Pipeline(Pipeline),
}

/// The action of `$merge` on a new document that meets no existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNotMatched {
    /// The new document is inserted.
    Insert,
    /// The new document is dropped.
    Discard,
    /// The command fails.
    Fail,
}

impl Output {
    pub(super) fn parse_out(spec: &Bson) -> Result<Self> {
        let (database, collection) = match spec {
            Bson::String(collection) => (None, collection.clone()),
            Bson::Document(spec) => match (spec.get("db"), spec.get("coll")) {
                (Some(Bson::String(database)), Some(Bson::String(collection))) => {
                    check_known("$out", spec, &["db", "coll"])?;
                    (Some(database.clone()), collection.clone())
                }
                _ => {
                    refuse!(
                        16994,
                        "If an object is passed to $out it must have exactly 2 fields: 'db' and \
                         'coll'"
                    );
                }
            },
            other => {
                return Err(other.wrong_type(
                    16990,
                    "$out only supports a string or object argument, but found",
                ));
            }
        };
        refuse_if!(collection.is_empty() => INVALID_NAMESPACE,
            "Invalid $out target: the collection has no name");
        Ok(Self::Out { database, collection })
    }
}

impl Merge {
    pub(super) fn parse(
        spec: &Bson,
        variables: &Variables,
        context: &ParseContext,
    ) -> Result<Self> {
        let whole = match spec {
            Bson::String(_) => {
                let mut whole = Document::new();
                whole.insert("into", spec.clone());
                whole
            }
            Bson::Document(spec) => spec.clone(),
            other => {
                return Err(other
                    .wrong_type(51182, "$merge only supports a string or object argument, not"));
            }
        };
        check_known("$merge", &whole, &["into", "on", "let", "whenMatched", "whenNotMatched"])?;
        let (database, collection) = target(whole.get("into"))?;
        let lets = read_variables(whole.get("let"), context)?;
        let runs_pipeline = matches!(whole.get("whenMatched"), Some(Bson::Array(_)));
        if whole.contains_key("let") && !runs_pipeline {
            refuse!(51199, "Cannot use 'let' variables with 'whenMatched' other than a pipeline");
        }
        let inner =
            lets.iter().fold(context.clone(), |context, (name, _)| context.with_variable(name));
        Ok(Self {
            database,
            collection,
            on: fields(whole.get("on"))?,
            when_matched: when_matched(whole.get("whenMatched"), variables, &inner)?,
            when_not_matched: when_not_matched(whole.get("whenNotMatched"))?,
            variables: lets,
        })
    }

    /// The document that replaces an existing one when a new one meets it; `None` if it stays as it is.
    /// Not for [`WhenMatched::Fail`], which the caller reports.
    ///
    /// # Errors
    ///
    /// If an expression of the inner pipeline fails.
    pub fn combine(
        &self,
        existing: &Document,
        new: &Document,
        environment: &Arc<dyn Environment>,
        variables: &Variables,
    ) -> Result<Option<Document>> {
        match &self.when_matched {
            WhenMatched::KeepExisting | WhenMatched::Fail => Ok(None),
            WhenMatched::Replace => Ok(Some(new.clone())),
            WhenMatched::Merge => {
                let mut merged = existing.clone();
                merged.extend(new.clone());
                Ok(Some(merged))
            }
            WhenMatched::Pipeline(pipeline) => {
                let mut inner = variables.clone();
                for (name, expression) in &self.variables {
                    match expression.evaluate(new, variables)? {
                        Some(value) => inner.set(name.as_str(), value),
                        None => inner.set_missing(name.as_str()),
                    }
                }
                let input = Box::new(std::iter::once(Ok(existing.clone())));
                pipeline.run(input, Arc::clone(environment), &inner).next().transpose()
            }
        }
    }
}

/// Refuses fields that a stage does not have.
pub(super) fn check_known(path: &str, spec: &Document, known: &[&str]) -> Result<()> {
    match unknown_field(spec, known) {
        Some(field) => {
            Err(fail!(UNKNOWN_FIELD, "BSON field '{path}.{field}' is an unknown field."))
        }
        None => Ok(()),
    }
}

fn target(into: Option<&Bson>) -> Result<(Option<String>, String)> {
    if let Some(Bson::Document(into)) = into {
        check_known("$merge.into", into, &["db", "coll"])?;
    }
    match into {
        Some(Bson::String(collection)) if !collection.is_empty() => Ok((None, collection.clone())),
        Some(Bson::Document(into)) => match (into.get("db"), into.get("coll")) {
            (Some(Bson::String(database)), Some(Bson::String(collection))) => {
                Ok((Some(database.clone()), collection.clone()))
            }
            (None, Some(Bson::String(collection))) => Ok((None, collection.clone())),
            _ => Err(fail!(51178, "$merge 'into' field must specify a 'coll' that is not empty")),
        },
        _ => Err(fail!(
            51178,
            "$merge 'into' field must specify a collection: a string or {{ db, coll }}"
        )),
    }
}

fn fields(on: Option<&Bson>) -> Result<Vec<String>> {
    let names = match on {
        None => return Ok(vec!["_id".to_owned()]),
        Some(Bson::Array(names)) if names.is_empty() => {
            refuse!(51187, "If explicitly specifying $merge 'on', must include at least one field");
        }
        Some(Bson::Array(names)) => names.as_slice(),
        Some(single) => std::slice::from_ref(single),
    };
    refuse_if!(names.len() > MAX_ON_FIELDS => FAILED_TO_PARSE,
        "$merge 'on' has more than {MAX_ON_FIELDS} fields, which no index covers");
    let mut fields: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        let name = name.string(51134, "$merge 'on' array elements must be strings, but found")?;
        refuse_if!(fields.iter().any(|field| field == name) => 31465,
            "Found a duplicate field '{name}'");
        fields.push(name.to_owned());
    }
    Ok(fields)
}

fn read_variables(
    spec: Option<&Bson>,
    context: &ParseContext,
) -> Result<Vec<(String, Expression)>> {
    let whole = Bson::String("$$ROOT".to_owned());
    let mut variables = Vec::new();
    if let Some(Bson::Document(spec)) = spec {
        for (name, value) in spec {
            crate::expression::check_variable_name(name)?;
            variables.push((name.clone(), Expression::parse(value, context)?));
        }
    } else if spec.is_some() {
        refuse!(TYPE_MISMATCH, "$merge 'let' must be an object");
    }
    if !variables.iter().any(|(name, _)| name == "new") {
        variables.push(("new".to_owned(), Expression::parse(&whole, context)?));
    }
    Ok(variables)
}

fn when_matched(
    mode: Option<&Bson>,
    variables: &Variables,
    context: &ParseContext,
) -> Result<WhenMatched> {
    match mode {
        None => Ok(WhenMatched::Merge),
        Some(Bson::String(mode)) => match mode.as_str() {
            "replace" => Ok(WhenMatched::Replace),
            "keepExisting" => Ok(WhenMatched::KeepExisting),
            "merge" => Ok(WhenMatched::Merge),
            "fail" => Ok(WhenMatched::Fail),
            other => Err(fail!(
                BAD_VALUE,
                "Enumeration value '{other}' for field 'whenMatched' is not a valid value."
            )),
        },
        Some(Bson::Array(stages)) => {
            parse(stages, Place::Update, variables, context).map(WhenMatched::Pipeline)
        }
        Some(other) => Err(other.wrong_type(
            51191,
            "$merge 'whenMatched' field must be either a string or an array, but found",
        )),
    }
}

fn when_not_matched(mode: Option<&Bson>) -> Result<WhenNotMatched> {
    match mode {
        None => Ok(WhenNotMatched::Insert),
        Some(Bson::String(mode)) if mode == "insert" => Ok(WhenNotMatched::Insert),
        Some(Bson::String(mode)) if mode == "discard" => Ok(WhenNotMatched::Discard),
        Some(Bson::String(mode)) if mode == "fail" => Ok(WhenNotMatched::Fail),
        Some(other) => Err(fail!(
            BAD_VALUE,
            "Enumeration value {other} for field 'whenNotMatched' is not a valid value."
        )),
    }
}
