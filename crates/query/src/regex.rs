//! Regular expressions in queries and expressions.
//!
//! The server speaks PCRE. `pcre` rewrites its dialect for the parser of `fancy-regex`; the parsed
//! pattern then runs on one of two engines. `linear` takes patterns without look-around and back
//! references, in time linear in the text. `backtrack` takes the others, under a bound on its steps.
//! Both count their steps on the operation's [`Meter`], so that a time limit, a kill or a shutdown
//! ends a search within milliseconds. A search that exceeds the bound is an error, not "no match".

mod backtrack;
mod linear;
mod pcre;
mod program;

use std::sync::{Arc, OnceLock};

use fancy_regex::Expr;

use self::backtrack::Search;
use self::linear::Linear;
use self::pcre::translate;
use self::program::Program;
use crate::error::{QueryError, Result};
use crate::meter::Meter;
use crate::value::ValueRef;

/// The longest pattern, in bytes.
const MAX_PATTERN_LENGTH: usize = 32_764;
/// Makes classes of characters those of Unicode.
const UNICODE_CLASSES: &str = "(*UCP)";
/// Hints to PCRE about the encoding, which is always UTF-8 here, and about classes.
const ENCODING_VERBS: [&str; 4] = ["(*UTF8)", "(*UTF)", UNICODE_CLASSES, "(*UTF-8)"];

/// Where each group of a match is, in bytes; the first is the whole match.
pub(crate) type Groups = Vec<Option<(usize, usize)>>;

/// Why a search ended without an answer.
#[derive(Debug)]
enum Failure {
    /// The search took more steps, or more room, than one search may.
    TooComplex,
    /// The operation ended.
    Ended(QueryError),
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        Self::Ended(error)
    }
}

impl From<Failure> for QueryError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::TooComplex => Self::location(
                51156,
                format!(
                    "Error occurred while executing the regular expression: it took more than {} \
                     steps on one string; make the pattern simpler",
                    backtrack::MAX_STEPS
                ),
            ),
            Failure::Ended(error) => error,
        }
    }
}

/// A compiled regular expression, with its source and the meter that its searches count on.
#[derive(Debug, Clone)]
pub struct RegexMatcher {
    pattern: String,
    options: String,
    dollar_before_newline: bool,
    compiled: Arc<Compiled>,
    meter: Meter,
}

#[derive(Debug)]
struct Compiled {
    expression: Expr,
    linear: Option<Linear>,
    /// For patterns that are not linear, and for groups in long texts.
    program: OnceLock<Result<Program, String>>,
}

impl Compiled {
    fn program(&self) -> Result<&Program> {
        let program = self.program.get_or_init(|| Program::compile(&self.expression));
        program.as_ref().map_err(|reason| invalid(reason))
    }
}

impl RegexMatcher {
    /// Compiles a pattern with options from `imsxu`.
    ///
    /// # Errors
    ///
    /// If the pattern or an option is invalid.
    pub fn new(pattern: &str, options: &str) -> Result<Self> {
        if pattern.len() > MAX_PATTERN_LENGTH {
            return Err(invalid("regular expression is too large"));
        }
        refuse_if!(pattern.contains('\0') => 51109,
            "Regular expression cannot contain an embedded null byte");
        let mut flags = String::new();
        for option in options.chars() {
            match option {
                'i' | 'm' | 's' | 'x' if !flags.contains(option) => flags.push(option),
                'i' | 'm' | 's' | 'x' | 'u' => {}
                other => {
                    refuse!(51108, "invalid flag in regex options: {other}");
                }
            }
        }
        let (mut body, mut unicode) = (pattern, false);
        while let Some((verb, rest)) =
            ENCODING_VERBS.iter().find_map(|verb| Some((*verb, body.strip_prefix(verb)?)))
        {
            body = rest;
            unicode |= verb == UNICODE_CLASSES;
        }
        let body = translate(body, flags.contains('x'), unicode);
        let source = if flags.is_empty() { body } else { format!("(?{flags}){body}") };
        let mut sorted: Vec<char> = options.chars().collect();
        sorted.sort_unstable();
        Ok(Self {
            dollar_before_newline: pattern.contains('$') && !flags.contains('m'),
            pattern: pattern.to_owned(),
            options: sorted.into_iter().collect(),
            compiled: Arc::new(compile(&source)?),
            meter: Meter::default(),
        })
    }

