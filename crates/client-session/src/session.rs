//! A session of the application's: what it asked for, what it has seen, and its transaction.
//!
//! Follows the Driver Sessions, Causal Consistency and Snapshot Reads specifications.

use std::time::Duration;

use bson::Timestamp;
use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use quorate_protocol::{MonotonicTime, ReadPreference, ReadPreferenceMode, ServerAddress};
use quorate_wire::{AppendSome, CommandFields, find_field};

use crate::labels::{
    Failure, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT, is_transient,
    is_unknown_commit,
};
use crate::operation_loop::Role;
use crate::{
    Phase, ServerSession, Snapshot, SnapshotError, Transaction, TransactionError,
    TransactionOptions,
};

/// How a session behaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionOptions {
    /// `causalConsistency`: whether reads follow the session's earlier operations. They do unless
    /// this or `snapshot` says otherwise.
    pub causal_consistency: Option<bool>,
    /// `snapshot`: whether all reads of the session see one moment.
    pub snapshot: bool,
    /// `snapshotTime`: the moment; the first read chooses it if this is `None`.
    pub snapshot_time: Option<Timestamp>,
    /// `defaultTransactionOptions`.
    pub default_transaction_options: TransactionOptions,
    /// `defaultTimeoutMS`: how long `with_transaction` may take, and in the asynchronous client each
    /// commit and abort; the client's `timeoutMS` if this is `None`.
    pub default_timeout: Option<Duration>,
}

/// Why a command cannot be sent in a session. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The transaction is in no state for it.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// What a command in a session depends on, beside the session.
#[derive(Clone, Copy, Debug)]
pub struct SessionUse<'a> {
    /// What the command is to the session's transaction.
    pub role: Role,
    /// Whether a reply is wanted.
    pub acknowledged: bool,
    /// When it is sent.
    pub now: MonotonicTime,
    /// How long servers remember sessions; `None` if they know none.
    pub lifetime: Option<Duration>,
    /// Whether the deployment is behind a load balancer.
    pub load_balanced: bool,
    /// The router that it goes to, in a sharded cluster.
    pub router: Option<&'a ServerAddress>,
    /// `maxWireVersion` of the server that it goes to.
    pub max_wire_version: i32,
    /// The level of `readConcern`, empty for the server's default; `None` if the command takes none.
    pub read_concern: Option<&'a str>,
    /// Whether the command goes on with a cursor, in the snapshot that it was opened in.
    pub continues_cursor: bool,
}

/// What a session remembers. The default is the session that an operation makes for itself.
#[derive(Debug, Default)]
pub struct SessionState {
    /// Made when it is first used: only then is it known what the server supports.
    server: Option<ServerSession>,
    causal: bool,
    operation_time: Option<Timestamp>,
    snapshot: Option<Snapshot>,
    /// The session's transaction.
    pub transaction: Transaction,
    defaults: TransactionOptions,
}

impl SessionState {
    /// A session with these options. Transactions take from `inherited` what the options leave open.
    ///
    /// # Errors
    ///
    /// If the options contradict each other.
    pub fn new(
        options: SessionOptions,
        inherited: &TransactionOptions,
    ) -> Result<Self, SnapshotError> {
        if options.snapshot && options.causal_consistency == Some(true) {
            return Err(SnapshotError::Causal);
        }
        if options.snapshot_time.is_some() && !options.snapshot {
            return Err(SnapshotError::TimeAlone);
        }
        Ok(Self {
            causal: options.causal_consistency.unwrap_or(!options.snapshot),
            snapshot: options.snapshot.then(|| Snapshot::new(options.snapshot_time)),
            defaults: options.default_transaction_options.or(inherited),
            ..Self::default()
        })
    }

    /// `lsid`; `None` before the first use.
    pub fn id(&self) -> Option<&RawDocument> {
        self.server.as_ref().map(ServerSession::lsid)
    }

    /// Takes the server's part of the session out of it.
    pub fn take_server_session(&mut self) -> Option<ServerSession> {
        self.server.take()
    }

    /// Whether the network failed under the session, so that its server session is not used again.
    pub fn is_dirty(&self) -> bool {
        self.server.as_ref().is_some_and(ServerSession::is_dirty)
    }

    /// The network failed under the session.
    pub fn mark_dirty(&mut self) {
        if let Some(server) = &mut self.server {
            server.mark_dirty();
        }
    }

