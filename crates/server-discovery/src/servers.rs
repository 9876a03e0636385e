//! The servers of a topology: an ordered map that shares what did not change.
//!
//! A topology is replaced at every reply, and readers keep the old one as long as they like. So a
//! replacement must not copy the other servers: with 1,000 of them, that alone would cost more than
//! everything else the core does. The descriptions hang in a tree of small fixed nodes; replacing
//! one copies the nodes on the way to it, some thirty pointers for 1,000 servers. Membership changes
//! are rare and rebuild the tree.
//!
//! Each node knows what follows from the servers below it, so that a reply of one server does not make
//! the core look at all the others: with 1,000 servers, discovery would look a million times.

use std::sync::Arc;

use quorate_protocol::ServerAddress;

use crate::server_description::ServerDescription;
use crate::types::ServerType;

/// Children per node. Eight keeps both the copied path (at most 8 × depth pointers) and the depth
/// (4 for 1,000 servers) small.
const FANOUT: usize = 8;
const FANOUT_BITS: u32 = FANOUT.trailing_zeros();

/// Descriptions by address, in the order of the addresses.
#[derive(Clone, Debug)]
pub struct Servers {
    addresses: Arc<[ServerAddress]>,
    root: Node,
    /// How many levels of branches stand above the leaves.
    depth: u32,
}

#[derive(Clone, Debug)]
enum Node {
    Branch(Arc<[Node]>, Summary),
    Leaf(Arc<ServerDescription>),
}

impl Node {
    fn branch(children: Arc<[Node]>) -> Self {
        let summary = children.iter().map(Self::summary).fold(Summary::EMPTY, Summary::join);
        Self::Branch(children, summary)
    }

    fn summary(&self) -> Summary {
        match self {
            Self::Branch(_, summary) => *summary,
            Self::Leaf(server) => Summary::of(server),
        }
    }
}

/// What follows from some servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Whether one of them is a primary of a set.
    pub(crate) has_primary: bool,
    pub(crate) sessions: Sessions,
    /// The greatest of their least wire versions, and the least of their greatest ones.
    pub(crate) wire_versions: Option<(i32, i32)>,
}

/// The session timeouts of data-bearing servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sessions {
    /// None of the servers bears data.
    NoServer,
    /// The least of all.
    Least(i64),
    /// One of them has no sessions, and so has the deployment.
    Unsupported,
}

impl Summary {
    const EMPTY: Self =
        Self { has_primary: false, sessions: Sessions::NoServer, wire_versions: None };

    fn of(server: &ServerDescription) -> Self {
        let kind = server.server_type();
        let sessions = match server.logical_session_timeout_minutes() {
            _ if !kind.is_data_bearing() => Sessions::NoServer,
            Some(minutes) => Sessions::Least(minutes),
            None => Sessions::Unsupported,
        };
        let speaks = kind.is_known() && kind != ServerType::LoadBalancer;
        let versions = server.wire_versions();
        Self {
            has_primary: kind == ServerType::RsPrimary,
            sessions,
            wire_versions: speaks.then_some((versions.min, versions.max)),
        }
    }

    fn join(self, other: Self) -> Self {
        Self {
            has_primary: self.has_primary || other.has_primary,
            sessions: match (self.sessions, other.sessions) {
                (Sessions::NoServer, known) | (known, Sessions::NoServer) => known,
                (Sessions::Least(one), Sessions::Least(two)) => Sessions::Least(one.min(two)),
                _ => Sessions::Unsupported,
            },
            wire_versions: match (self.wire_versions, other.wire_versions) {
                (None, known) | (known, None) => known,
                (Some(one), Some(two)) => Some((one.0.max(two.0), one.1.min(two.1))),
            },
        }
    }
}

impl Servers {
    /// No servers.
    pub fn empty() -> Self {
        Self::from_sorted(Vec::new())
    }

    pub(crate) fn from_descriptions(
        descriptions: impl IntoIterator<Item = Arc<ServerDescription>>,
    ) -> Self {
        let mut sorted: Vec<_> = descriptions.into_iter().collect();
        sorted.sort_by(|left, right| left.address().cmp(right.address()));
        sorted.dedup_by(|later, first| later.address() == first.address());
        Self::from_sorted(sorted)
    }

    fn from_sorted(sorted: Vec<Arc<ServerDescription>>) -> Self {
        let addresses = sorted.iter().map(|server| server.address().clone()).collect();
        let mut level: Vec<Node> = sorted.into_iter().map(Node::Leaf).collect();
        let mut depth = 0;
        loop {
            level = level.chunks(FANOUT).map(|nodes| Node::branch(nodes.into())).collect();
            depth += 1;
            if level.len() <= 1 {
                break;
            }
        }
        let root = level.pop().unwrap_or_else(|| Node::branch(Arc::new([])));
        Self { addresses, root, depth }
    }

