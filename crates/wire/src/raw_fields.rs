//! The fields of a document by their bytes: for the few that every command and every reply is searched for.
//!
//! Steps over values by their lengths and reads only what is asked for; names are compared, not read as
//! text, and looking for what is not there asks for no memory. A length that does not fit ends the
//! document. Layout per the BSON specification, version 1.1.

use bson::raw::{BindRawBsonRef, CStr, RawDocument};
use bson::{DateTime, Timestamp};
use quorate_protocol::bson_length::value_length;

use crate::body_writer::CommandFields;

pub(crate) const DOUBLE: u8 = 0x01;
pub(crate) const STRING: u8 = 0x02;
pub(crate) const DOCUMENT: u8 = 0x03;
pub(crate) const ARRAY: u8 = 0x04;
const BINARY: u8 = 0x05;
pub(crate) const BOOLEAN: u8 = 0x08;
pub(crate) const DATE: u8 = 0x09;
pub(crate) const INT32: u8 = 0x10;
pub(crate) const TIMESTAMP: u8 = 0x11;
pub(crate) const INT64: u8 = 0x12;

/// One field, its value not read yet.
#[derive(Clone, Copy, Debug)]
pub struct RawField<'a> {
    kind: u8,
    key: &'a [u8],
    value: &'a [u8],
}

/// The first field of this name.
pub fn find_field<'a>(document: &'a RawDocument, name: &str) -> Option<RawField<'a>> {
    RawFields::of(document).find(|field| field.key == name.as_bytes())
}

/// The first fields of these names, found in one walk.
pub fn find_fields<'a, const N: usize>(
    document: &'a RawDocument,
    names: [&str; N],
) -> [Option<RawField<'a>>; N] {
    let (mut found, mut missing) = ([None; N], N);
    for field in RawFields::of(document) {
        let place = names.iter().position(|name| name.as_bytes() == field.key);
        if let Some(place) = place.filter(|place| found[*place].is_none()) {
            found[place] = Some(field);
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    found
}

/// All fields in their order, until the end or what is not BSON.
pub fn raw_fields(document: &RawDocument) -> impl Iterator<Item = RawField<'_>> {
    RawFields::of(document)
}

/// Appends the name of an item of an array: its place in decimal digits, without the zero that ends a name.
pub(crate) fn append_item_name(out: &mut Vec<u8>, mut place: usize) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (place % 10) as u8;
        place /= 10;
        if place == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

impl<'a> RawField<'a> {
    /// The bytes of the name.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The value, if it is a timestamp.
    pub fn timestamp(&self) -> Option<Timestamp> {
        let (increment, time) = self.of_kind(TIMESTAMP)?.split_first_chunk()?;
        let time = u32::from_le_bytes(*time.first_chunk()?);
        Some(Timestamp { time, increment: u32::from_le_bytes(*increment) })
    }

    /// The value, if it is a number of 32 bits.
    pub fn int32(&self) -> Option<i32> {
        Some(i32::from_le_bytes(*self.of_kind(INT32)?.first_chunk()?))
    }

    /// The value, if it is a number of 64 bits.
    pub fn int64(&self) -> Option<i64> {
        Some(i64::from_le_bytes(*self.of_kind(INT64)?.first_chunk()?))
    }

    /// The value, if it is a date.
    pub fn date_time(&self) -> Option<DateTime> {
        Some(DateTime::from_millis(i64::from_le_bytes(*self.of_kind(DATE)?.first_chunk()?)))
    }

    /// The value, if it is text.
    pub fn text(&self) -> Option<&'a str> {
        let (_, bytes) = self.of_kind(STRING)?.split_at_checked(4)?;
        std::str::from_utf8(bytes.strip_suffix(&[0])?).ok()
    }

    /// The subtype and the bytes of the value, if it is binary.
    pub fn binary(&self) -> Option<(u8, &'a [u8])> {
        let (subtype, bytes) = self.of_kind(BINARY)?.get(4..)?.split_first()?;
        Some((*subtype, bytes))
    }

    /// The value, if it is a document.
    pub fn document(&self) -> Option<&'a RawDocument> {
        RawDocument::from_bytes(self.of_kind(DOCUMENT)?).ok()
    }

    /// The value as a document whose names are places, if it is an array.
    pub(crate) fn array(&self) -> Option<&'a RawDocument> {
        RawDocument::from_bytes(self.of_kind(ARRAY)?).ok()
    }

    /// The documents of an array that holds nothing else.
    pub fn documents(&self) -> Option<Vec<&'a RawDocument>> {
        let mut fields = RawFields::of(self.array()?);
        let documents = fields.by_ref().map(|field| field.document()).collect();
        fields.is_at_end().then_some(documents)?
    }

    /// The value, if it is a boolean.
    pub fn boolean(&self) -> Option<bool> {
        Some(*self.of_kind(BOOLEAN)?.first()? != 0)
    }

    /// The value, if it is a double.
    pub fn double(&self) -> Option<f64> {
        Some(f64::from_le_bytes(*self.of_kind(DOUBLE)?.first_chunk()?))
    }

    /// Whether it is `true` or a number that is not zero, of the types that servers use.
    pub(crate) fn is_true(&self) -> bool {
        match self.kind {
            BOOLEAN | INT32 | INT64 => self.value.iter().any(|&byte| byte != 0),
            DOUBLE => self.double().is_some_and(|number| number != 0.0),
            _ => false,
        }
    }

    fn of_kind(&self, kind: u8) -> Option<&'a [u8]> {
        (self.kind == kind).then_some(self.value)
    }
}

