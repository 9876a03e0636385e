//! The host's side of copying entries and rolling them back.
//!
//! A process has one worker that changes data. It makes one change after the other, what has gathered
//! together at once, then forces it to disk, then tells its member. A crash hits it at any of these.

use std::time::Duration;

use bson::RawDocument;
use quorate_member::{CommonPointSearch, DataChange, EntrySource, Fetched, SearchAsk};
use quorate_node::MAX_APPLY_ENTRIES;
use quorate_protocol::{OpTime, ServerAddress};
use quorate_replication::{FetchFailure, FetchId, Input};

use crate::judges::Life;
use crate::process::{
    EntriesReply, EntriesRequest, Message, Purpose, Reading, Searching, Serving, StreamId, Told,
};
use crate::world::{Happening, World};

/// How long a source waits for news before it answers with nothing.
const AWAIT_DATA: Duration = Duration::from_secs(1);
/// How long the copying side waits for any answer.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a worker waits before it looks again whether its disk has room.
const ROOM_CHECK: Duration = Duration::from_millis(100);
/// Entries of either log that are compared at once, at most.
const MAX_COMPARED_AT_ONCE: u64 = 40;
/// Streams that a source serves at once; older ones are forgotten.
const MAX_SERVED: usize = 64;

impl World {
    pub(crate) fn index_at(&self, address: &ServerAddress) -> Option<usize> {
        self.nodes.iter().position(|node| node.address == *address)
    }

    // -- Reading entries -------------------------------------------------------------------------

    pub(crate) fn begin_fetch(
        &mut self,
        index: usize,
        fetch: FetchId,
        source: &ServerAddress,
        after: OpTime,
    ) {
        self.end_fetch(index);
        if let Some(source) = self.index_at(source) {
            self.open_stream(index, Purpose::Follow(fetch), source, after);
        }
    }

    pub(crate) fn end_fetch(&mut self, index: usize) {
        self.nodes[index].reading.retain(|_, known| known.purpose == Purpose::Copy);
    }

    pub(crate) fn open_stream(
        &mut self,
        index: usize,
        purpose: Purpose,
        source: usize,
        begin: OpTime,
    ) -> u64 {
        let number = self.nodes[index].number();
        let reading = Reading { purpose, source, sequence: 0, source_epoch: None };
        self.nodes[index].reading.insert(number, reading);
        self.ask_for_entries(index, number, Some(begin));
        number
    }

    pub(crate) fn ask_for_entries(&mut self, index: usize, number: u64, begin: Option<OpTime>) {
        let life = self.nodes[index].life;
        let Some(reading) = self.nodes[index].reading.get_mut(&number) else { return };
        reading.sequence += 1;
        let (sequence, source) = (reading.sequence, reading.source);
        let stream = StreamId { reader: life, number };
        let source_epoch = reading.source_epoch;
        let request = EntriesRequest { stream, sequence, begin, source_epoch };
        self.schedule(FETCH_TIMEOUT, Happening::StreamTimeout { life, number, sequence });
        self.transmit(index, source, Message::Entries(request));
    }

    pub(crate) fn stream_timeout(&mut self, life: Life, number: u64, sequence: u64) {
        let waits = |known: &Reading| known.sequence == sequence;
        if self.nodes[life.node].reading.get(&number).is_some_and(waits) {
            self.stream_failed(life.node, number, FetchFailure::Connection);
        }
    }

    fn stream_failed(&mut self, index: usize, number: u64, cause: FetchFailure) {
        let Some(reading) = self.nodes[index].reading.remove(&number) else { return };
        match reading.purpose {
            Purpose::Follow(fetch) => self.feed(index, Input::FetchFailed { fetch, cause }),
            Purpose::Copy => self.copy_interrupted(index),
        }
    }

    pub(crate) fn serve_entries(&mut self, index: usize, request: EntriesRequest) {
        let EntriesRequest { stream, sequence, begin, source_epoch } = request;
        let epoch = self.nodes[index].life.epoch;
        let Some(data) = self.nodes[index].data() else { return };
        let view = self.nodes[index].member.as_ref().map(|member| member.view());
        let Some(view) = view else { return };
        if source_epoch.is_some_and(|known| known != epoch) {
            return self.send_entries(index, stream, sequence, Err(FetchFailure::Refused));
        }
        if let (Some(begin), false) = (begin, self.nodes[index].serving.contains_key(&stream)) {
            match EntrySource::open(&view, &data, begin) {
                Ok(source) => {
                    let serving = Serving { source, sequence: 0, waits: false };
                    self.nodes[index].serving.insert(stream, serving);
                    while self.nodes[index].serving.len() > MAX_SERVED {
                        self.nodes[index].serving.pop_first();
                    }
                }
                Err(_) => {
                    return self.send_entries(index, stream, sequence, Err(FetchFailure::Refused));
                }
            }
        }
        let Some(serving) = self.nodes[index].serving.get_mut(&stream) else {
            return self.send_entries(index, stream, sequence, Err(FetchFailure::Refused));
        };
        // A copy of a request that was answered, or waits.
        if serving.sequence >= sequence {
            return;
        }
        serving.sequence = sequence;
        serving.waits = true;
        let life = self.nodes[index].life;
        self.schedule(AWAIT_DATA, Happening::ServeExpired { life, stream, sequence });
        self.serve_next(index, stream, begin.is_some());
    }

