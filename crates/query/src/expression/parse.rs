//! Reading expressions: from the BSON a client sent to the tree that is computed.
//!
//! Owns syntax, variable scopes and constant folding; the meaning of operators with ordinary
//! arguments is in `operators`, which this file finds by name.

use std::collections::{BTreeSet, HashMap};

use bson::{Bson, Document};

use super::MAX_EXPRESSION_DEPTH;
use super::node::{Base, Node};
use super::operators::{self, Arity, Named, Positional};
use super::path::FieldPath;
use super::variables::{Frame, Variables};
use crate::error::{QueryError, Result};
use crate::meter::Meter;
use crate::typed::Typed;

/// Which variables an expression may use besides the system's.
#[derive(Clone, Debug, Default)]
pub struct ParseContext {
    user: BTreeSet<String>,
    redact: bool,
    /// Whether no expression is allowed at all.
    refusing: bool,
}

impl ParseContext {
    /// No variables but the system's.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a variable of the caller's.
    #[must_use]
    pub(crate) fn with_variable(mut self, name: impl Into<String>) -> Self {
        self.user.insert(name.into());
        self
    }

    /// Every variable that these values define.
    pub fn of(variables: &Variables) -> Self {
        let user = variables.names().map(str::to_owned).collect();
        Self { user, ..Self::default() }
    }

    /// A context in which every expression is refused.
    pub(super) fn refusing() -> Self {
        Self { refusing: true, ..Self::default() }
    }

    /// The same with `$$DESCEND`, `$$PRUNE` and `$$KEEP`, which only `$redact` defines.
    pub(crate) fn for_redact(mut self) -> Self {
        self.redact = true;
        self
    }
}

/// Reads an expression.
pub(super) fn parse(value: &Bson, context: &ParseContext) -> Result<Node> {
    refuse_if!(context.refusing => BAD_VALUE,
        "expressions are not allowed here; use plain values and query operators");
    Parser { context, locals: Locals::default(), depth: 0 }.expression(value)
}

/// Refuses names that no variable of a user may have.
pub(crate) fn check_variable_name(name: &str) -> Result<()> {
    let Some(first) = name.chars().next() else {
        refuse!(16866, "empty variable names are not allowed");
    };
    refuse_if!(first.is_ascii() && !first.is_ascii_lowercase() => 16867,
        "'{name}' starts with an invalid character for a user variable name");
    if let Some(bad) =
        name.chars().find(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && *c != '_')
    {
        refuse!(16868, "'{name}' contains an invalid character for a variable name: '{bad}'");
    }
    Ok(())
}

pub(super) struct Parser<'a> {
    context: &'a ParseContext,
    pub(super) locals: Locals,
    depth: usize,
}

/// Variables bound around the current place; the position is the slot.
#[derive(Default)]
pub(super) struct Locals {
    names: Vec<String>,
    /// The slots of each name, the innermost last, so that many variables stay cheap to find.
    slots: HashMap<String, Vec<usize>>,
}

impl Locals {
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn slot(&self, name: &str) -> Option<usize> {
        self.slots.get(name)?.last().copied()
    }

    pub(super) fn bind(&mut self, name: &str) {
        self.slots.entry(name.to_owned()).or_default().push(self.names.len());
        self.names.push(name.to_owned());
    }

    pub(super) fn truncate(&mut self, length: usize) {
        for name in self.names.drain(length..) {
            if let Some(slots) = self.slots.get_mut(&name) {
                slots.pop();
            }
        }
    }
}

