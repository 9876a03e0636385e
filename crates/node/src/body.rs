//! The fields of a command, read when they are asked for.
//!
//! A command arrives as bytes, and its code looks at few of its fields. The bytes are checked once, when they
//! arrive; a value becomes a [`Bson`] when it is first looked at, and stays one. A document that is not looked
//! at (the session, the cluster's time, the statement of a command that is refused) costs nothing more.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use bson::spec::ElementType;
use bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp};

use crate::commands::MAX_WRITE_BATCH_SIZE;
use crate::context::check_document_count;
use crate::error::{CommandError, Result};
use crate::records::DocumentBytes;
use crate::structure::{Depth, Element, Elements, check_value_bytes, read_rare};

/// Fields up to which each is compared with all others to find one that is given twice.
const FEW_FIELDS: usize = 32;

/// Fields that most commands have at most.
const USUAL_FIELDS: usize = 12;

/// The longest text of the first field that is kept beside the bytes: more than any name of a collection.
const MAX_KEPT_TEXT: u32 = 256;

/// Fields that a command or a statement may have: each takes far more memory than the bytes it came as.
const MAX_FIELDS: usize = 10_000;

/// The fields of a command or of a statement, in their order.
#[derive(Clone, Default)]
pub struct CommandBody {
    /// What the fields' places refer to: the document as it came, or names and embedded documents.
    bytes: Box<[u8]>,
    fields: Vec<Field>,
    /// The name of the first field, and behind it the texts of `$db` and of the first field if they are among the bytes
    /// and short: they are asked for many times.
    names: Box<str>,
    /// How long the first of them is, and the second.
    name_length: u32,
    database_length: u32,
    /// The marks of all names, a bit for each. Most fields that are asked for are not there.
    marks: u64,
}

/// How many marks there are.
pub(crate) const MARKS: usize = 64;

/// A number below [`MARKS`] that stands for a name: names with different marks are different.
pub(crate) const fn mark_of(name: &[u8]) -> u8 {
    let (first, last) = match name {
        [] => (0, 0),
        [first, .., last] => (*first, *last),
        [only] => (*only, *only),
    };
    ((first as usize ^ (last as usize) << 2 ^ name.len() << 3) % MARKS) as u8
}

/// The body has no such field, or it has another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchValue;

/// A command has room for many of these, and few are read as values: they are small.
#[derive(Clone)]
struct Field {
    name: Span,
    mark: u8,
    kind: ElementType,
    /// Where its value is, without the type and the name.
    place: Span,
    value: OnceLock<Box<Bson>>,
}

/// A part of the bytes, of which there are fewer than 4 GiB.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start as u32, end: range.end as u32 }
    }
}

impl Span {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }

    fn is_empty(self) -> bool {
        self.start == self.end
    }
}

impl From<Document> for CommandBody {
    fn from(document: Document) -> Self {
        let mut bytes = Vec::new();
        let mut append = |more: &[u8]| {
            let start = bytes.len();
            bytes.extend(more);
            start..bytes.len()
        };
        let mut fields = Vec::with_capacity(document.len());
        let names: Box<str> = document.keys().next().map_or("", String::as_str).into();
        let mut marks = 0;
        for (name, value) in document {
            let mark = mark_of(name.as_bytes());
            marks |= 1 << mark;
            let nested =
                value.as_document().and_then(|nested| RawDocumentBuf::try_from(nested).ok());
            fields.push(Field {
                name: append(name.as_bytes()).into(),
                mark,
                kind: value.element_type(),
                place: nested.map_or(0..0, |nested| append(nested.as_bytes())).into(),
                value: OnceLock::from(Box::new(value)),
            });
        }
        let name_length = names.len() as u32;
        Self { bytes: bytes.into(), fields, names, name_length, database_length: 0, marks }
    }
}

