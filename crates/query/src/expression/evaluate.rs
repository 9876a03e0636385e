//! Computing a parsed expression for one document.
//!
//! Owns operators that decide which of their parts are computed at all (`$and`, `$cond`, `$let`,
//! `$map`, …); operators that always compute every argument are in `operators`.

use bson::{Bson, Document};

use super::bounds::{ELEMENT_OVERHEAD, cost};
use super::node::{Base, Convert, Node, Pattern};
use super::operand::Operand;
use super::operators::{self, CONVERSION_FAILURE, Named, Positional, RegexKind, SortBy};
use super::path::FieldPath;
use super::variables::{Frame, Scope};
use crate::error::QueryError;
use crate::meter::{Charge, Kept, push, steps_to_copy};
use crate::typed::Typed;

type Result<T> = std::result::Result<T, QueryError>;

impl Node {
    pub(super) fn evaluate<'a>(&'a self, frame: Frame<'a>) -> Result<Operand<'a>> {
        match self {
            Self::Constant(value) => Ok(Operand::borrowed(value)),
            Self::Path(base, path) => follow(base, path, frame),
            Self::Object(fields) => object(fields, frame),
            Self::Array(nodes) => array(nodes, frame),
            Self::Positional(operator, nodes) => positional(operator, nodes, frame),
            Self::Named(operator, nodes) => named(operator, nodes, frame),
            Self::And(nodes) => every(nodes, frame, true),
            Self::Or(nodes) => every(nodes, frame, false),
            Self::Cond(parts) => cond(parts, frame),
            Self::IfNull(nodes) => if_null(nodes, frame),
            Self::Switch { branches, default } => switch(branches, default.as_deref(), frame),
            Self::Let { first_slot, values, body } => bind(*first_slot, values, body, frame),
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
            Self::SortArray { input, by } => sort_array(input, by, frame),
            Self::Convert(parts) => convert(parts, frame),
            Self::Regex { kind, input, pattern } => regex(*kind, input, pattern, frame),
            // 53 bits are what a double between 0 and 1 can hold.
            Self::Random => Ok(Operand::owned(Bson::Double(
                (frame.variables.next_random() >> 11) as f64 / (1_u64 << 53) as f64,
            ))),
        }
    }
}

// One function for each kind of node: what they keep on the stack would otherwise add up in
// `Node::evaluate`, which stands there once for each level of nesting.

fn positional<'a>(
    operator: &Positional,
    nodes: &'a [Node],
    frame: Frame<'a>,
) -> Result<Operand<'a>> {
    let (values, _held) = arguments(operator.name, nodes, frame)?;
    let meter = frame.variables.meter();
    if values.iter().any(Operand::is_long) {
        meter.check()?;
    }
    let value = operator.evaluate(&values, meter)?;
    made(operator.name, value, frame)
}

fn named<'a>(operator: &Named, nodes: &'a [Option<Node>], frame: Frame<'a>) -> Result<Operand<'a>> {
    let values: Vec<_> = nodes
        .iter()
        .map(|node| node.as_ref().map(|node| node.evaluate(frame)).transpose())
        .collect::<Result<_>>()?;
    if values.iter().flatten().any(Operand::is_long) {
        frame.variables.meter().check()?;
    }
    let value = (operator.evaluate)(&values, frame.variables.meter())?;
    made(operator.name, value, frame)
}

fn cond<'a>(parts: &'a [Node; 3], frame: Frame<'a>) -> Result<Operand<'a>> {
    let [condition, then, otherwise] = parts;
    let chosen = if condition.evaluate(frame)?.is_true() { then } else { otherwise };
    chosen.evaluate(frame)
}

fn bind<'a>(
    first_slot: usize,
    values: &'a [Node],
    body: &'a Node,
    frame: Frame<'a>,
) -> Result<Operand<'a>> {
    let (values, _held) = arguments("$let", values, frame)?;
    within(frame, first_slot, values, body)
}

fn sort_array<'a>(input: &'a Node, by: &SortBy, frame: Frame<'a>) -> Result<Operand<'a>> {
    made(
        "$sortArray",
        operators::sort_array(&input.evaluate(frame)?, by, frame.variables.meter())?,
        frame,
    )
}

