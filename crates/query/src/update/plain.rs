//! Updates that are worked out on the bytes of a document, without parsing it.
//!
//! Owns which updates are plain: operators that set, compute or remove the value at the end of a path of field names,
//! and replacements. Of what such an update meets in a document, an array on the way, a value of a wrong type, a field
//! that is there twice and whatever else is not usual is left to [`Update`], which then does all of the update. What a
//! plain update does itself is what [`Update`] would do, to the byte.

use bson::{Bson, Document, RawDocument, RawDocumentBuf};

use super::splice::{self, Value};
use super::{Update, UpdateContext};
use crate::error::Result;
use crate::value::raw_scan::{RawField, RawScan, is_position};
use crate::value::{MAX_DOCUMENT_SIZE, MAX_NESTING, Number, parse_index};

/// Modifications that a plain update may have; each field of the document is compared with all of them.
const MAX_MODIFICATIONS: usize = 32;

/// Fields that an embedded document may have in a plain update; each name is compared with all others.
const MAX_FIELDS: usize = 64;

/// The field that no plain operator names.
const ID: &str = "_id";

/// An update that can be worked out on bytes.
#[derive(Debug)]
pub struct PlainUpdate<'u> {
    source: &'u RawDocument,
    form: Form<'u>,
}

#[derive(Debug)]
enum Form<'u> {
    /// In the order of their paths.
    Operators(Vec<Modification<'u>>),
    Replacement,
}

/// One operator on one path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Modification<'u> {
    pub(super) path: &'u str,
    /// The first name of the path.
    pub(super) first: &'u str,
    /// How many names the path has.
    pub(super) length: usize,
    pub(super) operator: Operator,
    pub(super) argument: RawField<'u>,
}

/// What is done at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Set,
    SetOnInsert,
    Unset,
    Increment,
    Multiply,
    Minimum,
    Maximum,
    CurrentDate,
}

/// What a plain update makes of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum PlainChange {
    /// It stays as it is.
    Unchanged,
    /// It becomes another one.
    Changed {
        /// The document after the update.
        after: RawDocumentBuf,
        /// The field `o` of the oplog entry; none if that is the whole document, or no delta is asked for.
        delta: Option<RawDocumentBuf>,
    },
    /// Only [`PlainUpdate::general`] knows.
    Unusual,
}

impl<'u> PlainUpdate<'u> {
    /// Reads an update. None if it is not plain, or cannot be read: [`Update`] tells.
    pub fn parse(source: &'u RawDocument) -> Option<Self> {
        let first = RawScan::new(source).next();
        let form = match first.is_some_and(|field| field.key().starts_with(b"$")) {
            true => Form::Operators(parse_operators(source)?),
            false => {
                let is_usual = usual_document(source).is_some_and(|depth| depth <= MAX_NESTING);
                let has_operator =
                    || RawScan::new(source).any(|field| field.key().starts_with(b"$"));
                (is_usual && !has_operator()).then_some(Form::Replacement)?
            }
        };
        Some(Self { source, form })
    }

    /// The same update for every document.
    ///
    /// # Errors
    ///
    /// None: what is plain can be read.
    pub fn general(&self) -> Result<Update> {
        let unreadable = |_| fail!(FAILED_TO_PARSE, "the update cannot be read");
        let source = Document::try_from(self.source).map_err(unreadable)?;
        Update::parse(&Bson::Document(source))
    }

    /// Whether the update replaces the whole document. Such an update cannot be a multi-update.
    pub fn is_replacement(&self) -> bool {
        matches!(self.form, Form::Replacement)
    }

    /// Whether the update can touch a field of this name.
    pub fn touches(&self, name: &str) -> bool {
        match &self.form {
            Form::Operators(modifications) => {
                modifications.iter().any(|modification| modification.first == name)
            }
            Form::Replacement => true,
        }
    }

    /// What the update makes of a document.
    pub fn change(&self, before: &RawDocument, context: &UpdateContext) -> PlainChange {
        match &self.form {
            Form::Operators(modifications) => {
                let room = before.as_bytes().len() + self.source.as_bytes().len();
                splice::apply(modifications, before, context, room)
            }
            Form::Replacement => self.replace(before, context),
        }
        .unwrap_or(PlainChange::Unusual)
    }

    /// The replacement with the `_id` of the document as its first field.
    fn replace(&self, before: &RawDocument, context: &UpdateContext) -> Option<PlainChange> {
        usual_document(before)?;
        let id = RawScan::new(before).next().filter(|field| field.key() == ID.as_bytes())?;
        let mut after = Vec::with_capacity(self.source.as_bytes().len() + id.length());
        let start = splice::begin(&mut after);
        id.append_to(&mut after);
        for field in RawScan::new(self.source) {
            if field.key() == ID.as_bytes() {
                (Value::of(field) == Value::of(id)).then_some(())?;
                continue;
            }
            let is_empty_timestamp = field.kind() == 0x11 && field.bytes() == [0; 8];
            if is_empty_timestamp && !context.keep_empty_timestamps {
                return None;
            }
            field.append_to(&mut after);
        }
        splice::end(&mut after, start);
        if after == before.as_bytes() {
            return Some(PlainChange::Unchanged);
        }
        Some(PlainChange::Changed { after: document_of(after)?, delta: None })
    }
}

