//! Diagnosis of a pasted driver message, without a network.
//!
//! A pure function of the text: it is matched against tables of rules (`reach`, `security`, `set`,
//! `operations`, `client`), each of which knows the words of several drivers for one cause. A message often holds
//! several causes, one for each server; the descriptions of servers are therefore taken apart first
//! (`servers`), so that each cause is laid at the right door. Symptoms, which many causes share, are
//! only told where no cause was found. docs/doctor.md#pasted.
//!
//! Nothing of the text is repeated except addresses, names of sets and users: a pasted message may
//! hold a password.

mod client;
#[cfg(test)]
mod collected;
mod operations;
mod reach;
mod rules;
mod security;
mod servers;
mod set;
mod summary;
#[cfg(test)]
mod tests;

use std::ops::Range;

use quorate_change_events::ResumeToken;
use quorate_connection_string::{ConnectionString, Seeds};

use crate::finding::Finding;
use rules::{Evidence, Matcher, Rank, Rule};
pub(crate) use servers::DescribedServer;

/// The longest text that is examined, in bytes. Of a longer one the end is taken: that is where a
/// program's last words are.
pub(crate) const MAX_TEXT_LENGTH: usize = 128 << 10;

/// How many described servers are told apart.
pub(crate) const MAX_SERVERS: usize = 64;

/// The digits of the shortest resume token: a mark.
const SHORTEST_TOKEN: usize = 32;

/// How many times one rule is looked for in one piece of text.
const MAX_MATCHES: usize = 64;

/// The reading of a message.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    /// The servers it describes, with the cause found for each.
    pub(crate) servers: Vec<(DescribedServer, Option<&'static str>)>,
    /// The type of the topology it describes.
    pub(crate) topology: Option<String>,
    /// The findings, worst first. Empty if nothing was recognised.
    pub(crate) findings: Vec<Finding>,
}

/// The facts that rules may use besides their own matches.
#[derive(Debug, Default)]
struct Context {
    /// A connection string in the text.
    uri: Option<ConnectionString>,
    servers: Vec<DescribedServer>,
    topology: Option<String>,
}

impl Context {
    fn of(text: &str) -> Self {
        Self {
            uri: find_uri(text),
            servers: servers::described_servers(text),
            topology: summary::topology_type(text),
        }
    }

    /// The hosts of the connection string in the text; `None` if there is none.
    fn seeds(&self) -> Option<&[quorate_protocol::ServerAddress]> {
        match self.uri.as_ref()?.seeds() {
            Seeds::Hosts(hosts) => Some(hosts),
            Seeds::Srv(_) => None,
        }
    }

    /// Whether the connection string in the text names this host; `None` if there is no such string.
    fn is_seed(&self, host: &str) -> Option<bool> {
        Some(self.seeds()?.iter().any(|seed| seed.host().eq_ignore_ascii_case(host)))
    }

    fn is_replica_set(&self) -> bool {
        self.topology.as_deref().is_some_and(|kind| kind.starts_with("ReplicaSet"))
    }
}

/// Diagnoses a message.
pub(crate) fn diagnose(text: &str) -> Diagnosis {
    let text = &without_prefix(bounded(text));
    let context = Context::of(text);
    let tables = [reach::RULES, security::RULES, set::RULES, operations::RULES, client::RULES];
    let matchers: Vec<Matcher> = tables.into_iter().flatten().map(Matcher::new).collect();
    let mut matched: Vec<Matched> = Vec::new();
    let mut causes: Vec<Option<&'static str>> = Vec::new();
    let mut rest = text.clone();
    for server in &context.servers {
        let error = server.error.as_deref().unwrap_or_default();
        let found = collect(&matchers, error, Some(&server.address), &mut matched);
        causes.push(found);
        if !error.is_empty() {
            // Remove the error of this server, so that it is not matched again without its server.
            rest = rest.replace(error, " ");
        }
    }
    collect(&matchers, &rest, None, &mut matched);
    let mut findings = conclude(&context, &matched);
    findings.extend(resume_tokens(text));
    let servers = context.servers.into_iter().zip(causes).collect();
    Diagnosis { servers, topology: context.topology, findings }
}