fn regex<'a>(
    kind: RegexKind,
    input: &'a Node,
    pattern: &'a Pattern,
    frame: Frame<'a>,
) -> Result<Operand<'a>> {
    let input = input.evaluate(frame)?;
    let meter = frame.variables.meter();
    let found = match pattern {
        Pattern::Compiled(regex) => kind.search(&input, regex.as_ref(), meter)?,
        Pattern::Computed { regex, options } => {
            let regex = regex.evaluate(frame)?;
            let options = options.as_ref().map(|options| options.evaluate(frame)).transpose()?;
            let compiled = kind.compile(&regex, options.as_ref())?;
            kind.search(&input, compiled.as_ref(), meter)?
        }
    };
    Operand::charged(found, kind.name(), meter)
}

/// The result of an operator, charged to the operation.
fn made(operator: &str, value: Option<Bson>, frame: Frame<'_>) -> Result<Operand<'static>> {
    match value {
        None => Ok(Operand::MISSING),
        Some(value) => Operand::charged(value, operator, frame.variables.meter()),
    }
}

/// More arguments than this are charged as a whole, however small each is.
const FEW: usize = 32;

/// The arguments of an operator, and what a long list of them holds.
fn arguments<'a>(
    operator: &str,
    nodes: &'a [Node],
    frame: Frame<'a>,
) -> Result<(Vec<Operand<'a>>, Option<Charge>)> {
    let mut held = (nodes.len() > FEW).then(|| frame.variables.meter().charge());
    let mut values = Vec::with_capacity(nodes.len());
    for node in nodes {
        let value = node.evaluate(frame)?;
        if let Some(held) = &mut held {
            frame.variables.step()?;
            held.grow(operator, value.own_cost())?;
        }
        values.push(value);
    }
    Ok((values, held))
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
        Base::UserRoles => return Ok(path.follow(frame.variables.user_roles())),
        Base::Remove => return Ok(Operand::MISSING),
        Base::Now => frame.variables.now()?,
        Base::ClusterTime => frame.variables.cluster_time()?,
    };
    // Dates and timestamps have no fields.
    Ok(if path.is_empty() { Operand::owned(made) } else { Operand::MISSING })
}

fn object<'a>(fields: &'a [(String, Node)], frame: Frame<'a>) -> Result<Operand<'a>> {
    let mut document = Document::new();
    let mut charge = frame.variables.meter().charge();
    for (name, node) in fields {
        frame.variables.step()?;
        let value = node.evaluate(frame)?;
        if let Some(found) = value.get() {
            charge.grow("an object expression", cost(found)? + name.len())?;
        }
        if let Some(value) = value.into_bson() {
            document.insert(name.as_str(), value);
        }
    }
    Ok(Operand::built(Bson::Document(document), charge))
}

fn array<'a>(nodes: &'a [Node], frame: Frame<'a>) -> Result<Operand<'a>> {
    let mut elements = Vec::with_capacity(nodes.len());
    let mut charge = frame.variables.meter().charge();
    for node in nodes {
        frame.variables.step()?;
        let value = node.evaluate(frame)?;
        charge.grow("an array expression", cost(value.or_null())?)?;
        elements.push(value.into_bson().unwrap_or(Bson::Null));
    }
    Ok(Operand::built(Bson::Array(elements), charge))
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
        None => Err(fail!(
            40066,
            "$switch could not find a matching branch for an input, and no default was specified."
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
    body.evaluate(Frame { scope: Some(&scope), ..frame })?
        .into_static("$let", frame.variables.meter())
}

fn map<'a>(input: &'a Node, slot: usize, body: &'a Node, frame: Frame<'a>) -> Result<Operand<'a>> {
    let input = input.evaluate(frame)?;
    if input.is_nullish() {
        return Ok(Operand::owned(Bson::Null));
    }
    let elements = input.array(16883, "input to $map must be an array not")?;
    let mut charge = frame.variables.meter().charge();
    charge.grow("$map", elements.len() * ELEMENT_OVERHEAD)?;
    let mut mapped = Kept::new(Vec::with_capacity(elements.len()), frame.variables.meter());
    for element in elements {
        frame.variables.step()?;
        let scope = Scope {
            first_slot: slot,
            values: vec![Operand::borrowed(element)],
            parent: frame.scope,
        };
        let value = body.evaluate(Frame { scope: Some(&scope), ..frame })?;
        charge.grow("$map", cost(value.or_null())?.saturating_sub(ELEMENT_OVERHEAD))?;
        mapped.push(value.into_bson().unwrap_or(Bson::Null));
    }
    Ok(Operand::built(Bson::Array(mapped.into_inner()), charge))
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
    let elements = input.array(28651, "input to $filter must be an array not")?;
    let limit = match limit {
        None => usize::MAX,
        Some(node) => filter_limit(&node.evaluate(frame)?)?,
    };
    let mut kept = Kept::new(Vec::new(), frame.variables.meter());
    let mut charge = frame.variables.meter().charge();
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
            let bytes = cost(element)?;
            charge.grow("$filter", bytes)?;
            frame.variables.meter().steps(steps_to_copy(bytes))?;
            push(&mut kept, element.clone());
        }
    }
    Ok(Operand::built(Bson::Array(kept.into_inner()), charge))
}

