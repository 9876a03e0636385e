//! Values as bytes whose order is the order of the values, in the layout that resume tokens have.
//!
//! Only what tokens hold is written: numbers without a fraction, strings, booleans, identifiers, binary
//! data, dates, timestamps, null, and documents and arrays of these. Any other value is kept as its BSON
//! bytes under a mark of its own: a token must tell the events of one entry apart, and these are told
//! apart by their place before the value is compared.

use bson::{Bson, Document, RawBsonRef, RawDocument};

use crate::error::{EventError, Result};

const NULL: u8 = 0x14;
const ZERO: u8 = 0x29;
/// Positive whole numbers of one byte; of two bytes the next one, and so on.
const POSITIVE: u8 = 0x2B;
/// Negative whole numbers of one byte; of two bytes the one before, and so on.
const NEGATIVE: u8 = 0x27;
const STRING: u8 = 0x3C;
const OBJECT: u8 = 0x46;
const ARRAY: u8 = 0x50;
const BINARY: u8 = 0x5A;
const OBJECT_ID: u8 = 0x64;
const FALSE: u8 = 0x6E;
const TRUE: u8 = 0x6F;
const DATE: u8 = 0x78;
const TIMESTAMP: u8 = 0x82;
/// The BSON bytes of any other value: length, then a document with one field.
const OTHER: u8 = 0xE6;
/// Ends a token and its documents.
const END_OBJECT: u8 = 0x00;

/// The deepest nesting that is read back.
const MAX_DEPTH: usize = 200;

/// Appends a value.
pub(crate) fn write(out: &mut Vec<u8>, value: &Bson) {
    match value {
        Bson::Null => out.push(NULL),
        Bson::Int32(number) => write_number(out, i64::from(*number)),
        Bson::Int64(number) => write_number(out, *number),
        Bson::Double(number)
            if number.fract() == 0.0
                && number.abs() < 9e15
                && (*number != 0.0 || number.is_sign_positive()) =>
        {
            write_number(out, *number as i64);
        }
        Bson::String(text) => {
            out.push(STRING);
            write_text(out, text);
        }
        Bson::Boolean(value) => out.push(if *value { TRUE } else { FALSE }),
        Bson::ObjectId(id) => {
            out.push(OBJECT_ID);
            out.extend(id.bytes());
        }
        Bson::Binary(binary) if binary.bytes.len() < 0xFF => {
            out.push(BINARY);
            out.push(binary.bytes.len() as u8);
            out.push(binary.subtype.into());
            out.extend(&binary.bytes);
        }
        Bson::DateTime(date) => {
            out.push(DATE);
            // The sign is flipped so that dates before 1970 come first.
            out.extend((date.timestamp_millis() as u64 ^ (1 << 63)).to_be_bytes());
        }
        Bson::Timestamp(time) => {
            out.push(TIMESTAMP);
            out.extend(time.time.to_be_bytes());
            out.extend(time.increment.to_be_bytes());
        }
        Bson::Document(document) => write_document(out, document),
        Bson::Array(elements) => {
            out.push(ARRAY);
            elements.iter().for_each(|element| write(out, element));
            out.push(END_OBJECT);
        }
        other => {
            let mut holder = Document::new();
            holder.insert("", other.clone());
            let mut bytes = Vec::new();
            // A value that came out of a stored document can be written again.
            if holder.to_writer(&mut bytes).is_ok() {
                out.push(OTHER);
                out.extend((bytes.len() as u32).to_be_bytes());
                out.extend(bytes);
            } else {
                out.push(NULL);
            }
        }
    }
}

fn write_document(out: &mut Vec<u8>, document: &Document) {
    out.push(OBJECT);
    for (name, value) in document {
        let start = out.len();
        out.push(0);
        out.extend(name.as_bytes());
        out.push(0);
        let at = out.len();
        write(out, value);
        out[start] = canonical(out[at]);
    }
    out.push(END_OBJECT);
}

/// The byte that stands for the type of a value: all numbers have the same.
fn canonical(first: u8) -> u8 {
    const NUMBER: u8 = 0x1E;
    if (0x1E..=0x33).contains(&first) { NUMBER } else { first }
}

pub(crate) fn write_number(out: &mut Vec<u8>, number: i64) {
    if number == 0 {
        return out.push(ZERO);
    }
    let shifted = u128::from(number.unsigned_abs()) << 1;
    let bytes = shifted.to_be_bytes();
    let skipped = bytes.iter().take_while(|byte| **byte == 0).count();
    let length = (bytes.len() - skipped) as u8;
    if number > 0 {
        out.push(POSITIVE + length - 1);
        out.extend(&bytes[skipped..]);
    } else {
        out.push(NEGATIVE - (length - 1));
        out.extend(bytes[skipped..].iter().map(|byte| !byte));
    }
}

/// A zero byte within a text is followed by 0xFF, so that the end is known.
fn write_text(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        out.push(byte);
        if byte == 0 {
            out.push(0xFF);
        }
    }
    out.push(0);
}

