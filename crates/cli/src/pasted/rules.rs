//! Rules, and how they are matched.

use std::collections::BTreeMap;
use std::ops::Range;

use regex_lite::Regex;

use super::servers::compiled;
use super::{Context, MAX_MATCHES};
use crate::finding::{Finding, Severity};
use crate::words::listed;

/// The groups of a pattern besides `host` and `port` that rules may use.
const WORDS: [&str; 9] =
    ["wanted", "found", "user", "mechanism", "database", "needed", "version", "detail", "also"];

/// How near to the root of the trouble a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// It explains the message.
    Cause,
    /// Many causes show so. It is reported only if no cause is found.
    Symptom,
    /// It makes things worse. It is reported in addition.
    Circumstance,
}

/// One cause and the words by which drivers tell it.
pub(super) struct Rule {
    /// A stable name, for programs.
    pub(super) code: &'static str,
    /// How near to the root it is.
    pub(super) rank: Rank,
    /// Regular expressions. Groups: `host`, `port` and those of [`WORDS`].
    pub(super) patterns: &'static [&'static str],
    /// Which matches count; the patterns alone cannot always tell.
    pub(super) accepts: fn(&Evidence) -> bool,
    explain: Explain,
}

/// The finding for all matches of a rule together.
enum Explain {
    /// Words. `{a server}` and `{the server}` stand for the servers that are known, `{at}` for the same in
    /// parentheses.
    Plain(Severity, &'static str, &'static str, &'static [&'static str]),
    /// Words that depend on more.
    Computed(fn(&[Evidence], &Context) -> Finding),
}

impl Rule {
    /// A cause, of which every match counts.
    pub(super) const fn cause(
        code: &'static str,
        patterns: &'static [&'static str],
        explain: fn(&[Evidence], &Context) -> Finding,
    ) -> Self {
        let explain = Explain::Computed(explain);
        Self { code, rank: Rank::Cause, patterns, accepts: |_| true, explain }
    }

    /// The same for a problem whose words are always these: what is seen, why, and what to do.
    pub(super) const fn plain(
        code: &'static str,
        patterns: &'static [&'static str],
        seen: &'static str,
        why: &'static str,
        fixes: &'static [&'static str],
    ) -> Self {
        let explain = Explain::Plain(Severity::Problem, seen, why, fixes);
        Self { code, rank: Rank::Cause, patterns, accepts: |_| true, explain }
    }

    /// The same rule, whose finding is a note.
    pub(super) const fn noted(mut self) -> Self {
        if let Explain::Plain(severity, ..) = &mut self.explain {
            *severity = Severity::Note;
        }
        self
    }

    /// The same rule at another rank.
    pub(super) const fn ranked(mut self, rank: Rank) -> Self {
        self.rank = rank;
        self
    }

    /// The same rule, for the matches that this accepts.
    pub(super) const fn only(mut self, accepts: fn(&Evidence) -> bool) -> Self {
        self.accepts = accepts;
        self
    }

    /// The finding for these matches.
    pub(super) fn explain(&self, evidence: &[Evidence], context: &Context) -> Finding {
        let (severity, seen, why, fixes) = match &self.explain {
            Explain::Plain(severity, seen, why, fixes) => (*severity, *seen, *why, *fixes),
            Explain::Computed(explain) => return explain(evidence, context),
        };
        let seen = ["a server", "the server"].into_iter().fold(seen.to_owned(), |seen, unknown| {
            seen.replace(&format!("{{{unknown}}}"), &servers_or(evidence, unknown))
        });
        let finding = Finding::new(self.code, severity, seen.replace("{at}", &at(evidence)));
        fixes.iter().fold(finding.because(why), |finding, fix| finding.fix(*fix))
    }
}

/// One match of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// The host it is about, without a port.
    pub(super) host: Option<String>,
    pub(super) port: Option<String>,
    words: BTreeMap<&'static str, String>,
}

impl Evidence {
    /// The text that a group of the pattern matched.
    pub(super) fn word(&self, name: &str) -> Option<&str> {
        self.words.get(name).map(String::as_str)
    }

    /// `host:port`, or the host alone without a port.
    pub(super) fn server(&self) -> Option<String> {
        let host = self.host.as_deref()?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Some(match &self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        })
    }

    /// Whether the host is this machine.
    pub(super) fn is_loopback(&self) -> bool {
        self.host.as_deref().is_some_and(is_loopback)
    }

    /// Whether `other` says nothing that this does not.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let within =
            |mine: &Option<String>, theirs: &Option<String>| theirs.is_none() || mine == theirs;
        within(&self.host, &other.host)
            && within(&self.port, &other.port)
            && other.words.iter().all(|(name, word)| self.words.get(name) == Some(word))
    }

    fn of(captures: &regex_lite::Captures<'_>, server: Option<&str>) -> Self {
        let group = |name: &str| captures.name(name).map(|found| found.as_str());
        let (mut host, mut port) = (group("host"), group("port"));
        if let Some(server) = server {
            let (known_host, known_port) = split(server);
            // Drivers print the resolved address beside the name. People know the name.
            if host.is_none() || host == Some(known_host) || port == known_port {
                (host, port) = (Some(known_host), known_port);
            }
        }
        let words = WORDS.iter().filter_map(|name| Some((*name, group(name)?.to_owned())));
        Self {
            host: host.map(|host| host.trim_matches(['[', ']', '\'', '"', '.']).to_owned()),
            port: port.map(str::to_owned),
            words: words.collect(),
        }
    }
}

/// Whether a host is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn split(address: &str) -> (&str, Option<&str>) {
    match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, Some(port)),
        _ => (address, None),
    }
}

/// The servers of some evidence, each once.
pub(super) fn servers_of(evidence: &[Evidence]) -> Vec<String> {
    let mut servers: Vec<String> = Vec::new();
    for server in evidence.iter().filter_map(Evidence::server) {
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    servers
}

/// The servers of some evidence in words, or these words where no server is known.
pub(super) fn servers_or(evidence: &[Evidence], unknown: &str) -> String {
    match servers_of(evidence) {
        servers if servers.is_empty() => unknown.to_owned(),
        servers => listed(servers),
    }
}

/// The same in parentheses, or nothing.
pub(super) fn at(evidence: &[Evidence]) -> String {
    match servers_of(evidence) {
        servers if servers.is_empty() => String::new(),
        servers => format!(" ({})", listed(servers)),
    }
}

/// The first of these words that any evidence has.
pub(super) fn word_of<'a>(evidence: &'a [Evidence], name: &str) -> Option<&'a str> {
    evidence.iter().find_map(|evidence| evidence.word(name))
}

/// A rule, ready to be matched.
pub(super) struct Matcher {
    pub(super) rule: &'static Rule,
    patterns: Vec<Regex>,
}

impl Matcher {
    pub(super) fn new(rule: &'static Rule) -> Self {
        Self { rule, patterns: rule.patterns.iter().map(|pattern| compiled(pattern)).collect() }
    }

    /// Every match in the text, which is about `server` if that is known, and where it is.
    pub(super) fn find(&self, text: &str, server: Option<&str>) -> Vec<(Range<usize>, Evidence)> {
        let captures = self.patterns.iter().flat_map(|pattern| pattern.captures_iter(text));
        captures
            .map(|captures| {
                let place = captures.get(0).map_or(0..0, |whole| whole.range());
                (place, Evidence::of(&captures, server))
            })
            .filter(|(_, evidence)| (self.rule.accepts)(evidence))
            .take(MAX_MATCHES)
            .collect()
    }
}
