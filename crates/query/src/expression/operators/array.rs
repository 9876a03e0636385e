//! Arrays: elements, slices, joins, ranges, sorting, and turning them into objects and back.

use std::cmp::Ordering;

use bson::{Bson, Document};

use super::string::{index, whole};
use super::{Evaluated, Positional, as_i32, at_least, between, exactly, is_number, part};
use crate::error::{QueryError, Result};
use crate::expression::MAX_INTERMEDIATE_BYTES;
use crate::expression::bounds::{Budget, ELEMENT_OVERHEAD, cost, field_cost, too_large};
use crate::expression::operand::{Operand, compare_options};
use crate::expression::path::FieldPath;
use crate::meter::{Charge, Kept, Meter, steps_to_copy};
use crate::sorting::sorted;
use crate::typed::Typed;
use crate::value::compare;

pub(super) static OPERATORS: &[Positional] = &[
    exactly(2, "$arrayElemAt", array_elem_at).null_if_any(),
    exactly(1, "$first", |args, meter| end("$first", &args[0], <[Bson]>::first, meter))
        .null_if_any(),
    exactly(1, "$last", |args, meter| end("$last", &args[0], <[Bson]>::last, meter)).null_if_any(),
    at_least(0, "$concatArrays", concat_arrays),
    exactly(2, "$in", contains),
    between(2, 4, "$indexOfArray", index_of_array),
    exactly(1, "$isArray", |args, _| Ok(Some(Bson::Boolean(args[0].as_array().is_some())))),
    between(2, 3, "$range", range),
    exactly(1, "$reverseArray", reverse_array).null_if_any(),
    exactly(1, "$size", |args, _| {
        let wanted = "The argument to $size must be an array, but was of type:";
        Ok(Some(whole(args[0].array(17124, wanted)?.len())))
    }),
    between(2, 3, "$slice", slice).null_if_any(),
    exactly(1, "$arrayToObject", array_to_object).null_if_any(),
    exactly(1, "$objectToArray", object_to_array).null_if_any(),
];

/// Counts from the end when negative; `None` is beyond either end.
fn position(length: usize, index: i32) -> Option<usize> {
    if index < 0 {
        length.checked_sub(index.unsigned_abs() as usize)
    } else {
        Some(index as usize).filter(|index| *index < length)
    }
}

fn array_elem_at(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let elements =
        args[0].array(28689, "$arrayElemAt's first argument must be an array, but is")?;
    let index = args[1].or_null();
    if !is_number(index) {
        return Err(args[1]
            .wrong_type(28690, "$arrayElemAt's second argument must be a numeric value, but is"));
    }
    let Some(index) = as_i32(index) else {
        refuse!(
            28691,
            "$arrayElemAt's second argument must be representable as a 32-bit integer: {index}"
        );
    };
    let found = position(elements.len(), index).map(|position| &elements[position]);
    found.map(|element| part("$arrayElemAt", element, meter)).transpose()
}

fn end(
    name: &str,
    arg: &Operand<'_>,
    pick: fn(&[Bson]) -> Option<&Bson>,
    meter: &Meter,
) -> Evaluated {
    let elements = arg.array(28689, format_args!("{name}'s argument must be an array, but is"))?;
    pick(elements).map(|element| part(name, element, meter)).transpose()
}

/// Copies elements, asking now and then whether to go on: those of a large array take long.
/// The copies are charged one by one: those of many operations at once do not fit into the process.
pub(crate) fn copy<'a>(
    operator: &str,
    elements: impl IntoIterator<Item = &'a Bson, IntoIter: ExactSizeIterator>,
    copied: &mut Vec<Bson>,
    charge: &mut Charge,
) -> Result<()> {
    let elements = elements.into_iter();
    make_room(operator, elements.len(), copied, charge)?;
    for element in elements {
        let bytes = cost(element)?;
        charge.grow(operator, bytes.saturating_sub(ELEMENT_OVERHEAD))?;
        charge.meter().steps(1 + steps_to_copy(bytes))?;
        copied.push(element.clone());
    }
    Ok(())
}

