//! A stage for scenarios: members with perfect disks and a steady network, directed line by line.
//!
//! Nothing here is random: messages take a millisecond, so does the disk. Faults happen only when a
//! line of the scenario says so.

mod actor;
mod directions;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_protocol::{MonotonicTime, ReplicaSetConfig, ServerAddress};
use quorate_replication::{Event, Input, Member, Output, Reply, RequestToken, Unreachable};

use actor::Actor;

pub(crate) const HOP: Duration = Duration::from_millis(1);

pub(crate) struct Stage {
    now: MonotonicTime,
    queue: BTreeMap<(MonotonicTime, u64), Cue>,
    cues: u64,
    actors: Vec<Actor>,
    config: ReplicaSetConfig,
    cut: BTreeSet<(usize, usize)>,
    /// Whose fetches get no answer.
    stalled: BTreeSet<usize>,
    /// How long a message between two members takes.
    hop: Duration,
    /// How much longer it takes to and from these.
    far: BTreeMap<usize, Duration>,
    show_commits: bool,
    show_votes: bool,
    out: String,
    waiters: u64,
}

/// What is to happen on stage.
pub(crate) enum Cue {
    Tick(usize, u64),
    Give(usize, u64, Box<Input>),
    /// A request arrives, from the actor with that life.
    Arrive {
        to: usize,
        from: (usize, u64),
        id: quorate_replication::RequestId,
        request: Box<quorate_replication::Request>,
    },
    Fetch {
        to: usize,
        from: usize,
        life: u64,
        fetch: quorate_replication::FetchId,
        first: bool,
    },
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            now: MonotonicTime::ZERO,
            queue: BTreeMap::new(),
            cues: 0,
            actors: Vec::new(),
            config: ReplicaSetConfig::new("rs0", Vec::new()),
            cut: BTreeSet::new(),
            stalled: BTreeSet::new(),
            hop: HOP,
            far: BTreeMap::new(),
            show_commits: false,
            show_votes: false,
            out: String::new(),
            waiters: 0,
        }
    }

    pub(crate) fn perform(&mut self, command: &str) -> String {
        self.direct(command);
        std::mem::take(&mut self.out)
    }

    fn say(&mut self, who: usize, what: &str) {
        let seconds = self.now.as_nanos() as f64 / 1e9;
        self.out.push_str(&format!("{seconds:9.3} m{who} {what}\n"));
    }

    fn cue(&mut self, after: Duration, cue: Cue) {
        self.cues += 1;
        self.queue.insert((self.now + after, self.cues), cue);
    }

    fn run(&mut self, interval: Duration) {
        let end = self.now + interval;
        while let Some(((at, _), _)) = self.queue.first_key_value() {
            if *at > end {
                break;
            }
            let ((at, _), cue) = self.queue.pop_first().unwrap();
            self.now = at;
            self.play(cue);
        }
        self.now = end;
    }

    fn play(&mut self, cue: Cue) {
        match cue {
            Cue::Tick(index, life) => {
                if self.actors[index].life == life {
                    self.actors[index].tick_at = None;
                    self.give(index, Input::Tick);
                }
            }
            Cue::Give(index, life, input) => {
                if self.actors[index].life == life {
                    self.give(index, *input);
                }
            }
            Cue::Arrive { to, from, id, request } => {
                if self.actors[to].member.is_none() {
                    let cause = Unreachable::Refused;
                    let input = Box::new(Input::PeerUnreachable { request: id, cause });
                    return self.cue(HOP, Cue::Give(from.0, from.1, input));
                }
                let token = self.actors[to].token(Some((from, id)), request.name());
                self.give(to, Input::RequestReceived { token, request: *request });
            }
            Cue::Fetch { to, from, life, fetch, first } => {
                self.serve_fetch(to, from, life, fetch, first)
            }
        }
    }

    pub(crate) fn give(&mut self, index: usize, input: Input) {
        let now = self.now;
        let Some(member) = self.actors[index].member.as_mut() else { return };
        member.handle(now, input);
        self.drain(index);
    }

    pub(crate) fn drain(&mut self, index: usize) {
        let mut follow_up = Vec::new();
        while let Some(output) = self.actors[index].member.as_mut().and_then(Member::poll_output) {
            self.carry_out(index, output, &mut follow_up);
        }
        for input in follow_up {
            self.give(index, input);
        }
        let life = self.actors[index].life;
        let deadline = self.actors[index].member.as_ref().and_then(Member::next_deadline);
        let earlier = |deadline| self.actors[index].tick_at.is_none_or(|at| deadline < at);
        if let Some(deadline) = deadline.filter(|deadline| earlier(*deadline)) {
            self.actors[index].tick_at = Some(deadline);
            self.cue(deadline.since(self.now), Cue::Tick(index, life));
        }
    }

    fn carry_out(&mut self, index: usize, output: Output, follow_up: &mut Vec<Input>) {
        let life = self.actors[index].life;
        match output {
            Output::Event(Event::CommitPointAdvanced(_)) if !self.show_commits => {}
            Output::Event(event) => self.say(index, &event.to_string()),
            Output::Persist { ticket, change } => {
                if self.actors[index].disk_held {
                    self.actors[index].held.push((ticket, change));
                } else {
                    self.store(index, ticket, &change);
                }
            }
            Output::Send { request: id, to, message, .. } => {
                let Some(to) = self.index_of(&to) else { return };
                if !self.cut.contains(&(index, to)) {
                    let request = Box::new(message);
                    let hop = self.hop_between(index, to);
                    self.cue(hop, Cue::Arrive { to, from: (index, life), id, request });
                }
            }
            Output::Respond { token, reply } => self.answer(index, token, reply),
            Output::AppendNoop { term, .. } => {
                let last = self.append_own(index, term.0);
                follow_up.push(Input::EntriesAppended { last });
            }
            Output::Acknowledge { waiter, result } => {
                let text = match result {
                    Ok(()) => "acknowledged".to_owned(),
                    Err(error) => format!("not acknowledged: {} ({error})", error.code()),
                };
                self.say(index, &format!("write {} {text}", waiter.0));
            }
            Output::StopWrites => self.say(index, "stops writes"),
            Output::Halt(fatal) => self.say(index, &format!("halts: {fatal}")),
            other => self.carry_out_copying(index, other),
        }
    }

    fn answer(
        &mut self,
        index: usize,
        token: RequestToken,
        reply: Result<Reply, quorate_replication::RequestError>,
    ) {
        let (asker, name) = self.actors[index].askers.remove(&token).unwrap();
        let Some(((peer, life), id)) = asker else {
            let text = match reply {
                Ok(Reply::SyncFrom { previous, warning }) => {
                    let previous = previous.map_or("no member".to_owned(), |p| p.to_string());
                    let warning = warning.map_or(String::new(), |w| format!("; warning: {w}"));
                    format!("ok, was syncing from {previous}{warning}")
                }
                Ok(_) => "ok".to_owned(),
                Err(error) => format!("error {}: {error}", error.code()),
            };
            return self.say(index, &format!("answers {name}: {text}"));
        };
        if let (true, Ok(Reply::Vote(vote))) = (self.show_votes, &reply) {
            let word = if vote.vote_granted { "yes" } else { "no" };
            self.say(index, &format!("tells m{peer}: {word} in {:?}", vote.term));
        }
        if self.cut.contains(&(index, peer)) {
            return;
        }
        let reply = reply.unwrap_or_else(|error| Reply::Refused {
            code: error.code(),
            message: error.to_string(),
        });
        let hop = self.hop_between(index, peer);
        let input = Input::ReplyReceived { request: id, reply, round_trip: hop * 2 };
        self.cue(hop, Cue::Give(peer, life, Box::new(input)));
    }

    fn hop_between(&self, a: usize, b: usize) -> Duration {
        let far = |index| self.far.get(&index).copied().unwrap_or_default();
        self.hop + far(a) + far(b)
    }

    fn index_of(&self, address: &ServerAddress) -> Option<usize> {
        self.actors.iter().position(|actor| actor.address == *address)
    }
}
