//! Objects: merging them, and reading and writing fields whose names are not paths; sizes in BSON.

use bson::{Bson, Document};

use super::string::whole;
use super::{
    ByName, Evaluated, Named, Positional, exactly, metered, metered_exactly, part, required, room,
};
use crate::expression::bounds::{Budget, cost, field_cost};
use crate::expression::fail;
use crate::expression::operand::Operand;
use crate::meter::{Meter, steps_to_copy};
use crate::value::measure;
use crate::value::types::type_name_of;

pub(super) static OPERATORS: &[Positional] = &[
    metered(0, "$mergeObjects", |args, meter| {
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
    exactly(1, "$bsonSize", bson_size),
    exactly(1, "$binarySize", binary_size),
];

pub(super) static NAMED: &[Named] = &[SET_FIELD];

/// `$getField`, whose arguments the parser puts in order: name, document.
pub(in crate::expression) static GET_FIELD: Positional = metered_exactly(2, "$getField", get_field);

/// `$setField`, and `$unsetField` as a case of it.
pub(in crate::expression) const SET_FIELD: Named = Named {
    name: "$setField",
    bare: false,
    not_an_object: 4161100,
    unknown_field: 4161101,
    fields: &[required("field", 4161102), required("input", 4161109), required("value", 4161103)],
    evaluate: ByName::Metered(set_field),
};

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
                return Err(fail(
                    40400,
                    format!(
                        "$mergeObjects requires object inputs, but input {other} is of type {}",
                        type_name_of(other)
                    ),
                ));
            }
        }
    }
    Ok(Some(Bson::Document(merged)))
}

fn get_field(args: &[Operand<'_>], meter: &Meter) -> Evaluated {
    let Some(Bson::String(name)) = args[0].get() else {
        return Err(fail(
            3041704,
            format!(
                "$getField requires 'field' to evaluate to type String, but got {}",
                args[0].type_name()
            ),
        ));
    };
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
    let Some(Bson::String(name)) = name.get() else {
        return Err(fail(
            4161107,
            format!(
                "$setField requires 'field' to evaluate to type String, but got {}",
                name.type_name()
            ),
        ));
    };
    if input.is_nullish() {
        return Ok(Some(Bson::Null));
    }
    let Some(Bson::Document(document)) = input.get() else {
        return Err(fail(
            4161105,
            format!(
                "$setField requires 'input' to evaluate to type Object, but got {}",
                input.type_name()
            ),
        ));
    };
    room("$setField", cost(input.or_null())? + cost(value.or_null())?, meter)?;
    let mut document = document.clone();
    match value.get() {
        Some(value) => {
            document.insert(name.as_str(), value.clone());
        }
        None => {
            document.remove(name);
        }
    }
    Ok(Some(Bson::Document(document)))
}

fn bson_size(args: &[Operand<'_>]) -> Evaluated {
    if args[0].is_nullish() {
        return Ok(Some(Bson::Null));
    }
    let Some(Bson::Document(document)) = args[0].get() else {
        return Err(fail(
            31393,
            format!("$bsonSize requires a document input, found: {}", args[0].type_name()),
        ));
    };
    Ok(Some(whole(measure(document).bytes)))
}

fn binary_size(args: &[Operand<'_>]) -> Evaluated {
    match args[0].get() {
        None | Some(Bson::Null | Bson::Undefined) => Ok(Some(Bson::Null)),
        Some(Bson::String(text)) => Ok(Some(whole(text.len()))),
        Some(Bson::Binary(binary)) => Ok(Some(whole(binary.bytes.len()))),
        Some(_) => Err(fail(
            51276,
            format!(
                "$binarySize requires a string or BinData argument, found: {}",
                args[0].type_name()
            ),
        )),
    }
}
