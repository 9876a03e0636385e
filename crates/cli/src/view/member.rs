//! One member: what the client believes, what the member says, and what the others say of it.

use std::sync::Arc;
use std::time::Duration;

use quorate_client::pool::{PoolCounts, PoolEventKind};
use quorate_protocol::{HelloReply, MonotonicTime, ServerAddress, Timestamp};
use quorate_server_discovery::ServerDescription;

use super::difference::Difference;
use super::log::Age;
use super::reply::{Counters, Explanation, SetStatus};
use super::ring::Ring;

/// How many round trips are kept.
pub(crate) const MAX_ROUND_TRIPS: usize = 120;

/// Something went wrong with a member: why and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// When it was noticed last.
    pub(crate) at: MonotonicTime,
    /// Why, safe to show.
    pub(crate) reason: String,
}

/// What a member answers when asked directly.
#[derive(Clone, Debug, Default)]
pub(crate) enum Own {
    /// The member was not asked yet.
    #[default]
    NotAsked,
    /// The member answered.
    Answered {
        at: MonotonicTime,
        /// What it said.
        hello: Arc<HelloReply>,
    },
    /// The member did not answer.
    Silent {
        since: MonotonicTime,
        /// Why, safe to show.
        reason: String,
    },
}

quorate_protocol::named! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) enum PoolPhase {
        /// There is no pool, or the pool is closed.
        #[default]
        Closed = "closed",
        /// The pool gives no connections, because the server is not known.
        Paused = "paused",
        /// The pool gives connections.
        Ready = "ready",
    }
}

/// The client's pool of connections to a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Whether it gives connections.
    pub(crate) phase: PoolPhase,
    /// How many connections it has.
    pub(crate) counts: PoolCounts,
    /// How often it was cleared.
    pub(crate) cleared: u32,
}

impl Pool {
    /// How many connections are in use.
    pub(crate) fn in_use(&self) -> usize {
        self.counts.total.saturating_sub(self.counts.available + self.counts.pending)
    }

    pub(super) fn on_event(&mut self, kind: &PoolEventKind) {
        match kind {
            PoolEventKind::PoolCreated { .. } => self.phase = PoolPhase::Paused,
            PoolEventKind::PoolReady => self.phase = PoolPhase::Ready,
            PoolEventKind::PoolCleared { service_id, .. } => {
                self.cleared += 1;
                // Behind a load balancer only one service's connections are stale.
                if service_id.is_none() {
                    self.phase = PoolPhase::Paused;
                }
            }
            PoolEventKind::PoolClosed => *self = Self::default(),
            _ => {}
        }
    }
}

/// What became of a process that we started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// The process runs.
    Running,
    /// The process is stopped by a signal and its sockets stay open, as with a host that hangs.
    Paused,
    /// No message passes between the member and the others.
    Partitioned,
    /// The process has ended, and how.
    Gone(String),
}

impl Process {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Partitioned => "partitioned",
            Self::Gone(_) => "gone",
        }
    }
}

/// What clients do at a member: counted, or a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load<T> {
    /// Documents inserted, updated and deleted.
    pub(crate) writes: Option<T>,
    /// Queries and further batches.
    pub(crate) reads: Option<T>,
    /// Connections that are open.
    pub(crate) connections: Option<u64>,
    /// Its transactions, where it has any to tell of.
    pub(crate) transactions: Option<Transactions<T>>,
}

/// Operations a second, from two readings of the counters.
pub(crate) type Rates = Load<f64>;

/// The open transactions of a member and what they cost others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Transactions<T = f64> {
    pub(crate) open: u64,
    /// How long the oldest of them is open. Ours tell it, others do not.
    pub(crate) oldest: Option<Duration>,
    /// Plain writes that wait for one of them.
    pub(crate) waiting_writes: Option<u64>,
    /// Conflicts: counted, or a second.
    pub(crate) conflicts: Option<T>,
}

impl Transactions {
    /// Whether there is anything to tell.
    fn any(&self) -> bool {
        self.open > 0
            || self.waiting_writes.is_some_and(|writes| writes > 0)
            || self.conflicts.is_some_and(|rate| rate > 0.0)
    }

    /// In words; none if no transaction is open and none met another.
    pub(crate) fn words(&self) -> Option<String> {
        if !self.any() {
            return None;
        }
        let plural = if self.open == 1 { "" } else { "s" };
        let mut words = format!("{} open transaction{plural}", self.open);
        if let Some(oldest) = self.oldest.filter(|_| self.open > 0) {
            words.push_str(&format!(", the oldest for {}", Age(oldest)));
        }
        if let Some(rate) = self.conflicts {
            words.push_str(&format!(", {rate:.0} conflicts/s"));
        }
        match self.waiting_writes {
            Some(0) | None => {}
            Some(1) => words.push_str(", 1 write waits for them"),
            Some(writes) => words.push_str(&format!(", {writes} writes wait for them")),
        }
        Some(words)
    }
}

