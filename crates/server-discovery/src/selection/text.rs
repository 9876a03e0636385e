//! Words from outside, made safe to print: one line, and bounded.
//!
//! A server's error message is whatever the server likes. It must not break the line it stands on,
//! nor move the cursor of a terminal, nor fill a log.

use std::fmt::{self, Write};
use std::time::Duration;

use quorate_protocol::steers;

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

/// Characters that steer or hide the text around them, and those without a width.
fn is_unprintable(character: char) -> bool {
    steers(character)
        || matches!(character, '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{feff}')
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
        let turned = one_line("a\u{61c}b\u{2066}c\u{200d}d\u{feff}", 100);
        assert_eq!(turned, "a\\u{61c}b\\u{2066}c\\u{200d}d\\u{feff}");
        assert_eq!(one_line("naïve", 5), "naïv…");
        assert_eq!(one_line(&"x".repeat(1_000_000), 10).chars().count(), 10);
        assert_eq!(one_line("short", 100), "short");
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