impl CommandBody {
    /// Checks a document that has arrived: its structure, its texts, and how deep it nests. Fails
    /// if it is malformed, nests too deeply, or has a field twice.
    pub(crate) fn from_raw(document: &RawDocument) -> Result<Self> {
        let bytes: Box<[u8]> = document.as_bytes().into();
        let mut fields = Vec::with_capacity(USUAL_FIELDS);
        // Only names with the same mark can be the same.
        let (mut marks, mut database, mut may_be_doubled) = (0, 0..0, false);
        let mut elements = Elements::new(&bytes)?;
        while let Some(Element { kind, name, place }) = elements.next()? {
            if fields.len() == MAX_FIELDS {
                let why = format!("a command or a statement has at most {MAX_FIELDS} fields");
                return Err(CommandError::bad_value(why));
            }
            check_value_bytes(kind, &bytes[place.clone()], Depth::COMMAND)?;
            if kind == ElementType::String && bytes[name.clone()] == *b"$db" {
                database = place.start + 4..place.end - 1;
            }
            let mark = mark_of(&bytes[name.clone()]);
            may_be_doubled |= marks & 1 << mark != 0;
            marks |= 1_u64 << mark;
            let (name, place) = (name.into(), place.into());
            fields.push(Field { name, mark, kind, place, value: OnceLock::new() });
        }
        let text = |place: Span| std::str::from_utf8(place.of(&bytes)).unwrap_or_default();
        let (name, collection) = match fields.first() {
            Some(Field { name, kind: ElementType::String, place, .. })
                if place.end - place.start <= MAX_KEPT_TEXT =>
            {
                (text(*name), text(Span { start: place.start + 4, end: place.end - 1 }))
            }
            first => (first.map_or("", |field: &Field| text(field.name)), ""),
        };
        let database = text(database.into());
        let mut names = String::with_capacity(name.len() + database.len() + collection.len());
        [name, database, collection].iter().for_each(|part| names.push_str(part));
        let (name_length, database_length) = (name.len() as u32, database.len() as u32);
        let names = names.into_boxed_str();
        let body = Self { bytes, fields, names, name_length, database_length, marks };
        match may_be_doubled.then(|| body.doubled()).flatten() {
            Some(name) => Err(fail!(
                DUPLICATE_FIELD,
                "BSON field '{}.{name}' is a duplicate field",
                body.name()
            )),
            None => Ok(body),
        }
    }

    /// A name that is given twice.
    fn doubled(&self) -> Option<&str> {
        let name = |field: &Field| field.name.of(&self.bytes);
        if self.fields.len() > FEW_FIELDS {
            let mut names: Vec<&[u8]> = self.fields.iter().map(name).collect();
            names.sort_unstable();
            let pair = names.windows(2).find(|pair| pair[0] == pair[1])?;
            return std::str::from_utf8(pair[0]).ok();
        }
        let is_earlier = |place: usize, field: &Field| {
            self.fields[..place].iter().any(|earlier| name(earlier) == name(field))
        };
        let mut fields = self.fields.iter().enumerate();
        fields.find(|(place, field)| is_earlier(*place, field)).map(|(_, field)| self.text(field))
    }

    fn text(&self, field: &Field) -> &str {
        std::str::from_utf8(field.name.of(&self.bytes)).unwrap_or_default()
    }

    /// Whether a name is not known to be absent.
    #[inline]
    pub(crate) fn may_have(&self, name: &str) -> bool {
        self.marks & 1 << mark_of(name.as_bytes()) != 0
    }

    /// Whether a name with one of these marks is not known to be absent.
    pub(crate) fn may_have_one(&self, marks: u64) -> bool {
        self.marks & marks != 0
    }

    // Within its callers, the mark of a name that they know costs nothing.
    #[inline]
    fn field(&self, name: &str) -> Option<&Field> {
        let mark = mark_of(name.as_bytes());
        if self.marks & 1 << mark == 0 {
            return None;
        }
        self.marked(name, mark)
    }

    /// The field of this name, whose mark is there.
    fn marked(&self, name: &str, mark: u8) -> Option<&Field> {
        let is_it =
            |field: &&Field| field.mark == mark && field.name.of(&self.bytes) == name.as_bytes();
        self.fields.iter().find(is_it)
    }

    fn value<'a>(&'a self, field: &'a Field) -> &'a Bson {
        field.value.get_or_init(|| Box::new(read(field.kind, field.place.of(&self.bytes))))
    }

    /// The first name, which is the command's.
    pub fn name(&self) -> &str {
        &self.names[..self.name_length as usize]
    }

    /// The texts behind the name.
    fn texts(&self) -> (&str, &str) {
        self.names[self.name_length as usize..].split_at(self.database_length as usize)
    }