/// Room for more elements, charged before it is taken, and no more than is charged.
fn make_room(
    operator: &str,
    more: usize,
    elements: &mut Vec<Bson>,
    charge: &mut Charge,
) -> Result<()> {
    let free = elements.capacity() - elements.len();
    if more > free {
        charge.grow(operator, (more - free) * ELEMENT_OVERHEAD)?;
        elements.reserve_exact(more);
    }
    Ok(())
}

/// A copy of elements as the result of an operator, which is charged as a whole.
fn copied<'a>(
    operator: &str,
    elements: impl IntoIterator<Item = &'a Bson, IntoIter: ExactSizeIterator>,
    meter: &Meter,
) -> Result<Vec<Bson>> {
    let mut copied = Kept::new(Vec::new(), meter);
    copy(operator, elements, &mut copied, &mut meter.charge())?;
    Ok(copied.into_inner())
}

fn concat_arrays(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let mut joined = Kept::new(Vec::new(), meter);
    let mut charge = meter.charge();
    let mut budget = Budget::default();
    let count = args.iter().filter_map(Operand::as_array).map(Vec::len).sum();
    make_room("$concatArrays", count, &mut joined, &mut charge)?;
    for arg in args {
        if arg.is_nullish() {
            return Ok(Some(Bson::Null));
        }
        let elements = arg.array(28664, "$concatArrays only supports arrays, not")?;
        budget.draw("$concatArrays", arg.or_null())?;
        copy("$concatArrays", elements, &mut joined, &mut charge)?;
    }
    Ok(Some(Bson::Array(joined.into_inner())))
}

fn contains(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let elements = args[1].array(40081, "$in requires an array as a second argument, found:")?;
    let found = elements
        .iter()
        .any(|element| compare_options(Some(element), args[0].get()) == Ordering::Equal);
    Ok(Some(Bson::Boolean(found)))
}

fn index_of_array(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    if args[0].is_nullish() {
        return Ok(Some(Bson::Null));
    }
    let elements =
        args[0].array(40090, "$indexOfArray requires an array as a first argument, found:")?;
    let name = "$indexOfArray";
    let start = args.get(2).map_or(Ok(0), |start| index(name, "starting", start))?;
    let end = args.get(3).map_or(Ok(elements.len()), |end| index(name, "ending", end))?;
    let end = end.min(elements.len());
    let found = elements
        .get(start..end)
        .unwrap_or_default()
        .iter()
        .position(|element| compare_options(Some(element), args[1].get()) == Ordering::Equal);
    Ok(Some(found.map_or(Bson::Int32(-1), |position| whole(start + position))))
}

fn range(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    /// The bytes of one number of the result.
    const NUMBER_SIZE: u64 = size_of::<Bson>() as u64;
    const PARTS: [(&str, &str, i32, i32); 3] = [
        ("starting value", "a starting value", 34443, 34444),
        ("ending value", "an ending value", 34445, 34446),
        ("step value", "a step value", 34447, 34448),
    ];
    let mut numbers = [0_i64, 0, 1];
    for ((number, arg), (plain, with_article, not_numeric, not_int)) in
        numbers.iter_mut().zip(args).zip(PARTS)
    {
        if !is_number(arg.or_null()) {
            return Err(arg.wrong_type(
                not_numeric,
                format_args!("$range requires a numeric {plain}, found value of type:"),
            ));
        }
        *number = i64::from(as_i32(arg.or_null()).ok_or_else(|| {
            fail!(
                (not_int),
                "$range requires {with_article} that can be represented as a 32-bit integer, \
                     found value: {}",
                arg.shown()
            )
        })?);
    }
    let [start, end, step] = numbers;
    refuse_if!(step == 0 => 34449, "$range requires a non-zero step value");
    let distance = if step > 0 { end - start } else { start - end };
    let count = u64::try_from(distance).unwrap_or(0).div_ceil(step.unsigned_abs());
    let bytes = count * NUMBER_SIZE;
    if bytes > MAX_INTERMEDIATE_BYTES as u64 {
        return Err(too_large("$range", usize::try_from(bytes).unwrap_or(usize::MAX)));
    }
    // Charged before it is made: the arrays of many clients at once may not fit into the process.
    let mut charge = meter.charge();
    charge.grow("$range", bytes as usize)?;
    let mut numbers = Vec::with_capacity(count as usize);
    for nth in 0..count as i64 {
        meter.step()?;
        numbers.push(Bson::Int32((start + nth * step) as i32));
    }
    Ok(Some(Bson::Array(numbers)))
}