/// The fields from the first on, until the end or what is not BSON.
pub(crate) struct RawFields<'a> {
    rest: &'a [u8],
}

impl<'a> RawFields<'a> {
    pub(crate) fn of(document: &'a RawDocument) -> Self {
        Self { rest: document.as_bytes().get(4..).unwrap_or_default() }
    }

    /// The same of a document that is being written and has no end yet.
    pub(crate) fn of_unfinished(bytes: &'a [u8]) -> Self {
        Self { rest: bytes.get(4..).unwrap_or_default() }
    }

    /// The next field, if it has this name: its name is compared, not searched for its end.
    pub(crate) fn next_of(&mut self, name: &str) -> Option<RawField<'a>> {
        let (&kind, rest) = self.rest.split_first()?;
        let (key, rest) = rest.split_at_checked(name.len())?;
        if key != name.as_bytes() {
            return None;
        }
        let rest = rest.strip_prefix(&[0])?;
        let (value, rest) = rest.split_at_checked(value_length(kind, rest)?)?;
        self.rest = rest;
        Some(RawField { kind, key, value })
    }

    /// Whether nothing but the end of the document is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.rest == [0]
    }
}

impl<'a> Iterator for RawFields<'a> {
    type Item = RawField<'a>;

    fn next(&mut self) -> Option<RawField<'a>> {
        let (&kind, rest) = self.rest.split_first()?;
        if kind == 0 {
            return None;
        }
        let (key, rest) = rest.split_at(rest.iter().position(|&byte| byte == 0)?);
        let (value, rest) = rest[1..].split_at_checked(value_length(kind, &rest[1..])?)?;
        self.rest = rest;
        Some(RawField { kind, key, value })
    }
}

/// Appends a value that may be absent.
pub trait AppendSome {
    /// Appends the value, if there is one.
    fn append_some(&mut self, key: &CStr, value: Option<impl BindRawBsonRef>);
}

