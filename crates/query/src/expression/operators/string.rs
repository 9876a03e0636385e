//! Strings: joining, case, parts, lengths, trimming and replacing.
//!
//! Positions count bytes of UTF-8 (`…Bytes`) or code points (`…CP`), never grapheme clusters.
//! Searching and splitting are in `string_search`, patterns in `regex`.

use std::borrow::Cow;
use std::collections::BTreeSet;

use bson::Bson;

use super::{
    ByName, Evaluated, Field, Named, Positional, as_i64, at_least, exactly, named_of, optional,
    required, room,
};
use crate::error::Result;
use crate::expression::bounds::Budget;
use crate::expression::operand::{Operand, SMALL};
use crate::meter::{Meter, steps_to_copy};
use crate::typed::Typed;
use crate::value::Number;

pub(super) static OPERATORS: &[Positional] = &[
    at_least(0, "$concat", concat),
    exactly(1, "$toLower", |args, meter| {
        let text = text(&args[0])?;
        room("$toLower", text.len(), meter)?;
        Ok(Some(text.to_ascii_lowercase().into()))
    }),
    exactly(1, "$toUpper", |args, meter| {
        let text = text(&args[0])?;
        room("$toUpper", text.len(), meter)?;
        Ok(Some(text.to_ascii_uppercase().into()))
    }),
    exactly(3, "$substr", |args, meter| substr_bytes("$substrBytes", args, meter)),
    exactly(3, "$substrBytes", |args, meter| substr_bytes("$substrBytes", args, meter)),
    exactly(3, "$substrCP", substr_cp),
    exactly(1, "$strLenBytes", |args, _| {
        length("$strLenBytes", 34473, &args[0], |text| text.len())
    }),
    exactly(1, "$strLenCP", |args, _| {
        length("$strLenCP", 34471, &args[0], |text| text.chars().count())
    }),
    exactly(2, "$strcasecmp", |args, _| {
        let (left, right) = (text(&args[0])?, text(&args[1])?);
        let order = upper_bytes(&left).cmp(upper_bytes(&right));
        Ok(Some(Bson::Int32(order as i32)))
    }),
];

pub(super) static NAMED: &[Named] = &[
    trimmer("$trim", |args, meter| trim("$trim", args, (true, true), meter)),
    trimmer("$ltrim", |args, meter| trim("$ltrim", args, (true, false), meter)),
    trimmer("$rtrim", |args, meter| trim("$rtrim", args, (false, true), meter)),
    replacer("$replaceOne", |args, meter| replace("$replaceOne", args, 1, meter)),
    replacer("$replaceAll", |args, meter| replace("$replaceAll", args, usize::MAX, meter)),
];

const TRIMMER_FIELDS: &[Field] = &[required("input", 50695), optional("chars")];

const fn trimmer(name: &'static str, evaluate: ByName) -> Named {
    named_of(name, [50696, 50694], TRIMMER_FIELDS, evaluate)
}

const REPLACER_FIELDS: &[Field] =
    &[required("input", 51749), required("find", 51748), required("replacement", 51747)];

const fn replacer(name: &'static str, evaluate: ByName) -> Named {
    named_of(name, [51751, 51750], REPLACER_FIELDS, evaluate)
}

fn concat(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let mut joined = String::new();
    let mut charge = meter.charge();
    let mut budget = Budget::default();
    let bytes = args.iter().filter_map(Operand::as_str).map(str::len).sum();
    if bytes >= SMALL {
        charge.grow("$concat", bytes)?;
    }
    joined.reserve_exact(bytes);
    for arg in args {
        if arg.is_nullish() {
            return Ok(Some(Bson::Null));
        }
        let Some(part) = arg.as_str() else {
            return Err(arg.wrong_type(16702, "$concat only supports strings, not"));
        };
        budget.draw_bytes("$concat", part.len())?;
        if part.len() >= SMALL {
            meter.steps(steps_to_copy(part.len()))?;
        }
        joined.push_str(part);
    }
    Ok(Some(Bson::String(joined)))
}

