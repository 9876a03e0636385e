//! `$bucket`, which is a `$group` by boundaries, and `$bucketAuto`, which finds its boundaries.

use std::fmt::Display;
use std::sync::Arc;

use bson::{Bson, Document};

use super::accumulator::Accumulator;
use super::group::{By, Group};
use super::memory::Memory;
use super::stage::{Made, deferred};
use super::{Documents, Run};
use crate::error::{QueryError, Result};
use crate::expression::operators::as_i64;
use crate::expression::{Dependencies, Expression, Frame, ParseContext};
use crate::meter::Kept;
use crate::typed::unknown_field;
use crate::value::types::TypeBracket;
use crate::value::types::type_name_of;
use crate::value::{ValueRef, compare};

/// A `$bucketAuto` stage.
#[derive(Clone, Debug)]
pub(super) struct BucketAuto {
    by: Expression,
    buckets: usize,
    accumulators: Vec<Accumulator>,
}

fn wrong_type(code: i32, wanted: impl Display, found: &Bson) -> QueryError {
    fail!((code), "{wanted}, but found type: {}.", type_name_of(found))
}

/// Reads `output`, which counts documents if it is left out.
fn output(
    stage: &str,
    code: i32,
    output: Option<&Bson>,
    context: &ParseContext,
) -> Result<Vec<Accumulator>> {
    match output {
        None => {
            let mut sum = Document::new();
            sum.insert("$sum", 1);
            Ok(vec![Accumulator::parse("count", &Bson::Document(sum), context)?])
        }
        Some(Bson::Document(fields)) => fields
            .iter()
            .map(|(field, accumulator)| Accumulator::parse(field, accumulator, context))
            .collect(),
        Some(other) => Err(wrong_type(
            code,
            format_args!("The {stage} 'output' field must be an object"),
            other,
        )),
    }
}

/// Refuses a `groupBy` that is neither a path nor an operator.
fn group_by(stage: &str, code: i32, value: &Bson, context: &ParseContext) -> Result<Expression> {
    let computed = match value {
        Bson::String(text) => text.starts_with('$'),
        Bson::Document(fields) => fields.keys().next().is_some_and(|key| key.starts_with('$')),
        _ => false,
    };
    refuse_if!(!computed => (code),
        "The {stage} 'groupBy' field must be defined as a $-prefixed path or an \
         expression, but found: {value}.");
    Expression::parse(value, context)
}