    /// How many servers there are.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The addresses, in order.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    /// Whether both have the same addresses, as all descriptions have between two changes of
    /// membership. Cheap when they do.
    pub(crate) fn same_members(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.addresses, &other.addresses) || self.addresses == other.addresses
    }

    /// What follows from all of them.
    pub(crate) fn summary(&self) -> Summary {
        self.root.summary()
    }

    /// The position of the first primary of a set.
    pub(crate) fn primary(&self) -> Option<usize> {
        let (mut node, mut position) = (&self.root, 0);
        while let Node::Branch(children, _) = node {
            let place = children.iter().position(|child| child.summary().has_primary)?;
            (node, position) = (&children[place], position * FANOUT + place);
        }
        Some(position)
    }

    /// The descriptions that are not one and the same in both, which have the same members. Parts that
    /// both share are passed over.
    pub(crate) fn differing<'a>(
        &'a self,
        other: &'a Self,
    ) -> Vec<(&'a Arc<ServerDescription>, &'a Arc<ServerDescription>)> {
        let mut differing = Vec::new();
        differ(&self.root, &other.root, &mut differing);
        differing
    }

    /// Whether the address is one of them.
    pub fn contains(&self, address: &ServerAddress) -> bool {
        self.position(address).is_some()
    }

    /// The description under an address.
    pub fn get(&self, address: &ServerAddress) -> Option<&Arc<ServerDescription>> {
        self.position(address).map(|position| self.at(position))
    }

    /// The descriptions, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServerDescription>> + Clone {
        (0..self.len()).map(|position| self.at(position))
    }

    pub(crate) fn position(&self, address: &ServerAddress) -> Option<usize> {
        self.addresses.binary_search(address).ok()
    }

    /// # Panics
    ///
    /// If there is no such position: positions come from [`position`](Self::position) alone.
    pub(crate) fn at(&self, position: usize) -> &Arc<ServerDescription> {
        let mut node = &self.root;
        let mut level = self.depth;
        loop {
            match node {
                Node::Branch(children, _) => {
                    level -= 1;
                    node = &children[slot(position, level)];
                }
                Node::Leaf(server) => return server,
            }
        }
    }

    /// Puts a description in the place of the one with the same address; does nothing if there is
    /// none.
    pub(crate) fn replace(&mut self, server: Arc<ServerDescription>) {
        if let Some(position) = self.position(server.address()) {
            self.replace_at(position, server);
        }
    }

    /// `replace` by known index.
    pub(crate) fn replace_at(&mut self, position: usize, server: Arc<ServerDescription>) {
        debug_assert_eq!(self.addresses.get(position), Some(server.address()));
        self.root = replaced(&self.root, position, self.depth, server);
    }

    /// Adds those that are not there and drops those that `keep` refuses, in one rebuild. Nothing is
    /// rebuilt if nothing changes.
    pub(crate) fn change_members(
        &mut self,
        added: impl IntoIterator<Item = Arc<ServerDescription>>,
        mut keep: impl FnMut(&ServerAddress) -> bool,
    ) {
        let added: Vec<_> =
            added.into_iter().filter(|server| !self.contains(server.address())).collect();
        let kept: Vec<_> = self.iter().filter(|server| keep(server.address())).cloned().collect();
        if !added.is_empty() || kept.len() != self.len() {
            *self = Self::from_descriptions(kept.into_iter().chain(added));
        }
    }
}

const fn slot(position: usize, level: u32) -> usize {
    (position >> (level * FANOUT_BITS)) & (FANOUT - 1)
}

fn replaced(node: &Node, position: usize, level: u32, server: Arc<ServerDescription>) -> Node {
    match node {
        Node::Leaf(_) => Node::Leaf(server),
        Node::Branch(children, _) => {
            let changed = slot(position, level - 1);
            let child = replaced(&children[changed], position, level - 1, server);
            let mut child = Some(child);
            let copy = children.iter().enumerate().map(|(index, old)| match &mut child {
                new if index == changed => new.take().unwrap_or_else(|| old.clone()),
                _ => old.clone(),
            });
            Node::branch(copy.collect())
        }
    }
}

