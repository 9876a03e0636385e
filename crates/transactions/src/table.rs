//! The sessions with a transaction that is not in the log, and the open transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_protocol::{MonotonicTime, OpTime};

use crate::keys::{Conflict, Keys, Mark, cost};
use crate::verdict::{AbortReason, Arrival, Kind, Refusal, Stored, StoredState, Verdict};

/// The most bytes of changes that one transaction may hold until it commits.
pub const MAX_TRANSACTION_BYTES: usize = 256 * 1024 * 1024;

/// The most bytes of changes that all open transactions may hold.
const MAX_OPEN_BYTES: usize = 1024 * 1024 * 1024;

/// The most bytes of keys that are remembered as changed since the oldest open snapshot. Beyond it
/// the oldest transaction is aborted.
pub const MAX_RECENT_BYTES: usize = 64 * 1024 * 1024;

/// How long a transaction may live unless the host says otherwise: the manual's
/// `transactionLifetimeLimitSeconds`.
const LIFETIME: Duration = Duration::from_secs(60);

/// An open transaction of this member. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(u64);

impl TransactionId {
    /// The number, for messages and maps of the host.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// What transactions may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// How long one may live.
    pub lifetime: Duration,
    /// The most bytes of changes that one may hold.
    pub transaction_bytes: usize,
    /// The most bytes of changes that all may hold.
    pub open_bytes: usize,
    /// The most bytes of keys remembered as changed since the oldest open snapshot.
    pub recent_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lifetime: LIFETIME,
            transaction_bytes: MAX_TRANSACTION_BYTES,
            open_bytes: MAX_OPEN_BYTES,
            recent_bytes: MAX_RECENT_BYTES,
        }
    }
}

/// How many there were, for `serverStatus.transactions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Statistics {
    /// Begun since the start.
    pub started: u64,
    /// Committed since the start.
    pub committed: u64,
    /// Aborted since the start.
    pub aborted: u64,
    /// Open now.
    pub open: u64,
    /// Open, with a statement running.
    pub active: u64,
    /// Refused with a write conflict since the start.
    pub conflicts: u64,
}

/// An open transaction, for `$currentOp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<S> {
    /// The transaction.
    pub transaction: TransactionId,
    /// Its session.
    pub session: S,
    /// Its number.
    pub number: i64,
    /// When it began.
    pub since: MonotonicTime,
    /// Whether a statement is running.
    pub active: bool,
    /// The bytes of changes that it holds.
    pub bytes: usize,
    /// How many keys it holds.
    pub keys: usize,
}

/// A session's newest number that is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Session {
    number: i64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    InProgress(TransactionId),
    Aborted,
    /// It changed nothing, so the log does not tell of it.
    CommittedNothing(OpTime),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Open<S> {
    session: S,
    number: i64,
    since: MonotonicTime,
    snapshot: Mark,
    read_at: OpTime,
    running: bool,
    bytes: usize,
    keys: BTreeSet<Vec<u8>>,
}

/// See the crate's opening comment. `S` identifies sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transactions<S> {
    limits: Limits,
    sessions: BTreeMap<S, Session>,
    open: BTreeMap<TransactionId, Open<S>>,
    /// Transactions that ended while a statement of theirs was running, which will ask why.
    cut_short: BTreeMap<TransactionId, (i64, AbortReason)>,
    keys: Keys,
    held_bytes: usize,
    /// Those that have ended since the host asked.
    ended: Vec<TransactionId>,
    next: u64,
    /// What has happened since the start; what is open now is counted when it is asked for.
    counted: Statistics,
}