fn filter_limit(limit: &Operand<'_>) -> Result<usize> {
    if limit.is_nullish() {
        return Ok(usize::MAX);
    }
    let Some(number) = operators::as_i32(limit.or_null()) else {
        refuse!(
            327391,
            "$filter: limit must be represented as a 32-bit integral value: {}",
            limit.shown()
        );
    };
    match usize::try_from(number) {
        Ok(limit) if limit > 0 => Ok(limit),
        _ => Err(fail!(327392, "$filter: limit must be greater than 0: {number}")),
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
        refuse!(40080, "$reduce requires that 'input' be an array, found: {}", input.shown());
    };
    let meter = frame.variables.meter();
    let mut value = initial.evaluate(frame)?.into_static("$reduce", meter)?;
    for element in elements {
        frame.variables.step()?;
        let values = vec![value, Operand::borrowed(element)];
        let scope = Scope { first_slot, values, parent: frame.scope };
        let next = body.evaluate(Frame { scope: Some(&scope), ..frame })?;
        value = next.into_static("$reduce", meter)?;
    }
    Ok(value)
}

fn convert<'a>(parts: &'a Convert, frame: Frame<'a>) -> Result<Operand<'a>> {
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
        (Err(error), Some(on_error)) if error.code() == CONVERSION_FAILURE => {
            on_error.evaluate(frame)
        }
        (converted, _) => made("$convert", Some(converted?), frame),
    }
}

fn zip<'a>(
    inputs: &'a [Node],
    use_longest: bool,
    defaults: &'a [Node],
    frame: Frame<'a>,
) -> Result<Operand<'a>> {
    let (inputs, _held) = arguments("$zip", inputs, frame)?;
    let (defaults, _also) = arguments("$zip", defaults, frame)?;
    if inputs.iter().any(Operand::is_nullish) {
        return Ok(Operand::owned(Bson::Null));
    }
    let mut arrays = Vec::with_capacity(inputs.len());
    for input in &inputs {
        arrays.push(input.as_array().ok_or_else(|| {
            fail!(34468, "$zip found a non-array expression in input: {}", input.shown())
        })?);
    }
    let lengths = arrays.iter().map(|array| array.len());
    let length = if use_longest { lengths.max() } else { lengths.min() }.unwrap_or(0);
    let meter = frame.variables.meter();
    let mut charge = meter.charge();
    charge.grow("$zip", length * ELEMENT_OVERHEAD)?;
    let mut rows = Kept::new(Vec::with_capacity(length), meter);
    for position in 0..length {
        meter.step()?;
        let mut row = Vec::with_capacity(arrays.len());
        for (column, array) in arrays.iter().enumerate() {
            let default = || defaults.get(column).map_or(&Bson::Null, Operand::or_null);
            let value = array.get(position).unwrap_or_else(default);
            let bytes = cost(value)?;
            charge.grow("$zip", bytes)?;
            meter.steps(steps_to_copy(bytes))?;
            row.push(value.clone());
        }
        rows.push(Bson::Array(row));
    }
    Ok(Operand::built(Bson::Array(rows.into_inner()), charge))
}
