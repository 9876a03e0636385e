//! `$densify`: documents for the numbers or dates that are missing in a row of them.
//!
//! The row begins at the lower bound and goes on by the step. Documents keep what they hold, on the row or beside it; for
//! each place of the row without a document one is made that holds the place and its partition. The manual: "$densify".

use std::sync::Arc;

use bson::{Bson, DateTime, Document};

use super::memory::Memory;
use super::output::check_known;
use super::stage::{Made, deferred};
use super::unwind::set;
use super::{Documents, Run};
use crate::error::{ErrorCode, QueryError, Result};
use crate::expression::operators::as_i64;
use crate::expression::operators::date_math::shift_by;
use crate::expression::{Dependencies, Expression, FieldPath, ParseContext};
use crate::meter::{Kept, push};
use crate::typed::Typed;
use crate::value::{Number, compare};

/// The most documents that one stage makes, as on the server.
const MAX_MADE: usize = 500_000;

/// A `$densify` stage.
#[derive(Clone, Debug)]
pub(super) struct Densify {
    field: FieldPath,
    value: Expression,
    partition: Vec<(FieldPath, Expression)>,
    step: Step,
    bounds: Bounds,
}

/// From one place to the next.
#[derive(Clone, Debug)]
enum Step {
    Number(Number),
    Date { unit: String, amount: i64 },
}

/// Where the row of a partition begins and ends.
#[derive(Clone, Debug)]
enum Bounds {
    /// From the least value of all documents to the greatest.
    Full,
    /// The same of the partition.
    Partition,
    /// From the first to before the second.
    Between(Box<[Bson; 2]>),
}

fn path_and_value(
    name: &Bson,
    what: &str,
    context: &ParseContext,
) -> Result<(FieldPath, Expression)> {
    let name = name
        .as_str()
        .ok_or_else(|| fail!(TYPE_MISMATCH, "$densify: {what} must be the name of a field"))?;
    let path = FieldPath::parse(name)?;
    let value = Expression::parse(&Bson::String(format!("${name}")), context)?;
    Ok((path, value))
}

impl Densify {
    pub(super) fn parse(spec: &Bson, context: &ParseContext) -> Result<Self> {
        let missing = |name: &str| {
            fail!(MISSING_FIELD, "BSON field '$densify.{name}' is missing but a required field")
        };
        let spec = spec.document(
            ErrorCode::FAILED_TO_PARSE,
            "the $densify stage specification must be an object, found",
        )?;
        check_known("$densify", spec, &["field", "partitionByFields", "range"])?;
        let (field, value) =
            path_and_value(spec.get("field").ok_or_else(|| missing("field"))?, "'field'", context)?;
        let partition = match spec.get("partitionByFields") {
            None => Vec::new(),
            Some(Bson::Array(names)) => names
                .iter()
                .map(|name| path_and_value(name, "each of 'partitionByFields'", context))
                .collect::<Result<_, _>>()?,
            Some(_) => {
                refuse!(TYPE_MISMATCH, "'partitionByFields' must be an array of strings");
            }
        };
        let range = spec.get("range").ok_or_else(|| missing("range"))?.document(
            ErrorCode::FAILED_TO_PARSE,
            "the range of $densify must be an object, found",
        )?;
        check_known("$densify.range", range, &["step", "unit", "bounds"])?;
        let step = Step::parse(
            range.get("step").ok_or_else(|| missing("range.step"))?,
            range.get("unit"),
        )?;
        let bounds = range.get("bounds").ok_or_else(|| missing("range.bounds"))?;
        let bounds = Bounds::parse(bounds, &step, partition.is_empty())?;
        Ok(Self { field, value, partition, step, bounds })
    }

