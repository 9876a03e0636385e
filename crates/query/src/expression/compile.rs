//! Expressions for the modules that meet them without looking inside: `$expr` in queries, computed projections,
//! pipeline updates.

use std::sync::Arc;

use bson::Bson;

use super::{Expression, ParseContext, Variables};
use crate::error::Result;
use crate::meter::Meter;
use crate::value::DocumentRef;

/// Compiles the expressions of one command, all with the same variables.
#[derive(Clone, Debug)]
pub struct Compiler {
    variables: Arc<Variables>,
    context: ParseContext,
}

impl Compiler {
    /// A compiler for expressions that see these variables.
    pub fn new(variables: Variables) -> Self {
        let context = ParseContext::of(&variables);
        Self::within(variables, context)
    }

    /// Refuses every expression: for callers that allow none, such as a partial index filter.
    pub fn refusing() -> Self {
        Self::within(Variables::default(), ParseContext::refusing())
    }

    /// A compiler for expressions that may name more variables than have values yet.
    pub(crate) fn within(variables: Variables, context: ParseContext) -> Self {
        Self { variables: Arc::new(variables), context }
    }

    /// Reads one expression, to be computed many times.
    ///
    /// # Errors
    ///
    /// As [`Expression::parse`], or if this compiler refuses expressions.
    pub fn compile(&self, expression: &Bson) -> Result<Compiled> {
        let expression = Expression::parse(expression, &self.context)?;
        Ok(Compiled { expression, variables: Arc::clone(&self.variables) })
    }

    /// The variables that the expressions may name.
    pub(crate) fn context(&self) -> &ParseContext {
        &self.context
    }

    /// The values of the variables.
    pub(crate) fn variables(&self) -> &Arc<Variables> {
        &self.variables
    }

    /// The meter of the operation's steps and bytes.
    pub(crate) fn meter(&self) -> &Meter {
        self.variables.meter()
    }
}

/// An expression with its variables.
#[derive(Clone, Debug)]
pub struct Compiled {
    expression: Expression,
    variables: Arc<Variables>,
}

impl Compiled {
    /// The value for one document; `None` is the missing value.
    ///
    /// # Errors
    ///
    /// As [`Expression::evaluate`].
    pub fn evaluate(&self, root: DocumentRef<'_>) -> Result<Option<Bson>> {
        match root {
            DocumentRef::Parsed(root) => self.expression.evaluate(root, &self.variables),
            DocumentRef::Raw(_) => self.expression.evaluate(&root.to_document(), &self.variables),
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{bson, doc};

    use super::*;
    use crate::matcher::Matcher;
    use crate::projection::Projection;
    use crate::update::{Update, UpdateContext};

    #[test]
    fn queries_use_expressions_and_variables() {
        let compiler = Compiler::new(Variables::new(0).with_variable("least", bson!(3)));
        let query = doc! { "$expr": { "$gte": ["$a", "$$least"] } };
        let matcher = Matcher::parse_with(&query, &compiler).unwrap();
        assert!(matcher.matches(&doc! { "a": 3 }).unwrap());
        assert!(!matcher.matches(&doc! { "a": 2 }).unwrap());
        let raw = bson::RawDocumentBuf::try_from(&doc! { "a": 4 }).unwrap();
        assert!(matcher.matches(&raw).unwrap());
        let unknown = doc! { "$expr": { "$gte": ["$a", "$$most"] } };
        assert_eq!(Matcher::parse_with(&unknown, &compiler).unwrap_err().code().0, 17276);
    }

    #[test]
    fn projections_compute() {
        let compiler = Compiler::new(Variables::new(0).with_variable("tax", bson!(2)));
        let spec = doc! { "_id": 0, "total": { "$multiply": ["$price", "$$tax"] } };
        let projection =
            Projection::parse_find_with(&spec, &Matcher::match_all(), &compiler).unwrap();
        let found = projection.apply(&doc! { "_id": 1, "price": 5 }, None).unwrap();
        assert_eq!(found, doc! { "total": 10 });
    }

    #[test]
    fn updates_run_pipelines() {
        let now = bson::DateTime::from_millis(77);
        let compiler = Compiler::new(Variables::new(0).with_now(now));
        let stages = bson!([
            { "$set": { "n": { "$add": ["$n", 1] }, "at": "$$NOW", "gone": "$$REMOVE" } },
            { "$unset": "old" },
        ]);
        let update = Update::parse_with(&stages, &[], &compiler).unwrap();
        let context = UpdateContext::new(now, bson::Timestamp { time: 1, increment: 1 });
        let before = doc! { "_id": 1, "n": 1, "gone": 1, "old": 1 };
        let after = update.apply(&before, &context).unwrap();
        assert_eq!(after, Some(doc! { "_id": 1, "n": 2, "at": now }));
    }
}
