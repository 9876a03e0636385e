//! From the BSON form of a query to its tree.
//!
//! Owns the grammar and its refusals; codes and wording follow the server where clients look at
//! them. Recursion is bounded by `MAX_QUERY_DEPTH`.

use std::cell::Cell;

use bson::{Bson, Document, bson};

use super::bits::BitTest;
use super::predicate::InList;
use super::{Comparison, Condition, MAX_QUERY_DEPTH, Node, Predicate, RegexMatcher, Schema};
use crate::error::{QueryError, Result};
use crate::expression::Compiler;
use crate::expression::is_reference_field;
use crate::value::compact::Compact;
use crate::value::{Number, Path, TypeSet, is_truthy, type_name_of};

type Parsed<T> = Result<T>;

/// The most regular expressions in one query: each takes memory of its own.
const MAX_REGEXES: usize = 1_000;

const GEO_OPERATORS: [&str; 10] = [
    "$geoWithin", "$within", "$geoIntersects", "$near", "$nearSphere", "$geoNear", "$maxDistance",
    "$minDistance", "$geometry", "$box",
];

/// Parses a whole query.
pub(super) fn parse_query(query: &Document, compiler: &Compiler) -> Parsed<Node> {
    Parser { compiler, inside_elem_match: false, field: "", regexes: &Cell::new(0) }.query(query, 0)
}

/// Parses a query for an element of an array.
pub(super) fn parse_element(query: &Document, compiler: &Compiler) -> Parsed<Node> {
    Parser { compiler, inside_elem_match: true, field: "", regexes: &Cell::new(0) }.query(query, 0)
}

/// Whether a document holds operators instead of being a value: its first key starts with `$` and
/// is not part of a database reference.
pub(crate) fn is_operator_document(document: &Document) -> bool {
    document.keys().next().is_some_and(|key| key.starts_with('$') && !is_reference_field(key))
}

#[derive(Clone, Copy)]
struct Parser<'a> {
    compiler: &'a Compiler,
    inside_elem_match: bool,
    /// The path that operators belong to, for messages.
    field: &'a str,
    /// How many patterns were compiled so far.
    regexes: &'a Cell<usize>,
}