    pub(crate) fn serve_expired(&mut self, life: Life, stream: StreamId, sequence: u64) {
        let waits = |known: &Serving| known.waits && known.sequence == sequence;
        if self.nodes[life.node].serving.get(&stream).is_some_and(waits) {
            self.serve_next(life.node, stream, true);
        }
    }

    /// Answers the members that wait for entries, if there are some.
    pub(crate) fn serve_waiting(&mut self, index: usize) {
        let Some(data) = self.nodes[index].data() else { return };
        let last = data.standing().last.op_time;
        let waiting: Vec<StreamId> = self.nodes[index]
            .serving
            .iter()
            .filter(|(_, known)| known.waits && known.source.sent().is_none_or(|sent| sent != last))
            .map(|(stream, _)| *stream)
            .collect();
        for stream in waiting {
            self.serve_next(index, stream, false);
        }
    }

    fn serve_next(&mut self, index: usize, stream: StreamId, say_something: bool) {
        let Some(data) = self.nodes[index].data() else { return };
        let Some(view) = self.nodes[index].member.as_ref().map(|member| member.view()) else {
            return;
        };
        let Some(serving) = self.nodes[index].serving.get_mut(&stream) else { return };
        let sequence = serving.sequence;
        let found = match serving.source.next_batch(&data, view, say_something) {
            Ok(Some(batch)) => {
                serving.waits = false;
                Ok(batch)
            }
            Ok(None) => return,
            Err(_) => Err(FetchFailure::PlaceLost),
        };
        let over = found.is_err() || serving.source.has_ended();
        if over {
            self.nodes[index].serving.remove(&stream);
        }
        self.send_entries(index, stream, sequence, found);
    }

    fn send_entries(
        &mut self,
        index: usize,
        stream: StreamId,
        sequence: u64,
        found: Result<quorate_member::SentBatch, FetchFailure>,
    ) {
        let source_epoch = self.nodes[index].life.epoch;
        let reply = EntriesReply { stream, sequence, source_epoch, found };
        self.transmit(index, stream.reader.node, Message::EntriesSent(Box::new(reply)));
    }

    pub(crate) fn entries_sent(&mut self, index: usize, reply: EntriesReply) {
        let EntriesReply { stream, sequence, source_epoch, found } = reply;
        if self.nodes[index].life != stream.reader {
            return;
        }
        let number = stream.number;
        let Some(reading) = self.nodes[index].reading.get_mut(&number) else { return };
        if reading.sequence != sequence {
            return;
        }
        let batch = match found {
            Ok(batch) => batch,
            Err(cause) => return self.stream_failed(index, number, cause),
        };
        reading.source_epoch = Some(source_epoch);
        // The next request is numbered: a duplicate of this reply is then ignored.
        reading.sequence += 1;
        match reading.purpose {
            Purpose::Copy => return self.copied_entries(index, batch),
            Purpose::Follow(fetch) => {
                let (facts, entries) = (batch.facts, batch.entries);
                let fetched = Fetched { fetch, batch: facts, entries, room: None };
                self.drive(index, |member, now| member.handle_fetched(now, fetched));
            }
        }
        self.ask_for_entries(index, number, None);
    }

    // -- Changing data ---------------------------------------------------------------------------

    pub(crate) fn order_change(&mut self, index: usize, change: DataChange<()>) {
        self.nodes[index].changes.push_back(change);
        self.begin_change(index);
    }

    /// The worker turns to the next change, if it has none in hand.
    fn begin_change(&mut self, index: usize) {
        if self.nodes[index].changing || self.nodes[index].changes.is_empty() {
            return;
        }
        self.nodes[index].changing = true;
        // Work takes its time, now and then a long one.
        let longest = if self.random.chance(5) { 400 } else { 4 };
        let work = self.random.duration_up_to(Duration::from_millis(longest));
        let life = self.nodes[index].life;
        self.schedule(work, Happening::MakeChange(life));
    }

