//! Sums, averages, deviations and extremes: over the arguments of an expression here, over the
//! documents of a group in [`crate::pipeline`], with the same state.

use std::cmp::Ordering;

use bson::Bson;

use super::{
    ByName, Evaluated, Field, Named, Positional, as_i64, at_least, copy, named_of, part, required,
};
use crate::error::Result;
use crate::expression::operand::Operand;
use crate::meter::{Kept, Meter};
use crate::typed::Typed;
use crate::value::{Decimal, Number, compare};

pub(super) static OPERATORS: &[Positional] = &[
    at_least(0, "$sum", |args, _| Ok(Some(sum(args).total()))),
    at_least(0, "$avg", |args, _| Ok(Some(sum(args).average()))),
    at_least(0, "$min", |args, meter| extreme("$min", args, Ordering::Less, meter)),
    at_least(0, "$max", |args, meter| extreme("$max", args, Ordering::Greater, meter)),
    at_least(0, "$stdDevPop", |args, _| Ok(Some(deviation(args).population()))),
    at_least(0, "$stdDevSamp", |args, _| Ok(Some(deviation(args).sample()))),
];

pub(super) static NAMED: &[Named] = &[
    picker("$firstN", |args, meter| pick("$firstN", args, Pick::First, meter)),
    picker("$lastN", |args, meter| pick("$lastN", args, Pick::Last, meter)),
    picker("$minN", |args, meter| pick("$minN", args, Pick::Min, meter)),
    picker("$maxN", |args, meter| pick("$maxN", args, Pick::Max, meter)),
    named_of(
        "$median",
        [7436100, 40415],
        &[required("input", 40414), required("method", 40414)],
        median,
    ),
    named_of(
        "$percentile",
        [7429703, 40415],
        &[required("input", 40414), required("p", 40414), required("method", 40414)],
        percentile,
    ),
];

const PERCENTILE_CODE: i32 = 7750300;

/// The shares that `$percentile` asks for: a list of numbers between 0 and 1.
pub(crate) fn shares(p: &Bson) -> Result<Vec<f64>> {
    let wrong = || {
        fail!(
            (PERCENTILE_CODE),
            "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: \
                 {p}"
        )
    };
    let Bson::Array(shares) = p else { return Err(wrong()) };
    if shares.is_empty() {
        return Err(wrong());
    }
    shares
        .iter()
        .map(|share| {
            let share = Number::from_value(share).ok_or_else(wrong)?.to_f64();
            if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(wrong()) }
        })
        .collect()
}

/// Refuses any `method` but the one there is. Ours is exact, which is a good approximation.
pub(crate) fn check_method(name: &str, method: &Bson) -> Result<()> {
    match method {
        Bson::String(method) if method == "approximate" => Ok(()),
        _ => Err(fail!(BAD_VALUE, "Currently only 'approximate' can be used as {name} 'method'.")),
    }
}

/// For each share, the smallest number that at least that share of the numbers does not exceed;
/// null if there are no numbers.
fn percentiles(mut numbers: Vec<f64>, shares: &[f64]) -> Vec<Bson> {
    numbers.sort_unstable_by(f64::total_cmp);
    percentiles_of_sorted(&numbers, shares)
}

/// The same of numbers that are in order.
pub(crate) fn percentiles_of_sorted(numbers: &[f64], shares: &[f64]) -> Vec<Bson> {
    let pick = |share: &f64| {
        let rank = (share * numbers.len() as f64).ceil() as usize;
        numbers.get(rank.saturating_sub(1)).map_or(Bson::Null, |number| Bson::Double(*number))
    };
    shares.iter().map(pick).collect()
}

/// The numbers in a value or in its elements.
fn numbers(value: &Bson) -> Vec<f64> {
    let elements = match value {
        Bson::Array(elements) => elements.as_slice(),
        single => std::slice::from_ref(single),
    };
    elements.iter().filter_map(Number::from_value).map(Number::to_f64).collect()
}

