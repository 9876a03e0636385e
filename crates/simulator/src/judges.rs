//! Judges outside the members: what must hold whatever happens.
//!
//! They see every member's status and log after every input, and every appended entry. A judge
//! never helps: it remembers and compares.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_protocol::{ConfigVersion, MemberState, OpTime, ReplicaSetConfig, Term};
use quorate_replication::{LastVote, Status};

use crate::disk::Entry;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict(pub String);

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

type Judgement = Result<(), Verdict>;

fn broken(rule: &str, what: impl std::fmt::Display) -> Judgement {
    Err(Verdict(format!("{rule}: {what}")))
}

/// One life of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    /// The member.
    pub node: usize,
    /// Which start of the process.
    pub epoch: u64,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    state: Option<MemberState>,
    commit_point: OpTime,
    verified: OpTime,
    config: Option<ConfigVersion>,
}

/// All judges and what they remember.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judges {
    primaries: BTreeMap<i64, Life>,
    committed: Vec<Entry>,
    /// The term in which each of them was committed: the primary of a term commits an entry of that term, and with it all
    /// that came before.
    committed_in: Vec<Term>,
    /// Every entry that was ever written, with the one before it.
    entries: BTreeMap<OpTime, (Entry, OpTime)>,
    configs: BTreeMap<(i64, i64), Arc<ReplicaSetConfig>>,
    lives: BTreeMap<Life, Seen>,
    /// A configuration was forced: what was committed may be lost, by design.
    forgiving: bool,
}

impl Judges {
    /// From now on only members' own rules and the agreement at the end count.
    pub(crate) fn forgive_losses(&mut self) {
        self.forgiving = true;
    }

    /// Whether committed writes may be lost.
    pub(crate) fn is_forgiving(&self) -> bool {
        self.forgiving
    }

    /// Looks at a member after an input. The error is the rule that it broke.
    pub(crate) fn observe(&mut self, life: Life, status: Status<'_>, log: &[Entry]) -> Judgement {
        if self.forgiving {
            return Ok(());
        }
        let state = status.state();
        let before = self.lives.entry(life).or_default().clone();
        if state == MemberState::Primary {
            self.one_primary_per_term(life, status.term().0)?;
            Self::a_writable_primary_renewed_its_config(life, &status)?;
            if before.state != Some(MemberState::Primary) {
                self.committed_entries_are_never_lost(life, status.term(), log)?;
            }
        }
        let commit_point = status.commit_point().op_time;
        let wiped = state == MemberState::Startup2;
        if commit_point < before.commit_point && !wiped {
            return broken(
                "the commit point is monotonic",
                format!("n{} went from {} to {commit_point}", life.node, before.commit_point),
            );
        }
        let mut verified = if wiped { OpTime::NULL } else { before.verified };
        if commit_point > before.commit_point && state != MemberState::Arbiter {
            verified = self.committed_entries_agree(life, log, commit_point, verified)?;
        }
        let config = status.config().map(|config| config.config_version());
        if let Some(installed) = status.config().filter(|_| config != before.config) {
            self.one_config_per_version(installed)?;
        }
        self.lives.insert(life, Seen { state: Some(state), commit_point, verified, config });
        Ok(())
    }

    fn one_primary_per_term(&mut self, life: Life, term: i64) -> Judgement {
        let first = *self.primaries.entry(term).or_insert(life);
        if first == life {
            return Ok(());
        }
        broken(
            "at most one primary per term",
            format!("n{} and n{} are both primary of term {term}", first.node, life.node),
        )
    }

    // Else configurations of older terms could elect another member beside it.
    fn a_writable_primary_renewed_its_config(life: Life, status: &Status<'_>) -> Judgement {
        let installed = status.config().and_then(|config| config.term);
        match installed {
            Some(term) if status.is_writable() && term != status.term() => broken(
                "a writable primary has a configuration of its own term",
                format!("n{} leads {:?} with one of {term:?}", life.node, status.term()),
            ),
            _ => Ok(()),
        }
    }

    /// Looks at a vote as it is asked for or given: it must be on the disk of the member that
    /// promises it. The error is the rule that it broke.
    pub(crate) fn promised(
        &self,
        node: usize,
        vote: LastVote,
        stored: Option<LastVote>,
    ) -> Judgement {
        if stored == Some(vote) || stored.is_some_and(|stored| stored.term > vote.term) {
            return Ok(());
        }
        let what = format!(
            "n{node} gives {:?} to {} and has {stored:?} on its disk",
            vote.term, vote.candidate
        );
        broken("a vote is stored before it is spoken", what)
    }