fn reverse_array(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let wanted = "The argument to $reverseArray must be an array, but was of type:";
    let elements = args[0].array(34435, wanted)?;
    Ok(Some(Bson::Array(copied("$reverseArray", elements.iter().rev(), meter)?)))
}

fn slice_number(arg: &Operand<'_>, ordinal: &str, codes: [i32; 2]) -> Result<i32> {
    if !is_number(arg.or_null()) {
        return Err(arg.wrong_type(
            codes[0],
            format_args!("{ordinal} argument to $slice must be a numeric value, but is of type:"),
        ));
    }
    as_i32(arg.or_null()).ok_or_else(|| {
        fail!(
            codes[1],
            "{ordinal} argument to $slice can't be represented as a 32-bit integer: {}",
            arg.shown()
        )
    })
}

fn slice(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let elements =
        args[0].array(28724, "First argument to $slice must be an array, but is of type:")?;
    let length = elements.len();
    let second = slice_number(&args[1], "Second", [28725, 28726])?;
    let from_end = |count: i32| length.saturating_sub(count.unsigned_abs() as usize);
    let (start, count) = match args.get(2) {
        None if second < 0 => (from_end(second), length),
        None => (0, second as usize),
        Some(third) => {
            let count = slice_number(third, "Third", [28727, 28728])?;
            refuse_if!(count <= 0 => 28729, "Third argument to $slice must be positive: {count}");
            let start = if second < 0 { from_end(second) } else { second as usize };
            (start, count as usize)
        }
    };
    let start = start.min(length);
    let end = start.saturating_add(count).min(length);
    Ok(Some(Bson::Array(copied("$slice", &elements[start..end], meter)?)))
}

fn array_to_object(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let elements = args[0].array(40386, "$arrayToObject requires an array input, found:")?;
    let mut document = Document::new();
    let mut charge = meter.charge();
    let as_pairs = matches!(elements.first(), Some(Bson::Array(_)));
    for element in elements {
        let (key, value) = match element {
            Bson::Array(pair) if as_pairs => pair_of_array(pair)?,
            Bson::Document(pair) if !as_pairs => pair_of_document(pair)?,
            other => return Err(mixed_pairs(as_pairs, elements.first(), other)),
        };
        refuse_if!(key.contains('\0') => 4940400, "Key field cannot contain an embedded null byte");
        let bytes = field_cost(key, value)?;
        charge.grow("$arrayToObject", bytes)?;
        meter.steps(1 + steps_to_copy(bytes))?;
        document.insert(key, value.clone());
    }
    Ok(Some(Bson::Document(document)))
}

fn mixed_pairs(as_pairs: bool, first: Option<&Bson>, found: &Bson) -> QueryError {
    let (code, first) = match first {
        _ if as_pairs => (40396, "Array"),
        Some(Bson::Document(_)) => (40391, "Object"),
        _ => {
            let unknown = "Unrecognised input type format for $arrayToObject:";
            return found.wrong_type(40398, unknown);
        }
    };
    found.wrong_type(
        code,
        format_args!(
            "$arrayToObject requires a consistent input format. Elements must all be arrays or \
             all be objects. {first} was detected, now found:"
        ),
    )
}

fn pair_of_array(pair: &[Bson]) -> Result<(&str, &Bson)> {
    match pair {
        [Bson::String(key), value] => Ok((key, value)),
        [key, _] => Err(key.wrong_type(
            40395,
            "$arrayToObject requires an array of key-value pairs, where the key must be of \
                 type string. Found key type:",
        )),
        _ => Err(fail!(
            40397,
            "$arrayToObject requires an array of size 2 arrays,found array of size: {}",
            pair.len()
        )),
    }
}

