//! One actor: a member, its log and its disk; and the copying between two of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quorate_protocol::{
    MemberState, MonotonicTime, ObjectId, OpTime, OpTimeAndWallTime, ServerAddress, Timestamp,
    WallTime,
};
use quorate_replication::{
    Change, FetchId, FetchedBatch, InitialSyncOutcome, InitialSyncStep, Input, Member,
    MemberOptions, Output, Recovered, RequestId, RequestToken, Ticket,
};

use super::{Cue, HOP, Stage};

/// The calendar at the start of every scenario.
const START_SECONDS: u32 = 1000;

type Asker = Option<((usize, u64), RequestId)>;

pub(super) struct Actor {
    pub(super) address: ServerAddress,
    pub(super) life: u64,
    pub(super) member: Option<Member>,
    pub(super) log: Vec<OpTimeAndWallTime>,
    pub(super) facts: Recovered,
    pub(super) disk_held: bool,
    pub(super) held: Vec<(Ticket, Change)>,
    pub(super) askers: BTreeMap<RequestToken, (Asker, &'static str)>,
    pub(super) fetch: Option<(FetchId, usize)>,
    pub(super) buffer: VecDeque<OpTimeAndWallTime>,
    /// Whether steps of its initial sync stand still, and the one that does.
    pub(super) copy_held: bool,
    held_step: Option<(u32, InitialSyncStep)>,
    pub(super) tick_at: Option<MonotonicTime>,
    tokens: u64,
}

impl Actor {
    pub(super) fn new(index: usize) -> Self {
        Self {
            address: ServerAddress::tcp(&format!("m{index}"), 27017).unwrap(),
            life: 0,
            member: None,
            log: Vec::new(),
            facts: Recovered::default(),
            disk_held: false,
            held: Vec::new(),
            askers: BTreeMap::new(),
            fetch: None,
            buffer: VecDeque::new(),
            copy_held: false,
            held_step: None,
            tick_at: None,
            tokens: 0,
        }
    }

    pub(super) fn token(&mut self, asker: Asker, name: &'static str) -> RequestToken {
        self.tokens += 1;
        let token = RequestToken(self.tokens);
        self.askers.insert(token, (asker, name));
        token
    }

    pub(super) fn last(&self) -> OpTimeAndWallTime {
        self.log.last().copied().unwrap_or_default()
    }
}

impl Stage {
    pub(super) fn start(&mut self, index: usize) {
        let now = self.now;
        let actor = &mut self.actors[index];
        actor.life += 1;
        let options = MemberOptions {
            set_name: "rs0".into(),
            own_addresses: vec![actor.address.clone()],
            process_id: ObjectId::from_bytes([index as u8; 12]),
            new_replica_set_id: ObjectId::from_bytes([0xaa; 12]),
            allowances: Default::default(),
        };
        let recovered = Recovered { last: actor.last(), ..actor.facts.clone() };
        let seed = index as u64 + 100 * actor.life;
        actor.member = Some(Member::new(options, recovered, seed, now));
        self.drain(index);
    }

    pub(super) fn stop(&mut self, index: usize) {
        let actor = &mut self.actors[index];
        actor.member = None;
        actor.life += 1;
        actor.held.clear();
        actor.askers.clear();
        actor.fetch = None;
        actor.buffer.clear();
        actor.tick_at = None;
    }

    fn wall(&self) -> (u32, WallTime) {
        let millis = self.now.as_nanos() / 1_000_000;
        let seconds = START_SECONDS + (millis / 1000) as u32;
        (seconds, WallTime(i64::from(START_SECONDS) * 1000 + millis as i64))
    }

    pub(super) fn append_own(&mut self, index: usize, term: i64) -> OpTimeAndWallTime {
        let (seconds, wall_time) = self.wall();
        let last = self.actors[index].last().op_time.timestamp;
        let timestamp = if seconds > last.seconds {
            Timestamp::new(seconds, 1)
        } else {
            Timestamp::from_u64(last.as_u64() + 1)
        };
        let entry = OpTimeAndWallTime { op_time: OpTime::new(term, timestamp), wall_time };
        self.actors[index].log.push(entry);
        self.apply_and_sync(index, entry);
        entry
    }

