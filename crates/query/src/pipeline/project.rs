//! `$project`, `$addFields`/`$set` and `$unset`: which fields a document has, and computing new ones.
//!
//! A specification becomes a tree of field names. Unlike a `find` projection, a sub-document is
//! always a sub-projection, and there are no positional operators.

use std::collections::HashMap;

use bson::{Bson, Document};

use crate::error::{ErrorCode, QueryError, caused_by, fail};
use crate::expression::{
    Dependencies, Expression, FieldPath, Frame, MAX_EXPRESSION_DEPTH, ParseContext, Variables, cost,
};
use crate::meter::Charge;
use crate::typed::Typed;

/// The name of computed fields in errors about memory.
const COMPUTED: &str = "a computed field of $addFields, $set or $project";

/// The change to one field.
#[derive(Clone, Debug)]
enum Branch {
    /// It stays (inclusion) or goes (exclusion), according to the mode.
    Named,
    /// It gets a value.
    Computed(Expression),
    /// Fields inside it change.
    Inside(Tree),
}

/// The changes to the fields of one level, in the order they were written.
#[derive(Clone, Debug, Default)]
struct Tree {
    branches: Vec<(String, Branch)>,
    /// Where each name stands, so that wide specifications stay linear.
    places: HashMap<String, usize>,
}

impl Tree {
    fn get(&self, name: &str) -> Option<&Branch> {
        self.branches.get(*self.places.get(name)?).map(|(_, branch)| branch)
    }

    fn push(&mut self, name: &str, branch: Branch) {
        self.places.insert(name.to_owned(), self.branches.len());
        self.branches.push((name.to_owned(), branch));
    }

    fn insert(&mut self, path: &[String], branch: Branch, whole: &str) -> Result<(), QueryError> {
        let collision = || fail(31250, format!("Path collision at {whole}"));
        let Some((first, rest)) = path.split_first() else { return Ok(()) };
        let position = self.places.get(first).copied();
        match (rest, position.and_then(|position| self.branches.get_mut(position))) {
            ([], None) => self.push(first, branch),
            (rest, None) => {
                let mut inner = Self::default();
                inner.insert(rest, branch, whole)?;
                self.push(first, Branch::Inside(inner));
            }
            (rest @ [_, ..], Some((_, Branch::Inside(inner)))) => {
                inner.insert(rest, branch, whole)?;
            }
            _ => return Err(collision()),
        }
        Ok(())
    }

    /// Counts what is read at the top level and inside it.
    fn depend(&self, needed: &mut Dependencies) {
        for (name, branch) in &self.branches {
            match branch {
                Branch::Named => needed.path(name),
                Branch::Computed(expression) => needed.expression(expression),
                Branch::Inside(inner) => {
                    needed.path(name);
                    inner.depend_on_computed(needed);
                }
            }
        }
    }

    fn depend_on_computed(&self, needed: &mut Dependencies) {
        for (_, branch) in &self.branches {
            match branch {
                Branch::Named => {}
                Branch::Computed(expression) => needed.expression(expression),
                Branch::Inside(inner) => inner.depend_on_computed(needed),
            }
        }
    }

    fn computes(&self) -> bool {
        self.branches.iter().any(|(_, branch)| match branch {
            Branch::Named => false,
            Branch::Computed(_) => true,
            Branch::Inside(inner) => inner.computes(),
        })
    }

    /// The fields that are named here and inside.
    fn keep(&self, document: &Document) -> Document {
        let mut kept = Document::new();
        for (name, value) in document {
            let value = match self.get(name) {
                Some(Branch::Named) => Some(value.clone()),
                Some(Branch::Inside(inner)) => inner.keep_value(value),
                Some(Branch::Computed(_)) | None => None,
            };
            if let Some(value) = value {
                kept.insert(name.as_str(), value);
            }
        }
        kept
    }

    fn keep_value(&self, value: &Bson) -> Option<Bson> {
        match value {
            Bson::Document(document) => Some(Bson::Document(self.keep(document))),
            Bson::Array(elements) => Some(Bson::Array(
                elements.iter().filter_map(|element| self.keep_value(element)).collect(),
            )),
            _ => None,
        }
    }

    /// Takes away the fields that are named here and inside.
    fn drop(&self, document: &mut Document) {
        for (name, branch) in &self.branches {
            match branch {
                Branch::Named => {
                    document.remove(name);
                }
                Branch::Inside(inner) => {
                    if let Some(value) = document.get_mut(name) {
                        inner.drop_value(value);
                    }
                }
                Branch::Computed(_) => {}
            }
        }
    }

    fn drop_value(&self, value: &mut Bson) {
        match value {
            Bson::Document(document) => self.drop(document),
            Bson::Array(elements) => {
                elements.iter_mut().for_each(|element| self.drop_value(element));
            }
            _ => {}
        }
    }

