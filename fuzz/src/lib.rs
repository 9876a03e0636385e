//! Bytes as BSON: what the targets about documents are fed with.
//!
//! Random bytes are hardly ever valid BSON, and valid BSON is hardly ever a query. So the bytes are
//! read as choices: which kind of value comes next, which word of a vocabulary names it. Every
//! input means something, small changes of the input are small changes of the meaning, and the
//! fuzzer's own search does the rest.

use bson::oid::ObjectId;
use bson::raw::CString;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, Document, Regex, Timestamp};

pub mod words;

/// The deepest nesting that is made. Deeper documents are the wire's business.
const MAX_DEPTH: usize = 8;

/// The most fields of a document, and elements of an array.
const MAX_WIDTH: usize = 6;

/// Field names that occur in documents and in what is said about them.
const FIELDS: [&str; 12] =
    ["a", "b", "c", "a.b", "a.0", "a.b.c", "_id", "0", "a.$", "a.$[]", "a.$[x]", ""];

/// Texts that some operator reads in a way of its own.
const TEXTS: [&str; 24] = [
    "", "a", "b", "$a", "$a.b", "$_id", "$$ROOT", "$$this", "$$value", "$$NOW", "$$REMOVE",
    "^a.*b$", "(?i)x+", "[a", "é€𝄞", "2024-02-29T12:30:00.5Z", "%Y-%m-%dT%H:%M:%S.%LZ",
    "Europe/Berlin", "day", "string", "double", "left", "other", "-12.50e3",
];

/// Numbers at the edges of their types.
const WHOLE: [i64; 12] = [
    0,
    1,
    -1,
    2,
    63,
    64,
    i32::MAX as i64,
    i32::MIN as i64,
    i64::MAX,
    i64::MIN,
    1 << 53,
    -62_135_596_800_000,
];

const REAL: [f64; 10] =
    [0.0, -0.0, 0.5, -1.5, 1e308, -1e308, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 9.3e18];

const DECIMAL: [&str; 8] = [
    "0",
    "-0",
    "1.10",
    "-12.5",
    "9.999999999999999999999999999999999E+6144",
    "1E-6176",
    "NaN",
    "-Infinity",
];

/// The bytes still unread. When none are left every choice is the first.
#[derive(Debug)]
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// Starts with all of them.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left to choose by.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn width(&mut self) -> usize {
        usize::from(self.byte()) % (MAX_WIDTH + 1)
    }

    /// A document without operators, as it could be stored.
    pub fn stored(&mut self) -> Document {
        self.document(&[], MAX_DEPTH / 2)
    }

    /// A document whose names are fields or these words.
    pub fn spoken(&mut self, words: &[&[&'static str]]) -> Document {
        self.document(words, MAX_DEPTH)
    }

    /// Stages of a pipeline, or updates of one.
    pub fn list(&mut self, words: &[&[&'static str]]) -> Vec<Bson> {
        (0..self.width()).map(|_| Bson::Document(self.spoken(words))).collect()
    }

    fn document(&mut self, words: &[&[&'static str]], depth: usize) -> Document {
        let width = self.width();
        (0..width).map(|_| (self.name(words).to_owned(), self.value(words, depth))).collect()
    }

    fn name(&mut self, words: &[&[&'static str]]) -> &'static str {
        let choice = usize::from(self.byte());
        match words.get(choice % (words.len() + 1)) {
            Some(list) => self.pick(list),
            None => self.pick(&FIELDS),
        }
    }

    fn value(&mut self, words: &[&[&'static str]], depth: usize) -> Bson {
        match self.byte() % 20 {
            0..=4 if depth > 0 => Bson::Document(self.document(words, depth - 1)),
            5..=7 if depth > 0 => {
                let width = self.width();
                Bson::Array((0..width).map(|_| self.value(words, depth - 1)).collect())
            }
            8 => Bson::Null,
            9 => Bson::Boolean(self.byte() & 1 == 1),
            10 => Bson::Int32(i32::from(self.byte() as i8)),
            11 => Bson::Int64(self.pick(&WHOLE)),
            12 => Bson::Double(self.pick(&REAL)),
            13 => Bson::Decimal128(self.decimal()),
            14 => Bson::DateTime(DateTime::from_millis(self.pick(&WHOLE))),
            15 => self.rare(),
            _ => Bson::String(self.pick(&TEXTS).to_owned()),
        }
    }

    fn decimal(&mut self) -> Decimal128 {
        self.pick(&DECIMAL).parse().expect("the list holds decimals")
    }

    fn rare(&mut self) -> Bson {
        match self.byte() % 9 {
            0 => Bson::ObjectId(ObjectId::from_bytes([self.byte(); 12])),
            1 => Bson::Binary(Binary {
                subtype: BinarySubtype::Generic,
                bytes: vec![self.byte(); usize::from(self.byte() % 5)],
            }),
            2 => Bson::Timestamp(Timestamp {
                time: u32::from(self.byte()),
                increment: u32::from(self.byte()),
            }),
            3 => Bson::MinKey,
            4 => Bson::MaxKey,
            5 => Bson::Undefined,
            6 => Bson::Symbol(self.pick(&TEXTS).to_owned()),
            7 => Bson::JavaScriptCode(self.pick(&TEXTS).to_owned()),
            _ => Bson::RegularExpression(Regex {
                pattern: cstring(self.pick(&TEXTS)),
                options: cstring(self.pick(&["", "i", "x", "ims"])),
            }),
        }
    }
}

fn cstring(text: &str) -> CString {
    CString::try_from(text).expect("the lists hold no zero byte")
}