impl Parser<'_> {
    fn query(self, query: &Document, depth: usize) -> Parsed<Node> {
        check_depth(depth)?;
        let mut children = Vec::with_capacity(query.len());
        for (key, value) in query {
            // In an element that is a database reference, its fields are asked for by name.
            let is_field = self.inside_elem_match && is_reference_field(key);
            let node = if key.starts_with('$') && !is_field {
                self.top_level_operator(key, value, depth)?
            } else {
                self.field(key, value, depth).map(Some)?
            };
            children.extend(node);
        }
        Ok(match children.len() {
            1 => children.remove(0),
            _ => Node::And(children),
        })
    }

    fn field(self, key: &str, value: &Bson, depth: usize) -> Parsed<Node> {
        let condition = Parser { field: key, ..self }.field_value(value, depth)?;
        Ok(Node::Field { path: Path::parse(key)?, condition })
    }

    // The functions on the recursive path stay small, so that the deepest legal query fits the
    // stack of any thread; operators that end the recursion are parsed elsewhere.
    fn top_level_operator(self, key: &str, value: &Bson, depth: usize) -> Parsed<Option<Node>> {
        let combine = match key {
            "$and" => Node::And,
            "$or" => Node::Or,
            "$nor" => Node::Nor,
            _ => return self.top_level_leaf(key, value),
        };
        Ok(Some(combine(self.branches(key, value, depth)?)))
    }

    /// Matches by chance, so many documents of all.
    fn sample_rate(self, value: &Bson) -> Parsed<Node> {
        match Number::from_value(value).map(Number::to_f64) {
            Some(rate) if (0.0..=1.0).contains(&rate) => {
                let chance = bson!({ "$lt": [{ "$rand": {} }, rate] });
                Ok(Node::Expr(self.compiler.compile(&chance)?.into()))
            }
            _ => {
                Err(fail!(BAD_VALUE, "$sampleRate must be a number between 0 and 1, both included"))
            }
        }
    }

    fn top_level_leaf(self, key: &str, value: &Bson) -> Parsed<Option<Node>> {
        Ok(Some(match key {
            "$comment" => return Ok(None),
            "$alwaysTrue" => Node::Constant(true),
            "$alwaysFalse" => Node::Constant(false),
            "$expr" if self.inside_elem_match => {
                refuse!(BAD_VALUE, "$expr can only be applied to the top-level document");
            }
            "$expr" => Node::Expr(self.compiler.compile(value)?.into()),
            "$jsonSchema" => match value {
                Bson::Document(schema) => Node::Schema(Schema::parse(schema)?.into()),
                other => {
                    refuse!(
                        TYPE_MISMATCH,
                        "$jsonSchema must be an object, but got {}",
                        type_name_of(other)
                    );
                }
            },
            "$where" => {
                refuse!(
                    BAD_VALUE,
                    "$where is not supported: this server runs no JavaScript; use $expr instead"
                );
            }
            "$text" => {
                refuse!(
                    INDEX_NOT_FOUND,
                    "text index required for $text query: this server has none; use $regex instead"
                );
            }
            "$sampleRate" => self.sample_rate(value)?,
            key if GEO_OPERATORS.contains(&key) => return Err(geo_refused(key)),
            other => {
                refuse!(
                    BAD_VALUE,
                    "unknown top level operator: {other}. If you have a field name that starts \
                     with a '$' symbol, consider using $getField or $setField."
                );
            }
        }))
    }

    fn branches(self, operator: &str, value: &Bson, depth: usize) -> Parsed<Vec<Node>> {
        let Bson::Array(branches) = value else {
            refuse!(BAD_VALUE, "{operator} must be an array");
        };
        refuse_if!(branches.is_empty() => BAD_VALUE, "$and/$or/$nor must be a nonempty array");
        // Loops instead of iterator chains: each adaptor would be a frame per level.
        let mut nodes = Vec::with_capacity(branches.len());
        for branch in branches {
            let Bson::Document(query) = branch else {
                refuse!(BAD_VALUE, "$or/$and/$nor entries need to be full objects");
            };
            nodes.push(self.query(query, depth + 1)?);
        }
        Ok(nodes)
    }

    /// The right side of a field: a document of operators, a regular expression, or a value.
    fn field_value(self, value: &Bson, depth: usize) -> Parsed<Condition> {
        match value {
            Bson::Document(operators) if is_operator_document(operators) => {
                self.operators(operators, depth + 1)
            }
            Bson::RegularExpression(regex) => {
                let matcher = self.compile(regex.pattern.as_str(), regex.options.as_str())?;
                Ok(Condition::Leaf(Predicate::Regex(matcher)))
            }
            value => equality(value),
        }
    }

    fn compile(self, pattern: &str, options: &str) -> Parsed<RegexMatcher> {
        self.regexes.set(self.regexes.get() + 1);
        refuse_if!(self.regexes.get() > MAX_REGEXES => BAD_VALUE,
            "a query may have at most {MAX_REGEXES} regular expressions; combine them with '|'");
        Ok(RegexMatcher::new(pattern, options)?.with_meter(self.compiler.meter()))
    }

    fn operators(self, operators: &Document, depth: usize) -> Parsed<Condition> {
        check_depth(depth)?;
        let mut conditions = Vec::with_capacity(operators.len());
        for (operator, argument) in operators {
            if let Some(condition) = self.operator(operators, operator, argument, depth)? {
                conditions.push(condition);
            }
        }
        Ok(match conditions.len() {
            1 => conditions.remove(0),
            _ => Condition::And(conditions),
        })
    }

    fn operator(
        self,
        siblings: &Document,
        operator: &str,
        argument: &Bson,
        depth: usize,
    ) -> Parsed<Option<Condition>> {
        match operator {
            "$not" => self.not(argument, depth).map(Some),
            "$all" => self.all(argument, depth).map(Some),
            "$elemMatch" => self.elem_match(argument, depth).map(Some),
            _ => leaf_operator(self, siblings, operator, argument),
        }
    }

    fn not(self, argument: &Bson, depth: usize) -> Parsed<Condition> {
        match argument {
            Bson::RegularExpression(_) => Ok(negated(self.field_value(argument, depth)?)),
            Bson::Document(operators) if operators.is_empty() => {
                Err(fail!(BAD_VALUE, "$not argument must be a non-empty object"))
            }
            Bson::Document(operators) => {
                if let Some(key) = operators.keys().find(|key| !key.starts_with('$')) {
                    refuse!(BAD_VALUE, "unknown operator: {key}");
                }
                Ok(negated(self.operators(operators, depth + 1)?))
            }
            _ => Err(fail!(BAD_VALUE, "$not needs a regex or a document")),
        }
    }

    fn all(self, argument: &Bson, depth: usize) -> Parsed<Condition> {
        let Bson::Array(items) = argument else {
            refuse!(BAD_VALUE, "$all needs an array");
        };
        if items.is_empty() {
            return Ok(Condition::Leaf(Predicate::Nothing));
        }
        let is_elem_match = |item: &Bson| {
            item.as_document().is_some_and(|document| {
                document.keys().next().is_some_and(|key| key == "$elemMatch")
            })
        };
        let elem_matches = is_elem_match(&items[0]);
        let conditions = items
            .iter()
            .map(|item| match item {
                Bson::Document(document) if elem_matches && is_elem_match(item) => {
                    match (document.len(), document.get("$elemMatch")) {
                        (1, Some(query)) => self.elem_match(query, depth),
                        _ => Err(fail!(BAD_VALUE, "$all/$elemMatch has to be consistent")),
                    }
                }
                _ if elem_matches => Err(fail!(BAD_VALUE, "$all/$elemMatch has to be consistent")),
                Bson::Document(document) if is_operator_document(document) => {
                    Err(fail!(BAD_VALUE, "no $ expressions in $all"))
                }
                item => self.field_value(item, depth),
            })
            .collect::<Parsed<Vec<_>>>()?;
        Ok(Condition::And(conditions))
    }

    fn elem_match(self, argument: &Bson, depth: usize) -> Parsed<Condition> {
        let Bson::Document(query) = argument else {
            refuse!(BAD_VALUE, "$elemMatch needs an Object");
        };
        let inner = Self { inside_elem_match: true, ..self };
        let first = query.keys().next().map(String::as_str);
        let is_query = matches!(first, Some("$and" | "$or" | "$nor" | "$where" | "$expr"));
        Ok(Condition::Leaf(if is_operator_document(query) && !is_query {
            Predicate::ElemMatchValue(Box::new(inner.operators(query, depth + 1)?))
        } else {
            Predicate::ElemMatchObject(Box::new(inner.query(query, depth + 1)?))
        }))
    }
}

