//! Computing a parsed expression for one document.
//!
//! Owns operators that decide which of their parts are computed at all (`$and`, `$cond`, `$let`,
//! `$map`, …); operators that always compute every argument are in `operators`.

use bson::{Bson, Document};

use super::bounds::Budget;
use super::node::{Base, Convert, Node, Pattern};
use super::operand::Operand;
use super::operators;
use super::path::FieldPath;
use super::variables::{Frame, Scope};
use super::{ExpressionError, fail};

type Result<T> = std::result::Result<T, ExpressionError>;

impl Node {
    pub(super) fn evaluate<'a>(&'a self, frame: Frame<'a>) -> Result<Operand<'a>> {
        match self {
            Self::Constant(value) => Ok(Operand::borrowed(value)),
            Self::Path(base, path) => follow(base, path, frame),
            Self::Object(fields) => object(fields, frame),
            Self::Array(nodes) => array(nodes, frame),
            Self::Positional(operator, nodes) => {
                let values: Vec<_> =
                    nodes.iter().map(|node| node.evaluate(frame)).collect::<Result<_>>()?;
                (operator.evaluate)(&values).map(from_option)
            }
            Self::Named(operator, nodes) => {
                let values: Vec<_> = nodes
                    .iter()
                    .map(|node| node.as_ref().map(|node| node.evaluate(frame)).transpose())
                    .collect::<Result<_>>()?;
                (operator.evaluate)(&values).map(from_option)
            }
            Self::And(nodes) => every(nodes, frame, true),
            Self::Or(nodes) => every(nodes, frame, false),
            Self::Cond(parts) => {
                let [condition, then, otherwise] = &**parts;
                let chosen = if condition.evaluate(frame)?.is_true() { then } else { otherwise };
                chosen.evaluate(frame)
            }
            Self::IfNull(nodes) => if_null(nodes, frame),
            Self::Switch { branches, default } => switch(branches, default.as_deref(), frame),
            Self::Let { first_slot, values, body } => {
                let values =
                    values.iter().map(|node| node.evaluate(frame)).collect::<Result<_>>()?;
                within(frame, *first_slot, values, body)
            }
            Self::Map { input, slot, body } => map(input, *slot, body, frame),
            Self::Filter { input, slot, condition, limit } => {
                filter(input, *slot, condition, limit.as_deref(), frame)
            }
            Self::Reduce { input, initial, first_slot, body } => {
                reduce(input, initial, *first_slot, body, frame)
            }
            Self::Zip { inputs, use_longest, defaults } => {
                zip(inputs, *use_longest, defaults, frame)
            }
            Self::SortArray { input, by } => {
                operators::sort_array(&input.evaluate(frame)?, by).map(from_option)
            }
            Self::Convert(parts) => convert(parts, frame),
            Self::Regex { kind, input, pattern } => {
                let input = input.evaluate(frame)?;
                let found = match pattern {
                    Pattern::Compiled(regex) => kind.search(&input, regex.as_ref()),
                    Pattern::Computed { regex, options } => {
                        let regex = regex.evaluate(frame)?;
                        let options =
                            options.as_ref().map(|options| options.evaluate(frame)).transpose()?;
                        kind.search(&input, kind.compile(&regex, options.as_ref())?.as_ref())
                    }
                };
                found.map(Operand::owned)
            }
            // 53 bits are what a double between 0 and 1 can hold.
            Self::Random => Ok(Operand::owned(Bson::Double(
                (frame.variables.next_random() >> 11) as f64 / (1_u64 << 53) as f64,
            ))),
        }
    }
}

fn from_option(value: Option<Bson>) -> Operand<'static> {
    value.map_or(Operand::MISSING, Operand::owned)
}

fn follow<'a>(base: &Base, path: &FieldPath, frame: Frame<'a>) -> Result<Operand<'a>> {
    let made = match base {
        Base::Current => return Ok(path.follow_document(frame.current)),
        Base::Root => return Ok(path.follow_document(frame.root)),
        Base::Slot(slot) => {
            return Ok(match frame.slot(*slot).get() {
                Some(value) => path.follow(value),
                None => Operand::MISSING,
            });
        }
        Base::User(name) => {
            return Ok(match frame.variables.user(name) {
                Some(value) => path.follow(value),
                None => Operand::MISSING,
            });
        }
        Base::Remove => return Ok(Operand::MISSING),
        Base::Now => frame.variables.now()?,
        Base::ClusterTime => frame.variables.cluster_time()?,
    };
    // Dates and timestamps have no fields.
    Ok(if path.is_empty() { Operand::owned(made) } else { Operand::MISSING })
}