/// Everything that is known about one member.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(super) address: ServerAddress,
    /// `None` once the client has dropped it.
    pub(super) belief: Option<Arc<ServerDescription>>,
    /// Why the client dropped it.
    pub(super) dropped: Option<Trouble>,
    pub(super) own: Own,
    pub(super) round_trips: Ring<Option<Duration>>,
    /// What it last said of its set, and when.
    pub(super) status: Option<(MonotonicTime, SetStatus)>,
    pub(super) explanation: Option<Explanation>,
    /// The oldest entry of its oplog.
    pub(super) oldest_entry: Option<Timestamp>,
    counters: Option<(MonotonicTime, Counters)>,
    pub(super) rates: Rates,
    pub(super) pool: Pool,
    pub(super) trouble: Option<Trouble>,
    pub(super) process: Option<(u32, Process)>,
    pub(super) differences: Vec<Difference>,
    pub(super) copying: bool,
    /// Whether it is locked by `fsync`.
    pub(super) locked: bool,
    /// Why it tells less than it could.
    pub(super) login: Option<String>,
}

impl Member {
    pub(super) fn new(address: ServerAddress) -> Self {
        Self {
            address,
            belief: None,
            dropped: None,
            own: Own::default(),
            round_trips: Ring::new(MAX_ROUND_TRIPS),
            status: None,
            explanation: None,
            oldest_entry: None,
            counters: None,
            rates: Rates::default(),
            pool: Pool::default(),
            trouble: None,
            process: None,
            differences: Vec::new(),
            copying: false,
            locked: false,
            login: None,
        }
    }

    /// Its own hello, if it answered the last time it was asked.
    pub(crate) fn hello(&self) -> Option<&HelloReply> {
        match &self.own {
            Own::Answered { hello, .. } => Some(hello),
            _ => None,
        }
    }

    /// Its own status, if it still answers.
    pub(super) fn own_status(&self) -> Option<&SetStatus> {
        self.hello()?;
        self.status.as_ref().map(|(_, status)| status)
    }

    pub(super) fn on_hello(
        &mut self,
        now: MonotonicTime,
        outcome: Result<(Arc<HelloReply>, Duration), String>,
    ) {
        match outcome {
            Ok((hello, round_trip)) => {
                self.round_trips.push(Some(round_trip));
                self.own = Own::Answered { at: now, hello };
            }
            Err(reason) => {
                self.round_trips.push(None);
                let since = match &self.own {
                    Own::Silent { since, .. } => *since,
                    _ => now,
                };
                self.trouble = Some(Trouble { at: now, reason: reason.clone() });
                self.own = Own::Silent { since, reason };
                self.rates = Rates::default();
                self.counters = None;
                self.oldest_entry = None;
            }
        }
    }

    pub(super) fn on_pool_counts(&mut self, counts: PoolCounts) {
        self.pool.counts = counts;
        // Of a pool that was made before the view began, no event told.
        if self.pool.phase == PoolPhase::Closed {
            let known = self.belief.as_ref().is_some_and(|belief| belief.server_type().is_known());
            self.pool.phase = if known { PoolPhase::Ready } else { PoolPhase::Paused };
        }
    }

    pub(super) fn on_counters(&mut self, now: MonotonicTime, counters: Counters) {
        let before = self.counters.replace((now, counters));
        let rate = |field: fn(&Counters) -> Option<u64>| {
            let (then, earlier) = before.as_ref()?;
            let seconds = now.since(*then).as_secs_f64();
            // Counters begin anew with the process.
            let passed = field(&counters)?.checked_sub(field(earlier)?)?;
            (seconds > 0.0).then(|| passed as f64 / seconds)
        };
        self.rates = Rates {
            writes: rate(|counters| counters.writes),
            reads: rate(|counters| counters.reads),
            connections: counters.connections,
            transactions: counters.transactions.map(|told| Transactions {
                open: told.open,
                oldest: told.oldest,
                waiting_writes: told.waiting_writes,
                conflicts: rate(|counters| counters.transactions?.conflicts),
            }),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_from_two_readings_of_one_process() {
        let mut member = Member::new("a:1".parse().unwrap());
        let counters = |writes| Counters { writes: Some(writes), ..Counters::default() };
        member.on_counters(MonotonicTime::from_millis(0), counters(10));
        assert_eq!(member.rates.writes, None);
        member.on_counters(MonotonicTime::from_millis(2000), counters(30));
        assert_eq!(member.rates.writes, Some(10.0));
        member.on_counters(MonotonicTime::from_millis(4000), counters(3));
        assert_eq!(member.rates.writes, None, "the process began anew");
    }

    #[test]
    fn a_pool_follows_its_events() {
        let mut pool = Pool::default();
        pool.on_event(&PoolEventKind::PoolReady);
        assert_eq!(pool.phase, PoolPhase::Ready);
        let cleared =
            PoolEventKind::PoolCleared { service_id: None, interrupt_in_use_connections: false };
        pool.on_event(&cleared);
        assert_eq!((pool.phase, pool.cleared), (PoolPhase::Paused, 1));
        pool.counts = PoolCounts { total: 5, available: 2, pending: 1, waiting: 0 };
        assert_eq!(pool.in_use(), 2);
        pool.on_event(&PoolEventKind::PoolClosed);
        assert_eq!(pool, Pool::default());
    }

    #[test]
    fn silence_is_counted_from_its_beginning() {
        let mut member = Member::new("a:1".parse().unwrap());
        member.on_hello(MonotonicTime::from_millis(1), Err("refused".to_owned()));
        member.on_hello(MonotonicTime::from_millis(9), Err("timed out".to_owned()));
        let Own::Silent { since, reason } = &member.own else { panic!("{:?}", member.own) };
        assert_eq!((*since, reason.as_str()), (MonotonicTime::from_millis(1), "timed out"));
        assert_eq!(member.trouble.unwrap().at, MonotonicTime::from_millis(9));
        assert_eq!(member.round_trips.len(), 2);
    }
}
