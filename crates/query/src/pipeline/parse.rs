//! Reading pipelines: stage by stage, with the rules about which stage may stand where.

use bson::{Bson, Document};

use super::bucket::{self, BucketAuto};
use super::densify::Densify;
use super::depend::of_query;
use super::facet::UnionWith;
use super::fill;
use super::graph_lookup::GraphLookup;
use super::group::Group;
use super::lookup::Lookup;
use super::output::{Merge, Output, check_known};
use super::pushdown::optimise;
use super::sort::SortStage;
use super::stage::Stage;
use super::system::SystemStage;
use super::unwind::Unwind;
use super::window::WindowStage;
use super::{MAX_PIPELINE_DEPTH, MAX_STAGES, Pipeline};
use crate::error::{ErrorCode, QueryError, Result};
use crate::expression::operators::as_i64;
use crate::expression::{
    Compiler, Expression, FieldPath, ParseContext, Variables, check_variable_name,
};
use crate::matcher::Matcher;
use crate::projection::{AddFields, Fields};
use crate::typed::{Typed, unknown_field};
use crate::value::Path;

/// Reads a pipeline of a command, or one that changes one document.
pub(super) fn parse(
    stages: &[Bson],
    place: Place,
    variables: &Variables,
    context: &ParseContext,
) -> Result<Pipeline> {
    Reader { variables, context: context.clone(), place, depth: 0, above: 0 }.pipeline(stages)
}

/// The place of a pipeline, which decides which stages it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Command,
    Facet,
    Lookup,
    Union,
    Update,
}

struct Reader<'a> {
    variables: &'a Variables,
    context: ParseContext,
    place: Place,
    depth: usize,
    /// The stages of this pipeline and of those it is in. Each takes a part of the stack when the
    /// innermost runs, so it is their sum that is bounded.
    above: usize,
}

