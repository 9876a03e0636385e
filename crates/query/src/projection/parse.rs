//! From the BSON form of a projection to its tree.
//!
//! Owns the rules on mixing inclusion and exclusion, on path collisions, and on which forms `find`
//! and `$project` allow. Codes are the server's.

use bson::{Bson, Document};

use super::{Child, Fields, Kind, Slice, Tree};
use crate::error::{Result, caused_by};
use crate::expression::{Compiler, Expression, FieldPath, ParseContext};
use crate::matcher::Matcher;
use crate::typed::Typed;
use crate::value::{MAX_NESTING, Number, is_truthy};

impl Fields {
    /// Parses the projection of a `find`.
    pub(super) fn parse_find(projection: &Document, compiler: &Compiler) -> Result<Self> {
        Parser::new(compiler.context(), Some(compiler)).parse(projection)
    }

    /// Parses the argument of `$project`.
    pub(crate) fn parse_project(spec: &Bson, context: &ParseContext) -> Result<Self> {
        let Bson::Document(spec) = spec else {
            refuse!(15969, "$project specification must be an object");
        };
        let parsed = match spec.is_empty() {
            true => Err(fail!(51272, "projection specification must have at least one field")),
            false => Parser::new(context, None).parse(spec),
        };
        parsed.map_err(|error| caused_by(&error, "Invalid $project"))
    }

    /// Parses the argument of `$unset`: a field or an array of fields to leave out.
    pub(crate) fn parse_unset(spec: &Bson) -> Result<Self> {
        let names = match spec {
            Bson::String(_) => std::slice::from_ref(spec),
            Bson::Array(names) if names.is_empty() => {
                refuse!(
                    31119,
                    "$unset specification must be a string or an array with at least one field"
                );
            }
            Bson::Array(names) => names,
            _ => refuse!(31002, "$unset specification must be a string or an array"),
        };
        let mut root = Tree::default();
        for name in names {
            let Bson::String(name) = name else {
                refuse!(
                    31120,
                    "$unset specification must be a string or an array containing only string \
                     values"
                );
            };
            add_at_path(&mut root, name, Child::Exclude)
                .map_err(|error| caused_by(&error, "Invalid $unset"))?;
        }
        Ok(Self { kind: Kind::Exclusion, root, needs_array_index: false })
    }
}

/// The state of parsing one projection.
struct Parser<'a> {
    context: &'a ParseContext,
    /// The compiler of a `find`; with it, the forms that only `find` knows are allowed.
    find: Option<&'a Compiler>,
    kind: Option<Kind>,
    has_slice: bool,
    has_elem_match: bool,
    has_positional: bool,
    id_specified: bool,
    id_included: bool,
}

impl<'a> Parser<'a> {
    fn new(context: &'a ParseContext, find: Option<&'a Compiler>) -> Self {
        Self {
            context,
            find,
            kind: None,
            has_slice: false,
            has_elem_match: false,
            has_positional: false,
            id_specified: false,
            id_included: false,
        }
    }

    fn parse(mut self, projection: &Document) -> Result<Fields> {
        let mut root = Tree::default();
        for (field, value) in projection {
            self.id_specified |= field == "_id" || field.starts_with("_id.");
            self.element(field, value, &mut root, 0)?;
        }
        let kind = self.kind.unwrap_or_else(|| self.kind_of_ambiguous());
        match kind {
            Kind::Inclusion if !self.id_specified => {
                root.push("_id", Child::Include);
            }
            Kind::Exclusion if self.id_included => {
                // An exclusion keeps `_id` without naming it.
                if let Some(child) = root.get_mut("_id") {
                    *child = Child::Include;
                }
            }
            _ => {}
        }
        root.note_computed();
        Ok(Fields { kind, root, needs_array_index: self.has_positional })
    }

    /// Nothing but `_id` and the forms of `find` was given. `$slice` keeps the other fields,
    /// `$elemMatch` does not.
    fn kind_of_ambiguous(&self) -> Kind {
        if self.id_included || (self.has_elem_match && !self.has_slice) {
            Kind::Inclusion
        } else {
            Kind::Exclusion
        }
    }