fn median(args: &[Option<Operand<'_>>], _: &Meter) -> Evaluated {
    let [Some(input), Some(method)] = args else { return Ok(None) };
    check_method("$median", method.or_null())?;
    Ok(percentiles(numbers(input.or_null()), &[0.5]).pop())
}

fn percentile(args: &[Option<Operand<'_>>], _: &Meter) -> Evaluated {
    let [Some(input), Some(p), Some(method)] = args else { return Ok(None) };
    check_method("$percentile", method.or_null())?;
    let shares = shares(p.or_null())?;
    Ok(Some(Bson::Array(percentiles(numbers(input.or_null()), &shares))))
}

const PICKER_FIELDS: &[Field] = &[required("n", 5787906), required("input", 5787907)];

const fn picker(name: &'static str, evaluate: ByName) -> Named {
    named_of(name, [5787801, 5787901], PICKER_FIELDS, evaluate)
}

/// A single array stands for its elements; several arguments for themselves.
fn each<'a>(args: &'a [Operand<'_>], mut visit: impl FnMut(&'a Bson)) {
    match args {
        [single] => match single.as_array() {
            Some(elements) => elements.iter().for_each(visit),
            None => single.get().into_iter().for_each(visit),
        },
        several => several.iter().filter_map(Operand::get).for_each(&mut visit),
    }
}

fn sum(args: &[Operand<'_>]) -> Sum {
    let mut sum = Sum::default();
    each(args, |value| sum.add(value));
    sum
}

fn deviation(args: &[Operand<'_>]) -> Deviation {
    let mut deviation = Deviation::default();
    each(args, |value| deviation.add(value));
    deviation
}

fn extreme(name: &str, args: &[Operand<'_>], wanted: Ordering, meter: &Meter) -> Evaluated {
    let mut best: Option<&Bson> = None;
    each(args, |value| {
        if !matches!(value, Bson::Null | Bson::Undefined)
            && best.is_none_or(|best| compare(value, best) == wanted)
        {
            best = Some(value);
        }
    });
    part(name, best.unwrap_or(&Bson::Null), meter).map(Some)
}

/// Which elements `$firstN`, `$lastN`, `$minN` and `$maxN` keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    First,
    Last,
    Min,
    Max,
}

/// The `n` of the operators that keep several values.
pub(crate) fn count(name: &str, n: &Operand<'_>) -> Result<usize> {
    let Some(number) = as_i64(n.or_null()) else {
        refuse!(
            5787902,
            "Value for 'n' must be of integral type, but found {} for {name}",
            n.shown()
        );
    };
    match usize::try_from(number) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(fail!(5787908, "'n' must be greater than 0, found {number} for {name}")),
    }
}

fn pick(name: &str, args: &[Option<Operand<'_>>], pick: Pick, meter: &Meter) -> Evaluated {
    let [Some(n), Some(input)] = args else { return Ok(None) };
    let n = count(name, n)?;
    let Some(elements) = input.as_array() else {
        refuse!(5788200, "Input must be an array, but found {} for {name}", input.type_name());
    };
    let mut charge = meter.charge();
    let mut kept = Kept::new(Vec::new(), meter);
    match pick {
        Pick::First => copy(name, &elements[..n.min(elements.len())], &mut kept, &mut charge)?,
        Pick::Last => {
            copy(name, &elements[elements.len().saturating_sub(n)..], &mut kept, &mut charge)?;
        }
        Pick::Min | Pick::Max => {
            charge.grow(name, elements.len() * size_of::<&Bson>())?;
            let mut found: Vec<&Bson> = elements
                .iter()
                .filter(|value| !matches!(value, Bson::Null | Bson::Undefined))
                .collect();
            found.sort_by(|left, right| {
                let order = compare(*left, *right);
                if pick == Pick::Max { order.reverse() } else { order }
            });
            found.truncate(n);
            copy(name, found, &mut kept, &mut charge)?;
        }
    }
    Ok(Some(Bson::Array(kept.into_inner())))
}

/// A running sum. Integers are summed exactly, doubles with their rounding errors carried along, so
/// that the result does not depend on the order of the documents more than it must.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    integers: i128,
    doubles: f64,
    /// The part of `doubles` that rounding lost.
    lost: f64,
    decimals: Option<Decimal>,
    saw_long: bool,
    saw_double: bool,
    count: u64,
}

impl Sum {
    /// Adds a value if it is a number.
    pub(crate) fn add(&mut self, value: &Bson) {
        let Some(number) = Number::from_value(value) else { return };
        self.count += 1;
        match number {
            Number::Int32(number) => self.integers += i128::from(number),
            Number::Int64(number) => {
                self.saw_long = true;
                self.integers += i128::from(number);
            }
            Number::Double(number) => {
                self.saw_double = true;
                let sum = self.doubles + number;
                self.lost += if self.doubles.abs() >= number.abs() {
                    (self.doubles - sum) + number
                } else {
                    (number - sum) + self.doubles
                };
                self.doubles = sum;
            }
            Number::Decimal(number) => {
                self.decimals = Some(self.decimals.unwrap_or(Decimal::ZERO).plus(number));
            }
        }
    }

    fn as_double(&self) -> f64 {
        let whole = self.integers as f64;
        // Infinities make the lost part NaN; the plain sum is then the right answer.
        if self.doubles.is_finite() { whole + (self.doubles + self.lost) } else { self.doubles }
    }

    fn as_decimal(&self, decimals: Decimal) -> Decimal {
        let whole = match i64::try_from(self.integers) {
            Ok(whole) => Decimal::from_i64(whole),
            Err(_) => Decimal::from_f64(self.integers as f64),
        };
        let sum = decimals.plus(whole);
        if self.saw_double { sum.plus(Decimal::from_f64(self.doubles + self.lost)) } else { sum }
    }

    /// The sum, in the widest type seen; integers that outgrow theirs widen.
    pub(crate) fn total(&self) -> Bson {
        if let Some(decimals) = self.decimals {
            return Bson::Decimal128(self.as_decimal(decimals).encode());
        }
        if self.saw_double {
            return Bson::Double(self.as_double());
        }
        match (i32::try_from(self.integers), i64::try_from(self.integers)) {
            (Ok(small), _) if !self.saw_long => Bson::Int32(small),
            (_, Ok(large)) => Bson::Int64(large),
            _ => Bson::Double(self.integers as f64),
        }
    }

    /// The mean: a double, or a decimal if one was seen; null if no number was.
    pub(crate) fn average(&self) -> Bson {
        if self.count == 0 {
            return Bson::Null;
        }
        match self.decimals {
            Some(decimals) => {
                let count = Decimal::from_i64(i64::try_from(self.count).unwrap_or(i64::MAX));
                Bson::Decimal128(self.as_decimal(decimals).divide(count).encode())
            }
            None => Bson::Double(self.as_double() / self.count as f64),
        }
    }
}

/// A running standard deviation, by Welford's method.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deviation {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Deviation {
    /// Adds a value if it is a number.
    pub(crate) fn add(&mut self, value: &Bson) {
        let Some(number) = Number::from_value(value) else { return };
        let number = number.to_f64();
        self.count += 1;
        let delta = number - self.mean;
        self.mean += delta / self.count as f64;
        self.squares += delta * (number - self.mean);
    }

    /// The deviation of these values; null if there are none.
    pub(crate) fn population(&self) -> Bson {
        match self.count {
            0 => Bson::Null,
            count => Bson::Double((self.squares / count as f64).sqrt()),
        }
    }

    /// The deviation that these values suggest for all; null if there are fewer than two.
    pub(crate) fn sample(&self) -> Bson {
        match self.count {
            0 | 1 => Bson::Null,
            count => Bson::Double((self.squares / (count - 1) as f64).sqrt()),
        }
    }
}
