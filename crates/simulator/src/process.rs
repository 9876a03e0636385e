//! One simulated process: a member, its disk, and the requests in flight between them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bson::{Document, RawDocumentBuf};
use quorate_member::{CommonPointSearch, Copying, DataChange, EntrySource, Replica, SentBatch};
use quorate_node::Node;
use quorate_protocol::{MemberState, MonotonicTime, OpTime, ServerAddress};
use quorate_replication::{
    Change, FetchFailure, FetchId, Input, LastVote, Reply, Request, RequestId, RequestToken, Ticket,
};

use crate::disk::Disk;
use crate::judges::Life;
use crate::watching::Question;
use crate::world::Happening;

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
    /// The next entries of a stream are wanted.
    Entries(EntriesRequest),
    EntriesSent(Box<EntriesReply>),
    /// A command of a member that copies everything, or looks for the point where two logs part.
    Command {
        from: Life,
        number: u64,
        command: Document,
    },
    CommandAnswered {
        to: Life,
        number: u64,
        reply: RawDocumentBuf,
    },
}

/// One member's copying of another's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId {
    pub(crate) reader: Life,
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EntriesRequest {
    pub(crate) stream: StreamId,
    /// Numbers the requests of one stream, so that a duplicate changes nothing.
    pub(crate) sequence: u64,
    /// Where the stream begins, in its first request.
    pub(crate) begin: Option<OpTime>,
    /// The life of the source that the stream began with: a connection does not survive it.
    pub(crate) source_epoch: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct EntriesReply {
    pub(crate) stream: StreamId,
    pub(crate) sequence: u64,
    pub(crate) source_epoch: u64,
    pub(crate) found: Result<SentBatch, FetchFailure>,
}

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Follow(FetchId),
    Copy,
}

/// Copying entries, at the member that copies.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) purpose: Purpose,
    pub(crate) source: usize,
    pub(crate) sequence: u64,
    pub(crate) source_epoch: Option<u64>,
}

/// The same at the source.
pub(crate) struct Serving {
    pub(crate) source: EntrySource,
    /// The request that was answered last, or waits.
    pub(crate) sequence: u64,
    pub(crate) waits: bool,
}

/// A step of the copy of everything.
pub(crate) struct CopyStep {
    pub(crate) copying: Copying,
    pub(crate) attempt: u32,
    pub(crate) source: usize,
    /// The number of the command that waits for its answer.
    pub(crate) asked: u64,
    pub(crate) stream: Option<u64>,
}

/// A search for the point where two logs part.
pub(crate) struct Searching {
    pub(crate) search: CommonPointSearch,
    pub(crate) source: usize,
    /// The number of the command that waits for its answer.
    pub(crate) asked: u64,
}

/// The caller that waits for an answer of this member.
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

pub(crate) struct Process {
    pub(crate) address: ServerAddress,
    pub(crate) life: Life,
    /// `None` while the process is down.
    pub(crate) member: Option<Replica<()>>,
    pub(crate) disk: Disk,
    /// How far this machine's calendar is off.
    pub(crate) skew_millis: i64,
    /// How much faster than the world's its clock runs, in millionths.
    pub(crate) drift: i64,
    /// Whether the process is paused, and what has reached it meanwhile.
    pub(crate) asleep: bool,
    pub(crate) held: Vec<Happening>,
    /// Whether its disk failed to sync: the process ends.
    pub(crate) disk_failed: bool,
    /// Whether it waits for every other voter, because its disk was empty when it joined.
    pub(crate) memory_lost: bool,
    pub(crate) tick_at: Option<MonotonicTime>,
    /// Ordered writes that have not reached the disk, oldest first.
    pub(crate) persisting: VecDeque<(Ticket, Change)>,
    /// Ordered changes of data, oldest first.
    pub(crate) changes: VecDeque<DataChange<()>>,
    /// A change is being made, or was made and is being forced to disk with what to tell then.
    pub(crate) changing: bool,
    pub(crate) askers: BTreeMap<RequestToken, Asker>,
    /// The votes that it was asked for and has not answered.
    pub(crate) asked_votes: BTreeMap<RequestToken, LastVote>,
    /// The streams that it reads, by number.
    pub(crate) reading: BTreeMap<u64, Reading>,
    pub(crate) serving: BTreeMap<StreamId, Serving>,
    pub(crate) copy: Option<CopyStep>,
    pub(crate) searching: Option<Searching>,
    /// The newest command of each process that was served: a connection doubles nothing.
    pub(crate) served: BTreeMap<Life, u64>,
    /// Clients that wait for news of this member.
    pub(crate) awaiting: Vec<Question>,
    pub(crate) next_token: u64,
    pub(crate) next_number: u64,
    /// Whether its last election was for a primary whose process was gone.
    pub(crate) stood_after_crash: bool,
}

impl Process {
    pub(crate) fn new(index: usize, address: ServerAddress, disk: Disk, skew_millis: i64) -> Self {
        Self {
            address,
            life: Life { node: index, epoch: 0 },
            member: None,
            disk,
            skew_millis,
            drift: 0,
            asleep: false,
            held: Vec::new(),
            disk_failed: false,
            memory_lost: false,
            tick_at: None,
            persisting: VecDeque::new(),
            changes: VecDeque::new(),
            changing: false,
            askers: BTreeMap::new(),
            asked_votes: BTreeMap::new(),
            reading: BTreeMap::new(),
            serving: BTreeMap::new(),
            copy: None,
            searching: None,
            served: BTreeMap::new(),
            awaiting: Vec::new(),
            next_token: 0,
            next_number: 0,
            stood_after_crash: false,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.member.is_some()
    }

    /// Whether it is up and not paused.
    pub(crate) fn is_running(&self) -> bool {
        self.is_up() && !self.asleep
    }

    pub(crate) fn is_in(&self, state: MemberState) -> bool {
        self.member.as_ref().is_some_and(|member| member.status().state() == state)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.status().is_writable())
    }

    /// The data of a process that is up.
    pub(crate) fn data(&self) -> Option<Arc<Node>> {
        self.member.as_ref().map(|member| Arc::clone(member.node()))
    }

    pub(crate) fn token(&mut self, asker: Asker) -> RequestToken {
        self.next_token += 1;
        let token = RequestToken(self.next_token);
        self.askers.insert(token, asker);
        token
    }

    /// A number that no other stream or command of this process gets.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Everything that a process takes with it when it dies.
    pub(crate) fn forget_volatile(&mut self) {
        self.member = None;
        (self.asleep, self.disk_failed) = (false, false);
        self.held.clear();
        self.tick_at = None;
        self.persisting.clear();
        self.changes.clear();
        self.changing = false;
        self.askers.clear();
        self.asked_votes.clear();
        self.reading.clear();
        self.serving.clear();
        self.copy = None;
        self.searching = None;
        self.served.clear();
    }
}

/// The input for the member once a change is on disk.
pub(crate) type Told = Option<Box<Input>>;
