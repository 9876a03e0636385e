//! What a member has ordered and still waits for: outputs, requests under way, writes under way.
//!
//! Owns the numbering of requests, tickets and fetches, and the bounds. What an answer means is said in
//! the module of its subject.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    MemberId, MonotonicTime, OpTimeAndWallTime, ReplicaSetConfig, ServerAddress, Term,
};

use crate::error::RequestError;
use crate::event::Event;
use crate::input::{FetchId, Reply, Request, RequestId, RequestToken, Ticket};
use crate::output::{Change, Output};

/// Requests under way to other members. Each peer has at most one of each kind.
const MAX_REQUESTS: usize = 1024;
/// Ordered writes that are not on disk yet. A member whose disk is this far behind gives no votes.
const MAX_PERSISTS: usize = 256;
/// Outputs that wait for the host: every waiting client's answer, and then some.
const MAX_OUTPUTS: usize = crate::waiting::MAX_WAITERS + 16_384;

/// What was ordered and is waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    outputs: VecDeque<Output>,
    requests: BTreeMap<RequestId, Asked>,
    persists: BTreeMap<Ticket, AfterPersist>,
    /// Nothing is stored any more.
    disk_failed: bool,
    last_number: u64,
}

/// What a request under way was for.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Heartbeat {
        peer: MemberId,
    },
    /// A heartbeat to a member that contacted us, to learn the configuration.
    Introduction {
        until: MonotonicTime,
    },
    Vote {
        peer: MemberId,
        dry_run: bool,
        term: Term,
    },
    Position,
    Poll {
        member: MemberId,
    },
    /// To take over, of the last of these, after the others did not.
    StepUp {
        tried: Vec<MemberId>,
        term: Term,
    },
}

/// What becomes true, and may be said, when a write is on disk.
#[derive(Clone, Debug)]
pub(crate) enum AfterPersist {
    Nothing,
    /// The vote was given: say so.
    Vote {
        token: RequestToken,
        reply: Reply,
    },
    /// The own vote was given: ask the others.
    Candidacy {
        term: Term,
    },
    Install {
        config: Arc<ReplicaSetConfig>,
    },
    InitialSyncFlagged,
    InitialSyncFinished,
    RollBack {
        common_point: OpTimeAndWallTime,
    },
}

impl Outbox {
    pub(crate) fn push(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.push(Output::Event(event));
    }

    pub(crate) fn respond(&mut self, token: RequestToken, reply: Result<Reply, RequestError>) {
        self.push(Output::Respond { token, reply });
    }

    pub(crate) fn pop(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn next_fetch_id(&mut self) -> FetchId {
        FetchId(self.number())
    }

    // -- Requests --------------------------------------------------------------------------------

    pub(crate) fn send(
        &mut self,
        to: ServerAddress,
        asked: Asked,
        message: Request,
        timeout: Duration,
    ) -> RequestId {
        let request = RequestId(self.number());
        if self.requests.len() >= MAX_REQUESTS {
            // The oldest is the one whose answer matters least.
            self.requests.pop_first();
        }
        self.requests.insert(request, asked);
        self.push(Output::Send { request, to, message, timeout });
        request
    }

    /// What the request was for, if its answer is still wanted. It is answered once.
    pub(crate) fn answered(&mut self, request: RequestId) -> Option<Asked> {
        self.requests.remove(&request)
    }

    /// The answer is not wanted any more.
    pub(crate) fn give_up(&mut self, request: RequestId) {
        self.requests.remove(&request);
    }

    pub(crate) fn give_up_all(&mut self, which: impl Fn(&Asked) -> bool) {
        self.requests.retain(|_, asked| !which(asked));
    }

    pub(crate) fn under_way(&self) -> impl Iterator<Item = &Asked> {
        self.requests.values()
    }

    #[cfg(test)]
    pub(crate) fn asked(&self, request: RequestId) -> Option<&Asked> {
        self.requests.get(&request)
    }

    // -- Writes ----------------------------------------------------------------------------------

    pub(crate) fn persist(&mut self, change: Change, after: AfterPersist) {
        if self.disk_failed {
            return;
        }
        let ticket = Ticket(self.number());
        self.persists.insert(ticket, after);
        self.push(Output::Persist { ticket, change });
    }

    /// What may be said since this write is on disk.
    pub(crate) fn persisted(&mut self, ticket: Ticket) -> Option<AfterPersist> {
        self.persists.remove(&ticket)
    }

    /// Whether so many writes are under way that a promise would come too late.
    pub(crate) fn is_disk_behind(&self) -> bool {
        self.persists.len() >= MAX_PERSISTS
    }

    pub(crate) fn has_disk_failed(&self) -> bool {
        self.disk_failed
    }

    /// What would have to be stored first, such as a vote, is not said any more.
    pub(crate) fn fail_disk(&mut self) {
        self.disk_failed = true;
        self.persists.clear();
    }

    #[cfg(test)]
    pub(crate) fn being_stored(&self) -> impl Iterator<Item = &AfterPersist> {
        self.persists.values()
    }

    pub(crate) fn check_bounds(&self) {
        assert!(self.requests.len() <= MAX_REQUESTS, "requests under way are bounded");
        assert!(self.outputs.len() <= MAX_OUTPUTS, "the host drains outputs after every input");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox_with_writes(count: usize) -> Outbox {
        let mut outbox = Outbox::default();
        for term in 0..count {
            outbox.persist(Change::Term(Term(term as i64)), AfterPersist::Nothing);
        }
        outbox
    }

    #[test]
    fn an_answer_is_taken_once() {
        let mut outbox = Outbox::default();
        let to = ServerAddress::tcp("a", 1).unwrap();
        let freeze = || Request::Freeze(Duration::ZERO);
        let first = outbox.send(to.clone(), Asked::Position, freeze(), Duration::ZERO);
        let second = outbox.send(to, Asked::Position, freeze(), Duration::ZERO);
        assert_ne!(first, second);
        assert!(outbox.answered(first).is_some());
        assert!(outbox.answered(first).is_none());
        outbox.give_up(second);
        assert!(outbox.answered(second).is_none());
    }

    #[test]
    fn a_failed_disk_stores_nothing_and_promises_nothing() {
        let mut outbox = outbox_with_writes(1);
        let Some(Output::Persist { ticket, .. }) = outbox.pop() else { panic!("no write") };
        outbox.fail_disk();
        assert!(outbox.persisted(ticket).is_none());
        outbox.persist(Change::Term(Term(9)), AfterPersist::Nothing);
        assert!(outbox.pop().is_none());
    }

    #[test]
    fn a_disk_is_behind_at_its_bound() {
        assert!(!outbox_with_writes(MAX_PERSISTS - 1).is_disk_behind());
        assert!(outbox_with_writes(MAX_PERSISTS).is_disk_behind());
    }
}