/// The bytes of a text in upper case, as far as ASCII has one.
fn upper_bytes(text: &str) -> impl Iterator<Item = u8> {
    text.bytes().map(|byte| byte.to_ascii_uppercase())
}

/// A value as the older string operators take it: numbers and dates are written out, nothing is the
/// empty string.
fn text<'a>(arg: &'a Operand<'_>) -> Result<Cow<'a, str>> {
    Ok(match arg.get() {
        None | Some(Bson::Null | Bson::Undefined) => Cow::Borrowed(""),
        Some(Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text)) => text.into(),
        Some(Bson::DateTime(date)) => super::date_format::iso(date.timestamp_millis()).into(),
        Some(Bson::Timestamp(time)) => {
            format!("Timestamp({}, {})", time.time, time.increment).into()
        }
        Some(number) if super::is_number(number) => super::convert_text::number(number).into(),
        Some(_) => {
            refuse!(16007, "can't convert from BSON type {} to String", arg.type_name());
        }
    })
}

/// Whether a position lies between two characters.
fn is_boundary(text: &str, position: usize) -> bool {
    text.is_char_boundary(position.min(text.len()))
}

fn substr_bytes(name: &str, args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let text = text(&args[0])?;
    let number = |position: usize, code: i32, what: &str| {
        Number::from_value(args[position].or_null()).and_then(Number::to_i64_truncated).ok_or_else(
            || {
                fail!(
                    (code),
                    "{name}:  {what} must be a numeric type (is BSON type {})",
                    args[position].type_name()
                )
            },
        )
    };
    let start = number(1, 16034, "starting index")?;
    let length = number(2, 16035, "length")?;
    let Ok(start) = usize::try_from(start) else {
        refuse!(50752, "{name}:  starting index must be non-negative (got: {start})");
    };
    refuse_if!(!is_boundary(&text, start) => 28656,
        "{name}:  Invalid range, starting index is a UTF-8 continuation byte.");
    if start >= text.len() {
        return Ok(Some(Bson::String(String::new())));
    }
    // A negative length means the rest of the string.
    let end = usize::try_from(length).map_or(text.len(), |length| start.saturating_add(length));
    refuse_if!(!is_boundary(&text, end) => 28657,
        "{name}:  Invalid range, ending index is in the middle of a UTF-8 character.");
    let part = &text[start..end.min(text.len())];
    room(name, part.len(), meter)?;
    Ok(Some(Bson::String(part.to_owned())))
}

fn substr_cp(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let text = text(&args[0])?;
    let number = |position: usize, what: &str, codes: [i32; 3]| {
        let value = args[position].or_null();
        refuse_if!(!super::is_number(value) => codes[0],
            "$substrCP: {what} must be a numeric type (is BSON type {})",
            args[position].type_name());
        let Some(number) = super::as_i32(value) else {
            refuse!(
                codes[1],
                "$substrCP: {what} cannot be represented as a 32-bit integral value: {value}"
            );
        };
        usize::try_from(number)
            .map_err(|_| fail!(codes[2], "$substrCP: {what} must be a nonnegative integer."))
    };
    let start = number(1, "the starting index", [34450, 34451, 34455])?;
    let length = number(2, "length", [34452, 34453, 34454])?;
    let place = |text: &str, count: usize| {
        text.char_indices().nth(count).map_or(text.len(), |(place, _)| place)
    };
    let rest = &text[place(&text, start)..];
    let part = &rest[..place(rest, length)];
    room("$substrCP", part.len(), meter)?;
    Ok(Some(Bson::String(part.to_owned())))
}

fn length(name: &str, code: i32, arg: &Operand<'_>, count: fn(&str) -> usize) -> Evaluated {
    let text = arg.string(code, format_args!("{name} requires a string argument, found:"))?;
    Ok(Some(whole(count(text))))
}

/// A length or position; strings never grow past what an int can count.
pub(super) fn whole(count: usize) -> Bson {
    i32::try_from(count).map_or(Bson::Int64(count as i64), Bson::Int32)
}

