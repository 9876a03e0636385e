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

#[expect(clippy::print_stdout, reason = "it is what the example is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addresses: Vec<ServerAddress> =
        ["a:27017", "b:27017", "c:27017"].map(str::parse).into_iter().collect::<Result<_, _>>()?;
    let members = addresses.iter().zip(0..);
    let members = members.map(|(host, id)| MemberConfig::new(MemberId(id), host.clone())).collect();
    let mut config = ReplicaSetConfig::new("rs0", members);
    config.term = Some(Term(1));
    let mut members: Vec<Member> = (0..3).map(|index| member(index, &addresses, &config)).collect();
    let mut now = MonotonicTime::ZERO;
    let mut inputs: VecDeque<(usize, Input)> = VecDeque::new();
    // Who asked, by the token under which the question was passed on.
    let mut asked: BTreeMap<u64, (usize, RequestId)> = BTreeMap::new();
    for step in 0..MAX_STEPS as u64 {
        if let Some(leader) = members.iter().find(|member| member.status().is_writable()) {
            println!(
                "member {:?} leads in term {}",
                leader.status().me(),
                leader.status().term().0
            );
            return Ok(());
        }
        // The network is empty: time passes to the next deadline.
        let (index, input) = inputs.pop_front().unwrap_or_else(|| {
            let due = |index: &usize| members[*index].next_deadline();
            let next = (0..members.len()).filter(|index| due(index).is_some()).min_by_key(due);
            let index = next.unwrap_or(0);
            now = members[index].next_deadline().unwrap_or(now).max(now);
            (index, Input::Tick)
        });
        members[index].handle(now, input);
        while let Some(output) = members[index].poll_output() {
            match output {
                Output::Event(event) => println!("{now:?} {}: {event}", addresses[index]),
                // A disk that is as fast as memory.
                Output::Persist { ticket, .. } => {
                    inputs.push_back((index, Input::Persisted(ticket)))
                }
                Output::AppendNoop { term, .. } => {
                    let last = entry(term.0, 10);
                    for input in [
                        Input::EntriesAppended { last },
                        Input::Applied { last },
                        Input::EntriesDurable { last },
                    ] {
                        inputs.push_back((index, input));
                    }
                }
                Output::Send { request, to, message, .. } => {
                    let receiver = addresses.iter().position(|address| *address == to);
                    let token = step << 8 | asked.len() as u64 & 0xff;
                    asked.insert(token, (index, request));
                    let received =
                        Input::RequestReceived { token: RequestToken(token), request: message };
                    inputs.extend(receiver.map(|receiver| (receiver, received)));
                }
                Output::Respond { token: RequestToken(token), reply } => {
                    let Some((asker, request)) = asked.remove(&token) else { continue };
                    let answer = match reply {
                        Ok(reply) => {
                            Input::ReplyReceived { request, reply, round_trip: ROUND_TRIP }
                        }
                        Err(_) => Input::PeerUnreachable { request, cause: Unreachable::Other },
                    };
                    inputs.push_back((asker, answer));
                }
                _ => {}
            }
        }
    }
    Err("no member was elected".into())
}
