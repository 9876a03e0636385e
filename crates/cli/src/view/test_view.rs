//! A stage for tests: a real discovery core and a view, with time and replies made up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bson::rawdoc;
use quorate_client::pool::{ConnectionId, PoolEvent, PoolEventKind};
use quorate_client::{ClientEvent, CommandEvent, CommandEventKind, OperationId};
use quorate_protocol::{
    ElectionId, HelloReply, LastWrite, MemberState, MonotonicTime, ObjectId, OpTime, ServerAddress,
    SetVersion, Timestamp, TopologyVersion, WallTime, WireVersionRange,
};
use quorate_server_discovery::{
    CheckFailure, CheckFailureKind, CheckId, DiscoveryOptions, Input as CoreInput, MonitorCommand,
    Output, PoolCommand, Topology, TopologyId,
};

use super::reply::{MemberSettings, MemberStatus, SetSettings, SetStatus};
use super::{Input, Told, View};

/// The connection string on the stage.
pub(crate) const URI: &str = "mongodb://a:27017,b:27017,c:27017/?replicaSet=rs0";

pub(crate) fn address(text: &str) -> ServerAddress {
    text.parse().unwrap()
}

/// What a healthy member of `rs0` says.
pub(crate) fn hello(me: &str, members: &[&str], primary: Option<&str>) -> HelloReply {
    HelloReply {
        ok: true,
        is_writable_primary: primary == Some(me),
        secondary: primary != Some(me),
        set_name: Some("rs0".to_owned()),
        set_version: Some(SetVersion(1)),
        hosts: members.iter().map(|member| address(member)).collect(),
        primary: primary.map(address),
        me: Some(address(me)),
        wire_versions: WireVersionRange { min: 0, max: 21 },
        last_write: Some(LastWrite {
            op_time: Some(OpTime::new(1, Timestamp::new(1_700_000_000, 1))),
            last_write_date: Some(WallTime(1_700_000_000_000)),
        }),
        topology_version: Some(TopologyVersion {
            process_id: ObjectId::from_bytes([7; 12]),
            counter: 0,
        }),
        ..HelloReply::default()
    }
}

/// What the winner of a term's election says.
pub(crate) fn primary_hello(me: &str, members: &[&str], term: i64) -> HelloReply {
    HelloReply { election_id: Some(ElectionId::from_term(term)), ..hello(me, members, Some(me)) }
}

/// The view and what feeds it.
pub(crate) struct Stage {
    pub(crate) view: View,
    pub(crate) now: MonotonicTime,
    core: Topology,
    checks: BTreeMap<ServerAddress, CheckId>,
    replies: i64,
}

impl Stage {
    /// A client of these seeds that has contacted no server.
    pub(crate) fn new(seeds: &[&str]) -> Self {
        let mut options = DiscoveryOptions::with_seeds(seeds.iter().map(|seed| address(seed)));
        options.set_name = Some("rs0".to_owned());
        let now = MonotonicTime::from_millis(1000);
        let mut stage = Self {
            view: View::new(now, URI.to_owned()),
            now,
            core: Topology::new(&options, TopologyId(1), 1, now).unwrap(),
            checks: BTreeMap::new(),
            replies: 0,
        };
        stage.drain();
        stage
    }

    /// Three members, healthy, watched and asked; `a` is the primary of term 1.
    pub(crate) fn healthy() -> Self {
        let members = ["a:27017", "b:27017", "c:27017"];
        let mut stage = Self::new(&members);
        stage.all_say(&members, "a:27017", 1);
        stage.settings(&[("a:27017", 1, 2.0), ("b:27017", 1, 1.0), ("c:27017", 1, 1.0)]);
        stage.statuses(&members, "a:27017", 1);
        stage
    }

    /// Lets time pass.
    pub(crate) fn after(&mut self, millis: u64) -> &mut Self {
        self.now = self.now + Duration::from_millis(millis);
        self.view.handle(self.now, Input::Pools(Vec::new()));
        self
    }

    /// Every member tells both the client and us who is primary.
    pub(crate) fn all_say(&mut self, members: &[&str], primary: &str, term: i64) {
        for (number, member) in (1_u64..).zip(members) {
            let reply = match *member == primary {
                true => primary_hello(member, members, term),
                false => hello(member, members, Some(primary)),
            };
            self.client_hears(member, reply.clone());
            self.own_hello(member, reply, number);
        }
    }

    /// The client's check of a member ends in this reply.
    pub(crate) fn client_hears(&mut self, member: &str, mut reply: HelloReply) {
        self.replies += 1;
        if let Some(version) = &mut reply.topology_version {
            version.counter = self.replies;
        }
        let server = address(member);
        let check = self.checks.remove(&server).expect("a check is under way");
        let round_trip = Duration::from_millis(1);
        let reply = Arc::new(reply);
        let more_to_come = false;
        self.core(CoreInput::HelloReceived { server, check, reply, round_trip, more_to_come });
    }

