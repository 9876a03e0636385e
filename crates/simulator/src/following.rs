//! Consumers of change streams: they keep their place, are killed, and go on at any member.
//!
//! A consumer follows the lists that transactions append to, so that every event is a value that was appended once.
//! What it was given, where it stored its place and where it was killed is judged at the end by `quorate-checker`
//! against the values that last: none is missed, none is told again beyond the stored place, and their order is that
//! of the log. A consumer that was away longer than the history reaches is told so (286) and begins anew.

use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_checker::change_events::{self, Delivery};
use quorate_protocol::ErrorCode;
use quorate_replication::SeededRandom;

use crate::judges::{Life, Verdict};
use crate::story::Story;
use crate::world::{Happening, World};

/// Makes this luck another one than the world's.
const LUCK: u64 = 0x0000_464f_4c4c_4f57;
/// Consumers.
const FOLLOWERS: usize = 3;
/// Between two looks of a consumer, at most.
const PAUSE: Duration = Duration::from_millis(500);
/// Batches of one consumer at the end, at most.
const MAX_BATCHES: usize = 10_000;
/// The code of a place that is no longer in the history.
const HISTORY_LOST: i32 = ErrorCode::CHANGE_STREAM_HISTORY_LOST.0;
/// The code of a token whose event is not where it says.
const FATAL: i32 = ErrorCode::CHANGE_STREAM_FATAL.0;

/// A consumer.
#[derive(Clone, Debug, Default)]
struct Follower {
    /// The process and the cursor that it reads.
    cursor: Option<(Life, i64)>,
    /// Where it would go on.
    token: Option<Document>,
    stored: Option<Document>,
    deliveries: Vec<Delivery>,
    /// Deliveries before the consumer lost its place.
    past: Vec<Vec<Delivery>>,
}

impl Follower {
    fn begin_anew(&mut self) {
        (self.cursor, self.token, self.stored) = (None, None, None);
        let told = std::mem::take(&mut self.deliveries);
        if !told.is_empty() {
            self.past.push(told);
        }
    }
}

/// The consumers.
pub(crate) struct Followers {
    random: SeededRandom,
    all: Vec<Follower>,
}

impl Followers {
    pub(crate) fn new(seed: u64, story: Story) -> Self {
        let count = if story == Story::Transactions { FOLLOWERS } else { 0 };
        Self { random: SeededRandom::new(seed ^ LUCK), all: vec![Follower::default(); count] }
    }
}

/// The value that an event tells of: the last number in what was written.
fn value_of(event: &Document) -> Option<i64> {
    let written = match event.get_str("operationType").ok()? {
        "insert" => event.get_document("fullDocument").ok()?,
        _ => event.get_document("updateDescription").ok()?.get_document("updatedFields").ok()?,
    };
    fn last(value: &Bson) -> Option<i64> {
        match value {
            Bson::Int64(number) => Some(*number),
            Bson::Array(values) => values.iter().rev().find_map(last),
            Bson::Document(fields) => fields.values().filter_map(last).last(),
            _ => None,
        }
    }
    written.values().filter_map(last).last()
}

impl World {
    pub(crate) fn begin_following(&mut self) {
        for follower in 0..self.followers.all.len() {
            self.schedule(Duration::from_secs(1), Happening::Follow { follower });
        }
    }

    /// A consumer looks for news, or is killed.
    pub(crate) fn follow(&mut self, follower: usize) {
        if !self.turmoil {
            return;
        }
        let pause = self.followers.random.duration_up_to(PAUSE);
        self.schedule(pause, Happening::Follow { follower });
        if self.followers.random.chance(6) {
            let killed = &mut self.followers.all[follower];
            killed.cursor = None;
            killed.token = killed.stored.clone();
            match killed.stored.is_some() {
                true => killed.deliveries.push(Delivery::Restarted),
                false => killed.begin_anew(),
            }
            return;
        }
        let readable = |index: &usize| {
            let member =
                self.nodes[*index].member.as_ref().filter(|_| self.nodes[*index].is_running());
            member.is_some_and(|member| member.status().state().is_readable())
        };
        let members: Vec<usize> = (0..self.nodes.len()).filter(readable).collect();
        let place = self.followers.random.below(members.len().max(1) as u64) as usize;
        if let Some(index) = members.get(place) {
            self.look_for_events(follower, *index);
        }
        if self.followers.random.chance(40) {
            let kept = &mut self.followers.all[follower];
            kept.stored = kept.token.clone();
            kept.deliveries.push(Delivery::Stored);
        }
    }

