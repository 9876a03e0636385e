//! `$regexMatch`, `$regexFind` and `$regexFindAll`.
//!
//! A constant pattern is compiled when the expression is read; any other one for each document.
//! Patterns with look-around or back references run under a bound on backtracking, all others in
//! linear time, so no pattern can hang the server.

use bson::{Bson, Document};
use fancy_regex::{Captures, Regex, RegexBuilder};

use super::string::whole;
use crate::expression::bounds::Budget;
use crate::expression::operand::Operand;
use crate::expression::{ExpressionError, fail};
use crate::matcher::RegexMatcher;

/// The largest compiled pattern, in bytes.
const MAX_COMPILED_SIZE: usize = 4 * 1024 * 1024;

/// How many backtracking steps one search may take.
const MAX_BACKTRACKS: usize = 1_000_000;

/// Which of the three operators it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegexKind {
    Match,
    Find,
    FindAll,
}

impl RegexKind {
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "$regexMatch" => Some(Self::Match),
            "$regexFind" => Some(Self::Find),
            "$regexFindAll" => Some(Self::FindAll),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Match => "$regexMatch",
            Self::Find => "$regexFind",
            Self::FindAll => "$regexFindAll",
        }
    }

    /// What is answered when there is no input or no pattern.
    fn nothing(self) -> Bson {
        match self {
            Self::Match => Bson::Boolean(false),
            Self::Find => Bson::Null,
            Self::FindAll => Bson::Array(Vec::new()),
        }
    }

    /// Compiles a pattern; `None` if there is none.
    pub(crate) fn compile(
        self,
        pattern: &Operand<'_>,
        options: Option<&Operand<'_>>,
    ) -> Result<Option<Compiled>, ExpressionError> {
        let name = self.name();
        let (text, own_options) = match pattern.get() {
            None | Some(Bson::Null | Bson::Undefined) => return Ok(None),
            Some(Bson::String(text)) => (text.as_str(), ""),
            Some(Bson::RegularExpression(regex)) => {
                (regex.pattern.as_str(), regex.options.as_str())
            }
            Some(_) => {
                return Err(fail(
                    51105,
                    format!("{name} needs 'regex' to be of type string or regex"),
                ));
            }
        };
        let options = match options {
            None => own_options,
            Some(options) if options.is_nullish() => own_options,
            Some(options) => {
                let Some(Bson::String(options)) = options.get() else {
                    return Err(fail(
                        51106,
                        format!("{name} needs 'options' to be of type string"),
                    ));
                };
                if !own_options.is_empty() {
                    return Err(fail(
                        51107,
                        format!(
                            "{name}: found regex option(s) specified in both 'regex' and 'option' \
                             fields"
                        ),
                    ));
                }
                options
            }
        };
        if text.contains('\0') {
            return Err(fail(
                51109,
                format!("{name}: regular expression cannot contain an embedded null byte"),
            ));
        }
        self.build(text, options).map(Some)
    }

    fn build(self, pattern: &str, options: &str) -> Result<Compiled, ExpressionError> {
        let invalid =
            |reason: &str| fail(51111, format!("Invalid Regex in {}: {reason}", self.name()));
        let mut flags = String::new();
        for option in options.chars() {
            match option {
                'i' | 'm' | 's' | 'x' if !flags.contains(option) => flags.push(option),
                'i' | 'm' | 's' | 'x' | 'u' => {}
                other => {
                    return Err(fail(
                        51108,
                        format!("{} invalid flag in regex options: {other}", self.name()),
                    ));
                }
            }
        }
        if self == Self::Match {
            let matcher = RegexMatcher::new(pattern, options);
            return matcher.map(Compiled::Test).map_err(|error| invalid(error.message()));
        }
        let source =
            if flags.is_empty() { pattern.to_owned() } else { format!("(?{flags}){pattern}") };
        RegexBuilder::new(&source)
            .backtrack_limit(MAX_BACKTRACKS)
            .delegate_size_limit(MAX_COMPILED_SIZE)
            .build()
            .map(Compiled::Search)
            .map_err(|error| invalid(&error.to_string()))
    }

    /// Runs the operator.
    pub(crate) fn search(
        self,
        input: &Operand<'_>,
        regex: Option<&Compiled>,
    ) -> Result<Bson, ExpressionError> {
        if !input.is_nullish() && input.as_str().is_none() {
            return Err(fail(51104, format!("{} needs 'input' to be of type string", self.name())));
        }
        let (Some(text), Some(regex)) = (input.as_str(), regex) else {
            return Ok(self.nothing());
        };
        match regex {
            Compiled::Test(matcher) => Ok(Bson::Boolean(matcher.is_match(text))),
            Compiled::Search(regex) if self == Self::FindAll => find_all(regex, text),
            Compiled::Search(regex) => Ok(captures(regex, text, 0)?.map_or(Bson::Null, |found| {
                let start = found.get(0).map_or(0, |whole| whole.start());
                describe(&found, text[..start].chars().count())
            })),
        }
    }
}

/// A pattern, ready to be used.
#[derive(Clone, Debug)]
pub(crate) enum Compiled {
    /// Only asked whether it matches, exactly as a query asks.
    Test(RegexMatcher),
    /// Asked where, too.
    Search(Regex),
}

fn exhausted() -> ExpressionError {
    fail(
        51156,
        "Error occurred while executing the regular expression: it backtracks too much; make it \
         simpler",
    )
}

fn captures<'a>(
    regex: &Regex,
    text: &'a str,
    from: usize,
) -> Result<Option<Captures<'a>>, ExpressionError> {
    regex.captures_from_pos(text, from).map_err(|_| exhausted())
}

/// Every match from left to right; an empty match moves the search on by one character.
fn find_all(regex: &Regex, text: &str) -> Result<Bson, ExpressionError> {
    let mut matches = Vec::new();
    let mut budget = Budget::default();
    // `counted` is the byte up to which characters have been counted into `index`.
    let (mut from, mut counted, mut index) = (0, 0, 0);
    while from <= text.len() {
        let Some(found) = captures(regex, text, from)? else { break };
        let Some(whole) = found.get(0) else { break };
        index += text[counted..whole.start()].chars().count();
        counted = whole.start();
        let description = describe(&found, index);
        budget.draw("$regexFindAll", &description)?;
        matches.push(description);
        from = if whole.start() == whole.end() {
            whole.end() + text[whole.end()..].chars().next().map_or(1, char::len_utf8)
        } else {
            whole.end()
        };
    }
    Ok(Bson::Array(matches))
}

fn describe(found: &Captures<'_>, index: usize) -> Bson {
    let text = |position: usize| {
        found.get(position).map_or(Bson::Null, |part| Bson::String(part.as_str().to_owned()))
    };
    let mut description = Document::new();
    description.insert("match", text(0));
    description.insert("idx", whole(index));
    description.insert("captures", Bson::Array((1..found.len()).map(text).collect()));
    Bson::Document(description)
}