fn leaf_operator(
    parser: Parser<'_>,
    siblings: &Document,
    operator: &str,
    argument: &Bson,
) -> Parsed<Option<Condition>> {
    use Comparison::{Greater, GreaterOrEqual, Less, LessOrEqual};
    Ok(Some(match operator {
        "$eq" => equality(argument)?,
        "$ne" => match argument {
            Bson::RegularExpression(_) => {
                refuse!(BAD_VALUE, "Can't have regex as arg to $ne.");
            }
            other => negated(equality(other)?),
        },
        "$gt" => inequality(parser, Greater, argument)?,
        "$gte" => inequality(parser, GreaterOrEqual, argument)?,
        "$lt" => inequality(parser, Less, argument)?,
        "$lte" => inequality(parser, LessOrEqual, argument)?,
        "$in" => in_list(parser, operator, argument)?,
        "$nin" => negated(in_list(parser, operator, argument)?),
        "$exists" if is_truthy(argument) => Condition::Leaf(Predicate::Exists),
        "$exists" => negated(Condition::Leaf(Predicate::Exists)),
        "$type" => Condition::Leaf(Predicate::Type(TypeSet::parse(argument)?)),
        "$regex" => regex(parser, argument, siblings.get("$options"))?,
        "$options" if siblings.contains_key("$regex") => return Ok(None),
        "$options" => refuse!(BAD_VALUE, "$options needs a $regex"),
        "$mod" => modulo(argument)?,
        "$size" => size(argument)?,
        "$bitsAllSet" | "$bitsAnySet" | "$bitsAllClear" | "$bitsAnyClear" => {
            Condition::Leaf(Predicate::Bits(BitTest::parse(parser.field, operator, argument)?))
        }
        "$comment" => return Ok(None),
        operator if GEO_OPERATORS.contains(&operator) => return Err(geo_refused(operator)),
        unknown => {
            refuse!(BAD_VALUE, "unknown operator: {unknown}");
        }
    }))
}

fn check_depth(depth: usize) -> Parsed<()> {
    refuse_if!(depth > MAX_QUERY_DEPTH => BAD_VALUE,
        "exceeded maximum query tree depth of {MAX_QUERY_DEPTH}; nest fewer operators");
    Ok(())
}

fn geo_refused(operator: &str) -> QueryError {
    fail!(BAD_VALUE, "{operator} is not supported: this server has no geospatial queries")
}

