//! One member, its clock, and everything it asked of its host: for tests that are the rest of the set.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, HeartbeatReply, HeartbeatRequest, MemberConfig, MemberId, MemberPosition,
    MemberState, MonotonicTime, ObjectId, OpTime, OpTimeAndWallTime, PositionReport,
    ReplicaSetConfig, ServerAddress, Term, Timestamp, VoteReply, WallTime,
};
use quorate_replication::{
    FetchId, Input, Member, MemberOptions, Output, Recovered, Reply, Request, RequestId,
    RequestToken,
};

pub(crate) fn address(index: i32) -> ServerAddress {
    ServerAddress::tcp(&format!("m{index}"), 27017).unwrap()
}

pub(crate) fn config(count: i32) -> ReplicaSetConfig {
    let members = (0..count).map(|id| MemberConfig::new(MemberId(id), address(id))).collect();
    let mut config = ReplicaSetConfig::new("rs0", members);
    config.term = Some(Term(1));
    config.settings.replica_set_id = Some(ObjectId::from_bytes([1; 12]));
    config
}

pub(crate) fn entry(term: i64, seconds: u32) -> OpTimeAndWallTime {
    OpTimeAndWallTime {
        op_time: OpTime::new(term, Timestamp::new(seconds, 1)),
        wall_time: WallTime(i64::from(seconds) * 1000),
    }
}

/// Member m0, its clock, and everything it asked of its host.
pub(crate) struct Subject {
    pub(crate) member: Member,
    pub(crate) now: MonotonicTime,
    pub(crate) outputs: Vec<Output>,
    tokens: u64,
}

impl Subject {
    pub(crate) fn new(recovered: Recovered) -> Self {
        Self::seeded(recovered, 1)
    }

    pub(crate) fn seeded(recovered: Recovered, seed: u64) -> Self {
        let options = MemberOptions {
            set_name: "rs0".into(),
            own_addresses: vec![address(0)],
            process_id: ObjectId::from_bytes([7; 12]),
            new_replica_set_id: ObjectId::from_bytes([1; 12]),
            allowances: Default::default(),
        };
        let now = MonotonicTime::from_millis(1000);
        let member = Member::new(options, recovered, seed, now);
        let mut subject = Self { member, now, outputs: Vec::new(), tokens: 0 };
        subject.drain();
        subject
    }

    pub(crate) fn secondary(last: OpTimeAndWallTime) -> Self {
        Self::new(Recovered { config: Some(config(3)), last, ..Recovered::default() })
    }

    fn drain(&mut self) {
        while let Some(output) = self.member.poll_output() {
            self.outputs.push(output);
        }
    }

    /// Gives an input; returns what the member asked for in answer.
    pub(crate) fn give(&mut self, input: Input) -> Vec<Output> {
        self.outputs.clear();
        self.member.handle(self.now, input);
        self.drain();
        self.outputs.clone()
    }

    pub(crate) fn ask(&mut self, request: Request) -> Option<Result<Reply, i32>> {
        self.tokens += 1;
        let token = RequestToken(self.tokens);
        let outputs = self.give(Input::RequestReceived { token, request });
        outputs.into_iter().find_map(|output| match output {
            Output::Respond { token: answered, reply } if answered == token => {
                Some(reply.map_err(|error| error.code()))
            }
            _ => None,
        })
    }

    /// The heartbeat under way to a member.
    pub(crate) fn heartbeat_to(&self, id: i32) -> RequestId {
        let sent = self.outputs.iter().rev().find_map(|output| match output {
            Output::Send { request, to, message: Request::Heartbeat(_), .. }
                if *to == address(id) =>
            {
                Some(*request)
            }
            _ => None,
        });
        sent.unwrap()
    }

    pub(crate) fn hear(&mut self, request: RequestId, reply: HeartbeatReply) -> Vec<Output> {
        let reply = Reply::Heartbeat(Box::new(reply));
        self.give(Input::ReplyReceived { request, reply, round_trip: Duration::from_millis(1) })
    }
}

