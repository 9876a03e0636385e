//! Which fields of its document an expression reads, so that no more needs to be decoded.

use std::collections::BTreeSet;

use super::Expression;
use super::node::{Base, Node, Pattern};

/// The top-level fields that something reads, or the whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dependencies {
    pub(crate) whole: bool,
    pub(crate) fields: BTreeSet<String>,
}

impl Dependencies {
    /// Counts the first component of a dotted path.
    pub(crate) fn path(&mut self, dotted: &str) {
        let head = dotted.split('.').next().unwrap_or(dotted);
        if !self.fields.contains(head) {
            self.fields.insert(head.to_owned());
        }
    }

    /// Counts what an expression reads.
    pub(crate) fn expression(&mut self, expression: &Expression) {
        self.node(&expression.node);
    }

    fn node(&mut self, node: &Node) {
        match node {
            Node::Constant(_) | Node::Random => {}
            Node::Path(Base::Current | Base::Root, path) => match path.components().first() {
                Some(head) => self.path(head),
                None => self.whole = true,
            },
            Node::Path(..) => {}
            Node::Object(fields) => fields.iter().for_each(|(_, node)| self.node(node)),
            Node::Array(nodes)
            | Node::Positional(_, nodes)
            | Node::And(nodes)
            | Node::Or(nodes)
            | Node::IfNull(nodes) => self.all(nodes),
            Node::Named(_, nodes) => nodes.iter().flatten().for_each(|node| self.node(node)),
            Node::Cond(parts) => self.all(parts.as_slice()),
            Node::Switch { branches, default } => {
                for (case, then) in branches {
                    self.node(case);
                    self.node(then);
                }
                default.iter().for_each(|node| self.node(node));
            }
            Node::Let { values, body, .. } => {
                self.all(values);
                self.node(body);
            }
            Node::Map { input, body, .. } => {
                self.node(input);
                self.node(body);
            }
            Node::Filter { input, condition, limit, .. } => {
                self.node(input);
                self.node(condition);
                limit.iter().for_each(|node| self.node(node));
            }
            Node::Reduce { input, initial, body, .. } => {
                self.node(input);
                self.node(initial);
                self.node(body);
            }
            Node::Zip { inputs, defaults, .. } => {
                self.all(inputs);
                self.all(defaults);
            }
            Node::SortArray { input, .. } => self.node(input),
            Node::Convert(parts) => {
                self.node(&parts.input);
                self.node(&parts.to);
                parts.on_error.iter().chain(&parts.on_null).for_each(|node| self.node(node));
            }
            Node::Regex { input, pattern, .. } => {
                self.node(input);
                if let Pattern::Computed { regex, options } = pattern {
                    self.node(regex);
                    options.iter().for_each(|node| self.node(node));
                }
            }
        }
    }

    fn all(&mut self, nodes: &[Node]) {
        nodes.iter().for_each(|node| self.node(node));
    }
}