fn differ<'a>(
    one: &'a Node,
    other: &'a Node,
    differing: &mut Vec<(&'a Arc<ServerDescription>, &'a Arc<ServerDescription>)>,
) {
    match (one, other) {
        (Node::Branch(ours, _), Node::Branch(theirs, _)) if Arc::ptr_eq(ours, theirs) => {}
        (Node::Branch(ours, _), Node::Branch(theirs, _)) => {
            ours.iter().zip(theirs.iter()).for_each(|(one, other)| differ(one, other, differing));
        }
        (Node::Leaf(ours), Node::Leaf(theirs)) if !Arc::ptr_eq(ours, theirs) => {
            differing.push((ours, theirs));
        }
        // The same members hang in trees of the same shape.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::{HelloReply, MonotonicTime, WireVersionRange};

    use super::*;
    use crate::server_description::RoundTrips;

    fn server(number: usize) -> Arc<ServerDescription> {
        Arc::new(ServerDescription::unknown(address(number)))
    }

    fn address(number: usize) -> ServerAddress {
        format!("host{number:04}:27017").parse().unwrap()
    }

    #[test]
    fn every_size_finds_every_server_in_order() {
        for size in [0, 1, 2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1000] {
            let servers = Servers::from_descriptions((0..size).rev().map(server));
            assert_eq!(servers.len(), size);
            let listed: Vec<_> = servers.iter().map(|s| s.address().clone()).collect();
            assert_eq!(listed, (0..size).map(address).collect::<Vec<_>>());
            for number in 0..size {
                assert_eq!(servers.get(&address(number)).unwrap().address(), &address(number));
            }
            assert!(servers.get(&address(size)).is_none());
        }
    }

    #[test]
    fn replacing_one_shares_all_the_others() {
        let before = Servers::from_descriptions((0..1000).map(server));
        let mut after = before.clone();
        after.replace(server(500));
        let mut shared = 0;
        for (old, new) in before.iter().zip(after.iter()) {
            shared += usize::from(Arc::ptr_eq(old, new));
        }
        assert_eq!(shared, 999);
        assert!(Arc::ptr_eq(&before.addresses, &after.addresses));
    }

    /// A member of a set, a ghost or nothing at all, by number.
    fn described(number: usize, kind: usize) -> Arc<ServerDescription> {
        if kind == 0 {
            return server(number);
        }
        let reply = HelloReply {
            ok: true,
            set_name: (kind < 5).then(|| "rs0".to_owned()),
            is_writable_primary: kind == 1,
            secondary: matches!(kind, 2 | 3),
            is_replica_set: kind == 5,
            logical_session_timeout_minutes: (kind != 3).then_some(20 + kind as i64),
            wire_versions: WireVersionRange { min: kind as i32, max: 10 + number as i32 },
            ..HelloReply::default()
        };
        let round_trips = RoundTrips::default();
        let (address, at) = (address(number), MonotonicTime::ZERO);
        Arc::new(ServerDescription::from_reply(address, Arc::new(reply), round_trips, at))
    }

    /// The summary, the primary and the difference are what a walk over all servers would find.
    #[test]
    fn what_the_nodes_know_is_what_a_walk_finds() {
        let mut chance = 1_u64;
        let mut next = |below: usize| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (chance >> 33) as usize % below
        };
        for size in [1, 2, 8, 9, 70, 600] {
            let mut servers = Servers::from_descriptions((0..size).map(server));
            for _ in 0..100 {
                let before = servers.clone();
                for _ in 0..next(3) {
                    servers.replace(described(next(size), next(6)));
                }
                let walked = servers.iter().map(|server| Summary::of(server));
                assert_eq!(servers.summary(), walked.fold(Summary::EMPTY, Summary::join));
                let is_primary =
                    |server: &Arc<ServerDescription>| server.server_type() == ServerType::RsPrimary;
                assert_eq!(servers.primary(), servers.iter().position(is_primary));
                let pairs = before.iter().zip(servers.iter());
                let walked: Vec<_> = pairs.filter(|(old, new)| !Arc::ptr_eq(old, new)).collect();
                let found = before.differing(&servers);
                assert_eq!(found.len(), walked.len());
                for ((old, new), (walked_old, walked_new)) in found.into_iter().zip(walked) {
                    assert!(Arc::ptr_eq(old, walked_old) && Arc::ptr_eq(new, walked_new));
                }
            }
        }
    }

    #[test]
    fn replacing_a_stranger_does_nothing() {
        let mut servers = Servers::from_descriptions((0..3).map(server));
        servers.replace(server(3));
        assert_eq!(servers.len(), 3);
    }

    #[test]
    fn members_come_and_go_in_one_change() {
        let mut servers = Servers::from_descriptions((0..10).map(server));
        servers.change_members([server(10), server(3)], |kept| kept != &address(0));
        assert_eq!(servers.addresses(), (1..=10).map(address).collect::<Vec<_>>());
    }
}
