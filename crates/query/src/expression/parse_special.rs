//! Reading the operators whose arguments are more than a list or a table of expressions: those that
//! bind variables, choose among their parts, or want constants.

use bson::{Bson, Document};

use super::node::{Base, Convert, Node, Pattern};
use super::operand::Operand;
use super::operators::{self, Arity};
use super::parse::{Parser, as_list, check_variable_name, is_operator};
use super::path::FieldPath;
use super::{ExpressionError, fail};
use crate::value::types::type_name_of;

impl Parser<'_> {
    pub(super) fn cond(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let parts = match argument {
            Bson::Document(fields) if !is_operator(fields) => {
                let mut parts = Fields::new("$cond", fields, &["if", "then", "else"], 17083)?;
                let mut part = |name: &'static str, code: i32| {
                    parts.take(name).ok_or_else(|| missing("$cond", name, code))
                };
                [part("if", 17080)?, part("then", 17081)?, part("else", 17082)?]
            }
            _ => {
                let parts = as_list(argument);
                Arity::Exactly(3).check("$cond", parts.len())?;
                [&parts[0], &parts[1], &parts[2]]
            }
        };
        let [condition, then, otherwise] = parts;
        Ok(Node::Cond(Box::new([
            self.expression(condition)?,
            self.expression(then)?,
            self.expression(otherwise)?,
        ])))
    }

    pub(super) fn if_null(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let parts = as_list(argument);
        if parts.len() < 2 {
            return Err(fail(
                1257300,
                format!("$ifNull needs at least two arguments, had: {}", parts.len()),
            ));
        }
        self.all(parts).map(Node::IfNull)
    }

    pub(super) fn switch(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let fields = object("$switch", argument, 40060)?;
        let mut fields = Fields::new("$switch", fields, &["branches", "default"], 40067)?;
        let listed = match fields.take("branches") {
            None => &[][..],
            Some(Bson::Array(branches)) => branches,
            Some(other) => {
                return Err(fail(
                    40061,
                    format!(
                        "$switch expected an array for 'branches', found: {}",
                        type_name_of(other)
                    ),
                ));
            }
        };
        if listed.is_empty() {
            return Err(fail(40068, "$switch requires at least one branch."));
        }
        let mut branches = Vec::with_capacity(listed.len());
        for branch in listed {
            branches.push(self.branch(branch)?);
        }
        let default = fields.take("default").map(|value| self.boxed(value)).transpose()?;
        Ok(Node::Switch { branches, default })
    }

    pub(super) fn branch(&mut self, branch: &Bson) -> Result<(Node, Node), ExpressionError> {
        let Bson::Document(branch) = branch else {
            return Err(fail(
                40062,
                format!(
                    "$switch expected each branch to be an object, found: {}",
                    type_name_of(branch)
                ),
            ));
        };
        if let Some(unknown) = branch.keys().find(|key| !matches!(key.as_str(), "case" | "then")) {
            return Err(fail(
                40063,
                format!("$switch found an unknown argument to a branch: {unknown}"),
            ));
        }
        let case = branch
            .get("case")
            .ok_or_else(|| fail(40064, "$switch requires each branch have a 'case' expression"))?;
        let then = branch
            .get("then")
            .ok_or_else(|| fail(40065, "$switch requires each branch have a 'then' expression."))?;
        Ok((self.expression(case)?, self.expression(then)?))
    }

    pub(super) fn let_expression(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let fields = only_object("$let", argument, 16874)?;
        let mut fields = Fields::new("$let", fields, &["vars", "in"], 16875)?;
        let vars = fields.take("vars").ok_or_else(|| missing("$let", "vars", 16876))?;
        let body = fields.take("in").ok_or_else(|| missing("$let", "in", 16877))?;
        let Bson::Document(vars) = vars else {
            return Err(fail(
                10065,
                format!(
                    "invalid parameter: expected an object (vars), found {}",
                    type_name_of(vars)
                ),
            ));
        };
        let mut values = Vec::with_capacity(vars.len());
        for (name, value) in vars {
            if name != "CURRENT" {
                check_variable_name(name)?;
            }
            values.push(self.expression(value)?);
        }
        let first_slot = self.locals.len();
        vars.keys().for_each(|name| self.locals.bind(name));
        let body = self.boxed(body);
        self.locals.truncate(first_slot);
        Ok(Node::Let { first_slot, values, body: body? })
    }

    /// Reads an expression in which the given names are bound.
    pub(super) fn within(
        &mut self,
        names: &[&str],
        body: &Bson,
    ) -> Result<Box<Node>, ExpressionError> {
        let outer = self.locals.len();
        names.iter().for_each(|name| self.locals.bind(name));
        let body = self.boxed(body);
        self.locals.truncate(outer);
        body
    }

    /// The name under which `$map` and `$filter` show each element.
    pub(super) fn element_name<'b>(
        &self,
        name: Option<&'b Bson>,
    ) -> Result<&'b str, ExpressionError> {
        match name {
            None => Ok("this"),
            Some(Bson::String(name)) => check_variable_name(name).map(|()| name.as_str()),
            Some(other) => Err(fail(
                10065,
                format!("invalid parameter: expected a string (as), found {}", type_name_of(other)),
            )),
        }
    }

    pub(super) fn map(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let fields = only_object("$map", argument, 16878)?;
        let mut fields = Fields::new("$map", fields, &["input", "as", "in"], 16879)?;
        let input = fields.take("input").ok_or_else(|| missing("$map", "input", 16880))?;
        let body = fields.take("in").ok_or_else(|| missing("$map", "in", 16882))?;
        let name = self.element_name(fields.take("as"))?;
        let input = self.boxed(input)?;
        let slot = self.locals.len();
        Ok(Node::Map { input, slot, body: self.within(&[name], body)? })
    }

    pub(super) fn filter(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let fields = only_object("$filter", argument, 28646)?;
        let mut fields = Fields::new("$filter", fields, &["input", "as", "cond", "limit"], 28647)?;
        let input = fields.take("input").ok_or_else(|| missing("$filter", "input", 28648))?;
        let condition = fields.take("cond").ok_or_else(|| missing("$filter", "cond", 28650))?;
        let name = self.element_name(fields.take("as"))?;
        let input = self.boxed(input)?;
        let limit = fields.take("limit").map(|limit| self.boxed(limit)).transpose()?;
        let slot = self.locals.len();
        Ok(Node::Filter { input, slot, condition: self.within(&[name], condition)?, limit })
    }

    pub(super) fn reduce(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let fields = object("$reduce", argument, 40075)?;
        let mut fields = Fields::new("$reduce", fields, &["input", "initialValue", "in"], 40076)?;
        let mut take = |name: &'static str, code: i32| {
            fields
                .take(name)
                .ok_or_else(|| fail(code, format!("$reduce requires '{name}' to be specified")))
        };
        let input = self.boxed(take("input", 40077)?)?;
        let initial = self.boxed(take("initialValue", 40078)?)?;
        let first_slot = self.locals.len();
        let body = self.within(&["value", "this"], take("in", 40079)?)?;
        Ok(Node::Reduce { input, initial, first_slot, body })
    }

    pub(super) fn zip(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let Bson::Document(fields) = argument else {
            return Err(fail(
                34460,
                format!(
                    "$zip only supports an object as an argument, found {}",
                    type_name_of(argument)
                ),
            ));
        };
        let mut fields =
            Fields::new("$zip", fields, &["inputs", "useLongestLength", "defaults"], 34464)?;
        let inputs = match fields.take("inputs") {
            Some(Bson::Array(inputs)) => self.all(inputs)?,
            None => Vec::new(),
            Some(other) => {
                return Err(fail(
                    34461,
                    format!(
                        "inputs must be an array of expressions, found {}",
                        type_name_of(other)
                    ),
                ));
            }
        };
        let defaults = match fields.take("defaults") {
            Some(Bson::Array(defaults)) => self.all(defaults)?,
            None => Vec::new(),
            Some(other) => {
                return Err(fail(
                    34462,
                    format!(
                        "defaults must be an array of expressions, found {}",
                        type_name_of(other)
                    ),
                ));
            }
        };
        let use_longest = match fields.take("useLongestLength") {
            None => false,
            Some(Bson::Boolean(value)) => *value,
            Some(other) => {
                return Err(fail(
                    34463,
                    format!("useLongestLength must be a bool, found {}", type_name_of(other)),
                ));
            }
        };
        if inputs.is_empty() {
            return Err(fail(34465, "$zip requires at least one input array"));
        }
        if !use_longest && !defaults.is_empty() {
            return Err(fail(34466, "cannot specify defaults unless useLongestLength is true"));
        }
        if !defaults.is_empty() && defaults.len() != inputs.len() {
            return Err(fail(34467, "defaults and inputs must have the same length"));
        }
        Ok(Node::Zip { inputs, use_longest, defaults })
    }

    pub(super) fn sort_array(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let fields = object("$sortArray", argument, 2942500)?;
        let mut fields = Fields::new("$sortArray", fields, &["input", "sortBy"], 2942501)?;
        let input = fields
            .take("input")
            .ok_or_else(|| fail(2942502, "$sortArray requires 'input' to be specified"))?;
        let by = fields
            .take("sortBy")
            .ok_or_else(|| fail(2942503, "$sortArray requires 'sortBy' to be specified"))?;
        let by = operators::SortBy::parse(by)?;
        Ok(Node::SortArray { input: self.boxed(input)?, by })
    }

    /// `$getField` takes a name alone, or a name and a document. A name is not a path: `"$a"` is an
    /// expression, `{ $literal: "$a" }` the field called `$a`.
    pub(super) fn get_field(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let whole = Bson::String("$$CURRENT".to_owned());
        let (field, input) = match argument {
            Bson::Document(fields) if !is_operator(fields) => {
                let mut fields = Fields::new("$getField", fields, &["field", "input"], 3041701)?;
                let field = fields
                    .take("field")
                    .ok_or_else(|| fail(3041702, "$getField requires 'field' to be specified"))?;
                let input = fields
                    .take("input")
                    .ok_or_else(|| fail(3041703, "$getField requires 'input' to be specified"))?;
                (field, input)
            }
            name => (name, &whole),
        };
        let field = self.expression(field)?;
        if let Node::Constant(value) = &field
            && !matches!(value, Bson::String(_))
        {
            return Err(fail(
                5654602,
                format!(
                    "$getField requires 'field' to evaluate to a constant, but got a {}",
                    type_name_of(value)
                ),
            ));
        }
        let input = self.expression(input)?;
        Ok(Node::Positional(&operators::GET_FIELD, vec![field, input]))
    }

    pub(super) fn convert(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let Bson::Document(fields) = argument else {
            return Err(fail(
                9,
                format!(
                    "$convert expects an object of named arguments but found: {}",
                    type_name_of(argument)
                ),
            ));
        };
        const KNOWN: [&str; 5] = ["input", "to", "onError", "onNull", "format"];
        if let Some(unknown) = fields.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(fail(9, format!("$convert found an unknown argument: {unknown}")));
        }
        let required = |name: &str| {
            fields
                .get(name)
                .ok_or_else(|| fail(9, format!("Missing '{name}' parameter to $convert")))
        };
        let input = self.expression(required("input")?)?;
        let to = self.expression(required("to")?)?;
        let on_error = fields.get("onError").map(|value| self.expression(value)).transpose()?;
        let on_null = fields.get("onNull").map(|value| self.expression(value)).transpose()?;
        Ok(Node::Convert(Box::new(Convert { input, to, on_error, on_null })))
    }

    pub(super) fn regex(&mut self, name: &str, argument: &Bson) -> Result<Node, ExpressionError> {
        let Bson::Document(fields) = argument else {
            return Err(fail(
                51103,
                format!(
                    "{name} expects an object of named arguments but found: {}",
                    type_name_of(argument)
                ),
            ));
        };
        const KNOWN: [&str; 3] = ["input", "regex", "options"];
        if let Some(unknown) = fields.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(fail(31024, format!("{name} found an unknown argument: {unknown}")));
        }
        let input = fields
            .get("input")
            .ok_or_else(|| fail(31022, format!("{name} requires 'input' parameter")))?;
        let regex = fields
            .get("regex")
            .ok_or_else(|| fail(31023, format!("{name} requires 'regex' parameter")))?;
        let input = self.boxed(input)?;
        let regex = self.boxed(regex)?;
        let options = fields.get("options").map(|value| self.boxed(value)).transpose()?;
        let kind = operators::RegexKind::of(name)
            .ok_or_else(|| fail(168, format!("Unrecognized expression '{name}'")))?;
        let pattern = match (&*regex, options.as_deref()) {
            (Node::Constant(regex), None) => {
                Pattern::Compiled(kind.compile(&Operand::borrowed(regex), None)?)
            }
            (Node::Constant(regex), Some(Node::Constant(options))) => {
                let options = Operand::borrowed(options);
                Pattern::Compiled(kind.compile(&Operand::borrowed(regex), Some(&options))?)
            }
            _ => Pattern::Computed { regex, options },
        };
        Ok(Node::Regex { kind, input, pattern })
    }

    /// `$unsetField` is `$setField` with `$$REMOVE`.
    pub(super) fn unset_field(&mut self, argument: &Bson) -> Result<Node, ExpressionError> {
        let fields = object("$unsetField", argument, 4161100)?;
        let mut fields = Fields::new("$unsetField", fields, &["field", "input"], 4161101)?;
        let field = fields
            .take("field")
            .ok_or_else(|| fail(4161102, "$unsetField requires 'field' to be specified"))?;
        let input = fields
            .take("input")
            .ok_or_else(|| fail(4161109, "$unsetField requires 'input' to be specified"))?;
        let arguments = vec![
            Some(self.expression(field)?),
            Some(self.expression(input)?),
            Some(Node::Path(Base::Remove, FieldPath::default())),
        ];
        Ok(Node::Named(&operators::SET_FIELD, arguments))
    }
}

