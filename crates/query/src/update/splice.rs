//! Makes the new bytes of a document out of the old ones and the arguments of plain operators.
//!
//! ```text
//!   before   _id │ a │ b: {c, d} │ e              $set {"b.d": …, f: …}, $unset {a: …}
//!   after    _id │     b: {c, d'} │ e │ f         the other fields are copied as they are
//!   delta    d: {a} │ i: {f} │ sb: {u: {d'}}      from the old and the new values of the fields that were met
//! ```
//!
//! One pass over the document writes the new one and notes what each operator met; the delta is written from the notes.

use bson::RawDocument;

use super::UpdateContext;
use super::plain::{Modification, Operator, PlainChange, document_of, number, usual_depth};
use crate::value::raw_scan::{RawField, RawScan};
use crate::value::{MAX_NESTING, Number, compare};

/// The type of an embedded document.
const DOCUMENT: u8 = 0x03;

/// The longest value that an operator computes.
const MADE_BYTES: usize = 8;

/// What the delta of a simple update takes besides its values.
const AROUND_VALUES: usize = 64;

/// A value as its type and bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    /// Of the document or of an argument.
    Lent(u8, &'a [u8]),
    /// Computed: the last number says how many of the bytes count.
    Made(u8, [u8; MADE_BYTES], usize),
}

impl PartialEq for Value<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl<'a> Value<'a> {
    pub(super) fn of(field: RawField<'a>) -> Self {
        Self::Lent(field.kind(), field.bytes())
    }

    fn eight(kind: u8, bytes: [u8; 8]) -> Self {
        Self::Made(kind, bytes, 8)
    }

    /// None for a decimal, of which no plain operator makes any.
    fn number(number: Number) -> Option<Self> {
        Some(match number {
            Number::Int32(number) => {
                let mut bytes = [0; MADE_BYTES];
                bytes[..4].copy_from_slice(&number.to_le_bytes());
                Self::Made(0x10, bytes, 4)
            }
            Number::Int64(number) => Self::eight(0x12, number.to_le_bytes()),
            Number::Double(number) => Self::eight(0x01, number.to_le_bytes()),
            Number::Decimal(_) => return None,
        })
    }

    fn parts(&self) -> (u8, &[u8]) {
        match self {
            Self::Lent(kind, bytes) => (*kind, bytes),
            Self::Made(kind, bytes, length) => (*kind, &bytes[..*length]),
        }
    }

    fn append_to(&self, out: &mut Vec<u8>, name: &[u8]) {
        let (kind, bytes) = self.parts();
        open(out, kind, &[name]);
        out.extend_from_slice(bytes);
    }
}

/// An operator, and what it met in the document.
#[derive(Clone, Copy)]
struct Leaf<'a> {
    modification: &'a Modification<'a>,
    /// How many names of the path lead to a document.
    found: usize,
    old: Option<Value<'a>>,
    new: Option<Value<'a>>,
}

/// What a delta says of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Deleted,
    Updated,
    Inserted,
    Nested,
}