/// A document that was put together, unless it is larger than one may be.
pub(crate) fn document_of(bytes: Vec<u8>) -> Option<RawDocumentBuf> {
    (bytes.len() <= MAX_DOCUMENT_SIZE).then(|| RawDocumentBuf::from_bytes(bytes).ok())?
}

fn parse_operators(source: &RawDocument) -> Option<Vec<Modification<'_>>> {
    let mut modifications = Vec::with_capacity(4);
    let mut seen = 0_u8;
    let mut operators = RawScan::new(source);
    for given in operators.by_ref() {
        let operator = Operator::named(given.key())?;
        // A parsed document holds the last of two operators of one name.
        let mark = 1 << operator as u8;
        (seen & mark == 0).then_some(())?;
        seen |= mark;
        let mut arguments = RawScan::new(given.document()?);
        for argument in arguments.by_ref() {
            (modifications.len() < MAX_MODIFICATIONS).then_some(())?;
            modifications.push(Modification::parse(operator, argument)?);
        }
        arguments.is_at_end().then_some(())?;
    }
    operators.is_at_end().then_some(())?;
    if modifications.len() > 1 {
        let has_position =
            |one: &Modification<'_>| one.names().any(|name| parse_index(name).is_some());
        // Positions have an order of their own.
        (!modifications.iter().any(has_position)).then_some(())?;
        modifications.sort_unstable_by(|left, right| left.names().cmp(right.names()));
        // In this order a path is followed at once by those that lead through it.
        let conflict = |pair: &[Modification<'_>]| pair[1].leads_through(&pair[0]);
        (!modifications.windows(2).any(conflict)).then_some(())?;
    }
    Some(modifications)
}

impl<'u> Modification<'u> {
    fn parse(operator: Operator, argument: RawField<'u>) -> Option<Self> {
        let path = argument.name()?;
        let is_plain = |name: &str| !name.is_empty() && !name.starts_with('$');
        path.split('.').all(is_plain).then_some(())?;
        let first = path.split('.').next().filter(|name| *name != ID)?;
        let length = path.split('.').count();
        let depth = match operator {
            Operator::Set | Operator::Minimum | Operator::Maximum => usual_depth(argument)?,
            Operator::Increment | Operator::Multiply => number(argument).map(|_| 0)?,
            Operator::CurrentDate => (argument.kind() == 0x08).then_some(0)?,
            Operator::SetOnInsert | Operator::Unset => 0,
        };
        (length + depth <= MAX_NESTING).then_some(())?;
        Some(Self { path, first, length, operator, argument })
    }

    /// The names of the path.
    fn names(&self) -> impl Iterator<Item = &'u str> {
        self.path.split('.')
    }

    /// The name at a place of the path.
    pub(super) fn name_at(&self, depth: usize) -> &'u str {
        match depth {
            0 => self.first,
            _ => self.names().nth(depth).unwrap_or_default(),
        }
    }

    /// Whether the path is another one, or leads on from its end.
    fn leads_through(&self, other: &Self) -> bool {
        let rest = self.path.strip_prefix(other.path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl Operator {
    fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"$set" => Self::Set,
            b"$setOnInsert" => Self::SetOnInsert,
            b"$unset" => Self::Unset,
            b"$inc" => Self::Increment,
            b"$mul" => Self::Multiply,
            b"$min" => Self::Minimum,
            b"$max" => Self::Maximum,
            b"$currentDate" => Self::CurrentDate,
            _ => return None,
        })
    }
}

/// The number that a field holds, if its bytes are the only ones for it: a decimal has several forms.
pub(super) fn number(field: RawField<'_>) -> Option<Number> {
    match field.kind() {
        0x01 | 0x10 | 0x12 => Number::from_value(field.value()?),
        _ => None,
    }
}

/// How many levels of documents a value has, if its bytes are the only ones for it: it has no type that is out of use,
/// no field twice, and the items of its arrays are numbered.
pub(crate) fn usual_depth(field: RawField<'_>) -> Option<usize> {
    match field.kind() {
        0x03 => usual_document(field.document()?),
        0x04 => usual_array(field.document()?),
        // The old subtype holds its length twice.
        0x05 if field.bytes().get(4) != Some(&0x02) => Some(0),
        0x01 | 0x02 | 0x07..=0x0a | 0x10..=0x13 => Some(0),
        _ => None,
    }
}

/// What is nested as deep as a command can be is read without a bound of its own.
pub(crate) fn usual_document(document: &RawDocument) -> Option<usize> {
    let mut scan = RawScan::new(document);
    let (mut depth, mut count) = (0, 0);
    for field in scan.by_ref() {
        let earlier = RawScan::new(document).take(count);
        let is_repeated = earlier.into_iter().any(|earlier| earlier.key() == field.key());
        (count < MAX_FIELDS && !is_repeated).then_some(())?;
        depth = usual_depth(field)?.max(depth);
        count += 1;
    }
    scan.is_at_end().then_some(depth + 1)
}

fn usual_array(items: &RawDocument) -> Option<usize> {
    let mut scan = RawScan::new(items);
    let mut depth = 0;
    for (place, item) in scan.by_ref().enumerate() {
        is_position(item.key(), place).then_some(())?;
        depth = usual_depth(item)?.max(depth);
    }
    scan.is_at_end().then_some(depth + 1)
}
