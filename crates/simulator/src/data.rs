//! Copying entries, undoing them, and copying everything: the host's side of it.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_protocol::{MemberState, OpTime, OpTimeAndWallTime, ServerAddress};
use quorate_replication::{
    FetchFailure, FetchId, FetchedBatch, InitialSyncOutcome, InitialSyncStep, Input,
};

use crate::host::{Entry, Host};
use crate::judges::Life;
use crate::node::{FetchReply, FetchRequest, Fetching, Message};
use crate::world::{Happening, World};

/// Entries in one answer.
const BATCH: usize = 50;
/// How long a source waits for news before it answers with nothing.
const AWAIT_DATA: Duration = Duration::from_secs(1);
/// How long the copying side waits for any answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(4);

impl<H: Host + Default> World<H> {
    fn index_at(&self, address: &ServerAddress) -> Option<usize> {
        self.nodes.iter().position(|node| node.address == *address)
    }

    // -- Fetching --------------------------------------------------------------------------------

    pub(crate) fn begin_fetch(
        &mut self,
        index: usize,
        fetch: FetchId,
        source: &ServerAddress,
        after: OpTime,
    ) {
        let Some(source) = self.index_at(source) else { return };
        self.nodes[index].fetching = Some(Fetching {
            id: fetch,
            source,
            sequence: 0,
            source_epoch: None,
            buffer: VecDeque::new(),
        });
        self.ask_for_entries(index, after, true);
    }

    fn ask_for_entries(&mut self, index: usize, after: OpTime, first: bool) {
        let life = self.nodes[index].life;
        let Some(fetching) = &mut self.nodes[index].fetching else { return };
        fetching.sequence += 1;
        let (fetch, sequence, source) = (fetching.id, fetching.sequence, fetching.source);
        let request = FetchRequest {
            from: life,
            fetch,
            sequence,
            after,
            first,
            source_epoch: fetching.source_epoch,
        };
        self.schedule(FETCH_TIMEOUT, Happening::FetchTimeout { life, fetch, sequence });
        self.transmit(index, source, Message::Fetch(request));
    }

    pub(crate) fn fetch_timeout(&mut self, life: Life, fetch: FetchId, sequence: u64) {
        let waiting = self.is_alive(life)
            && self.nodes[life.node]
                .fetching
                .as_ref()
                .is_some_and(|f| f.id == fetch && f.sequence == sequence);
        if waiting {
            self.nodes[life.node].fetching = None;
            self.feed(life.node, Input::FetchFailed { fetch, cause: FetchFailure::Connection });
        }
    }

    pub(crate) fn serve_fetch(&mut self, index: usize, request: FetchRequest) {
        let epoch = self.nodes[index].life.epoch;
        let readable = self.nodes[index]
            .member
            .as_ref()
            .is_some_and(|member| member.status().state().is_readable());
        if !readable || request.source_epoch.is_some_and(|known| known != epoch) {
            return self.answer_fetch(index, request, Err(FetchFailure::Refused));
        }
        let newer = self.nodes[index].host.last().op_time > request.after;
        if request.first || newer {
            let found = self.read_entries(index, request);
            self.answer_fetch(index, request, found);
        } else {
            self.nodes[index].parked.push(request);
            let life = self.nodes[index].life;
            self.schedule(AWAIT_DATA, Happening::ParkExpired(life));
        }
    }

    /// Answers those who wait for entries: when there are some, or when they have waited enough.
    pub(crate) fn answer_parked(&mut self, life: Life, expired: bool) {
        if !self.is_alive(life) || self.nodes[life.node].parked.is_empty() {
            return;
        }
        let last = self.nodes[life.node].host.last().op_time;
        let parked = std::mem::take(&mut self.nodes[life.node].parked);
        for request in parked {
            if expired || last > request.after {
                let found = self.read_entries(life.node, request);
                self.answer_fetch(life.node, request, found);
            } else {
                self.nodes[life.node].parked.push(request);
            }
        }
    }