pub(crate) fn heartbeat_from(id: i32) -> HeartbeatRequest {
    HeartbeatRequest {
        set_name: "rs0".into(),
        config: Some(ConfigVersion { term: Some(Term(1)), version: 1 }),
        from: Some(address(id)),
        from_id: Some(MemberId(id)),
        term: Term(1),
        primary_id: None,
        check_empty: false,
    }
}

pub(crate) fn reply_of(state: MemberState, last: OpTimeAndWallTime) -> HeartbeatReply {
    HeartbeatReply {
        set_name: "rs0".into(),
        state,
        config_version: Some(ConfigVersion { term: Some(Term(1)), version: 1 }),
        term: Term(last.op_time.term.max(1)),
        primary_id: None,
        syncing_to: None,
        electable: true,
        written: last,
        applied: last,
        durable: last,
        commit_point: OpTimeAndWallTime::default(),
        election_time: None,
        config: None,
        has_data: false,
        replica_set_id: None,
    }
}

pub(crate) fn refusal(outputs: &[Output]) -> Option<i32> {
    outputs.iter().find_map(|output| match output {
        Output::Respond { reply: Err(error), .. } => Some(error.code()),
        _ => None,
    })
}

/// The last fetch that was ordered, and after which entry.
pub(crate) fn fetch_among(outputs: &[Output]) -> Option<(FetchId, OpTime)> {
    outputs.iter().rev().find_map(|output| match output {
        Output::FetchFrom { fetch, after, .. } => Some((*fetch, *after)),
        _ => None,
    })
}

/// m0 as the primary of term 2, elected by two obliging peers that then fall silent.
pub(crate) fn primary() -> Subject {
    let mut subject = Subject::secondary(entry(1, 5));
    for _ in 0..200 {
        if subject.member.status().is_writable() {
            return subject;
        }
        carry_on(&mut subject, oblige);
    }
    panic!("m0 was not elected");
}

/// Has every output carried out, which may bring more; without any, time passes to the next deadline.
pub(crate) fn carry_on(
    subject: &mut Subject,
    mut carry_out: impl FnMut(&mut Subject, Output) -> Vec<Output>,
) {
    let todo = std::mem::take(&mut subject.outputs);
    if todo.is_empty() {
        subject.now = subject.member.next_deadline().unwrap();
        subject.give(Input::Tick);
        return;
    }
    let mut more = Vec::new();
    for output in todo {
        more.extend(carry_out(subject, output));
    }
    subject.outputs = more;
}

pub(crate) fn oblige(subject: &mut Subject, output: Output) -> Vec<Output> {
    let round_trip = Duration::from_millis(1);
    match output {
        Output::Send { request, message: Request::Heartbeat(_), .. } => {
            subject.hear(request, reply_of(MemberState::Secondary, entry(1, 5)))
        }
        Output::Send { request, message: Request::Vote(vote), .. } => {
            let reply = Reply::Vote(VoteReply {
                term: vote.term,
                vote_granted: true,
                reason: String::new(),
                veto: None,
            });
            subject.give(Input::ReplyReceived { request, reply, round_trip })
        }
        Output::Persist { ticket, .. } => subject.give(Input::Persisted(ticket)),
        Output::AppendNoop { term, .. } => append(subject, entry(term.0, 10)),
        _ => Vec::new(),
    }
}

pub(crate) fn append(subject: &mut Subject, last: OpTimeAndWallTime) -> Vec<Output> {
    let mut outputs = subject.give(Input::EntriesAppended { last });
    outputs.extend(subject.give(Input::Applied { last }));
    outputs.extend(subject.give(Input::EntriesDurable { last }));
    outputs
}

pub(crate) fn report(term: i64, member: i32, at: OpTimeAndWallTime) -> Request {
    let position = MemberPosition {
        member: MemberId(member),
        config_version: 1,
        written: at,
        applied: at,
        durable: at,
    };
    Request::UpdatePosition(PositionReport { term: Term(term), positions: vec![position] })
}

pub(crate) fn acknowledgement(outputs: &[Output]) -> Option<Result<(), i32>> {
    outputs.iter().find_map(|output| match output {
        Output::Acknowledge { result, .. } => Some(result.clone().map_err(|error| error.code())),
        _ => None,
    })
}
