//! Finding strings in strings, and splitting them.

use bson::Bson;

use super::string::{index, whole};
use super::{Evaluated, Positional, between, exactly};
use crate::error::Result;
use crate::expression::bounds::Budget;
use crate::expression::operand::Operand;
use crate::meter::{Kept, Meter, push, steps_to_copy};
use crate::typed::Typed;

pub(super) static OPERATORS: &[Positional] = &[
    between(2, 4, "$indexOfBytes", index_of_bytes),
    between(2, 4, "$indexOfCP", index_of_cp),
    exactly(2, "$split", split).null_if_any(),
];

const NOT_FOUND: Bson = Bson::Int32(-1);

/// Where to search: haystack, needle, start and end, the last two as given.
type Search<'a> = (&'a str, &'a str, usize, Option<usize>);

fn search<'a>(name: &str, codes: [i32; 2], args: &'a [Operand<'_>]) -> Result<Option<Search<'a>>> {
    if args[0].is_nullish() {
        return Ok(None);
    }
    let text = |position: usize, ordinal: &str| {
        args[position].string(
            codes[position],
            format_args!("{name} requires a string as the {ordinal} argument, found:"),
        )
    };
    let haystack = text(0, "first")?;
    let needle = text(1, "second")?;
    let start = args.get(2).map_or(Ok(0), |start| index(name, "starting", start))?;
    let end = args.get(3).map(|end| index(name, "ending", end)).transpose()?;
    Ok(Some((haystack, needle, start, end)))
}

fn index_of_bytes(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let Some((haystack, needle, start, end)) = search("$indexOfBytes", [40091, 40092], args)?
    else {
        return Ok(Some(Bson::Null));
    };
    let end = end.unwrap_or(haystack.len()).min(haystack.len());
    if start > end {
        return Ok(Some(NOT_FOUND));
    }
    if needle.is_empty() {
        return Ok(Some(whole(start)));
    }
    // Text is only ever found between two characters, so the window may shrink to whole ones.
    let from = (start..=end).find(|byte| haystack.is_char_boundary(*byte)).unwrap_or(end);
    let to = (from..=end).rev().find(|byte| haystack.is_char_boundary(*byte)).unwrap_or(from);
    let found = haystack.get(from..to).and_then(|window| window.find(needle));
    Ok(Some(found.map_or(NOT_FOUND, |position| whole(from + position))))
}

fn index_of_cp(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let Some((haystack, needle, start, end)) = search("$indexOfCP", [40093, 40094], args)? else {
        return Ok(Some(Bson::Null));
    };
    let byte_of = |position: usize| haystack.char_indices().nth(position).map(|(byte, _)| byte);
    let length = haystack.chars().count();
    let end = end.unwrap_or(length).min(length);
    if start > end {
        return Ok(Some(NOT_FOUND));
    }
    let from = byte_of(start).unwrap_or(haystack.len());
    let to = byte_of(end).unwrap_or(haystack.len());
    let found = haystack[from..to].find(needle);
    Ok(Some(
        found.map_or(NOT_FOUND, |byte| whole(start + haystack[from..from + byte].chars().count())),
    ))
}

fn split(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let text = |position: usize, code: i32, ordinal: &str| {
        args[position].string(
            code,
            format_args!(
                "$split requires an expression that evaluates to a string as a {ordinal} argument, \
                 found:"
            ),
        )
    };
    let input = text(0, 40085, "first")?;
    let separator = text(1, 40086, "second")?;
    refuse_if!(separator.is_empty() => 40087, "$split requires a non-empty separator");
    // A part takes much more than a letter of the text: the parts are counted as they are made.
    let mut budget = Budget::default();
    let mut parts = Kept::new(Vec::new(), meter);
    let mut charge = meter.charge();
    for part in input.split(separator) {
        let bytes = size_of::<Bson>() + part.len();
        budget.draw_bytes("$split", bytes)?;
        charge.grow("$split", bytes)?;
        meter.steps(1 + steps_to_copy(bytes))?;
        push(&mut parts, Bson::from(part));
    }
    Ok(Some(Bson::Array(parts.into_inner())))
}
