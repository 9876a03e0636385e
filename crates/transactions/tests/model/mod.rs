//! A set of three members around the table, and two drivers.

mod client;

use std::collections::BTreeMap;

use client::{Attempt, Client, Done, Heard, Phase};
use quorate_checker::{
    Action as Checked, History, MicroOperation, Operation, Outcome, list_append,
};
use quorate_protocol::{MonotonicTime, OpTime, Timestamp};
use quorate_transactions::{
    Arrival, Kind, Stored, StoredState, TransactionId, Transactions, Verdict,
};
use stateright::{Model, Property};

/// One statement of a session's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    Read(u8),
    Append(u8),
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bug {
    RefusesUnknownCommitAtOnce,
    KeepsStateWhenSteppingDown,
    ReadOnlyCommitDoesNotWait,
}

/// The model.
#[derive(Clone)]
pub(crate) struct Set {
    pub(crate) scripts: [&'static [Script]; 2],
    pub(crate) elections: u8,
    pub(crate) bug: Option<Bug>,
}

/// An entry of the log. Two entries of one term and place are the same entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    term: i64,
    commit: Option<Commit>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Commit {
    session: u8,
    number: i64,
    appends: Vec<(u8, u8)>,
}

/// What an open transaction has read from and written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Open {
    snapshot: usize,
    appends: Vec<(u8, u8)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Member {
    log: Vec<Entry>,
    table: Transactions<u8>,
    open: BTreeMap<TransactionId, Open>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    members: [Member; 3],
    primary: usize,
    term: i64,
    elections: u8,
    /// The entries that no election can lose.
    committed: Vec<Entry>,
    clients: [Client; 2],
    /// What has happened, for the properties that show that the model is worth checking.
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Seen {
    conflict: bool,
    rollback: bool,
    repeated_commit_known: bool,
    unknown_commit_refused: bool,
    read_only_waited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A driver sends its next command and, unless it waits, has the answer.
    Send(usize),
    /// A write concern is satisfied, and its client hears so.
    Acknowledge(usize),
    /// A member copies one entry from the primary.
    Replicate(usize),
    /// The primary steps down, and this member is elected.
    Elect(usize),
}

impl Model for Set {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let first = Entry { term: 1, commit: None };
        let member = || Member { log: vec![first.clone()], ..Member::default() };
        vec![State {
            members: [member(), member(), member()],
            primary: 0,
            term: 1,
            elections: 0,
            committed: vec![first.clone()],
            clients: [Client::default(), Client::default()],
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (place, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Statement(_) | Phase::Commit => actions.push(Action::Send(place)),
                Phase::Waiting { .. } => actions.push(Action::Acknowledge(place)),
                Phase::Done => {}
            }
        }
        for member in (0..3).filter(|member| *member != state.primary) {
            actions.push(Action::Replicate(member));
        }
        if state.elections < self.elections {
            // The third member only votes.
            actions.extend((0..2).filter(|new| *new != state.primary).map(Action::Elect));
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Send(place) => self.send(&mut state, place),
            Action::Acknowledge(place) => state.acknowledge(place)?,
            Action::Replicate(member) => state.replicate(member)?,
            Action::Elect(new) => self.elect(&mut state, new)?,
        }
        for member in &mut state.members {
            let _ = member.table.take_ended();
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("no anomaly below snapshot isolation", |_, state: &State| {
                let model = list_append::Model::SnapshotIsolation;
                list_append::check(&state.history(), model).is_valid()
            }),
            Property::always(
                "no attempt commits after its client heard that it did not",
                |_, state: &State| {
                    state.clients.iter().enumerate().all(|(place, client)| {
                        let aborted =
                            client.ended.iter().filter(|ended| ended.heard == Heard::Aborted);
                        aborted.into_iter().all(|ended| !state.is_committed(place, ended.number))
                    })
                },
            ),
            Property::always("no transaction commits twice", |_, state: &State| {
                (0..2).all(|place| {
                    let commits = state.committed.iter().filter_map(|entry| entry.commit.as_ref());
                    commits.filter(|commit| usize::from(commit.session) == place).count() <= 1
                })
            }),
            Property::sometimes("both sessions commit", |_, state: &State| {
                state.clients.iter().all(Client::has_committed)
            }),
        ];
        if self.bug.is_none() {
            properties.push(Property::sometimes("an entry is rolled back", |_, state: &State| {
                state.seen.rollback
            }));
            properties.push(Property::sometimes(
                "a repeated commit finds that it was done",
                |_, state: &State| state.seen.repeated_commit_known,
            ));
            properties.push(Property::sometimes(
                "an unknown commit is refused after a majority has a newer entry",
                |_, state: &State| state.seen.unknown_commit_refused,
            ));
            let is_reader =
                |script: &&[Script]| script.iter().all(|step| matches!(step, Script::Read(_)));
            if self.scripts.iter().any(is_reader) {
                properties
                    .push(Property::sometimes("a read-only commit waits", |_, state: &State| {
                        state.seen.read_only_waited
                    }));
            } else {
                properties
                    .push(Property::sometimes("transactions conflict", |_, state: &State| {
                        state.seen.conflict
                    }));
            }
        }
        properties
    }
}

impl Set {
    fn send(&self, state: &mut State, place: usize) {
        let script = self.scripts[place];
        let number = state.clients[place].number;
        let (kind, step) = match state.clients[place].phase {
            Phase::Statement(0) => (Kind::Start, Some(script[0])),
            Phase::Statement(step) => (Kind::Continue, Some(script[step])),
            _ => (Kind::Commit, None),
        };
        let verdict = state.arrive(place, Arrival { number, kind });
        match (verdict, step) {
            (Verdict::Begin(id) | Verdict::Proceed(id), Some(step)) => {
                state.run(place, id, step, script.len());
            }
            (Verdict::Commit { transaction, .. }, _) => self.commit(state, place, transaction),
            (Verdict::CommittedBefore(at), _) => {
                state.seen.repeated_commit_known = true;
                let entry = at.timestamp.seconds as usize;
                state.clients[place].phase = Phase::Waiting { entry, unknown: false };
            }
            (Verdict::CommitUnknown(_), _) if self.bug == Some(Bug::RefusesUnknownCommitAtOnce) => {
                state.clients[place].repeat_transaction();
            }
            (Verdict::CommitUnknown(_), _) => {
                let entry = state.append(None);
                state.clients[place].phase = Phase::Waiting { entry, unknown: true };
            }
            // A refusal with TransientTransactionError.
            _ => state.clients[place].repeat_transaction(),
        }
    }

    fn commit(&self, state: &mut State, place: usize, id: TransactionId) {
        let member = &mut state.members[state.primary];
        let Some(open) = member.open.remove(&id) else { return };
        member.table.committed(id);
        let client = &mut state.clients[place];
        if open.appends.is_empty() {
            if self.bug == Some(Bug::ReadOnlyCommitDoesNotWait) {
                client.end(Heard::Committed);
                return;
            }
            let entry = open.snapshot - 1;
            state.seen.read_only_waited |= entry >= state.committed.len();
            state.clients[place].phase = Phase::Waiting { entry, unknown: false };
            return;
        }
        let commit = Commit { session: place as u8, number: client.number, appends: open.appends };
        let entry = state.append(Some(commit));
        state.clients[place].phase = Phase::Waiting { entry, unknown: false };
    }

    /// A member wins with the votes of those whose logs are not newer than its own.
    fn elect(&self, state: &mut State, new: usize) -> Option<()> {
        let up_to_date = |log: &[Entry]| (log.last().map_or(0, |entry| entry.term), log.len());
        let own = up_to_date(&state.members[new].log);
        let votes = (0..3).filter(|voter| up_to_date(&state.members[*voter].log) <= own).count();
        if votes < 2 {
            return None;
        }
        state.elections += 1;
        state.term += 1;
        if self.bug != Some(Bug::KeepsStateWhenSteppingDown) {
            let old = &mut state.members[state.primary];
            old.table.step_down();
            old.open.clear();
        }
        state.primary = new;
        state.append(None);
        for client in &mut state.clients {
            // The connection is gone; the driver repeats the commit.
            if matches!(client.phase, Phase::Waiting { .. }) {
                client.phase = Phase::Commit;
            }
        }
        Some(())
    }
}

impl State {
    fn arrive(&mut self, place: usize, arrival: Arrival) -> Verdict {
        let member = &mut self.members[self.primary];
        let mut commits = member.log.iter().enumerate().filter_map(|(at, entry)| {
            let commit = entry.commit.as_ref()?;
            (usize::from(commit.session) == place).then_some((at, entry.term, commit.number))
        });
        let stored = commits.next_back().map(|(at, term, number)| Stored {
            number,
            state: StoredState::Committed(position(term, at)),
        });
        let last = position(self.term, member.log.len() - 1);
        let session = place as u8;
        // The server does not read what the log says about an open transaction.
        let stored = stored.filter(|_| !member.table.has_open(&session, arrival.number));
        let verdict = member.table.arrive(&session, arrival, stored, last, MonotonicTime::ZERO);
        if let Verdict::Begin(id) = verdict {
            member.open.insert(id, Open { snapshot: member.log.len(), appends: Vec::new() });
        }
        verdict
    }

    fn run(&mut self, place: usize, id: TransactionId, step: Script, steps: usize) {
        let member = &mut self.members[self.primary];
        let Some(open) = member.open.get_mut(&id) else { return };
        let client = &mut self.clients[place];
        match step {
            Script::Read(key) => {
                let shown = member.log.iter().take(open.snapshot);
                let committed = shown.filter_map(|entry| entry.commit.as_ref());
                let appends = committed.flat_map(|commit| &commit.appends).chain(&open.appends);
                let list = appends.filter(|(list, _)| *list == key).map(|(_, value)| *value);
                let list = list.collect();
                client.done.push(Done::Read { key, list });
            }
            Script::Append(key) => {
                if member.table.claim(id, &[key]).is_err() {
                    let _ = member.table.finish(id, false);
                    member.open.remove(&id);
                    self.seen.conflict = true;
                    client.repeat_transaction();
                    return;
                }
                let value = (place as u8) * 10 + client.number as u8;
                open.appends.push((key, value));
                client.done.push(Done::Append { key, value });
            }
        }
        let _ = member.table.finish(id, true);
        client.next_statement(steps);
    }

    /// Appends an entry to the primary's log and says where.
    fn append(&mut self, commit: Option<Commit>) -> usize {
        let log = &mut self.members[self.primary].log;
        log.push(Entry { term: self.term, commit });
        log.len() - 1
    }

    fn acknowledge(&mut self, place: usize) -> Option<()> {
        let Phase::Waiting { entry, unknown } = self.clients[place].phase else { return None };
        if entry >= self.committed.len() {
            return None;
        }
        if unknown {
            self.seen.unknown_commit_refused = true;
            self.clients[place].repeat_transaction();
        } else {
            self.clients[place].end(Heard::Committed);
        }
        Some(())
    }

    /// Copies one entry, after taking back what the primary does not have.
    fn replicate(&mut self, member: usize) -> Option<()> {
        let source = self.members[self.primary].log.clone();
        let log = &mut self.members[member].log;
        let shared = log.iter().zip(&source).take_while(|(own, other)| own == other).count();
        let next = source.get(shared)?;
        self.seen.rollback |= log[shared..].iter().any(|entry| entry.commit.is_some());
        log.truncate(shared);
        log.push(next.clone());
        // A majority has it; an entry of an older term counts with the first of this one.
        if next.term == self.term && shared >= self.committed.len() {
            self.committed = source[..=shared].to_vec();
        }
        Some(())
    }

    fn is_committed(&self, place: usize, number: i64) -> bool {
        let mut commits = self.committed.iter().filter_map(|entry| entry.commit.as_ref());
        commits.any(|commit| usize::from(commit.session) == place && commit.number == number)
    }

    /// All attempts, and a last read of what no election can lose.
    fn history(&self) -> History {
        let clients = self.clients.iter().enumerate();
        let attempts = clients.flat_map(|(process, client)| {
            client.attempts().into_iter().map(move |attempt| operation(process as u64, attempt))
        });
        let mut operations: Vec<Operation> = attempts.collect();
        let commits = || self.committed.iter().filter_map(|entry| entry.commit.as_ref());
        let done = (0..2_u8).map(|key| {
            let appends = commits().flat_map(|commit| &commit.appends);
            let list = appends.filter(|(list, _)| *list == key).map(|(_, value)| *value).collect();
            Done::Read { key, list }
        });
        let last = Attempt { number: 0, done: done.collect(), heard: Heard::Committed };
        let last = operation(9, last);
        operations.push(Operation { invoked: 2, completed: Some(3), ..last });
        History::new(operations)
    }
}

/// An attempt as the checker takes it: all of them overlap.
fn operation(process: u64, attempt: Attempt) -> Operation {
    let steps = attempt.done.into_iter().map(|done| match done {
        Done::Append { key, value } => {
            MicroOperation::Append { key: key.into(), value: value.into() }
        }
        Done::Read { key, list } => {
            let list = list.into_iter().map(i64::from).collect();
            MicroOperation::Read { key: key.into(), list: Some(list) }
        }
    });
    let outcome = match attempt.heard {
        Heard::Committed => Outcome::Ok,
        Heard::Aborted => Outcome::Fail,
        Heard::Nothing => Outcome::Unknown,
    };
    Operation {
        index: 0,
        process,
        invoked: 0,
        completed: (outcome != Outcome::Unknown).then_some(1),
        outcome,
        action: Checked::Transaction(steps.collect()),
    }
}

fn position(term: i64, place: usize) -> OpTime {
    OpTime::new(term, Timestamp::new(place as u32, 0))
}