impl<F: CommandFields> AppendSome for F {
    fn append_some(&mut self, key: &CStr, value: Option<impl BindRawBsonRef>) {
        if let Some(value) = value {
            self.append(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::raw::cstr;
    use bson::{Bson, RawDocumentBuf, doc, rawdoc};

    /// One field of every type, and one to find behind them.
    fn of_all_types() -> RawDocumentBuf {
        let document = doc! {
            "double": 1.5, "string": "text", "document": { "a": 1 }, "array": [1, 2],
            "binary": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![0; 3] },
            "undefined": Bson::Undefined, "id": bson::oid::ObjectId::from_bytes([1; 12]),
            "boolean": true, "date": bson::DateTime::from_millis(1), "null": Bson::Null,
            "regex": bson::Regex { pattern: cstr!("a+").into(), options: cstr!("i").into() }, "code": Bson::JavaScriptCode("f".into()),
            "symbol": Bson::Symbol("s".into()),
            "scoped": bson::JavaScriptCodeWithScope { code: "f".into(), scope: doc! { "x": 1 } },
            "int32": 3, "int64": 4_i64, "decimal": bson::Decimal128::from_bytes([0; 16]),
            "least": Bson::MinKey, "greatest": Bson::MaxKey,
            "time": Timestamp { time: 7, increment: 2 },
        };
        RawDocumentBuf::try_from(document).unwrap()
    }

    #[test]
    fn a_field_is_found_behind_values_of_every_type() {
        let document = of_all_types();
        let names: Vec<_> = RawFields::of(&document).map(|field| field.key().to_vec()).collect();
        let expected: Vec<_> = document
            .iter_elements()
            .map(|e| e.unwrap().key().as_str().as_bytes().to_vec())
            .collect();
        assert_eq!(names, expected);
        let time = find_field(&document, "time").unwrap().timestamp();
        assert_eq!(time, Some(Timestamp { time: 7, increment: 2 }));
        let inner = find_field(&document, "document").unwrap().document();
        assert_eq!(inner, Some(&*rawdoc! { "a": 1 }));
        assert!(find_field(&document, "int32").unwrap().timestamp().is_none());
        assert_eq!(find_field(&document, "int32").unwrap().int32(), Some(3));
        assert_eq!(find_field(&document, "int64").unwrap().int32(), None);
        assert!(find_field(&document, "tim").is_none());
    }

    #[test]
    fn a_length_that_does_not_fit_ends_the_document() {
        let mut bytes = rawdoc! { "a": "text", "b": 1 }.into_bytes();
        bytes[7..11].copy_from_slice(&1000_i32.to_le_bytes());
        let document = RawDocumentBuf::from_bytes(bytes).unwrap();
        let mut fields = RawFields::of(&document);
        assert!(fields.next().is_none());
        assert!(!fields.is_at_end());
        assert!(find_field(&document, "b").is_none());
    }

    #[test]
    fn documents_are_those_of_an_array_of_nothing_else() {
        let document = rawdoc! { "all": [{ "a": 1 }, {}], "none": [], "mixed": [{}, 1], "no": {} };
        let [all, none, mixed, no] = find_fields(&document, ["all", "none", "mixed", "no"]);
        let documents = all.unwrap().documents().unwrap();
        assert_eq!(documents, [&*rawdoc! { "a": 1 }, &*rawdoc! {}]);
        assert_eq!(none.unwrap().documents(), Some(Vec::new()));
        assert_eq!(mixed.unwrap().documents(), None);
        assert_eq!(no.unwrap().documents(), None);
        // An item whose length does not fit ends the array too early.
        let mut bytes = rawdoc! { "all": [{ "a": 1 }, {}] }.into_bytes();
        let last = bytes.len() - 7;
        bytes[last..last + 4].copy_from_slice(&1000_i32.to_le_bytes());
        let damaged = RawDocumentBuf::from_bytes(bytes).unwrap();
        assert_eq!(find_field(&damaged, "all").unwrap().documents(), None);
    }

    #[test]
    fn truth_is_a_boolean_or_a_number() {
        let document = rawdoc! { "a": true, "b": 1, "c": 1.0, "d": 2_i64, "e": "yes" };
        let truths: Vec<_> = RawFields::of(&document).map(|field| field.is_true()).collect();
        assert_eq!(truths, [true, true, true, true, false]);
        let document = rawdoc! { "a": false, "b": 0, "c": 0.0, "d": -0.0 };
        assert!(RawFields::of(&document).all(|field| !field.is_true()));
    }
}