    fn apply_and_sync(&mut self, index: usize, last: OpTimeAndWallTime) {
        let life = self.actors[index].life;
        self.cue(HOP, Cue::Give(index, life, Box::new(Input::Applied { last })));
        self.cue(HOP, Cue::Give(index, life, Box::new(Input::EntriesDurable { last })));
    }

    pub(super) fn store(&mut self, index: usize, ticket: Ticket, change: &Change) {
        let life = self.actors[index].life;
        let facts = &mut self.actors[index].facts;
        match change {
            Change::LastVote(vote) => facts.last_vote = Some(*vote),
            Change::Term(term) => facts.term = *term,
            Change::Config(config) => facts.config = Some((**config).clone()),
            Change::InitialSync(on) => facts.initial_sync = *on,
            Change::RollbackId(id) => facts.rollback_id = *id,
            Change::Memory(memory) => facts.memory = *memory,
            Change::IndexesLeftOut(left_out) => facts.indexes_left_out = *left_out,
            Change::Initiate(config) => {
                facts.config = Some((**config).clone());
                let last = self.append_own(index, 0);
                for input in [
                    Input::EntriesAppended { last },
                    Input::EntriesDurable { last },
                    Input::Applied { last },
                ] {
                    self.cue(HOP, Cue::Give(index, life, Box::new(input)));
                }
            }
        }
        self.cue(HOP, Cue::Give(index, life, Box::new(Input::Persisted(ticket))));
    }

    // -- Copying ---------------------------------------------------------------------------------

    pub(super) fn carry_out_copying(&mut self, index: usize, output: Output) {
        let life = self.actors[index].life;
        match output {
            Output::FetchFrom { fetch, source, .. } => {
                let source = self.index_of(&source).unwrap();
                self.actors[index].fetch = Some((fetch, source));
                self.actors[index].buffer.clear();
                self.cue(HOP, Cue::Fetch { to: source, from: index, life, fetch, first: true });
            }
            Output::CancelFetch { .. } => self.actors[index].fetch = None,
            Output::ApplyThrough { through, .. } => {
                let mut last = None;
                while let Some(entry) = self.actors[index].buffer.pop_front() {
                    assert!(entry.op_time <= through, "everything buffered is ordered");
                    self.actors[index].log.push(entry);
                    last = Some(entry);
                }
                if let Some(last) = last {
                    let input = Box::new(Input::EntriesAppended { last });
                    self.cue(Duration::ZERO, Cue::Give(index, life, input));
                    self.apply_and_sync(index, last);
                }
            }
            Output::FindCommonPoint { fetch, source } => {
                let source = self.index_of(&source).unwrap();
                let theirs = &self.actors[source].log;
                let mine = self.actors[index].log.iter().rev();
                let common = mine.copied().find(|entry| theirs.contains(entry));
                let input = match common {
                    Some(common_point) => Input::CommonPointFound { fetch, common_point },
                    None => {
                        let source_oldest = theirs.first().map(|e| e.op_time).unwrap_or_default();
                        Input::NoCommonPoint { fetch, source_oldest }
                    }
                };
                self.cue(HOP * 2, Cue::Give(index, life, Box::new(input)));
            }
            Output::RollBackTo { common_point } => {
                let before = self.actors[index].log.len();
                self.actors[index].log.retain(|entry| *entry <= common_point);
                let removed = before - self.actors[index].log.len();
                self.say(index, &format!("(host) keeps {removed} undone entries in a file"));
                let last = self.actors[index].last();
                let input = Input::RolledBack { last };
                self.cue(HOP, Cue::Give(index, life, Box::new(input)));
            }
            Output::InitialSync { attempt, step } => self.initial_sync_step(index, attempt, step),
            _ => {}
        }
    }

