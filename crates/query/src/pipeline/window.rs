//! `$setWindowFields`: fields computed over the documents around each document.
//!
//! Owns partitions, windows and the functions that exist only here; the accumulators are those of
//! `$group`. Documents come out sorted by partition and then by `sortBy`, as the server's do.

use std::sync::Arc;

use bson::{Bson, Document};

use super::accumulator::{Accumulator, State};
use super::memory::Memory;
use super::output::check_known;
use super::stage::{Made, deferred};
use super::unwind::set;
use super::window_frame::Window;
use super::window_numbers::OfNumbers;
use super::{Documents, Run};
use crate::error::{ErrorCode, Result};
use crate::expression::operators::as_i64;
use crate::expression::{Dependencies, Expression, FieldPath, Frame, ParseContext};
use crate::meter::{Kept, push};
use crate::sort::{SortKey, SortPattern};
use crate::typed::Typed;
use crate::value::{Number, compare};

/// The most fields that one stage computes.
const MAX_OUTPUTS: usize = 1000;

/// A `$setWindowFields` stage.
#[derive(Clone, Debug)]
pub(super) struct WindowStage {
    partition: Option<Expression>,
    sort: SortPattern,
    outputs: Vec<(FieldPath, Function)>,
}

/// The function that computes a field.
#[derive(Clone, Debug)]
enum Function {
    Accumulator(Box<Accumulator>, Window),
    /// `$documentNumber`.
    Number,
    /// `$rank` and `$denseRank`.
    Rank {
        dense: bool,
    },
    /// `$shift`.
    Shift {
        output: Expression,
        by: i64,
        default: Bson,
    },
    /// `$locf`: the last value that was not null.
    LastObserved(Expression),
    /// `$linearFill`: on the line between the values around.
    LinearFill(Expression),
    /// Of two columns of numbers, over a window.
    OfNumbers(Box<OfNumbers>),
    /// `$expMovingAvg`.
    MovingAverage {
        input: Expression,
        alpha: f64,
    },
}

/// What `$group` refuses an operator with that is none of its own.
const UNKNOWN_ACCUMULATOR: ErrorCode = ErrorCode(15952);

/// Refuses fields of which one lies within another: the later would overwrite a part of the earlier.
fn check_apart(outputs: &[(FieldPath, Function)]) -> Result<()> {
    let mut paths: Vec<_> = outputs.iter().map(|(path, _)| path.components()).collect();
    paths.sort_unstable();
    match paths.windows(2).any(|pair| pair[1].starts_with(pair[0])) {
        true => Err(fail!(
            6307900,
            "$setWindowFields 'output' specification contains two conflicting paths"
        )),
        false => Ok(()),
    }
}

impl WindowStage {
    pub(super) fn parse(spec: &Bson, context: &ParseContext) -> Result<Self> {
        let spec = spec.document(
            ErrorCode::FAILED_TO_PARSE,
            "the $setWindowFields stage specification must be an object, found",
        )?;
        check_known("$setWindowFields", spec, &["partitionBy", "sortBy", "output"])?;
        let partition =
            spec.get("partitionBy").map(|by| Expression::parse(by, context)).transpose()?;
        let sort = match spec.get("sortBy") {
            None => SortPattern::parse(&Document::new())?,
            Some(sort) => SortPattern::parse(sort.document(
                ErrorCode::TYPE_MISMATCH,
                "$setWindowFields 'sortBy' must be an object, found",
            )?)?,
        };
        let fields = spec.get("output").ok_or_else(|| {
            fail!(
                MISSING_FIELD,
                "BSON field '$setWindowFields.output' is missing but a required field"
            )
        })?;
        let fields = fields.document(
            ErrorCode::TYPE_MISMATCH,
            "$setWindowFields 'output' must be an object, found",
        )?;
        refuse_if!(fields.len() > MAX_OUTPUTS => FAILED_TO_PARSE,
            "$setWindowFields computes at most {MAX_OUTPUTS} fields");
        let outputs: Vec<(FieldPath, Function)> = fields
            .iter()
            .map(|(path, spec)| {
                Ok((FieldPath::parse(path)?, Function::parse(spec, &sort, context)?))
            })
            .collect::<Result<_>>()?;
        check_apart(&outputs)?;
        Ok(Self { partition, sort, outputs })
    }