fn object<'a>(fields: &'a [(String, Node)], frame: Frame<'a>) -> Result<Operand<'a>> {
    let mut document = Document::new();
    let mut budget = Budget::default();
    for (name, node) in fields {
        if let Some(value) = node.evaluate(frame)?.into_bson() {
            budget.draw("an object expression", &value)?;
            document.insert(name.as_str(), value);
        }
    }
    Ok(Operand::owned(Bson::Document(document)))
}

fn array<'a>(nodes: &'a [Node], frame: Frame<'a>) -> Result<Operand<'a>> {
    let mut elements = Vec::with_capacity(nodes.len());
    let mut budget = Budget::default();
    for node in nodes {
        let value = node.evaluate(frame)?.into_bson().unwrap_or(Bson::Null);
        budget.draw("an array expression", &value)?;
        elements.push(value);
    }
    Ok(Operand::owned(Bson::Array(elements)))
}

/// `$and` if `wanted`, otherwise `$or`: stops at the first argument that decides.
fn every<'a>(nodes: &'a [Node], frame: Frame<'a>, wanted: bool) -> Result<Operand<'a>> {
    for node in nodes {
        if node.evaluate(frame)?.is_true() != wanted {
            return Ok(Operand::owned(Bson::Boolean(!wanted)));
        }
    }
    Ok(Operand::owned(Bson::Boolean(wanted)))
}

fn if_null<'a>(nodes: &'a [Node], frame: Frame<'a>) -> Result<Operand<'a>> {
    let mut value = Operand::MISSING;
    for node in nodes {
        value = node.evaluate(frame)?;
        if !value.is_nullish() {
            break;
        }
    }
    Ok(value)
}

fn switch<'a>(
    branches: &'a [(Node, Node)],
    default: Option<&'a Node>,
    frame: Frame<'a>,
) -> Result<Operand<'a>> {
    for (case, then) in branches {
        if case.evaluate(frame)?.is_true() {
            return then.evaluate(frame);
        }
    }
    match default {
        Some(default) => default.evaluate(frame),
        None => Err(fail(
            40066,
            "$switch could not find a matching branch for an input, and no default was specified.",
        )),
    }
}

/// Computes a node with more variables bound around it.
fn within<'a>(
    frame: Frame<'a>,
    first_slot: usize,
    values: Vec<Operand<'a>>,
    body: &'a Node,
) -> Result<Operand<'a>> {
    let scope = Scope { first_slot, values, parent: frame.scope };
    body.evaluate(Frame { scope: Some(&scope), ..frame }).map(Operand::into_static)
}

fn map<'a>(input: &'a Node, slot: usize, body: &'a Node, frame: Frame<'a>) -> Result<Operand<'a>> {
    let input = input.evaluate(frame)?;
    if input.is_nullish() {
        return Ok(Operand::owned(Bson::Null));
    }
    let Some(elements) = input.as_array() else {
        return Err(fail(
            16883,
            format!("input to $map must be an array not {}", input.type_name()),
        ));
    };
    let mut mapped = Vec::with_capacity(elements.len());
    let mut budget = Budget::default();
    for element in elements {
        frame.variables.step()?;
        let scope = Scope {
            first_slot: slot,
            values: vec![Operand::borrowed(element)],
            parent: frame.scope,
        };
        let value = body.evaluate(Frame { scope: Some(&scope), ..frame })?;
        let value = value.into_bson().unwrap_or(Bson::Null);
        budget.draw("$map", &value)?;
        mapped.push(value);
    }
    Ok(Operand::owned(Bson::Array(mapped)))
}

fn filter<'a>(
    input: &'a Node,
    slot: usize,
    condition: &'a Node,
    limit: Option<&'a Node>,
    frame: Frame<'a>,
) -> Result<Operand<'a>> {
    let input = input.evaluate(frame)?;
    if input.is_nullish() {
        return Ok(Operand::owned(Bson::Null));
    }
    let Some(elements) = input.as_array() else {
        return Err(fail(
            28651,
            format!("input to $filter must be an array not {}", input.type_name()),
        ));
    };
    let limit = match limit {
        None => usize::MAX,
        Some(node) => filter_limit(&node.evaluate(frame)?)?,
    };
    let mut kept = Vec::new();
    for element in elements {
        if kept.len() >= limit {
            break;
        }
        frame.variables.step()?;
        let scope = Scope {
            first_slot: slot,
            values: vec![Operand::borrowed(element)],
            parent: frame.scope,
        };
        if condition.evaluate(Frame { scope: Some(&scope), ..frame })?.is_true() {
            kept.push(element.clone());
        }
    }
    Ok(Operand::owned(Bson::Array(kept)))
}