impl<S: Clone + Ord> Default for Transactions<S> {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<S: Clone + Ord> Transactions<S> {
    /// No transactions.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            sessions: BTreeMap::new(),
            open: BTreeMap::new(),
            cut_short: BTreeMap::new(),
            keys: Keys::default(),
            held_bytes: 0,
            ended: Vec::new(),
            next: 1,
            counted: Statistics::default(),
        }
    }

    /// Changes how long transactions may live, open ones included.
    pub fn set_lifetime(&mut self, lifetime: Duration) {
        self.limits.lifetime = lifetime;
    }

    /// How long transactions may live.
    pub fn lifetime(&self) -> Duration {
        self.limits.lifetime
    }

    /// A command with a transaction number has arrived. `stored` is what the log says about its
    /// session; `last` is the newest entry of the log, which a snapshot that is taken now shows.
    pub fn arrive(
        &mut self,
        session: &S,
        arrival: Arrival,
        stored: Option<Stored>,
        last: OpTime,
        now: MonotonicTime,
    ) -> Verdict {
        let Arrival { number, kind } = arrival;
        let logged = stored.map_or(-1, |stored| stored.number);
        // What the log has overtaken is no news.
        let memory = self.sessions.get(session).copied().filter(|known| known.number > logged);
        let newest = memory.map_or(logged, |known| known.number);
        if number < newest {
            return Verdict::Refuse(Refusal::TooOld { number, newest });
        }
        if number > newest {
            return self.arrive_greater(session, arrival, newest, last, now);
        }
        match (memory, stored) {
            (Some(Session { state: State::InProgress(id), .. }), _) => {
                self.arrive_open(id, arrival)
            }
            (Some(_), _) if kind == Kind::RetryableWrite => {
                Verdict::Refuse(Refusal::OtherUse { number })
            }
            (Some(Session { state: State::CommittedNothing(at), .. }), _) => match kind {
                Kind::Commit => Verdict::CommittedBefore(at),
                _ => Verdict::Refuse(Refusal::Committed { number }),
            },
            (Some(_), _) if kind == Kind::Commit => {
                Verdict::CommitUnknown(Refusal::Aborted { number })
            }
            (Some(_), _) => Verdict::Refuse(Refusal::Aborted { number }),
            (None, Some(Stored { state: StoredState::RetryableWrite, .. })) => match kind {
                Kind::RetryableWrite => Verdict::RetryableWrite,
                _ => Verdict::Refuse(Refusal::OtherUse { number }),
            },
            (None, Some(Stored { state: StoredState::Committed(at), .. })) => match kind {
                Kind::Commit => Verdict::CommittedBefore(at),
                Kind::RetryableWrite => Verdict::Refuse(Refusal::OtherUse { number }),
                _ => Verdict::Refuse(Refusal::Committed { number }),
            },
            // A number of −1 where nothing is known.
            (None, None) => Verdict::Refuse(Refusal::NoSuch { number, newest }),
        }
    }

    fn arrive_greater(
        &mut self,
        session: &S,
        arrival: Arrival,
        newest: i64,
        last: OpTime,
        now: MonotonicTime,
    ) -> Verdict {
        let Arrival { number, kind } = arrival;
        match kind {
            Kind::Start => {
                self.end_session(session, AbortReason::Superseded);
                Verdict::Begin(self.begin(session, number, last, now))
            }
            Kind::RetryableWrite => {
                self.end_session(session, AbortReason::Superseded);
                Verdict::RetryableWrite
            }
            Kind::Continue | Kind::Abort => Verdict::Refuse(Refusal::NoSuch { number, newest }),
            Kind::Commit => Verdict::CommitUnknown(Refusal::NoSuch { number, newest }),
        }
    }

    fn arrive_open(&mut self, id: TransactionId, arrival: Arrival) -> Verdict {
        let Arrival { number, kind } = arrival;
        let Some(open) = self.open.get_mut(&id) else {
            return Verdict::Refuse(Refusal::Aborted { number });
        };
        match kind {
            Kind::Start => Verdict::Refuse(Refusal::StartedBefore { number }),
            Kind::RetryableWrite => Verdict::Refuse(Refusal::OtherUse { number }),
            // A driver that lost the connection aborts while the statement still runs; that
            // statement then finds its transaction gone.
            Kind::Abort => {
                self.abort(id, AbortReason::Asked);
                Verdict::Aborted(id)
            }
            Kind::Continue | Kind::Commit if open.running => {
                Verdict::Refuse(Refusal::Busy { number })
            }
            Kind::Continue => {
                open.running = true;
                Verdict::Proceed(id)
            }
            Kind::Commit => {
                open.running = true;
                Verdict::Commit { transaction: id, read_at: open.read_at }
            }
        }
    }

    fn begin(
        &mut self,
        session: &S,
        number: i64,
        last: OpTime,
        now: MonotonicTime,
    ) -> TransactionId {
        let id = TransactionId(self.next);
        self.next += 1;
        self.counted.started += 1;
        let open = Open {
            session: session.clone(),
            number,
            since: now,
            snapshot: self.keys.now(),
            read_at: last,
            running: true,
            bytes: 0,
            keys: BTreeSet::new(),
        };
        self.open.insert(id, open);
        self.sessions.insert(session.clone(), Session { number, state: State::InProgress(id) });
        id
    }

    /// A transaction is about to change a key. Claims it, or says why not; the host then fails the
    /// statement, which aborts the transaction.
    ///
    /// # Errors
    ///
    /// If another transaction is in the way, this one has ended, or it holds too much.
    pub fn claim(&mut self, id: TransactionId, key: &[u8]) -> Result<(), Refusal> {
        let Some(open) = self.open.get(&id) else { return Err(self.gone(id)) };
        if self.keys.check(id, open.snapshot, key).is_err() {
            self.counted.conflicts += 1;
            return Err(Refusal::WriteConflict);
        }
        if !open.keys.contains(key) {
            self.grow(id, cost(key))?;
            self.keys.hold(id, key);
            if let Some(open) = self.open.get_mut(&id) {
                open.keys.insert(key.to_vec());
            }
        }
        Ok(())
    }

    /// Why a transaction could not claim a key, without claiming it.
    pub fn conflict(&self, id: TransactionId, key: &[u8]) -> Option<Conflict> {
        let open = self.open.get(&id)?;
        self.keys.check(id, open.snapshot, key).err()
    }

    /// A transaction holds more bytes of changes.
    ///
    /// # Errors
    ///
    /// If that is too much, or the transaction has ended.
    pub fn grow(&mut self, id: TransactionId, bytes: usize) -> Result<(), Refusal> {
        let gone = self.gone(id);
        let Some(open) = self.open.get_mut(&id) else { return Err(gone) };
        if open.bytes.saturating_add(bytes) > self.limits.transaction_bytes {
            return Err(Refusal::TooLarge { limit: self.limits.transaction_bytes });
        }
        if self.held_bytes.saturating_add(bytes) > self.limits.open_bytes {
            return Err(Refusal::NoRoom { limit: self.limits.open_bytes });
        }
        open.bytes += bytes;
        self.held_bytes += bytes;
        Ok(())
    }

    /// The open transaction that a plain write of this key has to wait for.
    pub fn holder(&self, key: &[u8]) -> Option<TransactionId> {
        self.keys.holder(key)
    }

    /// Whether plain writes may go ahead without asking about keys or telling of them.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// A plain write is about to commit a change of this key. Returns the transactions that had to
    /// end, because too many keys have changed since their snapshots.
    pub fn changed(&mut self, key: &[u8]) -> Vec<TransactionId> {
        if self.open.is_empty() {
            return Vec::new();
        }
        self.keys.changed(key);
        let mut ended = Vec::new();
        while self.keys.recent_bytes() > self.limits.recent_bytes {
            let Some((&oldest, _)) = self.open.iter().min_by_key(|(_, open)| open.snapshot) else {
                break;
            };
            self.abort(oldest, AbortReason::TooFarBehind);
            ended.push(oldest);
        }
        ended
    }

    /// A statement has ended. A failed one aborts the transaction.
    ///
    /// # Errors
    ///
    /// If the transaction ended meanwhile: the statement's result must not be told.
    pub fn finish(&mut self, id: TransactionId, succeeded: bool) -> Result<(), Refusal> {
        let Some(open) = self.open.get_mut(&id) else {
            let refusal = self.gone(id);
            self.cut_short.remove(&id);
            return Err(refusal);
        };
        open.running = false;
        if !succeeded {
            self.abort(id, AbortReason::Failed);
        }
        Ok(())
    }

    /// The transactions that have ended since this was asked last, either way: the host lets go of what it holds for
    /// them.
    pub fn take_ended(&mut self) -> Vec<TransactionId> {
        std::mem::take(&mut self.ended)
    }

    /// Whether a transaction is open.
    pub fn is_open(&self, id: TransactionId) -> bool {
        self.open.contains_key(&id)
    }

    /// Whether the transaction of a session with this number is open. The log then has no newer number of the session.
    pub fn has_open(&self, session: &S, number: i64) -> bool {
        let known = self.sessions.get(session).filter(|known| known.number == number);
        matches!(known, Some(Session { state: State::InProgress(_), .. }))
    }

    /// The host has committed a transaction: its changes, with the row that says so, are in the store.
    /// One that changed nothing leaves no row: only this value knows of it, and a primary that does not
    /// may have it repeated, which does no harm.
    pub fn committed(&mut self, id: TransactionId) {
        let Some(open) = self.open.remove(&id) else { return };
        self.ended.push(id);
        self.counted.committed += 1;
        self.held_bytes -= open.bytes;
        self.keys.release(&open.keys);
        for key in &open.keys {
            self.keys.changed(key);
        }
        if open.keys.is_empty() {
            let state = State::CommittedNothing(open.read_at);
            self.sessions.insert(open.session, Session { number: open.number, state });
        } else {
            self.sessions.remove(&open.session);
        }
        self.forget_changes();
    }

    /// Ends a transaction without its changes. Returns whether it was open.
    pub fn abort(&mut self, id: TransactionId, reason: AbortReason) -> bool {
        let Some(open) = self.open.remove(&id) else { return false };
        self.ended.push(id);
        self.counted.aborted += 1;
        self.held_bytes -= open.bytes;
        self.keys.release(&open.keys);
        if open.running {
            self.cut_short.insert(id, (open.number, reason));
        }
        if let Some(session) = self.sessions.get_mut(&open.session) {
            session.state = State::Aborted;
        }
        self.forget_changes();
        true
    }

    /// Ends the open transaction of a session, if it has one.
    pub fn end_session(&mut self, session: &S, reason: AbortReason) -> Option<TransactionId> {
        let known = self.sessions.get(session)?;
        let State::InProgress(id) = known.state else { return None };
        self.abort(id, reason);
        Some(id)
    }

    /// Forgets what is known about sessions that are no more. Their transactions end.
    pub fn forget_sessions(&mut self, gone: impl Fn(&S) -> bool) -> Vec<TransactionId> {
        let forgotten: Vec<S> = self.sessions.keys().filter(|known| gone(known)).cloned().collect();
        let mut ended = Vec::new();
        for session in forgotten {
            ended.extend(self.end_session(&session, AbortReason::Killed));
            self.sessions.remove(&session);
        }
        ended
    }

    /// Ends transactions that have lived too long.
    pub fn expire(&mut self, now: MonotonicTime) -> Vec<TransactionId> {
        let lifetime = self.limits.lifetime;
        let is_old = |open: &Open<S>| now.since(open.since) >= lifetime;
        let old = self.open.iter().filter(|(_, open)| is_old(open)).map(|(id, _)| *id);
        let old: Vec<_> = old.collect();
        for id in &old {
            self.abort(*id, AbortReason::Lifetime);
        }
        old
    }

    /// The member is no longer primary: every transaction ends, and every number that is not in the
    /// log is forgotten, since the next primary may see it again.
    pub fn step_down(&mut self) -> Vec<TransactionId> {
        let open: Vec<_> = self.open.keys().copied().collect();
        for id in &open {
            self.abort(*id, AbortReason::Killed);
        }
        self.sessions.clear();
        open
    }

    /// How many there are and were.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            open: self.open.len() as u64,
            active: self.open.values().filter(|open| open.running).count() as u64,
            ..self.counted
        }
    }

    /// The open transactions, oldest first.
    pub fn listed(&self) -> Vec<Listed<S>> {
        let listed = self.open.iter().map(|(&transaction, open)| Listed {
            transaction,
            session: open.session.clone(),
            number: open.number,
            since: open.since,
            active: open.running,
            bytes: open.bytes,
            keys: open.keys.len(),
        });
        listed.collect()
    }

    /// Why a statement's transaction is not open any more.
    fn gone(&self, id: TransactionId) -> Refusal {
        match self.cut_short.get(&id) {
            Some(&(number, AbortReason::Lifetime)) => Refusal::ExceededLifetime { number },
            Some(&(number, _)) => Refusal::Aborted { number },
            None => Refusal::Aborted { number: -1 },
        }
    }

    fn forget_changes(&mut self) {
        // The transaction that began first has the oldest snapshot.
        let oldest = self.open.values().next().map(|open| open.snapshot);
        debug_assert_eq!(oldest, self.open.values().map(|open| open.snapshot).min());
        self.keys.forget_through(oldest);
    }
}