    fn read_entries(
        &self,
        index: usize,
        request: FetchRequest,
    ) -> Result<(FetchedBatch, Vec<Entry>), FetchFailure> {
        let node = &self.nodes[index];
        let status = node.member.as_ref().ok_or(FetchFailure::Connection)?.status();
        let log = &node.host.log()[node.host.oldest()..];
        let start =
            log.partition_point(|entry| entry.op_time().timestamp < request.after.timestamp);
        let first = log.get(start).map(Entry::op_time);
        let skip = usize::from(first == Some(request.after));
        let entries: Vec<Entry> = log[start + skip..].iter().take(BATCH).copied().collect();
        let batch = FetchedBatch {
            first: first.filter(|_| request.first),
            previous: first.filter(|_| skip == 1),
            last: entries.last().map(|entry| entry.position),
            source_oldest: log.first().map(Entry::op_time).unwrap_or_default(),
            source_last: node.host.last(),
            commit_point: status.commit_point(),
            term: status.term(),
            source_is_primary: status.state() == MemberState::Primary,
            rollback_id: status.rollback_id(),
        };
        if !request.first && skip == 0 {
            return Err(FetchFailure::PlaceLost);
        }
        Ok((batch, entries))
    }

    fn answer_fetch(
        &mut self,
        index: usize,
        request: FetchRequest,
        found: Result<(FetchedBatch, Vec<Entry>), FetchFailure>,
    ) {
        let reply = FetchReply {
            fetch: request.fetch,
            sequence: request.sequence,
            source_epoch: self.nodes[index].life.epoch,
            found,
        };
        self.transmit(index, request.from.node, Message::Fetched(Box::new(reply)));
    }

    pub(crate) fn fetched(&mut self, index: usize, reply: FetchReply) {
        let Some(fetching) = &mut self.nodes[index].fetching else { return };
        if fetching.id != reply.fetch || fetching.sequence != reply.sequence {
            return;
        }
        let fetch = reply.fetch;
        let (batch, entries) = match reply.found {
            Ok(found) => found,
            Err(cause) => {
                self.nodes[index].fetching = None;
                return self.feed(index, Input::FetchFailed { fetch, cause });
            }
        };
        fetching.source_epoch = Some(reply.source_epoch);
        // The next request is numbered: a duplicate of this reply is then ignored.
        fetching.sequence += 1;
        fetching.buffer.extend(&entries);
        self.feed(index, Input::EntriesFetched { fetch, batch });
        let still = self.nodes[index].fetching.as_ref().is_some_and(|f| f.id == fetch);
        if still {
            let after = self.last_ordered(index);
            self.ask_for_entries(index, after, false);
        }
    }

    /// The last entry that is in the log or on its way into it.
    fn last_ordered(&self, index: usize) -> OpTime {
        let node = &self.nodes[index];
        node.ordered.back().map_or_else(|| node.host.last().op_time, |(_, entry)| entry.op_time())
    }

    pub(crate) fn apply_through(&mut self, index: usize, through: OpTime, delay: Duration) {
        let wall = self.wall(index).0;
        // A batch takes its time, now and then a long one; batches stay in order.
        let longest = if self.random.chance(5) { 400 } else { 4 };
        let work = self.random.duration_up_to(Duration::from_millis(longest));
        let now = self.now;
        let node = &mut self.nodes[index];
        let begin = node.ordered.back().map_or(self.now, |(at, _)| self.now.max(*at)) + work;
        let Some(fetching) = &mut node.fetching else { return };
        while let Some(entry) = fetching.buffer.pop_front() {
            if entry.op_time() > through {
                fetching.buffer.push_front(entry);
                break;
            }
            let age = Duration::from_millis(
                u64::try_from(wall - entry.position.wall_time.0).unwrap_or(0),
            );
            let released = now + delay.saturating_sub(age);
            node.ordered.push_back((begin.max(released), entry));
        }
        let life = node.life;
        if let Some(at) = node.ordered.front().map(|(at, _)| *at) {
            self.schedule_at(at, Happening::AppendOrdered(life));
        }
    }