    pub(crate) fn make_change(&mut self, life: Life) {
        let index = life.node;
        if let Some(wait) = self.held_back(index) {
            return self.schedule(wait, Happening::MakeChange(life));
        }
        if self.nodes[index].data().is_some_and(|data| data.disk_is_full()) {
            return self.schedule(ROOM_CHECK, Happening::MakeChange(life));
        }
        let Some(change) = self.take_change(index) else { return };
        let Some(data) = self.nodes[index].data() else { return };
        let made = change.make(&data, self.now_at(index), &mut |_| Ok(()));
        let told: Told = match made {
            Ok(ended) => ended.input.map(Box::new),
            Err(error) => return self.must_end(index, &error.message),
        };
        self.look_at_log(index);
        let sync = self.disk_time();
        self.schedule(sync, Happening::ChangeSynced { life, told });
    }

    /// The next change, with the entries that have gathered behind it.
    pub(crate) fn take_change(&mut self, index: usize) -> Option<DataChange<()>> {
        let changes = &mut self.nodes[index].changes;
        let mut change = changes.pop_front()?;
        if let DataChange::Apply(entries) = &mut change {
            while entries.entries.len() < MAX_APPLY_ENTRIES {
                match changes.pop_front() {
                    Some(DataChange::Apply(more)) if entries.is_followed_by(&more) => {
                        entries.join(more);
                    }
                    Some(other) => {
                        changes.push_front(other);
                        break;
                    }
                    None => break,
                }
            }
        }
        Some(change)
    }

    /// How long a delayed member holds its next entries back.
    fn held_back(&self, index: usize) -> Option<Duration> {
        let Some(DataChange::Apply(entries)) = self.nodes[index].changes.front() else {
            return None;
        };
        if entries.delay.is_zero() {
            return None;
        }
        let last = entries.last()?;
        let release = last.wall_time.0 + i64::try_from(entries.delay.as_millis()).ok()?;
        let left = u64::try_from(release - self.wall(index).0).ok()?;
        (left > 0).then(|| Duration::from_millis(left))
    }

    pub(crate) fn change_synced(&mut self, life: Life, told: Told) {
        let index = life.node;
        self.sync_log(index);
        match told {
            Some(input) => self.feed(index, *input),
            None => self.drive(index, |member, now| member.log_moved(now)),
        }
        if self.is_alive(life) {
            self.nodes[index].changing = false;
            self.begin_change(index);
        }
    }

    // -- Where two logs part ---------------------------------------------------------------------

    pub(crate) fn find_common_point(
        &mut self,
        index: usize,
        fetch: FetchId,
        source: &ServerAddress,
    ) {
        let life = self.nodes[index].life;
        let input = Box::new(Input::CommonPointUnknown { fetch });
        self.schedule(FETCH_TIMEOUT, Happening::Local { life, input });
        let Some(source) = self.index_at(source) else { return };
        // Batches are small, so that a walk takes several and the source changes between them.
        let at_once = 1 + self.random.below(MAX_COMPARED_AT_ONCE) as usize;
        let search = CommonPointSearch::new(fetch, at_once);
        self.nodes[index].searching = Some(Searching { search, source, asked: 0 });
        self.ask_for_common_point(index);
    }

    fn ask_for_common_point(&mut self, index: usize) {
        let number = self.nodes[index].number();
        let life = self.nodes[index].life;
        let Some(searching) = &mut self.nodes[index].searching else { return };
        searching.asked = number;
        let source = searching.source;
        match searching.search.ask() {
            SearchAsk::Command(command) => {
                let asked = Message::Command { from: life, number, command };
                self.transmit(index, source, asked);
            }
            SearchAsk::Done(input) => {
                self.nodes[index].searching = None;
                self.feed(index, input);
            }
        }
    }

    /// The answer to a command of a search. Whether it is one.
    pub(crate) fn search_answered(
        &mut self,
        index: usize,
        number: u64,
        reply: &RawDocument,
    ) -> bool {
        let Some(data) = self.nodes[index].data() else { return false };
        let searching = self.nodes[index].searching.as_mut();
        let Some(searching) = searching.filter(|searching| searching.asked == number) else {
            return false;
        };
        let refused = reply.get_f64("ok").is_ok_and(|ok| ok == 0.0);
        if refused || searching.search.take_reply(reply, &data).is_err() {
            // The member is told once its patience is over.
            self.nodes[index].searching = None;
            return true;
        }
        self.ask_for_common_point(index);
        true
    }
}
