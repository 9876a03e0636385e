//! What a member knows of another one.
//!
//! Filled by heartbeats and progress reports; read by every sub-machine. Holds no rule but the one that says
//! which of two pieces of news about a position is the newer.

use std::time::Duration;

use quorate_protocol::{
    ConfigVersion, HeartbeatReply, MemberId, MemberPosition, MemberState, MonotonicTime,
    OpTimeAndWallTime, ServerAddress, Term, Timestamp,
};

use crate::input::{RequestId, Unreachable};

/// Whether a member answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// Nothing was heard yet.
    Unheard,
    /// The member answers.
    Up,
    /// The member does not answer.
    Down {
        /// Since when.
        since: MonotonicTime,
        /// The cause.
        cause: Unreachable,
    },
}

/// A heartbeat under way, with its retries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeartbeatRound {
    pub(crate) request: RequestId,
    pub(crate) started: MonotonicTime,
    pub(crate) sent: MonotonicTime,
    pub(crate) attempts: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) id: MemberId,
    pub(crate) address: ServerAddress,
    pub(crate) contact: Contact,
    /// Since when it answers without a break, as far as it is up.
    pub(crate) up_since: Option<MonotonicTime>,
    pub(crate) last_heard: Option<MonotonicTime>,
    pub(crate) last_heartbeat_received: Option<MonotonicTime>,
    pub(crate) round: Option<HeartbeatRound>,
    /// Its connection was reset lately; a refusal now means that its process is gone.
    pub(crate) was_reset: bool,
    pub(crate) authentication_failed: bool,
    pub(crate) state: MemberState,
    pub(crate) term: Term,
    pub(crate) config_version: Option<ConfigVersion>,
    pub(crate) syncing_to: Option<ServerAddress>,
    pub(crate) electable: bool,
    /// The primary that it told of in its last reply.
    pub(crate) told_primary: Option<MemberId>,
    pub(crate) written: OpTimeAndWallTime,
    pub(crate) applied: OpTimeAndWallTime,
    pub(crate) durable: OpTimeAndWallTime,
    pub(crate) election_time: Option<Timestamp>,
    pub(crate) ping: Option<Duration>,
    pub(crate) pings: u32,
    position_reported: Option<MonotonicTime>,
}

impl Peer {
    pub(crate) fn new(id: MemberId, address: ServerAddress) -> Self {
        Self {
            id,
            address,
            contact: Contact::Unheard,
            up_since: None,
            last_heard: None,
            last_heartbeat_received: None,
            round: None,
            was_reset: false,
            authentication_failed: false,
            state: MemberState::Unknown,
            term: Term::default(),
            config_version: None,
            syncing_to: None,
            electable: false,
            told_primary: None,
            written: OpTimeAndWallTime::default(),
            applied: OpTimeAndWallTime::default(),
            durable: OpTimeAndWallTime::default(),
            election_time: None,
            ping: None,
            pings: 0,
            position_reported: None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.contact == Contact::Up
    }

    /// The state to show: what it last said, or that it does not answer.
    pub(crate) fn shown_state(&self) -> MemberState {
        match self.contact {
            Contact::Unheard => MemberState::Unknown,
            Contact::Up => self.state,
            Contact::Down { .. } => MemberState::Down,
        }
    }

    /// Whether it holds entries that others may compare with theirs.
    pub(crate) fn shows_entries(&self) -> bool {
        self.is_up()
            && matches!(
                self.state,
                MemberState::Primary | MemberState::Secondary | MemberState::Recovering
            )
    }

    /// Takes a heartbeat's reply.
    pub(crate) fn hear(&mut self, now: MonotonicTime, sent: MonotonicTime, reply: &HeartbeatReply) {
        if !self.is_up() || self.was_reset {
            self.up_since = Some(now);
        }
        self.contact = Contact::Up;
        self.last_heard = Some(now);
        self.was_reset = false;
        self.authentication_failed = false;
        self.state = reply.state;
        self.term = self.term.max(reply.term);
        self.config_version = reply.config_version;
        self.syncing_to = reply.syncing_to.clone();
        self.electable = reply.electable;
        self.told_primary = reply.primary_id;
        self.election_time = reply.election_time;
        // The reply is the newest word, also backwards (after a rollback or a wipe), unless a
        // progress report came while it was under way: then it may be older than that.
        if self.position_reported.is_none_or(|at| at < sent) {
            self.written = reply.written;
            self.applied = reply.applied;
            self.durable = reply.durable;
        } else {
            self.advance(reply.written, reply.applied, reply.durable);
        }
    }

    /// Takes a progress report. Whether it moved anything.
    pub(crate) fn hear_position(&mut self, now: MonotonicTime, position: &MemberPosition) -> bool {
        self.last_heard = Some(now);
        self.position_reported = Some(now);
        let before = (self.written, self.applied, self.durable);
        self.advance(position.written, position.applied, position.durable);
        before != (self.written, self.applied, self.durable)
    }

    fn advance(
        &mut self,
        written: OpTimeAndWallTime,
        applied: OpTimeAndWallTime,
        durable: OpTimeAndWallTime,
    ) {
        self.written = self.written.max(written);
        self.applied = self.applied.max(applied);
        self.durable = self.durable.max(durable);
    }

    /// Averages in a round trip: (4·old + new) / 5.
    pub(crate) fn measure(&mut self, round_trip: Duration) {
        self.pings = self.pings.saturating_add(1);
        self.ping = Some(match self.ping {
            None => round_trip,
            Some(old) => (old * 4 + round_trip) / 5,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{member, stamp};

    fn peer() -> Peer {
        Peer::new(MemberId(1), member(1).host)
    }

    fn reply(seconds: u32) -> HeartbeatReply {
        HeartbeatReply {
            set_name: "rs0".into(),
            state: MemberState::Secondary,
            config_version: None,
            term: Term(1),
            primary_id: None,
            syncing_to: None,
            electable: true,
            written: stamp(1, seconds),
            applied: stamp(1, seconds),
            durable: stamp(1, seconds),
            commit_point: stamp(1, 1),
            election_time: None,
            config: None,
            has_data: false,
            replica_set_id: None,
        }
    }

    #[test]
    fn pings_are_averaged_four_to_one() {
        let mut peer = peer();
        peer.measure(Duration::from_millis(10));
        assert_eq!(peer.ping, Some(Duration::from_millis(10)));
        peer.measure(Duration::from_millis(60));
        assert_eq!((peer.ping, peer.pings), (Some(Duration::from_millis(20)), 2));
    }

    #[test]
    fn a_heartbeat_moves_a_position_back_unless_a_report_overtook_it() {
        let at = MonotonicTime::from_millis;
        let mut peer = peer();
        peer.hear(at(10), at(5), &reply(9));
        peer.hear(at(20), at(15), &reply(4));
        assert_eq!(peer.applied, stamp(1, 4), "it rolled back");
        let position = MemberPosition {
            member: peer.id,
            config_version: 1,
            written: stamp(1, 8),
            applied: stamp(1, 8),
            durable: stamp(1, 7),
        };
        assert!(peer.hear_position(at(30), &position));
        assert!(!peer.hear_position(at(31), &position));
        peer.hear(at(40), at(25), &reply(5));
        assert_eq!(peer.durable, stamp(1, 7), "the reply is older than the report");
    }
}
