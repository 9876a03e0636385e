//! Applies deltas of the oplog to the bytes of a document, without parsing it.
//!
//! Owns what most entries say: fields of documents that are deleted, set in their places or added. A delta of an array,
//! a field that moves, one that is not there any more and whatever else is not usual is left to
//! [`apply_oplog_update`](crate::diff::apply_oplog_update), which then does all of it. Documents become the same bytes by
//! both.

use bson::{RawDocument, RawDocumentBuf};

use crate::update::{begin_document, document_of, end_document, usual_depth, usual_document};
use crate::value::MAX_NESTING;
use crate::value::raw_scan::{RawField, RawScan};

/// The version of deltas that is understood, as the value of `$v`.
const VERSION: [u8; 4] = [2, 0, 0, 0];

/// The type of a number of 32 bits.
const INT32: u8 = 0x10;

/// A delta whose bytes are the only ones for it.
#[derive(Debug, Clone, Copy)]
pub struct PlainDelta<'d>(&'d RawDocument);

/// What a delta says of a field.
enum Said<'d> {
    Deleted,
    Updated(RawField<'d>),
    Inserted,
    Nested(&'d RawDocument),
}

impl<'d> PlainDelta<'d> {
    /// Reads the field `o` of an entry. None if it is no delta, or not a usual one.
    pub fn read(entry: &'d RawDocument) -> Option<Self> {
        let mut fields = RawScan::new(entry);
        let version = fields.next().filter(|field| field.key() == b"$v")?;
        (version.kind() == INT32 && version.bytes() == VERSION).then_some(())?;
        let diff = fields.next().filter(|field| field.key() == b"diff" && field.kind() == 0x03)?;
        let diff = diff.document()?;
        let is_usual = usual_document(diff).is_some_and(|depth| depth <= MAX_NESTING);
        (is_usual && fields.next().is_none() && fields.is_at_end()).then_some(Self(diff))
    }

    /// Whether the delta changes a field of this name.
    pub fn touches(&self, name: &str) -> bool {
        said(self.0, name.as_bytes()).is_some()
    }

    /// The document after the change; none if it is not usual for the delta.
    pub fn apply(&self, before: &RawDocument) -> Option<RawDocumentBuf> {
        let room = before.as_bytes().len() + self.0.as_bytes().len();
        let mut after = Vec::with_capacity(room);
        splice(&mut after, before, self.0, 0)?;
        document_of(after)
    }
}

/// The sections of a delta: fields by one letter, and the deltas of embedded documents.
fn section(delta: &RawDocument, letter: u8) -> Option<&RawDocument> {
    RawScan::new(delta).find(|field| field.key() == [letter])?.document()
}

/// What a delta says of a field of this name.
fn said<'d>(delta: &'d RawDocument, name: &[u8]) -> Option<Said<'d>> {
    for part in RawScan::new(delta) {
        let fields = part.document()?;
        let named = || RawScan::new(fields).find(|field| field.key() == name);
        let said = match part.key() {
            b"d" => named().map(|_| Said::Deleted),
            b"u" => named().map(Said::Updated),
            b"i" => named().map(|_| Said::Inserted),
            [b's', nested @ ..] if nested == name => Some(Said::Nested(fields)),
            _ => None,
        };
        if said.is_some() {
            return said;
        }
    }
    None
}

/// How many fields a delta changes in their places; none if it has other sections than deltas of documents have.
fn places(delta: &RawDocument) -> Option<usize> {
    let mut places = 0;
    for part in RawScan::new(delta) {
        match part.key() {
            b"d" | b"i" => drop(part.document()?),
            b"u" => places += RawScan::new(part.document()?).count(),
            [b's', ..] if part.kind() == 0x03 => places += 1,
            _ => return None,
        }
    }
    Some(places)
}

fn splice(
    out: &mut Vec<u8>,
    document: &RawDocument,
    delta: &RawDocument,
    depth: usize,
) -> Option<()> {
    let mut left = places(delta)?;
    let start = begin_document(out);
    let bytes = document.as_bytes();
    let mut scan = RawScan::new(document);
    let (mut copied, mut passed) = (scan.position(), 0);
    loop {
        let at = scan.position();
        let Some(field) = scan.next() else { break };
        passed += 1;
        let Some(said) = said(delta, field.key()) else { continue };
        out.extend_from_slice(&bytes[copied..at]);
        copied = scan.position();
        let is_usual = || usual_depth(field).is_some_and(|levels| levels < MAX_NESTING);
        let is_second =
            RawScan::new(document).take(passed - 1).any(|earlier| earlier.key() == field.key());
        (!is_second && (depth > 0 || is_usual())).then_some(())?;
        match said {
            Said::Deleted => continue,
            Said::Inserted => return None,
            Said::Updated(new) => new.append_to(out),
            Said::Nested(inner) => {
                let document = field.document().filter(|_| field.kind() == 0x03)?;
                out.push(0x03);
                out.extend_from_slice(field.key());
                out.push(0);
                splice(out, document, inner, depth + 1)?;
            }
        }
        left -= 1;
    }
    // What is not in its place any more is added or passed over.
    (left == 0 && scan.is_at_end()).then_some(())?;
    out.extend_from_slice(&bytes[copied..scan.position()]);
    for new in section(delta, b'i').into_iter().flat_map(RawScan::new) {
        // Nothing else is said of it.
        matches!(said(delta, new.key()), Some(Said::Inserted)).then_some(())?;
        new.append_to(out);
    }
    end_document(out, start);
    Some(())
}
