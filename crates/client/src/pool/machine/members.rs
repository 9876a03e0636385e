//! The connections of a pool by their numbers.
//!
//! Numbers rise, so that a new connection stands last and the order of the list is that of the numbers. Every operation
//! looks its connection up twice, which takes a few comparisons here.

use super::Member;
use crate::pool::ConnectionId;

#[derive(Debug, Default)]
pub(super) struct Members(Vec<(ConnectionId, Member)>);

impl Members {
    fn place(&self, id: ConnectionId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&id, |(id, _)| *id)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Member> {
        self.place(id).ok().map(|place| &self.0[place].1)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Member> {
        self.place(id).ok().map(|place| &mut self.0[place].1)
    }

    /// Adds a connection with a number of its own.
    pub(super) fn insert(&mut self, id: ConnectionId, member: Member) {
        match self.place(id) {
            Ok(_) => debug_assert!(false, "numbers are given out once"),
            Err(place) => self.0.insert(place, (id, member)),
        }
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Member> {
        self.place(id).ok().map(|place| self.0.remove(place).1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Member)> {
        self.0.iter().map(|(id, member)| (*id, member))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut Member)> {
        self.0.iter_mut().map(|(id, member)| (*id, member))
    }
}
