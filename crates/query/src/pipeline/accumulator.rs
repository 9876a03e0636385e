//! The accumulators of `$group`, `$bucket` and `$bucketAuto`.

use std::cmp::Ordering;
use std::collections::HashSet;

use bson::{Bson, Document};

use super::memory::Memory;
use super::sort::parse_pattern;
use crate::error::Result;
use crate::expression::operators::accumulate::{
    Deviation, Sum, check_method, count, percentiles_of_sorted, shares,
};
use crate::expression::{
    Dependencies, Expression, Frame, Operand, ParseContext, approximate_value_size, field_cost,
};
use crate::meter::{Meter, make_place, push};
use crate::sort::{SortKey, SortPattern};
use crate::sorting::sorted;
use crate::typed::Typed;
use crate::value::{GroupKey, Number, compare};

/// One accumulated field of the output.
#[derive(Clone, Debug)]
pub(super) struct Accumulator {
    pub(super) field: String,
    kind: Kind,
    /// The accumulated expression.
    input: Expression,
    /// How many values are kept, for the kinds that keep several.
    n: Option<Expression>,
    /// Which shares `$percentile` asks for; one half for `$median`.
    shares: Vec<f64>,
    /// By what documents are ordered, for `$top` and its kin.
    sort: Option<SortPattern>,
}

quorate_protocol::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        Sum = "$sum",
        Avg = "$avg",
        Min = "$min",
        Max = "$max",
        First = "$first",
        Last = "$last",
        Push = "$push",
        AddToSet = "$addToSet",
        StdDevPop = "$stdDevPop",
        StdDevSamp = "$stdDevSamp",
        Count = "$count",
        MergeObjects = "$mergeObjects",
        FirstN = "$firstN",
        LastN = "$lastN",
        MinN = "$minN",
        MaxN = "$maxN",
        Top = "$top",
        TopN = "$topN",
        Bottom = "$bottom",
        BottomN = "$bottomN",
        Median = "$median",
        Percentile = "$percentile",
    }
}

impl Kind {
    fn keeps_several(self) -> bool {
        matches!(
            self,
            Self::FirstN | Self::LastN | Self::MinN | Self::MaxN | Self::TopN | Self::BottomN
        )
    }

    fn sorts(self) -> bool {
        matches!(self, Self::Top | Self::TopN | Self::Bottom | Self::BottomN)
    }
}

impl Accumulator {
    /// Reads `field: { $accumulator: argument }`.
    pub(super) fn parse(field: &str, spec: &Bson, context: &ParseContext) -> Result<Self> {
        refuse_if!(field.contains('.') => 40235, "The field name '{field}' cannot contain '.'");
        refuse_if!(field.starts_with('$') => 40236,
            "The field name '{field}' cannot be an operator name");
        let Bson::Document(spec) = spec else {
            refuse!(40234, "The field '{field}' must be an accumulator object");
        };
        let mut operators = spec.iter();
        let (Some((name, argument)), None) = (operators.next(), operators.next()) else {
            refuse!(40238, "The field '{field}' must specify one accumulator");
        };
        let Some(kind) = Kind::from_name(name) else {
            refuse!(15952, "unknown group operator '{name}'");
        };
        let field = field.to_owned();
        if kind == Kind::Count {
            return match argument {
                Bson::Document(empty) if empty.is_empty() => {
                    let input = Expression::parse(&Bson::Int32(1), context)?;
                    Ok(Self { field, kind, input, n: None, shares: Vec::new(), sort: None })
                }
                _ => Err(fail!(FAILED_TO_PARSE, "$count takes no arguments, i.e. $count:{{}}")),
            };
        }
        if matches!(kind, Kind::Median | Kind::Percentile) {
            return Self::quantile(field, name, kind, argument, context);
        }
        if kind.keeps_several() || kind.sorts() {
            return Self::several(field, name, kind, argument, context);
        }
        let argument = match argument {
            Bson::Array(arguments) => match arguments.as_slice() {
                [single] => single,
                _ => {
                    refuse!(40237, "The {name} accumulator is a unary operator");
                }
            },
            single => single,
        };
        let input = Expression::parse(argument, context)?;
        Ok(Self { field, kind, input, n: None, shares: Vec::new(), sort: None })
    }