/// The fields of an operator's argument, already checked to be known.
struct Fields<'a>(&'a Document);

impl<'a> Fields<'a> {
    fn new(
        operator: &str,
        fields: &'a Document,
        known: &[&str],
        code: i32,
    ) -> Result<Self, ExpressionError> {
        match fields.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(Self(fields)),
            Some(unknown) => {
                Err(fail(code, format!("Unrecognized parameter to {operator}: {unknown}")))
            }
        }
    }

    fn take(&mut self, name: &str) -> Option<&'a Bson> {
        self.0.get(name)
    }
}

fn missing(operator: &str, name: &str, code: i32) -> ExpressionError {
    fail(code, format!("Missing '{name}' parameter to {operator}"))
}

fn object<'a>(
    operator: &str,
    argument: &'a Bson,
    code: i32,
) -> Result<&'a Document, ExpressionError> {
    argument.as_document().ok_or_else(|| {
        fail(
            code,
            format!(
                "{operator} requires an object as an argument, found: {}",
                type_name_of(argument)
            ),
        )
    })
}

fn only_object<'a>(
    operator: &str,
    argument: &'a Bson,
    code: i32,
) -> Result<&'a Document, ExpressionError> {
    argument
        .as_document()
        .ok_or_else(|| fail(code, format!("{operator} only supports an object as its argument")))
}
