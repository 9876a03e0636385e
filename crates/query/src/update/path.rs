//! Paths of updates: field names, and the three operators that stand for array elements.
//!
//! Owns parsing and checking such paths, their order, and the array filters that `$[name]` refers
//! to.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document};

use super::modify::Modification;
use crate::error::Result;
use crate::expression::Compiler;
use crate::matcher::Matcher;
use crate::value::{MAX_NESTING, PathComponent};

/// A parsed path of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpdatePath {
    text: String,
    pub(super) components: Vec<Component>,
}

/// One part of such a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Component {
    /// A field name, which can also be an array position.
    Field(PathComponent),
    /// `$`: the element that the query matched.
    Positional,
    /// `$[]`: every element.
    All,
    /// `$[name]`: the elements that the filter of that name matches.
    Filtered(String),
}

impl UpdatePath {
    /// Parses and checks a path.
    pub(super) fn parse(text: &str) -> Result<Self> {
        refuse_if!(text.is_empty() => EMPTY_FIELD_NAME, "An empty update path is not valid.");
        let mut components = Vec::new();
        for part in text.split('.') {
            refuse_if!(components.len() == MAX_NESTING => OVERFLOW,
                "an update path may have at most {MAX_NESTING} components");
            components.push(Component::parse(part, text)?);
        }
        refuse_if!(!matches!(components[0], Component::Field(_)) => BAD_VALUE,
            "Cannot have array filter or positional (i.e. '$') element in the first position \
             in path '{text}'");
        let positional = components.iter().filter(|part| **part == Component::Positional).count();
        refuse_if!(positional > 1 => BAD_VALUE,
            "Too many positional (i.e. '$') elements found in path '{text}'");
        Ok(Self { text: text.to_owned(), components })
    }

    /// The path as it was written.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the path contains `$`.
    pub(super) fn is_positional(&self) -> bool {
        self.components.contains(&Component::Positional)
    }

    /// Whether the path stands for positions that only the document decides.
    pub(super) fn is_dynamic(&self) -> bool {
        self.components.iter().any(|part| !matches!(part, Component::Field(_)))
    }

    /// The names of the array filters it refers to.
    pub(super) fn filter_names(&self) -> impl Iterator<Item = &str> {
        self.components.iter().filter_map(|part| match part {
            Component::Filtered(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Refuses a top-level name that starts with `$`. A document that is about to be inserted may have one;
    /// one that exists already may have the parts of a database reference and no others.
    pub(super) fn check_top_level_name(&self, inserting: bool) -> Result<()> {
        let Some(Component::Field(first)) = self.components.first() else { return Ok(()) };
        let name = &first.name;
        if inserting || !name.starts_with('$') || ["$ref", "$id", "$db"].contains(&name.as_str()) {
            return Ok(());
        }
        Err(fail!(
            DOLLAR_PREFIXED_FIELD_NAME,
            "The dollar ($) prefixed field '{name}' in '{}' is not allowed in the context of an \
                 update's path. Consider using an aggregation pipeline with $setField.",
            self.text
        ))
    }

    /// The order in which modifications are applied: by name, numbers by value.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        for (left, right) in self.components.iter().zip(&other.components) {
            let order = match (left.index(), right.index()) {
                (Some(left), Some(right)) => left.cmp(&right),
                _ => left.text().cmp(&right.text()),
            };
            if order.is_ne() {
                return order;
            }
        }
        self.components.len().cmp(&other.components.len())
    }

    /// Whether one of the two paths leads through the other, so that both cannot be updated.
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
        self.components.starts_with(&other.components)
            || other.components.starts_with(&self.components)
    }
}

impl Component {
    fn parse(part: &str, path: &str) -> Result<Self> {
        match part {
            "" => Err(fail!(
                EMPTY_FIELD_NAME,
                "The update path '{path}' contains an empty field name, which is not allowed."
            )),
            "$" => Ok(Self::Positional),
            "$[]" => Ok(Self::All),
            _ => match part.strip_prefix("$[").and_then(|rest| rest.strip_suffix(']')) {
                Some(name) => Ok(Self::Filtered(name.to_owned())),
                None => Ok(Self::Field(PathComponent::new(part))),
            },
        }
    }

