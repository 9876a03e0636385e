//! The host of a [`quorate_replication::Member`]: sockets, threads and clocks around its decisions.
//!
//! ```text
//!   connections ──┐                      ┌──▶ peers (one task each) ──▶ other members
//!   peers ────────┼─▶ inbox ─▶ Host ─────┼──▶ fetching thread ──▶ applier ──▶ Node
//!   threads ──────┘   (owns the Member)  └──▶ persist thread, syncing thread
//! ```
//!
//! One thread at a time feeds news to the member and carries out what it orders (`inbox`);
//! that never waits for a disk or a socket. Rules live in `quorate-replication`, documents in `quorate-wire`,
//! the log in `quorate-node`. `docs/replica-set-host.md` tells how an entry travels.

mod client;
mod commands;
mod copying;
mod cut;
mod fetching;
mod forwarding;
mod host;
mod inbox;
mod initial_sync;
mod log_sync;
mod oplog_buffer;
mod pace;
mod peers;
mod read_concern;
mod recognition;
mod source;
mod status;
mod stream;
mod threads;
mod write_concern;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use quorate_member::{CloneProgress, EntrySource, RoleView, SetView};
use quorate_node::{Command, CommandError, ErrorCode, Node, Standing};
use quorate_protocol::{
    Lock, MemberState, OpTime, OpTimeAndWallTime, PositionReport, ServerAddress,
};
use quorate_replication::{
    Input, MemberOptions, Reply, Request, Status, WaiterId, config_warnings,
};
use quorate_wire::replica_set::config_document;
use quorate_wire::{RequestId, to_bson_object_id};
use tokio::sync::{Notify, oneshot, watch};

use crate::clock::Clock;
use crate::connection;
use crate::dialer::Dialer;
use crate::disk::INELIGIBLE;
use crate::net::{Stream, WriteHalf};
use crate::standby::Standby;
use crate::write_gate::WriteGate;

pub(crate) use cut::Cut;
use inbox::Inbox;
use log_sync::Syncer;
pub(crate) use log_sync::{Unforced, withdraw_offer};
pub(crate) use read_concern::ReadConcern;
pub(crate) use source::Step;
use source::{Followers, Following, OplogStream};
pub(crate) use write_concern::{Acknowledgement, Wanted, is_statement, write_concern_error};

/// How long a primary whose disk is full waits for a successor that has everything.
const HAND_OVER_BEFORE_DISK_FAILS: Duration = Duration::from_secs(1);

/// How this member takes part in a set.
#[derive(Clone, Debug)]
pub struct ReplicaSetOptions {
    /// The name of the set.
    pub set_name: String,
    /// The addresses by which others may list this member.
    pub own_addresses: Vec<ServerAddress>,
    /// Where documents that a rollback removes are kept; nowhere, for a member in memory.
    pub rollback_directory: Option<PathBuf>,
}

/// What the rest of the server has for its member of a set.
pub(crate) struct Surroundings {
    /// How other members are reached.
    pub(crate) dialer: Dialer,
    /// Changed when waiting `hello` commands should look again.
    pub(crate) topology: watch::Sender<()>,
    /// Wakes cursors that wait for documents.
    pub(crate) commits: watch::Sender<u64>,
    /// Counts the step-downs after which clients' connections end.
    pub(crate) farewells: watch::Sender<u64>,
    /// What every write passes.
    pub(crate) gate: Arc<WriteGate>,
    /// Lets workers wait for a quick disk.
    pub(crate) standby: Standby,
}