impl Parser<'_> {
    pub(super) fn expression(&mut self, value: &Bson) -> Result<Node> {
        refuse_if!(self.depth >= MAX_EXPRESSION_DEPTH => OVERFLOW,
            "expression exceeds the maximum nesting of {MAX_EXPRESSION_DEPTH} levels");
        self.depth += 1;
        let node = match value {
            Bson::String(text) if text.starts_with('$') => self.path(text),
            Bson::Document(document) => self.document(document),
            Bson::Array(elements) => self.all(elements).map(Node::Array),
            _ => Ok(Node::Constant(value.clone())),
        };
        self.depth -= 1;
        node.map(fold)
    }

    pub(super) fn boxed(&mut self, value: &Bson) -> Result<Box<Node>> {
        self.expression(value).map(Box::new)
    }

    pub(super) fn all(&mut self, values: &[Bson]) -> Result<Vec<Node>> {
        values.iter().map(|value| self.expression(value)).collect()
    }

    fn document(&mut self, document: &Document) -> Result<Node> {
        if let Some((name, argument)) = document.iter().next()
            && name.starts_with('$')
        {
            refuse_if!(document.len() > 1 => 15983,
                "An object representing an expression must have exactly one field: \
                 {document}");
            return self.operator(name, argument);
        }
        let mut fields = Vec::with_capacity(document.len());
        for (name, value) in document {
            refuse_if!(name.contains('.') => 16405,
                "FieldPath field names may not contain '.'. Consider using $getField or \
                 $setField. (got '{name}')");
            refuse_if!(name.starts_with('$') => 16410,
                "FieldPath field names may not start with '$'. Consider using $getField \
                 or $setField. (got '{name}')");
            fields.push((name.clone(), self.expression(value)?));
        }
        Ok(Node::Object(fields))
    }

    fn path(&self, text: &str) -> Result<Node> {
        if let Some(variable) = text.strip_prefix("$$") {
            let (name, rest) = match variable.split_once('.') {
                Some((name, rest)) => (name, Some(rest)),
                None => (variable, None),
            };
            let path = rest.map(FieldPath::parse).transpose()?.unwrap_or_default();
            return match self.base(name)? {
                Ok(base) => Ok(Node::Path(base, path)),
                Err(constant) => Ok(Node::Constant(constant)),
            };
        }
        let path = &text[1..];
        refuse_if!(path.is_empty() => 16872, "'$' by itself is not a valid FieldPath");
        Ok(Node::Path(self.current(), FieldPath::parse(path)?))
    }

    /// The base of `$field`: `$let` may bind `CURRENT` anew.
    fn current(&self) -> Base {
        self.locals.slot("CURRENT").map_or(Base::Current, Base::Slot)
    }

    /// The variable of a name, or the constant it stands for.
    fn base(&self, name: &str) -> Result<Result<Base, Bson>> {
        if let Some(slot) = self.locals.slot(name) {
            return Ok(Ok(Base::Slot(slot)));
        }
        Ok(Ok(match name {
            "ROOT" => Base::Root,
            "CURRENT" => Base::Current,
            "REMOVE" => Base::Remove,
            "NOW" => Base::Now,
            "CLUSTER_TIME" => Base::ClusterTime,
            "USER_ROLES" => Base::UserRoles,
            "DESCEND" | "PRUNE" | "KEEP" if self.context.redact => {
                return Ok(Err(Bson::String(name.to_ascii_lowercase())));
            }
            _ if self.context.user.contains(name) => Base::User(name.to_owned()),
            "" => refuse!(16866, "empty variable names are not allowed"),
            _ => refuse!(17276, "Use of undefined variable: {name}"),
        }))
    }

    fn operator(&mut self, name: &str, argument: &Bson) -> Result<Node> {
        match name {
            "$literal" | "$const" => Ok(Node::Constant(argument.clone())),
            "$and" => self.all(as_list(argument)).map(Node::And),
            "$or" => self.all(as_list(argument)).map(Node::Or),
            "$cond" => self.cond(argument),
            "$ifNull" => self.if_null(argument),
            "$switch" => self.switch(argument),
            "$let" => self.let_expression(argument),
            "$map" => self.map(argument),
            "$filter" => self.filter(argument),
            "$reduce" => self.reduce(argument),
            "$zip" => self.zip(argument),
            "$sortArray" => self.sort_array(argument),
            "$rand" => match argument {
                Bson::Document(document) if document.is_empty() => Ok(Node::Random),
                Bson::Array(elements) if elements.is_empty() => Ok(Node::Random),
                _ => Err(fail!(3040501, "$rand does not currently accept arguments")),
            },
            "$getField" => self.get_field(argument),
            "$unsetField" => self.unset_field(argument),
            "$convert" => self.convert(argument),
            "$regexMatch" | "$regexFind" | "$regexFindAll" => self.regex(name, argument),
            _ => {
                if let Some(operator) = operators::positional(name) {
                    self.positional(operator, argument)
                } else if let Some(operator) = operators::named(name) {
                    self.named(operator, argument)
                } else {
                    Err(unrecognized(name))
                }
            }
        }
    }

    fn positional(&mut self, operator: &'static Positional, argument: &Bson) -> Result<Node> {
        let arguments = as_list(argument);
        operator.arity.check(operator.name, arguments.len())?;
        Ok(Node::Positional(operator, self.all(arguments)?))
    }

    fn named(&mut self, operator: &'static Named, argument: &Bson) -> Result<Node> {
        let name = operator.name;
        let fields = match argument {
            Bson::Document(fields) if !(operator.bare && is_operator(fields)) => fields,
            _ if operator.bare => {
                let arguments = as_list(argument);
                Arity::Exactly(1).check(name, arguments.len())?;
                let mut nodes = vec![None; operator.fields.len()];
                nodes[0] = Some(self.expression(&arguments[0])?);
                return Ok(Node::Named(operator, nodes));
            }
            other => other.document(
                operator.not_an_object,
                format_args!("{name} requires an object as an argument, found:"),
            )?,
        };
        let mut nodes = vec![None; operator.fields.len()];
        for (field, value) in fields {
            let Some(position) = operator.fields.iter().position(|known| known.name == field)
            else {
                refuse!(operator.unknown_field, "{name} found an unknown argument: {field}");
            };
            nodes[position] = Some(self.expression(value)?);
        }
        for (field, node) in operator.fields.iter().zip(&nodes) {
            if let (Some(code), None) = (field.required, node) {
                refuse!((code), "{name} requires '{}' to be specified", field.name);
            }
        }
        Ok(Node::Named(operator, nodes))
    }
}