impl Reader<'_> {
    fn pipeline(&self, stages: &[Bson]) -> Result<Pipeline> {
        let above = self.above + stages.len();
        refuse_if!(above > MAX_STAGES => 7749501,
            "Pipeline length must be no longer than {MAX_STAGES} stages");
        refuse_if!(self.depth > MAX_PIPELINE_DEPTH => MAX_SUB_PIPELINE_DEPTH_EXCEEDED,
            "Maximum number of nested sub-pipelines exceeded. Limit is {MAX_PIPELINE_DEPTH}");
        let here = Reader { context: self.context.clone(), above, ..*self };
        let mut read = Vec::with_capacity(stages.len());
        for (position, stage) in stages.iter().enumerate() {
            let Bson::Document(stage) = stage else {
                refuse!(TYPE_MISMATCH, "Each element of the 'pipeline' array must be an object");
            };
            let mut fields = stage.iter();
            let (Some((name, spec)), None) = (fields.next(), fields.next()) else {
                refuse!(
                    40323,
                    "A pipeline stage specification object must contain exactly one field."
                );
            };
            here.check_place(name, position, stages.len())?;
            here.stage(name, spec, &mut read)?;
            here.check_update(name)?;
        }
        Ok(Pipeline { stages: optimise(read) })
    }

    fn check_place(&self, name: &str, position: usize, count: usize) -> Result<()> {
        let output = matches!(name, "$out" | "$merge");
        let first = name == "$documents" || SystemStage::of(name, &Document::new()).is_some();
        match self.place {
            Place::Facet if output || first || name == "$facet" => {
                refuse!(40600, "{name} is not allowed to be used within a $facet stage");
            }
            Place::Lookup if output => {
                refuse!(51047, "{name} is not allowed within a $lookup's sub-pipeline");
            }
            Place::Union if output => {
                refuse!(31441, "{name} is not allowed within a $unionWith's sub-pipeline");
            }
            _ => {}
        }
        refuse_if!(first && position > 0 => 40602,
            "{name} is only valid as the first stage in a pipeline");
        refuse_if!(output && position + 1 < count => 40601,
            "{name} can only be the final stage in the pipeline");
        Ok(())
    }

    /// An update allows only the stages that turn one document into one. A stage that does not exist is refused
    /// before, as elsewhere.
    fn check_update(&self, name: &str) -> Result<()> {
        const CHANGING: [&str; 6] =
            ["$addFields", "$set", "$project", "$unset", "$replaceRoot", "$replaceWith"];
        refuse_if!(self.place == Place::Update && !CHANGING.contains(&name) => INVALID_OPTIONS,
            "{name} is not allowed to be used within an update");
        Ok(())
    }

    fn stage(&self, name: &str, spec: &Bson, read: &mut Vec<Stage>) -> Result<()> {
        let context = &self.context;
        let stage = match name {
            "$match" => self.match_stage(spec)?,
            "$project" => Stage::Project(Fields::parse_project(spec, context)?),
            "$addFields" | "$set" => Stage::AddFields(AddFields::parse(name, spec, context)?),
            "$unset" => Stage::Project(Fields::parse_unset(spec)?),
            "$group" => Stage::Group(Group::parse(spec, context)?.into()),
            "$sort" => Stage::Sort(SortStage::parse(spec)?.into()),
            "$limit" => Stage::Limit(limit(spec)?),
            "$skip" => Stage::Skip(skip(spec)?),
            "$count" => Stage::Count(count_field(spec)?),
            "$unwind" => Stage::Unwind(Unwind::parse(spec)?),
            "$lookup" => Stage::Lookup(self.lookup(spec)?.into()),
            "$graphLookup" => Stage::GraphLookup(GraphLookup::parse(spec, context)?),
            "$facet" => Stage::Facet(self.facet(spec)?.into()),
            "$bucket" => Stage::Group(bucket::parse(spec, context)?.into()),
            "$bucketAuto" => Stage::BucketAuto(BucketAuto::parse(spec, context)?.into()),
            "$sortByCount" => return self.sort_by_count(spec, read),
            "$replaceRoot" => self.replace_root(spec)?,
            "$replaceWith" => Stage::ReplaceRoot {
                expression: Expression::parse(spec, context)?,
                stage: "$replaceWith",
            },
            "$setWindowFields" => Stage::Window(WindowStage::parse(spec, context)?.into()),
            "$densify" => Stage::Densify(Densify::parse(spec, context)?.into()),
            "$fill" => {
                read.extend(fill::parse(spec, context)?);
                return Ok(());
            }
            "$sample" => Stage::Sample(sample_size(spec)?),
            "$unionWith" => Stage::UnionWith(self.union_with(spec)?.into()),
            "$redact" => Stage::Redact(Expression::parse(spec, &context.clone().for_redact())?),
            "$documents" => Stage::Documents(Expression::parse(spec, context)?),
            "$out" => Stage::Output(Output::parse_out(spec)?),
            "$merge" => Stage::Output(Output::Merge(Merge::parse(spec, self.variables, context)?)),
            _ => match (SystemStage::of(name, &Document::new()), spec) {
                (Some(stage), options) => {
                    let options = options.document(
                        ErrorCode::FAILED_TO_PARSE,
                        format_args!("{name} options must be an object, found"),
                    )?;
                    stage.check_options(options)?;
                    Stage::System(SystemStage::of(name, options).ok_or_else(|| unknown(name))?)
                }
                (None, _) => return Err(unknown(name)),
            },
        };
        read.push(stage);
        Ok(())
    }

    fn match_stage(&self, spec: &Bson) -> Result<Stage> {
        let Bson::Document(query) = spec else {
            refuse!(15959, "the match filter must be an expression in an object");
        };
        let compiler = Compiler::within(self.variables.clone(), self.context.clone());
        let matcher = Matcher::parse_with(query, &compiler)?;
        Ok(Stage::Match {
            computes: mentions_expression(query),
            reads: of_query(query, &self.context),
            query: query.clone(),
            matcher,
        })
    }

    /// A reader for a pipeline inside this one.
    fn inner(&self, place: Place, context: ParseContext) -> Self {
        // A pipeline inside a facet stays under the rules of facets.
        let place = if self.place == Place::Facet { Place::Facet } else { place };
        Self { context, place, depth: self.depth + 1, ..*self }
    }

    fn inner_pipeline(
        &self,
        owner: &str,
        spec: &Bson,
        place: Place,
        context: ParseContext,
    ) -> Result<Pipeline> {
        let stages = spec.array(
            ErrorCode::TYPE_MISMATCH,
            format_args!("{owner} argument 'pipeline' must be an array, but found"),
        )?;
        self.inner(place, context).pipeline(stages)
    }

    fn lookup(&self, spec: &Bson) -> Result<Lookup> {
        let spec = spec.document(
            ErrorCode::FAILED_TO_PARSE,
            "the $lookup specification must be an Object, but found",
        )?;
        if let Some(unknown) =
            unknown_field(spec, &["from", "as", "localField", "foreignField", "let", "pipeline"])
        {
            refuse!(FAILED_TO_PARSE, "unknown argument to $lookup: {unknown}");
        }
        let text = |name: &str| {
            let Some(value) = spec.get(name) else { return Ok(None) };
            let wanted =
                format_args!("$lookup argument '{name}: {value}' must be a string, is type");
            value.string(ErrorCode::FAILED_TO_PARSE, wanted).map(Some)
        };
        let into = text("as")?
            .ok_or_else(|| fail!(FAILED_TO_PARSE, "must specify 'as' field for a $lookup"))?;
        let equality = match (text("localField")?, text("foreignField")?) {
            (Some(local), Some(foreign)) => {
                FieldPath::parse(foreign)?;
                Some((FieldPath::parse(local)?, Path::parse(foreign)?))
            }
            (None, None) => None,
            _ => {
                refuse!(
                    FAILED_TO_PARSE,
                    "$lookup requires both or neither of 'localField' and 'foreignField' to be \
                     specified"
                );
            }
        };
        refuse_if!(equality.is_none() && !spec.contains_key("pipeline") => FAILED_TO_PARSE,
            "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be \
             specified");
        let variables = self.lookup_variables(spec)?;
        let context = variables
            .iter()
            .fold(self.context.clone(), |context, (name, _)| context.with_variable(name));
        let pipeline = spec
            .get("pipeline")
            .map(|spec| self.inner_pipeline("$lookup", spec, Place::Lookup, context))
            .transpose()?;
        let from = text("from")?.map(str::to_owned);
        if from.is_none() && pipeline.as_ref().is_none_or(Pipeline::reads_collection) {
            refuse!(
                FAILED_TO_PARSE,
                "must specify 'from' field for a $lookup whose pipeline does not start with \
                 $documents"
            );
        }
        Ok(Lookup { from, into: FieldPath::parse(into)?, equality, variables, pipeline })
    }

    fn lookup_variables(&self, spec: &Document) -> Result<Vec<(String, Expression)>> {
        let variables = match spec.get("let") {
            None => return Ok(Vec::new()),
            Some(variables) => variables.document(
                ErrorCode::FAILED_TO_PARSE,
                "$lookup argument 'let' must be an object, is type",
            )?,
        };
        refuse_if!(!spec.contains_key("pipeline") => FAILED_TO_PARSE,
            "$lookup with a 'let' argument must also specify 'pipeline'");
        variables
            .iter()
            .map(|(name, value)| {
                check_variable_name(name)?;
                Ok((name.clone(), Expression::parse(value, &self.context)?))
            })
            .collect()
    }

    fn union_with(&self, spec: &Bson) -> Result<UnionWith> {
        let (collection, stages) = match spec {
            Bson::String(collection) => (Some(collection.clone()), None),
            Bson::Document(spec) => {
                check_known("$unionWith", spec, &["coll", "pipeline"])?;
                let collection = match spec.get("coll") {
                    None => None,
                    Some(Bson::String(collection)) => Some(collection.clone()),
                    Some(other) => {
                        refuse!(
                            TYPE_MISMATCH,
                            "BSON field '$unionWith.coll' is the wrong type '{}', expected \
                                 type 'string'",
                            other.type_name()
                        );
                    }
                };
                (collection, spec.get("pipeline"))
            }
            other => {
                return Err(other.wrong_type(
                    ErrorCode::FAILED_TO_PARSE,
                    "the $unionWith stage specification must be an object or string, but \
                         found",
                ));
            }
        };
        let pipeline = match stages {
            None => Pipeline::default(),
            Some(stages) => {
                self.inner_pipeline("$unionWith", stages, Place::Union, self.context.clone())?
            }
        };
        refuse_if!(collection.is_none() && pipeline.reads_collection() => FAILED_TO_PARSE,
            "$unionWith stage without explicit collection must have a pipeline with \
             $documents as first stage");
        Ok(UnionWith { collection, pipeline })
    }

    fn facet(&self, spec: &Bson) -> Result<Vec<(String, Pipeline)>> {
        let facets = match spec {
            Bson::Document(facets) if !facets.is_empty() => facets,
            other => {
                refuse!(
                    40169,
                    "the $facet specification must be a non-empty object, but found: {other}"
                );
            }
        };
        facets
            .iter()
            .map(|(name, stages)| {
                FieldPath::parse(name)?;
                let stages = stages.array(
                    40170,
                    format_args!("arguments to $facet must be arrays, {name} is type"),
                )?;
                let reader = self.inner(Place::Facet, self.context.clone());
                Ok((name.clone(), reader.pipeline(stages)?))
            })
            .collect()
    }

    fn replace_root(&self, spec: &Bson) -> Result<Stage> {
        let spec = spec
            .document(40229, "expected an object as specification for $replaceRoot stage, got")?;
        if let Some(unknown) = spec.keys().find(|key| *key != "newRoot") {
            refuse!(40230, "unrecognized option to $replaceRoot stage: {unknown}");
        }
        let Some(root) = spec.get("newRoot") else {
            refuse!(40231, "no newRoot specified for the $replaceRoot stage");
        };
        let expression = Expression::parse(root, &self.context)?;
        Ok(Stage::ReplaceRoot { expression, stage: "$replaceRoot" })
    }

    /// A `$group` that counts, and a `$sort` by the counts.
    fn sort_by_count(&self, spec: &Bson, read: &mut Vec<Stage>) -> Result<()> {
        match spec {
            Bson::String(text) if text.starts_with('$') => {}
            Bson::String(_) => {
                refuse!(
                    40148,
                    "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
                );
            }
            Bson::Document(fields)
                if fields.keys().next().is_some_and(|key| key.starts_with('$')) => {}
            Bson::Document(_) => {
                refuse!(
                    40147,
                    "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
                );
            }
            _ => {
                refuse!(
                    40149,
                    "the sortByCount field must be specified as a string or as an object"
                );
            }
        }
        let group = bson::doc! { "_id": spec.clone(), "count": { "$sum": 1 } };
        read.push(Stage::Group(Group::parse(&Bson::Document(group), &self.context)?.into()));
        read.push(Stage::Sort(SortStage::parse(&bson::bson!({ "count": -1 }))?.into()));
        Ok(())
    }
}