    fn quantile(
        field: String,
        name: &str,
        kind: Kind,
        argument: &Bson,
        context: &ParseContext,
    ) -> Result<Self> {
        let Bson::Document(options) = argument else {
            refuse!(7429703, "specification must be an object; found {name}: {argument}");
        };
        let required = |key: &str| {
            options.get(key).ok_or_else(|| {
                fail!(MISSING_FIELD, "BSON field '{name}.{key}' is missing but a required field")
            })
        };
        check_method(name, required("method")?)?;
        let shares = match kind {
            Kind::Median => vec![0.5],
            _ => {
                let p = Expression::parse(required("p")?, context)?;
                let constant = p.constant().ok_or_else(|| {
                    fail!(7750300, "The $percentile 'p' field must be an array of constant values")
                })?;
                shares(constant)?
            }
        };
        let input = Expression::parse(required("input")?, context)?;
        Ok(Self { field, kind, input, n: None, shares, sort: None })
    }

    /// Reads the accumulators whose argument is an object with `n`, `input`, `sortBy` or `output`.
    fn several(
        field: String,
        name: &str,
        kind: Kind,
        argument: &Bson,
        context: &ParseContext,
    ) -> Result<Self> {
        let Bson::Document(options) = argument else {
            refuse!(
                5787900,
                "specification must be an object; found {name} :{}",
                argument.type_name()
            );
        };
        let value = if kind.sorts() { "output" } else { "input" };
        let known = |key: &str| {
            key == value
                || (key == "n" && kind.keeps_several())
                || (key == "sortBy" && kind.sorts())
        };
        if let Some(unknown) = options.keys().find(|key| !known(key)) {
            refuse!(5787901, "Unknown argument for '{name}' operator: {unknown}");
        }
        let required = |key: &str, code: i32| {
            options.get(key).ok_or_else(|| fail!((code), "Missing value for '{key}' of {name}"))
        };
        let input = Expression::parse(required(value, 5788004)?, context)?;
        let n = match kind.keeps_several() {
            true => Some(Expression::parse(required("n", 5787906)?, context)?),
            false => None,
        };
        let sort = match kind.sorts() {
            false => None,
            true => Some(parse_pattern(required("sortBy", 5788005)?.document(
                5788604,
                format_args!(
                    "expected 'sortBy' to already be an object in the arguments to {name}, found"
                ),
            )?)?),
        };
        Ok(Self { field, kind, input, n, shares: Vec::new(), sort })
    }

