//! Patterns without look-around and back references, in time linear in the text.
//!
//! Short texts go to the engine of `regex-automata` in one call. That call cannot be interrupted, so
//! a text that could keep it busy for long is walked byte by byte through a lazily built automaton,
//! counting steps on the operation's meter.

use std::sync::{Arc, OnceLock};

use fancy_regex::{Assertion, Expr};
use regex_automata::hybrid::dfa::DFA;
use regex_automata::meta::Regex;
use regex_automata::nfa::thompson;
use regex_automata::{Input, MatchKind};

use super::Failure;
use crate::meter::Meter;

/// The memory, in bytes, that one compiled pattern may take.
pub(super) const MAX_COMPILED_SIZE: usize = 2 * 1024 * 1024;

/// Bytes of text times size of the pattern up to which one call is made: some milliseconds at worst.
const MAX_UNINTERRUPTED: usize = 1 << 22;

/// How many bytes of a compiled pattern count as one in [`MAX_UNINTERRUPTED`].
const PATTERN_UNIT: usize = 128;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(super) struct Linear {
    regex: Regex,
    source: String,
    /// Built for the first long text; `None` if it cannot be.
    walked: Arc<OnceLock<Option<DFA>>>,
}

impl Linear {
    /// Compiles the pattern; `None` if it needs backtracking.
    pub(super) fn compile(expression: &Expr) -> Option<Result<Self, String>> {
        let mut source = String::new();
        write(expression, &mut source, 0)?;
        let config = Regex::config().nfa_size_limit(Some(MAX_COMPILED_SIZE));
        let built = Regex::builder().configure(config).build(&source);
        Some(match built {
            Ok(regex) => Ok(Self { regex, source, walked: Arc::default() }),
            Err(error) => Err(match error.syntax_error() {
                Some(syntax) => syntax.to_string(),
                None => error.to_string(),
            }),
        })
    }

    /// Whether one call on a text of this length ends soon.
    pub(super) fn is_quick(&self, length: usize) -> bool {
        let weight = 1 + self.regex.memory_usage() / PATTERN_UNIT;
        length.saturating_mul(weight) <= MAX_UNINTERRUPTED
    }

    /// Whether the pattern finds something; `None` if the text is long and cannot be walked.
    pub(super) fn is_match(&self, text: &str, meter: &Meter) -> Result<Option<bool>, Failure> {
        if self.is_quick(text.len()) {
            return Ok(Some(self.regex.is_match(text)));
        }
        match self.walked.get_or_init(|| automaton(&self.source)) {
            Some(dfa) => walk(dfa, text, meter),
            None => Ok(None),
        }
    }

    /// Where the groups of the first match from a place on are. Only for quick texts.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<super::Groups> {
        let mut captures = self.regex.create_captures();
        self.regex.captures(Input::new(text).range(from..), &mut captures);
        captures.is_match().then(|| {
            (0..captures.group_len())
                .map(|group| captures.get_group(group).map(|span| (span.start, span.end)))
                .collect()
        })
    }
}

fn automaton(source: &str) -> Option<DFA> {
    let limits = thompson::Config::new().nfa_size_limit(Some(MAX_COMPILED_SIZE));
    let config = DFA::config().match_kind(MatchKind::LeftmostFirst).skip_cache_capacity_check(true);
    DFA::builder().configure(config).thompson(limits).build(source).ok()
}

/// How many bytes are walked between two counts of steps. Building a state of the automaton costs as
/// much as hundreds of bytes, so the steps are counted as if every byte did.
const STRIDE: usize = 64;

fn walk(dfa: &DFA, text: &str, meter: &Meter) -> Result<Option<bool>, Failure> {
    let mut cache = dfa.create_cache();
    let input = Input::new(text);
    let Ok(mut state) = dfa.start_state_forward(&mut cache, &input) else { return Ok(None) };
    for part in text.as_bytes().chunks(STRIDE) {
        meter.steps(part.len() as u64 * 4)?;
        for byte in part {
            let Ok(next) = dfa.next_state(&mut cache, state, *byte) else { return Ok(None) };
            state = next;
            if state.is_tagged() {
                if state.is_match() {
                    return Ok(Some(true));
                }
                if state.is_dead() {
                    return Ok(Some(false));
                }
                if state.is_quit() {
                    return Ok(None);
                }
            }
        }
    }
    let Ok(state) = dfa.next_eoi_state(&mut cache, state) else { return Ok(None) };
    Ok(Some(state.is_match()))
}

/// Writes an expression in the syntax of `regex-automata`; `None` if it has no such form.
fn write(expression: &Expr, out: &mut String, precedence: u8) -> Option<()> {
    let wrapped = |needed: bool, out: &mut String, inner: &dyn Fn(&mut String) -> Option<()>| {
        out.push_str(if needed { "(?:" } else { "" });
        inner(out)?;
        out.push_str(if needed { ")" } else { "" });
        Some(())
    };
    match expression {
        // Words are made of ASCII letters, digits and the underscore, as `\w` is.
        Expr::Assertion(Assertion::WordBoundary) => out.push_str(r"(?-u:\b)"),
        Expr::Assertion(Assertion::NotWordBoundary) => out.push_str(r"(?-u:\B)"),
        Expr::Assertion(Assertion::LeftWordBoundary) => out.push_str(r"(?-u:\b{start})"),
        Expr::Assertion(Assertion::RightWordBoundary) => out.push_str(r"(?-u:\b{end})"),
        Expr::Assertion(_) => expression.to_str(out, precedence),
        Expr::Empty | Expr::Any { .. } | Expr::Literal { .. } | Expr::Delegate { .. } => {
            // A literal of several characters is one unit where it is repeated.
            let several =
                matches!(expression, Expr::Literal { val, .. } if val.chars().count() > 1);
            wrapped(several && precedence > 2, out, &|out| {
                expression.to_str(out, precedence);
                Some(())
            })?;
        }
        Expr::Concat(children) => wrapped(precedence > 1, out, &|out| {
            children.iter().try_for_each(|child| write(child, out, 2))
        })?,
        Expr::Alt(children) => wrapped(precedence > 0, out, &|out| {
            children.iter().enumerate().try_for_each(|(place, child)| {
                out.push_str(if place > 0 { "|" } else { "" });
                write(child, out, 1)
            })
        })?,
        Expr::Group(child) => {
            out.push('(');
            write(child, out, 0)?;
            out.push(')');
        }
        Expr::Repeat { child, lo, hi, greedy } => wrapped(precedence > 2, out, &|out| {
            write(child, out, 3)?;
            out.push_str(&match (*lo, *hi) {
                (lo, usize::MAX) => format!("{{{lo},}}"),
                (lo, hi) => format!("{{{lo},{hi}}}"),
            });
            out.push_str(if *greedy { "" } else { "?" });
            Some(())
        })?,
        _ => return None,
    }
    Some(())
}
