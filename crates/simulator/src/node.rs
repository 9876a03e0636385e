//! One simulated process: a member, its storage, and what is under way between them.

use std::collections::{BTreeMap, VecDeque};

use quorate_protocol::{MonotonicTime, OpTime, ServerAddress};
use quorate_replication::election::LastVote;
use quorate_replication::{
    Change, FetchFailure, FetchId, FetchedBatch, InitialSyncStep, Member, Reply, Request,
    RequestId, RequestToken, Ticket,
};

use crate::host::{Entry, Host};
use crate::judges::Life;
use crate::watching::Question;

/// A message between two processes, with the life of the one that waits for the answer.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Request {
        from: Life,
        id: RequestId,
        sent: MonotonicTime,
        request: Request,
    },
    Reply {
        /// The process that asked: a connection does not outlive it.
        to: Life,
        id: RequestId,
        sent: MonotonicTime,
        reply: Reply,
    },
    Fetch(FetchRequest),
    Fetched(Box<FetchReply>),
    /// Which entries do you have?
    LogQuery {
        from: Life,
        fetch: FetchId,
    },
    LogAnswer {
        fetch: FetchId,
        op_times: Vec<OpTime>,
    },
    SyncQuery {
        from: Life,
        attempt: u32,
        step: InitialSyncStep,
    },
    SyncAnswer {
        attempt: u32,
        step: InitialSyncStep,
        log: Vec<Entry>,
        rollback_id: i32,
    },
    SyncRefused {
        attempt: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchRequest {
    pub(crate) from: Life,
    pub(crate) fetch: FetchId,
    /// Numbers the requests of one fetch, so that a duplicate changes nothing.
    pub(crate) sequence: u64,
    pub(crate) after: OpTime,
    pub(crate) first: bool,
    /// The life of the source that the fetch began with: a connection does not survive it.
    pub(crate) source_epoch: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct FetchReply {
    pub(crate) fetch: FetchId,
    pub(crate) sequence: u64,
    pub(crate) source_epoch: u64,
    pub(crate) found: Result<(FetchedBatch, Vec<Entry>), FetchFailure>,
}

/// Copying entries, at the member that copies.
#[derive(Clone, Debug)]
pub(crate) struct Fetching {
    pub(crate) id: FetchId,
    pub(crate) source: usize,
    pub(crate) sequence: u64,
    pub(crate) source_epoch: Option<u64>,
    pub(crate) buffer: VecDeque<Entry>,
}

/// Who waits for an answer of this member.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asker {
    Peer {
        life: Life,
        id: RequestId,
        sent: MonotonicTime,
    },
    /// An administrator, whose command is in the trace.
    Admin(&'static str),
}

pub(crate) struct Node<H> {
    pub(crate) address: ServerAddress,
    pub(crate) life: Life,
    /// `None` while the process is down.
    pub(crate) member: Option<Member>,
    pub(crate) host: H,
    /// How far this machine's calendar is off.
    pub(crate) skew_millis: i64,
    pub(crate) tick_at: Option<MonotonicTime>,
    /// Ordered writes that have not reached the disk, oldest first.
    pub(crate) disk: VecDeque<(Ticket, Change)>,
    pub(crate) askers: BTreeMap<RequestToken, Asker>,
    /// The votes that it was asked for and has not answered.
    pub(crate) asked_votes: BTreeMap<RequestToken, LastVote>,
    pub(crate) fetching: Option<Fetching>,
    /// Copied entries that are to be appended, and when.
    pub(crate) ordered: VecDeque<(MonotonicTime, Entry)>,
    /// Requests of others for entries that are not there yet.
    pub(crate) parked: Vec<FetchRequest>,
    /// Clients that wait for news of this member.
    pub(crate) awaiting: Vec<Question>,
    /// The question of the initial sync that is out.
    pub(crate) sync_step: Option<(u32, InitialSyncStep)>,
    pub(crate) next_token: u64,
    /// Whether its last election was for a primary whose process was gone.
    pub(crate) stood_after_crash: bool,
}

impl<H: Host> Node<H> {
    pub(crate) fn new(index: usize, address: ServerAddress, host: H, skew_millis: i64) -> Self {
        Self {
            address,
            life: Life { node: index, epoch: 0 },
            member: None,
            host,
            skew_millis,
            tick_at: None,
            disk: VecDeque::new(),
            askers: BTreeMap::new(),
            asked_votes: BTreeMap::new(),
            fetching: None,
            ordered: VecDeque::new(),
            parked: Vec::new(),
            awaiting: Vec::new(),
            sync_step: None,
            next_token: 0,
            stood_after_crash: false,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.member.is_some()
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.status().is_writable())
    }

    pub(crate) fn token(&mut self, asker: Asker) -> RequestToken {
        self.next_token += 1;
        let token = RequestToken(self.next_token);
        self.askers.insert(token, asker);
        token
    }

    /// Everything that a process takes with it when it dies.
    pub(crate) fn forget_volatile(&mut self) {
        self.member = None;
        self.tick_at = None;
        self.disk.clear();
        self.askers.clear();
        self.asked_votes.clear();
        self.fetching = None;
        self.ordered.clear();
        self.parked.clear();
        self.sync_step = None;
    }
}
