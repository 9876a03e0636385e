//! The set as its clients see it: who answers hello, what it says, and how much it can answer.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{
    ElectionId, HelloReply, MonotonicTime, ObjectId, ServerAddress, SetVersion, TopologyVersion,
    WireVersionRange,
};

pub(crate) const MEMBERS: usize = 3;

/// What a new connection costs a member: accepting it and answering its handshake.
pub(crate) const CONNECT_COST: Duration = Duration::from_micros(250);

/// What a hello on a connection costs it.
pub(crate) const HELLO_COST: Duration = Duration::from_micros(30);

/// One member.
pub(crate) struct Member {
    pub(crate) is_up: bool,
    /// The process; another one after each start.
    pub(crate) process: u64,
    is_primary: bool,
    knows: Option<usize>,
    counter: i64,
    /// When it has answered everything that came so far.
    busy_until: MonotonicTime,
    reply: Arc<HelloReply>,
    /// Connections now, and the most there were.
    pub(crate) connections: i64,
    pub(crate) most_connections: i64,
    /// Connections and hellos in each second.
    pub(crate) connects: Vec<u64>,
    pub(crate) hellos: Vec<u64>,
}

/// All members.
pub(crate) struct Members {
    pub(crate) members: Vec<Member>,
    term: i64,
    /// The member that half of the clients and the other members do not hear.
    pub(crate) hidden: Option<usize>,
}

pub(crate) fn address_of(member: usize) -> ServerAddress {
    format!("m{member}.example:27017").parse().unwrap()
}

impl Members {
    pub(crate) fn new() -> Self {
        let member = |number| Member {
            is_up: true,
            process: number,
            is_primary: number == 0,
            knows: Some(0),
            counter: 1,
            busy_until: MonotonicTime::ZERO,
            reply: Arc::default(),
            connections: 0,
            most_connections: 0,
            connects: Vec::new(),
            hellos: Vec::new(),
        };
        let members = (0..MEMBERS as u64).map(member).collect();
        let mut members = Self { members, term: 1, hidden: None };
        for number in 0..MEMBERS {
            members.compose(number);
        }
        members
    }

    /// What a member says now.
    pub(crate) fn reply(&self, member: usize) -> Arc<HelloReply> {
        Arc::clone(&self.members[member].reply)
    }

    pub(crate) fn version(&self, member: usize) -> TopologyVersion {
        let Member { process, counter, .. } = self.members[member];
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&process.to_be_bytes());
        TopologyVersion { process_id: ObjectId::from_bytes(bytes), counter }
    }

    /// When a request that comes now is answered: a member answers one after another.
    pub(crate) fn serve(
        &mut self,
        member: usize,
        now: MonotonicTime,
        connects: bool,
    ) -> MonotonicTime {
        let member = &mut self.members[member];
        let (cost, counts) = match connects {
            true => (CONNECT_COST, &mut member.connects),
            false => (HELLO_COST, &mut member.hellos),
        };
        let answered = member.busy_until.max(now) + cost;
        member.busy_until = answered;
        let second = answered.since(MonotonicTime::ZERO).as_secs() as usize;
        if counts.len() <= second {
            counts.resize(second + 1, 0);
        }
        counts[second] += 1;
        answered
    }

    pub(crate) fn connected(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.connections += 1;
        member.most_connections = member.most_connections.max(member.connections);
    }

    pub(crate) fn end(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.is_up = false;
        member.is_primary = false;
        member.connections = 0;
    }

    pub(crate) fn start(&mut self, number: usize) {
        let knows = self.members.iter().position(|member| member.is_primary);
        let member = &mut self.members[number];
        member.is_up = true;
        member.process += 100;
        member.counter = 1;
        member.knows = knows;
        self.compose(number);
    }

    /// A member is elected. Members that hear of it change what they say.
    pub(crate) fn lead(&mut self, leader: usize) -> Vec<usize> {
        self.term += 1;
        let hidden = self.hidden;
        let mut changed = Vec::new();
        for (number, member) in self.members.iter_mut().enumerate() {
            if !member.is_up || hidden == Some(number) {
                continue;
            }
            member.is_primary = number == leader;
            member.knows = Some(leader);
            changed.push(number);
        }
        self.compose_all(changed)
    }

    pub(crate) fn step_down(&mut self) -> Vec<usize> {
        let changed: Vec<usize> =
            (0..MEMBERS).filter(|number| self.members[*number].is_primary).collect();
        for number in &changed {
            self.members[*number].is_primary = false;
            self.members[*number].knows = None;
        }
        self.compose_all(changed)
    }

    /// A member that was cut off hears of the newer term.
    pub(crate) fn catch_up(&mut self) -> Vec<usize> {
        let leader = self.members.iter().rposition(|member| member.is_primary);
        let stale: Vec<usize> =
            (0..MEMBERS).filter(|number| self.members[*number].knows != leader).collect();
        for number in &stale {
            self.members[*number].is_primary = false;
            self.members[*number].knows = leader;
        }
        self.compose_all(stale)
    }

    fn compose_all(&mut self, changed: Vec<usize>) -> Vec<usize> {
        for number in &changed {
            self.members[*number].counter += 1;
            self.compose(*number);
        }
        changed
    }

    fn compose(&mut self, number: usize) {
        let version = self.version(number);
        let member = &self.members[number];
        let reply = HelloReply {
            ok: true,
            hello_ok: true,
            is_writable_primary: member.is_primary,
            secondary: !member.is_primary,
            set_name: Some("rs0".to_owned()),
            set_version: Some(SetVersion(1)),
            election_id: member.is_primary.then(|| ElectionId::from_term(self.term)),
            hosts: (0..MEMBERS).map(address_of).collect(),
            primary: member.knows.map(address_of),
            me: Some(address_of(number)),
            wire_versions: WireVersionRange { min: 0, max: 21 },
            logical_session_timeout_minutes: Some(30),
            topology_version: Some(version),
            ..HelloReply::default()
        };
        self.members[number].reply = Arc::new(reply);
    }
}