    /// The bytes that its documents came as.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The database that the command is meant for.
    pub fn database(&self) -> &str {
        match self.texts() {
            ("", _) => self.get_text("$db").unwrap_or("admin"),
            (known, _) => known,
        }
    }

    /// The text of a field, read where it came. None if there is no such field, or it is no text.
    #[inline]
    pub fn get_text(&self, name: &str) -> Option<&str> {
        self.text_of(self.field(name)?)
    }

    /// Whether it has a text of this name.
    #[inline]
    pub fn has_text(&self, name: &str) -> bool {
        self.field(name).is_some_and(|field| field.kind == ElementType::String)
    }

    /// The text of the first field, as [`get_text`](Self::get_text) gives it.
    pub(crate) fn first_text(&self) -> Option<&str> {
        let first = self.fields.first()?;
        match self.texts() {
            (_, "") => self.text_of(first),
            (_, known) => Some(known),
        }
    }

    fn text_of<'a>(&'a self, field: &'a Field) -> Option<&'a str> {
        if field.kind != ElementType::String {
            return None;
        }
        if field.place.is_empty() {
            return self.value(field).as_str();
        }
        let bytes = field.place.of(&self.bytes);
        std::str::from_utf8(bytes.get(4..bytes.len() - 1)?).ok()
    }

    /// The number of a field, read where it came. None if there is no such field, or it is no whole number by its type.
    #[inline]
    pub(crate) fn get_whole(&self, name: &str) -> Option<i64> {
        self.whole_of(self.field(name)?)
    }

    fn whole_of(&self, field: &Field) -> Option<i64> {
        let bytes = field.place.of(&self.bytes);
        match field.kind {
            ElementType::Int32 => Some(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            ElementType::Int64 => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
            _ => None,
        }
    }

    /// The truth value of a field, read where it came. None if there is no such field, or it is none by its type.
    #[inline]
    pub(crate) fn get_truth(&self, name: &str) -> Option<bool> {
        let field = self.field(name).filter(|field| field.kind == ElementType::Boolean)?;
        field.place.of(&self.bytes).first().map(|truth| *truth != 0)
    }

    /// The same of a number of 64 bits.
    #[inline]
    pub(crate) fn get_long(&self, name: &str) -> Option<i64> {
        self.whole_of(self.field(name).filter(|field| field.kind == ElementType::Int64)?)
    }

    /// The value of the first field.
    pub fn first(&self) -> Option<&Bson> {
        self.fields.first().map(|field| self.value(field))
    }

    /// The value of a field.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&Bson> {
        self.field(name).map(|field| self.value(field))
    }

    /// The embedded document of a field, as it came.
    #[inline]
    pub fn get_raw_document(&self, name: &str) -> Option<&RawDocument> {
        self.raw_document_of(self.field(name)?)
    }

    fn raw_document_of(&self, field: &Field) -> Option<&RawDocument> {
        if field.place.is_empty() || field.kind != ElementType::EmbeddedDocument {
            return None;
        }
        RawDocument::from_bytes(field.place.of(&self.bytes)).ok()
    }

    /// Whether it has a field of this name that is not null.
    #[inline]
    pub(crate) fn has_value(&self, name: &str) -> bool {
        let is_null = |kind| matches!(kind, ElementType::Null | ElementType::Undefined);
        self.field(name).is_some_and(|field| !is_null(field.kind))
    }

    /// Whether it has a field of this name.
    #[inline]
    pub fn contains_key(&self, name: &str) -> bool {
        self.field(name).is_some()
    }