/// Reads values back.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.bytes.split_at_checked(count) else {
            return Err(EventError::token("it is cut short"));
        };
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| EventError::token("it is cut short"))
    }

    fn name(&mut self) -> Result<String> {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| EventError::token("it is cut short"))?;
        let name = self.take(end + 1)?;
        String::from_utf8(name[..end].to_vec()).map_err(|_| EventError::token("it is not UTF-8"))
    }

    fn text(&mut self) -> Result<String> {
        let mut text = Vec::new();
        loop {
            match self.byte()? {
                0 if self.bytes.first() == Some(&0xFF) => {
                    self.byte()?;
                    text.push(0);
                }
                0 => break,
                byte => text.push(byte),
            }
        }
        String::from_utf8(text).map_err(|_| EventError::token("it is not UTF-8"))
    }

    /// The next value.
    pub(crate) fn value(&mut self) -> Result<Bson> {
        self.value_at(0)
    }

    fn value_at(&mut self, depth: usize) -> Result<Bson> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        Ok(match self.byte()? {
            NULL => Bson::Null,
            ZERO => Bson::Int32(0),
            kind @ 0x2B..=0x33 => number(self.take(usize::from(kind - POSITIVE) + 1)?, 0)?,
            kind @ 0x1F..=0x27 => number(self.take(usize::from(NEGATIVE - kind) + 1)?, 0xFF)?,
            STRING => Bson::String(self.text()?),
            TRUE => Bson::Boolean(true),
            FALSE => Bson::Boolean(false),
            OBJECT_ID => Bson::ObjectId(bson::oid::ObjectId::from_bytes(self.array()?)),
            BINARY => {
                let length = self.byte()?;
                let subtype = self.byte()?.into();
                Bson::Binary(bson::Binary { subtype, bytes: self.take(length.into())?.to_vec() })
            }
            DATE => {
                let millis = u64::from_be_bytes(self.array()?) ^ (1 << 63);
                Bson::DateTime(bson::DateTime::from_millis(millis as i64))
            }
            TIMESTAMP => Bson::Timestamp(bson::Timestamp {
                time: u32::from_be_bytes(self.array()?),
                increment: u32::from_be_bytes(self.array()?),
            }),
            OBJECT => {
                let mut document = Document::new();
                while self.byte()? != END_OBJECT {
                    let name = self.name()?;
                    document.insert(name, self.value_at(depth + 1)?);
                }
                Bson::Document(document)
            }
            ARRAY => {
                let mut elements = Vec::new();
                while self.bytes.first() != Some(&END_OBJECT) {
                    elements.push(self.value_at(depth + 1)?);
                }
                self.byte()?;
                Bson::Array(elements)
            }
            OTHER => {
                let length = u32::from_be_bytes(self.array()?);
                held_value(self.take(length as usize)?, depth)?
            }
            unknown => return Err(EventError::token(format!("it holds type {unknown:#04x}"))),
        })
    }
}

fn too_deep() -> EventError {
    EventError::token("it is nested too deeply")
}

fn damaged() -> EventError {
    EventError::token("a value in it is damaged")
}

/// The value in the BSON bytes of its own document. Documents and arrays have a layout in tokens, so they do not come
/// here. A client chooses the bytes of its token, and parsing takes a frame of the stack for each level of nesting.
fn held_value(bytes: &[u8], depth: usize) -> Result<Bson> {
    let holder = RawDocument::from_bytes(bytes).map_err(|_| damaged())?;
    let mut fields = holder.iter();
    let (Some(Ok((name, value))), None) = (fields.next(), fields.next()) else {
        return Err(damaged());
    };
    match value {
        RawBsonRef::Document(_) | RawBsonRef::Array(_) => return Err(damaged()),
        value => check_depth(value, depth)?,
    }
    match name.is_empty() {
        true => Bson::try_from(value).map_err(|_| damaged()),
        false => Err(damaged()),
    }
}

/// The scope of code is a document of any depth.
fn check_depth(value: RawBsonRef<'_>, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    let inner = |value| check_depth(value, depth + 1);
    match value {
        RawBsonRef::Document(document) => {
            document.iter().try_for_each(|field| inner(field.map_err(|_| damaged())?.1))
        }
        RawBsonRef::Array(items) => {
            items.into_iter().try_for_each(|item| inner(item.map_err(|_| damaged())?))
        }
        RawBsonRef::JavaScriptCodeWithScope(code) => inner(RawBsonRef::Document(code.scope)),
        _ => Ok(()),
    }
}

fn number(bytes: &[u8], mask: u8) -> Result<Bson> {
    let shifted = bytes.iter().fold(0_u128, |total, byte| total << 8 | u128::from(byte ^ mask));
    let size = i128::try_from(shifted >> 1).unwrap_or(i128::MAX);
    let signed = if mask == 0 { size } else { -size };
    match (i32::try_from(signed), i64::try_from(signed)) {
        _ if shifted & 1 == 1 => Err(EventError::token("it holds a number with a fraction")),
        (Ok(small), _) => Ok(Bson::Int32(small)),
        (_, Ok(large)) => Ok(Bson::Int64(large)),
        _ => Err(EventError::token("it holds a number that is too large")),
    }
}
