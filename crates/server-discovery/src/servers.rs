//! The servers of a topology: an ordered map that shares what did not change.
//!
//! A topology is replaced at every reply, and readers keep the old one as long as they like. So a
//! replacement must not copy the other servers: with 1,000 of them, that alone would cost more than
//! everything else the core does. The descriptions hang in a tree of small fixed nodes; replacing
//! one copies the nodes on the way to it, some thirty pointers for 1,000 servers. Membership changes
//! are rare and rebuild the tree.

use std::sync::Arc;

use quorate_protocol::ServerAddress;

use crate::server_description::ServerDescription;

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
    Branch(Arc<[Node]>),
    Leaf(Arc<ServerDescription>),
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
            level = level.chunks(FANOUT).map(|nodes| Node::Branch(nodes.into())).collect();
            depth += 1;
            if level.len() <= 1 {
                break;
            }
        }
        let root = level.pop().unwrap_or_else(|| Node::Branch(Arc::new([])));
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
                Node::Branch(children) => {
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

    /// The same, for who knows the place already.
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
        Node::Branch(children) => {
            let changed = slot(position, level - 1);
            let child = replaced(&children[changed], position, level - 1, server);
            let mut child = Some(child);
            let copy = children.iter().enumerate().map(|(index, old)| match &mut child {
                new if index == changed => new.take().unwrap_or_else(|| old.clone()),
                _ => old.clone(),
            });
            Node::Branch(copy.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