/// The characters that `$trim` cuts by default: Unicode white space and the null character.
fn is_blank(character: char) -> bool {
    character == '\0'
        || matches!(character, '\u{9}'..='\u{d}' | ' ' | '\u{a0}' | '\u{1680}')
        || matches!(character, '\u{2000}'..='\u{200a}')
}

fn trim(
    name: &str,
    args: &[Option<Operand<'_>>],
    (left, right): (bool, bool),
    meter: &Meter,
) -> Evaluated {
    let input = args[0].as_ref().map_or(&Operand::MISSING, |input| input);
    if input.is_nullish() {
        return Ok(Some(Bson::Null));
    }
    let Some(Bson::String(text)) = input.get() else {
        refuse!(
            50699,
            "{name} requires its input to be a string, got {} (of type {}) instead.",
            input.shown(),
            input.type_name()
        );
    };
    let chars: Option<BTreeSet<char>> = match &args[1] {
        None => None,
        Some(chars) if chars.is_nullish() => return Ok(Some(Bson::Null)),
        Some(chars) => match chars.get() {
            Some(Bson::String(chars)) => Some(chars.chars().collect()),
            _ => {
                refuse!(
                    50700,
                    "{name} requires 'chars' to be a string, got {} (of type {}) instead.",
                    chars.shown(),
                    chars.type_name()
                );
            }
        },
    };
    let cut = |character: char| match &chars {
        Some(chars) => chars.contains(&character),
        None => is_blank(character),
    };
    let mut kept = text.as_str();
    if left {
        kept = kept.trim_start_matches(cut);
    }
    if right {
        kept = kept.trim_end_matches(cut);
    }
    room(name, kept.len(), meter)?;
    Ok(Some(Bson::String(kept.to_owned())))
}

fn replace(name: &str, args: &[Option<Operand<'_>>], most: usize, meter: &Meter) -> Evaluated {
    const FIELDS: [(&str, i32); 3] = [("input", 51746), ("find", 51745), ("replacement", 51744)];
    let mut parts: [Option<&str>; 3] = [None; 3];
    for ((part, arg), (field, code)) in parts.iter_mut().zip(args).zip(FIELDS) {
        let arg = arg.as_ref().map_or(&Operand::MISSING, |arg| arg);
        match arg.get() {
            Some(Bson::String(text)) => *part = Some(text),
            _ if arg.is_nullish() => {}
            _ => {
                refuse!(
                    (code),
                    "{name} requires that '{field}' be a string, found: {}",
                    arg.shown()
                );
            }
        }
    }
    let [Some(input), Some(find), Some(replacement)] = parts else {
        return Ok(Some(Bson::Null));
    };
    let found =
        if find.is_empty() { input.chars().count() + 1 } else { input.matches(find).count() };
    let mut budget = Budget::default();
    budget.draw_bytes(name, input.len())?;
    let found = found.min(most);
    budget.draw_bytes(name, found.saturating_mul(replacement.len()))?;
    let bytes = input.len() - found * find.len() + found * replacement.len();
    room(name, bytes, meter)?;
    let mut replaced = String::with_capacity(bytes);
    let mut rest = 0;
    for (start, found) in input.match_indices(find).take(most) {
        replaced.push_str(&input[rest..start]);
        replaced.push_str(replacement);
        rest = start + found.len();
    }
    replaced.push_str(&input[rest..]);
    Ok(Some(Bson::String(replaced)))
}

/// An index given to `$indexOf…`: a whole number that fits an int and is not negative.
pub(super) fn index(name: &str, which: &str, arg: &Operand<'_>) -> Result<usize> {
    let value = arg.or_null();
    let Some(number) = as_i64(value).filter(|number| i32::try_from(*number).is_ok()) else {
        refuse!(
            40096,
            "{name} requires an integral {which} index, found a value of type: {}, with value: {}",
            arg.type_name(),
            value
        );
    };
    usize::try_from(number)
        .map_err(|_| fail!(40097, "{name} requires a nonnegative {which} index, found: {number}"))
}
