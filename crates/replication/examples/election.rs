//! Three members elect a primary, without a network, a disk or a clock: the example is all three.
//! `cargo run -p quorate-replication --example election`

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quorate_protocol::{
    MemberConfig, MemberId, MonotonicTime, ObjectId, OpTime, OpTimeAndWallTime, ReplicaSetConfig,
    ServerAddress, Term, Timestamp, WallTime,
};
use quorate_replication::{
    Input, Member, MemberOptions, Output, Recovered, RequestId, RequestToken, Unreachable,
};

const ROUND_TRIP: Duration = Duration::from_millis(1);

/// More than an election takes.
const MAX_STEPS: usize = 10_000;

fn entry(term: i64, seconds: u32) -> OpTimeAndWallTime {
    OpTimeAndWallTime {
        op_time: OpTime::new(term, Timestamp::new(seconds, 1)),
        wall_time: WallTime(i64::from(seconds) * 1000),
    }
}

fn member(index: u8, addresses: &[ServerAddress], config: &ReplicaSetConfig) -> Member {
    let options = MemberOptions {
        set_name: "rs0".into(),
        own_addresses: vec![addresses[usize::from(index)].clone()],
        process_id: ObjectId::from_bytes([index; 12]),
        new_replica_set_id: ObjectId::from_bytes([1; 12]),
        allowances: Default::default(),
    };
    // What each finds on its disk.
    let recovered =
        Recovered { config: Some(config.clone()), last: entry(1, 5), ..Recovered::default() };
    Member::new(options, recovered, u64::from(index), MonotonicTime::ZERO)
}

/// The members and all that is under way between them.
struct Set {
    addresses: Vec<ServerAddress>,
    members: Vec<Member>,
    now: MonotonicTime,
    inputs: VecDeque<(usize, Input)>,
    /// Who asked, by the token under which the question was passed on.
    asked: BTreeMap<u64, (usize, RequestId)>,
    tokens: u64,
}

impl Set {
    /// The next thing that happens. If nothing is under way, time passes to the next deadline.
    fn step(&mut self) {
        let (index, input) = self.inputs.pop_front().unwrap_or_else(|| {
            let due = |index: &usize| self.members[*index].next_deadline();
            let waiting = (0..self.members.len()).filter(|index| due(index).is_some());
            let index = waiting.min_by_key(due).unwrap_or(0);
            self.now = self.members[index].next_deadline().unwrap_or(self.now).max(self.now);
            (index, Input::Tick)
        });
        self.members[index].handle(self.now, input);
        while let Some(output) = self.members[index].poll_output() {
            self.carry_out(index, output);
        }
    }

    #[expect(clippy::print_stdout, reason = "it is what the example is for")]
    fn carry_out(&mut self, index: usize, output: Output) {
        match output {
            Output::Event(event) => println!("{}: {event}", self.addresses[index]),
            // A disk that is as fast as memory.
            Output::Persist { ticket, .. } => {
                self.inputs.push_back((index, Input::Persisted(ticket)));
            }
            Output::AppendNoop { term, .. } => {
                let last = entry(term.0, 10);
                let told = [
                    Input::EntriesAppended { last },
                    Input::Applied { last },
                    Input::EntriesDurable { last },
                ];
                self.inputs.extend(told.map(|input| (index, input)));
            }
            Output::Send { request, to, message, .. } => {
                let receiver = self.addresses.iter().position(|address| *address == to);
                self.tokens += 1;
                self.asked.insert(self.tokens, (index, request));
                let token = RequestToken(self.tokens);
                let received = Input::RequestReceived { token, request: message };
                self.inputs.extend(receiver.map(|receiver| (receiver, received)));
            }
            Output::Respond { token: RequestToken(token), reply } => {
                let Some((asker, request)) = self.asked.remove(&token) else { return };
                let answer = match reply {
                    Ok(reply) => Input::ReplyReceived { request, reply, round_trip: ROUND_TRIP },
                    Err(_) => Input::PeerUnreachable { request, cause: Unreachable::Other },
                };
                self.inputs.push_back((asker, answer));
            }
            _ => {}
        }
    }
}

#[expect(clippy::print_stdout, reason = "it is what the example is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addresses: Vec<ServerAddress> =
        ["a:27017", "b:27017", "c:27017"].map(str::parse).into_iter().collect::<Result<_, _>>()?;
    let members = addresses.iter().zip(0..);
    let members = members.map(|(host, id)| MemberConfig::new(MemberId(id), host.clone())).collect();
    let mut config = ReplicaSetConfig::new("rs0", members);
    config.term = Some(Term(1));
    let members = (0..3).map(|index| member(index, &addresses, &config)).collect();
    let now = MonotonicTime::ZERO;
    let (inputs, asked) = (VecDeque::new(), BTreeMap::new());
    let mut set = Set { addresses, members, now, inputs, asked, tokens: 0 };
    for _ in 0..MAX_STEPS {
        let leader = set.members.iter().position(|member| member.status().is_writable());
        if let Some(leader) = leader {
            let term = set.members[leader].status().term();
            println!("{} leads in term {}", set.addresses[leader], term.0);
            return Ok(());
        }
        set.step();
    }
    Err("no member was elected".into())
}