    fn element(
        &mut self,
        field: &str,
        value: &Bson,
        parent: &mut Tree,
        depth: usize,
    ) -> Result<()> {
        let positional = positional_at(field);
        refuse_if!(positional.is_some() && self.find.is_none() => 31324,
            "Cannot use positional projection in aggregation projection");
        match value {
            Bson::Document(_) if positional.is_some() => Err(fail!(
                31271,
                "positional projection cannot be used with an expression or sub object"
            )),
            Bson::Document(inner) => self.sub_document(field, inner, parent, depth),
            Bson::Boolean(_)
            | Bson::Int32(_)
            | Bson::Int64(_)
            | Bson::Double(_)
            | Bson::Decimal128(_) => {
                if !is_truthy(value) && positional.is_some() {
                    Err(fail!(31395, "positional projection cannot be used with exclusion"))
                } else if !is_truthy(value) {
                    self.exclusion(field, parent, depth)
                } else if let Some((path, rest)) = positional {
                    self.positional(field, path, rest, parent)
                } else {
                    self.inclusion(field, parent, depth)
                }
            }
            _ if positional.is_some() => {
                Err(fail!(31308, "positional projection cannot be used with a literal"))
            }
            literal => self.expression(field, literal, parent, 31310),
        }
    }

    fn inclusion(&mut self, field: &str, parent: &mut Tree, depth: usize) -> Result<()> {
        add_at_path(parent, field, Child::Include)?;
        if field == "_id" && depth == 0 {
            self.id_included = true;
            return Ok(());
        }
        self.include(field)
    }

    fn include(&mut self, field: &str) -> Result<()> {
        refuse_if!(self.kind == Some(Kind::Exclusion) => 31253,
            "Cannot do inclusion on field {field} in exclusion projection");
        self.kind = Some(Kind::Inclusion);
        Ok(())
    }

    fn exclusion(&mut self, field: &str, parent: &mut Tree, depth: usize) -> Result<()> {
        add_at_path(parent, field, Child::Exclude)?;
        if field == "_id" && depth == 0 {
            return Ok(());
        }
        refuse_if!(self.kind == Some(Kind::Inclusion) => 31254,
            "Cannot do exclusion on field {field} in inclusion projection");
        self.kind = Some(Kind::Exclusion);
        Ok(())
    }

    fn positional(&mut self, field: &str, path: &str, rest: &str, parent: &mut Tree) -> Result<()> {
        refuse_if!(!rest.is_empty() => 31394,
            "As of 4.4, it's illegal to specify positional operator in the middle of a \
             path. Positional projection may only be used at the end, for example: \
             a.b.$. Remove the parts following the '$' in {field} and the results will \
             be equivalent.");
        refuse_if!(self.has_positional => 31276,
            "Cannot specify more than one positional projection per query.");
        refuse_if!(self.has_elem_match => 31256,
            "Cannot specify positional operator and $elemMatch.");
        self.has_positional = true;
        add_at_path(parent, path, Child::Positional)?;
        self.include(field)
    }

    fn sub_document(
        &mut self,
        field: &str,
        inner: &Document,
        parent: &mut Tree,
        depth: usize,
    ) -> Result<()> {
        refuse_if!(inner.is_empty() => 51270,
            "An empty sub-projection is not a valid value. Found empty object at path \
             {field}");
        refuse_if!(depth >= MAX_NESTING => OVERFLOW,
            "a projection may be nested at most {MAX_NESTING} levels deep");
        if let Some((operator, argument)) = inner.iter().next()
            && inner.len() == 1
            && operator.starts_with('$')
        {
            return self.operator(field, operator, argument, inner, parent, depth);
        }
        let level = level_at(parent, field)?;
        inner.iter().try_for_each(|(name, value)| self.element(name, value, level, depth + 1))
    }

    fn operator(
        &mut self,
        field: &str,
        operator: &str,
        argument: &Bson,
        whole: &Document,
        parent: &mut Tree,
        depth: usize,
    ) -> Result<()> {
        match (operator, self.find) {
            ("$slice", Some(_)) => match parse_slice(argument) {
                Ok(slice) => {
                    self.has_slice = true;
                    add_at_path(parent, field, Child::Slice(slice))
                }
                // With three arguments, or a path, it is the expression of that name.
                Err(error) => {
                    let value = Bson::Document(whole.clone());
                    self.expression(field, &value, parent, 31252).map_err(|_| error)
                }
            },
            ("$elemMatch", Some(compiler)) => {
                self.elem_match(field, argument, parent, depth, compiler)
            }
            ("$elemMatch", None) => {
                Err(fail!(INVALID_PIPELINE_OPERATOR, "Cannot use $elemMatch in this context"))
            }
            ("$meta", _) => Err(fail!(
                BAD_VALUE,
                "$meta is not supported: this server keeps no text scores or sort keys"
            )),
            _ => {
                let value = Bson::Document(whole.clone());
                self.expression(field, &value, parent, 31252)
            }
        }
    }

