//! What operators are shown of open streams: how far behind they are, and when they will be lost.

use bson::{Bson, Document, doc};
use quorate_protocol::Timestamp;
use quorate_wire::to_bson_timestamp;

use crate::context::Now;
use crate::cursors::OpenStream;
use crate::error::Result;
use crate::node::Node;

/// How a stream stands to the oplog, in seconds of the members' clocks.
struct Standing {
    /// From where it has looked to the newest committed entry.
    behind: u64,
    /// From the oldest entry to where it has looked: what may be trimmed before it is lost, at the pace of
    /// the writes so far.
    left: u64,
}

impl Standing {
    fn of(position: Timestamp, oldest: Timestamp, committed: Timestamp) -> Self {
        let seconds = |time: Timestamp| u64::from(time.seconds);
        Self {
            behind: seconds(committed).saturating_sub(seconds(position)),
            left: seconds(position).saturating_sub(seconds(oldest)),
        }
    }
}

impl Node {
    fn standings(&self) -> Result<Vec<(OpenStream, Standing)>> {
        let streams = self.cursors().streams();
        if streams.is_empty() {
            return Ok(Vec::new());
        }
        let oldest = self.oldest_entry()?.timestamp;
        let committed = self.standing().commit_point.op_time.timestamp;
        let room = self.change_feed().room();
        let waiting = room.lock().positions();
        let standings = streams.into_iter().map(|mut stream| {
            if let Some(position) = waiting.get(&stream.id) {
                stream.position = stream.position.max(Timestamp::from_u64(*position));
            }
            let standing = Standing::of(stream.position, oldest, committed);
            (stream, standing)
        });
        Ok(standings.collect())
    }

    /// `serverStatus.changeStreams`.
    pub(crate) fn change_stream_statistics(&self) -> Result<Document> {
        let standings = self.standings()?;
        let number = |count: u64| Bson::Int64(count as i64);
        let room = self.change_feed().room();
        let (asked, woken) = room.lock().figures();
        let mut shown = doc! {
            "open": number(standings.len() as u64),
            "entriesRead": number(self.change_feed().decoded()),
            "filtersAsked": number(asked),
            "wokenUp": number(woken),
        };
        let behind = standings.iter().map(|(_, standing)| standing.behind).max();
        // Those that keep up lose nothing, however short the log is.
        let late = standings.iter().filter(|(_, standing)| standing.behind > 0);
        let left = late.map(|(_, standing)| standing.left).min();
        shown.insert("mostSecondsBehind", number(behind.unwrap_or(0)));
        if let Some(left) = left {
            shown.insert("leastSecondsLeft", number(left));
        }
        Ok(shown)
    }

    /// The streams that no command uses, as `$currentOp` shows idle cursors.
    pub(crate) fn idle_streams(&self, now: Now) -> Result<Vec<Document>> {
        let idle = self.standings()?.into_iter().filter(|(stream, _)| !stream.in_use);
        let shown = idle.map(|(stream, standing)| {
            let mut shown = doc! {
                "type": "idleCursor",
                "host": &self.options().host,
                "ns": stream.namespace.to_string(),
                "cursor": {
                    "cursorId": stream.id,
                    "tailable": true,
                    "awaitData": true,
                    "idleMicros": now.monotonic.since(stream.last_used).as_micros() as i64,
                },
                "changeStream": {
                    "position": to_bson_timestamp(stream.position),
                    "secondsBehind": standing.behind as i64,
                    "secondsLeft": standing.left as i64,
                },
            };
            if let Some(session) = &stream.session {
                shown.insert("lsid", session.to_lsid());
            }
            if let Some(owner) = &stream.owner {
                shown.insert(
                    "effectiveUsers",
                    vec![doc! { "user": &owner.name, "db": &owner.database }],
                );
            }
            shown
        });
        Ok(shown.collect())
    }
}
