//! Updates written as a short aggregation pipeline.
//!
//! Only the stages that turn one document into one document are allowed. Expressions are compiled
//! through `evaluate`.

use std::sync::Arc;

use bson::{Bson, Document};

use crate::error::{ErrorCode, QueryError};
use crate::evaluate::{Expression, ExpressionCompiler};
use crate::projection::{AddFields, Projection};
use crate::value::{measure, type_name_of};

/// The most stages an update may have.
const MAX_STAGES: usize = 1_000;

/// Stages that exist, and not in updates.
const ELSEWHERE: [&str; 24] = [
    "$bucket",
    "$bucketAuto",
    "$changeStream",
    "$collStats",
    "$count",
    "$currentOp",
    "$documents",
    "$facet",
    "$fill",
    "$geoNear",
    "$graphLookup",
    "$group",
    "$indexStats",
    "$limit",
    "$lookup",
    "$match",
    "$merge",
    "$out",
    "$redact",
    "$sample",
    "$skip",
    "$sort",
    "$unionWith",
    "$unwind",
];

/// A parsed pipeline.
#[derive(Debug, Clone)]
pub(super) struct UpdatePipeline {
    stages: Vec<Stage>,
}

#[derive(Debug, Clone)]
enum Stage {
    AddFields(AddFields),
    Project(Projection),
    ReplaceRoot(Arc<dyn Expression>),
}

impl UpdatePipeline {
    pub(super) fn parse(
        stages: &[Bson],
        compiler: &dyn ExpressionCompiler,
    ) -> Result<Self, QueryError> {
        if stages.len() > MAX_STAGES {
            return Err(QueryError::bad_value(format!(
                "Pipeline length must be no longer than {MAX_STAGES} stages"
            )));
        }
        let stages =
            stages.iter().map(|stage| parse_stage(stage, compiler)).collect::<Result<_, _>>()?;
        Ok(Self { stages })
    }

    pub(super) fn apply(&self, before: &Document) -> Result<Document, QueryError> {
        let mut document = before.clone();
        for stage in &self.stages {
            document = match stage {
                Stage::AddFields(fields) => fields.apply(&document)?,
                Stage::Project(projection) => projection.apply(&document, None)?,
                Stage::ReplaceRoot(expression) => match expression.evaluate((&document).into())? {
                    Some(Bson::Document(root)) => root,
                    other => {
                        return Err(QueryError::location(
                            40228,
                            format!(
                                "'newRoot' expression must evaluate to an object, but \
                                     resulting value was: {}",
                                other.map_or("MISSING".to_owned(), |value| value.to_string())
                            ),
                        ));
                    }
                },
            };
            // A later stage must not multiply what is already too large.
            measure(&document).check()?;
        }
        Ok(document)
    }
}

fn parse_stage(stage: &Bson, compiler: &dyn ExpressionCompiler) -> Result<Stage, QueryError> {
    let specification = match stage {
        Bson::Document(document) if document.len() == 1 => document.iter().next(),
        Bson::Document(_) => {
            return Err(QueryError::location(
                40323,
                "A pipeline stage specification object must contain exactly one field.",
            ));
        }
        _ => None,
    };
    let Some((name, argument)) = specification else {
        return Err(QueryError::type_mismatch(
            "Each element of the 'pipeline' array must be an object",
        ));
    };
    match name.as_str() {
        "$set" | "$addFields" => match argument {
            Bson::Document(fields) => Ok(Stage::AddFields(AddFields::parse(fields, compiler)?)),
            other => Err(QueryError::location(
                40272,
                format!(
                    "{name} specification stage must be an object, got {}",
                    type_name_of(other)
                ),
            )),
        },
        "$project" => match argument {
            Bson::Document(fields) => {
                Ok(Stage::Project(Projection::parse_aggregate(fields, compiler)?))
            }
            _ => Err(QueryError::location(15969, "$project specification must be an object")),
        },
        "$unset" => Ok(Stage::Project(Projection::unset(argument)?)),
        "$replaceWith" => Ok(Stage::ReplaceRoot(compiler.compile(argument)?)),
        "$replaceRoot" => match argument {
            Bson::Document(document) if document.len() == 1 => {
                let root = document.get("newRoot").ok_or_else(|| {
                    QueryError::location(40231, "no newRoot specified for the $replaceRoot stage")
                })?;
                Ok(Stage::ReplaceRoot(compiler.compile(root)?))
            }
            _ => Err(QueryError::location(
                40231,
                "the $replaceRoot stage takes an object with the one field newRoot",
            )),
        },
        known if ELSEWHERE.contains(&known) => Err(QueryError::new(
            ErrorCode::INVALID_OPTIONS,
            format!("{known} is not allowed to be used within an update"),
        )),
        unknown => Err(QueryError::location(
            40324,
            format!("Unrecognized pipeline stage name: '{unknown}'"),
        )),
    }
}
