//! Documents as people type them: JSON with unquoted keys, single quotes, trailing commas and the
//! shell's constructors.
//!
//! The result is JSON; the types of BSON are wrapped as extended JSON wraps them (`{"$oid": …}`), so
//! that a user who knows that format knows this one.

use std::iter::Peekable;
use std::str::CharIndices;

use serde_json::{Map, Number, Value, json};

/// How deep documents and arrays may be nested; servers take no more either.
const MAX_DEPTH: usize = 100;

/// A text that is no document. Its author is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the command cannot be read at character {place}: {problem}")]
pub(crate) struct RelaxedError {
    /// Counted from 1.
    place: usize,
    problem: String,
}

/// Reads a value. Fails if the text is not one value. The error tells where.
pub(crate) fn parse(text: &str) -> Result<Value, RelaxedError> {
    let mut reader = Reader { text, characters: text.char_indices().peekable(), depth: 0 };
    let value = reader.value()?;
    reader.space();
    match reader.characters.peek() {
        None => Ok(value),
        Some(_) => Err(reader.error("the document ended before this")),
    }
}

struct Reader<'a> {
    text: &'a str,
    characters: Peekable<CharIndices<'a>>,
    depth: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Result<Value, RelaxedError> {
        self.space();
        match self.peek() {
            None => Err(self.error("a value is missing")),
            Some('{') => self.nested(Self::document),
            Some('[') => self.nested(Self::array),
            Some(quote @ ('"' | '\'')) => self.string(quote).map(Value::String),
            Some('-' | '+' | '.' | '0'..='9') => self.number(),
            Some(c) if is_word(c) => self.named(),
            Some(c) => Err(self.error(&format!("{c:?} begins no value"))),
        }
    }

    fn nested(
        &mut self,
        read: fn(&mut Self) -> Result<Value, RelaxedError>,
    ) -> Result<Value, RelaxedError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        self.depth += 1;
        self.characters.next();
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn document(&mut self) -> Result<Value, RelaxedError> {
        let mut fields = Map::new();
        loop {
            self.space();
            let key = match self.peek() {
                Some('}') => {
                    self.characters.next();
                    return Ok(Value::Object(fields));
                }
                Some(quote @ ('"' | '\'')) => self.string(quote)?,
                Some(c) if is_word(c) => self.word(),
                _ => return Err(self.error("a key or } is missing")),
            };
            self.expect(':', "a : is missing after the key")?;
            let value = self.value()?;
            if fields.insert(key.clone(), value).is_some() {
                return Err(self.error(&format!("the key {key:?} stands there twice")));
            }
            self.comma_or('}')?;
        }
    }

    fn array(&mut self) -> Result<Value, RelaxedError> {
        let mut items = Vec::new();
        loop {
            self.space();
            if self.peek() == Some(']') {
                self.characters.next();
                return Ok(Value::Array(items));
            }
            items.push(self.value()?);
            self.comma_or(']')?;
        }
    }

    /// Eats a comma, or looks at the closing bracket.
    fn comma_or(&mut self, end: char) -> Result<(), RelaxedError> {
        self.space();
        match self.peek() {
            Some(',') => {
                self.characters.next();
                Ok(())
            }
            Some(c) if c == end => Ok(()),
            _ => Err(self.error(&format!("a comma or {end} is missing"))),
        }
    }

    fn string(&mut self, quote: char) -> Result<String, RelaxedError> {
        self.characters.next();
        let mut text = String::new();
        while let Some((_, c)) = self.characters.next() {
            match c {
                c if c == quote => return Ok(text),
                '\\' => {
                    let Some((_, escaped)) = self.characters.next() else { break };
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        'u' => self.unicode()?,
                        other => other,
                    });
                }
                other => text.push(other),
            }
        }
        Err(self.error("a string does not end"))
    }

    /// The four digits after `\u`; two of them make a pair for characters beyond the first plane.
    fn unicode(&mut self) -> Result<char, RelaxedError> {
        let first = self.four_digits()?;
        let code = match first {
            0xd800..=0xdbff => {
                let pair = self.characters.next().map(|(_, c)| c) == Some('\\')
                    && self.characters.next().map(|(_, c)| c) == Some('u');
                let second = if pair { self.four_digits()? } else { 0 };
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(self.error("half of a surrogate pair"));
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            other => other,
        };
        char::from_u32(code).ok_or_else(|| self.error("no such character"))
    }

    fn four_digits(&mut self) -> Result<u32, RelaxedError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.characters.next().and_then(|(_, c)| c.to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.error("\\u needs four digits"))?;
        }
        Ok(code)
    }

    fn number(&mut self) -> Result<Value, RelaxedError> {
        let word = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.'));
        number(word.trim_start_matches('+'))
            .ok_or_else(|| self.error(&format!("{word:?} is not a number")))
    }

    /// `true`, `null`, `ObjectId("…")` and the like.
    fn named(&mut self) -> Result<Value, RelaxedError> {
        let word = self.word();
        let word = match word.as_str() {
            "new" => {
                self.space();
                self.word()
            }
            _ => word,
        };
        match word.as_str() {
            "true" => return Ok(Value::Bool(true)),
            "false" => return Ok(Value::Bool(false)),
            "null" => return Ok(Value::Null),
            "NaN" | "Infinity" => return Ok(json!({"$numberDouble": word})),
            "MinKey" | "MaxKey" => {
                self.arguments_if_any()?;
                let key = if word == "MinKey" { "$minKey" } else { "$maxKey" };
                return Ok(json!({key: 1}));
            }
            _ => {}
        }
        let arguments = self.arguments_if_any()?;
        let (Some(first), second) = (arguments.first(), arguments.get(1)) else {
            let hint = format!("{word} is no value; put quotes around it if it is a text");
            return Err(self.error(&hint));
        };
        let text = first.as_str().map_or_else(|| first.to_string(), str::to_owned);
        Ok(match word.as_str() {
            "ObjectId" => json!({"$oid": text}),
            "ISODate" | "Date" => json!({"$date": text}),
            "NumberLong" | "Long" => json!({"$numberLong": text}),
            "NumberInt" | "Int32" => json!({"$numberInt": text}),
            "NumberDecimal" | "Decimal128" => json!({"$numberDecimal": text}),
            "Double" => json!({"$numberDouble": text}),
            "UUID" => json!({"$uuid": text}),
            "Timestamp" => json!({"$timestamp": {"t": first, "i": second.unwrap_or(&json!(0))}}),
            "RegExp" => {
                let options = second.and_then(Value::as_str).unwrap_or_default();
                json!({"$regularExpression": {"pattern": text, "options": options}})
            }
            _ => return Err(self.error(&format!("{word}(…) is not known here"))),
        })
    }

    fn arguments_if_any(&mut self) -> Result<Vec<Value>, RelaxedError> {
        self.space();
        if self.peek() != Some('(') {
            return Ok(Vec::new());
        }
        self.characters.next();
        let mut arguments = Vec::new();
        loop {
            self.space();
            if self.peek() == Some(')') {
                self.characters.next();
                return Ok(arguments);
            }
            arguments.push(self.value()?);
            self.comma_or(')')?;
        }
    }

    fn word(&mut self) -> String {
        self.take_while(is_word)
    }

    fn take_while(&mut self, accepts: impl Fn(char) -> bool) -> String {
        let mut word = String::new();
        while let Some((_, c)) = self.characters.next_if(|(_, c)| accepts(*c)) {
            word.push(c);
        }
        word
    }

    fn expect(&mut self, wanted: char, problem: &str) -> Result<(), RelaxedError> {
        self.space();
        match self.characters.next_if(|(_, c)| *c == wanted) {
            Some(_) => Ok(()),
            None => Err(self.error(problem)),
        }
    }

    fn space(&mut self) {
        while self.characters.next_if(|(_, c)| c.is_whitespace()).is_some() {}
    }

    fn peek(&mut self) -> Option<char> {
        self.characters.peek().map(|(_, c)| *c)
    }

    fn error(&mut self, problem: &str) -> RelaxedError {
        let at = self.characters.peek().map_or(self.text.len(), |(at, _)| *at);
        let place = self.text[..at].chars().count() + 1;
        RelaxedError { place, problem: problem.to_owned() }
    }
}

