//! From `{$set: {…}, $inc: {…}}` to an ordered list of modifications.
//!
//! Owns the names of the operators and the check that no two of them touch the same path.

use bson::{Bson, Document};

use super::array_operators::{parse_add_to_set, parse_pop, parse_pull, parse_pull_all, parse_push};
use super::modify::Modification;
use super::operators::{Operator, parse_bit, parse_current_date, parse_number};
use super::path::UpdatePath;
use crate::error::Result;
use crate::expression::Compiler;
use crate::value::type_name_of;

/// Parses a document of update operators.
pub(super) fn parse_operators(update: &Document, compiler: &Compiler) -> Result<Vec<Modification>> {
    let mut modifications = Vec::new();
    for (operator, arguments) in update {
        refuse_if!(!KNOWN_OPERATORS.contains(&operator.as_str()) => FAILED_TO_PARSE,
            "Unknown modifier: {operator}. Expected a valid update modifier or pipeline-style \
             update specified as an array");
        let Bson::Document(arguments) = arguments else {
            refuse!(
                FAILED_TO_PARSE,
                "Modifiers operate on fields but we found type {} instead. For example: {{$mod: \
                 {{<field>: ...}}}} not {{{operator}: {arguments}}}",
                type_name_of(arguments)
            );
        };
        for (path, argument) in arguments {
            let path = UpdatePath::parse(path)?;
            modifications.push(if operator == "$rename" {
                parse_rename(path, argument)?
            } else {
                let operator = parse_operator(operator, path.as_str(), argument, compiler)?;
                Modification::new(path, operator)
            });
        }
    }
    check_conflicts(&modifications)?;
    modifications.sort_by(|left, right| left.path.compare(&right.path));
    Ok(modifications)
}

const KNOWN_OPERATORS: [&str; 15] = [
    "$set", "$setOnInsert", "$unset", "$inc", "$mul", "$min", "$max", "$rename", "$currentDate",
    "$bit", "$push", "$addToSet", "$pop", "$pull", "$pullAll",
];

fn parse_operator(
    operator: &str,
    path: &str,
    argument: &Bson,
    compiler: &Compiler,
) -> Result<Operator> {
    Ok(match operator {
        "$set" => Operator::Set(argument.clone()),
        "$setOnInsert" => Operator::SetOnInsert(argument.clone()),
        "$unset" => Operator::Unset,
        "$inc" => Operator::Increment(parse_number("increment", path, argument)?),
        "$mul" => Operator::Multiply(parse_number("multiply", path, argument)?),
        "$min" => Operator::Minimum(argument.clone()),
        "$max" => Operator::Maximum(argument.clone()),
        "$currentDate" => Operator::CurrentDate(parse_current_date(argument)?),
        "$bit" => Operator::Bit(parse_bit(argument)?),
        "$push" => Operator::Push(parse_push(argument)?),
        "$addToSet" => Operator::AddToSet(parse_add_to_set(argument)?),
        "$pop" => Operator::Pop(parse_pop(path, argument)?),
        "$pull" => Operator::Pull(parse_pull(argument, compiler)?),
        "$pullAll" => Operator::PullAll(parse_pull_all(argument)?),
        unknown => {
            refuse!(FAILED_TO_PARSE, "Unknown modifier: {unknown}");
        }
    })
}

/// A rename is a modification of its target that remembers its source.
fn parse_rename(source: UpdatePath, argument: &Bson) -> Result<Modification> {
    let Bson::String(target) = argument else {
        refuse!(
            BAD_VALUE,
            "The 'to' field for $rename must be a string: {}: {argument}",
            source.as_str()
        );
    };
    refuse_if!(target.contains('\0') => BAD_VALUE,
        "The 'to' field for $rename cannot contain an embedded null byte");
    let target = UpdatePath::parse(target)?;
    refuse_if!(source == target => BAD_VALUE,
        "The source and target field for $rename must differ: {}: \"{}\"",
        source.as_str(), target.as_str());
    refuse_if!(source.conflicts_with(&target) => BAD_VALUE,
        "The source and target field for $rename must not be on the same path: {}: \"{}\"",
        source.as_str(), target.as_str());
    for (role, path) in [("source", &source), ("destination", &target)] {
        refuse_if!(path.is_dynamic() => BAD_VALUE,
            "The {role} field for $rename may not be dynamic: {}", path.as_str());
    }
    Ok(Modification::new(target, Operator::Rename { source }))
}

fn check_conflicts(modifications: &[Modification]) -> Result<()> {
    let mut paths: Vec<&UpdatePath> = Vec::new();
    for modification in modifications {
        paths.push(&modification.path);
        if let Operator::Rename { source } = &modification.operator {
            paths.push(source);
        }
    }
    // In this order a path is followed at once by those that lead through it.
    let mut keyed: Vec<(Vec<String>, &UpdatePath)> = paths
        .into_iter()
        .map(|path| (path.components.iter().map(|part| part.text()).collect(), path))
        .collect();
    keyed.sort_by(|left, right| left.0.cmp(&right.0));
    for pair in keyed.windows(2) {
        let (shorter, longer) = (&pair[0], &pair[1]);
        refuse_if!(longer.0.starts_with(&shorter.0) => CONFLICTING_UPDATE_OPERATORS,
            "Updating the path '{}' would create a conflict at '{}'",
            longer.1.as_str(), shorter.1.as_str());
    }
    Ok(())
}