    /// Counts what the stage reads.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        self.partition.iter().for_each(|partition| needed.expression(partition));
        self.sort.fields().for_each(|(path, _)| needed.path(path.head()));
        for (path, function) in &self.outputs {
            needed.path(&path.dotted());
            match function {
                Function::Accumulator(accumulator, _) => accumulator.depend(needed),
                Function::Shift { output: input, .. }
                | Function::LastObserved(input)
                | Function::LinearFill(input)
                | Function::MovingAverage { input, .. } => needed.expression(input),
                Function::OfNumbers(function) => function.depend(needed),
                Function::Number | Function::Rank { .. } => {}
            }
        }
    }

    fn run(&self, input: Documents, run: &Run) -> Result<Made> {
        let mut memory = Memory::new("$setWindowFields", run);
        let meter = run.variables.meter();
        let mut entries = Kept::new(Vec::new(), meter);
        for document in input {
            let document = document?;
            memory.hold_document(&document)?;
            let partition = match &self.partition {
                None => Bson::Null,
                Some(by) => by.evaluate(&document, &run.variables)?.unwrap_or(Bson::Null),
            };
            let key = self.sort.key(&document)?;
            // Its entry, and its place in the order.
            memory.hold(size_of::<Entry>() + 2 * size_of::<usize>())?;
            memory.hold_value(&partition)?;
            key.values().iter().try_for_each(|value| memory.hold_value(value))?;
            push(&mut entries, Entry { partition, key, document });
        }
        let order = |left: &Entry, right: &Entry| {
            compare(&left.partition, &right.partition)
                .then_with(|| self.sort.compare(&left.key, &right.key))
        };
        let mut entries =
            Kept::new(crate::sorting::sorted(entries.into_inner(), order, meter)?, meter);
        let mut finished = Kept::new(Vec::with_capacity(entries.len()), meter);
        for partition in
            entries.chunk_by_mut(|left, right| compare(&left.partition, &right.partition).is_eq())
        {
            let rows = Rows { entries: &*partition, sort: &self.sort, run };
            let mut columns = Vec::with_capacity(self.outputs.len());
            for (_, function) in &self.outputs {
                let column = function.compute(&rows)?;
                column.iter().flatten().try_for_each(|value| memory.hold_value(value))?;
                columns.push(column.into_iter());
            }
            for entry in partition {
                let mut document = std::mem::take(&mut entry.document);
                for ((path, _), column) in self.outputs.iter().zip(&mut columns) {
                    if let Some(Some(value)) = column.next() {
                        set(&mut document, path.components(), value);
                    }
                }
                finished.push(document);
            }
        }
        Ok(Made { documents: finished.into_inner(), memory: Some(memory) })
    }
}

pub(super) fn run(window: Arc<WindowStage>, input: Documents, run: &Run) -> Documents {
    let run = run.clone();
    deferred(move || window.run(input, &run))
}

struct Entry {
    partition: Bson,
    key: SortKey,
    document: Document,
}

/// The documents of one partition, in order.
pub(super) struct Rows<'a> {
    entries: &'a [Entry],
    sort: &'a SortPattern,
    run: &'a Run,
}

impl Rows<'_> {
    fn frame(&self, row: usize) -> Frame<'_> {
        Frame::new(&self.entries[row].document, &self.run.variables)
    }

    pub(super) fn values(&self, input: &Expression) -> Result<Vec<Bson>> {
        (0..self.entries.len())
            .map(|row| Ok(input.operand(self.frame(row))?.into_bson().unwrap_or(Bson::Null)))
            .collect()
    }

    /// Counts steps of the operation.
    pub(super) fn steps(&self, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| self.run.variables.step())
    }

    /// The sort key of each row, where that is one field.
    pub(super) fn sorted_by(&self) -> Vec<&Bson> {
        self.entries.iter().map(|entry| entry.key.values().first().unwrap_or(&Bson::Null)).collect()
    }
}

impl Function {
    fn parse(spec: &Bson, sort: &SortPattern, context: &ParseContext) -> Result<Self> {
        let Bson::Document(spec) = spec else {
            refuse!(FAILED_TO_PARSE, "The field must be an object with a window function");
        };
        let mut operators = spec.iter().filter(|(name, _)| *name != "window");
        let (Some((name, argument)), None) = (operators.next(), operators.next()) else {
            refuse!(
                FAILED_TO_PARSE,
                "Expected a window function: an object with one operator and at most a 'window'"
            );
        };
        refuse_if!(!name.starts_with('$') => FAILED_TO_PARSE,
            "Expected a $-prefixed window function, {name}");
        let window = spec.get("window");
        if let Some(function) = OfNumbers::parse(name, argument, window, sort, context)? {
            return Ok(Self::OfNumbers(Box::new(function)));
        }
        let own = Self::parse_own(name, argument, sort, context)?;
        match (own, window) {
            (Some(_), Some(_)) => {
                Err(fail!(5371601, "Rank style window function {name} takes no 'window'"))
            }
            (Some(function), None) => Ok(function),
            (None, window) => {
                let mut accumulator = Document::new();
                accumulator.insert(name.as_str(), argument.clone());
                let accumulator = Bson::Document(accumulator);
                let accumulator = Accumulator::parse("value", &accumulator, context).map_err(
                    |error| match error.code() == UNKNOWN_ACCUMULATOR {
                        true => fail!(FAILED_TO_PARSE, "Unrecognized window function, {name}"),
                        false => error,
                    },
                )?;
                let window = Window::parse(window, sort)?;
                Ok(Self::Accumulator(Box::new(accumulator), window))
            }
        }
    }

