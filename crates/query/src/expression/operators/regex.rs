//! `$regexMatch`, `$regexFind` and `$regexFindAll`.
//!
//! A constant pattern is compiled when the expression is read; any other one for each document.
//! How a pattern runs, and what ends it, belongs to [`crate::regex`].

use bson::{Bson, Document};

use super::room;
use super::string::whole;
use crate::error::Result;
use crate::expression::bounds::ELEMENT_OVERHEAD;
use crate::expression::operand::Operand;
use crate::meter::{Meter, push};
use crate::regex::{Groups, RegexMatcher};

quorate_protocol::named! {
    /// Which of the three operators it is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum RegexKind {
        Match = "$regexMatch",
        Find = "$regexFind",
        FindAll = "$regexFindAll",
    }
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

    /// The result when there is no input or no pattern.
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
    ) -> Result<Option<Compiled>> {
        let name = self.name();
        let (text, own_options) = match pattern.get() {
            None | Some(Bson::Null | Bson::Undefined) => return Ok(None),
            Some(Bson::String(text)) => (text.as_str(), ""),
            Some(Bson::RegularExpression(regex)) => {
                (regex.pattern.as_str(), regex.options.as_str())
            }
            Some(_) => {
                refuse!(51105, "{name} needs 'regex' to be of type string or regex");
            }
        };
        let options = match options {
            None => own_options,
            Some(options) if options.is_nullish() => own_options,
            Some(options) => {
                let Some(Bson::String(options)) = options.get() else {
                    refuse!(51106, "{name} needs 'options' to be of type string");
                };
                refuse_if!(!own_options.is_empty() => 51107,
                    "{name}: found regex option(s) specified in both 'regex' and 'option' \
                     fields");
                options
            }
        };
        refuse_if!(text.contains('\0') => 51109,
            "{name}: regular expression cannot contain an embedded null byte");
        self.build(text, options).map(Some)
    }

    fn build(self, pattern: &str, options: &str) -> Result<Compiled> {
        RegexMatcher::new(pattern, options).map_err(|error| match error.code().0 {
            51108 => fail!(51108, "{}: {}", self.name(), error.message()),
            _ => fail!(51111, "Invalid Regex in {}: {}", self.name(), error.message()),
        })
    }

    /// Runs the operator.
    pub(crate) fn search(
        self,
        input: &Operand<'_>,
        regex: Option<&Compiled>,
        meter: &Meter,
    ) -> Result<Bson> {
        refuse_if!(!input.is_nullish() && input.as_str().is_none() => 51104,
            "{} needs 'input' to be of type string", self.name());
        let (Some(text), Some(regex)) = (input.as_str(), regex) else {
            return Ok(self.nothing());
        };
        match self {
            Self::Match => regex.clone().with_meter(meter).is_match(text).map(Bson::Boolean),
            Self::FindAll => find_all(regex, text, meter),
            Self::Find => match regex.find(text, 0, meter)? {
                None => Ok(Bson::Null),
                Some(found) => {
                    let start = found.first().copied().flatten().map_or(0, |(start, _)| start);
                    room(self.name(), described_cost(&found), meter)?;
                    Ok(describe(&found, text, text[..start].chars().count()))
                }
            },
        }
    }
}

/// A pattern, ready to be used.
pub(crate) type Compiled = RegexMatcher;

/// Every match from left to right; an empty match moves the search on by one character.
fn find_all(regex: &Compiled, text: &str, meter: &Meter) -> Result<Bson> {
    let mut matches = Vec::new();
    let mut charge = meter.charge();
    // `counted` is the byte up to which characters have been counted into `index`.
    let (mut from, mut counted, mut index) = (0, 0, 0);
    while from <= text.len() {
        let Some(found) = regex.find(text, from, meter)? else { break };
        let Some((start, end)) = found.first().copied().flatten() else { break };
        index += text[counted..start].chars().count();
        counted = start;
        charge.grow("$regexFindAll", described_cost(&found))?;
        push(&mut matches, describe(&found, text, index));
        from = if start == end {
            end + text[end..].chars().next().map_or(1, char::len_utf8)
        } else {
            end
        };
    }
    Ok(Bson::Array(matches))
}

/// The bytes of the description of a match: each group may hold all of the text.
fn described_cost(found: &Groups) -> usize {
    let texts: usize = found.iter().flatten().map(|(start, end)| end - start).sum();
    texts + (found.len() + 1) * ELEMENT_OVERHEAD + 3 * (2 * ELEMENT_OVERHEAD)
}

fn describe(found: &Groups, text: &str, index: usize) -> Bson {
    let part = |group: &Option<(usize, usize)>| {
        let part = group.and_then(|(start, end)| text.get(start..end));
        part.map_or(Bson::Null, |part| Bson::String(part.to_owned()))
    };
    let mut description = Document::new();
    description.insert("match", found.first().map_or(Bson::Null, part));
    description.insert("idx", whole(index));
    description.insert("captures", Bson::Array(found.iter().skip(1).map(part).collect()));
    Bson::Document(description)
}
