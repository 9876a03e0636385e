//! What a member still knows of the votes that it gave.
//!
//! A voter whose disk was replaced has forgotten in which terms it voted. A second vote in one of them
//! could make two primaries of one term, and a copy that it acknowledges in an older term could commit
//! what a candidate that it has voted for does not have. So such a member gives no vote, does not
//! stand, and shows nothing as durable until every other voter has answered it since it started, and it
//! has copied what they had then:
//! each candidate has stored its term before it asked for a vote, so the highest term that the answers
//! show is no lower than any in which it can have voted. `docs/replication.md` has the argument.

use std::collections::BTreeSet;

use quorate_protocol::{MemberId, MonotonicTime, OpTime, ReplicaSetConfig, Term};

use crate::event::Event;
use crate::member::Member;
use crate::outbox::AfterPersist;
use crate::output::Change;

/// What a member still knows of its votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Memory {
    /// All of them.
    #[default]
    Whole,
    /// Nothing: its disk was replaced, and it may have voted before.
    Lost,
    /// Everything above this term, in which it votes no more.
    Since(Term),
}

/// The members that answered a member without its memory since it started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recollection {
    pub(crate) memory: Memory,
    /// When it was lost: an answer to an earlier request may be older than the last entry that this member
    /// acknowledged.
    lost_at: MonotonicTime,
    heard: BTreeSet<MemberId>,
    /// The newest entry that any of them had when it first answered.
    newest: OpTime,
}

impl Recollection {
    pub(crate) fn new(memory: Memory, now: MonotonicTime) -> Self {
        Self { memory, lost_at: now, heard: BTreeSet::new(), newest: OpTime::NULL }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.memory == Memory::Lost
    }

    /// Whether a vote in this term cannot be the second one.
    pub(crate) fn allows_vote_in(&self, term: Term, dry_run: bool) -> bool {
        match self.memory {
            Memory::Whole => true,
            Memory::Lost => false,
            // A dry run promises nothing: the vote will be in a later term.
            Memory::Since(last) => dry_run || term > last,
        }
    }
}

impl Member {
    /// A first configuration comes from another member: this one is new, or its disk was replaced. A
    /// configuration of term 0 was never led, so that there was no vote under it.
    pub(crate) fn doubt_memory(&mut self, first: &ReplicaSetConfig) {
        let never_led = first.term == Some(Term(0));
        if self.config.config().is_none() && self.recollection.memory == Memory::Whole && !never_led
        {
            // Stored before the configuration is: after a crash it is still known.
            self.lose_memory();
        }
    }

    /// What this member held no longer counts, as if its disk had been replaced.
    pub(crate) fn lose_memory(&mut self) {
        self.recollection = Recollection::new(Memory::Lost, self.now);
        self.emit(Event::MemoryLost);
        self.outbox.persist(Change::Memory(Memory::Lost), AfterPersist::Nothing);
    }

    /// A member has answered a heartbeat that this process sent then: its term is known, and adopted.
    pub(crate) fn hear_for_memory(&mut self, from: MemberId, sent: MonotonicTime, written: OpTime) {
        if self.recollection.is_lost() && sent >= self.recollection.lost_at {
            if self.recollection.heard.insert(from) {
                self.recollection.newest = self.recollection.newest.max(written);
            }
            self.recollect();
        }
    }

    /// The voters that a member without its memory waits for.
    pub(crate) fn voters_unheard(&self) -> Vec<MemberId> {
        let (Some(config), me) = (self.installed_config(), self.me()) else { return Vec::new() };
        if !self.recollection.is_lost() {
            return Vec::new();
        }
        let others = config.voters().map(|member| member.id).filter(|id| Some(*id) != me);
        others.filter(|id| !self.recollection.heard.contains(id)).collect()
    }

    /// Why this member has no vote, if it has lost its memory, and what to do.
    pub(crate) fn doubt_about_votes(&self) -> Option<String> {
        let config = self.installed_config().filter(|_| self.recollection.is_lost())?;
        let unheard = self.voters_unheard().into_iter().filter_map(|id| config.member(id));
        let unheard: Vec<String> = unheard.map(|member| member.host.to_string()).collect();
        let until = match unheard.as_slice() {
            [] => "it has copied what the other voters have".to_owned(),
            [one] => format!("{one} has answered; start it, or force a configuration without it"),
            more => format!(
                "{} have answered; start them, or force a configuration without them",
                more.join(" and ")
            ),
        };
        Some(format!("its disk was replaced: no vote, and no copy that counts, until {until}"))
    }

    /// Ends the doubt if every other voter was heard, and this member has on disk whatever one of them
    /// had then: it may have acknowledged all of it before.
    pub(crate) fn recollect(&mut self) {
        if !self.recollection.is_lost() || self.me().is_none() {
            return;
        }
        let copied = self.is_arbiter() || self.log.durable().op_time >= self.recollection.newest;
        if copied && self.voters_unheard().is_empty() {
            self.remember_from_now_on();
        }
    }

    /// From the next term on, this member votes.
    pub(crate) fn remember_from_now_on(&mut self) {
        if self.recollection.is_lost() {
            let memory = Memory::Since(self.term());
            self.recollection.memory = memory;
            self.emit(Event::MemoryRegained { since: self.term() });
            self.outbox.persist(Change::Memory(memory), AfterPersist::Nothing);
            self.report_progress();
        }
    }
}
