//! `$unwind`: one document for each element of an array.

use bson::{Bson, Document};

use super::memory::Memory;
use super::{Documents, Run};
use crate::error::Result;
use crate::expression::FieldPath;
use crate::typed::Typed;

/// The options of the stage.
#[derive(Clone, Debug)]
pub(super) struct Unwind {
    pub(super) path: FieldPath,
    pub(super) preserve_empty: bool,
    pub(super) index: Option<FieldPath>,
}

impl Unwind {
    pub(super) fn parse(spec: &Bson) -> Result<Self> {
        let mut options = Options::default();
        match spec {
            Bson::String(path) => options.path = Some(path),
            Bson::Document(fields) => {
                fields.iter().try_for_each(|(name, value)| options.read(name, value))?;
            }
            other => {
                return Err(other.wrong_type(
                    15981,
                    "expected either a string or an object as specification for $unwind \
                         stage, got",
                ));
            }
        }
        let path =
            options.path.ok_or_else(|| fail!(28812, "no path specified to $unwind stage"))?;
        let Some(path) = path.strip_prefix('$') else {
            refuse!(28818, "path option to $unwind stage should be prefixed with a '$': {path}");
        };
        if let Some(name) = options.index.filter(|name| name.starts_with('$')) {
            refuse!(
                28822,
                "includeArrayIndex option to $unwind stage should not be prefixed with a '$': \
                     {name}"
            );
        }
        let index = options.index.map(FieldPath::parse).transpose()?;
        Ok(Self { path: FieldPath::parse(path)?, preserve_empty: options.preserve_empty, index })
    }

    /// The document with one element in the place of the array.
    fn with(&self, document: &Document, element: Option<Bson>, index: Option<i64>) -> Document {
        let mut document = document.clone();
        match element {
            Some(element) => set(&mut document, self.path.components(), element),
            None => remove(&mut document, self.path.components()),
        }
        if let Some(path) = &self.index {
            let index = index.map_or(Bson::Null, Bson::Int64);
            set(&mut document, path.components(), index);
        }
        document
    }

    /// The element that stands alone where there is no array; `None` drops the document.
    fn alone(&self, document: Document, found: Option<&Bson>) -> Option<Document> {
        match found {
            None | Some(Bson::Null | Bson::Undefined) if !self.preserve_empty => None,
            Some(Bson::Array(_)) if !self.preserve_empty => None,
            Some(Bson::Array(_)) => Some(self.with(&document, None, None)),
            None => {
                let mut document = document;
                if let Some(path) = &self.index {
                    set(&mut document, path.components(), Bson::Null);
                }
                Some(document)
            }
            Some(value) => {
                let value = value.clone();
                Some(self.with(&document, Some(value), None))
            }
        }
    }
}

/// The options as they were written.
#[derive(Default)]
struct Options<'a> {
    path: Option<&'a str>,
    preserve_empty: bool,
    index: Option<&'a str>,
}

impl<'a> Options<'a> {
    fn read(&mut self, name: &str, value: &'a Bson) -> Result<()> {
        match (name, value) {
            ("path", path) => {
                let wanted = "expected a string as the path for $unwind stage, got";
                self.path = Some(path.string(28808, wanted)?);
            }
            ("preserveNullAndEmptyArrays", preserve) => {
                self.preserve_empty = preserve.boolean(
                    28809,
                    "expected a boolean for the preserveNullAndEmptyArrays option to $unwind \
                     stage, got",
                )?;
            }
            ("includeArrayIndex", Bson::String(index)) if !index.is_empty() => {
                self.index = Some(index);
            }
            ("includeArrayIndex", _) => {
                return Err(value.wrong_type(
                    28810,
                    "expected a non-empty string for the includeArrayIndex option to $unwind \
                     stage, got",
                ));
            }
            (other, _) => {
                refuse!(28811, "unrecognized option to $unwind stage: {other}");
            }
        }
        Ok(())
    }
}

/// The value that a path through documents, and only documents, leads to.
fn get<'a>(document: &'a Document, components: &[String]) -> Option<&'a Bson> {
    let (first, rest) = components.split_first()?;
    let value = document.get(first)?;
    match (rest, value) {
        ([], value) => Some(value),
        (rest, Bson::Document(inner)) => get(inner, rest),
        _ => None,
    }
}

/// Sets a value, making documents on the way where there are none.
pub(super) fn set(document: &mut Document, components: &[String], value: Bson) {
    let Some((first, rest)) = components.split_first() else { return };
    if rest.is_empty() {
        document.insert(first.as_str(), value);
        return;
    }
    if let Some(Bson::Document(inner)) = document.get_mut(first) {
        return set(inner, rest, value);
    }
    let mut inner = Document::new();
    set(&mut inner, rest, value);
    document.insert(first.as_str(), inner);
}

/// Takes an array out and leaves null in its place.
fn take(document: &mut Document, components: &[String]) -> Vec<Bson> {
    let Some((first, rest)) = components.split_first() else { return Vec::new() };
    match (document.get_mut(first), rest) {
        (Some(value), []) => match std::mem::replace(value, Bson::Null) {
            Bson::Array(elements) => elements,
            _ => Vec::new(),
        },
        (Some(Bson::Document(inner)), rest) => take(inner, rest),
        _ => Vec::new(),
    }
}

fn remove(document: &mut Document, components: &[String]) {
    match components.split_first() {
        None => {}
        Some((last, [])) => {
            document.remove(last);
        }
        Some((first, rest)) => {
            if let Some(Bson::Document(inner)) = document.get_mut(first) {
                remove(inner, rest);
            }
        }
    }
}

pub(super) fn run(unwind: Unwind, input: Documents, run: &Run) -> Documents {
    Box::new(Unwound { unwind, input, current: None, memory: Memory::new("$unwind", run) })
}

struct Unwound {
    unwind: Unwind,
    input: Documents,
    /// The document without its array, and the elements still to come.
    current: Option<(Document, std::iter::Enumerate<std::vec::IntoIter<Bson>>)>,
    /// The memory of both.
    memory: Memory,
}

impl Unwound {
    /// The next element of the current array.
    fn element(&mut self) -> Option<Document> {
        let (document, elements) = self.current.as_mut()?;
        match elements.next() {
            Some((index, element)) => {
                Some(self.unwind.with(document, Some(element), Some(index as i64)))
            }
            None => {
                self.current = None;
                self.memory.clear();
                None
            }
        }
    }

    /// Takes a document in; returns it if there is no array to go through.
    fn take(&mut self, mut document: Document) -> Result<Option<Document>> {
        let components = self.unwind.path.components();
        match get(&document, components) {
            Some(Bson::Array(elements)) if !elements.is_empty() => {
                self.memory.hold_document(&document)?;
                // The array itself is taken out: it is not copied, now or with every element.
                let elements = take(&mut document, components);
                self.current = Some((document, elements.into_iter().enumerate()));
                Ok(None)
            }
            found => {
                let found = found.cloned();
                Ok(self.unwind.alone(document, found.as_ref()))
            }
        }
    }
}

impl Iterator for Unwound {
    type Item = Result<Document>;

    /// Small on purpose: `$unwind` stages stand on each other's stack.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(document) = self.element() {
                return Some(Ok(document));
            }
            match self.input.next()? {
                Ok(document) => {
                    if let Some(document) = self.take(document).transpose() {
                        return Some(document);
                    }
                }
                error => return Some(error),
            }
        }
    }
}