type Answer = Result<Reply, quorate_replication::RequestError>;
type Inspection = Box<dyn FnOnce(Status<'_>, quorate_node::Now) + Send>;

/// What the host is told.
enum Message {
    Input(Input),
    Asked(Request, oneshot::Sender<Answer>),
    Wanted(Acknowledgement),
    /// The client that waited for this acknowledgement has left.
    Abandoned(WaiterId),
    Fetched(fetching::Fetched),
    Inspect(Inspection),
    /// The log has grown, or more of it is on disk.
    LogMoved,
    /// A deadline of the member may have come.
    Tick,
    /// A thread could not do its work: going on would break promises.
    Broken(String),
}

/// A handle of the replica set for connections.
pub(crate) struct ReplicaSet {
    inbox: Inbox,
    node: Arc<Node>,
    clock: Clock,
    /// How members are reached.
    dialer: Dialer,
    view: watch::Receiver<SetView>,
    role: watch::Receiver<RoleView>,
    /// The oplog streams to other members.
    followers: Arc<Followers>,
    /// Where the log stands: the one value that reads decide by.
    standing: watch::Receiver<Standing>,
    /// The commit point alone: its waiters are woken by nothing else.
    committed: watch::Receiver<OpTimeAndWallTime>,
    /// Tells that the commit point has moved while change streams wait.
    streams: Arc<Notify>,
    /// Forces to disk what clients wrote.
    syncer: Syncer,
    standby: Standby,
    progress: CloneProgress,
    next_waiter: AtomicU64,
    parts: Lock<Option<host::Parts>>,
}

impl ReplicaSet {
    /// The commit point, as it moves.
    pub(crate) fn commit_points(&self) -> watch::Receiver<OpTimeAndWallTime> {
        self.committed.clone()
    }

    /// Returns when the commit point has moved while change streams waited.
    pub(crate) async fn stream_news(&self) {
        self.streams.notified().await;
    }

    /// Prepares the host. Nothing runs before [`start`](Self::start).
    pub(crate) fn new(
        node: Arc<Node>,
        clock: Clock,
        options: ReplicaSetOptions,
        surroundings: Surroundings,
    ) -> Result<Self, CommandError> {
        let Surroundings { dialer, topology, commits, farewells, gate, standby } = surroundings;
        let recovered = node.join_replica_set(clock.now())?;
        let inbox = Inbox::new();
        let shown = SetView {
            term: recovered.term,
            state: MemberState::Startup,
            is_primary: false,
            commit_point: OpTimeAndWallTime::default(),
            rollback_id: recovered.rollback_id,
            knows_primary: false,
            majority_by_default: true,
        };
        let (view_sender, view) = watch::channel(shown);
        let (role_sender, role) = watch::channel(shown.role());
        let followers = Arc::<Followers>::default();
        let (standing_sender, standing) = watch::channel(node.standing());
        let (committed_sender, committed) = watch::channel(node.standing().commit_point);
        let streams = Arc::<Notify>::default();
        let syncer = Syncer::default();
        let progress = CloneProgress::default();
        let parts = host::Parts {
            clone_progress: progress.clone(),
            node: Arc::clone(&node),
            clock: clock.clone(),
            dialer: dialer.clone(),
            member_options: member_options(&node, &options),
            rollback_directory: options.rollback_directory,
            recovered,
            inbox: inbox.clone(),
            view: view_sender,
            role: role_sender,
            followers: Arc::clone(&followers),
            standing: standing_sender,
            committed: committed_sender,
            streams: Arc::clone(&streams),
            syncer: syncer.clone(),
            topology,
            commits,
            farewells,
            gate,
        };
        let parts = Lock::new(Some(parts));
        let next_waiter = AtomicU64::new(1);
        Ok(Self {
            inbox,
            node,
            clock,
            dialer,
            view,
            role,
            followers,
            standing,
            committed,
            streams,
            syncer,
            standby,
            progress,
            next_waiter,
            parts,
        })
    }

    /// Starts the host and its threads. Ends with an error if the member cannot go on.
    pub(crate) async fn run(&self) -> Result<(), String> {
        let parts = self.parts.lock().take();
        match parts {
            Some(parts) => {
                // It ends when the host does, and never before it.
                let recognition = async {
                    self.recognise_always().await;
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    ended = host::run(parts) => ended,
                    () = recognition => Ok(()),
                }
            }
            None => Ok(()),
        }
    }

    pub(crate) fn view(&self) -> watch::Receiver<SetView> {
        self.view.clone()
    }

    pub(crate) fn role(&self) -> watch::Receiver<RoleView> {
        self.role.clone()
    }

    /// The log of this member, for a follower that asks for what comes from an entry on.
    pub(crate) fn open_source(&self, from: OpTime) -> Result<EntrySource, CommandError> {
        let view = *self.view.borrow();
        EntrySource::open(&view, &self.node, from)
    }

    /// Pushes entries to a follower from now on, until the second value is dropped.
    pub(crate) fn follow(
        &self,
        source: EntrySource,
        writer: WriteHalf<Stream>,
        numbers: (RequestId, i32),
    ) -> (Arc<OplogStream>, Following) {
        let stream = OplogStream::new(source, writer, numbers, self.view(), self.cut());
        let stream = Arc::new(stream);
        let following = self.followers.join(&stream);
        (stream, following)
    }

    /// Answers a command of the replica set; none if it is not one.
    pub(crate) async fn answer(&self, command: &Command) -> Option<RawDocumentBuf> {
        let name = command.name();
        self.inbox.cut.admit(command).await;
        let replies = match name {
            "replSetGetStatus" => {
                let progress = self.progress.clone();
                let look =
                    move |status: Status<'_>, now| status::status_document(status, now, &progress);
                self.inspect(look).await
            }
            "replSetGetConfig" => self.inspect(get_config).await,
            "replSetGetRBID" => {
                let rollback_id = |status: Status<'_>, _| {
                    let process = status.topology_version().process_id;
                    Ok(doc! {
                        "rbid": status.rollback_id(),
                        "processId": to_bson_object_id(process),
                        "ok": 1.0,
                    })
                };
                self.inspect(rollback_id).await
            }
            "connPoolStats" => Ok(self.dialer.outgoing().document()),
            "quorateExplainElection" => self.inspect(status::explanation_document).await,
            _ => match commands::request(&command.body.to_document())? {
                Ok(request) => self.ask(request).await,
                Err(error) => Err(error),
            },
        };
        let document = replies.unwrap_or_else(|error| error.reply());
        RawDocumentBuf::try_from(&document).ok()
    }

    /// Takes the report of another member, which gets no answer. False if the member at the other end is
    /// to look for another source.
    pub(crate) async fn hear_report(&self, report: PositionReport) -> bool {
        let (sender, receiver) = oneshot::channel();
        self.inbox.post(Message::Asked(Request::UpdatePosition(report), sender));
        match receiver.await {
            Ok(Err(error)) => !connection::is_news(ErrorCode(error.code())),
            Ok(Ok(Reply::Refused { code, .. })) => !connection::is_news(ErrorCode(code)),
            // This member reports its own end by closing the connection.
            Ok(Ok(_)) | Err(_) => true,
        }
    }

    /// Whether a command is a pipeline that writes, and this member a secondary that may be asked for it.
    /// Clients of servers with users are told to go to the primary themselves: members do not vouch for
    /// them.
    pub(crate) fn forwards(&self, command: &Command) -> bool {
        forwarding::is_wanted(&command.body)
            && !self.view.borrow().is_primary
            && !self.node.options().authentication
    }

    /// Sends a command on to the primary; none if no primary is known.
    pub(crate) async fn forward(&self, command: &Command) -> Option<RawDocumentBuf> {
        let (sender, receiver) = oneshot::channel();
        self.inbox.post(Message::Inspect(Box::new(move |status, _| {
            let primary = status.primary().and_then(|id| status.address_of(id));
            // Ignore send errors: the client is gone.
            let _ = sender.send(primary.cloned());
        })));
        let primary = receiver.await.ok().flatten()?;
        let limit = command.max_time().unwrap_or(forwarding::PATIENCE);
        let forwarded =
            forwarding::forward(&self.dialer, &primary, command.body.to_document(), limit);
        Some(self.cut().guard(forwarded).await)
    }

    async fn ask(&self, request: Request) -> Result<Document, CommandError> {
        let initiating = matches!(&request, Request::Initiate(None));
        let doubts = match &request {
            Request::Initiate(Some(config)) | Request::Reconfig { config, .. } => {
                config_warnings(config)
            }
            _ => Vec::new(),
        };
        if let Request::Initiate(Some(config)) = &request {
            self.recognise(config).await;
        } else if let Request::Reconfig { config, .. } = &request {
            self.recognise(config).await;
        }
        let (sender, receiver) = oneshot::channel();
        self.inbox.post(Message::Asked(request, sender));
        match receiver.await {
            Ok(Ok(reply)) => {
                let mut document = commands::reply_document(&reply);
                if initiating {
                    document.insert("info2", "no configuration specified. Using a default one");
                    document.insert("me", self.node.options().host.as_str());
                }
                if !doubts.is_empty() {
                    document.insert("warnings", doubts);
                }
                Ok(document)
            }
            Ok(Err(error)) => Err(CommandError::new(ErrorCode(error.code()), error.to_string())),
            Err(_) => Err(ending()),
        }
    }

    async fn inspect(
        &self,
        look: impl FnOnce(Status<'_>, quorate_node::Now) -> Result<Document, CommandError>
        + Send
        + 'static,
    ) -> Result<Document, CommandError> {
        let (sender, receiver) = oneshot::channel();
        self.inbox.post(Message::Inspect(Box::new(move |status, now| {
            // Ignore send errors: the client is gone.
            let _ = sender.send(look(status, now));
        })));
        receiver.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Where the oplog stream that a command asks for begins.
    pub(crate) fn stream_wanted(&self, command: &Command) -> Option<OpTime> {
        stream::wanted(&command.body)
    }

    /// The cut between this member and the others.
    pub(crate) fn cut(&self) -> Cut {
        self.inbox.cut.clone()
    }

    /// Stops copying from other members, or lets it go on.
    pub(crate) fn stop_copying(&self, stopped: bool) {
        self.inbox.copying.set(stopped);
    }

    /// The disk of this member is full, or has room again. One that is full hands over, if there is
    /// another member, and does not stand.
    pub(crate) async fn disk_is_full(&self, full: bool) {
        if full {
            let (sender, receiver) = oneshot::channel();
            self.inbox.post(Message::Inspect(Box::new(move |status, _| {
                let members = status.config().map_or(0, |config| config.members.len());
                // Ignore send errors: the server may be ending.
                let _ = sender.send((members > 1, status.state() == MemberState::Primary));
            })));
            let Ok((replaceable, leads)) = receiver.await else { return };
            if leads && replaceable {
                let (period, catch_up_period) = (INELIGIBLE, HAND_OVER_BEFORE_DISK_FAILS);
                let request = Request::StepDown { period, catch_up_period, force: true };
                if let Err(error) = self.ask(request).await {
                    tracing::warn!(%error, "the primary of a full disk cannot step down yet");
                }
            }
        }
        let frozen = if full { INELIGIBLE } else { Duration::ZERO };
        if let Err(error) = self.ask(Request::Freeze(frozen)).await {
            tracing::debug!(%error, "the member cannot be kept from standing");
        }
    }

    /// The process is about to end: the member hands over first.
    pub(crate) fn shut_down(&self) {
        self.inbox.post(Message::Input(Input::ShutdownWanted));
    }
}

fn ending() -> CommandError {
    CommandError::new(ErrorCode::SHUTDOWN_IN_PROGRESS, "the member is shutting down; ask another")
}

fn get_config(status: Status<'_>, _now: quorate_node::Now) -> Result<Document, CommandError> {
    match status.config() {
        Some(config) => {
            let committed = status.commit_point() != OpTimeAndWallTime::default();
            let mut document = config_document(config);
            // `newlyAdded` is internal to the set.
            if let Ok(members) = document.get_array_mut("members") {
                for member in members.iter_mut().filter_map(|member| member.as_document_mut()) {
                    member.remove("newlyAdded");
                }
            }
            Ok(doc! { "config": document, "commitmentStatus": committed, "ok": 1.0 })
        }
        None => Err(CommandError::new(
            ErrorCode::NOT_YET_INITIALIZED,
            "no replset config has been received; run rs.initiate() on one member",
        )),
    }
}

fn member_options(node: &Node, options: &ReplicaSetOptions) -> MemberOptions {
    // The process id is the node's, so that both speak of one process.
    let process_id = node.topology_version().process_id;
    let mut set_id = process_id.bytes();
    set_id[11] ^= 0x5a;
    MemberOptions {
        set_name: options.set_name.clone(),
        own_addresses: options.own_addresses.clone(),
        process_id,
        new_replica_set_id: quorate_protocol::ObjectId::from_bytes(set_id),
        allowances: quorate_replication::Allowances::default(),
    }
}