    /// Reads one batch, from the open cursor or from a new one at this member. Gives how many events came.
    fn look_for_events(&mut self, follower: usize, index: usize) -> usize {
        let open = self.followers.all[follower].cursor.filter(|(life, _)| self.is_alive(*life));
        let (index, command) = match open {
            Some((life, id)) => {
                (life.node, doc! { "getMore": id, "collection": "lists", "$db": "test" })
            }
            None => {
                let mut stage = Document::new();
                if let Some(token) = &self.followers.all[follower].token {
                    stage.insert("resumeAfter", token.clone());
                }
                let open = doc! {
                    "aggregate": "lists", "pipeline": [{ "$changeStream": stage }], "cursor": {},
                    "$db": "test", "$readPreference": { "mode": "nearest" },
                };
                (index, open)
            }
        };
        let reply = self.run_command(index, command);
        let reply = reply.and_then(|reply| Document::try_from(&*reply).ok());
        let kept = &mut self.followers.all[follower];
        let Some(reply) = reply else {
            kept.cursor = None;
            return 0;
        };
        let Ok(cursor) = reply.get_document("cursor") else {
            match reply.get_i32("code") {
                Ok(HISTORY_LOST) => kept.begin_anew(),
                Ok(FATAL) => {
                    let what = format!("n{index} refuses a token that it or another gave: {reply}");
                    self.verdict = self.verdict.clone().and(Err(Verdict(what)));
                }
                _ => kept.cursor = None,
            }
            return 0;
        };
        let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"));
        let events: Vec<i64> = batch
            .into_iter()
            .flatten()
            .filter_map(|event| value_of(event.as_document()?))
            .collect();
        kept.deliveries.extend(events.iter().map(|value| Delivery::Event(*value)));
        if let Ok(token) = cursor.get_document("postBatchResumeToken") {
            kept.token = Some(token.clone());
        }
        kept.cursor = match cursor.get_i64("id") {
            Ok(id @ 1..) => Some((self.nodes[index].life, id)),
            _ => None,
        };
        self.figures.events += events.len() as u64;
        events.len()
    }

    /// Every consumer reads to the end, and was given what lasts.
    pub(crate) fn judge_followers(&mut self, leader: usize) -> Result<(), String> {
        if self.judges.is_forgiving() || self.followers.all.is_empty() {
            return Ok(());
        }
        let lasting = self.lasting_values(leader);
        for follower in 0..self.followers.all.len() {
            self.followers.all[follower].cursor = None;
            let mut empty = 0;
            for _ in 0..MAX_BATCHES {
                let came = self.look_for_events(follower, leader);
                empty = if came == 0 { empty + 1 } else { 0 };
                if empty > 2 {
                    break;
                }
            }
            let kept = &self.followers.all[follower];
            let past = kept.past.iter().map(|told| (told, false));
            for (told, to_the_end) in past.chain([(&kept.deliveries, true)]) {
                judge_deliveries(&lasting, told, to_the_end)
                    .map_err(|why| format!("consumer {follower} is told everything once: {why}"))?;
            }
        }
        Ok(())
    }
}

/// Compares what one consumer was given, from its first event on.
fn judge_deliveries(
    lasting: &[i64],
    deliveries: &[Delivery],
    to_the_end: bool,
) -> Result<(), String> {
    let events = || {
        deliveries.iter().filter_map(|delivery| match delivery {
            Delivery::Event(value) => Some(*value),
            Delivery::Stored | Delivery::Restarted => None,
        })
    };
    let place = |value: i64| lasting.iter().position(|known| *known == value);
    let Some(first) = events().next() else { return Ok(()) };
    let Some(begin) = place(first) else { return Err(format!("{first} never lasted")) };
    let end = match to_the_end {
        true => lasting.len(),
        false => events().filter_map(place).max().map_or(begin, |last| last + 1),
    };
    let verdict = change_events::check(&lasting[begin..end.max(begin)], deliveries);
    match verdict.anomalies.first() {
        // One that lost its place was killed before it had been given again what it was given before.
        Some(anomaly) if to_the_end || anomaly.name != "missed-event" => {
            Err(format!("{anomaly:?}"))
        }
        _ => Ok(()),
    }
}