    /// Counts what the stage reads.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        needed.path(&self.field.dotted());
        self.partition.iter().for_each(|(path, _)| needed.path(&path.dotted()));
    }

    fn run(&self, input: Documents, run: &Run) -> Result<Made> {
        let mut memory = Memory::new("$densify", run);
        let meter = run.variables.meter();
        let mut entries = Kept::new(Vec::new(), meter);
        for document in input {
            let document = document?;
            memory.hold_document(&document)?;
            memory.hold(size_of::<Entry>())?;
            let evaluated =
                |expression: &Expression| expression.evaluate(&document, &run.variables);
            let value = evaluated(&self.value)?.filter(|value| *value != Bson::Null);
            if let Some(value) = &value {
                self.step.check_value(value)?;
            }
            let partition = self
                .partition
                .iter()
                .map(|(_, by)| Ok(evaluated(by)?.unwrap_or(Bson::Null)))
                .collect::<Result<_>>()?;
            let partition = Bson::Array(partition);
            memory.hold_value(&partition)?;
            push(&mut entries, Entry { partition, value, document });
        }
        let order = |left: &Entry, right: &Entry| {
            compare(&left.partition, &right.partition).then_with(|| left.compare_value(right))
        };
        let mut entries =
            Kept::new(crate::sorting::sorted(entries.into_inner(), order, meter)?, meter);
        let mut row = Row { densify: self, memory, made: 0, documents: Vec::new() };
        let full = ends(entries.iter());
        if entries.is_empty() && self.partition.is_empty() {
            row.fill(&mut [], None)?;
        }
        for partition in
            entries.chunk_by_mut(|left, right| compare(&left.partition, &right.partition).is_eq())
        {
            let ends = match self.bounds {
                Bounds::Full => full.clone(),
                _ => ends(partition.iter()),
            };
            row.fill(partition, ends)?;
        }
        Ok(Made { documents: row.documents, memory: Some(row.memory) })
    }
}

pub(super) fn run(densify: Arc<Densify>, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    deferred(move || densify.run(input, &run))
}

struct Entry {
    partition: Bson,
    /// None if the field is null or missing.
    value: Option<Bson>,
    document: Document,
}

impl Entry {
    fn compare_value(&self, other: &Self) -> std::cmp::Ordering {
        match (&self.value, &other.value) {
            (Some(left), Some(right)) => compare(left, right),
            (left, right) => left.is_some().cmp(&right.is_some()),
        }
    }
}

/// The least and the greatest value.
fn ends<'a>(entries: impl Iterator<Item = &'a Entry>) -> Option<(Bson, Bson)> {
    let mut values = entries.filter_map(|entry| entry.value.as_ref());
    let first = values.next()?;
    let (least, greatest) = values.fold((first, first), |(least, greatest), value| {
        (
            if compare(value, least).is_lt() { value } else { least },
            if compare(value, greatest).is_gt() { value } else { greatest },
        )
    });
    Some((least.clone(), greatest.clone()))
}

/// What comes out, so far.
struct Row<'a> {
    densify: &'a Densify,
    memory: Memory,
    made: usize,
    documents: Vec<Document>,
}

impl Row<'_> {
    /// Adds the documents of a partition, which are in order, and those that are missing between the ends.
    fn fill(&mut self, entries: &mut [Entry], ends: Option<(Bson, Bson)>) -> Result<()> {
        let (lower, upper, is_open) = match (&self.densify.bounds, ends) {
            (Bounds::Between(ends), _) => (ends[0].clone(), ends[1].clone(), true),
            (_, Some((lower, upper))) => (lower, upper, false),
            (_, None) => {
                self.pass_on(entries);
                return Ok(());
            }
        };
        let partition = entries.first().map_or(Bson::Null, |entry| entry.partition.clone());
        // Each place has a document or gets one, unless numbers are so large that a step does not change them.
        let most = i64::try_from(MAX_MADE + entries.len()).unwrap_or(i64::MAX);
        let mut done = 0;
        for place in 0..=most {
            self.memory.steps(1)?;
            let value = self.densify.step.place(&lower, place)?;
            let order = compare(&value, &upper);
            if order.is_gt() || (order.is_eq() && is_open) {
                self.pass_on(&mut entries[done..]);
                return Ok(());
            }
            let is_before = |entry: &Entry| {
                entry.value.as_ref().is_none_or(|held| compare(held, &value).is_lt())
            };
            let before = entries[done..].partition_point(is_before);
            self.pass_on(&mut entries[done..done + before]);
            done += before;
            let next = entries.get(done).and_then(|entry| entry.value.as_ref());
            if !next.is_some_and(|held| compare(held, &value).is_eq()) {
                self.make(&partition, value)?;
            }
        }
        Err(too_many())
    }

    fn pass_on(&mut self, entries: &mut [Entry]) {
        let documents = entries.iter_mut().map(|entry| std::mem::take(&mut entry.document));
        self.documents.extend(documents);
    }

    fn make(&mut self, partition: &Bson, value: Bson) -> Result<()> {
        self.made += 1;
        if self.made > MAX_MADE {
            return Err(too_many());
        }
        let mut document = Document::new();
        let partition = partition.as_array().map_or(&[][..], Vec::as_slice);
        for ((path, _), part) in self.densify.partition.iter().zip(partition) {
            set(&mut document, path.components(), part.clone());
        }
        set(&mut document, self.densify.field.components(), value);
        self.memory.hold_document(&document)?;
        self.documents.push(document);
        Ok(())
    }
}

