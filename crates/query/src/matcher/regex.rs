//! Regular expressions in queries.
//!
//! The server speaks PCRE, and `pcre` rewrites its dialect; `fancy-regex` gives look-around and back-references with a bound on
//! backtracking, and hands everything else to an engine that runs in linear time. A pattern that
//! exhausts the bound counts as no match.

use std::sync::Arc;

use fancy_regex::{Regex, RegexBuilder};

use super::pcre::translate;
use crate::error::QueryError;
use crate::value::ValueRef;

/// The longest pattern, in bytes.
const MAX_PATTERN_LENGTH: usize = 32_764;
/// How many backtracking steps one match may take.
const MAX_BACKTRACKS: usize = 1_000_000;
/// The memory, in bytes, that one compiled pattern may take.
const MAX_COMPILED_SIZE: usize = 2 * 1024 * 1024;
/// Hints to PCRE about the encoding, which is always UTF-8 here.
const ENCODING_VERBS: [&str; 4] = ["(*UTF8)", "(*UTF)", "(*UCP)", "(*UTF-8)"];

/// A compiled regular expression, with its source.
#[derive(Debug, Clone)]
pub struct RegexMatcher {
    pattern: String,
    options: String,
    dollar_before_newline: bool,
    compiled: Arc<Regex>,
}

impl RegexMatcher {
    /// Compiles a pattern with options from `imsxu`.
    pub fn new(pattern: &str, options: &str) -> Result<Self, QueryError> {
        if pattern.len() > MAX_PATTERN_LENGTH {
            return Err(invalid("regular expression is too large"));
        }
        if pattern.contains('\0') {
            return Err(QueryError::location(
                51109,
                "Regular expression cannot contain an embedded null byte",
            ));
        }
        let mut flags = String::new();
        for option in options.chars() {
            match option {
                'i' | 'm' | 's' | 'x' if !flags.contains(option) => flags.push(option),
                'i' | 'm' | 's' | 'x' | 'u' => {}
                other => {
                    return Err(QueryError::location(
                        51108,
                        format!("invalid flag in regex options: {other}"),
                    ));
                }
            }
        }
        let mut body = pattern;
        while let Some(rest) = ENCODING_VERBS.iter().find_map(|verb| body.strip_prefix(verb)) {
            body = rest;
        }
        let body = translate(body, flags.contains('x'));
        let source = if flags.is_empty() { body } else { format!("(?{flags}){body}") };
        let compiled = RegexBuilder::new(&source)
            .backtrack_limit(MAX_BACKTRACKS)
            .delegate_size_limit(MAX_COMPILED_SIZE)
            .build()
            .map_err(|error| invalid(&error.to_string()))?;
        let mut sorted: Vec<char> = options.chars().collect();
        sorted.sort_unstable();
        Ok(Self {
            dollar_before_newline: pattern.contains('$') && !flags.contains('m'),
            pattern: pattern.to_owned(),
            options: sorted.into_iter().collect(),
            compiled: Arc::new(compiled),
        })
    }

    /// Whether the value is a string that the pattern finds something in, or the same regular
    /// expression stored as a value.
    pub fn matches<'a>(&self, value: impl Into<ValueRef<'a>>) -> bool {
        match value.into() {
            ValueRef::String(text) | ValueRef::Symbol(text) => self.is_match(text),
            ValueRef::RegularExpression { pattern, options } => {
                pattern == self.pattern && options == self.options
            }
            _ => false,
        }
    }

    /// Whether the pattern finds something in the text.
    pub fn is_match(&self, text: &str) -> bool {
        if self.compiled.is_match(text).unwrap_or(false) {
            return true;
        }
        // In PCRE `$` also matches before a newline that ends the text.
        self.dollar_before_newline
            && text
                .strip_suffix('\n')
                .is_some_and(|text| self.compiled.is_match(text).unwrap_or(false))
    }

    /// The literal text that every match starts with, when the pattern is `^literal…` without
    /// options: an index range can then narrow the search.
    pub fn literal_prefix(&self) -> Option<String> {
        if !self.options.is_empty() || self.pattern.contains('|') {
            return None;
        }
        let body = self.pattern.strip_prefix('^')?;
        let mut prefix = String::new();
        for character in body.chars() {
            match character {
                '*' | '?' | '{' => {
                    // The quantifier makes the last character optional.
                    prefix.pop();
                    break;
                }
                '\\' | '.' | '[' | '(' | ')' | '+' | '^' | '$' | ']' | '}' => break,
                literal => prefix.push(literal),
            }
        }
        (!prefix.is_empty()).then_some(prefix)
    }
}