    pub(crate) fn append_ordered(&mut self, life: Life) {
        if !self.is_alive(life) {
            return;
        }
        let index = life.node;
        let mut last = None;
        while let Some((at, entry)) = self.nodes[index].ordered.front().copied() {
            if at > self.now {
                self.schedule_at(at, Happening::AppendOrdered(life));
                break;
            }
            self.nodes[index].ordered.pop_front();
            let before = self.nodes[index].host.last().op_time;
            self.appended(index, before, &entry);
            self.nodes[index].host.append(&[entry]);
            last = Some(entry.position);
        }
        if let Some(last) = last {
            self.after_append(index, last.op_time);
            self.feed(index, Input::EntriesAppended { last });
        }
    }

    // -- Rolling back ----------------------------------------------------------------------------

    pub(crate) fn find_common_point(
        &mut self,
        index: usize,
        fetch: FetchId,
        source: &ServerAddress,
    ) {
        let life = self.nodes[index].life;
        if let Some(source) = self.index_at(source) {
            self.transmit(index, source, Message::LogQuery { from: life, fetch });
        }
        let input = Box::new(Input::CommonPointUnknown { fetch });
        self.schedule(FETCH_TIMEOUT, Happening::Local { life, input });
    }

    pub(crate) fn serve_log_query(&mut self, index: usize, from: Life, fetch: FetchId) {
        let host = &self.nodes[index].host;
        let op_times = host.log()[host.oldest()..].iter().map(Entry::op_time).collect();
        self.transmit(index, from.node, Message::LogAnswer { fetch, op_times });
    }

    pub(crate) fn log_answered(&mut self, index: usize, fetch: FetchId, theirs: &[OpTime]) {
        let log = self.nodes[index].host.log();
        let common = log
            .iter()
            .rev()
            .find(|entry| theirs.binary_search(&entry.op_time()).is_ok())
            .map(|entry| entry.position);
        let input = match common {
            Some(common_point) => Input::CommonPointFound { fetch, common_point },
            None => {
                let source_oldest = theirs.first().copied().unwrap_or_default();
                Input::NoCommonPoint { fetch, source_oldest }
            }
        };
        self.feed(index, input);
    }

    pub(crate) fn roll_back(&mut self, index: usize, common_point: OpTimeAndWallTime) {
        self.nodes[index].host.truncate_after(common_point.op_time);
        let life = self.nodes[index].life;
        let last = self.nodes[index].host.last();
        let input = Box::new(Input::RolledBack { last, min_valid: OpTime::NULL });
        let delay = self.random.duration_up_to(Duration::from_millis(50));
        self.schedule(delay, Happening::Local { life, input });
    }

    // -- Initial sync ----------------------------------------------------------------------------

    pub(crate) fn initial_sync_step(&mut self, index: usize, attempt: u32, step: InitialSyncStep) {
        let life = self.nodes[index].life;
        self.nodes[index].sync_step = Some((attempt, step.clone()));
        let outcome = match &step {
            InitialSyncStep::Wipe => {
                self.nodes[index].host.wipe();
                Some((Duration::from_millis(5), InitialSyncOutcome::Wiped))
            }
            InitialSyncStep::Cancel => None,
            InitialSyncStep::ReadSource { source }
            | InitialSyncStep::Clone { source, .. }
            | InitialSyncStep::ReadStopPoint { source }
            | InitialSyncStep::ReadRollbackId { source } => {
                if let Some(source) = self.index_at(source) {
                    let query = Message::SyncQuery { from: life, attempt, step: step.clone() };
                    // Copying takes long, and the source may change its mind meanwhile.
                    let copying = matches!(step, InitialSyncStep::ReadStopPoint { .. });
                    let longest = Duration::from_secs(if copying { 3 } else { 0 });
                    let work = self.random.duration_up_to(longest);
                    self.transmit_after(work, index, source, query);
                }
                None
            }
            InitialSyncStep::ApplyThrough(stop) => {
                let last = self.nodes[index].host.last();
                let reached = last.op_time == stop.op_time;
                let outcome = if reached {
                    self.nodes[index].host.sync();
                    InitialSyncOutcome::AppliedThrough(last)
                } else {
                    InitialSyncOutcome::Failed
                };
                Some((Duration::from_millis(5), outcome))
            }
        };
        if let Some((delay, outcome)) = outcome {
            let input = Box::new(Input::InitialSync { attempt, outcome });
            self.schedule(delay, Happening::Local { life, input });
        } else if step != InitialSyncStep::Cancel {
            self.schedule(FETCH_TIMEOUT, Happening::SyncTimeout { life, attempt, step });
        }
    }