    pub(super) fn serve_fetch(
        &mut self,
        to: usize,
        from: usize,
        life: u64,
        fetch: FetchId,
        first: bool,
    ) {
        let current = self.actors[from].fetch == Some((fetch, to));
        if self.actors[from].life != life || !current {
            return;
        }
        let blocked = self.cut.contains(&(to, from)) || self.cut.contains(&(from, to));
        if blocked || self.stalled.contains(&from) {
            // The connection hangs until it is repaired.
            return self.cue(HOP * 50, Cue::Fetch { to, from, life, fetch, first });
        }
        let Some(member) = &self.actors[to].member else {
            self.actors[from].fetch = None;
            let cause = quorate_replication::FetchFailure::Connection;
            let input = Input::FetchFailed { fetch, cause };
            return self.cue(HOP, Cue::Give(from, life, Box::new(input)));
        };
        let status = member.status();
        let after = self.actors[from].last().op_time;
        let source = &self.actors[to].log;
        let start = source.partition_point(|e| e.op_time.timestamp < after.timestamp);
        let found = source.get(start).map(|entry| entry.op_time);
        let skip = usize::from(found == Some(after));
        let entries: Vec<OpTimeAndWallTime> = source[start + skip..].to_vec();
        let batch = FetchedBatch {
            first: found.filter(|_| first),
            previous: found,
            last: entries.last().copied(),
            source_oldest: source.first().map(|e| e.op_time).unwrap_or_default(),
            source_last: self.actors[to].last(),
            commit_point: status.commit_point(),
            term: status.term(),
            source_is_primary: status.state() == MemberState::Primary,
            rollback_id: status.rollback_id(),
        };
        self.actors[from].buffer.extend(entries);
        self.give(from, Input::EntriesFetched { fetch, batch });
        self.cue(HOP * 50, Cue::Fetch { to, from, life, fetch, first: false });
    }

    pub(super) fn release_copy(&mut self, index: usize) {
        self.actors[index].copy_held = false;
        if let Some((attempt, step)) = self.actors[index].held_step.take() {
            self.initial_sync_step(index, attempt, step);
        }
    }

    /// Whether the source of a step is down, or out of reach.
    fn is_out_of_reach(&self, index: usize, step: &InitialSyncStep) -> bool {
        let source = match step {
            InitialSyncStep::ReadSource { source }
            | InitialSyncStep::Clone { source, .. }
            | InitialSyncStep::ReadStopPoint { source }
            | InitialSyncStep::ReadRollbackId { source } => self.index_of(source).unwrap(),
            _ => return false,
        };
        self.actors[source].member.is_none() || self.cut.contains(&(index, source))
    }

    fn initial_sync_step(&mut self, index: usize, attempt: u32, step: InitialSyncStep) {
        if self.actors[index].copy_held && matches!(step, InitialSyncStep::Clone { .. }) {
            self.actors[index].held_step = Some((attempt, step));
            return;
        }
        if self.is_out_of_reach(index, &step) {
            self.say(index, "(host) the copy is interrupted");
            let input = Input::InitialSync { attempt, outcome: InitialSyncOutcome::Interrupted };
            let life = self.actors[index].life;
            return self.cue(HOP, Cue::Give(index, life, Box::new(input)));
        }
        let life = self.actors[index].life;
        let source_of = |address: &ServerAddress| self.index_of(address).unwrap();
        let outcome = match &step {
            InitialSyncStep::Cancel => return,
            InitialSyncStep::Wipe => {
                self.actors[index].log.clear();
                InitialSyncOutcome::Wiped
            }
            InitialSyncStep::ReadSource { source } => {
                let top = self.actors[source_of(source)].last().op_time;
                let rollback_id = self.actors[source_of(source)].facts.rollback_id;
                InitialSyncOutcome::SourceRead {
                    rollback_id,
                    begin_fetching: top,
                    begin_applying: top,
                }
            }
            InitialSyncStep::Clone { source, .. } => {
                let log = self.actors[source_of(source)].log.clone();
                self.actors[index].log = log;
                InitialSyncOutcome::Cloned
            }
            InitialSyncStep::ReadStopPoint { source } => {
                let log = self.actors[source_of(source)].log.clone();
                self.actors[index].log = log;
                InitialSyncOutcome::StopPointRead(self.actors[index].last())
            }
            InitialSyncStep::ApplyThrough(stop) => InitialSyncOutcome::AppliedThrough(*stop),
            InitialSyncStep::ReadRollbackId { source } => {
                let id = self.actors[source_of(source)].facts.rollback_id;
                InitialSyncOutcome::RollbackIdRead(id)
            }
        };
        let input = Box::new(Input::InitialSync { attempt, outcome });
        self.cue(HOP * 2, Cue::Give(index, life, input));
    }
}