fn pair_of_document(pair: &Document) -> Result<(&str, &Bson)> {
    refuse_if!(pair.len() != 2 => 40392,
        "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of \
         keys:{}", pair.len());
    let (Some(key), Some(value)) = (pair.get("k"), pair.get("v")) else {
        refuse!(
            40393,
            "$arrayToObject requires an object with keys 'k' and 'v'. Missing either or both \
                 keys from: {pair}"
        );
    };
    match key {
        Bson::String(key) => Ok((key, value)),
        other => Err(other.wrong_type(
            40394,
            "$arrayToObject requires an object with keys 'k' and 'v', where the value of 'k' \
                 must be of type string. Found type:",
        )),
    }
}

fn object_to_array(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let document = args[0].document(40390, "$objectToArray requires a document input, found:")?;
    let mut pairs = Kept::new(Vec::new(), meter);
    let mut charge = meter.charge();
    make_room("$objectToArray", document.len(), &mut pairs, &mut charge)?;
    for (key, value) in document {
        // A pair is a document of two fields.
        let bytes = field_cost("k", value)? + field_cost(key, &Bson::Null)?;
        charge.grow("$objectToArray", bytes + key.len())?;
        meter.steps(1 + steps_to_copy(bytes))?;
        let mut pair = Document::new();
        pair.insert("k", key.as_str());
        pair.insert("v", value.clone());
        pairs.push(Bson::Document(pair));
    }
    Ok(Some(Bson::Array(pairs.into_inner())))
}

/// How `$sortArray` orders its elements.
#[derive(Clone, Debug)]
pub(crate) enum SortBy {
    /// By the element itself.
    Whole {
        /// Largest first.
        descending: bool,
    },
    /// By fields of the elements, the first that differs; true is descending.
    Fields(Vec<(FieldPath, bool)>),
}

impl SortBy {
    /// Reads `1`, `-1` or `{ field: 1, … }`.
    pub(crate) fn parse(spec: &Bson) -> Result<Self> {
        let direction = |value: &Bson| match as_i32(value) {
            Some(1) => Ok(false),
            Some(-1) => Ok(true),
            _ => Err(fail!(
                15975,
                "$sort key ordering must be 1 (for ascending) or -1 (for descending)"
            )),
        };
        match spec {
            Bson::Document(fields) if fields.is_empty() => {
                Err(fail!(15976, "$sort stage must have at least one sort key"))
            }
            Bson::Document(fields) => fields
                .iter()
                .map(|(path, order)| Ok((FieldPath::parse(path)?, direction(order)?)))
                .collect::<Result<_, _>>()
                .map(Self::Fields),
            number if is_number(number) => {
                direction(number).map(|descending| Self::Whole { descending }).map_err(|_| {
                    fail!(
                        2942505,
                        "$sortArray requires 'sortBy' to be 1, -1 or an object with field names"
                    )
                })
            }
            _ => Err(spec.wrong_type(
                2942507,
                "The $sortArray sort key specification must be an object or 1 or -1, but was:",
            )),
        }
    }

    /// The order of two values.
    pub(crate) fn compare(&self, left: &Bson, right: &Bson) -> Ordering {
        let directed = |order: Ordering, descending| {
            if descending { order.reverse() } else { order }
        };
        match self {
            Self::Whole { descending } => directed(compare(left, right), *descending),
            Self::Fields(fields) => fields
                .iter()
                .map(|(path, descending)| {
                    let order = path.follow(left).compare(&path.follow(right));
                    directed(order, *descending)
                })
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal),
        }
    }
}

/// `$sortArray`; stable, as the server's is.
pub(crate) fn sort_array(input: &Operand<'_>, by: &SortBy, meter: &Meter) -> Evaluated {
    if input.is_nullish() {
        return Ok(Some(Bson::Null));
    }
    let elements = input
        .array(2942504, "The input argument to $sortArray must be an array, but was of type:")?;
    let elements = copied("$sortArray", elements, meter)?;
    let sorted = sorted(elements, |left, right| by.compare(left, right), meter)?;
    Ok(Some(Bson::Array(sorted)))
}