/// Reads a `$bucket`.
pub(super) fn parse(spec: &Bson, context: &ParseContext) -> Result<Group> {
    let Bson::Document(spec) = spec else {
        return Err(wrong_type(40201, "Argument to $bucket stage must be an object", spec));
    };
    if let Some(unknown) = unknown_field(spec, &["groupBy", "boundaries", "default", "output"]) {
        refuse!(40197, "Unrecognized option to $bucket: {unknown}.");
    }
    let (Some(by), Some(boundaries)) = (spec.get("groupBy"), spec.get("boundaries")) else {
        refuse!(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified.");
    };
    let value = group_by("$bucket", 40202, by, context)?;
    let boundaries = read_boundaries(boundaries, context)?;
    let default = match spec.get("default") {
        None => None,
        Some(default) => {
            let constant = Expression::parse(default, context)?;
            let Some(value) = constant.constant().cloned() else {
                refuse!(
                    40195,
                    "The $bucket 'default' field must be a constant expression, but found: {default}."
                );
            };
            check_default(&value, &boundaries)?;
            Some(value)
        }
    };
    let accumulators = output("$bucket", 40196, spec.get("output"), context)?;
    Ok(Group { by: By::Bucket { value, boundaries, default }, accumulators })
}

fn read_boundaries(spec: &Bson, context: &ParseContext) -> Result<Vec<Bson>> {
    let Bson::Array(spec) = spec else {
        return Err(wrong_type(40200, "The $bucket 'boundaries' field must be an array", spec));
    };
    refuse_if!(spec.len() < 2 => 40192,
        "The $bucket 'boundaries' field must have at least 2 values, but found {} value(s).",
        spec.len());
    let mut boundaries: Vec<Bson> = Vec::with_capacity(spec.len());
    for value in spec {
        let Some(value) = Expression::parse(value, context)?.constant().cloned() else {
            refuse!(40191, "The $bucket 'boundaries' field must be an array of constant values.");
        };
        if let Some(last) = boundaries.last() {
            let bracket = |value: &Bson| TypeBracket::of(ValueRef::from(value));
            refuse_if!(bracket(last) != bracket(&value) => 40193,
                "All values in the 'boundaries' option to $bucket must have the same type.");
            refuse_if!(compare(last, &value).is_ge() => 40194,
                "The 'boundaries' option to $bucket must be sorted in ascending order.");
        }
        boundaries.push(value);
    }
    Ok(boundaries)
}

fn check_default(default: &Bson, boundaries: &[Bson]) -> Result<()> {
    let (Some(first), Some(last)) = (boundaries.first(), boundaries.last()) else { return Ok(()) };
    refuse_if!(compare(default, first).is_ge() && compare(default, last).is_lt() => 40199,
        "The $bucket 'default' field must be less than the lowest boundary or greater than or \
         equal to the highest boundary.");
    Ok(())
}

impl BucketAuto {
    pub(super) fn parse(spec: &Bson, context: &ParseContext) -> Result<Self> {
        let Bson::Document(spec) = spec else {
            return Err(wrong_type(40240, "The argument to $bucketAuto must be an object", spec));
        };
        if let Some(unknown) = unknown_field(spec, &["groupBy", "buckets", "output", "granularity"])
        {
            refuse!(40245, "Unrecognized option to $bucketAuto: {unknown}.");
        }
        refuse_if!(spec.contains_key("granularity") => 40261,
            "The $bucketAuto 'granularity' field is not offered here; leave it out");
        let (Some(by), Some(buckets)) = (spec.get("groupBy"), spec.get("buckets")) else {
            refuse!(40246, "$bucketAuto requires 'groupBy' and 'buckets' to be specified.");
        };
        let by = group_by("$bucketAuto", 40239, by, context)?;
        let buckets = match as_i64(buckets).and_then(|number| i32::try_from(number).ok()) {
            None => {
                refuse!(
                    40241,
                    "The $bucketAuto 'buckets' field must be representable as a 32-bit \
                         integer, but found {buckets}."
                );
            }
            Some(number) => {
                usize::try_from(number).ok().filter(|number| *number > 0).ok_or_else(|| {
                    fail!(
                        40243,
                        "The $bucketAuto 'buckets' field must be greater than 0, but found: \
                             {number}."
                    )
                })?
            }
        };
        let accumulators = output("$bucketAuto", 40244, spec.get("output"), context)?;
        Ok(Self { by, buckets, accumulators })
    }

    /// Counts what the stage reads.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        needed.expression(&self.by);
        self.accumulators.iter().for_each(|accumulator| accumulator.depend(needed));
    }

    fn run(&self, input: Documents, run: &Run) -> Result<Made> {
        let mut memory = Memory::new("$bucketAuto", run);
        let meter = run.variables.meter();
        let mut sorted = Kept::new(Vec::new(), meter);
        for document in input {
            let document = document?;
            let key = self.by.operand(Frame::new(&document, &run.variables))?;
            let key = key.into_bson().unwrap_or(Bson::Null);
            memory.hold_document(&document)?;
            memory.hold_value(&key)?;
            sorted.push((key, document));
        }
        let order = |(left, _): &(Bson, _), (right, _): &(Bson, _)| compare(left, right);
        let sorted = Kept::new(crate::sorting::sorted(sorted.into_inner(), order, meter)?, meter);
        // Rounded, as the server does, and at least one document in each bucket.
        let size = ((sorted.len() as f64 / self.buckets as f64).round() as usize).max(1);
        let mut results: Vec<Document> = Vec::new();
        let mut rest = sorted.as_slice();
        while let Some((first, _)) = rest.first() {
            let last_bucket = results.len() + 1 == self.buckets;
            let mut end = if last_bucket { rest.len() } else { size.min(rest.len()) };
            // Equal values stay together.
            let edge = &rest[end - 1].0;
            end += rest[end..].iter().take_while(|(key, _)| compare(key, edge).is_eq()).count();
            let (bucket, after) = rest.split_at(end);
            let max = after.first().map_or(edge, |(next, _)| next);
            let mut id = Document::new();
            id.insert("min", first.clone());
            id.insert("max", max.clone());
            results.push(self.finish(id, bucket, run, &mut memory)?);
            rest = after;
        }
        Ok(Made { documents: results, memory: Some(memory) })
    }

    fn finish(
        &self,
        id: Document,
        bucket: &[(Bson, Document)],
        run: &Run,
        memory: &mut Memory,
    ) -> Result<Document> {
        let id = Bson::Document(id);
        let mut result = Document::new();
        result.insert("_id", id.clone());
        for accumulator in &self.accumulators {
            let nothing = Document::new();
            let mut state = accumulator.start(&id, Frame::new(&nothing, &run.variables))?;
            for (_, document) in bucket {
                run.variables.step()?;
                accumulator.add(&mut state, Frame::new(document, &run.variables), memory)?;
            }
            result.insert(
                accumulator.field.as_str(),
                accumulator.finish(state, run.variables.meter())?,
            );
        }
        Ok(result)
    }
}

/// Runs a `$bucketAuto`.
pub(super) fn run(bucket: Arc<BucketAuto>, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    deferred(move || bucket.run(input, &run))
}
