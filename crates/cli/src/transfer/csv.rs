//! Comma-separated values, as RFC 4180 has them.

use std::io::{self, BufRead};

use bson::{Bson, Document};

/// The longest record, in bytes.
const MAX_RECORD: usize = 16 << 20;

/// A value of a record, and whether quotes stood around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) text: String,
    pub(crate) quoted: bool,
}

/// Writes a value in quotes if it needs them. A text that would be read as a number is quoted, so that it stays a text.
pub(crate) fn quote(text: &str, is_text: bool) -> String {
    let is_ambiguous = is_text && !matches!(guess(text), Bson::String(_));
    match is_ambiguous || text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Reads records.
pub(crate) struct Records<R> {
    source: R,
    /// The line at which the last record began, counted from 1.
    pub(crate) line: usize,
    next_line: usize,
}

impl<R: BufRead> Records<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, line: 0, next_line: 1 }
    }

    /// The next record; `None` at the end. Fails if the source cannot be read, is no UTF-8, or
    /// quotes do not end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<Field>>> {
        let mut record = String::new();
        loop {
            self.line = self.next_line;
            if self.read_line(&mut record)? == 0 {
                return Ok(None);
            }
            // A line of nothing is no record.
            if !record.trim_end_matches(['\r', '\n']).is_empty() {
                break;
            }
            record.clear();
        }
        // A line within quotes goes on in the next one.
        while record.matches('"').count() % 2 == 1 {
            if self.read_line(&mut record)? == 0 {
                return Err(wrong("quotes do not end"));
            }
            if record.len() > MAX_RECORD {
                return Err(wrong("a record is too long; is a quote missing?"));
            }
        }
        let end = record.trim_end_matches('\n').trim_end_matches('\r').len();
        fields(&record[..end]).map(Some)
    }

    fn read_line(&mut self, record: &mut String) -> io::Result<usize> {
        let read = self.source.read_line(record)?;
        self.next_line += usize::from(read > 0);
        Ok(read)
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn fields(record: &str) -> io::Result<Vec<Field>> {
    let mut fields = Vec::new();
    let mut rest = record;
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_field(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (Field { text: rest[..end].to_owned(), quoted: false }, &rest[end..])
            }
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None if after.is_empty() => return Ok(fields),
            None => return Err(wrong("a comma is missing after quotes")),
        }
    }
}

fn quoted_field(text: &str) -> io::Result<(Field, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"').ok_or_else(|| wrong("quotes do not end"))?;
        value.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                value.push('"');
                rest = more;
            }
            None => return Ok((Field { text: value, quoted: true }, rest)),
        }
    }
}

/// What an unquoted value is: a whole number, a number, or a text.
pub(crate) fn guess(text: &str) -> Bson {
    let is_number = text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c))
        && text.contains(|c: char| c.is_ascii_digit());
    // Codes with leading zeros are no numbers: they would not come back.
    let digits = text.trim_start_matches('-');
    let has_leading_zero = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
    if !is_number || has_leading_zero || text.starts_with('+') {
        return Bson::String(text.to_owned());
    }
    if let Ok(whole) = text.parse::<i32>() {
        return Bson::Int32(whole);
    }
    if let Ok(whole) = text.parse::<i64>() {
        return Bson::Int64(whole);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && text.contains(['.', 'e', 'E']) => Bson::Double(number),
        _ => Bson::String(text.to_owned()),
    }
}

/// The value under a path with dots.
pub(crate) fn get<'a>(document: &'a Document, path: &str) -> Option<&'a Bson> {
    if let Some(value) = document.get(path) {
        return Some(value);
    }
    let (name, rest) = path.split_once('.')?;
    get(document.get_document(name).ok()?, rest)
}

/// Puts a value under a path with dots. False if something that is no document is in the way.
pub(crate) fn put(document: &mut Document, path: &str, value: Bson) -> bool {
    let Some((name, rest)) = path.split_once('.') else {
        return document.insert(path, value).is_none();
    };
    match document.entry(name.to_owned()).or_insert_with(|| Document::new().into()) {
        Bson::Document(inner) => put(inner, rest, value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;
    use proptest::prelude::*;

    fn read(text: &str) -> io::Result<Vec<Vec<String>>> {
        let mut records = Records::new(text.as_bytes());
        let mut all = Vec::new();
        while let Some(record) = records.next()? {
            all.push(record.into_iter().map(|field| field.text).collect());
        }
        Ok(all)
    }

    #[test]
    fn records_are_lines_and_quotes_keep_what_is_in_them() {
        let text = "a,b\r\n1,\"x, \"\"y\"\"\nz\"\n\n,\n\"\",last";
        assert_eq!(
            read(text).unwrap(),
            [vec!["a", "b"], vec!["1", "x, \"y\"\nz"], vec!["", ""], vec!["", "last"]]
        );
        for wrong in ["\"a", "\"a\"b,c", "a,\"b\n"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_guessed_and_codes_are_not() {
        assert_eq!(guess("5"), Bson::Int32(5));
        assert_eq!(guess("-5000000000"), Bson::Int64(-5_000_000_000));
        assert_eq!(guess("1.50"), Bson::Double(1.5));
        for text in ["", "x", "007", "+49", "1-2", "e", ".", "-", "1e999", "99999999999999999999"] {
            assert_eq!(guess(text), Bson::String(text.to_owned()), "{text}");
        }
    }

    #[test]
    fn paths_with_dots_lead_into_documents() {
        let mut document = Document::new();
        for (path, value) in [("_id", 1), ("a.b", 2), ("a.c.d", 3)] {
            assert!(put(&mut document, path, value.into()), "{path}");
        }
        assert_eq!(document, doc! { "_id": 1, "a": { "b": 2, "c": { "d": 3 } } });
        assert!(!put(&mut document, "_id.x", 1.into()) && !put(&mut document, "a.b", 1.into()));
        assert_eq!(get(&document, "a.c.d"), Some(&Bson::Int32(3)));
        assert_eq!(get(&document, "a.x"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(texts in proptest::collection::vec("[ -~\n\r\"üé,]{0,12}", 1..5)) {
            let line: Vec<String> = texts.iter().map(|text| quote(text, true)).collect();
            let line = line.join(",");
            prop_assume!(!line.is_empty());
            let mut records = Records::new(line.as_bytes());
            let read = records.next().unwrap();
            // A single blank line is no record.
            if let Some(read) = read {
                let read: Vec<String> = read.into_iter().map(|field| field.text).collect();
                prop_assert_eq!(read, texts);
            } else {
                prop_assert!(texts.len() == 1);
            }
        }
    }
}