    /// Reads a function that only windows have.
    fn parse_own(
        name: &str,
        argument: &Bson,
        sort: &SortPattern,
        context: &ParseContext,
    ) -> Result<Option<Self>> {
        let function = match name {
            "$documentNumber" => Self::Number,
            "$rank" => Self::Rank { dense: false },
            "$denseRank" => Self::Rank { dense: true },
            "$shift" => Self::parse_shift(argument, context)?,
            "$locf" => Self::LastObserved(Expression::parse(argument, context)?),
            "$linearFill" => Self::LinearFill(Expression::parse(argument, context)?),
            "$expMovingAvg" => Self::parse_average(argument, context)?,
            _ => return Ok(None),
        };
        let fields = sort.fields().count();
        let one_field = matches!(function, Self::Rank { .. } | Self::LinearFill(_));
        let free = matches!(function, Self::LastObserved(_));
        refuse_if!((one_field && fields != 1) || (fields == 0 && !free) => 5371602,
            "{name} must be specified with a top level sortBy expression");
        let bare = matches!(function, Self::Number | Self::Rank { .. });
        refuse_if!(bare && !argument.as_document().is_some_and(Document::is_empty) => 5371603,
            "{name} must be specified with '{{}}' as the value");
        Ok(Some(function))
    }

    fn parse_shift(argument: &Bson, context: &ParseContext) -> Result<Self> {
        let options = argument.as_document();
        let option = |name: &str| options.and_then(|options| options.get(name));
        let (Some(output), Some(by)) = (option("output"), option("by")) else {
            refuse!(FAILED_TO_PARSE, "$shift requires 'output' and 'by'");
        };
        let by = as_i64(by)
            .filter(|by| i32::try_from(*by).is_ok())
            .ok_or_else(|| fail!(FAILED_TO_PARSE, "'$shift:by' field must be an integer"))?;
        let default = match option("default") {
            None => Bson::Null,
            Some(default) => {
                Expression::parse(default, context)?.constant().cloned().ok_or_else(|| {
                    fail!(
                        FAILED_TO_PARSE,
                        "'$shift:default' expression must yield a constant value"
                    )
                })?
            }
        };
        Ok(Self::Shift { output: Expression::parse(output, context)?, by, default })
    }

    fn parse_average(argument: &Bson, context: &ParseContext) -> Result<Self> {
        let wrong = || {
            fail!(
                FAILED_TO_PARSE,
                "$expMovingAvg requires 'input' and either 'N' (a positive integer) or 'alpha' \
                 (between 0 and 1, exclusive)"
            )
        };
        let options = argument.as_document().ok_or_else(wrong)?;
        let input = options.get("input").ok_or_else(wrong)?;
        let alpha = match (options.get("N"), options.get("alpha")) {
            (Some(n), None) => {
                let n = as_i64(n).filter(|n| *n > 0).ok_or_else(wrong)?;
                2.0 / (n as f64 + 1.0)
            }
            (None, Some(alpha)) => {
                let alpha = Number::from_value(alpha).ok_or_else(wrong)?.to_f64();
                if !(alpha > 0.0 && alpha < 1.0) {
                    return Err(wrong());
                }
                alpha
            }
            _ => return Err(wrong()),
        };
        Ok(Self::MovingAverage { input: Expression::parse(input, context)?, alpha })
    }