fn too_many() -> QueryError {
    fail!(
        5897900,
        "Generated too many documents in $densify: at most {MAX_MADE}; use a larger step"
    )
}

impl Step {
    fn parse(step: &Bson, unit: Option<&Bson>) -> Result<Self> {
        let not_positive = || {
            fail!(
                5733401,
                "the step parameter in a range statement must be a strictly positive numeric value"
            )
        };
        let number = Number::from_value(step)
            .ok_or_else(|| fail!(TYPE_MISMATCH, "$densify: 'step' must be a number"))?;
        if !number.compare(Number::Int32(0)).is_gt() || number.is_nan() {
            return Err(not_positive());
        }
        match unit {
            None => Ok(Self::Number(number)),
            Some(Bson::String(unit)) => {
                let amount = as_i64(step).ok_or_else(|| {
                    fail!(6586400, "the step of dates must be a whole number of units")
                })?;
                // An unknown unit is refused here, and not first by a document.
                shift_by("$densify", 0, unit, amount)?;
                Ok(Self::Date { unit: unit.clone(), amount })
            }
            Some(_) => Err(fail!(TYPE_MISMATCH, "'unit' must be a string")),
        }
    }

    /// Refuses bounds of which one is a date and the other none, and numbers with a unit of dates.
    fn check_bounds(&self, lower: &Bson, upper: &Bson) -> Result<()> {
        let is_number = |value: &Bson| Number::from_value(value).is_some();
        match (self, is_number(lower), is_number(upper)) {
            (Self::Date { .. }, true, true) => {
                Err(fail!(5733409, "numeric bounds may not have unit parameter"))
            }
            (_, true, false) | (_, false, true) => Err(fail!(
                5733406,
                "a bounding array must contain either both dates or both numeric types"
            )),
            _ => [lower, upper].into_iter().try_for_each(|bound| self.check_value(bound)),
        }
    }

    fn check_value(&self, value: &Bson) -> Result<()> {
        match (self, value) {
            (Self::Date { .. }, Bson::DateTime(_)) => Ok(()),
            (Self::Number(_), value) if Number::from_value(value).is_some() => Ok(()),
            (Self::Number(_), Bson::DateTime(_)) => Err(fail!(
                6053600,
                "Encountered date densify value in collection when step does not have a date unit."
            )),
            (Self::Date { .. }, value) if Number::from_value(value).is_some() => Err(fail!(
                6053600,
                "Encountered numeric densify value in collection when step has a date unit."
            )),
            _ => Err(fail!(5733201, "Densify field type must be numeric or a date")),
        }
    }

    /// A place of the row that begins at a value.
    fn place(&self, first: &Bson, place: i64) -> Result<Bson> {
        let overflow = || fail!(OVERFLOW, "$densify: a value is out of range");
        match (self, first) {
            (Self::Date { unit, amount }, Bson::DateTime(first)) => {
                let amount = amount.checked_mul(place).ok_or_else(overflow)?;
                let shifted = shift_by("$densify", first.timestamp_millis(), unit, amount)?;
                Ok(Bson::DateTime(DateTime::from_millis(shifted)))
            }
            (Self::Number(step), first) => {
                let first = Number::from_value(first).ok_or_else(overflow)?;
                let place = i32::try_from(place).map_or(Number::Int64(place), Number::Int32);
                Ok(first.plus(step.multiply(place)).into())
            }
            _ => Err(overflow()),
        }
    }
}

impl Bounds {
    fn parse(bounds: &Bson, step: &Step, is_one_partition: bool) -> Result<Self> {
        match bounds {
            Bson::String(name) if name == "full" => Ok(Self::Full),
            Bson::String(name) if name == "partition" && is_one_partition => Err(fail!(
                5733408,
                "one may not specify the bounds as 'partition' without specifying a non-empty array \
                 of partitionByFields. You may have meant to specify 'full' bounds."
            )),
            Bson::String(name) if name == "partition" => Ok(Self::Partition),
            Bson::String(_) => {
                Err(fail!(5946802, "Bounds string must either be 'full' or 'partition'"))
            }
            Bson::Array(ends) => {
                let [lower, upper] = ends.as_slice() else {
                    refuse!(
                        5733403,
                        "a bounding array in a range statement must have exactly two elements"
                    );
                };
                refuse_if!(compare(lower, upper).is_gt() => 5733402,
                    "the bounds in a range statement must be the string 'full', 'partition', or an \
                     ascending array of two numbers or two dates");
                step.check_bounds(lower, upper)?;
                Ok(Self::Between(Box::new([lower.clone(), upper.clone()])))
            }
            _ => Err(fail!(5733402, "'bounds' must be a string or an array")),
        }
    }
}
