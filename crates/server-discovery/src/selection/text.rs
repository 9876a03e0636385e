//! Words from outside, made safe to print: one line, bounded, and valid inside JSON.
//!
//! A server's error message is whatever the server likes. It must not break the line it stands on,
//! nor move the cursor of a terminal, nor fill a log.

use std::fmt::{self, Write};
use std::time::Duration;

/// Prints a value on one line and no longer than `limit` characters.
pub(super) struct OneLine<'a> {
    pub(super) value: &'a dyn fmt::Display,
    pub(super) limit: usize,
}

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = LineWriter { out: f, left: self.limit };
        // An error of the value's own cannot be told from the writer's; both end the line.
        write!(line, "{}", self.value)
    }
}

struct LineWriter<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    left: usize,
}

impl fmt::Write for LineWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match self.left {
                0 => return Ok(()),
                1 => self.out.write_char('…')?,
                _ if is_unprintable(character) => {
                    write!(self.out, "{}", character.escape_default())?
                }
                _ => self.out.write_char(character)?,
            }
            self.left -= 1;
        }
        Ok(())
    }
}

/// Control characters, and those that reverse or hide the text around them.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Builds a JSON object by hand: this crate depends on no serializer.
pub(super) struct JsonWriter {
    text: String,
}

impl JsonWriter {
    pub(super) fn new() -> Self {
        Self { text: String::new() }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Opens an object or an array, as a member if it has a key.
    pub(super) fn open(&mut self, key: Option<&str>, bracket: char) {
        self.prefix(key);
        self.text.push(bracket);
    }

    pub(super) fn close(&mut self, bracket: char) {
        self.text.push(bracket);
    }

    pub(super) fn string(&mut self, key: &str, value: &dyn fmt::Display) {
        self.prefix(Some(key));
        self.text.push('"');
        // Writing to a String cannot fail.
        let _ = write!(JsonEscape(&mut self.text), "{value}");
        self.text.push('"');
    }

    pub(super) fn optional_string(&mut self, key: &str, value: Option<&dyn fmt::Display>) {
        match value {
            Some(value) => self.string(key, value),
            None => self.literal(key, &"null"),
        }
    }

    /// A number, a boolean or null.
    pub(super) fn literal(&mut self, key: &str, value: &dyn fmt::Display) {
        self.prefix(Some(key));
        let _ = write!(self.text, "{value}");
    }

    pub(super) fn optional_literal(&mut self, key: &str, value: Option<&dyn fmt::Display>) {
        self.literal(key, value.unwrap_or(&"null"));
    }

    fn prefix(&mut self, key: Option<&str>) {
        if !matches!(self.text.chars().next_back(), None | Some('{' | '[')) {
            self.text.push(',');
        }
        if let Some(key) = key {
            self.text.push('"');
            let _ = write!(JsonEscape(&mut self.text), "{key}");
            self.text.push_str("\":");
        }
    }
}

struct JsonEscape<'a>(&'a mut String);

impl fmt::Write for JsonEscape<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                '\n' => self.0.push_str("\\n"),
                '\r' => self.0.push_str("\\r"),
                '\t' => self.0.push_str("\\t"),
                control if control < ' ' => write!(self.0, "\\u{:04x}", u32::from(control))?,
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

/// An interval as people say it: `0.4 s`, `30 s`, `5 min`.
pub(super) struct Interval(pub(super) Duration);

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MINUTES_FROM: u64 = 120;
        let seconds = self.0.as_secs_f64();
        match self.0.as_secs() {
            0..10 if self.0.subsec_millis() >= 50 || self.0.as_secs() == 0 => {
                write!(f, "{seconds:.1} s")
            }
            MINUTES_FROM.. => write!(f, "{:.0} min", seconds / 60.0),
            _ => write!(f, "{seconds:.0} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_line(value: &str, limit: usize) -> String {
        OneLine { value: &value, limit }.to_string()
    }

    #[test]
    fn hostile_words_stay_on_their_line() {
        assert_eq!(one_line("a\nb\u{1b}[2J\u{202e}c", 100), "a\\nb\\u{1b}[2J\\u{202e}c");
        assert_eq!(one_line("naïve", 5), "naïv…");
        assert_eq!(one_line(&"x".repeat(1_000_000), 10).chars().count(), 10);
        assert_eq!(one_line("short", 100), "short");
    }

    #[test]
    fn strings_are_escaped_for_json() {
        let mut json = JsonWriter::new();
        json.open(None, '{');
        json.string("a\"b", &"q\"b\\n\n\u{1}é");
        json.open(Some("list"), '[');
        json.open(None, '{');
        json.close('}');
        json.open(None, '{');
        json.literal("n", &1);
        json.close('}');
        json.close(']');
        json.optional_string("none", None);
        json.close('}');
        let expected = r#"{"a\"b":"q\"b\\n\n\u0001é","list":[{},{"n":1}],"none":null}"#;
        assert_eq!(json.finish(), expected);
    }

    #[test]
    fn intervals_are_short() {
        let told = |millis| Interval(Duration::from_millis(millis)).to_string();
        assert_eq!(told(0), "0.0 s");
        assert_eq!(told(430), "0.4 s");
        assert_eq!(told(5_000), "5 s");
        assert_eq!(told(30_000), "30 s");
        assert_eq!(told(300_000), "5 min");
    }
}