fn invalid(reason: &str) -> QueryError {
    QueryError::location(51091, format!("Regular expression is invalid: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, options: &str, text: &str) -> bool {
        RegexMatcher::new(pattern, options).unwrap().is_match(text)
    }

    #[test]
    fn options_change_what_matches() {
        assert!(matches("ABC", "i", "xabcx"));
        assert!(!matches("ABC", "", "xabcx"));
        assert!(matches("^b", "m", "a\nb"));
        assert!(matches("a.b", "s", "a\nb"));
        assert!(matches("a b # comment", "x", "ab"));
        assert!(matches("(*UTF8)é", "iu", "É"));
    }

    #[test]
    fn look_around_and_back_references_work() {
        assert!(matches("foo(?!bar)", "", "foobaz"));
        assert!(!matches("foo(?!bar)", "", "foobar"));
        assert!(matches(r"(a+)-\1", "", "aa-aa"));
    }

    #[test]
    fn bad_patterns_and_options_are_refused_with_their_codes() {
        let code = |pattern: &str, options| {
            RegexMatcher::new(pattern, options).map(|_| 0).unwrap_or_else(|error| error.code().0)
        };
        assert_eq!(code("(", ""), 51091);
        assert_eq!(code("a", "z"), 51108);
        assert_eq!(code("a\0", ""), 51109);
        assert_eq!(code(&"a".repeat(40_000), ""), 51091);
        assert_eq!(code("((a{1000}){1000}){1000}", ""), 51091);
    }

    #[test]
    fn hostile_patterns_are_refused_or_read_but_never_overflow() {
        let parentheses = format!("{}a{}", "(".repeat(10_000), ")".repeat(10_000));
        let groups = format!("{}a{}", "(?:".repeat(8_000), ")".repeat(8_000));
        let looks = format!("{}a{}", "(?=".repeat(8_000), ")".repeat(8_000));
        let stars = format!("a{}", "*".repeat(10_000));
        let brackets = "[".repeat(30_000);
        let branches = "a|".repeat(16_000);
        let escapes = r"\Q".repeat(10_000);
        for pattern in [parentheses, groups, looks, stars, brackets, branches, escapes] {
            if let Ok(regex) = RegexMatcher::new(&pattern, "") {
                let _ = regex.is_match("aaaa");
            }
        }
    }

    #[test]
    fn hostile_backtracking_ends() {
        assert!(!matches(r"(x+x+)+\1y", "", &"x".repeat(60)));
    }

    #[test]
    fn prefixes_are_found_only_where_they_are_certain() {
        let prefix =
            |pattern, options| RegexMatcher::new(pattern, options).unwrap().literal_prefix();
        assert_eq!(prefix("^abc", "").as_deref(), Some("abc"));
        assert_eq!(prefix("^abc.*", "").as_deref(), Some("abc"));
        assert_eq!(prefix("^abc?", "").as_deref(), Some("ab"));
        assert_eq!(prefix("^abc+", "").as_deref(), Some("abc"));
        assert_eq!(prefix("^a|b", ""), None);
        assert_eq!(prefix("^abc", "i"), None);
        assert_eq!(prefix("abc", ""), None);
    }
}