/// What operators make of a document; none if it is not usual for them.
pub(super) fn apply(
    modifications: &[Modification<'_>],
    before: &RawDocument,
    context: &UpdateContext,
    room: usize,
) -> Option<PlainChange> {
    let leaf = |modification| Leaf { modification, found: 0, old: None, new: None };
    let mut leaves: Vec<Leaf<'_>> = modifications.iter().map(leaf).collect();
    let mut after = Vec::with_capacity(room);
    splice(&mut after, before, &mut leaves, 0, context)?;
    if leaves.iter().all(|leaf| leaf.old == leaf.new) {
        return Some(PlainChange::Unchanged);
    }
    let after = document_of(after)?;
    if !context.tells_delta {
        return Some(PlainChange::Changed { after, delta: None });
    }
    let values = leaves.iter().map(|leaf| leaf.modification.argument.length()).sum::<usize>();
    let mut delta = Vec::with_capacity(AROUND_VALUES + values);
    let start = begin(&mut delta);
    Value::number(Number::Int32(2))?.append_to(&mut delta, b"$v");
    open(&mut delta, DOCUMENT, &[b"diff"]);
    write_delta(&mut delta, &leaves, 0);
    end(&mut delta, start);
    Some(PlainChange::Changed { after, delta: Some(document_of(delta)?) })
}

/// Writes a document as the operators whose paths lead through it make it.
fn splice<'a>(
    out: &mut Vec<u8>,
    document: &'a RawDocument,
    leaves: &mut [Leaf<'a>],
    depth: usize,
    context: &UpdateContext,
) -> Option<()> {
    let start = begin(out);
    let bytes = document.as_bytes();
    let mut scan = RawScan::new(document);
    let mut copied = scan.position();
    loop {
        let at = scan.position();
        let Some(field) = scan.next() else { break };
        let Some(group) = group_named(leaves, depth, field.key()) else { continue };
        out.extend_from_slice(&bytes[copied..at]);
        copied = scan.position();
        let is_usual = || usual_depth(field).is_some_and(|levels| levels < MAX_NESTING);
        (depth > 0 || is_usual()).then_some(())?;
        if let [leaf] = &mut *group
            && leaf.modification.length == depth + 1
        {
            // A field that is there twice is not usual.
            leaf.old.is_none().then_some(())?;
            leaf.old = Some(Value::of(field));
            leaf.new = leaf.modification.changed(field, context)?;
            if let Some(new) = leaf.new {
                new.append_to(out, field.key());
            }
        } else {
            let inner = field.document().filter(|_| field.kind() == DOCUMENT)?;
            (group[0].found == depth).then_some(())?;
            group.iter_mut().for_each(|leaf| leaf.found = depth + 1);
            open(out, DOCUMENT, &[field.key()]);
            splice(out, inner, group, depth + 1, context)?;
        }
    }
    scan.is_at_end().then_some(())?;
    out.extend_from_slice(&bytes[copied..scan.position()]);
    create(leaves, context);
    append_created(out, leaves, depth);
    end(out, start);
    Some(())
}

/// Notes what the operators make of fields that are not there.
fn create(leaves: &mut [Leaf<'_>], context: &UpdateContext) {
    for leaf in leaves.iter_mut().filter(|leaf| leaf.old.is_none()) {
        leaf.new = leaf.modification.created(context);
    }
}

/// Appends the fields of a document that were not there.
fn append_created(out: &mut Vec<u8>, leaves: &[Leaf<'_>], depth: usize) {
    for group in groups(leaves, depth) {
        if section_of(group, depth) == Some(Section::Inserted) {
            append_new(out, group, depth);
        }
    }
}

/// Appends a field that was not there: a value, or a document for the rest of a path.
fn append_new(out: &mut Vec<u8>, group: &[Leaf<'_>], depth: usize) {
    let name = group[0].modification.name_at(depth).as_bytes();
    if group[0].modification.length == depth + 1 {
        group[0].new.into_iter().for_each(|value| value.append_to(out, name));
        return;
    }
    open(out, DOCUMENT, &[name]);
    let start = begin(out);
    append_created(out, group, depth + 1);
    end(out, start);
}

/// Writes the delta of a document, from what the operators met in it.
fn write_delta(out: &mut Vec<u8>, leaves: &[Leaf<'_>], depth: usize) {
    let whole = begin(out);
    let sections = [(Section::Deleted, b"d"), (Section::Updated, b"u"), (Section::Inserted, b"i")];
    for (section, letter) in sections {
        let mut start = None;
        for group in groups(leaves, depth) {
            if section_of(group, depth) != Some(section) {
                continue;
            }
            start.get_or_insert_with(|| {
                open(out, DOCUMENT, &[letter]);
                begin(out)
            });
            match section {
                Section::Deleted => {
                    let name = group[0].modification.name_at(depth).as_bytes();
                    Value::Lent(0x08, &[0]).append_to(out, name);
                }
                _ => append_new(out, group, depth),
            }
        }
        start.into_iter().for_each(|start| end(out, start));
    }
    for group in groups(leaves, depth) {
        if section_of(group, depth) == Some(Section::Nested) {
            open(out, DOCUMENT, &[b"s", group[0].modification.name_at(depth).as_bytes()]);
            write_delta(out, group, depth + 1);
        }
    }
    end(out, whole);
}

/// What a delta says of the field that the paths of a group lead to or through; none if it stays as it is.
fn section_of(group: &[Leaf<'_>], depth: usize) -> Option<Section> {
    let leaf = &group[0];
    if leaf.modification.length == depth + 1 {
        return match (leaf.old, leaf.new) {
            (Some(_), None) => Some(Section::Deleted),
            (Some(old), Some(new)) if old != new => Some(Section::Updated),
            (None, Some(_)) => Some(Section::Inserted),
            _ => None,
        };
    }
    let is_changed = group.iter().any(|leaf| leaf.old != leaf.new);
    let section = if leaf.found > depth { Section::Nested } else { Section::Inserted };
    is_changed.then_some(section)
}

/// The operators whose paths have this name at a depth. They stand together.
fn group_named<'g, 'a>(
    leaves: &'g mut [Leaf<'a>],
    depth: usize,
    name: &[u8],
) -> Option<&'g mut [Leaf<'a>]> {
    let is_named = |leaf: &Leaf<'_>| leaf.modification.name_at(depth).as_bytes() == name;
    let start = leaves.iter().position(is_named)?;
    let count = leaves[start..].iter().take_while(|leaf| is_named(leaf)).count();
    Some(&mut leaves[start..start + count])
}

/// The operators by the names of their paths at a depth.
fn groups<'g, 'a>(leaves: &'g [Leaf<'a>], depth: usize) -> impl Iterator<Item = &'g [Leaf<'a>]> {
    let name = move |leaf: &Leaf<'a>| leaf.modification.name_at(depth);
    leaves.chunk_by(move |left, right| name(left) == name(right))
}

impl<'a> Modification<'a> {
    /// What becomes of a field; none if it goes. If it is not usual for the operator, there is no answer.
    fn changed(&self, old: RawField<'a>, context: &UpdateContext) -> Option<Option<Value<'a>>> {
        let (kept, argument) = (Value::of(old), Value::of(self.argument));
        let order = || Some(compare(self.argument.value()?, old.value()?));
        let computed = |compute: fn(Number, Number) -> Option<Number>| {
            Value::number(compute(number(old)?, number(self.argument)?)?)
        };
        Some(match self.operator {
            Operator::Set => Some(argument),
            Operator::SetOnInsert => Some(kept),
            Operator::Unset => None,
            Operator::Increment => Some(computed(Number::checked_add)?),
            Operator::Multiply => Some(computed(Number::checked_multiply)?),
            Operator::Minimum => Some(if order()?.is_lt() { argument } else { kept }),
            Operator::Maximum => Some(if order()?.is_gt() { argument } else { kept }),
            Operator::CurrentDate => Some(date(context)),
        })
    }

    /// The value of a field that is not there; none if it stays away.
    fn created(&self, context: &UpdateContext) -> Option<Value<'a>> {
        match self.operator {
            Operator::Set | Operator::Increment | Operator::Minimum | Operator::Maximum => {
                Some(Value::of(self.argument))
            }
            Operator::Multiply => {
                let (kind, bytes) = (self.argument.kind(), self.argument.bytes());
                Some(Value::Made(kind, [0; MADE_BYTES], bytes.len()))
            }
            Operator::CurrentDate => Some(date(context)),
            Operator::SetOnInsert | Operator::Unset => None,
        }
    }
}

fn date(context: &UpdateContext) -> Value<'static> {
    Value::eight(0x09, context.now.timestamp_millis().to_le_bytes())
}

/// Begins a document, and says where.
pub(crate) fn begin(out: &mut Vec<u8>) -> usize {
    out.extend([0; 4]);
    out.len() - 4
}

/// Ends the document that began there.
pub(crate) fn end(out: &mut Vec<u8>, start: usize) {
    out.push(0);
    // No longer than a document may be, or not used: see `document_of`.
    let length = i32::try_from(out.len() - start).unwrap_or(i32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Begins a field, whose name is joined of parts.
fn open(out: &mut Vec<u8>, kind: u8, name: &[&[u8]]) {
    out.push(kind);
    name.iter().for_each(|part| out.extend_from_slice(part));
    out.push(0);
}