/// The resume tokens of change streams in a text, once each.
fn resume_tokens(text: &str) -> Vec<Finding> {
    let digits = |word: &&str| word.len() >= SHORTEST_TOKEN && word.starts_with("82");
    let words = text.split(|c: char| !c.is_ascii_hexdigit()).filter(digits);
    let words: std::collections::BTreeSet<&str> = words.take(MAX_MATCHES).collect();
    let tokens = words.into_iter().filter_map(|word| ResumeToken::from_hex(word).ok());
    tokens
        .map(|token| {
            // The key of the document stays out: it may be a name.
            let shown = token.explain();
            let shown = quorate_change_events::Explained { document_key: None, ..shown };
            finding!(note "resume_token", "the message holds a resume token: {shown}")
                .because(
                    "a change stream can go on after it as long as the oplog reaches back to it",
                )
                .fix(format!("quorate token {} URI tells whether URI still can", token.to_hex()))
        })
        .collect()
}

/// A rule and everything it matched.
struct Matched {
    rule: &'static Rule,
    evidence: Vec<Evidence>,
}

/// Adds the matches of every rule in a piece of text. Returns the code of the first cause.
fn collect(
    matchers: &[Matcher],
    text: &str,
    server: Option<&str>,
    matched: &mut Vec<Matched>,
) -> Option<&'static str> {
    let all: Vec<_> =
        matchers.iter().map(|matcher| (matcher, matcher.find(text, server))).collect();
    // "Connection refused" within a longer phrase that says more is no second refusal.
    let places: Vec<Range<usize>> =
        all.iter().flat_map(|(_, found)| found).map(|(place, _)| place.clone()).collect();
    let mut first = None;
    for (matcher, found) in all {
        let is_news = |(place, evidence): &(Range<usize>, Evidence)| {
            let says_more = |other: &Range<usize>| {
                other.start <= place.start && place.end <= other.end && other.len() > place.len()
            };
            evidence.host.is_some() || !places.iter().any(says_more)
        };
        let evidence: Vec<_> = found.into_iter().filter(is_news).map(|(_, item)| item).collect();
        if evidence.is_empty() {
            continue;
        }
        if first.is_none() && matcher.rule.rank == Rank::Cause {
            first = Some(matcher.rule.code);
        }
        match matched.iter_mut().find(|known| std::ptr::eq(known.rule, matcher.rule)) {
            Some(known) => known.add(evidence),
            None => {
                let mut new = Matched { rule: matcher.rule, evidence: Vec::new() };
                new.add(evidence);
                matched.push(new);
            }
        }
    }
    first
}

impl Matched {
    /// Adds evidence that is new. A match without a server says nothing beside one with it.
    fn add(&mut self, evidence: Vec<Evidence>) {
        for item in evidence {
            let known = self.evidence.iter().any(|known| known.covers(&item));
            if !known {
                self.evidence.retain(|known| !item.covers(known));
                self.evidence.push(item);
            }
        }
    }
}

fn conclude(context: &Context, matched: &[Matched]) -> Vec<Finding> {
    let told = |rank: Rank| {
        let of_rank = matched.iter().filter(move |matched| matched.rule.rank == rank);
        of_rank.map(|matched| matched.rule.explain(&matched.evidence, context))
    };
    let mut findings: Vec<Finding> = told(Rank::Cause).collect();
    findings.extend(summary::findings(context, !findings.is_empty()));
    if findings.is_empty() {
        findings.extend(told(Rank::Symptom).take(1));
    }
    findings.extend(told(Rank::Circumstance));
    findings.sort_by_key(|finding| finding.severity);
    findings
}

fn bounded(text: &str) -> &str {
    let mut start = text.len().saturating_sub(MAX_TEXT_LENGTH);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// Takes off what a container or a process manager put before every line (`app_1 | `, `[web] `).
fn without_prefix(text: &str) -> String {
    /// Names of containers are not longer.
    const MAX_PREFIX: usize = 64;
    let first = text.lines().next().unwrap_or_default();
    let end = if first.starts_with('[') { first.find(']') } else { first.find('|') };
    let prefix = end.filter(|end| *end < MAX_PREFIX).map_or("", |end| &first[..=end]);
    let lines = || text.lines().filter(|line| !line.is_empty());
    let common = !prefix.is_empty() && lines().count() > 1;
    if !common || !lines().all(|line| line.starts_with(prefix)) {
        return text.to_owned();
    }
    let mut stripped = String::with_capacity(text.len());
    for line in text.lines() {
        stripped.push_str(line.strip_prefix(prefix).unwrap_or(line));
        stripped.push('\n');
    }
    stripped
}

/// The first connection string in the text that can be read.
fn find_uri(text: &str) -> Option<ConnectionString> {
    let start = text.find("mongodb://").or_else(|| text.find("mongodb+srv://"))?;
    let rest = &text[start..];
    let end = rest
        .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>' | ')'))
        .unwrap_or(rest.len());
    ConnectionString::parse(rest[..end].trim_end_matches(['.', ',', ';'])).ok()
}