    /// Computes the fields that get a value; a missing value takes the field away.
    fn compute(
        &self,
        document: &mut Document,
        frame: Frame<'_>,
        charge: &mut Charge,
    ) -> Result<(), QueryError> {
        for (name, branch) in &self.branches {
            match branch {
                Branch::Named => {}
                Branch::Computed(expression) => match expression.operand(frame)?.into_bson() {
                    Some(value) => {
                        charge.grow(COMPUTED, cost(&value)?)?;
                        document.insert(name.as_str(), value);
                    }
                    None => {
                        document.remove(name);
                    }
                },
                Branch::Inside(inner) if inner.computes() => {
                    let value = document.entry(name.clone()).or_insert(Bson::Null);
                    inner.compute_value(value, frame, charge)?;
                }
                Branch::Inside(_) => {}
            }
        }
        Ok(())
    }

    fn compute_value(
        &self,
        value: &mut Bson,
        frame: Frame<'_>,
        charge: &mut Charge,
    ) -> Result<(), QueryError> {
        frame.variables.step()?;
        match value {
            Bson::Document(document) => self.compute(document, frame, charge),
            Bson::Array(elements) => elements
                .iter_mut()
                .try_for_each(|element| self.compute_value(element, frame, charge)),
            scalar => {
                let mut document = Document::new();
                self.compute(&mut document, frame, charge)?;
                *scalar = Bson::Document(document);
                Ok(())
            }
        }
    }
}

/// A `$project` (or `$unset`) stage.
#[derive(Clone, Debug)]
pub(super) struct Projection {
    tree: Tree,
    including: bool,
}

impl Projection {
    pub(super) fn parse(spec: &Bson, context: &ParseContext) -> Result<Self, QueryError> {
        let Bson::Document(spec) = spec else {
            return Err(fail(15969, "$project specification must be an object"));
        };
        Self::read(spec, context).map_err(|error| caused_by(&error, "Invalid $project"))
    }

    fn read(spec: &Document, context: &ParseContext) -> Result<Self, QueryError> {
        if spec.is_empty() {
            return Err(fail(51272, "projection specification must have at least one field"));
        }
        let mut reader = Reader { context, tree: Tree::default(), mode: None, id: None };
        for (name, value) in spec {
            reader.field(name, value, 0)?;
        }
        let Reader { mut tree, mode, id, .. } = reader;
        // Alone, `_id: 0` excludes; with others, `_id` stays unless it is excluded.
        let including = mode.unwrap_or_else(|| id.unwrap_or(true));
        match (including, id) {
            (true, None) if tree.get("_id").is_none() => {
                tree.push("_id", Branch::Named);
            }
            (true, Some(true)) | (false, Some(false)) => {
                tree.insert(&["_id".to_owned()], Branch::Named, "_id")?;
            }
            _ => {}
        }
        Ok(Self { tree, including })
    }

    /// A stage that takes fields away.
    pub(super) fn unset(spec: &Bson) -> Result<Self, QueryError> {
        let names = match spec {
            Bson::String(_) => std::slice::from_ref(spec),
            Bson::Array(names) if names.is_empty() => {
                return Err(fail(
                    31119,
                    "$unset specification must be a string or an array with at least one field",
                ));
            }
            Bson::Array(names) => names,
            _ => return Err(fail(31002, "$unset specification must be a string or an array")),
        };
        let mut tree = Tree::default();
        for name in names {
            let Bson::String(name) = name else {
                return Err(fail(
                    31120,
                    "$unset specification must be a string or an array containing only string \
                     values",
                ));
            };
            tree.insert(FieldPath::parse(name)?.components(), Branch::Named, name)
                .map_err(|error| caused_by(&error, "Invalid $unset"))?;
        }
        Ok(Self { tree, including: false })
    }

    /// Counts what the stage reads; true if it keeps nothing else.
    pub(super) fn depend(&self, needed: &mut Dependencies) -> bool {
        if self.including {
            self.tree.depend(needed);
        }
        self.including
    }

    pub(super) fn apply(
        &self,
        mut document: Document,
        variables: &Variables,
        charge: &mut Charge,
    ) -> Result<Document, QueryError> {
        if !self.including {
            self.tree.drop(&mut document);
            return Ok(document);
        }
        let mut kept = self.tree.keep(&document);
        if self.tree.computes() {
            self.tree.compute(&mut kept, Frame::new(&document, variables), charge)?;
        }
        Ok(kept)
    }
}

/// Reads the fields of a `$project`.
struct Reader<'a> {
    context: &'a ParseContext,
    tree: Tree,
    /// Whether fields are included; decided by the first that says so, `_id` apart.
    mode: Option<bool>,
    /// Whether `_id` is included, if it was only included or excluded.
    id: Option<bool>,
}