/// Keys may hold dots and dollars, as field paths and operators do.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '.')
}

/// Whole numbers stay whole, as 32 bits where they fit; the rest are doubles.
fn number(word: &str) -> Option<Value> {
    if let Ok(whole) = word.parse::<i64>() {
        return Some(match i32::try_from(whole) {
            Ok(_) => Value::Number(whole.into()),
            Err(_) => json!({"$numberLong": whole.to_string()}),
        });
    }
    let is_numeric = word.chars().all(|c| c.is_ascii_digit() || "-+.eE".contains(c));
    let double = word.parse::<f64>().ok().filter(|double| is_numeric && double.is_finite())?;
    Number::from_f64(double).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, bson};

    fn read(text: &str) -> Bson {
        Bson::try_from(parse(text).unwrap()).unwrap()
    }

    #[test]
    fn commands_may_be_typed_without_ceremony() {
        assert_eq!(read("{ping: 1}"), bson!({"ping": 1}));
        assert_eq!(read("{ping:1,}"), bson!({"ping": 1}));
        assert_eq!(
            read(r#"{find: 'orders', filter: {"items.sku": {$in: ["a", 'b']}}, limit: 5}"#),
            bson!({"find": "orders", "filter": {"items.sku": {"$in": ["a", "b"]}}, "limit": 5})
        );
        assert_eq!(
            read("{a: [1, 2.5, -3, 1e3, true, null,]}"),
            bson!({"a": [1, 2.5, -3, 1000.0, true, null]})
        );
        assert_eq!(
            read(r#"{a: "t\"\n\u00e9\ud83e\udd80", b: 'it\'s'}"#),
            bson!({"a": "t\"\né🦀", "b": "it's"})
        );
    }

    #[test]
    fn whole_numbers_take_the_room_they_need() {
        assert_eq!(read("{a: 2147483647}"), bson!({"a": 2_147_483_647_i32}));
        assert_eq!(read("{a: 2147483648}"), bson!({"a": 2_147_483_648_i64}));
    }

    #[test]
    fn the_shells_constructors_and_extended_json_mean_the_same() {
        for (shell, extended) in [
            (
                r#"{a: ObjectId("507f1f77bcf86cd799439011")}"#,
                r#"{"a": {"$oid": "507f1f77bcf86cd799439011"}}"#,
            ),
            (
                r#"{a: ISODate("2026-01-02T03:04:05Z")}"#,
                r#"{"a": {"$date": "2026-01-02T03:04:05Z"}}"#,
            ),
            (r#"{a: new NumberLong(5)}"#, r#"{"a": {"$numberLong": "5"}}"#),
            (r#"{a: Timestamp(7, 1)}"#, r#"{"a": {"$timestamp": {"t": 7, "i": 1}}}"#),
            (r#"{a: MaxKey}"#, r#"{"a": {"$maxKey": 1}}"#),
        ] {
            assert_eq!(read(shell), read(extended), "{shell}");
            assert!(
                !matches!(read(shell), Bson::Document(d) if matches!(d.get("a"), Some(Bson::Document(_))))
            );
        }
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, told) in [
            ("", "character 1: a value is missing"),
            ("{ping 1}", "character 7: a : is missing after the key"),
            ("{ping: 1", "character 9: a comma or } is missing"),
            ("{a: hello}", "character 10: hello is no value; put quotes around it"),
            ("{a: 'x}", "character 8: a string does not end"),
            ("{a: 1-2}", "is not a number"),
            ("{a: 1} b", "character 8: the document ended before this"),
            ("{a: 1, a: 2}", "stands there twice"),
            ("{a: Foo(1)}", "Foo(…) is not known"),
            (r#"{a: "\ud800"}"#, "surrogate"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
        assert!(parse(&deep).unwrap_err().to_string().contains("nested too deeply"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_value_or_an_error_within_it(text in "[\\{\\}\\[\\]:,'\"\\\\a-cu0-9.$() é-]{0,24}") {
            if let Err(error) = parse(&text) {
                proptest::prop_assert!(error.place <= text.chars().count() + 1);
            }
        }

        /// JSON is a part of what is understood, and means the same.
        #[test]
        fn json_is_read_as_json(number in proptest::prelude::any::<i32>(), text in "\\PC{0,12}") {
            let value = json!({"a": [number, text.clone(), null, {"b c": true}], "d": text});
            proptest::prop_assert_eq!(parse(&value.to_string()).unwrap(), value);
        }
    }
}