fn unknown(name: &str) -> QueryError {
    if name == "$changeStream" {
        return fail!(40602, "$changeStream is only valid as the first stage in a pipeline.");
    }
    fail!(40324, "Unrecognized pipeline stage name: '{name}'")
}

/// Whether a query has expressions in it, whose variables are known only when it runs.
fn mentions_expression(query: &Document) -> bool {
    query.iter().any(|(name, value)| name == "$expr" || value_mentions_expression(value))
}

fn value_mentions_expression(value: &Bson) -> bool {
    match value {
        Bson::Document(document) => mentions_expression(document),
        Bson::Array(elements) => elements.iter().any(value_mentions_expression),
        _ => false,
    }
}

fn limit(spec: &Bson) -> Result<u64> {
    let number = as_i64(spec).filter(|number| *number >= 0).ok_or_else(|| {
        fail!(
            5107201,
            "invalid argument to $limit stage: Expected a non-negative number in: $limit: {spec}"
        )
    })?;
    match u64::try_from(number) {
        Ok(limit) if limit > 0 => Ok(limit),
        _ => Err(fail!(15958, "the limit must be positive")),
    }
}

fn skip(spec: &Bson) -> Result<u64> {
    as_i64(spec).and_then(|number| u64::try_from(number).ok()).ok_or_else(|| {
        fail!(
            5107200,
            "invalid argument to $skip stage: Expected a non-negative number in: $skip: {spec}"
        )
    })
}

