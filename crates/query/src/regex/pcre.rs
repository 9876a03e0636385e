//! Rewrites a pattern from PCRE's dialect into the one our engine reads.
//!
//! The two agree on most things. Where they do not, the server's clients mean PCRE: `\d`, `\w` and
//! `\s` are ASCII, a bracket within a class and a brace that counts nothing are themselves, any
//! escaped punctuation is itself, and `\Q…\E` quotes. After `(*UCP)` the short classes and those in brackets are
//! of Unicode. The rewriting is one pass over the pattern; what it does not know it copies.

/// The pattern in the engine's dialect. `verbose` is the option `x`, `unicode` the verb `(*UCP)`.
pub(super) fn translate(pattern: &str, verbose: bool, unicode: bool) -> String {
    let mut translator = Translator {
        rest: pattern.chars().collect(),
        position: 0,
        verbose,
        unicode,
        out: String::with_capacity(pattern.len() + 16),
    };
    translator.run();
    translator.out
}

struct Translator {
    rest: Vec<char>,
    position: usize,
    verbose: bool,
    unicode: bool,
    out: String,
}

impl Translator {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.get(self.position + ahead).copied()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek(0);
        self.position += usize::from(next.is_some());
        next
    }

    fn run(&mut self) {
        while let Some(character) = self.take() {
            match character {
                '\\' => self.escape(false),
                '[' => self.class(),
                '(' if self.peek(0) == Some('?') && self.peek(1) == Some('#') => {
                    while self.take().is_some_and(|character| character != ')') {}
                }
                '{' if !self.counts() => self.out.push_str("\\{"),
                '#' if self.verbose => {
                    while self.take().is_some_and(|character| character != '\n') {}
                }
                other => self.out.push(other),
            }
        }
    }

    /// Whether the brace just taken opens a repetition: `{3}`, `{3,}` or `{3,5}`.
    fn counts(&self) -> bool {
        let mut ahead = 0;
        let mut digits = 0;
        while self.peek(ahead).is_some_and(|character| character.is_ascii_digit()) {
            ahead += 1;
            digits += 1;
        }
        if self.peek(ahead) == Some(',') {
            ahead += 1;
            while self.peek(ahead).is_some_and(|character| character.is_ascii_digit()) {
                ahead += 1;
            }
        }
        digits > 0 && self.peek(ahead) == Some('}')
    }

    fn escape(&mut self, in_class: bool) {
        let Some(character) = self.take() else {
            self.out.push('\\');
            return;
        };
        let ascii = match character {
            'd' | 'D' | 'w' | 'W' | 's' | 'S' if self.unicode => {
                return self.escaped_character(character);
            }
            'd' | 'D' => "0-9",
            'w' | 'W' => "0-9A-Za-z_",
            's' | 'S' => " \\t\\n\\x0B\\x0C\\r",
            'h' | 'H' => HORIZONTAL_SPACE,
            'v' | 'V' => "\\n\\x0B\\x0C\\r\\x{85}\\x{2028}\\x{2029}",
            'Q' => return self.quoted(),
            'E' => return,
            'Z' if !in_class => {
                self.out.push_str("(?=\\n?\\z)");
                return;
            }
            'R' if !in_class => {
                self.out.push_str("(?:\\r\\n|[\\n\\x0B\\x0C\\r\\x{85}\\x{2028}\\x{2029}])");
                return;
            }
            'e' => {
                self.out.push_str("\\x1B");
                return;
            }
            other => return self.escaped_character(other),
        };
        let space = if ascii.starts_with(' ') { "\\x20" } else { "" };
        let ascii = format!("{space}{}", ascii.trim_start());
        if character.is_ascii_uppercase() {
            self.out.push_str(&format!("[^{ascii}]"));
        } else if in_class {
            self.out.push_str(&ascii);
        } else {
            self.out.push_str(&format!("[{ascii}]"));
        }
    }

    /// Letters and digits keep their meaning; anything else is itself.
    fn escaped_character(&mut self, character: char) {
        if character.is_ascii_alphanumeric() {
            self.out.push('\\');
            self.out.push(character);
            match (character, self.peek(0)) {
                ('p' | 'P' | 'x', Some('{')) => self.name_in_braces(('{', '}')),
                ('k', Some('{')) => self.name_in_braces(('<', '>')),
                _ => {}
            }
        } else {
            self.literal(character);
        }
    }

    /// Copies what an escape is about: a property, a number or a group.
    fn name_in_braces(&mut self, (open, close): (char, char)) {
        while let Some(character) = self.take() {
            match character {
                '{' => self.out.push(open),
                '}' => return self.out.push(close),
                other => self.out.push(other),
            }
        }
    }

    fn literal(&mut self, character: char) {
        if character.is_ascii_whitespace() {
            self.out.push_str(&format!("\\x{:02X}", character as u32));
        } else if character.is_ascii_punctuation() && !matches!(character, '<' | '>' | '_') {
            self.out.push('\\');
            self.out.push(character);
        } else {
            self.out.push(character);
        }
    }

    /// Everything up to `\E` is itself.
    fn quoted(&mut self) {
        while let Some(character) = self.take() {
            if character == '\\' && self.peek(0) == Some('E') {
                self.take();
                return;
            }
            self.literal(character);
        }
    }

    fn class(&mut self) {
        self.out.push('[');
        if self.peek(0) == Some('^') {
            self.take();
            self.out.push('^');
        }
        // A bracket right at the start does not close the class, a hyphen there is no range.
        if self.peek(0) == Some(']') {
            self.take();
            self.out.push_str("\\]");
        } else if self.peek(0) == Some('-') {
            self.take();
            self.out.push_str("\\-");
        }
        while let Some(character) = self.take() {
            match character {
                ']' => {
                    self.out.push(']');
                    return;
                }
                '\\' => self.escape(true),
                '[' if self.peek(0) == Some(':') => self.posix_class(),
                '[' | '&' | '~' => {
                    self.out.push('\\');
                    self.out.push(character);
                }
                '-' if self.peek(0) == Some('-') => {
                    self.take();
                    self.out.push_str("-\\-");
                }
                '#' | ' ' if self.verbose => self.literal(character),
                other => self.out.push(other),
            }
        }
    }

    /// Copies `[:alpha:]`, or escapes the bracket if that is not what follows.
    fn posix_class(&mut self) {
        let name: String = self.rest[self.position + 1..]
            .iter()
            .take_while(|character| character.is_ascii_alphabetic() || **character == '^')
            .collect();
        let end = self.position + 1 + name.len();
        if self.rest.get(end) == Some(&':') && self.rest.get(end + 1) == Some(&']') {
            self.position = end + 2;
            match unicode_class(&name).filter(|_| self.unicode) {
                Some(class) => self.out.push_str(class),
                None => self.out.push_str(&format!("[:{name}:]")),
            }
        } else {
            self.out.push_str("\\[");
        }
    }
}