    /// The same, counting the steps of its searches on an operation's meter.
    #[must_use]
    pub fn with_meter(mut self, meter: &Meter) -> Self {
        self.meter = meter.clone();
        self
    }

    /// Whether the value is a string that the pattern finds something in, or the same regular
    /// expression stored as a value.
    ///
    /// # Errors
    ///
    /// If the search is too complex or the operation has ended.
    pub fn matches<'a>(&self, value: impl Into<ValueRef<'a>>) -> Result<bool> {
        match value.into() {
            ValueRef::String(text) | ValueRef::Symbol(text) => self.is_match(text),
            ValueRef::RegularExpression { pattern, options } => {
                Ok(pattern == self.pattern && options == self.options)
            }
            _ => Ok(false),
        }
    }

    /// Whether the pattern finds something in the text.
    ///
    /// # Errors
    ///
    /// If the search is too complex or the operation has ended.
    pub fn is_match(&self, text: &str) -> Result<bool> {
        if self.finds(text)? {
            return Ok(true);
        }
        // In PCRE `$` also matches before a newline that ends the text.
        match text.strip_suffix('\n') {
            Some(text) if self.dollar_before_newline => self.finds(text),
            _ => Ok(false),
        }
    }

    fn finds(&self, text: &str) -> Result<bool> {
        if let Some(linear) = &self.compiled.linear
            && let Some(found) = linear.is_match(text, &self.meter)?
        {
            return Ok(found);
        }
        let program = self.compiled.program()?;
        Ok(Search::find(program, text, 0, &self.meter)?.is_some())
    }

    /// Where the groups of the first match from a place on are. Fails if the search is too complex
    /// or the operation has ended.
    pub(crate) fn find(&self, text: &str, from: usize, meter: &Meter) -> Result<Option<Groups>> {
        match &self.compiled.linear {
            Some(linear) if linear.is_quick(text.len() - from) => {
                meter.steps((text.len() - from) as u64 / 16)?;
                return Ok(linear.find(text, from));
            }
            // In linear time it is known whether there is anything to look for.
            Some(linear) if from == 0 && linear.is_match(text, meter)? == Some(false) => {
                return Ok(None);
            }
            _ => {}
        }
        Ok(Search::find(self.compiled.program()?, text, from, meter)?)
    }

    /// The literal text that every match starts with, when the pattern is `^literal…` without
    /// options: an index range can then narrow the search.
    pub(crate) fn literal_prefix(&self) -> Option<String> {
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

fn compile(source: &str) -> Result<Compiled> {
    let parsed = Expr::parse_tree(source).map_err(|error| invalid(&error.to_string()))?;
    let expression = parsed.expr;
    let linear = Linear::compile(&expression).transpose().map_err(|reason| invalid(&reason))?;
    let compiled = Compiled { expression, linear, program: OnceLock::new() };
    if compiled.linear.is_none() {
        compiled.program()?;
    }
    Ok(compiled)
}

fn invalid(reason: &str) -> QueryError {
    fail!(51091, "Regular expression is invalid: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, options: &str, text: &str) -> bool {
        RegexMatcher::new(pattern, options).unwrap().is_match(text).unwrap()
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
        let regex = RegexMatcher::new(r"(x+x+)+\1y", "").unwrap();
        assert_eq!(regex.is_match(&"x".repeat(60)).unwrap_err().code().0, 51156);
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

    /// Ends the operation at the second question.
    #[derive(Debug, Default)]
    struct Impatient(std::sync::atomic::AtomicU64);

    impl crate::Interrupt for Impatient {
        fn check(&self) -> Result<()> {
            match self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => Ok(()),
                _ => Err(fail!(50, "time is up")),
            }
        }
    }

    #[test]
    fn both_engines_obey_the_interrupt() {
        let hostile = [
            (r"(x+x+)+\1y", "x".repeat(60)),
            (r"(?=(x+x+)+z)x", "x".repeat(60)),
            // Linear, in a text that takes long all the same.
            (r"(a?){200}[ab]{200}c", "ab".repeat(2_000_000)),
        ];
        for (pattern, text) in hostile {
            let meter = Meter::default().with_interrupt(Arc::new(Impatient::default()));
            let regex = RegexMatcher::new(pattern, "").unwrap().with_meter(&meter);
            assert_eq!(regex.is_match(&text).unwrap_err().code().0, 50, "{pattern}");
        }
    }

    #[test]
    fn long_texts_are_walked_and_give_the_same_answer() {
        let long = format!("{}needle", "hay ".repeat(1_000_000));
        for (pattern, found) in [
            ("needle", true),
            ("needle$", true),
            ("^needle", false),
            (r"\bneedle\b", true),
            ("(?i)NEEDLE", true),
            ("nee(x|d)le.", false),
        ] {
            assert_eq!(matches(pattern, "", &long), found, "{pattern}");
        }
    }

    #[test]
    fn groups_are_found_by_both_engines() {
        let groups = |pattern: &str, text: &str| {
            let regex = RegexMatcher::new(pattern, "").unwrap();
            regex.find(text, 0, &Meter::default()).unwrap()
        };
        assert_eq!(groups("(a)(b)?", "xa"), Some(vec![Some((1, 2)), Some((1, 2)), None]));
        assert_eq!(
            groups(r"(\w)(?=(\d))", "ab1"),
            Some(vec![Some((1, 2)), Some((1, 2)), Some((2, 3))])
        );
        assert_eq!(groups(r"(?<=a|bc)d", "bcd"), Some(vec![Some((2, 3))]));
        // Behind is what ends here, also where a shorter way ends before.
        assert_eq!(groups(r"(?<=a|ab)c", "abc"), Some(vec![Some((2, 3))]));
        assert_eq!(groups(r"(?<=a|ab)c", "axc"), None);
        assert_eq!(groups(r"a\Kb", "ab"), Some(vec![Some((1, 2))]));
        assert_eq!(groups(r"(?>a+)b", "aab"), Some(vec![Some((0, 3))]));
        assert_eq!(groups(r"(?>a+)ab", "aab"), None);
        assert_eq!(groups(r"(a)?(?(1)b|c)", "c"), Some(vec![Some((0, 1)), None]));
        assert_eq!(groups(r"(?i)(é)\1", "éÉ"), Some(vec![Some((0, 4)), Some((0, 2))]));
    }

    proptest::proptest! {
        #[test]
        fn the_backtracking_engine_agrees_with_the_linear_one(
            pattern in "(\\(?[ab.](b|a\\*|\\[ab\\]\\+\\??|a\\{1,3\\}|\\(a\\|b\\)\\*|\\$|\\^|\\\\b)?\\)?){1,4}",
            text in "[ab \n]{0,12}",
        ) {
            let Ok(regex) = RegexMatcher::new(&pattern, "") else { return Ok(()) };
            let Some(linear) = &regex.compiled.linear else { return Ok(()) };
            let program = Program::compile(&regex.compiled.expression).unwrap();
            let searched = Search::find(&program, &text, 0, &Meter::default()).unwrap();
            proptest::prop_assert_eq!(linear.find(&text, 0), searched, "{}", pattern);
        }

        #[test]
        fn the_backtracking_engine_agrees_with_another(
            pattern in "(\\(?[ab.]|\\(\\?=[ab.]\\)|\\(\\?![ab]\\)|\\(\\?<=[ab]\\)|\\(\\?<![ab]\\)|\\(\\?<=a\\|ab\\)|\\(\\?<!b\\|ba\\)|\\\\1|\\(a\\|b\\)[?*+]?\\??|\\(\\?>a\\|ab\\)|\\(\\?:a\\?b\\?\\)[*+]|b\\*){1,5}\\)?",
            text in "[ab]{0,10}",
        ) {
            let Ok(regex) = RegexMatcher::new(&pattern, "") else { return Ok(()) };
            let Ok(other) = fancy_regex::Regex::new(&pattern) else { return Ok(()) };
            let Ok(expected) = other.captures(&text) else { return Ok(()) };
            let expected: Option<Groups> = expected.map(|found| {
                found.iter().map(|group| group.map(|group| (group.start(), group.end()))).collect()
            });
            let program = Program::compile(&regex.compiled.expression).unwrap();
            let found = Search::find(&program, &text, 0, &Meter::default()).unwrap();
            proptest::prop_assert_eq!(found, expected, "{}", pattern);
        }
    }
}