    fn index(&self) -> Option<usize> {
        match self {
            Self::Field(component) => component.index,
            _ => None,
        }
    }

    /// The text of this part.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Field(component) => component.name.clone(),
            Self::Positional => "$".to_owned(),
            Self::All => "$[]".to_owned(),
            Self::Filtered(name) => format!("$[{name}]"),
        }
    }
}

/// The array filters of an update, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct ArrayFilters {
    filters: BTreeMap<String, Matcher>,
}

impl ArrayFilters {
    /// Parses filters, each a query whose paths all start with one name.
    pub(super) fn parse(filters: &[Document], compiler: &Compiler) -> Result<Self> {
        let mut parsed = BTreeMap::new();
        for filter in filters {
            let mut name = None;
            collect_name(filter, &mut name, 0)?;
            let name = name.ok_or_else(|| {
                fail!(
                    FAILED_TO_PARSE,
                    "Cannot use an expression without a top-level field name in arrayFilters"
                )
            })?;
            let mut characters = name.chars();
            let well_formed = characters.next().is_some_and(|first| first.is_ascii_lowercase())
                && characters.all(|character| character.is_ascii_alphanumeric());
            refuse_if!(!well_formed => BAD_VALUE,
                "Error parsing array filter :: caused by :: The top-level field name must be \
                 an alphanumeric string beginning with a lowercase letter, found '{name}'");
            let matcher = Matcher::parse_with(filter, compiler)?;
            refuse_if!(parsed.insert(name.clone(), matcher).is_some() => FAILED_TO_PARSE,
                "Found multiple array filters with the same top-level field name {name}");
        }
        Ok(Self { filters: parsed })
    }

    /// Checks that every name used has a filter and every filter is used.
    pub(super) fn check_use(&self, modifications: &[Modification]) -> Result<()> {
        let mut used = BTreeSet::new();
        for modification in modifications {
            for name in modification.path.filter_names() {
                used.insert(name);
                refuse_if!(!self.filters.contains_key(name) => BAD_VALUE,
                    "No array filter found for identifier '{name}' in path '{}'",
                    modification.path.as_str());
            }
        }
        match self.filters.keys().find(|name| !used.contains(name.as_str())) {
            None => Ok(()),
            Some(name) => Err(fail!(
                FAILED_TO_PARSE,
                "The array filter for identifier '{name}' was not used in the update"
            )),
        }
    }

    /// Whether an element passes the filter of a name.
    pub(super) fn matches(&self, name: &str, element: &Bson) -> Result<bool> {
        let Some(matcher) = self.filters.get(name) else { return Ok(false) };
        let mut holder = Document::new();
        holder.insert(name, element.clone());
        matcher.matches(&holder)
    }
}

/// Finds the one name that all paths of a filter start with.
fn collect_name(filter: &Document, name: &mut Option<String>, depth: usize) -> Result<()> {
    refuse_if!(depth > MAX_NESTING => BAD_VALUE,
        "an array filter may be nested at most {MAX_NESTING} levels deep");
    for (key, value) in filter {
        if matches!(key.as_str(), "$and" | "$or" | "$nor") {
            for branch in value.as_array().into_iter().flatten() {
                if let Bson::Document(branch) = branch {
                    collect_name(branch, name, depth + 1)?;
                }
            }
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        let head = key.split('.').next().unwrap_or("");
        match name {
            Some(known) if known != head => {
                refuse!(
                    FAILED_TO_PARSE,
                    "Error parsing array filter :: caused by :: Expected a single top-level field \
                     name, found '{known}' and '{head}'"
                );
            }
            _ => *name = Some(head.to_owned()),
        }
    }
    Ok(())
}