    /// Whether all reads see one moment.
    pub fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// The moment that all reads of a snapshot session see, once it is known.
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.snapshot.as_ref().and_then(Snapshot::time)
    }

    /// When the latest operation happened, by the deployment's clock.
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.operation_time
    }

    /// Lets the session see what another one has seen.
    pub fn advance_operation_time(&mut self, time: Timestamp) {
        if self.operation_time.is_none_or(|own| own < time) {
            self.operation_time = Some(time);
        }
    }

    /// `afterClusterTime` of the next read, if reads follow earlier operations.
    pub fn after_cluster_time(&self) -> Option<Timestamp> {
        self.operation_time.filter(|_| self.causal)
    }

    /// Starts a transaction. What its options leave open is taken from the session's defaults.
    ///
    /// # Errors
    ///
    /// If one is open, the session reads a snapshot, or the write concern is unacknowledged.
    pub fn start_transaction(
        &mut self,
        options: TransactionOptions,
    ) -> Result<(), TransactionError> {
        if self.snapshot.is_some() {
            return Err(TransactionError::Snapshot);
        }
        let options = options.or(&self.defaults);
        self.transaction.start(options)
    }

    /// Whether a read with this preference may be part of the open transaction, if there is one.
    /// `body` is the command.
    ///
    /// # Errors
    ///
    /// If the preference is not primary, or the command has a read concern of its own.
    pub fn check_statement(
        &self,
        preference: Option<&ReadPreference>,
        body: &RawDocument,
    ) -> Result<(), TransactionError> {
        if !self.transaction.is_open() {
            return Ok(());
        }
        if let Some(preference) = preference {
            self.transaction.check_read()?;
            if preference.mode != ReadPreferenceMode::Primary {
                return Err(TransactionError::ReadPreference);
            }
        }
        match body.get("readConcern") {
            Ok(None) => Ok(()),
            _ => Err(TransactionError::ReadConcern),
        }
    }

    /// Adds to a command what the session asks for: `lsid`, the fields of the transaction, the read
    /// concern. `take` gives a server session to a session that has none. The result says whether
    /// the command is the first of a transaction.
    ///
    /// # Errors
    ///
    /// If the server cannot do what the session asks for.
    pub fn add_to(
        &mut self,
        body: &mut impl CommandFields,
        usage: &SessionUse<'_>,
        take: impl FnOnce(Duration) -> Option<ServerSession>,
    ) -> Result<bool, SessionError> {
        let known = add_id(body, &mut self.server, usage, take);
        if usage.role != Role::Statement {
            return Ok(false);
        }
        if self.transaction.is_open() {
            return Ok(self.add_statement(body, usage, known)?);
        }
        self.add_read_concern(body, usage)?;
        Ok(false)
    }

    /// Adds what the transaction's next command carries; whether it is the first.
    fn add_statement(
        &mut self,
        body: &mut impl CommandFields,
        usage: &SessionUse<'_>,
        known: bool,
    ) -> Result<bool, TransactionError> {
        if usage.load_balanced {
            return Err(TransactionError::LoadBalanced);
        }
        if !known {
            return Err(TransactionError::NoSessions);
        }
        let after = self.after_cluster_time();
        let server = &mut self.server;
        let number = || server.as_mut().map(ServerSession::next_transaction_number);
        let Some(statement) = self.transaction.statement(after, number) else {
            return Err(TransactionError::NoSessions);
        };
        statement.append_to(body);
        if let Some(router) = usage.router {
            self.transaction.pin(router.clone());
        }
        Ok(statement.first)
    }

    /// `readConcern` of a command outside of transactions: the operation's level, and what the
    /// session wants to have seen.
    fn add_read_concern(
        &self,
        body: &mut impl CommandFields,
        usage: &SessionUse<'_>,
    ) -> Result<(), SnapshotError> {
        let snapshot = self.snapshot.as_ref().filter(|_| !usage.continues_cursor);
        let nothing = snapshot.is_none() && usage.read_concern.is_none();
        if nothing || body.has("readConcern") {
            return Ok(());
        }
        if let Some(snapshot) = snapshot {
            body.append(cstr!("readConcern"), snapshot.read_concern(usage.max_wire_version)?);
            return Ok(());
        }
        append_read_concern(body, usage, self.after_cluster_time());
        Ok(())
    }

    /// A fresh number for a write that may be sent twice.
    pub fn next_transaction_number(&mut self) -> Option<i64> {
        self.server.as_mut().map(ServerSession::next_transaction_number)
    }

    /// Learns from a reply.
    pub fn learn(&mut self, reply: &RawDocument) {
        if let Some(time) = find_field(reply, "operationTime").and_then(|field| field.timestamp()) {
            self.advance_operation_time(time);
        }
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.learn(reply);
        }
        // Looking for what is not there costs an allocation.
        if self.transaction.phase() != Phase::None {
            self.transaction.learn(reply);
        }
    }

    /// An error with the labels that a client finds by itself. A sharded transaction may then go to
    /// another router where the specification says so.
    pub fn labelled<E: Failure>(&mut self, role: Role, mut error: E) -> E {
        match role {
            Role::Ending
                if self.transaction.phase() == Phase::Committed && is_unknown_commit(&error) =>
            {
                error.add_label(UNKNOWN_TRANSACTION_COMMIT_RESULT);
                self.transaction.unpin();
            }
            Role::Statement if self.transaction.is_open() && is_transient(&error) => {
                error.add_label(TRANSIENT_TRANSACTION_ERROR);
            }
            _ => {}
        }
        if error.has_label(TRANSIENT_TRANSACTION_ERROR) {
            self.transaction.unpin();
        }
        error
    }
}