fn filter_limit(limit: &Operand<'_>) -> Result<usize> {
    if limit.is_nullish() {
        return Ok(usize::MAX);
    }
    let Some(number) = operators::as_i32(limit.or_null()) else {
        return Err(fail(
            327391,
            format!(
                "$filter: limit must be represented as a 32-bit integral value: {}",
                limit.or_null()
            ),
        ));
    };
    match usize::try_from(number) {
        Ok(limit) if limit > 0 => Ok(limit),
        _ => Err(fail(327392, format!("$filter: limit must be greater than 0: {number}"))),
    }
}

fn reduce<'a>(
    input: &'a Node,
    initial: &'a Node,
    first_slot: usize,
    body: &'a Node,
    frame: Frame<'a>,
) -> Result<Operand<'a>> {
    let input = input.evaluate(frame)?;
    if input.is_nullish() {
        return Ok(Operand::owned(Bson::Null));
    }
    let Some(elements) = input.as_array() else {
        return Err(fail(
            40080,
            format!("$reduce requires that 'input' be an array, found: {}", input.or_null()),
        ));
    };
    let mut value = initial.evaluate(frame)?.into_static();
    for element in elements {
        frame.variables.step()?;
        let values = vec![value, Operand::borrowed(element)];
        let scope = Scope { first_slot, values, parent: frame.scope };
        let next = body.evaluate(Frame { scope: Some(&scope), ..frame })?.into_static();
        if let Some(grown) = next.get() {
            Budget::default().draw("$reduce", grown)?;
        }
        value = next;
    }
    Ok(value)
}

fn convert<'a>(parts: &'a Convert, frame: Frame<'a>) -> Result<Operand<'a>> {
    const CONVERSION_FAILURE: i32 = 241;
    let input = parts.input.evaluate(frame)?;
    let to = parts.to.evaluate(frame)?;
    if input.is_nullish() {
        return match &parts.on_null {
            Some(on_null) => on_null.evaluate(frame),
            None => Ok(Operand::owned(Bson::Null)),
        };
    }
    if to.is_nullish() {
        return Ok(Operand::owned(Bson::Null));
    }
    let target = operators::Target::parse(to.or_null())?;
    match (operators::convert(input.or_null(), target), &parts.on_error) {
        (Err(error), Some(on_error)) if error.code().0 == CONVERSION_FAILURE => {
            on_error.evaluate(frame)
        }
        (converted, _) => converted.map(Operand::owned),
    }
}

fn zip<'a>(
    inputs: &'a [Node],
    use_longest: bool,
    defaults: &'a [Node],
    frame: Frame<'a>,
) -> Result<Operand<'a>> {
    let inputs: Vec<_> = inputs.iter().map(|node| node.evaluate(frame)).collect::<Result<_>>()?;
    let defaults: Vec<_> =
        defaults.iter().map(|node| node.evaluate(frame)).collect::<Result<_>>()?;
    if inputs.iter().any(Operand::is_nullish) {
        return Ok(Operand::owned(Bson::Null));
    }
    let mut arrays = Vec::with_capacity(inputs.len());
    for input in &inputs {
        arrays.push(input.as_array().ok_or_else(|| {
            fail(34468, format!("$zip found a non-array expression in input: {}", input.or_null()))
        })?);
    }
    let lengths = arrays.iter().map(|array| array.len());
    let length = if use_longest { lengths.max() } else { lengths.min() }.unwrap_or(0);
    let mut rows = Vec::with_capacity(length);
    let mut budget = Budget::default();
    for position in 0..length {
        let row = arrays.iter().enumerate().map(|(column, array)| {
            let default = || defaults.get(column).map(|default| default.or_null().clone());
            array.get(position).cloned().or_else(default).unwrap_or(Bson::Null)
        });
        let row = Bson::Array(row.collect());
        budget.draw("$zip", &row)?;
        rows.push(row);
    }
    Ok(Operand::owned(Bson::Array(rows)))
}