fn negated(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

fn equality(value: &Bson) -> Parsed<Condition> {
    match value {
        Bson::Undefined => Err(fail!(BAD_VALUE, "cannot compare to undefined")),
        value => Ok(Condition::Leaf(Predicate::Compare(Comparison::Equal, value.clone()))),
    }
}

fn inequality(parser: Parser<'_>, comparison: Comparison, value: &Bson) -> Parsed<Condition> {
    match value {
        Bson::Undefined => Err(fail!(BAD_VALUE, "cannot compare to undefined")),
        Bson::RegularExpression(_) => Err(fail!(
            BAD_VALUE,
            "Can't have RegEx as arg to predicate over field '{}'.",
            parser.field
        )),
        value => Ok(Condition::Leaf(Predicate::Compare(comparison, value.clone()))),
    }
}

fn in_list(parser: Parser<'_>, operator: &str, argument: &Bson) -> Parsed<Condition> {
    let Bson::Array(items) = argument else {
        refuse!(BAD_VALUE, "{operator} needs an array");
    };
    let mut values = Vec::with_capacity(items.len());
    let mut regexes = Vec::new();
    for item in items {
        match item {
            Bson::Document(document) if is_operator_document(document) => {
                refuse!(BAD_VALUE, "cannot nest $ under {operator}");
            }
            Bson::Undefined => {
                refuse!(BAD_VALUE, "InMatchExpression equality cannot be undefined");
            }
            Bson::RegularExpression(regex) => {
                regexes.push(parser.compile(regex.pattern.as_str(), regex.options.as_str())?)
            }
            value => values.push(Compact::from(value.clone())),
        }
    }
    Ok(Condition::Leaf(Predicate::In(InList::new(values, regexes))))
}

fn regex(parser: Parser<'_>, pattern: &Bson, options: Option<&Bson>) -> Parsed<Condition> {
    let options = match options {
        None => None,
        Some(Bson::String(options)) => Some(options.as_str()),
        Some(_) => refuse!(BAD_VALUE, "$options has to be a string"),
    };
    let matcher = match pattern {
        Bson::String(pattern) => parser.compile(pattern, options.unwrap_or(""))?,
        Bson::RegularExpression(regex) => {
            let own = regex.options.as_str();
            refuse_if!(!own.is_empty() && options.is_some() => 51075,
                "options set in both $regex and $options");
            parser.compile(regex.pattern.as_str(), options.unwrap_or(own))?
        }
        _ => refuse!(BAD_VALUE, "$regex has to be a string"),
    };
    Ok(Condition::Leaf(Predicate::Regex(matcher)))
}

fn modulo(argument: &Bson) -> Parsed<Condition> {
    let Bson::Array(parts) = argument else {
        refuse!(BAD_VALUE, "malformed mod, needs to be an array");
    };
    let (divisor, remainder) = match parts.as_slice() {
        [] | [_] => refuse!(BAD_VALUE, "malformed mod, not enough elements"),
        [divisor, remainder] => (divisor, remainder),
        _ => refuse!(BAD_VALUE, "malformed mod, too many elements"),
    };
    let whole = |name: &str, value: &Bson| {
        let number = Number::from_value(value)
            .ok_or_else(|| fail!(BAD_VALUE, "malformed mod, {name} not a number"))?;
        number.to_i64_truncated().ok_or_else(|| {
            fail!(
                BAD_VALUE,
                "malformed mod, {name} value is invalid :: caused by :: Unable to coerce {value} \
                 to an integral type"
            )
        })
    };
    let divisor = whole("divisor", divisor)?;
    refuse_if!(divisor == 0 => BAD_VALUE, "divisor cannot be 0");
    let remainder = whole("remainder", remainder)?;
    Ok(Condition::Leaf(Predicate::Mod { divisor, remainder }))
}

fn size(argument: &Bson) -> Parsed<Condition> {
    let number = Number::from_value(argument).ok_or_else(|| {
        fail!(BAD_VALUE, "Failed to parse $size. Expected a number in: {argument}")
    })?;
    let size = number.to_i64_exact().ok_or_else(|| {
        fail!(BAD_VALUE, "Failed to parse $size. Expected an integer: {argument}")
    })?;
    refuse_if!(size < 0 => BAD_VALUE,
        "Failed to parse $size. Expected a non-negative number in: {argument}");
    Ok(Condition::Leaf(Predicate::Size(size)))
}
