//! The tree that an expression is parsed into.

use bson::Bson;

use super::operators::{Compiled, Named, Positional, RegexKind, SortBy};
use super::path::FieldPath;

/// One step of a computation.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// A value known when the expression was read.
    Constant(Bson),
    /// A field of the document or of a variable.
    Path(Base, FieldPath),
    /// A document built from expressions.
    Object(Vec<(String, Node)>),
    /// An array built from expressions.
    Array(Vec<Node>),
    /// An operator that computes all its arguments, given in order.
    Positional(&'static Positional, Vec<Node>),
    /// An operator that computes all its arguments, given by name.
    Named(&'static Named, Vec<Option<Node>>),
    /// `$and`: stops at the first false argument.
    And(Vec<Node>),
    /// `$or`: stops at the first true argument.
    Or(Vec<Node>),
    /// `$cond`: if, then, else.
    Cond(Box<[Node; 3]>),
    /// `$ifNull`: the first argument that is not null, or the last.
    IfNull(Vec<Node>),
    /// `$switch`: the first branch whose case is true.
    Switch { branches: Vec<(Node, Node)>, default: Option<Box<Node>> },
    /// `$let`: the values go to the slots from `first_slot` on.
    Let { first_slot: usize, values: Vec<Node>, body: Box<Node> },
    /// `$map`: each element goes to `slot`.
    Map { input: Box<Node>, slot: usize, body: Box<Node> },
    /// `$filter`: each element goes to `slot`.
    Filter { input: Box<Node>, slot: usize, condition: Box<Node>, limit: Option<Box<Node>> },
    /// `$reduce`: `value` goes to `first_slot`, `this` to the one after it.
    Reduce { input: Box<Node>, initial: Box<Node>, first_slot: usize, body: Box<Node> },
    /// `$zip`.
    Zip { inputs: Vec<Node>, use_longest: bool, defaults: Vec<Node> },
    /// `$sortArray`.
    SortArray { input: Box<Node>, by: SortBy },
    /// `$convert`, which computes `on_error` and `on_null` only when needed.
    Convert(Box<Convert>),
    /// `$regexMatch` and its kin.
    Regex { kind: RegexKind, input: Box<Node>, pattern: Pattern },
    /// `$rand`.
    Random,
}

/// The parts of `$convert`.
#[derive(Clone, Debug)]
pub(super) struct Convert {
    pub(super) input: Node,
    pub(super) to: Node,
    pub(super) on_error: Option<Node>,
    pub(super) on_null: Option<Node>,
}

/// A pattern: compiled when it is constant.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    Compiled(Option<Compiled>),
    Computed { regex: Box<Node>, options: Option<Box<Node>> },
}

/// Where a path starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// `$$ROOT`.
    Root,
    /// `$$CURRENT`, or no variable at all.
    Current,
    /// `$$REMOVE`: always missing.
    Remove,
    /// `$$NOW`.
    Now,
    /// `$$CLUSTER_TIME`.
    ClusterTime,
    /// `$$USER_ROLES`.
    UserRoles,
    /// A variable bound by an operator around this place.
    Slot(usize),
    /// A variable of the caller's.
    User(String),
}