    pub(crate) fn sync_timeout(&mut self, life: Life, attempt: u32, step: &InitialSyncStep) {
        let asked = Some((attempt, step.clone()));
        if self.is_alive(life) && self.nodes[life.node].sync_step == asked {
            let outcome = InitialSyncOutcome::Interrupted;
            self.feed(life.node, Input::InitialSync { attempt, outcome });
        }
    }

    pub(crate) fn serve_sync_query(
        &mut self,
        index: usize,
        from: Life,
        attempt: u32,
        step: InitialSyncStep,
    ) {
        let node = &self.nodes[index];
        let readable =
            node.member.as_ref().is_some_and(|member| member.status().state().is_readable());
        let answer = if readable {
            let rollback_id = node.member.as_ref().map_or(0, |m| m.status().rollback_id());
            Message::SyncAnswer { attempt, step, log: node.host.log().to_vec(), rollback_id }
        } else {
            Message::SyncRefused { attempt }
        };
        self.transmit(index, from.node, answer);
    }

    pub(crate) fn sync_refused(&mut self, index: usize, attempt: u32) {
        self.feed(index, Input::InitialSync { attempt, outcome: InitialSyncOutcome::Failed });
    }

    pub(crate) fn sync_answered(
        &mut self,
        index: usize,
        attempt: u32,
        step: &InitialSyncStep,
        log: &[Entry],
        rollback_id: i32,
    ) {
        if self.nodes[index].sync_step.as_ref() != Some(&(attempt, step.clone())) {
            return;
        }
        self.nodes[index].sync_step = None;
        let top = log.last().map(|entry| entry.position).unwrap_or_default();
        let outcome = match step {
            InitialSyncStep::ReadSource { .. } => InitialSyncOutcome::SourceRead {
                rollback_id,
                begin_fetching: top.op_time,
                begin_applying: top.op_time,
            },
            InitialSyncStep::Clone { .. } => {
                self.copy_missing(index, log);
                InitialSyncOutcome::Cloned
            }
            InitialSyncStep::ReadStopPoint { .. } => {
                // What was written during the copy was buffered meanwhile.
                self.copy_missing(index, log);
                InitialSyncOutcome::StopPointRead(top)
            }
            InitialSyncStep::ReadRollbackId { .. } => {
                InitialSyncOutcome::RollbackIdRead(rollback_id)
            }
            InitialSyncStep::Wipe | InitialSyncStep::ApplyThrough(_) | InitialSyncStep::Cancel => {
                return;
            }
        };
        self.feed(index, Input::InitialSync { attempt, outcome });
    }

    // Entries beyond our last one, blindly: a source that rolled back meanwhile is the core's to
    // notice, by its rollback id.
    fn copy_missing(&mut self, index: usize, log: &[Entry]) {
        let last = self.nodes[index].host.last().op_time;
        let start = log.partition_point(|entry| entry.op_time() <= last);
        self.nodes[index].host.append(&log[start..]);
    }
}