    /// The client's check of a member fails.
    pub(crate) fn client_loses(&mut self, member: &str, reason: &str) {
        let server = address(member);
        let check = self.checks.remove(&server).expect("a check is under way");
        let failure = CheckFailure::new(CheckFailureKind::Network, reason.to_owned());
        self.core(CoreInput::CheckFailed { server, check, failure });
    }

    /// A member answers us.
    pub(crate) fn own_hello(&mut self, member: &str, reply: HelloReply, millis: u64) {
        let outcome = Ok((Arc::new(reply), Duration::from_millis(millis)));
        self.view.handle(self.now, Input::Hello { member: address(member), outcome });
    }

    /// A member does not answer us.
    pub(crate) fn own_silence(&mut self, member: &str, reason: &str) {
        let outcome = Err(reason.to_owned());
        self.view.handle(self.now, Input::Hello { member: address(member), outcome });
    }

    /// Both the client and we lose a member.
    pub(crate) fn lose(&mut self, member: &str, reason: &str) {
        self.client_loses(member, reason);
        self.own_silence(member, reason);
    }

    /// The configuration: address, votes and priority of each member.
    pub(crate) fn settings(&mut self, members: &[(&str, u32, f64)]) {
        let members = members.iter().map(|(member, votes, priority)| {
            let settings = MemberSettings {
                votes: *votes,
                priority: *priority,
                arbiter_only: false,
                hidden: false,
            };
            (address(member), settings)
        });
        let settings = SetSettings { version: 1, members: members.collect() };
        self.tell("a:27017", Told::Settings(settings));
    }

    /// Every member tells the same status: all up, all follow the primary without lag.
    pub(crate) fn statuses(&mut self, members: &[&str], primary: &str, term: i64) {
        for member in members {
            let status = status(member, members, primary, term);
            self.tell(member, Told::Status(status));
        }
    }

    /// A member tells something.
    pub(crate) fn tell(&mut self, member: &str, told: Told) {
        self.view.handle(self.now, Input::Told { member: address(member), told });
    }

    /// A write of ours is acknowledged.
    pub(crate) fn wrote(&mut self, member: &str) {
        let (duration, reply) = (Duration::from_millis(1), rawdoc! { "ok": 1, "n": 1 });
        self.command(member, CommandEventKind::Succeeded { duration, reply });
    }

    /// A write of ours fails.
    pub(crate) fn write_fails(&mut self, member: &str) {
        let error = rawdoc! { "code": 91, "errmsg": "shutting down" };
        let (duration, reply) =
            (Duration::from_millis(1), rawdoc! { "ok": 1, "writeConcernError": error });
        self.command(member, CommandEventKind::Succeeded { duration, reply });
    }

    fn command(&mut self, member: &str, kind: CommandEventKind) {
        let event = CommandEvent {
            address: address(member),
            connection: ConnectionId(1),
            server_connection_id: None,
            service_id: None,
            request_id: 1,
            operation_id: OperationId(1),
            database: "test".to_owned(),
            command_name: "insert".to_owned(),
            kind,
        };
        self.view.handle(self.now, Input::Client(Box::new(ClientEvent::Command(event))));
    }

    fn core(&mut self, input: CoreInput) {
        self.core.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Event(event) => {
                    let event = Box::new(ClientEvent::Discovery(event));
                    self.view.handle(self.now, Input::Client(event));
                }
                Output::Monitor { server, command: MonitorCommand::Check { check, .. } } => {
                    self.checks.insert(server, check);
                }
                Output::Pool { server, command } => {
                    let kind = match command {
                        PoolCommand::MarkReady => PoolEventKind::PoolReady,
                        PoolCommand::Clear { .. } => PoolEventKind::PoolCleared {
                            service_id: None,
                            interrupt_in_use_connections: false,
                        },
                        _ => continue,
                    };
                    let event = Box::new(ClientEvent::Pool(PoolEvent {
                        address: server,
                        kind,
                        error: None,
                    }));
                    self.view.handle(self.now, Input::Client(event));
                }
                Output::Monitor { .. } | Output::Publish(_) => {}
            }
        }
    }
}

/// What a member says when all is well.
pub(crate) fn status(me: &str, members: &[&str], primary: &str, term: i64) -> SetStatus {
    let told = members.iter().map(|member| MemberStatus {
        address: address(member),
        is_self: *member == me,
        state: Some(if *member == primary { MemberState::Primary } else { MemberState::Secondary }),
        is_up: true,
        op_time: Some(OpTime::new(term, Timestamp::new(1_700_000_000, 1))),
        op_time_date: Some(WallTime(1_700_000_000_000)),
        sync_source: (*member != primary).then(|| address(primary)),
        message: None,
    });
    SetStatus {
        state: Some(if me == primary { MemberState::Primary } else { MemberState::Secondary }),
        term: Some(term),
        sync_source: (me != primary).then(|| address(primary)),
        majority_votes: Some(2),
        election_reason: None,
        initial_sync: None,
        members: told.collect(),
    }
}
