//! Small pieces of text that several commands write alike.

use std::fmt::{self, Write};
use std::time::Duration;

use quorate_protocol::steers;

/// The most characters of a text from outside that are shown in one place.
pub(crate) const MAX_SHOWN: usize = 400;

/// Text that came from a server, a file or a person: one line, no control characters, and not
/// longer than [`MAX_SHOWN`]. A terminal must never be steered by what a server sent.
pub(crate) struct Foreign<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match text.char_indices().nth(MAX_SHOWN) {
            None => OneLine(text).fmt(f),
            Some((end, _)) => write!(f, "{}…", OneLine(&text[..end])),
        }
    }
}

/// The same without a bound on the length, for text that is bounded elsewhere.
pub(crate) struct OneLine<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.to_string().chars() {
            match character {
                '\n' | '\r' | '\t' => f.write_char(' ')?,
                hidden if steers(hidden) => write!(f, "{}", hidden.escape_default())?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A duration as people say it: `0.3 ms`, `41 ms`, `1.5 s`.
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_secs_f64() * 1e3;
        match millis {
            millis if millis < 10.0 => write!(f, "{millis:.1} ms"),
            millis if millis < 1000.0 => write!(f, "{millis:.0} ms"),
            millis if millis % 1000.0 == 0.0 => write!(f, "{:.0} s", millis / 1e3),
            millis => write!(f, "{:.1} s", millis / 1e3),
        }
    }
}

/// `a, b and c`.
pub(crate) fn listed<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut texts: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    let Some(last) = texts.pop() else { return "none".to_owned() };
    if texts.is_empty() { last } else { format!("{} and {last}", texts.join(", ")) }
}

/// Text for a connection string or the name of a file: everything but letters, digits and a few marks is encoded.
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(byte.into());
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(Foreign("a\u{1b}[31m\nb").to_string(), "a\\u{1b}[31m b");
        assert_eq!(Foreign("a\u{202e}b\u{9b}c").to_string(), "a\\u{202e}b\\u{9b}c");
        let long = Foreign("x".repeat(MAX_SHOWN + 1)).to_string();
        assert_eq!(long.chars().count(), MAX_SHOWN + 1);
        assert!(long.ends_with('…'));
        assert!(!Foreign("x".repeat(MAX_SHOWN)).to_string().ends_with('…'));
    }

    #[test]
    fn spans_are_short() {
        for (micros, text) in [
            (0, "0.0 ms"),
            (1250, "1.2 ms"),
            (41_000, "41 ms"),
            (1_500_000, "1.5 s"),
            (30_000_000, "30 s"),
        ] {
            assert_eq!(Span(Duration::from_micros(micros)).to_string(), text);
        }
    }

    #[test]
    fn lists_and_counts_read_well() {
        assert_eq!(listed(["a", "b", "c"]), "a, b and c");
        assert_eq!(listed(["a"]), "a");
        assert_eq!(listed::<&str>([]), "none");
    }
}