    /// A text.
    ///
    /// # Errors
    ///
    /// If there is no such field, or it is no text.
    pub fn get_str(&self, name: &str) -> Result<&str, NoSuchValue> {
        self.get(name).and_then(Bson::as_str).ok_or(NoSuchValue)
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    ///
    /// If there is no such field, or it is no such number.
    pub fn get_i32(&self, name: &str) -> Result<i32, NoSuchValue> {
        self.get(name).and_then(Bson::as_i32).ok_or(NoSuchValue)
    }

    /// A number of 64 bits.
    ///
    /// # Errors
    ///
    /// If there is no such field, or it is no such number.
    pub fn get_i64(&self, name: &str) -> Result<i64, NoSuchValue> {
        self.get(name).and_then(Bson::as_i64).ok_or(NoSuchValue)
    }

    /// A truth value.
    ///
    /// # Errors
    ///
    /// If there is no such field, or it is no truth value.
    pub fn get_bool(&self, name: &str) -> Result<bool, NoSuchValue> {
        self.get(name).and_then(Bson::as_bool).ok_or(NoSuchValue)
    }

    /// A document.
    ///
    /// # Errors
    ///
    /// If there is no such field, or it is no document.
    pub fn get_document(&self, name: &str) -> Result<&Document, NoSuchValue> {
        self.get(name).and_then(Bson::as_document).ok_or(NoSuchValue)
    }

    /// An array.
    ///
    /// # Errors
    ///
    /// If there is no such field, or it is no array.
    pub fn get_array(&self, name: &str) -> Result<&Vec<Bson>, NoSuchValue> {
        self.get(name).and_then(Bson::as_array).ok_or(NoSuchValue)
    }

    /// The names of the fields.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| self.text(field))
    }

    /// The names of the fields as bytes, which cost nothing to compare.
    pub(crate) fn raw_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.fields.iter().map(|field| field.name.of(&self.bytes))
    }

    /// The fields.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bson)> {
        self.fields.iter().map(|field| (self.text(field), self.value(field)))
    }

    /// All of it as a document.
    pub fn to_document(&self) -> Document {
        self.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }

    /// Gives a field another value, or appends it.
    pub fn insert(&mut self, name: &str, value: impl Into<Bson>) {
        let mut document = self.to_document();
        document.insert(name, value);
        *self = Self::from(document);
    }

    /// Takes the documents of an array out, as they came. None for another field, and for an array that holds
    /// anything else, which is the command's to refuse. Fails if there are more than any command takes.
    pub(crate) fn take_documents(&mut self, name: &str) -> Result<Option<Vec<DocumentBytes>>> {
        let place = self.fields.iter().position(|field| {
            field.kind == ElementType::Array
                && !field.place.is_empty()
                && field.name.of(&self.bytes) == name.as_bytes()
        });
        let Some(place) = place else { return Ok(None) };
        let array = self.fields[place].place.of(&self.bytes);
        let Ok(array) = RawDocument::from_bytes(array) else { return Ok(None) };
        let mut documents = Vec::new();
        for item in array {
            let Some(document) = item.ok().and_then(|(_, item)| item.as_document()) else {
                return Ok(None);
            };
            if documents.len() == MAX_WRITE_BATCH_SIZE {
                check_document_count(array.iter().count())?;
            }
            documents.push(DocumentBytes::from(document));
        }
        self.fields.remove(place);
        Ok(Some(documents))
    }
}

impl fmt::Debug for CommandBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl PartialEq<Document> for CommandBody {
    fn eq(&self, other: &Document) -> bool {
        self.fields.len() == other.len()
            && self.iter().eq(other.iter().map(|(k, v)| (k.as_str(), v)))
    }
}

/// A value whose bytes were checked when they arrived.
fn read(kind: ElementType, bytes: &[u8]) -> Bson {
    let eight = || bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
    match kind {
        ElementType::Double => Bson::Double(f64::from_bits(eight())),
        ElementType::Int64 => Bson::Int64(eight() as i64),
        ElementType::Int32 => {
            Bson::Int32(bytes.try_into().map(i32::from_le_bytes).unwrap_or_default())
        }
        ElementType::Boolean => Bson::Boolean(bytes.first() == Some(&1)),
        ElementType::DateTime => Bson::DateTime(bson::DateTime::from_millis(eight() as i64)),
        ElementType::Timestamp => {
            let (increment, time) = (eight() as u32, (eight() >> 32) as u32);
            Bson::Timestamp(Timestamp { time, increment })
        }
        ElementType::ObjectId => Bson::ObjectId(
            bytes.try_into().map(bson::oid::ObjectId::from_bytes).unwrap_or_default(),
        ),
        ElementType::String => {
            let text = bytes.get(4..bytes.len().saturating_sub(1)).unwrap_or_default();
            Bson::String(String::from_utf8_lossy(text).into_owned())
        }
        ElementType::EmbeddedDocument => {
            let document = RawDocument::from_bytes(bytes).and_then(Document::try_from);
            Bson::Document(document.unwrap_or_default())
        }
        ElementType::Array => {
            let items = RawDocument::from_bytes(bytes).into_iter().flatten();
            Bson::Array(items.filter_map(|item| Bson::try_from(item.ok()?.1).ok()).collect())
        }
        rare => read_rare(rare, bytes).unwrap_or(Bson::Null),
    }
}

