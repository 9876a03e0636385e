//! Copying everything: the way of questions and answers between a member and its source.

use std::time::Duration;

use bson::{Document, RawDocumentBuf};
use quorate_member::{Ask, CopyWork, Copying, SentBatch};
use quorate_node::{Command, Outcome, entry_position};
use quorate_replication::{InitialSyncOutcome, Input};

use crate::data::FETCH_TIMEOUT;
use crate::judges::{Life, Verdict};
use crate::process::{CopyStep, Message, Purpose};
use crate::world::{Happening, World};

/// The most entries of a copy in one piece.
const MAX_PIECE: u64 = 12;

/// A source takes its time for every answer, and may change its mind meanwhile.
const LONGEST_ANSWER: Duration = Duration::from_millis(150);

impl World {
    pub(crate) fn begin_copy(&mut self, index: usize, work: CopyWork) {
        self.end_copy(index);
        let Some(source) = self.index_at(&work.source) else { return };
        let attempt = work.attempt;
        let Some(data) = self.nodes[index].data() else { return };
        let copying = Copying::new(work, &data, self.now_at(index));
        let step = CopyStep { copying, attempt, source, asked: 0, stream: None };
        self.nodes[index].copy = Some(step);
        self.ask_source(index);
    }

    pub(crate) fn end_copy(&mut self, index: usize) {
        self.nodes[index].copy = None;
        self.nodes[index].reading.retain(|_, known| known.purpose != Purpose::Copy);
    }

    fn ask_source(&mut self, index: usize) {
        let number = self.nodes[index].number();
        let life = self.nodes[index].life;
        let Some(step) = &mut self.nodes[index].copy else { return };
        step.asked = number;
        let (source, stream) = (step.source, step.stream);
        match step.copying.ask() {
            Ask::Command(command) => {
                let work = self.random.duration_up_to(LONGEST_ANSWER);
                let asked = Message::Command { from: life, number, command };
                self.transmit_after(work, index, source, asked);
                self.schedule(FETCH_TIMEOUT, Happening::CopyTimeout { life, number });
            }
            Ask::Entries(begin) => {
                let stream = self.open_stream(index, Purpose::Copy, source, begin);
                if let Some(step) = &mut self.nodes[index].copy {
                    step.stream = Some(stream);
                }
            }
            Ask::MoreEntries => {
                if let Some(stream) = stream {
                    self.ask_for_entries(index, stream, None);
                }
            }
            Ask::Done(outcome) => self.copy_ended(index, outcome),
        }
    }

    fn copy_ended(&mut self, index: usize, outcome: InitialSyncOutcome) {
        let Some(step) = self.nodes[index].copy.take() else { return };
        self.end_copy(index);
        if let (InitialSyncOutcome::AppliedThrough(stop), Some(data)) =
            (&outcome, self.nodes[index].data())
            && data.standing().last.op_time < stop.op_time
        {
            let what = format!(
                "n{index} says that its copy is whole through {}, and its log ends at {}",
                stop.op_time,
                data.standing().last.op_time,
            );
            self.verdict = self.verdict.clone().and(Err(Verdict(what)));
        }
        self.feed(index, Input::InitialSync { attempt: step.attempt, outcome });
    }

    pub(crate) fn copy_interrupted(&mut self, index: usize) {
        self.copy_ended(index, InitialSyncOutcome::Interrupted);
    }

    pub(crate) fn copy_timeout(&mut self, life: Life, number: u64) {
        let waits = |step: &CopyStep| step.asked == number;
        if self.nodes[life.node].copy.as_ref().is_some_and(waits) {
            self.copy_interrupted(life.node);
        }
    }

    pub(crate) fn serve_command(
        &mut self,
        index: usize,
        from: Life,
        number: u64,
        command: Document,
    ) {
        let served = self.nodes[index].served.entry(from).or_default();
        if *served >= number {
            return;
        }
        *served = number;
        let reply = if command.contains_key("replSetGetRBID") {
            let told = self.nodes[index].member.as_ref().map(|member| {
                let (id, version) =
                    (member.status().rollback_id(), member.status().topology_version());
                let process = quorate_wire::to_bson_object_id(version.process_id);
                bson::doc! { "rbid": id, "processId": process, "ok": 1.0 }
            });
            told.and_then(|told| RawDocumentBuf::try_from(&told).ok())
        } else {
            self.run_command(index, command)
        };
        if let Some(reply) = reply {
            let answer = Message::CommandAnswered { to: from, number, reply };
            self.transmit(index, from.node, answer);
        }
    }

    /// What a member answers to a command; none if it is down.
    pub(crate) fn run_command(
        &mut self,
        index: usize,
        command: Document,
    ) -> Option<RawDocumentBuf> {
        let data = self.nodes[index].data().filter(|_| self.nodes[index].is_running())?;
        match data.run(&self.context(index), Command::new(command)) {
            Outcome::Reply(reply) => Some(reply.body),
            Outcome::Wait { .. } | Outcome::Long => None,
        }
    }

    pub(crate) fn command_answered(
        &mut self,
        index: usize,
        to: Life,
        number: u64,
        reply: &RawDocumentBuf,
    ) {
        let now = self.now_at(index);
        if self.nodes[index].life != to {
            return;
        }
        if self.search_answered(index, number, reply) {
            return;
        }
        let Some(data) = self.nodes[index].data() else { return };
        let Some(step) = self.nodes[index].copy.as_mut().filter(|step| step.asked == number) else {
            return;
        };
        if reply.get_f64("ok").is_ok_and(|ok| ok == 0.0) {
            return match step.copying.take_refusal(reply.get_i32("code").unwrap_or_default()) {
                true => self.copy_goes_on(index, Ok(())),
                false => self.copy_interrupted(index),
            };
        }
        let taken = step.copying.take_reply(reply, &data, now);
        self.copy_goes_on(index, taken.map_err(|failure| failure.0));
    }

    pub(crate) fn copied_entries(&mut self, index: usize, batch: SentBatch) {
        let now = self.now_at(index);
        let Some(data) = self.nodes[index].data() else { return };
        let pieces = self.pieces_of(batch);
        let Some(step) = &mut self.nodes[index].copy else { return };
        let mut taken = Ok(());
        for piece in pieces {
            taken = step.copying.take_entries(piece, &data, now);
            if taken.is_err() {
                break;
            }
        }
        self.copy_goes_on(index, taken.map_err(|failure| failure.0));
    }

    /// The entries of a batch as a source sends them that has many more.
    fn pieces_of(&mut self, batch: SentBatch) -> Vec<SentBatch> {
        let SentBatch { entries, mut facts } = batch;
        let most = 1 + self.random.below(MAX_PIECE) as usize;
        if entries.len() <= most {
            return vec![SentBatch { entries, facts }];
        }
        let position = |entry: Option<&RawDocumentBuf>| entry_position(entry?).ok();
        let pieces = entries.chunks(most).map(|piece| {
            facts.first = position(piece.first()).map(|first| first.op_time);
            facts.last = position(piece.last());
            let sent = SentBatch { entries: piece.to_vec(), facts };
            facts.previous = facts.last.map(|last| last.op_time);
            sent
        });
        pieces.collect()
    }

    fn copy_goes_on(&mut self, index: usize, taken: Result<(), String>) {
        self.look_at_log(index);
        match taken {
            Ok(()) => self.ask_source(index),
            Err(why) => {
                self.note(Some(index), || format!("its copy fails: {why}"));
                self.copy_ended(index, InitialSyncOutcome::Failed);
            }
        }
    }
}