/// Adds `lsid`, unless the command brings its own; whether it carries one then. `take` gives a server
/// session where there is none.
fn add_id(
    body: &mut impl CommandFields,
    server: &mut Option<ServerSession>,
    usage: &SessionUse<'_>,
    take: impl FnOnce(Duration) -> Option<ServerSession>,
) -> bool {
    if body.has("lsid") {
        return true;
    }
    let Some(lifetime) = usage.lifetime.filter(|_| usage.acknowledged) else { return false };
    if server.is_none() {
        *server = take(lifetime);
    }
    let Some(server) = server else { return false };
    server.used(usage.now);
    body.append(cstr!("lsid"), server.lsid());
    true
}

/// The operation's level, and the time that its session wants to have seen.
fn append_read_concern(
    body: &mut impl CommandFields,
    usage: &SessionUse<'_>,
    after: Option<Timestamp>,
) {
    if let Some(level) = usage.read_concern {
        let concern = read_concern(Some(level).filter(|level| !level.is_empty()), after);
        body.append_some(cstr!("readConcern"), concern);
    }
}

/// The read concern with this level, of reads that follow what happened by this time; `None` if neither is asked for.
pub fn read_concern(level: Option<&str>, after: Option<Timestamp>) -> Option<RawDocumentBuf> {
    if level.is_none() && after.is_none() {
        return None;
    }
    let mut concern = RawDocumentBuf::new();
    concern.append_some(cstr!("level"), level);
    concern.append_some(cstr!("afterClusterTime"), after);
    Some(concern)
}

/// Adds to a command what the session asks for that its operation made for itself: such a session has
/// no transaction and no snapshot, and its reads follow no earlier operation.
pub(crate) fn add_own(
    body: &mut impl CommandFields,
    server: &mut Option<ServerSession>,
    usage: &SessionUse<'_>,
    take: impl FnOnce(Duration) -> Option<ServerSession>,
) {
    add_id(body, server, usage, take);
    if usage.role == Role::Statement && usage.read_concern.is_some() && !body.has("readConcern") {
        append_read_concern(body, usage, None);
    }
}

/// Server sessions that no session uses: last in, first out.
#[derive(Debug)]
pub struct IdleSessions {
    idle: Vec<ServerSession>,
    most: usize,
}

impl IdleSessions {
    /// Keeps at most this many.
    pub fn new(most: usize) -> Self {
        Self { idle: Vec::new(), most }
    }

    /// One that the server still knows. Drops those that it is about to forget.
    pub fn take(&mut self, now: MonotonicTime, lifetime: Duration) -> Option<ServerSession> {
        while let Some(session) = self.idle.pop() {
            if !session.is_expiring(now, lifetime) {
                return Some(session);
            }
        }
        None
    }

    /// Keeps one for later, unless the network failed under it or there are enough.
    pub fn put(&mut self, session: ServerSession) {
        if !session.is_dirty() && self.idle.len() < self.most {
            self.idle.push(session);
        }
    }

    /// The ids of all of them, for `endSessions`. They are not used again.
    pub fn drain(&mut self) -> Vec<RawDocumentBuf> {
        self.idle.drain(..).map(|session| session.lsid().to_owned()).collect()
    }
}

#[cfg(test)]
mod tests;