    /// Counts what the accumulator reads.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        needed.expression(&self.input);
        if let Some(sort) = &self.sort {
            sort.fields().for_each(|(path, _)| needed.path(path.head()));
        }
    }

    /// The state before any document. `n` may depend on the group's `_id`, and on nothing else.
    pub(super) fn start(&self, id: &Bson, frame: Frame<'_>) -> Result<State> {
        let mut root = Document::new();
        root.insert("_id", id.clone());
        let n = match &self.n {
            None => 1,
            Some(n) => count("$group", &n.operand(Frame::new(&root, frame.variables))?)?,
        };
        Ok(match self.kind {
            Kind::Sum | Kind::Avg => State::Sum(Sum::default()),
            Kind::StdDevPop | Kind::StdDevSamp => State::Deviation(Deviation::default()),
            Kind::Min | Kind::Max | Kind::First | Kind::Last => State::One(None),
            Kind::AddToSet => State::Set(HashSet::new(), Vec::new()),
            Kind::Count => State::Count(0),
            Kind::Median | Kind::Percentile => State::Numbers(Vec::new()),
            Kind::MergeObjects => State::Merged(Document::new()),
            Kind::Push | Kind::FirstN | Kind::LastN | Kind::MinN | Kind::MaxN => {
                State::Many(Vec::new(), n)
            }
            Kind::Top | Kind::TopN | Kind::Bottom | Kind::BottomN => State::Sorted(Vec::new(), n),
        })
    }

    /// Takes one document in.
    pub(super) fn add(
        &self,
        state: &mut State,
        frame: Frame<'_>,
        memory: &mut Memory,
    ) -> Result<()> {
        // `$first` needs nothing from the later documents, whatever they would compute to.
        if self.kind == Kind::First && matches!(state, State::One(Some(_))) {
            return Ok(());
        }
        let value = self.input.operand(frame)?;
        match state {
            State::Sum(sum) => value.get().into_iter().for_each(|value| sum.add(value)),
            State::Deviation(deviation) => {
                value.get().into_iter().for_each(|value| deviation.add(value));
            }
            State::Count(counted) => *counted += 1,
            State::Numbers(numbers) => {
                if let Some(number) = value.get().and_then(Number::from_value) {
                    // Sorting takes places of the same size, twice.
                    memory.hold(3 * size_of::<f64>())?;
                    push(numbers, number.to_f64());
                }
            }
            State::One(kept) => self.add_one(kept, value, memory)?,
            State::Set(seen, values) => {
                if let Some(value) = value.into_bson() {
                    let key = GroupKey::of(&value);
                    let size = key.size();
                    if seen.insert(key) {
                        memory.hold(size)?;
                        memory.hold_value(&value)?;
                        push(values, value);
                    }
                }
            }
            State::Merged(merged) => merge(merged, value, memory)?,
            State::Many(values, n) => self.add_many(values, *n, value, memory)?,
            State::Sorted(entries, n) => self.add_sorted(entries, *n, value, frame, memory)?,
        }
        Ok(())
    }

    fn add_one(
        &self,
        kept: &mut Option<Bson>,
        value: Operand<'_>,
        memory: &mut Memory,
    ) -> Result<()> {
        let better = match (self.kind, &kept) {
            (Kind::First, None) | (Kind::Last, _) => true,
            (Kind::Min | Kind::Max, _) if value.is_nullish() => false,
            (Kind::Min, Some(best)) => compare(value.or_null(), best).is_lt(),
            (Kind::Max, Some(best)) => compare(value.or_null(), best).is_gt(),
            (Kind::Min | Kind::Max, None) => true,
            _ => false,
        };
        if better {
            let value = value.into_bson().unwrap_or(Bson::Null);
            memory.release(kept.as_ref().map_or(0, approximate_value_size));
            memory.hold_value(&value)?;
            *kept = Some(value);
        }
        Ok(())
    }

    fn add_many(
        &self,
        values: &mut Vec<Bson>,
        n: usize,
        value: Operand<'_>,
        memory: &mut Memory,
    ) -> Result<()> {
        let value = match (self.kind, value) {
            (Kind::Push, value) if value.is_missing() => return Ok(()),
            (Kind::FirstN, _) if values.len() >= n => return Ok(()),
            (Kind::MinN | Kind::MaxN, value) if value.is_nullish() => return Ok(()),
            (_, value) => value.into_bson().unwrap_or(Bson::Null),
        };
        let worse = |last: &Bson| {
            let order = compare(&value, last);
            if self.kind == Kind::MinN { order.is_ge() } else { order.is_le() }
        };
        if matches!(self.kind, Kind::MinN | Kind::MaxN)
            && values.len() >= n
            && values.last().is_some_and(worse)
        {
            return Ok(());
        }
        memory.hold_value(&value)?;
        match self.kind {
            Kind::MinN | Kind::MaxN => {
                let place = values.partition_point(|kept| {
                    let order = compare(kept, &value);
                    if self.kind == Kind::MinN { order.is_le() } else { order.is_ge() }
                });
                memory.steps(moved(values.len() - place))?;
                make_place(values);
                values.insert(place, value);
                if values.len() > n
                    && let Some(last) = values.pop()
                {
                    memory.release(approximate_value_size(&last));
                }
            }
            Kind::LastN => {
                push(values, value);
                // Twice as many as wanted are kept, so that making room is rare.
                if values.len() >= n.saturating_mul(2) {
                    for dropped in values.drain(..values.len() - n) {
                        memory.release(approximate_value_size(&dropped));
                    }
                }
            }
            _ => push(values, value),
        }
        Ok(())
    }

    fn add_sorted(
        &self,
        entries: &mut Vec<(SortKey, Bson)>,
        n: usize,
        value: Operand<'_>,
        frame: Frame<'_>,
        memory: &mut Memory,
    ) -> Result<()> {
        let Some(sort) = &self.sort else { return Ok(()) };
        let key = sort.key(frame.root)?;
        let value = value.into_bson().unwrap_or(Bson::Null);
        let size = |key: &SortKey, value: &Bson| {
            let key = key.values().iter().map(approximate_value_size).sum::<usize>();
            size_of::<SortKey>() + key + approximate_value_size(value)
        };
        memory.hold(size(&key, &value))?;
        let place =
            entries.partition_point(|(kept, _)| sort.compare(kept, &key) != Ordering::Greater);
        memory.steps(moved(entries.len()))?;
        make_place(entries);
        entries.insert(place, (key, value));
        if entries.len() > n {
            let from_top = matches!(self.kind, Kind::Top | Kind::TopN);
            let surplus = if from_top { entries.len() - 1 } else { 0 };
            let (key, value) = entries.remove(surplus);
            memory.release(size(&key, &value));
        }
        Ok(())
    }

    /// The accumulated value. The error is the interrupt's, if the operation should end.
    pub(super) fn finish(&self, state: State, meter: &Meter) -> Result<Bson> {
        Ok(match (state, self.kind) {
            (State::Sum(sum), Kind::Avg) => sum.average(),
            (State::Sum(sum), _) => sum.total(),
            (State::Deviation(deviation), Kind::StdDevPop) => deviation.population(),
            (State::Deviation(deviation), _) => deviation.sample(),
            (State::Count(counted), _) => {
                i32::try_from(counted).map_or(Bson::Int64(counted), Bson::Int32)
            }
            (State::Numbers(numbers), kind) => {
                let numbers = sorted(numbers, f64::total_cmp, meter)?;
                let mut picked = percentiles_of_sorted(&numbers, &self.shares);
                match kind {
                    Kind::Median => picked.pop().unwrap_or(Bson::Null),
                    _ => Bson::Array(picked),
                }
            }
            (State::One(kept), _) => kept.unwrap_or(Bson::Null),
            (State::Many(values, n), Kind::LastN) => {
                let surplus = values.len().saturating_sub(n);
                Bson::Array(values.into_iter().skip(surplus).collect())
            }
            (State::Set(seen, values), _) => {
                meter.free(seen);
                Bson::Array(values)
            }
            (State::Many(values, _), _) => Bson::Array(values),
            (State::Merged(merged), _) => Bson::Document(merged),
            (State::Sorted(mut entries, _), Kind::Top | Kind::Bottom) => {
                entries.pop().map_or(Bson::Null, |(_, value)| value)
            }
            (State::Sorted(entries, _), _) => {
                Bson::Array(entries.into_iter().map(|(_, value)| value).collect())
            }
        })
    }
}

