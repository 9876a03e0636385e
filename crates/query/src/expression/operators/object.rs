//! Objects: merging them, and reading and writing fields whose names are not paths; sizes in BSON.

use bson::{Bson, Document};

use super::string::whole;
use super::{Evaluated, Named, Positional, at_least, exactly, named_of, part, required, room};
use crate::expression::bounds::{Budget, cost, field_cost};
use crate::expression::operand::Operand;
use crate::meter::{Meter, steps_to_copy};
use crate::typed::Typed;
use crate::value::measure;

pub(super) static OPERATORS: &[Positional] = &[
    at_least(0, "$mergeObjects", |args, meter| {
        let inputs: &[_] = match args {
            [single] => match single.as_array() {
                Some(elements) => {
                    return merge_objects(elements.iter().map(Some), meter);
                }
                None => args,
            },
            _ => args,
        };
        merge_objects(inputs.iter().map(Operand::get), meter)
    }),
    exactly(1, "$bsonSize", bson_size).null_if_any(),
    exactly(1, "$binarySize", binary_size).null_if_any(),
];

pub(super) static NAMED: &[Named] = &[SET_FIELD];

/// `$getField`, whose arguments the parser puts in order: name, document.
pub(in crate::expression) static GET_FIELD: Positional = exactly(2, "$getField", get_field);

/// `$setField`, and `$unsetField` as a case of it.
pub(in crate::expression) const SET_FIELD: Named = named_of(
    "$setField",
    [4161100, 4161101],
    &[required("field", 4161102), required("input", 4161109), required("value", 4161103)],
    set_field,
);

fn merge_objects<'a>(inputs: impl Iterator<Item = Option<&'a Bson>>, meter: &Meter) -> Evaluated {
    let mut merged = Document::new();
    let mut charge = meter.charge();
    let mut budget = Budget::default();
    for input in inputs {
        match input {
            None | Some(Bson::Null | Bson::Undefined) => {}
            Some(value @ Bson::Document(fields)) => {
                budget.draw("$mergeObjects", value)?;
                for (name, value) in fields {
                    let bytes = field_cost(name, value)?;
                    charge.grow("$mergeObjects", bytes)?;
                    meter.steps(1 + steps_to_copy(bytes))?;
                    merged.insert(name.as_str(), value.clone());
                }
            }
            Some(other) => {
                return Err(other.wrong_type(
                    40400,
                    format_args!(
                        "$mergeObjects requires object inputs, but input {other} is of type"
                    ),
                ));
            }
        }
    }
    Ok(Some(Bson::Document(merged)))
}

fn get_field(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let name = args[0]
        .string(3041704, "$getField requires 'field' to evaluate to type String, but got")?;
    match args[1].get() {
        Some(Bson::Document(document)) => {
            document.get(name).map(|value| part("$getField", value, meter)).transpose()
        }
        Some(Bson::Null | Bson::Undefined) => Ok(Some(Bson::Null)),
        _ => Ok(None),
    }
}

fn set_field(args: &[Option<Operand<'_>>], meter: &Meter) -> Evaluated {
    let [Some(name), Some(input), Some(value)] = args else {
        return Ok(None);
    };
    let name =
        name.string(4161107, "$setField requires 'field' to evaluate to type String, but got")?;
    if input.is_nullish() {
        return Ok(Some(Bson::Null));
    }
    let document = input
        .document(4161105, "$setField requires 'input' to evaluate to type Object, but got")?;
    room("$setField", cost(input.or_null())? + cost(value.or_null())?, meter)?;
    let mut document = document.clone();
    match value.get() {
        Some(value) => {
            document.insert(name, value.clone());
        }
        None => {
            document.remove(name);
        }
    }
    Ok(Some(Bson::Document(document)))
}

fn bson_size(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    let document = args[0].document(31393, "$bsonSize requires a document input, found:")?;
    Ok(Some(whole(measure(document).bytes)))
}

fn binary_size(args: &[Operand<'_>], _: &Meter) -> Evaluated {
    match args[0].get() {
        Some(Bson::String(text)) => Ok(Some(whole(text.len()))),
        Some(Bson::Binary(binary)) => Ok(Some(whole(binary.bytes.len()))),
        _ => {
            Err(args[0]
                .wrong_type(51276, "$binarySize requires a string or BinData argument, found:"))
        }
    }
}