fn count_field(spec: &Bson) -> Result<String> {
    let Bson::String(field) = spec else {
        refuse!(40156, "the count field must be a non-empty string");
    };
    refuse_if!(field.is_empty() => 40157, "the count field must be a non-empty string");
    refuse_if!(field.starts_with('$') => 40158, "the count field cannot be a $-prefixed path");
    refuse_if!(field.contains('\0') => 40159, "the count field cannot contain a null byte");
    refuse_if!(field.contains('.') => 40160, "the count field cannot contain '.'");
    Ok(field.clone())
}

fn sample_size(spec: &Bson) -> Result<u64> {
    let Bson::Document(spec) = spec else {
        refuse!(28745, "the $sample stage specification must be an object");
    };
    if let Some(unknown) = spec.keys().find(|key| *key != "size") {
        refuse!(28748, "unrecognized option to $sample: {unknown}");
    }
    let Some(size) = spec.get("size") else {
        refuse!(28749, "$sample stage must specify a size");
    };
    let Some(number) = crate::value::Number::from_value(size) else {
        refuse!(28746, "size argument to $sample must be a number");
    };
    let number = number.to_i64_truncated().unwrap_or(0);
    match u64::try_from(number) {
        Ok(size) if size > 0 => Ok(size),
        _ => Err(fail!(28747, "size argument to $sample must be a positive integer")),
    }
}
