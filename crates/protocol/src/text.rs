//! Text that came from elsewhere, made harmless for terminals and logs.
//!
//! An invisible character can still turn a line around or steer a terminal: C1 controls, marks of
//! the direction of writing, separators of lines. They are shown as `\u` and four digits, which is also what
//! they are inside a JSON string, so that a line of JSON stays the same JSON.

use std::fmt::{self, Display, Write};

/// Whether a character changes what is shown around it: a control character or one of those in
/// [`is_hidden`].
pub fn steers(character: char) -> bool {
    character.is_control() || is_hidden(character)
}

/// Whether a character is invisible and not one of a program's own controls: DEL, a C1 control, a mark of direction (the bidirectional
/// algorithm's), or a separator of lines or paragraphs.
pub fn is_hidden(character: char) -> bool {
    matches!(
        character,
        '\u{7f}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// A text whose hidden characters are shown. ASCII controls stay: a line of a program's own may have
/// colours.
#[derive(Clone, Copy, Debug)]
pub struct Visible<T>(pub T);

impl<T: Display> Display for Visible<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Showing(f), "{}", self.0)
    }
}

/// `1 server`, `3 servers`.
#[derive(Clone, Copy, Debug)]
pub struct Counted(pub usize, pub &'static str);

impl Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} {}{plural}", self.0, self.1)
    }
}

struct Showing<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Showing<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, hidden)) = rest.char_indices().find(|(_, c)| is_hidden(*c)) {
            self.0.write_str(&rest[..at])?;
            write!(self.0, "\\u{:04x}", u32::from(hidden))?;
            rest = &rest[at + hidden.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(Counted(1, "server").to_string(), "1 server");
        assert_eq!(Counted(0, "server").to_string(), "0 servers");
    }

    #[test]
    fn hidden_characters_are_shown_and_others_left() {
        let hostile = "a\u{202e}b\u{9b}31m\u{2066}c\u{200f}\u{61c}\u{2028}d";
        let shown = Visible(hostile).to_string();
        assert_eq!(shown, "a\\u202eb\\u009b31m\\u2066c\\u200f\\u061c\\u2028d");
        assert!(!shown.chars().any(is_hidden));
        assert_eq!(Visible("\u{1b}[31mü→日\n").to_string(), "\u{1b}[31mü→日\n");
        assert!(steers('\u{1b}') && steers('\u{202e}') && steers('\u{85}') && !steers('ü'));
    }
}
