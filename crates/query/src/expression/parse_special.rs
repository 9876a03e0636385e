//! Reading the operators whose arguments are more than a list or a table of expressions: those that
//! bind variables, choose among their parts, or want constants.

use bson::{Bson, Document};

use super::node::{Base, Convert, Node, Pattern};
use super::operand::Operand;
use super::operators::{self, Arity};
use super::parse::{Parser, as_list, check_variable_name, is_operator, unrecognized};
use super::path::FieldPath;
use crate::error::{ErrorCode, Result};
use crate::typed::{Typed, unknown_field};

impl Parser<'_> {
    pub(super) fn cond(&mut self, argument: &Bson) -> Result<Node> {
        let parts = match argument {
            Bson::Document(fields) if !is_operator(fields) => {
                let parts = Fields::new("$cond", fields, &["if", "then", "else"], 17083)?;
                [
                    parts.parameter("if", 17080)?,
                    parts.parameter("then", 17081)?,
                    parts.parameter("else", 17082)?,
                ]
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

    pub(super) fn if_null(&mut self, argument: &Bson) -> Result<Node> {
        let parts = as_list(argument);
        refuse_if!(parts.len() < 2 => 1257300,
            "$ifNull needs at least two arguments, had: {}", parts.len());
        self.all(parts).map(Node::IfNull)
    }

    pub(super) fn switch(&mut self, argument: &Bson) -> Result<Node> {
        let fields = object("$switch", argument, 40060)?;
        let fields = Fields::new("$switch", fields, &["branches", "default"], 40067)?;
        let listed = match fields.get("branches") {
            None => &[],
            Some(listed) => {
                listed.array(40061, "$switch expected an array for 'branches', found:")?
            }
        };
        refuse_if!(listed.is_empty() => 40068, "$switch requires at least one branch.");
        let mut branches = Vec::with_capacity(listed.len());
        for branch in listed {
            branches.push(self.branch(branch)?);
        }
        let default = fields.get("default").map(|value| self.boxed(value)).transpose()?;
        Ok(Node::Switch { branches, default })
    }

    pub(super) fn branch(&mut self, branch: &Bson) -> Result<(Node, Node)> {
        let branch =
            branch.document(40062, "$switch expected each branch to be an object, found:")?;
        if let Some(unknown) = branch.keys().find(|key| !matches!(key.as_str(), "case" | "then")) {
            refuse!(40063, "$switch found an unknown argument to a branch: {unknown}");
        }
        let case = branch
            .get("case")
            .ok_or_else(|| fail!(40064, "$switch requires each branch have a 'case' expression"))?;
        let then = branch.get("then").ok_or_else(|| {
            fail!(40065, "$switch requires each branch have a 'then' expression.")
        })?;
        Ok((self.expression(case)?, self.expression(then)?))
    }

    pub(super) fn let_expression(&mut self, argument: &Bson) -> Result<Node> {
        let fields = only_object("$let", argument, 16874)?;
        let fields = Fields::new("$let", fields, &["vars", "in"], 16875)?;
        let vars = fields.parameter("vars", 16876)?;
        let body = fields.parameter("in", 16877)?;
        let vars = vars.document(10065, "invalid parameter: expected an object (vars), found")?;
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
    pub(super) fn within(&mut self, names: &[&str], body: &Bson) -> Result<Box<Node>> {
        let outer = self.locals.len();
        names.iter().for_each(|name| self.locals.bind(name));
        let body = self.boxed(body);
        self.locals.truncate(outer);
        body
    }

    /// The name under which `$map` and `$filter` show each element.
    pub(super) fn element_name<'b>(&self, name: Option<&'b Bson>) -> Result<&'b str> {
        match name {
            None => Ok("this"),
            Some(name) => {
                let name =
                    name.string(10065, "invalid parameter: expected a string (as), found")?;
                check_variable_name(name).map(|()| name)
            }
        }
    }

    pub(super) fn map(&mut self, argument: &Bson) -> Result<Node> {
        let fields = only_object("$map", argument, 16878)?;
        let fields = Fields::new("$map", fields, &["input", "as", "in"], 16879)?;
        let input = fields.parameter("input", 16880)?;
        let body = fields.parameter("in", 16882)?;
        let name = self.element_name(fields.get("as"))?;
        let input = self.boxed(input)?;
        let slot = self.locals.len();
        Ok(Node::Map { input, slot, body: self.within(&[name], body)? })
    }

    pub(super) fn filter(&mut self, argument: &Bson) -> Result<Node> {
        let fields = only_object("$filter", argument, 28646)?;
        let fields = Fields::new("$filter", fields, &["input", "as", "cond", "limit"], 28647)?;
        let input = fields.parameter("input", 28648)?;
        let condition = fields.parameter("cond", 28650)?;
        let name = self.element_name(fields.get("as"))?;
        let input = self.boxed(input)?;
        let limit = fields.get("limit").map(|limit| self.boxed(limit)).transpose()?;
        let slot = self.locals.len();
        Ok(Node::Filter { input, slot, condition: self.within(&[name], condition)?, limit })
    }

    pub(super) fn reduce(&mut self, argument: &Bson) -> Result<Node> {
        let fields = object("$reduce", argument, 40075)?;
        let fields = Fields::new("$reduce", fields, &["input", "initialValue", "in"], 40076)?;
        let input = self.boxed(fields.specified("input", 40077)?)?;
        let initial = self.boxed(fields.specified("initialValue", 40078)?)?;
        let first_slot = self.locals.len();
        let body = self.within(&["value", "this"], fields.specified("in", 40079)?)?;
        Ok(Node::Reduce { input, initial, first_slot, body })
    }

    pub(super) fn zip(&mut self, argument: &Bson) -> Result<Node> {
        let fields =
            argument.document(34460, "$zip only supports an object as an argument, found")?;
        let fields =
            Fields::new("$zip", fields, &["inputs", "useLongestLength", "defaults"], 34464)?;
        let mut listed = |name: &str, code: i32| match fields.get(name) {
            None => Ok(Vec::new()),
            Some(listed) => self.all(
                listed
                    .array(code, format_args!("{name} must be an array of expressions, found"))?,
            ),
        };
        let inputs = listed("inputs", 34461)?;
        let defaults = listed("defaults", 34462)?;
        let use_longest = match fields.get("useLongestLength") {
            None => false,
            Some(value) => value.boolean(34463, "useLongestLength must be a bool, found")?,
        };
        refuse_if!(inputs.is_empty() => 34465, "$zip requires at least one input array");
        refuse_if!(!use_longest && !defaults.is_empty() => 34466,
            "cannot specify defaults unless useLongestLength is true");
        refuse_if!(!defaults.is_empty() && defaults.len() != inputs.len() => 34467,
            "defaults and inputs must have the same length");
        Ok(Node::Zip { inputs, use_longest, defaults })
    }

    pub(super) fn sort_array(&mut self, argument: &Bson) -> Result<Node> {
        let fields = object("$sortArray", argument, 2942500)?;
        let fields = Fields::new("$sortArray", fields, &["input", "sortBy"], 2942501)?;
        let input = fields.specified("input", 2942502)?;
        let by = operators::SortBy::parse(fields.specified("sortBy", 2942503)?)?;
        Ok(Node::SortArray { input: self.boxed(input)?, by })
    }

    /// `$getField` takes a name alone, or a name and a document. A name is not a path: `"$a"` is an
    /// expression, `{ $literal: "$a" }` the field called `$a`.
    pub(super) fn get_field(&mut self, argument: &Bson) -> Result<Node> {
        let whole = Bson::String("$$CURRENT".to_owned());
        let (field, input) = match argument {
            Bson::Document(fields) if !is_operator(fields) => {
                let fields = Fields::new("$getField", fields, &["field", "input"], 3041701)?;
                (fields.specified("field", 3041702)?, fields.specified("input", 3041703)?)
            }
            name => (name, &whole),
        };
        let field = self.expression(field)?;
        if let Node::Constant(value) = &field
            && !matches!(value, Bson::String(_))
        {
            return Err(value.wrong_type(
                5654602,
                "$getField requires 'field' to evaluate to a constant, but got a",
            ));
        }
        let input = self.expression(input)?;
        Ok(Node::Positional(&operators::GET_FIELD, vec![field, input]))
    }

    pub(super) fn convert(&mut self, argument: &Bson) -> Result<Node> {
        let wanted = "$convert expects an object of named arguments but found:";
        let fields = argument.document(ErrorCode::FAILED_TO_PARSE, wanted)?;
        if let Some(unknown) =
            unknown_field(fields, &["input", "to", "onError", "onNull", "format"])
        {
            refuse!(FAILED_TO_PARSE, "$convert found an unknown argument: {unknown}");
        }
        let required = |name: &str| {
            let missing = || fail!(FAILED_TO_PARSE, "Missing '{name}' parameter to $convert");
            fields.get(name).ok_or_else(missing)
        };
        let input = self.expression(required("input")?)?;
        let to = self.expression(required("to")?)?;
        let on_error = fields.get("onError").map(|value| self.expression(value)).transpose()?;
        let on_null = fields.get("onNull").map(|value| self.expression(value)).transpose()?;
        Ok(Node::Convert(Box::new(Convert { input, to, on_error, on_null })))
    }

    pub(super) fn regex(&mut self, name: &str, argument: &Bson) -> Result<Node> {
        let fields = argument.document(
            51103,
            format_args!("{name} expects an object of named arguments but found:"),
        )?;
        if let Some(unknown) = unknown_field(fields, &["input", "regex", "options"]) {
            refuse!(31024, "{name} found an unknown argument: {unknown}");
        }
        let input =
            fields.get("input").ok_or_else(|| fail!(31022, "{name} requires 'input' parameter"))?;
        let regex =
            fields.get("regex").ok_or_else(|| fail!(31023, "{name} requires 'regex' parameter"))?;
        let input = self.boxed(input)?;
        let regex = self.boxed(regex)?;
        let options = fields.get("options").map(|value| self.boxed(value)).transpose()?;
        let kind = operators::RegexKind::of(name).ok_or_else(|| unrecognized(name))?;
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
    pub(super) fn unset_field(&mut self, argument: &Bson) -> Result<Node> {
        let fields = object("$unsetField", argument, 4161100)?;
        let fields = Fields::new("$unsetField", fields, &["field", "input"], 4161101)?;
        let field = fields.specified("field", 4161102)?;
        let input = fields.specified("input", 4161109)?;
        let arguments = vec![
            Some(self.expression(field)?),
            Some(self.expression(input)?),
            Some(Node::Path(Base::Remove, FieldPath::default())),
        ];
        Ok(Node::Named(&operators::SET_FIELD, arguments))
    }
}

/// The fields of an operator's argument, already checked to be known.
struct Fields<'a> {
    operator: &'static str,
    fields: &'a Document,
}

impl<'a> Fields<'a> {
    fn new(
        operator: &'static str,
        fields: &'a Document,
        known: &[&str],
        code: i32,
    ) -> Result<Self> {
        match unknown_field(fields, known) {
            None => Ok(Self { operator, fields }),
            Some(unknown) => Err(fail!((code), "Unrecognized parameter to {operator}: {unknown}")),
        }
    }

    fn get(&self, name: &str) -> Option<&'a Bson> {
        self.fields.get(name)
    }

    /// A field that must be there, in the words of the older operators.
    fn parameter(&self, name: &str, code: i32) -> Result<&'a Bson> {
        let missing = || fail!((code), "Missing '{name}' parameter to {}", self.operator);
        self.get(name).ok_or_else(missing)
    }

    /// A field that must be there, in the words of the newer operators.
    fn specified(&self, name: &str, code: i32) -> Result<&'a Bson> {
        let missing = || fail!((code), "{} requires '{name}' to be specified", self.operator);
        self.get(name).ok_or_else(missing)
    }
}

fn object<'a>(operator: &str, argument: &'a Bson, code: i32) -> Result<&'a Document> {
    argument.document(code, format_args!("{operator} requires an object as an argument, found:"))
}

fn only_object<'a>(operator: &str, argument: &'a Bson, code: i32) -> Result<&'a Document> {
    argument
        .as_document()
        .ok_or_else(|| fail!((code), "{operator} only supports an object as its argument"))
}