    fn elem_match(
        &mut self,
        field: &str,
        argument: &Bson,
        parent: &mut Tree,
        depth: usize,
        compiler: &Compiler,
    ) -> Result<()> {
        argument.document(31274, "elemMatch: Invalid argument, object required, but got")?;
        refuse_if!(self.has_positional => 31255,
            "Cannot specify positional operator and $elemMatch.");
        refuse_if!(depth > 0 || field.contains('.') => 31275,
            "Cannot use $elemMatch projection on a nested field.");
        let mut operator = Document::new();
        operator.insert("$elemMatch", argument.clone());
        let mut query = Document::new();
        query.insert(field, operator);
        self.has_elem_match = true;
        add_at_path(parent, field, Child::ElemMatch(Matcher::parse_with(&query, compiler)?))
    }

    fn expression(
        &mut self,
        field: &str,
        value: &Bson,
        parent: &mut Tree,
        code: i32,
    ) -> Result<()> {
        refuse_if!(self.kind == Some(Kind::Exclusion) => (code),
            "Cannot use an expression {field}: {value} in an exclusion projection");
        let expression = Expression::parse(value, self.context)?;
        self.kind = Some(Kind::Inclusion);
        add_at_path(parent, field, Child::Computed(expression))
    }
}

/// Splits a path at its first `$`: what stands before and what after.
fn positional_at(path: &str) -> Option<(&str, &str)> {
    if let Some(found) = path.find(".$.") {
        return Some((&path[..found], &path[found + 3..]));
    }
    path.strip_suffix(".$").map(|before| (before, ""))
}

fn parse_slice(argument: &Bson) -> Result<Slice> {
    let number = |value: &Bson| Number::from_value(value).map(Number::to_f64).map(|n| n as i64);
    if let Some(limit) = number(argument) {
        return Ok(Slice { skip: None, limit });
    }
    let Bson::Array(parts) = argument else {
        refuse!(31273, "$slice only supports numbers and [skip, limit] arrays");
    };
    let [skip, limit] = parts.as_slice() else {
        refuse!(31272, "$slice array argument should be of form [skip, limit]");
    };
    let skip = number(skip)
        .ok_or_else(|| fail!(31257, "$slice expects the skip argument to be a number"))?;
    let limit = number(limit)
        .ok_or_else(|| fail!(31258, "$slice expects the limit argument to be a number"))?;
    refuse_if!(limit <= 0 => 31259, "$slice limit must be positive, got {limit}");
    Ok(Slice { skip: Some(skip), limit })
}

/// Puts a child at a dotted path, making the levels in between.
pub(super) fn add_at_path(root: &mut Tree, path: &str, child: Child) -> Result<()> {
    let parsed = FieldPath::parse(path)?;
    let Some((last, parents)) = parsed.components().split_last() else { return Ok(()) };
    let level = descend(root, path, parents, parsed.components())?;
    refuse_if!(level.get(last).is_some() => 31250, "Path collision at {path}");
    level.push(last, child);
    Ok(())
}

/// The level at a dotted path, which is made if it is not there.
pub(super) fn level_at<'a>(root: &'a mut Tree, path: &str) -> Result<&'a mut Tree> {
    let parsed = FieldPath::parse(path)?;
    descend(root, path, parsed.components(), parsed.components())
}

/// Goes down along some components of a path.
fn descend<'a>(
    root: &'a mut Tree,
    path: &str,
    along: &[String],
    components: &[String],
) -> Result<&'a mut Tree> {
    let mut tree = root;
    for (level, name) in along.iter().enumerate() {
        if tree.get(name).is_none() {
            tree.push(name, Child::Nested(Tree::default()));
        }
        match tree.get_mut(name) {
            Some(Child::Nested(inner)) => tree = inner,
            _ => {
                let remaining = components.get(level + 1..).unwrap_or_default().join(".");
                return Err(match remaining.is_empty() {
                    true => fail!(31250, "Path collision at {path}"),
                    false => fail!(31249, "Path collision at {path} remaining portion {remaining}"),
                });
            }
        }
    }
    Ok(tree)
}