impl Reader<'_> {
    fn field(&mut self, path: &str, value: &Bson, depth: usize) -> Result<(), QueryError> {
        if depth > MAX_EXPRESSION_DEPTH {
            return Err(fail(ErrorCode::OVERFLOW, "projection is nested too deeply"));
        }
        let flag = match value {
            Bson::Boolean(flag) => Some(*flag),
            Bson::Int32(number) => Some(*number != 0),
            Bson::Int64(number) => Some(*number != 0),
            Bson::Double(number) => Some(*number != 0.0),
            Bson::Decimal128(_) => Some(crate::expression::is_true(value)),
            _ => None,
        };
        if path.starts_with('$') {
            return Err(fail(
                16410,
                format!("FieldPath field names may not start with '$'. (got '{path}')"),
            ));
        }
        let components = FieldPath::parse(path)?;
        match (flag, value) {
            (Some(flag), _) if path == "_id" => self.id = Some(flag),
            (Some(flag), _) => {
                self.decide(flag, path)?;
                self.tree.insert(components.components(), Branch::Named, path)?;
            }
            (None, Bson::Document(inner)) if inner.is_empty() => {
                return Err(fail(
                    51270,
                    format!(
                        "An empty sub-projection is not a valid value. Found empty object at path \
                         {path}"
                    ),
                ));
            }
            (None, Bson::Document(inner))
                if !inner.keys().next().is_some_and(|key| key.starts_with('$')) =>
            {
                for (name, value) in inner {
                    self.field(&format!("{path}.{name}"), value, depth + 1)?;
                }
            }
            (None, expression) => {
                if self.mode == Some(false) {
                    return Err(fail(
                        31252,
                        "Cannot use an expression in an exclusion projection. Use $addFields, or \
                         name the fields to keep",
                    ));
                }
                self.mode = Some(true);
                let expression = Expression::parse(expression, self.context)?;
                self.tree.insert(components.components(), Branch::Computed(expression), path)?;
            }
        }
        Ok(())
    }

    fn decide(&mut self, include: bool, path: &str) -> Result<(), QueryError> {
        match self.mode {
            Some(mode) if mode != include && include => Err(fail(
                31253,
                format!("Cannot do inclusion on field {path} in exclusion projection"),
            )),
            Some(mode) if mode != include => Err(fail(
                31254,
                format!("Cannot do exclusion on field {path} in inclusion projection"),
            )),
            _ => {
                self.mode = Some(include);
                Ok(())
            }
        }
    }
}

/// An `$addFields` (or `$set`) stage.
#[derive(Clone, Debug)]
pub(super) struct AddFields {
    tree: Tree,
}

impl AddFields {
    pub(super) fn parse(
        name: &str,
        spec: &Bson,
        context: &ParseContext,
    ) -> Result<Self, QueryError> {
        let spec = spec
            .document(40272, format_args!("{name} specification stage must be an object, got"))?;
        let wrap = |error: QueryError| caused_by(&error, &format!("Invalid {name}"));
        if spec.is_empty() {
            return Err(wrap(fail(40177, "specification must have at least one field")));
        }
        let mut tree = Tree::default();
        for (path, value) in spec {
            Self::field(&mut tree, path, value, context, 0).map_err(wrap)?;
        }
        Ok(Self { tree })
    }

    fn field(
        tree: &mut Tree,
        path: &str,
        value: &Bson,
        context: &ParseContext,
        depth: usize,
    ) -> Result<(), QueryError> {
        if depth > MAX_EXPRESSION_DEPTH {
            return Err(fail(ErrorCode::OVERFLOW, "the fields to add are nested too deeply"));
        }
        if let Bson::Document(inner) = value
            && inner.keys().next().is_some_and(|key| !key.starts_with('$'))
        {
            for (name, value) in inner {
                Self::field(tree, &format!("{path}.{name}"), value, context, depth + 1)?;
            }
            return Ok(());
        }
        let expression = Expression::parse(value, context)?;
        let components = FieldPath::parse(path)?;
        tree.insert(components.components(), Branch::Computed(expression), path)
    }

    /// Counts what the stage reads.
    pub(super) fn depend(&self, needed: &mut Dependencies) {
        self.tree.depend(needed);
    }

    pub(super) fn apply(
        &self,
        document: Document,
        variables: &Variables,
        charge: &mut Charge,
    ) -> Result<Document, QueryError> {
        if self.tree.branches.iter().any(|(_, branch)| matches!(branch, Branch::Inside(_))) {
            let mut changed = document.clone();
            self.tree.compute(&mut changed, Frame::new(&document, variables), charge)?;
            return Ok(changed);
        }
        // Every value is computed from the document as it was; only then is it changed, in place.
        let mut values = Vec::with_capacity(self.tree.branches.len());
        for (name, branch) in &self.tree.branches {
            if let Branch::Computed(expression) = branch {
                let value = expression.evaluate(&document, variables)?;
                if let Some(value) = &value {
                    charge.grow(COMPUTED, cost(value)?)?;
                }
                values.push((name, value));
            }
        }
        let mut changed = document;
        for (name, value) in values {
            match value {
                Some(value) => changed.insert(name.as_str(), value),
                None => changed.remove(name),
            };
        }
        Ok(changed)
    }
}