/// What `\h` stands for.
const HORIZONTAL_SPACE: &str =
    " \\t\\x{A0}\\x{1680}\\x{180E}\\x{2000}-\\x{200A}\\x{202F}\\x{205F}\\x{3000}";

/// What a class in brackets stands for after `(*UCP)`, if it is not the same.
fn unicode_class(name: &str) -> Option<&'static str> {
    Some(match name {
        "alpha" => "\\p{L}",
        "^alpha" => "\\P{L}",
        "lower" => "\\p{Ll}",
        "^lower" => "\\P{Ll}",
        "upper" => "\\p{Lu}",
        "^upper" => "\\P{Lu}",
        "alnum" => "\\p{L}\\p{N}",
        "digit" => "\\d",
        "^digit" => "\\D",
        "space" => "\\s",
        "^space" => "\\S",
        "word" => "\\w",
        "^word" => "\\W",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::RegexMatcher;

    fn matches(pattern: &str, text: &str) -> bool {
        RegexMatcher::new(pattern, "").unwrap().is_match(text).unwrap()
    }

    #[test]
    fn short_classes_are_ascii() {
        assert!(matches(r"^\d+$", "123") && !matches(r"^\d+$", "١٢٣"));
        assert!(matches(r"^\w+$", "a_1") && !matches(r"^\w+$", "é"));
        assert!(matches(r"^\W$", "é"));
        assert!(matches(r"^[\w-]+$", "a-b") && matches(r"^[^\W]$", "a"));
        assert!(matches(r"^a\sb$", "a b") && matches(r"^\S$", "x"));
    }

    #[test]
    fn escapes_have_names_in_braces() {
        assert!(matches(r"^\p{Lu}\p{L}+$", "Élan") && !matches(r"\p{Lu}", "élan"));
        assert!(matches(r"^\P{L}$", "1") && matches(r"^[\p{L} ]+$", "é a"));
        assert!(matches(r"^\x{e9}\x{41}$", "éA") && matches(r"^(?<n>a)\k{n}$", "aa"));
    }

    #[test]
    fn classes_are_of_unicode_where_the_pattern_says_so() {
        assert!(matches(r"(*UCP)^\w+$", "été") && matches(r"(*UTF)(*UCP)^\d$", "٣"));
        assert!(matches(r"(*UCP)^[[:upper:]][[:alpha:]]$", "Éa") && !matches("^[[:upper:]]$", "É"));
        assert!(matches(r"(*UCP)^\W$", "-") && matches(r"^\h$", "\u{a0}"));
    }

    #[test]
    fn brackets_in_classes_are_literal() {
        assert!(matches("^[[]$", "[") && matches("^[]]$", "]") && matches("^[^]]$", "x"));
        assert!(matches("^[a[b]$", "[") && matches("^[a&&b]+$", "a&b"));
        assert!(matches("^[[:alpha:]]$", "x") && !matches("^[[:alpha:]]$", "1"));
        assert!(matches("^[+--]$", ",") && matches("^[--0]$", ".") && matches("^[a~~b]$", "~"));
    }

    #[test]
    fn braces_that_count_nothing_are_literal() {
        assert!(matches(r#"{"a":1}"#, r#"x{"a":1}"#));
        assert!(matches("^a{2}$", "aa") && matches("^a{1,}$", "aaa") && matches("^a{b}$", "a{b}"));
        assert!(matches("^a{,2}$", "a{,2}"));
    }

    #[test]
    fn any_punctuation_can_be_escaped() {
        for text in ["<a>", "a-b", "a/b", "a b", "a@b", "a#b", "é", "a_b", "a'b\"", "a%b!"] {
            let escaped: String = text
                .chars()
                .flat_map(|c| (!c.is_ascii_alphanumeric()).then_some('\\').into_iter().chain([c]))
                .collect();
            assert!(matches(&format!("^{escaped}$"), text), "{escaped}");
        }
        assert!(matches(r"^\Qa.b[\E.$", "a.b[x") && !matches(r"^\Qa.b\E$", "axb"));
    }

    #[test]
    fn a_dollar_matches_before_a_last_newline() {
        assert!(matches("foo$", "foo\n") && matches(r"foo\Z", "foo\n"));
        assert!(!matches(r"foo\z", "foo\n") && !matches("foo$", "foo\n\n"));
    }

    #[test]
    fn comments_are_only_comments_in_verbose_mode() {
        let verbose = RegexMatcher::new("a [ b] # [ is no class here\n c", "x").unwrap();
        assert!(verbose.is_match("abc").unwrap() && verbose.is_match("a c").unwrap());
        assert!(matches("a#b", "a#b"));
        assert!(matches("^a(?# note )b$", "ab"));
    }

    #[test]
    fn line_ends_are_one_escape() {
        assert!(matches(r"^a\Rb$", "a\r\nb") && matches(r"^a\Rb$", "a\nb"));
        assert!(matches(r"^a\vb$", "a\nb") && !matches(r"^a\vb$", "a b"));
    }
}