pub(super) fn unrecognized(name: &str) -> QueryError {
    fail!(INVALID_PIPELINE_OPERATOR, "Unrecognized expression '{name}'")
}

/// Whether a document is an operator with its argument rather than named arguments.
pub(super) fn is_operator(document: &Document) -> bool {
    document.keys().next().is_some_and(|key| key.starts_with('$'))
}

/// An operator's arguments: a list, or a single one without brackets.
pub(super) fn as_list(argument: &Bson) -> &[Bson] {
    match argument {
        Bson::Array(arguments) => arguments,
        single => std::slice::from_ref(single),
    }
}

/// The most bytes that computing a constant part may hold. A larger constant, such as `$range` over
/// a million numbers, is computed for each document, where it is charged to the operation.
const MAX_FOLDED_BYTES: usize = 64 * 1024;

/// Operators that make much out of little: they run under the operation's interrupt and memory limit,
/// not while the expression is read.
const MULTIPLIES: [&str; 3] = ["$range", "$replaceAll", "$replaceOne"];

/// Computes a node whose parts are all constant. A node that fails stays as it is, so that the error only
/// arises when and if the expression is reached.
fn fold(node: Node) -> Node {
    let foldable = match &node {
        Node::Positional(operator, _) if MULTIPLIES.contains(&operator.name) => false,
        Node::Named(operator, _) if MULTIPLIES.contains(&operator.name) => false,
        Node::Array(nodes)
        | Node::Positional(_, nodes)
        | Node::And(nodes)
        | Node::Or(nodes)
        | Node::IfNull(nodes) => nodes.iter().all(is_constant),
        Node::Cond(parts) => parts.iter().all(is_constant),
        Node::Object(fields) => fields.iter().all(|(_, node)| is_constant(node)),
        Node::Named(_, nodes) => nodes.iter().flatten().all(is_constant),
        _ => false,
    };
    let node = match node {
        node if !foldable => return node,
        // Moved rather than computed: a large constant is not copied once for each level around it.
        Node::Array(nodes) => {
            return Node::Constant(Bson::Array(nodes.into_iter().filter_map(constant).collect()));
        }
        Node::Object(fields) => {
            let fields = fields.into_iter();
            let document = fields.filter_map(|(name, node)| Some((name, constant(node)?)));
            return Node::Constant(Bson::Document(document.collect()));
        }
        node => node,
    };
    let variables = Variables::default().with_meter(Meter::new(MAX_FOLDED_BYTES));
    let nothing = Document::new();
    let folded = node.evaluate(Frame::new(&nothing, &variables)).map(|value| value.into_bson());
    match folded {
        Ok(Some(value)) => Node::Constant(value),
        _ => node,
    }
}

fn is_constant(node: &Node) -> bool {
    matches!(node, Node::Constant(_))
}

fn constant(node: Node) -> Option<Bson> {
    match node {
        Node::Constant(value) => Some(value),
        _ => None,
    }
}