    /// The value for each row; `None` leaves the field as it is.
    fn compute(&self, rows: &Rows<'_>) -> Result<Vec<Option<Bson>>> {
        let count = rows.entries.len();
        match self {
            Self::Accumulator(accumulator, window) => accumulate(accumulator, window, rows),
            Self::Number => Ok((1..=count).map(|number| Some(whole(number))).collect()),
            Self::Rank { dense } => Ok(rank(rows, *dense)),
            Self::Shift { output, by, default } => {
                let values = rows.values(output)?;
                let shifted = |row: usize| {
                    let from = i64::try_from(row).ok()?.checked_add(*by)?;
                    values.get(usize::try_from(from).ok()?).cloned()
                };
                Ok((0..count).map(|row| shifted(row).or_else(|| Some(default.clone()))).collect())
            }
            Self::LastObserved(input) => {
                let mut last = Bson::Null;
                let values = rows.values(input)?.into_iter();
                Ok(values
                    .map(|value| {
                        if !matches!(value, Bson::Null | Bson::Undefined) {
                            last = value;
                        }
                        Some(last.clone())
                    })
                    .collect())
            }
            Self::OfNumbers(function) => function.compute(rows),
            Self::LinearFill(input) => linear_fill(rows, rows.values(input)?),
            Self::MovingAverage { input, alpha } => {
                let mut average: Option<f64> = None;
                let values = rows.values(input)?.into_iter();
                Ok(values
                    .map(|value| {
                        let number = Number::from_value(&value)?.to_f64();
                        let next = match average {
                            None => number,
                            Some(before) => number * alpha + before * (1.0 - alpha),
                        };
                        average = Some(next);
                        Some(Bson::Double(next))
                    })
                    .map(|value| Some(value.unwrap_or(Bson::Null)))
                    .collect())
            }
        }
    }
}

fn whole(number: usize) -> Bson {
    i32::try_from(number).map_or(Bson::Int64(number as i64), Bson::Int32)
}

fn rank(rows: &Rows<'_>, dense: bool) -> Vec<Option<Bson>> {
    let mut rank = 0;
    let mut ranks = Vec::with_capacity(rows.entries.len());
    for (row, entry) in rows.entries.iter().enumerate() {
        let tied = row
            .checked_sub(1)
            .is_some_and(|before| rows.sort.compare(&rows.entries[before].key, &entry.key).is_eq());
        if !tied {
            rank = if dense { rank + 1 } else { row + 1 };
        }
        ranks.push(Some(whole(rank)));
    }
    ranks
}

/// Accumulates over each row's window. A window that only ever grows is accumulated once.
fn accumulate(
    accumulator: &Accumulator,
    window: &Window,
    rows: &Rows<'_>,
) -> Result<Vec<Option<Bson>>> {
    let keys = rows.sorted_by();
    let nothing = Document::new();
    let start = || accumulator.start(&Bson::Null, Frame::new(&nothing, &rows.run.variables));
    let fresh = || Memory::new("$setWindowFields", rows.run);
    // A window gives its memory back when it ends, so each window has its own count.
    let mut memory = fresh();
    // A growing window gives every row a copy of it: the column is counted as it grows.
    let mut held = fresh();
    let mut running: Option<(usize, usize, State)> = None;
    let mut column = Vec::with_capacity(keys.len());
    for row in 0..keys.len() {
        let (low, high) = window.around(row, &keys)?;
        let (mut next, mut state) = match running.take() {
            Some((from, to, state)) if from == low && to <= high => (to, state),
            _ => {
                memory = fresh();
                (low, start()?)
            }
        };
        while next < high {
            rows.run.variables.step()?;
            accumulator.add(&mut state, rows.frame(next), &mut memory)?;
            next += 1;
        }
        let value = accumulator.finish(state.clone(), rows.run.variables.meter())?;
        held.hold_value(&value)?;
        column.push(Some(value));
        running = Some((low, next.max(high), state));
    }
    Ok(column)
}

/// Fills nulls between two numbers by linear interpolation over the sort key.
fn linear_fill(rows: &Rows<'_>, values: Vec<Bson>) -> Result<Vec<Option<Bson>>> {
    let position = |key: &Bson| match key {
        Bson::DateTime(date) => Some(date.timestamp_millis() as f64),
        other => Number::from_value(other).map(Number::to_f64),
    };
    let mut places = Vec::with_capacity(values.len());
    for key in rows.sorted_by() {
        places.push(position(key).ok_or_else(|| {
            fail!(605001, "$linearFill requires its sort field to be a number or a date")
        })?);
    }
    let known: Vec<Option<f64>> =
        values.iter().map(|value| Number::from_value(value).map(Number::to_f64)).collect();
    let mut filled: Vec<Option<Bson>> = values.into_iter().map(Some).collect();
    let mut left: Option<usize> = None;
    for right in 0..known.len() {
        let Some(end) = known[right] else { continue };
        if let Some(from) = left
            && let Some(begin) = known[from]
            && places[right] != places[from]
        {
            let slope = (end - begin) / (places[right] - places[from]);
            for between in from + 1..right {
                let value = begin + slope * (places[between] - places[from]);
                filled[between] = Some(Bson::Double(value));
            }
        }
        left = Some(right);
    }
    Ok(filled)
}