    // What is older than its log is judged by the documents, at the end. A process that was paused may count the votes of
    // a term that is over: it need not have what later terms committed.
    fn committed_entries_are_never_lost(&self, life: Life, term: Term, log: &[Entry]) -> Judgement {
        let begin = log.first().map_or(OpTime::NULL, Entry::op_time);
        let start = self.committed.partition_point(|entry| entry.op_time() < begin);
        let end = self.committed_in.partition_point(|committed_in| *committed_in < term);
        let own = log.iter().map(Some).chain(std::iter::repeat(None));
        for (committed, own) in self.committed[start.min(end)..end].iter().zip(own) {
            if own != Some(committed) {
                let own = own.map_or_else(|| "nothing".to_owned(), |e| e.op_time().to_string());
                return broken(
                    "committed entries are never lost",
                    format!(
                        "n{} became primary with {own} where {} is committed",
                        life.node,
                        committed.op_time()
                    ),
                );
            }
        }
        Ok(())
    }

    /// Compares a member's log with what is known as committed, up to its commit point. Gives how far
    /// it has been compared.
    fn committed_entries_agree(
        &mut self,
        life: Life,
        log: &[Entry],
        commit_point: OpTime,
        verified: OpTime,
    ) -> Result<OpTime, Verdict> {
        // A copy begins where its source's log ended, which may not be committed yet.
        if log.first().is_none_or(|first| first.op_time() > commit_point) {
            return Ok(verified);
        }
        let end = log.partition_point(|entry| entry.op_time() <= commit_point);
        if log[end - 1].op_time() != commit_point {
            let what = format!("n{} calls {commit_point} committed and lacks it", life.node);
            return broken("what is committed is in the log", what).map(|()| verified);
        }
        self.commit_through(life, commit_point)?;
        let start = log.partition_point(|entry| entry.op_time() <= verified);
        for entry in &log[start.min(end)..end] {
            let place = self.committed.binary_search_by_key(&entry.op_time(), Entry::op_time);
            if place.is_err() || place.is_ok_and(|place| self.committed[place] != *entry) {
                let what = format!("n{} calls {} committed", life.node, entry.op_time());
                return broken("members agree on what is committed", what).map(|()| verified);
            }
        }
        Ok(commit_point)
    }

    /// Everything before a committed entry is committed, too.
    fn commit_through(&mut self, life: Life, commit_point: OpTime) -> Judgement {
        let known = self.committed.last().map_or(OpTime::NULL, Entry::op_time);
        let mut news = Vec::new();
        let mut at = commit_point;
        while at > known {
            let Some((entry, before)) = self.entries.get(&at) else { break };
            news.push(*entry);
            at = *before;
        }
        if !news.is_empty() && at != known {
            let what = format!("n{} calls {commit_point} committed, beside {known}", life.node);
            return broken("members agree on what is committed", what);
        }
        self.committed.extend(news.into_iter().rev());
        self.committed_in.resize(self.committed.len(), Term(commit_point.term));
        Ok(())
    }

    /// The history that leads to an entry: the positions of all that came before, and its own.
    pub(crate) fn history(&self, last: OpTime) -> std::collections::BTreeSet<OpTime> {
        let mut history = std::collections::BTreeSet::new();
        let mut at = last;
        while let Some((_, before)) = self.entries.get(&at) {
            history.insert(at);
            at = *before;
        }
        history
    }

    fn one_config_per_version(&mut self, config: &Arc<ReplicaSetConfig>) -> Judgement {
        let ConfigVersion { term, version } = config.config_version();
        let key = (term.map_or(-1, |term| term.0), version);
        let first = self.configs.entry(key).or_insert_with(|| Arc::clone(config));
        if Arc::ptr_eq(first, config) || **first == **config {
            return Ok(());
        }
        broken("one configuration per (term, version)", config.config_version())
    }

    /// Looks at an entry as it is appended. The error is the rule that it broke.
    pub(crate) fn appended(&mut self, node: usize, before: OpTime, entry: &Entry) -> Judgement {
        if self.forgiving {
            return Ok(());
        }
        if entry.op_time() <= before {
            let what = format!("n{node} appended {} after {before}", entry.op_time());
            return broken("positions rise", what);
        }
        // A copied log begins in the middle of the history.
        let begins = before.is_null() && self.entries.contains_key(&entry.op_time());
        let (first, first_before) =
            *self.entries.entry(entry.op_time()).or_insert((*entry, before));
        if first != *entry {
            return broken("the same position is the same entry", entry.op_time());
        }
        if first_before != before && !begins {
            let what = format!(
                "n{node} has {} after {before}, it was written after {first_before}",
                entry.op_time()
            );
            return broken("no holes", what);
        }
        Ok(())
    }

    /// How many entries were committed.
    pub(crate) fn committed(&self) -> usize {
        self.committed.len()
    }

    /// How many terms had a primary.
    pub(crate) fn terms(&self) -> usize {
        self.primaries.len()
    }
}