#[cfg(test)]
mod tests {
    use bson::{Binary, doc, spec::BinarySubtype};
    use quorate_protocol::SplitMix64;

    use super::*;
    use crate::error::ErrorCode;

    /// One value of every type.
    fn every_type() -> Document {
        let scope = doc! { "x": [1, { "y": 2 }] };
        doc! {
            "find": "c",
            "double": 1.5, "document": { "a": { "b": [1, "two", 3.0] } }, "array": [1, { "b": 2 }],
            "binary": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 3] },
            "old": Binary { subtype: BinarySubtype::BinaryOld, bytes: vec![1, 2, 3] },
            "id": bson::oid::ObjectId::from_bytes([7; 12]), "truth": true, "untruth": false,
            "date": bson::DateTime::from_millis(-5), "null": Bson::Null, "undefined": Bson::Undefined,
            "regex": bson::Regex { pattern: "^a".try_into().unwrap(), options: "i".try_into().unwrap() },
            "code": Bson::JavaScriptCode("f()".to_owned()), "symbol": Bson::Symbol("s".to_owned()),
            "scoped": bson::JavaScriptCodeWithScope { code: "g()".to_owned(), scope },
            "int": 7, "time": Timestamp { time: 3, increment: 4 }, "long": 1_i64 << 40,
            "decimal": "1.25".parse::<bson::Decimal128>().unwrap(),
            "min": Bson::MinKey, "max": Bson::MaxKey, "empty": "", "none": {},
        }
    }

    fn from_bytes(bytes: &[u8]) -> Result<CommandBody> {
        CommandBody::from_raw(
            RawDocument::from_bytes(bytes).map_err(|_| crate::structure::malformed())?,
        )
    }

    #[test]
    fn values_of_every_type_are_what_was_sent() {
        let sent = every_type();
        let body = from_bytes(RawDocumentBuf::try_from(&sent).unwrap().as_bytes()).unwrap();
        assert_eq!(body, sent);
        assert_eq!(body.to_document(), sent);
        assert_eq!((body.name(), body.get_str("find")), ("find", Ok("c")));
        assert_eq!(body.get_i64("int"), Err(NoSuchValue));
        assert_eq!((body.get_whole("int"), body.get_whole("long")), (Some(7), Some(1 << 40)));
        assert_eq!((body.get_whole("double"), body.get_text("int")), (None, None));
        assert_eq!((body.get_text("find"), body.get_text("empty")), (Some("c"), Some("")));
        assert_eq!(CommandBody::from(sent.clone()).get_text("find"), Some("c"));
        for text in ["c", "", "bücher", &"x".repeat(2 * MAX_KEPT_TEXT as usize)] {
            let command = doc! { "find": text, "$db": "db" };
            let raw = from_bytes(RawDocumentBuf::try_from(&command).unwrap().as_bytes()).unwrap();
            assert_eq!((raw.name(), raw.first_text(), raw.database()), ("find", Some(text), "db"));
            assert_eq!(CommandBody::from(command).first_text(), Some(text));
        }
        assert_eq!(CommandBody::from(doc! { "find": 1 }).first_text(), None);
        assert_eq!(CommandBody::from(sent.clone()), sent);
    }

    /// What passes is read without loss, and what the library cannot read does not pass.
    #[test]
    fn bytes_that_were_tampered_with_are_refused_or_read_whole() {
        let whole = RawDocumentBuf::try_from(&every_type()).unwrap().into_bytes();
        let mut chance = SplitMix64::new(0x5eed);
        let (mut refused, mut read) = (0, 0);
        for round in 0..40_000 {
            let mut bytes = whole.clone();
            for _ in 0..=round % 3 {
                let place = (chance.next_u64() as usize) % bytes.len();
                bytes[place] =
                    if chance.next_u64().is_multiple_of(2) { chance.next_u64() as u8 } else { 0 };
            }
            let Ok(document) = RawDocument::from_bytes(&bytes) else { continue };
            match CommandBody::from_raw(document) {
                Ok(body) => {
                    read += 1;
                    let parsed =
                        Document::try_from(document).expect("the library reads it as well");
                    assert_eq!(format!("{:?}", body.to_document()), format!("{parsed:?}"));
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 1000 && read > 1000, "{refused} {read}");
    }

    #[test]
    fn names_are_found_whatever_their_marks() {
        let names: Vec<String> = (0..500).map(|number| format!("{number:x}")).collect();
        let even: Document =
            names.iter().step_by(2).map(|name| (name.clone(), Bson::Null)).collect();
        let raw = from_bytes(RawDocumentBuf::try_from(&even).unwrap().as_bytes()).unwrap();
        for body in [raw, CommandBody::from(even)] {
            for (place, name) in names.iter().enumerate() {
                assert_eq!(body.contains_key(name), place % 2 == 0, "{name}");
            }
        }
        let one = |name: &str| CommandBody::from(doc! { name: 1 });
        assert!(one("").contains_key("") && one("a").contains_key("a"));
    }

    #[test]
    fn the_database_is_the_text_that_was_sent() {
        let database = |sent: Document| {
            let raw = from_bytes(RawDocumentBuf::try_from(&sent).unwrap().as_bytes()).unwrap();
            let databases = [raw, CommandBody::from(sent)].map(|body| body.database().to_owned());
            assert_eq!(databases[0], databases[1]);
            databases[0].clone()
        };
        assert_eq!(database(doc! { "ping": 1, "$db": "bücher", "$dc": "x" }), "bücher");
        assert_eq!(database(doc! { "ping": 1, "$db": "" }), "");
        assert_eq!(database(doc! { "ping": 1, "$db": 7 }), "admin");
        assert_eq!(database(doc! { "ping": 1 }), "admin");
    }

    #[test]
    fn a_field_that_is_given_twice_is_refused() {
        for fields in [3, 2 * FEW_FIELDS as i32] {
            let mut twice = RawDocumentBuf::new();
            (0..fields).for_each(|field| {
                let name =
                    bson::raw::CString::try_from(format!("f{}", field % (fields - 1))).unwrap();
                twice.append(name, field);
            });
            let error = CommandBody::from_raw(&twice).unwrap_err();
            assert_eq!(error.code, ErrorCode::DUPLICATE_FIELD);
            assert!(error.message.contains("'f0.f0'"), "{error}");
        }
    }

    #[test]
    fn more_fields_than_a_command_can_have_are_refused() {
        let with = |fields: usize| {
            let mut document = Document::new();
            (0..fields).for_each(|field| drop(document.insert(format!("f{field}"), 1)));
            CommandBody::from_raw(&RawDocumentBuf::try_from(&document).unwrap()).map(drop)
        };
        assert!(with(MAX_FIELDS).is_ok());
        let error = with(MAX_FIELDS + 1).unwrap_err();
        assert!(error.message.contains("at most 10000 fields"), "{error}");
    }

    #[test]
    fn what_nests_too_deeply_is_refused_before_it_is_read() {
        let nested = |depth: usize| {
            let mut document = doc! { "a": 1 };
            (0..depth).for_each(|_| document = doc! { "a": document.clone() });
            CommandBody::from_raw(&RawDocumentBuf::try_from(&document).unwrap()).map(drop)
        };
        assert!(nested(100).is_ok());
        assert_eq!(nested(250).unwrap_err().code, ErrorCode::OVERFLOW);
        // Far deeper than the stack would bear, and inside the scope of code too.
        let mut bytes = vec![0; 5];
        bytes[0] = 5;
        for _ in 0..200_000 {
            let mut outer = (bytes.len() as i32 + 7).to_le_bytes().to_vec();
            outer.extend([3, 0]);
            outer.append(&mut bytes);
            outer.push(0);
            bytes = outer;
            if bytes.len() > 64 * 1024 {
                break;
            }
        }
        let mut scoped = (bytes.len() as i32 + 9).to_le_bytes().to_vec();
        scoped.extend([1, 0, 0, 0, 0]);
        scoped.extend(&bytes);
        let mut whole = (scoped.len() as i32 + 7).to_le_bytes().to_vec();
        whole.extend([15, 0]);
        whole.extend(scoped);
        whole.push(0);
        for bytes in [bytes, whole] {
            assert_eq!(from_bytes(&bytes).unwrap_err().code, ErrorCode::OVERFLOW);
        }
    }
}