/// The steps that it takes to insert a value before so many other values.
fn moved(values: usize) -> u64 {
    (values / 16) as u64
}

fn merge(merged: &mut Document, value: Operand<'_>, memory: &mut Memory) -> Result<()> {
    let kind = value.type_name();
    match value.into_bson() {
        None | Some(Bson::Null | Bson::Undefined) => Ok(()),
        Some(Bson::Document(fields)) => {
            for (name, value) in fields {
                memory.hold(field_cost(&name, &value)?)?;
                let kept = name.clone();
                if let Some(old) = merged.insert(name, value) {
                    memory.release(field_cost(&kept, &old)?);
                }
            }
            Ok(())
        }
        Some(other) => Err(fail!(
            40400,
            "$mergeObjects requires object inputs, but input {other} is of type {kind}"
        )),
    }
}

/// The state of an accumulator for one group.
#[derive(Clone, Debug)]
pub(super) enum State {
    Sum(Sum),
    Deviation(Deviation),
    Count(i64),
    One(Option<Bson>),
    Numbers(Vec<f64>),
    Set(HashSet<GroupKey>, Vec<Bson>),
    Merged(Document),
    /// The values, and how many may be kept.
    Many(Vec<Bson>, usize),
    /// The sort keys and the values, in order, and how many values may be kept.
    Sorted(Vec<(SortKey, Bson)>, usize),
}
